//! One core's part in a run: it opens its connections, keeps the time, and hands over what it counted.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

use oroshi_http1::Limits;
use oroshi_net::clock::{cpu_ns_of, thread_cpu_ns};
use oroshi_net::{Connector, Peer, Timer, monotonic_ns};
use oroshi_stats::window::patience;

use crate::answer::First;
use crate::arrivals::Arrivals;
use crate::check::Check;
use crate::core::{Core, OriginState, Phase, Rules, Source};
use crate::ending::Place;
use crate::hope::Hope;
use crate::plan::{Load, Plan, shares};
use crate::request::Request;
use crate::run::RunError;
use crate::script::ScriptError;
use crate::scripting::Scripting;
use crate::slot::{fill_slot, hold};
use crate::tally::{Interval, Tally};

/// How often a core reports, and the width of the finest time series.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Connections that are being opened at once before the start: fewer than any usual backlog, so that no SYN is dropped.
const OPENING: usize = 64;
/// Shortest time without a sign of a server after which a run of a fixed number of requests gives up.
const MIN_PATIENCE: Duration = Duration::from_secs(2);
/// The dispatcher looks up at least this often, nanoseconds: a timetable's next arrival may be years away.
const LONG_SLEEP: u64 = 1_000_000_000;

/// What all workers of a run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    /// Where each origin's name led.
    pub(crate) peers: Vec<Vec<Peer>>,
    /// Everybody's connections are open when all have met here.
    pub(crate) ready: Barrier,
    /// When the first request may be sent, on the monotonic clock.
    pub(crate) start: OnceLock<u64>,
    /// Workers that wait to meet the others.
    pub(crate) prepared: AtomicUsize,
    /// Set when the user wants the run to end.
    pub(crate) stop: AtomicBool,
    /// The server's processes, as far as they are known.
    pub(crate) server: Vec<u32>,
    /// What whichever core is first finds out.
    pub(crate) first: Arc<First>,
}

impl Shared {
    /// Waits for all workers; they agree on the moment to start.
    pub(crate) fn meet(&self) -> u64 {
        if self.ready.wait().is_leader() {
            self.start.set(monotonic_ns()).expect("one leader");
        }
        self.ready.wait();
        *self.start.get().expect("set by the leader")
    }
}

/// What a worker tells while it runs.
#[derive(Debug)]
pub(crate) struct Report {
    /// When the interval ended, nanoseconds of the monotonic clock, and its length.
    pub(crate) until: u64,
    pub(crate) length: u64,
    pub(crate) worker: usize,
    pub(crate) interval: Interval,
    pub(crate) alive: usize,
    /// Whether the interval lies in the measured part.
    pub(crate) measured: bool,
    /// The worker's part is over.
    pub(crate) last: bool,
    /// What came after that: answers to requests that were on their way then.
    pub(crate) late: bool,
    /// In the last one: the CPU clocks of the server's processes when the worker's measured part began, and now. Only here is it
    /// known to the microsecond when that is, and a process's clock takes a fifth of one to read.
    pub(crate) server: Vec<(u32, u64, u64)>,
}

/// What a worker has at the end.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// Length of the measured part on this core, nanoseconds.
    pub(crate) elapsed: u64,
    /// CPU time of this thread over the measured part, nanoseconds.
    pub(crate) cpu: u64,
    /// When it ended, nanoseconds of the monotonic clock.
    pub(crate) until: u64,
    /// Held connections up when the run ended.
    pub(crate) held: usize,
    /// What is known of each server.
    pub(crate) places: Vec<Place>,
    pub(crate) stopped_early: bool,
    /// It ended early because it heard nothing for too long.
    pub(crate) gave_up: bool,
    /// A script's first request: its first line, and its length in bytes.
    pub(crate) first_request: Option<(String, usize)>,
}

/// Where workers put what they have at the end: before a script's part of one is asked for its values.
pub(crate) type Outcomes = Sender<(usize, Result<Outcome, RunError>)>;

/// Carries out worker `index`'s share.
pub(crate) async fn work(shared: Arc<Shared>, index: usize, reports: Sender<Report>, outcomes: Outcomes) {
    let prepared = Timer::new()
        .and_then(|timer| Ok((timer, Timer::new()?)))
        .map_err(RunError::Timer)
        .and_then(|timers| Ok((timers, Share::new(&shared, index).map_err(RunError::Script)?)));
    let ((timer, dispatch_timer), share) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            // The others wait for this one, and then need not go on.
            shared.stop.store(true, Ordering::Relaxed);
            let _ = outcomes.send((index, Err(error)));
            // Told after that: what it makes of the others is this one's doing. They may be waiting for their turn behind it.
            if let Some(script) = &shared.plan.script {
                script.interrupt();
            }
            shared.prepared.fetch_add(1, Ordering::Relaxed);
            shared.meet();
            return;
        }
    };
    let core = Rc::clone(&share.core);
    let outcome = carry_out(&shared, share, timer, dispatch_timer, &reports).await;
    drop(reports);
    // Nobody listens any more only when the run is being given up.
    let _ = outcomes.send((index, outcome));
    drop(outcomes);
    if let Some(script) = &core.script {
        script.leave();
    }
}

async fn carry_out(
    shared: &Shared,
    share: Share,
    timer: Timer,
    dispatch_timer: Timer,
    reports: &Sender<Report>,
) -> Result<Outcome, RunError> {
    share.open_connections(shared).await;
    shared.prepared.fetch_add(1, Ordering::Relaxed);
    // Blocking the thread is right: nothing is to happen before everybody is here.
    let start = shared.meet();
    let core = Rc::clone(&share.core);
    let plan = &shared.plan;
    if !plan.warmup.is_zero() {
        let phase = share.index as f64 / plan.threads as f64;
        core.put_out_of_step(nanos(plan.warmup), phase);
    }
    core.start(start);
    if let Some(script) = &core.script {
        script.begin(plan.duration.map(|duration| start + nanos(plan.warmup) + nanos(duration)));
    }
    if core.rules.open {
        tokio::task::spawn_local(dispatch(Rc::clone(&core), dispatch_timer));
    }
    let mut outcome = share.keep_time(shared, start, timer, reports).await;
    while core.ended.get() < core.slots.len() {
        core.progress.notified().await;
    }
    if let Some(error) = core.script.as_ref().and_then(Scripting::take_error) {
        return Err(RunError::Script(error));
    }
    // Only now is it known what had no answer.
    core.origins.iter().zip(&mut outcome.places).for_each(|(origin, place)| origin.conclude(place));
    let first_request = core.script.as_ref().and_then(Scripting::first);
    Ok(Outcome { tally: core.tally.take(), first_request, ..outcome })
}

/// Gives arrivals to free connections when they are due.
async fn dispatch(core: Rc<Core>, mut timer: Timer) {
    while core.phase.get() != Phase::Over {
        match core.dispatch(monotonic_ns()) {
            // A slot that takes an arrival by itself only makes this wake up early.
            Some(due) => {
                tokio::select! {
                    _ = timer.sleep_until(due.min(monotonic_ns() + LONG_SLEEP)) => {}
                    () = core.freed.notified() => {}
                }
            }
            None => core.freed.notified().await,
        }
    }
}

/// A worker's share of the plan.
struct Share {
    core: Rc<Core>,
    index: usize,
    /// The origin of each connection under load; then of each that is held.
    slots: Vec<usize>,
    held: Vec<usize>,
    requests: Option<u64>,
}

impl Share {
    fn new(shared: &Shared, index: usize) -> Result<Self, ScriptError> {
        let plan = &shared.plan;
        let script = script_of(shared, index)?;
        // Connections are dealt out like cards, so that each worker has its share of each origin.
        let dealt = |total: usize, weights: &[usize]| -> Vec<usize> {
            let counts = shares(total, weights);
            let all = counts.iter().enumerate().flat_map(|(origin, &n)| std::iter::repeat_n(origin, n));
            all.enumerate().filter(|(i, _)| i % plan.threads == index).map(|(_, origin)| origin).collect()
        };
        let weights: Vec<usize> = plan.origins.iter().map(|o| o.connections).collect();
        let slots = dealt(plan.connections, &weights);
        let held = dealt(plan.hold, &weights);
        let (each, more) = (plan.connections / plan.threads, plan.connections % plan.threads);
        let per_worker: Vec<usize> = (0..plan.threads).map(|w| each + usize::from(w < more)).collect();
        debug_assert_eq!(per_worker[index], slots.len());
        let requests = plan.requests.map(|n| share_of(n, &per_worker, index));
        let source = match &plan.load {
            Load::Closed => Source::Closed,
            Load::Open { stages, spacing, seed } => {
                let part = slots.len() as f64 / plan.connections as f64;
                let seed = seed.wrapping_add(index as u64);
                let phase = index as f64 / plan.threads as f64;
                Source::Open(Arrivals::stages(stages, part, *spacing, seed).phase(phase))
            }
        };
        let fixed = script.as_ref().and_then(|(_, request)| request.as_ref());
        let peer = script.as_ref().and_then(|(script, _)| script.terms.peer.as_ref());
        let origins = plan
            .origins
            .iter()
            .zip(&shared.peers)
            .map(|(origin, peers)| {
                let connector = Connector::new(plan.connector_options(origin));
                let peers = peer.map_or_else(|| peers.clone(), |peer| vec![peer.clone()]);
                let requests = fixed.map_or_else(|| origin.requests.clone(), |request| vec![request.clone()]);
                OriginState::new(connector, peers, requests, index)
            })
            .collect();
        let connect_per_request = plan.connects_per_request() || fixed.is_some_and(|request| request.closes);
        let rules = Rules {
            timeout: nanos(plan.timeout),
            pipeline: plan.pipeline,
            per_connection: if connect_per_request { 1 } else { plan.requests_per_connection.unwrap_or(u64::MAX) },
            connect_per_request,
            checks: plan.checks.clone().into(),
            status_checked: plan.checks.iter().any(|check| matches!(check, Check::Status(_))),
            limits: Limits::default(),
            interval_histograms: plan.interval_histograms,
            connection_times: plan.connection_times,
            each_request: plan.each_request,
            open: plan.load != Load::Closed,
        };
        let script = script.map(|(script, _)| script);
        let core = Core::new(rules, origins, slots.len() + held.len(), source, script, Arc::clone(&shared.first));
        Ok(Self { core, index, slots, held, requests })
    }

    /// Starts every slot, a few at a time, and waits until each has connected or failed to, or the timeout has passed.
    async fn open_connections(&self, shared: &Shared) {
        let core = &self.core;
        let give_up = tokio::time::Instant::now() + shared.plan.timeout;
        let mut started = 0;
        let loads = self.slots.iter().map(|&origin| (origin, false));
        let held = self.held.iter().map(|&origin| (origin, true));
        for (id, (origin, held)) in loads.chain(held).enumerate() {
            if held {
                tokio::task::spawn_local(hold(Rc::clone(core), id, origin));
            } else {
                tokio::task::spawn_local(fill_slot(Rc::clone(core), id, origin));
            }
            started += 1;
            self.wait_for_attempts((started + 1usize).saturating_sub(OPENING), shared, give_up).await;
        }
        self.wait_for_attempts(started, shared, give_up).await;
    }

    /// Until `n` attempts were made, or the run is not wanted any more. The deadlines of the attempts themselves are not
    /// swept yet; `give_up` is the same bound.
    async fn wait_for_attempts(&self, n: usize, shared: &Shared, give_up: tokio::time::Instant) {
        while self.core.attempted.get() < n && !shared.stop.load(Ordering::Relaxed) {
            let look = give_up.min(tokio::time::Instant::now() + TICK);
            let waited = tokio::time::timeout_at(look, self.core.progress.notified()).await;
            if waited.is_err() && tokio::time::Instant::now() >= give_up {
                return;
            }
        }
    }

    /// From the start to the end: warm-up, measured part, ticks, deadlines.
    async fn keep_time(&self, shared: &Shared, start: u64, mut timer: Timer, reports: &Sender<Report>) -> Outcome {
        let (core, plan) = (&self.core, &shared.plan);
        let sweep = nanos(TICK).min(nanos(plan.timeout) / 4).max(1_000_000);
        let warm = start + nanos(plan.warmup);
        let mut measured: Option<Measured> = None;
        let mut next_sweep = start + sweep;
        let mut reported = start;
        // A number of requests may never be reached with a server that is gone or hangs; a duration ends by itself.
        let mut hope = Hope::default();
        let patience = nanos(patience_with_servers(plan.timeout));
        let mut gave_up = false;
        let stopped_early = loop {
            let now = monotonic_ns();
            if measured.is_none() && now >= warm {
                // Without a warm-up the connections opened so far belong to the run, and so does its first moment, in which the
                // first request is due.
                let from = if plan.warmup.is_zero() {
                    start
                } else {
                    self.report(reports, reported, now, false);
                    core.forget();
                    now
                };
                let end = plan.duration.map_or(u64::MAX, |d| from + nanos(d));
                core.measure(from, end, self.requests);
                if let Some(script) = &core.script {
                    script.begin(plan.duration.map(|_| end));
                }
                let server = shared.server.iter().map(|pid| cpu_ns_of(*pid)).collect();
                measured = Some(Measured { from, end, cpu: thread_cpu_ns(), server });
                reported = from;
            }
            let end = measured.as_ref().map_or(u64::MAX, |m| m.end);
            // Held connections end with the phase only: what has ended earlier is load, out of requests.
            if now >= end || core.ended.get() >= self.slots.len() && measured.is_some() {
                break false;
            }
            if core.halted.get() {
                break false;
            }
            if shared.stop.load(Ordering::Relaxed) {
                break true;
            }
            gave_up = plan.duration.is_none()
                && measured.is_some()
                && hope.is_lost(now, core.last_sign(), core.is_waiting(now), patience);
            if gave_up {
                break true;
            }
            if now >= next_sweep {
                core.tally.borrow_mut().lag.record(now - next_sweep);
                next_sweep = now + sweep;
            }
            let earliest = core.expire(now);
            if now - reported >= nanos(TICK) {
                self.report(reports, reported, now, measured.is_some());
                reported = now;
            }
            let boundary = if measured.is_some() { end } else { warm };
            let wake = next_sweep.min(earliest).min(boundary);
            tokio::select! {
                _ = timer.sleep_until(wake) => {}
                () = core.progress.notified() => {}
            }
        };
        let now = monotonic_ns();
        let cpu = thread_cpu_ns();
        let measured = measured.unwrap_or_else(|| {
            core.forget();
            core.measure(now, now, Some(0));
            Measured { from: now, end: now, cpu, server: Vec::new() }
        });
        let both_ends = |(pid, before): (&u32, &Option<u64>)| Some((*pid, (*before)?, cpu_ns_of(*pid)?));
        let server = shared.server.iter().zip(&measured.server).filter_map(both_ends).collect();
        if core.script.as_ref().is_some_and(Scripting::has_failed) {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let (places, held) = (self.places(gave_up), core.held.get());
        self.send(reports, reported, now, measured.from < now, Some(server));
        core.close(now);
        let halted = core.halted.get();
        if !stopped_early && !halted {
            self.await_answers(shared, now - measured.from, &mut timer).await;
            self.send_late(reports);
        }
        core.finish(monotonic_ns());
        Outcome {
            tally: Tally::default(),
            elapsed: now - measured.from,
            cpu: cpu - measured.cpu,
            until: now,
            held,
            places,
            stopped_early,
            gave_up,
            first_request: None,
        }
    }

    /// What is known of each server when the measured part ends.
    fn places(&self, gave_up: bool) -> Vec<Place> {
        let place = |origin: &OriginState| Place { alive: origin.alive.get(), gave_up, ..Place::default() };
        let mut places: Vec<Place> = self.core.origins.iter().map(place).collect();
        self.slots.iter().for_each(|&origin| places[origin].connections += 1);
        places
    }

    /// Waits for what is on its way when the measured part of `length` nanoseconds is over, for as long as [`patience`](patience()) says.
    async fn await_answers(&self, shared: &Shared, length: u64, timer: &mut Timer) {
        let core = &self.core;
        if core.under_way.get() == 0 {
            return;
        }
        let now = monotonic_ns();
        let longest = Some(core.tally.borrow().clocks.response.max()).filter(|longest| *longest > 0);
        let until = now + patience(length, longest, nanos(shared.plan.timeout));
        if let Some(script) = &core.script {
            script.begin(Some(until));
        }
        while core.under_way.get() > 0 && !shared.stop.load(Ordering::Relaxed) && !core.halted.get() {
            let now = monotonic_ns();
            if now >= until {
                return;
            }
            let wake = core.expire(now).min(now + nanos(TICK)).min(until);
            tokio::select! {
                _ = timer.sleep_until(wake) => {}
                () = core.progress.notified() => {}
            }
        }
    }

    /// Requests that were answered after the end, for who wants each one or full histograms.
    fn send_late(&self, reports: &Sender<Report>) {
        let core = &self.core;
        let interval = core.interval.replace(Interval::new(core.rules.interval_histograms));
        if interval.each.is_empty() && interval.full.is_none() {
            return;
        }
        let (until, alive) = (monotonic_ns(), core.alive());
        let report = Report {
            until,
            length: 0,
            worker: self.index,
            interval,
            alive,
            measured: true,
            last: false,
            late: true,
            server: Vec::new(),
        };
        let _ = reports.send(report);
    }

    fn report(&self, reports: &Sender<Report>, from: u64, until: u64, measured: bool) {
        self.send(reports, from, until, measured, None);
    }

    /// A report; the last one has the server's clocks.
    fn send(
        &self,
        reports: &Sender<Report>,
        from: u64,
        until: u64,
        measured: bool,
        server: Option<Vec<(u32, u64, u64)>>,
    ) {
        let core = &self.core;
        let interval = core.interval.replace(Interval::new(core.rules.interval_histograms));
        let alive = core.alive();
        let (length, worker, last) = (until - from, self.index, server.is_some());
        let server = server.unwrap_or_default();
        // Nobody listens any more only when the run is being given up.
        let _ = reports.send(Report { until, length, worker, interval, alive, measured, last, late: false, server });
    }
}

/// Brings up core `index`'s part of the script, with the one request that it always sends, if there is only one.
fn script_of(shared: &Shared, index: usize) -> Result<Option<(Scripting, Option<Request>)>, ScriptError> {
    let plan = &shared.plan;
    let Some(script) = &plan.script else { return Ok(None) };
    let part = script.enter(index, &shared.peers[0])?;
    let terms = part.terms();
    let script = Scripting::new(part, terms);
    let refuse = |function, what: &str| Err(script.error(function, what.to_owned()));
    if script.terms.delays && plan.load != Load::Closed {
        return refuse(
            "delay",
            "delay() and an open loop (--rate, --stages) both say when a request is due: leave one out",
        );
    }
    if script.makes_requests() && plan.pipeline > 1 {
        return refuse(
            "request",
            "request() itself says how many requests go out at once, by returning them one after the other: leave out --pipeline",
        );
    }
    let Some(bytes) = script.terms.request.clone() else { return Ok(Some((script, None))) };
    let request = Request::made(bytes, plan.requests_per_connection).map_err(|error| script.unusable(error))?;
    script.note_first(&request.keep);
    Ok(Some((script, Some(request))))
}

/// How long a run of a fixed number of requests waits for a sign of a server.
pub(crate) fn patience_with_servers(timeout: Duration) -> Duration {
    timeout.saturating_mul(2).max(MIN_PATIENCE)
}

/// The measured part, while it lasts.
struct Measured {
    from: u64,
    end: u64,
    /// The thread's CPU time at its beginning, and that of the server's processes.
    cpu: u64,
    server: Vec<Option<u64>>,
}

/// This worker's part of `n` requests, in proportion to its connections; the parts add up to `n`.
fn share_of(n: u64, connections: &[usize], index: usize) -> u64 {
    let total: u128 = connections.iter().map(|&c| c as u128).sum();
    let upto = |i: usize| u128::from(n) * connections[..i].iter().map(|&c| c as u128).sum::<u128>() / total;
    (upto(index + 1) - upto(index)) as u64
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_split_without_loss() {
        for n in [0, 1, 2, 3, 10, 1_000_001, u64::MAX] {
            for connections in [&[1, 1][..], &[3, 2, 2], &[1000, 1, 5], &[7]] {
                let sum: u64 = (0..connections.len()).map(|i| share_of(n, connections, i)).sum();
                assert_eq!(sum, n);
            }
        }
    }
}
