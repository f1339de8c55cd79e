//! What the cores of a process share: the plan, the directory, and the way to each other.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oroshi_server::Room;
use tokio::sync::{Barrier, mpsc, oneshot};

use crate::directory::Directory;
use crate::hub::Hub;
use crate::plan::Plan;

/// Something for a core to do, in its own time.
pub(crate) type Job = Box<dyn FnOnce(&Rc<Hub>) + Send>;

/// The shared part of a process's hubs.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) plan: Plan,
    pub(crate) directory: Directory,
    pub(crate) cluster: Option<crate::cluster::Link>,
    /// Room for clients' connections, if it is bounded.
    pub(crate) room: Option<Arc<Room>>,
    /// Clients that were answered that there are too many sessions.
    turned_away: AtomicUsize,
    /// Tells this run of this process from all others.
    pub(crate) name: String,
    /// Where a core waits, once all its requests are answered, for the others to have come as far.
    pub(crate) all_answered: Barrier,
    mail: Box<[mpsc::UnboundedSender<Job>]>,
    loads: Box<[Load]>,
    published: AtomicUsize,
}

/// What a core holds, as the others see it. A cache line each, as every core writes its own all the time.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Load {
    queued_bytes: AtomicUsize,
    /// Sessions that something waits for.
    waiting: AtomicUsize,
    sessions: AtomicUsize,
}

impl Node {
    /// The node, and each core's end of the mail.
    pub(crate) fn new(plan: Plan, cluster: Option<crate::cluster::Link>) -> (Self, Vec<mpsc::UnboundedReceiver<Job>>) {
        // Bounded by those who wait for an answer to what they sent.
        let (mail, boxes): (Vec<_>, Vec<_>) = (0..plan.threads).map(|_| mpsc::unbounded_channel()).unzip();
        let loads = (0..plan.threads).map(|_| Load::default()).collect();
        let name = crate::random::key()[..12].to_owned();
        let node = Node {
            all_answered: Barrier::new(plan.threads),
            room: plan.connections.map(Room::new),
            turned_away: AtomicUsize::new(0),
            plan,
            directory: Directory::new(),
            cluster,
            name,
            mail: mail.into(),
            loads,
            published: AtomicUsize::new(0),
        };
        (node, boxes)
    }

    pub(crate) fn cores(&self) -> u16 {
        self.mail.len() as u16
    }

    /// Has a core do something. False if it has ended.
    pub(crate) fn tell(&self, core: u16, job: Job) -> bool {
        self.mail[usize::from(core)].send(job).is_ok()
    }

    /// Has a core do something that takes its time, and gives the outcome; `None` if it has ended.
    pub(crate) fn ask<T, F>(&self, core: u16, work: impl FnOnce(Rc<Hub>) -> F + Send + 'static) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (answer, asked) = oneshot::channel();
        self.tell(
            core,
            Box::new(move |hub| {
                let work = work(Rc::clone(hub));
                tokio::task::spawn_local(async move {
                    // Whoever asked may have gone.
                    let _ = answer.send(work.await);
                });
            }),
        );
        asked
    }

    /// Writes down what waits on a core.
    pub(crate) fn set_queued_bytes(&self, core: u16, bytes: usize) {
        self.loads[usize::from(core)].queued_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Writes down for how many of a core's sessions something waits.
    pub(crate) fn set_waiting(&self, core: u16, sessions: usize) {
        self.loads[usize::from(core)].waiting.store(sessions, Ordering::Relaxed);
    }

    /// Writes down how many sessions a core has.
    pub(crate) fn set_sessions(&self, core: u16, sessions: usize) {
        self.loads[usize::from(core)].sessions.store(sessions, Ordering::Relaxed);
    }

    /// The bytes that wait on all cores.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.loads.iter().map(|load| load.queued_bytes.load(Ordering::Relaxed)).sum()
    }

    /// The bytes that each session could have waiting if those that something waits for shared `bytes` alike.
    pub(crate) fn share_of(&self, bytes: usize) -> usize {
        let waiting: usize = self.loads.iter().map(|load| load.waiting.load(Ordering::Relaxed)).sum();
        bytes / waiting.max(1)
    }

    /// The sessions of all cores.
    pub(crate) fn sessions(&self) -> usize {
        self.loads.iter().map(|load| load.sessions.load(Ordering::Relaxed)).sum()
    }

    /// Counts a client that was answered that there are too many sessions.
    pub(crate) fn turn_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// How many clients were.
    pub(crate) fn turned_away(&self) -> usize {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// A number that no other publish of this process has.
    pub(crate) fn next_publish(&self) -> usize {
        self.published.fetch_add(1, Ordering::Relaxed)
    }
}
