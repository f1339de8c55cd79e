//! Whole hubs with clients that behave, and some that do not: exact counts, exact order.

use std::io::{Read, Write};
use std::time::Duration;

use crate::hub;
use crate::hub::{Chunks, Got, Hub, WebSocket, key_of};
use oroshi_push::{GroupRule, Plan, SlowPolicy};
use oroshi_websocket::Kind;
use serde_json::json;

fn threads(count: usize) -> impl FnOnce(&mut Plan) {
    move |plan| plan.threads = count
}

/// A session over a stream of chunks.
fn chunks(hub: &Hub, headers: &[(&str, &str)]) -> Chunks {
    Chunks::open(hub::connect(hub.address), "/connect", headers)
}

#[test]
fn everybody_gets_everything_once_and_in_order() {
    let hub = Hub::start(threads(2));
    let mut sessions: Vec<WebSocket> = (0..100).map(|_| hub.session().0).collect();
    for number in 0..200 {
        let receipt = hub.publish(json!({ "all": true, "text": format!("message {number}") }));
        assert_eq!((&receipt["matched"], &receipt["written"]), (&json!(100), &json!(100)), "{receipt}");
    }
    for session in &mut sessions {
        for number in 0..200 {
            assert_eq!(session.text(), format!("message {number}"));
        }
    }
    let status = hub.status();
    assert_eq!((&status["deliveries"]["written"], &status["deliveries"]["dropped"]), (&json!(20_000), &json!(0)));
}

#[test]
fn each_transport_carries_the_same_messages() {
    let hub = Hub::start(threads(2));
    let (mut socket, key) = hub.session();
    let mut lines = chunks(&hub, &[]);
    let line_key = key_of(&lines.next().unwrap());
    let mut events = chunks(&hub, &[("Accept", "text/event-stream")]);
    let first = events.next().unwrap();
    assert!(first.starts_with("event: session\ndata: "), "{first}");
    let polling = hub.request("GET", "/connect?transport=poll", &[], b"").json();
    hub.until("four sessions", |status| status["sessions"]["current"] == 4);

    let receipt = hub.publish(json!({ "all": true, "text": "grüße" }));
    assert_eq!(
        (&receipt["matched"], &receipt["written"], &receipt["queued"]),
        (&json!(4), &json!(3), &json!(1)),
        "{receipt}"
    );
    let receipt = hub.publish(json!({ "sessions": [key, line_key], "base64": "/w==" }));
    assert_eq!(receipt["written"], 2, "{receipt}");

    assert_eq!((socket.next(), socket.next()), (Got::Text("grüße".into()), Got::Binary(vec![0xff])));
    assert_eq!((lines.next().unwrap(), lines.next().unwrap()), ("grüße\n".into(), "/w==\n".into()));
    assert_eq!(events.next().unwrap(), "data: grüße\n\n");
    let poll = |after: u64| {
        let (session, token) = (polling["session"].as_str().unwrap(), polling["token"].as_str().unwrap());
        hub.request("GET", &format!("/poll?session={session}&token={token}&after={after}"), &[], b"").json()
    };
    assert_eq!(poll(0), json!({ "messages": [{ "text": "grüße" }], "next": 1 }));
    assert_eq!(poll(0), json!({ "messages": [{ "text": "grüße" }], "next": 1 }), "the answer may have been lost");
    hub.publish(json!({ "all": true, "text": "2" }));
    assert_eq!(poll(1), json!({ "messages": [{ "text": "2" }], "next": 2 }));
    let wrong = format!("/poll?session={}&token=no&after=2", polling["session"].as_str().unwrap());
    assert_eq!(hub.request("GET", &wrong, &[], b"").status, 404);
}

#[test]
fn a_poll_waits_for_a_message() {
    let hub = Hub::start(threads(1));
    let polling = hub.request("GET", "/connect?transport=poll", &[], b"").json();
    let (session, token) = (polling["session"].as_str().unwrap().to_owned(), polling["token"].as_str().unwrap());
    let target = format!("/poll?session={session}&token={token}&after=0");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| hub.request("GET", &target, &[], b"").json());
        // Whether it waits already or comes later, it gets the message.
        hub.publish(json!({ "sessions": [session], "text": "now" }));
        assert_eq!(waiting.join().unwrap(), json!({ "messages": [{ "text": "now" }], "next": 1 }));
    });
}

#[test]
fn groups_and_exceptions() {
    let hub = Hub::start(|plan| {
        plan.threads = 2;
        plan.groups = vec![GroupRule {
            pattern: "room-*".into(),
            slow: SlowPolicy::Disconnect,
            client_may_join: true,
            ..GroupRule::default()
        }];
    });
    let mut both = hub.websocket("/connect?group=room-1&group=room-2");
    let key = key_of(&both.text());
    let mut one = hub.websocket("/connect?group=room-1");
    let one_key = key_of(&one.text());
    let refused = WebSocket::open(hub.address, "/connect?group=staff", &[]).map(|_| ()).unwrap_err();
    assert_eq!(refused.status, 403, "{}", refused.text());

    let receipt = hub.publish(json!({ "groups": ["room-1", "room-2"], "sessions": [key], "text": "once" }));
    assert_eq!(receipt["matched"], 2, "{receipt}");
    let receipt = hub.publish(json!({ "groups": ["room-1"], "except": [one_key], "text": "not for one" }));
    assert_eq!(receipt["matched"], 1, "{receipt}");
    assert_eq!(hub.request("PUT", &format!("/sessions/{one_key}/groups/staff"), &[], b"").status, 204);
    assert_eq!(hub.publish(json!({ "groups": ["staff"], "text": "staff" }))["written"], 1);
    assert_eq!(hub.request("GET", "/groups/room-1", &[], b"").json()["sessions"], 2);

    assert_eq!([both.text(), both.text()], ["once", "not for one"]);
    assert_eq!([one.text(), one.text()], ["once", "staff"]);
    drop(one);
    hub.until("one has gone", |status| status["sessions"]["current"] == 1);
    assert_eq!(hub.request("GET", "/groups/room-1", &[], b"").json()["sessions"], 1);
}

/// Publishes until the receipt says that some of it was not written: the reader has stopped and the kernel is full.
fn fill(hub: &Hub, to: &serde_json::Value) -> (u64, serde_json::Value) {
    let text = "x".repeat(64 * 1024);
    for number in 0..1000 {
        let mut envelope = to.clone();
        envelope["text"] = json!(format!("{number} {text}"));
        envelope["deadline"] = json!("10ms");
        let receipt = hub.publish(envelope);
        if receipt["written"] == 0 && receipt["queued"] == 0 {
            return (number, receipt);
        }
    }
    panic!("the kernel took everything");
}

#[test]
fn a_slow_session_of_a_strict_group_ends_and_others_go_on() {
    let hub = Hub::start(|plan| plan.limits.session_queue_bytes = 256 * 1024);
    let (_frozen, key) = hub.session();
    let (mut reader, reader_key) = hub.session();
    hub.request("PUT", &format!("/sessions/{key}/groups/g"), &[], b"");
    let (_, receipt) = fill(&hub, &json!({ "groups": ["g"] }));
    assert_eq!((&receipt["matched"], &receipt["closed"]), (&json!(1), &json!(1)), "{receipt}");
    let status = hub.until("the slow one has gone", |status| status["sessions"]["current"] == 1);
    assert_eq!(status["sessions"]["ended"]["slow"], 1);
    assert_eq!(status["queues"]["bytes"], 0);
    assert_eq!(hub.publish(json!({ "sessions": [reader_key], "text": "still here" }))["written"], 1);
    assert_eq!(reader.text(), "still here");
}

#[test]
fn a_slow_session_that_may_lose_messages_is_told_how_many() {
    let hub = Hub::start(|plan| {
        plan.limits.session_queue_bytes = 256 * 1024;
        plan.groups = vec![GroupRule {
            pattern: "lossy".into(),
            slow: SlowPolicy::DropOldest,
            client_may_join: true,
            ..GroupRule::default()
        }];
    });
    let mut slow = hub.websocket("/connect?group=lossy");
    slow.text();
    let text = "x".repeat(64 * 1024);
    let (mut matched, mut dropped) = (0, 0);
    // More than the kernel and the queue can hold.
    for number in 0..300 {
        let receipt = hub.publish(json!({ "groups": ["lossy"], "text": format!("{number} {text}"), "wait": "queued" }));
        matched += receipt["matched"].as_u64().unwrap();
        dropped += receipt["dropped"].as_u64().unwrap();
    }
    assert_eq!(matched, 300);
    // A receipt has the state of its moment; a message that is dropped later is in the totals alone.
    let _ = dropped;
    let (mut got, mut lost, mut last) = (0, 0, None);
    while last != Some(299) {
        let text = slow.text();
        if let Some(gap) = text.strip_prefix("{\"gap\":") {
            lost += gap.trim_end_matches('}').parse::<u64>().unwrap();
            continue;
        }
        let number: u64 = text.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(number, got + lost, "what is missing was told before");
        (got, last) = (got + 1, Some(number));
    }
    assert!(lost > 0 && got + lost == 300, "{got} got, {lost} lost");
}

#[test]
fn a_full_queue_refuses_what_is_for_one_session_and_says_so() {
    let hub = Hub::start(|plan| plan.limits.session_queue_bytes = 256 * 1024);
    let (_frozen, key) = hub.session();
    let (_, receipt) = fill(&hub, &json!({ "sessions": [key] }));
    assert_eq!((&receipt["dropped"], &receipt["refused"]), (&json!(1), &json!([key])), "{receipt}");
    assert_eq!(hub.status()["sessions"]["current"], 1, "it may still read it all");
}

#[test]
fn waiting_for_written_waits_for_the_reader() {
    let hub = Hub::start(|_| {});
    let (mut socket, key) = hub.session();
    let (filled, receipt) = loop {
        let receipt = hub.publish(json!({ "sessions": [key], "text": "x".repeat(256 * 1024), "deadline": "10ms" }));
        if receipt["queued"] == 1 {
            break (1, receipt);
        }
    };
    assert_eq!((&receipt["matched"], filled), (&json!(1), 1));
    std::thread::scope(|scope| {
        let envelope = json!({ "sessions": [key], "text": "the last", "wait": "written", "deadline": "30s" });
        let publishing = scope.spawn(|| hub.publish(envelope));
        while socket.text() != "the last" {}
        assert_eq!(publishing.join().unwrap()["written"], 1);
    });
}

#[test]
fn an_operator_closes_a_session() {
    let hub = Hub::start(threads(2));
    let (mut first, key) = hub.session();
    assert_eq!(hub.request("GET", &format!("/sessions/{key}"), &[], b"").status, 200);
    let closed = hub.request("DELETE", &format!("/sessions/{key}?code=4321&reason=enough"), &[], b"");
    assert_eq!(closed.status, 204, "{}", closed.text());
    assert_eq!(first.next(), Got::Close(Some(4321), "enough".into()));
    first.close(4321);
    assert_eq!(first.next(), Got::End);
    hub.until("it has gone", |status| status["sessions"]["current"] == 0);
    assert_eq!(hub.request("GET", &format!("/sessions/{key}"), &[], b"").status, 404);
}

#[test]
fn the_hub_ends_in_good_form() {
    let hub = Hub::start(threads(2));
    let mut sockets: Vec<WebSocket> = (0..50).map(|_| hub.session().0).collect();
    let mut events = chunks(&hub, &[("Accept", "text/event-stream")]);
    events.next().unwrap();
    hub.publish(json!({ "all": true, "text": "the last" }));
    hub.shutdown.request();
    for socket in &mut sockets {
        assert_eq!(socket.text(), "the last");
        match socket.next() {
            Got::Close(Some(1012), why) => assert!(why.contains("connect again in "), "{why}"),
            other => panic!("{other:?}"),
        }
        socket.close(1012);
        assert_eq!(socket.next(), Got::End);
    }
    assert_eq!(events.next().unwrap(), "data: the last\n\n");
    assert!(events.next().unwrap().starts_with("retry: "));
    hub.stop();
}

#[test]
fn silent_sessions_are_pinged_and_frozen_ones_end() {
    let hub = Hub::start(|plan| {
        plan.limits.ping = Some(Duration::from_millis(80));
        // Long enough for this test to be kept waiting by others.
        plan.limits.pong = Duration::from_secs(3);
    });
    let (alive, _) = hub.session();
    let (mut frozen, _) = hub.session();
    frozen.answers_pings = false;
    alive.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(matches!(frozen.next(), Got::Ping(_)));
    let status = hub.until("the frozen one has gone", |status| {
        // Reads what has come, which answers pings.
        let mut buffer = [0; 64];
        if let Ok(count) = alive.stream.try_clone().unwrap().read(&mut buffer)
            && count > 0
        {
            let mut pong = Vec::new();
            oroshi_websocket::encode::pong(&mut pong, b"", Some([1, 2, 3, 4]));
            alive.stream.try_clone().unwrap().write_all(&pong).unwrap();
        }
        status["sessions"]["current"] == 1
    });
    assert_eq!(status["sessions"]["ended"]["silent"], 1);
    assert_eq!(frozen.next(), Got::End);
}

#[test]
fn what_breaks_the_protocol_is_told_so() {
    let hub = Hub::start(|plan| plan.limits.message_bytes = 1000);
    let (mut socket, _) = hub.session();
    socket.stream.write_all(&[0x81, 0x01, b'a']).unwrap();
    assert!(matches!(socket.next(), Got::Close(Some(1002), _)));
    assert_eq!(socket.next(), Got::End);
    let (mut socket, _) = hub.session();
    socket.send(Kind::Binary, &[0; 1001]);
    assert!(matches!(socket.next(), Got::Close(Some(1009), _)));
    let status = hub.until("both have gone", |status| status["sessions"]["ended"]["violation"] == 2);
    assert_eq!(status["sessions"]["current"], 0);
}

#[test]
fn too_much_for_all_together_is_refused_with_a_time_to_come_back() {
    let hub = Hub::start(|plan| {
        plan.limits.total_queue_bytes = 1024 * 1024;
        plan.limits.session_queue_bytes = 64 << 20;
    });
    let (_frozen, key) = hub.session();
    let envelope = json!({ "sessions": [key], "text": "x".repeat(512 * 1024), "deadline": "10ms" }).to_string();
    let answer = (0..200)
        .map(|_| hub.request("POST", "/publish", &[("Content-Type", "application/json")], envelope.as_bytes()))
        .find(|answer| answer.status != 200);
    match answer {
        Some(answer) => {
            assert_eq!((answer.status, answer.field("Retry-After")), (429, Some("1")), "{}", answer.text());
        }
        // The session itself is refused more before the total is passed: then nothing is over it either.
        None => assert!(hub.status()["queues"]["bytes"].as_u64().unwrap() <= 2 * 1024 * 1024),
    }
}

#[test]
fn sessions_come_and_go_and_leave_nothing_behind() {
    let hub = Hub::start(threads(2));
    for _ in 0..20 {
        let sockets: Vec<WebSocket> = (0..50).map(|_| hub.session().0).collect();
        hub.publish(json!({ "all": true, "text": "x" }));
        drop(sockets);
    }
    let status = hub.until("all have gone", |status| status["sessions"]["current"] == 0);
    assert_eq!(
        (&status["sessions"]["opened"]["websocket"], &status["sessions"]["ended"]["client"]),
        (&json!(1000), &json!(1000))
    );
    assert_eq!(status["queues"]["bytes"], 0);
}
