//! What goes wrong around a hub: keys that are used twice, storms, backends that die, clients that freeze.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::hub;
use crate::hub::{Asked, Backend, Got, Hub, PATIENCE, WebSocket};
use oroshi_push::Plan;
use oroshi_testkit::websocket::upgrade_fields;
use oroshi_websocket::Kind;
use serde_json::json;

/// A backend that gives each client the key it asks for: `/connect?key=KEY`.
fn by_key(asked: &Asked) -> (u16, String, String) {
    match asked.target.split_once("key=") {
        Some((_, key)) => (200, format!("X-Kuiperbelt-Session: {key}\r\n"), format!("hello {key}")),
        None => (200, String::new(), String::new()),
    }
}

fn with(backend: &Backend, threads: usize) -> impl FnOnce(&mut Plan) {
    let url = |path| backend.url(path);
    let (connect, receive, close) = (url("/connect"), url("/receive"), url("/close"));
    move |plan| {
        plan.threads = threads;
        plan.callbacks.connect = connect;
        plan.callbacks.receive = receive;
        plan.callbacks.close = close;
    }
}

#[test]
fn a_key_goes_to_whoever_came_last_and_stays_there() {
    let backend = Backend::start(by_key);
    let hub = Hub::start(with(&backend, 2));
    let mut before = hub.websocket("/connect?key=k");
    assert_eq!(before.text(), "hello k");
    for _ in 0..20 {
        let mut now = hub.websocket("/connect?key=k");
        assert_eq!(now.text(), "hello k");
        assert!(matches!(before.next(), Got::Close(Some(4000), _)));
        before.close(4000);
        assert_eq!(before.next(), Got::End);
        // The end of the earlier one does not take the key from the later one.
        hub.until("one is left", |status| status["sessions"]["current"] == 1);
        let receipt = hub.publish(json!({ "sessions": ["k"], "text": "for the last" }));
        assert_eq!((&receipt["matched"], &receipt["written"]), (&json!(1), &json!(1)));
        assert_eq!(now.text(), "for the last");
        before = now;
    }
    assert_eq!(hub.status()["sessions"]["ended"]["replaced"], 20);
}

#[test]
fn a_request_with_a_body_is_refused_before_it_takes_a_key() {
    let backend = Backend::start(by_key);
    let hub = Hub::start(with(&backend, 1));
    let mut socket = hub.websocket("/connect?key=k");
    assert_eq!(socket.text(), "hello k");
    assert!(backend.next().target.starts_with("/connect"));
    for (name, value, body) in [("Content-Length", "1", "x"), ("Transfer-Encoding", "chunked", "0\r\n\r\n")] {
        for transport in ["websocket", "sse", "stream", "poll"] {
            let target = format!("/connect?transport={transport}&key=k");
            let answer = hub.request("GET", &target, &[(name, value)], body.as_bytes());
            assert_eq!((answer.status, &answer.json()["error"]), (400, &json!("bad-request")), "{transport}: {name}");
        }
        let answer = WebSocket::open(hub.address, "/connect?key=k", &[(name, value)]).err().unwrap();
        assert_eq!((answer.status, &answer.json()["error"]), (400, &json!("bad-request")), "{name}");
    }
    // Nobody was asked in between, and the key is where it was.
    socket.send(Kind::Text, b"still here");
    assert_eq!(backend.next().target, "/receive");
    assert_eq!(hub.publish(json!({ "sessions": ["k"], "text": "so it is" }))["written"], 1);
    assert_eq!(socket.text(), "so it is");
    // A body of no length is none.
    let mut now = WebSocket::open(hub.address, "/connect?key=k", &[("Content-Length", "0")])
        .unwrap_or_else(|answer| panic!("{answer:?}"));
    assert_eq!(now.text(), "hello k");
}

#[test]
fn what_a_session_says_reaches_the_backend_in_order_and_before_its_end() {
    let backend = Backend::start(by_key);
    let hub = Hub::start(with(&backend, 1));
    let mut socket = hub.websocket("/connect?key=k");
    socket.text();
    assert!(backend.next().target.starts_with("/connect"));
    for number in 0..200 {
        socket.send(Kind::Text, format!("message {number}").as_bytes());
    }
    socket.close(1000);
    for number in 0..200 {
        let asked = backend.next();
        assert_eq!((asked.target.as_str(), asked.body), ("/receive", format!("message {number}").into_bytes()));
    }
    assert_eq!(backend.next().target, "/close");
}

#[test]
fn a_storm_is_let_in_at_the_rate_that_was_set() {
    let hub = Hub::start(|plan| plan.limits.connects_per_second = Some(50));
    let (start, mut turned_away) = (Instant::now(), 0);
    let mut sockets = Vec::new();
    while sockets.len() < 80 {
        match WebSocket::open(hub.address, "/connect", &[]) {
            Ok(socket) => sockets.push(socket),
            Err(answer) => {
                assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{}", answer.text());
                turned_away += 1;
            }
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(turned_away > 0);
    // A second's worth at once, and the other thirty at fifty per second: never faster.
    assert!(start.elapsed() >= Duration::from_millis(590), "{:?}", start.elapsed());
}

#[test]
fn everybody_comes_back_after_everybody_left() {
    let hub = Hub::start(|plan| plan.threads = 2);
    for _ in 0..5 {
        let connected = Arc::new(AtomicUsize::new(0));
        let sockets: Vec<_> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|_| {
                    let (hub, connected) = (&hub, Arc::clone(&connected));
                    scope.spawn(move || {
                        let sockets: Vec<WebSocket> = (0..50).map(|_| hub.session().0).collect();
                        connected.fetch_add(sockets.len(), Ordering::Relaxed);
                        sockets
                    })
                })
                .collect();
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(connected.load(Ordering::Relaxed), 400);
        hub.until("all are there", |status| status["sessions"]["current"] == 400);
        assert_eq!(hub.publish(json!({ "all": true, "text": "x" }))["written"], 400);
        drop(sockets);
        hub.until("all have gone", |status| status["sessions"]["current"] == 0);
    }
}

#[test]
fn without_its_backend_nobody_gets_in_and_who_is_in_stays() {
    let backend = Backend::start(by_key);
    let url = backend.url("/connect");
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = Hub::start(|plan| {
        plan.callbacks.connect = url;
        // Nobody listens there: every message to it is given up, and counted.
        plan.callbacks.receive = Some(format!("http://{dead}/receive"));
        plan.callbacks.retries = 1;
    });
    let mut socket = hub.websocket("/connect?key=k");
    socket.text();
    socket.send(Kind::Text, b"into the void");
    hub.until("the message is given up", |status| status["dead_letters"] == 1);
    assert_eq!(hub.publish(json!({ "sessions": ["k"], "text": "still here" }))["written"], 1);
    assert_eq!(socket.text(), "still here");

    let alone = Hub::start(|plan| plan.callbacks.connect = Some(format!("http://{dead}/connect")));
    let refused = WebSocket::open(alone.address, "/connect?key=k", &[]).map(|_| ()).unwrap_err();
    assert_eq!(refused.status, 502, "{}", refused.text());
    assert_eq!(alone.status()["sessions"]["connect_errors"], 1);
}

#[test]
fn a_client_that_leaves_while_the_backend_thinks_leaves_nothing_behind() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let backend = Backend::start(move |asked| {
        let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
        by_key(asked)
    });
    let url = backend.url("/connect");
    let hub = Hub::start(|plan| plan.callbacks.connect = url);
    let mut stream = hub::connect(hub.address);
    std::io::Write::write_all(&mut stream, &hub::head("GET", "/connect?key=k", &upgrade_fields(), None, false))
        .unwrap();
    hub.until("it is asked about", |status| status["sessions"]["connecting"] == 1);
    // Gone with a reset, as a crashed client's kernel does it.
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    go.send(()).unwrap();
    let status = hub.until("nobody is asked about", |status| status["sessions"]["connecting"] == 0);
    hub.until("nobody is there", |status| status["sessions"]["current"] == 0);
    assert_eq!(status["sessions"]["closing"], 0);
}

#[test]
fn a_full_queue_is_waited_for() {
    let hub = Hub::start(|plan| plan.limits.session_queue_bytes = 256 * 1024);
    let (mut socket, key) = hub.session();
    let text = "x".repeat(64 * 1024);
    let mut sent = 0;
    loop {
        let receipt = hub.publish(json!({ "sessions": [key], "text": format!("{sent} {text}"), "deadline": "10ms" }));
        if receipt["dropped"] == 1 {
            break;
        }
        sent += 1;
    }
    std::thread::scope(|scope| {
        let envelope = json!({ "sessions": [key], "text": "there is room now", "deadline": "30s" });
        let publishing = scope.spawn(|| hub.publish(envelope));
        for number in 0..sent {
            assert!(socket.text().starts_with(&format!("{number} ")));
        }
        assert_eq!(socket.text(), "there is room now");
        assert_eq!(publishing.join().unwrap()["matched"], 1);
    });
}

/// Text of so many bytes that no two messages have in common.
fn text(number: usize, length: usize) -> String {
    format!("{number} {}", "x".repeat(length))
}

#[test]
fn a_reader_that_takes_a_large_message_slowly_is_not_too_slow() {
    let hub = Hub::start(|plan| plan.limits.write = Duration::from_millis(400));
    let (mut socket, key) = hub.session();
    let message = text(0, 900_000);
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| hub.publish(json!({ "sessions": [key], "text": message, "wait": "written" })));
        // What the kernels hold is gone at once; the rest comes in steps, each of which counts as taking something.
        let (mut got, mut buffer, start) = (0, vec![0; 16 * 1024], Instant::now());
        while got < message.len() {
            let count = std::io::Read::read(&mut socket.stream, &mut buffer).unwrap();
            assert!(count > 0, "cut off after {got} bytes and {:?}", start.elapsed());
            got += count;
            if got < 600_000 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert_eq!(publishing.join().unwrap()["written"], 1);
    });
}

#[test]
fn publishing_goes_on_once_what_waited_was_taken() {
    let hub = Hub::start(|plan| {
        plan.limits.total_queue_bytes = 100_000;
        plan.limits.session_queue_bytes = 1_000_000;
    });
    let polling = hub.request("GET", "/connect?transport=poll", &[], b"").json();
    let (session, token) = (polling["session"].as_str().unwrap(), polling["token"].as_str().unwrap());
    let publish = || {
        hub.publish(json!({ "sessions": [session], "text": text(0, 80_000), "deadline": "1ms" }))["refused"]
            == json!([])
    };
    assert!(publish() && !publish());
    let poll =
        |after: u64| hub.request("GET", &format!("/poll?session={session}&token={token}&after={after}"), &[], b"");
    assert_eq!(poll(0).json()["next"], 1);
    std::thread::scope(|scope| {
        // The next question says that it arrived, and nothing else has happened on this core.
        let waiting = scope.spawn(|| poll(1).json());
        let start = Instant::now();
        while !publish() {
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(waiting.join().unwrap()["next"], 2);
    });
}

/// Opens a session that polls, for as long as it may stay away, and gives its key.
fn polls(hub: &Hub) -> String {
    hub.request("GET", "/connect?transport=poll", &[], b"").json()["session"].as_str().unwrap().to_owned()
}

/// Bytes of a message as a session that polls has it: `{"text":"..."}`.
const FRAME: usize = 1000;

/// Publishes a message of [`FRAME`] bytes to these sessions, and gives the receipt.
fn publish_frame(hub: &Hub, sessions: &[&str]) -> serde_json::Value {
    hub.publish(json!({ "sessions": sessions, "text": "x".repeat(FRAME - 11), "deadline": "1ms" }))
}

#[test]
fn what_may_wait_in_total_may_wait_on_one_core() {
    for threads in [1, 4] {
        let hub = Hub::start(|plan| {
            plan.threads = threads;
            plan.limits.total_queue_bytes = 100 * FRAME;
        });
        let [one, other, fresh] = [(); 3].map(|()| polls(&hub));
        for (key, count) in [(&one, 60), (&other, 40)] {
            for number in 0..count {
                assert_eq!(publish_frame(&hub, &[key])["queued"], 1, "{threads} threads, message {number}");
            }
        }
        assert_eq!(hub.status()["queues"]["bytes"], 100 * FRAME);
        assert_eq!(publish_frame(&hub, &[&one])["refused"], json!([one]), "{threads} threads");
        // There is room for whoever has less than its share, and with that it is too much: who has most ends for it.
        assert_eq!(publish_frame(&hub, &[&other])["queued"], 1, "{threads} threads");
        assert_eq!(publish_frame(&hub, &[&fresh])["queued"], 1, "{threads} threads");
        let status = hub.until("the largest ends", |status| status["sessions"]["ended"]["slow"] == 1);
        assert_eq!(status["sessions"]["current"], 2, "{status}");
        assert_eq!(hub.status()["queues"]["bytes"], 42 * FRAME);
    }
}

#[test]
fn a_publish_to_many_stops_where_the_total_is_full() {
    let hub = Hub::start(|plan| plan.limits.total_queue_bytes = 6 * FRAME);
    let keys = [(); 4].map(|()| polls(&hub));
    let keys = keys.each_ref().map(String::as_str);
    let first = publish_frame(&hub, &keys);
    assert_eq!((&first["queued"], &first["dropped"]), (&json!(4), &json!(0)), "{first}");
    let second = publish_frame(&hub, &keys);
    assert_eq!((&second["queued"], &second["dropped"]), (&json!(2), &json!(2)), "{second}");
}

#[test]
fn many_publishers_to_a_short_queue_all_get_through() {
    let hub = Hub::start(|plan| {
        plan.limits.session_queue_messages = 1;
        plan.send.timeout = PATIENCE;
    });
    let (mut socket, key) = hub.session();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..50 {
                    let key = ("X-Kuiperbelt-Session", key.as_str());
                    let answer = hub.request("POST", "/send", &[key], text(number, 10).as_bytes());
                    assert_eq!((answer.status, answer.text()), (200, "{\"result\":\"OK\"}"));
                }
            });
        }
        for _ in 0..400 {
            socket.text();
        }
    });
}

#[test]
fn what_waits_for_a_session_that_polls_comes_before_its_end() {
    let hub = Hub::start(|_| {});
    let polling = hub.request("GET", "/connect?transport=poll", &[], b"").json();
    let (session, token) = (polling["session"].as_str().unwrap(), polling["token"].as_str().unwrap());
    hub.publish(json!({ "sessions": [session], "text": "before" }));
    let key = ("X-Kuiperbelt-Session", session);
    assert_eq!(hub.request("POST", "/close", &[key], b"the last").status, 200);
    let poll =
        |after: u64| hub.request("GET", &format!("/poll?session={session}&token={token}&after={after}"), &[], b"");
    assert_eq!(poll(0).json(), json!({ "messages": [{ "text": "before" }, { "text": "the last" }], "next": 1 }));
    assert_eq!(poll(1).status, 410);
    hub.until("it has gone", |status| status["sessions"]["current"] == 0);
}

#[test]
fn the_last_words_come_though_the_queue_is_full() {
    let hub = Hub::start(|plan| plan.limits.session_queue_bytes = 256 * 1024);
    let (mut socket, key) = hub.session();
    let mut sent = 0;
    loop {
        let receipt = hub.publish(json!({ "sessions": [key], "text": text(sent, 64 * 1024), "deadline": "10ms" }));
        if receipt["dropped"] == 1 {
            break;
        }
        sent += 1;
    }
    assert_eq!(hub.request("POST", "/close", &[("X-Kuiperbelt-Session", &key)], b"the last").status, 200);
    for number in 0..sent {
        assert!(socket.text().starts_with(&format!("{number} ")));
    }
    assert_eq!(socket.text(), "the last");
    assert!(matches!(socket.next(), Got::Close(Some(_), _)));
}

#[test]
fn the_backend_is_not_told_of_the_end_of_a_key_that_lives_on() {
    let backend = Backend::start(by_key);
    let hub = Hub::start(with(&backend, 1));
    let mut frozen = hub.websocket("/connect?key=k");
    frozen.text();
    // It reads no more, so its close frame cannot be written.
    loop {
        let receipt = hub.publish(json!({ "sessions": ["k"], "text": text(0, 64 * 1024), "deadline": "10ms" }));
        if receipt["queued"] == 1 {
            break;
        }
    }
    let mut now = hub.websocket("/connect?key=k");
    now.text();
    drop(frozen);
    let status = hub.until("one is left", |status| status["sessions"]["current"] == 1);
    assert_eq!((&status["sessions"]["ended"]["replaced"], &status["sessions"]["closing"]), (&json!(1), &json!(0)));
    now.close(1000);
    assert!([backend.next().target, backend.next().target].iter().all(|target| target.starts_with("/connect")));
    assert_eq!(backend.next().target, "/close");
    hub.until("nobody is left", |status| status["sessions"]["current"] == 0 && status["sessions"]["closing"] == 0);
    assert_eq!(hub.status()["callbacks"]["close"]["accepted"], 1);
}

#[test]
fn a_message_goes_to_two_hundred_sessions_by_name() {
    let hub = Hub::start(|plan| plan.threads = 2);
    let mut sessions: Vec<_> = (0..200).map(|_| hub.session()).collect();
    let headers: Vec<_> = sessions.iter().map(|(_, key)| ("X-Kuiperbelt-Session", key.as_str())).collect();
    let answer = hub.request("POST", "/send", &headers, b"for all of these");
    assert_eq!((answer.status, answer.text()), (200, "{\"result\":\"OK\"}"));
    sessions.iter_mut().for_each(|(socket, _)| assert_eq!(socket.text(), "for all of these"));
}
