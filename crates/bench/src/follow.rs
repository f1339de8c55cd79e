//! Following a run while it lasts: the workers' reports become a time series, and an observer is told.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use oroshi_stats::{Latency, Point, Series, Sketch};

use crate::plan::Plan;
use crate::record::{PointRecord, SeriesRecord};
use crate::tally::Interval;
use crate::watch::Watch;
use crate::worker::{Report, Shared, TICK};

/// Points of the time series: at the finest a minute of 100 ms, and a run of any length stays within it.
const SERIES_CAPACITY: usize = 600;

/// Where a run stands, a few times per second.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What it is doing.
    pub stage: Stage,
    /// Time since the stage began.
    pub elapsed: Duration,
    /// Time until it ends, where that is known.
    pub left: Option<Duration>,
    /// Requests left to start and their number, in a run of a fixed number.
    pub done: u64,
    /// Answers per second over the last second.
    pub rate: f64,
    /// Median service time over the last second, nanoseconds.
    pub p50_ns: Option<u64>,
    /// 99th percentile, the same way.
    pub p99_ns: Option<u64>,
    /// Errors so far in this stage.
    pub errors: u64,
    /// Connections that are up.
    pub alive: usize,
}

/// The stages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not counted.
    WarmUp,
    /// Counted.
    Measuring,
}

/// One second's histograms, for an HdrHistogram log.
#[derive(Clone, Debug, Default)]
pub struct SecondHistograms {
    /// Since the start of the measured part.
    pub offset: Duration,
    /// Length.
    pub length: Duration,
    /// Service times.
    pub service: Latency,
    /// Response times.
    pub response: Latency,
}

/// Somebody who follows a run.
pub trait Observer {
    /// Called about ten times per second.
    fn progress(&mut self, progress: &Progress) {
        let _ = progress;
    }
    /// Called once per second when the plan keeps interval histograms.
    fn second(&mut self, histograms: &SecondHistograms) {
        let _ = histograms;
    }
    /// Asked about ten times per second: whether the run should end now.
    fn cancelled(&mut self) -> bool {
        false
    }
    /// Told before the first connection.
    fn warning(&mut self, text: &str) {
        let _ = text;
    }
}

/// Nobody.
impl Observer for () {}

/// Listens to the workers, keeps the time series and tells the observer.
pub(crate) struct Listener {
    begun: Instant,
    /// When, on the monotonic clock, the measured part began.
    measured_from: u64,
    series: Series<PointData>,
    /// The last second, tick by tick.
    recent: Vec<(u64, PointData)>,
    /// Connections up on each core, once it has reported.
    alive: Vec<Option<usize>>,
    pub(crate) fewest_alive: Option<usize>,
    errors: u64,
    done: u64,
    second: SecondHistograms,
    ended: usize,
}

#[derive(Clone, Debug, Default)]
struct PointData {
    requests: u64,
    errors: u64,
    bytes: u64,
    service: Sketch,
}

impl Point for PointData {
    fn absorb(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.service.merge(&other.service);
    }
}

impl PointData {
    fn of(interval: Interval) -> Self {
        Self { requests: interval.requests, errors: interval.errors, bytes: interval.bytes, service: interval.service }
    }
}

impl Listener {
    pub(crate) fn new(shared: &Shared, start: u64) -> Self {
        Self {
            begun: Instant::now(),
            measured_from: start,
            series: Series::new(TICK.as_nanos() as u64, SERIES_CAPACITY),
            recent: Vec::new(),
            alive: vec![None; shared.plan.threads],
            fewest_alive: None,
            errors: 0,
            done: 0,
            second: SecondHistograms::default(),
            ended: 0,
        }
    }

    /// Until the workers have ended, or for the length of the warm-up.
    pub(crate) fn listen(
        &mut self,
        reports: &Receiver<Report>,
        shared: &Shared,
        observer: &mut dyn Observer,
        warmup: Option<Duration>,
        mut watch: Option<&mut Watch>,
    ) {
        self.begun = Instant::now();
        (self.errors, self.done) = (0, 0);
        let (mut told, mut sampled) = (self.begun, self.begun);
        loop {
            let patience = warmup.map_or(TICK, |w| w.saturating_sub(self.begun.elapsed()).min(TICK));
            match reports.recv_timeout(patience) {
                Ok(report) => self.hear(report, observer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.ended == shared.plan.threads || warmup.is_some_and(|w| self.begun.elapsed() >= w) {
                return;
            }
            if observer.cancelled() {
                shared.stop.store(true, Ordering::Relaxed);
            }
            if told.elapsed() >= TICK {
                told = Instant::now();
                observer.progress(&self.progress(&shared.plan, warmup));
            }
            if sampled.elapsed() >= Duration::from_secs(1) {
                sampled = Instant::now();
                if let Some(watch) = &mut watch {
                    watch.sample();
                }
            }
        }
    }

    fn hear(&mut self, mut report: Report, observer: &mut dyn Observer) {
        self.ended += usize::from(report.last);
        self.alive[report.worker] = Some(report.alive);
        let full = report.interval.full.take();
        let point = PointData::of(report.interval);
        self.errors += point.errors;
        self.done += point.requests;
        let horizon = report.until.saturating_sub(1_000_000_000);
        self.recent.retain(|(at, _)| *at > horizon);
        self.recent.push((report.until, point.clone()));
        if !report.measured {
            self.measured_from = report.until;
            return;
        }
        // Until each has reported once, the sum says nothing.
        if !report.last
            && let Some(alive) = self.alive.iter().copied().sum()
        {
            self.fewest_alive = Some(self.fewest_alive.map_or(alive, |fewest| fewest.min(alive)));
        }
        let middle = (report.until - report.length / 2).saturating_sub(self.measured_from);
        self.series.at(middle).absorb(&point);
        if let Some(full) = full {
            let end = Duration::from_nanos(report.until.saturating_sub(self.measured_from));
            if end - self.second.offset >= Duration::from_secs(1) {
                self.close_second(end, observer);
            }
            self.second.service.merge(&full.0);
            self.second.response.merge(&full.1);
            self.second.length = end.saturating_sub(self.second.offset);
        }
    }

    fn close_second(&mut self, end: Duration, observer: &mut dyn Observer) {
        self.second.length = end.saturating_sub(self.second.offset);
        observer.second(&self.second);
        self.second = SecondHistograms { offset: end, ..SecondHistograms::default() };
    }

    pub(crate) fn last_second(&mut self, observer: &mut dyn Observer) {
        if !self.second.service.is_empty() {
            observer.second(&self.second);
        }
    }

    fn progress(&self, plan: &Plan, warmup: Option<Duration>) -> Progress {
        let mut last = PointData::default();
        self.recent.iter().for_each(|(_, point)| last.absorb(point));
        let elapsed = self.begun.elapsed();
        let window = elapsed.as_secs_f64().clamp(0.1, 1.0);
        Progress {
            stage: if warmup.is_some() { Stage::WarmUp } else { Stage::Measuring },
            elapsed,
            left: warmup.or(plan.duration).map(|d| d.saturating_sub(elapsed)),
            done: self.done,
            rate: last.requests as f64 / window,
            p50_ns: last.service.quantile(0.5),
            p99_ns: last.service.quantile(0.99),
            errors: self.errors,
            alive: self.alive.iter().flatten().sum(),
        }
    }

    /// The measured part over time.
    pub(crate) fn series(&self) -> SeriesRecord {
        let points = self.series.iter().map(|(at, p)| PointRecord {
            at_s: at as f64 / 1e9,
            requests: p.requests,
            errors: p.errors,
            bytes: p.bytes,
            p50_ns: p.service.quantile(0.5),
            p99_ns: p.service.quantile(0.99),
            max_ns: (!p.service.is_empty()).then(|| p.service.max()),
        });
        SeriesRecord { width_s: self.series.width_ns() as f64 / 1e9, points: points.collect() }
    }
}
