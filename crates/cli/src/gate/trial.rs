//! Asks the databases that can be reached whether they accept the queries of look-ups.

use oroshi_gate::Plan;
use oroshi_lookup::{Failure, Lookup, LookupSettings, Stores};
use tokio::task::JoinSet;

/// A key of the configuration, and the result of its trial.
type Found = Vec<(String, String)>;

/// Lets all databases prepare the queries of their look-ups concurrently; returns rejected and untried queries.
pub(super) fn queries(plan: &Plan) -> (Found, Found) {
    let asked = plan.lookups.iter().filter(|lookup| lookup.settings.sql.is_some());
    let settings: Vec<LookupSettings> =
        asked.map(|lookup| LookupSettings { memory: None, ..lookup.settings.clone() }).collect();
    if settings.is_empty() {
        return (Found::new(), Found::new());
    }
    let key = |name: &str| format!("lookup.{name}.sql.query");
    let none = |why: String| (Found::new(), settings.iter().map(|one| (key(&one.name), why.clone())).collect());
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
        for settings in &settings {
            let name = settings.name.clone();
            match Lookup::start(settings.clone(), &stores) {
                Ok(lookup) => drop(trials.spawn(async move { (name, lookup.try_query().await) })),
                Err(error) => untried.push((key(&name), format!("it could not be tried: {error}"))),
            }
        }
        while let Some(tried) = trials.join_next().await {
            match tried {
                Ok((name, Some(Err(error)))) if matches!(error.failure, Failure::Refused(_)) => {
                    refused.push((key(&name), format!("the database rejects it: {error}")));
                }
                Ok((name, Some(Err(error)))) => untried.push((key(&name), format!("it could not be tried: {error}"))),
                _ => {}
            }
        }
    });
    refused.sort();
    untried.sort();
    (refused, untried)
}
