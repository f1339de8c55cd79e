//! Every way in which a request can fail, each with one name.

use oroshi_net::ConnectError;
use oroshi_words::named::values;
use serde::{Deserialize, Serialize};

/// Why a request, or an attempt to connect, failed.
///
/// The names are part of the JSON schema and of `--fail-if`; they never change meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Failure {
    /// A name did not resolve. Names are resolved once, before the run: this failure ends it there.
    Dns,
    /// Nobody listens: ECONNREFUSED, or a unix socket's file without a listener.
    ///
    /// During a run also every reason without a name of its own: the network is unreachable, descriptors ran out, a
    /// permission is missing.
    ConnectRefused,
    /// The connection, TLS handshake included, was not ready within the timeout.
    ConnectTimeout,
    /// A unix socket's backlog stayed full until the timeout (EAGAIN, retried).
    ConnectBacklog,
    /// No local port was free for a new connection (EADDRNOTAVAIL).
    PortsExhausted,
    /// The TLS handshake failed, or a TLS record was bad.
    Tls,
    /// The request could not be written: the peer had closed.
    Write,
    /// The connection was reset before the response was whole.
    ReadReset,
    /// The connection was closed before the response was whole.
    ReadEof,
    /// The server ended an HTTP/2 connection (GOAWAY) before the response was whole. Requests that it announced not to
    /// have processed, without an error, are sent again instead.
    Goaway,
    /// The server reset the stream before the response was whole (RST_STREAM); the record has the codes.
    StreamReset,
    /// The response is not HTTP, or more came than was asked for.
    Parse,
    /// No whole response within the timeout. The connection is replaced; requests pipelined on it fail too. Over HTTP/2
    /// the stream is reset, and the connection is replaced if nothing came on it either.
    Timeout,
    /// No whole response within the timeout, and the server opened no window for the rest of the request's body
    /// (HTTP/2).
    FlowControlStall,
    /// A response with a status of 400 or more.
    Status,
    /// A response that broke one of the plan's checks.
    Check,
    /// The run ended first: not the server's fault, and no error.
    CutOffAtEnd,
}

impl Failure {
    /// All of them with their names, in order.
    const NAMED: [(Self, &'static str); 17] = [
        (Self::Dns, "dns"),
        (Self::ConnectRefused, "connect-refused"),
        (Self::ConnectTimeout, "connect-timeout"),
        (Self::ConnectBacklog, "connect-backlog"),
        (Self::PortsExhausted, "ports-exhausted"),
        (Self::Tls, "tls"),
        (Self::Write, "write"),
        (Self::ReadReset, "read-reset"),
        (Self::ReadEof, "read-eof"),
        (Self::Goaway, "goaway"),
        (Self::StreamReset, "stream-reset"),
        (Self::Parse, "parse"),
        (Self::Timeout, "timeout"),
        (Self::FlowControlStall, "flow-control-stall"),
        (Self::Status, "status"),
        (Self::Check, "check"),
        (Self::CutOffAtEnd, "cut-off-at-end"),
    ];

    /// All of them, in the order of a request's life.
    pub const ALL: [Self; 17] = values(&Self::NAMED);

    /// Returns the name in reports, JSON and `--fail-if`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].1
    }

    /// Whether it is an error. `CutOffAtEnd` is none: the server might have responded later.
    #[must_use]
    pub fn is_error(self) -> bool {
        self != Self::CutOffAtEnd
    }

    /// Whether the response ended early, or was no HTTP: a read error in wrk.
    #[must_use]
    pub fn is_read(self) -> bool {
        matches!(self, Self::ReadReset | Self::ReadEof | Self::Goaway | Self::StreamReset | Self::Parse)
    }

    /// Whether the request's time was over.
    #[must_use]
    pub fn is_timeout(self) -> bool {
        matches!(self, Self::Timeout | Self::FlowControlStall)
    }

    /// Whether it is a failure to connect.
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

impl From<&ConnectError> for Failure {
    fn from(error: &ConnectError) -> Self {
        match error {
            ConnectError::Timeout => Self::ConnectTimeout,
            ConnectError::Backlog => Self::ConnectBacklog,
            ConnectError::PortsExhausted => Self::PortsExhausted,
            ConnectError::Tls(_) => Self::Tls,
            _ => Self::ConnectRefused,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each failure happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Returns how often this one happened.
    #[must_use]
    pub fn get(&self, failure: Failure) -> u64 {
        self.0[failure as usize]
    }

    /// Iterates over those that happened, in the order of [`Failure::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Failure, u64)> + '_ {
        Failure::ALL.into_iter().map(|f| (f, self.get(f))).filter(|&(_, n)| n > 0)
    }

    /// Returns the sum of all errors: every name but `cut-off-at-end`.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.iter().filter(|(f, _)| f.is_error()).map(|(_, n)| n).sum()
    }

    /// Adds the counts of another core.
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
