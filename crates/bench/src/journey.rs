//! The interface between the load and journeys: users who do more than send requests in turn.
//!
//! Each core has its own users, created and run on the core's thread. They send requests by a client of their own, and
//! report each one to the core's [`Meter`]; the load keeps the time, and counts, judges and reports the requests as it
//! does its own.

use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

use crate::core::{Core, Ticket};
use crate::failure::Failure;
use crate::flight::Flight;
use crate::part::Implausible;
use crate::record::Record;
use crate::record::scenario::ScenarioRecord;
use crate::script::ScriptError;
use crate::tally::Times;

/// The journeys of a run, which all cores share.
pub trait Journeys: fmt::Debug + Send + Sync {
    /// Returns the name in messages and records: the script's file, `shop.lua`.
    fn name(&self) -> String;

    /// Does what comes before the load, on the calling thread. `cores`: the number of parts that will be created.
    ///
    /// # Errors
    /// When the run is not to begin.
    fn initialize(&self, cores: usize) -> Result<(), ScriptError>;

    /// Creates the users of core `core`, on that core's thread.
    ///
    /// # Errors
    /// When the script is wrong, or [`interrupt`](Self::interrupt) was called.
    fn enter(&self, core: usize, meter: Meter) -> Result<Rc<dyn CoreJourneys>, ScriptError>;

    /// Ends current and later calls into the script, on any thread, with an error: the run is given up.
    fn interrupt(&self);

    /// Returns the error of a call that cannot be ended. Its thread is lost.
    fn stuck(&self) -> Option<ScriptError>;

    /// Does what comes before a load that other processes carry out, in place of [`initialize`](Self::initialize).
    /// Returns what each of them is to know.
    ///
    /// # Errors
    /// When the run is not to begin.
    fn lead(&self) -> Result<Vec<u8>, ScriptError>;

    /// Returns the files that the script has read, and other processes need: the path that it has, and where each is.
    fn files(&self) -> Vec<(String, PathBuf)>;

    /// In a part of a run, takes what the cores have handed over since the last call, for [`absorb`](Self::absorb).
    fn take_counts(&self) -> Vec<u8>;

    /// Adds what a part of the run counted. Returns whether the script wants the whole run to end.
    ///
    /// # Errors
    /// When these cannot be counts of this script; nothing is added then.
    fn absorb(&self, counts: &[u8]) -> Result<bool, Implausible>;

    /// Does what comes after the load, and returns the record's own part. All cores have left.
    ///
    /// # Errors
    /// When the script fails in a way that leaves no result.
    fn conclude(&self, record: &Record) -> Result<ScenarioRecord, ScriptError>;
}

/// The users of one core. All times are nanoseconds of the monotonic clock.
pub trait CoreJourneys: fmt::Debug {
    /// Starts the users: tasks of the core's thread. The last one to end calls [`Meter::all_ended`].
    ///
    /// `end`: when the measured part will end, if that is known.
    fn begin(&self, start: u64, end: Option<u64>);

    /// The warm-up is over: what was counted so far is forgotten.
    fn measure(&self, from: u64);

    /// The measured part is over: no journey goes on. Requests that are under way may still be answered.
    fn close(&self, now: u64);

    /// The run is over: requests that are under way are cut off, and all users end.
    fn finish(&self, now: u64);

    /// Hands what the core's users have counted so far to the journeys of the run.
    fn hand_over(&self);

    /// Hands the rest of what the core's users have counted to the journeys of the run, and frees the script.
    ///
    /// # Errors
    /// The error of the script that ended the run.
    fn leave(&self) -> Result<(), ScriptError>;
}

/// Where the users of a core report their requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Meter {
    core: Rc<Core>,
}

/// A request with a whole response. Times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchange {
    /// When the user wanted it.
    pub due: u64,
    /// When its first byte went to the kernel.
    pub sent: u64,
    /// When the response's head was there.
    pub head: u64,
    /// When the response's last byte was read.
    pub done: u64,
    /// How long its connection took to connect, and its TLS handshake; `None` on a kept connection.
    pub connect: Option<u64>,
    /// See `connect`.
    pub tls: Option<u64>,
    /// The status.
    pub status: u16,
    /// Length of the body, bytes.
    pub body_bytes: u64,
    /// Why the response counts as an error, if it does: [`Failure::Status`] or [`Failure::Check`].
    pub failure: Option<Failure>,
}

impl Meter {
    pub(crate) fn new(core: &Rc<Core>) -> Self {
        Self { core: Rc::clone(core) }
    }

    /// Whether requests may begin: in the warm-up and the measured part.
    #[inline]
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.core.timeline.is_running()
    }

    /// Whether a request that is due then belongs to the measured part.
    #[inline]
    #[must_use]
    pub fn measures(&self, due: u64) -> bool {
        self.core.timeline.measures(due)
    }

    /// Counts a request that begins, and was due then.
    #[inline]
    pub fn began(&self, due: u64) {
        self.core.begin_request(due);
    }

    /// Counts a request with a whole response.
    pub fn completed(&self, exchange: &Exchange) {
        let core = &self.core;
        let Exchange { due, sent, head, done, .. } = *exchange;
        let (service, response) = (done.saturating_sub(sent), done.saturating_sub(due));
        let measured = core.timeline.measures(due);
        let mut tally = core.counters.tally.borrow_mut();
        core.origins[0].answered(done, service, measured);
        let in_time = core.count_response(&mut tally, due, done);
        if measured {
            tally.completed += 1;
            tally.clocks.service.record(service);
            tally.clocks.response.record(response);
            tally.clocks.first_byte.record(head.saturating_sub(sent));
            tally.statuses[usize::from(exchange.status.min(999))] += 1;
            tally.answers.body_bytes += exchange.body_bytes;
            if let Some(failure) = exchange.failure {
                tally.failures.add(failure);
            }
        }
        if let Some(connect) = exchange.connect {
            tally.opened += 1;
            tally.clocks.connect.record(connect);
            if let Some(tls) = exchange.tls {
                tally.clocks.tls.record(tls);
            }
        }
        let mut interval = core.counters.interval.borrow_mut();
        if in_time {
            tally.answered += 1;
            interval.requests += 1;
            interval.errors += u64::from(exchange.failure.is_some() && measured);
            interval.service.record(service);
        }
        if let Some(full) = &mut interval.full {
            full.0.record(service);
            full.1.record(response);
        }
        if core.rules.each_request && measured {
            let connect = exchange.connect.unwrap_or(0) + exchange.tls.unwrap_or(0);
            let (began, wait) = (sent.saturating_sub(connect), head.saturating_sub(sent));
            interval.each.push(Times { began, connect, wait, total: connect + service });
        }
    }

    /// Counts an error that is not one exchange's: a redirect without an end, a field that cannot be sent.
    pub fn unfit(&self, failure: Failure, due: u64) {
        if self.core.timeline.measures(due) {
            self.core.counters.tally.borrow_mut().failures.add(failure);
            self.core.counters.interval.borrow_mut().errors += 1;
        }
    }

    /// Counts a request that failed at `now`. `own`: it was for the plan's origin. `due`: when the user wanted it, and
    /// when its first byte went to the kernel, if it did.
    pub fn failed(&self, failure: Failure, own: bool, (due, sent): (u64, Option<u64>), now: u64) {
        let core = &self.core;
        core.request_ended();
        let nobody = matches!(failure, Failure::ConnectRefused | Failure::ConnectTimeout | Failure::ConnectBacklog);
        if !own {
            // It says nothing about the server that is measured.
        } else if nobody {
            core.origins[0].refused();
        } else if failure == Failure::Timeout {
            core.origins[0].not_answered(due);
        } else {
            core.activity.last_contact.set(now);
        }
        if !core.timeline.measures(due) {
            return;
        }
        core.counters.interval.borrow_mut().errors += 1;
        let mut tally = core.counters.tally.borrow_mut();
        tally.fail(failure);
        // The request would have taken longer: the percentiles must know.
        if matches!(failure, Failure::Timeout | Failure::ConnectTimeout | Failure::ConnectBacklog) {
            tally.clocks.response.record_censored(now.saturating_sub(due));
            if let Some(sent) = sent {
                tally.clocks.service.record_censored(now.saturating_sub(sent));
            }
        }
    }

    /// Counts a request that the end of the run cut off.
    pub fn cut_off(&self, due: u64, sent: Option<u64>) {
        let ticket = Ticket { due, free: due };
        let flight = Flight { ticket, began: due, sent, url: None };
        crate::flight::cut_off(&self.core, &self.core.origins[0], &flight);
    }

    /// Sets how many connections are open.
    #[inline]
    pub fn connections(&self, open: usize) {
        self.core.origins[0].alive.set(open);
    }

    /// Counts bytes read and written since the last call, heads included, without TLS records.
    #[inline]
    pub fn bytes(&self, read: u64, written: u64) {
        let mut tally = self.core.counters.tally.borrow_mut();
        tally.bytes_read += read;
        tally.bytes_written += written;
        self.core.counters.interval.borrow_mut().bytes += read;
    }

    /// The script wants the run to end.
    pub fn halt(&self) {
        self.core.activity.halt();
    }

    /// All users of the core have ended.
    pub fn all_ended(&self) {
        self.core.activity.slot_ended();
    }

    /// Notes the `Server` field of a response, if it is the run's first.
    #[inline]
    pub fn server(&self, field: impl FnOnce() -> Option<String>) {
        let first = &self.core.first;
        if !first.has_server() {
            let _ = first.server.set(field());
        }
    }
}
