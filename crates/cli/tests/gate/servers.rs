//! Servers that others wrote, behind the gateway: all with the application that `apps/app.go` describes, at a port and
//! at a unix socket.
#![allow(dead_code, unreachable_pub, reason = "a module of each test file, which uses its part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use oroshi_testkit::need;
use rustix::process::Signal;

use super::gate::Process;
use super::support::nginx::Nginx;

const APPS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gate/apps");

/// A server of this test's own, until it is dropped.
pub struct Server {
    pub kind: Kind,
    /// Where it listens, as the gateway's configuration writes it.
    pub tcp: String,
    pub unix: String,
    log: PathBuf,
    running: Running,
    _folder: tempfile::TempDir,
}

enum Running {
    Nginx(Box<Nginx>),
    Other(Process),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Puma,
    Gunicorn,
    Node,
    Go,
}

impl Kind {
    /// Whether its application opens WebSockets. The others answer as if they had not been asked.
    pub fn upgrades(self) -> bool {
        matches!(self, Kind::Puma | Kind::Node | Kind::Go)
    }

    /// Whether it reads trailers that come in two pieces. Puma 5.6 fails on them, and closes the connection.
    pub fn skips_trailers(self) -> bool {
        self != Kind::Puma
    }

    /// Whether its application gets to see trailers.
    pub fn has_trailers(self) -> bool {
        matches!(self, Kind::Node | Kind::Go)
    }
}

/// nginx answers before it has read the body, unless it has to pass it on: so it does, to itself, where the request is
/// logged with the length that was found. The body comes back as a variable of the one that has read it.
const NGINX: &str = r#"client_max_body_size 0; client_body_buffer_size 4m; client_body_in_single_buffer on;
    large_client_header_buffers 4 256k;
    ssi on; ssi_types *; ssi_value_length 4096; keepalive_requests 100000; keepalive_timeout 1h;
    location / { proxy_pass http://unix:@FOLDER@/inner.sock; proxy_set_header Host inner;
        proxy_headers_hash_max_size 1024; } }
    log_format read escape=none '$request_method $request_uri $content_length';
    server { listen unix:@FOLDER@/inner.sock; access_log @FOLDER@/read read;
        large_client_header_buffers 4 256k; client_max_body_size 0;
        add_header X-Read "$request_method $request_uri $content_length"; default_type application/octet-stream;
        location / { return 200 '<!--# echo var="request_body" default="" encoding="none" -->'; }"#;

impl Server {
    /// Starts one, or notes that `test` is left out.
    pub fn start(kind: Kind, test: &str) -> Option<Server> {
        let folder = tempfile::tempdir().unwrap();
        let (socket, log) = (folder.path().join("app.sock"), folder.path().join("read"));
        let mut command = match kind {
            Kind::Nginx => {
                let nginx = Nginx::start(test, NGINX)?;
                let (tcp, unix, log) = (nginx.tcp.to_string(), nginx.unix.to_string(), nginx.path("read"));
                return Some(Server {
                    kind,
                    tcp,
                    unix,
                    log,
                    running: Running::Nginx(Box::new(nginx)),
                    _folder: folder,
                });
            }
            Kind::Puma => {
                let mut command = program("puma", test)?;
                command.args(["--environment", "production", "--workers", "0", "--threads", "1:8"]);
                command.args(["--config", "-", "--bind", "tcp://127.0.0.1:0", "--bind"]);
                command.arg(format!("unix://{}", socket.display())).arg(app("app.ru"));
                command
            }
            Kind::Gunicorn => {
                let mut command = program("gunicorn", test)?;
                command.args(["--worker-class", "gthread", "--threads", "8", "--keep-alive", "3600", "--pythonpath"]);
                command.args([APPS, "--limit-request-line", "0"]);
                command.args(["--limit-request-fields", "32768", "--limit-request-field_size", "0"]);
                command.args(["--bind", "127.0.0.1:0", "--bind"]).arg(format!("unix:{}", socket.display()));
                command.arg("app:application").env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
            Kind::Node => {
                let mut command = program("node", test)?;
                command.arg(app("app.js")).args([&log, &socket]);
                command
            }
            Kind::Go => {
                let mut command = Command::new(built(test)?);
                command.args([&log, &socket]);
                command
            }
        };
        command.env("PEER_LOG", &log).current_dir(folder.path());
        let words = if kind == Kind::Gunicorn { "Booting worker" } else { "127.0.0.1:" };
        let mut process = Process::start(&mut command, words);
        let mut at = process.said.iter().filter_map(|line| line.split("127.0.0.1:").nth(1));
        let port = at.next().unwrap();
        let port: String = port.chars().take_while(char::is_ascii_digit).collect();
        if kind == Kind::Puma {
            process.until("Use Ctrl-C"); // the unix socket is there
        }
        let (tcp, unix) = (format!("127.0.0.1:{port}"), format!("unix:{}", socket.display()));
        Some(Server { kind, tcp, unix, log, running: Running::Other(process), _folder: folder })
    }

    /// The requests that it has read so far to their ends: method, target and length of the body.
    pub fn read(&self) -> Vec<Vec<u8>> {
        let log = fs::read(&self.log).unwrap_or_default();
        let mut lines: Vec<Vec<u8>> = log.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        // What stands behind the last line's end: nothing, or a line that is being written.
        lines.pop();
        // nginx has no length where there is no body.
        for line in lines.iter_mut().filter(|line| line.ends_with(b" ")) {
            line.push(b'0');
        }
        lines
    }

    /// Has it finish what it is at, and gives what it has read in its life.
    pub fn end(mut self) -> Vec<Vec<u8>> {
        if let Running::Other(process) = &mut self.running {
            process.signal(Signal::TERM);
            process.ended();
        }
        self.read()
    }
}

fn app(name: &str) -> PathBuf {
    Path::new(APPS).join(name)
}

fn program(name: &str, test: &str) -> Option<Command> {
    need(test, name).map(Command::new)
}

/// The application in Go, built where builds are. Go remembers what it has built.
fn built(test: &str) -> Option<PathBuf> {
    let mut go = program("go", test)?;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let built = folder.path().join("app");
    let output = go.args(["build", "-o"]).arg(&built).arg(app("app.go")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gate-app-in-go");
    fs::rename(&built, &kept).unwrap();
    Some(kept)
}
