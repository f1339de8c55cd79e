//! A run that several processes share: what each part knows before its load, and what it hands over.

use std::sync::atomic::Ordering;

use oroshi_bench::part::Implausible;
use serde::{Deserialize, Serialize};

use crate::run::Run;
use crate::shared::Changes;
use crate::tally::Tally;

/// The most bytes of shared values that `initialize` may leave for parts.
const START_BYTES: usize = 4 << 20;

/// The state that every part of a run has before its load.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The seed of all choices.
    pub(crate) seed: u64,
    /// The shared values that `initialize` left.
    pub(crate) shared: Changes,
}

impl Start {
    /// Encodes it.
    ///
    /// # Errors
    /// A message for the user: the shared values are too large.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let bytes = postcard::to_stdvec(self).map_err(|error| format!("the start of the run: {error}"))?;
        if bytes.len() > START_BYTES {
            return Err(format!(
                "initialize leaves shared values of {} bytes, which every load machine needs: expected at most \
                 {START_BYTES}",
                bytes.len()
            ));
        }
        Ok(bytes)
    }

    /// Decodes what [`encode`](Self::encode) made; `None`: it is something else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

/// The counts of a part since it last handed counts over.
#[derive(Debug, Serialize, Deserialize)]
struct Counts {
    tally: Tally,
    shared: Changes,
    /// By how much the most users at a time of the part have grown.
    more_users: usize,
    /// Why the script ended the run, and why the result is void.
    aborted: Option<String>,
    void: Option<String>,
}

/// Takes what the threads of a part have handed in.
pub(crate) fn take_counts(run: &Run) -> Vec<u8> {
    let verdict = run.verdict().clone();
    let most = run.progress.most.load(Ordering::Relaxed);
    let more_users = most.saturating_sub(run.progress.told.swap(most, Ordering::Relaxed));
    let counts = Counts {
        tally: run.take_tally(),
        shared: run.shared.take_changes(),
        more_users,
        aborted: verdict.aborted,
        void: verdict.void,
    };
    // Encoding to memory does not fail; if it did, `absorb` would refuse what is empty.
    postcard::to_stdvec(&counts).unwrap_or_default()
}

/// Adds the counts of a part to those of the whole run, of so many scenarios. Returns whether the script has ended the
/// run.
///
/// # Errors
/// They cannot be counts of this script; nothing is added then.
pub(crate) fn absorb(run: &Run, bytes: &[u8], scenarios: usize) -> Result<bool, Implausible> {
    let counts: Counts = postcard::from_bytes(bytes).map_err(|_| Implausible)?;
    // A part that has counted nothing yet knows no scenarios.
    let is_empty = counts.tally.journeys.is_empty();
    if !counts.tally.is_plausible(if is_empty { 0 } else { scenarios }) || counts.more_users > MOST_USERS {
        return Err(Implausible);
    }
    if !is_empty {
        run.hand_in(counts.tally);
    }
    run.shared.apply(counts.shared);
    run.progress.most.fetch_add(counts.more_users, Ordering::Relaxed);
    if let Some(reason) = &counts.void {
        run.void(reason);
    }
    if let Some(reason) = &counts.aborted {
        run.abort(reason);
    }
    Ok(counts.aborted.is_some())
}

/// The highest plausible number of users of a part.
const MOST_USERS: usize = 100_000_000;
