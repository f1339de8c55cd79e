//! Values that several programs change: read, change, and write unless another was first (`gets`, `cas` and `add`).
//!
//! Changes of a key that wait at the same time share one read and one write, so a busy key costs no more requests than
//! one change at a time, and the changes of this process never compete with each other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::Memcached;
use crate::answer::{Failure, StoreError};

/// A change of a value: gets the value, and returns the next one with its time to live. `None` leaves it as it is.
///
/// It may be called several times, each time with a newer value. The last call counts.
pub type Change = Box<dyn FnMut(Option<&[u8]>) -> Option<(Vec<u8>, Duration)> + Send>;

/// How often a change is tried at most. Each time, another program has written the value meanwhile.
const ATTEMPTS: usize = 32;

/// The changes that wait, by key. A key stands here while a task sees to its changes.
#[derive(Default)]
pub(super) struct Changes(RefCell<HashMap<Box<[u8]>, Vec<Waiting>>>);

struct Waiting {
    change: Change,
    answer: oneshot::Sender<Result<(), StoreError>>,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("keys", &self.0.borrow().len()).finish()
    }
}

impl Memcached {
    /// Changes a key's value. Call it on the stores' thread.
    ///
    /// # Errors
    /// A failure of the store, an invalid key, too many changes under way, or too many other writers.
    pub(crate) async fn update(self: &Rc<Self>, key: &[u8], change: Change) -> Result<(), StoreError> {
        let _change = self.begin_change()?;
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { change, answer };
        let begins = match self.changes.0.borrow_mut().entry(key.into()) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(waiting);
                false
            }
            Entry::Vacant(entry) => {
                entry.insert(vec![waiting]);
                true
            }
        };
        if begins {
            tokio::task::spawn_local(Rc::clone(self).make_changes(key.into()));
        }
        answered.await.unwrap_or_else(|_| Err(self.error(Failure::Closed)))
    }

    /// Makes the changes of a key until none waits.
    async fn make_changes(self: Rc<Self>, key: Box<[u8]>) {
        loop {
            let mut changes = match self.changes.0.borrow_mut().entry(key.clone()) {
                Entry::Occupied(entry) if entry.get().is_empty() => {
                    entry.remove();
                    return;
                }
                Entry::Occupied(mut entry) => std::mem::take(entry.get_mut()),
                Entry::Vacant(_) => return,
            };
            let made = self.make(&key, &mut changes).await;
            for waiting in changes {
                let _ = waiting.answer.send(made.clone()); // the caller may have gone
            }
        }
    }

    /// Makes waiting changes of a key together. Who has the longer way to memcached loses races, so from the third
    /// attempt on it pauses for a random time, in which the others finish.
    async fn make(&self, key: &[u8], changes: &mut [Waiting]) -> Result<(), StoreError> {
        let begun = Instant::now();
        for attempt in 1..=ATTEMPTS {
            let attempt_begun = Instant::now();
            let (known, version) = self.gets(key).await?.unzip();
            let (mut value, mut keep) = (known.map(<[u8]>::into_vec), None);
            for waiting in &mut *changes {
                if let Some((next, ttl)) = (waiting.change)(value.as_deref()) {
                    (value, keep) = (Some(next), Some(ttl));
                }
            }
            let (Some(value), Some(ttl)) = (value, keep) else { return Ok(()) };
            if self.store_version(key, &value, version, ttl).await? {
                return Ok(());
            }
            // As long as one request and its answer may take.
            if begun.elapsed() >= 2 * self.settings.timeout {
                break;
            }
            if attempt > 1 {
                sleep(attempt_begun.elapsed().mul_f64(fastrand::f64())).await;
            }
        }
        Err(self.error(Failure::Refused("others changed the value at each attempt".into())))
    }
}
