//! The configuration of a target.

use std::path::PathBuf;
use std::time::Duration;

use oroshi_net::CpuList;
use oroshi_server::Settings;
use oroshi_stats::Shape;

use crate::answers::Rotation;

/// The configuration of a target.
#[derive(Debug)]
pub struct Plan {
    /// Listening addresses, besides inherited sockets.
    pub listen: Vec<ListenAddress>,
    /// The mean delay before a response.
    pub delay: Duration,
    /// The distribution of delays.
    pub shape: Shape,
    /// Rounds of arithmetic before each response.
    pub work: u64,
    /// Length of the body, bytes.
    pub size: u64,
    /// Whether the body is chunked.
    pub chunked: bool,
    /// Whether to close the connection after each response.
    pub close: bool,
    /// The statuses of responses.
    pub statuses: Rotation,
    /// Leaves one in this many requests unanswered.
    pub stall_one_in: Option<u64>,
    /// The certificate for https.
    pub tls: Option<TlsFiles>,
    /// Threads, at least 1.
    pub threads: usize,
    /// The CPUs to pin the threads to.
    pub cpus: Option<CpuList>,
}

/// A listening address.
#[derive(Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// The address as the user wrote it.
    pub typed: String,
    /// The address without its scheme.
    pub address: String,
    /// Whether clients speak TLS here.
    pub https: bool,
}

/// PEM files.
#[derive(Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, with its chain.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Plan {
    /// The server's settings. A target does not disturb measurements: it never closes idle or slow clients.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            idle_timeout: Duration::MAX,
            body_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(300),
            // The longest delays of a shape are several times the mean.
            drain_timeout: self
                .delay
                .saturating_mul(if self.shape == Shape::Constant { 1 } else { 20 })
                .saturating_add(Duration::from_secs(5)),
            // A replacement under load (`oroshi start`) must not lose a request of a kept connection.
            last_request_timeout: Duration::from_secs(1),
            connections: usize::MAX,
            ..Settings::default()
        }
    }
}
