//! Serialisation of histograms: the compressed V2 blob that HdrHistogram tools read, and JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{DeserializeError, Deserializer, Serializer as _, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, buckets, empty_histogram};

impl Latency {
    /// Encodes the recorded values (not the censored ones) for HdrHistogram tools: V2 encoding, DEFLATE, base64. The
    /// unit is the nanosecond.
    pub fn to_base64_v2(&self) -> String {
        blob_of(self.histogram())
    }

    /// Like [`to_base64_v2`](Self::to_base64_v2) with fewer significant digits, 1 to 3: two take a quarter of the
    /// space of three.
    ///
    /// # Panics
    /// When `digits` is more than 5.
    pub fn to_base64_v2_with(&self, digits: u8) -> String {
        let mut coarse = Histogram::new_with_bounds(1, Self::MAX_NS, digits).expect("at most five significant digits");
        buckets(self.histogram()).for_each(|(value, count)| coarse.saturating_record_n(value, count));
        blob_of(&coarse)
    }

    /// Reads a blob from [`to_base64_v2`](Self::to_base64_v2) or another HdrHistogram tool.
    ///
    /// All values become recorded ones, in the unit in which they were written. The blob has buckets only, so ends,
    /// mean and standard deviation have the buckets' resolution (0.1 %). For a complete copy, [`Latency`] is
    /// `Serialize` and `Deserialize`.
    ///
    /// Use it for trusted files only: a hostile blob can ask for gigabytes of memory.
    ///
    /// # Errors
    ///
    /// [`BlobError`] when the text is not base64 or the bytes are not such a histogram.
    pub fn from_base64(text: &str) -> Result<Self, BlobError> {
        let read = histogram_of(text)?;
        let mut latency = Self::new();
        for (value, count) in buckets(&read) {
            latency.record_n(read.median_equivalent(value), count);
        }
        if !latency.recorded.is_empty() {
            latency.min = read.min().min(Self::MAX_NS);
            latency.max = read.max().min(Self::MAX_NS);
        }
        Ok(latency)
    }
}

/// A blob is not a histogram.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The text is not base64: check that it was copied whole, without quotes or line breaks.
    #[error("a histogram blob is not valid base64")]
    Base64(#[source] base64::DecodeError),
    /// The bytes are not a V2 histogram: blobs of the older V0 and V1 encodings must be converted first.
    #[error("a histogram blob is not in HdrHistogram's V2 encoding")]
    Encoding(#[source] DeserializeError),
    /// A figure stored beside the blobs is not a number, or contradicts them: the file was edited or truncated.
    #[error("a stored histogram's {field} is {value:?}, which does not fit its buckets")]
    Figure {
        /// Name of the figure.
        field: &'static str,
        /// The value in the file.
        value: String,
    },
}

/// A [`Latency`] in JSON: the two blobs, and the exact figures that they lack. The sums are strings, because they
/// exceed the safe range of JSON numbers.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stored {
    recorded: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    censored: Option<String>,
    min_ns: u64,
    max_ns: u64,
    censored_min_ns: u64,
    censored_max_ns: u64,
    sum_ns: String,
    squares: String,
}

impl From<&Latency> for Stored {
    fn from(latency: &Latency) -> Self {
        Self {
            recorded: blob_of(&latency.recorded),
            censored: latency.censored.as_ref().filter(|censored| !censored.is_empty()).map(blob_of),
            min_ns: latency.min(),
            max_ns: latency.max(),
            censored_min_ns: latency.censored_min(),
            censored_max_ns: latency.censored_max(),
            sum_ns: latency.sum.to_string(),
            squares: latency.squares.to_string(),
        }
    }
}

impl TryFrom<Stored> for Latency {
    type Error = BlobError;

    fn try_from(stored: Stored) -> Result<Self, BlobError> {
        let mut latency = Self::from_base64(&stored.recorded)?;
        if let Some(blob) = &stored.censored {
            let mut censored = empty_histogram();
            let read = histogram_of(blob)?;
            buckets(&read).for_each(|(value, count)| censored.saturating_record_n(value, count));
            latency.censored = Some(censored);
            latency.censored_min = stored.censored_min_ns.min(Self::MAX_NS);
        }
        latency.censored_max = stored.censored_max_ns.min(Self::MAX_NS);
        if !latency.recorded.is_empty() {
            let fits = |value, bucket_value| latency.recorded.equivalent(value, bucket_value);
            if !fits(stored.min_ns, latency.min) {
                return Err(BlobError::Figure { field: "min_ns", value: stored.min_ns.to_string() });
            }
            if !fits(stored.max_ns, latency.max) {
                return Err(BlobError::Figure { field: "max_ns", value: stored.max_ns.to_string() });
            }
            (latency.min, latency.max) = (stored.min_ns, stored.max_ns);
        }
        latency.sum = figure("sum_ns", &stored.sum_ns)?;
        latency.squares = figure("squares", &stored.squares)?;
        Ok(latency)
    }
}

fn figure(field: &'static str, text: &str) -> Result<u128, BlobError> {
    text.parse().map_err(|_| BlobError::Figure { field, value: text.to_owned() })
}

fn blob_of(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(histogram, &mut bytes).expect("writing to memory does not fail");
    STANDARD.encode(bytes)
}

fn histogram_of(text: &str) -> Result<Histogram<u64>, BlobError> {
    let bytes = STANDARD.decode(text.trim()).map_err(BlobError::Base64)?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(BlobError::Encoding)
}
