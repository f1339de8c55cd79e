//! The outcome of a request, as Arrays of plain values for Ruby. `ruby/lib/oroshi/client` makes responses and
//! exceptions of them.

use std::error::Error as _;
use std::fmt::Write as _;
use std::time::Duration;

use magnus::encoding::EncodingCapable as _;
use magnus::{
    Exception, IntoValue as _, Module as _, RArray, RClass, RHash, RModule, RString, Ruby, Value, value::ReprValue as _,
};
use oroshi_client::{Coding, Counts, Error, Headers, Timings, local};
use oroshi_http1::Version;

/// The outcome of a request or question.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answer(Box<Answer>),
    /// The head of a response whose body comes in pieces. The last outcome is an answer without a body.
    Head(Box<Answer>),
    /// A piece of its body.
    Piece(Vec<u8>),
    Failure(Error),
    Counts(Counts),
    /// The thread panicked, which is a defect.
    Lost(LostRequest),
}

/// A lost request.
#[derive(Debug)]
pub(crate) struct LostRequest {
    /// Method and URL, as a message begins.
    pub(crate) what: String,
    pub(crate) retry_is_safe: bool,
    /// Time since the call.
    pub(crate) after: Duration,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    status: u16,
    reason: Box<[u8]>,
    version: Version,
    headers: Vec<u8>,
    body: Vec<u8>,
    trailers: Vec<u8>,
    url: String,
    redirects: u32,
    coding: Option<Coding>,
    timings: Timings,
}

impl Answer {
    pub(crate) fn new(response: &local::Response, body: Vec<u8>) -> Self {
        Answer {
            status: response.status(),
            reason: response.reason().into(),
            version: response.version(),
            headers: lines(response.headers()),
            body,
            trailers: response.trailers().map(lines).unwrap_or_default(),
            url: response.url().to_string(),
            redirects: response.redirects(),
            coding: response.coding(),
            timings: response.timings(),
        }
    }

    fn to_ruby(&self, ruby: &Ruby, tag: usize, kind: &str) -> RArray {
        let fields = [
            tag.into_value_with(ruby),
            ruby.sym_new(kind).into_value_with(ruby),
            self.status.into_value_with(ruby),
            text(ruby, &self.reason).into_value_with(ruby),
            ruby.str_new(self.version.number()).into_value_with(ruby),
            text(ruby, &self.headers).into_value_with(ruby),
            ruby.str_from_slice(&self.body).into_value_with(ruby),
            text(ruby, &self.trailers).into_value_with(ruby),
            ruby.str_new(&self.url).into_value_with(ruby),
            self.redirects.into_value_with(ruby),
            self.coding.map(Coding::name).into_value_with(ruby),
            timings(ruby, &self.timings),
        ];
        ruby.ary_new_from_values(&fields)
    }
}

impl Outcome {
    /// `[tag, :response, ...]`, `[tag, :head, ...]`, `[tag, :piece, bytes]`, `[tag, :failure, ...]`,
    /// `[tag, :counts, ...]` or `[tag, :lost, ...]`.
    pub(crate) fn to_ruby(&self, ruby: &Ruby, tag: usize) -> RArray {
        match self {
            Outcome::Answer(answer) => answer.to_ruby(ruby, tag, "response"),
            Outcome::Head(answer) => answer.to_ruby(ruby, tag, "head"),
            Outcome::Piece(bytes) => {
                let fields = [
                    tag.into_value_with(ruby),
                    ruby.sym_new("piece").into_value_with(ruby),
                    ruby.str_from_slice(bytes).into_value_with(ruby),
                ];
                ruby.ary_new_from_values(&fields)
            }
            Outcome::Failure(error) => failure(ruby, tag, error),
            Outcome::Counts(counts) => {
                let fields =
                    [tag.into_value_with(ruby), ruby.sym_new("counts").into_value_with(ruby), all(ruby, counts)];
                ruby.ary_new_from_values(&fields)
            }
            Outcome::Lost(LostRequest { what, retry_is_safe, after }) => {
                let fields = [
                    tag.into_value_with(ruby),
                    ruby.sym_new("lost").into_value_with(ruby),
                    ruby.str_new(what).into_value_with(ruby),
                    retry_is_safe.into_value_with(ruby),
                    after.as_secs_f64().into_value_with(ruby),
                ];
                ruby.ary_new_from_values(&fields)
            }
        }
    }
}

/// Returns an `Oroshi::Client::RequestError` to raise: the request could not even begin.
pub(crate) fn request_error(ruby: &Ruby, name: &str, message: &str, retry_is_safe: bool) -> magnus::Error {
    let made = || {
        let module: RModule = ruby.class_object().const_get("Oroshi")?;
        let class: RClass = module.const_get::<_, RClass>("Client")?.const_get("Error")?;
        let fields = (ruby.sym_new("request"), name, message, false, retry_is_safe, timings(ruby, &Timings::default()));
        class.funcall::<_, _, Exception>("of", fields)
    };
    made().map_or_else(|error: magnus::Error| error, magnus::Error::from)
}

fn failure(ruby: &Ruby, tag: usize, error: &Error) -> RArray {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing into a String does not fail.
        let _ = write!(message, ": {error}");
        cause = error.source();
    }
    let fields = [
        tag.into_value_with(ruby),
        ruby.sym_new("failure").into_value_with(ruby),
        ruby.sym_new(error.phase().name().replace('-', "_")).into_value_with(ruby),
        ruby.str_new(error.name()).into_value_with(ruby),
        ruby.str_new(&message).into_value_with(ruby),
        error.is_timeout().into_value_with(ruby),
        error.retry_is_safe().into_value_with(ruby),
        timings(ruby, &error.timings()),
    ];
    ruby.ary_new_from_values(&fields)
}

/// Returns seconds, in the order of `Oroshi::Client::Timings`; nil for a phase that did not happen.
fn timings(ruby: &Ruby, timings: &Timings) -> Value {
    let Timings { queue, dns, connect, tls, write, first_byte, body, total, .. } = *timings;
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64()).into_value_with(ruby);
    let all = [Some(queue), dns, connect, tls, Some(write), Some(first_byte), Some(body), Some(total)].map(seconds);
    ruby.ary_new_from_values(&all).into_value_with(ruby)
}

fn all(ruby: &Ruby, counts: &Counts) -> Value {
    let hash: RHash = ruby.hash_from_iter([
        (ruby.sym_new("open"), counts.open as u64),
        (ruby.sym_new("idle"), counts.idle as u64),
        (ruby.sym_new("waiting"), counts.waiting as u64),
        (ruby.sym_new("in_flight"), counts.in_flight as u64),
        (ruby.sym_new("max_connections"), counts.connections as u64),
        (ruby.sym_new("requests"), counts.requests),
        (ruby.sym_new("connects"), counts.connects),
        (ruby.sym_new("retries"), counts.retries),
        (ruby.sym_new("redirects"), counts.redirects),
        (ruby.sym_new("failures"), counts.failures),
    ]);
    hash.into_value_with(ruby)
}

/// Returns fields as lines `Name: value`; values contain no line end (RFC 9110, section 5.5).
fn lines(headers: &Headers) -> Vec<u8> {
    let mut lines = Vec::with_capacity(256);
    for (name, value) in headers.iter() {
        lines.extend_from_slice(name.as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value);
        lines.push(b'\n');
    }
    lines
}

/// Returns a String in UTF-8; Ruby checks it where it matters.
fn text(ruby: &Ruby, bytes: &[u8]) -> RString {
    let string = ruby.str_from_slice(bytes);
    // It fails only for a frozen String; this one is new.
    let _ = string.enc_associate(ruby.utf8_encoding());
    string
}
