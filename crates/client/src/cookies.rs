//! The cookies of a client, or of one user (RFC 6265). cookie_store parses `Set-Cookie` and judges domains; the jar
//! keeps what it needs of a cookie, in the order in which cookies were made.
//!
//! As in browsers, cookies belong to a host, whatever its port. All unix sockets are the host of their `Host` field,
//! which is `localhost` unless another is set. There is no list of public suffixes, so a server may set cookies for a
//! domain above it, such as `co.uk`: use one jar for servers that may know of each other.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cookie_store::{Cookie, CookieDomain};
use oroshi_net::{Endpoint, Scheme};
use url::{Host, Url};

/// The most bytes of a `Set-Cookie` value; a longer one is ignored.
pub const COOKIE_BYTES: usize = 4096;
/// The most cookies of one host; the oldest give way.
pub const COOKIES_PER_HOST: usize = 50;
/// The most cookies of a user; the oldest give way.
pub const COOKIES: usize = 200;
/// The most bytes of a user's cookies: names, values, domains, paths; the oldest give way.
pub const JAR_BYTES: usize = 64 * 1024;
/// The most `Set-Cookie` fields of one response; later ones are ignored.
pub const SET_COOKIES: usize = 64;

/// The number of `Cookie` fields that a jar remembers: few origins, or few paths.
const REMEMBERED: usize = 4;
/// A cookie that ends with the jar.
const SESSION: i64 = i64::MAX;

/// The cookies of one user. An empty jar takes eight bytes.
#[derive(Debug, Default)]
pub struct Jar(Option<Box<Cookies>>);

/// A [`Jar`] of clients: [`Builder::cookies`](crate::Builder::cookies). Clones are the same jar. Requests wait for each
/// other only while one of them reads or writes its cookies.
#[derive(Clone, Debug, Default)]
pub struct CookieJar(Arc<Mutex<Jar>>);

impl CookieJar {
    /// Returns an empty jar.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a cookie's value: of the cookie that a request to `url` would carry, otherwise of the newest of that
    /// name.
    pub fn get(&self, url: &Endpoint, name: &str) -> Option<String> {
        self.lock().get(url, name).map(str::to_owned)
    }

    /// Sets a cookie: [`Jar::set`].
    ///
    /// # Errors
    /// The name or the value cannot be sent, or is too long; the text says why.
    pub fn set(&self, url: &Endpoint, name: &str, value: &str) -> Result<(), String> {
        self.lock().set(url, name, value)
    }

    /// Removes all cookies.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Returns the value of the `Cookie` field for a request.
    pub(crate) fn header(&self, url: &Endpoint) -> Option<String> {
        self.lock().header(url).map(str::to_owned)
    }

    /// Stores the values of a response's `Set-Cookie` fields.
    pub(crate) fn store<'v>(&self, url: &Endpoint, set_cookie: impl IntoIterator<Item = &'v [u8]>) {
        let mut fields = set_cookie.into_iter().peekable();
        if fields.peek().is_some() {
            self.lock().store(url, fields);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jar> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Cookies {
    /// In the order in which they were made.
    kept: Vec<Kept>,
    /// Their bytes: see [`JAR_BYTES`].
    bytes: usize,
    /// Whether a cookie has another path than `/`, so that the `Cookie` field depends on the path.
    has_paths: bool,
    /// `Cookie` fields of earlier requests, until the jar changes.
    remembered: Vec<Field>,
    /// The place of the next remembered field.
    next: usize,
}

#[derive(Debug)]
struct Kept {
    /// `name=value`.
    pair: Box<str>,
    name_bytes: usize,
    domain: Box<str>,
    /// Whether only the domain itself gets the cookie, without its subdomains.
    host_only: bool,
    path: Box<str>,
    /// Whether only https gets the cookie (and this machine, as in browsers).
    secure: bool,
    /// Milliseconds since 1970.
    expires: i64,
}

/// The `Cookie` field of requests to an origin, or to one of its paths.
#[derive(Debug)]
struct Field {
    scheme: Scheme,
    authority: Box<str>,
    path: Option<Box<str>>,
    /// Empty: no cookie.
    value: String,
    /// When the first of the cookies expires.
    until: i64,
}

impl Jar {
    /// Stores the values of a response's `Set-Cookie` fields. Ignores what is not valid, as browsers do.
    pub fn store<'v>(&mut self, url: &Endpoint, set_cookie: impl IntoIterator<Item = &'v [u8]>) {
        self.store_at(url, set_cookie, now_ms());
    }

    /// Returns the value of the `Cookie` field for a request; `None` without cookies.
    pub fn header(&mut self, url: &Endpoint) -> Option<&str> {
        let cookies = self.0.as_deref_mut()?;
        cookies.header(url, cookies.now())
    }

    /// Returns a cookie's value: of the cookie that a request to `url` would carry, otherwise of the newest of that
    /// name.
    pub fn get(&self, url: &Endpoint, name: &str) -> Option<&str> {
        let cookies = self.0.as_deref()?;
        let now = cookies.now();
        let sent =
            Site::of(url).and_then(|site| cookies.sent_to(&site, now).into_iter().find(|kept| kept.name() == name));
        let newest = || cookies.kept.iter().rev().find(|kept| kept.name() == name && now < kept.expires);
        sent.or_else(newest).map(Kept::value)
    }

    /// Sets a cookie: the value of the cookie of that name that a request to `url` would carry, otherwise
    /// of a new one for all paths of the host, which ends with the jar.
    ///
    /// # Errors
    /// The name or the value cannot be sent, or is too long; the text says why.
    pub fn set(&mut self, url: &Endpoint, name: &str, value: &str) -> Result<(), String> {
        let bad_name = |byte: u8| !byte.is_ascii_graphic() || b"=;,\"".contains(&byte);
        if name.is_empty() || name.bytes().any(bad_name) {
            return Err(format!("`{}` is no name of a cookie: expected letters, digits, - and _", name.escape_debug()));
        }
        if value.bytes().any(|byte| byte.is_ascii_control() || byte == b';') {
            return Err(format!("the value of the cookie `{name}` has a `;` or a control character"));
        }
        if name.len() + value.len() > COOKIE_BYTES {
            return Err(format!("the cookie `{name}` has more than {COOKIE_BYTES} bytes"));
        }
        let site = Site::of(url).ok_or_else(|| format!("`{}` has no cookies: its host is not valid", url.authority))?;
        let cookies = self.0.get_or_insert_default();
        let now = cookies.now();
        let place = cookies.place_of(&site, name, now);
        let new = match place {
            Some(place) => cookies.kept[place].with_value(value),
            None => Kept {
                pair: format!("{name}={value}").into(),
                name_bytes: name.len(),
                domain: (*site.host).into(),
                host_only: true,
                path: "/".into(),
                secure: false,
                expires: SESSION,
            },
        };
        cookies.put(new);
        cookies.shrink(now);
        Ok(())
    }

    /// Removes all cookies.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    fn store_at<'v>(&mut self, url: &Endpoint, set_cookie: impl IntoIterator<Item = &'v [u8]>, now: i64) {
        let mut fields = set_cookie.into_iter().take(SET_COOKIES).peekable();
        if fields.peek().is_none() {
            return;
        }
        let Some(url) = whole(url) else { return };
        for field in fields {
            if let Some(new) = Kept::parse(field, &url, now) {
                if new.expires <= now {
                    self.remove(&new);
                } else {
                    let cookies = self.0.get_or_insert_default();
                    cookies.put(new);
                    cookies.shrink(now);
                }
            }
        }
    }

    fn remove(&mut self, like: &Kept) {
        let Some(cookies) = &mut self.0 else { return };
        cookies.retain(|kept| !kept.is_like(like));
        if cookies.kept.is_empty() {
            self.0 = None;
        }
    }
}

impl Cookies {
    /// Returns the time; 0 while no cookie expires, which saves asking for it.
    fn now(&self) -> i64 {
        if self.kept.iter().all(|kept| kept.expires == SESSION) { 0 } else { now_ms() }
    }

    fn header(&mut self, url: &Endpoint, now: i64) -> Option<&str> {
        let path = self.has_paths.then(|| path_of(&url.target));
        let known = self.remembered.iter().position(|field| {
            field.scheme == url.scheme
                && *field.authority == *url.authority
                && field.path.as_deref() == path
                && now < field.until
        });
        let place = match known {
            Some(place) => place,
            None => {
                let field = self.field(url, path, now)?;
                self.remember(field)
            }
        };
        let value = self.remembered[place].value.as_str();
        (!value.is_empty()).then_some(value)
    }

    fn field(&self, url: &Endpoint, path: Option<&str>, now: i64) -> Option<Field> {
        let (mut value, mut until) = (String::new(), SESSION);
        for kept in self.sent_to(&Site::of(url)?, now) {
            if !value.is_empty() {
                value.push_str("; ");
            }
            value.push_str(&kept.pair);
            until = until.min(kept.expires);
        }
        let authority = (*url.authority).into();
        Some(Field { scheme: url.scheme, authority, path: path.map(Into::into), value, until })
    }

    /// Keeps a field in the place of the oldest, and returns the place.
    fn remember(&mut self, field: Field) -> usize {
        if self.remembered.len() < REMEMBERED {
            self.remembered.push(field);
            return self.remembered.len() - 1;
        }
        let place = self.next % REMEMBERED;
        self.next = place + 1;
        self.remembered[place] = field;
        place
    }

    /// Returns the cookies of a request: those of longer paths first, then older ones (RFC 6265, section 5.4).
    fn sent_to(&self, site: &Site<'_>, now: i64) -> Vec<&Kept> {
        let mut sent: Vec<&Kept> =
            self.kept.iter().filter(|kept| kept.is_sent_to(site) && now < kept.expires).collect();
        if self.has_paths {
            sent.sort_by_key(|kept| std::cmp::Reverse(kept.path.len()));
        }
        sent
    }

    /// Returns the place of the cookie of this name that a request carries first.
    fn place_of(&self, site: &Site<'_>, name: &str, now: i64) -> Option<usize> {
        let like = self.sent_to(site, now).into_iter().find(|kept| kept.name() == name)?;
        self.kept.iter().position(|kept| kept.is_like(like))
    }

    /// Stores a cookie, in the place of the one with the same name, domain and path.
    fn put(&mut self, new: Kept) {
        let old = self.kept.iter_mut().find(|kept| kept.is_like(&new));
        // Servers send a session's cookie again and again. A remembered field may end too early, but not too late.
        let is_the_same = old.as_ref().is_some_and(|old| {
            let same = (&old.pair, old.host_only, old.secure) == (&new.pair, new.host_only, new.secure);
            same && old.expires <= new.expires
        });
        if !is_the_same {
            self.remembered.clear();
        }
        self.has_paths |= *new.path != *"/";
        self.bytes += new.bytes();
        match old {
            Some(old) => self.bytes -= std::mem::replace(old, new).bytes(),
            None => self.kept.push(new),
        }
    }

    /// Makes the jar fit its limits after a cookie was stored: expired cookies go first, then the oldest.
    fn shrink(&mut self, now: i64) {
        let fits = |cookies: &Cookies| {
            let same_host = |last: &Kept| cookies.kept.iter().filter(|kept| kept.domain == last.domain).count();
            cookies.kept.len() <= COOKIES
                && cookies.bytes <= JAR_BYTES
                && (cookies.kept.len() <= COOKIES_PER_HOST
                    || cookies.kept.last().is_none_or(|last| same_host(last) <= COOKIES_PER_HOST))
        };
        if fits(self) {
            return;
        }
        self.retain(|kept| now < kept.expires);
        while !fits(self) {
            let too_many = self.kept.len() <= COOKIES && self.bytes <= JAR_BYTES;
            let last = self.kept.last().map(|last| last.domain.clone());
            let oldest = self.kept.iter().position(|kept| !too_many || last.as_ref() == Some(&kept.domain));
            let gone = self.kept.remove(oldest.unwrap_or(0));
            self.bytes -= gone.bytes();
        }
        self.has_paths = self.kept.iter().any(|kept| *kept.path != *"/");
    }

    fn retain(&mut self, keep: impl Fn(&Kept) -> bool) {
        self.remembered.clear();
        self.kept.retain(keep);
        self.bytes = self.kept.iter().map(Kept::bytes).sum();
        self.has_paths = self.kept.iter().any(|kept| *kept.path != *"/");
    }
}

impl Kept {
    /// Parses a `Set-Cookie` value (RFC 6265, sections 5.2 and 5.3).
    fn parse(field: &[u8], url: &Url, now: i64) -> Option<Kept> {
        if field.len() > COOKIE_BYTES {
            return None;
        }
        let cookie = Cookie::parse(str::from_utf8(field).ok()?, url).ok()?;
        let (name, value) = cookie.name_value();
        // cookie_store keeps control characters; one would end the `Cookie` field, or make the request invalid.
        if name.bytes().chain(value.bytes()).any(|byte| byte.is_ascii_control()) {
            return None;
        }
        let (domain, host_only) = match &cookie.domain {
            CookieDomain::HostOnly(domain) => (domain, true),
            CookieDomain::Suffix(domain) => (domain, false),
            CookieDomain::NotPresent | CookieDomain::Empty => return None,
        };
        let expires = match (cookie.max_age(), cookie.expires_datetime()) {
            (Some(age), _) if age.whole_seconds() <= 0 => i64::MIN,
            // One that lasts for ever must not look like one of the session, whose end nobody has to know.
            (Some(age), _) => now.saturating_add(age.whole_seconds().saturating_mul(1000)).min(SESSION - 1),
            (None, Some(at)) => i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(SESSION - 1),
            (None, None) => SESSION,
        };
        Some(Kept {
            pair: format!("{name}={value}").into(),
            name_bytes: name.len(),
            domain: domain.as_str().into(),
            host_only,
            path: (*cookie.path).into(),
            secure: cookie.secure().unwrap_or(false),
            expires,
        })
    }

    fn with_value(&self, value: &str) -> Kept {
        let mut pair = String::with_capacity(self.name_bytes + 1 + value.len());
        // Writing to a text does not fail.
        let _ = write!(pair, "{}={value}", self.name());
        let (domain, path) = (self.domain.clone(), self.path.clone());
        Kept { pair: pair.into(), domain, path, ..*self }
    }

    fn name(&self) -> &str {
        &self.pair[..self.name_bytes]
    }

    fn value(&self) -> &str {
        &self.pair[self.name_bytes + 1..]
    }

    fn bytes(&self) -> usize {
        self.pair.len() + self.domain.len() + self.path.len()
    }

    /// Whether one replaces the other.
    fn is_like(&self, other: &Kept) -> bool {
        self.name() == other.name() && self.domain == other.domain && self.path == other.path
    }

    /// Whether a request carries the cookie: section 5.1.3 for the domain, 5.1.4 for the path.
    fn is_sent_to(&self, site: &Site<'_>) -> bool {
        let host = &*site.host;
        let is_subdomain = || {
            !self.host_only
                && !site.is_address
                && host.strip_suffix(&*self.domain).is_some_and(|before| before.ends_with('.'))
        };
        let path_matches = site
            .path
            .strip_prefix(&*self.path)
            .is_some_and(|rest| rest.is_empty() || self.path.ends_with('/') || rest.starts_with('/'));
        (host == &*self.domain || is_subdomain()) && path_matches && (!self.secure || site.is_secure)
    }
}

/// The part of a URL that cookies depend on.
struct Site<'u> {
    /// In its one form: lower case, IPv6 in brackets.
    host: Cow<'u, str>,
    is_address: bool,
    /// Https, or this machine, which browsers trust as much.
    is_secure: bool,
    path: &'u str,
}

impl<'u> Site<'u> {
    fn of(url: &'u Endpoint) -> Option<Self> {
        let authority = &*url.authority;
        let end = match authority.find(']') {
            Some(bracket) => bracket + 1,
            None => authority.find(':').unwrap_or(authority.len()),
        };
        let host = &authority[..end];
        let (host, is_address, is_here) = match host.parse::<Ipv4Addr>() {
            Ok(address) => (host.into(), true, address.is_loopback()),
            Err(_) if is_plain(host) => (host.into(), false, host == "localhost"),
            Err(_) => match Host::parse(host).ok()? {
                Host::Domain(name) => (name.into(), false, false),
                Host::Ipv4(address) => (address.to_string().into(), true, address.is_loopback()),
                Host::Ipv6(address) => (format!("[{address}]").into(), true, address.is_loopback()),
            },
        };
        let is_secure = url.scheme == Scheme::Https || is_here;
        Some(Site { host, is_address, is_secure, path: path_of(&url.target) })
    }
}

/// Whether a name is in its one form already, which saves a look into Unicode's tables.
fn is_plain(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && !host.contains("xn--")
        && host.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
}

fn path_of(target: &str) -> &str {
    target.split(['?', '#']).next().unwrap_or_default()
}

/// Returns the URL in the form that cookie_store reads.
fn whole(url: &Endpoint) -> Option<Url> {
    Url::parse(&format!("{}://{}{}", url.scheme.as_str(), url.authority, url.target)).ok()
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(SESSION - 1)
}

#[cfg(test)]
mod tests;
