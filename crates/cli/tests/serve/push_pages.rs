//! Pages in a browser against `oroshi push`: what those of other origins may not do, and what those that may connect
//! can.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::push;
use crate::push::{Answer, Backend, Got, HANG, Process, opening, request_at, websocket_at};
use oroshi_testkit::chromium::{self, Browser};
use oroshi_testkit::skipped;
use serde_json::{Value, json};

/// A hub, by the ports of its listeners.
struct Hub {
    ports: Vec<u16>,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Hub {
    /// On these listeners of 127.0.0.1, in the order in which it tells of them (public, admin, everything), with these
    /// lines of TOML in front of `[listen]` and these behind.
    fn start(before: &str, listen: &[&str], behind: &str) -> Hub {
        let folder = tempfile::tempdir().unwrap();
        let mut text = format!("threads = 1\n{before}\n[listen]\n");
        for key in listen {
            let _ = writeln!(text, "{key} = \"127.0.0.1:0\"");
        }
        text.push_str(behind);
        let file = folder.path().join("push.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
        let mut process = push::start(command.args(["push", "--config"]).arg(&file).env("TOKEN", "s3cret")).unwrap();
        Hub { ports: process.ports(listen.len()), _process: process, _folder: folder }
    }

    fn port(&self) -> u16 {
        self.ports[0]
    }

    /// Where operators ask.
    fn admin(&self) -> u16 {
        *self.ports.last().unwrap()
    }

    fn status(&self) -> Value {
        request_at(self.admin(), "GET", "/status", &["Host: localhost"], b"").json()
    }

    /// Waits until `/status` is as `is` wants it.
    fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < HANG, "{what}: {status}");
            std::thread::yield_now();
        }
    }

    /// Publishes to a session, and says how many got it.
    fn publish(&self, session: &str, text: &str) -> Value {
        let target = format!("/publish/raw?session={session}&wait=written");
        request_at(self.admin(), "POST", &target, &["Host: localhost"], text.as_bytes()).json()["matched"].clone()
    }
}

/// The name of an error.
fn error(answer: &Answer) -> String {
    answer.json()["error"].as_str().unwrap().to_owned()
}

/// What gives orders, or asks what is for operators alone.
const ORDERS: [(&str, &str, &str); 13] = [
    ("POST", "/publish/raw?all=1", "x"),
    ("POST", "/publish", r#"{"all":true,"text":"x"}"#),
    ("POST", "/send", r#"{"UUID":"a"}"#),
    ("POST", "/broadcast", "x"),
    ("POST", "/close", "x"),
    ("DELETE", "/sessions/a", ""),
    ("PUT", "/sessions/a/groups/g", ""),
    ("DELETE", "/sessions/a/groups/g", ""),
    ("GET", "/sessions/a", ""),
    ("GET", "/groups/g", ""),
    ("GET", "/status", ""),
    ("GET", "/metrics", ""),
    ("GET", "/stats", ""),
];

#[test]
fn orders_of_foreign_pages_are_refused_on_every_listener() {
    let hub = Hub::start("", &["admin", "everything"], "");
    for &port in &hub.ports {
        let published = hub.status()["published"]["messages"].clone();
        let host = format!("Host: 127.0.0.1:{port}");
        let (own, other_port) =
            (format!("Origin: http://127.0.0.1:{port}"), format!("Origin: http://127.0.0.1:{}", port ^ 1));
        for (method, target, body) in ORDERS {
            let ask = |headers: &[&str]| {
                let headers = [&[&*host][..], headers].concat();
                request_at(port, method, target, &headers, body.as_bytes())
            };
            for foreign in [
                &["Origin: http://evil.test"][..],
                &["Origin: null"],
                &["Origin: https://127.0.0.1"],
                &[&*other_port],
                &["Sec-Fetch-Site: cross-site"],
                &["Sec-Fetch-Site: same-site"],
                &["Sec-Fetch-Site: cross-site", &*own],
                &[&*own, "Origin: http://evil.test"],
                &["Sec-Fetch-Site: something-new"],
            ] {
                let answer = ask(foreign);
                assert_eq!(answer.status, 403, "{method} {target} {foreign:?}: {answer:?}");
                assert_eq!(error(&answer), "forbidden-origin", "{method} {target} {foreign:?}");
                assert_eq!(answer.field("Access-Control-Allow-Origin"), None, "{answer:?}");
            }
            if (method, target) == ("POST", "/publish/raw?all=1") {
                assert_eq!(hub.status()["published"]["messages"], published);
            }
        }
        for (method, target, body) in ORDERS {
            for welcome in [
                &[][..],
                &["Sec-Fetch-Site: none"],
                &["Sec-Fetch-Site: same-origin"],
                &[&*own, "Sec-Fetch-Site: same-origin"],
            ] {
                let headers = [&[&*host][..], welcome].concat();
                let answer = request_at(port, method, target, &headers, body.as_bytes());
                assert_ne!(answer.status, 403, "{method} {target} {welcome:?}: {answer:?}");
            }
        }
        assert_eq!(request_at(port, "GET", "/ping", &["Origin: http://evil.test"], b"").status, 200);
    }
}

#[test]
fn a_name_that_was_made_to_lead_here_gives_no_orders() {
    let hub = Hub::start("", &["admin", "everything"], "");
    let [admin, everything] = hub.ports[..] else { panic!("{:?}", hub.ports) };
    for (method, target, body) in ORDERS {
        let ask = |port: u16, headers: &[&str]| request_at(port, method, target, headers, body.as_bytes());
        for name in
            ["evil.test", "evil.test:80", "127.0.0.1.evil.test", "localhost.evil.test", "192.0.2.1", "127.1.evil.test"]
        {
            let answer = ask(admin, &[&format!("Host: {name}")]);
            assert_eq!((answer.status, &*error(&answer)), (403, "forbidden-host"), "{method} {target} {name}");
        }
        for name in ["localhost", "LocalHost:1", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:9181"] {
            let answer = ask(admin, &[&format!("Host: {name}")]);
            assert_ne!(answer.status, 403, "{method} {target} {name}: {answer:?}");
        }
        // Backends name the hub as they like; pages by a name that is theirs.
        assert_ne!(ask(everything, &["Host: hub.test"]).status, 403);
        for page in
            [&["Host: evil.test", "Origin: http://evil.test"][..], &["Host: evil.test", "Sec-Fetch-Site: same-origin"]]
        {
            let answer = ask(everything, page);
            assert_eq!((answer.status, &*error(&answer)), (403, "forbidden-host"), "{method} {target} {page:?}");
        }
        assert_ne!(ask(everything, &["Host: 192.0.2.1", "Origin: http://192.0.2.1"]).status, 403);
    }
    // Whoever knows the token is no page that came by a name.
    let hub = Hub::start("", &["admin", "everything"], "[auth]\ntoken-env = \"TOKEN\"\n");
    for &port in &hub.ports {
        let ask = |headers: &[&str]| request_at(port, "GET", "/status", headers, b"").status;
        assert_eq!(ask(&["Host: push_upstream"]), 401);
        assert_eq!(ask(&["Host: push_upstream", "Authorization: Bearer s3cret"]), 200);
        assert_eq!(ask(&["Host: a.test", "Origin: http://a.test", "Authorization: Bearer s3cret"]), 200);
        assert_eq!(ask(&["Host: a.test", "Origin: http://b.test", "Authorization: Bearer s3cret"]), 403);
    }
}

#[test]
fn only_transports_that_are_offered_open_a_session() {
    let targets =
        [("/connect", 200), ("/connect?transport=sse", 200), ("/connect?transport=poll", 200), ("/poll", 400)];
    let hub = Hub::start("", &["everything"], "");
    for (target, status) in targets {
        assert_eq!(opening(hub.port(), target, &[]).0.status, status, "{target}");
    }
    assert_eq!(opening(hub.port(), "/connect", &["Accept: text/event-stream"]).0.status, 200);

    let hub = Hub::start("transports = [\"websocket\"]", &["everything"], "");
    for (target, headers, status) in [
        ("/connect", &[][..], 426),
        ("/connect", &["Accept: text/event-stream"], 400),
        ("/connect?transport=sse", &[], 400),
        ("/connect?transport=stream", &[], 400),
        ("/connect?transport=poll", &[], 400),
        ("/poll?session=a&token=b", &[], 404),
    ] {
        let answer = opening(hub.port(), target, headers).0;
        assert_eq!(answer.status, status, "{target} {headers:?}: {answer:?}");
    }
    assert_eq!(opening(hub.port(), "/connect", &[]).0.field("Upgrade"), Some("websocket"));
    let mut client = websocket_at(hub.port(), "/connect", &[]).unwrap();
    client.text();
    assert_eq!(hub.status()["sessions"]["opened"], json!({"websocket": 1, "sse": 0, "stream": 0, "poll": 0}));

    let hub = Hub::start("transports = [\"sse\", \"poll\"]", &["everything"], "");
    for (target, status) in [("/connect", 400), ("/connect?transport=sse", 200), ("/connect?transport=poll", 200)] {
        assert_eq!(opening(hub.port(), target, &[]).0.status, status, "{target}");
    }
    let refused = websocket_at(hub.port(), "/connect", &[]).err().unwrap();
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(refused.status == 400 && message.contains("expected sse or poll"), "{message}");
}

#[test]
fn what_a_browser_loads_by_itself_opens_no_session() {
    let hub = Hub::start("", &["everything"], "");
    for target in ["/connect", "/connect?transport=sse", "/connect?transport=poll"] {
        for mode in ["navigate", "no-cors", "Navigate"] {
            let answer = opening(hub.port(), target, &[&format!("Sec-Fetch-Mode: {mode}")]).0;
            assert_eq!((answer.status, &*error(&answer)), (403, "forbidden-fetch"), "{target} {mode}");
        }
        for mode in ["cors", "same-origin"] {
            let answer = opening(hub.port(), target, &[&format!("Sec-Fetch-Mode: {mode}")]).0;
            assert_eq!(answer.status, 200, "{target} {mode}");
        }
    }
    assert!(websocket_at(hub.port(), "/connect", &["Sec-Fetch-Mode: websocket"]).is_ok());
}

/// Browsers say which page asks by Origin, or by Sec-Fetch-Site; over plain HTTP some say neither.
#[test]
fn where_origins_are_set_a_browser_that_does_not_say_which_page_asks_is_refused() {
    const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64)";
    let list = "origins = [\"http://app.test\"]";
    let (list, name) =
        (Hub::start(list, &["everything"], ""), Hub::start("origins = \"same-hostname\"", &["everything"], ""));
    for (headers, welcome) in [
        // No browser: it need not say anything.
        (&[][..], true),
        (&["Cookie: a=b", "User-Agent: curl/8.0"], true),
        (&["Cookie: a=b"], true),
        (&["Authorization: Basic YTpi", "User-Agent: Go-http-client/1.1"], true),
        // A page, by its origin.
        (&["Origin: http://app.test"], true),
        (&["Origin: http://evil.test"], false),
        (&["Origin: null"], false),
        (&["Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Cookie: a=b", BROWSER], true),
        (&["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Cookie: a=b", BROWSER], false),
        (&["Sec-Fetch-Site: same-site", "Cookie: a=b"], false),
        // A browser that says neither: it comes with what identifies its user, and with the page only in Referer.
        (&["Cookie: a=b", BROWSER], false),
        (&["Cookie: a=b", BROWSER, "Accept: text/event-stream"], false),
        (&["Cookie: a=b", BROWSER, "Referer: http://evil.test/app.test"], false),
        (&["Cookie: a=b", BROWSER, "Referer: http://app.test.evil.test/"], false),
        (&["Authorization: Basic YTpi", BROWSER], false),
        (&["Cookie: a=b", BROWSER, "Referer: http://app.test/page?x"], true),
        (&["Cookie: a=b", BROWSER, "Referer: http://app.test"], true),
        (&["Authorization: Bearer x", BROWSER], true),
        (&[BROWSER], true),
    ] {
        for hub in [&list, &name] {
            let headers = [&["Host: app.test"][..], headers].concat();
            let answer = opening(hub.port(), "/connect", &headers).0;
            let (status, refusal) = (answer.status, if answer.status == 200 { String::new() } else { error(&answer) });
            let expected = if welcome { (200, "") } else { (403, "forbidden-origin") };
            assert_eq!((status, &*refusal), expected, "{headers:?}");
        }
    }
    // A handshake for WebSocket has an Origin if it is a browser's.
    assert!(websocket_at(list.port(), "/connect", &["Cookie: a=b", BROWSER]).is_ok());
    // To poll takes a token, and a page that may connect.
    let poll = |headers: &[&str]| opening(list.port(), "/poll?session=a&token=b", headers).0.status;
    assert_eq!((poll(&[]), poll(&["Origin: http://app.test"]), poll(&["Origin: http://evil.test"])), (404, 404, 403));
}

#[test]
fn who_takes_a_pages_key_shows_a_page_too() {
    let backend = Backend::start();
    let callbacks = format!("[callbacks]\nconnect = \"http://{}/connect\"\n", backend.address);
    let hub = Hub::start("origins = [\"http://app.test\"]", &["public", "admin"], &callbacks);
    let page = ["Origin: http://app.test"];
    let mut first = websocket_at(hub.port(), "/connect?key=a", &page).unwrap();
    for (target, upgrades) in [
        ("/connect?key=a", false),
        ("/connect?key=a&transport=sse", false),
        ("/connect?key=a&transport=poll", false),
        ("/connect?key=a", true),
    ] {
        let refused = match upgrades {
            true => websocket_at(hub.port(), target, &[]).err().unwrap(),
            false => opening(hub.port(), target, &[]).0,
        };
        assert_eq!((refused.status, &*error(&refused)), (403, "forbidden-takeover"), "{target}");
    }
    assert_eq!(hub.publish("a", "still here"), 1);
    assert_eq!(first.text(), "still here");
    // Another page of the same origin has it.
    let mut second = websocket_at(hub.port(), "/connect?key=a", &page).unwrap();
    assert!(matches!(first.next(), Got::Close(Some(4000), _)));
    assert_eq!(hub.publish("a", "second"), 1);
    assert_eq!(second.text(), "second");
    // What no page opened, anybody takes whom the backend lets in.
    let mut program = websocket_at(hub.port(), "/connect?key=b", &[]).unwrap();
    let mut again = websocket_at(hub.port(), "/connect?key=b", &[]).unwrap();
    assert!(matches!(program.next(), Got::Close(Some(4000), _)));
    let _page = websocket_at(hub.port(), "/connect?key=b", &page).unwrap();
    assert!(matches!(again.next(), Got::Close(Some(4000), _)));
    // Once the page has gone, its key is free.
    second.stream.shutdown(Shutdown::Both).unwrap();
    hub.until("the page's session has gone", |status| status["sessions"]["current"] == 1);
    assert!(websocket_at(hub.port(), "/connect?key=a", &[]).is_ok());
}

#[test]
fn pages_read_answers_with_credentials_where_their_origin_is_named() {
    let named = "origins = [\"http://app.test\", \"https://b.test\"]";
    let (named, any) = (Hub::start(named, &["everything"], ""), Hub::start("", &["everything"], ""));
    let asked = [
        "Origin: http://app.test",
        "Access-Control-Request-Method: GET",
        "Access-Control-Request-Headers: authorization",
    ];
    for (hub, credentials) in [(&named, Some("true")), (&any, None)] {
        for target in ["/connect", "/connect?transport=poll", "/poll?session=a&token=b"] {
            let preflight = request_at(hub.port(), "OPTIONS", target, &asked, b"");
            assert_eq!(preflight.status, 204, "{target}: {preflight:?}");
            let header = |name| preflight.field(name);
            assert_eq!(header("Access-Control-Allow-Origin"), Some("http://app.test"));
            assert_eq!(header("Access-Control-Allow-Credentials"), credentials);
            assert_eq!(header("Access-Control-Allow-Methods"), Some("GET"));
            assert_eq!(header("Access-Control-Allow-Headers"), Some("authorization"));
            assert_eq!(header("Vary"), Some("Origin"));
            assert!(header("Access-Control-Max-Age").is_some());
        }
        for target in ["/connect?transport=sse", "/connect", "/connect?transport=poll", "/poll", "/connect?transport=x"]
        {
            let answer = opening(hub.port(), target, &asked[..1]).0;
            assert_eq!(answer.field("Access-Control-Allow-Origin"), Some("http://app.test"), "{target}");
            assert_eq!(answer.field("Access-Control-Allow-Credentials"), credentials, "{target}");
        }
    }
    for target in ["/connect", "/poll"] {
        let refused = request_at(named.port(), "OPTIONS", target, &["Origin: http://evil.test", asked[1]], b"");
        assert_eq!((refused.status, refused.field("Access-Control-Allow-Origin")), (403, None), "{target}");
        let refused = opening(named.port(), target, &["Origin: http://evil.test"]).0;
        assert_eq!((refused.status, refused.field("Access-Control-Allow-Origin")), (403, None), "{target}");
        let plain = request_at(named.port(), "OPTIONS", target, &[], b"");
        assert_eq!((plain.status, plain.field("Allow")), (204, Some("GET, OPTIONS")));
    }
    // What gives orders has no page to answer.
    let order = request_at(any.port(), "OPTIONS", "/publish", &asked, b"");
    assert_eq!((order.status, order.field("Access-Control-Allow-Origin")), (403, None));
}

#[test]
fn a_page_reads_why_the_backend_refuses_it() {
    let backend = Backend::start();
    let callbacks = format!("[callbacks]\nconnect = \"http://{}/connect\"\n", backend.address);
    let hub = Hub::start("origins = [\"http://app.test\"]", &["everything"], &callbacks);
    let answer = opening(hub.port(), "/connect?status=401", &["Origin: http://app.test"]).0;
    assert_eq!((answer.status, answer.field("Access-Control-Allow-Credentials")), (401, Some("true")), "{answer:?}");
}

#[test]
fn the_subprotocol_is_the_backends_choice_or_one_that_is_configured() {
    const OFFERS: &str = "Sec-WebSocket-Protocol: token.abc, chat.v2 ,chat.v1";
    let mut backend = Backend::start();
    let callbacks = format!("[callbacks]\nconnect = \"http://{}/connect\"\n", backend.address);
    let chosen = |hub: &Hub, target: &str, headers: &[&str]| match websocket_at(hub.port(), target, headers) {
        Ok(client) => {
            let line = client.head.lines().find(|line| line.to_ascii_lowercase().starts_with("sec-websocket-protocol"));
            Ok(line.map(|line| line.split_once(": ").unwrap().1.to_owned()))
        }
        Err(answer) => Err(answer.status),
    };
    let configured = "subprotocols = [\"chat.v1\", \"chat.v2\"]";
    let alone = Hub::start(configured, &["everything"], "");
    assert_eq!(chosen(&alone, "/connect", &[OFFERS]), Ok(Some("chat.v2".into())), "the client's order counts");
    assert_eq!(chosen(&alone, "/connect", &["Sec-WebSocket-Protocol: x", OFFERS]), Ok(Some("chat.v2".into())));
    assert_eq!(chosen(&alone, "/connect", &[]), Ok(None));
    assert_eq!(chosen(&alone, "/connect", &["Sec-WebSocket-Protocol: x, CHAT.V1"]), Err(400));

    let asked = Hub::start(configured, &["everything"], &callbacks);
    assert_eq!(chosen(&asked, "/connect?key=a&protocol=token.abc", &[OFFERS]), Ok(Some("token.abc".into())));
    let called = backend.next("connect").unwrap();
    assert!(called.has("Sec-WebSocket-Protocol", "token.abc, chat.v2 ,chat.v1"), "{called:?}");
    assert_eq!(called.header("Sec-WebSocket-Key"), None, "{called:?}");
    assert_eq!(chosen(&asked, "/connect?key=a", &[OFFERS]), Ok(Some("chat.v2".into())));
    assert_eq!(chosen(&asked, "/connect?key=a&protocol=other", &[OFFERS]), Err(502));
    assert_eq!(chosen(&asked, "/connect?key=a&protocol=other", &[]), Ok(None), "there is nothing to choose from");
    assert_eq!(chosen(&asked, "/connect?key=a", &["Sec-WebSocket-Protocol: x"]), Err(400));
    assert_eq!(opening(asked.port(), "/connect?key=b&protocol=other", &[]).0.status, 200, "a stream has none");

    let none = Hub::start("", &["everything"], &callbacks);
    assert_eq!(chosen(&none, "/connect?key=a", &[OFFERS]), Ok(None));
    assert_eq!(chosen(&none, "/connect?key=a&protocol=chat.v1", &[OFFERS]), Ok(Some("chat.v1".into())));
}

/// Serves one page at every path, with a cookie that identifies the user to the backend.
fn pages(cookie: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = move |stream: TcpStream| {
        // A browser opens connections ahead, on which nothing may ever come.
        if BufReader::new(&stream).lines().map_while(Result::ok).any(|line| line.is_empty()) {
            let body = "<!doctype html><title>a page</title><p id=state>a page</p><p id=log></p>";
            let set = if cookie.is_empty() { String::new() } else { format!("Set-Cookie: {cookie}; Path=/\r\n") };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{set}Content-Length: {}", body.len());
            let _ = write!(&stream, "{head}\r\nConnection: close\r\n\r\n{body}");
        }
    };
    std::thread::spawn(move || {
        listener.incoming().map_while(Result::ok).for_each(|stream| drop(std::thread::spawn(move || answer(stream))));
    });
    port
}

/// What a page does to be a user: a WebSocket, and what it gets.
fn user(port: u16) -> String {
    format!(
        "window.got = []; window.ended = []
         window.socket = new WebSocket('ws://127.0.0.1:{port}/connect')
         socket.onmessage = event => got.push(event.data)
         socket.onclose = event => ended.push(event.code)
         new Promise((done, failed) => {{ socket.onopen = () => done('open'); socket.onerror = () => failed('refused') \
         }})"
    )
}

#[test]
fn a_page_of_another_site_neither_publishes_nor_takes_a_session() {
    let test = "a_page_of_another_site_neither_publishes_nor_takes_a_session";
    let Some(program) = chromium::need(test) else { return };
    let backend = Backend::start();
    let app = pages("key=me");
    let callbacks = format!("[callbacks]\nconnect = \"http://{}/connect\"\n", backend.address);
    let origins = format!("origins = [\"http://127.0.0.1:{app}\"]");
    let hub = Hub::start(&origins, &["public", "admin"], &callbacks);
    let (port, admin) = (hub.port(), hub.admin());
    let mut browser = Browser::start(program);
    let victim = browser.tab(&format!("http://127.0.0.1:{app}/"));
    assert_eq!(browser.evaluate(&victim, &user(port)), "open");

    // Another site, as `localhost` is another one than 127.0.0.1; and another origin of the same site.
    let evil = pages("");
    for origin in [format!("http://localhost:{evil}/"), format!("http://127.0.0.1:{evil}/")] {
        let attacker = browser.tab(&origin);
        for (target, body) in
            [("/publish/raw?all=1", "x"), ("/broadcast", "x"), ("/send", r#"{"UUID":"me","text":"x"}"#)]
        {
            let script = format!(
                "fetch('http://127.0.0.1:{admin}{target}', {{method: 'POST', mode: 'no-cors', credentials: 'include', \
                 body: '{body}'}})
                   .then(answer => answer.type)"
            );
            assert_eq!(browser.evaluate(&attacker, &script), "opaque", "the request was made");
        }
        // As an image, in a frame, by fetch, in the place of the page itself: each of them is refused, and counted.
        let refused = hub.status()["sessions"]["connect_errors"].as_u64().unwrap();
        let connect = format!("http://127.0.0.1:{port}/connect");
        for (at, attack) in [
            format!("document.body.append(Object.assign(new Image(), {{src: '{connect}'}}))"),
            format!("document.body.append(Object.assign(document.createElement('iframe'), {{src: '{connect}'}}))"),
            format!(
                "fetch('{connect}', {{mode: 'no-cors', credentials: 'include', headers: {{Accept: \
                     'text/event-stream'}}}}).catch(() => 0)"
            ),
            format!("fetch('{connect}?transport=poll', {{credentials: 'include'}}).catch(() => 0)"),
            format!("setTimeout(() => location.href = '{connect}')"),
        ]
        .into_iter()
        .enumerate()
        {
            // None of them is waited for: what is let in has no end.
            browser.evaluate(&attacker, &format!("void ({attack})"));
            let expected = refused + at as u64 + 1;
            hub.until(&format!("{origin}: {attack}"), |status| {
                let sessions = &status["sessions"];
                assert_eq!(sessions["current"], 1, "{origin}: {attack}: {status}");
                assert_eq!(sessions["ended"]["replaced"], 0, "{origin}: {attack}: {status}");
                sessions["connect_errors"].as_u64().unwrap() >= expected
            });
        }
    }
    assert_eq!(hub.status()["published"]["messages"], 0);
    assert_eq!(hub.publish("me", "for me"), 1);
    let first = "new Promise(done => { if (got[0]) done(got[0]); socket.addEventListener('message', event => \
                 done(event.data)) })";
    assert_eq!(browser.evaluate(&victim, first), "for me");
    assert_eq!(browser.evaluate(&victim, "ended.length"), 0);
}

#[test]
fn a_page_that_may_connect_has_every_transport_with_its_cookies() {
    let test = "a_page_that_may_connect_has_every_transport_with_its_cookies";
    let Some(program) = chromium::need(test) else { return };
    let backend = Backend::start();
    let app = pages("key=me");
    let callbacks = format!("[callbacks]\nconnect = \"http://{}/connect\"\n", backend.address);
    let first = format!("subprotocols = [\"chat.v1\"]\norigins = [\"http://127.0.0.1:{app}\"]");
    let hub = Hub::start(&first, &["public", "admin"], &callbacks);
    let connect = format!("http://127.0.0.1:{}/connect", hub.port());
    let mut browser = Browser::start(program);
    let tab = browser.tab(&format!("http://127.0.0.1:{app}/"));

    let events = format!(
        "window.events = new EventSource('{connect}', {{withCredentials: true}})
         window.event = new Promise(done => events.onmessage = event => done(event.data))
         new Promise((done, failed) => {{ events.onopen = () => done('open'); events.onerror = () => failed('refused') \
         }})"
    );
    assert_eq!(browser.evaluate(&tab, &events), "open");
    assert_eq!(hub.publish("me", "an event"), 1);
    assert_eq!(browser.evaluate(&tab, "event.then(data => { events.close(); return data })"), "an event");

    // A header that takes a preflight.
    let poll = format!(
        "fetch('{connect}?transport=poll', {{credentials: 'include', headers: {{Authorization: 'Bearer x'}}}})
           .then(answer => answer.json()).then(({{session, token}}) => {{
             window.poll = fetch(`{}?session=${{session}}&token=${{token}}&after=0`, {{credentials: 'include'}})
             return session }})",
        connect.replace("/connect", "/poll")
    );
    assert_eq!(browser.evaluate(&tab, &poll), "me");
    request_at(hub.admin(), "POST", "/publish/raw?session=me", &["Host: localhost"], b"polled");
    let polled = "poll.then(answer => answer.json()).then(batch => batch.messages[0].text)";
    assert_eq!(browser.evaluate(&tab, polled), "polled");

    let socket = |query: &str, offers: &str| {
        format!(
            "new Promise(done => {{
               const socket = new WebSocket('{}{query}', {offers})
               socket.onopen = () => {{ done(socket.protocol); socket.close() }}
               socket.onerror = () => done('refused') }})",
            connect.replace("http:", "ws:")
        )
    };
    for (query, offers, protocol) in [
        ("", "['token.abc', 'chat.v1']", "chat.v1"),
        ("?protocol=token.abc", "['token.abc', 'chat.v1']", "token.abc"),
        ("", "[]", ""),
        ("", "['other']", "refused"),
    ] {
        assert_eq!(browser.evaluate(&tab, &socket(query, offers)), protocol, "{offers}");
    }
}

#[test]
fn nodes_websocket_has_the_subprotocol_that_is_configured() {
    let test = "nodes_websocket_has_the_subprotocol_that_is_configured";
    let has_one =
        Command::new("node").args(["--experimental-websocket", "-e", "new WebSocket"]).stderr(Stdio::piped()).output();
    // Without an address it says so where there is one.
    if !has_one.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("TypeError")) {
        return skipped(test, "node with WebSocket is not installed");
    }
    let hub = Hub::start("subprotocols = [\"chat.v1\"]", &["everything"], "");
    let script = format!(
        "const socket = new WebSocket('ws://127.0.0.1:{}/connect', ['x', 'chat.v1'])
         socket.onmessage = () => {{ console.log(socket.protocol); socket.close() }}
         socket.onerror = () => {{ console.log('refused'); process.exit(1) }}",
        hub.port()
    );
    let output = Command::new("node").args(["--experimental-websocket", "-e", &script]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "chat.v1", "{output:?}");
}
