//! The counters of one request, from its ticket to its end: the same for all versions of HTTP.

use oroshi_net::monotonic_ns;

use crate::answer::Answer;
use crate::core::{Core, OriginState, Ticket};
use crate::failure::Failure;
use crate::tally::{Tally, Times};

/// A request on its way. Times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) ticket: Ticket,
    /// When the slot began it: connecting, if needed, is part of it.
    pub(crate) began: u64,
    /// When its first byte was handed to the kernel; `None` while it waits for others.
    pub(crate) sent: Option<u64>,
    /// The number of its URL, if requests are counted by URL.
    pub(crate) url: Option<u16>,
}

impl Flight {
    /// Notes that its first byte is handed to the kernel at `now`. False where it was noted before.
    #[inline]
    pub(crate) fn note_sent(&mut self, core: &Core, tally: &mut Tally, now: u64) -> bool {
        if self.sent.is_some() {
            return false;
        }
        self.sent = Some(now);
        if core.rules.open && core.timeline.measures(self.ticket.due) {
            // The server causes the wait for a free connection; the generator causes the rest.
            let could = self.ticket.due.max(self.ticket.free);
            tally.clocks.lateness.record(self.began.saturating_sub(could));
        }
        true
    }

    /// Notes the first byte of its response in `answer`.
    #[inline]
    pub(crate) fn note_first_byte(&self, core: &Core, answer: &mut Answer, now: u64) {
        let wait = now.saturating_sub(self.sent.unwrap_or(now));
        answer.begin(wait);
        if core.timeline.measures(self.ticket.due) {
            core.counters.tally.borrow_mut().clocks.first_byte.record(wait);
        }
    }

    /// Counts its whole response from `origin`. `connect_ns`: the connect time of its connection, if that is not yet
    /// counted.
    #[inline]
    pub(crate) fn complete(&self, core: &Core, origin: &OriginState, answer: &Answer, connect_ns: &mut u64, now: u64) {
        let sent = self.sent.unwrap_or(now);
        let (service, response) = (now.saturating_sub(sent), now.saturating_sub(self.ticket.due));
        let failed = answer.failure(&core.rules);
        let measured = core.timeline.measures(self.ticket.due);
        {
            let mut tally = core.counters.tally.borrow_mut();
            origin.answered(now, service, measured);
            let in_time = core.count_response(&mut tally, self.began, now);
            if measured {
                tally.completed += 1;
                tally.clocks.service.record(service);
                tally.clocks.response.record(response);
                tally.statuses[usize::from(answer.status.min(999))] += 1;
                tally.answers.body_bytes += answer.body_bytes;
                tally.answers.kept += u64::from(answer.reusable);
                tally.answers.other_lengths += u64::from(core.first.differs_in_length(answer.body_bytes));
                if let Some(failure) = failed {
                    tally.failures.add(failure);
                }
                if let Some(url) = self.url {
                    let url = tally.url(usize::from(url));
                    url.count += 1;
                    url.errors += u64::from(failed.is_some());
                    if let Some(failure) = failed {
                        url.failures.add(failure);
                    }
                    *url.statuses.entry(answer.status).or_default() += 1;
                    url.body_bytes += answer.body_bytes;
                    url.service.record(service);
                    url.response.record(response);
                }
            }
            let mut interval = core.counters.interval.borrow_mut();
            if in_time {
                tally.answered += 1;
                interval.requests += 1;
                interval.errors += u64::from(failed.is_some() && measured);
                interval.service.record(service);
            }
            if let Some(full) = &mut interval.full {
                full.0.record(service);
                full.1.record(response);
            }
        }
        if core.rules.connection_times || core.rules.each_request {
            let connect = std::mem::take(connect_ns);
            if measured {
                note_connection_times(core, connect, sent, service, answer.wait);
            }
        }
    }

    /// Counts its failure. `first_byte_came`: a part of the response had come.
    #[cold]
    pub(crate) fn fail(&self, core: &Core, origin: &OriginState, failure: Failure, first_byte_came: bool) {
        let now = monotonic_ns();
        let overdue = failure.is_timeout();
        if overdue {
            origin.not_answered(self.began);
        }
        core.request_ended();
        if !core.timeline.measures(self.ticket.due) {
            return;
        }
        core.counters.interval.borrow_mut().errors += 1;
        let mut tally = core.counters.tally.borrow_mut();
        tally.fail(failure);
        if let Some(url) = self.url {
            let url = tally.url(usize::from(url));
            url.fail(failure);
            if overdue {
                url.response.record_censored(now.saturating_sub(self.ticket.due));
                if let Some(sent) = self.sent {
                    url.service.record_censored(now.saturating_sub(sent));
                }
            }
        }
        // The request would have taken longer than its timeout: the percentiles must know.
        if overdue {
            tally.clocks.response.record_censored(now.saturating_sub(self.ticket.due));
            if let Some(sent) = self.sent {
                tally.clocks.service.record_censored(now.saturating_sub(sent));
                if !first_byte_came {
                    tally.clocks.first_byte.record_censored(now.saturating_sub(sent));
                }
            }
        }
    }

    /// Counts it as cut off by the end of the run.
    pub(crate) fn cut_off(&self, core: &Core, origin: &OriginState, first_byte_came: bool) {
        cut_off(core, origin, self);
        if let Some(sent) = self.sent.filter(|_| !first_byte_came)
            && core.timeline.measures(self.ticket.due)
        {
            let waited = core.timeline.over_since().saturating_sub(sent);
            core.counters.tally.borrow_mut().clocks.first_byte.record_censored(waited);
        }
    }
}

/// Counts a failure that is no request's: bytes came although none was asked for.
#[cold]
pub(crate) fn fail_without_request(core: &Core, failure: Failure) {
    core.counters.tally.borrow_mut().failures.add(failure);
    core.counters.interval.borrow_mut().errors += 1;
}

/// Records connect time and total time of a request that was sent at `sent`.
#[cold]
fn note_connection_times(core: &Core, connect: u64, sent: u64, service: u64, wait: u64) {
    let total = connect + service;
    if core.rules.connection_times {
        let mut tally = core.counters.tally.borrow_mut();
        let times = tally.connection_times.get_or_insert_default();
        times.connect.record(connect);
        times.total.record(total);
    }
    if core.rules.each_request {
        let began = sent.saturating_sub(connect);
        core.counters.interval.borrow_mut().each.push(Times { began, connect, wait, total });
    }
}

/// Counts a request to `origin` that the end of the run cut off.
pub(crate) fn cut_off(core: &Core, origin: &OriginState, flight: &Flight) {
    let Flight { ticket, began, sent, url } = *flight;
    let now = core.timeline.over_since();
    core.request_ended();
    origin.not_answered(began);
    core.counters.tally.borrow_mut().window.unanswered(began, now);
    if !core.timeline.measures(ticket.due) {
        return;
    }
    let mut tally = core.counters.tally.borrow_mut();
    tally.cut_off += 1;
    tally.failures.add(Failure::CutOffAtEnd);
    tally.clocks.response.record_censored(now.saturating_sub(ticket.due));
    if let Some(sent) = sent {
        tally.clocks.service.record_censored(now.saturating_sub(sent));
    }
    if let Some(url) = url {
        let url = tally.url(usize::from(url));
        url.cut_off += 1;
        url.response.record_censored(now.saturating_sub(ticket.due));
        if let Some(sent) = sent {
            url.service.record_censored(now.saturating_sub(sent));
        }
    }
}
