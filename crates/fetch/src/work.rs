//! The work: items in, records out, with limited concurrency. One thread does it with a client of its own.
//!
//! An item holds a place until its record is delivered, so memory does not grow with the list. A request under way also
//! holds a slot. There are more places than slots if requests may wait (for their host, or for a retry), so that others
//! go ahead.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use oroshi_client::local::{Client, Response};
use oroshi_client::{BuildError, Bytes, Cause, Counts, Phase, RequestBuilder, is_idempotent};
use oroshi_http1::DecodeError;
use oroshi_net::{Address, Endpoint, Scheme, Shutdown, monotonic_ns};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use crate::body_files::{Folder, name};
use crate::list::{Item, ItemRequest};
use crate::out::SharedWriter;
use crate::plan::{Bodies, LARGEST_BURST, Pace, Plan};
use crate::record::{Failure, Record, Times};
use crate::retry::{self, Outcome};
use crate::sink::{Sink, print};

/// Additional places for waiting requests: per slot, and at least.
const AHEAD: (usize, usize) = (10, 1000);

/// Requests of a burst that are begun before the sockets are polled. tokio runs tasks in the order in which they became
/// ready; with all ready at first, it would read the first answer only after the last request had begun.
const TURN: usize = 32;

/// The input of the working thread.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Plan,
    /// The maximum of connections.
    pub(crate) connections: usize,
    pub(crate) items: mpsc::Receiver<Vec<Item>>,
    pub(crate) records: mpsc::Sender<Record>,
    pub(crate) folder: Option<Folder>,
    /// Standard output, for printed bodies.
    pub(crate) out: SharedWriter,
    /// Stops new requests.
    pub(crate) stop: Shutdown,
    pub(crate) under_way: Arc<AtomicUsize>,
}

/// Why the work failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// A body could not be written: no space, or no permission. Free space or correct the path; a run with --resume
    /// fetches the missing records.
    #[error("the body of {url} cannot be written")]
    Body {
        /// The request's URL.
        url: String,
        /// The system's error.
        source: io::Error,
    },
    /// A list is too long for one burst.
    #[error("the list has more than the {most} requests of the burst")]
    Burst {
        /// The maximum of requests.
        most: usize,
    },
    /// A defect: the settings were checked before.
    #[error(transparent)]
    Client(#[from] BuildError),
}

/// Does the work. Ends when all items are done, when it was asked to stop and no request is under way, or at once when
/// nobody takes the records.
///
/// # Errors
/// [`WorkError`]: the work failed before its end.
pub(crate) async fn work(job: Job) -> Result<Counts, WorkError> {
    let Job { plan, connections, items, records, folder, out, stop, under_way } = job;
    let (slots, per_host) = match plan.pace {
        Pace::Steady { concurrency, per_host } => (concurrency.min(connections), per_host),
        Pace::Burst(_) => (LARGEST_BURST, None),
    };
    // Printed bodies keep the list's order, so no item may go ahead of another.
    let waits = plan.bodies != Bodies::Printed && (per_host.is_some() || plan.retries.most > 0);
    let places = if waits { slots + (slots * AHEAD.0).max(AHEAD.1) } else { slots };
    // A limit for the client too: only it knows where redirects lead.
    let at_one_host = per_host.map_or(connections, |most| most.min(connections));
    let client = plan.client.clone().connections(connections).connections_per_host(at_one_host);
    let client = client.idle_per_host(connections).waiting(usize::MAX).build_local()?;
    let (alive, mut all_gone) = mpsc::channel(1);
    let worker = Rc::new(Worker {
        client,
        records: records.clone(),
        folder,
        out,
        stop: stop.clone(),
        under_way,
        slots: Semaphore::new(slots),
        places: Arc::new(Semaphore::new(places)),
        hosts: per_host.map(|most| Hosts { most, each: RefCell::default() }),
        failed: RefCell::new(None),
        has_failed: Notify::new(),
        plan,
    });
    let winding_down = Rc::downgrade(&worker);
    tokio::task::spawn_local(async move {
        stop.reached(1).await;
        if let Some(worker) = winding_down.upgrade() {
            worker.slots.close();
            worker.places.close();
        }
    });
    let mut all = pin!(async {
        match worker.plan.pace {
            Pace::Steady { .. } => worker.one_after_another(items, alive).await,
            Pace::Burst(most) => worker.burst(items, most, alive).await?,
        }
        all_gone.recv().await;
        Ok::<(), WorkError>(())
    });
    let mut unwanted = pin!(records.closed());
    let mut failing = pin!(worker.has_failed.notified());
    poll_fn(|context| {
        if unwanted.as_mut().poll(context).is_ready() || failing.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        all.as_mut().poll(context)
    })
    .await?;
    match worker.failed.take() {
        Some(error) => Err(error),
        None => Ok(worker.client.counts()),
    }
}

/// Each task holds one; when all are dropped, all tasks have ended.
type Alive = mpsc::Sender<Infallible>;

struct Worker {
    plan: Plan,
    client: Client,
    records: mpsc::Sender<Record>,
    folder: Option<Folder>,
    out: SharedWriter,
    stop: Shutdown,
    under_way: Arc<AtomicUsize>,
    slots: Semaphore,
    places: Arc<Semaphore>,
    hosts: Option<Hosts>,
    failed: RefCell<Option<WorkError>>,
    has_failed: Notify,
}

impl Worker {
    async fn one_after_another(self: &Rc<Self>, mut items: mpsc::Receiver<Vec<Item>>, alive: Alive) {
        while let Some(batch) = self.unless_stopped(items.recv()).await.flatten() {
            for item in batch {
                let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
                let (worker, alive) = (Rc::clone(self), alive.clone());
                tokio::task::spawn_local(async move {
                    worker.fetch(item, None).await;
                    drop((place, alive));
                });
            }
        }
    }

    /// Reads the whole list, then begins all requests.
    async fn burst(
        self: &Rc<Self>,
        mut items: mpsc::Receiver<Vec<Item>>,
        most: Option<usize>,
        alive: Alive,
    ) -> Result<(), WorkError> {
        let limit = most.unwrap_or(LARGEST_BURST);
        let mut list = Vec::new();
        while let Some(batch) = self.unless_stopped(items.recv()).await.flatten() {
            list.extend(batch.into_iter().map(|item| item.asked));
            if list.len() > limit {
                return Err(WorkError::Burst { most: limit });
            }
        }
        if self.stop.count() > 0 {
            return Ok(());
        }
        let began = monotonic_ns();
        let count = if list.is_empty() { 0 } else { most.unwrap_or(list.len()) };
        for (i, asked) in list.iter().cycle().take(count).enumerate() {
            let item = Item { n: i as u64 + 1, asked: asked.clone() };
            let (worker, alive) = (Rc::clone(self), alive.clone());
            tokio::task::spawn_local(async move {
                worker.fetch(item, Some(began)).await;
                drop(alive);
            });
            if i % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Returns the future's output, or `None` after a request to stop.
    async fn unless_stopped<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let (mut future, mut stopped) = (pin!(future), pin!(self.stop.reached(1)));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => stopped.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Fetches one item, until its record is delivered. Items not begun before the stop have no record.
    async fn fetch(&self, item: Item, burst_began: Option<u64>) {
        let mut record = Record { n: item.n, ..Record::default() };
        let fetched = match item.asked {
            Ok(asked) => self.fetch_asked(asked, &mut record).await,
            Err(why) => {
                record.error = Some(Failure::of_line(why));
                Some(())
            }
        };
        if fetched.is_some() {
            record.since_burst = burst_began.map(|began| Duration::from_nanos(monotonic_ns() - began));
            // The receiver is gone only if the work has ended.
            let _ = self.records.send(record).await;
        }
    }

    async fn fetch_asked(&self, asked: ItemRequest, record: &mut Record) -> Option<()> {
        let body = asked.body.map(Bytes::from).or_else(|| self.plan.defaults.body.clone());
        record.method = self.plan.defaults.method(asked.method.as_deref(), body.is_some()).to_owned();
        (record.url, record.id) = (asked.url, asked.id);
        let endpoint: Endpoint = match record.url.parse() {
            Ok(endpoint) => endpoint,
            Err(error) => {
                record.error = Some(Failure { kind: "request", ..Failure::of_line(error.to_string()) });
                return Some(());
            }
        };
        let endpoint = match &self.plan.unix {
            Some(socket) => endpoint.with_unix(socket.clone()),
            None => endpoint,
        };
        let idempotent = is_idempotent(&record.method);
        loop {
            let again = {
                let _host = match &self.hosts {
                    Some(hosts) => Some(hosts.enter(&endpoint).await),
                    None => None,
                };
                // Released during the wait for the next attempt.
                let Ok(_slot) = self.slots.acquire().await else { return (record.attempts > 0).then_some(()) };
                record.attempts += 1;
                let _under_way = UnderWay::new(&self.under_way);
                let request = self.request(&endpoint, &record.method, &asked.headers.0, body.clone());
                self.attempt(request, record, idempotent).await?
            };
            let Some(wait) = again else { return Some(()) };
            if self.unless_stopped(tokio::time::sleep(wait)).await.is_none() {
                return Some(());
            }
        }
    }

    fn request(
        &self,
        endpoint: &Endpoint,
        method: &str,
        headers: &[(String, Option<String>)],
        body: Option<Bytes>,
    ) -> RequestBuilder<Client> {
        let mut request = self.client.request(method.to_owned(), endpoint);
        for (name, value) in &self.plan.defaults.headers {
            if !headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)) {
                request = request.header(name, value);
            }
        }
        for (name, value) in headers {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        match body {
            Some(body) => request.body(body),
            None => request,
        }
    }

    /// Sends a request and receives its answer. Returns the wait before a retry, if there is one; `None` if the work
    /// has failed.
    async fn attempt(
        &self,
        request: RequestBuilder<Client>,
        record: &mut Record,
        idempotent: bool,
    ) -> Option<Option<Duration>> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        *record = Record {
            n: record.n,
            id: record.id.take(),
            method: std::mem::take(&mut record.method),
            url: std::mem::take(&mut record.url),
            attempts: record.attempts,
            started_unix_s: Some(now.as_secs_f64()),
            ..Record::default()
        };
        let mut held = Vec::new();
        let answered = match request.send().await {
            Ok(response) => match self.receive(response, record, &mut held).await {
                Ok(received) => received,
                Err(source) => return self.fail(WorkError::Body { url: record.url.clone(), source }),
            },
            Err(error) => Err(error),
        };
        let outcome = match &answered {
            Ok(after) => {
                let status = record.status.unwrap_or_default();
                record.ok = status < 400;
                Outcome::Status(status, after.as_deref())
            }
            Err(error) => {
                // A failure within the body lacks the count; the record has it by then.
                record.redirects = record.redirects.max(error.redirects());
                record.timings = Some(Times(error.timings()));
                let failure = record.error.insert(Failure::of(error, idempotent));
                Outcome::Failed { passing: may_pass(error.cause()), safe: failure.retry_safe }
            }
        };
        let again = retry::wait(&self.plan.retries, record.attempts, outcome, idempotent);
        if let Err(error) = &answered
            && error.phase() == Phase::Request
            && error.redirects() == 0
        {
            // The request is invalid, and nothing was sent, so this was no attempt.
            (record.attempts, record.started_unix_s, record.timings) = (record.attempts - 1, None, None);
        }
        if again.is_none()
            && let Err(source) = print(&self.out, &held)
        {
            return self.fail(WorkError::Body { url: record.url.clone(), source });
        }
        Some(again)
    }

    /// Receives the body, into `held` if it is to be printed and a retry may follow. Returns the value of
    /// `Retry-After`, or the request's failure.
    ///
    /// # Errors
    /// The body cannot be written.
    async fn receive(
        &self,
        mut response: Response,
        record: &mut Record,
        held: &mut Vec<u8>,
    ) -> io::Result<Result<Option<String>, oroshi_client::Error>> {
        let retry_after = response.headers().get_str("Retry-After").map(str::to_owned);
        record.status = Some(response.status());
        record.redirects = response.redirects();
        record.final_url = (record.redirects > 0).then(|| response.url().to_string());
        record.http = Some(response.version().number());
        record.remote = response.remote_address().map(|address| address.to_string());
        record.coding = response.coding().map(oroshi_client::Coding::name);
        record.headers = self.plan.headers.then(|| {
            let text = |value| String::from_utf8_lossy(value).into_owned();
            response.headers().iter().map(|(name, value)| (name.to_owned(), text(value))).collect()
        });
        let held = (record.attempts <= self.plan.retries.most).then_some(held);
        let mut sink =
            Sink::of(&self.plan.bodies, self.folder.as_ref(), &self.out, held, || name(record.n, &record.url))?;
        let mut chunks = response.chunks();
        loop {
            match chunks.next().await {
                Ok(Some(piece)) => {
                    record.body_bytes += piece.len() as u64;
                    sink.write(piece)?;
                }
                Ok(None) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
        record.timings = Some(Times(response.timings()));
        record.body_file = sink.finish()?;
        Ok(Ok(retry_after))
    }

    /// Fails the work as a whole.
    fn fail<T>(&self, error: WorkError) -> Option<T> {
        self.failed.borrow_mut().get_or_insert(error);
        self.has_failed.notify_one();
        None
    }
}

/// Whether the cause is temporary, rather than in the request, its answer or the settings.
fn may_pass(cause: &Cause) -> bool {
    matches!(
        cause,
        Cause::Timeout { .. }
            | Cause::Resolve { .. }
            | Cause::Connect(_)
            | Cause::Io(_)
            | Cause::Response(DecodeError::UnexpectedEof)
    )
}

/// Counts a request as under way while it lives.
struct UnderWay<'c>(&'c AtomicUsize);

impl<'c> UnderWay<'c> {
    fn new(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

type Host = (Scheme, Address);

/// Requests under way per host; hosts without any are absent.
struct Hosts {
    most: usize,
    each: RefCell<HashMap<Host, Arc<Semaphore>>>,
}

/// A request's place at its host; dropping it frees the place.
struct AtHost<'h> {
    hosts: &'h Hosts,
    host: Host,
    permit: Option<OwnedSemaphorePermit>,
}

impl Hosts {
    /// Waits until the host has room, first come, first served.
    async fn enter(&self, endpoint: &Endpoint) -> AtHost<'_> {
        let host = (endpoint.scheme, endpoint.address.clone());
        let room = Arc::clone(
            self.each.borrow_mut().entry(host.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.most))),
        );
        // The semaphore is never closed.
        let permit = room.acquire_owned().await.ok();
        AtHost { hosts: self, host, permit }
    }
}

impl Drop for AtHost<'_> {
    fn drop(&mut self) {
        self.permit = None;
        let mut each = self.hosts.each.borrow_mut();
        // Waiting requests hold a reference as well.
        if each.get(&self.host).is_some_and(|room| Arc::strong_count(room) == 1) {
            each.remove(&self.host);
        }
    }
}
