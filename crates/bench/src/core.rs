//! What the connections of one core share: the plan, the clock, the tickets, the tally. Single-threaded, so plain cells.

mod origin;
mod step;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

use oroshi_core::{Deadline, Expire};
use oroshi_http1::Limits;
use tokio::sync::Notify;

use crate::answer::First;
use crate::arrivals::Arrivals;
use crate::batch::{Batch, Made};
use crate::check::Check;
use crate::failure::Failure;
use crate::script::{Heard, ScriptError, Wanted};
use crate::scripting::Scripting;
use crate::tally::{Interval, Tally};
pub(crate) use origin::OriginState;
use step::{Spread, Step};

/// The answer's head may be this large; bodies are never held.
const HEAD_LIMIT: usize = 64 * 1024;

/// Where a core is in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Connections are being made; no request goes out yet.
    Connecting,
    /// Requests go out.
    Running,
    /// The measured part is over: nothing more goes out, and what is on its way is awaited, as its length is needed.
    Draining,
    /// What is still on the wire is cut off.
    Over,
}

/// The right, and the duty, to send one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// When it should be sent.
    pub(crate) due: u64,
    /// Since when the connection that carries it has been free to do so.
    pub(crate) free: u64,
}

/// A request to be sent: one of the plan's, or one that a script made.
#[derive(Clone, Debug)]
pub(crate) enum Outgoing {
    Planned(usize),
    /// Where it stands in its bytes, and those.
    Made(Made, Box<[u8]>),
}

/// The answer to a connection that asks for a ticket.
pub(crate) enum Take {
    Now(Ticket),
    /// The slot is woken when there is one.
    Wait,
    /// There will be none any more.
    Over,
}

/// Who makes the tickets.
#[derive(Debug)]
pub(crate) enum Source {
    /// Each free connection may send at once.
    Closed,
    /// The timetable.
    Open(Arrivals),
}

/// The place of one connection: it outlives the connections that fill it, so none is ever lost.
#[derive(Debug)]
pub(crate) struct Slot {
    /// When what it waits for has taken too long. Its task is also woken for other reasons.
    pub(crate) deadline: Deadline,
    /// Free for an arrival, and since when.
    free: Cell<Option<u64>>,
    /// Whether it stands in the queue of free slots (it may stand there and no longer be free).
    queued: Cell<bool>,
    assigned: Cell<Option<Ticket>>,
    /// How it comes to be out of step with others.
    step: Cell<Step>,
}

impl Slot {
    fn new() -> Self {
        Self {
            deadline: Deadline::default(),
            free: Cell::new(None),
            queued: Cell::new(false),
            assigned: Cell::new(None),
            step: Cell::new(Step::Begins),
        }
    }

    /// Remembers which task to wake.
    #[inline]
    pub(crate) fn enrol(&self, cx: &Context<'_>) {
        self.deadline.enrol(cx);
    }

    pub(crate) fn wake(&self) {
        self.deadline.wake();
    }
}

/// The values of a plan that the hot path reads.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) timeout: u64,
    pub(crate) pipeline: usize,
    pub(crate) per_connection: u64,
    /// A ticket is taken before its connection is made.
    pub(crate) connect_per_request: bool,
    pub(crate) checks: Arc<[Check]>,
    /// One of them is about the status.
    pub(crate) status_checked: bool,
    pub(crate) limits: Limits,
    pub(crate) interval_histograms: bool,
    pub(crate) connection_times: bool,
    pub(crate) each_request: bool,
    pub(crate) open: bool,
}

/// One core's share of the run. All times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) rules: Rules,
    pub(crate) origins: Vec<OriginState>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) script: Option<Scripting>,
    /// Shared by all cores.
    pub(crate) first: Arc<First>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) interval: RefCell<Interval>,
    pub(crate) phase: Cell<Phase>,
    /// When deadlines were last looked at.
    expired_at: Cell<u64>,
    /// When the run ended: what was on its way then is known to have taken that long, however late its slot is told.
    pub(crate) over_since: Cell<u64>,
    /// Requests that were handed out and have come to no end yet.
    pub(crate) under_way: Cell<usize>,
    /// While a warm-up lasts: how slots come to be out of step.
    spread: Cell<Option<Spread>>,
    /// Requests due before this moment belong to the warm-up.
    pub(crate) measure_from: Cell<u64>,
    /// Held connections that are up now.
    pub(crate) held: Cell<usize>,
    /// When a server last showed itself otherwise than by an answer: it broke off, or was there again.
    pub(crate) stirred: Cell<u64>,
    source: RefCell<Source>,
    /// Requests that may still be started in the measured part.
    budget: Cell<u64>,
    free: RefCell<VecDeque<usize>>,
    /// Tells the dispatcher that a slot became free.
    pub(crate) freed: Notify,
    /// Told when a slot has made its first attempt to connect, and when it has ended for good.
    pub(crate) progress: Notify,
    pub(crate) attempted: Cell<usize>,
    pub(crate) ended: Cell<usize>,
    /// The script wants no more, or failed.
    pub(crate) halted: Cell<bool>,
}

impl Core {
    pub(crate) fn new(
        mut rules: Rules,
        origins: Vec<OriginState>,
        slots: usize,
        source: Source,
        script: Option<Scripting>,
        first: Arc<First>,
    ) -> Rc<Self> {
        rules.limits.head_bytes = HEAD_LIMIT;
        let interval = Interval::new(rules.interval_histograms);
        // It may have ended before it began.
        let halted = script.as_ref().is_some_and(Scripting::stopped);
        Rc::new(Self {
            rules,
            origins,
            slots: (0..slots).map(|_| Slot::new()).collect(),
            script,
            first,
            tally: RefCell::default(),
            interval: RefCell::new(interval),
            phase: Cell::new(Phase::Connecting),
            expired_at: Cell::new(0),
            over_since: Cell::new(0),
            under_way: Cell::new(0),
            spread: Cell::new(None),
            measure_from: Cell::new(0),
            held: Cell::new(0),
            stirred: Cell::new(0),
            source: RefCell::new(source),
            budget: Cell::new(u64::MAX),
            free: RefCell::default(),
            freed: Notify::new(),
            progress: Notify::new(),
            attempted: Cell::new(0),
            ended: Cell::new(0),
            halted: Cell::new(halted),
        })
    }

    /// Starts sending, with a timetable that counts from `start`.
    pub(crate) fn start(&self, start: u64) {
        if let Source::Open(arrivals) = &mut *self.source.borrow_mut() {
            arrivals.start_at(start);
        }
        self.phase.set(Phase::Running);
        self.wake_all();
    }

    /// Counts an answer that was whole at `now`, to a request that was set about at `began`. True while the measured part lasts (or
    /// the warm-up): later answers only tell how long requests took.
    #[inline]
    pub(crate) fn count_answer(&self, tally: &mut Tally, began: u64, now: u64) -> bool {
        tally.window.answered(began, now);
        self.came_to_an_end();
        self.phase.get() == Phase::Running
    }

    /// A request that was handed out has been answered, has failed, or was cut off.
    #[inline]
    pub(crate) fn came_to_an_end(&self) {
        let left = self.under_way.get().saturating_sub(1);
        self.under_way.set(left);
        if left == 0 && self.phase.get() == Phase::Draining {
            self.progress.notify_one();
        }
    }

    /// Whether the measured part, or the warm-up, still lasts.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.phase.get() == Phase::Running
    }

    /// Starts the measured part, in which `requests` may be started. Of a timetable, nothing is due from `until` on,
    /// however late the end is noticed.
    pub(crate) fn measure(&self, from: u64, until: u64, requests: Option<u64>) {
        self.measure_from.set(from);
        if self.spread.take().is_some() {
            self.wake_all();
        }
        self.tally.borrow_mut().window.open(from);
        if let Source::Open(arrivals) = &mut *self.source.borrow_mut() {
            arrivals.end_at(until);
        }
        let requests = if self.halted.get() { Some(0) } else { requests };
        self.budget.set(requests.unwrap_or(u64::MAX));
        if requests == Some(0) {
            self.wake_all();
        }
    }

    /// Forgets what the warm-up counted.
    pub(crate) fn forget(&self) {
        self.tally.replace(Tally::default());
    }

    /// Ends the measured part at `now`: no request is handed out any more, and what is due and unsent is counted as such.
    pub(crate) fn close(&self, now: u64) {
        self.phase.set(Phase::Draining);
        {
            let mut tally = self.tally.borrow_mut();
            tally.window.close(now);
            let mut lost = |due: u64| {
                let measured = due >= self.measure_from.get();
                if measured {
                    tally.unsent += 1;
                    tally.clocks.response.record_censored(now.saturating_sub(due));
                }
                u64::from(measured)
            };
            for ticket in self.slots.iter().filter_map(|slot| slot.assigned.take()) {
                self.under_way.set(self.under_way.get().saturating_sub(1));
                lost(ticket.due);
            }
            let mut unstarted = 0;
            if let Source::Open(arrivals) = &mut *self.source.borrow_mut() {
                while unstarted < self.budget.get() && arrivals.next_due() < now {
                    unstarted += lost(arrivals.take());
                }
            }
            tally.started += unstarted;
        }
        self.wake_all();
    }

    /// Ends the run at `now`: what is still on its way is cut off, and every slot ends.
    pub(crate) fn finish(&self, now: u64) {
        self.phase.set(Phase::Over);
        self.over_since.set(now);
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        for slot in &self.slots {
            slot.wake();
        }
        self.freed.notify_one();
    }

    /// The next thing for slot `id` to send. `now` is read only where it is needed.
    #[inline]
    pub(crate) fn take_ticket(&self, id: usize, cx: &Context<'_>, now: impl FnOnce() -> u64) -> Take {
        match self.phase.get() {
            Phase::Running => {}
            Phase::Connecting => {
                // It is free from now on, even if nothing is due yet.
                let slot = &self.slots[id];
                slot.enrol(cx);
                slot.free.set(Some(slot.free.get().unwrap_or_else(now)));
                return Take::Wait;
            }
            Phase::Draining | Phase::Over => return Take::Over,
        }
        match &mut *self.source.borrow_mut() {
            Source::Closed => {
                if self.budget.get() == 0 {
                    return Take::Over;
                }
                let due = now();
                if let Some(spread) = self.spread.get()
                    && self.pauses(spread, id, cx, due)
                {
                    return Take::Wait;
                }
                self.spend();
                self.hand_out();
                Take::Now(Ticket { due, free: due })
            }
            Source::Open(arrivals) => self.take_arrival(arrivals, id, cx, now()),
        }
    }

    fn take_arrival(&self, arrivals: &mut Arrivals, id: usize, cx: &Context<'_>, now: u64) -> Take {
        let slot = &self.slots[id];
        if let Some(ticket) = slot.assigned.take() {
            // It was counted when it was assigned.
            return Take::Now(ticket);
        }
        if self.budget.get() == 0 {
            return Take::Over;
        }
        let free = slot.free.get().unwrap_or(now);
        if arrivals.next_due() <= now {
            slot.free.set(None);
            // Another slot may have been free all the while, and only the dispatcher was not there yet.
            let longest_free = self.first_free(&mut self.free.borrow_mut()).and_then(|id| self.slots[id].free.get());
            let free = longest_free.map_or(free, |longest| longest.min(free));
            let due = arrivals.take();
            self.spend_arrival(due);
            if due < free {
                self.tally.borrow_mut().waited += u64::from(due >= self.measure_from.get());
            }
            self.hand_out();
            return Take::Now(Ticket { due, free });
        }
        slot.enrol(cx);
        slot.free.set(Some(free));
        if !slot.queued.replace(true) {
            self.free.borrow_mut().push_back(id);
            self.freed.notify_one();
        }
        Take::Wait
    }

    /// Gives due arrivals to free slots, and says when the next one is due, or `None` while no slot is free.
    pub(crate) fn dispatch(&self, now: u64) -> Option<u64> {
        let mut source = self.source.borrow_mut();
        let Source::Open(arrivals) = &mut *source else { return None };
        let mut free = self.free.borrow_mut();
        loop {
            let id = self.first_free(&mut free)?;
            if self.budget.get() == 0 {
                return None;
            }
            if arrivals.next_due() > now {
                return Some(arrivals.next_due());
            }
            free.pop_front();
            let slot = &self.slots[id];
            slot.queued.set(false);
            let due = arrivals.take();
            self.spend_arrival(due);
            self.hand_out();
            slot.assigned.set(slot.free.take().map(|free| Ticket { due, free }));
            slot.wake();
        }
    }

    /// The slot that has been free for longest. Those that were taken out of service since they queued up are dropped.
    fn first_free(&self, free: &mut VecDeque<usize>) -> Option<usize> {
        while let Some(&id) = free.front() {
            if self.slots[id].free.get().is_some() {
                return Some(id);
            }
            self.slots[id].queued.set(false);
            free.pop_front();
        }
        None
    }

    /// A slot whose connection went away can carry nothing: arrivals must not be given to it. A ticket that it was given in
    /// the meantime stays its own.
    pub(crate) fn not_free(&self, id: usize) {
        self.slots[id].free.set(None);
    }

    /// Whether all requests have been handed out.
    pub(crate) fn exhausted(&self) -> bool {
        match self.phase.get() {
            Phase::Connecting => false,
            Phase::Running => self.budget.get() == 0,
            Phase::Draining | Phase::Over => true,
        }
    }

    /// In a closed loop with a fixed number of requests, a connection that could not be made uses one up: a run against a
    /// dead server ends.
    fn spend_on_failure(&self) -> bool {
        let spend = !self.rules.open && self.phase.get() == Phase::Running && self.budget.get() > 0;
        if spend {
            self.spend();
        }
        spend
    }

    #[inline]
    fn hand_out(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    #[inline]
    fn spend(&self) {
        self.tally.borrow_mut().started += 1;
        let left = self.budget.get();
        if left != u64::MAX {
            self.budget.set(left - 1);
            if left == 1 {
                self.wake_all();
            }
        }
    }

    /// Arrivals of the warm-up that are taken after it use up nothing of the measured part.
    fn spend_arrival(&self, due: u64) {
        if due >= self.measure_from.get() {
            self.spend();
        }
    }

    /// A slot has made its first attempt to connect, or will make it when there is something to send.
    pub(crate) fn count_attempt(&self) {
        self.attempted.set(self.attempted.get() + 1);
        self.progress.notify_one();
    }

    /// Connections that are up now, the held ones apart.
    pub(crate) fn alive(&self) -> usize {
        self.origins.iter().map(|origin| origin.alive.get()).sum()
    }

    /// When any of the servers last showed itself; 0: none did.
    pub(crate) fn last_sign(&self) -> u64 {
        self.origins.iter().map(OriginState::last_answer).fold(self.stirred.get(), u64::max)
    }

    /// Whether a request, or a connection that one could be sent on, is being waited for at `now`.
    pub(crate) fn is_waiting(&self, now: u64) -> bool {
        let connects = match &*self.source.borrow() {
            Source::Closed => self.origins.iter().any(|origin| origin.refused_last() > 0),
            Source::Open(arrivals) => arrivals.next_due() <= now,
        };
        self.under_way.get() > 0 || connects || (!self.rules.connect_per_request && self.alive() == 0)
    }

    /// Counts an attempt to connect to `origin` that failed, with the request that it was made for, if any. `None` in place of `origin`: the
    /// connection was only to be held, and uses up no request.
    pub(crate) fn connect_failed(&self, ticket: Option<Ticket>, failure: Failure, origin: Option<&OriginState>) {
        if ticket.is_some() {
            self.came_to_an_end();
        }
        let measured = ticket.map_or_else(
            || origin.is_some() && self.spend_on_failure(),
            |ticket| ticket.due >= self.measure_from.get(),
        );
        let mut tally = self.tally.borrow_mut();
        if measured {
            tally.fail(failure);
        } else if ticket.is_none() {
            tally.failures.add(failure);
        } else {
            return;
        }
        self.interval.borrow_mut().errors += 1;
        let nobody = matches!(failure, Failure::ConnectRefused | Failure::ConnectTimeout | Failure::ConnectBacklog);
        if let Some(origin) = origin.filter(|_| nobody) {
            origin.refused();
        }
        // It waited in vain, and would have had to wait longer still: the percentiles must know.
        if let (Some(ticket), Failure::ConnectTimeout | Failure::ConnectBacklog) = (ticket, failure) {
            tally.clocks.response.record_censored(oroshi_net::monotonic_ns().saturating_sub(ticket.due));
        }
    }

    /// Whether requests are made by a script, batch by batch.
    #[inline]
    pub(crate) fn makes_requests(&self) -> bool {
        self.script.as_ref().is_some_and(Scripting::makes_requests)
    }

    /// Whether a script wants pauses.
    #[inline]
    pub(crate) fn delays(&self) -> bool {
        self.script.as_ref().is_some_and(|script| script.terms.delays)
    }

    /// What a script wants to know of answers.
    #[inline]
    pub(crate) fn hears(&self) -> Option<Wanted> {
        self.script.as_ref()?.hears()
    }

    /// Has the script make the next batch of requests. False when that ended the core's part of the run.
    pub(crate) fn make_requests(&self, batch: &mut Batch) -> bool {
        self.heed(|script| script.request(batch, self.rules.per_connection, self.rules.open)).is_some()
    }

    /// The pause before the next batch; `None` when the core's part of the run has ended.
    pub(crate) fn ask_for_pause(&self) -> Option<std::time::Duration> {
        self.heed(Scripting::delay)
    }

    /// Has slot `id` woken at `end`, nanoseconds of the monotonic clock: by the same timer that looks after its deadlines, which is
    /// finer than tokio's.
    pub(crate) fn rest_until(&self, id: usize, end: u64) {
        let deadline = &self.slots[id].deadline;
        if deadline.due() != end {
            deadline.set(end);
            self.progress.notify_one();
        }
    }

    /// Tells the script of an answer. False when that ended the core's part of the run.
    #[cold]
    pub(crate) fn tell_script(&self, answer: &Heard) -> bool {
        self.heed(|script| script.response(answer)).is_some()
    }

    /// Counts what is kept of a body for the script. False when that ended the core's part of the run.
    pub(crate) fn holds_bodies_of(&self, bytes: usize) -> bool {
        let fits = |script: &Scripting| if script.keep(bytes) { Ok(()) } else { Err(script.bodies_too_large()) };
        self.script.is_none() || self.heed(fits).is_some()
    }

    pub(crate) fn holds_no_body_of(&self, bytes: usize) {
        if let Some(script) = &self.script {
            script.keep_no_more(bytes);
        }
    }

    /// Calls the script, and ends the core's part of the run if it fails or says stop.
    fn heed<T>(&self, call: impl FnOnce(&Scripting) -> Result<T, ScriptError>) -> Option<T> {
        let script = self.script.as_ref()?;
        let result = call(script);
        if result.is_err() || script.stopped() {
            self.halted.set(true);
            self.budget.set(0);
            self.progress.notify_one();
        }
        result.map_err(|error| script.fail(error)).ok()
    }

    /// The earliest deadline of all slots; those whose deadline has passed are woken.
    pub(crate) fn expire(&self, now: u64) -> u64 {
        self.expired_at.set(now);
        self.slots.iter().map(|slot| slot.deadline.expire(now)).min().unwrap_or(u64::MAX)
    }

    /// Whether the deadline of slot `id` has passed. If so, it is taken away.
    #[inline]
    pub(crate) fn take_expired(&self, id: usize) -> bool {
        let deadline = &self.slots[id].deadline;
        let is_over = deadline.is_over(self.expired_at.get());
        if is_over {
            deadline.clear();
        }
        is_over
    }
}
