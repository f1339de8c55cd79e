//! One core's part in a run: it opens its connections, keeps the time, and hands over what it counted.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use oroshi_net::clock::{cpu_ns_of, thread_cpu_ns};
use oroshi_net::{Timer, monotonic_ns};
use oroshi_stats::WindowCount;
use oroshi_stats::window::patience;

use crate::core::{Core, OriginState, Source};
use crate::dialer::Dialer;
use crate::ending::ServerState;
use crate::error::RunError;
use crate::journey::{CoreJourneys, Meter};
use crate::plan::{Load, Protocol, shares};
use crate::request::Request;
use crate::rules::Rules;
use crate::script::ScriptError;
use crate::scripting::Scripting;
use crate::shared::{Outcome, Outcomes, Punctuality, Report, Shared, TICK, nanos};
use crate::silence::Silence;
use crate::slot::{fill_slot, hold};
use crate::tally::{Interval, Tally};

/// Connections that are being opened at once before the start: fewer than any usual backlog, so that no SYN is dropped.
const OPENING: usize = 64;
/// Shortest time without contact to a server after which a run of a fixed number of requests gives up.
const MIN_PATIENCE: Duration = Duration::from_secs(2);
/// How often a part of a run hands over what it counted.
const HAND_OVER: u64 = 1_000_000_000;
/// The dispatcher looks up at least this often, nanoseconds: a timetable's next arrival may be years away.
const LONG_SLEEP: u64 = 1_000_000_000;

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
            shared.stop();
            let _ = outcomes.send((index, Err(error)));
            // Interrupted after the error is sent: others then fail because of this one. They may wait for their turn.
            shared.interrupt_script();
            shared.prepared.fetch_add(1, Ordering::Relaxed);
            shared.meet(0);
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
    mut timer: Timer,
    dispatch_timer: Timer,
    reports: &Sender<Report>,
) -> Result<(Outcome, Tally), RunError> {
    if share.journeys.is_none() {
        share.open_connections(shared).await;
    }
    shared.prepared.fetch_add(1, Ordering::Relaxed);
    // Blocks the thread, because nothing is to happen before all workers are here.
    let start = shared.meet(0);
    if shared.is_agreed() {
        let punctuality = Punctuality::watch();
        timer.sleep_until(start).await.map_err(RunError::Timer)?;
        shared.note_began(punctuality.began(start));
    }
    let core = Rc::clone(&share.core);
    let plan = &shared.plan;
    if !plan.warmup.is_zero() {
        let (index, all) = plan.position(share.index);
        core.stagger(nanos(plan.warmup), index as f64 / all as f64);
    }
    core.start(start);
    if let Some(script) = &core.script {
        script.begin(plan.duration.map(|duration| start + nanos(plan.warmup) + nanos(duration)));
    }
    if core.rules.open {
        tokio::task::spawn_local(dispatch(Rc::clone(&core), dispatch_timer));
    }
    if !plan.gather.is_zero() {
        tokio::task::spawn_local(gather(Rc::clone(&core), plan.gather));
    }
    if let Some(journeys) = &share.journeys {
        journeys.begin(start, plan.duration.map(|duration| start + nanos(plan.warmup) + nanos(duration)));
    }
    let mut outcome = Timekeeper::new(shared, &share, start, timer, reports).keep_time().await;
    while core.activity.ended_slots() < core.tasks {
        core.activity.changed.notified().await;
    }
    if let Some(error) = core.script.as_ref().and_then(Scripting::take_error) {
        return Err(RunError::Script(error));
    }
    if let Some(journeys) = &share.journeys {
        journeys.leave()?;
    }
    // Only now it is known which requests got no response.
    core.origins.iter().zip(&mut outcome.servers).for_each(|(origin, server)| origin.complete(server));
    let first_request = core.script.as_ref().and_then(Scripting::first);
    let tally = core.counters.tally.take();
    Ok((Outcome { window: tally.window, first_request, ..outcome }, tally))
}

/// Gives arrivals to free connections when they are due.
async fn dispatch(core: Rc<Core>, mut timer: Timer) {
    let freed = &core.tickets.freed;
    while !core.timeline.is_over() {
        match core.dispatch(monotonic_ns()) {
            // A slot that takes an arrival by itself only makes this wake up early.
            Some(due) => {
                tokio::select! {
                    _ = timer.sleep_until(due.min(monotonic_ns() + LONG_SLEEP)) => {}
                    () = freed.notified() => {}
                }
            }
            None => freed.notified().await,
        }
    }
}

/// Blocks the thread for `pause` each time that it has handled all that had come.
async fn gather(core: Rc<Core>, pause: Duration) {
    while !core.timeline.is_over() {
        std::thread::sleep(pause);
        // The runtime polls the sockets before it runs this task again.
        tokio::task::yield_now().await;
    }
}

/// A worker's share of the plan.
struct Share {
    core: Rc<Core>,
    index: usize,
    /// The origin of each connection under load, and of each held one.
    slots: Vec<usize>,
    held: Vec<usize>,
    requests: Option<u64>,
    /// The users, in a run of journeys: all of them are one slot.
    journeys: Option<Rc<dyn CoreJourneys>>,
}

impl Share {
    fn new(shared: &Shared, index: usize) -> Result<Self, ScriptError> {
        let plan = &shared.plan;
        let (script, fixed) = script_of(shared, index)?.unzip();
        let fixed = fixed.flatten();
        let weights: Vec<usize> = plan.origins.iter().map(|origin| origin.connections).collect();
        let (position, all) = plan.position(index);
        let slots = dealt(plan.connections, &weights, all, position);
        let held = dealt(plan.hold, &weights, all, position);
        let (each, more) = (plan.connections / all, plan.connections % all);
        let per_worker: Vec<usize> = (0..all).map(|w| each + usize::from(w < more)).collect();
        debug_assert_eq!(per_worker[position], slots.len());
        let requests = plan.requests.map(|n| share_of(n, &per_worker, position));
        let part = slots.len() as f64 / plan.connections as f64;
        let arrivals = plan.load.arrivals(part, position as f64 / all as f64, position as u64);
        let source = arrivals.map_or(Source::Closed, Source::Open);
        let origins = origins(shared, index, script.as_ref(), fixed.as_ref());
        let closes = fixed.is_some_and(|request| request.closes) && plan.protocol == Protocol::Http1;
        let connect_per_request = plan.connects_per_request() || closes;
        let wanted = script.as_ref().and_then(|script| script.features.responses);
        let rules = Rules::new(plan, connect_per_request, wanted);
        let slots = if plan.journeys.is_some() { vec![0] } else { slots };
        let core = Core::new(rules, origins, (slots.len(), held.len()), source, script, Arc::clone(&shared.first));
        let journeys = plan.journeys.as_ref().map(|journeys| journeys.enter(index, Meter::new(&core))).transpose()?;
        Ok(Self { core, index, slots, held, requests, journeys })
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

    /// Waits until `n` attempts were made, the run is stopped, or `give_up` has come: no sweep enforces deadlines yet.
    async fn wait_for_attempts(&self, n: usize, shared: &Shared, give_up: tokio::time::Instant) {
        let activity = &self.core.activity;
        while activity.attempts() < n && !shared.is_stopped() {
            let look = give_up.min(tokio::time::Instant::now() + TICK);
            let waited = tokio::time::timeout_at(look, activity.changed.notified()).await;
            if waited.is_err() && tokio::time::Instant::now() >= give_up {
                return;
            }
        }
    }

    /// The state of each server when the measured part ends.
    fn servers(&self, gave_up: bool) -> Vec<ServerState> {
        let state = |origin: &OriginState| ServerState { alive: origin.alive.get(), gave_up, ..ServerState::default() };
        let mut servers: Vec<ServerState> = self.core.origins.iter().map(state).collect();
        self.slots.iter().for_each(|&origin| servers[origin].connections += 1);
        servers
    }
}

/// The origins of worker `index`: with the addresses and the fixed request of its script, where it has one.
fn origins(shared: &Shared, index: usize, script: Option<&Scripting>, fixed: Option<&Request>) -> Vec<OriginState> {
    let plan = &shared.plan;
    let (position, _) = plan.position(index);
    let peer = script.and_then(|script| script.features.peer.as_ref());
    let origin = |(origin, peers): (&crate::plan::Origin, &Vec<_>)| {
        let peers = peer.map_or_else(|| peers.clone(), |peer| vec![peer.clone()]);
        let requests = fixed.map_or_else(|| origin.requests.clone(), |request| vec![request.clone()]);
        OriginState::new(Dialer::new(plan, origin, peers, position), requests, position)
    };
    plan.origins.iter().zip(&shared.peers).map(origin).collect()
}

/// The origins of worker `index`'s connections, of `total`: dealt out like cards, so that each worker has its share of
/// each.
fn dealt(total: usize, weights: &[usize], threads: usize, index: usize) -> Vec<usize> {
    let counts = shares(total, weights);
    let all = counts.iter().enumerate().flat_map(|(origin, &n)| std::iter::repeat_n(origin, n));
    all.enumerate().filter(|(i, _)| i % threads == index).map(|(_, origin)| origin).collect()
}

/// Keeps a worker's time, from the start to the end: warm-up, measured part, reports, deadlines.
struct Timekeeper<'r> {
    shared: &'r Shared,
    share: &'r Share,
    core: &'r Core,
    reports: &'r Sender<Report>,
    timer: Timer,
    start: u64,
    /// When the warm-up ends.
    warm: u64,
    /// The measured part, once it has begun.
    measured: Option<Measured>,
    /// When the last report ended.
    reported: u64,
    /// Time between two sweeps of the deadlines, nanoseconds, and when the next one is due.
    sweep: u64,
    next_sweep: u64,
    /// In a part of a run: when counts were last handed over, and the longest response time among them.
    handed: u64,
    longest: u64,
    /// A server that is gone or hangs may never respond to a number of requests; a duration ends by itself.
    silence: Silence,
}

/// The measured part, while it lasts.
struct Measured {
    from: u64,
    end: u64,
    /// CPU time of the thread at its beginning, and of the server's processes.
    cpu: u64,
    server: Vec<Option<u64>>,
}

/// Why the measured part ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its time is over, all requests are done, or the script wants no more.
    Done,
    /// The user ends it.
    Stopped,
    /// No server was heard of for too long.
    GaveUp,
}

impl<'r> Timekeeper<'r> {
    fn new(shared: &'r Shared, share: &'r Share, start: u64, timer: Timer, reports: &'r Sender<Report>) -> Self {
        let plan = &shared.plan;
        let sweep = nanos(TICK).min(nanos(plan.timeout) / 4).max(1_000_000);
        Self {
            shared,
            share,
            core: &share.core,
            reports,
            timer,
            start,
            warm: start + nanos(plan.warmup),
            measured: None,
            reported: start,
            sweep,
            next_sweep: start + sweep,
            handed: start,
            longest: 0,
            silence: Silence::default(),
        }
    }

    /// Keeps the time until the run is over. The outcome has no tally yet: slots may still count.
    async fn keep_time(mut self) -> Outcome {
        let core = self.core;
        let end = loop {
            let now = monotonic_ns();
            if self.measured.is_none() && now >= self.warm {
                self.begin_measuring(now);
            }
            if let Some(end) = self.end(now) {
                break end;
            }
            if now >= self.next_sweep {
                core.counters.tally.borrow_mut().lag.record(now - self.next_sweep);
                self.next_sweep = now + self.sweep;
            }
            let earliest = core.expire(now);
            if now - self.reported >= nanos(TICK) {
                let counted = self.hand_over(now);
                self.send(Report { counted, ..self.report_until(now, self.measured.is_some()) });
                self.reported = now;
            }
            let boundary = self.measured.as_ref().map_or(self.warm, |measured| measured.end);
            self.sleep_until(self.next_sweep.min(earliest).min(boundary)).await;
        };
        let now = monotonic_ns();
        let cpu = thread_cpu_ns();
        let measured = self.measured.take().unwrap_or_else(|| {
            core.reset_tally();
            core.measure(now, now, Some(0));
            Measured { from: now, end: now, cpu, server: Vec::new() }
        });
        let both_ends = |(pid, before): (&u32, &Option<u64>)| Some((*pid, (*before)?, cpu_ns_of(*pid)?));
        let server = self.shared.server.iter().zip(&measured.server).filter_map(both_ends).collect();
        if core.script.as_ref().is_some_and(Scripting::has_failed) {
            self.shared.stop();
        }
        let (servers, held) = (self.share.servers(end == End::GaveUp), core.activity.held.get());
        self.send(Report { server, last: true, ..self.report_until(now, measured.from < now) });
        core.close(now);
        if let Some(journeys) = &self.share.journeys {
            journeys.close(now);
        }
        if end == End::Done && !core.activity.is_halted() {
            self.await_responses(now - measured.from).await;
            self.report_late();
        }
        let over = monotonic_ns();
        core.finish(over);
        if let Some(journeys) = &self.share.journeys {
            journeys.finish(over);
        }
        Outcome {
            window: WindowCount::default(),
            elapsed: now - measured.from,
            cpu: cpu - measured.cpu,
            until: now,
            held,
            servers,
            stopped_early: end != End::Done,
            gave_up: end == End::GaveUp,
            first_request: None,
        }
    }

    fn begin_measuring(&mut self, now: u64) {
        let (core, plan) = (self.core, &self.shared.plan);
        // Without a warm-up, connections opened so far belong to the run, and so does its first moment, in which the
        // first request is due.
        let from = if plan.warmup.is_zero() {
            self.start
        } else {
            self.report(now, false);
            core.reset_tally();
            now
        };
        let end = plan.duration.map_or(u64::MAX, |duration| from + nanos(duration));
        core.measure(from, end, self.share.requests);
        if let Some(journeys) = &self.share.journeys {
            journeys.measure(from);
        }
        if let Some(script) = &core.script {
            script.begin(plan.duration.map(|_| end));
        }
        let server = self.shared.server.iter().map(|pid| cpu_ns_of(*pid)).collect();
        self.handed = from;
        self.measured = Some(Measured { from, end, cpu: thread_cpu_ns(), server });
        self.reported = from;
    }

    /// Why the measured part ends at `now`, if it does.
    fn end(&mut self, now: u64) -> Option<End> {
        let (core, plan) = (self.core, &self.shared.plan);
        let end = self.measured.as_ref().map_or(u64::MAX, |measured| measured.end);
        // Held slots end with the run only: slots that ended earlier are load, out of requests.
        let all_ended = self.measured.is_some() && core.activity.ended_slots() >= self.share.slots.len();
        if now >= end || all_ended || core.activity.is_halted() {
            return Some(End::Done);
        }
        if self.shared.is_stopped() {
            return Some(End::Stopped);
        }
        let gave_up = plan.duration.is_none()
            && self.measured.is_some()
            && self.silence.is_too_long(
                now,
                core.last_contact(),
                core.is_waiting(now),
                nanos(patience_with_servers(plan.timeout)),
            );
        gave_up.then_some(End::GaveUp)
    }

    /// Waits for responses once the measured part of `length` nanoseconds is over, as long as [`patience`](patience())
    /// says.
    async fn await_responses(&mut self, length: u64) {
        let core = self.core;
        if core.activity.under_way() == 0 {
            return;
        }
        let now = monotonic_ns();
        let longest = core.counters.tally.borrow().clocks.response.max().max(self.longest);
        let longest = Some(longest).filter(|longest| *longest > 0);
        let until = now + patience(length, longest, nanos(self.shared.plan.timeout));
        if let Some(script) = &core.script {
            script.begin(Some(until));
        }
        while core.activity.under_way() > 0 && !self.shared.is_stopped() && !core.activity.is_halted() {
            let now = monotonic_ns();
            if now >= until {
                return;
            }
            self.sleep_until(core.expire(now).min(now + nanos(TICK)).min(until)).await;
        }
    }

    /// Sleeps until `wake`, or until a slot has news.
    async fn sleep_until(&mut self, wake: u64) {
        tokio::select! {
            _ = self.timer.sleep_until(wake) => {}
            () = self.core.activity.changed.notified() => {}
        }
    }

    fn report(&self, until: u64, measured: bool) {
        self.send(self.report_until(until, measured));
    }

    /// Reports responses that came after the end, for observers of each request and for full histograms.
    fn report_late(&self) {
        let now = monotonic_ns();
        let report = self.report_until(now, true);
        if !report.interval.each.is_empty() || report.interval.full.is_some() {
            self.send(Report { length: 0, late: true, ..report });
        }
    }

    /// In a part of a run, takes the counts of the last second, with the worker's state.
    fn hand_over(&mut self, now: u64) -> Option<Box<(Outcome, Tally)>> {
        let measured = self.measured.as_ref()?;
        if self.shared.plan.part.is_none() || now - self.handed < HAND_OVER {
            return None;
        }
        self.handed = now;
        if let Some(journeys) = &self.share.journeys {
            journeys.hand_over();
        }
        let mut tally = self.core.counters.tally.borrow_mut();
        let fresh = Tally { window: tally.window, ..Tally::default() };
        let counted = std::mem::replace(&mut *tally, fresh);
        self.longest = self.longest.max(counted.clocks.response.max());
        let outcome = Outcome {
            window: counted.window,
            elapsed: now - measured.from,
            cpu: thread_cpu_ns() - measured.cpu,
            until: now,
            held: self.core.activity.held.get(),
            servers: self.share.servers(false),
            stopped_early: true,
            gave_up: false,
            first_request: None,
        };
        Some(Box::new((outcome, counted)))
    }

    /// Counts since the last report.
    fn report_until(&self, until: u64, measured: bool) -> Report {
        let core = self.core;
        Report {
            until,
            length: until - self.reported,
            worker: self.share.index,
            interval: core.counters.interval.replace(Interval::new(core.rules.interval_histograms)),
            failures: core.counters.tally.borrow().failures,
            alive: core.alive(),
            measured,
            last: false,
            late: false,
            counted: None,
            server: Vec::new(),
        }
    }

    fn send(&self, report: Report) {
        // Nobody listens any more only when the run is being given up.
        let _ = self.reports.send(report);
    }
}

/// Brings up worker `index`'s part of the script, with its request if it always sends the same one.
fn script_of(shared: &Shared, index: usize) -> Result<Option<(Scripting, Option<Request>)>, ScriptError> {
    let plan = &shared.plan;
    let Some(script) = &plan.script else { return Ok(None) };
    let part = script.enter(index, &shared.peers[0])?;
    let features = part.features();
    let script = Scripting::new(part, features);
    let refuse = |function, what: &str| Err(script.error(function, what.to_owned()));
    if script.features.delays && plan.load != Load::Closed {
        return refuse(
            "delay",
            "delay() and an open loop (--rate, --stages) both say when a request is due: leave one out",
        );
    }
    if script.makes_requests() && plan.pipeline > 1 {
        return refuse(
            "request",
            "request() itself says how many requests go out at once, by returning them one after the other: leave out \
             --pipeline",
        );
    }
    let Some(bytes) = script.features.request.clone() else { return Ok(Some((script, None))) };
    let mut request = Request::made(bytes, plan.requests_per_connection).map_err(|error| script.unusable(error))?;
    if plan.protocol == Protocol::Http2 {
        let encoded = request.encode_http2(plan.origins[0].scheme, &Arc::default());
        encoded.map_err(|error| script.error("request", error.to_string()))?;
    }
    script.note_first(&request.keep);
    Ok(Some((script, Some(request))))
}

/// How long a run of a fixed number of requests waits for contact to a server.
pub(crate) fn patience_with_servers(timeout: Duration) -> Duration {
    timeout.saturating_mul(2).max(MIN_PATIENCE)
}

/// This worker's part of `n` requests, in proportion to its connections; the parts add up to `n`.
fn share_of(n: u64, connections: &[usize], index: usize) -> u64 {
    let total: u128 = connections.iter().map(|&c| c as u128).sum();
    let upto = |i: usize| u128::from(n) * connections[..i].iter().map(|&c| c as u128).sum::<u128>() / total;
    (upto(index + 1) - upto(index)) as u64
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
