//! Shared helpers of these tests.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::Write;
use std::process::Command;

use oroshi_net::{BoundListener, ConnectError, Connected, Connector, ConnectorOptions, ListenOptions, Peer};
use tokio::runtime::{Builder, LocalOptions};

/// Runs a future on its own runtime, as a thread of `Cores` does.
pub(crate) fn on_a_core<F: Future>(future: F) -> F::Output {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap().block_on(future)
}

/// Binds a listener with default options.
pub(crate) fn listener(address: &str) -> BoundListener {
    BoundListener::bind(address, &ListenOptions::default()).unwrap()
}

/// Binds a listener with a small backlog.
pub(crate) fn narrow_listener(address: &str) -> BoundListener {
    BoundListener::bind(address, &ListenOptions { backlog: 1, ..ListenOptions::default() }).unwrap()
}

/// Connects with default options and no deadline.
pub(crate) async fn connect(peer: &Peer) -> Result<Connected, ConnectError> {
    Connector::new(ConnectorOptions::default()).connect(peer, None).await
}

/// Returns a socket's address in a temporary folder, which lives as long as the first value.
pub(crate) fn unix_address() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("socket").display());
    (folder, address)
}

/// Returns a name in the abstract namespace that no other test has.
pub(crate) fn abstract_address() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("unix:@oroshi-net-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs one ignored test of this binary in its own process, where it may change the process's limits, signals and
/// descriptors. `sh` first runs `shell`, for example to set variables.
pub(crate) fn in_a_process(test: &str, shell: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell} exec \"$@\""), "sh"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "--test-threads=1", test]);
    command
}

/// Runs such a command to its end, and checks that exactly one test passed.
pub(crate) fn must_pass(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether this machine (or container) has IPv6.
pub(crate) fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}

/// Reports a skipped test, and why.
#[allow(clippy::print_stderr, reason = "for whoever runs this test alone")]
pub(crate) fn skipped(name: &str, why: &str) {
    let line = format!("skipped: {name}: {why}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("OROSHI_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("OROSHI_SKIPPED names a file");
        file.write_all(line.as_bytes()).expect("a line in OROSHI_SKIPPED");
    }
}
