//! Random faults under load: three nodes and NATS with JetStream are killed and stand still.
//!
//! Each client has every confirmed message once and in order, or was told that it may lack some; after each fault, one
//! client of each node knows again who is there. `OROSHI_MOMENTS` says how many faults there are, and `OROSHI_SEED`
//! repeats a run. With `OROSHI_MOMENTS`, as in `make push-faults`, presence has to be right within [`RIGHT`].
#![allow(clippy::print_stderr)] // the seed, and each fault

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster_faults::{FarNode, PRESENCE, STREAM};
use crate::hub::{self, PATIENCE, frame};
use crate::nats::{Nats, freeze, signal};
use crate::presence::Watcher;
use crate::stream::jetstream;

const NODES: usize = 3;
const CLIENTS: usize = 6;
const CHANNEL: &str = "kept:a";
/// The channel in which one client per node watches presence.
const ROOM: &str = "room:a";
/// How long after a fault presence may be wrong.
const RIGHT: Duration = Duration::from_secs(5);

/// How long a client waits for a frame before it looks whether the test is over.
const LOOK: Duration = Duration::from_millis(200);

/// The nodes that are there, and what their clients share.
struct Scene {
    nodes: Mutex<Vec<SocketAddr>>,
    /// Texts that JetStream has confirmed, in order.
    confirmed: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

/// What a client got, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    Text(String),
    /// It was told that it may lack messages here.
    Told,
}

impl Scene {
    fn node(&self, random: &mut fastrand::Rng) -> SocketAddr {
        let nodes = lock(&self.nodes);
        nodes[random.usize(..nodes.len())]
    }
}

/// Says that the test is over, when this is dropped.
struct Over<'s>(&'s Scene);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_client_has_each_confirmed_message_once_and_in_order_or_was_told() {
    let test = "every_client_has_each_confirmed_message_once_and_in_order_or_was_told";
    let Some((mut nats, _folder)) = jetstream(test) else { return };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (moments, seed) =
        (number("OROSHI_MOMENTS").unwrap_or(3), number("OROSHI_SEED").unwrap_or_else(|| fastrand::u64(..)));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut nodes: Vec<FarNode> = (0..NODES).map(|_| start(&nats)).collect();
    let scene = Scene {
        nodes: Mutex::new(nodes.iter().map(|node| node.address).collect()),
        confirmed: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    let all: Vec<Vec<Came>> = std::thread::scope(|scope| {
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| random.u64(..)).collect();
        let clients: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                let scene = &scene;
                scope.spawn(move || client(scene, fastrand::Rng::with_seed(seed)))
            })
            .collect();
        let publisher = {
            let (scene, random) = (&scene, random.fork());
            scope.spawn(move || publisher(scene, random))
        };
        // The others end with this thread, whether or not it fails.
        let over = Over(&scene);
        let mut watchers: Vec<Watcher> = nodes.iter().map(|node| Watcher::start(node.address, ROOM)).collect();
        let mut slowest = all_are_there(&mut watchers);
        for moment in 0..moments {
            std::thread::sleep(Duration::from_millis(random.u64(200..1500)));
            let fault = random.u8(..4);
            let length = Duration::from_millis(random.u64(0..4000));
            let at = random.usize(..NODES);
            eprintln!("seed {seed}, fault {moment}: {fault} at {at} for {length:?}");
            match fault {
                0 => {
                    nats.kill();
                    std::thread::sleep(length);
                    nats.restart();
                }
                1 => {
                    nats.freeze();
                    std::thread::sleep(length);
                    nats.thaw();
                }
                2 => {
                    nodes[at].child.kill().unwrap();
                    drop(watchers.remove(at));
                    let right = all_are_there(&mut watchers);
                    slowest = slowest.max(right);
                    std::thread::sleep(length.saturating_sub(right));
                    nodes[at] = start(&nats);
                    lock(&scene.nodes)[at] = nodes[at].address;
                    watchers.insert(at, Watcher::start(nodes[at].address, ROOM));
                }
                _ => {
                    freeze(&nodes[at].child);
                    std::thread::sleep(length);
                    signal(&nodes[at].child, Signal::CONT);
                }
            }
            slowest = slowest.max(all_are_there(&mut watchers));
        }
        eprintln!("seed {seed}: presence was right after {slowest:?} at the latest");
        assert!(number("OROSHI_MOMENTS").is_none() || slowest <= RIGHT, "seed {seed}: presence took {slowest:?}");
        for node in &nodes {
            node.until("the others", |cluster| cluster["nodes"] == NODES - 1 && cluster["following"] == true);
        }
        drop(over);
        publisher.join().unwrap();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let confirmed = lock(&scene.confirmed);
    assert!(confirmed.len() > moments as usize, "there was no load");
    for (client, came) in all.iter().enumerate() {
        check(&confirmed, came).unwrap_or_else(|why| panic!("seed {seed}: client {client}: {why}\n{came:?}"));
    }
    let told = all.iter().flatten().filter(|came| **came == Came::Told).count();
    eprintln!("seed {seed}: {} messages, told {told} times", confirmed.len());
}

/// Waits until each of these knows that all of them are there, and nobody else. Returns how long that took.
fn all_are_there(watchers: &mut [Watcher]) -> Duration {
    let start = Instant::now();
    let names: Vec<String> = watchers.iter().map(Watcher::name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    watchers.iter_mut().for_each(|watcher| watcher.until(&names));
    start.elapsed()
}

fn start(nats: &Nats) -> FarNode {
    let node = FarNode::with(nats, &[(STREAM, Path::new("1")), (PRESENCE, Path::new("1"))]);
    node.until("the stream", |cluster| cluster["following"] == true);
    node
}

/// Publishes numbers until the test is over, then the end. What was not confirmed may have come.
fn publisher(scene: &Scene, mut random: fastrand::Rng) {
    let target = format!("/publish/raw?group={CHANNEL}&wait=queued&deadline=1s");
    let start = Instant::now();
    for number in 0.. {
        let is_over = scene.is_over.load(Ordering::Acquire);
        let text = if is_over { format!("end {number}") } else { number.to_string() };
        let answer = ask(scene.node(&mut random), "POST", &target, text.as_bytes());
        if answer.is_some_and(|(status, _)| status == 200) {
            lock(&scene.confirmed).push(text);
            if is_over {
                return;
            }
        }
        assert!(start.elapsed() < PATIENCE * 100, "the end is never published");
    }
}

/// One request, which a node that is killed or frozen may not answer.
fn ask(address: SocketAddr, method: &str, target: &str, body: &[u8]) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect_timeout(&address, LOOK).ok()?;
    stream.set_read_timeout(Some(LOOK * 10)).ok()?;
    stream.write_all(&hub::head(method, target, &[], Some(body.len()), true)).ok()?;
    stream.write_all(body).ok()?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all).ok()?;
    let text = String::from_utf8(all).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or_default()))
}

/// Subscribes on nodes at random until the end has come, as a client should: it comes back with its position, and also
/// if the hub shows that it lacks something.
fn client(scene: &Scene, mut random: fastrand::Rng) -> Vec<Came> {
    let (mut came, mut place) = (Vec::new(), None);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE * 100, "the end never comes: {came:?}");
        let _ = session(scene, &mut random, &mut came, &mut place);
        // The last message may come before its publisher knows that it is stored.
        let confirmed = lock(&scene.confirmed);
        let is_end = |text: &String| text.starts_with("end ") && confirmed.last() == Some(text);
        if came.iter().any(|came| matches!(came, Came::Text(text) if is_end(text))) {
            return came;
        }
    }
}

/// One session, until it ends, the client leaves, or an end has come.
fn session(
    scene: &Scene,
    random: &mut fastrand::Rng,
    came: &mut Vec<Came>,
    place: &mut Option<(String, u64)>,
) -> Option<()> {
    let mut stream = TcpStream::connect_timeout(&scene.node(random), LOOK).ok()?;
    stream.set_read_timeout(Some(LOOK * 15)).ok()?;
    let since = place.as_ref().map_or(String::new(), |(epoch, offset)| format!("&since={epoch}:{offset}"));
    // HTTP/1.0, so that the lines come without chunks between them.
    let target = format!("/connect?transport=stream&protocol=oroshi.v1&channel={CHANNEL}{since}");
    stream.write_all(format!("GET {target} HTTP/1.0\r\nHost: hub.test\r\n\r\n").as_bytes()).ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.next().filter(|line| line.contains(" 200 "))?;
    lines.find(String::is_empty)?;
    // It leaves by itself now and then, whatever happens to the nodes.
    for _ in 0..random.usize(1..400) {
        let text = lines.next()?;
        let frame = frame(&text);
        let read = |frame: &Value| Some((frame["epoch"].as_str()?.to_owned(), frame["offset"].as_u64()?));
        if let Some(answer) = frame.get("subscribed") {
            if answer["recovered"] != true {
                came.push(Came::Told);
                *place = read(answer);
            }
        } else if frame["channel"] == CHANNEL {
            let (epoch, offset) = read(&frame)?;
            let prev = frame["prev"].as_u64()?;
            match place {
                Some((known, last)) if *known != epoch || prev > *last => return None,
                Some((_, last)) if offset <= *last => continue,
                _ => {}
            }
            *place = Some((epoch, offset));
            let text = frame["text"].as_str()?.to_owned();
            let is_end = text.starts_with("end ");
            came.push(Came::Text(text));
            if is_end {
                return None;
            }
        }
    }
    None
}

/// Compares what a client got with what was confirmed.
fn check(confirmed: &[String], came: &[Came]) -> Result<(), String> {
    let is_confirmed: HashSet<&str> = confirmed.iter().map(String::as_str).collect();
    let mut seen = HashSet::new();
    let (mut next, mut may_skip) = (0, false);
    for one in came {
        let Came::Text(text) = one else {
            may_skip = true;
            continue;
        };
        if !seen.insert(text.as_str()) {
            return Err(format!("{text} came twice"));
        }
        if !is_confirmed.contains(text.as_str()) {
            continue;
        }
        match confirmed[next..].iter().position(|confirmed| confirmed == text) {
            Some(skipped) if skipped == 0 || may_skip => next += skipped + 1,
            Some(skipped) => return Err(format!("{skipped} were missed before {text}, and nobody told")),
            None => return Err(format!("{text} came too late")),
        }
        may_skip = false;
    }
    Ok(())
}

#[test]
fn what_was_missed_doubled_or_turned_round_is_found() {
    let confirmed = ["1", "2", "3"].map(String::from);
    let check = |came: &[&str]| {
        let came = came.iter().map(|&text| if text.is_empty() { Came::Told } else { Came::Text(text.into()) });
        check(&confirmed, &came.collect::<Vec<_>>()).is_ok()
    };
    assert!(check(&["1", "x", "2", "3"]) && check(&["", "2", "3"]) && check(&["1", "", "3"]));
    for wrong in [&["2", "3"][..], &["1", "3"], &["1", "1"], &["1", "3", "", "2"], &["", "2", "1"], &["x", "x"]] {
        assert!(!check(wrong), "{wrong:?}");
    }
}
