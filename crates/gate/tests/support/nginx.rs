//! nginx, as a server that others wrote: on a port and on a unix socket.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use oroshi_gate::upstream::Target;

use super::{HANG, skipped};

/// An nginx of this test's own, until it is dropped.
pub struct Nginx {
    pub tcp: Target,
    pub unix: Target,
    pub folder: PathBuf,
    child: Child,
    _folder: tempfile::TempDir,
    // Bound and never listened at: nobody else gets the port, and nginx, which says SO_REUSEADDR as well, does.
    _port: socket2::Socket,
}

impl Nginx {
    /// Starts one whose server block holds this, or notes that `test` is left out. `FOLDER` stands for its own folder.
    pub fn start(test: &str, server: &str) -> Option<Nginx> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders =
            std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
        let Some(program) = folders.map(|folder| folder.join("nginx")).find(|program| program.is_file()) else {
            skipped(test, "nginx is not installed");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let (port, address) = reserve();
        let socket = folder.path().join("nginx.sock");
        std::fs::write(folder.path().join("conf"), configuration(folder.path(), address, &socket, server)).unwrap();
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
        let unix = format!("unix:{}", socket.display()).parse().unwrap();
        let tcp = Target::Peer(address.into());
        let path = folder.path().to_owned();
        let mut nginx = Nginx { tcp, unix, folder: path, child, _folder: folder, _port: port };
        let began = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            let ended = nginx.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < HANG, "{:?}", std::fs::read_to_string(&errors));
            std::thread::yield_now();
        }
        Some(nginx)
    }

    /// What it has logged where it was told to: one line for each request, with its `X-Case`, method, target and length.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("access")).unwrap_or_default()
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

fn configuration(folder: &Path, address: SocketAddr, unix: &Path, server: &str) -> String {
    let (folder, unix) = (folder.display(), unix.display());
    let server = server.replace("FOLDER", &folder.to_string());
    format!(
        "daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr error;
        events {{ worker_connections 1024; }}
        http {{
          client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
          fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
          log_format case '$http_x_case $request_method $request_uri $content_length';
          access_log off; client_max_body_size 200m;
          server {{ listen {address}; listen unix:{unix}; root {folder}; {server} }}
        }}"
    )
}
