//! Follows a run while it lasts: builds a time series from the workers' reports, and calls an observer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use oroshi_net::monotonic_ns;
use oroshi_stats::{Latency, Point as _, Sketch};

use crate::course::{Course, PointData, PointSeries, fewest};
use crate::failure::FailureCounts;
use crate::part::{PartObserver, Recorder};
use crate::plan::Plan;
use crate::record::SeriesRecord;
use crate::script::ScriptError;
use crate::shared::{Report, Shared, TICK};
use crate::tally::{Interval, Times};
use crate::watch::{Clocks, Watch};

/// Length of the intervals of a histogram log.
const SECOND: Duration = Duration::from_secs(1);
/// How often the server's processes are sampled. The least pause is so many times as long as taking the sample, so that
/// sampling never takes more than this part of a core.
const LOOK: Duration = Duration::from_millis(250);
const LOOK_PART: u32 = 200;
/// How long a call into a script may last after the run was stopped.
const CALL_PATIENCE: Duration = Duration::from_millis(300);

/// The progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Time since the stage began.
    pub elapsed: Duration,
    /// Time until the stage ends, if known.
    pub left: Option<Duration>,
    /// Responses so far in this stage.
    pub done: u64,
    /// Responses per second over the last second.
    pub rate: f64,
    /// Service times over the last second. Empty where they are not known yet.
    pub service: Sketch,
    /// Errors so far in this stage.
    pub errors: u64,
    /// Failures so far by name; none of the warm-up.
    pub failures: FailureCounts,
    /// CPUs that the server uses now, as of the last sample. `None`: not watched, or not sampled yet.
    pub server_cpu: Option<f64>,
    /// Connections that are up.
    pub alive: usize,
}

/// The stages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The warm-up, which does not count.
    WarmUp,
    /// The measured part.
    Measuring,
}

/// One second's histograms, for an HdrHistogram log.
#[derive(Clone, Debug)]
pub struct SecondHistograms {
    /// When the measured part began.
    pub began: SystemTime,
    /// When the second began, since the start of the measured part.
    pub offset: Duration,
    /// Length.
    pub length: Duration,
    /// Service times.
    pub service: Latency,
    /// Response times.
    pub response: Latency,
}

impl SecondHistograms {
    fn since(offset: Duration) -> Self {
        let (service, response) = (Latency::default(), Latency::default());
        Self { began: SystemTime::UNIX_EPOCH, offset, length: Duration::ZERO, service, response }
    }
}

/// One completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimes {
    /// When it was sent; for the first request of a connection, when connecting began.
    pub began: SystemTime,
    /// Connect time, TLS handshake included, nanoseconds; 0 on a connection that was used before.
    pub connect_ns: u64,
    /// From sending it to the first byte of the response, nanoseconds.
    pub wait_ns: u64,
    /// From `began` to the last byte of the response, nanoseconds.
    pub total_ns: u64,
}

/// Follows a run.
pub trait Observer {
    /// Called about ten times per second.
    fn progress(&mut self, progress: &Progress) {
        let _ = progress;
    }
    /// Called after [`progress`](Self::progress) in the measured part of a load of requests, with that part so far.
    fn course(&mut self, course: &Course<'_>) {
        let _ = course;
    }
    /// Called with each second's histograms, a second later, when the plan keeps them.
    fn second(&mut self, histograms: &SecondHistograms) {
        let _ = histograms;
    }
    /// Called with completed requests of the measured part, when the plan wants each.
    ///
    /// Requests come in the order in which they began, as soon as no earlier one can be missing.
    fn requests(&mut self, times: &[RequestTimes]) {
        let _ = times;
    }
    /// Returns whether the run should end now. Called about ten times per second.
    fn cancelled(&mut self) -> bool {
        false
    }
    /// Called with warnings before the first connection.
    fn warning(&mut self, text: &str) {
        let _ = text;
    }
}

/// An observer that ignores everything.
impl Observer for () {}

/// Receives the workers' reports, keeps the time series and calls the observer.
pub(crate) struct ReportReceiver {
    begun: Instant,
    /// When, on the monotonic clock, the measured part began.
    measured_from: u64,
    series: PointSeries,
    /// In a part of a run: what the coordinator gets.
    pub(crate) recorder: Option<Recorder>,
    /// The last second, tick by tick.
    recent: Vec<(u64, PointData)>,
    /// Connections up on each core, once it has reported.
    alive: Vec<Option<usize>>,
    pub(crate) fewest_alive: Option<usize>,
    /// The measured part as the workers saw it, from the first begin to the last end.
    pub(crate) clocks: Clocks,
    errors: u64,
    /// Failures of the measured part, of each worker.
    failures: Vec<FailureCounts>,
    server_cpu: Option<f64>,
    done: u64,
    /// The current second, and the one before it, which the observer gets when the current one is full.
    second: SecondHistograms,
    closed: Option<SecondHistograms>,
    ended: usize,
    /// No report will follow.
    drained: bool,
    /// Completed requests that the observer has not got yet, the earliest first; and when each worker last reported.
    each: BinaryHeap<Reverse<Times>>,
    reported: Vec<u64>,
    /// One moment on the monotonic clock and on the wall clock.
    wall: (u64, SystemTime),
}

impl ReportReceiver {
    pub(crate) fn new(threads: usize, start: u64) -> Self {
        Self {
            begun: Instant::now(),
            measured_from: start,
            series: PointSeries::new(),
            recorder: None,
            recent: Vec::new(),
            alive: vec![None; threads],
            fewest_alive: None,
            clocks: Clocks::default(),
            errors: 0,
            failures: vec![FailureCounts::default(); threads],
            server_cpu: None,
            done: 0,
            second: SecondHistograms::since(Duration::ZERO),
            closed: None,
            ended: 0,
            drained: false,
            each: BinaryHeap::new(),
            reported: vec![start; threads],
            wall: (monotonic_ns(), SystemTime::now()),
        }
    }

    /// Returns the measured part over time.
    pub(crate) fn series(&self) -> SeriesRecord {
        self.series.record()
    }

    /// Listens until the workers have ended, or for the length of the warm-up.
    ///
    /// Fails when a call into the script cannot be ended.
    pub(crate) fn listen(
        &mut self,
        reports: &Receiver<Report>,
        shared: &Shared,
        observer: &mut dyn PartObserver,
        warmup: Option<Duration>,
        mut watch: Option<&mut Watch>,
    ) -> Result<(), ScriptError> {
        self.begun = Instant::now();
        (self.errors, self.done) = (0, 0);
        self.recent.clear();
        let (mut told, mut next_look) = (self.begun, LOOK);
        let mut stopped = None;
        loop {
            let elapsed = self.begun.elapsed();
            let mut patience = warmup.map_or(TICK, |w| w.saturating_sub(elapsed).min(TICK));
            if watch.is_some() {
                patience = patience.min(next_look.saturating_sub(elapsed));
            }
            match reports.recv_timeout(patience) {
                Ok(report) => {
                    self.receive(report, observer);
                    self.hand_over(observer, &shared.plan);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if self.ended == shared.plan.threads || warmup.is_some_and(|w| self.begun.elapsed() >= w) {
                return Ok(());
            }
            if let Some(delta) = self.recorder.as_mut().and_then(Recorder::take_when_due) {
                observer.delta(delta);
            }
            if observer.cancelled() {
                shared.stop();
            }
            if shared.is_stopped() {
                let since = stopped.get_or_insert_with(Instant::now);
                // A call into the script that ends at all has ended by now.
                if since.elapsed() > CALL_PATIENCE {
                    shared.interrupt_script();
                }
            }
            if let Some(error) = shared.stuck() {
                return Err(error);
            }
            if told.elapsed() >= TICK {
                told = Instant::now();
                observer.progress(&self.progress(&shared.plan, warmup));
                if warmup.is_none() {
                    observer.course(&self.course());
                }
            }
            let elapsed = self.begun.elapsed();
            if let Some(watch) = &mut watch
                && elapsed >= next_look
            {
                watch.sample(elapsed);
                self.server_cpu = watch.cpus_now();
                let took = self.begun.elapsed() - elapsed;
                next_look = elapsed + LOOK.max(took * LOOK_PART);
            }
        }
    }

    fn receive(&mut self, mut report: Report, observer: &mut dyn Observer) {
        self.ended += usize::from(report.last);
        if let (Some(recorder), Some(counted)) = (&mut self.recorder, report.counted.take()) {
            recorder.count(report.worker, *counted);
        }
        if report.late {
            return self.receive_late(report);
        }
        for (pid, begin, end) in std::mem::take(&mut report.server) {
            let ends = self.clocks.ends.entry(pid).or_insert((begin, end));
            *ends = (ends.0.min(begin), ends.1.max(end));
        }
        self.alive[report.worker] = Some(report.alive);
        self.failures[report.worker] = report.failures;
        self.reported[report.worker] = report.until;
        let each = std::mem::take(&mut report.interval.each);
        if report.measured {
            self.each.extend(each.into_iter().map(Reverse));
        }
        let full = report.interval.full.take();
        let mut point = PointData::of(report.interval);
        self.errors += point.errors;
        self.done += point.requests;
        let horizon = report.until.saturating_sub(1_000_000_000);
        self.recent.retain(|(at, _)| *at > horizon);
        self.recent.push((report.until, point.clone()));
        if !report.measured {
            self.measured_from = report.until;
            return;
        }
        let length = Duration::from_nanos(report.until.saturating_sub(self.measured_from));
        self.clocks.length = self.clocks.length.max(length);
        // The sum means nothing until each worker has reported once.
        point.alive = self.alive.iter().copied().sum();
        if !report.last {
            self.fewest_alive = fewest(self.fewest_alive, point.alive);
        }
        let until = report.until.saturating_sub(self.measured_from);
        self.series.spread(until, report.length, &point);
        if let Some(recorder) = &mut self.recorder {
            recorder.point(until, report.length, &point);
        }
        if let Some(full) = full {
            let end = Duration::from_nanos(report.until.saturating_sub(self.measured_from));
            self.second.service.merge(&full.0);
            self.second.response.merge(&full.1);
            self.second.length = end.saturating_sub(self.second.offset);
            if self.second.length >= SECOND {
                let next = SecondHistograms::since(end);
                if let Some(before) = self.closed.replace(std::mem::replace(&mut self.second, next)) {
                    self.tell(observer, before);
                }
            }
        }
    }

    /// Takes responses that came after the measured part: they are in no point of the series.
    fn receive_late(&mut self, report: Report) {
        let Interval { each, full, .. } = report.interval;
        self.each.extend(each.into_iter().map(Reverse));
        if let Some(full) = full {
            self.second.service.merge(&full.0);
            self.second.response.merge(&full.1);
        }
    }

    /// Takes what the workers sent after their last report, once all have ended.
    pub(crate) fn listen_late(&mut self, reports: &Receiver<Report>, observer: &mut dyn Observer, plan: &Plan) {
        for report in reports.try_iter() {
            self.receive(report, observer);
        }
        self.drained = true;
        self.hand_over(observer, plan);
    }

    /// Gives the observer the requests before which no missing request can have begun.
    fn hand_over(&mut self, observer: &mut dyn Observer, plan: &Plan) {
        if self.each.is_empty() {
            return;
        }
        // Connecting and the response have a timeout each, enforced within a tick.
        let longest = 2 * (plan.timeout + TICK).as_nanos() as u64;
        let all_ended = self.drained;
        let until =
            if all_ended { u64::MAX } else { self.reported.iter().min().map_or(0, |t| t.saturating_sub(longest)) };
        let mut ready = Vec::new();
        while let Some(Reverse(times)) = self.each.peek()
            && times.began < until
        {
            let Times { began, connect, wait, total } = *times;
            let (mono, wall) = self.wall;
            let began = wall + Duration::from_nanos(began.saturating_sub(mono))
                - Duration::from_nanos(mono.saturating_sub(began));
            ready.push(RequestTimes { began, connect_ns: connect, wait_ns: wait, total_ns: total });
            self.each.pop();
        }
        if !ready.is_empty() {
            observer.requests(&ready);
        }
    }

    /// Gives the observer what is left. A sliver at the end joins the second before it, because an interval of no
    /// length is of no use in a log.
    pub(crate) fn last_second(&mut self, observer: &mut dyn Observer) {
        let rest = std::mem::replace(&mut self.second, SecondHistograms::since(Duration::ZERO));
        let sliver = rest.length < SECOND / 10;
        if let Some(mut before) = self.closed.take() {
            if sliver {
                before.service.merge(&rest.service);
                before.response.merge(&rest.response);
                before.length += rest.length;
            }
            self.tell(observer, before);
            if sliver {
                return;
            }
        }
        if !rest.service.is_empty() {
            self.tell(observer, rest);
        }
    }

    fn tell(&self, observer: &mut dyn Observer, mut second: SecondHistograms) {
        let since = Duration::from_nanos(monotonic_ns().saturating_sub(self.measured_from));
        let now = SystemTime::now();
        second.began = now.checked_sub(since).unwrap_or(now);
        observer.second(&second);
    }

    fn course(&self) -> Course<'_> {
        let until = self.reported.iter().min().map_or(0, |until| until.saturating_sub(self.measured_from));
        self.series.course(until)
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
            service: last.service,
            errors: self.errors,
            failures: self.failures.iter().fold(FailureCounts::default(), |mut all, own| {
                all.merge(own);
                all
            }),
            server_cpu: self.server_cpu,
            alive: self.alive.iter().flatten().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn receiver() -> ReportReceiver {
        ReportReceiver::new(1, 1000 * MS)
    }

    fn report(from_ms: u64, until_ms: u64, requests: u64, full: bool) -> Report {
        let mut interval = Interval::new(full);
        for _ in 0..requests {
            interval.service.record(MS);
            if let Some(full) = &mut interval.full {
                full.0.record(MS);
                full.1.record(MS);
            }
        }
        interval.requests = requests;
        let (until, length) = ((1000 + until_ms) * MS, (until_ms - from_ms) * MS);
        Report {
            until,
            length,
            worker: 0,
            interval,
            failures: FailureCounts::default(),
            alive: 1,
            measured: true,
            last: false,
            late: false,
            counted: None,
            server: Vec::new(),
        }
    }

    #[derive(Default)]
    struct Seconds(Vec<(u64, u64, u64)>);

    impl Observer for Seconds {
        fn second(&mut self, s: &SecondHistograms) {
            self.0.push((s.offset.as_millis() as u64, s.length.as_millis() as u64, s.service.len()));
        }
    }

    #[test]
    fn a_late_report_is_spread_over_the_points_it_covers_and_nothing_is_lost() {
        let mut receiver = receiver();
        receiver.receive(report(0, 100, 100, false), &mut ());
        receiver.receive(report(100, 350, 251, false), &mut ());
        receiver.receive(report(350, 400, 50, false), &mut ());
        let points = receiver.series().points;
        assert_eq!(points.iter().map(|p| p.requests).collect::<Vec<_>>(), [100, 100, 100, 101]);
        // A report of no length, as from a run that is cut short at once, still counts.
        receiver.receive(report(400, 400, 3, false), &mut ());
        assert_eq!(receiver.series().points.iter().map(|p| p.requests).sum::<u64>(), 404);
    }

    #[test]
    fn the_course_says_in_which_points_reports_are_missing() {
        let mut receiver = ReportReceiver::new(2, 1000 * MS);
        let of = |worker, from, until| Report { worker, ..report(from, until, 10, false) };
        receiver.receive(of(0, 0, 100), &mut ());
        assert_eq!((receiver.course().points.len(), receiver.course().complete), (1, 0), "one thread is missing");
        receiver.receive(of(1, 0, 100), &mut ());
        receiver.receive(of(0, 100, 200), &mut ());
        receiver.receive(of(1, 100, 190), &mut ());
        let course = receiver.course();
        assert_eq!((course.points.len(), course.complete, course.width), (2, 1, TICK));
        assert_eq!((course.points[0].requests, course.points[0].service.len()), (20, 20));
    }

    #[test]
    fn a_sliver_at_the_end_joins_the_second_before_it() {
        let (mut receiver, mut seconds) = (receiver(), Seconds::default());
        for tick in 0..20 {
            receiver.receive(report(tick * 100, tick * 100 + 100, 1, true), &mut seconds);
        }
        receiver.receive(report(2000, 2003, 2, true), &mut seconds);
        receiver.last_second(&mut seconds);
        assert_eq!(seconds.0, [(0, 1000, 10), (1000, 1003, 12)]);
    }

    #[test]
    fn a_run_shorter_than_a_second_has_one_interval() {
        let (mut receiver, mut seconds) = (receiver(), Seconds::default());
        receiver.receive(report(0, 50, 5, true), &mut seconds);
        receiver.last_second(&mut seconds);
        assert_eq!(seconds.0, [(0, 50, 5)]);
    }
}
