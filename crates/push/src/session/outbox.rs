//! The queue of one session: it is bounded, counts lost messages, and reports them to the client.
//!
//! Sans-IO: a function that the caller passes writes the bytes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::message::{Framing, Message};
use crate::plan::SlowPolicy;
use crate::session::tally::{Delivery, Outcome};

/// The most messages in one write.
const BATCH: usize = 64;

/// An empty queue with more capacity than this is freed.
const KEPT_ROOM: usize = 16;

/// The messages that wait for a session, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Rc<Delivery>>,
    /// The framed bytes of `queue`.
    bytes: usize,
    /// How many bytes of the first message are written. For a polling session: how many messages are handed out and not
    /// acknowledged. Neither can be dropped.
    begun: usize,
    /// How many messages at the end of the queue no write was tried for.
    untried: u32,
    /// Messages dropped since the last gap was reported.
    lost: u64,
    /// How many messages were dropped in all, modulo 2^16.
    losses: u16,
    /// Whether a message came under a rule that may drop older ones.
    may_drop: bool,
    /// Whether a message came that may expire.
    may_expire: bool,
}

/// The limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Queued,
    /// The queue is full, and unchanged.
    Full,
    /// The queue is full and unchanged, and the session must end.
    TooSlow,
}

/// The result of a flush.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing waits.
    Empty,
    /// The socket is full.
    Blocked,
}

impl Outbox {
    /// Queues a message, and makes room for it as `slow` says. Messages of the hub's own always fit.
    pub(crate) fn push(
        &mut self,
        delivery: &Rc<Delivery>,
        framing: Framing,
        slow: SlowPolicy,
        bounds: Bounds,
    ) -> Pushed {
        let message = &delivery.message;
        let length = message.frame(framing).len();
        if message.is_data() {
            if slow == SlowPolicy::KeepLatest
                && let Some(key) = message.key()
            {
                self.drop_where(framing, |waiting| waiting.key() == Some(key));
            }
            if !self.has_room(length, bounds) {
                match slow {
                    SlowPolicy::Refuse => return Pushed::Full,
                    SlowPolicy::Disconnect => return Pushed::TooSlow,
                    // If nothing can be dropped, the newest message exceeds the limit: the rule keeps the newest. The
                    // next message replaces it, so only one ever exceeds the limit.
                    SlowPolicy::DropOldest | SlowPolicy::KeepLatest => {
                        while !self.has_room(length, bounds) && self.drop_oldest(framing) {}
                    }
                }
            }
        }
        self.may_expire |= message.ttl().is_some();
        self.may_drop |= message.is_data() && matches!(slow, SlowPolicy::DropOldest | SlowPolicy::KeepLatest);
        self.bytes += length;
        self.untried += 1;
        delivery.queued();
        self.queue.push_back(Rc::clone(delivery));
        Pushed::Queued
    }

    /// Writes the queue with `write`, which gets slices and returns how many bytes it took, or `WouldBlock`.
    pub(crate) fn flush(
        &mut self,
        framing: Framing,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<Flushed> {
        self.tried();
        loop {
            self.insert_gap(framing);
            if self.queue.is_empty() {
                self.free_capacity();
                return Ok(Flushed::Empty);
            }
            match self.write_batch(framing, &mut write) {
                // Again even after a partial write: only `WouldBlock` registers for the news of room.
                Ok(taken) => self.advance(framing, taken),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flushed::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Calls `write` once, with as many messages as fit. The queue is not empty.
    fn write_batch(
        &self,
        framing: Framing,
        write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut waiting = self.queue.iter().map(|delivery| delivery.message.frame(framing));
        let Some(first) = waiting.next() else { return Ok(0) };
        let first = IoSlice::new(&first[self.begun..]);
        // Nearly always. A whole batch has a kilobyte to clear.
        if waiting.len() == 0 {
            return write(&[first]);
        }
        let mut slices = [IoSlice::new(&[]); BATCH];
        slices[0] = first;
        let mut count = 1;
        for (slice, bytes) in slices[1..].iter_mut().zip(waiting) {
            *slice = IoSlice::new(bytes);
            count += 1;
        }
        write(&slices[..count])
    }

    /// Hands out the messages of a polling session. Unless `again`, it acknowledges the last batch and hands out the
    /// next.
    pub(crate) fn hand_out(&mut self, again: bool) -> impl Iterator<Item = &Message> {
        self.tried();
        if !again {
            for _ in 0..self.begun {
                let Some(first) = self.queue.front() else { break };
                self.settle_first(first.message.frame(Framing::Poll).len());
            }
            self.begun = 0;
            self.insert_gap(Framing::Poll);
            self.begun = self.queue.len();
            if self.begun == 0 {
                self.free_capacity();
            }
        }
        self.queue.iter().take(self.begun).map(|delivery| &*delivery.message)
    }

    /// Drops the oldest messages until at most `most` bytes wait. The newest stays, and all that cannot be dropped.
    ///
    /// Returns false if no rule of this session allows that.
    pub(crate) fn shed(&mut self, framing: Framing, most: usize) -> bool {
        if self.may_drop {
            let fixed = self.fixed(framing);
            let mut left = self.queue.iter().skip(fixed).filter(|waiting| waiting.message.is_data()).count();
            let mut excess = self.bytes.saturating_sub(most);
            self.drop_where(framing, |message| {
                left = left.saturating_sub(1);
                let goes = excess > 0 && left > 0;
                excess = excess.saturating_sub(if goes { message.frame(framing).len() } else { 0 });
                goes
            });
        }
        self.may_drop
    }

    /// Drops the messages that have waited for too long at `now`.
    pub(crate) fn expire(&mut self, framing: Framing, now: impl FnOnce() -> Instant) {
        if self.may_expire {
            let now = now();
            self.drop_where(framing, |message| message.is_expired(now));
        }
    }

    /// Returns whether the last message is a gap of unknown size.
    pub(crate) fn ends_with_gap(&self) -> bool {
        self.queue.back().is_some_and(|last| last.message.is_unknown_gap())
    }

    /// Counts the messages that were ever dropped, modulo 2^16: while it does not change, none is dropped.
    pub(crate) fn losses(&self) -> u16 {
        self.losses
    }

    /// Returns whether messages were dropped that no gap has reported yet.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Empties the queue of a session that ends. Its messages count as closed.
    pub(crate) fn abandon(&mut self) {
        self.tried();
        for delivery in std::mem::take(self).queue {
            delivery.settle(Outcome::Closed);
        }
    }

    /// Returns whether nothing waits, not even a gap.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.lost == 0
    }

    /// Returns how many messages wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns how many framed bytes wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts the first try of a write for all messages.
    pub(crate) fn tried(&mut self) {
        let untried = std::mem::take(&mut self.untried) as usize;
        for delivery in self.queue.iter().rev().take(untried) {
            delivery.tried();
        }
    }

    /// Returns whether a message fits. Any message fits into an empty queue, as it may be written at once.
    fn has_room(&self, length: usize, bounds: Bounds) -> bool {
        self.queue.is_empty() || (self.queue.len() < bounds.messages && self.bytes + length <= bounds.bytes)
    }

    fn advance(&mut self, framing: Framing, taken: usize) {
        let mut written = self.begun + taken;
        while let Some(first) = self.queue.front() {
            let length = first.message.frame(framing).len();
            if written < length {
                break;
            }
            written -= length;
            self.begun = 0;
            self.settle_first(length);
        }
        self.begun = written;
    }

    /// Inserts a gap for dropped messages in their place: behind what cannot be dropped.
    fn insert_gap(&mut self, framing: Framing) {
        if self.lost > 0 {
            let gap = Rc::new(Delivery::new(Arc::new(Message::gap(Some(std::mem::take(&mut self.lost))))));
            self.bytes += gap.message.frame(framing).len();
            self.queue.insert(self.fixed(framing), gap);
        }
    }

    /// Returns how many messages at the front cannot be dropped.
    fn fixed(&self, framing: Framing) -> usize {
        if framing == Framing::Poll { self.begun } else { usize::from(self.begun > 0) }
    }

    fn drop_oldest(&mut self, framing: Framing) -> bool {
        let mut first = true;
        self.drop_where(framing, |_| std::mem::take(&mut first)) > 0
    }

    /// Drops messages that `goes` selects and that can be dropped, and counts them.
    fn drop_where(&mut self, framing: Framing, mut goes: impl FnMut(&Message) -> bool) -> usize {
        let fixed = self.fixed(framing);
        let (mut at, mut dropped) = (0, 0);
        let tried = self.queue.len() - self.untried as usize;
        let (bytes, untried) = (&mut self.bytes, &mut self.untried);
        self.queue.retain(|delivery| {
            let index = at;
            at += 1;
            if index < fixed || !delivery.message.is_data() || !goes(&delivery.message) {
                return true;
            }
            *bytes -= delivery.message.frame(framing).len();
            if index >= tried {
                *untried -= 1;
                delivery.tried();
            }
            delivery.settle(Outcome::Dropped);
            dropped += 1;
            false
        });
        self.lost += dropped as u64;
        self.losses = self.losses.wrapping_add(dropped as u16);
        dropped
    }

    /// Counts the first message, of `length` framed bytes, as written.
    fn settle_first(&mut self, length: usize) {
        if let Some(first) = self.queue.pop_front() {
            self.bytes -= length;
            first.settle(Outcome::Written);
        }
    }

    fn free_capacity(&mut self) {
        (self.may_drop, self.may_expire) = (false, false);
        if self.queue.capacity() > KEPT_ROOM {
            self.queue = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use oroshi_websocket::Kind;
    use proptest::prelude::*;

    use super::*;
    use crate::session::tally::Tally;

    const LINES: Framing = Framing::Lines { chunked: false };
    const WIDE: Bounds = Bounds { bytes: 1000, messages: 1000 };

    fn delivery(text: &str, key: Option<&str>) -> Rc<Delivery> {
        let message = Message::data(Kind::Text, Bytes::copy_from_slice(text.as_bytes())).with_key(key.map(Into::into));
        let delivery = Rc::new(Delivery::new(Arc::new(message)));
        delivery.matched();
        delivery
    }

    #[test]
    fn what_has_expired_goes_and_the_gap_is_told() {
        let mut outbox = Outbox::default();
        let short = |text: &str| {
            let message = Message::data(Kind::Text, Bytes::copy_from_slice(text.as_bytes()));
            let delivery = Rc::new(Delivery::new(Arc::new(message.with_ttl(Some(Duration::from_secs(60))))));
            delivery.matched();
            delivery
        };
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(120));
        let all = [short("begun"), delivery("kept", None), short("late"), short("late")];
        for one in &all {
            assert_eq!(outbox.push(one, LINES, SlowPolicy::Disconnect, WIDE), Pushed::Queued);
        }
        assert_eq!(takes(&mut outbox, 2), Flushed::Blocked);
        outbox.expire(LINES, || now);
        assert_eq!(outbox.len(), 4);
        outbox.expire(LINES, || later);
        assert_eq!(outbox.len(), 2, "one is partly written");
        assert_eq!(drained(&mut outbox), "gun\n{\"gap\":2}\nkept\n");
        let tallies: Vec<Tally> = all.iter().map(|one| one.tally()).collect();
        assert_eq!(
            tallies.iter().map(|tally| (tally.written, tally.dropped)).collect::<Vec<_>>(),
            [(1, 0), (1, 0), (0, 1), (0, 1)]
        );
        outbox.expire(LINES, || panic!("nothing waits that may expire"));
    }

    /// Returns all bytes, from a socket that takes everything.
    fn drained(outbox: &mut Outbox) -> String {
        let mut out = Vec::new();
        let flushed = outbox.flush(LINES, |slices| {
            slices.iter().for_each(|slice| out.extend_from_slice(slice));
            Ok(slices.iter().map(|slice| slice.len()).sum())
        });
        assert_eq!(flushed.unwrap(), Flushed::Empty);
        assert_eq!((outbox.bytes(), outbox.len()), (0, 0));
        String::from_utf8(out).unwrap()
    }

    /// Flushes to a socket that takes `room` bytes.
    fn takes(outbox: &mut Outbox, mut room: usize) -> Flushed {
        outbox
            .flush(LINES, |slices| {
                if room == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let taken = slices.iter().map(|slice| slice.len()).sum::<usize>().min(room);
                room -= taken;
                Ok(taken)
            })
            .unwrap()
    }

    #[test]
    fn what_waits_goes_out_in_one_write_and_in_order() {
        let mut outbox = Outbox::default();
        let all: Vec<_> = ["a", "b", "c"].iter().map(|text| delivery(text, None)).collect();
        for one in &all {
            assert_eq!(outbox.push(one, LINES, SlowPolicy::Disconnect, WIDE), Pushed::Queued);
        }
        let mut writes = 0;
        outbox
            .flush(LINES, |slices| {
                writes += 1;
                Ok(slices.iter().map(|slice| slice.len()).sum())
            })
            .unwrap();
        assert_eq!(writes, 1);
        assert!(all.iter().all(|one| one.tally() == Tally { matched: 1, written: 1, dropped: 0, closed: 0 }));
    }

    #[test]
    fn a_full_queue_refuses_or_ends_the_session() {
        let bounds = Bounds { bytes: 4, messages: 10 };
        let mut outbox = Outbox::default();
        outbox.push(&delivery("abc", None), LINES, SlowPolicy::Refuse, bounds);
        let late = delivery("d", None);
        assert_eq!(outbox.push(&late, LINES, SlowPolicy::Refuse, bounds), Pushed::Full);
        assert_eq!(outbox.push(&late, LINES, SlowPolicy::Disconnect, bounds), Pushed::TooSlow);
        assert_eq!(late.tally().queued(), 1, "neither counts it: that is the caller's");
        assert_eq!(drained(&mut outbox), "abc\n");
    }

    #[test]
    fn the_oldest_make_room_and_the_gap_is_told_in_their_place() {
        let bounds = Bounds { bytes: 8, messages: 10 };
        let mut outbox = Outbox::default();
        let all: Vec<_> = ["aa", "bb", "cc", "dddd"].iter().map(|text| delivery(text, None)).collect();
        outbox.push(&all[0], LINES, SlowPolicy::DropOldest, bounds);
        // One byte is written, so it cannot be dropped.
        assert_eq!(takes(&mut outbox, 1), Flushed::Blocked);
        for one in &all[1..] {
            outbox.push(one, LINES, SlowPolicy::DropOldest, bounds);
        }
        assert_eq!(drained(&mut outbox), "a\n{\"gap\":2}\ndddd\n");
        let dropped: Vec<u32> = all.iter().map(|one| one.tally().dropped).collect();
        assert_eq!(dropped, [0, 1, 1, 0]);
    }

    #[test]
    fn a_message_of_any_length_fits_where_nothing_waits() {
        let bounds = Bounds { bytes: 8, messages: 9 };
        let mut outbox = Outbox::default();
        let large = "longer than this queue";
        assert_eq!(outbox.push(&delivery(large, None), LINES, SlowPolicy::Disconnect, bounds), Pushed::Queued);
        assert_eq!(outbox.push(&delivery("", None), LINES, SlowPolicy::Disconnect, bounds), Pushed::TooSlow);
        assert_eq!(drained(&mut outbox), format!("{large}\n"));
    }

    #[test]
    fn the_newest_fits_behind_one_that_is_halfway_out_and_fills_the_queue() {
        for slow in [SlowPolicy::DropOldest, SlowPolicy::KeepLatest] {
            let bounds = Bounds { bytes: 8, messages: 9 };
            let mut outbox = Outbox::default();
            let all = ["longer 1", "longer 2", "longer 3", "longer 4"].map(|text| delivery(text, Some("key")));
            outbox.push(&all[0], LINES, slow, bounds);
            assert_eq!(takes(&mut outbox, 1), Flushed::Blocked);
            // Control messages cannot be dropped either.
            let own = Rc::new(Delivery::new(Arc::new(Message::comment(false))));
            outbox.push(&own, LINES, slow, bounds);
            for one in &all[1..] {
                assert_eq!(outbox.push(one, LINES, slow, bounds), Pushed::Queued);
                assert_eq!(outbox.len(), 3, "what is on its way, the comment, and the newest");
            }
            assert_eq!(drained(&mut outbox), "onger 1\n{\"gap\":2}\n:\n\nlonger 4\n");
            let ends: Vec<_> = all.iter().map(|one| (one.tally().written, one.tally().dropped)).collect();
            assert_eq!(ends, [(1, 0), (0, 1), (0, 1), (1, 0)]);
        }
    }

    #[test]
    fn the_newest_fits_behind_a_batch_that_is_not_acknowledged_and_fills_the_queue() {
        for slow in [SlowPolicy::DropOldest, SlowPolicy::KeepLatest] {
            let bounds = Bounds { bytes: 1000, messages: 2 };
            let mut outbox = Outbox::default();
            let all = ["1", "2", "3", "4", "5"].map(|text| delivery(text, None));
            all[..2].iter().for_each(|one| assert_eq!(outbox.push(one, Framing::Poll, slow, bounds), Pushed::Queued));
            assert_eq!(outbox.hand_out(false).count(), 2);
            all[2..].iter().for_each(|one| assert_eq!(outbox.push(one, Framing::Poll, slow, bounds), Pushed::Queued));
            let next: Vec<_> = outbox.hand_out(false).map(|message| message.frame(Framing::Poll).to_vec()).collect();
            assert_eq!(next, [&b"{\"gap\":2}"[..], b"{\"text\":\"5\"}"]);
            let ends: Vec<_> = all.iter().map(|one| (one.tally().written, one.tally().dropped)).collect();
            assert_eq!(ends, [(1, 0), (1, 0), (0, 1), (0, 1), (0, 0)]);
        }
    }

    #[test]
    fn the_latest_of_a_key_takes_the_place_of_the_one_before() {
        let mut outbox = Outbox::default();
        for (text, key) in [("x1", Some("x")), ("y1", Some("y")), ("free", None), ("x2", Some("x"))] {
            outbox.push(&delivery(text, key), LINES, SlowPolicy::KeepLatest, WIDE);
        }
        assert_eq!(drained(&mut outbox), "{\"gap\":1}\ny1\nfree\nx2\n");
    }

    #[test]
    fn a_poll_that_is_not_acknowledged_is_given_again() {
        let mut outbox = Outbox::default();
        let (first, second) = (delivery("1", None), delivery("2", None));
        outbox.push(&first, Framing::Poll, SlowPolicy::Disconnect, WIDE);
        assert_eq!(outbox.hand_out(false).count(), 1);
        outbox.push(&second, Framing::Poll, SlowPolicy::Disconnect, WIDE);
        assert_eq!(outbox.hand_out(true).count(), 1, "the same as before");
        assert_eq!(first.tally().written, 0);
        assert_eq!(outbox.hand_out(false).count(), 1);
        assert_eq!((first.tally().written, second.tally().written), (1, 0));
        outbox.abandon();
        assert_eq!(second.tally().closed, 1);
    }

    #[test]
    fn where_memory_is_short_the_oldest_go_and_the_newest_stays() {
        for framing in [LINES, Framing::Poll] {
            let mut outbox = Outbox::default();
            let all = ["1", "2", "3", "4", "5"].map(|text| delivery(text, None));
            for one in &all[..4] {
                outbox.push(one, framing, SlowPolicy::DropOldest, WIDE);
            }
            outbox.push(&all[4], framing, SlowPolicy::Refuse, WIDE);
            let each = outbox.bytes() / 5;
            assert!(outbox.shed(framing, 3 * each) && outbox.bytes() == 3 * each && outbox.has_lost());
            assert!(outbox.shed(framing, 0) && outbox.bytes() == each);
            let dropped: Vec<u32> = all.iter().map(|one| one.tally().dropped).collect();
            assert_eq!(dropped, [1, 1, 1, 1, 0]);
        }
        let mut outbox = Outbox::default();
        outbox.push(&delivery("1", None), LINES, SlowPolicy::Disconnect, WIDE);
        assert!(!outbox.shed(LINES, 0) && outbox.len() == 1, "no rule lets it lose anything");
    }

    proptest! {
        /// For any pushes and writes: each message ends once, the output is in order, and the gaps count all that is
        /// missing.
        #[test]
        fn every_message_ends_exactly_once(
            steps in prop::collection::vec(
                (1..30usize, 0..3u8, 0..40usize, prop::option::weighted(0.1, 0..100usize)),
                1..60,
            ),
            bytes in 10..120usize,
            messages in 1..8usize,
        ) {
            let bounds = Bounds { bytes, messages };
            let (mut outbox, mut all, mut out) = (Outbox::default(), Vec::new(), Vec::new());
            for (number, (length, how, room, shed)) in steps.into_iter().enumerate() {
                let one = delivery(&format!("{number} {}", "x".repeat(length)), (how == 1).then_some("key"));
                let slow = [SlowPolicy::DropOldest, SlowPolicy::KeepLatest, SlowPolicy::Refuse][usize::from(how)];
                if outbox.push(&one, LINES, slow, bounds) == Pushed::Full {
                    one.settle(Outcome::Dropped);
                } else {
                    all.push(one);
                }
                if let Some(most) = shed {
                    outbox.shed(LINES, most);
                }
                let mut left = room;
                outbox.flush(LINES, |slices| {
                    let flat: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                    let taken = flat.len().min(left);
                    left -= taken;
                    out.extend_from_slice(&flat[..taken]);
                    if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
                }).unwrap();
            }
            out.extend_from_slice(drained(&mut outbox).as_bytes());
            let text = String::from_utf8(out).unwrap();
            let (mut last, mut seen, mut lost) = (None, 0, 0);
            for line in text.lines() {
                if let Some(gap) = line.strip_prefix("{\"gap\":") {
                    lost += gap.trim_end_matches('}').parse::<u64>().unwrap();
                    continue;
                }
                let number: usize = line.split(' ').next().unwrap().parse().unwrap();
                prop_assert!(last < Some(number), "{number} after {last:?}");
                last = Some(number);
                seen += 1;
            }
            prop_assert_eq!(seen + lost, all.len() as u64);
            for one in &all {
                let tally = one.tally();
                prop_assert_eq!((tally.written + tally.dropped, tally.queued()), (1, 0));
                prop_assert!(futures_ready(one));
            }
        }
    }

    /// Returns whether a publisher that waits would be woken.
    fn futures_ready(delivery: &Delivery) -> bool {
        let mut waiting = std::pin::pin!(delivery.wait(crate::publish::ReceiptWait::Attempted));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        waiting.as_mut().poll(&mut context).is_ready()
    }
}
