//! What every tier has to say about a key, for people who want to know why.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::answer::StoreError;
use crate::clock;
use crate::fly;
use crate::lookup::Shared;
use crate::memcached::{self, ServerState};
use crate::memory::{Kept, Said};
use crate::sql::SqlState;
use crate::stores::World;
use crate::value::Targets;

/// A key, tier by tier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// What stands in memory, be it still good or not; `None`: nothing, or there is no such tier.
    pub memory: Option<Kept>,
    /// Whether the key is being asked for at this moment.
    pub in_flight: bool,
    /// What memcached said just now, and how its servers are.
    pub memcached: Option<(Held, Vec<ServerState>)>,
    /// What the database said just now, and how it is.
    pub sql: Option<(Held, SqlState)>,
}

/// What a store has for a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Held {
    /// Targets.
    Targets(Targets),
    /// It knows that there is none.
    Negative,
    /// Something that cannot be used, and why.
    Invalid(Arc<str>),
    /// It does not know the key.
    Missing,
    /// It could not say.
    Failed(StoreError),
}

impl From<Said> for Held {
    fn from(said: Said) -> Self {
        match said {
            Said::Targets(targets) => Held::Targets(targets),
            Said::Refusal(None) => Held::Negative,
            Said::Refusal(Some(reason)) => Held::Invalid(reason),
        }
    }
}

pub(crate) async fn explain(shared: &Arc<Shared>, key: &str) -> Explanation {
    let memory = shared.memory.as_ref().and_then(|memory| memory.peek(key, clock::now()));
    let (answer, answered) = oneshot::channel();
    let (asked, key) = (Arc::clone(shared), Box::<str>::from(key));
    shared.stores().job(move |world| {
        let world = std::rc::Rc::clone(world);
        spawn_local(async move { drop(answer.send(ask(&world, &asked, &key).await)) });
    });
    Explanation { memory, ..answered.await.unwrap_or_default() }
}

async fn ask(world: &World, shared: &Shared, key: &str) -> Explanation {
    let stores = shared.stores();
    let in_flight = world.flights.borrow().get(&shared.number).is_some_and(|flights| flights.contains(key));
    let mut explanation = Explanation { in_flight, ..Explanation::default() };
    if let (Some(tier), Some(name)) = (&shared.settings.memcached, &shared.memcached_store)
        && let Ok(store) = world.memcached(stores.number(), name)
    {
        let held = match store.get(&memcached::key_of(&tier.prefix, key)).await {
            Ok(None) => Held::Missing,
            Ok(Some(value)) => fly::read(shared, &value).into(),
            Err(error) => Held::Failed(error),
        };
        explanation.memcached = Some((held, store.state()));
    }
    if let Some(name) = &shared.sql_store
        && let Ok(store) = world.sql(stores.number(), name)
    {
        let held = match store.look_up(&shared.user, &shared.query, key).await {
            Ok(None) => Held::Negative,
            Ok(Some(value)) => fly::read_value(shared, &value).into(),
            Err(error) => Held::Failed(error),
        };
        explanation.sql = Some((held, store.state()));
    }
    explanation
}
