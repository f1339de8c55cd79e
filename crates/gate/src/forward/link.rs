//! A request's upstream connection: writes to it, and deadlines for each phase.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use oroshi_core::{Registration, after};
use oroshi_net::monotonic_ns;
use oroshi_net::stream::nonzero_write;
use tokio::io::AsyncWrite;

use super::rules::Timeouts;
use crate::failure::{Failure, ForwardError};
use crate::upstream::{Connection, Engine};

/// The current phase and its deadline.
#[derive(Debug)]
pub(crate) struct Waiting<'r> {
    pub(crate) registration: Registration<Engine>,
    timeouts: &'r Timeouts,
    /// The deadline of the whole exchange.
    total: Cell<u64>,
    phase: Cell<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The gateway waits for the client, whose timeouts the server handles.
    Client,
    /// The upstream reads the request.
    Send,
    Head,
    Body,
}

impl<'r> Waiting<'r> {
    pub(crate) fn new(registration: Registration<Engine>, timeouts: &'r Timeouts, now: u64) -> Self {
        let total = Cell::new(after(now, timeouts.total));
        Waiting { registration, timeouts, total, phase: Cell::new(Phase::Client) }
    }

    /// Returns the deadline of the whole exchange.
    pub(crate) fn total(&self) -> u64 {
        self.total.get()
    }

    /// Lifts the total timeout, because the response is an endless stream.
    pub(crate) fn is_stream(&self) {
        self.total.set(u64::MAX);
    }

    /// Starts the timeout of a phase.
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

    /// Returns the failure of an overdue phase; otherwise wakes the task at the deadline.
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
    /// Writes as much as the socket takes at once.
    #[inline]
    pub(crate) fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = nonzero_write(Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes));
        // A broken connection shows again when the response is read.
        let _ = self.poll_flush(context);
        written
    }

    /// Writes what is still in a buffer of TLS. Ready when there is nothing.
    pub(crate) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = self.stream.borrow_mut();
        if !stream.is_tls() {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut *stream).poll_flush(context);
        self.unflushed.set(flushed.is_pending());
        flushed
    }

    /// Writes all pieces. While the socket takes nothing, the phase is [`Phase::Send`].
    pub(crate) async fn write_all<const N: usize>(&self, pieces: [&[u8]; N], waiting: &Waiting<'_>) -> io::Result<()> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut done = 0;
        poll_fn(|context| {
            while done < all {
                let mut slices = pieces.map(IoSlice::new);
                let mut left = &mut slices[..];
                IoSlice::advance_slices(&mut left, done);
                let step = Pin::new(&mut *self.stream.borrow_mut()).poll_write_vectored(context, left);
                match nonzero_write(step) {
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
            let flushed = self.poll_flush(context);
            if flushed.is_pending() && waiting.phase() == Phase::Client {
                waiting.enter(Phase::Send, monotonic_ns());
            }
            flushed
        })
        .await
    }
}
