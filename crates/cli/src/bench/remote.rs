//! Prometheus' remote write, version 1: the time series of a run in one request.
//!
//! The body is a `WriteRequest` of protocol buffers in Snappy's block format
//! (<https://prometheus.io/docs/specs/prw/remote_write_spec/>). The message has three kinds of fields, so it is written
//! here without a generator of code.

use std::time::Duration;

use oroshi_bench::Record;
use oroshi_client::Client;
use oroshi_report::over_time::{self, TimeSeries};

use oroshi_words::Secret;

use super::load::parse_header;
use crate::problems::Problems;

/// How long the receiver may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How much of its answer is shown.
const MOST_SHOWN: usize = 300;

/// Where series are sent.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    url: String,
    headers: Vec<(String, Secret)>,
}

/// Why series could not be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// Correct the URL, or start the receiver.
    #[error("--remote-write: the series could not be sent")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer says what the receiver wants: Prometheus takes remote write with --web.enable-remote-write-receiver.
    #[error("--remote-write: the receiver answered with {status}: {text}")]
    Refused {
        /// The status.
        status: u16,
        /// The beginning of its answer.
        text: String,
    },
}

impl Receiver {
    /// Reads the flags.
    pub(super) fn read(url: Option<&str>, headers: &[String], problems: &mut Problems) -> Option<Self> {
        let headers = problems.all("--remote-write-header", headers, parse_header);
        let headers = headers.into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
        let url = url?;
        if !url.starts_with("http://") && !url.starts_with("https://") {
            problems.add("--remote-write", "expected a URL such as http://localhost:9090/api/v1/write");
            return None;
        }
        Some(Self { url: url.to_owned(), headers })
    }

    /// Sends the series of a run, with its target as a label.
    ///
    /// # Errors
    /// The receiver cannot be reached, or refuses them.
    pub(super) fn send(&self, record: &Record, target: &str) -> Result<(), SendError> {
        let message = message(&over_time::series(record), &over_time::labels(record, target));
        let failed = |error: &(dyn std::error::Error + 'static)| {
            let text = oroshi_words::with_causes(error);
            SendError::Client(text.into())
        };
        let body = snap::raw::Encoder::new().compress_vec(&message).map_err(|error| failed(&error))?;
        let client = Client::builder().timeout(TIMEOUT).build().map_err(|error| failed(&error))?;
        let mut request = client
            .post(self.url.as_str())
            .header("Content-Encoding", "snappy")
            .header("Content-Type", "application/x-protobuf")
            .header("X-Prometheus-Remote-Write-Version", "0.1.0");
        for (name, value) in &self.headers {
            request = request.header(name, value.reveal());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| failed(&error))?.block_on(async {
            let response = request.body(body).send().await.map_err(|error| failed(&error))?;
            let status = response.status();
            if (200..300).contains(&status) {
                return Ok(());
            }
            let text = response.text().await.unwrap_or_default();
            let text = text.trim().chars().take(MOST_SHOWN).collect();
            Err(SendError::Refused { status, text })
        })
    }
}

/// Writes a `WriteRequest`: field 1 of it is a `TimeSeries`, whose field 1 is a `Label` and field 2 a `Sample`.
fn message(series: &[TimeSeries], labels: &[(String, String)]) -> Vec<u8> {
    let mut message = Vec::new();
    for one in series {
        let own = one.label.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let name = ("__name__".to_owned(), one.name.to_owned());
        let mut all: Vec<(String, String)> = labels.iter().cloned().chain(own).chain([name]).collect();
        // The receiver may rely on their order.
        all.sort();
        let mut series = Vec::new();
        for (name, value) in &all {
            let mut label = Vec::new();
            field(&mut label, 1, name.as_bytes());
            field(&mut label, 2, value.as_bytes());
            field(&mut series, 1, &label);
        }
        for (at_ms, value) in &one.points {
            let mut sample = vec![FIRST_64_BITS];
            sample.extend_from_slice(&value.to_le_bytes());
            sample.push(SECOND_VARINT);
            varint(&mut sample, *at_ms as u64);
            field(&mut series, 2, &sample);
        }
        field(&mut message, 1, &series);
    }
    message
}

/// The tags of a sample's fields: number 1, eight bytes; number 2, a varint.
const FIRST_64_BITS: u8 = (1 << 3) | 1;
const SECOND_VARINT: u8 = 2 << 3;

/// Writes a field of bytes, whose number is below 16.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push((number << 3) | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the encoding by hand: one series with one label and one sample.
    #[test]
    fn a_message_is_as_protocol_buffers_want_it() {
        let series = TimeSeries { name: "up", help: "", label: None, points: vec![(300, 1.0)] };
        let sample = [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x10, 0xac, 0x02];
        let mut expected = vec![0x0a, 16 + 14, 0x0a, 14, 0x0a, 8];
        expected.extend_from_slice(b"__name__");
        expected.extend_from_slice(&[0x12, 2, b'u', b'p', 0x12, 12]);
        expected.extend_from_slice(&sample);
        assert_eq!(message(&[series], &[]), expected);
    }

    #[test]
    fn labels_are_sorted() {
        let series = TimeSeries { name: "m", help: "", label: Some(("quantile", "1")), points: Vec::new() };
        let labels = [("target".to_owned(), "t".to_owned()), ("run".to_owned(), "r".to_owned())];
        let text = String::from_utf8_lossy(&message(&[series], &labels)).into_owned();
        let places = ["__name__", "quantile", "run", "target"].map(|name| text.find(name).unwrap());
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn a_receiver_is_a_url() {
        let mut problems = Problems::of_flags();
        assert!(Receiver::read(Some("http://h/w"), &["A: b".into()], &mut problems).is_some());
        assert!(problems.found.is_empty());
        assert!(Receiver::read(Some("localhost:9090"), &[], &mut problems).is_none());
        assert_eq!(problems.found.len(), 1);
    }
}
