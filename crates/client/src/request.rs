//! Building a request.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use oroshi_http1::encode::{self, EncodeError};
use oroshi_http1::{ExpectedResponse, Version};
use oroshi_net::Endpoint;
use serde::Serialize;
use tokio::io::AsyncRead;

use crate::body::{Body, Reader};
use crate::deadline::{Deadlines, Phase};
use crate::decode::ACCEPTED;
use crate::error::{Cause, Error, bad_field};
use crate::form;
use crate::headers::Headers;
use crate::multipart::Multipart;
use crate::retry::is_idempotent;
use crate::settings::{Builder, check_field};

/// A request's URL: text in the grammar of [`Endpoint`], or an endpoint that was parsed before, which saves parsing it
/// again.
pub trait IntoUrl: sealed::IntoUrl {}

impl<T: sealed::IntoUrl> IntoUrl for T {}

mod sealed {
    use oroshi_net::Endpoint;
    use oroshi_net::endpoint::EndpointError;

    pub trait IntoUrl {
        fn into_url(self) -> Result<Endpoint, EndpointError>;
    }

    impl IntoUrl for &str {
        fn into_url(self) -> Result<Endpoint, EndpointError> {
            self.parse()
        }
    }

    impl IntoUrl for String {
        fn into_url(self) -> Result<Endpoint, EndpointError> {
            self.parse()
        }
    }

    impl IntoUrl for &String {
        fn into_url(self) -> Result<Endpoint, EndpointError> {
            self.parse()
        }
    }

    impl IntoUrl for Endpoint {
        fn into_url(self) -> Result<Endpoint, EndpointError> {
            Ok(self)
        }
    }

    impl IntoUrl for &Endpoint {
        fn into_url(self) -> Result<Endpoint, EndpointError> {
            Ok(self.clone())
        }
    }
}

/// A client, with the kind of reader that its requests accept: any on one core, only `Send` ones elsewhere.
pub trait Handle: Clone {
    /// `dyn AsyncRead`, or `dyn AsyncRead + Send`.
    type Reader: ?Sized;
}

/// A request, ready to be sent.
pub(crate) struct Request<R: ?Sized> {
    pub(crate) method: Cow<'static, str>,
    pub(crate) endpoint: Endpoint,
    pub(crate) headers: Headers,
    pub(crate) body: Body<R>,
    pub(crate) deadlines: Option<Box<Deadlines>>,
    /// Overrides the total of the deadlines.
    pub(crate) total: Option<Duration>,
    pub(crate) idempotent: Option<bool>,
    pub(crate) redirects: Option<u32>,
    pub(crate) retries: Option<u32>,
    pub(crate) decode: Option<bool>,
    pub(crate) partition: u64,
    pub(crate) sent_stamp: Option<Arc<AtomicU64>>,
    /// Whether a redirect has led to another origin, so that the client's own secrets are dropped as well.
    pub(crate) strayed: bool,
}

/// A builder of a request. `send` reports its first mistake.
#[must_use = "a request is sent by `send`"]
pub struct RequestBuilder<C: Handle> {
    pub(crate) client: C,
    /// Boxed, because it moves often, and to keep requests under way small.
    pub(crate) request: Result<Box<Request<C::Reader>>, Error>,
}

impl<C: Handle> RequestBuilder<C> {
    pub(crate) fn new(client: C, method: Cow<'static, str>, url: impl IntoUrl) -> Self {
        let request = match url.into_url() {
            Err(error) => Err(Error::new(Phase::Request, Cause::Url(error))),
            Ok(endpoint) if method == "CONNECT" => {
                Err(Error::new(Phase::Request, Cause::Method).about(&method, &endpoint))
            }
            Ok(endpoint) => Ok(Box::new(Request {
                method,
                endpoint,
                headers: Headers::new(),
                body: Body::Empty,
                deadlines: None,
                total: None,
                idempotent: None,
                redirects: None,
                retries: None,
                decode: None,
                partition: 0,
                sent_stamp: None,
                strayed: false,
            })),
        };
        RequestBuilder { client, request }
    }

    /// Adds a field. The client itself writes Content-Length, Transfer-Encoding, Connection and similar fields.
    pub fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.change(|request| {
            if let Err(why) = check_field(name) {
                return Err(Error::new(Phase::Request, Cause::Field { name: name.escape_default().to_string(), why }));
            }
            // Any server would refuse a second Host.
            let added = if name.eq_ignore_ascii_case("host") {
                request.headers.set(name, value)
            } else {
                request.headers.append(name, value)
            };
            added.map_err(|error| bad_field(name, error))
        })
    }

    /// Adds pairs to the URL's query, percent-encoded.
    pub fn query<N: AsRef<str>, V: AsRef<str>>(self, pairs: impl IntoIterator<Item = (N, V)>) -> Self {
        self.change(|request| {
            let mut query = String::new();
            form::encode(&mut query, pairs);
            if !query.is_empty() {
                let target = &mut request.endpoint.target;
                target.push(if target.contains('?') { '&' } else { '?' });
                target.push_str(&query);
            }
            Ok(())
        })
    }

    /// Adds `Authorization: Basic` (RFC 7617).
    pub fn basic_auth(self, user: &str, password: &str) -> Self {
        let token = BASE64_STANDARD.encode(format!("{user}:{password}"));
        self.header("Authorization", format!("Basic {token}"))
    }

    /// Adds `Authorization: Bearer` (RFC 6750).
    pub fn bearer_auth(self, token: &str) -> Self {
        self.header("Authorization", format!("Bearer {token}"))
    }

    /// Sends bytes as the body. They are shared, not copied, and sent again after a redirect or a retry.
    pub fn body(self, bytes: impl Into<Bytes>) -> Self {
        self.change(|request| {
            request.body = Body::Bytes(bytes.into());
            Ok(())
        })
    }

    /// Sends pairs as a form: `application/x-www-form-urlencoded`.
    pub fn form<N: AsRef<str>, V: AsRef<str>>(self, pairs: impl IntoIterator<Item = (N, V)>) -> Self {
        let mut text = String::new();
        form::encode(&mut text, pairs);
        self.typed_body("application/x-www-form-urlencoded", text.into())
    }

    /// Sends a value as JSON.
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.typed_body("application/json", bytes.into()),
            Err(error) => self.change(|_| Err(Error::new(Phase::Request, Cause::Json(error)))),
        }
    }

    /// Sends a form with files: `multipart/form-data`.
    pub fn multipart(self, form: Multipart) -> Self {
        if form.is_bad() {
            return self.change(|_| Err(bad_field("Content-Type", EncodeError::Value)));
        }
        let content_type = form.content_type();
        self.typed_body(&content_type, form.into_body())
    }

    fn typed_body(self, content_type: &str, bytes: Bytes) -> Self {
        self.body(bytes).change(|request| {
            if request.headers.contains("Content-Type") {
                return Ok(());
            }
            request.headers.append("Content-Type", content_type).map_err(|error| bad_field("Content-Type", error))
        })
    }

    /// Sets the deadlines of this request's phases.
    pub fn deadlines(self, deadlines: Deadlines) -> Self {
        self.change(|request| {
            request.deadlines = Some(Box::new(deadlines));
            request.total = None;
            Ok(())
        })
    }

    /// Sets this request's total timeout: [`Deadlines::total`].
    pub fn timeout(self, limit: Duration) -> Self {
        self.change(|request| {
            request.total = Some(limit);
            Ok(())
        })
    }

    /// Sets the maximum of redirects to follow; with 0 the caller gets the redirect's response.
    pub fn redirects(self, most: u32) -> Self {
        self.change(|request| {
            request.redirects = Some(most);
            Ok(())
        })
    }

    /// Sets the maximum of retries: [`Retries::most`](crate::Retries::most).
    pub fn retries(self, most: u32) -> Self {
        self.change(|request| {
            request.retries = Some(most);
            Ok(())
        })
    }

    /// Sets whether to request and decode compressed bodies.
    pub fn decode(self, on: bool) -> Self {
        self.change(|request| {
            request.decode = Some(on);
            Ok(())
        })
    }

    /// Sets whether the request is idempotent if its method does not say so: for example a POST with an idempotency
    /// key. The client may then retry it if a connection breaks before the response begins.
    pub fn idempotent(self, is: bool) -> Self {
        self.change(|request| {
            request.idempotent = Some(is);
            Ok(())
        })
    }

    /// Puts the request, with its redirects, into a partition of the pool; without this call it is in partition 0.
    ///
    /// Requests of one partition never use connections of another, as users of different browsers do not. The cap and
    /// the idle connections per origin count within each partition; the total cap and names are common to all. The
    /// partitions of one origin share TLS sessions. A partition costs nothing once it has no connections.
    /// [`close_partition`](crate::local::Client::close_partition) closes its idle connections.
    pub fn partition(self, partition: u64) -> Self {
        self.change(|request| {
            request.partition = partition;
            Ok(())
        })
    }

    /// Stores in `stamp` when the kernel got the first byte of the request's last attempt so far, in nanoseconds of the
    /// monotonic clock (`oroshi_net::monotonic_ns`): for callers that drop the request and want to know whether it was
    /// sent. [`Timings::sent`](crate::Timings::sent) has it for all others.
    pub fn stamp_sent(self, stamp: Arc<AtomicU64>) -> Self {
        self.change(|request| {
            request.sent_stamp = Some(stamp);
            Ok(())
        })
    }

    pub(crate) fn reader_body(self, reader: std::pin::Pin<Box<C::Reader>>, length: Option<u64>) -> Self {
        self.change(|request| {
            request.body = Body::Reader(Reader { reader, length, read: 0, touched: false });
            Ok(())
        })
    }

    fn change(mut self, change: impl FnOnce(&mut Request<C::Reader>) -> Result<(), Error>) -> Self {
        if let Ok(request) = &mut self.request
            && let Err(error) = change(request)
        {
            let error = error.about(&request.method, &request.endpoint);
            self.request = Err(error);
        }
        self
    }
}

impl<C: Handle> fmt::Debug for RequestBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            Err(error) => f.debug_tuple("RequestBuilder").field(error).finish(),
            Ok(request) => f
                .debug_struct("RequestBuilder")
                .field("method", &request.method)
                .field("url", &crate::error::without_query(&request.endpoint))
                .field("headers", &request.headers)
                .field("body", &request.body)
                .finish_non_exhaustive(),
        }
    }
}

impl Request<dyn AsyncRead + Send> {
    pub(crate) fn into_local(self) -> Request<dyn AsyncRead> {
        Request {
            method: self.method,
            endpoint: self.endpoint,
            headers: self.headers,
            body: self.body.into_local(),
            deadlines: self.deadlines,
            total: self.total,
            idempotent: self.idempotent,
            redirects: self.redirects,
            retries: self.retries,
            decode: self.decode,
            partition: self.partition,
            sent_stamp: self.sent_stamp,
            strayed: self.strayed,
        }
    }
}

impl<R: ?Sized> Request<R> {
    pub(crate) fn is_idempotent(&self) -> bool {
        self.idempotent.unwrap_or_else(|| is_idempotent(&self.method))
    }

    /// Returns what the response's framing depends on.
    pub(crate) fn expect(&self) -> ExpectedResponse {
        if self.method == "HEAD" { ExpectedResponse::Head } else { ExpectedResponse::Body }
    }

    /// Whether to decode a compressed response. A request with its own `Accept-Encoding` or `Range` gets the bytes as
    /// sent.
    pub(crate) fn decodes(&self, settings: &Builder) -> bool {
        self.decode.unwrap_or(settings.decode)
            && !self.headers.contains("Accept-Encoding")
            && !settings.headers.contains("Accept-Encoding")
            && !self.headers.contains("Range")
    }

    /// Appends the encoded head.
    pub(crate) fn encode(&self, settings: &Builder, out: &mut Vec<u8>) -> Result<(), Error> {
        let proxy = settings.forwarding_proxy(&self.endpoint);
        let target = match proxy {
            None => Cow::Borrowed(&*self.endpoint.target),
            Some(_) => Cow::Owned(format!("http://{}{}", self.endpoint.authority, self.endpoint.target)),
        };
        encode::request_line(out, &self.method, &target, Version::Http11).map_err(|error| {
            // An endpoint that was not parsed from text may hold anything; parsing its text gives the mistake.
            let bad_url = (error == EncodeError::Target).then(|| self.endpoint.to_string().parse::<Endpoint>().err());
            Error::new(Phase::Request, bad_url.flatten().map_or(Cause::Method, Cause::Url))
        })?;
        let mut field = |name: &'static str, value: &[u8]| {
            // The names are ours, and the values were parsed as a URL or checked above.
            encode::header(out, name, value).map_err(|error| bad_field(name, error))
        };
        if !self.headers.contains("Host") {
            field("Host", self.endpoint.authority.as_bytes())?;
        }
        if !self.headers.contains("Accept") && !settings.headers.contains("Accept") {
            field("Accept", b"*/*")?;
        }
        if !self.headers.contains("User-Agent") && !settings.headers.contains("User-Agent") {
            field("User-Agent", concat!("oroshi/", env!("CARGO_PKG_VERSION")).as_bytes())?;
        }
        if self.decodes(settings) {
            field("Accept-Encoding", ACCEPTED.as_bytes())?;
        }
        let has_own = |headers: &Headers| headers.contains("Proxy-Authorization");
        let has_own = has_own(&self.headers) || has_own(&settings.headers);
        if let Some(authorization) = proxy.and_then(|proxy| proxy.authorization()).filter(|_| !has_own) {
            field("Proxy-Authorization", authorization.as_bytes())?;
        }
        if !settings.keep_alive {
            field("Connection", b"close")?;
        }
        if let Some(jar) = &settings.cookies
            && !self.headers.contains("Cookie")
            && !settings.headers.contains("Cookie")
            && let Some(cookies) = jar.header(&self.endpoint)
        {
            field("Cookie", cookies.as_bytes())?;
        }
        // Within a tunnel the server would read it.
        let is_tunnel = proxy.is_none() && settings.proxies.of(&self.endpoint).is_some();
        let is_for_proxy = |name: &str| is_tunnel && name.eq_ignore_ascii_case("Proxy-Authorization");
        for (name, value) in settings.headers.iter() {
            let stays_behind = (self.strayed && Headers::is_secret(name)) || is_for_proxy(name);
            if !stays_behind && !self.headers.contains(name) {
                encode::header(out, name, value).map_err(|error| bad_field(name, error))?;
            }
        }
        if is_tunnel && has_own {
            for (name, value) in self.headers.iter().filter(|(name, _)| !is_for_proxy(name)) {
                encode::header(out, name, value).map_err(|error| bad_field(name, error))?;
            }
        } else {
            out.extend_from_slice(self.headers.as_bytes());
        }
        match self.body.length() {
            None => encode::chunked(out),
            // A zero length is sent only where a body is usual (RFC 9110, section 8.6).
            Some(0) if !matches!(&*self.method, "POST" | "PUT" | "PATCH") => {}
            Some(length) => encode::content_length(out, length),
        }
        encode::end_of_head(out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Nobody;

    impl Handle for Nobody {
        type Reader = dyn AsyncRead;
    }

    fn build(method: &'static str, url: &str) -> RequestBuilder<Nobody> {
        RequestBuilder::new(Nobody, method.into(), url)
    }

    fn head(builder: RequestBuilder<Nobody>) -> String {
        let mut out = Vec::new();
        builder.request.unwrap().encode(&Builder::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn cause(builder: RequestBuilder<Nobody>) -> String {
        let error = builder.request.err().expect("a mistake");
        assert_eq!((error.phase(), error.retry_is_safe()), (Phase::Request, true), "none of it was sent");
        error.cause().to_string()
    }

    #[test]
    fn a_plain_request_says_what_it_must() {
        let head = head(build("GET", "http://example.org:81/a?b"));
        let agent = concat!("oroshi/", env!("CARGO_PKG_VERSION"));
        let lines = format!(
            "GET /a?b HTTP/1.1\r\nHost: example.org:81\r\nAccept: */*\r\nUser-Agent: {agent}\r\n\
             Accept-Encoding: gzip, br, zstd\r\n\r\n"
        );
        assert_eq!(head, lines);
    }

    #[test]
    fn what_the_caller_says_goes_before_what_the_client_would() {
        let request = build("POST", "unix:/run/a.sock:/b")
            .header("Host", "first")
            .header("host", "second")
            .header("Accept-Encoding", "identity")
            .header("User-Agent", "me");
        let head = head(request);
        assert!(head.contains("host: second\r\n") && !head.contains("first") && !head.contains("localhost"), "{head}");
        assert!(!head.contains("gzip") && head.contains("User-Agent: me\r\n") && !head.contains("oroshi/"), "{head}");
        assert!(head.ends_with("Content-Length: 0\r\n\r\n"), "{head}");
    }

    #[test]
    fn bodies_are_framed_and_typed() {
        let json = head(build("POST", "http://a/").json(&[1, 2]));
        assert!(json.contains("Content-Type: application/json\r\nContent-Length: 5\r\n"), "{json}");
        let form = head(build("POST", "http://a/").form([("a", "b c")]));
        assert!(form.contains("Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 5\r\n"), "{form}");
        let own = head(build("PUT", "http://a/").header("Content-Type", "x/y").json(&()));
        assert!(own.contains("x/y") && !own.contains("application/json"), "{own}");
        let reader = || Box::pin(tokio::io::empty());
        assert!(head(build("PUT", "http://a/").reader_body(reader(), None)).contains("Transfer-Encoding: chunked"));
        assert!(head(build("PUT", "http://a/").reader_body(reader(), Some(7))).contains("Content-Length: 7"));
    }

    #[test]
    fn queries_are_added() {
        assert!(head(build("GET", "http://a/").query([("a", "1 2")])).starts_with("GET /?a=1+2 "));
        assert!(head(build("GET", "http://a/?x").query([("a", "&")])).starts_with("GET /?x&a=%26 "));
        assert!(head(build("GET", "http://a/").query([("", ""); 0])).starts_with("GET / "));
    }

    #[test]
    fn an_endpoint_that_nobody_has_read_smuggles_nothing() {
        let endpoint = |change: fn(&mut Endpoint)| {
            let mut endpoint: Endpoint = "http://a/b".parse().unwrap();
            change(&mut endpoint);
            let builder = RequestBuilder::<Nobody>::new(Nobody, "GET".into(), endpoint);
            let mut out = Vec::new();
            builder.request.unwrap().encode(&Builder::default(), &mut out).unwrap_err().cause().to_string()
        };
        let target = endpoint(|endpoint| endpoint.target = "/ HTTP/1.1\r\nX: y".to_owned());
        assert!(target.contains("a space at byte 9 cannot stand in a request line"), "{target}");
        let authority = endpoint(|endpoint| endpoint.authority = "a\r\nX: y".into());
        assert!(authority.contains("`Host`") && authority.contains("control character"), "{authority}");
    }

    #[test]
    fn mistakes_are_told() {
        assert!(cause(build("GET", "example.org")).contains("did you mean http://example.org/ ?"));
        assert!(cause(build("CONNECT", "http://a/")).contains("CONNECT"));
        assert!(cause(build("GET", "http://a/").header("A b", "c")).contains("its name is not a token"));
        assert!(cause(build("GET", "http://a/").header("A", "b\r\nC: d")).contains("control character"));
        for own in ["Content-Length", "transfer-encoding", "Connection", "Expect"] {
            assert!(cause(build("GET", "http://a/").header(own, "1")).contains("the client's to write"), "{own}");
        }
    }

    #[test]
    fn secrets_do_not_show() {
        let request = build("GET", "http://a/?key=hidden").basic_auth("me", "hidden").header("Cookie", "hidden");
        let text = format!("{request:?}");
        assert!(!text.contains("hidden") && !text.contains("bWU6"), "{text}");
        let request = build("GET", "http://a/?key=hidden").bearer_auth("hid\nden");
        let text = format!("{request:?} {}", request.request.as_ref().err().unwrap());
        assert!(!text.contains("hid"), "{text}");
        let wrong = build("GET", "http://me:hidden@a/");
        assert!(!format!("{wrong:?} {}", wrong.request.as_ref().err().unwrap().cause()).contains("hidden"));
    }
}
