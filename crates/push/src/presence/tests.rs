//! Watchers know who is there, whatever happens in whatever order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::message::Framing;

const CHANNEL: &str = "c";

/// The threads of each node.
const THREADS: u16 = 2;

fn member(client: u64) -> Member {
    Member { client, user: client.is_multiple_of(2).then(|| Arc::from("ann")) }
}

impl Presences {
    /// One tick for all parts.
    fn tick_all(&self, now_ms: u64, out: &dyn Fn(Output<'_>)) {
        let over = self.over(now_ms);
        for at in 0..PARTS {
            self.leave(at, &over, out);
            self.tick(at, out);
        }
        self.forget(&over);
    }
}

/// Something that waits to be carried out.
#[derive(Debug)]
enum Job {
    Gather(u64),
    Tell(u64, Value),
}

/// One node, with its threads.
struct Node {
    presences: Presences,
    /// The clients that subscribe, by thread.
    threads: [BTreeSet<u64>; THREADS as usize],
    jobs: [RefCell<VecDeque<Job>>; THREADS as usize],
    /// What the other node is told.
    parts: RefCell<VecDeque<(u64, Part)>>,
    /// Each watcher, with its thread.
    watchers: Vec<(u16, Watcher)>,
}

/// What a client knows that watches.
#[derive(Debug)]
struct Watcher {
    version: u64,
    clients: u64,
    /// `None`: it knows their number only.
    list: Option<BTreeSet<u64>>,
}

impl Watcher {
    fn hear(&mut self, frame: &Value) {
        let client = |value: &Value| u64::from_str_radix(value["client"].as_str().unwrap(), 16).unwrap();
        if let Some(list) = frame["list"].as_array() {
            self.list = Some(list.iter().map(client).collect());
            assert_eq!(frame["clients"], list.len(), "{frame}");
        } else if frame["clients"].is_u64() {
            (self.clients, self.list) = (frame["clients"].as_u64().unwrap(), None);
        } else if frame["joined"].is_object() {
            assert!(self.list.as_mut().unwrap().insert(client(&frame["joined"])), "it is there: {frame}");
        } else {
            assert!(self.list.as_mut().unwrap().remove(&client(&frame["left"])), "it had not come: {frame}");
        }
    }
}

impl Node {
    fn new() -> Node {
        Node {
            presences: Presences::new(THREADS.into()),
            threads: Default::default(),
            jobs: Default::default(),
            parts: RefCell::default(),
            watchers: Vec::new(),
        }
    }

    fn out(&self) -> impl Fn(Output<'_>) + '_ {
        |output| match output {
            Output::Gather { thread, number, .. } => {
                self.jobs[usize::from(thread)].borrow_mut().push_back(Job::Gather(number));
            }
            Output::Tell { thread, version, frame, .. } => {
                let frame = serde_json::from_slice(frame.frame(Framing::Poll)).unwrap();
                self.jobs[usize::from(thread)].borrow_mut().push_back(Job::Tell(version, frame));
            }
            Output::Part { feed, part, .. } => self.parts.borrow_mut().push_back((feed, part)),
            Output::Watch { .. } => {}
        }
    }

    fn join(&mut self, thread: u16, client: u64) {
        if self.threads.iter().all(|clients| !clients.contains(&client)) {
            self.threads[usize::from(thread)].insert(client);
            self.presences.joined(CHANNEL, member(client), &self.out());
        }
    }

    fn leave(&mut self, client: u64) {
        if self.threads.iter_mut().any(|clients| clients.remove(&client)) {
            self.presences.left(CHANNEL, client, &self.out());
        }
    }

    fn watch(&mut self, thread: u16) {
        let Snapshot { version, clients, list } = self.presences.watch(&Arc::from(CHANNEL), thread, true, &self.out());
        let list = list.map(|list| list.iter().map(|member| member.client).collect());
        self.watchers.push((thread, Watcher { version, clients, list }));
    }

    fn unwatch(&mut self, which: usize) {
        if !self.watchers.is_empty() {
            let (thread, _) = self.watchers.swap_remove(which % self.watchers.len());
            self.presences.unwatch(CHANNEL, thread, &self.out());
        }
    }

    /// Carries out the next job of a thread. Returns false if there is none.
    fn work(&mut self, thread: u16) -> bool {
        let at = usize::from(thread);
        let job = self.jobs[at].borrow_mut().pop_front();
        match job {
            None => return false,
            Some(Job::Gather(number)) => {
                let members = self.threads[at].iter().map(|&client| member(client)).collect();
                self.presences.gathered(CHANNEL, number, members, &self.out());
            }
            Some(Job::Tell(version, frame)) => {
                for (_, watcher) in self.watchers.iter_mut().filter(|(of, _)| *of == thread) {
                    if version > watcher.version {
                        watcher.hear(&frame);
                    }
                }
            }
        }
        true
    }

    fn work_all(&mut self) {
        // A job of one thread may give another one a job.
        while (0..THREADS).any(|thread| self.work(thread)) {}
    }

    fn clients(&self) -> BTreeSet<u64> {
        self.threads.iter().flatten().copied().collect()
    }

    /// Hears the next of what the other node tells on this feed. Returns false if there is nothing.
    fn hear(&self, other: &Node, feed: u64, now: u64) -> bool {
        let next = other.parts.borrow_mut().pop_front();
        let Some((of, part)) = next else { return false };
        // What is of an earlier feed does not count.
        if of == feed {
            self.presences.told(2, vec![(CHANNEL.into(), part)], now, &self.out());
        }
        true
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join {
        there: bool,
        thread: u16,
        client: u64,
    },
    Leave {
        there: bool,
        client: u64,
    },
    Watch(u16),
    Unwatch(usize),
    Work {
        there: bool,
        thread: u16,
    },
    Hear,
    /// What is on its way between the nodes is lost, and the first one opens another feed.
    Lose,
    /// The other node was silent for too long.
    Silence,
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let thread = 0..THREADS;
    prop_oneof![
        8 => (any::<bool>(), thread.clone(), 0..12u64)
            .prop_map(|(there, thread, client)| Step::Join { there, thread, client: client * 2 + u64::from(there) }),
        6 => (any::<bool>(), 0..12u64)
            .prop_map(|(there, client)| Step::Leave { there, client: client * 2 + u64::from(there) }),
        3 => thread.clone().prop_map(Step::Watch),
        2 => any::<usize>().prop_map(Step::Unwatch),
        12 => (any::<bool>(), thread).prop_map(|(there, thread)| Step::Work { there, thread }),
        8 => Just(Step::Hear),
        1 => Just(Step::Lose),
        1 => Just(Step::Silence),
        1 => Just(Step::Tick),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// No watcher hears of a client that comes twice, or leaves and had not come; at the end all know who is there.
    #[test]
    fn watchers_know_who_is_there(steps in prop::collection::vec(step(), 0..150)) {
        let (mut here, mut there) = (Node::new(), Node::new());
        let (mut feed, mut now) = (0, 0);
        let channel = Arc::from(CHANNEL);
        let mut open = |here: &Node, there: &Node, now| {
            feed += 1;
            here.presences.begin_lease(2, now);
            there.presences.unfeed_all(1);
            there.presences.feed(1, feed, &channel, &there.out());
            feed
        };
        let mut current = open(&here, &there, now);
        for step in steps {
            match step {
                Step::Join { there: true, thread, client } => there.join(thread, client),
                Step::Join { thread, client, .. } => here.join(thread, client),
                Step::Leave { there: true, client } => there.leave(client),
                Step::Leave { client, .. } => here.leave(client),
                Step::Watch(thread) => {
                    let was_held = !here.watchers.is_empty();
                    here.watch(thread);
                    if !was_held {
                        current = open(&here, &there, now);
                    }
                }
                Step::Unwatch(which) => here.unwatch(which),
                Step::Work { there: true, thread } => drop(there.work(thread)),
                Step::Work { thread, .. } => drop(here.work(thread)),
                Step::Hear => drop(here.hear(&there, current, now)),
                Step::Lose => {
                    there.parts.borrow_mut().clear();
                    current = open(&here, &there, now);
                }
                Step::Silence => {
                    now += LEASE_MS + 1;
                    here.presences.tick_all(now, &here.out());
                    assert!(!here.presences.told(2, Vec::new(), now, &here.out()), "the lease is over");
                    current = open(&here, &there, now);
                }
                Step::Tick => {
                    here.presences.tick_all(now, &here.out());
                    there.presences.tick_all(now, &there.out());
                }
            }
        }
        there.work_all();
        // Should there have been very many events: nodes and watchers get a list once there are few.
        (0..3).for_each(|_| there.presences.tick_all(now, &there.out()));
        while here.hear(&there, current, now) {}
        (0..10).for_each(|_| here.presences.tick_all(now, &here.out()));
        here.work_all();
        let all: BTreeSet<u64> = here.clients().union(&there.clients()).copied().collect();
        for (_, watcher) in &here.watchers {
            prop_assert_eq!(watcher.list.as_ref(), Some(&all));
        }
        while !here.watchers.is_empty() {
            here.unwatch(0);
        }
        there.presences.unfeed_all(1);
        prop_assert_eq!(here.presences.counts(), PresenceCounts::default(), "nothing is kept that nobody watches");
        prop_assert_eq!(there.presences.counts(), PresenceCounts::default());
    }
}

/// The frames that a thread is about to send, by their kind.
fn kinds(node: &mut Node) -> BTreeMap<&'static str, usize> {
    let mut kinds = BTreeMap::new();
    for job in node.jobs[0].borrow().iter() {
        let Job::Tell(_, frame) = job else { continue };
        let kind = ["list", "clients", "joined", "left"].into_iter().find(|kind| frame.get(kind).is_some()).unwrap();
        *kinds.entry(kind).or_default() += 1;
    }
    node.work_all();
    kinds
}

#[test]
fn watchers_of_a_large_channel_are_told_counts_once_per_tick() {
    let mut node = Node::new();
    node.watch(0);
    node.work_all();
    for client in 0..60 {
        node.join(1, client);
    }
    assert_eq!(kinds(&mut node), BTreeMap::from([("joined", 60)]));
    node.presences.tick_all(0, &node.out());
    assert_eq!(kinds(&mut node), BTreeMap::new(), "few events need nothing more");
    for client in 60..MOST as u64 + 1 {
        node.join(1, client);
    }
    assert_eq!(kinds(&mut node), BTreeMap::from([("joined", 100)]), "no more between two ticks");
    node.presences.tick_all(0, &node.out());
    assert_eq!(kinds(&mut node), BTreeMap::from([("clients", 1)]));
    assert_eq!(node.watchers[0].1.clients, MOST as u64 + 1);
    // A client that begins to watch is told the number, too.
    node.watch(0);
    assert_eq!((node.watchers[1].1.clients, node.watchers[1].1.list.is_none()), (MOST as u64 + 1, true));
    for _ in 0..5 {
        node.presences.tick_all(0, &node.out());
        assert_eq!(kinds(&mut node), BTreeMap::new(), "it has not changed, and is large");
    }
    for client in 0..50 {
        node.leave(client);
    }
    node.presences.tick_all(0, &node.out());
    assert_eq!(kinds(&mut node), BTreeMap::from([("clients", 1)]), "one for fifty");
    for client in 50..101 {
        node.leave(client);
    }
    let told: Vec<_> = (0..5)
        .map(|_| {
            node.presences.tick_all(0, &node.out());
            kinds(&mut node)
        })
        .collect();
    let (count, list, none) = (BTreeMap::from([("clients", 1)]), BTreeMap::from([("list", 1)]), BTreeMap::new());
    assert_eq!(told, [count, none.clone(), none.clone(), none, list], "a list once few come and go");
    assert_eq!(node.watchers[0].1.list.as_ref(), Some(&node.clients()));
    node.join(0, 5000);
    assert_eq!(kinds(&mut node), BTreeMap::from([("joined", 1)]), "and from there on single clients");
}

#[test]
fn nodes_tell_each_other_counts_of_large_channels() {
    let (mut here, mut there) = (Node::new(), Node::new());
    here.watch(0);
    here.work_all();
    here.presences.begin_lease(2, 0);
    for client in 0..MOST as u64 {
        there.join(0, client);
    }
    there.presences.feed(1, 1, &Arc::from(CHANNEL), &there.out());
    there.work_all();
    assert!(matches!(&there.parts.borrow()[0], (1, Part::List(list)) if list.len() == MOST));
    while here.hear(&there, 1, 0) {}
    there.join(0, 7000);
    there.join(0, 7001);
    assert!(there.parts.borrow().is_empty(), "the tick tells it");
    there.presences.tick_all(0, &there.out());
    assert_eq!(there.parts.borrow().as_slices().0, [(1, Part::Count(MOST as u64 + 2))]);
    while here.hear(&there, 1, 0) {}
    here.presences.tick_all(0, &here.out());
    here.work_all();
    assert_eq!((here.watchers[0].1.clients, here.watchers[0].1.list.is_none()), (MOST as u64 + 2, true));
    for client in 0..200 {
        there.leave(client);
    }
    there.presences.tick_all(0, &there.out());
    there.presences.tick_all(0, &there.out());
    assert_eq!(there.parts.borrow()[0], (1, Part::Count(MOST as u64 - 198)));
    assert!(matches!(&there.parts.borrow()[1], (1, Part::List(list)) if list.len() == MOST - 198));
    while here.hear(&there, 1, 0) {}
    for _ in 0..10 {
        here.presences.tick_all(0, &here.out());
    }
    here.work_all();
    assert_eq!(here.watchers[0].1.list.as_ref(), Some(&there.clients()));
    // The node dies: nobody is there.
    here.presences.tick_all(LEASE_MS, &here.out());
    assert_eq!(here.watchers[0].1.list.as_ref().map(BTreeSet::len), Some(MOST - 198));
    here.presences.tick_all(LEASE_MS + 1, &here.out());
    here.work_all();
    for _ in 0..10 {
        here.presences.tick_all(LEASE_MS + 1, &here.out());
    }
    here.work_all();
    assert_eq!(here.watchers[0].1.list.as_ref(), Some(&BTreeSet::new()));
}

#[test]
fn a_client_that_is_about_to_watch_waits_for_all_threads_and_nodes() {
    let mut node = Node::new();
    node.join(0, 1);
    node.presences.hold(&Arc::from(CHANNEL), true, &node.out());
    let is_ready = |node: &Node| *node.presences.part(CHANNEL).all[CHANNEL].ready().borrow();
    node.work(0);
    node.work(1);
    assert!(!is_ready(&node), "the nodes are about to be asked");
    node.presences.asked(CHANNEL, &[2, 3]);
    assert!(!is_ready(&node));
    node.presences.begin_lease(2, 0);
    node.presences.told(2, vec![(CHANNEL.into(), Part::List(vec![member(9)]))], 0, &node.out());
    assert!(!is_ready(&node));
    node.presences.end_lease(3);
    node.presences.tick_all(0, &node.out());
    assert!(is_ready(&node), "nobody waits for a node that is gone");
    node.watch(0);
    assert_eq!(node.watchers[0].1.list, Some(BTreeSet::from([1, 9])));
    node.presences.release(CHANNEL, &node.out());
    node.unwatch(0);
    assert_eq!(node.presences.counts(), PresenceCounts::default());
}

/// Once each change went to each node that watched, however many there were.
#[test]
fn nodes_are_told_a_number_while_very_many_come_and_go() {
    let mut there = Node::new();
    there.presences.feed(1, 1, &Arc::from(CHANNEL), &there.out());
    there.work_all();
    for client in 0..500 {
        there.join(0, client);
        there.leave(client);
    }
    there.join(0, 7);
    let told = |node: &Node| std::mem::take(&mut *node.parts.borrow_mut());
    assert_eq!(told(&there).len(), 101, "the empty list, and the events of single clients");
    there.presences.tick_all(0, &there.out());
    assert_eq!(told(&there), [(1, Part::Count(1))]);
    there.presences.tick_all(0, &there.out());
    assert_eq!(told(&there), [(1, Part::List(vec![member(7)]))]);
    there.join(0, 8);
    assert_eq!(told(&there), [(1, Part::Joined(member(8)))]);
}

#[test]
fn nodes_are_told_a_number_while_the_list_does_not_fit() {
    let mut there = Node::new();
    there.presences.limit_parts(50);
    (0..10).for_each(|client| there.join(0, client));
    there.presences.feed(1, 1, &Arc::from(CHANNEL), &there.out());
    there.work_all();
    let told = |node: &Node| std::mem::take(&mut *node.parts.borrow_mut());
    assert_eq!(told(&there), [(1, Part::Count(10))]);
    there.join(0, 10);
    assert!(told(&there).is_empty(), "the tick tells it");
    there.presences.tick_all(0, &there.out());
    assert_eq!(told(&there), [(1, Part::Count(11))]);
    (1..11).for_each(|client| there.leave(client));
    there.presences.tick_all(0, &there.out());
    assert_eq!(told(&there), [(1, Part::List(vec![member(0)]))]);
}
