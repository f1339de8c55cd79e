//! The other nodes, reached through NATS.
//!
//! Every node says to all that it is there, and asks all for what concerns sessions that it does not hold: to publish, to find or
//! close one, to join or leave. Each replies to who asked. What is published reaches a node once or not at all: NATS keeps nothing
//! for later here, and neither do nodes.
//!
//! Who may have missed something is told. Each node says with everything that it says how much it has published to all and to groups, be it
//! that nobody could be reached: so the others see what they did not get, and tell their sessions of it before anything that comes after.
//!
//! - This module is the cores' end. They speak to one thread (`carrier`) that holds the connection, and never wait for it.
//! - `wire` is what nodes say, as bytes; `peers` who is there and what is to be believed: no I/O in either.
//! - `serve` is what this node does for others. `address`: where NATS is.

pub(crate) mod address;
mod carrier;
mod peers;
mod serve;
mod wire;

use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oroshi_websocket::CloseCode;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use crate::cluster::wire::{Body, Head, Reply, Request, Wide};
use crate::control::{Closed, SessionInfo};
use crate::hub::Hub;
use crate::message::Message;
use crate::plan::Cluster;
use crate::publish::{Nodes, Publish, Receipt, Targets};

pub(crate) use carrier::Carrier;

/// What may wait to be handed to NATS, KiB. Each request counts as one at least.
const WAITING_KIB: usize = 64 * 1024;

/// So many different troubles are told from new ones.
const TOLD: usize = 8;

/// The way to the other nodes, as the cores have it.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    orders: UnboundedSender<Order>,
    room: Arc<Semaphore>,
    receipt_timeout: Duration,
}

/// What the cores and the thread both know.
#[derive(Debug)]
struct Shared {
    /// This node, in this run.
    me: u64,
    /// When its clock began.
    began: Instant,
    connected: AtomicBool,
    /// How many of the other nodes are there and how many have gone silent, in one: nobody sees a node that goes from the ones to the others
    /// as neither. See [`Others`].
    others: AtomicU64,
    /// What was published that went to nobody, and whose turn to be told of has not come.
    unsent_all: AtomicU64,
    unsent_groups: AtomicU64,
    /// The largest message that NATS takes, bytes.
    max_payload: AtomicUsize,
    counters: Counters,
    trouble: Mutex<Trouble>,
}

/// What went wrong.
#[derive(Debug, Default)]
struct Trouble {
    /// Last, since NATS was connected to; empty if nothing has.
    last: String,
    /// What the log has of it since NATS was reached, the latest last. A connection on which nothing comes back changes nothing here: the
    /// next one would tell the same again.
    told: Vec<String>,
}

#[derive(Debug, Default)]
struct Counters {
    connects: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    incomplete: AtomicU64,
    unsent: AtomicU64,
    late: AtomicU64,
    stale: AtomicU64,
    repeated: AtomicU64,
    missed: AtomicU64,
    refused: AtomicU64,
}

/// How many other nodes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Others {
    /// Those that are there, or were when the link was lost.
    known: u32,
    /// Those that were there, have gone silent, and have not left.
    absent: u32,
}

/// How the link is, and what has gone over it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    /// Whether what this node says comes back to it.
    pub(crate) connected: bool,
    /// The other nodes that are there, or were when the link was lost.
    pub(crate) nodes: u32,
    /// Those that have gone silent and have not left: a receipt counts them among the known for a minute.
    pub(crate) absent: u32,
    /// How often the link came about.
    pub(crate) connects: u64,
    /// Requests to the other nodes.
    pub(crate) sent: u64,
    /// Requests of other nodes that were carried out.
    pub(crate) received: u64,
    /// Publishes whose receipt says that not all nodes answered.
    pub(crate) incomplete: u64,
    /// Requests that went to nobody although there are or were other nodes: there was no link, none of them was heard since it came back,
    /// too much was waiting, or NATS takes nothing so large.
    pub(crate) unsent: u64,
    /// Replies that nobody waited for any more.
    pub(crate) late: u64,
    /// Requests of others that came too late to be carried out.
    pub(crate) stale: u64,
    /// Requests of others that came again, or out of order.
    pub(crate) repeated: u64,
    /// Requests of others that never came.
    pub(crate) missed: u64,
    /// Messages that were no node's, a stranger's, or more than this node can do.
    pub(crate) refused: u64,
    /// What went wrong last since NATS was connected to; empty if nothing has.
    pub(crate) trouble: String,
}

/// What the cores want of the thread.
#[derive(Debug)]
enum Order {
    /// To be asked of all, until when it makes sense, and where the replies go.
    Request {
        frame: Vec<u8>,
        wide: Wide,
        until: Instant,
        replies: UnboundedSender<Progress>,
        _room: OwnedSemaphorePermit,
    },
    /// To be told to all.
    Claim { key: Arc<str> },
    /// To be told to one.
    Reply { to: u64, frame: Vec<u8> },
}

/// What comes of a request.
#[derive(Debug)]
enum Progress {
    /// A node will reply, later.
    Working,
    Replied(Reply),
}

impl Link {
    /// The link, and what is to become its thread.
    pub(crate) fn new(cluster: &Cluster) -> (Link, Carrier) {
        let (orders, taken) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            me: crate::random::number(),
            began: Instant::now(),
            connected: AtomicBool::new(false),
            others: AtomicU64::new(0),
            unsent_all: AtomicU64::new(0),
            unsent_groups: AtomicU64::new(0),
            max_payload: AtomicUsize::new(usize::MAX),
            counters: Counters::default(),
            trouble: Mutex::default(),
        });
        let link = Link {
            shared: Arc::clone(&shared),
            orders: orders.clone(),
            room: Arc::new(Semaphore::new(WAITING_KIB)),
            receipt_timeout: cluster.receipt_timeout,
        };
        (link, Carrier::new(cluster, shared, orders, taken))
    }

    /// Publishes here, and on the other nodes if they may have sessions that it is for.
    pub(crate) async fn publish(&self, hub: &Rc<Hub>, publish: &Arc<Publish>) -> Receipt {
        let to = &publish.to;
        // As it is when the others are asked, or not.
        let connected = Some(self.shared.connected.load(Ordering::Acquire));
        let elsewhere: Vec<Box<str>> =
            to.sessions.iter().filter(|key| hub.node.directory.find(key).is_none()).cloned().collect();
        if !to.all && to.groups.is_empty() && elsewhere.is_empty() {
            let nodes = Nodes { known: 1, answered: 1, connected };
            return Receipt { nodes, ..hub.publish_here(publish).await };
        }
        let Others { known, absent } = self.shared.others();
        let known = known + absent;
        let to = Targets { sessions: elsewhere.clone(), ..to.clone() };
        // Who does not wait for readers still waits for queues with room.
        let mut replies = self.request(Request::Publish(Publish { to, ..Publish::clone(publish) }), publish.deadline);
        let mut receipt = hub.publish_here(publish).await;
        let (mut answered, mut found) = (1, HashSet::new());
        while let Some(reply) = replies.next().await {
            let Reply::Receipt(part) = reply else { continue };
            answered += 1;
            found.extend(part.found.iter().filter_map(|&place| elsewhere.get(usize::try_from(place).ok()?)));
            receipt.matched = receipt.matched.saturating_add(part.matched);
            receipt.written = receipt.written.saturating_add(part.written);
            receipt.queued = receipt.queued.saturating_add(part.queued);
            receipt.dropped = receipt.dropped.saturating_add(part.dropped);
            receipt.closed = receipt.closed.saturating_add(part.closed);
            receipt.refused.extend(part.refused);
        }
        receipt.unknown.retain(|key| !found.contains(key));
        receipt.nodes = Nodes { known: answered.max(known + 1), answered, connected };
        if receipt.nodes.known > answered {
            count(&self.shared.counters.incomplete, 1);
        }
        receipt
    }

    /// What another node knows of a session.
    pub(crate) async fn find(&self, key: &str) -> Option<SessionInfo> {
        let found = |reply| if let Reply::Session(found) = reply { found } else { None };
        self.request(Request::Find { key: key.into() }, Duration::ZERO).first(found).await
    }

    /// Has the node close a session that has it.
    pub(crate) async fn close(&self, key: &str, last: Option<Arc<Message>>, code: CloseCode, reason: &str) -> Closed {
        let request = Request::Close { key: key.into(), last, code, reason: reason.into() };
        let closed = |reply| match reply {
            Reply::Closed(closed) if closed != Closed::Unknown => Some(closed),
            _ => None,
        };
        self.request(request, Duration::ZERO).first(closed).await.unwrap_or(Closed::Unknown)
    }

    /// Has the node put a session into a group that has it. False if none does.
    pub(crate) async fn join(&self, key: &str, group: &str) -> bool {
        self.request(Request::Join { key: key.into(), group: group.into() }, Duration::ZERO)
            .first(is_known)
            .await
            .is_some()
    }

    /// Has the node take a session out of a group that has it. False if none does.
    pub(crate) async fn leave(&self, key: &str, group: &str) -> bool {
        self.request(Request::Leave { key: key.into(), group: group.into() }, Duration::ZERO)
            .first(is_known)
            .await
            .is_some()
    }

    /// How many sessions of the other nodes are in a group, as far as they reply.
    pub(crate) async fn group_size(&self, group: &str) -> u64 {
        let mut replies = self.request(Request::GroupSize { group: group.into() }, Duration::ZERO);
        let mut sum = 0u64;
        while let Some(reply) = replies.next().await {
            if let Reply::GroupSize(size) = reply {
                sum = sum.saturating_add(size);
            }
        }
        sum
    }

    /// Tells the other nodes that a session with this key was opened, so that an older one ends.
    pub(crate) fn claim(&self, key: &Arc<str>) {
        if self.shared.reaches_somebody() {
            // Without its thread there is no link.
            let _ = self.orders.send(Order::Claim { key: Arc::clone(key) });
        }
    }

    pub(crate) fn counts(&self) -> LinkCounts {
        let Shared { connected, counters, .. } = &*self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // In this order: whoever reaches NATS has looked who is there.
        let connected = connected.load(Ordering::Acquire);
        let Others { known, absent } = self.shared.others();
        LinkCounts {
            connected,
            nodes: known,
            absent,
            connects: read(&counters.connects),
            sent: read(&counters.sent),
            received: read(&counters.received),
            incomplete: read(&counters.incomplete),
            unsent: read(&counters.unsent),
            late: read(&counters.late),
            stale: read(&counters.stale),
            repeated: read(&counters.repeated),
            missed: read(&counters.missed),
            refused: read(&counters.refused),
            trouble: self.shared.lock_trouble().last.clone(),
        }
    }

    /// Asks all other nodes. A node may take `longer` than the receipt timeout if it says so.
    fn request(&self, request: Request, longer: Duration) -> Replies {
        let now = Instant::now();
        let until = now + self.receipt_timeout;
        let mut replies = Replies { progress: None, until, longest: until + longer };
        let wide = match &request {
            Request::Publish(Publish { to, .. }) => Wide::of(to),
            _ => Wide::default(),
        };
        if !self.shared.reaches_somebody() {
            self.shared.unsent(wide);
            // Once NATS is back, those that were there before it was lost are absent until they are heard.
            let Others { known, absent } = self.shared.others();
            if known > 0 || absent > 0 {
                count(&self.shared.counters.unsent, 1);
            }
            return replies;
        }
        let head = Head { sender: self.shared.me, sent_ms: self.shared.now_ms(), ..Head::default() };
        let frame = Body::Request { patience: self.receipt_timeout, request }.encode(head);
        let most = self.shared.max_payload.load(Ordering::Relaxed);
        if frame.len() > most {
            let size = frame.len();
            self.shared.trouble(format!(
                "a message of {size} bytes went to no other node: NATS takes {most} (its max_payload)"
            ));
            count(&self.shared.counters.unsent, 1);
            self.shared.unsent(wide);
            return replies;
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned((frame.len() / 1024 + 1) as u32) else {
            self.shared.trouble(format!("more than {} MiB wait to be handed to NATS", WAITING_KIB / 1024));
            count(&self.shared.counters.unsent, 1);
            self.shared.unsent(wide);
            return replies;
        };
        let (sender, progress) = mpsc::unbounded_channel();
        if self.orders.send(Order::Request { frame, wide, until, replies: sender, _room: room }).is_ok() {
            replies.progress = Some(progress);
        }
        replies
    }
}

fn is_known(reply: Reply) -> Option<()> {
    (reply == Reply::Known(true)).then_some(())
}

impl Shared {
    /// This node's clock.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn reaches_somebody(&self) -> bool {
        self.connected.load(Ordering::Acquire) && self.others().known > 0
    }

    fn others(&self) -> Others {
        let both = self.others.load(Ordering::Relaxed);
        Others { known: (both >> 32) as u32, absent: both as u32 }
    }

    fn set_others(&self, Others { known, absent }: Others) {
        self.others.store(u64::from(known) << 32 | u64::from(absent), Ordering::Relaxed);
    }

    /// Something was published that went to nobody: the others are to know, once they can.
    fn unsent(&self, wide: Wide) {
        if !wide.is_none() {
            self.unsent_all.fetch_add(wide.all, Ordering::Relaxed);
            self.unsent_groups.fetch_add(wide.groups, Ordering::Relaxed);
        }
    }

    /// What has gone to nobody since this was last asked.
    fn take_unsent(&self) -> Wide {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Wide { all: take(&self.unsent_all), groups: take(&self.unsent_groups) }
    }

    /// Something goes wrong: `/status` says it, and the log if it has not yet.
    fn trouble(&self, what: String) {
        let is_new = {
            let mut trouble = self.lock_trouble();
            trouble.last.clone_from(&what);
            trouble.tell(&what)
        };
        if is_new {
            tracing::warn!("cluster: {what}");
        }
    }

    /// What is known already says more.
    fn trouble_if_none(&self, what: &str) {
        if self.lock_trouble().last.is_empty() {
            self.trouble(what.to_owned());
        }
    }

    /// NATS is connected to; whether anything comes back is still to be seen.
    fn trouble_passed(&self) {
        self.lock_trouble().last.clear();
    }

    /// What this node says comes back to it: whatever goes wrong from here on is new.
    fn reached(&self) {
        self.lock_trouble().told.clear();
        tracing::info!("cluster: NATS is reached");
    }

    fn lock_trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    /// Whether the log is to have this. Servers that refuse in turn would otherwise fill it.
    fn tell(&mut self, what: &str) -> bool {
        if self.told.iter().any(|told| told == what) {
            return false;
        }
        if self.told.len() == TOLD {
            self.told.remove(0);
        }
        self.told.push(what.to_owned());
        true
    }
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// The replies to a request, as they come.
struct Replies {
    /// `None` if nobody was asked.
    progress: Option<UnboundedReceiver<Progress>>,
    until: Instant,
    longest: Instant,
}

impl Replies {
    /// The next one; `None` once all have answered that are still there, or the time is over.
    async fn next(&mut self) -> Option<Reply> {
        let progress = self.progress.as_mut()?;
        loop {
            match timeout_at(self.until.into(), progress.recv()).await {
                Ok(Some(Progress::Replied(reply))) => return Some(reply),
                Ok(Some(Progress::Working)) => self.until = self.longest,
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// The first that says something.
    async fn first<T>(mut self, says: impl Fn(Reply) -> Option<T>) -> Option<T> {
        while let Some(reply) = self.next().await {
            if let Some(said) = says(reply) {
                return Some(said);
            }
        }
        None
    }
}
