//! The writer of one thread: it puts messages into queues, and writes queues to sockets.
//!
//! Once per turn of the thread's loop it writes to each session that has something waiting, in one system call for all
//! that has gathered. It writes large fan-outs in slices, and messages for few sessions go between the slices.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::backlog::Backlog;
use crate::checks::Checks;
use crate::clock::Clock;
use crate::message::{Framing, Message};
use crate::node::Node;
use crate::plan::SlowPolicy;
use crate::session::outbox::{Bounds, Flushed, Pushed};
use crate::session::tally::{Delivery, Outcome};
use crate::session::{Reason, Session, State};

/// Sessions of a large fan-out that are written to before others have their turn: about half a millisecond.
const SLICE: usize = 128;

/// The writer writes to a group up to this size at once, as to a single session.
const SMALL: usize = 32;

/// The most bytes that become records of TLS before the socket has taken the ones before. A session whose client does
/// not read holds up to this many bytes beside its queue.
const TLS_BYTES: usize = 16 * 1024;

/// Puts messages into the queues of a thread's sessions, and writes them out.
#[derive(Debug)]
pub(crate) struct Writer {
    node: Arc<Node>,
    clock: Rc<Clock>,
    checks: Rc<Checks>,
    backlog: Rc<Backlog>,
    urgent: RefCell<Vec<Rc<Session>>>,
    bulk: RefCell<VecDeque<Rc<Session>>>,
    /// Notified when one of these is no longer empty.
    work: Notify,
}

impl Writer {
    /// Creates a writer that has nothing to write.
    pub(crate) fn new(node: Arc<Node>, clock: Rc<Clock>, checks: Rc<Checks>, backlog: Rc<Backlog>) -> Self {
        Writer {
            node,
            clock,
            checks,
            backlog,
            urgent: RefCell::default(),
            bulk: RefCell::default(),
            work: Notify::new(),
        }
    }

    /// Queues a control message of the hub's own, and lists the session as urgent.
    pub(crate) fn send_control(&self, session: &Rc<Session>, message: Message) {
        self.send_last(session, Arc::new(message));
        self.list_urgent(session);
    }

    /// Queues a message however full the queue is. For the few messages that begin or end a session.
    pub(crate) fn send_last(&self, session: &Rc<Session>, message: Arc<Message>) {
        let delivery = Rc::new(Delivery::new(message));
        delivery.matched();
        self.push(session, &delivery, SlowPolicy::Refuse, true);
    }

    /// Queues a message unless this publish reached the session before. Returns false if the queue is full for now.
    pub(crate) fn offer(&self, session: &Rc<Session>, delivery: &Rc<Delivery>, slow: SlowPolicy, stamp: u32) -> bool {
        if session.stamp.replace(stamp) == stamp {
            return true;
        }
        delivery.matched();
        self.enqueue(session, delivery, slow)
    }

    /// Queues a message that is counted as matched for this session. Returns false if the queue is full for now.
    pub(crate) fn enqueue(&self, session: &Rc<Session>, delivery: &Rc<Delivery>, slow: SlowPolicy) -> bool {
        if !session.is_open() {
            delivery.settle(Outcome::Closed);
            return true;
        }
        match self.push(session, delivery, slow, false) {
            Pushed::Queued => {}
            Pushed::Full => return false,
            Pushed::TooSlow => {
                delivery.settle(Outcome::Closed);
                session.cut_off(Reason::Slow);
            }
        }
        true
    }

    fn push(&self, session: &Rc<Session>, delivery: &Rc<Delivery>, slow: SlowPolicy, is_unbounded: bool) -> Pushed {
        let mut outbox = session.outbox.borrow_mut();
        let before = outbox.bytes();
        // An empty queue takes any message.
        let bounds = if is_unbounded || before == 0 {
            Bounds { bytes: usize::MAX, messages: usize::MAX }
        } else {
            let bytes = self.backlog.limit_for(before, delivery.message.frame(session.framing).len());
            Bounds { bytes, messages: self.node.plan.limits.session_queue_messages }
        };
        let pushed = outbox.push(delivery, session.framing, slow, bounds);
        self.backlog.resized(before, outbox.bytes());
        if session.flags.get().blocked || session.framing == Framing::Poll || session.stream.borrow().is_none() {
            outbox.tried();
            if session.framing == Framing::Poll {
                session.wake();
            }
        }
        pushed
    }

    /// Lists a session to be written to before the sessions of large fan-outs.
    pub(crate) fn list_urgent(&self, session: &Rc<Session>) {
        if !session.flags.get().urgent {
            session.update_flags(|flags| flags.urgent = true);
            self.urgent.borrow_mut().push(Rc::clone(session));
            self.work.notify_one();
        }
    }

    /// Lists a session to be written to in its turn.
    pub(crate) fn list_bulk(&self, session: &Rc<Session>) {
        let flags = session.flags.get();
        if !flags.bulk && !flags.blocked {
            session.update_flags(|flags| flags.bulk = true);
            self.bulk.borrow_mut().push_back(Rc::clone(session));
            self.work.notify_one();
        }
    }

    /// Returns whether a fan-out to `count` sessions is small, and therefore urgent.
    pub(crate) fn is_small(count: usize) -> bool {
        count <= SMALL
    }

    /// Writes to listed sessions for as long as the hub lives.
    pub(crate) async fn run(&self) {
        loop {
            self.work.notified().await;
            loop {
                let urgent = std::mem::take(&mut *self.urgent.borrow_mut());
                for session in urgent {
                    session.update_flags(|flags| flags.urgent = false);
                    self.flush(&session);
                }
                for _ in 0..SLICE {
                    let Some(session) = self.bulk.borrow_mut().pop_front() else { break };
                    session.update_flags(|flags| flags.bulk = false);
                    self.flush(&session);
                }
                if self.bulk.borrow().is_empty() && self.urgent.borrow().is_empty() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Writes a session's queue, as far as the socket takes it now.
    pub(crate) fn flush(&self, session: &Session) {
        let mut stream = session.stream.borrow_mut();
        let Some(stream) = &mut *stream else { return session.outbox.borrow_mut().tried() };
        if session.flags.get().blocked {
            // The session's task writes once there is room; a system call here would be in vain.
            return session.outbox.borrow_mut().tried();
        }
        let is_tls = stream.is_tls();
        let flushed = self.write(session, is_tls, |slices| match slices {
            // send(2) is cheaper than writev(2), which goes through the file layer.
            [one] => stream.try_write(one),
            [] => {
                let sent = Pin::new(&mut *stream).poll_flush(&mut Context::from_waker(Waker::noop()));
                would_block(sent.map_ok(|()| 0))
            }
            more => stream.try_write_vectored(more),
        });
        if flushed != Some(Flushed::Empty) {
            session.wake();
        }
    }

    /// Continues to write a session's queue. The context's task is woken once a full socket has room.
    pub(crate) fn poll_flush(&self, session: &Session, context: &mut Context<'_>) {
        let mut stream = session.stream.borrow_mut();
        let Some(stream) = &mut *stream else { return };
        let is_tls = stream.is_tls();
        self.write(session, is_tls, |slices| {
            let stream = Pin::new(&mut *stream);
            would_block(match slices {
                [one] => stream.poll_write(context, one),
                [] => stream.poll_flush(context).map_ok(|()| 0),
                more => stream.poll_write_vectored(context, more),
            })
        });
    }

    /// Writes a session's queue with `write`. Over TLS, `write` without slices sends the records that wait.
    fn write(
        &self,
        session: &Session,
        is_tls: bool,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Option<Flushed> {
        let mut outbox = session.outbox.borrow_mut();
        let (before, mut taken) = (outbox.bytes(), 0);
        outbox.expire(session.framing, Instant::now);
        let mut flushed = outbox.flush(session.framing, |slices| {
            let written = if is_tls { write_some(slices, &mut write) } else { write(slices) };
            written.inspect(|count| taken += count)
        });
        if is_tls && matches!(flushed, Ok(Flushed::Empty)) {
            flushed = match write(&[]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Flushed::Blocked),
                sent => sent.map(|_| Flushed::Empty),
            };
        }
        self.backlog.shrunk(before, outbox.bytes());
        // A part of a message counts, and so does the moment in which it begins to wait.
        let was_blocked = session.flags.get().blocked;
        if taken > 0 || !was_blocked {
            session.times.written.set(self.clock.now());
        }
        match flushed {
            Ok(flushed) => {
                let is_blocked = flushed == Flushed::Blocked;
                if is_blocked && !was_blocked {
                    self.checks.soon(session.location.slot);
                }
                session.update_flags(|flags| flags.blocked = is_blocked);
                if flushed == Flushed::Empty && session.state.get() == State::Ending {
                    session.state.set(match session.known_reason() {
                        // The client closed first and has its answer; now the server closes (RFC 6455, section 7.1.1).
                        Some(Reason::Client) => State::Over(Reason::Client),
                        _ => State::Lingering(self.clock.after(self.node.plan.limits.close)),
                    });
                    drop(outbox);
                    session.wake();
                }
                Some(flushed)
            }
            Err(_) => {
                drop(outbox);
                session.cut_off(Reason::Client);
                None
            }
        }
    }
}

/// Writes the first of these slices with `write`, up to [`TLS_BYTES`].
fn write_some(
    slices: &[IoSlice<'_>],
    write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut bytes = 0;
    let fitting = slices.iter().take_while(|slice| {
        bytes += slice.len();
        bytes <= TLS_BYTES
    });
    match fitting.count() {
        0 => write(&[IoSlice::new(&slices[0][..slices[0].len().min(TLS_BYTES)])]),
        count => write(&slices[..count]),
    }
}

fn would_block<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
