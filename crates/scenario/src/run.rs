//! What all threads of a run share.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oroshi_bench::Part;
use oroshi_net::{ClientTlsOptions, Permitted};

use crate::data::Sets;
use crate::ramp;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::tally::Tally;

/// A run: what its threads share while it lasts, and what they hand in.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) settings: Arc<Settings>,
    pub(crate) network: Network,
    pub(crate) seed: u64,
    /// The part of the run that this process has.
    pub(crate) part: Part,
    /// Threads of all parts.
    pub(crate) threads: usize,
    pub(crate) sets: Arc<Sets>,
    pub(crate) shared: Shared,
    /// Users that the script asks for, in place of the ramp; 0: the ramp says it.
    users: AtomicUsize,
    /// Journeys that may still begin.
    journeys: AtomicI64,
    /// Progress for `every`.
    pub(crate) progress: Progress,
    /// The script has ended the run, or failed.
    ended: AtomicBool,
    verdict: Mutex<Verdict>,
    tally: Mutex<Option<Tally>>,
}

/// How users reach servers, and which of them this process has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    pub(crate) tls: ClientTlsOptions,
    /// The only servers that may be reached; `None`: all.
    pub(crate) permitted: Option<Arc<Permitted>>,
    /// The part of a run that several processes share; `None`: this process has all of it.
    pub(crate) part: Option<Part>,
}

/// Counts of all threads of this process, from the start on.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) requests: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) checks_failed: AtomicU64,
    /// Thousandths of a point.
    pub(crate) points: AtomicI64,
    pub(crate) users: AtomicUsize,
    /// The most users at a time, and as many of them as a part has told.
    pub(crate) most: AtomicUsize,
    pub(crate) told: AtomicUsize,
}

/// Whether the result counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    /// Why the script ended the run.
    pub(crate) aborted: Option<String>,
    /// Why the result is void.
    pub(crate) void: Option<String>,
}

impl Run {
    pub(crate) fn new(settings: &Arc<Settings>, cores: usize, sets: &Arc<Sets>, seed: u64, network: Network) -> Self {
        let part = network.part.unwrap_or(Part { index: 0, of: 1 });
        let own = settings.journeys.map(|journeys| ramp::share(journeys, part.index, part.of));
        let journeys = own.map_or(i64::MAX, |journeys| i64::try_from(journeys).unwrap_or(i64::MAX));
        sets.reset();
        Run {
            settings: Arc::clone(settings),
            seed,
            part,
            threads: cores * part.of,
            sets: Arc::clone(sets),
            shared: Shared::new(network.part.is_some()),
            network,
            users: AtomicUsize::new(0),
            journeys: AtomicI64::new(journeys),
            progress: Progress::default(),
            ended: AtomicBool::new(false),
            verdict: Mutex::default(),
            tally: Mutex::default(),
        }
    }

    /// Takes the right to begin a journey. False when as many as are wanted have begun.
    pub(crate) fn take_journey(&self) -> bool {
        self.settings.journeys.is_none() || self.journeys.fetch_sub(1, Ordering::Relaxed) > 0
    }

    /// Whether no journey can begin any more.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.settings.journeys.is_some() && self.journeys.load(Ordering::Relaxed) <= 0
    }

    /// Returns the number of the process's thread `core` among those of all parts. Those of the same number in their
    /// process stand together.
    pub(crate) fn position(&self, core: usize) -> usize {
        core * self.part.of + self.part.index
    }

    /// Returns the users of all parts, as far as this process can tell: it takes the others to have as many.
    pub(crate) fn users(&self) -> usize {
        self.progress.users.load(Ordering::Relaxed) * self.part.of
    }

    /// Returns the users that the script asks for, in place of the ramp.
    pub(crate) fn asked_users(&self) -> Option<usize> {
        Some(self.users.load(Ordering::Relaxed)).filter(|users| *users > 0)
    }

    /// Sets the number of users.
    pub(crate) fn ask_users(&self, users: usize) {
        self.users.store(users, Ordering::Relaxed);
    }

    /// The script ends the run. The first reason counts.
    pub(crate) fn abort(&self, reason: &str) {
        let mut verdict = self.verdict();
        verdict.aborted.get_or_insert_with(|| reason.to_owned());
        self.end();
    }

    /// Ends the run on all threads, as soon as they look.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The result does not count. The first reason is kept.
    pub(crate) fn void(&self, reason: &str) {
        self.verdict().void.get_or_insert_with(|| reason.to_owned());
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.verdict().aborted.is_some()
    }

    pub(crate) fn verdict(&self) -> MutexGuard<'_, Verdict> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a thread's counts in.
    pub(crate) fn hand_in(&self, tally: Tally) {
        let mut all = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *all {
            Some(all) => all.merge(tally),
            None => *all = Some(tally),
        }
    }

    /// Returns the counts that the threads have handed in.
    pub(crate) fn take_tally(&self) -> Tally {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}
