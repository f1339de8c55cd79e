//! Subscriptions at nginx's nchan module, a hub that others wrote: everything comes, in each of the three ways.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use oroshi_bench::Draft as Base;
use oroshi_bench::push::{Draft, Mode, Publishing, Record, run};
use support::nginx::find;
use support::peer::Port;
use support::{HANG, skipped, wait_until};

struct Nchan {
    port: Port,
    child: Child,
    _folder: tempfile::TempDir,
}

impl Nchan {
    /// Starts one, or notes that `test` is left out.
    fn start(test: &str) -> Option<Self> {
        let Some(program) = find("nginx") else {
            skipped(test, "nginx is not installed");
            return None;
        };
        let Some(module) = module() else {
            skipped(test, "nginx's nchan module is not installed (Debian: libnginx-mod-nchan)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let port = Port::reserve();
        let config = folder.path().join("nginx.conf");
        std::fs::write(&config, configuration(folder.path(), &module, &port)).unwrap();
        let errors = folder.path().join("errors");
        let child = Command::new(program)
            .args(["-e", "stderr", "-p"])
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let mut nchan = Self { port, child, _folder: folder };
        wait_until("nginx serves", || {
            let ended = nchan.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", std::fs::read_to_string(&errors).unwrap());
            std::net::TcpStream::connect(nchan.port.address()).is_ok()
        });
        Some(nchan)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.port.address())
    }
}

impl Drop for Nchan {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Where distributions put modules.
fn module() -> Option<PathBuf> {
    let folders = ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/local/nginx/modules"];
    folders.into_iter().map(|folder| Path::new(folder).join("ngx_nchan_module.so")).find(|file| file.is_file())
}

fn configuration(folder: &Path, module: &Path, port: &Port) -> String {
    let (folder, module, address) = (folder.display(), module.display(), port.address());
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    format!(
        "load_module {module}; {user} daemon off; worker_processes 1; pid {folder}/pid; error_log stderr warn;
        events {{ worker_connections 2048; }}
        http {{
            access_log off;
            client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
            uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
            server {{
                listen {address};
                location = /pub {{ nchan_publisher; nchan_channel_id all; }}
                location = /sub {{ nchan_subscriber; nchan_channel_id all; nchan_subscriber_first_message newest; }}
                location = /raw {{
                    nchan_subscriber http-raw-stream; nchan_channel_id all; nchan_subscriber_first_message newest;
                }}
            }}
        }}"
    )
}

#[test]
fn every_message_comes_to_everybody() {
    let Some(nchan) = Nchan::start("every_message_comes_to_everybody") else { return };
    for (mode, path) in [(Mode::Ws, "sub"), (Mode::Sse, "sub"), (Mode::Stream, "raw")] {
        let publish = Publishing { url: nchan.url("pub").parse().unwrap(), headers: Vec::new(), publishers: 4 };
        let base = Base {
            urls: vec![nchan.url(path).parse().unwrap()],
            connections: 100,
            requests: Some(200),
            timeout: HANG,
            ..Base::default()
        };
        let draft = Draft { base, mode, publish: Some(publish), ..Draft::default() };
        let record: Record = run(draft.plan().unwrap(), &mut ()).unwrap();
        let deliveries = &record.deliveries;
        assert_eq!((record.subscriptions.opened, deliveries.delivered), (100, 20_000), "{mode:?}: {deliveries:?}");
        assert_eq!((deliveries.lost, deliveries.duplicated, deliveries.reordered), (0, 0, 0), "{mode:?}");
        assert!(record.server_cpu_us_per_delivery().is_some_and(|us| us > 0.0), "{:?}", record.server_unknown);
        assert!(record.idle.is_some_and(|idle| idle.rss_after_bytes >= 1), "its memory is known");
    }
}
