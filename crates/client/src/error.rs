//! Errors of requests: the phase, the cause, the timings, and whether the request may be sent again.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use oroshi_http1::{DecodeError, encode::EncodeError};
use oroshi_net::endpoint::EndpointError;
use oroshi_net::threads::ThreadsError;
use oroshi_net::tls::{TlsConfigError, TlsError};
use oroshi_net::{ConnectError, Endpoint};
use thiserror::Error as ThisError;

use crate::deadline::{Phase, Timings};
use crate::proxy::ProxyError;

/// A failed request.
///
/// The message has the method, the URL without its query (which may hold a secret) and the phase;
/// [`cause`](Error::cause), which is also the [`source`](std::error::Error::source), has the rest. It never shows
/// header fields.
pub struct Error(Box<Failure>);

/// The data of an [`Error`]. Boxed, so that results stay small.
struct Failure {
    phase: Phase,
    what: String,
    retry_is_safe: bool,
    redirects: u32,
    timings: Timings,
    cause: Cause,
}

impl Error {
    pub(crate) fn new(phase: Phase, cause: Cause) -> Self {
        Error(Box::new(Failure {
            phase,
            what: String::new(),
            // An invalid request is never sent.
            retry_is_safe: phase == Phase::Request,
            redirects: 0,
            timings: Timings::default(),
            cause,
        }))
    }

    /// Names the request. Only the first call counts, because it knows best.
    #[must_use]
    pub(crate) fn about(mut self, method: &str, endpoint: &Endpoint) -> Self {
        if self.0.what.is_empty() {
            self.0.what = format!("{method} {}", without_query(endpoint));
        }
        self
    }

    #[must_use]
    pub(crate) fn after(mut self, timings: Timings) -> Self {
        self.0.timings = timings;
        self
    }

    #[must_use]
    pub(crate) fn retry_is(mut self, safe: bool) -> Self {
        self.0.retry_is_safe = safe;
        self
    }

    #[must_use]
    pub(crate) fn redirected(mut self, redirects: u32) -> Self {
        self.0.redirects = redirects;
        self
    }

    /// Returns the phase in which the request failed.
    pub fn phase(&self) -> Phase {
        self.0.phase
    }

    /// Returns the cause.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// Whether a deadline passed: the one of [`phase`](Self::phase), or [`Phase::Total`].
    pub fn is_timeout(&self) -> bool {
        matches!(self.0.cause, Cause::Timeout { .. })
    }

    /// Whether sending the request again cannot process it twice: none of it was sent, or it is idempotent (RFC 9110,
    /// section 9.2.2) and got no response. If a connection broke, the client has retried such a request once already.
    /// Whether a retry is wise, for example after a timeout, is up to the caller. It is also true for an invalid URL,
    /// which was never sent and will fail again.
    ///
    /// After a redirect it covers the whole request, because the server may have processed the request that it
    /// redirected.
    pub fn retry_is_safe(&self) -> bool {
        self.0.retry_is_safe
    }

    /// Returns the number of redirects followed before the failure. 0 if the response's body failed: the response has
    /// the count.
    pub fn redirects(&self) -> u32 {
        self.0.redirects
    }

    /// Returns the timings at the failure.
    pub fn timings(&self) -> Timings {
        self.0.timings
    }

    /// Returns a stable name in kebab case, for counts and metrics: for example `connect-refused`,
    /// `first-byte-timeout`, `queue-full`.
    pub fn name(&self) -> &'static str {
        match (&self.0.cause, self.0.phase) {
            (Cause::Timeout { .. }, Phase::Queue) => "queue-timeout",
            (Cause::Timeout { .. }, Phase::Dns) => "dns-timeout",
            (Cause::Timeout { .. }, Phase::Connect) => "connect-timeout",
            (Cause::Timeout { .. }, Phase::Tls) => "tls-timeout",
            (Cause::Timeout { .. }, Phase::Write) => "write-timeout",
            (Cause::Timeout { .. }, Phase::FirstByte) => "first-byte-timeout",
            (Cause::Timeout { .. }, Phase::BetweenBytes) => "between-bytes-timeout",
            (Cause::Timeout { .. }, _) => "total-timeout",
            (Cause::Connect(error), _) => error.name(),
            (Cause::Io(_), Phase::Write) => "write",
            (Cause::Io(_), _) => "read-reset",
            (Cause::Response(DecodeError::UnexpectedEof), _) => "read-eof",
            (Cause::Response(_), _) => "parse",
            (Cause::Url(_) | Cause::Method | Cause::Field { .. } | Cause::Json(_), Phase::Request) => "request",
            (cause, _) => cause.name(),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { phase, what, retry_is_safe, redirects, timings, cause } = &*self.0;
        f.debug_struct("Error")
            .field("request", what)
            .field("phase", phase)
            .field("cause", cause)
            .field("retry_is_safe", retry_is_safe)
            .field("redirects", redirects)
            .field("total", &timings.total)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.what.is_empty() {
            write!(f, "{}: ", self.0.what)?;
        }
        match self.0.phase {
            _ if matches!(self.0.cause, Cause::Ended) => f.write_str("the work on the request was ended"),
            Phase::Request => f.write_str("the request cannot be sent"),
            Phase::Redirect => f.write_str("the redirect was not followed"),
            Phase::Content => f.write_str("the body is not what was expected"),
            phase => write!(f, "failed in the phase {phase} after {:.3} s", self.0.timings.total.as_secs_f64()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0.cause)
    }
}

/// The cause of a failed request.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Cause {
    /// Correct the URL as the message says.
    #[error(transparent)]
    Url(EndpointError),
    /// Use a method that is a token of 1 to 32 bytes. This client supports neither CONNECT nor upgrades.
    #[error("the method must be a token of 1 to 32 bytes, and not CONNECT")]
    Method,
    /// Correct the field. The client itself writes Content-Length, Transfer-Encoding, Connection, Upgrade, Expect, TE
    /// and Trailer.
    #[error("the field `{name}` cannot be sent: {why}")]
    Field {
        /// Its name, escaped.
        name: String,
        /// The mistake.
        why: &'static str,
    },
    /// The value cannot be written as JSON, or the body is not the expected JSON.
    #[error("the JSON cannot be used")]
    Json(#[source] serde_json::Error),
    /// Too many requests wait for a connection: send fewer at a time, or raise `Builder::waiting`.
    #[error("{waiting} requests wait for a connection, which is as many as may")]
    QueueFull {
        /// The number of waiting requests.
        waiting: usize,
    },
    /// The phase took too long: check what the phase waits for, or raise its deadline.
    #[error("the deadline of {limit:?} has passed")]
    Timeout {
        /// The phase's deadline.
        limit: Duration,
    },
    /// Check the spelling, /etc/hosts and the name server. The failure is cached for `Builder::dns_negative_ttl`.
    #[error("could not resolve the host name {host}")]
    Resolve {
        /// The name.
        host: String,
        /// The resolver's error; shared by all requests for the name.
        source: Arc<io::Error>,
    },
    /// The connect failed: the error says what to do. For several addresses, it is the error of the last one tried.
    #[error(transparent)]
    Connect(ConnectError),
    /// A proxy has not connected to the server: the error says why.
    #[error(transparent)]
    Proxy(ProxyError),
    /// TLS could not be set up: the error says what to do.
    #[error(transparent)]
    TlsSetup(TlsConfigError),
    /// The TLS handshake failed: the error says what to do.
    #[error(transparent)]
    Tls(TlsError),
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// The response is not valid HTTP/1.1; with [`DecodeError::UnexpectedEof`] it ended too early.
    #[error("the response cannot be used")]
    Response(#[source] DecodeError),
    /// HTTP/2: the server has reset the stream or ended the connection, or the peer broke the protocol. The source says
    /// which.
    #[error("the request failed over HTTP/2")]
    Http2(#[source] oroshi_multiplex::Error),
    /// The reader of the request's body failed, or broke the announced length.
    #[error("the request's body could not be read")]
    Body(#[source] io::Error),
    /// The compressed body is broken, ends too early, or needs more memory than allowed.
    #[error("the {coding} body cannot be decoded: {why}")]
    Coding {
        /// `gzip`, `br` or `zstd`.
        coding: &'static str,
        /// The mistake.
        why: &'static str,
    },
    /// The decoded body is too large: raise `Builder::collect_bytes` or `Builder::stream_bytes`, or read it piece by
    /// piece with `chunks`.
    #[error("the body is larger than {limit} bytes, which is as many as were allowed")]
    BodyTooLarge {
        /// The limit.
        limit: u64,
    },
    /// The text is not UTF-8: read the bytes instead.
    #[error("the body is not UTF-8")]
    NotUtf8,
    /// Usually a loop; otherwise raise `redirects`.
    #[error("redirected {limit} times, which is as often as allowed; the next would have been to {next}")]
    TooManyRedirects {
        /// The limit.
        limit: u32,
        /// The next URL, without its query.
        next: String,
    },
    /// The client does not follow the server's `Location`.
    #[error("the Location cannot be followed: {why}")]
    Location {
        /// The mistake.
        why: String,
    },
    /// The request's body came from a reader, which is used up: send bytes, or follow the redirect yourself.
    #[error("the redirect wants the body again, and a reader gives it only once")]
    BodyUsed,
    /// A panic ended the request, in its body's reader or by a defect of the client. Standard error has the message.
    /// The next request works.
    #[error("by a panic of its body's reader, or by a defect of the client: standard error has the message")]
    Ended,
    /// A defect ended the client's thread, and another could not be started: check the limits on threads and memory.
    #[error("the client's thread could not be started again")]
    Thread(#[source] ThreadsError),
}

impl Cause {
    fn name(&self) -> &'static str {
        match self {
            Cause::Url(_) | Cause::Method | Cause::Field { .. } => "request",
            Cause::Json(_) => "json",
            Cause::QueueFull { .. } => "queue-full",
            Cause::Timeout { .. } => "timeout",
            Cause::Resolve { .. } => "dns",
            Cause::Connect(error) => error.name(),
            Cause::Proxy(error) => error.name(),
            Cause::TlsSetup(_) => "tls-setup",
            Cause::Tls(_) => "tls",
            Cause::Io(_) => "io",
            Cause::Response(_) => "parse",
            Cause::Http2(error) => http2_name(error),
            Cause::Body(_) => "request-body",
            Cause::Coding { .. } => "coding",
            Cause::BodyTooLarge { .. } => "body-too-large",
            Cause::NotUtf8 => "not-utf-8",
            Cause::TooManyRedirects { .. } => "too-many-redirects",
            Cause::Location { .. } => "location",
            Cause::BodyUsed => "body-used",
            Cause::Ended => "ended",
            Cause::Thread(_) => "thread",
        }
    }
}

/// Returns the name of a failure of HTTP/2 that HTTP/1 does not have.
fn http2_name(error: &oroshi_multiplex::Error) -> &'static str {
    use oroshi_multiplex::{ConnectionError, Error, ErrorCode};
    match error {
        Error::Reset(ErrorCode::REFUSED_STREAM) => "refused-stream",
        Error::Reset(_) => "stream-reset",
        Error::Connection { cause, .. } if matches!(**cause, ConnectionError::Goaway { .. }) => "goaway",
        Error::Connection { cause, .. } if matches!(**cause, ConnectionError::Protocol(_)) => "parse",
        Error::Response(_) => "parse",
        Error::Send(_) => "request",
        _ => "http2",
    }
}

/// Returns the error for an invalid field.
pub(crate) fn bad_field(name: &str, error: EncodeError) -> Error {
    let why = match error {
        EncodeError::Name => "its name is not a token",
        _ => "its value has a control character",
    };
    Error::new(Phase::Request, Cause::Field { name: name.escape_default().to_string(), why })
}

/// Returns an endpoint as errors show it.
pub(crate) fn without_query(endpoint: &Endpoint) -> String {
    let text = endpoint.to_string();
    match text.split_once('?') {
        Some((before, _)) => before.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_and_when_and_hides_the_query() {
        let endpoint: Endpoint = "http://example.org/a?token=hidden".parse().unwrap();
        let error =
            Error::new(Phase::FirstByte, Cause::Timeout { limit: Duration::from_secs(1) }).about("GET", &endpoint);
        let text = format!("{error} {error:?}");
        assert!(text.contains("GET http://example.org/a: failed in the phase first-byte"), "{text}");
        assert!(!text.contains("hidden"), "{text}");
        assert!(error.is_timeout() && error.name() == "first-byte-timeout");
        let source = std::error::Error::source(&error).unwrap();
        assert!(source.to_string().contains("deadline"), "{source}");
    }

    #[test]
    fn errors_are_small_and_may_cross_threads() {
        fn crosses<T: Send + Sync + 'static>() {}
        crosses::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
