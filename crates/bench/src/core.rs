//! State that the connections of one core share: rules, tickets, counters, the state of the run. Single-threaded: plain
//! cells.

mod activity;
mod origin;
mod scripts;
mod slots;
mod stagger;
mod tickets;
mod timeline;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use oroshi_core::Expire;

use crate::failure::Failure;
use crate::first::FirstResponse;
use crate::http2::Http2Shared;
use crate::rules::Rules;
use crate::scripting::Scripting;
use crate::tally::{Interval, Tally};
use activity::Activity;
pub(crate) use origin::OriginState;
pub(crate) use slots::Slot;
use stagger::Stagger;
use tickets::Tickets;
pub(crate) use tickets::{Outgoing, Source, Take, Ticket};
pub(crate) use timeline::{Phase, Timeline};

/// One core's share of the run. All times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) rules: Rules,
    pub(crate) origins: Vec<OriginState>,
    /// The slots of the tasks, one for each connection; behind them, over HTTP/2, those of the streams.
    pub(crate) slots: Vec<Slot>,
    /// Number of tasks.
    pub(crate) tasks: usize,
    /// The state that connections of HTTP/2 share.
    pub(crate) http2: Http2Shared,
    pub(crate) script: Option<Scripting>,
    /// Shared by all cores.
    pub(crate) first: Arc<FirstResponse>,
    pub(crate) counters: Counters,
    pub(crate) timeline: Timeline,
    pub(crate) activity: Activity,
    pub(crate) tickets: Tickets,
    /// While a warm-up lasts: how connections get out of step.
    stagger: Cell<Option<Stagger>>,
    /// When the core last swept the deadlines of its slots.
    expired_at: Cell<u64>,
}

/// Counters of a core: over the measured part, and since its last report.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) tally: RefCell<Tally>,
    pub(crate) interval: RefCell<Interval>,
}

impl Core {
    /// The state of a core with so many connections under load, and idle ones beside them.
    pub(crate) fn new(
        rules: Rules,
        origins: Vec<OriginState>,
        (loads, held): (usize, usize),
        source: Source,
        script: Option<Scripting>,
        first: Arc<FirstResponse>,
    ) -> Rc<Self> {
        let interval = Interval::new(rules.interval_histograms);
        // A script may have ended before the run begins.
        let halted = script.as_ref().is_some_and(Scripting::stopped);
        let tasks = loads + held;
        Rc::new(Self {
            origins,
            slots: (0..tasks + loads * rules.streams).map(|_| Slot::default()).collect(),
            tasks,
            http2: Http2Shared::new(),
            rules,
            script,
            first,
            counters: Counters { tally: RefCell::default(), interval: RefCell::new(interval) },
            timeline: Timeline::default(),
            activity: Activity::new(halted),
            tickets: Tickets::new(source),
            stagger: Cell::new(None),
            expired_at: Cell::new(0),
        })
    }

    /// Starts sending, with a timetable that counts from `start`.
    pub(crate) fn start(&self, start: u64) {
        self.tickets.start_at(start);
        self.timeline.enter(Phase::Running);
        self.wake_all();
    }

    /// Starts the measured part, in which `requests` may be started. A timetable has nothing due from `until` on,
    /// however late the core notices the end.
    pub(crate) fn measure(&self, from: u64, until: u64, requests: Option<u64>) {
        self.timeline.measure_from(from);
        if self.stagger.take().is_some() {
            self.wake_all();
        }
        self.counters.tally.borrow_mut().window.open(from);
        self.tickets.end_at(until);
        let requests = if self.activity.is_halted() { Some(0) } else { requests };
        self.tickets.set_budget(requests.unwrap_or(u64::MAX));
        if requests == Some(0) {
            self.wake_all();
        }
    }

    /// Forgets what the warm-up counted.
    pub(crate) fn reset_tally(&self) {
        self.counters.tally.replace(Tally::default());
    }

    /// Ends the measured part at `now`: the core hands out no more requests, and counts those that are due as unsent.
    pub(crate) fn close(&self, now: u64) {
        self.timeline.enter(Phase::Draining);
        {
            let mut tally = self.counters.tally.borrow_mut();
            tally.window.close(now);
            let mut unsent = |due: u64| {
                let measured = self.timeline.measures(due);
                if measured {
                    tally.unsent += 1;
                    tally.clocks.response.record_censored(now.saturating_sub(due));
                }
                u64::from(measured)
            };
            for ticket in self.slots.iter().filter_map(Slot::take_assigned) {
                self.activity.request_unsent();
                unsent(ticket.due);
            }
            let unstarted = self.tickets.drain_due(now, unsent);
            tally.started += unstarted;
        }
        self.wake_all();
    }

    /// Ends the run at `now`: requests on their way are cut off, and every slot ends.
    pub(crate) fn finish(&self, now: u64) {
        self.timeline.finish(now);
        self.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.slots.iter().for_each(Slot::wake);
        self.tickets.freed.notify_one();
    }

    /// Counts a whole response at `now` to a request that its slot began at `began`. True in the warm-up and the
    /// measured part: later responses only tell how long requests took.
    #[inline]
    pub(crate) fn count_response(&self, tally: &mut Tally, began: u64, now: u64) -> bool {
        tally.window.answered(began, now);
        self.request_ended();
        self.timeline.is_running()
    }

    /// Notes that a request got its response, failed, or was cut off.
    #[inline]
    pub(crate) fn request_ended(&self) {
        if self.activity.request_ended() == 0 && self.timeline.phase() == Phase::Draining {
            self.activity.changed.notify_one();
        }
    }

    /// The slots that take tickets for the connection of task `id`: its own, or those of its streams.
    #[inline]
    pub(crate) fn ticket_slots(&self, id: usize) -> Range<usize> {
        match self.rules.streams {
            0 => id..id + 1,
            streams => self.tasks + id * streams..self.tasks + (id + 1) * streams,
        }
    }

    /// Connections that are up now, the held ones apart.
    pub(crate) fn alive(&self) -> usize {
        self.origins.iter().map(|origin| origin.alive.get()).sum()
    }

    /// When any server was last heard of: a response, a new connection after refused ones, the end of one. 0: never.
    pub(crate) fn last_contact(&self) -> u64 {
        self.origins.iter().map(OriginState::last_response).fold(self.activity.last_contact.get(), u64::max)
    }

    /// Whether a request waits for its response, or for a connection, at `now`.
    pub(crate) fn is_waiting(&self, now: u64) -> bool {
        let connects =
            self.tickets.is_due(now).unwrap_or_else(|| self.origins.iter().any(|origin| origin.refused_last() > 0));
        // Users who think need no connection.
        let unconnected = || !self.rules.connect_per_request && !self.rules.journeys && self.alive() == 0;
        self.activity.under_way() > 0 || connects || unconnected()
    }

    /// Counts a failed attempt to connect to `origin`, with the request that it was made for, if any.
    ///
    /// Without `origin` the connection was only to be held: it uses up no request.
    pub(crate) fn connect_failed(
        &self,
        waiting: Option<(Ticket, Outgoing)>,
        failure: Failure,
        origin: Option<&OriginState>,
    ) {
        let ticket = waiting.as_ref().map(|(ticket, _)| *ticket);
        let url = waiting.as_ref().zip(origin).and_then(|((_, request), origin)| origin.url(request));
        if ticket.is_some() {
            self.request_ended();
        }
        let measured = ticket
            .map_or_else(|| origin.is_some() && self.spend_on_failure(), |ticket| self.timeline.measures(ticket.due));
        let mut tally = self.counters.tally.borrow_mut();
        if measured {
            tally.fail(failure);
        } else if ticket.is_none() {
            tally.failures.add(failure);
        } else {
            return;
        }
        self.counters.interval.borrow_mut().errors += 1;
        let nobody = matches!(failure, Failure::ConnectRefused | Failure::ConnectTimeout | Failure::ConnectBacklog);
        if let Some(origin) = origin.filter(|_| nobody) {
            origin.refused();
        }
        // The request waited in vain, and would have had to wait longer: the percentiles must know.
        let waited = ticket
            .filter(|_| matches!(failure, Failure::ConnectTimeout | Failure::ConnectBacklog))
            .map(|ticket| oroshi_net::monotonic_ns().saturating_sub(ticket.due));
        if let Some(waited) = waited {
            tally.clocks.response.record_censored(waited);
        }
        if let Some(url) = url {
            let url = tally.url(usize::from(url));
            url.fail(failure);
            if let Some(waited) = waited {
                url.response.record_censored(waited);
            }
        }
    }

    /// Wakes the slots whose deadline has passed, and returns the earliest deadline of the others.
    pub(crate) fn expire(&self, now: u64) -> u64 {
        self.expired_at.set(now);
        self.slots.iter().map(|slot| slot.deadline.expire(now)).min().unwrap_or(u64::MAX)
    }

    /// Whether a sweep has seen that the deadline of slot `id` has passed. If so, clears the deadline.
    #[inline]
    pub(crate) fn take_expired(&self, id: usize) -> bool {
        let deadline = &self.slots[id].deadline;
        let is_over = deadline.is_over(self.expired_at.get());
        if is_over {
            deadline.clear();
        }
        is_over
    }

    /// Wakes slot `id` at `end`, by the timer of its deadlines: tokio's timer is coarser.
    pub(crate) fn wake_at(&self, id: usize, end: u64) {
        let deadline = &self.slots[id].deadline;
        if deadline.due() != end {
            deadline.set(end);
            self.activity.changed.notify_one();
        }
    }
}
