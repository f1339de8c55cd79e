//! Every way a request can fail, each with one name.

use serde::{Deserialize, Serialize};

/// Why a request, or an attempt to connect, did not end as it should.
///
/// The names are part of the JSON schema and of `--fail-if`; they never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Failure {
    /// A name did not resolve. Resolution happens once, before the run, so this one ends it there.
    Dns,
    /// Nobody listens: ECONNREFUSED, or a unix socket's file without a listener. During a run also every other reason that
    /// has no name of its own: the network is unreachable, or this machine has no descriptor or no permission to give.
    ConnectRefused,
    /// The connection, TLS handshake included, was not there within the timeout.
    ConnectTimeout,
    /// A unix socket's backlog stayed full until the timeout (EAGAIN, retried).
    ConnectBacklog,
    /// No local port was free for a new connection (EADDRNOTAVAIL).
    PortsExhausted,
    /// The TLS handshake failed, or a TLS record was bad.
    Tls,
    /// The request could not be written: the peer had closed.
    Write,
    /// The connection was reset before the answer was whole.
    ReadReset,
    /// The connection was closed before the answer was whole.
    ReadEof,
    /// The answer is not HTTP/1.1, or more came than was asked for.
    Parse,
    /// No whole answer within the timeout. The connection is replaced, and requests pipelined on it end with it.
    Timeout,
    /// An answer came, with a status of 400 or more.
    Status,
    /// An answer came, and one of the plan's checks did not hold for it.
    Check,
    /// The run ended first: not the server's fault, and counted apart from errors.
    CutOffAtEnd,
}

impl Failure {
    /// All of them, in the order of a request's life.
    pub const ALL: [Self; 14] = [
        Self::Dns,
        Self::ConnectRefused,
        Self::ConnectTimeout,
        Self::ConnectBacklog,
        Self::PortsExhausted,
        Self::Tls,
        Self::Write,
        Self::ReadReset,
        Self::ReadEof,
        Self::Parse,
        Self::Timeout,
        Self::Status,
        Self::Check,
        Self::CutOffAtEnd,
    ];

    /// The name that reports, JSON and `--fail-if` use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::ConnectRefused => "connect-refused",
            Self::ConnectTimeout => "connect-timeout",
            Self::ConnectBacklog => "connect-backlog",
            Self::PortsExhausted => "ports-exhausted",
            Self::Tls => "tls",
            Self::Write => "write",
            Self::ReadReset => "read-reset",
            Self::ReadEof => "read-eof",
            Self::Parse => "parse",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Check => "check",
            Self::CutOffAtEnd => "cut-off-at-end",
        }
    }

    /// Whether it counts as an error. What the end of the run cut off does not: the server may yet have answered.
    #[must_use]
    pub fn is_error(self) -> bool {
        self != Self::CutOffAtEnd
    }

    /// Whether it happened while a connection was being made.
    #[must_use]
    pub fn is_connect(self) -> bool {
        matches!(
            self,
            Self::Dns
                | Self::ConnectRefused
                | Self::ConnectTimeout
                | Self::ConnectBacklog
                | Self::PortsExhausted
                | Self::Tls
        )
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each failure happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts([u64; Failure::ALL.len()]);

impl FailureCounts {
    /// Counts one.
    pub fn add(&mut self, failure: Failure) {
        self.add_many(failure, 1);
    }

    /// Counts `n` of the same.
    pub fn add_many(&mut self, failure: Failure, n: u64) {
        self.0[failure as usize] += n;
    }

    /// How many of this one.
    #[must_use]
    pub fn get(&self, failure: Failure) -> u64 {
        self.0[failure as usize]
    }

    /// Those that happened, in the order of [`Failure::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Failure, u64)> + '_ {
        Failure::ALL.into_iter().map(|f| (f, self.get(f))).filter(|&(_, n)| n > 0)
    }

    /// The sum of all that are errors: every name but `cut-off-at-end`.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.iter().filter(|(f, _)| f.is_error()).map(|(_, n)| n).sum()
    }

    /// Adds another core's counts to these.
    pub fn merge(&mut self, other: &Self) {
        for (to, from) in self.0.iter_mut().zip(other.0) {
            *to += from;
        }
    }
}

impl FromIterator<(Failure, u64)> for FailureCounts {
    fn from_iter<I: IntoIterator<Item = (Failure, u64)>>(counts: I) -> Self {
        let mut all = Self::default();
        for (failure, n) in counts {
            all.add_many(failure, n);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_what_serde_writes_and_the_table_is_in_order() {
        for (i, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, i);
            let mut counts = FailureCounts::default();
            counts.add(failure);
            assert_eq!(counts.iter().collect::<Vec<_>>(), [(failure, 1)]);
            assert_eq!(counts.errors(), u64::from(failure != Failure::CutOffAtEnd));
        }
    }
}
