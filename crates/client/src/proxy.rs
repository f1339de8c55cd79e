//! Proxies: which requests go through one, and how a connection to a server begins there.
//!
//! A plain request goes to an HTTP proxy in absolute form (RFC 9112, section 3.2.2). All others go through a tunnel: by
//! CONNECT (RFC 9110, section 9.3.6) or by SOCKS 5 (RFC 1928, with passwords by RFC 1929). To an HTTPS proxy the
//! connection begins with TLS, within which all of this happens, TLS to the server too. Every connection belongs to one
//! origin, with or without a proxy, so the pool knows nothing of proxies.
//!
//! SOCKS is written here: its client in the registry brings a second `thiserror` and the futures library for the sixty
//! lines below.

mod socks;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use oroshi_http1::{DecodeError, ExpectedResponse, Limits, ResponseDecoder, ResponseEvent};
use oroshi_net::endpoint::percent_decoded;
use oroshi_net::permit::{Permitted, Ports, RuleError};
use oroshi_net::tls::{TlsConfigError, TlsError};
use oroshi_net::{Address, ConnectError, Endpoint, Scheme, Stream};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub use socks::SocksError;

/// The maximum of bytes that a proxy may answer to CONNECT.
const ANSWER_BYTES: usize = 16 * 1024;
/// The maximum of interim responses (1xx) before it.
const INTERIM: u32 = 8;

/// Which requests go through a proxy. Requests to unix sockets never do.
///
/// `Debug` shows no passwords.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Way,
    https: Way,
    except: Exceptions,
}

/// A proxy, or the variable of the environment that names none; `None`: the server itself.
type Way = Option<Result<Arc<Proxy>, EnvironmentError>>;

impl Proxies {
    /// No proxy: the default.
    pub fn none() -> Self {
        Self::default()
    }

    /// Sends all requests through one proxy, but for [`except`](Self::except).
    ///
    /// `url`: `http://host:port`, `https://host:port` (TLS to the proxy: [`proxy_tls`](crate::Builder::proxy_tls)),
    /// `socks5://host:port` (the client looks names up) or `socks5h://host:port` (the proxy does), each with
    /// `user:password@` before the host if needed, percent-encoded. Without a scheme it is `http`. The default ports
    /// are 80, 443 and 1080.
    ///
    /// # Errors
    /// The URL is no proxy's. The message shows no user and no password.
    pub fn all(url: &str) -> Result<Self, ProxyUrlError> {
        let proxy = Arc::new(Proxy::parse(url)?);
        Ok(Proxies { http: Some(Ok(Arc::clone(&proxy))), https: Some(Ok(proxy)), except: Exceptions::default() })
    }

    /// Reads the environment as curl does: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, the last three also
    /// in capitals. `HTTP_PROXY` in capitals is ignored: in CGI it is a header of a request.
    ///
    /// A variable may be no proxy's URL. Then the requests that would go through that proxy fail; the error names the
    /// variable, and shows no user and no password.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(value: impl Fn(&str) -> Option<String>) -> Self {
        let proxy = |names: &[&'static str]| {
            let found = names.iter().find_map(|&name| Some((name, value(name).filter(|value| !value.is_empty())?)));
            let (variable, url) = found?;
            Some(Proxy::parse(&url).map(Arc::new).map_err(|source| EnvironmentError { variable, source }))
        };
        let http = proxy(&["http_proxy", "all_proxy", "ALL_PROXY"]);
        let https = proxy(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]);
        let except = ["no_proxy", "NO_PROXY"].into_iter().find_map(|name| value(name).filter(|list| !list.is_empty()));
        Proxies { http, https, ..Self::default() }.except(except.as_deref().unwrap_or_default())
    }

    /// Adds servers to which the client connects itself, separated by commas or spaces as in `no_proxy`: a name with
    /// all names below it (`example.org`, also with a dot before it), an address, a network (`10.0.0.0/8`), each
    /// perhaps with a port (`example.org:8080`), or `*` for all. What is none of these matches nothing.
    #[must_use]
    pub fn except(mut self, list: &str) -> Self {
        list.split([',', ' ', '\t']).filter(|entry| !entry.is_empty()).for_each(|entry| self.except.add(entry));
        self
    }

    /// Whether every request goes to its server itself.
    pub fn is_none(&self) -> bool {
        self.http.is_none() && self.https.is_none()
    }

    /// Returns the proxy of a request.
    pub(crate) fn of(&self, endpoint: &Endpoint) -> Option<&Arc<Proxy>> {
        self.way(endpoint)?.as_ref().ok()
    }

    /// Returns why the proxy of a request cannot be used.
    pub(crate) fn mistake(&self, endpoint: &Endpoint) -> Option<ProxyError> {
        let error = self.way(endpoint)?.as_ref().err()?.clone();
        Some(ProxyError { proxy: "of the environment".to_owned(), cause: ProxyCause::Environment(error) })
    }

    fn way(&self, endpoint: &Endpoint) -> Option<&Result<Arc<Proxy>, EnvironmentError>> {
        let way = match endpoint.scheme {
            Scheme::Http => self.http.as_ref()?,
            Scheme::Https => self.https.as_ref()?,
        };
        match &endpoint.address {
            Address::Tcp { host, port } if !self.except.hold(host, *port) => Some(way),
            _ => None,
        }
    }
}

/// Servers that are reached without a proxy.
#[derive(Clone, Debug, Default)]
struct Exceptions {
    all: bool,
    /// Names in lower case, each with all names below it.
    names: Vec<(String, Ports)>,
    addresses: Permitted,
}

impl Exceptions {
    fn add(&mut self, entry: &str) {
        if entry == "*" {
            self.all = true;
            return;
        }
        if entry == "any" || entry.starts_with("unix:") {
            return; // a rule of `Permitted` alone
        }
        match self.addresses.add(entry) {
            Ok(None) => {}
            Ok(Some(rule)) => {
                let name = rule.name.trim_start_matches('*').trim_start_matches('.').trim_end_matches('.');
                if !name.is_empty() {
                    self.names.push((name.to_ascii_lowercase(), rule.ports));
                }
            }
            // 10.1.2.3/8 means the network, as it does for curl.
            Err(RuleError::HostBits { network, .. }) => drop(self.addresses.add(&network)),
            Err(_) => {}
        }
    }

    /// `host` is in lower case, as endpoints have it.
    fn hold(&self, host: &str, port: u16) -> bool {
        if self.all {
            return true;
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            return self.addresses.address(SocketAddr::new(ip, port));
        }
        let host = host.trim_end_matches('.');
        let is_below = |name: &str| host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        self.names.iter().any(|(name, ports)| ports.hold(port) && is_below(name))
    }
}

/// One proxy.
pub(crate) struct Proxy {
    kind: Kind,
    pub(crate) address: Address,
    user: Option<User>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http,
    /// HTTP over TLS.
    Https,
    /// Whether the proxy looks names up.
    Socks {
        names: bool,
    },
}

struct User {
    name: Vec<u8>,
    password: Vec<u8>,
}

impl Proxy {
    fn parse(url: &str) -> Result<Self, ProxyUrlError> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let kind = match &*scheme.to_ascii_lowercase() {
            "http" => Kind::Http,
            "https" => Kind::Https,
            "socks5" => Kind::Socks { names: false },
            "socks5h" => Kind::Socks { names: true },
            // Whatever stands before `://` may be a part of a password.
            other if matches!(other, "socks4" | "socks4a" | "socks") => {
                return Err(ProxyUrlError::Scheme { scheme: other.to_owned() });
            }
            _ => return Err(ProxyUrlError::Scheme { scheme: "the URL's scheme".to_owned() }),
        };
        // A password may hold a slash that should have been percent-encoded.
        let (user, host) = match rest.rsplit_once('@') {
            Some((user, host)) => (Some(User::parse(user)?), host),
            None => (None, rest),
        };
        let host = host.split(['/', '?', '#']).next().unwrap_or_default();
        let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
        let port = match kind {
            Kind::Socks { .. } if !behind.contains(':') => ":1080",
            Kind::Https if !behind.contains(':') => ":443",
            _ => "",
        };
        let endpoint: Endpoint = format!("http://{host}{port}/").parse().map_err(|_| ProxyUrlError::Address)?;
        if let (Kind::Socks { .. }, Some(user)) = (kind, &user)
            && (user.name.len().max(user.password.len()) > 255 || user.name.is_empty())
        {
            return Err(ProxyUrlError::User);
        }
        Ok(Proxy { kind, address: endpoint.address, user })
    }

    /// Returns the error for a proxy that cannot be reached.
    pub(crate) fn unreachable(&self, error: ConnectError) -> ProxyError {
        self.failed(ProxyCause::Connect(error))
    }

    /// Returns the error for this cause.
    pub(crate) fn failed(&self, cause: ProxyCause) -> ProxyError {
        ProxyError { proxy: self.to_string(), cause }
    }

    /// Returns the name for TLS to the proxy; `None`: there is none.
    pub(crate) fn tls_name(&self) -> Option<&str> {
        match &self.address {
            Address::Tcp { host, .. } if self.kind == Kind::Https => Some(host),
            _ => None,
        }
    }

    /// Whether a plain request goes to the proxy in absolute form. Otherwise the proxy opens a tunnel.
    pub(crate) fn forwards(&self) -> bool {
        matches!(self.kind, Kind::Http | Kind::Https)
    }

    /// Whether the client has to look up the server's name for the proxy.
    pub(crate) fn wants_address(&self) -> bool {
        self.kind == (Kind::Socks { names: false })
    }

    /// The value of `Proxy-Authorization` (RFC 7617).
    pub(crate) fn authorization(&self) -> Option<String> {
        let User { name, password } = self.user.as_ref()?;
        Some(format!("Basic {}", BASE64_STANDARD.encode([name, &b":"[..], password].concat())))
    }

    /// Opens a tunnel to a server on a connection to the proxy.
    pub(crate) async fn open(&self, mut stream: Stream, host: &str, port: u16) -> Result<Stream, ProxyError> {
        match self.kind {
            Kind::Http | Kind::Https => self.connect(&mut stream, host, port).await,
            Kind::Socks { .. } => {
                let user = self.user.as_ref().map(|user| (&*user.name, &*user.password));
                socks::open(&mut stream, user, host, port).await
            }
        }
        .map_err(|cause| self.failed(cause))?;
        Ok(stream)
    }

    async fn connect(&self, stream: &mut Stream, host: &str, port: u16) -> Result<(), ProxyCause> {
        let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut head = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
        if let Some(authorization) = self.authorization() {
            head.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let mut decoder = ResponseDecoder::default();
        decoder.expect(ExpectedResponse::Connect);
        for _ in 0..=INTERIM {
            let answer = read_head(stream).await?;
            let event = decoder.decode(&Limits::default(), &mut &*answer).map_err(ProxyCause::Answer)?;
            match event {
                Some(ResponseEvent::Head(head)) if (200..300).contains(&head.status) => return Ok(()),
                Some(ResponseEvent::Head(head)) => return Err(ProxyCause::Refused { status: head.status }),
                _ => {}
            }
        }
        Err(ProxyCause::Answer(DecodeError::UnexpectedEof))
    }
}

impl User {
    fn parse(text: &str) -> Result<Self, ProxyUrlError> {
        let (name, password) = text.split_once(':').unwrap_or((text, ""));
        let decoded = |part| percent_decoded(part).map_err(|_| ProxyUrlError::User);
        let user = User { name: decoded(name)?, password: decoded(password)? };
        // A colon would end the name early (RFC 7617, section 2).
        if user.name.contains(&b':') { Err(ProxyUrlError::User) } else { Ok(user) }
    }
}

/// Reads a head to its end and no further: what follows belongs to the server.
async fn read_head(stream: &mut Stream) -> Result<Vec<u8>, ProxyCause> {
    const END: &[u8] = b"\r\n\r\n";
    let mut head = Vec::with_capacity(256);
    while !head.ends_with(END) {
        if head.len() >= ANSWER_BYTES {
            return Err(ProxyCause::Answer(DecodeError::HeadTooLarge));
        }
        // At least this much is missing.
        let there = (1..END.len()).rev().find(|&count| head.ends_with(&END[..count])).unwrap_or(0);
        let from = head.len();
        head.resize(from + END.len() - there, 0);
        stream.read_exact(&mut head[from..]).await?;
        // Such an end would be waited for in vain.
        if head.windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r') {
            return Err(ProxyCause::Answer(DecodeError::BareLf));
        }
    }
    Ok(head)
}

/// Without user and password.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.kind {
            Kind::Http => "http",
            Kind::Https => "https",
            Kind::Socks { names: false } => "socks5",
            Kind::Socks { names: true } => "socks5h",
        };
        match &self.address {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "{scheme}://[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{scheme}://{host}:{port}"),
            Address::Unix(socket) => write!(f, "{scheme}:{socket}"),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// Why a text is no proxy's URL. No message shows a user or a password.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ProxyUrlError {
    /// Use a proxy of a kind that this client knows.
    #[error("{scheme} names no proxy that this client uses: expected http://, https://, socks5:// or socks5h://")]
    Scheme {
        /// The URL's scheme, or these words.
        scheme: String,
    },
    /// Percent-encode user and password.
    #[error(
        "user and password before the @ cannot be used: expected them percent-encoded, a user without a colon, and for \
         SOCKS a user and at most 255 bytes each"
    )]
    User,
    /// Correct the host or the port.
    #[error("its host and port cannot be used: expected host:port, after user:password@ if the proxy wants them")]
    Address,
}

/// A variable of the environment is no proxy's URL.
#[derive(Clone, Debug, Error)]
#[error("the environment's {variable} is no proxy's URL")]
pub struct EnvironmentError {
    /// Its name.
    pub variable: &'static str,
    /// The mistake.
    pub source: ProxyUrlError,
}

/// A proxy has not connected to the server.
#[derive(Debug, Error)]
#[error("no connection through the proxy {proxy}")]
pub struct ProxyError {
    /// The proxy, without user and password.
    proxy: String,
    /// The cause.
    #[source]
    cause: ProxyCause,
}

impl ProxyError {
    /// Whether the same would happen again: the user is unknown, or what answers is no such proxy.
    pub(crate) fn is_lasting(&self) -> bool {
        match &self.cause {
            ProxyCause::Refused { status } => *status == 407,
            ProxyCause::Socks(error) => !matches!(error, SocksError::Refused { .. }),
            ProxyCause::Connect(error) => matches!(error, ConnectError::NotPermitted { .. }),
            ProxyCause::Answer(_) | ProxyCause::Environment(_) | ProxyCause::Tls(_) | ProxyCause::TlsSetup(_) => true,
            ProxyCause::Io(_) => false,
        }
    }

    /// A stable name in kebab case.
    pub(crate) fn name(&self) -> &'static str {
        match &self.cause {
            ProxyCause::Connect(error) => error.name(),
            ProxyCause::Refused { status: 407 } | ProxyCause::Socks(SocksError::User) => "proxy-auth",
            ProxyCause::Refused { .. } | ProxyCause::Socks(SocksError::Refused { .. }) => "proxy-refused",
            ProxyCause::Tls(_) => "proxy-tls",
            ProxyCause::TlsSetup(_) => "tls-setup",
            _ => "proxy",
        }
    }
}

/// Why a proxy has not connected to the server.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProxyCause {
    /// The proxy's status says why: for 407, give user and password in its URL.
    #[error("it answered CONNECT with status {status}{}", next_step(*.status))]
    Refused {
        /// The status.
        status: u16,
    },
    /// What answers there is no HTTP proxy.
    #[error("its answer to CONNECT cannot be used")]
    Answer(#[source] DecodeError),
    /// The SOCKS proxy has refused, or is none.
    #[error(transparent)]
    Socks(#[from] SocksError),
    /// The proxy itself could not be reached: the error says why.
    #[error(transparent)]
    Connect(ConnectError),
    /// TLS with the proxy could not be set up: the error says what to do.
    #[error(transparent)]
    TlsSetup(TlsConfigError),
    /// The handshake with the proxy failed. If its certificate is not accepted, set its CA with
    /// [`Builder::proxy_tls`](crate::Builder::proxy_tls).
    #[error("the TLS handshake with the proxy failed")]
    Tls(#[source] TlsError),
    /// Correct the variable, or remove it.
    #[error(transparent)]
    Environment(EnvironmentError),
    /// The connection to the proxy broke, or ended early.
    #[error("the connection to it broke")]
    Io(#[from] io::Error),
}

/// Returns the advice for a proxy's status; empty for most.
fn next_step(status: u16) -> &'static str {
    if status == 407 { ": give the user and the password that it knows in the proxy's URL" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Endpoint {
        url.parse().unwrap()
    }

    fn through(proxies: &Proxies, url: &str) -> Option<String> {
        proxies.of(&endpoint(url)).map(ToString::to_string)
    }

    #[test]
    fn urls_of_proxies() {
        for (url, shown) in [
            ("http://proxy.example:3128", "http://proxy.example:3128"),
            ("proxy.example:3128/", "http://proxy.example:3128"),
            ("HTTP://Proxy.Example", "http://proxy.example:80"),
            ("https://Proxy.Example", "https://proxy.example:443"),
            ("https://me:x@[::1]:8443/", "https://[::1]:8443"),
            ("socks5://[::1]", "socks5://[::1]:1080"),
            ("socks5h://me:p%40ss@127.0.0.1:9050", "socks5h://127.0.0.1:9050"),
        ] {
            assert_eq!(Proxy::parse(url).unwrap().to_string(), shown, "{url}");
        }
        let proxy = Proxy::parse("http://Aladdin:open%20sesame@p").unwrap();
        assert_eq!(proxy.authorization().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "RFC 7617, section 2");
        assert!(!format!("{proxy:?}").contains("sesame"));
    }

    #[test]
    fn mistakes_in_urls_show_no_password() {
        let long = format!("socks5://{}:hidden@p", "n".repeat(256));
        for url in [
            "socks4://me:hidden@p",
            "https://me:hidden@",
            "ftp://me:hidden@p",
            "http://me:hidden@",
            "http://me:hidden%zz@p",
            &long,
            "",
            "socks5://:hidden@p",
            "http://me:hid/hidden@p:0",
            "http://me:hidden@p:0",
            "http://a%3Ab:hidden@p",
            "hidden://x",
        ] {
            let error = Proxy::parse(url).err().unwrap_or_else(|| panic!("{url}"));
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(!format!("{error} {cause}").contains("hidden"), "{error}: {cause}");
        }
    }

    #[test]
    fn the_environment_is_read_as_curl_reads_it() {
        let read = |variables: &[(&str, &str)]| {
            Proxies::from_variables(|name| {
                let found = variables.iter().find(|(given, _)| *given == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let both = |variables: &[(&str, &str)]| {
            let proxies = read(variables);
            (through(&proxies, "http://h/"), through(&proxies, "https://h/"))
        };
        let at = |port: u16| Some(format!("http://p:{port}"));
        assert_eq!(both(&[]), (None, None));
        assert_eq!(both(&[("http_proxy", "p:1"), ("https_proxy", "p:2")]), (at(1), at(2)));
        assert_eq!(both(&[("HTTP_PROXY", "p:1"), ("HTTPS_PROXY", "p:2")]), (None, at(2)));
        assert_eq!(both(&[("ALL_PROXY", "p:3"), ("http_proxy", "")]), (at(3), at(3)));
        assert_eq!(both(&[("all_proxy", "p:3"), ("no_proxy", "h")]), (None, None));
        let secure = Some("https://p:443".to_owned());
        assert_eq!(both(&[("http_proxy", "https://p"), ("https_proxy", "https://p/")]), (secure.clone(), secure));
        let proxies = read(&[("http_proxy", "socks4://me:hidden@p"), ("no_proxy", "direct")]);
        let ProxyCause::Environment(error) = proxies.mistake(&endpoint("http://h/")).unwrap().cause else { panic!() };
        assert_eq!(error.variable, "http_proxy");
        assert!(!format!("{error} {}", error.source).contains("hidden"));
        // Other requests do not need the variable.
        for url in ["http://direct/", "https://h/", "unix:/run/app.sock"] {
            assert!(proxies.mistake(&endpoint(url)).is_none() && through(&proxies, url).is_none(), "{url}");
        }
    }

    #[test]
    fn exceptions_are_names_networks_and_ports() {
        let proxies =
            Proxies::all("p:1").unwrap().except("example.org, .inner *.deep,10.1.2.3/8 [::1]:81,here:8080,any");
        for direct in [
            "http://example.org/",
            "https://www.EXAMPLE.org/",
            "http://a.inner/",
            "http://inner/",
            "http://x.y.deep/",
            "http://10.200.0.1:99/",
            "http://[::1]:81/",
            "http://here:8080/",
            "unix:/run/app.sock",
        ] {
            assert_eq!(through(&proxies, direct), None, "{direct}");
        }
        for through_it in ["http://notexample.org/", "http://11.0.0.1/", "http://[::1]/", "http://here/", "http://b/"] {
            assert_eq!(through(&proxies, through_it).as_deref(), Some("http://p:1"), "{through_it}");
        }
        assert_eq!(through(&proxies.except("*"), "http://b/"), None);
    }
}
