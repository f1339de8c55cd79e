//! What operators are told of stores: when one begins to fail, when it is left alone, when it is back. Not each request that fails.

use std::time::Duration;

use crate::answer::Failure;

/// What has changed with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A request failed after others had not.
    Fails,
    /// So many have failed in a row that none goes there until it answers; after this time it is asked whether it does.
    IsLeftAlone(Duration),
    /// It answers again, after it was left alone.
    IsBack,
}

impl News {
    /// Tells it. `failure`: the last one.
    pub(crate) fn tell(self, store: &str, failure: Option<&Failure>) {
        let why = failure.map(|failure| format!(": {failure}")).unwrap_or_default();
        match self {
            News::Fails => tracing::warn!("{store} has failed{why}"),
            News::IsLeftAlone(pause) => tracing::warn!(
                "{store} is left alone until it answers, and asked in the background from {pause:?} on{why}"
            ),
            News::IsBack => tracing::info!("{store} answers again"),
        }
    }
}
