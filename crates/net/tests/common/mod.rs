//! Shared helpers of these tests.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

use std::process::Command;

use oroshi_net::{BoundListener, ConnectError, Connected, Connector, ConnectorOptions, ListenOptions, Peer};
use oroshi_testkit::ports::abstract_name;
pub(crate) use oroshi_testkit::{must_pass, skipped};
use tokio::runtime::{Builder, LocalOptions};

/// Runs a future on its own runtime, as a thread of `Threads` does.
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
    format!("unix:@{}", abstract_name())
}

/// Runs one ignored test of this binary in its own process, where it may change the process's limits, signals and
/// descriptors. `sh` first runs `shell`, for example to set variables.
pub(crate) fn in_a_process(test: &str, shell: &str) -> Command {
    oroshi_testkit::in_a_process(&["sh", "-c", &format!("{shell} exec \"$@\""), "sh"], test)
}

/// Whether this machine (or container) has IPv6.
pub(crate) fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}
