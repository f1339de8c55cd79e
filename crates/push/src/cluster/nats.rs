//! The thread that holds the connection to NATS.
//!
//! Each connection has a runtime of its own, which ends with it. So messages that the client still holds cannot reach
//! other nodes late. A connection is good while this node's own heartbeats come back on it, as that proves both
//! directions. The thread replaces a connection where they do not, as one that breaks.

mod presence;
mod requests;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use oroshi_nats::jetstream::{Context, ContextBuilder};
use oroshi_nats::{Client, Event};
use oroshi_net::Shutdown;
use oroshi_words::Secret;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use crate::cluster::feeds::Feeds;
use crate::cluster::link::{Command, Link, LinkEnd, OtherNodes, Progress, Shared, count};
use crate::cluster::peers::{HEARTBEAT_MS, Peers, SILENCE_MS};
use crate::cluster::stream::Followed;
use crate::cluster::wire::{self, Body, BroadcastCounts, HEAD_BYTES, Head, Request};
use crate::hub::Hub;
use crate::hub::missed::Missed;
use crate::mailboxes::Mailboxes;
use crate::node::Node;
use crate::plan::{Cluster, StreamSettings};
use crate::publish::StoreError;

/// How long the last heartbeat, which says that this node leaves, may take.
const LEAVE: Duration = Duration::from_millis(500);

/// The shortest and longest pause before a new connection. It doubles each time, less a random half.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// Commands that the NATS client gets before it must have sent them.
const BATCH: usize = 64;

/// The most that requests of other nodes may hold at a time, KiB. Requests beyond that are dropped without a reply.
const UNDER_WAY_KIB: usize = 64 * 1024;

/// The most messages that JetStream has not confirmed yet. More are refused.
const UNCONFIRMED: usize = 5000;

/// Histories that are filled from JetStream at a time.
const FILLS: usize = 16;

/// The NATS thread, not started yet.
#[derive(Debug)]
pub(crate) struct NatsThread {
    nats: Secret,
    name: String,
    history: Option<StreamSettings>,
    receipt_timeout: Duration,
    end: LinkEnd,
}

/// The running NATS thread.
#[derive(Debug)]
pub(crate) struct Running {
    stop: Shutdown,
    thread: JoinHandle<()>,
}

impl Running {
    /// Tells the other nodes that this one leaves, and ends the thread.
    pub(crate) fn stop(self) {
        self.stop.request();
        // A panic there has ended the link, and nothing else.
        let _ = self.thread.join();
    }
}

/// How a connection ended.
enum End {
    /// It broke, failed, or nothing came back on it.
    Lost,
    /// This node stops.
    Stopped,
}

impl NatsThread {
    /// Creates the link to a cluster, and the thread behind it.
    pub(crate) fn new(cluster: &Cluster) -> (Link, Self) {
        let (link, end) = Link::new(cluster);
        let Cluster { nats, name, history, receipt_timeout } = cluster.clone();
        (link, NatsThread { nats, name, history, receipt_timeout, end })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no room for a thread.
    pub(crate) fn start(self, node: Arc<Node>, mailboxes: Arc<Mailboxes<Hub>>) -> io::Result<Running> {
        let stop = Shutdown::new();
        let stopped = stop.clone();
        let thread =
            thread::Builder::new().name("push-nats".to_owned()).spawn(move || self.run(node, mailboxes, &stopped))?;
        Ok(Running { stop, thread })
    }

    fn run(self, node: Arc<Node>, mailboxes: Arc<Mailboxes<Hub>>, stop: &Shutdown) {
        let NatsThread { nats, name, history, receipt_timeout, end: LinkEnd { shared, commands, mut received } } = self;
        let worker = Rc::new(Worker {
            all: format!("oroshi.push.{name}.all"),
            name,
            history,
            receipt_timeout,
            filling: RefCell::default(),
            followed: Followed::default(),
            fills: Rc::new(Semaphore::new(FILLS)),
            commands,
            peers: RefCell::new(Peers::new(shared.me)),
            feeds: RefCell::default(),
            waiting: RefCell::default(),
            number: Cell::new(0),
            broadcasts: Cell::default(),
            came_back_ms: Cell::new(0),
            beat_now: Notify::new(),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_KIB)),
            pause: Cell::new(Duration::ZERO),
            is_late: Cell::new(false),
            was_away: Cell::new(false),
            node,
            mailboxes,
            shared,
        });
        loop {
            let runtime = match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime,
                // No descriptor is free, which may change.
                Err(error) => {
                    worker.shared.trouble(format!("cannot connect to NATS: {error}"));
                    thread::sleep(PAUSES[1]);
                    if stop.count() > 0 {
                        return;
                    }
                    continue;
                }
            };
            let end = runtime.block_on(worker.connection(&nats, &mut received, stop));
            // In the background: look-ups of names may still run.
            runtime.shutdown_background();
            worker.lose(&mut received);
            if matches!(end, End::Stopped) {
                return;
            }
        }
    }
}

/// Those who wait for a history to be filled.
type FillWaiters = Vec<oneshot::Sender<()>>;

/// The state of the NATS thread.
pub(super) struct Worker {
    pub(super) node: Arc<Node>,
    pub(super) mailboxes: Arc<Mailboxes<Hub>>,
    pub(super) shared: Arc<Shared>,
    pub(super) name: String,
    /// `None`: JetStream is not used.
    pub(super) history: Option<StreamSettings>,
    receipt_timeout: Duration,
    /// Channels whose history is being filled from before this sequence number, with those who wait for it.
    pub(super) filling: RefCell<HashMap<(Arc<str>, u64), FillWaiters>>,
    pub(super) followed: Followed,
    /// Limits how many histories are filled at a time.
    pub(super) fills: Rc<Semaphore>,
    /// The subject of messages to all nodes.
    all: String,
    commands: UnboundedSender<Command>,
    peers: RefCell<Peers>,
    /// On these, other nodes tell who subscribes to channels.
    feeds: RefCell<Feeds>,
    /// Requests by number, with the nodes that have not replied.
    waiting: RefCell<HashMap<u64, Waiting>>,
    /// The number of the last request that the client got.
    number: Cell<u64>,
    /// The number of this node's publishes, including that request.
    broadcasts: Cell<BroadcastCounts>,
    /// When a heartbeat of this node last came back.
    came_back_ms: Cell<u64>,
    /// Notified when a node appears that should hear from this one at once.
    beat_now: Notify,
    under_way: Arc<Semaphore>,
    /// The pause before the next connection.
    pause: Cell<Duration>,
    /// Whether NATS was unreachable when this node started, and no other node has appeared since.
    is_late: Cell<bool>,
    /// Whether the link was lost before.
    was_away: Cell<bool>,
}

/// A request that waits for replies.
struct Waiting {
    nodes: Vec<u64>,
    replies: UnboundedSender<Progress>,
}

impl Worker {
    /// Opens a connection, and uses it until it ends.
    async fn connection(
        self: &Rc<Self>,
        nats: &Secret,
        commands: &mut UnboundedReceiver<Command>,
        stop: &Shutdown,
    ) -> End {
        let mut stopped = pin!(stop.reached(1));
        let lost = Arc::new(Notify::new());
        let client = {
            let connect = pin!(async {
                sleep(self.pause.get().mul_f64(1.0 - fastrand::f64() / 2.0)).await;
                self.pause.set((self.pause.get() * 2).clamp(PAUSES[0], PAUSES[1]));
                self.connect(nats, &lost).await
            });
            match select(connect, stopped.as_mut()).await {
                Either::Left((Ok(client), _)) => client,
                Either::Left((Err(why), _)) => {
                    let never = self.shared.counters.connects.load(Ordering::Relaxed) == 0;
                    self.is_late.set(self.is_late.get() || never);
                    self.shared.trouble(format!("cannot connect to NATS: {why}"));
                    return End::Lost;
                }
                Either::Right(_) => return End::Stopped,
            }
        };
        self.shared.trouble_passed();
        self.shared.max_payload.store(client.max_payload(), Ordering::Relaxed);
        self.node.presences.limit_parts(client.max_payload().saturating_sub(HEAD_BYTES));
        // While NATS confirms nothing, a publish fails at once, and other commands need not wait for it.
        let context = ContextBuilder::new().timeout(self.receipt_timeout).backpressure_on_inflight(false);
        let context = context.max_ack_inflight(UNCONFIRMED).build(client.clone());
        let (receiving, sending) = (pin!(self.receive(&client)), pin!(self.send(&client, &context, commands)));
        let following = pin!(self.follow(&context));
        let (beat, broken) = (pin!(self.beat(&client)), pin!(lost.notified()));
        let working = select(select(receiving, sending), following);
        match select(select(working, select(beat, broken)), stopped).await {
            Either::Left(_) => End::Lost,
            Either::Right(_) => {
                let leave = async {
                    self.send_heartbeat(&client, true).await;
                    let _ = client.flush().await;
                };
                let _ = timeout(LEAVE, leave).await;
                End::Stopped
            }
        }
    }

    async fn connect(&self, nats: &Secret, lost: &Arc<Notify>) -> Result<Client, String> {
        let (lost, shared) = (Arc::clone(lost), Arc::clone(&self.shared));
        let options = oroshi_nats::options(format!("oroshi push {}", self.node.name))
            .client_capacity(BATCH)
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => lost.notify_one(),
                    // For example if the subjects are forbidden.
                    Event::ServerError(error) => shared.trouble(format!("NATS says: {error}")),
                    Event::SlowConsumer(_) => shared.trouble("this node does not keep up with the others".to_owned()),
                    _ => {}
                }
                std::future::ready(())
            });
        oroshi_nats::connect(nats, options).await
    }

    /// Receives the messages of other nodes.
    async fn receive(self: &Rc<Self>, client: &Client) {
        let to_me = client.subscribe(self.subject_of(self.shared.me));
        let (Ok(to_all), Ok(to_me)) = (client.subscribe(self.all.clone()).await, to_me.await) else { return };
        let mut messages = futures_util::stream::select(to_all, to_me);
        let most = self.node.plan.limits.publish_bytes;
        while let Some(message) = messages.next().await {
            match wire::decode(&message.payload, most) {
                Ok((head, body)) => self.dispatch(head, body, message.payload.len()),
                Err(refused) => {
                    count(&self.shared.counters.refused, 1);
                    self.shared.trouble(refused.to_string());
                }
            }
        }
    }

    fn dispatch(self: &Rc<Self>, head: Head, body: Body, bytes: usize) {
        let is_own = head.sender == self.shared.me;
        match body {
            Body::Heartbeat { leaving: false, .. } if is_own => self.handle_own_heartbeat(),
            _ if is_own => {}
            Body::Heartbeat { leaving, heard } => {
                let is_new = !leaving && self.peers.borrow().is_new(head.sender);
                let heard = self.peers.borrow_mut().heard(head, leaving, &heard, self.shared.now_ms());
                count(&self.shared.counters.missed, heard.missed);
                self.report_lost(&head, BroadcastCounts::default());
                if is_new && !head.broadcasts.is_none() && self.was_away.get() {
                    // It started while this node could hear nobody, and has published since.
                    self.report(Missed {
                        all: head.broadcasts.all > 0,
                        any_group: head.broadcasts.groups > 0,
                        ..Missed::default()
                    });
                }
                if heard.appeared {
                    self.beat_now.notify_one();
                    if self.is_late.take() {
                        // This node cannot know what the others published while it could hear nobody.
                        self.report(Missed { all: true, any_group: true, ..Missed::default() });
                    }
                }
                if heard.left {
                    self.stop_waiting_for(&[head.sender]);
                    self.forget(&[head.sender]);
                }
                self.publish_node_counts();
            }
            Body::Request { patience, request } => self.handle_request(head, patience, request, bytes),
            Body::Working => self.handle_reply(head, Progress::Working),
            Body::Reply(reply) => self.handle_reply(head, Progress::Replied(reply)),
            Body::Watch(watch) => self.handle_watch(head.sender, watch),
            Body::Presence(presence) => self.handle_presence(head.sender, presence),
        }
    }

    /// Records that a heartbeat of this node came back, which proves the connection.
    fn handle_own_heartbeat(&self) {
        self.came_back_ms.set(self.shared.now_ms());
        if self.shared.connected.load(Ordering::Relaxed) {
            return;
        }
        self.peers.borrow_mut().resume(self.shared.now_ms());
        // What the others told meanwhile is lost.
        self.feeds.borrow_mut().break_all();
        // Before `connected`: its readers must not count nodes that were heard only before the link was lost.
        self.publish_node_counts();
        self.shared.connected.store(true, Ordering::Release);
        self.pause.set(Duration::ZERO);
        count(&self.shared.counters.connects, 1);
        self.shared.reached();
    }

    /// Handles another node's reply.
    fn handle_reply(&self, head: Head, progress: Progress) {
        let mut all = self.waiting.borrow_mut();
        let place =
            all.get(&head.number).and_then(|waiting| waiting.nodes.iter().position(|&node| node == head.sender));
        let (Some(place), Some(waiting)) = (place, all.get_mut(&head.number)) else {
            return count(&self.shared.counters.late, 1);
        };
        if matches!(progress, Progress::Replied(_)) {
            waiting.nodes.swap_remove(place);
        }
        if waiting.replies.send(progress).is_err() {
            count(&self.shared.counters.late, 1);
        }
        if waiting.nodes.is_empty() {
            all.remove(&head.number);
        }
    }

    /// Ends the wait for replies of nodes that have gone.
    fn stop_waiting_for(&self, gone: &[u64]) {
        self.waiting.borrow_mut().retain(|_, waiting| {
            waiting.nodes.retain(|node| !gone.contains(node));
            !waiting.nodes.is_empty()
        });
    }

    fn publish_node_counts(&self) {
        let peers = self.peers.borrow();
        self.shared.set_others(OtherNodes { known: peers.known().len() as u32, absent: peers.absent() as u32 });
    }

    /// Executes the commands of this node's threads.
    async fn send(self: &Rc<Self>, client: &Client, context: &Context, commands: &mut UnboundedReceiver<Command>) {
        let mut batch = Vec::with_capacity(BATCH);
        // This thread holds a sender too, so the channel stays open.
        while commands.recv_many(&mut batch, BATCH).await > 0 {
            let mut keys = Vec::new();
            for command in batch.drain(..) {
                match command {
                    Command::Claim { key } => keys.push(Box::from(&*key)),
                    Command::Store { channel, frame, stored, _room } => {
                        self.store(context, &channel, frame, stored).await;
                    }
                    Command::Fill { channel, floor, done } => self.fill(context, channel, floor, done),
                    Command::Watch { channel, is_watched } => {
                        if !self.watch(client, channel, is_watched).await {
                            return;
                        }
                    }
                    command => {
                        if !self.execute(client, command).await {
                            return;
                        }
                    }
                }
            }
            if !keys.is_empty() && !self.send_claim(client, keys).await {
                return;
            }
            // The client never holds more than a batch. Stale requests stay here, so one is late by a batch at most.
            if client.flush().await.is_err() {
                return;
            }
        }
    }

    /// Executes a command. Returns false if the client has ended.
    async fn execute(&self, client: &Client, command: Command) -> bool {
        match command {
            Command::Request { mut frame, broadcasts, until, replies, _room } => {
                if Instant::now() >= until || !self.shared.connected.load(Ordering::Relaxed) {
                    count(&self.shared.counters.unsent, 1);
                    self.shared.unsent(broadcasts);
                    return true;
                }
                let number = self.number.get() + 1;
                let mut total = self.add_unsent();
                total += broadcasts;
                wire::set_number(&mut frame, number, total);
                let nodes = self.peers.borrow().known();
                if !nodes.is_empty() {
                    self.waiting.borrow_mut().insert(number, Waiting { nodes, replies });
                }
                let is_sent = self.ask_all(client, number, frame).await;
                // Not before: a node that learned of it from a heartbeat first would take it for lost.
                let mut total = self.broadcasts.get();
                total += broadcasts;
                self.broadcasts.set(total);
                is_sent
            }
            Command::Reply { to, frame } => client.publish(self.subject_of(to), frame.into()).await.is_ok(),
            Command::Tell { to } => self.tell(client, to).await,
            // `send` carries these out.
            Command::Claim { .. } | Command::Store { .. } | Command::Fill { .. } | Command::Watch { .. } => true,
        }
    }

    /// Returns the subject of messages to one node.
    fn subject_of(&self, node: u64) -> String {
        format!("oroshi.push.{}.node.{node:016x}", self.name)
    }

    async fn send_claim(&self, client: &Client, keys: Vec<Box<str>>) -> bool {
        let number = self.number.get() + 1;
        let head = Head { number, ..self.head() };
        let patience = Duration::from_millis(SILENCE_MS);
        self.ask_all(client, number, Body::Request { patience, request: Request::Claim { keys } }.encode(head)).await
    }

    async fn ask_all(&self, client: &Client, number: u64, frame: Vec<u8>) -> bool {
        count(&self.shared.counters.sent, 1);
        let is_sent = client.publish(self.all.clone(), frame.into()).await.is_ok();
        // Not before: a heartbeat with this number must not overtake the request.
        self.number.set(number);
        is_sent
    }

    /// Sends heartbeats, and checks which other nodes are there. Returns when nothing comes back.
    async fn beat(&self, client: &Client) {
        self.came_back_ms.set(self.shared.now_ms());
        loop {
            // With a timeout, as the connection may take nothing any more.
            let until_next = async {
                self.send_heartbeat(client, false).await;
                self.tend_feeds(client).await;
                self.beat_now.notified().await;
            };
            let _ = timeout(Duration::from_millis(HEARTBEAT_MS), until_next).await;
            let now = self.shared.now_ms();
            let silence = now.saturating_sub(self.came_back_ms.get());
            if silence > SILENCE_MS {
                return self.shared.trouble_if_none("nothing comes back from NATS: trying another connection");
            }
            if silence > HEARTBEAT_MS * 3 / 2 {
                // A request sent now might come too late.
                self.shared.connected.store(false, Ordering::Relaxed);
            } else {
                let gone = self.peers.borrow_mut().forget_silent(now);
                self.stop_waiting_for(&gone);
                self.forget(&gone);
                self.publish_node_counts();
                if self.peers.borrow_mut().take_vanished() {
                    self.report(Missed { all: true, any_group: true, ..Missed::default() });
                }
            }
            self.waiting.borrow_mut().retain(|_, waiting| !waiting.replies.is_closed());
        }
    }

    async fn send_heartbeat(&self, client: &Client, leaving: bool) {
        let heard = self.peers.borrow_mut().echoes();
        // Not with the first heartbeat of a connection: a node that does not know this one starts to count from it.
        if self.shared.connected.load(Ordering::Relaxed) {
            self.add_unsent();
        }
        let head = self.head();
        // If the client has ended, no heartbeat comes back, which `beat` notices.
        let _ = client.publish(self.all.clone(), Body::Heartbeat { leaving, heard }.encode(head).into()).await;
        self.publish_node_counts();
    }

    /// Adds publishes that went to nobody to the counts of this node, which its messages report from here on.
    fn add_unsent(&self) -> BroadcastCounts {
        let mut broadcasts = self.broadcasts.get();
        broadcasts += self.shared.take_unsent();
        self.broadcasts.set(broadcasts);
        broadcasts
    }

    fn head(&self) -> Head {
        let (number, broadcasts) = (self.number.get(), self.broadcasts.get());
        Head { sender: self.shared.me, number, sent_ms: self.shared.now_ms(), broadcasts }
    }

    /// Ends all waits for replies after the link was lost, and discards the waiting commands.
    fn lose(&self, commands: &mut UnboundedReceiver<Command>) {
        self.shared.connected.store(false, Ordering::Relaxed);
        self.shared.following.store(false, Ordering::Relaxed);
        self.filling.borrow_mut().clear();
        self.was_away.set(self.shared.counters.connects.load(Ordering::Relaxed) > 0);
        self.waiting.borrow_mut().clear();
        while let Ok(command) = commands.try_recv() {
            match command {
                Command::Request { broadcasts, .. } => {
                    count(&self.shared.counters.unsent, 1);
                    self.shared.unsent(broadcasts);
                }
                Command::Store { stored, .. } => {
                    let _ = stored.send(Err(StoreError::Unreached));
                }
                _ => {}
            }
        }
        // Not before: what waits at a feed is listed once in the commands.
        if let Some(link) = &self.node.link {
            link.drop_presence();
        }
    }
}
