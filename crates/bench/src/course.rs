//! The course of the measured part: points over time, from several threads or from several parts of a run.

use std::time::Duration;

use oroshi_stats::{Point, Series, Sketch};
use serde::{Deserialize, Serialize};

use crate::heat::heat;
use crate::record::{PointRecord, SeriesRecord};
use crate::shared::TICK;
use crate::tally::Interval;

/// Most points of the time series: a minute at 100 ms each. Longer runs have wider points.
const SERIES_CAPACITY: usize = 600;

/// The measured part so far, over time.
#[derive(Clone, Copy, Debug)]
pub struct Course<'s> {
    /// Its points, each as wide as the others. Reports of threads are still missing in the last ones.
    pub points: &'s [PointData],
    /// The width of a point.
    pub width: Duration,
    /// The points, from the beginning, in which no report is missing but those of parts that are silent.
    pub complete: usize,
}

/// A stretch of time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PointData {
    /// Responses.
    pub requests: u64,
    /// Errors.
    pub errors: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Service times of the responses.
    pub service: Sketch,
    /// The fewest connections that were up.
    pub alive: Option<usize>,
}

impl Point for PointData {
    fn absorb(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.service.merge(&other.service);
        self.alive = fewest(self.alive, other.alive);
    }
}

impl PointData {
    pub(crate) fn of(interval: Interval) -> Self {
        let Interval { requests, errors, bytes, service, .. } = interval;
        Self { requests, errors, bytes, service, alive: None }
    }
}

/// The measured part over time: points that come from several threads, or from several parts of a run.
pub(crate) struct PointSeries(Series<PointData>);

impl PointSeries {
    pub(crate) fn new() -> Self {
        Self(Series::new(TICK.as_nanos() as u64, SERIES_CAPACITY))
    }

    /// Spreads a report until `until` (nanoseconds since the measured part began) over the points that it covers: a
    /// core that reports late was at work all the while.
    pub(crate) fn spread(&mut self, until: u64, length: u64, point: &PointData) {
        let from = until.saturating_sub(length);
        let middle = from + (until - from) / 2;
        self.0.at(middle).service.merge(&point.service);
        let width = self.0.width_ns();
        let (first, last) = (from / width, until.saturating_sub(1).max(from) / width);
        // Shares are differences of running sums, so that they add up to the whole.
        let upto = |count: u64, end: u64| {
            let part = u128::from(end.min(until) - from) * u128::from(count);
            if until > from { (part / u128::from(until - from)) as u64 } else { count }
        };
        let mut start = from;
        for index in first..=last {
            let end = (index + 1) * width;
            let share = |count: u64| upto(count, end) - if start > from { upto(count, start) } else { 0 };
            let (requests, errors, bytes) = (share(point.requests), share(point.errors), share(point.bytes));
            let to = self.0.at(start);
            to.requests += requests;
            to.errors += errors;
            to.bytes += bytes;
            to.alive = fewest(to.alive, point.alive);
            start = end;
        }
    }

    /// Returns the measured part so far. `until`: up to where no report is missing, nanoseconds since it began.
    pub(crate) fn course(&self, until: u64) -> Course<'_> {
        let (points, width) = (self.0.points(), self.0.width_ns());
        let complete = points.len().min((until / width) as usize);
        Course { points, width: Duration::from_nanos(width), complete }
    }

    /// Returns the measured part over time.
    pub(crate) fn record(&self) -> SeriesRecord {
        let points = self.0.iter().map(|(at, p)| PointRecord {
            at_s: at as f64 / 1e9,
            requests: p.requests,
            errors: p.errors,
            bytes: p.bytes,
            p50_ns: p.service.quantile(0.5),
            p99_ns: p.service.quantile(0.99),
            max_ns: (!p.service.is_empty()).then(|| p.service.max()),
            alive: p.alive,
        });
        let width_ns = self.0.width_ns();
        SeriesRecord {
            width_s: width_ns as f64 / 1e9,
            points: points.collect(),
            heat: heat(self.0.points().iter().map(|p| &p.service), width_ns),
        }
    }
}

pub(crate) fn fewest(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    one.into_iter().chain(other).min()
}
