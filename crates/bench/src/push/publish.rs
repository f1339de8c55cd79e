//! Publishers: each has a connection, and one message under way.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use oroshi_core::{Incoming, Scratch};
use oroshi_http1::{ExpectedResponse, Limits, ResponseDecoder, ResponseEvent, encode};
use oroshi_net::clock::thread_cpu_ns;
use oroshi_net::{Peer, Stream, Timer, monotonic_ns};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use super::phase::{Phase, follow_phases};
use super::plan::Publication;
use super::published::{PublishTally, Published};
use super::shared::Shared;
use super::stamp::{Stamp, TO_ONE, target};
use crate::arrivals::Arrivals;
use crate::dialer::Dialer;
use crate::failure::Failure;
use crate::shared::nanos;

/// Pause after a failed connect, so that a hub that has gone is not hammered.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a sleeping publisher checks whether the run has ended, nanoseconds.
const LOOK: u64 = 100_000_000;

/// Publishes in the warm-up and in the measured part, and sends the results to `done`.
pub(crate) async fn work(shared: Arc<Shared>, done: mpsc::UnboundedSender<Published>) {
    let mut phase = follow_phases(&shared.phase);
    while phase.changed().await.is_ok() {
        let now = *phase.borrow_and_update();
        let plan = &shared.plan.connect;
        let (run, length) = match now {
            Phase::Connecting | Phase::Counting => continue,
            Phase::Over => return,
            _ if !shared.publishes_here() => continue,
            Phase::WarmUp => (shared.warmup_run(), Some(plan.warmup)),
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
    let end = length.map_or(u64::MAX, |length| monotonic_ns() + nanos(length));
    let plan = &shared.plan;
    let to_all = PublishTask::begin(shared, plan.publish.as_ref(), &shared.publish_peers, run, end, false, counted);
    let to_one =
        PublishTask::begin(shared, plan.publish_to.as_ref(), &shared.publish_to_peers, run, end, true, counted);
    if to_all.is_none() && to_one.is_none() {
        // The subscriptions are held for the same time.
        while monotonic_ns() < end && !shared.is_stopped() {
            tokio::time::sleep(Duration::from_nanos(LOOK.min(end - monotonic_ns().min(end)))).await;
        }
        return Published::default();
    }
    // When the last of a number of messages for all is sent, messages for one end too.
    let ends = Rc::new(Cell::new(end));
    let all = async {
        let Some(task) = to_all else { return PublishTally::default() };
        let posted = task.carry_out(&ends).await;
        ends.set(0);
        posted
    };
    let one = async {
        match to_one {
            Some(task) => task.carry_out(&ends).await,
            None => PublishTally::default(),
        }
    };
    let (to_all, to_one) = tokio::join!(all, one);
    Published { to_all, to_one, ..Published::default() }
}

/// One kind of messages in one part of the run.
struct PublishTask {
    shared: Arc<Shared>,
    publication: Publication,
    dialer: Dialer,
    run: u32,
    /// Each message is for one connection.
    to_one: bool,
    /// The head of every request, if it is always the same.
    head: Vec<u8>,
    /// How many messages may still begin.
    budget: Cell<u64>,
    /// The timetable of an open loop. The publisher that holds the lock sends the next message.
    timetable: Option<Mutex<(Arrivals, Timer)>>,
    /// The number of the next message for one.
    next: Cell<u64>,
    posted: RefCell<PublishTally>,
}

impl PublishTask {
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
        let opened = shared.opened();
        // No subscription is open.
        if to_one && opened.is_empty() {
            return None;
        }
        let timetable = match plan.load.arrivals(1.0, 0.0, 0) {
            None => None,
            Some(mut arrivals) => {
                arrivals.start_at(monotonic_ns());
                arrivals.end_at(end);
                Some(Mutex::new((arrivals, Timer::new().ok()?)))
            }
        };
        let posted = PublishTally::of(if to_one { 1 } else { plan.connections });
        Some(Rc::new(Self {
            shared: Arc::clone(shared),
            head: publication.head(opened).unwrap_or_default(),
            budget: Cell::new(plan.requests.filter(|_| counted && !to_one).unwrap_or(u64::MAX)),
            dialer: Dialer::new(plan, &plan.origins[0], peers.to_vec(), 0),
            publication,
            run,
            to_one,
            timetable,
            next: Cell::new(0),
            posted: RefCell::new(posted),
        }))
    }

    /// Publishes until `ends`, which may move forward, or until the budget is spent.
    async fn carry_out(self: Rc<Self>, ends: &Rc<Cell<u64>>) -> PublishTally {
        let mut publishers = JoinSet::new();
        for number in 0..self.publication.plan.connections as u32 {
            let (task, ends) = (Rc::clone(&self), Rc::clone(ends));
            let mut publisher = Publisher { task, number, sequence: 0, stream: None, request: Vec::new() };
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

    /// Waits for the next message to be due, and returns that time. `None`: the part has ended.
    async fn next_due(&self, ends: &Cell<u64>) -> Option<u64> {
        let over = || self.shared.is_stopped() || self.budget.get() == 0 || monotonic_ns() >= ends.get();
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
    task: Rc<PublishTask>,
    number: u32,
    /// Messages sent so far: the number of the next one.
    sequence: u64,
    stream: Option<Stream>,
    request: Vec<u8>,
}

impl Publisher {
    async fn carry_on(&mut self, ends: &Cell<u64>) {
        let timeout = self.task.publication.plan.timeout;
        while let Some(due) = self.task.next_due(ends).await {
            let began = monotonic_ns();
            let deadline = Instant::now() + timeout;
            if let Err(failure) = self.connect(deadline).await {
                // A message that was not sent has no number: it cannot be lost.
                self.task.posted.borrow_mut().failures.add(failure);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let sequence = self.write_request();
            let answer = tokio::time::timeout_at(deadline.into(), self.exchange()).await;
            let now = monotonic_ns();
            let mut posted = self.task.posted.borrow_mut();
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
                    let number = if self.task.to_one { 0 } else { self.number as usize };
                    posted.unconfirmed[number].push(sequence);
                }
            }
        }
    }

    /// Connects, unless the last connection is still open.
    async fn connect(&mut self, deadline: Instant) -> Result<(), Failure> {
        if self.stream.as_ref().is_some_and(Stream::is_quiet) {
            return Ok(());
        }
        let task = &self.task;
        let peer = task.dialer.peer_of(self.number as usize);
        let connected =
            task.dialer.connector.connect(peer, Some(deadline)).await.map_err(|error| Failure::from(&error))?;
        self.stream = Some(connected.stream);
        Ok(())
    }

    /// Writes the request of the next message, counts it, and returns its number.
    fn write_request(&mut self) -> u64 {
        let task = &self.task;
        let publication = &task.publication;
        let mut posted = task.posted.borrow_mut();
        let sequence = if task.to_one { task.next.replace(task.next.get() + 1) } else { self.sequence };
        self.sequence += 1;
        let publisher = if task.to_one { TO_ONE } else { self.number };
        posted.sent[if task.to_one { 0 } else { self.number as usize }] += 1;
        let one = target(task.shared.opened(), sequence).filter(|_| task.to_one);
        let mut body = Vec::with_capacity(256);
        let request = &mut self.request;
        request.clear();
        match one.filter(|_| publication.head_differs()) {
            // It was valid with the first number, so it is with any.
            Some(one) => request.extend(publication.head(&[one]).unwrap_or_default()),
            None => request.extend_from_slice(&task.head),
        }
        let stamp = Stamp { run: task.run, publisher, sequence, sent: task.shared.since_epoch(monotonic_ns()) };
        publication.template.write(&mut body, &stamp, one);
        encode::content_length(request, body.len() as u64);
        encode::end_of_head(request);
        request.extend_from_slice(&body);
        sequence
    }

    /// Sends the request, and returns the status of the response.
    async fn exchange(&mut self) -> Result<u16, Failure> {
        let Some(stream) = &mut self.stream else { return Err(Failure::Write) };
        stream.write_all(&self.request).await.map_err(|_| Failure::Write)?;
        stream.flush().await.map_err(|_| Failure::Write)?;
        let mut decoder = ResponseDecoder::default();
        decoder.expect(ExpectedResponse::Body);
        let mut kept = Incoming::default();
        let (mut status, mut keep_alive) = (0, false);
        let mut read = |cx: &mut Context<'_>| -> Poll<Result<bool, Failure>> {
            let mut scratch = Scratch::take();
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)).map_err(|_| Failure::ReadReset)?;
            if buffer.filled().is_empty() {
                let ended = matches!(decoder.eof(), Ok(Some(_)));
                return Poll::Ready(if ended { Ok(true) } else { Err(Failure::ReadEof) });
            }
            Poll::Ready(kept.decode(buffer.filled(), |input| {
                loop {
                    match decoder.decode(&Limits::default(), input) {
                        Ok(None) => return Ok(false),
                        Ok(Some(ResponseEvent::Head(head))) => (status, keep_alive) = (head.status, head.keep_alive),
                        Ok(Some(ResponseEvent::End)) => return Ok(true),
                        Ok(Some(_)) => {}
                        Err(_) => return Err(Failure::Parse),
                    }
                }
            }))
        };
        while !poll_fn(&mut read).await? {}
        if !keep_alive || !kept.is_empty() {
            self.stream = None;
        }
        Ok(status)
    }
}
