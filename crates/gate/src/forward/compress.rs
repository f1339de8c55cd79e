//! Compression of responses: which ones, by which coding, and their encoders.
//!
//! The decision looks at the head as it would go to the client. It is pure. Encoders have bounded memory, each for
//! itself and all together: see [`EncoderBudget`].

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use brotli::CompressorWriter;
use flate2::write::GzEncoder;
use oroshi_http1::Headers;
use oroshi_words::named::values;
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use super::fields::holds;

/// The windows of brotli and zstd: 256 KiB, which bounds the memory of both sides.
const WINDOW_LOG: u32 = 18;

/// The size of the encoders' output buffers.
const OUTPUT_BYTES: usize = 8192;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Brotli.
    Brotli,
    /// Zstandard.
    Zstd,
    /// gzip.
    Gzip,
}

impl Coding {
    const NAMED: [(Self, &'static str); 3] = [(Coding::Brotli, "br"), (Coding::Zstd, "zstd"), (Coding::Gzip, "gzip")];

    /// Every coding, the preferred first.
    pub const ALL: [Self; 3] = values(&Self::NAMED);

    /// Returns the name in `Content-Encoding`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].1
    }
}

/// Which responses of upstreams are compressed, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The codings, the preferred first: of those that a client likes equally, the first one.
    pub codings: Vec<Coding>,
    /// The media types, in lower case: `application/json`, or `text/*`. Never `text/event-stream`.
    pub types: Vec<String>,
    /// The least length of a body whose length is known.
    pub min_bytes: u64,
    /// The levels: gzip 1 to 9, brotli 0 to 11, zstd 1 to 19.
    pub levels: Levels,
}

/// Levels of compression: higher ones take more time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// 1 to 9.
    pub gzip: u32,
    /// 0 to 11.
    pub br: u32,
    /// 1 to 19.
    pub zstd: u32,
}

impl Default for Compression {
    fn default() -> Self {
        const TYPES: [&str; 10] = [
            "text/*",
            "application/json",
            "application/javascript",
            "application/xml",
            "application/xhtml+xml",
            "application/rss+xml",
            "application/atom+xml",
            "application/manifest+json",
            "application/wasm",
            "image/svg+xml",
        ];
        Compression {
            codings: Coding::ALL.to_vec(),
            types: TYPES.map(str::to_owned).to_vec(),
            min_bytes: 1024,
            levels: Levels { gzip: 5, br: 4, zstd: 3 },
        }
    }
}

/// A response before its head goes to the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncompressed<'r> {
    pub(crate) status: u16,
    /// The body's length, if known.
    pub(crate) length: Option<u64>,
    /// Whether it answers HEAD.
    pub(crate) is_head: bool,
    /// The fields of the request.
    pub(crate) request: Headers<'r>,
}

impl Compression {
    /// Returns the first mistake: its key, and what was expected.
    #[must_use]
    pub fn mistake(&self) -> Option<(&'static str, String)> {
        let Levels { gzip, br, zstd } = self.levels;
        if self.codings.is_empty() {
            return Some(("codings", "there is none: expected some of br, zstd and gzip".to_owned()));
        }
        for (key, level, range) in
            [("levels.gzip", gzip, 1..=9), ("levels.br", br, 0..=11), ("levels.zstd", zstd, 1..=19)]
        {
            if !range.contains(&level) {
                return Some((key, format!("{level} is no level: expected {} to {}", range.start(), range.end())));
            }
        }
        let is_type = |kind: &str| {
            kind.split_once('/').is_some_and(|(main, sub)| {
                let is_name = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic());
                is_name(main) && is_name(sub) && main != "*" && !kind.contains([';', ',', '"'])
            })
        };
        if let Some(kind) = self.types.iter().find(|kind| !is_type(kind)) {
            return Some(("types", format!("{kind:?} is no media type: expected one such as text/html or text/*")));
        }
        self.types.iter().any(|kind| kind == "text/event-stream").then(|| {
            ("types", "events are not compressed, so that each arrives at once: leave text/event-stream out".to_owned())
        })
    }

    /// Decides about a response. `lines` are the field lines of its head without those that frame it; they change if
    /// it is compressed, or would be for another client. `None`: it goes as it is.
    pub(crate) fn begin(
        &self,
        lines: &mut Vec<u8>,
        response: Uncompressed<'_>,
        budget: &Arc<EncoderBudget>,
    ) -> Compressing {
        let headers = Headers::from_checked_lines(lines);
        if !self.is_eligible(headers, response) {
            return Compressing::No;
        }
        let coding = self.accepted(response.request);
        let (change, compressing) = match coding {
            // The head is as for GET. Its length is not known without the body.
            Some(coding) if response.is_head && response.status != 304 => (Change::To(coding), Compressing::Head),
            Some(_) if response.status == 304 && !has_tag(headers, response.request) => {
                (Change::Weaken, Compressing::No)
            }
            Some(coding) if response.status != 304 => match Encoder::new(coding, self.levels, budget) {
                Some(encoder) => {
                    let encoder = Encoder { flushes: response.length.is_none(), ..encoder };
                    (Change::To(coding), Compressing::Body(Box::new(encoder)))
                }
                None => (Change::Nothing, Compressing::No),
            },
            _ => (Change::Nothing, Compressing::No),
        };
        *lines = changed(headers, change);
        compressing
    }

    fn is_eligible(&self, headers: Headers<'_>, response: Uncompressed<'_>) -> bool {
        let Uncompressed { status, length, request, .. } = response;
        // RFC 9110, section 7.7: nobody on the way may change the content.
        let is_fixed =
            |headers: Headers<'_>| headers.get_all("cache-control").any(|value| holds(value, b"no-transform"));
        // A 304 need not tell the type and the length of the content, whose other fields it has.
        let is_304 = status == 304;
        !matches!(status, ..200 | 204..=206)
            && (is_304 || length.is_none_or(|length| length >= self.min_bytes.max(1)))
            && headers.get("content-encoding").is_none()
            && headers.get("content-range").is_none()
            && headers.get("content-type").map_or(is_304, |kind| self.has_type(kind))
            && !is_fixed(headers)
            && !is_fixed(request)
    }

    fn has_type(&self, kind: &[u8]) -> bool {
        let end = memchr::memchr(b';', kind).unwrap_or(kind.len());
        let kind = kind[..end].trim_ascii();
        let fits = |known: &String| match known.strip_suffix('*') {
            Some(main) => kind.get(..main.len()).is_some_and(|start| start.eq_ignore_ascii_case(main.as_bytes())),
            None => kind.eq_ignore_ascii_case(known.as_bytes()),
        };
        !kind.eq_ignore_ascii_case(b"text/event-stream") && self.types.iter().any(fits)
    }

    /// Returns the coding that a client likes best (RFC 9110, section 12.5.3).
    fn accepted(&self, request: Headers<'_>) -> Option<Coding> {
        let quality = |name: &[u8]| quality(request, name);
        let plain = quality(b"identity").unwrap_or(0);
        let any = quality(b"*").unwrap_or(0);
        let mut best = None;
        for &coding in &self.codings {
            let alias = || if coding == Coding::Gzip { quality(b"x-gzip") } else { None };
            let liked = quality(coding.name().as_bytes()).or_else(alias).unwrap_or(any);
            if liked > 0 && liked >= plain && best.is_none_or(|(most, _)| liked > most) {
                best = Some((liked, coding));
            }
        }
        best.map(|(_, coding)| coding)
    }
}

/// Returns the quality of an element in `Accept-Encoding`, 0 to 1000; `None`: it is not there.
fn quality(request: Headers<'_>, name: &[u8]) -> Option<u32> {
    let elements = request.get_all("accept-encoding").flat_map(|value| value.split(|&byte| byte == b','));
    let mut found = elements.filter_map(|element| {
        let mut parts = element.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let is_it = parts.next()?.eq_ignore_ascii_case(name);
        let weight = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
        is_it.then(|| weight.map_or(1000, thousandths))
    });
    found.next()
}

/// Reads a weight such as `0.5` (RFC 9110, section 12.4.2); anything else is 0.
fn thousandths(text: &[u8]) -> u32 {
    let number = str::from_utf8(text).ok().and_then(|text| text.parse::<f32>().ok());
    number.filter(|weight| (0.0..=1.0).contains(weight)).map_or(0, |weight| (weight * 1000.0) as u32)
}

/// Whether a response is compressed.
#[derive(Debug)]
pub(crate) enum Compressing {
    /// It goes as it is.
    No,
    /// It has only the head of a compressed one, of unknown length.
    Head,
    /// Its body goes through this encoder.
    Body(Box<Encoder>),
}

/// How a head changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It says that the content depends on `Accept-Encoding`.
    Nothing,
    /// Its validator is that of a compressed content, too.
    Weaken,
    /// Its content has this coding, too.
    To(Coding),
}

/// Returns whether the client named the response's own validator, and thus has the content as it is. After a compressed
/// one it names the weak form.
fn has_tag(headers: Headers<'_>, request: Headers<'_>) -> bool {
    let Some(tag) = headers.get("etag") else { return false };
    let known = request.get_all("if-none-match").flat_map(|value| value.split(|&byte| byte == b','));
    known.map(<[u8]>::trim_ascii).any(|known| known == tag)
}

/// Returns the field lines of a response that is compressed, or would be for another client.
fn changed(headers: Headers<'_>, change: Change) -> Vec<u8> {
    let mut lines = Vec::with_capacity(headers.as_bytes().len() + 64);
    let is = |name: &str, other: &str| name.eq_ignore_ascii_case(other);
    let mut varies = false;
    for (field, line) in headers.lines() {
        varies |= is(field.name, "vary") && (holds(field.value, b"accept-encoding") || holds(field.value, b"*"));
        match field.name {
            // Of the content before it was compressed.
            name if change != Change::Nothing
                && ["accept-ranges", "content-digest", "content-md5", "digest", "repr-digest"]
                    .iter()
                    .any(|dropped| is(name, dropped)) => {}
            // Two contents with one strong validator would be the same, byte by byte (RFC 9110, section 8.8.1).
            name if change != Change::Nothing && is(name, "etag") && field.value.starts_with(b"\"") => {
                lines.extend_from_slice(b"ETag: W/");
                lines.extend_from_slice(field.value);
                lines.extend_from_slice(b"\r\n");
            }
            _ => lines.extend_from_slice(line),
        }
    }
    if let Change::To(coding) = change {
        lines.extend_from_slice(format!("Content-Encoding: {}\r\n", coding.name()).as_bytes());
    }
    if !varies {
        lines.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    lines
}

/// Returns whether a trailer would be false of a compressed content.
pub(super) fn is_of_content(name: &str) -> bool {
    ["content-digest", "content-md5", "digest", "etag", "repr-digest"].iter().any(|of| of.eq_ignore_ascii_case(name))
}

/// Compresses one response.
pub(crate) struct Encoder {
    coding: Coding,
    kind: Kind,
    /// Whether bytes went in that may not have come out.
    is_behind: bool,
    /// Whether a pause of the upstream makes all bytes come out: whether the length of the body is unknown.
    flushes: bool,
    _place: Place,
}

enum Kind {
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(CCtx<'static>, Vec<u8>),
    /// It has ended.
    Over(Vec<u8>),
}

/// The memory that all encoders of a gateway may take. Responses beyond it go as they are.
#[derive(Debug)]
pub struct EncoderBudget {
    used: AtomicUsize,
    most: AtomicUsize,
    refused: AtomicU64,
}

/// The counts of an [`EncoderBudget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EncoderCounts {
    /// Bytes that the present encoders take, about.
    pub(crate) bytes: usize,
    /// Responses that were not compressed, because there was no room.
    pub(crate) refused: u64,
}

impl EncoderBudget {
    /// The default of the limit, bytes.
    pub const DEFAULT_BYTES: usize = 256 << 20;

    /// Changes the limit. Present encoders go on.
    pub(crate) fn set_most(&self, bytes: usize) {
        self.most.store(bytes, Relaxed);
    }

    pub(crate) fn counts(&self) -> EncoderCounts {
        EncoderCounts { bytes: self.used.load(Relaxed), refused: self.refused.load(Relaxed) }
    }

    fn take(self: &Arc<Self>, bytes: usize) -> Option<Place> {
        let most = self.most.load(Relaxed);
        let taken = self.used.fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|&sum| sum <= most));
        if taken.is_err() {
            self.refused.fetch_add(1, Relaxed);
            return None;
        }
        Some(Place { budget: Arc::clone(self), bytes })
    }
}

impl Default for EncoderBudget {
    fn default() -> Self {
        EncoderBudget {
            used: AtomicUsize::new(0),
            most: AtomicUsize::new(EncoderBudget::DEFAULT_BYTES),
            refused: AtomicU64::new(0),
        }
    }
}

/// An encoder's share of the budget.
struct Place {
    budget: Arc<EncoderBudget>,
    bytes: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

impl Levels {
    /// Returns the most bytes that an encoder takes, as measured (`tests/encoder_memory.rs`).
    #[must_use]
    pub fn encoder_bytes(self, coding: Coding) -> usize {
        const KIB: usize = 1024;
        match (coding, self) {
            (Coding::Gzip, _) => 400 * KIB,
            (Coding::Brotli, Levels { br: 0, .. }) => 1000 * KIB,
            (Coding::Brotli, Levels { br: 1..=3, .. }) => 2000 * KIB,
            (Coding::Brotli, Levels { br: 4, .. }) => 3000 * KIB,
            (Coding::Brotli, Levels { br: 5, .. }) => 3500 * KIB,
            (Coding::Brotli, Levels { br: 6, .. }) => 4500 * KIB,
            (Coding::Brotli, Levels { br: 7, .. }) => 11_000 * KIB,
            (Coding::Brotli, Levels { br: 8, .. }) => 20_000 * KIB,
            (Coding::Brotli, Levels { br: 9, .. }) => 40_000 * KIB,
            (Coding::Brotli, Levels { br: 10, .. }) => 15_000 * KIB,
            (Coding::Brotli, _) => 25_000 * KIB,
            (Coding::Zstd, Levels { zstd, .. }) => {
                KIB * match zstd {
                    ..=3 => 2000,
                    4..=6 => 5000,
                    7 | 8 => 6500,
                    9 => 12_000,
                    10 | 11 => 22_000,
                    12 => 43_000,
                    13 | 16 => 34_000,
                    14 | 17 => 51_000,
                    15 => 67_000,
                    18 => 51_500,
                    _ => 84_000,
                }
            }
        }
    }

    /// Compresses a body at once, as a response's. Returns it, and what the encoder took beyond Rust's allocator.
    ///
    /// # Errors
    /// There is no memory.
    pub fn compressed(self, coding: Coding, body: &[u8]) -> io::Result<(Vec<u8>, usize)> {
        let mut encoder = Encoder::new(coding, self, &Arc::default()).ok_or(io::ErrorKind::OutOfMemory)?;
        encoder.write(body)?;
        let beyond = match &encoder.kind {
            Kind::Zstd(context, _) => context.sizeof(),
            _ => 0,
        };
        encoder.end()?;
        Ok((std::mem::take(encoder.output()), beyond))
    }
}

impl Encoder {
    /// `None`: the budget is used up, or there is no memory for it.
    fn new(coding: Coding, levels: Levels, budget: &Arc<EncoderBudget>) -> Option<Self> {
        let place = budget.take(levels.encoder_bytes(coding))?;
        let kind = match coding {
            Coding::Gzip => Kind::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(levels.gzip))),
            Coding::Brotli => {
                let writer = CompressorWriter::new(Vec::new(), OUTPUT_BYTES, levels.br, WINDOW_LOG);
                Kind::Brotli(Box::new(writer))
            }
            Coding::Zstd => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(levels.zstd as i32)).ok()?;
                context.set_parameter(CParameter::WindowLog(WINDOW_LOG)).ok()?;
                Kind::Zstd(context, Vec::new())
            }
        };
        Some(Encoder { coding, kind, is_behind: false, flushes: true, _place: place })
    }

    /// Takes a piece of the body.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.is_behind |= !piece.is_empty();
        match &mut self.kind {
            Kind::Gzip(encoder) => encoder.write_all(piece),
            Kind::Brotli(encoder) => encoder.write_all(piece),
            Kind::Zstd(context, out) => compress(context, out, piece, ZSTD_EndDirective::ZSTD_e_continue),
            Kind::Over(_) => Ok(()),
        }
    }

    /// Makes all bytes come out that went in, unless the length of the body is known.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if !self.flushes || !std::mem::take(&mut self.is_behind) {
            return Ok(());
        }
        match &mut self.kind {
            Kind::Gzip(encoder) => encoder.flush(),
            Kind::Brotli(encoder) => encoder.flush(),
            Kind::Zstd(context, out) => compress(context, out, &[], ZSTD_EndDirective::ZSTD_e_flush),
            Kind::Over(_) => Ok(()),
        }
    }

    /// Ends the body.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.is_behind = false;
        self.kind = match std::mem::replace(&mut self.kind, Kind::Over(Vec::new())) {
            Kind::Gzip(encoder) => Kind::Over(encoder.finish()?),
            Kind::Brotli(encoder) => Kind::Over(encoder.into_inner()),
            Kind::Zstd(mut context, mut out) => {
                compress(&mut context, &mut out, &[], ZSTD_EndDirective::ZSTD_e_end)?;
                Kind::Over(out)
            }
            over => over,
        };
        Ok(())
    }

    /// Returns the bytes that came out, for the caller to clear.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        match &mut self.kind {
            Kind::Gzip(encoder) => encoder.get_mut(),
            Kind::Brotli(encoder) => encoder.get_mut(),
            Kind::Zstd(_, out) | Kind::Over(out) => out,
        }
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("coding", &self.coding).finish_non_exhaustive()
    }
}

fn compress(context: &mut CCtx<'_>, out: &mut Vec<u8>, piece: &[u8], step: ZSTD_EndDirective) -> io::Result<()> {
    let mut input = InBuffer::around(piece);
    let mut room = [0; OUTPUT_BYTES];
    loop {
        let mut buffer = OutBuffer::around(&mut room[..]);
        let left = context
            .compress_stream2(&mut buffer, &mut input, step)
            .map_err(|code| io::Error::other(zstd_safe::get_error_name(code)))?;
        out.extend_from_slice(buffer.as_slice());
        let is_over = match step {
            ZSTD_EndDirective::ZSTD_e_continue => input.pos() == piece.len(),
            _ => left == 0,
        };
        if is_over {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
