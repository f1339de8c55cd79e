//! What clients may send per second: each connection, each user, each address.

use std::net::SocketAddr;
use std::time::Instant;

use oroshi_push::{Access, ClientRates, GroupRule, Jwt, Plan};
use oroshi_websocket::Kind;
use oroshi_words::Secret;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use super::tokens::{SECRET, token};
use crate::hub::{Got, Hub, PATIENCE, WebSocket};

fn rules(plan: &mut Plan) {
    plan.limits.client_publishes = None;
    plan.groups = vec![GroupRule {
        pattern: "*".into(),
        subscribe: Access::Anyone,
        publish: Access::Anyone,
        ..GroupRule::default()
    }];
}

fn open(hub: &Hub, fields: &[(&str, &str)]) -> WebSocket {
    let mut socket = WebSocket::open(hub.address, "/connect?protocol=oroshi.v1", fields).unwrap();
    socket.text();
    socket
}

/// Sends commands at once, and returns how many the hub has carried out. The rest was too fast.
fn carried_out(socket: &mut WebSocket, commands: &[Value]) -> usize {
    for command in commands {
        socket.send(Kind::Text, command.to_string().as_bytes());
    }
    let mut answers = commands.iter().map(|_| serde_json::from_str::<Value>(&socket.text()).unwrap());
    let mut count = 0;
    answers.by_ref().for_each(|answer| match answer.get("error") {
        None => count += 1,
        Some(error) => assert_eq!(error, "too-fast", "{answer}"),
    });
    count
}

fn pings(count: usize) -> Vec<Value> {
    vec![json!({ "id": 1, "ping": {} }); count]
}

fn limited(hub: &Hub, limit: &str) -> usize {
    let text = hub.request("GET", "/metrics", &[], b"").text().to_owned();
    let line = format!("oroshi_push_client_limited_total{{limit=\"{limit}\"}} ");
    text.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
}

/// Checks that a count is a burst, and what the rate has added in the time since.
#[track_caller]
fn is_burst(count: usize, burst: usize, since: Instant) {
    let added = since.elapsed().as_secs() as usize + 1;
    assert!((burst..=burst + burst * added).contains(&count), "{count} of {burst} after {:?}", since.elapsed());
}

#[test]
fn a_connection_sends_so_much_per_second() {
    let (messages, bytes, subscribes) = (Some(5), Some(1000), Some(3));
    let start = |client: ClientRates| {
        Hub::start(move |plan| {
            rules(plan);
            plan.limits.message_bytes = 500;
            plan.limits.client = client;
        })
    };
    let hub = start(ClientRates { messages, ..ClientRates::default() });
    let begun = Instant::now();
    for _ in 0..2 {
        is_burst(carried_out(&mut open(&hub, &[]), &pings(100)), 5, begun);
    }
    assert!(limited(&hub, "client-messages") >= 100);
    assert_eq!(hub.status()["received"]["limited"], limited(&hub, "client-messages"));
    // The request beside other transports counts in the same way.
    let poll = hub.request("GET", "/connect?transport=poll&protocol=oroshi.v1", &[], b"").json();
    let (key, secret) = (poll["session"].as_str().unwrap(), poll["token"].as_str().unwrap());
    let target = format!("/command?session={key}&token={secret}");
    let begun = Instant::now();
    let answers = hub.request("POST", &target, &[], json!(pings(20)).to_string().as_bytes()).json();
    let done = answers.as_array().unwrap().iter().filter(|answer| answer.get("pong").is_some()).count();
    is_burst(done, 5, begun);
    // A client without the protocol has no answers that could say so.
    let mut plain = WebSocket::open(hub.address, "/connect", &[]).unwrap();
    plain.text();
    (0..100).for_each(|_| plain.send(Kind::Text, b"x"));
    let Got::Close(code, reason) = plain.next() else { panic!("it is too fast") };
    assert!(code == Some(1008) && reason.contains("limits.client-messages"), "{code:?} {reason}");

    let hub = start(ClientRates { bytes, ..ClientRates::default() });
    let begun = Instant::now();
    let text = "x".repeat(150);
    let publish = json!({ "id": 1, "publish": { "channel": "a", "text": text } });
    is_burst(carried_out(&mut open(&hub, &[]), &vec![publish.clone(); 50]), 1000 / publish.to_string().len(), begun);

    let hub = start(ClientRates { subscribes, ..ClientRates::default() });
    let begun = Instant::now();
    let mut socket = open(&hub, &[]);
    let subscribe = |number: usize| json!({ "id": 1, "subscribe": { "channel": format!("c{number}") } });
    is_burst(carried_out(&mut socket, &(0..40).map(subscribe).collect::<Vec<_>>()), 3, begun);
    assert_eq!(carried_out(&mut socket, &pings(40)), 40);
}

#[test]
fn a_user_sends_so_much_per_second_on_all_connections() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.threads = 2;
        plan.jwt = Some(Jwt { secret: Some(Secret::new(SECRET)), ..Jwt::default() });
        plan.limits.user.messages = Some(20);
    });
    let all = |user: &str| {
        let field = format!("Bearer {}", token(user, &json!({})));
        let begun = Instant::now();
        let sent = (0..6).map(|_| carried_out(&mut open(&hub, &[("Authorization", &field)]), &pings(50)));
        is_burst(sent.sum(), 20, begun);
    };
    all("ann");
    all("bob");
    assert!(limited(&hub, "user-messages") > 0);
}

#[test]
fn an_address_sends_so_much_per_second_on_all_connections() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.threads = 2;
        plan.limits.address.messages = Some(20);
    });
    let from = |address: &str| {
        let begun = Instant::now();
        let sent = (0..6).map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let source: SocketAddr = format!("{address}:0").parse().unwrap();
            socket.bind(&source.into()).unwrap();
            socket.connect(&hub.address.into()).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut socket = WebSocket::open_on(socket.into(), "/connect?protocol=oroshi.v1", &[]).unwrap();
            socket.text();
            carried_out(&mut socket, &pings(50))
        });
        is_burst(sent.sum(), 20, begun);
    };
    from("127.0.0.1");
    from("127.0.0.2");
    assert!(limited(&hub, "address-messages") > 0);
}
