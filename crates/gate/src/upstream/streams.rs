//! The connections of HTTP/2 to a target: which have room for a stream, who may open one, who waits. A state machine
//! without sockets or clock, as `slots` is for HTTP/1.
//!
//! - A request gets a stream on the oldest connection with room: few connections are busy, and the others expire.
//! - If none has room, the request opens a connection, unless those being opened will have room for it.
//! - Waiters queue first in, first out; no later request overtakes. One that is called takes its stream at its next
//!   poll, and waits on if the room has gone meanwhile.
//!
//! Rooms change outside this machine, so its owner calls [`Streams::call`] when one may have grown.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::slots::Caps;

/// The streams that a connection being opened is expected to have room for. RFC 9113, section 6.5.2, recommends that
/// servers allow at least as many.
pub(crate) const EXPECTED_STREAMS: usize = 100;

/// A connection that carries several requests at once.
pub(crate) trait Multiplex {
    /// Returns how many requests may begin now.
    fn room(&self) -> usize;

    /// Returns whether the room is final: the peer has said how many streams it allows.
    fn is_settled(&self) -> bool;

    /// Returns whether it takes no more requests, and ends with those under way.
    fn is_draining(&self) -> bool;

    /// Returns whether the peer allows no stream at all, for now.
    fn refuses_all(&self) -> bool;
}

/// The result of asking for a stream.
#[derive(Debug)]
pub(crate) enum TakeStream<C> {
    /// A connection with room. The holder begins its stream before anything else happens.
    Stream(Rc<C>),
    /// The right to open a connection. The holder must call [`Streams::opened`] or [`Streams::not_opened`].
    Connect,
    /// A turn in the queue.
    Wait(u64),
    /// The queue is full.
    Full,
}

/// A grant to a waiter. `E` says why no connection could be opened.
#[derive(Debug)]
pub(crate) enum StreamGrant<C, E> {
    /// As [`TakeStream::Stream`].
    Stream(Rc<C>),
    /// As [`TakeStream::Connect`].
    Connect,
    /// The connection for which the waiter waited could not be opened.
    Failed(E),
}

/// The connections `C` to one target.
#[derive(Debug)]
pub(crate) struct Streams<C, E> {
    caps: Caps,
    /// The oldest first.
    connections: Vec<Rc<C>>,
    /// Connections being opened, or whose opening was granted.
    connecting: usize,
    /// Waiters in order of arrival.
    line: VecDeque<Waiter<E>>,
    /// Of these, those that were not called, and those that were called for a stream.
    waiting: usize,
    called: usize,
    turn: u64,
}

#[derive(Debug)]
struct Waiter<E> {
    turn: u64,
    waker: Option<Waker>,
    call: Call<E>,
}

#[derive(Debug)]
enum Call<E> {
    No,
    /// There was room for it.
    Stream,
    /// It may open a connection, which counts in `connecting`.
    Connect,
    Failed(E),
}

impl<C: Multiplex, E: Clone> Streams<C, E> {
    pub(crate) fn new(caps: Caps) -> Self {
        Streams { caps, connections: Vec::new(), connecting: 0, line: VecDeque::new(), waiting: 0, called: 0, turn: 0 }
    }

    /// Applies new limits. Waiters keep their turns; connections in use stay open.
    pub(crate) fn set_caps(&mut self, caps: Caps) {
        self.caps = caps;
        self.call();
    }

    /// Returns the number of connections that are open or being opened.
    pub(crate) fn open(&self) -> usize {
        self.connections.len() + self.connecting
    }

    /// Returns the open connections, the oldest first.
    pub(crate) fn connections(&self) -> &[Rc<C>] {
        &self.connections
    }

    /// Returns the number of waiters that were not called.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns whether no connection is being opened and the queue is empty.
    pub(crate) fn is_quiet(&self) -> bool {
        self.connecting == 0 && self.line.is_empty()
    }

    /// Asks for a stream.
    pub(crate) fn take(&mut self) -> TakeStream<C> {
        if let Some(connection) = self.with_room() {
            return TakeStream::Stream(connection);
        }
        if self.may_connect(self.waiting) {
            self.connecting += 1;
            return TakeStream::Connect;
        }
        if self.waiting >= self.caps.waiting {
            return TakeStream::Full;
        }
        self.turn += 1;
        self.waiting += 1;
        self.line.push_back(Waiter { turn: self.turn, waker: None, call: Call::No });
        TakeStream::Wait(self.turn)
    }

    /// Returns the waiter's grant; until then stores the waker.
    pub(crate) fn poll_wait(&mut self, turn: u64, context: &Context<'_>) -> Poll<StreamGrant<C, E>> {
        let Ok(place) = self.line.binary_search_by_key(&turn, |waiter| waiter.turn) else { return Poll::Pending };
        let grant = match std::mem::replace(&mut self.line[place].call, Call::No) {
            Call::No => None,
            Call::Stream => {
                self.called -= 1;
                let connection = self.connections.iter().find(|one| one.room() > 0);
                // If the room went with its connection, it waits again.
                self.waiting += usize::from(connection.is_none());
                connection.map(|connection| StreamGrant::Stream(Rc::clone(connection)))
            }
            Call::Connect => Some(StreamGrant::Connect),
            Call::Failed(error) => Some(StreamGrant::Failed(error)),
        };
        if let Some(grant) = grant {
            self.line.remove(place);
            return Poll::Ready(grant);
        }
        match &mut self.line[place].waker {
            Some(waker) => waker.clone_from(context.waker()),
            waker => *waker = Some(context.waker().clone()),
        }
        self.call();
        Poll::Pending
    }

    /// Leaves the queue. An uncollected grant goes to the next waiter.
    pub(crate) fn leave(&mut self, turn: u64) {
        let Ok(place) = self.line.binary_search_by_key(&turn, |waiter| waiter.turn) else { return };
        match self.line.remove(place).map(|waiter| waiter.call) {
            Some(Call::No) => self.waiting -= 1,
            Some(Call::Stream) => self.called -= 1,
            Some(Call::Connect) => self.connecting -= 1,
            Some(Call::Failed(_)) | None => {}
        }
        self.call();
    }

    /// Takes in an opened connection. Its opener begins its stream first, and then calls [`call`](Self::call).
    pub(crate) fn opened(&mut self, connection: Rc<C>) {
        self.connecting -= 1;
        self.connections.push(connection);
    }

    /// Takes in a connection that was opened without a right.
    pub(crate) fn adopt(&mut self, connection: Rc<C>) {
        self.connections.push(connection);
        self.call();
    }

    /// Ends an attempt to open a connection. With an error, those who have nothing else to wait for fail with it too.
    pub(crate) fn not_opened(&mut self, error: Option<&E>) {
        self.connecting -= 1;
        if let (Some(error), true) = (error, self.open() == 0) {
            for waiter in self.line.iter_mut().filter(|waiter| matches!(waiter.call, Call::No)) {
                waiter.call(Call::Failed(error.clone()));
            }
            self.waiting = 0;
        }
        self.call();
    }

    /// Removes closed connections: those for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Rc<C>) -> bool) {
        let before = self.connections.len();
        self.connections.retain(|connection| keep(connection));
        if self.connections.len() < before {
            self.call();
        }
    }

    /// Calls the waiters for whom there is room, or who may open a connection.
    pub(crate) fn call(&mut self) {
        while self.waiting > 0 {
            let call = if self.room() > self.called {
                self.called += 1;
                Call::Stream
            } else if self.may_connect(self.waiting - 1) {
                self.connecting += 1;
                Call::Connect
            } else {
                return;
            };
            self.waiting -= 1;
            if let Some(waiter) = self.line.iter_mut().find(|waiter| matches!(waiter.call, Call::No)) {
                waiter.call(call);
            }
        }
    }

    /// Returns the oldest connection with room for somebody who does not wait.
    pub(crate) fn with_room(&self) -> Option<Rc<C>> {
        let found = self.connections.iter().find(|one| one.room() > 0)?;
        // Those who wait come first, and those who were called and have not come yet.
        let is_free = self.waiting == 0 && (self.called == 0 || self.room() > self.called);
        is_free.then(|| Rc::clone(found))
    }

    fn room(&self) -> usize {
        self.connections.iter().fold(0, |sum: usize, one| sum.saturating_add(one.room()))
    }

    /// Returns whether another connection may be opened, behind this many waiters.
    fn may_connect(&self, waiting: usize) -> bool {
        let unsettled = self.connections.iter().filter(|one| !one.is_settled()).count();
        let expected = (self.connecting + unsettled).saturating_mul(EXPECTED_STREAMS);
        let draining = self.connections.iter().filter(|one| one.is_draining()).count();
        // Those that drain may last as long as their longest stream. They count too, but not at once.
        let has_place = self.open() - draining < self.caps.open && self.open() < self.caps.open.saturating_mul(2);
        // Another connection to a server that allows no stream would not help.
        waiting >= expected && has_place && !self.connections.iter().any(|one| one.refuses_all())
    }
}

impl<E> Waiter<E> {
    fn call(&mut self, call: Call<E>) {
        self.call = call;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// A connection with this much room; `None` before the peer has said how much.
    struct One(Cell<Option<usize>>);

    impl Multiplex for One {
        fn room(&self) -> usize {
            self.0.get().unwrap_or(0)
        }

        fn is_settled(&self) -> bool {
            self.0.get().is_some()
        }

        fn is_draining(&self) -> bool {
            false
        }

        fn refuses_all(&self) -> bool {
            false
        }
    }

    type Tested = Streams<One, &'static str>;

    fn streams(open: usize, waiting: usize) -> Tested {
        Streams::new(Caps { open, idle: usize::MAX, waiting })
    }

    fn open(streams: &mut Tested, room: Option<usize>) -> Rc<One> {
        let one = Rc::new(One(Cell::new(room)));
        streams.opened(Rc::clone(&one));
        streams.call();
        one
    }

    fn wait(streams: &mut Tested) -> u64 {
        match streams.take() {
            TakeStream::Wait(turn) => turn,
            other => panic!("{}", name(&other)),
        }
    }

    fn name(take: &TakeStream<One>) -> &'static str {
        match take {
            TakeStream::Stream(_) => "stream",
            TakeStream::Connect => "connect",
            TakeStream::Wait(_) => "wait",
            TakeStream::Full => "full",
        }
    }

    fn poll(streams: &mut Tested, turn: u64) -> Option<&'static str> {
        match streams.poll_wait(turn, &Context::from_waker(Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(StreamGrant::Stream(one)) => {
                one.0.set(Some(one.room() - 1));
                Some("stream")
            }
            Poll::Ready(StreamGrant::Connect) => Some("connect"),
            Poll::Ready(StreamGrant::Failed(why)) => Some(why),
        }
    }

    #[test]
    fn requests_share_the_connection_that_is_being_opened_and_then_its_streams() {
        let mut streams = streams(2, 2);
        assert_eq!(name(&streams.take()), "connect");
        let (first, second) = (wait(&mut streams), wait(&mut streams));
        assert_eq!(name(&streams.take()), "full");
        // The peer has not said yet how many streams it allows.
        let one = open(&mut streams, None);
        assert_eq!(poll(&mut streams, first), None);
        one.0.set(Some(1));
        streams.call();
        // One stream for the first; the second opens a connection, and nobody overtakes it.
        assert_eq!(poll(&mut streams, second), Some("connect"));
        assert_eq!(poll(&mut streams, first), Some("stream"));
        assert_eq!(name(&streams.take()), "wait");
    }

    #[test]
    fn the_oldest_connection_with_room_is_used_first() {
        let mut streams = streams(3, 0);
        assert_eq!(name(&streams.take()), "connect");
        let first = open(&mut streams, Some(0));
        assert_eq!(name(&streams.take()), "connect");
        open(&mut streams, Some(5));
        first.0.set(Some(1));
        let TakeStream::Stream(taken) = streams.take() else { panic!("there is room") };
        assert!(Rc::ptr_eq(&taken, &first));
    }

    #[test]
    fn many_waiters_open_more_connections_than_one() {
        let mut streams = streams(10, 1000);
        let takes: Vec<&str> = (0..250).map(|_| name(&streams.take())).collect();
        assert_eq!(takes.iter().filter(|take| **take == "connect").count(), 3);
        assert_eq!(streams.open(), 3);
    }

    #[test]
    fn those_who_wait_for_a_connection_fail_with_it_and_a_deadline_of_the_opener_is_its_own() {
        let mut streams = streams(1, 9);
        assert_eq!(name(&streams.take()), "connect");
        let (first, second) = (wait(&mut streams), wait(&mut streams));
        streams.not_opened(None);
        assert_eq!((poll(&mut streams, second), poll(&mut streams, first)), (None, Some("connect")));
        streams.not_opened(Some(&"refused"));
        assert_eq!(poll(&mut streams, second), Some("refused"));
        assert!(streams.is_quiet());
    }

    #[test]
    fn a_waiter_whose_room_is_gone_waits_on_in_its_place() {
        let mut streams = streams(1, 9);
        assert_eq!(name(&streams.take()), "connect");
        let one = open(&mut streams, Some(0));
        let (first, second) = (wait(&mut streams), wait(&mut streams));
        one.0.set(Some(1));
        streams.call();
        streams.retain(|_| false);
        // The second opens a connection, and the first gets its stream.
        assert_eq!((poll(&mut streams, first), poll(&mut streams, second)), (None, Some("connect")));
        open(&mut streams, Some(1));
        assert_eq!(poll(&mut streams, first), Some("stream"));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take,
        Collect(usize),
        Leave(usize),
        Open(usize),
        NotOpened(bool),
        Room(usize, usize),
        End(usize),
        Caps(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => Just(Step::Take),
            4 => (0..8_usize).prop_map(Step::Collect),
            1 => (0..8_usize).prop_map(Step::Leave),
            3 => (0..4_usize).prop_map(Step::Open),
            1 => any::<bool>().prop_map(Step::NotOpened),
            3 => (0..8_usize, 0..4_usize).prop_map(|(which, room)| Step::Room(which, room)),
            1 => (0..8_usize).prop_map(Step::End),
            1 => (1..4_usize, 0..4_usize).prop_map(|(open, waiting)| Step::Caps(open, waiting)),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn whatever_happens_the_counts_are_right_and_nobody_waits_beside_room(steps in steps()) {
            let mut streams = streams(2, 3);
            let (mut line, mut openers) = (Vec::new(), 0_usize);
            for step in steps {
                match step {
                    Step::Take => match streams.take() {
                        TakeStream::Stream(one) => one.0.set(Some(one.room() - 1)),
                        TakeStream::Connect => openers += 1,
                        TakeStream::Wait(turn) => line.push(turn),
                        TakeStream::Full => prop_assert!(streams.waiting() >= streams.caps.waiting),
                    },
                    Step::Collect(place) if place < line.len() => {
                        if let Some(grant) = poll(&mut streams, line[place]) {
                            line.remove(place);
                            openers += usize::from(grant == "connect");
                        }
                    }
                    Step::Leave(place) if place < line.len() => streams.leave(line.remove(place)),
                    Step::Open(room) if openers > 0 => {
                        openers -= 1;
                        open(&mut streams, room.checked_sub(1));
                    }
                    Step::NotOpened(failed) if openers > 0 => {
                        openers -= 1;
                        streams.not_opened(failed.then_some(&"refused"));
                    }
                    Step::Room(which, room) if which < streams.connections.len() => {
                        streams.connections[which].0.set(Some(room));
                        streams.call();
                    }
                    Step::End(which) if which < streams.connections.len() => {
                        let ended = Rc::clone(&streams.connections[which]);
                        streams.retain(|one| !Rc::ptr_eq(one, &ended));
                    }
                    Step::Caps(open, waiting) => streams.set_caps(Caps { open, idle: 0, waiting }),
                    _ => {}
                }
                let count = |is: fn(&Call<&str>) -> bool| streams.line.iter().filter(|one| is(&one.call)).count();
                prop_assert_eq!(streams.waiting, count(|call| matches!(call, Call::No)));
                prop_assert_eq!(streams.called, count(|call| matches!(call, Call::Stream)));
                prop_assert_eq!(streams.connecting, openers + count(|call| matches!(call, Call::Connect)));
                prop_assert_eq!(streams.line.len(), line.len());
                prop_assert!(streams.waiting == 0 || streams.room() <= streams.called, "somebody waits beside room");
                prop_assert!(streams.waiting == 0 || !streams.may_connect(streams.waiting - 1));
            }
        }
    }
}
