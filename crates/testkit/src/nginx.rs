//! nginx: a server that others wrote, and that counts its requests by itself.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Daemon, Identity, Port, need, skipped};

/// An nginx of one test. Dropping it kills it.
#[derive(Debug)]
pub struct Nginx {
    /// The port of 127.0.0.1 that the configuration calls `@TCP@`.
    pub tcp: SocketAddr,
    /// The port of 127.0.0.1 that the configuration calls `@TLS@`.
    pub tls: SocketAddr,
    /// The unix socket that the configuration calls `@UNIX@`.
    pub unix: PathBuf,
    /// `http://127.0.0.1:PORT/`, the URL of `tcp`.
    pub http: String,
    /// `https://localhost:PORT/`, the URL of `tls` with the name in the certificate.
    pub https: String,
    /// Its certificate.
    pub identity: Identity,
    daemon: Daemon,
    /// How often its count was asked for.
    asked: u64,
    // nginx sets SO_REUSEADDR as well, so it can listen at reserved ports.
    _ports: [Port; 2],
}

/// Returns the line that loads a module of nginx, for [`Setup::main`], or notes that `test` was left out. `name`: the
/// module's file without its ending, for example `ngx_stream_module`. `package`: Debian's.
#[must_use]
pub fn load_module(test: &str, name: &str, package: &str) -> Option<String> {
    // Where distributions put modules.
    let folders = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/local/nginx/modules"];
    let mut files = folders.into_iter().map(|folder| Path::new(folder).join(format!("{name}.so")));
    let found = files.find(|file| file.is_file());
    if found.is_none() {
        skipped(test, &format!("nginx's module {name} is not installed (Debian: {package})"));
    }
    found.map(|file| format!("load_module {};", file.display()))
}

/// An nginx that is not yet started.
#[derive(Clone, Debug, Default)]
pub struct Setup<'s> {
    /// Worker processes. With 0 there is one process alone.
    pub workers: usize,
    /// Lines before all others, such as `load_module`.
    pub main: &'s str,
    /// The contents of `http { }`. In it `@TCP@` and `@TLS@` stand for addresses, `@UNIX@` for a socket's path,
    /// `@FOLDER@` for nginx's own folder, `@CERTIFICATE@` and `@KEY@` for files. Logs are off, and temporary files go
    /// to the folder.
    pub http: &'s str,
    /// Files in its folder: name and contents.
    pub files: &'s [(&'s str, &'s [u8])],
}

impl Setup<'_> {
    /// Starts it, or notes that `test` was left out.
    #[must_use]
    pub fn start(&self, test: &str) -> Option<Nginx> {
        let program = need(test, "nginx")?;
        let folder = TempDir::new().unwrap();
        let (identity, ports) = (Identity::new(), [Port::reserve(), Port::reserve()]);
        let (tcp, tls) = (ports[0].address(), ports[1].address());
        let (unix, status) = (folder.path().join("nginx.sock"), folder.path().join("status.sock"));
        let (certificate, key) = identity.files();
        let values = [
            ("@CERTIFICATE@", certificate.display().to_string()),
            ("@FOLDER@", folder.path().display().to_string()),
            ("@UNIX@", unix.display().to_string()),
            ("@TCP@", tcp.to_string()),
            ("@TLS@", tls.to_string()),
            ("@KEY@", key.display().to_string()),
        ];
        let text = values.iter().fold(self.configuration(), |text, (name, value)| text.replace(name, value));
        fs::write(folder.path().join("nginx.conf"), text).unwrap();
        for (name, contents) in self.files {
            fs::write(folder.path().join(name), contents).unwrap();
        }
        let mut command = Command::new(program);
        command.args(["-e", "stderr", "-p"]).arg(folder.path()).arg("-c").arg(folder.path().join("nginx.conf"));
        let daemon = Daemon::start(command, status, folder)?;
        let (http, https) = (format!("http://{tcp}/"), format!("https://localhost:{}/", tls.port()));
        Some(Nginx { tcp, tls, unix, http, https, identity, daemon, asked: 0, _ports: ports })
    }

    fn configuration(&self) -> String {
        // Only the superuser's nginx may, and must, name the user of its workers.
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let processes = match self.workers {
            0 => "master_process off; worker_processes 1;".to_owned(),
            workers => format!("{user} worker_processes {workers};"),
        };
        // The last server tells by its socket that all listen: nginx opens ports first.
        format!(
            "{main} daemon off; {processes} pid @FOLDER@/pid; error_log stderr warn;
            events {{ worker_connections 2048; }}
            http {{
                access_log off; default_type text/plain;
                client_body_temp_path @FOLDER@/body; proxy_temp_path @FOLDER@/proxy; fastcgi_temp_path @FOLDER@/fastcgi;
                uwsgi_temp_path @FOLDER@/uwsgi; scgi_temp_path @FOLDER@/scgi;
                {http}
                server {{ listen unix:@FOLDER@/status.sock; location /status {{ stub_status; }} }}
            }}",
            main = self.main,
            http = self.http,
        )
    }
}

impl Nginx {
    /// The requests that nginx has counted so far, without those that ask for the count.
    pub fn requests(&mut self) -> u64 {
        let mut socket = UnixStream::connect(self.daemon.socket()).unwrap();
        socket.write_all(b"GET /status HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        // Below `server accepts handled requests` stand the three numbers.
        let numbers = answer.lines().skip_while(|line| !line.starts_with("server accepts")).nth(1);
        let counted: u64 = numbers.unwrap().split_whitespace().nth(2).unwrap().parse().unwrap();
        self.asked += 1;
        counted - self.asked
    }

    /// The URL of the unix socket with this path.
    #[must_use]
    pub fn unix_url(&self, path: &str) -> String {
        format!("unix:{}:{path}", self.unix.display())
    }

    /// Its master process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// A file in its folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.daemon.folder.path().join(name)
    }
}
