//! Asks the databases that can be reached whether they accept the queries of look-ups.

use oroshi_gate::Plan;
use oroshi_lookup::{Failure, Lookup, LookupSettings, Stores};
use tokio::task::JoinSet;

/// A key of the configuration, and the result of its trial.
type Found = Vec<(String, String)>;

/// Lets all databases prepare the queries of their look-ups concurrently; returns rejected and untried queries.
pub(super) fn queries(plan: &Plan) -> (Found, Found) {
    let asked = plan.lookups.iter().filter(|lookup| lookup.settings.sql.is_some());
    let mut settings: Vec<LookupSettings> =
        asked.map(|lookup| LookupSettings { memory: None, ..lookup.settings.clone() }).collect();
    let routes = settings.len();
    let certificates =
        // The tables of ACME may not exist yet.
        plan.tls.as_ref().filter(|tls| !tls.looks_in_acme).and_then(|tls| tls.settings.lookup.clone());
    let certificates = certificates.filter(|lookup| lookup.sql.is_some());
    settings.extend(certificates);
    if settings.is_empty() {
        return (Found::new(), Found::new());
    }
    let key = |place: usize| match settings.get(place).filter(|_| place < routes) {
        Some(lookup) => format!("lookup.{}.sql.query", lookup.name),
        None => "tls.lookup.sql.query".to_owned(),
    };
    let none = |why: String| (Found::new(), (0..settings.len()).map(|place| (key(place), why.clone())).collect());
    let stores = match Stores::start(plan.stores.clone()) {
        Ok(stores) => stores,
        Err(error) => return none(format!("it could not be tried: {error}")),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return none(format!("it could not be tried: {error}")),
    };
    let (mut refused, mut untried) = (Found::new(), Found::new());
    runtime.block_on(async {
        let mut trials = JoinSet::new();
        for (place, settings) in settings.iter().enumerate() {
            match Lookup::start(settings.clone(), &stores) {
                Ok(lookup) => drop(trials.spawn(async move { (place, lookup.try_query().await) })),
                Err(error) => untried.push((key(place), format!("it could not be tried: {error}"))),
            }
        }
        while let Some(tried) = trials.join_next().await {
            match tried {
                Ok((place, Some(Err(error)))) if matches!(error.failure, Failure::Refused(_)) => {
                    refused.push((key(place), format!("the database rejects it: {error}")));
                }
                Ok((place, Some(Err(error)))) => untried.push((key(place), format!("it could not be tried: {error}"))),
                _ => {}
            }
        }
    });
    refused.sort();
    untried.sort();
    (refused, untried)
}
