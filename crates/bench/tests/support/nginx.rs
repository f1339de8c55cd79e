//! nginx, as a peer that others wrote, and that counts by itself.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::peer::Port;
use super::tls::Identity;
use super::{skipped, wait_until};

/// An nginx of this test's own, until it is dropped. `/` is a small answer, `/large` one of a megabyte.
pub struct Nginx {
    /// `http://127.0.0.1:PORT/`.
    pub http: String,
    /// `https://localhost:PORT/`, with this certificate.
    pub https: String,
    pub identity: Identity,
    /// The unix socket.
    pub unix: PathBuf,
    child: Child,
    /// How often its count was asked for.
    asked: u64,
    folder: tempfile::TempDir,
    _ports: [Port; 2],
}

impl Nginx {
    /// Starts one with `workers`, or notes that `test` is left out.
    pub fn start(test: &str, workers: usize) -> Option<Self> {
        let Some(program) = find("nginx") else {
            skipped(test, "nginx is not installed");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new();
        // nginx says SO_REUSEADDR as well, so it can listen at ports that are kept for it.
        let ports = [Port::reserve(), Port::reserve()];
        let (http, https) = (ports[0].address(), ports[1].address());
        let unix = folder.path().join("nginx.sock");
        let config = folder.path().join("nginx.conf");
        std::fs::write(folder.path().join("large"), vec![b'x'; 1 << 20]).unwrap();
        std::fs::write(&config, configuration(folder.path(), workers, &http, &https, &unix, &identity)).unwrap();
        let child = Command::new(program)
            .args(["-e", "stderr", "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path().join("errors")).unwrap())
            .spawn()
            .unwrap();
        let mut nginx = Self {
            http: format!("http://{http}/"),
            https: format!("https://localhost:{}/", https.port()),
            identity,
            unix,
            child,
            asked: 0,
            folder,
            _ports: ports,
        };
        wait_until("nginx serves", || {
            let ended = nginx.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", nginx.errors());
            UnixStream::connect(nginx.status_socket()).is_ok()
        });
        Some(nginx)
    }

    /// The unix socket as a URL with this path.
    pub fn unix_url(&self, path: &str) -> String {
        format!("unix:{}:{path}", self.unix.display())
    }

    /// The requests that nginx has counted so far, without those that ask for the count.
    pub fn requests(&mut self) -> u64 {
        let mut socket = UnixStream::connect(self.status_socket()).unwrap();
        socket.write_all(b"GET /status HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        // Below `server accepts handled requests` stand the three numbers.
        let numbers = answer.lines().skip_while(|line| !line.starts_with("server accepts")).nth(1);
        let counted: u64 = numbers.unwrap().split_whitespace().nth(2).unwrap().parse().unwrap();
        self.asked += 1;
        counted - self.asked
    }

    /// Its master process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn status_socket(&self) -> PathBuf {
        self.folder.path().join("status.sock")
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("errors")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Where a program is, also where only the superuser's PATH leads.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn configuration(
    folder: &Path,
    workers: usize,
    http: &std::net::SocketAddr,
    https: &std::net::SocketAddr,
    unix: &Path,
    identity: &Identity,
) -> String {
    let (folder, unix) = (folder.display(), unix.display());
    let (certificate, key) = identity.files();
    let (certificate, key) = (certificate.display(), key.display());
    // Only the superuser's nginx may, and must, say who its workers are.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    format!(
        "{user} daemon off; worker_processes {workers}; pid {folder}/pid; error_log stderr warn;
        events {{ worker_connections 2048; }}
        http {{
            access_log off; default_type text/plain;
            client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
            server {{
                listen {http}; listen {https} ssl; listen unix:{unix};
                ssl_certificate {certificate}; ssl_certificate_key {key};
                location / {{ return 200 hello; }}
                location /large {{ root {folder}; }}
                location /missing {{ return 404; }}
            }}
            server {{ listen unix:{folder}/status.sock; location /status {{ stub_status; }} }}
        }}"
    )
}
