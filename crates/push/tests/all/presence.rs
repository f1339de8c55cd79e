//! Events of clients that come and go: who is told what, on one node and on several, also while nodes and NATS fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use oroshi_push::{Access, GroupRule, Plan, SlowPolicy};
use oroshi_websocket::Kind;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster_faults::{FarNode, PRESENCE};
use crate::hub::{Backend, Chunks, Client, Hub, connect, frame};
use crate::nats::{Nats, freeze, knows, signal};

/// Rooms whose clients are told who comes and goes, and rooms where they may only ask.
pub(crate) fn rules(plan: &mut Plan) {
    let anyone = Access::Anyone;
    let room = |pattern: &str| GroupRule {
        pattern: pattern.into(),
        slow: SlowPolicy::DropOldest,
        subscribe: anyone,
        subscribe_patterns: true,
        presence: anyone,
        presence_events: true,
        ..GroupRule::default()
    };
    plan.threads = 2;
    let rules = [
        room("room:*"),
        GroupRule { presence: Access::Users, ..room("users:*") },
        GroupRule { presence_events: false, ..room("silent:*") },
    ];
    plan.groups.splice(..0, rules);
}

/// The clients in a channel, as one that watches knows them.
pub(crate) struct Watcher {
    client: Client,
    /// The users of the clients that are there; `None`: it knows their number only.
    list: Option<BTreeMap<String, Value>>,
    clients: u64,
}

impl Watcher {
    /// Subscribes a client with presence.
    pub(crate) fn start(address: std::net::SocketAddr, channel: &str) -> Watcher {
        let mut client = Client::open_with(address, "/connect");
        let answer = client.ask(json!({ "subscribe": { "channel": channel, "presence": true } }));
        let mut watcher = Watcher { client, list: None, clients: 0 };
        watcher.take(&answer["subscribed"]["presence"]);
        watcher
    }

    /// Takes a number of clients, or a list.
    fn take(&mut self, presence: &Value) {
        self.clients = presence["clients"].as_u64().unwrap_or_else(|| panic!("{presence}"));
        self.list = presence["list"].as_array().map(|list| {
            let one = |member: &Value| (member["client"].as_str().unwrap().to_owned(), member["user"].clone());
            let list: BTreeMap<_, _> = list.iter().map(one).collect();
            assert_eq!(list.len() as u64, self.clients, "{presence}");
            list
        });
    }

    /// Hears the next frame, and checks that it fits.
    fn hear(&mut self) -> Value {
        let frame = self.client.next();
        let client = |member: &Value| member["client"].as_str().unwrap().to_owned();
        if let Some(member) = frame.get("joined") {
            let list = self.list.as_mut().unwrap_or_else(|| panic!("it knows no list: {frame}"));
            let was = list.insert(client(member), member["user"].clone());
            assert!(was.is_none(), "it is there: {frame}");
        } else if let Some(member) = frame.get("left") {
            let list = self.list.as_mut().unwrap_or_else(|| panic!("it knows no list: {frame}"));
            let was = list.remove(&client(member));
            assert!(was.is_some(), "it had not come: {frame}");
        } else if frame.get("clients").is_some() {
            self.take(&frame);
        }
        frame
    }

    /// Hears frames until these clients are there, and no others.
    pub(crate) fn until(&mut self, names: &[&str]) {
        let mut names = names.to_vec();
        names.sort_unstable();
        while self.list.as_ref().is_none_or(|list| !list.keys().eq(&names)) {
            self.hear();
        }
    }

    pub(crate) fn name(&self) -> String {
        self.client.client().to_owned()
    }
}

/// A client that subscribes, without presence.
fn subscriber(hub: &Hub, channel: &str) -> Client {
    let mut client = Client::open(hub);
    let subscribed = client.subscribe(channel, None);
    assert!(subscribed.get("presence").is_none(), "it did not ask: {subscribed}");
    client
}

#[test]
fn clients_are_told_who_comes_and_goes() {
    let hub = Hub::start(rules);
    let early = subscriber(&hub, "room:a");
    let mut watcher = Watcher::start(hub.address, "room:a");
    let me = watcher.name();
    watcher.until(&[early.client(), &me]);
    assert_eq!(hub.status()["presence"], json!({ "channels": 1, "watchers": 1 }));

    let mut late = subscriber(&hub, "room:a");
    let member = json!({ "client": late.client() });
    assert_eq!(watcher.hear(), json!({ "channel": "room:a", "joined": member }));
    // Neither another channel, nor a pattern that fits.
    let _elsewhere = [subscriber(&hub, "room:b"), subscriber(&hub, "room:*")];
    late.ask(json!({ "unsubscribe": { "channel": "room:a" } }));
    assert_eq!(watcher.hear(), json!({ "channel": "room:a", "left": member }));
    late.subscribe("room:a", None);
    assert_eq!(watcher.hear()["joined"], member);
    let mut other = Watcher::start(hub.address, "room:a");
    let all = [early.client(), late.client(), &me, &other.name()].map(str::to_owned);
    other.until(&all.each_ref().map(String::as_str));
    assert_eq!(watcher.hear()["joined"]["client"], all[3]);
    drop(late);
    assert_eq!((watcher.hear()["left"].clone(), other.hear()["left"].clone()), (member.clone(), member));

    // The backend closes a session, and messages go between the events.
    let key = early.first["session"].as_str().unwrap().to_owned();
    assert_eq!(hub.request("DELETE", &format!("/sessions/{key}"), &[], b"").status, 204);
    assert_eq!(watcher.hear()["left"]["client"], early.client());
    hub.publish(json!({ "groups": ["room:a"], "text": "hello" }));
    assert_eq!(watcher.hear(), json!({ "channel": "room:a", "text": "hello" }));

    // A client that ends its subscription is told no more, not even of its own end.
    watcher.client.ask(json!({ "unsubscribe": { "channel": "room:a" } }));
    assert_eq!((other.hear()["left"]["client"].clone(), other.hear()["text"].clone()), (json!(all[0]), json!("hello")));
    assert_eq!(other.hear()["left"]["client"], me);
    let _last = subscriber(&hub, "room:a");
    assert_eq!(watcher.client.ask(json!({ "ping": {} }))["pong"], json!({}));
}

#[test]
fn presence_at_connect_is_told_on_every_transport() {
    let hub = Hub::start(rules);
    let mut watcher = Client::open_with(hub.address, "/connect?channel=room:a&presence=1&channel=room:b");
    let subscribed = watcher.next();
    let me = json!({ "client": watcher.client() });
    assert_eq!(subscribed["subscribed"]["presence"], json!({ "clients": 1, "list": [me] }), "{subscribed}");
    assert_eq!(watcher.next(), json!({ "subscribed": { "channel": "room:b" } }), "the other channel is not watched");
    let target = "/connect?protocol=oroshi.v1&transport=stream&channel=room:a&presence=1";
    let mut lines = Chunks::open(connect(hub.address), target, &[]);
    let client = frame(&lines.next().unwrap())["client"].clone();
    assert_eq!(watcher.next()["joined"]["client"], client);
    assert_eq!(frame(&lines.next().unwrap())["subscribed"]["presence"]["clients"], 2);
    let poll = hub.request("GET", "/connect?protocol=oroshi.v1&transport=poll&channel=room:a&presence=1", &[], b"");
    let poll = poll.json();
    assert_eq!(watcher.next()["joined"]["client"], poll["client"]);
    assert_eq!(frame(&lines.next().unwrap())["joined"]["client"], poll["client"]);
    drop(lines);
    assert_eq!(watcher.next()["left"]["client"], client);
    let text = |name: &str| poll[name].as_str().unwrap();
    let target = format!("/poll?session={}&token={}&after={}", text("session"), text("token"), poll["next"]);
    let got = hub.request("GET", &target, &[], b"").json()["messages"].clone();
    assert_eq!(got[0]["subscribed"]["presence"]["clients"], 3, "{got}");
    assert_eq!(got[1]["left"]["client"], client, "{got}");
}

#[test]
fn presence_needs_the_right_and_a_rule_with_events() {
    let hub = Hub::start(rules);
    let mut client = Client::open(&hub);
    let mut ask = |channel: &str| client.ask(json!({ "subscribe": { "channel": channel, "presence": true } }));
    for (channel, why) in
        [("users:a", "no right"), ("silent:a", "presence-events"), ("room:*", "one channel"), ("other", "no right")]
    {
        let answer = ask(channel);
        assert_eq!((&answer["error"], &answer["channel"]), (&json!("forbidden"), &json!(channel)), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains(why), "{answer}");
    }
    client.socket.send(Kind::Text, br#"{"subscribe":{"channel":"room:a","presence":1}}"#);
    assert_eq!(client.next()["error"], "bad-command");
    assert!(client.subscribe("users:a", None).get("presence").is_none(), "without presence it may");
    let mut refused = Client::open_with(hub.address, "/connect?channel=silent:a&presence=1");
    assert_eq!(refused.next()["error"], "forbidden");
    assert_eq!(hub.status()["presence"], json!({ "channels": 0, "watchers": 0 }));
}

#[test]
fn users_are_told_by_name_and_a_right_of_the_backend_suffices() {
    let backend = Backend::start(|asked| {
        let name = asked.target.split_once("name=").unwrap().1;
        let rights = "X-Oroshi-Rights: other subscribe presence\r\n";
        let fields = format!("X-Kuiperbelt-Session: {name}\r\nX-Oroshi-User: {name}\r\n{rights}");
        (200, fields, String::new())
    });
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.groups.push(GroupRule { pattern: "other".into(), presence_events: true, ..GroupRule::default() });
        plan.callbacks.connect = backend.url("/connect");
    });
    for channel in ["users:a", "other"] {
        let mut ann = Client::open_with(hub.address, "/connect?name=ann");
        let answer = ann.ask(json!({ "subscribe": { "channel": channel, "presence": true } }));
        assert_eq!(answer["subscribed"]["presence"]["list"][0]["user"], "ann", "{answer}");
        let mut bob = Client::open_with(hub.address, "/connect?name=bob");
        bob.subscribe(channel, None);
        let member = json!({ "client": bob.client(), "user": "bob" });
        assert_eq!(ann.next(), json!({ "channel": channel, "joined": member }));
        drop(bob);
        assert_eq!(ann.next(), json!({ "channel": channel, "left": member }));
    }
}

/// A watcher gets a number instead of single clients: at most one for a second, and a list when it is small again.
#[test]
fn a_watcher_that_does_not_read_ends_when_events_fit_no_more() {
    const QUEUED: usize = 4;
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.limits.session_queue_messages = QUEUED;
    });
    let (slow, mut watcher) = (Watcher::start(hub.address, "room:a"), Watcher::start(hub.address, "room:a"));
    let large = "x".repeat(16 * 1024);
    let dropped = |hub: &Hub| hub.status()["deliveries"]["dropped"].as_u64().unwrap();
    // One does not read: its queue is full of messages, which may be dropped.
    while dropped(&hub) == 0 {
        hub.publish(json!({ "groups": ["room:a"], "text": large }));
        assert_eq!(watcher.hear()["text"].as_str().map(str::len), Some(large.len()));
    }
    assert_eq!(hub.status()["sessions"]["ended"]["slow"], 0);
    // An event must not be dropped, nor wait behind more than the queue may hold.
    let late = subscriber(&hub, "room:a");
    hub.until("the slow one has ended", |status| status["sessions"]["ended"]["slow"] == 1);
    watcher.until(&[late.client(), &watcher.name()]);
    hub.until("its queue is free", |status| status["queues"]["bytes"] == 0);
    drop(slow);
}

#[test]
fn a_large_channel_is_told_by_its_number() {
    const MANY: u64 = 1100;
    let Some(nats) = Nats::start("a_large_channel_is_told_by_its_number", &[]) else { return };
    let rules = |plan: &mut Plan| {
        rules(plan);
        plan.limits.poll_absence = crate::hub::PATIENCE * 2;
    };
    let hubs = [nats.node(2, rules), nats.node(2, rules)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let mut watchers = hubs.each_ref().map(|hub| Watcher::start(hub.address, "room:a"));
    // Clients that poll need no connection.
    let keys: Vec<String> = (0..MANY)
        .map(|_| {
            let target = "/connect?protocol=oroshi.v1&transport=poll&channel=room:a";
            hubs[0].request("GET", target, &[], b"").json()["session"].as_str().unwrap().to_owned()
        })
        .collect();
    for watcher in &mut watchers {
        let mut frames = 0;
        while watcher.clients != MANY + 2 || watcher.list.is_some() {
            watcher.hear();
            frames += 1;
        }
        assert!(frames <= MANY, "{frames} frames");
    }
    let mut late = Watcher::start(hubs[1].address, "room:a");
    assert!(late.list.is_none() && late.clients >= MANY, "{}", late.clients);
    for key in &keys[10..] {
        assert_eq!(hubs[0].request("DELETE", &format!("/sessions/{key}/groups/room:a"), &[], b"").status, 204);
    }
    for watcher in watchers.iter_mut().chain([&mut late]) {
        while watcher.list.as_ref().is_none_or(|list| list.len() != 13) {
            watcher.hear();
        }
    }
    let last = subscriber(&hubs[0], "room:a");
    for watcher in watchers.iter_mut().chain([&mut late]) {
        assert_eq!(watcher.hear()["joined"]["client"], last.client());
    }
}

#[test]
fn clients_of_all_nodes_are_told_and_nothing_is_kept_without_watchers() {
    let Some(nats) = Nats::start("clients_of_all_nodes_are_told_and_nothing_is_kept_without_watchers", &[]) else {
        return;
    };
    let hubs = [(); 3].map(|()| nats.node(2, rules));
    hubs.iter().for_each(|hub| knows(hub, 2));
    let members = hubs.each_ref().map(|hub| subscriber(hub, "room:a"));
    let mut watchers = vec![Watcher::start(hubs[0].address, "room:a")];
    let first = watchers[0].name();
    assert_eq!(watchers[0].list.as_ref().unwrap().len(), 4, "the answer has the clients of all nodes");
    watchers.extend(hubs[1..].iter().map(|hub| Watcher::start(hub.address, "room:a")));
    let names: Vec<String> =
        members.iter().map(|member| member.client().to_owned()).chain(watchers.iter().map(Watcher::name)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    watchers.iter_mut().for_each(|watcher| watcher.until(&names));
    assert!(names.contains(&&*first));

    let [_, there, _] = members;
    let gone = there.client().to_owned();
    drop(there);
    let rest: Vec<&str> = names.iter().filter(|name| **name != gone).copied().collect();
    watchers.iter_mut().for_each(|watcher| watcher.until(&rest));
    for hub in &hubs {
        assert_eq!(hub.status()["presence"], json!({ "channels": 1, "watchers": 1 }));
    }
    // The last watcher goes: no node notes who subscribes any more.
    drop(watchers);
    for hub in &hubs {
        hub.until("nothing is watched", |status| status["presence"] == json!({ "channels": 0, "watchers": 0 }));
        assert_eq!(hub.status()["cluster"]["refused"], 0);
    }
    // And it can be watched again.
    let again = Watcher::start(hubs[2].address, "room:a");
    assert_eq!(again.list.as_ref().map(BTreeMap::len), Some(3));
}

#[test]
fn the_clients_of_a_node_that_is_killed_have_left() {
    let Some(nats) = Nats::start("the_clients_of_a_node_that_is_killed_have_left", &[]) else { return };
    let hub = nats.node(2, rules);
    let mut watcher = Watcher::start(hub.address, "room:a");
    let me = watcher.name();
    let mut far = far_node(&nats);
    // The node comes after the client has begun to watch.
    let mut there = Watcher::start(far.address, "room:a");
    let other = there.name();
    watcher.until(&[&me, &other]);
    there.until(&[&me, &other]);
    far.child.kill().unwrap();
    far.child.wait().unwrap();
    watcher.until(&[&me]);
    let second = far_node(&nats);
    let there = Watcher::start(second.address, "room:a");
    watcher.until(&[&me, &there.name()]);
    hub.until("its feed is closed", |status| status["presence"]["channels"] == 1);
}

/// A frozen node counts as dead. When it comes back, so do its clients, and it learns what it missed.
#[test]
fn the_clients_of_a_node_that_freezes_leave_and_come_back() {
    let Some(nats) = Nats::start("the_clients_of_a_node_that_freezes_leave_and_come_back", &[]) else { return };
    let hub = nats.node(2, rules);
    let far = far_node(&nats);
    knows(&hub, 1);
    let mut there = Watcher::start(far.address, "room:a");
    let mut watcher = Watcher::start(hub.address, "room:a");
    let (me, other) = (watcher.name(), there.name());
    let passing = subscriber(&hub, "room:a");
    let first = passing.client().to_owned();
    watcher.until(&[&me, &other, &first]);
    there.until(&[&me, &other, &first]);
    freeze(&far.child);
    watcher.until(&[&me, &first]);
    drop(passing);
    watcher.until(&[&me]);
    let stays = subscriber(&hub, "room:a");
    signal(&far.child, Signal::CONT);
    let second = stays.client().to_owned();
    watcher.until(&[&me, &other, &second]);
    there.until(&[&me, &other, &second]);
}

/// Without NATS each node has only its own clients. When NATS is back, all are there.
#[test]
fn nodes_that_lose_nats_find_each_others_clients_again() {
    let Some(mut nats) = Nats::start("nodes_that_lose_nats_find_each_others_clients_again", &[]) else { return };
    let hubs = [nats.node(2, rules), nats.node(2, rules)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let mut watchers = hubs.each_ref().map(|hub| Watcher::start(hub.address, "room:a"));
    let names = watchers.each_ref().map(Watcher::name);
    let all = names.each_ref().map(String::as_str);
    watchers.iter_mut().for_each(|watcher| watcher.until(&all));
    nats.kill();
    for (watcher, name) in watchers.iter_mut().zip(all) {
        watcher.until(&[name]);
    }
    // Afterwards clients know the changes of the time between.
    let away = subscriber(&hubs[0], "room:a");
    let newest = Watcher::start(hubs[1].address, "room:b");
    nats.restart();
    let later = [all[0], all[1], away.client()];
    watchers.iter_mut().for_each(|watcher| watcher.until(&later));
    let mut newest = newest;
    let there = subscriber(&hubs[0], "room:b");
    let newest_name = newest.name();
    newest.until(&[&newest_name, there.client()]);
}

/// Clients begin to watch while others come and go on all nodes: each list and its events fit together.
#[test]
fn lists_and_events_fit_together_while_clients_come_and_go() {
    const ROUNDS: usize = 6;
    let Some(nats) = Nats::start("lists_and_events_fit_together_while_clients_come_and_go", &[]) else { return };
    let hubs = [nats.node(2, rules), nats.node(2, rules)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let mut movers: Vec<Client> = hubs.iter().flat_map(|hub| [Client::open(hub), Client::open(hub)]).collect();
    let mut watchers: Vec<Watcher> = Vec::new();
    // So few that each of them is told.
    for round in 0..ROUNDS {
        for is_there in [true, false] {
            // At the end some stay.
            let moved = if is_there || round + 1 < ROUNDS { movers.len() } else { 1 };
            std::thread::scope(|scope| {
                for mover in &mut movers[..moved] {
                    scope.spawn(move || match is_there {
                        true => drop(mover.subscribe("room:a", None)),
                        false => drop(mover.ask(json!({ "unsubscribe": { "channel": "room:a" } }))),
                    });
                }
                let started = Watcher::start(hubs[round % 2].address, "room:a");
                assert!(started.list.is_some());
                // At times nobody watches.
                if round % 3 == 2 {
                    watchers.push(started);
                }
            });
        }
    }
    let names: Vec<String> = movers[1..].iter().map(|mover| mover.client().to_owned()).collect();
    let names: Vec<String> = names.into_iter().chain(watchers.iter().map(Watcher::name)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for watcher in &mut watchers {
        watcher.until(&names);
    }
}

/// The same with so many events that watchers get numbers in between.
#[test]
fn all_watchers_know_the_same_after_a_storm() {
    let Some(nats) = Nats::start("all_watchers_know_the_same_after_a_storm", &[]) else { return };
    let hubs = [nats.node(2, rules), nats.node(2, rules)];
    hubs.iter().for_each(|hub| knows(hub, 1));
    let mut stay: Vec<Client> = Vec::new();
    let mut watchers: Vec<Watcher> = Vec::new();
    std::thread::scope(|scope| {
        let movers: Vec<_> = hubs
            .iter()
            .flat_map(|hub| [hub, hub])
            .map(|hub| {
                scope.spawn(move || {
                    let mut client = Client::open(hub);
                    for _ in 0..300 {
                        client.subscribe("room:a", None);
                        client.ask(json!({ "unsubscribe": { "channel": "room:a" } }));
                    }
                    client.subscribe("room:a", None);
                    client
                })
            })
            .collect();
        for round in 0..20 {
            let watcher = Watcher::start(hubs[round % 2].address, "room:a");
            if round % 5 == 0 {
                watchers.push(watcher);
            }
        }
        stay.extend(movers.into_iter().map(|mover| mover.join().unwrap()));
    });
    let names: Vec<String> =
        stay.iter().map(|client| client.client().to_owned()).chain(watchers.iter().map(Watcher::name)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    watchers.iter_mut().for_each(|watcher| watcher.until(&names));
}

/// A node asks for so many channels in several messages. Once the answers to the first ones were thrown away.
#[test]
fn a_node_that_comes_later_tells_of_very_many_channels() {
    const EACH: usize = 100;
    let Some(nats) = Nats::start("a_node_that_comes_later_tells_of_very_many_channels", &[]) else { return };
    let target = |at: usize, presence: &str| {
        let channels = (at * EACH..(at + 1) * EACH).map(|channel| format!("channel=room:{channel}{presence}"));
        format!("/connect?{}", channels.collect::<Vec<_>>().join("&"))
    };
    let hub = nats.node(2, rules);
    let mut watchers: Vec<Client> =
        (0..12).map(|at| Client::open_with(hub.address, &target(at, "&presence=1"))).collect();
    for watcher in &mut watchers {
        (0..EACH).for_each(|_| assert!(watcher.next()["subscribed"]["presence"].is_object()));
    }
    let late = nats.node(2, rules);
    let _members: Vec<Client> = (0..12).map(|at| Client::open_with(late.address, &target(at, ""))).collect();
    for watcher in &mut watchers {
        let mut told = BTreeSet::new();
        while told.len() < EACH {
            let frame = watcher.next();
            assert!(frame["joined"].is_object(), "{frame}");
            assert!(told.insert(frame["channel"].as_str().unwrap().to_owned()), "twice: {frame}");
        }
    }
}

/// A node in a process of its own, with the same rules.
fn far_node(nats: &Nats) -> FarNode {
    FarNode::with(nats, &[(PRESENCE, Path::new("1"))])
}
