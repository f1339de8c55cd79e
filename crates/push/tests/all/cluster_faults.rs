//! NATS and nodes that die, freeze and come back: which messages arrive, and that none comes twice or late.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a node of its own says where it listens, and has a log

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::hub;
use crate::hub::{Got, Hub, PATIENCE, WebSocket};
use crate::nats;
use crate::nats::{Nats, counter, freeze, knows, nodes, signal};
use crate::presence;
use crate::stream;
use oroshi_push::{GroupRule, Plan, SlowPolicy};
use oroshi_testkit::{in_a_process, test_name};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Says in whose environment a node keeps its histories in JetStream.
pub(crate) const STREAM: &str = "OROSHI_TEST_STREAM";

/// Says in whose environment a node has channels with events of presence.
pub(crate) const PRESENCE: &str = "OROSHI_TEST_PRESENCE";

/// Says in whose environment this program is a node, and where its NATS is.
pub(crate) const NODE: &str = "OROSHI_TEST_NODE";

fn broadcast(hub: &Hub, text: &str) -> Value {
    hub.publish(json!({ "all": true, "text": text, "wait": "written", "deadline": "30s" }))
}

/// What a session gets where it may have missed messages, and nobody knows how many.
const GAP: &str = "{\"gap\":null}";

/// Sessions are told what they missed, and stay.
fn gaps(plan: &mut Plan) {
    plan.groups = vec![GroupRule {
        pattern: "*".into(),
        slow: SlowPolicy::DropOldest,
        client_may_join: true,
        ..GroupRule::default()
    }];
}

/// A receipt timeout that a test does not wait long for.
fn quick(plan: &mut Plan) {
    gaps(plan);
    plan.cluster.as_mut().unwrap().receipt_timeout = Duration::from_millis(500);
}

/// Publishes `what` and a number until all of `known` nodes have answered, and returns the text that reached them.
fn until_all_answer(hub: &Hub, what: &str, known: u64) -> String {
    until_answered(hub, what, (known, known))
}

/// Publishes `what` and a number until a receipt says so many known and answered nodes, and returns the text.
fn until_answered(hub: &Hub, what: &str, expected: (u64, u64)) -> String {
    let start = Instant::now();
    for number in 0.. {
        let text = format!("{what} {number}");
        if nodes(&broadcast(hub, &text)) == expected {
            return text;
        }
        assert!(start.elapsed() < PATIENCE, "never {expected:?} nodes");
    }
    unreachable!()
}

/// What a session gets up to this text.
fn up_to(session: &mut WebSocket, last: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let text = session.text();
        if text == last {
            return all;
        }
        all.push(text);
    }
}

#[test]
fn nats_is_killed_and_comes_back() {
    const MESSAGES: usize = 20;
    let Some(mut nats) = Nats::start("nats_is_killed_and_comes_back", &[]) else { return };
    let mut hubs = vec![nats.node(2, gaps), nats.node(2, gaps)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let mut sessions: Vec<(WebSocket, String)> = hubs.iter().map(Hub::session).collect();
    for number in 0..MESSAGES {
        assert_eq!(nodes(&broadcast(&hubs[0], &format!("before {number}"))), (2, 2));
    }
    nats.kill();
    for hub in &hubs {
        hub.until("that NATS is gone", |status| status["cluster"]["connected"] == false);
    }
    let there = sessions[1].1.clone();
    for number in 0..MESSAGES {
        let receipt = broadcast(&hubs[0], &format!("during {number}"));
        assert_eq!((&receipt["written"], nodes(&receipt)), (&json!(1), (2, 1)), "{receipt}");
    }
    let receipt = hubs[0].publish(json!({ "sessions": [there], "text": "nowhere" }));
    assert_eq!((&receipt["unknown"], nodes(&receipt)), (&json!([there]), (2, 1)), "{receipt}");
    assert_eq!(hubs[0].request("GET", &format!("/sessions/{there}"), &[], b"").status, 404);
    assert_eq!(counter(&hubs[0], "incomplete"), MESSAGES as u64 + 1);

    // A node that never saw NATS serves what it has, and does not claim to know of all.
    hubs.push(nats.node(2, gaps));
    sessions.push(hubs[2].session());
    let receipt = broadcast(&hubs[2], "alone");
    assert_eq!((&receipt["written"], nodes(&receipt)), (&json!(1), (1, 1)), "{receipt}");
    assert_eq!(receipt["nodes"]["connected"], false, "{receipt}");

    nats.restart();
    hubs.iter().for_each(|hub| knows(hub, 2));
    for number in 0..MESSAGES {
        for (publisher, hub) in hubs.iter().enumerate() {
            let receipt = broadcast(hub, &format!("{publisher} after {number}"));
            assert_eq!((&receipt["written"], nodes(&receipt)), (&json!(3), (3, 3)), "{receipt}");
            assert_eq!(receipt["nodes"]["connected"], true, "{receipt}");
        }
    }
    broadcast(&hubs[1], "end");
    let numbered = |what: &str| (0..MESSAGES).map(|number| format!("{what} {number}")).collect::<Vec<_>>();
    let after = || (0..MESSAGES).flat_map(|number| (0..3).map(move |publisher| format!("{publisher} after {number}")));
    let expected = [
        [numbered("before"), numbered("during"), after().collect()].concat(),
        [numbered("before"), after().collect()].concat(),
        [vec!["alone".to_owned()], after().collect()].concat(),
    ];
    for (node, ((session, _), expected)) in sessions.iter_mut().zip(expected).enumerate() {
        let got = up_to(session, "end");
        let place = |text: &str| got.iter().position(|got| got == text).unwrap_or_else(|| panic!("no {text}: {got:?}"));
        // The first node missed what was published on the third, the others what was on the first.
        let (behind, before) = [("during 19", "2 after 0"), ("before 19", "0 after 0"), ("alone", "0 after 0")][node];
        assert!((place(behind)..place(before)).contains(&place(GAP)), "{got:?}");
        assert_eq!(got.into_iter().filter(|text| text != GAP).collect::<Vec<_>>(), expected);
    }
    for hub in &hubs {
        let status = hub.status();
        assert!(status["cluster"]["stale"] == 0 && status["cluster"]["repeated"] == 0, "{status}");
    }
}

/// Once NATS is back, a receipt comes as soon as all nodes that can answer have answered.
///
/// It does not wait for nodes that are not back yet, and the first receipt after they are back counts them all. A
/// publish that waited for the receipt timeout would outlast the test.
#[test]
fn no_receipt_waits_for_the_receipt_timeout_once_nats_is_back() {
    let Some(mut nats) = Nats::start("no_receipt_waits_for_the_receipt_timeout_once_nats_is_back", &[]) else { return };
    let patient = |plan: &mut Plan| {
        gaps(plan);
        plan.cluster.as_mut().unwrap().receipt_timeout = Duration::from_secs(3600);
    };
    let hubs = [nats.node(2, patient), nats.node(2, patient)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let (mut there, _) = hubs[1].session();
    assert_eq!(nodes(&broadcast(&hubs[0], "before")), (2, 2));
    for outage in 0..3 {
        nats.kill();
        hubs.iter().for_each(|hub| drop(hub.until("no NATS", |status| status["cluster"]["connected"] == false)));
        assert_eq!(nodes(&broadcast(&hubs[0], "during")), (2, 1));
        nats.restart();
        // The first two publish all the while, the last one once, when all are there.
        if outage == 2 {
            knows(&hubs[0], 1);
            assert_eq!(nodes(&broadcast(&hubs[0], "once")), (2, 2));
            assert!(up_to(&mut there, "once").contains(&GAP.to_owned()));
        } else {
            let last = until_all_answer(&hubs[0], &format!("after {outage}"), 2);
            assert!(up_to(&mut there, &last).contains(&GAP.to_owned()));
            knows(&hubs[1], 1);
        }
    }
    assert_eq!(counter(&hubs[0], "connects"), 4);
}

/// What is lost is told by the rule of those it was for: here their sessions end, unless nothing was for them.
#[test]
fn sessions_whose_rule_is_to_disconnect_end_if_they_missed_something_and_only_then() {
    let Some(mut nats) = Nats::start("sessions_whose_rule_is_to_disconnect_end", &[]) else { return };
    let grouped = |plan: &mut Plan| {
        plan.groups = vec![GroupRule {
            pattern: "g".into(),
            slow: SlowPolicy::Disconnect,
            client_may_join: true,
            ..GroupRule::default()
        }];
    };
    let hubs = [nats.node(2, grouped), nats.node(2, grouped)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let (mut here, _) = hubs[0].session();
    let mut member = hubs[1].websocket("/connect?group=g");
    let (mut alone, key) = (hubs[1].websocket("/connect"), hub::key_of(&member.text()));
    alone.text();
    let mut outage = |envelope: Value| {
        nats.kill();
        hubs.iter().for_each(|hub| drop(hub.until("no NATS", |status| status["cluster"]["connected"] == false)));
        assert_eq!(nodes(&hubs[0].publish(envelope)), (2, 1));
        nats.restart();
        hubs.iter().for_each(|hub| knows(hub, 1));
    };
    // Of a message to one session its publisher was told.
    outage(json!({ "sessions": [key], "text": "nowhere" }));
    assert_eq!(nodes(&broadcast(&hubs[0], "first")), (2, 2));
    [&mut here, &mut member, &mut alone].into_iter().for_each(|session| assert_eq!(session.text(), "first"));

    outage(json!({ "groups": ["g"], "text": "lost" }));
    let Got::Close(Some(4001), why) = member.next() else { panic!("it goes on") };
    assert!(why.starts_with("messages were missed; connect again in "), "{why}");
    assert_eq!(nodes(&broadcast(&hubs[0], "second")), (2, 2));
    [&mut here, &mut alone].into_iter().for_each(|session| assert_eq!(session.text(), "second"));
    drop(member);
    hubs[1].until("it has ended", |status| status["sessions"]["ended"]["missed"] == 1);

    outage(json!({ "all": true, "text": "for all" }));
    assert_eq!(here.text(), "for all");
    assert!(matches!(alone.next(), Got::Close(Some(4001), _)));
}

/// What was under way when NATS froze is not delivered once it goes on, whether it goes on soon...
#[test]
fn nats_freezes_for_a_moment() {
    nats_freezes("nats_freezes_for_a_moment", "no link", |status| status["cluster"]["connected"] == false);
}

/// ...or only when the nodes have given their connections up.
#[test]
fn nats_freezes_for_longer() {
    nats_freezes("nats_freezes_for_longer", "another connection", |status| {
        status["cluster"]["trouble"].as_str().unwrap().contains("cannot connect to NATS")
    });
}

fn nats_freezes(test: &str, what: &str, thaw_when: impl Fn(&Value) -> bool) {
    let Some(nats) = Nats::start(test, &[]) else { return };
    let hubs = [nats.node(2, quick), nats.node(2, quick)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let [(mut here, _), (mut there, _)] = [hubs[0].session(), hubs[1].session()];
    until_all_answer(&hubs[0], "before", 2);
    let lost = || counter(&hubs[1], "stale") + counter(&hubs[1], "missed");
    let (sent, lost_before) = (counter(&hubs[0], "sent"), lost());
    nats.freeze();
    let mut frozen = Vec::new();
    while hubs[0].status()["cluster"]["connected"] == true || frozen.is_empty() {
        frozen.push(format!("frozen {}", frozen.len()));
        let receipt = broadcast(&hubs[0], &frozen[frozen.len() - 1]);
        assert_eq!((&receipt["written"], nodes(&receipt)), (&json!(1), (2, 1)), "{receipt}");
    }
    let sent = counter(&hubs[0], "sent") - sent;
    assert!(sent > 0, "some were handed to NATS before anybody knew");
    for hub in &hubs {
        hub.until(what, &thaw_when);
    }
    nats.thaw();
    hubs.iter().for_each(|hub| knows(hub, 1));
    let last = until_all_answer(&hubs[0], "after", 2);
    let got = up_to(&mut there, &last);
    assert!(!got.iter().any(|text| text.starts_with("frozen")), "{got:?}");
    let first_after = got.iter().position(|text| text.starts_with("after")).unwrap_or(got.len());
    assert!(got[..first_after].contains(&GAP.to_owned()), "nobody told it: {got:?}");
    let got = up_to(&mut here, &last);
    assert_eq!(
        got.iter().filter(|text| text.starts_with("frozen")).collect::<Vec<_>>(),
        frozen.iter().collect::<Vec<_>>()
    );
    // Each of them is accounted for; so may be some that a busy machine had wait too long.
    assert!(lost() >= lost_before + sent, "{} of {sent}", lost() - lost_before);
    assert_eq!(counter(&hubs[1], "repeated"), 0);
}

/// A connection that takes nothing any more is noticed too.
#[test]
fn nats_freezes_with_much_under_way() {
    let Some(nats) = Nats::start("nats_freezes_with_much_under_way", &[]) else { return };
    let hubs = [nats.node(2, quick), nats.node(2, quick)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let (mut there, _) = hubs[1].session();
    nats.freeze();
    let large = "x".repeat(500_000);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                // More than the kernel holds for the connection.
                for _ in 0..4 {
                    let receipt = hubs[0].publish(json!({ "all": true, "text": large }));
                    assert_eq!((&receipt["matched"], nodes(&receipt)), (&json!(0), (2, 1)), "{receipt}");
                }
            });
        }
    });
    hubs[0].until("that NATS is gone", |status| status["cluster"]["connected"] == false);
    nats.thaw();
    hubs.iter().for_each(|hub| knows(hub, 1));
    let last = until_all_answer(&hubs[0], "after", 2);
    assert!(!up_to(&mut there, &last).contains(&large), "what was under way came late");
}

#[test]
fn a_node_that_goes_says_so() {
    let Some(nats) = Nats::start("a_node_that_goes_says_so", &[]) else { return };
    let mut hubs = nats.nodes(3);
    let start = Instant::now();
    hubs.pop().unwrap().stop();
    hubs.iter().for_each(|hub| knows(hub, 1));
    let receipt = broadcast(&hubs[0], "the others");
    assert_eq!(nodes(&receipt), (2, 2), "after {:?}", start.elapsed());
    assert_eq!(counter(&hubs[0], "incomplete"), 0, "nobody waited for it");
}

#[test]
fn a_node_is_killed_and_another_takes_its_place() {
    let Some(nats) = Nats::start("a_node_is_killed_and_another_takes_its_place", &[]) else { return };
    let hub = nats.node(2, quick);
    let mut far = FarNode::start(&nats);
    knows(&hub, 1);
    let (mut here, _) = hub.session();
    let mut there = WebSocket::open(far.address, "/connect", &[]).unwrap();
    let key = hub::key_of(&there.text());
    until_all_answer(&hub, "before", 2);
    far.child.kill().unwrap();
    far.child.wait().unwrap();
    let receipt = hub.publish(json!({ "sessions": [key], "text": "too late" }));
    assert_eq!(receipt["unknown"], json!([key]), "{receipt}");
    // On a machine that is slow enough it is forgotten already.
    assert!(matches!(nodes(&receipt), (2, 1) | (1, 1)), "{receipt}");
    knows(&hub, 0);
    // It may be frozen for all that is known, with its clients.
    assert_eq!(nodes(&broadcast(&hub, "alone")), (2, 1));
    assert_eq!(counter(&hub, "absent"), 1);

    let other = FarNode::start(&nats);
    knows(&hub, 1);
    let mut there = WebSocket::open(other.address, "/connect", &[]).unwrap();
    there.text();
    let last = until_answered(&hub, "after", (3, 2));
    assert!(!up_to(&mut there, &last).contains(&"alone".to_owned()));
    assert!(up_to(&mut here, &last).contains(&"alone".to_owned()));
}

/// A node that stood still does not deliver what it slept through.
#[test]
fn a_node_freezes() {
    let Some(nats) = Nats::start("a_node_freezes", &[]) else { return };
    let hub = nats.node(1, quick);
    let far = FarNode::start(&nats);
    knows(&hub, 1);
    let mut there = WebSocket::open(far.address, "/connect", &[]).unwrap();
    there.text();
    until_all_answer(&hub, "before", 2);
    freeze(&far.child);
    // It is waited for at first, and counted all the time: its clients are still there.
    for number in 0.. {
        let receipt = broadcast(&hub, &format!("frozen {number}"));
        assert_eq!(nodes(&receipt), (2, 1), "{receipt}");
        if counter(&hub, "nodes") == 0 && number > 10 {
            break;
        }
    }
    signal(&far.child, Signal::CONT);
    knows(&hub, 1);
    let last = until_all_answer(&hub, "after", 2);
    let got = up_to(&mut there, &last);
    assert!(!got.iter().any(|text| text.starts_with("frozen")), "{got:?}");
    let first_after = got.iter().position(|text| text.starts_with("after")).unwrap_or(got.len());
    assert!(got[..first_after].contains(&GAP.to_owned()), "nobody told it: {got:?}");
}

/// In the moment in which NATS is back and the other nodes are not, what is published goes to nobody.
#[test]
fn what_is_published_before_the_others_are_back_is_counted() {
    let Some(mut nats) = Nats::start("what_is_published_before_the_others_are_back_is_counted", &[]) else { return };
    let hub = nats.node(2, quick);
    let far = FarNode::start(&nats);
    knows(&hub, 1);
    until_all_answer(&hub, "before", 2);
    nats.kill();
    hub.until("that NATS is gone", |status| status["cluster"]["connected"] == false);
    // It comes back when the test is over.
    freeze(&far.child);
    nats.restart();
    knows(&hub, 0);
    let unsent = counter(&hub, "unsent");
    assert_eq!(nodes(&broadcast(&hub, "for nobody")), (2, 1));
    assert_eq!(counter(&hub, "unsent"), unsent + 1);
    signal(&far.child, Signal::CONT);
    knows(&hub, 1);
}

/// The log has each trouble once and not at each try, and has it again after NATS was reached.
#[test]
fn the_log_says_when_nats_is_away_and_when_it_is_back() {
    let Some(mut nats) = Nats::start("the_log_says_when_nats_is_away_and_when_it_is_back", &[]) else { return };
    nats.kill();
    // In its place somebody who hangs up.
    let nobody = TcpListener::bind(("127.0.0.1", nats.port)).unwrap();
    let node = FarNode::start(&nats);
    for _ in 0..4 {
        drop(nobody.accept().unwrap());
    }
    drop(nobody);
    nats.restart();
    let trouble = format!("WARN cluster: cannot connect to NATS: {}: ", nats.url());
    let until_reached = |mut said: Vec<String>| {
        while said[said.len() - 1] != "INFO cluster: NATS is reached" {
            let next = node.logged();
            assert!(!said.contains(&next), "{next}, twice: {said:?}");
            said.push(next);
        }
        assert!(said[0].starts_with(&trouble), "{said:?}");
    };
    until_reached(vec![node.logged()]);
    nats.kill();
    // Two troubles, if a try meets the server while it ends.
    let away = node.logged();
    nats.restart();
    until_reached(vec![away]);
}

/// By the certificates that the machine trusts, which are of a process.
#[test]
fn a_server_that_wants_tls_has_it() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["right", "wrong"] {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(path(&format!("{name}.pem")), made.cert.pem()).unwrap();
        std::fs::write(path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
    }
    let (certificate, key) = (path("right.pem"), path("right.key"));
    let arguments = ["--tls", "--tlscert", certificate.to_str().unwrap(), "--tlskey", key.to_str().unwrap()];
    let Some(nats) = Nats::start("a_server_that_wants_tls_has_it", &arguments) else { return };
    let trusting = |name: &str| FarNode::with(&nats, &[("SSL_CERT_FILE", &path(name))]);
    trusting("right.pem").until("a connection", |cluster| cluster["connected"] == true);
    let insists = nats.url().replace("nats://", "tls://");
    let insisting = FarNode::with(&nats, &[(NODE, Path::new(&insists)), ("SSL_CERT_FILE", &path("right.pem"))]);
    insisting.until("a connection", |cluster| cluster["connected"] == true);
    trusting("wrong.pem").until("the reason", |cluster| {
        assert_eq!(cluster["connected"], false);
        cluster["trouble"].as_str().unwrap().contains("certificate")
    });
}

#[test]
fn a_node_that_insists_on_tls_does_not_speak_without_it() {
    let Some(nats) = Nats::start("a_node_that_insists_on_tls_does_not_speak_without_it", &[]) else { return };
    let insists = nats.url().replace("nats://", "tls://");
    let insisting = FarNode::with(&nats, &[(NODE, Path::new(&insists))]);
    insisting.until("the reason", |cluster| {
        assert_eq!(cluster["connected"], false);
        !cluster["trouble"].as_str().unwrap().is_empty()
    });
}

/// A node in a process of its own. Dropping it kills it.
pub(crate) struct FarNode {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    log: mpsc::Receiver<String>,
}

impl FarNode {
    pub(crate) fn start(nats: &Nats) -> FarNode {
        FarNode::with(nats, &[])
    }

    /// One with these environment variables.
    pub(crate) fn with(nats: &Nats, variables: &[(&str, &Path)]) -> FarNode {
        let mut command = in_a_process(&[], test_name!("a_node_for_other_tests"));
        command.env(NODE, nats.url());
        command.envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (tell, log) = mpsc::channel();
        let errors = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in errors.map_while(Result::ok) {
                match line.strip_prefix(Log::PREFIX) {
                    // Most tests do not listen.
                    Some(event) => drop(tell.send(event.to_owned())),
                    None => eprintln!("{line}"),
                }
            }
        });
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.map_while(Result::ok).find_map(|line| line.split_once("listens on ")?.1.parse().ok());
        FarNode { child, address: address.expect("the node says where it listens"), log }
    }

    /// The next thing that it tells the operator.
    fn logged(&self) -> String {
        self.log.recv_timeout(PATIENCE).expect("the node logs something")
    }

    /// Waits until what its `/status` says of the cluster is as `is` wants it.
    pub(crate) fn until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let start = Instant::now();
        loop {
            let status = hub::request(self.address, "GET", "/status", &[], b"").json();
            if is(&status["cluster"]) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {status}");
            std::thread::yield_now();
        }
    }
}

impl Drop for FarNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What [`FarNode`] starts. It ends with who started it.
#[test]
#[ignore = "not a test: a node in a process of its own, for other tests"]
fn a_node_for_other_tests() {
    let Ok(url) = std::env::var(NODE) else { return };
    tracing::subscriber::set_global_default(Log).unwrap();
    let hub = Hub::start(|plan| {
        plan.cluster = Some(nats::cluster(&url));
        quick(plan);
        if std::env::var_os(STREAM).is_some() {
            stream::stored(plan);
        } else if std::env::var_os(PRESENCE).is_some() {
            plan.groups.clear();
        }
        if std::env::var_os(PRESENCE).is_some() {
            presence::rules(plan);
        }
    });
    println!("listens on {}", hub.address);
    let mut rest = String::new();
    let _ = std::io::stdin().read_line(&mut rest);
}

/// Puts the hub's events on standard error, for [`FarNode::logged`].
struct Log;

impl Log {
    const PREFIX: &str = "log: ";
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("oroshi_push")
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |_: &Field, value: &dyn Debug| text.push_str(&format!("{value:?}")));
        eprintln!("{}{} {text}", Log::PREFIX, event.metadata().level());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
