//! The list of requests, read line by line, so that its length does not matter.
//!
//! A line is a URL, or a request in JSON if it begins with `{`. Blank lines and lines that begin with `#` are skipped,
//! but counted: an item's number is its line's number, counted across all sources in order; a URL on the command line
//! counts as a line.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The longest line, in bytes. A longer one is skipped, and reported as a failure.
const MOST_BYTES: usize = 1 << 20;

/// The mark that some editors write before the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The size of one read, in bytes.
const BUFFER_BYTES: usize = 64 * 1024;

/// The maximum of items in a batch, and of their bytes.
const BATCH: (usize, usize) = (256, 64 * 1024);

/// A source of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A URL.
    Url(String),
    /// A file with a list.
    File(PathBuf),
    /// A list on standard input.
    Stdin,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Url(url) => f.write_str(url),
            Source::File(path) => path.display().fmt(f),
            Source::Stdin => f.write_str("on standard input"),
        }
    }
}

/// One line of the list.
#[derive(Debug, PartialEq)]
pub(crate) struct Item {
    /// The number of its line, from 1.
    pub(crate) n: u64,
    /// The request, or why the line cannot be read.
    pub(crate) asked: Result<ItemRequest, String>,
}

/// The request of a line; the flags supply the rest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemRequest {
    pub(crate) url: String,
    pub(crate) method: Option<String>,
    #[serde(default)]
    pub(crate) headers: Fields,
    pub(crate) body: Option<String>,
    /// The user's identifier, which the record repeats.
    #[serde(default, deserialize_with = "id")]
    pub(crate) id: Option<Value>,
}

/// Header fields: an object of texts, or a list of pairs, which can hold a name twice. A field without a value removes
/// the flags' field of that name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "EitherForm")]
pub(crate) struct Fields(pub(crate) Vec<(String, Option<String>)>);

#[derive(Deserialize)]
#[serde(untagged)]
enum EitherForm {
    Object(serde_json::Map<String, Value>),
    Pairs(Vec<(String, Option<String>)>),
}

impl From<EitherForm> for Fields {
    fn from(form: EitherForm) -> Self {
        let text = |value| match value {
            Value::Null => None,
            Value::String(text) => Some(text),
            other => Some(other.to_string()),
        };
        Fields(match form {
            EitherForm::Object(map) => map.into_iter().map(|(name, value)| (name, text(value))).collect(),
            EitherForm::Pairs(pairs) => pairs,
        })
    }
}

/// Reads an id, which the record must repeat exactly. JSON's numbers are read as 64 bits; larger ones would be rounded,
/// so they are errors.
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let id = Option::<Value>::deserialize(deserializer)?;
    match id.as_ref().is_some_and(is_rounded) {
        true => Err(D::Error::custom("`id` has a number beyond 64 bits: write it as text, in quotes")),
        false => Ok(id),
    }
}

/// Whether the value has a number too large for an integer of 64 bits.
fn is_rounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.is_f64() && number.as_f64().is_some_and(|number| number.abs() >= i64::MAX as f64)
        }
        Value::Array(values) => values.iter().any(is_rounded),
        Value::Object(fields) => fields.values().any(is_rounded),
        _ => false,
    }
}

/// A list that cannot be read further.
#[derive(Debug, thiserror::Error)]
#[error("the list {name} cannot be read")]
pub struct ListError {
    name: String,
    source: io::Error,
}

/// The progress of reading, for display.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// Bytes read from the sources.
    pub(crate) bytes: AtomicU64,
    /// Lines read that hold an item.
    pub(crate) items: AtomicU64,
}

impl Item {
    /// Reads a line; `None` if it is blank or a comment.
    fn read(n: u64, line: &[u8]) -> Option<Self> {
        let asked = match str::from_utf8(line).map(str::trim) {
            Ok("") => return None,
            Ok(text) if text.starts_with('#') => return None,
            Ok(text) if text.starts_with('{') => {
                serde_json::from_str(text).map_err(|error| format!("the line is no request in JSON: {error}"))
            }
            Ok(text) => Ok(ItemRequest { url: text.to_owned(), ..ItemRequest::default() }),
            Err(_) => Err("the line is not UTF-8".to_owned()),
        };
        Some(Item { n, asked })
    }
}

/// Reads all sources, and sends the items in order and in batches, until the receiver is gone. Items of a pipe are sent
/// before it waits for more.
///
/// # Errors
/// A source cannot be opened or read; earlier items were sent.
pub(crate) fn read_all(
    sources: &[Source],
    reading: &Reading,
    mut take: impl FnMut(Vec<Item>) -> bool,
) -> Result<(), ListError> {
    let mut list = List { n: 0, batch: Vec::new(), batch_bytes: 0, reading, take: &mut take };
    for source in sources {
        let read = match source {
            Source::Url(url) => Ok(list.line(url.as_bytes())),
            Source::Stdin => list.lines(BufReader::with_capacity(BUFFER_BYTES, io::stdin())),
            Source::File(path) => {
                File::open(path).and_then(|file| list.lines(BufReader::with_capacity(BUFFER_BYTES, file)))
            }
        };
        if !read.map_err(|error| ListError { name: source.to_string(), source: error })? {
            return Ok(());
        }
    }
    list.hand_over();
    Ok(())
}

/// A list on its way from lines to items. Functions that return a bool say whether the receiver is still there.
struct List<'a> {
    n: u64,
    batch: Vec<Item>,
    batch_bytes: usize,
    reading: &'a Reading,
    take: &'a mut dyn FnMut(Vec<Item>) -> bool,
}

impl List<'_> {
    fn lines(&mut self, mut input: BufReader<impl Read>) -> io::Result<bool> {
        let (mut line, mut is_first) = (Vec::new(), true);
        loop {
            // Send the batch before waiting for more.
            if !input.buffer().contains(&b'\n') && !self.hand_over() {
                return Ok(false);
            }
            line.clear();
            let count = input.by_ref().take(MOST_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
            if count == 0 {
                return Ok(true);
            }
            self.reading.bytes.fetch_add(count as u64, Ordering::Relaxed);
            let goes_on = if line.len() > MOST_BYTES && !line.ends_with(b"\n") {
                self.reading.bytes.fetch_add(skip_line(&mut input)?, Ordering::Relaxed);
                self.n += 1;
                self.push(Item { n: self.n, asked: Err(format!("the line is longer than {MOST_BYTES} bytes")) }, 0)
            } else {
                let mark = if is_first { BYTE_ORDER_MARK } else { b"" };
                self.line(line.strip_prefix(mark).unwrap_or(&line))
            };
            is_first = false;
            if !goes_on {
                return Ok(false);
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> bool {
        self.n += 1;
        match Item::read(self.n, line) {
            Some(item) => self.push(item, line.len()),
            None => true,
        }
    }

    fn push(&mut self, item: Item, bytes: usize) -> bool {
        self.reading.items.fetch_add(1, Ordering::Relaxed);
        self.batch.push(item);
        self.batch_bytes += bytes;
        (self.batch.len() < BATCH.0 && self.batch_bytes < BATCH.1) || self.hand_over()
    }

    fn hand_over(&mut self) -> bool {
        self.batch_bytes = 0;
        self.batch.is_empty() || (self.take)(std::mem::take(&mut self.batch))
    }
}

/// Skips the rest of a line, and returns its length.
fn skip_line(input: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = input.fill_buf()?;
        let (count, ended) = match buffer.iter().position(|&byte| byte == b'\n') {
            Some(place) => (place + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        input.consume(count);
        skipped += count as u64;
        if ended {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &[u8]) -> Vec<Item> {
        let reading = Reading::default();
        let mut items = Vec::new();
        let mut take = |batch: Vec<Item>| {
            assert!(!batch.is_empty() && batch.len() <= BATCH.0);
            items.extend(batch);
            true
        };
        let mut list = List { n: 0, batch: Vec::new(), batch_bytes: 0, reading: &reading, take: &mut take };
        assert!(list.lines(BufReader::with_capacity(7, text)).unwrap() && list.hand_over());
        assert_eq!(reading.bytes.into_inner(), text.len() as u64);
        assert_eq!(reading.items.into_inner(), items.len() as u64);
        items
    }

    fn asked(text: &str) -> Result<ItemRequest, String> {
        Item::read(1, text.as_bytes()).unwrap().asked
    }

    #[test]
    fn blank_lines_and_comments_are_skipped_and_counted() {
        let items = items(b"http://a/\n\n  # not this\r\n\thttp://b/ \r\nhttp://c/");
        let read: Vec<(u64, &str)> = items.iter().map(|item| (item.n, &*item.asked.as_ref().unwrap().url)).collect();
        assert_eq!(read, [(1, "http://a/"), (4, "http://b/"), (5, "http://c/")]);
    }

    #[test]
    fn a_byte_order_mark_before_the_first_line_is_none_of_it() {
        let read = items(b"\xEF\xBB\xBFhttp://a/\n\xEF\xBB\xBFhttp://b/\n");
        let urls: Vec<&str> = read.iter().map(|item| &*item.asked.as_ref().unwrap().url).collect();
        assert_eq!(urls, ["http://a/", "\u{feff}http://b/"]);
        assert!(items(b"\xEF\xBB\xBF{\"url\":\"u\"}")[0].asked.is_ok());
        assert!(items(b"\xEF\xBB\xBF\n").is_empty());
    }

    #[test]
    fn an_id_comes_back_as_it_is_or_the_line_is_refused() {
        let id = |text: &str| asked(&format!(r#"{{"url":"u","id":{text}}}"#)).map(|asked| asked.id);
        for sound in
            ["18446744073709551615", "-9223372036854775808", "1.5", "[1,{\"k\":2}]", "\"18446744073709551616\""]
        {
            assert_eq!(id(sound).unwrap().unwrap().to_string(), sound);
        }
        assert_eq!(id("null"), Ok(None));
        for large in ["18446744073709551616", "-9223372036854775809", "[{\"k\":1e30}]"] {
            let told = id(large).unwrap_err();
            assert!(told.contains("beyond 64 bits"), "{large}: {told}");
        }
    }

    #[test]
    fn a_line_may_be_a_request_in_json() {
        let line = r#"{"url":"u","method":"PUT","headers":{"A":"b","C":7,"D":null},"body":"x","id":{"k":[1]}}"#;
        let ItemRequest { url, method, headers, body, id } = asked(line).unwrap();
        assert_eq!((&*url, method.as_deref(), body.as_deref()), ("u", Some("PUT"), Some("x")));
        let field = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
        assert_eq!(headers.0, [field("A", Some("b")), field("C", Some("7")), field("D", None)]);
        assert_eq!(id.unwrap()["k"][0], 1);
        let pairs = asked(r#"{"url":"u","headers":[["A","b"],["A",null]]}"#).unwrap();
        assert_eq!(pairs.headers.0, [field("A", Some("b")), field("A", None)]);
        for (bad, why) in [("{", "EOF"), (r#"{"method":"GET"}"#, "url"), (r#"{"url":"u","header":{}}"#, "`header`")] {
            let told = asked(bad).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
        let broken = items(b"http://a/\xff\nhttp://b/\n");
        assert!(broken[0].asked.as_ref().unwrap_err().contains("UTF-8") && broken[1].asked.is_ok());
    }

    #[test]
    fn a_line_without_end_costs_itself_and_no_memory() {
        let long = vec![b'x'; MOST_BYTES + 100];
        let list = [b"http://a/\n", &long[..], b"\nhttp://b/\n", &long[..MOST_BYTES], b"\n", &long[..]].concat();
        let items = items(&list);
        assert_eq!(items.iter().map(|item| item.n).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        for (item, sound) in items.iter().zip([true, false, true, true, false]) {
            assert_eq!(item.asked.is_ok(), sound, "{}", item.n);
        }
    }

    #[test]
    fn sources_are_numbered_one_behind_the_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "http://b/\n\nhttp://c/\n").unwrap();
        let mut sources = vec![
            Source::Url("http://a/".to_owned()),
            Source::File(file.path().to_owned()),
            Source::Url("http://d/".to_owned()),
        ];
        let mut numbers = Vec::new();
        let mut take = |batch: Vec<Item>| {
            numbers.extend(batch.iter().map(|item| item.n));
            true
        };
        read_all(&sources, &Reading::default(), &mut take).unwrap();
        sources[1] = Source::File("/nonexistent/list".into());
        let error = read_all(&sources, &Reading::default(), &mut take).unwrap_err();
        assert_eq!(numbers, [1, 2, 4, 5]);
        assert!(error.to_string().contains("/nonexistent/list"), "{error}");
    }

    #[test]
    fn reading_ends_when_nobody_wants_more() {
        let endless = std::iter::repeat_n("http://a/\n", 100_000).collect::<String>();
        let (reading, mut batches) = (Reading::default(), 0);
        let mut take = |_| {
            batches += 1;
            batches < 3
        };
        let mut list = List { n: 0, batch: Vec::new(), batch_bytes: 0, reading: &reading, take: &mut take };
        assert!(!list.lines(BufReader::new(endless.as_bytes())).unwrap());
        assert_eq!(batches, 3);
        assert!(reading.items.into_inner() <= 3 * BATCH.0 as u64);
    }
}
