//! The access log: each core buffers lines, and one thread writes them.
//!
//! A core hands its buffer to the writer when it is large or some time has passed. A slow disk therefore never delays
//! requests: the log drops buffers that the writer cannot take, and counts them.

mod template;

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oroshi_http1::Headers;
use oroshi_net::tls::TlsFacts;
use oroshi_words::Date;
use oroshi_words::access_line::{self, AccessLine, Spaces};
use serde::Serialize;

pub use template::{Escaping, Template};

/// A core hands over its buffer at this size.
const BUFFER_BYTES: usize = 64 * 1024;

/// The most buffers that wait for the writer: 16 MiB.
const WAITING: usize = 256;

/// The format of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line, with every known field.
    #[default]
    Json,
    /// The format of Apache and nginx: address, time, request line, status, bytes, referrer, user agent.
    Combined,
    /// A text with variables.
    Template(Arc<Template>),
}

/// Settings of the access log.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The file to append to; `None`: standard output.
    pub file: Option<PathBuf>,
    /// The format of the lines.
    pub format: Format,
    /// The share of requests to log, 0 to 1. Responses of 500 and above are always logged.
    pub sample: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { file: None, format: Format::default(), sample: 1.0 }
    }
}

/// A completed request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line<'a> {
    /// The client's address; `None` on a unix socket.
    pub client: Option<IpAddr>,
    /// The method.
    pub method: &'a str,
    /// The target, as received.
    pub target: &'a str,
    /// `1.0`, `1.1` or `2.0`.
    pub version: &'a str,
    /// The requested host, as received.
    pub host: &'a [u8],
    /// The response's status; 0 if there was none.
    pub status: u16,
    /// Bytes of the response's body.
    pub bytes: u64,
    /// From the request's head to the end of the response.
    pub took: Duration,
    /// The route's name.
    pub route: &'a str,
    /// The target that gave the response; empty if none did.
    pub upstream: &'a str,
    /// The version of its response, as `version`; empty if there was none.
    pub upstream_version: &'a str,
    /// From the first byte to the upstream to the end of the response's head.
    pub upstream_took: Option<Duration>,
    /// How many further connections the gateway tried after the first.
    pub retries: u32,
    /// The failure's name; empty if the request succeeded.
    pub failure: &'a str,
    /// Detail of the failure. May be empty.
    pub detail: &'a str,
    /// The request's `X-Request-Id`.
    pub request_id: &'a [u8],
    /// The id of the request's trace; empty if the route does not ask for one.
    pub trace: &'a str,
    /// `Referer`.
    pub referrer: &'a [u8],
    /// `User-Agent`.
    pub agent: &'a [u8],
    /// All fields of the request.
    pub headers: Headers<'a>,
    /// Whether the client came by TLS.
    pub is_tls: bool,
    /// The facts of the handshake, if [`Sink::wants_tls`].
    pub tls: Option<&'a TlsFacts>,
}

/// The access log. Each core writes to a [`Sink`].
#[derive(Debug)]
pub struct Log {
    shared: Arc<Shared>,
    settings: Settings,
    sender: Mutex<Option<SyncSender<Vec<u8>>>>,
    /// Disconnects when the writer ends.
    writer: Mutex<Option<Receiver<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    dropped: AtomicU64,
    failed: AtomicU64,
    reopen: AtomicBool,
}

/// Counts of lost lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Buffers dropped because the writer was too slow.
    pub dropped: u64,
    /// Failed writes.
    pub failed: u64,
}

impl Log {
    /// Opens the file and starts the writer.
    ///
    /// # Errors
    /// The file cannot be opened for appending, or no thread can be started.
    pub fn open(settings: Settings) -> io::Result<Self> {
        let file = open(settings.file.as_deref())?;
        let (sender, receiver) = sync_channel(WAITING);
        let shared = Arc::new(Shared::default());
        let (ends, writer) = sync_channel(0);
        {
            let (shared, path) = (Arc::clone(&shared), settings.file.clone());
            thread::Builder::new().name("access-log".into()).spawn(move || {
                write(file, path.as_deref(), &receiver, &shared);
                drop(ends);
            })?;
        }
        Ok(Log { shared, settings, sender: Mutex::new(Some(sender)), writer: Mutex::new(Some(writer)) })
    }

    /// Makes a sink for one core.
    #[must_use]
    pub fn sink(&self) -> Sink {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (format, sample) = (self.settings.format.clone(), self.settings.sample);
        Sink { buffer: RefCell::default(), sender, shared: Arc::clone(&self.shared), format, sample }
    }

    /// Reopens the file before the next write, for use after log rotation.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Relaxed);
    }

    /// Returns the counts of lost buffers and failed writes.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Counts { dropped: of(&self.shared.dropped), failed: of(&self.shared.failed) }
    }

    /// Waits up to `patience` until everything is written; returns whether it is. Call it after dropping all sinks. A
    /// stuck disk or an unread pipe uses the whole time.
    pub fn finish(&self, patience: Duration) -> bool {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let done = writer.map(|done| done.recv_timeout(patience));
        // The writer sends nothing: it drops its end.
        !matches!(done, Some(Err(RecvTimeoutError::Timeout)))
    }
}

/// One core's part of the log. Dropping it hands over its buffer.
#[derive(Debug)]
pub struct Sink {
    buffer: RefCell<Vec<u8>>,
    sender: Option<SyncSender<Vec<u8>>>,
    shared: Arc<Shared>,
    format: Format,
    sample: f64,
}

impl Sink {
    /// Returns whether to log a request with this status. Call it once per request, before making the line.
    #[must_use]
    pub fn wants(&self, status: u16) -> bool {
        status >= 500 || self.sample >= 1.0 || fastrand::f64() < self.sample
    }

    /// Returns whether lines show facts about TLS.
    #[must_use]
    pub fn wants_tls(&self) -> bool {
        match &self.format {
            Format::Json => true,
            Format::Combined => false,
            Format::Template(template) => template.shows_tls(),
        }
    }

    /// Logs a request.
    pub fn tell(&self, line: &Line<'_>) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut buffer = self.buffer.borrow_mut();
        match &self.format {
            Format::Json => json(&mut buffer, line, since),
            Format::Combined => combined(&mut buffer, line, since),
            Format::Template(template) => {
                template.write(&mut buffer, line, since);
                buffer.push(b'\n');
            }
        }
        if buffer.len() >= BUFFER_BYTES {
            self.hand_over(std::mem::take(&mut *buffer));
        }
    }

    /// Hands over the buffer. Call it about once a second.
    pub fn flush(&self) {
        let buffer = std::mem::take(&mut *self.buffer.borrow_mut());
        if !buffer.is_empty() {
            self.hand_over(buffer);
        }
    }

    fn hand_over(&self, buffer: Vec<u8>) {
        let Some(sender) = &self.sender else { return };
        match sender.try_send(buffer) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Checks that a log can be appended to at `path`, as far as possible without creating a file.
///
/// # Errors
/// The reason.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    match OpenOptions::new().append(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match folder.is_dir() {
                true => Ok(()),
                false => Err(format!("there is no folder `{}`", folder.display())),
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

fn open(path: Option<&Path>) -> io::Result<Option<File>> {
    path.map(|path| OpenOptions::new().append(true).create(true).open(path)).transpose()
}

fn write(mut file: Option<File>, path: Option<&Path>, buffers: &Receiver<Vec<u8>>, shared: &Shared) {
    for buffer in buffers {
        if shared.reopen.swap(false, Ordering::Relaxed) {
            match open(path) {
                Ok(opened) => file = opened,
                // The old file is better than none.
                Err(_) => drop(shared.failed.fetch_add(1, Ordering::Relaxed)),
            }
        }
        let written = match &mut file {
            Some(file) => file.write_all(&buffer),
            None => io::stdout().lock().write_all(&buffer).and_then(|()| io::stdout().flush()),
        };
        if written.is_err() {
            shared.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The JSON form of a line.
#[derive(Serialize)]
struct Json<'a> {
    /// Seconds since 1970 at the end of the response.
    time: f64,
    client: Option<IpAddr>,
    method: &'a str,
    host: &'a str,
    target: &'a str,
    version: &'a str,
    status: u16,
    bytes: u64,
    seconds: f64,
    route: &'a str,
    upstream: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    upstream_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_seconds: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    retries: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    failure: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    detail: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    trace: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<JsonTls<'a>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    referrer: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    agent: &'a str,
}

/// The JSON form of a handshake.
#[derive(Serialize)]
struct JsonTls<'a> {
    protocol: &'static str,
    cipher: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_name: Option<&'a str>,
    resumed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_sha256: Option<&'a str>,
}

impl<'a> From<&'a TlsFacts> for JsonTls<'a> {
    fn from(facts: &'a TlsFacts) -> Self {
        JsonTls {
            protocol: facts.version,
            cipher: &facts.suite,
            server_name: facts.sni.as_deref(),
            resumed: facts.resumed,
            client_subject: facts.client.as_ref().map(|client| &*client.subject),
            client_sha256: facts.client.as_ref().map(|client| &*client.fingerprint),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks in this way")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn json(out: &mut Vec<u8>, line: &Line<'_>, since: Duration) {
    let microseconds = |time: Duration| time.as_micros() as f64 / 1e6;
    let text = String::from_utf8_lossy;
    let line = Json {
        time: since.as_millis() as f64 / 1e3,
        client: line.client,
        method: line.method,
        host: &text(line.host),
        target: line.target,
        version: line.version,
        status: line.status,
        bytes: line.bytes,
        seconds: microseconds(line.took),
        route: line.route,
        upstream: line.upstream,
        upstream_version: line.upstream_version,
        upstream_seconds: line.upstream_took.map(microseconds),
        retries: line.retries,
        failure: line.failure,
        detail: line.detail,
        request_id: &text(line.request_id),
        trace: line.trace,
        tls: line.tls.map(JsonTls::from),
        referrer: &text(line.referrer),
        agent: &text(line.agent),
    };
    // Serializing strings and numbers into memory cannot fail.
    let _ = serde_json::to_writer(&mut *out, &line);
    out.push(b'\n');
}

fn combined(out: &mut Vec<u8>, line: &Line<'_>, since: Duration) {
    let client = line.client.map(|address| address.to_string()).unwrap_or_default();
    let common = AccessLine {
        client: client.as_bytes(),
        time: access_line::time(Date::at(since.as_secs())),
        method: line.method.as_bytes(),
        target: line.target.as_bytes(),
        version: line.version,
        status: line.status,
        // A request without a response has 000, as in nginx's log.
        status_digits: 3,
        bytes: line.bytes,
    };
    common.write(out, Spaces::Escaped);
    access_line::quoted(out, [line.referrer, line.agent], Spaces::Escaped);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line<'static> {
        Line {
            client: Some([127, 0, 0, 1].into()),
            method: "GET",
            target: "/a?b=\"c\"",
            version: "1.1",
            host: b"Example.org:80",
            status: 200,
            bytes: 12,
            took: Duration::from_micros(1500),
            route: "shop",
            upstream: "unix:/run/app.sock",
            upstream_version: "2.0",
            upstream_took: Some(Duration::from_millis(1)),
            agent: b"curl 8\n\xff",
            ..Line::default()
        }
    }

    #[test]
    fn a_combined_line_is_as_everybodys_tools_read_it() {
        let mut out = Vec::new();
        combined(&mut out, &line(), Duration::from_secs(1_000_000_000));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "127.0.0.1 - - [09/Sep/2001:01:46:40 +0000] \"GET /a?b=\\x22c\\x22 HTTP/1.1\" 200 12 \"-\" \
             \"curl\\x208\\x0A\\xFF\"\n"
        );
    }

    #[test]
    fn a_json_line_is_one_line_of_json() {
        let mut out = Vec::new();
        json(&mut out, &line(), Duration::from_millis(1_500));
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["time"], 1.5);
        assert_eq!(value["seconds"], 0.0015);
        assert_eq!((&value["upstream_version"], &value["upstream_seconds"]), (&"2.0".into(), &0.001.into()));
        assert_eq!(value["target"], "/a?b=\"c\"");
        assert_eq!(value["agent"], "curl 8\n\u{fffd}");
        assert!(value.get("failure").is_none());
    }

    #[test]
    fn lines_of_all_cores_reach_the_file_whole_also_after_it_was_moved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let log = Log::open(Settings { file: Some(path.clone()), ..Settings::default() }).unwrap();
        let tell = |count: usize| {
            let sinks = [log.sink(), log.sink()];
            thread::scope(|scope| {
                for sink in sinks {
                    scope.spawn(move || (0..count).for_each(|_| sink.tell(&line())));
                }
            });
        };
        tell(1000);
        // This line proves that the writer has opened the file and written everything before it.
        while std::fs::read_to_string(&path).unwrap().lines().count() < 2000 {
            thread::yield_now();
        }
        std::fs::rename(&path, folder.path().join("access.log.1")).unwrap();
        log.reopen();
        tell(10);
        assert!(log.finish(Duration::from_secs(30)));
        let count = |name: &str| {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            lines.len()
        };
        assert_eq!((count("access.log.1"), count("access.log")), (2000, 20));
        assert_eq!(log.counts(), Counts::default());
    }

    #[test]
    fn failures_are_told_whatever_the_sample() {
        let folder = tempfile::tempdir().unwrap();
        let file = Some(folder.path().join("log"));
        let log = Log::open(Settings { file, sample: 0.0, ..Settings::default() }).unwrap();
        let sink = log.sink();
        assert!(!sink.wants(200) && sink.wants(502));
    }
}
