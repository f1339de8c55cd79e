//! Histograms serialised and read back.

use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer, V2Serializer};
use oroshi_stats::{BlobError, IntervalLog, IntervalLogError, Latency, Quantile};
use proptest::prelude::*;

fn sample() -> Latency {
    let mut latency = Latency::new();
    (1..=1000).for_each(|n| latency.record(n * n * 1_003));
    latency
}

#[test]
fn another_tool_s_histogram_is_read_in_its_own_unit() {
    let mut theirs = Histogram::<u64>::new_with_bounds(1, 60_000_000, 2).unwrap();
    [100, 2_000, 2_000, 50_000_000].iter().for_each(|us| theirs.record(*us).unwrap());
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(&theirs, &mut bytes).unwrap();
    let text = STANDARD.encode(bytes);
    let ours = Latency::from_base64(&format!("{text}\n")).unwrap();
    assert_eq!((ours.len(), ours.censored(), ours.min()), (4, 0, 100));
    assert!(ours.max().abs_diff(50_000_000) < 500_000);
    assert!(ours.quantile(0.75).unwrap().value().abs_diff(2_000) < 20);
}

/// The widest possible histogram: its values exceed our range, and their middle exceeds u64.
#[test]
fn values_past_the_range_are_read_as_its_end() {
    let mut theirs = Histogram::<u64>::new_with_bounds(1, u64::MAX, 1).unwrap();
    theirs.record(u64::MAX).unwrap();
    let mut bytes = Vec::new();
    V2DeflateSerializer::new().serialize(&theirs, &mut bytes).unwrap();
    let ours = Latency::from_base64(&STANDARD.encode(bytes)).unwrap();
    assert_eq!((ours.len(), ours.min(), ours.max()), (1, Latency::MAX_NS, Latency::MAX_NS));
}

#[test]
fn what_is_no_blob_is_refused() {
    assert!(matches!(Latency::from_base64("not base64!"), Err(BlobError::Base64(_))));
    assert!(matches!(Latency::from_base64("aGVsbG8sIHdvcmxk"), Err(BlobError::Encoding(_))));
    assert!(matches!(Latency::from_base64(""), Err(BlobError::Encoding(_))));
    let blob = sample().to_base64_v2();
    assert!(Latency::from_base64(&blob[..blob.len() / 8 * 4]).is_err());
}

#[test]
fn an_interval_log_is_what_its_reader_expects() {
    let start = UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
    let mut log = IntervalLog::new(Vec::new(), start, "two\nlines").unwrap();
    let (mut empty, full) = (Latency::new(), sample());
    empty.record_censored(5);
    log.write(None, Duration::ZERO, Duration::from_secs(1), &full).unwrap();
    log.write(Some("response"), Duration::from_secs(1), Duration::from_millis(250), &empty).unwrap();
    let refused = log.write(Some("a tag"), Duration::ZERO, Duration::ZERO, &full).unwrap_err();
    assert!(matches!(refused, IntervalLogError::Tag(tag) if tag == "a tag"));
    let bytes = log.finish().unwrap();

    let text = std::str::from_utf8(&bytes).unwrap();
    assert!(text.starts_with("#[Histogram log format version 1.3]\n"));
    assert!(text.contains("\n#two\n#lines\n"));
    let entries: Vec<_> = IntervalLogIterator::new(&bytes).map(Result::unwrap).collect();
    let [LogEntry::StartTime(read), LogEntry::BaseTime(_), LogEntry::Interval(first), LogEntry::Interval(second)] =
        entries.as_slice()
    else {
        panic!("{entries:?}");
    };
    assert_eq!(read.as_millis(), 1_700_000_000_500);
    assert_eq!((first.tag(), first.duration()), (None, Duration::from_secs(1)));
    assert_eq!(second.tag().unwrap().as_str(), "response");
    assert_eq!((second.start_timestamp(), second.duration()), (Duration::from_secs(1), Duration::from_millis(250)));
    assert_eq!(Latency::from_base64(first.encoded_histogram()).unwrap().histogram(), full.histogram());
    assert!(Latency::from_base64(second.encoded_histogram()).unwrap().is_empty());
}

proptest! {
    #[test]
    fn a_blob_keeps_every_bucket(values in prop::collection::vec(0..=Latency::MAX_NS, 0..100)) {
        let mut latency = Latency::new();
        values.iter().for_each(|ns| latency.record(*ns));
        let blob = latency.to_base64_v2();
        let read = Latency::from_base64(&blob).unwrap();
        prop_assert_eq!(read.histogram(), latency.histogram());
        prop_assert!((read.mean() - latency.mean()).abs() <= latency.mean() * 1e-3);
        prop_assert!(read.min() <= latency.min() && latency.max() <= read.max());
        // The same, decoded by HdrHistogram itself.
        let bytes = STANDARD.decode(&blob).unwrap();
        let theirs: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        prop_assert_eq!(&theirs, latency.histogram());
    }
}

/// Only JSON keeps the censored values and the exact figures.
#[test]
fn json_lacks_nothing() {
    let mut latency = sample();
    latency.record(Latency::MAX_NS);
    latency.record_censored(77);
    latency.record_censored(123_456_789);
    let text = serde_json::to_string(&latency).unwrap();
    let read: Latency = serde_json::from_str(&text).unwrap();
    assert_eq!(read.summary(), latency.summary());
    assert_eq!((read.sum(), read.stdev(), read.censored_max()), (latency.sum(), latency.stdev(), 123_456_789));
    assert_eq!(read.censored_min(), 77);
    assert_eq!(read.quantile(1.0), Some(Quantile::AtLeast(Latency::MAX_NS)));
    let empty: Latency = serde_json::from_str(&serde_json::to_string(&Latency::new()).unwrap()).unwrap();
    assert!(empty.is_empty());
    assert_eq!(empty.min(), 0);
}

#[test]
fn figures_that_contradict_the_buckets_are_refused() {
    let text = serde_json::to_string(&sample()).unwrap();
    for (from, to) in [(r#""min_ns":1003"#, r#""min_ns":9"#), (r#""sum_ns":""#, r#""sum_ns":"x"#)] {
        let edited = text.replace(from, to);
        assert_ne!(edited, text);
        assert!(serde_json::from_str::<Latency>(&edited).is_err());
    }
}

#[test]
fn a_summary_survives_json() {
    let summary = sample().summary();
    let text = serde_json::to_string(&summary).unwrap();
    assert!(text.contains(r#""p99.9":{"value_ns":"#), "{text}");
    assert_eq!(serde_json::from_str::<oroshi_stats::LatencySummary>(&text).unwrap(), summary);
}
