//! What waits for one session: bounded, and what is lost is counted and told.
//!
//! Sans-IO: bytes are handed to a function that writes some of them.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;

use crate::message::{Framing, Message};
use crate::plan::Slow;
use crate::session::tally::{Delivery, Outcome};

/// How many messages go out in one write.
const BATCH: usize = 64;

/// A queue with room for more than this is given back once it is empty.
const KEPT_ROOM: usize = 16;

/// The messages that wait for a session, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<Rc<Delivery>>,
    /// The framed bytes of `queue`.
    bytes: usize,
    /// How many bytes of the first message are written; for a session that polls, how many messages are on their way: neither can be
    /// taken back.
    begun: usize,
    /// How many at the end were not tried yet.
    untried: u32,
    /// Messages dropped since the last gap was told.
    lost: u64,
    /// Whether something came here under a rule that has older messages make room.
    may_drop: bool,
}

/// What may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
}

/// What became of a message that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Queued,
    /// It fits no more: it is not here, and the session is as it was.
    Full,
    /// It fits no more, and the session is to end for it.
    TooSlow,
}

/// How a flush went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing waits.
    Empty,
    /// The socket takes no more for now.
    Blocked,
}

impl Outbox {
    /// Takes a message, and makes room for it as `slow` says. Messages of the hub's own are always taken.
    pub(crate) fn push(&mut self, delivery: &Rc<Delivery>, framing: Framing, slow: Slow, bounds: Bounds) -> Pushed {
        let message = &delivery.message;
        let length = message.frame(framing).len();
        if message.is_data() {
            if slow == Slow::KeepLatest
                && let Some(key) = message.key()
            {
                self.drop_where(framing, |waiting| waiting.key() == Some(key));
            }
            if !self.has_room(length, bounds) {
                match slow {
                    Slow::Refuse => return Pushed::Full,
                    Slow::Disconnect => return Pushed::TooSlow,
                    // Where all that is left cannot be taken back, the newest waits behind it, beyond the bound: it is what such a session
                    // is to have. The next message takes its place, so there is never more than one.
                    Slow::DropOldest | Slow::KeepLatest => {
                        while !self.has_room(length, bounds) && self.drop_oldest(framing) {}
                    }
                }
            }
        }
        self.may_drop |= message.is_data() && matches!(slow, Slow::DropOldest | Slow::KeepLatest);
        self.bytes += length;
        self.untried += 1;
        delivery.queued();
        self.queue.push_back(Rc::clone(delivery));
        Pushed::Queued
    }

    /// Writes what waits, as far as `write` takes it: it is given slices and says how many bytes it took, or `WouldBlock`.
    pub(crate) fn flush(
        &mut self,
        framing: Framing,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<Flushed> {
        self.tried();
        loop {
            self.tell_gap(framing);
            if self.queue.is_empty() {
                self.give_back();
                return Ok(Flushed::Empty);
            }
            let mut slices = [IoSlice::new(&[]); BATCH];
            let mut count = 0;
            for (slice, delivery) in slices.iter_mut().zip(&self.queue) {
                let bytes = &delivery.message.frame(framing)[if count == 0 { self.begun } else { 0 }..];
                *slice = IoSlice::new(bytes);
                count += 1;
            }
            match write(&slices[..count]) {
                // Also after a part of it: only a refusal makes sure that room will be told.
                Ok(taken) => self.advance(framing, taken),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flushed::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// For a session that polls: acknowledges what is on its way if `again` is not set, and hands out everything that waits now.
    pub(crate) fn hand_out(&mut self, again: bool) -> impl Iterator<Item = &Message> {
        self.tried();
        if !again {
            for _ in 0..self.begun {
                self.settle_first(Framing::Poll, Outcome::Written);
            }
            self.begun = 0;
            self.tell_gap(Framing::Poll);
            self.begun = self.queue.len();
            if self.begun == 0 {
                self.give_back();
            }
        }
        self.queue.iter().take(self.begun).map(|delivery| &*delivery.message)
    }

    /// Drops the oldest messages until at most `most` bytes wait, or only the newest and what cannot be taken back. False if no rule of this
    /// session allows that.
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

    /// Whether the last thing that waits tells of messages that are missing, nobody knows how many.
    pub(crate) fn ends_with_gap(&self) -> bool {
        self.queue.back().is_some_and(|last| last.message.is_unknown_gap())
    }

    /// Whether messages were dropped that the session was not told of yet.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// The session ends: none of this will be written.
    pub(crate) fn abandon(&mut self) {
        self.tried();
        for delivery in std::mem::take(self).queue {
            delivery.settle(Outcome::Closed);
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.lost == 0
    }

    /// How many messages wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// How many bytes wait, framed.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Everything here had its first try, or has it now.
    pub(crate) fn tried(&mut self) {
        let untried = std::mem::take(&mut self.untried) as usize;
        for delivery in self.queue.iter().rev().take(untried) {
            delivery.tried();
        }
    }

    /// Where nothing waits there is room for any message: it may well be gone at once.
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
            self.settle_first(framing, Outcome::Written);
        }
        self.begun = written;
    }

    /// Puts the word of what was lost where it would have stood: behind what is on its way.
    fn tell_gap(&mut self, framing: Framing) {
        if self.lost > 0 {
            let gap = Rc::new(Delivery::new(Arc::new(Message::gap(Some(std::mem::take(&mut self.lost))))));
            self.bytes += gap.message.frame(framing).len();
            self.queue.insert(self.fixed(framing), gap);
        }
    }

    /// How many messages cannot be taken back.
    fn fixed(&self, framing: Framing) -> usize {
        if framing == Framing::Poll { self.begun } else { usize::from(self.begun > 0) }
    }

    fn drop_oldest(&mut self, framing: Framing) -> bool {
        let mut first = true;
        self.drop_where(framing, |_| std::mem::take(&mut first)) > 0
    }

    /// Drops messages that can be taken back, and counts them.
    fn drop_where(&mut self, framing: Framing, mut goes: impl FnMut(&Message) -> bool) -> usize {
        let fixed = self.fixed(framing);
        let (mut at, mut dropped) = (0, 0);
        let tried = self.queue.len() - self.untried as usize;
        let (bytes, untried) = (&mut self.bytes, &mut self.untried);
        self.queue.retain(|delivery| {
            let place = at;
            at += 1;
            if place < fixed || !delivery.message.is_data() || !goes(&delivery.message) {
                return true;
            }
            *bytes -= delivery.message.frame(framing).len();
            if place >= tried {
                *untried -= 1;
                delivery.tried();
            }
            delivery.settle(Outcome::Dropped);
            dropped += 1;
            false
        });
        self.lost += dropped as u64;
        dropped
    }

    fn settle_first(&mut self, framing: Framing, outcome: Outcome) -> bool {
        let Some(first) = self.queue.pop_front() else { return false };
        self.bytes = self.bytes.saturating_sub(first.message.frame(framing).len());
        first.settle(outcome);
        true
    }

    fn give_back(&mut self) {
        self.may_drop = false;
        if self.queue.capacity() > KEPT_ROOM {
            self.queue = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
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

    /// What comes out when everything is taken.
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

    /// A socket that takes so many bytes and no more.
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
            assert_eq!(outbox.push(one, LINES, Slow::Disconnect, WIDE), Pushed::Queued);
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
        outbox.push(&delivery("abc", None), LINES, Slow::Refuse, bounds);
        let late = delivery("d", None);
        assert_eq!(outbox.push(&late, LINES, Slow::Refuse, bounds), Pushed::Full);
        assert_eq!(outbox.push(&late, LINES, Slow::Disconnect, bounds), Pushed::TooSlow);
        assert_eq!(late.tally().queued(), 1, "neither counts it: that is the caller's");
        assert_eq!(drained(&mut outbox), "abc\n");
    }

    #[test]
    fn the_oldest_make_room_and_the_gap_is_told_in_their_place() {
        let bounds = Bounds { bytes: 8, messages: 10 };
        let mut outbox = Outbox::default();
        let all: Vec<_> = ["aa", "bb", "cc", "dddd"].iter().map(|text| delivery(text, None)).collect();
        outbox.push(&all[0], LINES, Slow::DropOldest, bounds);
        // One byte of it is out: it cannot be taken back.
        assert_eq!(takes(&mut outbox, 1), Flushed::Blocked);
        for one in &all[1..] {
            outbox.push(one, LINES, Slow::DropOldest, bounds);
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
        assert_eq!(outbox.push(&delivery(large, None), LINES, Slow::Disconnect, bounds), Pushed::Queued);
        assert_eq!(outbox.push(&delivery("", None), LINES, Slow::Disconnect, bounds), Pushed::TooSlow);
        assert_eq!(drained(&mut outbox), format!("{large}\n"));
    }

    #[test]
    fn the_newest_fits_behind_one_that_is_halfway_out_and_fills_the_queue() {
        for slow in [Slow::DropOldest, Slow::KeepLatest] {
            let bounds = Bounds { bytes: 8, messages: 9 };
            let mut outbox = Outbox::default();
            let all = ["longer 1", "longer 2", "longer 3", "longer 4"].map(|text| delivery(text, Some("key")));
            outbox.push(&all[0], LINES, slow, bounds);
            assert_eq!(takes(&mut outbox, 1), Flushed::Blocked);
            // The hub's own words are not taken back either.
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
        for slow in [Slow::DropOldest, Slow::KeepLatest] {
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
            outbox.push(&delivery(text, key), LINES, Slow::KeepLatest, WIDE);
        }
        assert_eq!(drained(&mut outbox), "{\"gap\":1}\ny1\nfree\nx2\n");
    }

    #[test]
    fn a_poll_that_is_not_acknowledged_is_given_again() {
        let mut outbox = Outbox::default();
        let (first, second) = (delivery("1", None), delivery("2", None));
        outbox.push(&first, Framing::Poll, Slow::Disconnect, WIDE);
        assert_eq!(outbox.hand_out(false).count(), 1);
        outbox.push(&second, Framing::Poll, Slow::Disconnect, WIDE);
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
                outbox.push(one, framing, Slow::DropOldest, WIDE);
            }
            outbox.push(&all[4], framing, Slow::Refuse, WIDE);
            let each = outbox.bytes() / 5;
            assert!(outbox.shed(framing, 3 * each) && outbox.bytes() == 3 * each && outbox.has_lost());
            assert!(outbox.shed(framing, 0) && outbox.bytes() == each);
            let dropped: Vec<u32> = all.iter().map(|one| one.tally().dropped).collect();
            assert_eq!(dropped, [1, 1, 1, 1, 0]);
        }
        let mut outbox = Outbox::default();
        outbox.push(&delivery("1", None), LINES, Slow::Disconnect, WIDE);
        assert!(!outbox.shed(LINES, 0) && outbox.len() == 1, "no rule lets it lose anything");
    }

    proptest! {
        /// Whatever is pushed and however the socket takes it, each message ends once, what comes out is in order, and the gaps
        /// account for all that is missing.
        #[test]
        fn every_message_ends_exactly_once(
            steps in prop::collection::vec((1..30usize, 0..3u8, 0..40usize, prop::option::weighted(0.1, 0..100usize)), 1..60),
            bytes in 10..120usize,
            messages in 1..8usize,
        ) {
            let bounds = Bounds { bytes, messages };
            let (mut outbox, mut all, mut out) = (Outbox::default(), Vec::new(), Vec::new());
            for (number, (length, how, room, shed)) in steps.into_iter().enumerate() {
                let one = delivery(&format!("{number} {}", "x".repeat(length)), (how == 1).then_some("key"));
                let slow = [Slow::DropOldest, Slow::KeepLatest, Slow::Refuse][usize::from(how)];
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

    /// Whether a publisher that waits for the end would be told.
    fn futures_ready(delivery: &Delivery) -> bool {
        let mut waiting = std::pin::pin!(delivery.wait(crate::session::tally::Wait::Attempted));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        waiting.as_mut().poll(&mut context).is_ready()
    }
}
