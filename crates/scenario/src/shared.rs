//! Values that the users of all threads share: counters, flags, what one user tells the others.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oroshi_words::units;
use serde::{Deserialize, Serialize};

/// The most keys.
pub(crate) const MAX_KEYS: usize = 1_000_000;

/// The longest key, bytes.
pub(crate) const MAX_KEY_BYTES: usize = 256;

/// The longest text, bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 64 << 10;

/// The most that all keys and texts may take, bytes.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// Parts with a lock of their own, so that threads seldom wait for each other.
const SHARDS: usize = 64;

/// Values by key. A call locks one key's shard for a short time.
#[derive(Debug)]
pub(crate) struct Shared {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    keys: AtomicUsize,
    /// Bytes of all keys and texts.
    bytes: AtomicUsize,
    /// Changes that were not taken yet, if anybody will take them.
    changes: Option<Mutex<Changes>>,
}

type Shard = HashMap<Box<[u8]>, Value, RandomState>;

/// Changes by key, in the order of their bytes.
pub(crate) type Changes = BTreeMap<Box<[u8]>, Change>;

/// How a key was changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// This was added to it.
    Added(f64),
    /// It was set; `None`: removed.
    Set(Option<Value>),
}

/// A shared value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    /// A number.
    Number(f64),
    /// A text of any bytes.
    #[serde(with = "text")]
    Text(Arc<[u8]>),
    /// `true` or `false`.
    Boolean(bool),
}

/// A text as serde has it: bytes.
mod text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        Vec::<u8>::deserialize(deserializer).map(Into::into)
    }
}

impl Value {
    fn bytes(&self) -> usize {
        match self {
            Value::Text(text) => text.len(),
            Value::Number(_) | Value::Boolean(_) => 0,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::Boolean(_) => "a boolean",
        }
    }
}

impl Shared {
    /// Creates a store without keys. `tells`: it keeps its changes for [`take_changes`](Self::take_changes).
    pub(crate) fn new(tells: bool) -> Self {
        let hasher = RandomState::new();
        let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::with_hasher(hasher.clone()))).collect();
        let changes = tells.then(Mutex::default);
        Self { shards, hasher, keys: AtomicUsize::new(0), bytes: AtomicUsize::new(0), changes }
    }

    /// Returns the value of a key; `None` if it has none.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Value> {
        self.shard(key).get(key).cloned()
    }

    /// Sets the value of a key; `None` removes the key.
    ///
    /// # Errors
    /// A message for the user: which limit it exceeds. The key keeps its value.
    pub(crate) fn set(&self, key: &[u8], value: Option<Value>) -> Result<(), String> {
        check_key(key)?;
        let mut shard = self.shard(key);
        let change = self.changes.as_ref().map(|_| Change::Set(value.clone()));
        self.set_in(&mut shard, key, value)?;
        if let Some(change) = change {
            self.note(key, change);
        }
        Ok(())
    }

    fn set_in(&self, shard: &mut Shard, key: &[u8], value: Option<Value>) -> Result<(), String> {
        let Some(value) = value else {
            if let Some(old) = shard.remove(key) {
                self.keys.fetch_sub(1, Ordering::Relaxed);
                self.bytes.fetch_sub(key.len() + old.bytes(), Ordering::Relaxed);
            }
            return Ok(());
        };
        if value.bytes() > MAX_VALUE_BYTES {
            let bytes = value.bytes();
            return Err(format!("the value has {bytes} bytes: expected at most {MAX_VALUE_BYTES} bytes"));
        }
        if let Some(old) = shard.get_mut(key) {
            self.take_bytes(value.bytes(), old.bytes())?;
            *old = value;
            return Ok(());
        }
        self.insert(shard, key, value)
    }

    /// Adds to the number of a key, which begins at 0, and returns the sum.
    ///
    /// # Errors
    /// A message for the user: the key's value is no number, the sum is not finite, or a limit is exceeded.
    pub(crate) fn add(&self, key: &[u8], number: f64) -> Result<f64, String> {
        check_key(key)?;
        let mut shard = self.shard(key);
        let (old, sum) = match shard.get_mut(key) {
            Some(Value::Number(old)) => {
                let sum = *old + number;
                (Some(old), sum)
            }
            Some(other) => {
                return Err(format!("the value of `{}` is {}: expected a number", key.escape_ascii(), other.kind()));
            }
            None => (None, number),
        };
        if !sum.is_finite() {
            return Err(format!("adding {number} to `{}` makes {sum}: expected a finite number", key.escape_ascii()));
        }
        match old {
            Some(old) => *old = sum,
            None => self.insert(&mut shard, key, Value::Number(sum))?,
        }
        self.note(key, Change::Added(number));
        Ok(sum)
    }

    /// Takes the changes since the last call.
    pub(crate) fn take_changes(&self) -> Changes {
        self.changes.as_ref().map(|changes| std::mem::take(&mut *lock(changes))).unwrap_or_default()
    }

    /// Returns all keys and values as changes of an empty store.
    pub(crate) fn all(&self) -> Changes {
        let pairs = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            shard.iter().map(|(key, value)| (key.clone(), Change::Set(Some(value.clone())))).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(pairs).collect()
    }

    /// Applies changes of another store. What exceeds a limit, or is added to no number, is left out.
    pub(crate) fn apply(&self, changes: Changes) {
        for (key, change) in changes {
            let _ = match change {
                Change::Added(number) => self.add(&key, number).map(drop),
                Change::Set(value) => self.set(&key, value),
            };
        }
    }

    /// Keeps a change. The key's shard is locked, so that changes of a key come in their order.
    fn note(&self, key: &[u8], change: Change) {
        let Some(changes) = &self.changes else { return };
        let mut changes = lock(changes);
        let Some(before) = changes.get_mut(key) else {
            changes.insert(key.into(), change);
            return;
        };
        *before = match (&*before, change) {
            (Change::Added(sum), Change::Added(number)) => Change::Added(sum + number),
            (Change::Set(Some(Value::Number(sum))), Change::Added(number)) => {
                Change::Set(Some(Value::Number(sum + number)))
            }
            (Change::Set(_), Change::Added(number)) => Change::Set(Some(Value::Number(number))),
            (_, set) => set,
        };
    }

    /// Returns the keys that begin with `prefix`, sorted by their bytes.
    ///
    /// It locks one shard after the other: a key that is set meanwhile may be missing.
    pub(crate) fn keys(&self, prefix: &[u8]) -> Vec<Box<[u8]>> {
        let mut keys = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            keys.extend(shard.keys().filter(|key| key.starts_with(prefix)).cloned());
        }
        keys.sort_unstable();
        keys
    }

    fn insert(&self, shard: &mut Shard, key: &[u8], value: Value) -> Result<(), String> {
        if !take(&self.keys, 1, MAX_KEYS) {
            return Err(format!("there are too many keys: expected at most {} keys", units::count(MAX_KEYS as u64)));
        }
        if let Err(full) = self.take_bytes(key.len() + value.bytes(), 0) {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            return Err(full);
        }
        match shard.entry(key.into()) {
            Entry::Occupied(mut entry) => _ = entry.insert(value),
            Entry::Vacant(entry) => _ = entry.insert(value),
        }
        Ok(())
    }

    /// Accounts for bytes that take the place of others.
    fn take_bytes(&self, new: usize, old: usize) -> Result<(), String> {
        if new <= old {
            self.bytes.fetch_sub(old - new, Ordering::Relaxed);
        } else if !take(&self.bytes, new - old, MAX_BYTES) {
            let most = units::bytes(MAX_BYTES as f64);
            return Err(format!("all keys and values take too much memory: expected at most {most}"));
        }
        Ok(())
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        // The map uses the low bits and the highest seven.
        lock(&self.shards[(self.hasher.hash_one(key) >> 32) as usize % SHARDS])
    }
}

fn lock<T>(locked: &Mutex<T>) -> MutexGuard<'_, T> {
    locked.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_key(key: &[u8]) -> Result<(), String> {
    if key.len() > MAX_KEY_BYTES {
        return Err(format!("the key has {} bytes: expected at most {MAX_KEY_BYTES} bytes", key.len()));
    }
    Ok(())
}

/// Adds to a count unless it would exceed its limit.
fn take(count: &AtomicUsize, more: usize, most: usize) -> bool {
    let taken = |now: usize| now.checked_add(more).filter(|sum| *sum <= most);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn text(text: &[u8]) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn values_are_those_of_the_last_set() {
        let shared = Shared::new(false);
        assert_eq!(shared.get(b"a"), None);
        for value in [Value::Number(0.5), text(b"\0\xff"), Value::Boolean(false)] {
            shared.set(b"a", Some(value.clone())).unwrap();
            assert_eq!(shared.get(b"a"), Some(value));
        }
        shared.set(b"a", None).unwrap();
        shared.set(b"a", None).unwrap();
        assert_eq!(shared.get(b"a"), None);
        shared.set(b"", Some(Value::Boolean(true))).unwrap();
        assert_eq!(shared.keys(b""), [Box::from(&b""[..])]);
    }

    #[test]
    fn threads_count_together() {
        let shared = Shared::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..5000 {
                        shared.add(b"sold", 2.0).unwrap();
                        shared.add(format!("key {}", round % 10).as_bytes(), -1.0).unwrap();
                    }
                });
            }
        });
        assert_eq!(shared.add(b"sold", 0.0), Ok(40_000.0));
        assert_eq!(shared.keys(b"key ").len(), 10);
        assert!(shared.keys(b"key ").iter().all(|key| shared.get(key) == Some(Value::Number(-2000.0))));
    }

    #[test]
    fn what_changes_here_is_applied_there() {
        let (first, whole) = (Shared::new(false), Shared::new(false));
        for (key, value) in [("sold", Value::Number(10.0)), ("name", text(b"a")), ("old", Value::Boolean(true))] {
            first.set(key.as_bytes(), Some(value)).unwrap();
        }
        whole.apply(first.all());
        let parts = [Shared::new(true), Shared::new(true)];
        for (number, part) in parts.iter().enumerate() {
            part.apply(first.all());
            part.take_changes();
            part.add(b"sold", 1.0).unwrap();
            part.add(b"sold", 2.0 + number as f64).unwrap();
            part.set(b"gone", Some(Value::Number(1.0))).unwrap();
            part.add(b"gone", 1.0).unwrap();
            part.set(b"old", None).unwrap();
            part.add(b"old", 5.0).unwrap();
            part.set(format!("own {number}").as_bytes(), Some(text(b"x"))).unwrap();
            assert_eq!(part.get(b"sold"), Some(Value::Number(13.0 + number as f64)));
            whole.apply(part.take_changes());
            assert!(part.take_changes().is_empty());
        }
        parts[1].set(b"gone", None).unwrap();
        whole.apply(parts[1].take_changes());
        assert_eq!(whole.get(b"sold"), Some(Value::Number(17.0)), "10, and 3 and 4 more");
        assert_eq!((whole.get(b"gone"), whole.get(b"old")), (None, Some(Value::Number(5.0))));
        assert_eq!(whole.get(b"name"), Some(text(b"a")));
        assert_eq!(whole.keys(b"own ").len(), 2);
    }

    #[test]
    fn only_numbers_are_added_to() {
        let shared = Shared::new(false);
        shared.set(b"name", Some(text(b"x"))).unwrap();
        shared.set(b"is", Some(Value::Boolean(true))).unwrap();
        assert_eq!(shared.add(b"name", 1.0), Err("the value of `name` is a string: expected a number".into()));
        assert_eq!(shared.add(b"is", 1.0), Err("the value of `is` is a boolean: expected a number".into()));
        assert_eq!(shared.add(b"n", f64::MAX), Ok(f64::MAX));
        for bad in [f64::MAX, f64::NAN, f64::INFINITY] {
            assert!(shared.add(b"n", bad).unwrap_err().contains("expected a finite number"));
            assert!(shared.add(b"new", bad * 2.0).unwrap_err().contains("expected a finite number"));
        }
        assert_eq!((shared.get(b"n"), shared.get(b"new")), (Some(Value::Number(f64::MAX)), None));
    }

    #[test]
    fn mistakes_name_the_limit() {
        let shared = Shared::new(false);
        let (long, longest) = ([b'k'; MAX_KEY_BYTES + 1], [b'k'; MAX_KEY_BYTES]);
        let too_long = "the key has 257 bytes: expected at most 256 bytes";
        assert_eq!(shared.set(&long, None), Err(too_long.into()));
        assert_eq!(shared.add(&long, 1.0), Err(too_long.into()));
        assert_eq!(shared.get(&long), None);
        shared.add(&longest, 1.0).unwrap();

        shared.set(b"a", Some(text(&vec![b'v'; MAX_VALUE_BYTES]))).unwrap();
        let refused = shared.set(b"a", Some(text(&vec![b'v'; MAX_VALUE_BYTES + 1])));
        assert_eq!(refused, Err("the value has 65537 bytes: expected at most 65536 bytes".into()));
        assert_eq!(shared.get(b"a"), Some(text(&vec![b'v'; MAX_VALUE_BYTES])));

        shared.keys.store(MAX_KEYS - 1, Ordering::Relaxed);
        shared.set(b"last", Some(text(b"x"))).unwrap();
        let full = "there are too many keys: expected at most 1,000,000 keys";
        assert_eq!(shared.add(b"more", 1.0), Err(full.into()));
        assert_eq!(shared.set(b"more", Some(text(b"x"))), Err(full.into()));
        shared.set(b"last", Some(text(b"y"))).unwrap();
        shared.set(b"last", None).unwrap();
        shared.add(b"more", 1.0).unwrap();
    }

    #[test]
    fn all_values_together_have_a_limit() {
        let shared = Shared::new(false);
        shared.bytes.store(MAX_BYTES - 10, Ordering::Relaxed);
        shared.set(b"12345", Some(text(b"12345"))).unwrap();
        for key in [&b"12345"[..], b""] {
            let full = shared.set(key, Some(text(b"123456"))).unwrap_err();
            assert_eq!(full, "all keys and values take too much memory: expected at most 1.00 GiB");
        }
        assert_eq!(shared.keys.load(Ordering::Relaxed), 1);
        shared.set(b"12345", Some(text(b"1"))).unwrap();
        shared.set(b"1234", Some(Value::Boolean(true))).unwrap();
        assert_eq!(shared.bytes.load(Ordering::Relaxed), MAX_BYTES);
    }

    fn value() -> impl Strategy<Value = Option<Value>> {
        prop_oneof![
            Just(None),
            (-1e6..1e6).prop_map(|number| Some(Value::Number(number))),
            any::<bool>().prop_map(|is| Some(Value::Boolean(is))),
            prop::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| Some(text(&bytes))),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_map_and_counts_its_bytes(
            steps in prop::collection::vec(("[ab]{0,3}", prop::option::of(value())), 0..200),
        ) {
            let (shared, mut model) = (Shared::new(false), BTreeMap::<Box<[u8]>, Value>::new());
            for (key, step) in steps {
                let key = key.as_bytes();
                match step {
                    Some(Some(value)) => {
                        shared.set(key, Some(value.clone())).unwrap();
                        model.insert(key.into(), value);
                    }
                    Some(None) => {
                        shared.set(key, None).unwrap();
                        model.remove(key);
                    }
                    None => {
                        let sum = shared.add(key, 1.0);
                        match model.entry(key.into()).or_insert(Value::Number(0.0)) {
                            Value::Number(number) => {
                                *number += 1.0;
                                prop_assert_eq!(sum, Ok(*number));
                            }
                            _ => prop_assert!(sum.is_err()),
                        }
                    }
                }
            }
            for prefix in [&b""[..], b"a", b"ba"] {
                let expected: Vec<_> = model.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
                prop_assert_eq!(shared.keys(prefix), expected);
            }
            let bytes: usize = model.iter().map(|(key, value)| key.len() + value.bytes()).sum();
            prop_assert_eq!(shared.bytes.load(Ordering::Relaxed), bytes);
            prop_assert_eq!(shared.keys.load(Ordering::Relaxed), model.len());
            for (key, value) in &model {
                prop_assert_eq!(shared.get(key), Some(value.clone()));
            }
        }
    }
}
