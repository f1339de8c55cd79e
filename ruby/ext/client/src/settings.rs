//! Reads settings and options: Hashes with Symbols. The Ruby side has checked names and types and reports errors to the
//! user; this module reads each value once more and tries the settings.
//!
//! Times are seconds; nil means for ever.

use std::cell::RefCell;
use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use magnus::r_hash::ForEach;
use magnus::{Error, RArray, RHash, RString, Ruby, Symbol, TryConvert, Value};
use oroshi_client::{Builder, CookieJar, Deadlines, Proxies, Retries};
use oroshi_http1::Limits;
use oroshi_net::endpoint::EndpointError;
use oroshi_net::tls::{Roots, TlsConfigError};
use oroshi_net::{ClientTls, ClientTlsOptions, Endpoint};

use crate::process::ProcessLocal;
use crate::request::Options;

/// A client's settings, which have been tried.
#[derive(Debug)]
#[magnus::wrap(class = "Oroshi::Client::Native::Settings", free_immediately)]
pub(crate) struct Settings {
    builder: Builder,
    /// Default time limits of a request's phases.
    pub(crate) limits: Deadlines,
    /// Maximum connections: as configured, or fewer where descriptors are few.
    max_connections: usize,
    /// The client's cookies, if it keeps any.
    cookies: Option<RefCell<ProcessLocal<CookieJar>>>,
}

impl Settings {
    /// Reads the settings, and tries to build a client with them.
    pub(crate) fn new(ruby: &Ruby, hash: RHash) -> Result<Self, Error> {
        let mut reading = Reading::default();
        hash.foreach(|name: Symbol, value: Value| {
            reading.read(&name.name()?, value)?;
            Ok(ForEach::Continue)
        })?;
        let wrong = |message| Error::new(ruby.exception_arg_error(), message);
        reading.try_tls().map_err(wrong)?;
        reading.builder = std::mem::take(&mut reading.builder).proxies(reading.proxies().map_err(wrong)?);
        let cookies = reading.cookies.then(|| RefCell::new(ProcessLocal::new(CookieJar::new())));
        let (builder, limits) = reading.finish();
        match builder.clone().build_local() {
            Ok(client) => Ok(Settings { builder, limits, max_connections: client.counts().connections, cookies }),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    pub(crate) fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// Returns the settings of this process's client.
    pub(crate) fn builder(&self) -> Builder {
        let builder = self.builder.clone();
        match self.jar() {
            Some(jar) => builder.cookies(jar),
            None => builder,
        }
    }

    /// Returns the jar of this process. A child begins with an empty one: a thread that it does not have may have held
    /// the parent's.
    fn jar(&self) -> Option<CookieJar> {
        let place = self.cookies.as_ref()?;
        if let Some(jar) = place.borrow().get() {
            return Some(jar.clone());
        }
        let jar = CookieJar::new();
        place.replace(ProcessLocal::new(jar.clone()));
        Some(jar)
    }

    /// Whether the client keeps cookies.
    pub(crate) fn has_cookies(&self) -> bool {
        self.cookies.is_some()
    }

    /// Returns a cookie's value: [`CookieJar::get`].
    pub(crate) fn cookie(ruby: &Ruby, this: &Self, url: RString, name: RString) -> Result<Option<String>, Error> {
        let url = endpoint(ruby, "url", url)?;
        Ok(this.jar().and_then(|jar| jar.get(&url, &text(name))))
    }

    /// Sets a cookie: [`CookieJar::set`].
    pub(crate) fn set_cookie(
        ruby: &Ruby,
        this: &Self,
        url: RString,
        name: RString,
        value: RString,
    ) -> Result<(), Error> {
        let url = endpoint(ruby, "url", url)?;
        let set = this.jar().map(|jar| jar.set(&url, &text(name), &text(value)));
        set.unwrap_or(Ok(())).map_err(|why| Error::new(ruby.exception_arg_error(), why))
    }

    /// Removes all cookies.
    pub(crate) fn clear_cookies(&self) {
        self.jar().iter().for_each(CookieJar::clear);
    }
}

/// Settings while they are read; several make one in Rust.
#[derive(Default)]
struct Reading {
    builder: Builder,
    deadlines: Deadlines,
    limits: Limits,
    tls: ClientTlsOptions,
    prior_knowledge: bool,
    insecure: bool,
    insecure_proxy: bool,
    system_roots: Option<bool>,
    ca_files: Vec<PathBuf>,
    proxy_ca_files: Vec<PathBuf>,
    certificate: Option<PathBuf>,
    private_key: Option<PathBuf>,
    proxy: Option<String>,
    no_proxy: Option<String>,
    retries: Retries,
    cookies: bool,
}

impl Reading {
    fn read(&mut self, name: &str, value: Value) -> Result<(), Error> {
        if deadline(&mut self.deadlines, name, value)? {
            return Ok(());
        }
        let builder = std::mem::take(&mut self.builder);
        self.builder = match name {
            "max_connections" => builder.connections(get(value)?),
            "max_connections_per_host" => builder.connections_per_host(get(value)?),
            "max_idle_per_host" => builder.idle_per_host(get(value)?),
            "max_waiting" => builder.waiting(get(value)?),
            "idle_timeout" => builder.idle_timeout(seconds(value)?),
            "max_age" => builder.max_age(seconds(value)?),
            "keep_alive" => builder.keep_alive(get(value)?),
            "http2" => builder.http2(get(value)?),
            "dns_ttl" => builder.dns_ttl(seconds(value)?),
            "dns_negative_ttl" => builder.dns_negative_ttl(seconds(value)?),
            "attempt_delay" => builder.attempt_delay(seconds(value)?),
            "max_redirects" => builder.redirects(most(value)?),
            "decode" => builder.decode(get(value)?),
            "proxy" | "no_proxy" | "proxy_verify" | "proxy_ca_files" | "retries" | "retry_wait" | "retry_max_wait" => {
                self.read_way(name, value)?;
                builder
            }
            // This crate collects the pieces of a body.
            "max_body_bytes" => builder.stream_bytes(get(value)?),
            "headers" => {
                let fields = fields(get(value)?)?;
                fields.iter().fold(builder, |builder, (name, value)| builder.header(name, value))
            }
            other => {
                self.read_part(other, value)?;
                builder
            }
        };
        Ok(())
    }

    fn read_way(&mut self, name: &str, value: Value) -> Result<(), Error> {
        match name {
            "retries" => self.retries.most = most(value)?,
            "retry_wait" => self.retries.first = seconds(value)?,
            "retry_max_wait" => self.retries.longest = seconds(value)?,
            "no_proxy" => self.no_proxy = get(value)?,
            "proxy_verify" => self.insecure_proxy = !get::<bool>(value)?,
            "proxy_ca_files" => self.proxy_ca_files = get::<Vec<PathBuf>>(value)?,
            _ => self.proxy = get(value)?,
        }
        Ok(())
    }

    /// Returns the proxies: the option's, or with nil the environment's.
    fn proxies(&self) -> Result<Proxies, String> {
        let described = |error: &dyn std::error::Error| {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("{error}{cause}")
        };
        let proxies = match self.proxy.as_deref() {
            None => Proxies::from_environment(),
            Some("none") => Proxies::none(),
            Some(url) => Proxies::all(url).map_err(|error| format!("proxy: {}", described(&error)))?,
        };
        Ok(proxies.except(self.no_proxy.as_deref().unwrap_or_default()))
    }

    fn read_part(&mut self, name: &str, value: Value) -> Result<(), Error> {
        match name {
            "max_head_bytes" => self.limits.head_bytes = get(value)?,
            "max_headers" => self.limits.headers = get(value)?,
            "cookies" => self.cookies = get(value)?,
            "http2_prior_knowledge" => self.prior_knowledge = get(value)?,
            "verify" => self.insecure = !get::<bool>(value)?,
            "system_roots" => self.system_roots = Some(get(value)?),
            "ca_files" => self.ca_files = get::<Vec<PathBuf>>(value)?,
            "certificate" => self.certificate = get(value)?,
            "private_key" => self.private_key = get(value)?,
            "server_name" => self.tls.server_name = get(value)?,
            unknown => {
                let message = format!("{unknown}: no such setting");
                return Err(Error::new(Ruby::get_with(value).exception_arg_error(), message));
            }
        }
        Ok(())
    }

    /// Reads TLS files and the server name, as the first `https` request does, and names the option at fault. The Ruby
    /// side has checked that the files exist, so a shown path is really a path.
    fn try_tls(&self) -> Result<(), String> {
        let attempt = |option: &str, options: ClientTlsOptions| match ClientTls::new(&options, "localhost") {
            Ok(_) => Ok(()),
            Err(TlsConfigError::Name { name }) => {
                Err(format!("{option}: expected a DNS name or an IP address, got {name:?}"))
            }
            Err(error) => {
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                Err(format!("{option}: expected PEM files that can be used, but {error}{cause}"))
            }
        };
        let nobody = || ClientTlsOptions { roots: Roots::Insecure, ..ClientTlsOptions::default() };
        for (option, files) in [("ca_files", &self.ca_files), ("proxy_ca_files", &self.proxy_ca_files)] {
            attempt(option, ClientTlsOptions { roots: Roots::Only(files.clone()), ..nobody() })?;
        }
        let identity = self.certificate.clone().zip(self.private_key.clone());
        attempt("certificate, private_key", ClientTlsOptions { identity, ..nobody() })?;
        attempt("server_name", ClientTlsOptions { server_name: self.tls.server_name.clone(), ..nobody() })
    }

    fn finish(self) -> (Builder, Deadlines) {
        let Reading { builder, deadlines, limits, mut tls, insecure, insecure_proxy, prior_knowledge, .. } = self;
        let Reading { system_roots, ca_files, proxy_ca_files, certificate, private_key, .. } = self;
        let roots = |insecure, files: Vec<PathBuf>| match (insecure, system_roots, files.is_empty()) {
            (true, _, _) => Roots::Insecure,
            (_, Some(false), _) => Roots::Only(files),
            (_, _, true) => Roots::System,
            (_, _, false) => Roots::SystemAnd(files),
        };
        tls.roots = roots(insecure, ca_files);
        let proxy_tls = ClientTlsOptions { roots: roots(insecure_proxy, proxy_ca_files), ..Default::default() };
        tls.identity = certificate.zip(private_key);
        let builder = if prior_knowledge { builder.http2_prior_knowledge() } else { builder };
        (builder.deadlines(deadlines).limits(limits).tls(tls).proxy_tls(proxy_tls).retries(self.retries), deadlines)
    }
}

/// Reads a request's own options. `limits` are the client's.
pub(crate) fn options(hash: RHash, limits: &Deadlines) -> Result<Box<Options>, Error> {
    let mut options = Box::<Options>::default();
    let mut deadlines = *limits;
    hash.foreach(|name: Symbol, value: Value| {
        let name = name.name()?;
        match &*name {
            "max_redirects" => options.redirects = Some(most(value)?),
            "decode" => options.decode = Some(get(value)?),
            "retries" => options.retries = Some(most(value)?),
            "stream" => options.stream = get(value)?,
            "idempotent" => options.idempotent = Some(get(value)?),
            "query" => options.query = get(value)?,
            limit if deadline(&mut deadlines, limit, value)? => options.deadlines = Some(deadlines),
            unknown => {
                let message = format!("{unknown}: no such option");
                return Err(Error::new(Ruby::get_with(value).exception_arg_error(), message));
            }
        }
        Ok(ForEach::Continue)
    })?;
    Ok(options)
}

/// Reads header fields: an Array of pairs of Strings.
pub(crate) fn fields(pairs: RArray) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let field = |pair: RArray| Ok((text(pair.entry(0)?), bytes(pair.entry(1)?)));
    pairs.into_iter().map(|pair| field(RArray::try_convert(pair)?)).collect()
}

/// Resolves a URL relative to a base, which has a scheme and no query, and counts as a folder: `users` below
/// `https://h/v1` is `https://h/v1/users`, and `/users` is `https://h/users`.
pub(crate) fn join(ruby: &Ruby, base: RString, reference: RString) -> Result<String, Error> {
    let mut base = endpoint(ruby, "base_url", base)?;
    if !base.target.ends_with('/') {
        base.target.push('/');
    }
    let wrong = |error: &dyn std::error::Error| Error::new(ruby.exception_arg_error(), format!("url: {error}"));
    base.join(&bytes(reference)).map(|url| url.to_string()).map_err(|error| wrong(&error))
}

/// Parses a URL. `name`: the argument's, for the message.
fn endpoint(ruby: &Ruby, name: &str, url: RString) -> Result<Endpoint, Error> {
    text(url).parse().map_err(|error: EndpointError| Error::new(ruby.exception_arg_error(), format!("{name}: {error}")))
}

/// Returns a String's text. The client refuses replaced non-UTF-8 bytes, in the request's outcome.
pub(crate) fn text(string: RString) -> String {
    String::from_utf8(bytes(string)).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns a String's bytes, in any encoding.
pub(crate) fn bytes(string: RString) -> Vec<u8> {
    // SAFETY: no Ruby code runs before the copy.
    unsafe { string.as_slice() }.to_vec()
}

/// Sets a deadline if the name is one's.
fn deadline(deadlines: &mut Deadlines, name: &str, value: Value) -> Result<bool, Error> {
    let limit = match name {
        "timeout" => &mut deadlines.total,
        "queue_timeout" => &mut deadlines.queue,
        "dns_timeout" => &mut deadlines.dns,
        "connect_timeout" => &mut deadlines.connect,
        "tls_timeout" => &mut deadlines.tls,
        "write_timeout" => &mut deadlines.write,
        "first_byte_timeout" => &mut deadlines.first_byte,
        "between_bytes_timeout" => &mut deadlines.between_bytes,
        _ => return Ok(false),
    };
    *limit = seconds(value)?;
    Ok(true)
}

fn seconds(value: Value) -> Result<Duration, Error> {
    let seconds = Option::<f64>::try_convert(value)?;
    // Times too long to represent are for ever, too.
    Ok(seconds.map_or(Duration::MAX, |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
}

/// Reads a limit; numbers too large to represent are no limit.
fn most(value: Value) -> Result<u32, Error> {
    Ok(u32::try_from(get::<u64>(value)?).unwrap_or(u32::MAX))
}

fn get<T: TryConvert>(value: Value) -> Result<T, Error> {
    T::try_convert(value)
}
