//! The threads' end of the link to other nodes.
//!
//! A request goes to the NATS thread as a command, and its replies come back through a channel of its own.

mod presence;
mod replies;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oroshi_websocket::CloseCode;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::cluster::wire::{Body, BroadcastCounts, Head, Reply, Request};
use crate::message::Message;
use crate::plan::Cluster;
use crate::publish::{Publish, StoreError, Targets};
use crate::session::channels::Member;
use crate::session::info::{Closed, PollError, SessionInfo};
pub(super) use presence::Watched;
use replies::{PendingReceipts, Replies};

/// The most that may wait for the NATS thread, KiB. Each request counts as at least one.
const WAITING_KIB: usize = 64 * 1024;

/// The longest name of a channel with a history in JetStream, bytes: NATS limits a line of its protocol to 4 KiB.
const MOST_CHANNEL_BYTES: usize = 2048;

/// The most polls, and requests with commands, that wait for the answers of other nodes: each asks all of them, and
/// anybody may send one.
const MOST_FORWARDED: usize = 1024;

/// How many different troubles the log remembers as logged.
const LOGGED: usize = 8;

/// The link to the other nodes, for all threads.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
    commands: UnboundedSender<Command>,
    room: Arc<Semaphore>,
    /// Limits polls and commands for sessions of other nodes.
    forwarded: Semaphore,
    receipt_timeout: Duration,
    /// What other nodes are told about the subscribers of channels.
    feeds: presence::Feeds,
}

/// The NATS thread's end of the link.
#[derive(Debug)]
pub(super) struct LinkEnd {
    pub(super) shared: Arc<Shared>,
    /// For replies of this node's threads.
    pub(super) commands: UnboundedSender<Command>,
    pub(super) received: UnboundedReceiver<Command>,
}

/// State that the threads and the NATS thread share.
#[derive(Debug)]
pub(super) struct Shared {
    /// This node's number in this run.
    pub(super) me: u64,
    /// The origin of its clock.
    began: Instant,
    pub(super) connected: AtomicBool,
    /// Whether this node follows the stream of JetStream.
    pub(super) following: AtomicBool,
    /// [`OtherNodes`] in one number, so that no reader misses a node that moves between its two counts.
    others: AtomicU64,
    /// Publishes that went to nobody, and that no heartbeat has reported yet.
    unsent_all: AtomicU64,
    unsent_groups: AtomicU64,
    /// The largest message that NATS takes, bytes.
    pub(super) max_payload: AtomicUsize,
    pub(super) counters: Counters,
    trouble: Mutex<Trouble>,
}

/// The last error, for `/status` and the log.
#[derive(Debug, Default)]
struct Trouble {
    /// The last trouble since the connection to NATS; empty if there was none.
    last: String,
    /// Troubles in the log since NATS was reached, latest last. A connection on which nothing comes back does not clear
    /// this: the next one would log the same again.
    logged: Vec<String>,
}

/// The counters of [`LinkCounts`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connects: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) incomplete: AtomicU64,
    pub(super) unsent: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) stale: AtomicU64,
    pub(super) repeated: AtomicU64,
    pub(super) missed: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// How many other nodes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OtherNodes {
    /// Nodes that are there, or were when the link was lost.
    pub(super) known: u32,
    /// Nodes that have gone silent and have not left.
    pub(super) absent: u32,
}

/// The state of the link, and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkCounts {
    /// Whether this node's own messages come back to it.
    pub(crate) connected: bool,
    /// Whether this node follows the stream with the histories.
    pub(crate) following: bool,
    /// Other nodes that are there, or were when the link was lost.
    pub(crate) nodes: u32,
    /// Nodes that have gone silent and have not left. Receipts count them as known for a minute.
    pub(crate) absent: u32,
    /// How often NATS was reached.
    pub(crate) connects: u64,
    /// Requests to the other nodes.
    pub(crate) sent: u64,
    /// Requests of other nodes that this node accepted.
    pub(crate) received: u64,
    /// Publishes whose receipt lacks a node.
    pub(crate) incomplete: u64,
    /// Requests that went to nobody although there are or were other nodes. The link was lost, no node was heard since
    /// it came back, too much was waiting, or NATS takes nothing so large.
    pub(crate) unsent: u64,
    /// Replies that came too late.
    pub(crate) late: u64,
    /// Requests of other nodes that came too late.
    pub(crate) stale: u64,
    /// Requests of other nodes that came twice or out of order.
    pub(crate) repeated: u64,
    /// Requests of other nodes that never came.
    pub(crate) missed: u64,
    /// Messages that were malformed, from an unknown node, or beyond this node's capacity.
    pub(crate) refused: u64,
    /// The last trouble since the connection to NATS; empty if there was none.
    pub(crate) trouble: String,
}

/// A command to the NATS thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Ask all nodes. After `until` the request is stale. Its replies go to `replies`.
    Request {
        frame: Vec<u8>,
        broadcasts: BroadcastCounts,
        until: Instant,
        replies: UnboundedSender<Progress>,
        _room: OwnedSemaphorePermit,
    },
    /// Claim a session's key from all nodes.
    Claim { key: Arc<str> },
    /// Store a message in the stream of JetStream.
    Store { channel: Box<str>, frame: Vec<u8>, stored: Stored, _room: OwnedSemaphorePermit },
    /// Fill the history of a channel from the stream, which begins at `floor`. `done` is dropped then.
    Fill { channel: Arc<str>, floor: u64, done: oneshot::Sender<()> },
    /// Reply to one node.
    Reply { to: u64, frame: Vec<u8> },
    /// Tell one node what waits for it about the subscribers of channels.
    Tell { to: u64 },
    /// Ask the other nodes who subscribes to a channel, from now on or no longer.
    Watch { channel: Arc<str>, is_watched: bool },
}

/// Gets the sequence number of a stored message.
pub(super) type Stored = oneshot::Sender<Result<u64, StoreError>>;

/// Another node's answer to a request.
#[derive(Debug)]
pub(super) enum Progress {
    /// The node will reply later.
    Working,
    Replied(Reply),
}

impl Link {
    /// Creates the link and the NATS thread's end of it.
    pub(super) fn new(cluster: &Cluster) -> (Link, LinkEnd) {
        let (commands, received) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            me: crate::secrets::number(),
            began: Instant::now(),
            connected: AtomicBool::new(false),
            following: AtomicBool::new(false),
            others: AtomicU64::new(0),
            unsent_all: AtomicU64::new(0),
            unsent_groups: AtomicU64::new(0),
            max_payload: AtomicUsize::new(usize::MAX),
            counters: Counters::default(),
            trouble: Mutex::default(),
        });
        let link = Link {
            shared: Arc::clone(&shared),
            commands: commands.clone(),
            room: Arc::new(Semaphore::new(WAITING_KIB)),
            forwarded: Semaphore::new(MOST_FORWARDED),
            receipt_timeout: cluster.receipt_timeout,
            feeds: presence::Feeds::default(),
        };
        (link, LinkEnd { shared, commands, received })
    }

    /// Returns whether this node reaches NATS.
    pub(crate) fn is_connected(&self) -> bool {
        self.shared.connected.load(Ordering::Acquire)
    }

    /// Asks the other nodes to publish; `elsewhere` has the keys of sessions that are not on this node.
    pub(crate) fn publish(
        &self,
        publish: &Publish,
        elsewhere: Vec<Box<str>>,
        is_connected: bool,
    ) -> PendingReceipts<'_> {
        let OtherNodes { known, absent } = self.shared.others();
        let to = Targets { sessions: elsewhere.clone(), ..publish.to.clone() };
        // Even a publish that does not wait for readers waits for full queues.
        let replies = self.request(Request::Publish(Publish { to, ..publish.clone() }), publish.deadline);
        PendingReceipts { shared: &self.shared, is_connected, others: known + absent, elsewhere, replies }
    }

    /// Returns whether this node follows the stream of JetStream.
    pub(crate) fn is_following(&self) -> bool {
        self.is_connected() && self.shared.following.load(Ordering::Acquire)
    }

    /// Stores a message for the subscribers of each of these channels in JetStream. Each receiver gets its sequence
    /// number.
    ///
    /// # Errors
    /// No message is stored: JetStream is not reached, or one of them is too large.
    pub(crate) fn store(
        &self,
        channels: &[&str],
        publish: &Publish,
    ) -> Result<Vec<oneshot::Receiver<Result<u64, StoreError>>>, StoreError> {
        if !self.is_following() {
            return Err(StoreError::Unreached);
        }
        let mut frames = Vec::with_capacity(channels.len());
        for channel in channels {
            let to = Targets { groups: vec![(*channel).into()], ..Targets::default() };
            let publish = Publish { to, stored: Vec::new(), ..publish.clone() };
            let head = Head { sender: self.shared.me, sent_ms: self.shared.now_ms(), ..Head::default() };
            let request = Request::Publish(publish);
            let frame = Body::Request { patience: self.receipt_timeout, request }.encode(head);
            // NATS counts the subject too, which has the channel's name in base64.
            if frame.len() + channel.len() * 2 > self.shared.max_payload.load(Ordering::Relaxed)
                || channel.len() > MOST_CHANNEL_BYTES
            {
                return Err(StoreError::TooLarge);
            }
            let room = Arc::clone(&self.room).try_acquire_many_owned((frame.len() / 1024 + 1) as u32);
            frames.push((frame, room.map_err(|_| StoreError::Unreached)?));
        }
        let mut receivers = Vec::with_capacity(channels.len());
        for (channel, (frame, _room)) in channels.iter().zip(frames) {
            let (stored, receiver) = oneshot::channel();
            // If the NATS thread has ended, it ended before the first one, and the receiver says so.
            let _ = self.commands.send(Command::Store { channel: (*channel).into(), frame, stored, _room });
            receivers.push(receiver);
        }
        Ok(receivers)
    }

    /// Fills the history of a channel, which begins at `floor`, from JetStream. It gives up after the receipt timeout.
    pub(crate) async fn fill(&self, channel: Arc<str>, floor: u64) {
        if self.is_following() {
            let (done, filled) = oneshot::channel();
            // If the NATS thread has ended, there is no link.
            let _ = self.commands.send(Command::Fill { channel, floor, done });
            let _ = timeout(self.receipt_timeout, filled).await;
        }
    }

    /// Finds a session on the other nodes.
    pub(crate) async fn find(&self, key: &str) -> Option<SessionInfo> {
        let found = |reply| if let Reply::Session(found) = reply { found } else { None };
        self.request(Request::Find { key: key.into() }, Duration::ZERO).first(found).await
    }

    /// Closes a session on the node that has it.
    pub(crate) async fn close(&self, key: &str, last: Option<Arc<Message>>, code: CloseCode, reason: &str) -> Closed {
        let request = Request::Close { key: key.into(), last, code, reason: reason.into() };
        let closed = |reply| match reply {
            Reply::Closed(closed) if closed != Closed::Unknown => Some(closed),
            _ => None,
        };
        self.request(request, Duration::ZERO).first(closed).await.unwrap_or(Closed::Unknown)
    }

    /// Adds a session to a group on the node that has it. Returns false if none has.
    pub(crate) async fn join(&self, key: &str, group: &str) -> bool {
        self.request(Request::Join { key: key.into(), group: group.into() }, Duration::ZERO)
            .first(is_known)
            .await
            .is_some()
    }

    /// Removes a session from a group on the node that has it. Returns false if none has.
    pub(crate) async fn leave(&self, key: &str, group: &str) -> bool {
        self.request(Request::Leave { key: key.into(), group: group.into() }, Duration::ZERO)
            .first(is_known)
            .await
            .is_some()
    }

    /// Returns how many sessions of the other nodes are in a group, as far as the nodes reply.
    pub(crate) async fn group_size(&self, group: &str) -> u64 {
        self.sum(Request::GroupSize { group: group.into() }).await
    }

    /// Returns how many sessions of the other nodes a user has, as far as the nodes reply.
    pub(crate) async fn user_size(&self, user: &str) -> u64 {
        self.sum(Request::UserSize { user: user.into() }).await
    }

    /// Closes the sessions of a user on the other nodes. Returns how many, as far as the nodes reply.
    pub(crate) async fn close_user(&self, user: &str, code: CloseCode, reason: &str) -> u64 {
        self.sum(Request::CloseUser { user: user.into(), code, reason: reason.into() }).await
    }

    /// Returns the sum of the counts that nodes reply.
    async fn sum(&self, request: Request) -> u64 {
        let mut replies = self.request(request, Duration::ZERO);
        let mut sum = 0u64;
        while let Some(reply) = replies.next().await {
            if let Reply::GroupSize(size) = reply {
                sum = sum.saturating_add(size);
            }
        }
        sum
    }

    /// Adds the sessions of the other nodes that subscribe to a channel, as far as the nodes reply.
    pub(crate) async fn add_members(&self, channel: &str, count: &mut u64, members: &mut Vec<Member>) {
        let mut replies = self.request(Request::Members { channel: channel.into() }, Duration::ZERO);
        while let Some(reply) = replies.next().await {
            if let Reply::Members(theirs, some) = reply {
                *count = count.saturating_add(theirs);
                members.extend(some);
            }
        }
    }

    /// Polls a session on another node, for which the poll waits up to `longest`.
    pub(crate) async fn poll(
        &self,
        key: &str,
        token: &str,
        after: u64,
        longest: Duration,
    ) -> Result<String, PollError> {
        let request = Request::Poll { key: key.into(), token: token.into(), after };
        let polled = |reply| match reply {
            Reply::Polled(Err(PollError::Unknown)) => None,
            Reply::Polled(polled) => Some(polled),
            _ => None,
        };
        match self.ask_all(request, longest, polled).await {
            Some(polled) => polled.map(String::from),
            None if self.is_connected() => Err(PollError::Unknown),
            None => Err(PollError::Unreached),
        }
    }

    /// Has the node of a session carry out its commands. Returns the answers as a JSON array.
    ///
    /// # Errors
    /// `Unknown` if no node has the session, else that it did not answer.
    pub(crate) async fn commands(
        &self,
        key: &str,
        token: &str,
        commands: Vec<Box<str>>,
    ) -> Result<Box<str>, PollError> {
        let request = Request::Commands { key: key.into(), token: token.into(), commands };
        let answers = |reply| match reply {
            Reply::Answers(answers) => answers.map(Ok),
            Reply::Polled(Err(error)) => Some(Err(error)),
            _ => None,
        };
        // A command may wait for the other nodes, as this one does for the command.
        match self.ask_all(request, self.receipt_timeout * 2, answers).await {
            Some(answers) => answers,
            None if self.is_connected() => Err(PollError::Unknown),
            None => Err(PollError::Unreached),
        }
    }

    /// Returns the first result of `says` that is not `None`, or `Unreached` if a node did not answer, or `Crowded`.
    async fn ask_all<T>(
        &self,
        request: Request,
        longer: Duration,
        says: impl Fn(Reply) -> Option<Result<T, PollError>>,
    ) -> Option<Result<T, PollError>> {
        let Ok(_place) = self.forwarded.try_acquire() else { return Some(Err(PollError::Crowded)) };
        let known = self.shared.others().known;
        let (mut replies, mut answered) = (self.request(request, longer), 0);
        while let Some(reply) = replies.next().await {
            answered += 1;
            if let Some(said) = says(reply) {
                return Some(said);
            }
        }
        (answered < known).then_some(Err(PollError::Unreached))
    }

    /// Tells the other nodes that a session with this key was opened, so that an older one ends.
    pub(crate) fn claim(&self, key: &Arc<str>) {
        if self.shared.reaches_others() {
            // If the NATS thread has ended, there is no link.
            let _ = self.commands.send(Command::Claim { key: Arc::clone(key) });
        }
    }

    /// Returns the state of the link, and its counters.
    pub(crate) fn counts(&self) -> LinkCounts {
        let Shared { connected, counters, .. } = &*self.shared;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // In this order: the NATS thread counts the nodes before it sets `connected`.
        let connected = connected.load(Ordering::Acquire);
        let OtherNodes { known, absent } = self.shared.others();
        LinkCounts {
            connected,
            following: self.is_following(),
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

    /// Asks all other nodes. A node that announces it may take `longer` than the receipt timeout.
    fn request(&self, request: Request, longer: Duration) -> Replies {
        let now = Instant::now();
        let until = now + self.receipt_timeout;
        let mut replies = Replies { progress: None, until, longest: until + longer };
        let broadcasts = match &request {
            Request::Publish(Publish { to, .. }) => BroadcastCounts::of(to),
            _ => BroadcastCounts::default(),
        };
        if !self.shared.reaches_others() {
            self.shared.unsent(broadcasts);
            // Once NATS is back, the nodes from before are absent until they are heard.
            let OtherNodes { known, absent } = self.shared.others();
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
            self.shared.unsent(broadcasts);
            return replies;
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned((frame.len() / 1024 + 1) as u32) else {
            self.shared.trouble(format!("more than {} MiB wait to be handed to NATS", WAITING_KIB / 1024));
            count(&self.shared.counters.unsent, 1);
            self.shared.unsent(broadcasts);
            return replies;
        };
        let (sender, progress) = mpsc::unbounded_channel();
        if self.commands.send(Command::Request { frame, broadcasts, until, replies: sender, _room: room }).is_ok() {
            replies.progress = Some(progress);
        }
        replies
    }
}

fn is_known(reply: Reply) -> Option<()> {
    (reply == Reply::Known(true)).then_some(())
}

impl Shared {
    /// Returns the time of this node's clock.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns whether this node's own messages come back to it.
    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    fn reaches_others(&self) -> bool {
        self.connected.load(Ordering::Acquire) && self.others().known > 0
    }

    fn others(&self) -> OtherNodes {
        let both = self.others.load(Ordering::Relaxed);
        OtherNodes { known: (both >> 32) as u32, absent: both as u32 }
    }

    pub(super) fn set_others(&self, OtherNodes { known, absent }: OtherNodes) {
        self.others.store(u64::from(known) << 32 | u64::from(absent), Ordering::Relaxed);
    }

    /// Records a publish that went to nobody. A later heartbeat reports it.
    pub(super) fn unsent(&self, broadcasts: BroadcastCounts) {
        if !broadcasts.is_none() {
            self.unsent_all.fetch_add(broadcasts.all, Ordering::Relaxed);
            self.unsent_groups.fetch_add(broadcasts.groups, Ordering::Relaxed);
        }
    }

    /// Takes the publishes that went to nobody since the last call.
    pub(super) fn take_unsent(&self) -> BroadcastCounts {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        BroadcastCounts { all: take(&self.unsent_all), groups: take(&self.unsent_groups) }
    }

    /// Records a trouble for `/status`, and logs it if it is new.
    pub(super) fn trouble(&self, what: String) {
        let is_new = {
            let mut trouble = self.lock_trouble();
            trouble.last.clone_from(&what);
            trouble.is_new(&what)
        };
        if is_new {
            tracing::warn!("cluster: {what}");
        }
    }

    /// Records a trouble unless there is one, which says more.
    pub(super) fn trouble_if_none(&self, what: &str) {
        if self.lock_trouble().last.is_empty() {
            self.trouble(what.to_owned());
        }
    }

    /// Clears the trouble after a connection. Whether messages come back on it is not known yet.
    pub(super) fn trouble_passed(&self) {
        self.lock_trouble().last.clear();
    }

    /// Logs that this node's messages come back. From here on each trouble is new.
    pub(super) fn reached(&self) {
        self.lock_trouble().logged.clear();
        tracing::info!("cluster: NATS is reached");
    }

    fn lock_trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    /// Returns whether a trouble is new, and remembers it. Servers that refuse in turn would otherwise fill the log.
    fn is_new(&mut self, what: &str) -> bool {
        if self.logged.iter().any(|logged| logged == what) {
            return false;
        }
        if self.logged.len() == LOGGED {
            self.logged.remove(0);
        }
        self.logged.push(what.to_owned());
        true
    }
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
