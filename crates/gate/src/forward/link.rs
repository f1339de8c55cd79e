//! One request's hold on a connection to a server behind: writing to it, and how long may be waited for what.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use oroshi_core::{Registration, after};
use oroshi_net::monotonic_ns;
use tokio::io::AsyncWrite;

use super::rules::Timeouts;
use crate::failure::{Failure, ForwardError};
use crate::upstream::{Connection, Engine};

/// What is waited for, and until when.
#[derive(Debug)]
pub(crate) struct Waiting<'r> {
    pub(crate) registration: Registration<Engine>,
    timeouts: &'r Timeouts,
    /// When all is over.
    total: Cell<u64>,
    phase: Cell<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The client's turn: its own limits are looked after elsewhere.
    Client,
    /// The server behind takes the request.
    Send,
    Head,
    Body,
}

impl<'r> Waiting<'r> {
    pub(crate) fn new(registration: Registration<Engine>, timeouts: &'r Timeouts, now: u64) -> Self {
        let total = Cell::new(after(now, timeouts.total));
        Waiting { registration, timeouts, total, phase: Cell::new(Phase::Client) }
    }

    /// When all is over.
    pub(crate) fn total(&self) -> u64 {
        self.total.get()
    }

    /// What comes has no end: the limit on the whole exchange does not hold.
    pub(crate) fn is_stream(&self) {
        self.total.set(u64::MAX);
    }

    /// The time for a phase begins now.
    pub(crate) fn enter(&self, phase: Phase, now: u64) {
        self.phase.set(phase);
        let time = match phase {
            Phase::Client => return self.registration.set(self.total()),
            Phase::Send | Phase::Body => self.timeouts.between,
            Phase::Head => self.timeouts.head,
        };
        self.registration.set(after(now, time).min(self.total()));
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// What an overdue wait has failed of; otherwise the task is woken when its time has come.
    pub(crate) fn poll_over(&self, context: &Context<'_>) -> Option<ForwardError> {
        if !self.registration.poll_over(context) {
            return None;
        }
        let failure = match self.phase.get() {
            _ if monotonic_ns() >= self.total() => Failure::TotalTimeout,
            Phase::Client => Failure::TotalTimeout,
            Phase::Send => Failure::SendTimeout,
            Phase::Head => Failure::HeadTimeout,
            Phase::Body => Failure::BodyTimeout,
        };
        Some(ForwardError::sent(failure, String::new()))
    }
}

impl Connection {
    /// Writes what goes out at once.
    #[inline]
    pub(crate) fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        took_something(Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes))
    }

    /// Writes several pieces to their end. While the server does not take them, that is what is waited for.
    pub(crate) async fn write_all<const N: usize>(&self, pieces: [&[u8]; N], waiting: &Waiting<'_>) -> io::Result<()> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut done = 0;
        poll_fn(|context| {
            while done < all {
                let mut slices = pieces.map(IoSlice::new);
                let mut left = &mut slices[..];
                IoSlice::advance_slices(&mut left, done);
                let step = Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(context, left);
                match took_something(step) {
                    Poll::Ready(count) => {
                        done += count?;
                        if waiting.phase() == Phase::Send {
                            waiting.enter(Phase::Client, 0);
                        }
                    }
                    Poll::Pending => {
                        if waiting.phase() == Phase::Client {
                            waiting.enter(Phase::Send, monotonic_ns());
                        }
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }
}

/// A stream that takes nothing of something will never take it.
fn took_something(step: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
    match step {
        Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        step => step,
    }
}
