//! Those who publish: each has a connection and one message under way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oroshi_http1::{Expect, Limits, ResponseDecoder, ResponseEvent, encode};
use oroshi_net::clock::thread_cpu_ns;
use oroshi_net::{Connector, Peer, Stream, Timer, monotonic_ns};
use oroshi_stats::Latency;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use super::core::{Phase, Shared, TO_ONE, phases, target};
use super::ledger::Ledger;
use super::plan::Publication;
use super::stamp::Stamp;
use crate::arrivals::Arrivals;
use crate::failure::{Failure, FailureCounts};
use crate::plan::Load;
use crate::slot::connect_failure;

/// What an answer may be read into at a time.
const BUFFER: usize = 4096;
/// Pause after a message that could not be sent, so that a hub that is gone is not hammered.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest that a publisher sleeps until it looks whether it is still wanted, nanoseconds.
const LOOK: u64 = 100_000_000;

/// What became of the messages of one kind.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    /// Those that were due, and those of them that were never sent, as every publisher was busy.
    pub(crate) due: u64,
    pub(crate) unsent: u64,
    /// Those that the hub has confirmed, with a status of 200 to 299.
    pub(crate) confirmed: u64,
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) failures: FailureCounts,
    /// From the first byte of the request to the last of its answer.
    pub(crate) service: Latency,
    /// The same from when the message was due.
    pub(crate) response: Latency,
    /// By publisher: how many were sent, and those of them that were not confirmed, ascending.
    pub(crate) sent: Vec<u64>,
    unconfirmed: Vec<Vec<u64>>,
}

impl Posted {
    fn of(publishers: usize) -> Self {
        Self { sent: vec![0; publishers], unconfirmed: vec![Vec::new(); publishers], ..Self::default() }
    }
}

/// All that was published in one part of the run.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) to_all: Posted,
    pub(crate) to_one: Posted,
    /// CPU time of those who published, nanoseconds; and when they were done.
    pub(crate) cpu: u64,
    pub(crate) ended: u64,
}

impl Published {
    /// How many deliveries there can be on so many subscriptions. What was not confirmed may have gone out all the same, and must not be
    /// taken for what is still missing.
    pub(crate) fn most(&self, subscriptions: u64) -> u64 {
        self.to_all.sent.iter().sum::<u64>() * subscriptions + self.to_one.sent.iter().sum::<u64>()
    }

    /// How many confirmed messages for all are missing on a subscription with these ledgers.
    pub(crate) fn missing(&self, ledgers: &[Option<Ledger>]) -> u64 {
        let nothing = Ledger::default();
        let each = self.to_all.sent.iter().zip(&self.to_all.unconfirmed).enumerate();
        each.map(|(publisher, (sent, unconfirmed))| {
            let ledger = ledgers.get(publisher).and_then(Option::as_ref).unwrap_or(&nothing);
            ledger.missing(*sent, unconfirmed)
        })
        .sum()
    }
}

/// Publishes in each phase that is about it, and tells what became of it.
pub(crate) async fn work(shared: Arc<Shared>, done: mpsc::UnboundedSender<Published>) {
    let mut phase = phases(&shared.phase);
    while phase.changed().await.is_ok() {
        let now = *phase.borrow_and_update();
        let plan = &shared.plan.connect;
        let (run, length) = match now {
            Phase::Connecting | Phase::Counting => continue,
            Phase::Over => return,
            Phase::WarmUp => (shared.run.wrapping_add(1), Some(plan.warmup)),
            Phase::Measuring => (shared.run, shared.plan.duration()),
        };
        let cpu = thread_cpu_ns();
        let mut published = publish(&shared, run, length, now == Phase::Measuring).await;
        published.cpu = thread_cpu_ns() - cpu;
        published.ended = monotonic_ns();
        if done.send(published).is_err() {
            return;
        }
    }
}

async fn publish(shared: &Arc<Shared>, run: u32, length: Option<Duration>, counted: bool) -> Published {
    let end = length.map_or(u64::MAX, |length| monotonic_ns() + length.as_nanos() as u64);
    let plan = &shared.plan;
    let to_all = Round::begin(shared, plan.publish.as_ref(), &shared.publish_peers, run, end, false, counted);
    let to_one = Round::begin(shared, plan.publish_to.as_ref(), &shared.publish_to_peers, run, end, true, counted);
    if to_all.is_none() && to_one.is_none() {
        // The subscriptions are held for as long.
        while monotonic_ns() < end && !shared.stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_nanos(LOOK.min(end - monotonic_ns().min(end)))).await;
        }
        return Published::default();
    }
    // Where a number of messages for all ends the run, those for one end with them.
    let ends = Rc::new(Cell::new(end));
    let all = async {
        let Some(round) = to_all else { return Posted::default() };
        let posted = round.carry_out(&ends).await;
        ends.set(0);
        posted
    };
    let one = async {
        match to_one {
            Some(round) => round.carry_out(&ends).await,
            None => Posted::default(),
        }
    };
    let (to_all, to_one) = tokio::join!(all, one);
    Published { to_all, to_one, ..Published::default() }
}

/// One kind of messages in one part of the run.
struct Round {
    shared: Arc<Shared>,
    publication: Publication,
    peers: Vec<Peer>,
    connector: Connector,
    run: u32,
    /// Each message is for one connection.
    to_one: bool,
    /// The head of every request, where it is always the same.
    head: Vec<u8>,
    /// How many may still be begun.
    budget: Cell<u64>,
    /// The timetable of an open loop; whoever holds it is next.
    timetable: Option<Mutex<(Arrivals, Timer)>>,
    /// Of messages for one: the next number.
    next: Cell<u64>,
    posted: RefCell<Posted>,
}

impl Round {
    fn begin(
        shared: &Arc<Shared>,
        publication: Option<&Publication>,
        peers: &[Peer],
        run: u32,
        end: u64,
        to_one: bool,
        counted: bool,
    ) -> Option<Rc<Self>> {
        let publication = publication?.clone();
        let plan = &publication.plan;
        let opened = shared.opened.get().map_or(&[][..], Vec::as_slice);
        // Nobody is there to whom a message could be sent.
        if to_one && opened.is_empty() {
            return None;
        }
        let timetable = match &plan.load {
            Load::Closed => None,
            Load::Open { stages, spacing, seed } => {
                let mut arrivals = Arrivals::stages(stages, 1.0, *spacing, *seed);
                arrivals.start_at(monotonic_ns());
                arrivals.end_at(end);
                Some(Mutex::new((arrivals, Timer::new().ok()?)))
            }
        };
        let connector = Connector::new(plan.connector_options(&plan.origins[0]));
        let posted = Posted::of(if to_one { 1 } else { plan.connections });
        Some(Rc::new(Self {
            shared: Arc::clone(shared),
            head: publication.head(opened).unwrap_or_default(),
            budget: Cell::new(plan.requests.filter(|_| counted && !to_one).unwrap_or(u64::MAX)),
            peers: peers.to_vec(),
            publication,
            connector,
            run,
            to_one,
            timetable,
            next: Cell::new(0),
            posted: RefCell::new(posted),
        }))
    }

    /// Until the end, or until all is published; `ends` may come to be earlier.
    async fn carry_out(self: Rc<Self>, ends: &Rc<Cell<u64>>) -> Posted {
        let mut publishers = JoinSet::new();
        for number in 0..self.publication.plan.connections as u32 {
            let (round, ends) = (Rc::clone(&self), Rc::clone(ends));
            let mut publisher = Publisher { round, number, sequence: 0, stream: None, request: Vec::new() };
            publishers.spawn_local(async move { publisher.carry_on(&ends).await });
        }
        while publishers.join_next().await.is_some() {}
        if let Some(timetable) = &self.timetable {
            let (arrivals, _) = &mut *timetable.lock().await;
            let mut posted = self.posted.borrow_mut();
            let now = monotonic_ns();
            while self.budget.get() > 0 && arrivals.next_due() < now {
                arrivals.take();
                posted.due += 1;
                posted.unsent += 1;
            }
        }
        self.posted.take()
    }

    /// Waits until a message is due: when that is. `None`: none is any more.
    async fn next_due(&self, ends: &Cell<u64>) -> Option<u64> {
        let over =
            || self.shared.stop.load(Ordering::Relaxed) || self.budget.get() == 0 || monotonic_ns() >= ends.get();
        let due = match &self.timetable {
            None if over() => return None,
            None => monotonic_ns(),
            Some(timetable) => {
                let (arrivals, timer) = &mut *timetable.lock().await;
                loop {
                    if over() {
                        return None;
                    }
                    let (now, due) = (monotonic_ns(), arrivals.next_due());
                    if due <= now {
                        break arrivals.take();
                    }
                    timer.sleep_until(due.min(now + LOOK).min(ends.get())).await.ok()?;
                }
            }
        };
        self.budget.set(self.budget.get().saturating_sub(1));
        self.posted.borrow_mut().due += 1;
        Some(due)
    }
}

/// One who publishes.
struct Publisher {
    round: Rc<Round>,
    number: u32,
    /// How many it has sent: the next one's number.
    sequence: u64,
    stream: Option<Stream>,
    request: Vec<u8>,
}

impl Publisher {
    async fn carry_on(&mut self, ends: &Cell<u64>) {
        let timeout = self.round.publication.plan.timeout;
        while let Some(due) = self.round.next_due(ends).await {
            let began = monotonic_ns();
            let deadline = Instant::now() + timeout;
            if let Err(failure) = self.connect(deadline).await {
                // What was not sent has no number: nobody can miss it.
                self.round.posted.borrow_mut().failures.add(failure);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let sequence = self.write_request();
            let answer = tokio::time::timeout_at(deadline.into(), self.exchange()).await;
            let now = monotonic_ns();
            let mut posted = self.round.posted.borrow_mut();
            let failure = match answer.unwrap_or(Err(Failure::Timeout)) {
                Ok(status) => {
                    posted.service.record(now - began);
                    posted.response.record(now - due);
                    *posted.statuses.entry(status).or_default() += 1;
                    (!(200..300).contains(&status)).then_some(Failure::Status)
                }
                Err(failure) => {
                    self.stream = None;
                    if failure == Failure::Timeout {
                        posted.service.record_censored(now - began);
                        posted.response.record_censored(now - due);
                    }
                    Some(failure)
                }
            };
            match failure {
                None => posted.confirmed += 1,
                Some(failure) => {
                    posted.failures.add(failure);
                    let number = if self.round.to_one { 0 } else { self.number as usize };
                    posted.unconfirmed[number].push(sequence);
                }
            }
        }
    }

    /// Connects, unless there is a connection that the server has left open.
    async fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        if self.stream.as_ref().is_some_and(Stream::is_quiet) {
            return Ok(());
        }
        let round = &self.round;
        let peer = &round.peers[self.number as usize % round.peers.len()];
        let connected = round.connector.connect(peer, Some(deadline)).await.map_err(|error| connect_failure(&error))?;
        self.stream = Some(connected.stream);
        Ok(())
    }

    /// Writes the next message, as a request that is sent now, and counts it: its number.
    fn write_request(&mut self) -> u64 {
        let round = &self.round;
        let publication = &round.publication;
        let mut posted = round.posted.borrow_mut();
        let sequence = if round.to_one { round.next.replace(round.next.get() + 1) } else { self.sequence };
        self.sequence += 1;
        let publisher = if round.to_one { TO_ONE } else { self.number };
        posted.sent[if round.to_one { 0 } else { self.number as usize }] += 1;
        let opened = round.shared.opened.get().map_or(&[][..], Vec::as_slice);
        let one = round.to_one.then(|| target(opened, sequence));
        let mut body = Vec::with_capacity(256);
        let request = &mut self.request;
        request.clear();
        match one.filter(|_| publication.head_differs()) {
            // With another number it is as sound as with the first.
            Some(one) => request.extend(publication.head(&[one]).unwrap_or_default()),
            None => request.extend_from_slice(&round.head),
        }
        let stamp = Stamp { run: round.run, publisher, sequence, sent: monotonic_ns() };
        publication.template.write(&mut body, &stamp, one);
        encode::content_length(request, body.len() as u64);
        encode::end_of_head(request);
        request.extend_from_slice(&body);
        sequence
    }

    /// Sends the request, and reads its answer: the status.
    async fn exchange(&mut self) -> Result<u16, Failure> {
        let Some(stream) = &mut self.stream else { return Err(Failure::Write) };
        stream.write_all(&self.request).await.map_err(|_| Failure::Write)?;
        stream.flush().await.map_err(|_| Failure::Write)?;
        let mut decoder = ResponseDecoder::default();
        decoder.expect(Expect::Body);
        let (mut status, mut keep_alive, mut kept) = (0, false, Vec::new());
        loop {
            kept.reserve(BUFFER);
            let count = stream.read_buf(&mut kept).await.map_err(|_| Failure::ReadReset)?;
            let mut input = &kept[..];
            let mut ended = false;
            loop {
                match decoder.decode(&Limits::default(), &mut input) {
                    Ok(None) => break,
                    Ok(Some(ResponseEvent::Head(head))) => (status, keep_alive) = (head.status, head.keep_alive),
                    Ok(Some(ResponseEvent::End)) => {
                        ended = true;
                        break;
                    }
                    Ok(Some(_)) => {}
                    Err(_) => return Err(Failure::Parse),
                }
            }
            let left = input.len();
            kept.drain(..kept.len() - left);
            if !ended && count == 0 {
                ended = matches!(decoder.eof(), Ok(Some(_)));
                if !ended {
                    return Err(Failure::ReadEof);
                }
            }
            if ended {
                if !keep_alive || left > 0 {
                    self.stream = None;
                }
                return Ok(status);
            }
        }
    }
}
