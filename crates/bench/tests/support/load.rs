//! Runs, each with its ledger checked.

use std::collections::BTreeMap;
use std::time::Duration;

use oroshi_bench::follow::Progress;
use oroshi_bench::record::ClockRecord;
use oroshi_bench::{Draft, Failure, Observer, Record, RunError, Watching};

use super::HANG;

/// A timeout that is to pass: the shortest that a busy machine does not mistake.
pub const SHORT: Duration = Duration::from_millis(250);

/// One connection on one thread, and a timeout that no test is to see.
pub fn draft(url: &str) -> Draft {
    Draft {
        urls: vec![url.parse().unwrap()],
        threads: Some(1),
        connections: 1,
        timeout: HANG,
        watch: Watching::None,
        ..Draft::default()
    }
}

/// `n` requests over `connections`.
pub fn requests(url: &str, n: u64, connections: usize) -> Draft {
    Draft { requests: Some(n), connections, ..draft(url) }
}

#[track_caller]
pub fn run(draft: Draft) -> Record {
    run_seen(draft, &mut ())
}

/// Carries out a plan, and checks what is true of every record.
#[track_caller]
pub fn run_seen(draft: Draft, observer: &mut dyn Observer) -> Record {
    let record = oroshi_bench::run(draft.plan().unwrap(), observer).unwrap();
    check_ledger(&record);
    record
}

#[track_caller]
pub fn refused(draft: Draft) -> RunError {
    oroshi_bench::run(draft.plan().unwrap(), &mut ()).unwrap_err()
}

/// Every request is in one place, and the figures agree with each other, in the record and in its JSON.
#[track_caller]
fn check_ledger(record: &Record) {
    let r = record.requests;
    let failures = |of: &[Failure]| of.iter().map(|&f| failed(record, f)).sum::<u64>();
    assert_eq!(r.started, r.completed + r.failed + r.cut_off + r.unsent, "{r:?}");
    assert_eq!(failed(record, Failure::CutOffAtEnd), r.cut_off);
    assert_eq!(record.errors, record.failures.values().sum::<u64>() - r.cut_off);
    assert!(r.failed <= record.errors - failures(&[Failure::Status, Failure::Check]), "{r:?} {:?}", record.failures);
    assert_eq!(record.statuses.values().sum::<u64>(), r.completed);
    let latency = &record.latency;
    assert_eq!(latency.service.summary.count, r.completed);
    assert_eq!(latency.response.summary.count, r.completed);
    let timeouts = failures(&[Failure::Timeout, Failure::FlowControlStall]);
    // With a connection per request, one that was never made bounds the response time too.
    let least = r.cut_off + r.unsent + timeouts;
    let most = least + failures(&[Failure::ConnectTimeout, Failure::ConnectBacklog]);
    assert!((least..=most).contains(&latency.response.summary.censored), "{r:?} {:?}", record.failures);
    assert!(latency.service.summary.censored <= r.cut_off + timeouts);
    assert_eq!(record.latency.connect.summary.count, record.connections.opened);
    assert!(record.connections.alive_at_end <= record.plan.connections);
    assert!(record.connections.held_at_end <= record.plan.hold);
    assert_eq!(record.series.points.iter().map(|p| p.requests).sum::<u64>(), r.answered);
    // Each connection has at most one request (or pipeline, or one per stream) across either edge of the measured part.
    let counted = record.requests_done();
    let across = 2.0 * record.plan.lanes() as f64;
    assert!((counted - r.answered as f64).abs() <= across, "{counted} {r:?}");
    let by_time = record.rates.requests_per_s * record.elapsed_s;
    assert!((by_time - counted).abs() <= 0.02 * counted + 0.5 || record.plan.threads > 1, "{by_time} {counted}");
    assert_eq!(record.series.points.iter().map(|p| p.bytes).sum::<u64>(), record.rates.read_bytes);
    check_over_time(record);

    let json = serde_json::to_string(record).unwrap();
    let back: Record = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), json);
    for ((name, before), (_, after)) in record.latency.each().iter().zip(back.latency.each()) {
        assert_eq!(before.histogram.quantile(0.9), after.histogram.quantile(0.9), "{name}");
    }
}

/// What is said over time agrees with what is said of the whole.
#[track_caller]
fn check_over_time(record: &Record) {
    let points = &record.series.points;
    let heat = record.series.heat.as_ref();
    assert_eq!(heat.is_some(), record.requests.answered > 0);
    if let Some(heat) = heat {
        let sum = |column: &Vec<u64>| column.iter().sum::<u64>();
        assert_eq!(heat.counts.iter().map(sum).sum::<u64>(), record.requests.answered);
        assert!(heat.bounds_ns.is_sorted_by(|low, high| low < high), "{heat:?}");
        assert!(heat.counts.iter().all(|column| column.len() < heat.bounds_ns.len()), "{heat:?}");
        // The longest answer is in the top row.
        let longest = points.iter().filter_map(|p| p.max_ns).max().unwrap();
        let top = &heat.bounds_ns[heat.bounds_ns.len() - 2..];
        assert!((top[0]..top[1]).contains(&longest), "{longest} {heat:?}");
        assert!(heat.counts.len() <= 120 && heat.column_s * heat.counts.len() as f64 >= points.last().unwrap().at_s);
    }
    let connections = record.connections;
    for point in points {
        let alive = point.alive.unwrap();
        assert!(alive <= record.plan.connections, "{point:?}");
    }
    if let Some(fewest) = points.iter().filter_map(|p| p.alive).min() {
        assert_eq!(fewest, connections.fewest_alive.min(connections.alive_at_end), "{points:?} {connections:?}");
    }
    if let Some(server) = &record.server {
        let samples = &server.samples;
        assert!(
            (1..=120).contains(&samples.len()) && samples.is_sorted_by(|one, next| one.at_s < next.at_s),
            "{server:?}"
        );
        let most = samples.iter().map(|sample| sample.rss_bytes).max().unwrap();
        assert_eq!(most.max(server.rss_begin_bytes), server.rss_peak_bytes);
    }
}

/// How often this failure happened.
pub fn failed(record: &Record, failure: Failure) -> u64 {
    record.failures.get(&failure).copied().unwrap_or(0)
}

/// All failures that happened.
pub fn failures<const N: usize>(all: [(Failure, u64); N]) -> BTreeMap<Failure, u64> {
    all.into()
}

/// Everything was answered with 200, and nothing else happened.
#[track_caller]
pub fn all_answered(record: &Record, n: u64) {
    assert_eq!((record.requests.started, record.requests.completed), (n, n), "{:?}", record.failures);
    assert_eq!(record.failures, failures([]));
    assert_eq!(record.statuses, BTreeMap::from([(200, n)]));
    assert!(!record.cut_short);
}

/// Every percentile is a bound, of at least `ns`.
#[track_caller]
pub fn all_bounds(clock: &ClockRecord, least: Duration) {
    for (name, percentile) in clock.summary.percentiles() {
        let percentile = percentile.unwrap();
        assert!(percentile.at_least, "{name}: {percentile:?}");
        assert!(u128::from(percentile.value_ns) >= least.as_nanos(), "{name}: {percentile:?}");
    }
}

/// Follows a run, and ends it as soon as the condition holds.
pub struct Until<F: FnMut(&Progress) -> bool> {
    condition: F,
    reached: bool,
}

/// Ends a run once `condition` holds. The plan's own end is then to be far away.
pub fn until<F: FnMut(&Progress) -> bool>(condition: F) -> Until<F> {
    Until { condition, reached: false }
}

impl<F: FnMut(&Progress) -> bool> Observer for Until<F> {
    fn progress(&mut self, progress: &Progress) {
        self.reached |= (self.condition)(progress);
    }

    fn cancelled(&mut self) -> bool {
        self.reached
    }
}
