//! What goes wrong around a hub: keys that are used twice, storms, backends that die, clients that freeze.

mod hub;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hub::{Asked, Backend, Got, Hub, PATIENCE, WebSocket};
use oroshi_push::Plan;
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
                assert_eq!((answer.status, answer.header("Retry-After")), (503, Some("1")), "{}", answer.text());
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
    let upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    std::io::Write::write_all(&mut stream, &hub::head("GET", "/connect?key=k", &upgrade, None, false)).unwrap();
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
