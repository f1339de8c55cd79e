//! The thread that holds the connection to NATS.
//!
//! Each connection has a runtime of its own, and ends with it: whatever the client still held is gone then, and cannot reach anybody
//! late. A connection is good as long as this node's own heartbeats come back on it, which proves all of the way; one where they do not is
//! given up, like one that breaks.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions, Event};
use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use oroshi_net::Shutdown;
use oroshi_words::Secret;
use oroshi_words::with_causes;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};

use crate::cluster::peers::{HEARTBEAT_MS, LetBe, Peers, SILENCE_MS};
use crate::cluster::serve::{self, Claim};
use crate::cluster::wire::{self, Body, Head, Request, Wide};
use crate::cluster::{Order, Others, Progress, Shared, address, count};
use crate::missed::Missed;
use crate::node::Node;
use crate::plan::Cluster;
use crate::publish::Targets;

/// How long making a connection may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How long taking leave of the other nodes may take.
const LEAVE: Duration = Duration::from_millis(500);

/// The pause before a connection is tried again: it doubles from the one to the other, and a random half of it is left out.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// So many orders are handed to the client before it has to be done with them.
const BATCH: usize = 64;

/// What other nodes asked for and is under way, KiB; what comes beyond is not carried out, and its sender told nothing.
const UNDER_WAY_KIB: usize = 64 * 1024;

/// What is to become the thread.
#[derive(Debug)]
pub(crate) struct Carrier {
    nats: Secret,
    name: String,
    shared: Arc<Shared>,
    /// For the replies of this node's cores.
    orders: UnboundedSender<Order>,
    taken: UnboundedReceiver<Order>,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Running {
    stop: Shutdown,
    thread: JoinHandle<()>,
}

impl Running {
    /// Takes leave of the other nodes.
    pub(crate) fn stop(self) {
        self.stop.request();
        // A panic there has lost the link, and no more.
        let _ = self.thread.join();
    }
}

/// How a connection ended.
enum End {
    /// It broke, was never made, or nothing came back on it. The pause until the next is over.
    Lost,
    /// This node goes.
    Stopped,
}

impl Carrier {
    pub(super) fn new(
        cluster: &Cluster,
        shared: Arc<Shared>,
        orders: UnboundedSender<Order>,
        taken: UnboundedReceiver<Order>,
    ) -> Self {
        Carrier { nats: cluster.nats.clone(), name: cluster.name.clone(), shared, orders, taken }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn start(self, node: Arc<Node>) -> io::Result<Running> {
        let stop = Shutdown::new();
        let stopped = stop.clone();
        let thread = thread::Builder::new().name("push-nats".to_owned()).spawn(move || self.run(node, &stopped))?;
        Ok(Running { stop, thread })
    }

    fn run(self, node: Arc<Node>, stop: &Shutdown) {
        let Carrier { nats, name, shared, orders, mut taken } = self;
        let work = Rc::new(Work {
            all: format!("oroshi.push.{name}.all"),
            name,
            orders,
            peers: RefCell::new(Peers::new(shared.me)),
            waiting: RefCell::default(),
            number: Cell::new(0),
            wide: Cell::default(),
            came_back_ms: Cell::new(0),
            beat_now: Notify::new(),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_KIB)),
            pause: Cell::new(Duration::ZERO),
            is_late: Cell::new(false),
            was_away: Cell::new(false),
            node,
            shared,
        });
        loop {
            let runtime = match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
                Ok(runtime) => runtime,
                // The descriptors are used up, which passes.
                Err(error) => {
                    work.shared.trouble(format!("cannot connect to NATS: {error}"));
                    thread::sleep(PAUSES[1]);
                    if stop.count() > 0 {
                        return;
                    }
                    continue;
                }
            };
            let end = runtime.block_on(work.connection(&nats, &mut taken, stop));
            // Without waiting for names that are being looked up.
            runtime.shutdown_background();
            work.lose(&mut taken);
            if matches!(end, End::Stopped) {
                return;
            }
        }
    }
}

/// What the thread knows.
struct Work {
    node: Arc<Node>,
    shared: Arc<Shared>,
    name: String,
    /// The subject on which nodes speak to all.
    all: String,
    orders: UnboundedSender<Order>,
    peers: RefCell<Peers>,
    /// Requests by number, and who has still to reply.
    waiting: RefCell<HashMap<u64, Waiting>>,
    /// The last request that was handed over.
    number: Cell<u64>,
    /// What this node has published, with that request.
    wide: Cell<Wide>,
    /// When a heartbeat of this node came back last.
    came_back_ms: Cell<u64>,
    /// Rung when a node came that should hear from this one at once.
    beat_now: Notify,
    under_way: Arc<Semaphore>,
    /// Before the next connection.
    pause: Cell<Duration>,
    /// Whether NATS was away when this node started, and it has not met another since.
    is_late: Cell<bool>,
    /// Whether the link was lost before.
    was_away: Cell<bool>,
}

/// A request whose replies are due.
struct Waiting {
    nodes: Vec<u64>,
    replies: UnboundedSender<Progress>,
}

impl Work {
    /// Makes a connection, and works with it until it ends.
    async fn connection(self: &Rc<Self>, nats: &Secret, orders: &mut UnboundedReceiver<Order>, stop: &Shutdown) -> End {
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
        let (hear, speak) = (pin!(self.hear(&client)), pin!(self.speak(&client, orders)));
        let (beat, broken) = (pin!(self.beat(&client)), pin!(lost.notified()));
        match select(select(select(hear, speak), select(beat, broken)), stopped).await {
            Either::Left(_) => End::Lost,
            Either::Right(_) => {
                let leave = async {
                    self.say_heartbeat(&client, true).await;
                    let _ = client.flush().await;
                };
                let _ = timeout(LEAVE, leave).await;
                End::Stopped
            }
        }
    }

    async fn connect(&self, nats: &Secret, lost: &Arc<Notify>) -> Result<Client, String> {
        let servers = address::servers(nats)?;
        let (lost, shared) = (Arc::clone(lost), Arc::clone(&self.shared));
        let mut options = ConnectOptions::new()
            .name(format!("oroshi push {}", self.node.name))
            .connection_timeout(CONNECT)
            .client_capacity(BATCH)
            // They would be forgotten with the connection.
            .ignore_discovered_servers()
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => lost.notify_one(),
                    // The subjects may be forbidden.
                    Event::ServerError(error) => shared.trouble(format!("NATS says: {error}")),
                    Event::SlowConsumer(_) => shared.trouble("this node does not keep up with the others".to_owned()),
                    _ => {}
                }
                std::future::ready(())
            });
        options = match address::credentials(&servers) {
            Some((user, Some(password))) => options.user_and_password(user, password),
            Some((token, None)) => options.token(token),
            None => options,
        };
        options.connect(servers).await.map_err(|error| with_causes(&error))
    }

    /// Takes in what other nodes say.
    async fn hear(self: &Rc<Self>, client: &Client) {
        let to_me = format!("oroshi.push.{}.node.{:016x}", self.name, self.shared.me);
        let (Ok(to_all), Ok(to_me)) = (client.subscribe(self.all.clone()).await, client.subscribe(to_me).await) else {
            return;
        };
        let mut messages = futures_util::stream::select(to_all, to_me);
        let most = self.node.plan.limits.publish_bytes;
        while let Some(message) = messages.next().await {
            match wire::decode(&message.payload, most) {
                Ok((head, body)) => self.heard(head, body, message.payload.len()),
                Err(refused) => {
                    count(&self.shared.counters.refused, 1);
                    self.shared.trouble(refused.to_string());
                }
            }
        }
    }

    fn heard(self: &Rc<Self>, head: Head, body: Body, bytes: usize) {
        let is_own = head.sender == self.shared.me;
        match body {
            Body::Heartbeat { leaving: false, .. } if is_own => self.came_back(),
            _ if is_own => {}
            Body::Heartbeat { leaving, heard } => {
                let is_new = !leaving && self.peers.borrow().is_new(head.sender);
                let heard = self.peers.borrow_mut().heard(head, leaving, &heard, self.shared.now_ms());
                count(&self.shared.counters.missed, heard.missed);
                self.tell_lost(&head, Wide::default());
                if is_new && !head.wide.is_none() && self.was_away.get() {
                    // It came while this node could hear nobody, and has published since.
                    self.tell(Missed { all: head.wide.all > 0, any_group: head.wide.groups > 0, ..Missed::default() });
                }
                if heard.came {
                    self.beat_now.notify_one();
                    if self.is_late.take() {
                        // What the others published while this one could not be told, nobody knows.
                        self.tell(Missed { all: true, any_group: true, ..Missed::default() });
                    }
                }
                if heard.left {
                    self.wait_no_more(&[head.sender]);
                }
                self.tell_known();
            }
            Body::Request { patience, request } => self.asked(head, patience, request, bytes),
            Body::Working => self.answered(head, Progress::Working),
            Body::Reply(reply) => self.answered(head, Progress::Replied(reply)),
        }
    }

    /// A heartbeat of this node came back: who speaks on this connection is heard.
    fn came_back(&self) {
        self.came_back_ms.set(self.shared.now_ms());
        if self.shared.connected.load(Ordering::Relaxed) {
            return;
        }
        self.peers.borrow_mut().resume(self.shared.now_ms());
        // Whoever sees that the link is there is not to count on nodes that were heard before it was lost alone.
        self.tell_known();
        self.shared.connected.store(true, Ordering::Release);
        self.pause.set(Duration::ZERO);
        count(&self.shared.counters.connects, 1);
        self.shared.reached();
    }

    /// Another node wants something done.
    fn asked(self: &Rc<Self>, head: Head, patience: Duration, request: Request, bytes: usize) {
        let counters = &self.shared.counters;
        let now = self.shared.now_ms();
        let to = match &request {
            Request::Publish(publish) => Some(&publish.to),
            _ => None,
        };
        // Before it is carried out: whoever missed something is to know it before what comes after.
        self.tell_lost(&head, to.map(Wide::of).unwrap_or_default());
        let taken = match self.peers.borrow_mut().take(head, patience.as_millis() as u64, now) {
            Ok(taken) => taken,
            Err(LetBe::Stranger) => {
                self.tell_missed(to.cloned());
                return count(&counters.refused, 1);
            }
            Err(LetBe::Repeated) => return count(&counters.repeated, 1),
            Err(LetBe::Stale { missed }) => {
                count(&counters.missed, missed);
                self.tell_missed(to.cloned());
                return count(&counters.stale, 1);
            }
        };
        count(&counters.missed, taken.missed);
        if let Request::Claim { keys } = request {
            count(&counters.received, 1);
            let is_greater = head.sender > self.shared.me;
            for place in keys.iter().filter_map(|key| self.node.directory.find(key)) {
                let claim = Claim { place, age: Duration::from_millis(taken.age_ms), is_greater };
                self.node.tell(place.core, Box::new(move |hub| claim.settle(hub)));
            }
            return;
        }
        let Ok(under_way) = Arc::clone(&self.under_way).try_acquire_many_owned((bytes / 1024 + 1) as u32) else {
            self.shared.trouble(format!("other nodes ask for more than {} MiB at a time", UNDER_WAY_KIB / 1024));
            self.tell_missed(to.cloned());
            return count(&counters.refused, 1);
        };
        count(&counters.received, 1);
        let (orders, shared) = (self.orders.clone(), Arc::clone(&self.shared));
        let say = move |body: Body| {
            let (sender, sent_ms) = (shared.me, shared.now_ms());
            let frame = body.encode(Head { sender, number: head.number, sent_ms, ..Head::default() });
            // Without its thread there is no link.
            let _ = orders.send(Order::Reply { to: head.sender, frame });
        };
        // What one node asks for is begun by one core, so that it keeps its order.
        let core = (head.sender % u64::from(self.node.cores())) as u16;
        self.node.tell(
            core,
            Box::new(move |hub| {
                let hub = Rc::clone(hub);
                tokio::task::spawn_local(async move {
                    if let Some(reply) = serve::perform(&hub, request, patience, || say(Body::Working)).await {
                        say(Body::Reply(reply));
                    }
                    drop(under_way);
                });
            }),
        );
    }

    /// Has this node's sessions told of what another node has published and this one did not hear, but for `own`, which has just come.
    fn tell_lost(&self, head: &Head, own: Wide) {
        let lost = self.peers.borrow_mut().lost(head, own);
        if !lost.is_none() {
            self.tell(Missed { all: lost.all > 0, any_group: lost.groups > 0, ..Missed::default() });
        }
    }

    /// Has sessions told that a publish for these was let be.
    fn tell_missed(&self, to: Option<Targets>) {
        if let Some(Targets { all, groups, .. }) = to
            && (all || !groups.is_empty())
        {
            self.tell(Missed { all, any_group: false, groups });
        }
    }

    fn tell(&self, missed: Missed) {
        self.shared
            .trouble("what other nodes published did not come: sessions that may have missed it are told".to_owned());
        let missed = Arc::new(missed);
        for core in 0..self.node.cores() {
            let missed = Arc::clone(&missed);
            self.node.tell(core, Box::new(move |hub| hub.tell_missed(&missed)));
        }
    }

    /// Another node has answered.
    fn answered(&self, head: Head, progress: Progress) {
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

    /// These nodes have gone, and will reply nothing.
    fn wait_no_more(&self, gone: &[u64]) {
        self.waiting.borrow_mut().retain(|_, waiting| {
            waiting.nodes.retain(|node| !gone.contains(node));
            !waiting.nodes.is_empty()
        });
    }

    fn tell_known(&self) {
        let peers = self.peers.borrow();
        self.shared.set_others(Others { known: peers.known().len() as u32, absent: peers.absent() as u32 });
    }

    /// Hands to NATS what the cores want to be told.
    async fn speak(&self, client: &Client, orders: &mut UnboundedReceiver<Order>) {
        let mut batch = Vec::with_capacity(BATCH);
        // This end holds a sender too: it does not run dry.
        while orders.recv_many(&mut batch, BATCH).await > 0 {
            let mut keys = Vec::new();
            for order in batch.drain(..) {
                if let Order::Claim { key } = &order {
                    keys.push(Box::from(&**key));
                } else if !self.hand_over(client, order).await {
                    return;
                }
            }
            if !keys.is_empty() && !self.say_claim(client, keys).await {
                return;
            }
            // The client holds one batch at most. What is late is not handed over, so it cannot be late by more than that.
            if client.flush().await.is_err() {
                return;
            }
        }
    }

    /// False if the client has ended.
    async fn hand_over(&self, client: &Client, order: Order) -> bool {
        match order {
            Order::Request { mut frame, wide, until, replies, _room } => {
                if Instant::now() >= until || !self.shared.connected.load(Ordering::Relaxed) {
                    count(&self.shared.counters.unsent, 1);
                    self.shared.unsent(wide);
                    return true;
                }
                let number = self.number.get() + 1;
                let mut said = self.told_unsent();
                said += wide;
                wire::set_number(&mut frame, number, said);
                let nodes = self.peers.borrow().known();
                if !nodes.is_empty() {
                    self.waiting.borrow_mut().insert(number, Waiting { nodes, replies });
                }
                let handed_over = self.ask_all(client, number, frame).await;
                // Not before either: who heard of it from a heartbeat first would take it for lost.
                let mut said = self.wide.get();
                said += wide;
                self.wide.set(said);
                handed_over
            }
            Order::Reply { to, frame } => {
                client.publish(format!("oroshi.push.{}.node.{to:016x}", self.name), frame.into()).await.is_ok()
            }
            Order::Claim { .. } => true,
        }
    }

    async fn say_claim(&self, client: &Client, keys: Vec<Box<str>>) -> bool {
        let number = self.number.get() + 1;
        let head = Head { number, ..self.head() };
        let patience = Duration::from_millis(SILENCE_MS);
        self.ask_all(client, number, Body::Request { patience, request: Request::Claim { keys } }.encode(head)).await
    }

    async fn ask_all(&self, client: &Client, number: u64, frame: Vec<u8>) -> bool {
        count(&self.shared.counters.sent, 1);
        let handed_over = client.publish(self.all.clone(), frame.into()).await.is_ok();
        // Not before, as a heartbeat that tells of it must not overtake it.
        self.number.set(number);
        handed_over
    }

    /// Says now and then that this node is there, and sees who else is. Returns when nothing comes back.
    async fn beat(&self, client: &Client) {
        self.came_back_ms.set(self.shared.now_ms());
        loop {
            // A connection that takes nothing any more has to be noticed too.
            let until_next = async {
                self.say_heartbeat(client, false).await;
                self.beat_now.notified().await;
            };
            let _ = timeout(Duration::from_millis(HEARTBEAT_MS), until_next).await;
            let now = self.shared.now_ms();
            let silence = now.saturating_sub(self.came_back_ms.get());
            if silence > SILENCE_MS {
                return self.shared.trouble_if_none("nothing comes back from NATS: trying another connection");
            }
            if silence > HEARTBEAT_MS * 3 / 2 {
                // What is handed over now might reach others when nobody waits for it any more.
                self.shared.connected.store(false, Ordering::Relaxed);
            } else {
                let gone = self.peers.borrow_mut().forget_silent(now);
                self.wait_no_more(&gone);
                self.tell_known();
                if self.peers.borrow_mut().take_vanished() {
                    self.tell(Missed { all: true, any_group: true, ..Missed::default() });
                }
            }
            self.waiting.borrow_mut().retain(|_, waiting| !waiting.replies.is_closed());
        }
    }

    async fn say_heartbeat(&self, client: &Client, leaving: bool) {
        let heard = self.peers.borrow_mut().echoes();
        // Not with the first on a connection: a node that hears of this one for the first time would take it for what was always so.
        if self.shared.connected.load(Ordering::Relaxed) {
            self.told_unsent();
        }
        let head = self.head();
        // If the client has ended, nothing comes back either.
        let _ = client.publish(self.all.clone(), Body::Heartbeat { leaving, heard }.encode(head).into()).await;
        self.tell_known();
    }

    /// Takes what went to nobody among what this node says that it has published, as it is told from here on.
    fn told_unsent(&self) -> Wide {
        let mut wide = self.wide.get();
        wide += self.shared.take_unsent();
        self.wide.set(wide);
        wide
    }

    fn head(&self) -> Head {
        let (number, wide) = (self.number.get(), self.wide.get());
        Head { sender: self.shared.me, number, sent_ms: self.shared.now_ms(), wide }
    }

    /// The link is lost: nobody waits for what would have come over it, and what was to go over it goes nowhere.
    fn lose(&self, orders: &mut UnboundedReceiver<Order>) {
        self.shared.connected.store(false, Ordering::Relaxed);
        self.was_away.set(self.shared.counters.connects.load(Ordering::Relaxed) > 0);
        self.waiting.borrow_mut().clear();
        while let Ok(order) = orders.try_recv() {
            if let Order::Request { wide, .. } = order {
                count(&self.shared.counters.unsent, 1);
                self.shared.unsent(wide);
            }
        }
    }
}
