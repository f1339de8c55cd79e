//! The settings of a worker: a Hash with Symbols from the Ruby side, checked once more.

use std::os::fd::RawFd;

use magnus::{Error, RHash, Ruby, Symbol, TryConvert, Value, value::ReprValue as _};
use oroshi_http1::Limits;

use crate::log::Format;

/// The settings of a worker. Times in milliseconds.
#[derive(Debug)]
pub(crate) struct Settings {
    /// How long a kept connection may wait for its next request; 0: one request per connection.
    pub(crate) keep_alive_ms: u64,
    /// Limit of one wait for a client: a head, progress in a body, room for an answer.
    pub(crate) timeout_ms: u64,
    /// How long kept connections are still served after a stop.
    pub(crate) linger_ms: u64,
    /// Limits of a request.
    pub(crate) limits: Limits,
    /// Body bytes kept in memory; a larger body goes to a file.
    pub(crate) spool_bytes: usize,
    /// Memory for half-received bodies and unread answers, bytes.
    pub(crate) buffer_bytes: u64,
    /// Temporary files for unread answers, bytes.
    pub(crate) answer_file_bytes: u64,
    /// Temporary files for half-received bodies, bytes.
    pub(crate) body_file_bytes: u64,
    /// Bytes per second that a client must send of a body, or read of an answer; 0: any progress counts.
    pub(crate) least_rate: u64,
    /// Whether bodies of unknown length are sent in chunks; otherwise the close ends them.
    pub(crate) chunked: bool,
    /// Whether the application's Rack is older than 3.
    pub(crate) rack2: bool,
    pub(crate) multiprocess: bool,
    /// Whether environments have `rack.early_hints`.
    pub(crate) early_hints: bool,
    /// Whether requests of clients that have gone are dropped before the application is called.
    pub(crate) check_client: bool,
    pub(crate) https: bool,
    pub(crate) errors: Value,
    pub(crate) log_format: Format,
    /// The access log's descriptor. A reopened file keeps the number (dup2).
    pub(crate) log_fd: RawFd,
    /// The read end of a pipe whose other end only the manager holds.
    pub(crate) lifeline_fd: Option<RawFd>,
    /// Requests after which the worker asks to be replaced.
    pub(crate) quit_after: Option<u64>,
    pub(crate) on_enough: Option<Value>,
    /// Called by requests that wait: whether another thread takes the place of theirs. `None`: environments have no
    /// `oroshi.io_bound`.
    pub(crate) on_io_bound: Option<Value>,
    /// Called when a thread begins to rest.
    pub(crate) on_rest: Option<Value>,
    /// Minimum and maximum number of requests between out-of-band garbage collections.
    pub(crate) oob_gc: Option<(u64, u64)>,
    /// The fixed part of the process title; `None`: leave the title alone.
    pub(crate) title: Option<String>,
    /// Whether environments may be filled in place (crate::shapes); tests disable it.
    pub(crate) in_place: bool,
}

const KNOWN: [&str; 27] = [
    "rack_release",
    "keep_alive_s",
    "timeout_s",
    "linger_s",
    "max_body",
    "limits",
    "input_spool_bytes",
    "buffer_bytes",
    "answer_file_bytes",
    "body_file_bytes",
    "least_rate",
    "chunked",
    "multiprocess",
    "early_hints",
    "check_client_connection",
    "url_scheme",
    "errors",
    "log_format",
    "log_fd",
    "lifeline_fd",
    "quit_after",
    "on_enough",
    "on_io_bound",
    "on_rest",
    "oob_gc",
    "title",
    "fill_in_place",
];

impl Settings {
    /// Reads the Hash.
    pub(crate) fn read(ruby: &Ruby, hash: RHash) -> Result<Self, Error> {
        refuse_unknown(ruby, hash, "setting", &KNOWN)?;
        let reader = Reader { ruby, hash };
        let mut limits = Limits::default();
        if let Some(bytes) = reader.get("max_body")? {
            limits.body_bytes = bytes;
        }
        if let Some(given) = reader.get("limits")? {
            read_limits(ruby, given, &mut limits)?;
        }
        let release: String = reader.get("rack_release")?.unwrap_or_else(|| "2.2".to_owned());
        let major = release.split('.').next().and_then(|digits| digits.parse::<u32>().ok());
        let major = major.ok_or_else(|| wrong(ruby, "rack_release", &release, "a release such as \"2.2.22\""))?;
        let scheme: String = reader.get("url_scheme")?.unwrap_or_else(|| "http".to_owned());
        if !["http", "https"].contains(&&*scheme) {
            return Err(wrong(ruby, "url_scheme", &scheme, "http or https"));
        }
        let format: String = reader.get::<Symbol>("log_format")?.map_or(Ok("off".into()), Symbol::name)?.into_owned();
        let log_format = Format::named(&format)
            .ok_or_else(|| wrong(ruby, "log_format", &format, "off, common, combined or json"))?;
        let oob_gc = reader.get::<RHash>("oob_gc")?.map(|given| range(ruby, given)).transpose()?;
        let errors = match reader.get("errors")? {
            Some(errors) => errors,
            None => ruby.eval("$stderr")?,
        };
        Ok(Settings {
            keep_alive_ms: reader.milliseconds("keep_alive_s", 0.0)?,
            timeout_ms: reader.milliseconds("timeout_s", 300.0)?.max(1),
            linger_ms: reader.milliseconds("linger_s", 1.0)?,
            limits,
            spool_bytes: reader.get("input_spool_bytes")?.unwrap_or(1024 * 1024),
            buffer_bytes: reader.get("buffer_bytes")?.unwrap_or(64 << 20),
            answer_file_bytes: reader.get("answer_file_bytes")?.unwrap_or(1 << 30),
            body_file_bytes: reader.get("body_file_bytes")?.unwrap_or(u64::MAX),
            least_rate: reader.get("least_rate")?.unwrap_or(1024),
            chunked: reader.get("chunked")?.unwrap_or(true),
            rack2: major < 3,
            multiprocess: reader.get("multiprocess")?.unwrap_or(true),
            early_hints: reader.get("early_hints")?.unwrap_or(false),
            check_client: reader.get("check_client_connection")?.unwrap_or(false),
            https: scheme == "https",
            errors,
            log_format,
            log_fd: reader.get("log_fd")?.unwrap_or(1),
            lifeline_fd: reader.get("lifeline_fd")?,
            quit_after: reader.get("quit_after")?,
            on_enough: reader.get("on_enough")?,
            on_io_bound: reader.get("on_io_bound")?,
            on_rest: reader.get("on_rest")?,
            oob_gc,
            title: reader.get("title")?,
            in_place: reader.get("fill_in_place")?.unwrap_or(true),
        })
    }

    /// Returns the given blocks.
    pub(crate) fn hooks(&self) -> impl Iterator<Item = Value> {
        [self.on_enough, self.on_io_bound, self.on_rest].into_iter().flatten()
    }
}

struct Reader<'r> {
    ruby: &'r Ruby,
    hash: RHash,
}

impl Reader<'_> {
    /// Returns a setting; `None` if it is absent or nil.
    fn get<T: TryConvert>(&self, name: &str) -> Result<Option<T>, Error> {
        let given: Option<Value> = self.hash.get(self.ruby.to_symbol(name));
        let Some(given) = given.filter(|given| !given.is_nil()) else { return Ok(None) };
        T::try_convert(given).map(Some).map_err(|error| {
            let message = format!("the setting {name} is {}: {error}", given.inspect());
            Error::new(self.ruby.exception_arg_error(), message)
        })
    }

    fn milliseconds(&self, name: &str, default_s: f64) -> Result<u64, Error> {
        let seconds = self.get(name)?.unwrap_or(default_s);
        // More than a thousand years is a mistake.
        if !(0.0..=3.2e10).contains(&seconds) {
            return Err(wrong(self.ruby, name, &seconds.to_string(), "seconds, 0 or more"));
        }
        Ok((seconds * 1000.0) as u64)
    }
}

fn read_limits(ruby: &Ruby, given: RHash, limits: &mut Limits) -> Result<(), Error> {
    let reader = Reader { ruby, hash: given };
    let places = [
        ("head_bytes", &mut limits.head_bytes),
        ("headers", &mut limits.headers),
        ("target_bytes", &mut limits.target_bytes),
        ("chunk_line_bytes", &mut limits.chunk_line_bytes),
        ("extension_bytes", &mut limits.extension_bytes),
        ("trailer_bytes", &mut limits.trailer_bytes),
        ("trailers", &mut limits.trailers),
    ];
    refuse_unknown(ruby, given, "limit", &places.each_ref().map(|(name, _)| *name))?;
    for (name, place) in places {
        if let Some(limit) = reader.get(name)? {
            *place = limit;
        }
    }
    Ok(())
}

fn range(ruby: &Ruby, given: RHash) -> Result<(u64, u64), Error> {
    refuse_unknown(ruby, given, "part of oob_gc", &["min", "max"])?;
    let reader = Reader { ruby, hash: given };
    let max: u64 = reader.get("max")?.unwrap_or(5);
    let min: u64 = reader.get("min")?.unwrap_or(max);
    if min == 0 || min > max {
        return Err(wrong(ruby, "oob_gc", &format!("{min} to {max}"), "requests, 1 or more, and min not over max"));
    }
    Ok((min, max))
}

fn refuse_unknown(ruby: &Ruby, hash: RHash, what: &str, known: &[&str]) -> Result<(), Error> {
    hash.foreach(|key: Symbol, _: Value| {
        let name = key.name()?;
        if known.contains(&&*name) {
            return Ok(magnus::r_hash::ForEach::Continue);
        }
        let message = format!("there is no {what} {name}; known are {}", known.join(", "));
        Err(Error::new(ruby.exception_arg_error(), message))
    })
}

fn wrong(ruby: &Ruby, name: &str, given: &str, expected: &str) -> Error {
    Error::new(ruby.exception_arg_error(), format!("the setting {name} is {given}; expected: {expected}"))
}
