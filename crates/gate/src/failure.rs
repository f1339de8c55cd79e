//! Every way in which a request can fail between the gateway and a server behind it: its name, its status, what is told.

use std::fmt;

use oroshi_net::{ConnectError, Peer};

/// Why a request got no whole answer. Each has one stable name, for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// There is no target.
    NoTarget,
    /// The target has as many connections as it may have, and as many requests wait for one as may. Raise the limits, or give it
    /// company.
    QueueFull,
    /// No connection came free within the time that a request waits for one. As above.
    QueueTimeout,
    /// The target's name could not be looked up.
    Resolve,
    /// The target's address is not among those that are allowed.
    NotAllowed,
    /// The target is where the gateway itself listens. Correct the row, or the script, that names it.
    OwnAddress,
    /// The target does not take the connection. Start the server, or correct the address.
    Connect,
    /// The target did not answer the connect in time.
    ConnectTimeout,
    /// This machine has no port or no descriptor left for one more connection.
    Exhausted,
    /// The target did not take the request's bytes in time.
    SendTimeout,
    /// The connection was closed or reset before any of the answer had come.
    Closed,
    /// The answer's head did not come in time.
    HeadTimeout,
    /// What came is no HTTP/1.1 answer to this request, or goes over a limit.
    Malformed,
    /// The connection was closed or reset in the middle of the answer.
    Cut,
    /// The answer's body, or what goes through a tunnel, paused for too long.
    BodyTimeout,
    /// The whole exchange took too long.
    TotalTimeout,
    /// The client was gone, or did not read, before it had its answer.
    ClientGone,
    /// The client's own body was malformed, over a limit, cut off or too slow. The server answers with the fitting 4xx.
    ClientBody,
    /// The route's script failed when it looked at the answer. Correct the line that the detail names.
    Script,
}

/// What a client is told of a script that failed, whenever that was.
pub(crate) const SCRIPT_FAILED: &str = "a script of this gateway failed";

impl Failure {
    /// Every failure, in the order of [`Counts::failures`](crate::upstream::Counts::failures).
    pub const ALL: [Failure; 19] = [
        Failure::NoTarget,
        Failure::QueueFull,
        Failure::QueueTimeout,
        Failure::Resolve,
        Failure::NotAllowed,
        Failure::OwnAddress,
        Failure::Connect,
        Failure::ConnectTimeout,
        Failure::Exhausted,
        Failure::SendTimeout,
        Failure::Closed,
        Failure::HeadTimeout,
        Failure::Malformed,
        Failure::Cut,
        Failure::BodyTimeout,
        Failure::TotalTimeout,
        Failure::ClientGone,
        Failure::ClientBody,
        Failure::Script,
    ];

    /// A stable kebab-case name.
    pub fn name(self) -> &'static str {
        match self {
            Failure::NoTarget => "no-target",
            Failure::QueueFull => "queue-full",
            Failure::QueueTimeout => "queue-timeout",
            Failure::Resolve => "resolve",
            Failure::NotAllowed => "not-allowed",
            Failure::OwnAddress => "own-address",
            Failure::Connect => "connect",
            Failure::ConnectTimeout => "connect-timeout",
            Failure::Exhausted => "exhausted",
            Failure::SendTimeout => "send-timeout",
            Failure::Closed => "closed",
            Failure::HeadTimeout => "head-timeout",
            Failure::Malformed => "malformed",
            Failure::Cut => "cut",
            Failure::BodyTimeout => "body-timeout",
            Failure::TotalTimeout => "total-timeout",
            Failure::ClientGone => "client-gone",
            Failure::ClientBody => "client-body",
            Failure::Script => "script",
        }
    }

    /// The status that it is answered with, as long as no answer has begun; `None` where the fault is the client's.
    pub fn status(self) -> Option<u16> {
        match self {
            Failure::NoTarget | Failure::QueueFull | Failure::QueueTimeout | Failure::Exhausted => Some(503),
            Failure::ConnectTimeout | Failure::SendTimeout | Failure::HeadTimeout => Some(504),
            Failure::BodyTimeout | Failure::TotalTimeout => Some(504),
            Failure::Resolve | Failure::NotAllowed | Failure::OwnAddress | Failure::Connect => Some(502),
            Failure::Closed | Failure::Malformed | Failure::Cut => Some(502),
            Failure::Script => Some(500),
            Failure::ClientGone | Failure::ClientBody => None,
        }
    }

    /// What the client is told: in which phase it failed, and nothing of what is behind the gateway.
    pub fn text(self) -> &'static str {
        match self {
            Failure::NoTarget => "no server is left to answer this request",
            Failure::QueueFull => "too many requests wait for the server behind this gateway",
            Failure::QueueTimeout => "no connection to the server behind this gateway came free in time",
            Failure::Resolve | Failure::NotAllowed | Failure::OwnAddress | Failure::Connect => {
                "the server behind this gateway cannot be reached"
            }
            Failure::ConnectTimeout => "the server behind this gateway did not take the connection in time",
            Failure::Exhausted => "this gateway cannot open another connection at the moment",
            Failure::SendTimeout => "the server behind this gateway did not take the request in time",
            Failure::Closed => "the server behind this gateway closed the connection without an answer",
            Failure::HeadTimeout => "the server behind this gateway did not answer in time",
            Failure::Malformed => "the server behind this gateway gave an answer that is not valid",
            Failure::Cut => "the server behind this gateway broke its answer off",
            Failure::BodyTimeout => "the server behind this gateway paused for too long in its answer",
            Failure::TotalTimeout => "this request took too long",
            Failure::ClientGone => "the client is gone",
            Failure::ClientBody => "the request's body is not valid",
            Failure::Script => SCRIPT_FAILED,
        }
    }

    /// Whether it says something of the target's health.
    pub(crate) fn is_the_targets(self) -> bool {
        match self {
            Failure::Resolve | Failure::Connect | Failure::ConnectTimeout | Failure::SendTimeout => true,
            Failure::Closed | Failure::HeadTimeout | Failure::Malformed | Failure::Cut | Failure::BodyTimeout => true,
            Failure::NoTarget | Failure::QueueFull | Failure::QueueTimeout | Failure::NotAllowed => false,
            Failure::OwnAddress
            | Failure::Exhausted
            | Failure::TotalTimeout
            | Failure::ClientGone
            | Failure::ClientBody
            | Failure::Script => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure on the way, with what the log is told of it.
#[derive(Debug)]
pub(crate) struct ForwardError {
    pub(crate) failure: Failure,
    /// What exactly, perhaps empty. Not for the client.
    pub(crate) detail: String,
    /// Whether the target may have got something of the request.
    pub(crate) sent: bool,
}

impl ForwardError {
    /// Nothing of the request was sent.
    #[cold]
    pub(crate) fn unsent(failure: Failure, detail: impl FnOnce() -> String) -> Self {
        ForwardError { failure, detail: detail(), sent: false }
    }

    /// Some of the request was sent, or all of it.
    #[cold]
    pub(crate) fn sent(failure: Failure, detail: impl Into<String>) -> Self {
        ForwardError { failure, detail: detail.into(), sent: true }
    }

    #[cold]
    pub(crate) fn connect(peer: &Peer, error: &ConnectError) -> Self {
        let failure = match error {
            ConnectError::Timeout | ConnectError::Backlog => Failure::ConnectTimeout,
            ConnectError::PortsExhausted | ConnectError::Descriptors(_) => Failure::Exhausted,
            _ => Failure::Connect,
        };
        ForwardError::unsent(failure, || format!("{peer}: {}: {error}", error.name()))
    }
}
