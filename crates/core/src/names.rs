//! From names to addresses: a cache of answers and refusals, one look-up for all who ask at once, and few threads.
//!
//! getaddrinfo(3) blocks, so it runs on threads of its own: at most [`THREADS`] for each [`Names`], started when there is something to look
//! up and ended when there is not. A look-up that hangs holds one of them, and nobody else; nothing waits for it when the process ends.
//! It tells no TTL, so its answers are kept for as long as the settings say; a [`Lookup`] of one's own may tell one.

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

/// Threads that look names up, at most: so many name servers that do not answer hold up nobody else, and thousands of
/// names are not looked up one after another.
const THREADS: usize = 32;

/// Names whose answers are kept, at most.
const NAMES: usize = 10_000;

/// Look-ups that may lie about unfetched before anybody looks, at least.
const TIDY: usize = 16;

/// What a look-up found.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// The addresses, the best first. None at all is a failure.
    pub addresses: Vec<IpAddr>,
    /// How long they are good for, where that is known; otherwise the settings say.
    pub ttl: Option<Duration>,
}

/// Looks a name up, on a thread on which it may block.
pub type Lookup = Arc<dyn Fn(&str) -> io::Result<Addresses> + Send + Sync>;

/// What the system says: getaddrinfo(3), with /etc/hosts and all else that it is set up to ask. Blocks.
///
/// # Errors
/// What getaddrinfo(3) says.
pub fn system(host: &str) -> io::Result<Addresses> {
    let mut addresses = Vec::new();
    for address in (host, 0).to_socket_addrs()? {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    Ok(Addresses { addresses, ttl: None })
}

/// An answer that may be shared, or why there is none.
pub type Answer = Result<Rc<[IpAddr]>, Arc<io::Error>>;

/// How long answers are kept when they do not say so themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ttl {
    /// Addresses.
    pub positive: Duration,
    /// Failures.
    pub negative: Duration,
}

/// The names that one core has asked for, and their addresses.
pub struct Names {
    cache: Cache,
    /// Look-ups that are under way, or that nobody has fetched yet.
    flights: HashMap<Box<str>, Arc<Flight>>,
    /// With how many of them it is time to fetch those that nobody came for.
    tidy_at: usize,
    threads: Arc<Threads>,
    /// How many look-ups and askers there have been.
    count: u64,
}

/// The number of somebody who waits for an answer.
type Place = Option<u64>;

impl Names {
    /// No names yet.
    #[must_use]
    pub fn new(lookup: Lookup, ttl: Ttl) -> Self {
        let threads = Arc::new(Threads { lookup, jobs: Mutex::default() });
        Names { cache: Cache::new(ttl, NAMES), flights: HashMap::new(), tidy_at: TIDY, threads, count: 0 }
    }

    /// Asks for the addresses of a host: those that are known, or else from a look-up, which all share who ask for it at the same time.
    pub fn ask<'n>(names: &'n RefCell<Names>, host: &'n str) -> Asking<'n> {
        Asking { names, host, place: None }
    }

    /// The answer for a host, if it is there; otherwise it is being looked up, and the task will be woken. `place` is the
    /// asker's own, and begins as `None`; who has one and does not come back says so with [`leave`](Self::leave).
    fn poll(&mut self, host: &str, place: &mut Place, context: &Context<'_>) -> Poll<Answer> {
        if let Some(answer) = self.cache.get(host, monotonic_ns()) {
            return Poll::Ready(answer);
        }
        let asker = *place.get_or_insert_with(|| {
            self.count += 1;
            self.count
        });
        if let Some(flight) = self.flights.get(host) {
            if !flight.poll(asker, context) {
                return Poll::Pending;
            }
            self.land(host);
            if let Some(answer) = self.cache.get(host, monotonic_ns()) {
                return Poll::Ready(answer);
            }
        }
        // It may also have been good for no time at all, or for less than it took to come here.
        self.tidy();
        self.count += 1;
        let flight = Arc::new(Flight { number: self.count, state: Mutex::default() });
        flight.poll(asker, context);
        self.flights.insert(host.into(), Arc::clone(&flight));
        self.threads.look_up(host, flight);
        Poll::Pending
    }

    /// Waits no more. A look-up that nobody waits for is not begun; one that is under way goes on, and its answer is kept.
    fn leave(&mut self, host: &str, place: Place) {
        if let Some(asker) = place
            && let Some(flight) = self.flights.get(host)
            && flight.leave(asker)
            && self.threads.cancel(flight)
        {
            self.flights.remove(host);
        }
    }

    /// Remembers which of a host's addresses could be connected to.
    pub fn prefer(&mut self, host: &str, address: IpAddr) {
        self.cache.prefer(host, address);
    }

    /// Moves what has been found for a host into the cache.
    fn land(&mut self, host: &str) {
        if let Some((host, flight)) = self.flights.remove_entry(host)
            && let Some((found, at)) = flight.take()
        {
            self.cache.put(&host, found, at);
        }
    }

    /// Does so with answers that nobody came for, so that what is kept here does not grow. Not each time: with thousands of names under way,
    /// all of them would be looked at for each.
    fn tidy(&mut self) {
        if self.flights.len() < self.tidy_at {
            return;
        }
        let cache = &mut self.cache;
        self.flights.retain(|host, flight| match flight.take() {
            Some((found, at)) => {
                cache.put(host, found, at);
                false
            }
            None => true,
        });
        self.tidy_at = TIDY.max(2 * self.flights.len());
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("cached", &self.cache.entries.len())
            .field("flights", &self.flights.len())
            .finish()
    }
}

/// Waits for a host's addresses. Asks no more when dropped; a look-up that is under way goes on, and its answer is kept.
pub struct Asking<'n> {
    names: &'n RefCell<Names>,
    host: &'n str,
    place: Place,
}

impl Future for Asking<'_> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Asking { names, host, place } = self.get_mut();
        names.borrow_mut().poll(host, place, context)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.names.borrow_mut().leave(self.host, self.place);
    }
}

impl fmt::Debug for Asking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Answers, good until some time. Knows no clock.
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
    /// Whether somebody has had it: an answer that is good for no time at all is still good for those who waited for it.
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

    /// Drops what is over, or else the oldest tenth: with one at a time, all would be looked at for each new name.
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

/// An answer is good for all who waited for it, whatever its TTL: they fetch it within this time.
const SHORTEST: Duration = Duration::from_millis(100);

/// One look-up, and those who wait for it.
struct Flight {
    number: u64,
    state: Mutex<FlightState>,
}

#[derive(Default)]
struct FlightState {
    found: Option<(io::Result<Addresses>, u64)>,
    /// By the number of who waits.
    wakers: BTreeMap<u64, Waker>,
}

impl Flight {
    /// Whether it has landed; if not, the task will be woken when it does.
    fn poll(&self, asker: u64, context: &Context<'_>) -> bool {
        let mut state = lock(&self.state);
        if state.found.is_some() {
            return true;
        }
        state
            .wakers
            .entry(asker)
            .and_modify(|waker| waker.clone_from(context.waker()))
            .or_insert_with(|| context.waker().clone());
        false
    }

    /// Takes an asker out, whose waker would keep its task alive. Whether nobody is left.
    fn leave(&self, asker: u64) -> bool {
        let mut state = lock(&self.state);
        state.wakers.remove(&asker);
        state.wakers.is_empty()
    }

    fn land(&self, found: io::Result<Addresses>) {
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

/// The threads that look names up.
struct Threads {
    lookup: Lookup,
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    running: usize,
    /// By their numbers: first in, first out.
    queue: BTreeMap<u64, (String, Arc<Flight>)>,
}

impl Threads {
    fn look_up(self: &Arc<Self>, host: &str, flight: Arc<Flight>) {
        let mut jobs = lock(&self.jobs);
        jobs.queue.insert(flight.number, (host.to_owned(), flight));
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
            // With another thread at work it only takes longer.
            if jobs.running == 0 {
                for (_, flight) in std::mem::take(&mut jobs.queue).into_values() {
                    flight.land(Err(io::Error::new(error.kind(), "no thread could be started to look it up")));
                }
            }
        }
    }

    fn run(&self) {
        while let Some((host, flight)) = self.next() {
            // A look-up of somebody else's may panic: that is its caller's failure, and not to be waited for without end.
            let lookup = std::panic::AssertUnwindSafe(|| (self.lookup)(&host));
            let found =
                std::panic::catch_unwind(lookup).unwrap_or_else(|_| Err(io::Error::other("the look-up panicked")));
            flight.land(found);
        }
    }

    fn next(&self) -> Option<(String, Arc<Flight>)> {
        let mut jobs = lock(&self.jobs);
        let next = jobs.queue.pop_first();
        if next.is_none() {
            jobs.running -= 1;
        }
        next.map(|(_, job)| job)
    }

    /// Takes a look-up back that was not begun. Whether it was not.
    fn cancel(&self, flight: &Flight) -> bool {
        lock(&self.jobs).queue.remove(&flight.number).is_some()
    }
}

/// What is behind these locks is sound between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
