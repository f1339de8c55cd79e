//! How forwarding a request can fail: names, statuses and messages.

use std::fmt;

use oroshi_http2::ErrorCode;
use oroshi_net::tls::TlsError;
use oroshi_net::{ConnectError, Peer};
use oroshi_words::named::values;

/// Why a request got no complete response. Each failure has a stable name for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// There is no target.
    NoTarget,
    /// The target is at its limit of connections, and its queue is full. Raise the limits, or add targets.
    QueueFull,
    /// No connection became free within the queue timeout. Raise the limits, or add targets.
    QueueTimeout,
    /// The resolver found no address for the target's name.
    Resolve,
    /// The target's address is not among the allowed ones.
    NotAllowed,
    /// The target is a listener of the gateway itself. Correct the row or the script that names it.
    OwnAddress,
    /// The target refuses connections. Start the server, or correct the address.
    Connect,
    /// The target did not accept the connection in time.
    ConnectTimeout,
    /// The TLS handshake with the target failed: the target does not speak TLS, or neither its versions nor its
    /// protocols
    /// fit, or it refused the gateway's certificate.
    Tls,
    /// The target's certificate is not trusted, expired or of another name. Correct the certificate, or the settings
    /// `tls.ca` and `tls.server-name`.
    TlsCertificate,
    /// The TLS handshake with the target did not end in time.
    TlsTimeout,
    /// The target agreed to another protocol in each handshake.
    Protocol,
    /// This machine has no port or no descriptor left for another connection.
    Exhausted,
    /// The target did not read the request in time.
    SendTimeout,
    /// The target, which speaks HTTP/2, refused the stream (REFUSED_STREAM) or left it out with its GOAWAY: it has not
    /// processed the request.
    Refused,
    /// The target speaks HTTP/2 and does not allow WebSocket over it (RFC 8441). Give WebSocket a route to a target of
    /// HTTP/1.
    NoWebSocket,
    /// The target closed or reset the connection, or the stream, before any byte of the response.
    Closed,
    /// The response's head did not arrive in time.
    HeadTimeout,
    /// The target sent no valid response to this request, or exceeded a limit.
    Malformed,
    /// The target closed or reset the connection, or the stream, in the middle of the response.
    Cut,
    /// The response's body, or a tunnel, paused for too long.
    BodyTimeout,
    /// The whole exchange took too long.
    TotalTimeout,
    /// The client left, or stopped reading, before the end of the response.
    ClientGone,
    /// The client's body was malformed, over a limit, cut off or too slow. The server responds with the matching 4xx.
    ClientBody,
    /// The route's script failed in `on_response`. Correct the line that the detail names.
    Script,
}

/// The message to clients when a script failed, in any hook.
pub(crate) const SCRIPT_FAILED: &str = "a script of this gateway failed";

impl Failure {
    /// All of them with their names, in order.
    const NAMED: [(Self, &'static str); 25] = [
        (Failure::NoTarget, "no-target"),
        (Failure::QueueFull, "queue-full"),
        (Failure::QueueTimeout, "queue-timeout"),
        (Failure::Resolve, "resolve"),
        (Failure::NotAllowed, "not-allowed"),
        (Failure::OwnAddress, "own-address"),
        (Failure::Connect, "connect"),
        (Failure::ConnectTimeout, "connect-timeout"),
        (Failure::Tls, "tls"),
        (Failure::TlsCertificate, "tls-certificate"),
        (Failure::TlsTimeout, "tls-timeout"),
        (Failure::Protocol, "protocol"),
        (Failure::Exhausted, "exhausted"),
        (Failure::SendTimeout, "send-timeout"),
        (Failure::Refused, "refused"),
        (Failure::NoWebSocket, "no-websocket"),
        (Failure::Closed, "closed"),
        (Failure::HeadTimeout, "head-timeout"),
        (Failure::Malformed, "malformed"),
        (Failure::Cut, "cut"),
        (Failure::BodyTimeout, "body-timeout"),
        (Failure::TotalTimeout, "total-timeout"),
        (Failure::ClientGone, "client-gone"),
        (Failure::ClientBody, "client-body"),
        (Failure::Script, "script"),
    ];

    /// Every failure, in the order of `Counts::failures` of the upstreams.
    pub const ALL: [Self; 25] = values(&Self::NAMED);

    /// Returns the stable kebab-case name.
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].1
    }

    /// Returns the status of the response, if none has begun; `None` if the client is at fault.
    pub fn status(self) -> Option<u16> {
        match self {
            Failure::NoTarget | Failure::QueueFull | Failure::QueueTimeout | Failure::Exhausted => Some(503),
            Failure::Refused => Some(503),
            Failure::NoWebSocket => Some(501),
            Failure::ConnectTimeout | Failure::TlsTimeout | Failure::SendTimeout | Failure::HeadTimeout => Some(504),
            Failure::BodyTimeout | Failure::TotalTimeout => Some(504),
            Failure::Resolve | Failure::NotAllowed | Failure::OwnAddress | Failure::Connect => Some(502),
            Failure::Tls | Failure::TlsCertificate | Failure::Protocol => Some(502),
            Failure::Closed | Failure::Malformed | Failure::Cut => Some(502),
            Failure::Script => Some(500),
            Failure::ClientGone | Failure::ClientBody => None,
        }
    }

    /// Returns the message to the client. It names the phase that failed and reveals nothing about upstreams.
    pub fn text(self) -> &'static str {
        match self {
            Failure::NoTarget => "no server is left to answer this request",
            Failure::QueueFull => "too many requests wait for the server behind this gateway",
            Failure::QueueTimeout => "no connection to the server behind this gateway came free in time",
            Failure::Resolve | Failure::NotAllowed | Failure::OwnAddress | Failure::Connect => {
                "the server behind this gateway cannot be reached"
            }
            Failure::ConnectTimeout => "the server behind this gateway did not take the connection in time",
            Failure::Tls | Failure::TlsCertificate | Failure::Protocol => {
                "no secure connection to the server behind this gateway could be made"
            }
            Failure::TlsTimeout => "the server behind this gateway did not secure the connection in time",
            Failure::Exhausted => "this gateway cannot open another connection at the moment",
            Failure::SendTimeout => "the server behind this gateway did not take the request in time",
            Failure::Refused => "the server behind this gateway takes no more requests at the moment",
            Failure::NoWebSocket => "the server behind this gateway speaks HTTP/2 and takes no WebSocket over it",
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

    /// Returns whether the failure counts against the target's health.
    pub(crate) fn is_the_targets(self) -> bool {
        match self {
            Failure::Resolve | Failure::Connect | Failure::ConnectTimeout | Failure::SendTimeout => true,
            Failure::Tls | Failure::TlsCertificate | Failure::TlsTimeout | Failure::Protocol => true,
            Failure::Closed | Failure::HeadTimeout | Failure::Malformed | Failure::Cut | Failure::BodyTimeout => true,
            Failure::NoTarget | Failure::QueueFull | Failure::QueueTimeout | Failure::NotAllowed => false,
            Failure::OwnAddress
            | Failure::Exhausted
            | Failure::Refused
            | Failure::NoWebSocket
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

/// A failure while forwarding, with a detail for the log.
#[derive(Debug)]
pub(crate) struct ForwardError {
    pub(crate) failure: Failure,
    /// For the log only, not for the client. May be empty.
    pub(crate) detail: String,
    /// Whether the target may have received part of the request.
    pub(crate) sent: bool,
    /// The code with which the target has reset the request's stream.
    pub(crate) reset: Option<ErrorCode>,
}

impl ForwardError {
    /// A failure before any byte of the request was sent.
    #[cold]
    pub(crate) fn unsent(failure: Failure, detail: impl FnOnce() -> String) -> Self {
        ForwardError { failure, detail: detail(), sent: false, reset: None }
    }

    /// A failure after some or all of the request was sent.
    #[cold]
    pub(crate) fn sent(failure: Failure, detail: impl Into<String>) -> Self {
        ForwardError { failure, detail: detail.into(), sent: true, reset: None }
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

    #[cold]
    pub(crate) fn tls(peer: &Peer, error: &TlsError) -> Self {
        let failure = match error {
            TlsError::Certificate(_) | TlsError::CaCertificate(_) => Failure::TlsCertificate,
            TlsError::Timeout => Failure::TlsTimeout,
            _ => Failure::Tls,
        };
        ForwardError::unsent(failure, || format!("{peer}: {}", chain(error)))
    }
}

/// Returns an error's message with those of its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
