//! Explains a key: the state of every tier, for operators.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::answer::StoreError;
use crate::clock;
use crate::fly;
use crate::lookup::Shared;
use crate::memcached::{self, ServerState};
use crate::memory::{MemoryEntry, StoreAnswer};
use crate::sql::SqlState;
use crate::stores::ThreadState;
use crate::value::Targets;

/// The state of a key in every tier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The entry in memory, valid or expired; `None` without an entry or a memory tier.
    pub memory: Option<MemoryEntry>,
    /// Whether the key is being looked up now.
    pub in_flight: bool,
    /// The answer of memcached just now, and the state of its servers.
    pub memcached: Option<(StoreEntry, Vec<ServerState>)>,
    /// The answer of the database just now, and its state.
    pub sql: Option<(StoreEntry, SqlState)>,
}

/// A store's answer for a key.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreEntry {
    /// Targets.
    Targets(Targets),
    /// The store knows that the key has no value.
    Negative,
    /// An unusable value, and the reason.
    Invalid(Arc<str>),
    /// The store does not know the key.
    Missing,
    /// The store failed.
    Failed(StoreError),
}

impl From<StoreAnswer> for StoreEntry {
    fn from(said: StoreAnswer) -> Self {
        match said {
            StoreAnswer::Targets(targets) => StoreEntry::Targets(targets),
            StoreAnswer::Refusal(None) => StoreEntry::Negative,
            StoreAnswer::Refusal(Some(reason)) => StoreEntry::Invalid(reason),
        }
    }
}

pub(crate) async fn explain(shared: &Arc<Shared>, key: &str) -> Explanation {
    let memory = shared.memory.as_ref().and_then(|memory| memory.peek(key, clock::now()));
    let (answer, answered) = oneshot::channel();
    let (asked, key) = (Arc::clone(shared), Box::<str>::from(key));
    shared.stores().job(move |thread| {
        let thread = std::rc::Rc::clone(thread);
        spawn_local(async move { drop(answer.send(ask(&thread, &asked, &key).await)) });
    });
    Explanation { memory, ..answered.await.unwrap_or_default() }
}

async fn ask(thread: &ThreadState, shared: &Shared, key: &str) -> Explanation {
    let stores = shared.stores();
    let in_flight = thread.flights.borrow().get(&shared.number).is_some_and(|flights| flights.contains(key));
    let mut explanation = Explanation { in_flight, ..Explanation::default() };
    if let (Some(tier), Some(name)) = (&shared.settings.memcached, &shared.memcached_store)
        && let Ok(store) = thread.memcached(stores.number(), name)
    {
        let held = match store.get(&memcached::key_of(&tier.prefix, key)).await {
            Ok(None) => StoreEntry::Missing,
            Ok(Some(value)) => fly::read(shared, &value).into(),
            Err(error) => StoreEntry::Failed(error),
        };
        explanation.memcached = Some((held, store.state()));
    }
    if let Some(name) = &shared.sql_store
        && let Ok(store) = thread.sql(stores.number(), name)
    {
        let held = match store.look_up(&shared.user, &shared.query, key).await {
            Ok(None) => StoreEntry::Negative,
            Ok(Some(value)) => fly::read_value(shared, &value).into(),
            Err(error) => StoreEntry::Failed(error),
        };
        explanation.sql = Some((held, store.state()));
    }
    explanation
}
