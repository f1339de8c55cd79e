//! A cache of the addresses of names. Concurrent requests for a name share one query.
//!
//! getaddrinfo(3) blocks, so queries run on threads of their own, at most [`THREADS`] for each [`Names`]. A thread
//! starts when there is a query and ends when there is none. A query that hangs occupies one thread; the process can
//! end without it. getaddrinfo(3) returns no TTL, so the settings say how long an answer is kept; another [`Lookup`]
//! may return one.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use oroshi_net::monotonic_ns;

use crate::deadlines::after;

/// The most threads that run queries. Name servers that do not answer block at most so many, and thousands of names are
/// not resolved one after another.
const THREADS: usize = 32;

/// The most names whose answers are kept.
const NAMES: usize = 10_000;

/// The least number of queries at which those that ended without a waiter move to the cache.
const TIDY: usize = 16;

/// The result of a query.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// The addresses, the best first. An empty list is a failure.
    pub addresses: Vec<IpAddr>,
    /// How long they are valid, if known; otherwise the settings say.
    pub ttl: Option<Duration>,
}

/// A function that resolves a name, on a thread where it may block.
pub type Lookup = Arc<dyn Fn(&str) -> io::Result<Addresses> + Send + Sync>;

/// Resolves a name with getaddrinfo(3), which also reads /etc/hosts. Blocks.
///
/// # Errors
/// The error of getaddrinfo(3).
pub fn system(host: &str) -> io::Result<Addresses> {
    let mut addresses = Vec::new();
    for address in (host, 0).to_socket_addrs()? {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    Ok(Addresses { addresses, ttl: None })
}

/// The addresses of a name, or the error of the query; cheap to clone.
pub type Answer = Result<Rc<[IpAddr]>, Arc<io::Error>>;

/// How long answers without a TTL of their own are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ttl {
    /// For addresses.
    pub positive: Duration,
    /// For failures.
    pub negative: Duration,
}

/// The resolved names of one thread.
pub struct Names {
    cache: Cache,
    /// Queries under way, and ended ones whose answer is not in the cache yet.
    queries: HashMap<Box<str>, Arc<Query>>,
    /// The number of queries at which ended ones without a waiter move to the cache.
    tidy_at: usize,
    threads: Arc<Threads>,
    /// The number of queries and waiters so far.
    count: u64,
}

/// The number of a task that waits for an answer, once it waits.
type Waiter = Option<u64>;

impl Names {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(lookup: Lookup, ttl: Ttl) -> Self {
        let threads = Arc::new(Threads { lookup, jobs: Mutex::default() });
        Names { cache: Cache::new(ttl, NAMES), queries: HashMap::new(), tidy_at: TIDY, threads, count: 0 }
    }

    /// Resolves a host, from the cache or by a query.
    pub fn resolve<'n>(names: &'n RefCell<Names>, host: &'n str) -> Resolving<'n> {
        Resolving { names, host, waiter: None }
    }

    /// Returns the answer for a host if it is known; otherwise wakes the task when the query ends. `waiter` begins as
    /// `None`. A task that stops waiting calls [`leave`](Self::leave).
    fn poll(&mut self, host: &str, waiter: &mut Waiter, context: &Context<'_>) -> Poll<Answer> {
        if let Some(answer) = self.cache.get(host, monotonic_ns()) {
            return Poll::Ready(answer);
        }
        let number = *waiter.get_or_insert_with(|| {
            self.count += 1;
            self.count
        });
        if let Some(query) = self.queries.get(host) {
            if !query.poll(number, context) {
                return Poll::Pending;
            }
            self.cache_answer(host);
            if let Some(answer) = self.cache.get(host, monotonic_ns()) {
                return Poll::Ready(answer);
            }
        }
        // There was no query, or its answer has expired before this task ran.
        self.tidy();
        self.count += 1;
        let query = Arc::new(Query { number: self.count, state: Mutex::default() });
        query.poll(number, context);
        self.queries.insert(host.into(), Arc::clone(&query));
        self.threads.start(host, query);
        Poll::Pending
    }

    /// Removes a waiter. Without waiters a queued query is cancelled; one under way continues, and its answer is kept.
    fn leave(&mut self, host: &str, waiter: Waiter) {
        if let Some(number) = waiter
            && let Some(query) = self.queries.get(host)
            && query.leave(number)
            && self.threads.cancel(query)
        {
            self.queries.remove(host);
        }
    }

    /// Moves the address that accepted a connection to the front of the host's addresses.
    pub fn prefer(&mut self, host: &str, address: IpAddr) {
        self.cache.prefer(host, address);
    }

    /// Moves the answer of an ended query to the cache.
    fn cache_answer(&mut self, host: &str) {
        if let Some((host, query)) = self.queries.remove_entry(host)
            && let Some((found, at)) = query.take()
        {
            self.cache.put(&host, found, at);
        }
    }

    /// Moves the answers of all ended queries to the cache, so that unclaimed ones do not pile up. Runs seldom, because
    /// it looks at every query.
    fn tidy(&mut self) {
        if self.queries.len() < self.tidy_at {
            return;
        }
        let cache = &mut self.cache;
        self.queries.retain(|host, query| match query.take() {
            Some((found, at)) => {
                cache.put(host, found, at);
                false
            }
            None => true,
        });
        self.tidy_at = TIDY.max(2 * self.queries.len());
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("cached", &self.cache.entries.len())
            .field("queries", &self.queries.len())
            .finish()
    }
}

/// Waits for the addresses of a host. Dropping it stops the wait; a query under way continues, and its answer is kept.
#[derive(Debug)]
pub struct Resolving<'n> {
    names: &'n RefCell<Names>,
    host: &'n str,
    waiter: Waiter,
}

impl Future for Resolving<'_> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Resolving { names, host, waiter } = self.get_mut();
        names.borrow_mut().poll(host, waiter, context)
    }
}

impl Drop for Resolving<'_> {
    fn drop(&mut self) {
        self.names.borrow_mut().leave(self.host, self.waiter);
    }
}

/// Answers with their expiry. The time is an argument.
#[derive(Debug)]
struct Cache {
    ttl: Ttl,
    most: usize,
    entries: HashMap<Box<str>, Entry>,
}

#[derive(Debug)]
struct Entry {
    answer: Answer,
    until: u64,
    /// When the query ended: the oldest entries make room.
    at: u64,
}

impl Cache {
    fn new(ttl: Ttl, most: usize) -> Self {
        Cache { ttl, most, entries: HashMap::new() }
    }

    fn get(&self, host: &str, now: u64) -> Option<Answer> {
        self.entries.get(host).filter(|entry| now < entry.until).map(|entry| entry.answer.clone())
    }

    fn put(&mut self, host: &str, found: io::Result<Addresses>, now: u64) {
        let found = match found {
            Ok(found) if found.addresses.is_empty() => Err(io::Error::other("the name has no address")),
            found => found,
        };
        let (answer, ttl): (Answer, Duration) = match found {
            Ok(found) => (Ok(found.addresses.into()), found.ttl.unwrap_or(self.ttl.positive)),
            Err(error) => (Err(Arc::new(error)), self.ttl.negative),
        };
        if self.entries.len() >= self.most && !self.entries.contains_key(host) {
            self.make_room(now);
        }
        self.entries.insert(host.into(), Entry { answer, until: after(now, ttl.max(SHORTEST)), at: now });
    }

    /// Removes expired entries, or else the oldest tenth, so that not every new name walks all entries.
    fn make_room(&mut self, now: u64) {
        self.entries.retain(|_, entry| now < entry.until);
        if self.entries.len() >= self.most {
            let mut times: Vec<u64> = self.entries.values().map(|entry| entry.at).collect();
            let tenth = times.len() / 10;
            let oldest = *times.select_nth_unstable(tenth).1;
            self.entries.retain(|_, entry| entry.at > oldest);
        }
    }

    fn prefer(&mut self, host: &str, address: IpAddr) {
        let Some(Entry { answer: Ok(addresses), .. }) = self.entries.get_mut(host) else { return };
        if let Some(place @ 1..) = addresses.iter().position(|&known| known == address) {
            let mut order = addresses.to_vec();
            order[..=place].rotate_right(1);
            *addresses = order.into();
        }
    }
}

/// The shortest time that an answer is kept, whatever its TTL: all waiters fetch it within this time.
const SHORTEST: Duration = Duration::from_millis(100);

/// A query, and the tasks that wait for it.
struct Query {
    number: u64,
    state: Mutex<QueryState>,
}

#[derive(Default)]
struct QueryState {
    found: Option<(io::Result<Addresses>, u64)>,
    /// By the waiter's number.
    wakers: BTreeMap<u64, Waker>,
}

impl Query {
    /// Returns whether the query has ended. If not, wakes the task when it ends.
    fn poll(&self, number: u64, context: &Context<'_>) -> bool {
        let mut state = lock(&self.state);
        if state.found.is_some() {
            return true;
        }
        state
            .wakers
            .entry(number)
            .and_modify(|waker| waker.clone_from(context.waker()))
            .or_insert_with(|| context.waker().clone());
        false
    }

    /// Removes a waiter, whose waker would keep its task in memory. Returns whether none is left.
    fn leave(&self, number: u64) -> bool {
        let mut state = lock(&self.state);
        state.wakers.remove(&number);
        state.wakers.is_empty()
    }

    fn end(&self, found: io::Result<Addresses>) {
        let mut state = lock(&self.state);
        state.found = Some((found, monotonic_ns()));
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_values().for_each(Waker::wake);
    }

    fn take(&self) -> Option<(io::Result<Addresses>, u64)> {
        lock(&self.state).found.take()
    }
}

/// The threads that run queries.
struct Threads {
    lookup: Lookup,
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    running: usize,
    /// By the query's number: first in, first out.
    queue: BTreeMap<u64, (String, Arc<Query>)>,
}

impl Threads {
    /// Queues a query, and starts a thread for it if there may be one more.
    fn start(self: &Arc<Self>, host: &str, query: Arc<Query>) {
        let mut jobs = lock(&self.jobs);
        jobs.queue.insert(query.number, (host.to_owned(), query));
        if jobs.running >= THREADS {
            return;
        }
        jobs.running += 1;
        drop(jobs);
        let threads = Arc::clone(self);
        let started = std::thread::Builder::new().name("oroshi-dns".to_owned()).spawn(move || threads.run());
        if let Err(error) = started {
            let mut jobs = lock(&self.jobs);
            jobs.running -= 1;
            // If another thread is at work, the query only takes longer.
            if jobs.running == 0 {
                for (_, query) in std::mem::take(&mut jobs.queue).into_values() {
                    query.end(Err(io::Error::new(error.kind(), "no thread could be started to look it up")));
                }
            }
        }
    }

    fn run(&self) {
        while let Some((host, query)) = self.next() {
            // The function comes from outside and may panic; without an answer its waiters would wait forever.
            let lookup = std::panic::AssertUnwindSafe(|| (self.lookup)(&host));
            let found =
                std::panic::catch_unwind(lookup).unwrap_or_else(|_| Err(io::Error::other("the look-up panicked")));
            query.end(found);
        }
    }

    fn next(&self) -> Option<(String, Arc<Query>)> {
        let mut jobs = lock(&self.jobs);
        let next = jobs.queue.pop_first();
        if next.is_none() {
            jobs.running -= 1;
        }
        next.map(|(_, job)| job)
    }

    /// Removes a query from the queue. Returns whether it was queued.
    fn cancel(&self, query: &Query) -> bool {
        lock(&self.jobs).queue.remove(&query.number).is_some()
    }
}

/// Locks, even after a panic: the data is valid between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
