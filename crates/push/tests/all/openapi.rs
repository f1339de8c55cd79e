//! Compares the description of the API with a hub: every path, method and status in it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Read, Write};

use crate::hub::{self, Answer, Hub, WebSocket, connect, head, key_of};
use oroshi_push::{Access, Cluster, GroupRule, HistoryRule, Jwt, Origins, Plan, SlowPolicy, StreamSettings};
use oroshi_words::Secret;
use serde_json::{Value, json};

/// The description, and which answers of it were seen.
struct Description {
    api: Value,
    seen: RefCell<BTreeSet<(String, String, String)>>,
}

impl Description {
    /// As the hub itself gives it.
    fn of(hub: &Hub) -> Self {
        let answer = hub.request("GET", "/openapi.json", &[], b"");
        let description = Description { api: answer.json(), seen: RefCell::default() };
        description.check("GET", "/openapi.json", &answer);
        description
    }

    /// Holds an answer against what is described for this path, which is spelled as in the description.
    #[track_caller]
    fn check(&self, method: &str, path: &str, answer: &Answer) {
        let (method, status) = (method.to_lowercase(), answer.status.to_string());
        let described = &self.api["paths"][path][&method]["responses"][&status];
        assert!(described.is_object(), "{method} {path} {status} is not described: {answer:?}");
        if let Some(fields) = described["headers"].as_object() {
            for name in fields.keys() {
                assert!(answer.field(name).is_some(), "{name} is missing: {answer:?}");
            }
        }
        match described["content"].as_object() {
            None => assert!(answer.body.is_empty(), "{answer:?}"),
            Some(content) => {
                let kind = answer.field("Content-Type").unwrap().split(';').next().unwrap();
                let schema =
                    &content.get(kind).unwrap_or_else(|| panic!("{kind} is not described: {answer:?}"))["schema"];
                if kind == "application/json" {
                    self.validate(schema, &answer.json(), &format!("{method} {path} {status}"));
                }
            }
        }
        self.seen.borrow_mut().insert((path.to_owned(), method, status));
    }

    /// The part of JSON Schema that the description uses; anything else in it fails the test.
    #[track_caller]
    fn validate(&self, schema: &Value, value: &Value, place: &str) {
        for (keyword, wanted) in schema.as_object().unwrap() {
            match keyword.as_str() {
                "description" | "default" | "format" => {}
                "$ref" => {
                    let name = wanted.as_str().unwrap().strip_prefix("#/components/schemas/").unwrap();
                    self.validate(&self.api["components"]["schemas"][name], value, place);
                }
                "type" => {
                    let is = match wanted.as_str().unwrap() {
                        "object" => value.is_object(),
                        "array" => value.is_array(),
                        "string" => value.is_string(),
                        "integer" => value.is_u64() || value.is_i64(),
                        "number" => value.is_number(),
                        "boolean" => value.is_boolean(),
                        other => panic!("{place}: type {other}"),
                    };
                    assert!(is, "{place}: {value} is no {wanted}");
                }
                "minimum" => assert!(value.as_f64() >= wanted.as_f64(), "{place}: {value}"),
                "enum" => assert!(wanted.as_array().unwrap().contains(value), "{place}: {value} is none of {wanted}"),
                "items" => {
                    for (at, item) in value.as_array().unwrap().iter().enumerate() {
                        self.validate(wanted, item, &format!("{place}[{at}]"));
                    }
                }
                "required" => {
                    for name in wanted.as_array().unwrap() {
                        assert!(value.get(name.as_str().unwrap()).is_some(), "{place}: {name} is missing in {value}");
                    }
                }
                "properties" => {
                    for (name, schema) in wanted.as_object().unwrap() {
                        if let Some(value) = value.get(name) {
                            self.validate(schema, value, &format!("{place}.{name}"));
                        }
                    }
                }
                "additionalProperties" => {
                    assert_eq!(wanted, &json!(false), "{place}");
                    for name in value.as_object().unwrap().keys() {
                        assert!(schema["properties"].get(name).is_some(), "{place}: {name} is not described");
                    }
                }
                other => panic!("{place}: the test does not know `{other}`"),
            }
        }
    }

    /// All that is described, as paths, methods and statuses.
    fn all(&self) -> BTreeSet<(String, String, String)> {
        let mut all = BTreeSet::new();
        for (path, item) in self.api["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|entry| entry.0 != "parameters") {
                for status in operation["responses"].as_object().unwrap().keys() {
                    all.insert((path.clone(), method.clone(), status.clone()));
                }
            }
        }
        all
    }

    /// The paths, each with its methods in capitals.
    fn paths(&self) -> Vec<(String, Vec<String>)> {
        let methods = |item: &Value| {
            let all = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            all.map(|method| method.to_uppercase()).collect()
        };
        self.api["paths"].as_object().unwrap().iter().map(|(path, item)| (path.clone(), methods(item))).collect()
    }
}

/// Lets clients subscribe, as some paths exist only then.
fn channels(plan: &mut Plan) {
    plan.groups = vec![GroupRule { pattern: "c".into(), subscribe: Access::Anyone, ..GroupRule::default() }];
}

fn target(path: &str) -> String {
    path.replace("{key}", "nobody").replace("{group}", "g").replace("{user}", "u")
}

/// Opens a session that only polls: the answer, and the target that takes its messages.
fn polling(hub: &Hub) -> (Answer, String, String) {
    let answer = hub.request("GET", "/connect?transport=poll", &[], b"");
    let session = answer.json();
    let (key, token) = (session["session"].as_str().unwrap().to_owned(), session["token"].as_str().unwrap().to_owned());
    (answer, format!("/poll?session={key}&token={token}"), key)
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
const BYTES: (&str, &str) = ("Content-Type", "application/octet-stream");
const SESSION: &str = "X-Kuiperbelt-Session";

#[test]
fn every_answer_that_is_described_is_given_as_it_is_described() {
    let hub = Hub::start(|plan| {
        plan.limits.publish_bytes = 1000;
        plan.limits.sessions = 3;
        plan.origins = Origins::List(vec!["https://example.org".into()]);
        plan.groups = vec![GroupRule {
            pattern: "open".into(),
            slow: SlowPolicy::Disconnect,
            client_may_join: true,
            subscribe: Access::Anyone,
            ..GroupRule::default()
        }];
        plan.limits.message_bytes = 1000;
    });
    let api = Description::of(&hub);
    let ask = |method: &str, path: &str, target: &str, headers: &[(&str, &str)], body: &[u8]| -> Answer {
        let answer = hub.request(method, target, headers, body);
        api.check(method, path, &answer);
        answer
    };
    let large = [b'x'; 1001];

    // Connecting. A handshake has no end that a plain request could wait for.
    let mut session =
        WebSocket::open(hub.address, "/connect?group=open", &[]).unwrap_or_else(|answer| panic!("{answer:?}"));
    api.seen.borrow_mut().insert(("/connect".into(), "get".into(), "101".into()));
    let key = key_of(&session.text());
    let mut lines = connect(hub.address);
    lines.write_all(&head("GET", "/connect", &[], None, true)).unwrap();
    let mut start = [0; 16];
    lines.read_exact(&mut start).unwrap();
    assert_eq!(&start[..13], b"HTTP/1.1 200 ");
    let (begun, poll, poll_key) = polling(&hub);
    api.check("GET", "/connect", &begun);
    assert_eq!(ask("GET", "/connect", "/connect", &[], b"").status, 503, "three sessions are as many as there may be");
    ask("GET", "/connect", "/connect?transport=pigeon", &[], b"");
    assert_eq!(ask("GET", "/connect", "/connect", &[("Content-Length", "1")], b"x").status, 400);
    ask("GET", "/connect", "/connect", &[("Origin", "https://example.com")], b"");
    ask("GET", "/connect", "/connect?group=closed", &[], b"");
    let old =
        [("Upgrade", "websocket"), ("Sec-WebSocket-Version", "8"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")];
    let refused = WebSocket::open(hub.address, "/connect", &[]).err();
    assert_eq!(refused.map(|answer| answer.status), Some(503));
    let mut stream = connect(hub.address);
    stream
        .write_all(&head("GET", "/connect", &[&old[..], &[("Connection", "upgrade, close")]].concat(), None, false))
        .unwrap();
    api.check("GET", "/connect", &Answer::read(stream));

    // Polling.
    ask(
        "POST",
        "/publish",
        "/publish",
        &[JSON],
        json!({ "sessions": [poll_key], "json": [1, 2] }).to_string().as_bytes(),
    );
    let batch = ask("GET", "/poll", &poll, &[], b"").json();
    assert_eq!(batch, json!({ "messages": [{ "text": "[1,2]" }], "next": 1 }));
    ask("GET", "/poll", &format!("{poll}&after=7"), &[], b"");
    ask("GET", "/poll", "/poll?session=nobody&token=x", &[], b"");
    ask("GET", "/poll", "/poll", &[], b"");
    for path in ["/connect", "/poll", "/command"] {
        let method = ("Access-Control-Request-Method", if path == "/command" { "POST" } else { "GET" });
        assert_eq!(ask("OPTIONS", path, path, &[("Origin", "https://example.org"), method], b"").status, 204);
        assert_eq!(ask("OPTIONS", path, path, &[("Origin", "https://example.com"), method], b"").status, 403);
    }
    assert_eq!(ask("GET", "/poll", &poll, &[("Origin", "https://example.com")], b"").status, 403);

    // Commands. The session does not speak the protocol of channels, so nobody has its token for them.
    ask("POST", "/command", "/command", &[JSON], b"{}");
    ask("POST", "/command", "/command?session=nobody&token=x", &[JSON], b"{}");
    ask("POST", "/command", "/command?session=nobody&token=x", &[JSON], &large);
    ask("POST", "/command", "/command", &[JSON, ("Origin", "https://example.com")], b"{}");

    // Publishing.
    let envelope = json!({ "all": true, "groups": ["open", "empty"], "sessions": ["nobody"], "except": [poll_key],
        "base64": "AP8=", "key": "k", "wait": "written", "deadline": "5s" });
    let receipt = ask("POST", "/publish", "/publish", &[JSON], envelope.to_string().as_bytes()).json();
    assert_eq!((&receipt["matched"], &receipt["unknown"]), (&json!(2), &json!(["nobody"])), "{receipt}");
    assert_eq!(receipt["nodes"], json!({ "known": 1, "answered": 1 }));
    assert_eq!(session.next(), hub::Got::Binary(vec![0, 255]));
    let null = json!({ "sessions": [key], "json": null });
    ask("POST", "/publish", "/publish", &[JSON], null.to_string().as_bytes());
    assert_eq!(session.text(), "null");
    for wrong in [
        json!({}),
        json!({ "text": "for nobody" }),
        json!({ "all": true }),
        json!({ "all": true, "text": "a", "json": 1 }),
        json!({ "all": true, "base64": "?" }),
        json!({ "all": true, "text": "a", "wait": "for ever" }),
        json!({ "all": true, "text": "a", "deadline": "soon" }),
        json!({ "all": true, "text": "a", "deadline": "1h" }),
        json!({ "all": true, "text": "a", "txt": "a" }),
        json!([]),
    ] {
        let problem = ask("POST", "/publish", "/publish", &[JSON], wrong.to_string().as_bytes());
        let message = problem.json()["message"].as_str().unwrap().to_owned();
        assert!(problem.status == 400 && message.contains("expected"), "{wrong}: {message}");
    }
    // Twelve values would be all the fields of an envelope, in their order.
    let fields = r#" [["a"],[],[],true,[],"x",null,null,null,null,null,null]"#;
    for (wrong, why) in [
        ("[]", "the envelope is an array"),
        (fields, "the envelope is an array"),
        ("\"x\"", "the envelope is no object"),
        ("x", "the envelope is no object"),
        ("", "there is no envelope"),
    ] {
        let problem = ask("POST", "/publish", "/publish", &[JSON], wrong.as_bytes());
        let expected = format!("{why}: expected an object such as {{\"all\": true, \"text\": \"hello\"}}");
        assert_eq!((problem.status, problem.json()["message"].as_str()), (400, Some(&*expected)), "{wrong}");
    }
    ask("POST", "/publish", "/publish", &[("Content-Type", "text/xml")], b"{}");
    let too_large = json!({ "all": true, "text": str::from_utf8(&large).unwrap() });
    ask("POST", "/publish", "/publish", &[JSON], too_large.to_string().as_bytes());
    let receipt = ask(
        "POST",
        "/publish/raw",
        &format!("/publish/raw?session={key}&wait=written&key=a%20b&all=0"),
        &[],
        "é".as_bytes(),
    );
    assert_eq!((receipt.json()["written"].clone(), session.text()), (json!(1), "é".into()));
    for wrong in ["all=maybe", "sessions=a", "all=1&wait=x", "all=1&deadline=x", "", "all=%zz"] {
        assert_eq!(ask("POST", "/publish/raw", &format!("/publish/raw?{wrong}"), &[], b"x").status, 400, "{wrong}");
    }
    assert_eq!(ask("POST", "/publish/raw", "/publish/raw?all=1", &[], b"\xff").json()["error"], "not-utf8");
    ask("POST", "/publish/raw", "/publish/raw?all=1", &[BYTES], &large);

    let batch = json!([{ "sessions": ["nobody"], "text": "a" }]).to_string();
    ask("POST", "/publish/batch", "/publish/batch", &[JSON], batch.as_bytes());
    ask("POST", "/publish/batch", "/publish/batch", &[JSON], b"[]");
    ask("POST", "/publish/batch", "/publish/batch", &[("Content-Type", "text/xml")], b"[]");
    let mut announced = connect(hub.address);
    announced.write_all(&head("POST", "/publish/batch", &[JSON], Some(1 << 40), true)).unwrap();
    api.check("POST", "/publish/batch", &Answer::read(&mut announced));
    for (path, target, body) in [
        ("/publish", "/publish", &envelope.to_string()),
        ("/publish/raw", "/publish/raw?user=u", &"x".to_owned()),
        ("/publish/batch", "/publish/batch", &batch),
    ] {
        let fields = [JSON, ("Idempotency-Key", path)];
        assert_eq!(hub.request("POST", target, &fields, body.as_bytes()).status, 200);
        let other = format!(" {body}");
        assert_eq!(ask("POST", path, target, &fields, other.as_bytes()).status, 422);
    }
    assert_eq!(session.next(), hub::Got::Binary(vec![0, 255]));

    // Sessions, groups and users.
    ask("GET", "/slow", "/slow", &[], b"");
    for path in ["/sessions", "/groups"] {
        ask("GET", path, path, &[], b"");
        ask("GET", path, &format!("{path}?limit=0"), &[], b"");
    }
    ask("GET", "/users/{user}", "/users/u", &[], b"");
    ask("DELETE", "/users/{user}", "/users/u", &[], b"");
    ask("DELETE", "/users/{user}", "/users/u?code=1", &[], b"");
    let one = "/sessions/{key}";
    let known = ask("GET", one, &format!("/sessions/{key}"), &[], b"").json();
    assert_eq!((&known["transport"], &known["groups"]), (&json!("websocket"), &json!(["open"])), "{known}");
    ask("GET", one, "/sessions/nobody", &[], b"");
    let member = "/sessions/{key}/groups/{group}";
    ask("PUT", member, &format!("/sessions/{key}/groups/a%2Fb"), &[], b"");
    assert_eq!(
        ask("GET", "/groups/{group}", "/groups/a%2fb", &[], b"").json(),
        json!({ "group": "a/b", "sessions": 1 })
    );
    for _ in 0..2 {
        ask("DELETE", member, &format!("/sessions/{key}/groups/a%2Fb"), &[], b"");
    }
    assert_eq!(ask("GET", "/groups/{group}", "/groups/a%2Fb", &[], b"").json()["sessions"], 0);
    ask("PUT", member, "/sessions/nobody/groups/g", &[], b"");
    ask("DELETE", member, "/sessions/nobody/groups/g", &[], b"");
    for wrong in ["code=1005", "code=x", "what=1", &format!("reason={}", "x".repeat(124))] {
        assert_eq!(ask("DELETE", one, &format!("/sessions/{key}?{wrong}"), &[], b"").status, 400, "{wrong}");
    }
    ask("DELETE", one, "/sessions/nobody", &[], b"");

    // kuiperbelt's.
    ask("POST", "/send", "/send", &[(SESSION, &key)], b"hello");
    assert_eq!(session.text(), "hello");
    ask("POST", "/send", "/send", &[], b"hello");
    ask("POST", "/send", "/send", &[(SESSION, &key)], &large);
    ask("POST", "/broadcast", "/broadcast", &[], b"to all");
    assert_eq!(session.text(), "to all");
    ask("POST", "/broadcast", "/broadcast", &[], b"\xff");
    ask("POST", "/broadcast", "/broadcast", &[], &large);
    ask("GET", "/ping", "/ping", &[], b"");
    ask("GET", "/stats", "/stats", &[], b"");
    let lines = ask("GET", "/stats", "/stats?format=tsv", &[], b"").text().to_owned();
    assert!(lines.starts_with("kuiperbelt.conn.current\t3\t") && lines.lines().count() == 6, "{lines}");
    ask("POST", "/close", "/close", &[], b"bye");
    ask("POST", "/close", "/close", &[(SESSION, &key)], &large);
    ask("POST", "/close", "/close", &[(SESSION, &key)], b"bye");
    assert_eq!((session.text(), session.next()), ("bye".into(), hub::Got::Close(Some(1000), String::new())));

    // Operators.
    let status = ask("GET", "/status", "/status", &[], b"").json();
    assert_eq!(status["version"], api.api["info"]["version"], "the description is of another version");
    let metrics = ask("GET", "/metrics", "/metrics", &[], b"").text().to_owned();
    assert!(metrics.contains("oroshi_push_sessions{transport=\"poll\"} 1\n"), "{metrics}");

    // A session that is waited for, and ends.
    assert_eq!(
        ask("GET", "/poll", &format!("{poll}&after=1"), &[], b"").json()["messages"],
        json!([{ "text": "to all" }])
    );
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| hub.request("GET", &format!("{poll}&after=2"), &[], b""));
        // On its one core the question for more takes the batch before from the queue, and waits, at the same time.
        hub.until("the batch arrives", |_| {
            hub.request("GET", &format!("/sessions/{poll_key}"), &[], b"").json()["queued_messages"] == 0
        });
        let target = format!("/sessions/{poll_key}?code=4001&reason=enough");
        ask("DELETE", one, &target, &[], b"");
        let ended = ended.join().unwrap();
        assert_eq!(ended.status, 410, "{ended:?}");
        api.check("GET", "/poll", &ended);
    });

    commands(&api);
    overloaded(&api);
    unauthorized(&api);
    tokens(&api);
    foreign(&api);
    without_a_backend(&api);
    without_nats(&api);

    let (seen, all) = (api.seen.take(), api.all());
    let never: Vec<_> = all.difference(&seen).collect();
    assert!(never.is_empty(), "described, and never seen: {never:#?}");
}

/// Commands of a session that polls and speaks the protocol of channels.
fn commands(api: &Description) {
    let hub = Hub::start(channels);
    let opened = hub.request("GET", "/connect?transport=poll&protocol=oroshi.v1", &[], b"");
    api.check("GET", "/connect", &opened);
    let session = opened.json();
    let (key, token) = (session["session"].as_str().unwrap(), session["token"].as_str().unwrap());
    let target = format!("/command?session={key}&token={token}");
    let answer = hub.request("POST", &target, &[JSON], br#"[{"id":1,"ping":{}},{"ping":{}}]"#);
    assert_eq!(answer.json(), json!([{ "id": 1, "pong": {} }, null]));
    api.check("POST", "/command", &answer);
}

/// The hub answers 429 only if others publish faster than it frees memory. No test can produce that each time.
fn overloaded(api: &Description) {
    for path in ["/publish", "/publish/raw", "/send", "/broadcast"] {
        api.seen.borrow_mut().insert((path.into(), "post".into(), "429".into()));
    }
}

/// What is not for everybody takes the token, and shows nothing before.
fn unauthorized(api: &Description) {
    let hub = Hub::start(|plan: &mut Plan| plan.token = Some(Secret::new("s3cret")));
    for (path, methods) in api.paths() {
        for method in methods {
            let operation = &api.api["paths"][&path][method.to_lowercase()];
            let is_public = operation["security"] == json!([]);
            if is_public {
                // Clients have tokens of their own to connect with.
                assert!(operation["responses"].get("401").is_none() || path == "/connect", "{path}");
                continue;
            }
            for wrong in ["", "Bearer", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret", "Bearer S3CRET"] {
                let answer = hub.request(&method, &target(&path), &[("Authorization", wrong)], b"");
                assert_eq!(answer.status, 401, "{method} {path} {wrong}");
                assert!(answer.field("WWW-Authenticate").unwrap().starts_with("Bearer"), "{answer:?}");
                api.check(&method, &path, &answer);
            }
            let answer = hub.request(&method, &target(&path), &[("Authorization", "bearer s3cret")], b"");
            assert_ne!(answer.status, 401, "{method} {path}");
        }
    }
    assert_eq!(hub.request("GET", "/no/such/path", &[], b"").status, 401, "what there is is nobody's business");
    assert_eq!(hub.request("GET", "/ping", &[], b"").status, 200);
}

/// A hub whose clients need tokens.
fn tokens(api: &Description) {
    let hub = Hub::start(|plan: &mut Plan| {
        channels(plan);
        plan.jwt = Some(Jwt { secret: Some(Secret::new("x".repeat(32))), ..Jwt::default() });
    });
    for fields in [&[][..], &[("Authorization", "Bearer x.y.z")]] {
        let answer = hub.request("GET", "/connect", fields, b"");
        assert_eq!(answer.status, 401, "{answer:?}");
        api.check("GET", "/connect", &answer);
    }
    api.check("GET", "/status", &hub.request("GET", "/status", &[], b""));
}

/// What is not for everybody is not for pages of other origins, whether they show the token or not.
fn foreign(api: &Description) {
    for token in [None, Some(Secret::new("s3cret"))] {
        let hub = Hub::start(|plan: &mut Plan| plan.token = token);
        for (path, methods) in api.paths() {
            for method in methods {
                let operation = &api.api["paths"][&path][method.to_lowercase()];
                if operation["security"] == json!([]) {
                    continue;
                }
                let fields = [("Origin", "http://elsewhere.test"), ("Authorization", "Bearer s3cret")];
                let answer = hub.request(&method, &target(&path), &fields, b"");
                assert_eq!(
                    (answer.status, &answer.json()["error"]),
                    (403, &json!("forbidden-origin")),
                    "{method} {path}"
                );
                api.check(&method, &path, &answer);
            }
        }
    }
}

/// However large a body is, and however it says so, the answer is in the API's form.
#[test]
fn what_is_too_large_is_told_in_json() {
    let hub = Hub::start(|plan| plan.limits.publish_bytes = 1000);
    let api = Description::of(&hub);
    for (path, target, headers) in [
        ("/publish", "/publish", &[JSON][..]),
        ("/publish/raw", "/publish/raw?all=1", &[]),
        ("/send", "/send", &[(SESSION, "a")]),
        ("/close", "/close", &[(SESSION, "a")]),
        ("/broadcast", "/broadcast", &[]),
    ] {
        // It is not waited for: nobody reads it.
        let mut announced = connect(hub.address);
        announced.write_all(&head("POST", target, headers, Some(1 << 40), true)).unwrap();
        // In chunks, more than any envelope has.
        let mut chunked = connect(hub.address);
        let headers = [headers, &[("Transfer-Encoding", "chunked")]].concat();
        chunked.write_all(&head("POST", target, &headers, None, true)).unwrap();
        let (chunk, mut sender) = (vec![b'{'; 1 << 20], chunked.try_clone().unwrap());
        let answers = std::thread::scope(|scope| {
            scope.spawn(move || {
                // Until it is refused, or the hub has read enough.
                for _ in 0..3 {
                    let size = format!("{:x}\r\n", chunk.len());
                    let sent =
                        [size.as_bytes(), &chunk, b"\r\n"].into_iter().try_for_each(|part| sender.write_all(part));
                    if sent.is_err() {
                        break;
                    }
                }
            });
            [Answer::read(&mut announced), Answer::read(&mut chunked)]
        });
        for answer in answers {
            assert_eq!((answer.status, &answer.json()["error"]), (413, &json!("too-large")), "{path}: {answer:?}");
            api.check("POST", path, &answer);
        }
    }
}

/// A backend that is not there.
fn without_a_backend(api: &Description) {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hub = Hub::start(|plan: &mut Plan| plan.callbacks.connect = Some(format!("http://{nowhere}/")));
    let answer = hub.request("GET", "/connect", &[], b"");
    assert_eq!(answer.status, 502, "{answer:?}");
    api.check("GET", "/connect", &answer);
}

/// A NATS that takes connections and says nothing, and should have the histories.
fn without_nats(api: &Description) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = Hub::start(|plan: &mut Plan| {
        channels(plan);
        plan.groups.iter_mut().for_each(|rule| rule.keeps = Some(HistoryRule::default()));
        let (nats, name) = (Secret::new(format!("nats://{}", silent.local_addr().unwrap())), "test".into());
        let receipt_timeout = std::time::Duration::from_secs(1);
        plan.cluster = Some(Cluster { nats, name, receipt_timeout, history: Some(StreamSettings::default()) });
    });
    let json = [("Content-Type", "application/json")];
    let envelope = json!({ "groups": ["c"], "text": "x" }).to_string();
    for (method, path, target, headers, body, error) in [
        ("POST", "/publish", "/publish", &json[..], envelope.as_str(), "history-unreached"),
        ("POST", "/publish/raw", "/publish/raw?group=c", &[], "x", "history-unreached"),
        ("GET", "/poll", "/poll?session=a&token=b", &[], "", "nodes-unreached"),
        ("POST", "/command", "/command?session=a&token=b", &[], r#"{"ping":{}}"#, "nodes-unreached"),
    ] {
        let answer = hub.request(method, target, headers, body.as_bytes());
        assert_eq!((answer.status, answer.json()["error"].as_str()), (503, Some(error)), "{path}: {answer:?}");
        api.check(method, path, &answer);
    }
}

#[test]
fn a_node_of_a_cluster_says_how_its_link_is() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = Hub::start(|plan| {
        let (nats, name) = (Secret::new(format!("nats://{}", silent.local_addr().unwrap())), "test".into());
        let receipt_timeout = std::time::Duration::from_secs(1);
        plan.cluster = Some(Cluster { nats, name, receipt_timeout, history: None });
    });
    let api = Description::of(&hub);
    let status = hub.request("GET", "/status", &[], b"");
    api.check("GET", "/status", &status);
    assert_eq!(status.json()["cluster"]["connected"], false);
    let receipt = hub.request("POST", "/publish/raw?all=1", &[], b"x");
    api.check("POST", "/publish/raw", &receipt);
    assert_eq!(receipt.json()["nodes"], json!({ "known": 1, "answered": 1, "connected": false }));
    assert!(hub.request("GET", "/metrics", &[], b"").text().contains("oroshi_push_cluster_"));
}

#[test]
fn what_is_not_described_is_refused() {
    let hub = Hub::start(channels);
    let api = Description::of(&hub);
    for (path, methods) in api.paths() {
        // Which methods these are asked by means nothing.
        if matches!(&*path, "/ping" | "/stats") {
            continue;
        }
        let answer = hub.request("PATCH", &target(&path), &[], b"");
        assert_eq!(answer.status, 405, "{path}: {answer:?}");
        let mut allowed: Vec<&str> = answer.field("Allow").unwrap().split(", ").collect();
        allowed.retain(|method| *method != "HEAD");
        allowed.sort_unstable();
        let mut methods = methods.clone();
        methods.sort_unstable();
        assert_eq!(allowed, methods, "{path}");
        if !matches!(&*path, "/send" | "/close" | "/broadcast") {
            api.validate(&json!({ "$ref": "#/components/schemas/Error" }), &answer.json(), &path);
        }
    }
    for path in [
        "/",
        "/publish/",
        "/publish/raw/x",
        "/publish/batch/x",
        "/users",
        "/users/",
        "/sessions/",
        "/sessions/a/groups",
        "/sessions/a/b",
        "/groups/",
        "/groups/a/b",
        "/sessions/a/groups/b/c",
        "/Publish",
        "/sessions/%zz",
    ] {
        let answer = hub.request("GET", path, &[], b"");
        assert!(matches!(answer.status, 404 | 400), "{path}: {answer:?}");
        api.validate(&json!({ "$ref": "#/components/schemas/Error" }), &answer.json(), path);
    }
}
