//! Samples of checks and failures: what was asked and answered when something was wrong, for people to read.
//!
//! Secrets do not show: values of secret fields ([`Headers::is_secret`]) and secret parameters of URLs read `...`.
//! Bodies show as they are, so the record of a run is as confidential as its responses.

use std::collections::HashMap;
use std::fmt::Write;

use fastrand::Rng;
use oroshi_bench::record::scenario::SampleRecord;
use oroshi_client::Headers;
use oroshi_net::Endpoint;
use serde::{Deserialize, Serialize};

/// The first samples of a name, which are all kept.
const FIRST: usize = 3;
/// The later samples of a name that are kept, chosen at random.
const LATER: usize = 2;
/// The most names with samples; later names get none.
pub(crate) const NAMES: usize = 500;
/// The most bytes of a request's or a response's line and fields.
const HEAD_BYTES: usize = 2048;
/// The most bytes of one field's value, or of a URL.
const VALUE_BYTES: usize = 512;
/// The bytes of a body that are shown.
const BODY_BYTES: usize = 256;

/// A request and its response, as far as there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchanged<'e> {
    pub(crate) method: &'e str,
    pub(crate) url: &'e Endpoint,
    /// The request's fields, without those that the client writes itself.
    pub(crate) headers: &'e Headers,
    pub(crate) response: Option<Answer<'e>>,
}

/// A response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'e> {
    pub(crate) status: u16,
    pub(crate) reason: &'e [u8],
    pub(crate) headers: &'e Headers,
    pub(crate) body: &'e [u8],
}

impl Exchanged<'_> {
    /// Returns the texts of a sample. Its moment, user and place are the caller's to fill in.
    pub(crate) fn sample(&self) -> SampleRecord {
        let mut request =
            format!("{} {} HTTP/1.1\n", shown(self.method.as_bytes()), url_without_secrets(&self.url.target));
        if !self.headers.contains("Host") {
            append(&mut request, "Host", self.url.authority.as_bytes());
        }
        fields(&mut request, self.headers);
        let (head, body) = match &self.response {
            None => (String::new(), String::new()),
            Some(answer) => {
                let reason = shown(answer.reason);
                let mut head = format!("HTTP/1.1 {} {reason}", answer.status).trim_end().to_owned() + "\n";
                fields(&mut head, answer.headers);
                (head, first_bytes(answer.body, BODY_BYTES))
            }
        };
        SampleRecord { request, head, body, ..SampleRecord::default() }
    }
}

/// Appends all fields, as far as there is room.
fn fields(head: &mut String, headers: &Headers) {
    for (name, value) in headers.iter() {
        append(head, name, value);
        if head.len() > HEAD_BYTES {
            let end = head.floor_char_boundary(HEAD_BYTES);
            head.truncate(end);
            head.push_str("...");
            return;
        }
    }
}

fn append(head: &mut String, name: &str, value: &[u8]) {
    let has_url = ["location", "content-location", "referer"].iter().any(|known| name.eq_ignore_ascii_case(known));
    let value = match str::from_utf8(value) {
        _ if Headers::is_secret(name) => "...".to_owned(),
        Ok(url) if has_url => url_without_secrets(url),
        _ => shown(value),
    };
    // Writing to a text does not fail.
    let _ = writeln!(head, "{}: {value}", first_bytes(name.as_bytes(), VALUE_BYTES));
}

/// Returns a URL with the values of secret parameters replaced.
fn url_without_secrets(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else { return shown(url.as_bytes()) };
    let mut text = format!("{path}?");
    for (number, pair) in query.split('&').enumerate() {
        if number > 0 {
            text.push('&');
        }
        match pair.split_once('=') {
            Some((name, _)) if is_secret_parameter(name) => {
                text.push_str(name);
                text.push_str("=...");
            }
            _ => text.push_str(pair),
        }
    }
    shown(text.as_bytes())
}

/// Whether a parameter's value is a secret: as for fields, and what forms call passwords, keys and signatures.
fn is_secret_parameter(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    Headers::is_secret(&name)
        || ["pass", "pwd", "signature", "credential"].iter().any(|secret| name.contains(secret))
        || ["key", "sig", "code"].contains(&&*name)
}

fn shown(text: &[u8]) -> String {
    first_bytes(text, VALUE_BYTES)
}

/// Returns the first bytes as text: control characters and bytes that are no UTF-8 escaped, `...` for the rest.
fn first_bytes(bytes: &[u8], most: usize) -> String {
    let first = if bytes.len() > most { without_half(&bytes[..most]) } else { bytes };
    let mut text = String::with_capacity(first.len() + 3);
    for chunk in first.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() { text.extend(letter.escape_default()) } else { text.push(letter) }
        }
        let _ = write!(text, "{}", chunk.invalid().escape_ascii());
    }
    if bytes.len() > most {
        text.push_str("...");
    }
    text
}

/// Returns the bytes without a character at the end that was cut.
fn without_half(bytes: &[u8]) -> &[u8] {
    for (seen, &byte) in (1..=3).zip(bytes.iter().rev()) {
        let length = match byte {
            0x80..0xc0 => continue,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0.. => 4,
            _ => 1,
        };
        return if length > seen { &bytes[..bytes.len() - seen] } else { bytes };
    }
    bytes
}

/// The samples of checks or failures by name: the first three of each, and two of the later ones, chosen at random.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Samples(HashMap<Box<str>, Kept>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    first: Vec<SampleRecord>,
    later: Vec<SampleRecord>,
    /// How many were offered after the first.
    seen: u64,
}

impl Samples {
    /// Offers a sample, which is only made if it is kept.
    pub(crate) fn offer(&mut self, name: &str, random: &mut Rng, make: impl FnOnce() -> SampleRecord) {
        if let Some(kept) = self.0.get_mut(name) {
            return kept.offer(random, make);
        }
        if self.0.len() < NAMES {
            self.0.entry(name.into()).or_default().offer(random, make);
        }
    }

    /// Adds the samples of another thread. Each later sample of both has the same chance to stay.
    pub(crate) fn merge(&mut self, other: Samples, random: &mut Rng) {
        for (name, theirs) in other.0 {
            if self.0.len() < NAMES || self.0.contains_key(&name) {
                self.0.entry(name).or_default().merge(theirs, random);
            }
        }
    }

    /// Takes the samples of a name, in the order of time.
    pub(crate) fn take(&mut self, name: &str) -> Vec<SampleRecord> {
        let Some(Kept { mut first, later, .. }) = self.0.remove(name) else { return Vec::new() };
        first.extend(later);
        first.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        first
    }
}

impl Kept {
    fn offer(&mut self, random: &mut Rng, make: impl FnOnce() -> SampleRecord) {
        if self.first.len() < FIRST {
            return self.first.push(make());
        }
        // Reservoir sampling (Vitter's algorithm R).
        self.seen += 1;
        if self.later.len() < LATER {
            self.later.push(make());
        } else if let Some(place) = self.later.get_mut(place(random.u64(0..self.seen))) {
            *place = make();
        }
    }

    fn merge(&mut self, theirs: Kept, random: &mut Rng) {
        let mut first = std::mem::take(&mut self.first);
        first.extend(theirs.first);
        first.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        // Those that are not among the first of both any more were offered later.
        let late = first.split_off(first.len().min(FIRST));
        self.first = first;
        let mut ours = (std::mem::take(&mut self.later), self.seen);
        let mut theirs = (theirs.later, theirs.seen);
        self.seen = ours.1 + theirs.1;
        while self.later.len() < LATER && !(ours.0.is_empty() && theirs.0.is_empty()) {
            // Draws without putting back: from each side by how many it stands for.
            let from_ours = theirs.0.is_empty() || (!ours.0.is_empty() && random.u64(0..ours.1 + theirs.1) < ours.1);
            let side = if from_ours { &mut ours } else { &mut theirs };
            self.later.push(side.0.swap_remove(random.usize(0..side.0.len())));
            side.1 -= 1;
        }
        for sample in late {
            self.offer(random, || sample);
        }
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fastrand::Rng;
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in pairs {
            headers.append(name, value).unwrap();
        }
        headers
    }

    #[test]
    fn a_sample_shows_the_exchange_without_its_secrets() {
        let url =
            "http://a.org:81/login?next=/b&access_token=hidden&q=1&PASSWORD=hidden&key=hidden&empty".parse().unwrap();
        let request = headers(&[
            ("Cookie", "a=hidden"),
            ("X-Api-Key", "hidden"),
            ("Accept", "text/html"),
            ("Referer", "http://a.org/?token=hidden&x=1"),
        ]);
        let response = headers(&[
            ("Set-Cookie", "a=hidden"),
            ("set-cookie", "b=hidden"),
            ("Location", "/home?session_id=hidden"),
            ("Server", "nginx"),
        ]);
        let answer = Answer {
            status: 303,
            reason: b"See Other",
            headers: &response,
            body: "h\u{e4}llo\r\n\x1b[31m\0".as_bytes(),
        };
        let exchanged = Exchanged { method: "POST", url: &url, headers: &request, response: Some(answer) };
        let sample = exchanged.sample();
        assert_eq!(
            sample.request,
            "POST /login?next=/b&access_token=...&q=1&PASSWORD=...&key=...&empty HTTP/1.1\nHost: a.org:81\n\
             Cookie: ...\nX-Api-Key: ...\nAccept: text/html\nReferer: http://a.org/?token=...&x=1\n"
        );
        assert_eq!(
            sample.head,
            "HTTP/1.1 303 See Other\nSet-Cookie: ...\nset-cookie: ...\nLocation: /home?session_id=...\nServer: nginx\n"
        );
        assert_eq!(sample.body, "h\u{e4}llo\\r\\n\\u{1b}[31m\\u{0}");
        let unanswered = Exchanged { response: None, ..exchanged }.sample();
        assert_eq!(
            (unanswered.request, unanswered.head, unanswered.body),
            (sample.request, String::new(), String::new())
        );
        let answer = Answer { reason: b"", ..answer };
        let sample = Exchanged { response: Some(answer), ..exchanged }.sample();
        assert!(sample.head.starts_with("HTTP/1.1 303\n"), "{}", sample.head);
    }

    #[test]
    fn long_things_are_cut_between_characters() {
        for (bytes, expected) in [
            (&b"abcd"[..], "abcd"),
            (b"abcde", "abcd..."),
            ("abc\u{e4}".as_bytes(), "abc..."),
            ("ab\u{e4}d".as_bytes(), "ab\u{e4}..."),
            (b"\xff\xfe", "\\xff\\xfe"),
            (b"a\xffbcd", "a\\xffbc..."),
            (b"a\xe3b\xe3\x81\x82", "a\\xe3b..."),
            (b"\x81\x81\x81\x81\x81", "\\x81\\x81\\x81\\x81..."),
        ] {
            assert_eq!(first_bytes(bytes, 4), expected, "{bytes:?}");
        }
    }

    fn offered(count: u64, random: &mut Rng) -> Samples {
        let mut samples = Samples::default();
        for number in 0..count {
            samples.offer("a", random, || SampleRecord { at_s: number as f64, ..SampleRecord::default() });
        }
        samples
    }

    fn times(mut samples: Samples) -> Vec<u64> {
        samples.take("a").iter().map(|sample| sample.at_s as u64).collect()
    }

    #[test]
    fn the_first_three_stay_and_two_of_the_rest() {
        let mut random = Rng::with_seed(1);
        for count in 0..=5 {
            assert_eq!(times(offered(count, &mut random)), (0..count).collect::<Vec<_>>());
        }
        let mut found = [0u32; 13];
        for _ in 0..10_000 {
            let times = times(offered(13, &mut random));
            assert_eq!((&times[..3], times.len()), (&[0, 1, 2][..], 5));
            times[3..].iter().for_each(|&time| found[time as usize] += 1);
        }
        // Each of ten has a chance of a fifth: 2,000, with a deviation of 40.
        assert!(found[3..].iter().all(|&count| (1_800..2_200).contains(&count)), "{found:?}");
    }

    #[test]
    fn threads_are_merged_by_what_they_stand_for() {
        let mut random = Rng::with_seed(2);
        let mut theirs = [0u32; 2];
        for _ in 0..10_000 {
            let mut ours = offered(13, &mut random);
            // They begin later, and offer thrice as many.
            let mut others = Samples::default();
            for number in 100..130 {
                others.offer("a", &mut random, || SampleRecord { at_s: f64::from(number), ..SampleRecord::default() });
            }
            ours.merge(others, &mut random);
            let times = times(ours);
            assert_eq!((&times[..3], times.len()), (&[0, 1, 2][..], 5));
            times[3..].iter().for_each(|&time| theirs[usize::from(time >= 100)] += 1);
        }
        // 10 of ours and 30 of theirs are left: a quarter and three quarters of 20,000.
        assert!((4_600..5_400).contains(&theirs[0]), "{theirs:?}");
        let mut empty = Samples::default();
        empty.merge(offered(4, &mut random), &mut random);
        assert_eq!(times(empty), [0, 1, 2, 3]);
        let mut few = offered(1, &mut random);
        few.merge(offered(1, &mut random), &mut random);
        assert_eq!(times(few), [0, 0]);
    }

    #[test]
    fn samples_are_made_only_if_kept_and_names_are_bounded() {
        let (made, mut samples, mut random) = (Cell::new(0), Samples::default(), Rng::with_seed(3));
        let make = || {
            made.set(made.get() + 1);
            SampleRecord::default()
        };
        for _ in 0..100_000 {
            samples.offer("a", &mut random, make);
        }
        assert!(made.get() < 100, "{}", made.get());
        for number in 0..NAMES + 100 {
            samples.offer(&number.to_string(), &mut random, make);
        }
        assert_eq!(samples.0.len(), NAMES);
        let mut more = Samples::default();
        more.offer("new", &mut random, make);
        more.offer("a", &mut random, make);
        samples.merge(more, &mut random);
        assert!(samples.0.len() == NAMES && samples.take("new").is_empty() && samples.take("a").len() == 5);
    }

    proptest! {
        #[test]
        fn a_sample_is_small_and_steers_no_terminal(
            fields in proptest::collection::vec(
                ("[A-Za-z-]{1,3000}", proptest::collection::vec(32u8..=255, 0..3000)),
                0..20,
            ),
            body in proptest::collection::vec(any::<u8>(), 0..2000),
            target in "/[!-~]{0,3000}",
        ) {
            let mut headers = Headers::new();
            for (name, value) in &fields {
                let _ = headers.append(name, value);
            }
            let url = Endpoint { target, .."http://a/".parse().unwrap() };
            let answer = Answer { status: 200, reason: &body, headers: &headers, body: &body };
            let sample = Exchanged { method: "GET", url: &url, headers: &headers, response: Some(answer) }.sample();
            // Escapes of a byte take at most six.
            prop_assert!(sample.request.len() <= HEAD_BYTES + 6 * VALUE_BYTES && sample.head.len() <= HEAD_BYTES + 3);
            prop_assert!(sample.body.len() <= 6 * BODY_BYTES + 3);
            let lines = format!("{}{}{}", sample.request, sample.head, sample.body);
            prop_assert!(!lines.chars().any(|letter| letter.is_control() && letter != '\n'));
        }
    }
}
