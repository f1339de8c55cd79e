//! What the backend is asked and told, with backends that fail, hang, restart and answer nonsense.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::hub;
use crate::hub::{Got, Hub, PATIENCE, WebSocket};
use oroshi_net::{BoundListener, ListenOptions, Shutdown, Threads, ThreadsOptions};
use oroshi_push::Plan;
use oroshi_server::{Error, Exchange, Server, Settings};
use oroshi_websocket::{Kind, encode};
use serde_json::json;

/// A request that the backend got.
#[derive(Clone, Debug)]
struct Called {
    path: String,
    session: String,
    message: Option<String>,
    body: Vec<u8>,
}

/// What a backend does with a request.
enum Does {
    /// Answers with this status, these fields and this body.
    Says(u16, Vec<(&'static str, Vec<u8>)>, Vec<u8>),
    /// Keeps the request without an answer.
    Hangs,
}

fn says(status: u16) -> Does {
    Does::Says(status, Vec::new(), Vec::new())
}

/// Agrees to a session whose key is the query.
fn agrees(target: &str) -> Does {
    let key = target.split_once('?').map_or("k", |(_, query)| query);
    Does::Says(200, vec![("X-Kuiperbelt-Session", key.into())], Vec::new())
}

/// A backend on a unix socket.
struct Backend {
    called: Receiver<Called>,
    /// How many connections it has accepted.
    accepted: Arc<Mutex<u64>>,
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    /// `does` is told the request, and how many there were of its path before.
    fn start(socket: &Path, does: impl Fn(&Called, &str, usize) -> Does + Send + 'static) -> Backend {
        let bound = BoundListener::bind(&format!("unix:{}", socket.display()), &ListenOptions::default()).unwrap();
        let (tell, called) = mpsc::channel();
        let (shutdown, accepted) = (Shutdown::new(), Arc::new(Mutex::new(0)));
        let (theirs, counted) = (shutdown.clone(), Arc::clone(&accepted));
        let start = Mutex::new(Some((bound, tell, does)));
        let thread = std::thread::spawn(move || {
            let serve = move |_| {
                let (bound, tell, does) = start.lock().unwrap().take().unwrap();
                let (shutdown, counted) = (theirs.clone(), Arc::clone(&counted));
                let seen = Mutex::new(Vec::<String>::new());
                async move {
                    let answer = async move |exchange: &mut Exchange<'_>| {
                        let head = exchange.head;
                        let field =
                            |name| head.headers.get(name).map(|value| String::from_utf8(value.to_vec()).unwrap());
                        let mut called = Called {
                            path: head.target.split('?').next().unwrap().to_owned(),
                            session: field("X-Kuiperbelt-Session").unwrap_or_default(),
                            message: field("X-Oroshi-Message"),
                            body: Vec::new(),
                        };
                        while let Some(piece) = exchange.body.chunk().await? {
                            called.body.extend_from_slice(piece);
                        }
                        let before = {
                            let mut seen = seen.lock().unwrap();
                            seen.push(called.path.clone());
                            seen.iter().filter(|path| **path == called.path).count() - 1
                        };
                        let does = does(&called, head.target, before);
                        let _ = tell.send(called);
                        match does {
                            Does::Says(status, fields, body) => {
                                let fields = fields.iter().map(|(name, value)| (*name, value.as_slice()));
                                exchange.reply.send(status, fields, &body).await
                            }
                            Does::Hangs => {
                                exchange.body.peer_closed().await;
                                Err(Error::Cut)
                            }
                        }
                    };
                    let settings = Settings { drain_timeout: Duration::ZERO, ..Settings::default() };
                    let server = Server::new(answer, settings);
                    server.serve([bound.into_listener().unwrap().into()], shutdown.reached(1)).await;
                    *counted.lock().unwrap() += server.counters().counts().accepted;
                }
            };
            Threads::run(&ThreadsOptions::new("backend", 1), serve).unwrap();
        });
        Backend { called, accepted, shutdown, thread: Some(thread) }
    }

    /// The next request for a path; those for others are passed over.
    fn next(&self, path: &str) -> Called {
        loop {
            let called = self.called.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{path} has not come"));
            if called.path == path {
                return called;
            }
        }
    }

    /// Ends it, and says how many connections it has accepted.
    fn stop(mut self) -> u64 {
        self.end();
        *self.accepted.lock().unwrap()
    }

    fn end(&mut self) {
        self.shutdown.request();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.end();
    }
}

/// A hub whose callbacks all go to this socket.
fn hub(socket: &Path, change: impl FnOnce(&mut Plan)) -> Hub {
    Hub::start(|plan| {
        let url = |path: &str| Some(format!("unix:{}:/{path}", socket.display()));
        let callbacks = &mut plan.callbacks;
        (callbacks.connect, callbacks.establish) = (url("connect"), url("establish"));
        (callbacks.receive, callbacks.close) = (url("receive"), url("close"));
        callbacks.timeout = PATIENCE;
        change(plan);
    })
}

fn folder() -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("backend.sock");
    (folder, socket)
}

#[test]
fn what_the_backend_could_not_take_comes_again_and_nothing_overtakes_it() {
    let (_folder, socket) = folder();
    let backend = Backend::start(&socket, |called, target, before| match &*called.path {
        "/connect" => agrees(target),
        "/receive" if before < 2 => says(503),
        _ => says(200),
    });
    let hub = hub(&socket, |_| {});
    let mut client = hub.websocket("/connect?a");
    client.send(Kind::Text, b"one");
    client.send(Kind::Text, b"two");
    let tries: Vec<Called> = (0..4).map(|_| backend.next("/receive")).collect();
    let bodies: Vec<&[u8]> = tries.iter().map(|called| called.body.as_slice()).collect();
    assert_eq!(bodies, [&b"one"[..], b"one", b"one", b"two"]);
    // Who keeps these knows what it has seen before.
    assert!(tries[0].message.is_some() && tries[0].message == tries[2].message && tries[2].message != tries[3].message);
    let counted = hub.until("the callbacks end", |status| status["callbacks"]["receive"]["accepted"] == 2);
    assert_eq!(
        counted["callbacks"]["receive"],
        json!({ "accepted": 2, "refused": 0, "failed": 0, "retried": 2, "crowded": 0 })
    );
    assert_eq!(counted["dead_letters"], 0);
}

#[test]
fn what_the_backend_never_takes_is_a_dead_letter_and_the_next_one_goes_on() {
    let (_folder, socket) = folder();
    let backend = Backend::start(&socket, |called, target, _| match &*called.path {
        "/connect" => agrees(target),
        "/receive" if called.body == b"poison" => says(500),
        "/close" => says(502),
        _ => says(200),
    });
    let hub = hub(&socket, |plan| plan.callbacks.retries = 1);
    let mut client = hub.websocket("/connect?a");
    client.send(Kind::Text, b"poison");
    client.send(Kind::Binary, b"good");
    let bodies: Vec<Vec<u8>> = (0..3).map(|_| backend.next("/receive").body).collect();
    assert_eq!(bodies, [&b"poison"[..], b"poison", b"good"]);
    client.close(1000);
    drop(client);
    for _ in 0..2 {
        assert_eq!(backend.next("/close").session, "a");
    }
    let status = hub.until("both are given up", |status| status["dead_letters"] == 2);
    assert_eq!(
        status["callbacks"]["close"],
        json!({ "accepted": 0, "refused": 0, "failed": 1, "retried": 1, "crowded": 0 })
    );
    let metrics = hub.request("GET", "/metrics", &[], b"").text().to_owned();
    assert!(metrics.contains("\noroshi_push_dead_letters_total 2\n"), "{metrics}");
    assert!(metrics.contains("oroshi_push_callbacks_total{callback=\"receive\",result=\"failed\"} 1\n"), "{metrics}");
}

#[test]
fn a_refusal_is_an_answer_and_is_not_tried_again() {
    let (_folder, socket) = folder();
    let backend = Backend::start(&socket, |called, target, before| match (&*called.path, before) {
        ("/connect", _) => agrees(target),
        ("/establish", 0) => says(500),
        ("/establish", 1) => says(200),
        ("/establish", _) => says(410),
        ("/receive", _) => says(400),
        _ => says(200),
    });
    let hub = hub(&socket, |_| {});
    // Trouble passes.
    let mut wanted = hub.websocket("/connect?wanted");
    wanted.send(Kind::Text, b"x");
    assert_eq!(
        (backend.next("/establish").session, backend.next("/establish").session),
        ("wanted".into(), "wanted".into())
    );
    let mut unwanted = hub.websocket("/connect?unwanted");
    assert_eq!(unwanted.next(), Got::Close(Some(1008), "the backend did not agree".into()));
    let status = hub.until("all are answered", |status| {
        status["callbacks"]["establish"]["refused"] == 1 && status["callbacks"]["receive"]["refused"] == 1
    });
    assert_eq!(
        status["callbacks"]["establish"],
        json!({ "accepted": 1, "refused": 1, "failed": 0, "retried": 1, "crowded": 0 })
    );
    assert_eq!(status["callbacks"]["receive"]["retried"], 0);
    assert_eq!(hub.request("GET", "/sessions/wanted", &[], b"").status, 200);
}

#[test]
fn a_backend_that_hangs_is_given_up_in_time() {
    let (_folder, socket) = folder();
    let backend = Backend::start(&socket, |called, target, before| match (&*called.path, before) {
        ("/connect", 0) => agrees(target),
        ("/connect" | "/receive", _) if before < 2 => Does::Hangs,
        _ => says(200),
    });
    let hub = hub(&socket, |plan| plan.callbacks.timeout = Duration::from_millis(100));
    let mut client = hub.websocket("/connect?a");
    let answer = WebSocket::open(hub.address, "/connect?b", &[]).expect_err("no answer, no session");
    assert!(answer.status == 502 && answer.text().contains("did not answer in time"), "{answer:?}");
    client.send(Kind::Text, b"x");
    for _ in 0..3 {
        assert_eq!(backend.next("/receive").body, b"x");
    }
    hub.until("it is taken", |status| status["callbacks"]["receive"]["accepted"] == 1);
}

#[test]
fn a_backend_that_restarts_misses_nothing() {
    let (_folder, socket) = folder();
    let before = Backend::start(&socket, |_, target, _| agrees(target));
    let hub = hub(&socket, |plan| plan.callbacks.retries = 100);
    let mut client = hub.websocket("/connect?a");
    assert_eq!(before.next("/establish").session, "a");
    hub.until("it is established", |status| status["callbacks"]["establish"]["accepted"] == 1);
    drop(before);
    client.send(Kind::Text, b"said to nobody");
    client.close(1000);
    drop(client);
    hub.until("the session ends", |status| status["sessions"]["current"] == 0);
    let after = Backend::start(&socket, |_, target, _| agrees(target));
    assert_eq!(after.next("/receive").body, b"said to nobody");
    assert_eq!(after.next("/close").session, "a");
}

#[test]
fn connections_to_the_backend_are_used_again() {
    let (_folder, socket) = folder();
    let backend = Backend::start(&socket, |called, target, _| match &*called.path {
        "/connect" => agrees(target),
        // What nobody reads must not cost the connection.
        _ => Does::Says(200, Vec::new(), vec![b'x'; 10_000]),
    });
    let hub = hub(&socket, |_| {});
    let mut client = hub.websocket("/connect?a");
    for number in 0..100_u32 {
        client.send(Kind::Binary, &number.to_be_bytes());
        assert_eq!(backend.next("/receive").body, number.to_be_bytes());
    }
    drop(client);
    drop(hub);
    // Connecting, establishing and receiving may meet, and so may receiving and closing.
    let accepted = backend.stop();
    assert!(accepted <= 3, "{accepted} connections");
}

#[test]
fn the_backend_says_which_groups_a_session_belongs_to() {
    let (_folder, socket) = folder();
    let _backend = Backend::start(&socket, |called, _, _| match &*called.path {
        "/connect" => {
            let groups = |list: &str| ("X-Oroshi-Groups", list.as_bytes().to_vec());
            let fields =
                vec![("X-Kuiperbelt-Session", b"a".to_vec()), groups("news, room 1,,news "), groups("k\u{e4}se")];
            Does::Says(200, fields, b"hello".to_vec())
        }
        _ => says(200),
    });
    let hub = hub(&socket, |_| {});
    let mut client = hub.websocket("/connect");
    assert_eq!(client.text(), "hello");
    let session = hub.request("GET", "/sessions/a", &[], b"").json();
    assert_eq!(session["groups"], json!(["news", "room 1", "k\u{e4}se"]));
    let receipt = hub.publish(json!({ "groups": ["news", "k\u{e4}se"], "text": "once" }));
    assert_eq!((&receipt["matched"], client.text()), (&json!(1), "once".to_owned()));
}

#[test]
fn answers_that_make_no_session_are_told_apart() {
    let (_folder, socket) = folder();
    let _backend = Backend::start(&socket, |_, target, _| {
        let with_key = |fields: &[(&'static str, &[u8])], body: &[u8]| {
            let mut all = vec![("X-Kuiperbelt-Session", b"a".to_vec())];
            all.extend(fields.iter().map(|(name, value)| (*name, value.to_vec())));
            Does::Says(200, all, body.to_vec())
        };
        match target {
            "/connect?large" => with_key(&[], &[b'x'; 1001]),
            "/connect?latin" => with_key(&[], b"gr\xfc\xdfe"),
            "/connect?bytes" => with_key(&[("Content-Type", b"application/octet-stream")], b"\xff"),
            "/connect?keyless" => says(200),
            "/connect?empty" => Does::Says(200, vec![("X-Kuiperbelt-Session", Vec::new())], Vec::new()),
            "/connect?down" => Does::Says(503, vec![("Content-Type", b"text/x-sorry".to_vec())], b"later".to_vec()),
            "/connect?twice" => with_key(&[("X-Kuiperbelt-Session", b"b")], b""),
            "/connect?spoken" => with_key(&[("Sec-WebSocket-Protocol", b"a"), ("Sec-WebSocket-Protocol", b"b")], b""),
            "/connect?odd" => Does::Says(200, vec![("X-Kuiperbelt-Session", b"gr\xfc\xdfe".to_vec())], Vec::new()),
            "/connect?made" => Does::Says(201, vec![("X-Kuiperbelt-Session", b"a".to_vec())], Vec::new()),
            _ => says(200),
        }
    });
    let hub = hub(&socket, |plan| plan.callbacks.answer_bytes = 1000);
    let refused =
        |target: &str| WebSocket::open(hub.address, target, &[]).err().unwrap_or_else(|| panic!("{target} opened one"));
    for (target, status, words) in [
        ("/connect?large", 502, "body-too-large"),
        ("/connect?latin", 502, "UTF-8"),
        ("/connect?keyless", 400, "X-Kuiperbelt-Session"),
        ("/connect?empty", 400, "X-Kuiperbelt-Session"),
        ("/connect?twice", 502, "X-Kuiperbelt-Session more than once"),
        ("/connect?spoken", 502, "Sec-WebSocket-Protocol more than once"),
        ("/connect?odd", 502, "X-Kuiperbelt-Session is not UTF-8"),
        ("/connect?down", 503, "later"),
        ("/connect?made", 201, ""),
    ] {
        let answer = refused(target);
        assert!(answer.status == status && answer.text().contains(words), "{target}: {answer:?} {}", answer.text());
    }
    assert_eq!(refused("/connect?down").field("Content-Type"), Some("text/x-sorry"));
    assert_eq!(hub.websocket("/connect?bytes").next(), Got::Binary(vec![255]));
    let status = hub.status();
    // Of the backend's own words only the 201 is a no.
    assert_eq!(
        status["callbacks"]["connect"],
        json!({ "accepted": 1, "refused": 1, "failed": 9, "retried": 0, "crowded": 0 })
    );
    assert_eq!(status["sessions"]["opened"]["websocket"], 1);
}

/// Gives each client a key of its own.
fn agreed(number: usize) -> hub::Said {
    (200, format!("X-Kuiperbelt-Session: k{number}\r\n"), String::new())
}

#[test]
fn a_storm_of_clients_costs_the_backend_only_those_that_it_is_asked_about() {
    const ASKED: usize = 4;
    const CLIENTS: usize = 20;
    let (asked, may_answer) = (Arc::new(AtomicUsize::new(0)), Arc::new((Mutex::new(false), Condvar::new())));
    let (counted, held) = (Arc::clone(&asked), Arc::clone(&may_answer));
    let backend = hub::Backend::start(move |_| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        let open = held.1.wait_timeout_while(held.0.lock().unwrap(), PATIENCE, |open| !*open).unwrap();
        drop(open);
        agreed(number)
    });
    let hub = Hub::start(|plan| {
        plan.callbacks.connect = backend.url("/connect");
        plan.callbacks.connections = ASKED;
        plan.callbacks.queue = Duration::from_millis(100);
        plan.callbacks.timeout = PATIENCE;
    });
    let (tell, opened) = mpsc::channel();
    for _ in 0..CLIENTS {
        let (tell, address) = (tell.clone(), hub.address);
        std::thread::spawn(move || tell.send(WebSocket::open(address, "/connect", &[])));
    }
    // They wait for their turn, and are told to come again, while the backend still thinks about the first.
    for _ in ASKED..CLIENTS {
        let answer = opened.recv_timeout(PATIENCE).unwrap().expect_err("nobody is in yet");
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{answer:?}");
        assert!(answer.text().contains("asked about as many clients"), "{}", answer.text());
    }
    *may_answer.0.lock().unwrap() = true;
    may_answer.1.notify_all();
    let sessions: Vec<WebSocket> = (0..ASKED)
        .map(|_| opened.recv_timeout(PATIENCE).unwrap().unwrap_or_else(|answer| panic!("{answer:?}")))
        .collect();
    assert_eq!(asked.load(Ordering::SeqCst), ASKED);
    let connect = hub.status()["callbacks"]["connect"].clone();
    assert_eq!((&connect["accepted"], &connect["crowded"], &connect["failed"]), (&json!(4), &json!(16), &json!(0)));
    drop(sessions);
}

/// Who leaves while the backend is asked about others has no turn any more.
#[test]
fn the_backend_is_not_asked_about_clients_that_have_left() {
    const LEAVING: u64 = 3;
    let (asked, may_answer) = (Arc::new(AtomicUsize::new(0)), Arc::new((Mutex::new(false), Condvar::new())));
    let (counted, held) = (Arc::clone(&asked), Arc::clone(&may_answer));
    let backend = hub::Backend::start(move |_| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        drop(held.1.wait_timeout_while(held.0.lock().unwrap(), PATIENCE, |open| !*open).unwrap());
        agreed(number)
    });
    let hub = Hub::start(|plan| {
        plan.callbacks.connect = backend.url("/connect");
        plan.callbacks.connections = 1;
        (plan.callbacks.queue, plan.callbacks.timeout) = (PATIENCE, PATIENCE);
        plan.echo = true;
    });
    let connecting = |count: u64| drop(hub.until("the queue", |status| status["sessions"]["connecting"] == count));
    let upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let handshake = hub::head("GET", "/connect", &upgrade, None, false);
    // What it says meanwhile is not lost.
    let mut hello = Vec::new();
    encode::masked_message(&mut hello, Kind::Text, b"hello", [1, 2, 3, 4]);
    let (address, with_hello) = (hub.address, [handshake.clone(), hello].concat());
    let open = |bytes: Vec<u8>| std::thread::spawn(move || WebSocket::handshake(hub::connect(address), &bytes));
    let first = open(handshake.clone());
    connecting(1);
    let leaving: Vec<_> = (0..LEAVING)
        .map(|_| {
            let mut stream = hub::connect(address);
            stream.write_all(&with_hello).unwrap();
            stream
        })
        .collect();
    connecting(1 + LEAVING);
    let last = open(with_hello.clone());
    connecting(2 + LEAVING);
    drop(leaving);
    connecting(2);
    *may_answer.0.lock().unwrap() = true;
    may_answer.1.notify_all();
    let [_first, mut last] =
        [first, last].map(|open| open.join().unwrap().unwrap_or_else(|answer| panic!("{answer:?}")));
    assert_eq!(last.text(), "hello");
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let status = hub.status();
    assert_eq!(
        status["callbacks"]["connect"],
        json!({ "accepted": 2, "refused": 0, "failed": 0, "retried": 0, "crowded": LEAVING })
    );
    assert_eq!(status["sessions"]["connect_errors"], LEAVING);
}

/// However much sessions say to a backend that does not answer, it is asked about clients that come.
#[test]
fn a_storm_of_messages_keeps_no_client_out() {
    const TURNS: usize = 4;
    const SESSIONS: usize = 3 * TURNS;
    let (_folder, socket) = folder();
    let backend = Backend::start(&socket, |called, target, _| match &*called.path {
        "/connect" => agrees(target),
        "/receive" => Does::Hangs,
        _ => says(200),
    });
    let hub = hub(&socket, |plan| {
        plan.callbacks.connections = TURNS;
        plan.callbacks.queue = Duration::from_millis(100);
    });
    let mut sessions: Vec<WebSocket> =
        (0..SESSIONS).map(|number| hub.websocket(&format!("/connect?{number}"))).collect();
    sessions.iter_mut().for_each(|session| session.send(Kind::Text, b"x"));
    hub.until("all were heard", |status| status["received"]["messages"] == SESSIONS);
    (0..TURNS - 1).for_each(|_| drop(backend.next("/receive")));
    for late in 0..TURNS {
        WebSocket::open(hub.address, &format!("/connect?late-{late}"), &[])
            .unwrap_or_else(|answer| panic!("{answer:?}"));
    }
    assert_eq!(hub.status()["callbacks"]["connect"]["crowded"], 0);
}

/// With kuiperbelt's behaviour, the hub serves a session once the backend has agreed. A client that leaves before ends
/// its session, whatever it has sent.
#[test]
fn a_client_that_leaves_before_the_backend_has_agreed_is_noticed() {
    let (_folder, socket) = folder();
    let backend = Backend::start(&socket, |called, target, _| match &*called.path {
        "/connect" => agrees(target),
        "/establish" => Does::Hangs,
        _ => says(200),
    });
    let hub = hub(&socket, |plan| plan.compat_ekbo = true);
    for (key, says) in [("mute", false), ("loud", true)] {
        let mut client = hub.websocket(&format!("/connect?{key}"));
        assert_eq!(backend.next("/establish").session, key);
        if says {
            client.send(Kind::Text, b"x");
        }
        drop(client);
        assert_eq!(backend.next("/close").session, key);
        hub.until("it has gone", |status| status["sessions"]["current"] == 0);
    }
    assert_eq!(hub.status()["sessions"]["ended"]["client"], 2);
}

#[test]
fn the_time_for_a_callback_begins_when_it_is_sent() {
    let number = AtomicUsize::new(0);
    let backend = hub::Backend::start(move |_| {
        std::thread::sleep(Duration::from_millis(800));
        agreed(number.fetch_add(1, Ordering::SeqCst))
    });
    let hub = Hub::start(|plan| {
        plan.callbacks.connect = backend.url("/connect");
        plan.callbacks.connections = 1;
        plan.callbacks.queue = PATIENCE;
        // Too short for all of them one after the other.
        plan.callbacks.timeout = Duration::from_secs(2);
    });
    let address = hub.address;
    let opening: Vec<_> =
        (0..4).map(|_| std::thread::spawn(move || WebSocket::open(address, "/connect", &[]).map(drop))).collect();
    for opening in opening {
        opening.join().unwrap().unwrap_or_else(|answer| panic!("{answer:?}"));
    }
}
