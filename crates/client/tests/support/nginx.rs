//! nginx, as a server that others wrote: plain, TLS and a unix socket.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{HANG, Identity, skipped};

/// An nginx of this test's own, until it is dropped.
pub struct Nginx {
    /// `http://127.0.0.1:PORT`.
    pub http: String,
    /// `https://localhost:PORT`.
    pub https: String,
    pub unix: PathBuf,
    pub identity: Identity,
    child: Child,
    _folder: tempfile::TempDir,
    // Bound and never listened at: nobody else gets the port, and nginx, which says SO_REUSEADDR as well, does.
    _ports: [socket2::Socket; 2],
}

impl Nginx {
    /// Starts one, or notes that `test` is left out.
    pub fn start(test: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders =
            std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
        let Some(program) = folders.map(|folder| folder.join("nginx")).find(|program| program.is_file()) else {
            skipped(test, "nginx is not installed");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new();
        let (first, http) = reserve();
        let (second, https) = reserve();
        let unix = folder.path().join("nginx.sock");
        std::fs::write(folder.path().join("large"), vec![b'x'; 1 << 20]).unwrap();
        std::fs::write(folder.path().join("text.html"), "a line of text\n".repeat(10_000)).unwrap();
        std::fs::write(folder.path().join("conf"), configuration(folder.path(), http, https, &unix, &identity))
            .unwrap();
        let errors = folder.path().join("errors");
        let child = Command::new(program)
            .args(["-e", "stderr", "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(folder.path().join("conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let mut nginx = Nginx {
            http: format!("http://{http}"),
            https: format!("https://localhost:{}", https.port()),
            unix,
            identity,
            child,
            _folder: folder,
            _ports: [first, second],
        };
        let began = Instant::now();
        while UnixStream::connect(&nginx.unix).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < HANG, "{:?}", std::fs::read_to_string(&errors));
            std::thread::yield_now();
        }
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn reserve() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

fn configuration(folder: &Path, http: SocketAddr, https: SocketAddr, unix: &Path, identity: &Identity) -> String {
    let (folder, unix) = (folder.display(), unix.display());
    let (cert, key) = (identity.path("server.pem"), identity.path("server.key"));
    format!(
        "daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr warn;
        events {{ worker_connections 1024; }}
        http {{
          access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
          fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
          types {{ text/html html; }}
          gzip on; gzip_min_length 100; gzip_types text/html; keepalive_requests 5;
          server {{
            listen {http}; listen unix:{unix}; listen {https} ssl;
            ssl_certificate {cert}; ssl_certificate_key {key};
            root {folder};
            location = / {{ return 200 \"hello from nginx\"; }}
            location = /away {{ return 302 /; }}
            location = /loop {{ return 302 /loop; }}
            location = /none {{ return 204; }}
            location = /post {{ client_max_body_size 10m; client_body_in_single_buffer on; proxy_pass http://unix:{unix}:/; }}
          }}
        }}",
        cert = cert.display(),
        key = key.display(),
    )
}
