//! The handler: one thread's part of the target.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use oroshi_http1::Version;
use oroshi_net::Timer;
use oroshi_server::{Error, Exchange, Handler};

use crate::answers::{EncodedResponse, FIELDS, Rotation, body, has_no_body};
use crate::delay::Delay;
use crate::plan::Plan;

/// The longest body within an encoded message; longer ones are sent in blocks of this length.
const BLOCK_BYTES: u64 = 64 * 1024;

/// Counters of all threads together, so that shares are exact for any distribution of connections.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    requests: AtomicU64,
    answers: AtomicU64,
}

/// One thread's part of the target.
#[derive(Debug)]
pub(crate) struct Responder {
    shared: Arc<Shared>,
    delay: Option<Rc<Delay>>,
    /// Rounds of arithmetic before each response.
    work: u64,
    size: u64,
    chunked: bool,
    close: bool,
    statuses: Rotation,
    stall_one_in: Option<u64>,
    /// The body, or a block of it.
    block: Vec<u8>,
    /// By status, in the order of `statuses`. Empty for long bodies.
    written: RefCell<Vec<EncodedResponse>>,
    /// The date in `written`.
    date: Cell<[u8; 29]>,
}

impl Responder {
    /// Makes the handler, and the future that must run beside it on the same thread for delays to end.
    pub(crate) fn new(
        plan: &Plan,
        shared: Arc<Shared>,
    ) -> io::Result<(Responder, Option<impl Future<Output = ()> + use<>>)> {
        let delay = u64::try_from(plan.delay.as_nanos()).unwrap_or(u64::MAX);
        let delay = (delay > 0).then(|| Rc::new(Delay::new(delay, plan.shape)));
        let timekeeper = match delay.clone() {
            None => None,
            Some(delay) => {
                let mut timer = Timer::new()?;
                Some(async move {
                    // The kernel has no reason to refuse an existing timer.
                    let _ = delay.keep_time(&mut timer).await;
                })
            }
        };
        let responder = Responder {
            shared,
            delay,
            work: plan.work,
            size: plan.size,
            chunked: plan.chunked,
            close: plan.close,
            statuses: plan.statuses.clone(),
            stall_one_in: plan.stall_one_in,
            block: body(plan.size.min(BLOCK_BYTES) as usize),
            written: RefCell::default(),
            date: Cell::new([0; 29]),
        };
        Ok((responder, timekeeper))
    }

    /// Whether this request stays unanswered.
    fn stalls(&self) -> bool {
        self.stall_one_in.is_some_and(|every| {
            let number = self.shared.requests.fetch_add(1, Ordering::Relaxed) + 1;
            number.is_multiple_of(every)
        })
    }

    /// Returns the index of the next response's status.
    fn next_status(&self) -> usize {
        match self.statuses.statuses() {
            [_] => 0,
            _ => self.statuses.at(self.shared.answers.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Calls `choose` with the encoded responses for a status, with the present date.
    fn encoded<T>(&self, status: usize, date: [u8; 29], choose: impl FnOnce(&EncodedResponse) -> T) -> T {
        if date != self.date.get() {
            self.date.set(date);
            let statuses = self.statuses.statuses().iter();
            let written = statuses.map(|&status| EncodedResponse::new(status, &date, &self.block, self.chunked));
            *self.written.borrow_mut() = written.collect();
        }
        choose(&self.written.borrow()[status])
    }

    async fn answer(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        if self.close {
            exchange.reply.close();
        }
        if exchange.head.method == "CONNECT" {
            return exchange.reply.send(501, FIELDS, b"this target is no proxy\n").await;
        }
        let place = self.next_status();
        let (status, date) = (self.statuses.statuses()[place], exchange.date());
        let ordinary = exchange.head.method != "HEAD" && self.size <= BLOCK_BYTES;
        match exchange.head.version {
            Version::Http11 if ordinary => {
                let close = exchange.reply.closes();
                let choose =
                    |written: &EncodedResponse| Rc::clone(if close { &written.close } else { &written.keep_alive });
                let message = self.encoded(place, date, choose);
                return exchange.reply.send_raw(&message).await;
            }
            Version::Http2 if ordinary => {
                if let Some(head) = self.encoded(place, date, |written| written.http2.clone()) {
                    let body = if has_no_body(status) { &[][..] } else { &self.block };
                    return exchange.reply.send_encoded(&head, body).await;
                }
            }
            _ => {}
        }
        exchange.reply.begin(status, FIELDS, (!self.chunked).then_some(self.size))?;
        let mut left = if has_no_body(status) || exchange.head.method == "HEAD" { 0 } else { self.size };
        while left > 0 {
            let length = left.min(BLOCK_BYTES);
            exchange.reply.write(&self.block[..length as usize]).await?;
            left -= length;
        }
        exchange.reply.finish()
    }
}

impl Handler for Responder {
    async fn handle(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        while exchange.body.chunk().await?.is_some() {}
        if self.stalls() {
            hold(exchange).await;
            return Err(Error::Cut);
        }
        if let Some(delay) = &self.delay {
            delay.wait().await;
        }
        work(self.work);
        self.answer(exchange).await
    }
}

/// Does useless arithmetic: each round depends on the one before.
fn work(rounds: u64) {
    let mut value = rounds;
    for _ in 0..rounds {
        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    std::hint::black_box(value);
}

/// Waits until the client or this process gives up.
async fn hold(exchange: &mut Exchange<'_>) {
    let closing = exchange.closing();
    let mut closing = pin!(closing.begun());
    let mut given_up = pin!(exchange.body.peer_closed());
    poll_fn(|context| {
        let ended = closing.as_mut().poll(context).is_ready() || given_up.as_mut().poll(context).is_ready();
        if ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
