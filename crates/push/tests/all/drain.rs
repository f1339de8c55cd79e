//! The end of a hub, with clients that read and clients that do not: what each gets, and what publishers are told.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::hub::{End, Heard, Hub, PATIENCE, Subscriber, TRANSPORTS, Transport};
use serde_json::{Value, json};

/// A hub for which nothing but the end of its drain cuts anybody off.
fn hub(threads: usize, drain: Duration) -> Hub {
    let never = Duration::from_secs(3600);
    Hub::start(|plan| {
        plan.threads = threads;
        plan.drain.timeout = drain;
        plan.drain.polls = drain;
        plan.limits.write = never;
        plan.limits.close = never;
        plan.limits.poll_wait = never;
        plan.limits.ping = None;
    })
}

/// Publishes to a session that does not read, until something waits for it.
fn block(hub: &Hub, session: &Subscriber) {
    let text = "x".repeat(16 * 1024);
    while hub.publish(json!({ "sessions": [session.key], "text": text, "deadline": "1ms" }))["queued"] == 0 {}
}

/// Waits until nobody can connect any more.
fn until_closed(hub: &Hub) {
    let start = Instant::now();
    while TcpStream::connect(hub.address).is_ok() {
        assert!(start.elapsed() < PATIENCE, "it still listens");
    }
}

/// Waits until messages were meant for so many sessions, all in all.
fn until_published(hub: &Hub, matched: &Value) {
    hub.until("it is published", |status| status["deliveries"]["matched"] == *matched);
}

#[test]
fn those_who_never_read_keep_neither_the_others_nor_the_publisher_nor_the_end() {
    const EACH: usize = 4;
    let hub = hub(2, Duration::from_secs(8));
    let of_each = || TRANSPORTS.into_iter().flat_map(|transport| [transport; EACH]);
    let blocked: Vec<Subscriber> = of_each().map(|transport| Subscriber::open(&hub, transport, "")).collect();
    let mut readers: Vec<Subscriber> = of_each().map(|transport| Subscriber::open(&hub, transport, "")).collect();
    blocked.iter().for_each(|session| block(&hub, session));
    let before = hub.status()["deliveries"]["matched"].as_u64().unwrap();
    let all: Vec<String> = blocked.iter().chain(&readers).map(|session| session.key.clone()).collect();
    let count = all.len() as u64;

    std::thread::scope(|scope| {
        let envelope = json!({ "sessions": all, "text": "the last", "wait": "written", "deadline": "300s" });
        let publishing = scope.spawn(|| hub.publish(envelope));
        until_published(&hub, &json!(before + count));
        // Who polls is about to ask when the hub begins to end.
        for reader in readers.iter_mut().filter(|reader| reader.transport == Transport::Poll) {
            let request = reader.poller().request();
            reader.poller().send(&request[..request.len() - 1]);
        }
        hub.shutdown.request();
        until_closed(&hub);
        for reader in readers.iter_mut().filter(|reader| reader.transport == Transport::Poll) {
            reader.poller().send(b"\n");
            reader.poller().receive();
        }
        for reader in &mut readers {
            assert_eq!(reader.text(), "the last", "{:?}", reader.transport);
            let (transport, end) = (reader.transport, reader.next());
            match (transport, end) {
                (Transport::WebSocket | Transport::Events, Heard::End(End::Clean { retry_ms: Some(_) })) => {}
                (Transport::Lines, Heard::End(End::Clean { retry_ms: None })) => {}
                // Nobody is there to ask any more.
                (Transport::Poll, Heard::End(End::Cut)) => {}
                other => panic!("{other:?}"),
            }
        }
        let receipt = publishing.join().unwrap();
        // What a poll is answered at the end nobody can acknowledge.
        let written = 3 * EACH as u64;
        let expected =
            json!({ "matched": count, "written": written, "queued": 0, "dropped": 0, "closed": count - written });
        for (name, number) in expected.as_object().unwrap() {
            assert_eq!(receipt[name], *number, "{name}: {receipt}");
        }
    });
    hub.stop();
    // Until then they were there.
    drop(blocked);
}

#[test]
fn a_poll_while_the_hub_ends_acknowledges_and_takes_what_waits() {
    for threads in [1, 4] {
        let hub = hub(threads, 4 * PATIENCE);
        let mut poller = Subscriber::open(&hub, Transport::Poll, "");
        let key = poller.key.clone();
        let publish =
            |text: &str| hub.publish(json!({ "sessions": [key], "text": text, "wait": "written", "deadline": "300s" }));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| publish("one"));
            assert_eq!(poller.text(), "one");
            let second = scope.spawn(|| publish("two"));
            until_published(&hub, &json!(2));
            let request = poller.poller().request();
            poller.poller().send(&request[..request.len() - 1]);
            hub.shutdown.request();
            until_closed(&hub);
            poller.poller().send(b"\n");
            poller.poller().receive();
            assert_eq!((poller.next(), poller.next()), (Heard::Text("two".into()), Heard::End(End::Cut)));
            let (first, second) = (first.join().unwrap(), second.join().unwrap());
            assert_eq!((&first["written"], &first["closed"]), (&json!(1), &json!(0)), "{first}");
            assert_eq!((&second["written"], &second["closed"]), (&json!(0), &json!(1)), "{second}");
        });
        hub.stop();
    }
}

/// The hub answers a poll that only acknowledges at once, while another session is still there.
#[test]
fn a_poll_that_leaves_nothing_is_told_of_the_end_at_once() {
    for threads in [1, 4] {
        let hub = hub(threads, 4 * PATIENCE);
        let [mut acknowledges, mut takes] = [(); 2].map(|()| Subscriber::open(&hub, Transport::Poll, ""));
        hub.publish(json!({ "sessions": [acknowledges.key, takes.key], "text": "one" }));
        assert_eq!(acknowledges.text(), "one");
        for session in [&mut acknowledges, &mut takes] {
            let request = session.poller().request();
            session.poller().send(&request[..request.len() - 1]);
        }
        hub.shutdown.request();
        until_closed(&hub);
        let finish = |session: &mut Subscriber| {
            session.poller().send(b"\n");
            session.poller().receive();
            session.next()
        };
        assert_eq!(finish(&mut acknowledges), Heard::End(End::Clean { retry_ms: None }), "{threads} threads");
        assert_eq!(finish(&mut takes), Heard::Text("one".into()), "{threads} threads");
        hub.stop();
    }
}

#[test]
fn a_poll_that_waits_is_told_of_the_end() {
    let hub = hub(2, 4 * PATIENCE);
    let mut poller = Subscriber::open(&hub, Transport::Poll, "");
    let request = poller.poller().request();
    poller.poller().send(&request);
    hub.shutdown.request();
    poller.poller().receive();
    assert_eq!(poller.next(), Heard::End(End::Clean { retry_ms: None }));
    hub.stop();
}

#[test]
fn a_publish_that_waits_for_room_hears_that_there_will_be_none() {
    let hub = Hub::start(|plan| {
        plan.threads = 2;
        plan.drain.timeout = Duration::from_secs(2);
        plan.limits.session_queue_messages = 1;
    });
    let blocked: Vec<Subscriber> =
        TRANSPORTS.into_iter().map(|transport| Subscriber::open(&hub, transport, "")).collect();
    blocked.iter().for_each(|session| block(&hub, session));
    let before = hub.status()["deliveries"]["matched"].as_u64().unwrap();
    std::thread::scope(|scope| {
        let publishing: Vec<_> = blocked
            .iter()
            .map(|session| json!({ "sessions": [session.key], "text": "one too many", "deadline": "300s" }))
            .map(|envelope| scope.spawn(|| hub.publish(envelope)))
            .collect();
        until_published(&hub, &json!(before + blocked.len() as u64));
        hub.shutdown.request();
        for receipt in publishing.into_iter().map(|publishing| publishing.join().unwrap()) {
            assert_eq!((&receipt["matched"], &receipt["closed"]), (&json!(1), &json!(1)), "{receipt}");
            assert_eq!(receipt["refused"], json!([]), "{receipt}");
        }
    });
    hub.stop();
}

/// Sessions may reconnect at once. If the hub ended all together, all would reach the next hub together.
#[test]
fn sessions_end_one_after_the_other_over_the_first_half_of_the_time() {
    const SESSIONS: u32 = 60;
    let hub = hub(1, Duration::from_secs(3));
    let transports = [Transport::WebSocket, Transport::Lines, Transport::Events].into_iter().cycle();
    let sessions: Vec<Subscriber> =
        transports.take(SESSIONS as usize).map(|transport| Subscriber::open(&hub, transport, "")).collect();
    let began = Instant::now();
    hub.shutdown.request();
    for (place, mut session) in (0..SESSIONS).zip(sessions) {
        assert!(matches!(session.next(), Heard::End(End::Clean { .. })));
        // A busy machine has them later, and none earlier.
        let (passed, due) = (began.elapsed(), Duration::from_millis(1500) / SESSIONS * place);
        assert!(passed >= due, "session {place} of {SESSIONS} ended after {passed:?}, not {due:?}");
    }
    hub.stop();
}
