//! State that the threads of a process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use oroshi_server::Capacity;
use tokio::sync::Barrier;

use crate::arrivals::Arrivals;
use crate::cluster::link::Link;
use crate::history::Histories;
use crate::idempotency::Idempotency;
use crate::identity::Verifier;
use crate::plan::Plan;
use crate::presence::Presences;
use crate::rates::Rates;
use crate::session::directory::Directory;

/// The plan, the directory of sessions, the load of each thread, and the link to other nodes.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) plan: Plan,
    pub(crate) directory: Directory,
    /// The histories of channels that have one.
    pub(crate) histories: Histories,
    /// Who subscribes to the channels that somebody watches.
    pub(crate) presences: Presences,
    /// Messages from JetStream that await their receipt.
    pub(crate) arrivals: Arrivals,
    /// Checks clients' tokens, if the hub takes any.
    pub(crate) verifier: Option<Verifier>,
    /// Publishes that may come again.
    pub(crate) idempotency: Arc<Idempotency>,
    /// What clients may send per second.
    pub(crate) rates: Rates,
    began: Instant,
    /// The link to the other nodes, if there is a cluster.
    pub(crate) link: Option<Link>,
    /// Limits the connections of clients, if they are limited.
    pub(crate) capacity: Option<Arc<Capacity>>,
    /// Clients that were rejected because there are too many sessions.
    rejected: AtomicUsize,
    /// Identifies this run of this process.
    pub(crate) name: String,
    /// A thread that has answered all its requests waits here for the others.
    pub(crate) all_answered: Barrier,
    loads: Box<[Load]>,
    /// On all threads.
    sessions: AtomicUsize,
    published: AtomicUsize,
}

/// The load of one thread. Each has a cache line, as each thread writes its own all the time.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Load {
    queued_bytes: AtomicUsize,
    /// Sessions with something in their queue.
    waiting: AtomicUsize,
}

impl Node {
    /// Creates the shared state of a process.
    pub(crate) fn new(plan: Plan, link: Option<Link>) -> Self {
        let is_of_stream = plan.cluster.as_ref().is_some_and(|cluster| cluster.history.is_some());
        Node {
            all_answered: Barrier::new(plan.threads),
            capacity: plan.connections.map(Capacity::new),
            rejected: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            loads: (0..plan.threads).map(|_| Load::default()).collect(),
            histories: Histories::new(plan.limits.history_bytes, is_of_stream),
            presences: Presences::new(plan.threads),
            arrivals: Arrivals::default(),
            idempotency: Arc::default(),
            rates: Rates::new(&plan.limits),
            verifier: plan.jwt.clone().map(Verifier::new),
            began: Instant::now(),
            plan,
            directory: Directory::new(),
            link,
            name: crate::secrets::key()[..12].to_owned(),
            published: AtomicUsize::new(0),
        }
    }

    /// Returns the time since the node began, milliseconds: the clock of the histories and presences.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the number of threads.
    pub(crate) fn threads(&self) -> u16 {
        self.loads.len() as u16
    }

    /// Publishes how many bytes wait on a thread.
    pub(crate) fn set_queued_bytes(&self, thread: u16, bytes: usize) {
        self.loads[usize::from(thread)].queued_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Publishes how many sessions of a thread have something in their queue.
    pub(crate) fn set_waiting(&self, thread: u16, sessions: usize) {
        self.loads[usize::from(thread)].waiting.store(sessions, Ordering::Relaxed);
    }

    /// Counts a new session. False: there are as many as there may be on all threads together.
    pub(crate) fn enter(&self) -> bool {
        let most = self.plan.limits.sessions;
        let more = |sessions: usize| (sessions < most).then_some(sessions + 1);
        self.sessions.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts a session that is over.
    pub(crate) fn leave(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the bytes that wait on all threads.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.loads.iter().map(|load| load.queued_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns each session's share if all sessions with something in their queue share `bytes` equally.
    pub(crate) fn share_of(&self, bytes: usize) -> usize {
        let waiting: usize = self.loads.iter().map(|load| load.waiting.load(Ordering::Relaxed)).sum();
        bytes / waiting.max(1)
    }

    /// Returns the number of sessions on all threads.
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Counts a client that was rejected because there are too many sessions.
    pub(crate) fn count_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many clients were rejected because there were too many sessions.
    pub(crate) fn rejected(&self) -> usize {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Returns a number that no other publish of this process has.
    pub(crate) fn next_publish(&self) -> usize {
        self.published.fetch_add(1, Ordering::Relaxed)
    }
}
