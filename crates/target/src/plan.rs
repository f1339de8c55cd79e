//! What a target does.

use std::path::PathBuf;
use std::time::Duration;

use oroshi_net::CpuList;
use oroshi_server::Settings;
use oroshi_stats::Shape;

use crate::answers::Rotation;

/// What a target does.
#[derive(Debug)]
pub struct Plan {
    /// Where it listens, beside inherited sockets.
    pub places: Vec<Place>,
    /// The mean delay before an answer.
    pub delay: Duration,
    /// How delays are distributed around it.
    pub shape: Shape,
    /// Rounds of arithmetic before each answer.
    pub work: u64,
    /// Length of the body, bytes.
    pub size: u64,
    /// Sends the body in the chunked coding.
    pub chunked: bool,
    /// Closes the connection after each answer.
    pub close: bool,
    /// The statuses that it answers with.
    pub statuses: Rotation,
    /// Never answers every so many-th request.
    pub stall_one_in: Option<u64>,
    /// The certificate for https.
    pub tls: Option<TlsFiles>,
    /// Threads, at least 1.
    pub threads: usize,
    /// The CPUs to pin the threads to.
    pub cpus: Option<CpuList>,
}

/// Where to listen.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
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
    /// A target does not get in the way of what is measured: it never tires of an idle or slow client.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            idle_timeout: Duration::MAX,
            body_timeout: Duration::from_secs(300),
            write_timeout: Duration::from_secs(300),
            // The longest delays of a shape are some times the mean.
            drain_timeout: self
                .delay
                .saturating_mul(if self.shape == Shape::Constant { 1 } else { 20 })
                .saturating_add(Duration::from_secs(5)),
            // Whoever replaces it under load (`oroshi start`) is not to lose a request of a kept connection.
            last_request_timeout: Duration::from_secs(1),
            connections: usize::MAX,
            ..Settings::default()
        }
    }
}
