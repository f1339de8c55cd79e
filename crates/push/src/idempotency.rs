//! Publishes that a publisher repeats: each is done once, and all get the receipt of the first.
//!
//! The memory is that of one node. It is bounded in keys, bytes and time.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The longest key, bytes.
pub(crate) const KEY_BYTES: usize = 255;

/// How long a key is remembered, milliseconds.
const REMEMBERED_MS: u64 = 300_000;

/// The most keys that are remembered.
const MOST_KEYS: usize = 10_000;

/// The most bytes of keys and receipts that are remembered.
const MOST_BYTES: usize = 16 << 20;

/// The keys of recent publishes.
#[derive(Debug, Default)]
pub(crate) struct Idempotency {
    memory: Mutex<Memory>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Memory {
    by_key: HashMap<Box<str>, Entry>,
    /// The keys in the order in which they came, with the numbers of their entries and their ends.
    order: VecDeque<(Box<str>, u64, u64)>,
    bytes: usize,
    number: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    digest: u64,
    bytes: usize,
    receipt: watch::Receiver<Option<Arc<[u8]>>>,
}

/// What a key says about a publish.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It is the first with the key: do it.
    First(First),
    /// It was done, or is being done.
    Again(Again),
    /// The key belongs to another publish.
    Other,
}

/// The first publish with a key. If it is dropped without a receipt, the key is free again.
#[derive(Debug)]
pub(crate) struct First {
    all: Arc<Idempotency>,
    key: Box<str>,
    number: u64,
    receipt: watch::Sender<Option<Arc<[u8]>>>,
}

/// A publish whose first is done or being done.
#[derive(Debug)]
pub(crate) struct Again(watch::Receiver<Option<Arc<[u8]>>>);

impl Idempotency {
    /// Returns the digest of a publish.
    pub(crate) fn digest(&self, request: impl Hash) -> u64 {
        self.hasher.hash_one(request)
    }

    /// Looks a key up at `now`, in milliseconds, and remembers it if it is new.
    pub(crate) fn begin(self: &Arc<Self>, key: &str, digest: u64, now: u64) -> Begun {
        let mut memory = self.lock();
        memory.forget(now);
        match memory.by_key.get(key) {
            Some(known) if known.digest == digest => return Begun::Again(Again(known.receipt.clone())),
            Some(_) => return Begun::Other,
            None => {}
        }
        memory.number += 1;
        let (number, key) = (memory.number, Box::<str>::from(key));
        let (sender, receipt) = watch::channel(None);
        let bytes = key.len();
        memory.bytes += bytes;
        memory.order.push_back((key.clone(), number, now.saturating_add(REMEMBERED_MS)));
        memory.by_key.insert(key.clone(), Entry { number, digest, bytes, receipt });
        Begun::First(First { all: Arc::clone(self), key, number, receipt: sender })
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// Forgets what is old or too much.
    fn forget(&mut self, now: u64) {
        while let Some((_, _, end)) = self.order.front()
            && (*end <= now || self.order.len() >= MOST_KEYS || self.bytes > MOST_BYTES)
        {
            let Some((key, number, _)) = self.order.pop_front() else { return };
            self.remove(&key, number);
        }
    }

    fn remove(&mut self, key: &str, number: u64) {
        if self.by_key.get(key).is_some_and(|entry| entry.number == number)
            && let Some(entry) = self.by_key.remove(key)
        {
            self.bytes -= entry.bytes;
        }
    }
}

impl First {
    /// Keeps the receipt for those that come again.
    pub(crate) fn done(self, receipt: &[u8]) {
        let mut memory = self.all.lock();
        if let Some(entry) = memory.by_key.get_mut(&self.key).filter(|entry| entry.number == self.number) {
            entry.bytes += receipt.len();
            memory.bytes += receipt.len();
        }
        drop(memory);
        self.receipt.send_replace(Some(receipt.into()));
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if self.receipt.borrow().is_none() {
            self.all.lock().remove(&self.key, self.number);
        }
    }
}

impl Again {
    /// Waits for the receipt of the first; `None` if that failed, and the key is free.
    pub(crate) async fn receipt(mut self) -> Option<Arc<[u8]>> {
        let receipt = self.0.wait_for(Option::is_some).await.ok()?;
        receipt.clone()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn first(all: &Arc<Idempotency>, key: &str, now: u64) -> First {
        match all.begin(key, 1, now) {
            Begun::First(first) => first,
            other => panic!("{key}: {other:?}"),
        }
    }

    #[test]
    fn a_publish_is_done_once_and_again_after_a_failure() {
        let all = Arc::new(Idempotency::default());
        let one = first(&all, "a", 0);
        assert!(matches!(all.begin("a", 2, 0), Begun::Other));
        let Begun::Again(waiting) = all.begin("a", 1, 0) else { panic!("it is known") };
        one.done(b"receipt");
        assert_eq!(waiting.receipt().now_or_never().flatten().as_deref(), Some(&b"receipt"[..]));
        let Begun::Again(late) = all.begin("a", 1, REMEMBERED_MS - 1) else { panic!("it is known") };
        assert_eq!(late.receipt().now_or_never().flatten().as_deref(), Some(&b"receipt"[..]));
        let failed = first(&all, "b", 0);
        let Begun::Again(waiting) = all.begin("b", 1, 0) else { panic!("it is known") };
        drop(failed);
        assert_eq!(waiting.receipt().now_or_never(), Some(None));
        first(&all, "b", 0).done(b"");
        first(&all, "a", REMEMBERED_MS).done(b"");
    }

    #[test]
    fn memory_is_bounded() {
        let all = Arc::new(Idempotency::default());
        for number in 0..3 * MOST_KEYS {
            first(&all, &number.to_string(), 0).done(b"x");
        }
        assert!(all.lock().by_key.len() <= MOST_KEYS && all.lock().order.len() <= MOST_KEYS);
        for number in 0..100 {
            first(&all, &format!("large {number}"), 0).done(&[0; 1 << 20]);
        }
        assert!(all.lock().bytes <= MOST_BYTES + (1 << 20) + KEY_BYTES, "{}", all.lock().bytes);
        all.lock().forget(REMEMBERED_MS);
        let memory = all.lock();
        assert_eq!((memory.by_key.len(), memory.order.len(), memory.bytes), (0, 0, 0));
    }
}
