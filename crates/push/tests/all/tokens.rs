//! JSON Web Tokens of clients: where they stand, what they permit, when they end, and the rotation of their keys.

use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use oroshi_push::{Access, GroupRule, HistoryRule, Jwt, KeySource, Plan};
use oroshi_websocket::Kind;
use oroshi_words::Secret;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use crate::hub::{Answer, Backend, Chunks, Got, Hub, WebSocket, connect, skipped};

pub(super) const SECRET: &str = "a secret of at least thirty-two bytes";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Signs claims with HS256.
fn sign(claims: &Value) -> String {
    let part = |text: &str| BASE64URL.encode(text);
    let signed = format!("{}.{}", part(r#"{"alg":"HS256","typ":"JWT"}"#), part(&claims.to_string()));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SECRET.as_bytes());
    format!("{signed}.{}", BASE64URL.encode(ring::hmac::sign(&key, signed.as_bytes())))
}

/// A token of this user for an hour.
pub(super) fn token(user: &str, rights: &Value) -> String {
    sign(&json!({ "sub": user, "exp": now() + 3600, "rights": rights }))
}

fn rules(plan: &mut Plan) {
    plan.jwt = Some(Jwt { secret: Some(Secret::new(SECRET)), leeway: Duration::ZERO, ..Jwt::default() });
    let rule = |pattern: &str| GroupRule { pattern: pattern.into(), ..GroupRule::default() };
    plan.groups = vec![
        GroupRule {
            subscribe: Access::Users,
            publish: Access::Users,
            presence: Access::Users,
            keeps: Some(HistoryRule::default()),
            ..rule("users:*")
        },
        rule("other"),
    ];
}

/// Opens a WebSocket that speaks the protocol of channels.
fn open(hub: &Hub, fields: &[(&str, &str)]) -> Result<WebSocket, Answer> {
    WebSocket::open(hub.address, "/connect?protocol=oroshi.v1", fields)
}

/// Opens one whose client has this token in a field.
fn bearer(hub: &Hub, token: &str) -> Result<WebSocket, Answer> {
    open(hub, &[("Authorization", &format!("Bearer {token}"))])
}

fn send(socket: &mut WebSocket, command: &Value) {
    socket.send(Kind::Text, command.to_string().as_bytes());
}

fn next(socket: &mut WebSocket) -> Value {
    serde_json::from_str(&socket.text()).unwrap()
}

fn ask(socket: &mut WebSocket, command: &Value) -> Value {
    send(socket, command);
    next(socket)
}

#[track_caller]
fn closes(socket: &mut WebSocket, code: u16, why: &str) {
    let Got::Close(got, reason) = socket.next() else { panic!("expected {code} {why}") };
    assert!(got == Some(code) && reason.contains(why), "{got:?} {reason}");
}

#[test]
fn a_token_stands_in_a_field_a_subprotocol_or_the_first_frame() {
    let hub = Hub::start(rules);
    let ann = token("ann", &json!({}));
    for mut socket in [
        bearer(&hub, &ann).unwrap(),
        open(&hub, &[("Authorization", &format!("bEARER {ann}"))]).unwrap(),
        open(&hub, &[("Sec-WebSocket-Protocol", &format!("oroshi.token.{ann}, oroshi.v1"))]).unwrap(),
    ] {
        let first = next(&mut socket);
        assert_eq!(first["user"], "ann", "{first}");
        assert!((3500..=3600).contains(&first["expires_in"].as_u64().unwrap()), "{first}");
        assert!(!socket.head.contains(&ann), "the hub sends no token back");
    }
    let fields = [("Authorization", &*format!("Bearer {ann}")), ("Accept", "text/event-stream")];
    let mut events = Chunks::open(connect(hub.address), "/connect?protocol=oroshi.v1", &fields);
    assert!(events.next().unwrap().contains("\"user\":\"ann\""));
    let poll = hub.request("GET", "/connect?transport=poll&protocol=oroshi.v1", &fields[..1], b"");
    assert!(poll.json()["expires_in"].as_u64().unwrap() > 3500, "{poll:?}");
    assert_eq!(poll.json()["user"], "ann");
    // A session that does not speak the protocol of channels needs one too.
    assert!(WebSocket::open(hub.address, "/connect", &fields[..1]).is_ok());

    // With more commands behind it, before the hub has answered anything.
    let mut socket = open(&hub, &[]).unwrap();
    send(&mut socket, &json!({ "id": 7, "token": ann }));
    send(&mut socket, &json!({ "id": 8, "subscribe": { "channel": "users:a" } }));
    let first = next(&mut socket);
    assert_eq!((&first["user"], first["session"].is_string()), (&json!("ann"), true), "{first}");
    assert_eq!(next(&mut socket)["token"]["user"], "ann");
    assert_eq!(next(&mut socket)["subscribed"]["channel"], "users:a");
    let there = ask(&mut socket, &json!({ "id": 9, "presence": { "channel": "users:a" } }));
    assert_eq!(there["presence"]["list"][0]["user"], "ann", "{there}");
    // In pieces, with a ping between.
    let mut socket = open(&hub, &[]).unwrap();
    let mut bytes = Vec::new();
    oroshi_websocket::encode::ping(&mut bytes, b"x", Some([1, 2, 3, 4]));
    let command = json!({ "token": ann }).to_string();
    oroshi_websocket::encode::masked_message(&mut bytes, Kind::Text, command.as_bytes(), [1, 2, 3, 4]);
    for piece in bytes.chunks(5) {
        socket.stream.write_all(piece).unwrap();
    }
    assert_eq!(next(&mut socket)["user"], "ann");
}

#[test]
fn a_client_without_a_good_token_gets_no_session() {
    let hub = Hub::start(rules);
    let good = token("ann", &json!({}));
    let late = sign(&json!({ "sub": "ann", "exp": now() - 1 }));
    let none = format!("{}.{}.", BASE64URL.encode(r#"{"alg":"none"}"#), good.split('.').nth(1).unwrap());
    let large = "A".repeat(40_000);
    for (value, error) in [
        (None, "missing-token"),
        (Some("Basic YTpi".to_owned()), "missing-token"),
        (Some("Bearer ".to_owned()), "missing-token"),
        (Some("Bearer x".to_owned()), "bad-token"),
        (Some(format!("Bearer {late}")), "expired-token"),
        (Some(format!("Bearer {none}")), "bad-token"),
        (Some(format!("Bearer {}x", &good[..good.len() - 1])), "bad-token"),
        (Some(format!("Bearer {large}")), "bad-token"),
    ] {
        let fields: Vec<_> = value.iter().map(|value| ("Authorization", value.as_str())).collect();
        for target in ["/connect", "/connect?transport=poll", "/connect?transport=sse&protocol=oroshi.v1"] {
            let answer = hub.request("GET", target, &fields, b"");
            assert_eq!((answer.status, &answer.json()["error"]), (401, &json!(error)), "{answer:?}");
            assert!(answer.field("WWW-Authenticate").unwrap().starts_with("Bearer"), "{answer:?}");
            assert!(!answer.text().contains("AAAA"), "an answer repeats a token");
        }
    }
    let two = [("Authorization", &*format!("Bearer {good}")), ("Authorization", &format!("Bearer {good}"))];
    assert_eq!(hub.request("GET", "/connect", &two, b"").status, 400);
    assert_eq!(hub.request("GET", &format!("/connect?token={good}"), &[], b"").status, 401, "a URL holds no token");
    // A megabyte: more than a head may have on a listener for clients, and more than a token may have.
    let answer = hub.request("GET", "/connect", &[("Authorization", &format!("Bearer {}", "A".repeat(1 << 20)))], b"");
    assert!(matches!(answer.status, 401 | 431), "{answer:?}");

    for (first, code, why) in [
        (json!({ "token": late }).to_string(), 4002, "expired"),
        (json!({ "token": none }).to_string(), 4002, "algorithm"),
        (json!({ "token": 7 }).to_string(), 4002, "first frame"),
        (json!({ "id": 1, "ping": {} }).to_string(), 4002, "first frame"),
        ("[\"a\"]".to_owned(), 4002, "first frame"),
        ("A".repeat(1 << 20), 1009, ""),
    ] {
        let mut socket = open(&hub, &[]).unwrap();
        let mut frame = Vec::new();
        oroshi_websocket::encode::masked_message(&mut frame, Kind::Text, first.as_bytes(), [1, 2, 3, 4]);
        // The hub may have closed before all of it was sent.
        let _ = socket.stream.write_all(&frame);
        closes(&mut socket, code, why);
    }
    let mut socket = open(&hub, &[]).unwrap();
    socket.send(Kind::Binary, b"x");
    closes(&mut socket, 1003, "text");
    let status = hub.status();
    assert_eq!(status["sessions"]["opened"]["websocket"], 0, "{status}");
    let results = &status["tokens"]["results"];
    // Three transports and a first frame.
    assert_eq!((&results["expired"], &results["accepted"]), (&json!(4), &json!(0)), "{status}");
    let metrics = hub.request("GET", "/metrics", &[], b"").text().to_owned();
    assert!(metrics.contains("oroshi_push_tokens_total{result=\"expired\"} 4\n"), "{metrics}");
}

#[test]
fn nobody_hears_anything_before_the_token_has_come() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.jwt.as_mut().unwrap().wait = Duration::from_millis(200);
    });
    let mut silent = open(&hub, &[]).unwrap();
    let mut slow = open(&hub, &[]).unwrap();
    assert_eq!(hub.publish(json!({ "all": true, "text": "secret" }))["matched"], 0);
    send(&mut slow, &json!({ "token": token("ann", &json!({})) }));
    // It may have been too slow on a busy machine; then it gets nothing either.
    match slow.next() {
        Got::Text(first) => {
            assert!(first.contains("session"), "{first}");
            assert_eq!(hub.publish(json!({ "all": true, "text": "news" }))["matched"], 1);
            assert_eq!(next(&mut slow)["text"], "news");
        }
        other => assert!(matches!(other, Got::Close(Some(4002), _)), "{other:?}"),
    }
    closes(&mut silent, 4002, "in time");
    // A hub that ends waits for nobody's token.
    let hub = Hub::start(rules);
    let mut silent = open(&hub, &[]).unwrap();
    hub.stop();
    assert_eq!(silent.next(), Got::End);
}

#[test]
fn rights_are_those_of_the_token() {
    let hub = Hub::start(rules);
    let rights = json!({ "other": ["subscribe", "history"], "room:*": ["publish", "presence"] });
    let mut socket = bearer(&hub, &token("ann", &rights)).unwrap();
    next(&mut socket);
    for (command, answer) in [
        (json!({ "subscribe": { "channel": "other" } }), "subscribed"),
        (json!({ "publish": { "channel": "other", "text": "a" } }), "error"),
        (json!({ "publish": { "channel": "room:1", "text": "a" } }), "published"),
        (json!({ "subscribe": { "channel": "room:1" } }), "error"),
        (json!({ "presence": { "channel": "room:1" } }), "presence"),
        (json!({ "presence": { "channel": "other" } }), "error"),
        (json!({ "subscribe": { "channel": "users:1" } }), "subscribed"),
        (json!({ "history": { "channel": "users:1" } }), "error"),
    ] {
        let mut command = command;
        command["id"] = json!(1);
        let got = ask(&mut socket, &command);
        assert!(got.get(answer).is_some(), "{command}: {got}");
    }
    // A token without a user is nobody's, and has its rights.
    let mut socket = bearer(&hub, &sign(&json!({ "exp": now() + 60, "rights": rights }))).unwrap();
    assert_eq!(next(&mut socket).get("user"), None);
    assert_eq!(ask(&mut socket, &json!({ "subscribe": { "channel": "users:1" } }))["error"], "forbidden");
    assert!(ask(&mut socket, &json!({ "id": 1, "subscribe": { "channel": "other" } })).get("subscribed").is_some());
}

#[test]
fn a_session_lives_as_long_as_its_newest_token() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.limits.ping = Some(Duration::from_millis(100));
    });
    let short = |user: &str, rights: Value| sign(&json!({ "sub": user, "exp": now() + 2, "rights": rights }));
    let all = json!({ "other": ["subscribe"], "more:*": ["subscribe"] });
    let mut socket = bearer(&hub, &short("ann", all.clone())).unwrap();
    let first = next(&mut socket);
    for channel in ["other", "more:*"] {
        ask(&mut socket, &json!({ "id": 1, "subscribe": { "channel": channel } }));
    }
    let key = first["session"].as_str().unwrap();
    assert_eq!(hub.request("PUT", &format!("/sessions/{key}/groups/private"), &[], b"").status, 204);
    assert_eq!(next(&mut socket)["subscribed"]["channel"], "private");
    for (other, error) in [
        (token("bob", &all), "forbidden"),
        (sign(&json!({ "exp": now() + 60 })), "forbidden"),
        (sign(&json!({ "sub": "ann", "exp": now() - 1 })), "expired-token"),
        ("no token".to_owned(), "bad-token"),
    ] {
        assert_eq!(ask(&mut socket, &json!({ "id": 2, "token": other }))["error"], error);
    }
    // The new token permits less. What the backend has subscribed stays.
    send(&mut socket, &json!({ "id": 3, "token": token("ann", &json!({ "other": ["subscribe"] })) }));
    assert_eq!(next(&mut socket), json!({ "channel": "more:*", "unsubscribed": "forbidden" }));
    let answer = next(&mut socket);
    assert!(answer["id"] == 3 && answer["token"]["expires_in"].as_u64().unwrap() > 3500, "{answer}");
    let info = hub.request("GET", &format!("/sessions/{key}"), &[], b"").json();
    assert_eq!(info["groups"], json!(["other", "private"]));

    // Those that are not refreshed end, on each transport.
    let mut late = bearer(&hub, &short("ann", json!({}))).unwrap();
    let field = format!("Bearer {}", short("ann", json!({})));
    let fields = [("Authorization", &*field), ("Accept", "text/event-stream")];
    let mut events = Chunks::open(connect(hub.address), "/connect", &fields);
    let poll = hub.request("GET", "/connect?transport=poll", &fields[..1], b"").json();
    next(&mut late);
    closes(&mut late, 4002, "expired");
    while events.next().is_some() {}
    assert!(events.is_whole);
    let target =
        format!("/poll?session={}&token={}", poll["session"].as_str().unwrap(), poll["token"].as_str().unwrap());
    let ended = hub.request("GET", &target, &[], b"");
    assert!(matches!(ended.status, 404 | 410), "{ended:?}");
    hub.until("three sessions ended", |status| status["sessions"]["ended"]["expired"] == 3);
    assert_eq!(ask(&mut socket, &json!({ "id": 4, "ping": {} }))["id"], 4, "the first one lives on");
}

#[test]
fn tokens_can_be_optional() {
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.jwt.as_mut().unwrap().required = false;
    });
    let mut socket = open(&hub, &[]).unwrap();
    assert_eq!(next(&mut socket).get("user"), None);
    let subscribe = json!({ "id": 1, "subscribe": { "channel": "users:a" } });
    assert_eq!(ask(&mut socket, &subscribe)["error"], "forbidden");
    let identified = ask(&mut socket, &json!({ "id": 2, "token": token("ann", &json!({})) }));
    assert_eq!(identified["token"]["user"], "ann");
    assert!(ask(&mut socket, &subscribe).get("subscribed").is_some());
    // A wrong token is worse than none.
    assert_eq!(bearer(&hub, "no.token.here").unwrap_err().status, 401);
    // A hub without keys takes none.
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.jwt = None;
    });
    let mut socket = bearer(&hub, "anything").unwrap();
    next(&mut socket);
    assert_eq!(ask(&mut socket, &json!({ "token": token("ann", &json!({})) }))["error"], "forbidden");
}

#[test]
fn the_backend_learns_the_user_of_the_token_and_no_other() {
    let backend = Backend::start(|asked| {
        let user = asked.head.lines().find_map(|line| line.strip_prefix("X-Oroshi-User: ")).unwrap_or("nobody");
        assert_eq!(asked.head.matches("X-Oroshi-User").count(), usize::from(user != "nobody"), "{}", asked.head);
        match user {
            "bob" => (403, String::new(), "no".to_owned()),
            user => (200, format!("X-Kuiperbelt-Session: of-{user}\r\nX-Oroshi-User: by-backend\r\n"), String::new()),
        }
    });
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.callbacks.connect = backend.url("/connect");
    });
    let mut socket = open(
        &hub,
        &[
            ("Authorization", &format!("Bearer {}", token("ann", &json!({})))),
            ("X-Oroshi-User", "root"),
            ("x-oroshi-user", "root"),
        ],
    )
    .unwrap();
    let first = next(&mut socket);
    assert_eq!((&first["session"], &first["user"]), (&json!("of-ann"), &json!("ann")));
    let mut socket = open(&hub, &[]).unwrap();
    send(&mut socket, &json!({ "token": token("cat", &json!({})) }));
    assert_eq!(next(&mut socket)["session"], "of-cat");
    let mut refused = open(&hub, &[]).unwrap();
    send(&mut refused, &json!({ "token": token("bob", &json!({})) }));
    closes(&mut refused, 1008, "backend");
    assert_eq!(bearer(&hub, &token("bob", &json!({}))).unwrap_err().status, 403);
}

/// A pair of keys with a name.
struct Pair(Ed25519KeyPair, &'static str);

impl Pair {
    fn new(name: &'static str) -> Pair {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Pair(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap(), name)
    }

    fn jwk(&self) -> Value {
        json!({ "kty": "OKP", "crv": "Ed25519", "x": BASE64URL.encode(self.0.public_key()), "kid": self.1 })
    }

    fn token(&self) -> String {
        let part = |value: &Value| BASE64URL.encode(value.to_string());
        let header = json!({ "alg": "EdDSA", "kid": self.1 });
        let signed = format!("{}.{}", part(&header), part(&json!({ "sub": "ann", "exp": now() + 3600 })));
        let signature = self.0.sign(signed.as_bytes());
        format!("{signed}.{}", BASE64URL.encode(signature))
    }
}

#[test]
fn rotated_keys_are_fetched_once_for_all_clients() {
    let pairs = [Pair::new("one"), Pair::new("two"), Pair::new("three")];
    let served = Arc::new(Mutex::new((200, vec![pairs[0].jwk()])));
    let (theirs, fetches) = (Arc::clone(&served), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&fetches);
    let issuer = Backend::start(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let (status, keys) = theirs.lock().unwrap().clone();
        (status, "Content-Type: application/json\r\n".to_owned(), json!({ "keys": keys }).to_string())
    });
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.threads = 2;
        let keys = issuer.url("/jwks").map(KeySource::Url);
        plan.jwt = Some(Jwt { keys, refresh: Duration::from_secs(3600), ..Jwt::default() });
    });
    let all_connect = |token: &str| {
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..20).map(|_| scope.spawn(|| bearer(&hub, token).map(|_| ()))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        })
    };
    // Right at the start, whether or not the keys have been read.
    assert!(all_connect(&pairs[0].token()).iter().all(Result::is_ok));
    let begun = fetches.load(Ordering::Relaxed);
    assert!((1..=2).contains(&begun), "{begun}");
    *served.lock().unwrap() = (200, vec![pairs[1].jwk()]);
    if begun == 1 {
        assert!(all_connect(&pairs[1].token()).iter().all(Result::is_ok));
        assert_eq!(fetches.load(Ordering::Relaxed), 2);
        // The old key is gone; a third one is asked for only after a pause.
        assert_eq!(bearer(&hub, &pairs[0].token()).unwrap_err().status, 401);
        assert!(all_connect(&pairs[2].token()).iter().all(|one| one.as_ref().is_err_and(|one| one.status == 401)));
        assert_eq!(fetches.load(Ordering::Relaxed), 2);
        assert_eq!(hub.status()["tokens"]["keys_read"], 2);
    }
}

#[test]
fn known_keys_go_on_while_their_issuer_is_away() {
    let pair = Pair::new("one");
    let key = pair.jwk();
    let good = Arc::new(AtomicUsize::new(1));
    let state = Arc::clone(&good);
    let issuer = Backend::start(move |_| match state.load(Ordering::Relaxed) {
        0 => (500, String::new(), String::new()),
        1 => (200, String::new(), json!({ "keys": [key] }).to_string()),
        2 => (200, String::new(), "x".repeat(300 * 1024)),
        _ => (302, "Location: http://127.0.0.1:1/\r\n".to_owned(), String::new()),
    });
    let hub = Hub::start(|plan| {
        rules(plan);
        let keys = issuer.url("/jwks").map(KeySource::Url);
        plan.jwt = Some(Jwt { keys, refresh: Duration::from_millis(20), ..Jwt::default() });
    });
    hub.until("the keys are read", |status| status["tokens"]["keys"] == 1);
    for bad in [0, 2, 3] {
        good.store(bad, Ordering::Relaxed);
        let failed = hub.status()["tokens"]["keys_failed"].as_u64().unwrap();
        let status = hub.until("it fails", |status| status["tokens"]["keys_failed"].as_u64().unwrap() > failed + 1);
        assert_ne!(status["tokens"]["trouble"], "", "{status}");
        assert!(bearer(&hub, &pair.token()).is_ok(), "{bad}");
    }
    good.store(1, Ordering::Relaxed);
    hub.until("it is well again", |status| status["tokens"]["trouble"] == "");

    // A hub that never got a key tells its clients to come back.
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.jwt = Some(Jwt { keys: Some(KeySource::Url(format!("http://{nowhere}/"))), ..Jwt::default() });
    });
    let answer = bearer(&hub, &pair.token()).unwrap_err();
    assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{answer:?}");
    let mut socket = open(&hub, &[]).unwrap();
    send(&mut socket, &json!({ "token": pair.token() }));
    closes(&mut socket, 1013, "again");
}

#[test]
fn keys_in_a_file_are_read_again() {
    let (one, two) = (Pair::new("one"), Pair::new("two"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    let write = |pair: &Pair| {
        let new = folder.path().join("new");
        std::fs::write(&new, json!({ "keys": [pair.jwk()] }).to_string()).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    write(&one);
    let hub = Hub::start(|plan| {
        rules(plan);
        plan.jwt = Some(Jwt { keys: Some(KeySource::File(file.clone())), ..Jwt::default() });
    });
    assert!(bearer(&hub, &one.token()).is_ok());
    write(&two);
    assert!(bearer(&hub, &two.token()).is_ok(), "an unknown key has the file read");
    assert_eq!(bearer(&hub, &one.token()).unwrap_err().status, 401);
}

/// With keys and tokens of another implementation.
#[test]
fn tokens_of_pyjwt_are_accepted_and_refused() {
    const TEST: &str = "tokens_of_pyjwt_are_accepted_and_refused";
    let has_packages = |python: &&str| {
        let import = ["-c", "import jwt, cryptography"];
        Command::new(python).args(import).output().is_ok_and(|output| output.status.success())
    };
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_packages) else {
        return skipped(TEST, "python3 has no PyJWT with cryptography");
    };
    let made = Command::new(python).args(["-c", include_str!("tokens.py")]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, made["keys"].to_string()).unwrap();
    let hub = Hub::start(|plan| {
        rules(plan);
        let (keys, issuer) = (Some(KeySource::File(file)), Some("login".to_owned()));
        plan.jwt = Some(Jwt { keys, issuer, audience: vec!["push".into()], ..Jwt::default() });
    });
    for (name, token) in made["tokens"].as_object().unwrap() {
        let opened = bearer(&hub, token.as_str().unwrap()).map(|mut socket| next(&mut socket));
        match opened {
            Ok(first) => assert_eq!((name.len(), &first["user"]), (5, &json!("ann")), "{name}"),
            Err(answer) => {
                let error = answer.json()["error"].as_str().unwrap().to_owned();
                let wanted = if name.starts_with("late") { "expired-token" } else { "bad-token" };
                assert!(name.len() != 5 && answer.status == 401 && error == wanted, "{name}: {answer:?}");
            }
        }
    }
    assert_eq!(hub.status()["tokens"]["results"]["accepted"], 3);
}
