//! Asks the stores for a key: once for all waiters, tier by tier. Runs on the stores' thread.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::answer::{Answer, Failure, Outcome, StoreError, Tier};
use crate::clock;
use crate::counts::Tally;
use crate::flight::{Flights, Join};
use crate::lookup::{Shared, Waiter};
use crate::memcached::{self, Memcached};
use crate::memory::{Memory, StoreAnswer};
use crate::stores::ThreadState;
use crate::value::Targets;

/// The value in memcached for a key without a value: no target can look like it.
pub(crate) const NONE: &[u8] = b"!none";

/// Looks a key up for a waiter, or, without a waiter, refreshes it.
pub(crate) fn ask(thread: &Rc<ThreadState>, shared: &Arc<Shared>, key: Box<str>, waiter: Option<Waiter>) {
    // The answer may have arrived after the caller looked into memory.
    let kept = shared.memory.as_ref().and_then(|memory| memory.peek(&key, clock::now()));
    let waiter = match (waiter, kept.filter(|kept| !kept.ttl_left.is_zero())) {
        (Some(waiter), Some(kept)) => {
            let outcome = match kept.value {
                Ok(targets) => Outcome::Hit(targets),
                Err(reason) => reason.map_or(Outcome::Negative, Outcome::Invalid),
            };
            shared.joined.more();
            return waiter.answer(Answer { outcome, tier: Tier::Memory, age: kept.age, ttl_left: kept.ttl_left });
        }
        (waiter, _) => waiter,
    };
    let join = {
        let mut all = thread.flights.borrow_mut();
        let flights = all.entry(shared.number).or_insert_with(|| Flights::new(shared.settings.keys_in_flight));
        let join = flights.join(&key, waiter);
        shared.keys_in_flight.store(flights.len() as u64, Relaxed);
        join
    };
    match join {
        Join::Wait => shared.joined.more(),
        Join::Begin => drop(spawn_local(fly(Flight { thread: Rc::clone(thread), shared: Arc::clone(shared), key }))),
        Join::Full(waiter) => {
            shared.overloaded.more();
            if let Some(waiter) = waiter {
                waiter.answer(answer(Outcome::Overloaded, Tier::None, Duration::ZERO));
            }
        }
    }
}

/// A look-up under way. Dropping it releases all its waiters, however it ends.
struct Flight {
    thread: Rc<ThreadState>,
    shared: Arc<Shared>,
    key: Box<str>,
}

impl Flight {
    fn finish(&self) -> Vec<Option<Waiter>> {
        let mut all = self.thread.flights.borrow_mut();
        let Some(flights) = all.get_mut(&self.shared.number) else { return Vec::new() };
        let waiters = flights.finish(&self.key);
        self.shared.keys_in_flight.store(flights.len() as u64, Relaxed);
        waiters
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // In a statement of its own: dropped waiters must find nothing borrowed.
        let left = self.finish();
        drop(left);
    }
}

async fn fly(flight: Flight) {
    let shared = &flight.shared;
    let purges = shared.memory.as_ref().map_or(0, Memory::purges);
    let asking = resolve(&flight.thread, shared, &flight.key, purges);
    let found = timeout(shared.settings.wait, asking).await.unwrap_or_else(|_| Err(shared.error(Failure::Timeout)));
    let memory = shared.memory.as_ref();
    let answer = match found {
        Ok((said, tier)) => {
            let keep = |memory: &Memory| memory.keep(&flight.key, &said, tier, clock::now(), fastrand::f64(), purges);
            let ttl = memory.map(keep).unwrap_or_default();
            let outcome = match said {
                StoreAnswer::Targets(targets) => Outcome::Hit(targets),
                StoreAnswer::Refusal(reason) => reason.map_or(Outcome::Negative, Outcome::Invalid),
            };
            answer(outcome, tier, ttl)
        }
        Err(error) => {
            shared.failed(&error);
            memory.into_iter().for_each(|memory| memory.could_not_ask(&flight.key, clock::now()));
            answer(Outcome::StoreDown(error), Tier::None, Duration::ZERO)
        }
    };
    // Kept first, and on the same thread: later look-ups find the answer in memory.
    flight.finish().into_iter().flatten().for_each(|waiter| waiter.answer(answer.clone()));
}

/// Asks the tiers in order.
async fn resolve(
    thread: &Rc<ThreadState>,
    shared: &Arc<Shared>,
    key: &str,
    purges: u64,
) -> Result<(StoreAnswer, Tier), StoreError> {
    // A look-up uses the same stores to its end, even if others replace them meanwhile.
    let stores = shared.stores();
    let mut cache = None;
    if let (Some(tier), Some(name)) = (&shared.settings.memcached, &shared.memcached_store) {
        let store = thread.memcached(stores.number(), name)?;
        let its_key = memcached::key_of(&tier.prefix, key);
        let asked = timed(&shared.memcached, store.get(&its_key)).await;
        let asked_well = asked.is_ok();
        let last = shared.sql_store.is_none();
        match asked {
            Ok(Some(value)) => match read(shared, &value) {
                // An invalid value in a cache says nothing about the key: the database decides.
                StoreAnswer::Refusal(Some(reason)) => {
                    shared.memcached.invalid.more();
                    if last {
                        return Ok((StoreAnswer::Refusal(Some(reason)), Tier::Memcached));
                    }
                }
                StoreAnswer::Refusal(None) => {
                    shared.memcached.negatives.more();
                    return Ok((StoreAnswer::Refusal(None), Tier::Memcached));
                }
                said @ StoreAnswer::Targets(_) => {
                    shared.memcached.hits.more();
                    return Ok((said, Tier::Memcached));
                }
            },
            Ok(None) if last => {
                shared.memcached.misses.more();
                return Ok((StoreAnswer::Refusal(None), Tier::Memcached));
            }
            Ok(None) => shared.memcached.misses.more(),
            Err(error) if last => return Err(error),
            Err(_) => {}
        }
        // A server that has just failed to answer gets no write either.
        if tier.write_back && asked_well {
            cache = Some(WriteBack { store, key: its_key, ttl: tier.ttl, negative_ttl: tier.negative_ttl });
        }
    }
    let name = shared.sql_store.as_ref().ok_or_else(|| shared.error(Failure::Unknown))?;
    let store = thread.sql(stores.number(), name)?;
    let value = timed(&shared.sql, store.look_up(&shared.user, &shared.query, key)).await?;
    let said = value.as_deref().map_or(StoreAnswer::Refusal(None), |value| read_value(shared, value));
    let tally = match said {
        StoreAnswer::Targets(_) => &shared.sql.hits,
        StoreAnswer::Refusal(None) => &shared.sql.negatives,
        StoreAnswer::Refusal(Some(_)) => &shared.sql.invalid,
    };
    tally.more();
    if let Some(cache) = cache {
        write_back(shared, cache, value, &said, purges);
    }
    Ok((said, Tier::Sql))
}

/// Asks the tiers for a value that the caller interprets.
pub(crate) async fn value(
    thread: Rc<ThreadState>,
    shared: Arc<Shared>,
    key: Box<str>,
) -> Result<Option<Vec<u8>>, StoreError> {
    let stores = shared.stores();
    let mut cache = None;
    if let (Some(tier), Some(name)) = (&shared.settings.memcached, &shared.memcached_store) {
        let store = thread.memcached(stores.number(), name)?;
        let its_key = memcached::key_of(&tier.prefix, &key);
        let last = shared.sql_store.is_none();
        match timed(&shared.memcached, store.get(&its_key)).await {
            Ok(Some(value)) if &*value == NONE => {
                shared.memcached.negatives.more();
                return Ok(None);
            }
            Ok(Some(value)) => {
                shared.memcached.hits.more();
                return Ok(Some(value.into_vec()));
            }
            Ok(None) => {
                shared.memcached.misses.more();
                if last {
                    return Ok(None);
                }
                if tier.write_back {
                    cache = Some(WriteBack { store, key: its_key, ttl: tier.ttl, negative_ttl: tier.negative_ttl });
                }
            }
            Err(error) if last => return Err(error),
            // A server that has just failed to answer gets no write either.
            Err(_) => {}
        }
    }
    let name = shared.sql_store.as_ref().ok_or_else(|| shared.error(Failure::Unknown))?;
    let store = thread.sql(stores.number(), name)?;
    let value = timed(&shared.sql, store.look_up(&shared.user, &shared.query, &key)).await?;
    if value.is_some() {
        shared.sql.hits.more();
    } else {
        shared.sql.negatives.more();
    }
    if let Some(WriteBack { store, key, ttl, negative_ttl }) = cache {
        let written = match &value {
            Some(value) => Some((value.clone(), ttl)),
            None => negative_ttl.map(|ttl| (NONE.to_vec(), ttl)),
        };
        if let Some((value, ttl)) = written {
            let shared = Arc::clone(&shared);
            spawn_local(async move {
                match store.set(&key, &value, Some(ttl)).await {
                    Ok(()) => shared.memcached.writes.more(),
                    Err(_) => shared.memcached.write_errors.more(),
                }
            });
        }
    }
    Ok(value)
}

/// The target of a write-back in memcached.
struct WriteBack {
    store: Rc<Memcached>,
    key: Vec<u8>,
    ttl: Duration,
    negative_ttl: Option<Duration>,
}

/// Writes the database's answer to memcached; nobody waits for it.
fn write_back(shared: &Arc<Shared>, target: WriteBack, value: Option<Vec<u8>>, said: &StoreAnswer, purges: u64) {
    let (value, ttl) = match (said, value) {
        (StoreAnswer::Targets(_), Some(value)) => (value, target.ttl),
        (StoreAnswer::Refusal(None), _) => match target.negative_ttl {
            Some(ttl) => (NONE.to_vec(), ttl),
            None => return,
        },
        _ => return,
    };
    let shared = Arc::clone(shared);
    spawn_local(async move {
        // The answer may be older than a purge that came meanwhile.
        if shared.memory.as_ref().is_some_and(|memory| memory.purges() != purges) {
            return;
        }
        match target.store.set(&target.key, &value, Some(ttl)).await {
            Ok(()) => shared.memcached.writes.more(),
            Err(_) => shared.memcached.write_errors.more(),
        }
    });
}

/// Interprets a value from memcached.
pub(crate) fn read(shared: &Shared, value: &[u8]) -> StoreAnswer {
    if value == NONE { StoreAnswer::Refusal(None) } else { read_value(shared, value) }
}

/// Interprets a value from the database.
pub(crate) fn read_value(shared: &Shared, value: &[u8]) -> StoreAnswer {
    match Targets::parse(value, &shared.settings.allow) {
        Ok(targets) => StoreAnswer::Targets(targets),
        Err(error) => StoreAnswer::Refusal(Some(error.to_string().into())),
    }
}

async fn timed<T>(tally: &Tally, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let started = Instant::now();
    let unanswered = Unanswered(tally);
    let result = work.await;
    std::mem::forget(unanswered);
    match &result {
        Ok(_) => tally.took(started.elapsed()),
        Err(StoreError { failure: Failure::Timeout, .. }) => tally.timeouts.more(),
        Err(_) => tally.errors.more(),
    }
    result
}

/// A request to a store without an answer yet. Dropping it counts a timeout.
struct Unanswered<'a>(&'a Tally);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.timeouts.more();
    }
}

fn answer(outcome: Outcome, tier: Tier, ttl_left: Duration) -> Answer {
    Answer { outcome, tier, age: Duration::ZERO, ttl_left }
}
