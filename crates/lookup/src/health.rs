//! Logs changes of a store's health: failing, breaker open, recovered. It does not log each failed request.

use std::time::Duration;

use crate::answer::Failure;

/// A change of a store's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthChange {
    /// A request failed after a success.
    Failing,
    /// The breaker opened after several failures in a row; the first probe follows after this pause.
    BreakerOpened(Duration),
    /// The store answers again, and its breaker has closed.
    Recovered,
}

impl HealthChange {
    /// Logs the change. `failure` is the last one.
    pub(crate) fn tell(self, store: &str, failure: Option<&Failure>) {
        let why = failure.map(|failure| format!(": {failure}")).unwrap_or_default();
        match self {
            HealthChange::Failing => tracing::warn!("{store} has failed{why}"),
            HealthChange::BreakerOpened(pause) => tracing::warn!(
                "{store} is left alone until it answers, and asked in the background from {pause:?} on{why}"
            ),
            HealthChange::Recovered => tracing::info!("{store} answers again"),
        }
    }
}
