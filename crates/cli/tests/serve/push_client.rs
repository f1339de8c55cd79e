//! The client of `clients/js` against hubs that end sessions, drain and are killed, in Node and in Chromium.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use oroshi_testkit::chromium::{self, Browser};
use oroshi_testkit::http::{end_of_head, read_more};
use oroshi_testkit::ports::Port;
use oroshi_testkit::{need, skipped};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::push;
use crate::push::{HANG, Process};

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/js");

const SECRET: &str = "a secret of at least thirty-two bytes";

/// The module that the repository has is what its source makes, and small.
#[test]
fn the_module_is_built_from_its_source() {
    const TEST: &str = "the_module_is_built_from_its_source";
    let committed = |name: &str| std::fs::read(Path::new(CLIENT).join("dist").join(name)).unwrap();
    let mut gzip =
        Command::new("gzip").args(["-9", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    gzip.stdin.take().unwrap().write_all(&committed("index.js")).unwrap();
    let packed = gzip.wait_with_output().unwrap().stdout.len();
    assert!((1000..=6 * 1024).contains(&packed), "{packed} bytes");
    if need(TEST, "node").is_none() {
        return;
    }
    if !Path::new(CLIENT).join("node_modules/.bin/esbuild").exists() {
        return skipped(TEST, "the compilers of clients/js are not installed: scripts/build-client-js installs them");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(CLIENT).join("../../scripts/build-client-js");
    let built = Command::new(script).arg(folder.path()).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    for name in ["index.js", "index.d.ts"] {
        let is_same = std::fs::read(folder.path().join(name)).unwrap() == committed(name);
        assert!(is_same, "clients/js/dist/{name} is outdated: run scripts/build-client-js");
    }
}

/// A hub at one port, which can be started again.
struct Hub {
    port: Port,
    folder: tempfile::TempDir,
    process: Process,
}

impl Hub {
    /// Starts one with these lines before its tables.
    fn start(first: &str) -> Hub {
        let (port, folder) = (Port::reserve(), tempfile::tempdir().unwrap());
        let text = format!(
            r#"{first}
[listen]
everything = "{}"
[drain]
timeout = "2s"
retry-after = "100ms"
[jwt]
secret-env = "JWT_SECRET"
leeway = 0
required = false
[[group]]
pattern = "secret"
[[group]]
pattern = "delta"
subscribe = "anyone"
delta = true
[[group]]
pattern = "price"
subscribe = "anyone"
delta = true
latest = true
[[group]]
pattern = "*"
subscribe = "anyone"
subscribe-patterns = true
publish = "users"
see-history = "anyone"
see-presence = "anyone"
presence-events = true
history-messages = 1000
"#,
            port.address()
        );
        std::fs::write(folder.path().join("push.toml"), text).unwrap();
        let process = Hub::process(folder.path());
        Hub { port, folder, process }
    }

    fn process(folder: &Path) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
        command.args(["push", "--config"]).arg(folder.join("push.toml")).env("JWT_SECRET", SECRET);
        push::start(&mut command).unwrap()
    }

    /// Ends it with a signal, and starts it again.
    fn restart(&mut self, signal: Signal) {
        self.process.signal(signal);
        let _ = self.process.ended();
        self.process = Hub::process(self.folder.path());
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.port.address())
    }

    fn request(&self, method: &str, target: &str, body: &[u8]) -> push::Answer {
        let mut stream = oroshi_testkit::http::connect(self.port.address());
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        push::Answer::read(stream)
    }

    fn publish(&self, text: &str) {
        self.publish_to("news", text);
    }

    fn publish_to(&self, channel: &str, text: &str) {
        let answer = self.request("POST", &format!("/publish/raw?group={channel}"), text.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// A client in a process of Node.
pub(crate) struct Node {
    child: Child,
    input: ChildStdin,
    lines: Receiver<Value>,
    seen: Vec<Value>,
    /// How many of the seen lines were looked at for a member.
    looked: HashMap<String, usize>,
}

impl Node {
    /// Whether the installed Node knows WebSocket.
    pub(crate) fn has_websocket() -> bool {
        let tried = Command::new("node").args(["--experimental-websocket", "-e", "new WebSocket('ws://[')"]).output();
        !tried.is_ok_and(|tried| String::from_utf8_lossy(&tried.stderr).contains("Reference"))
    }

    /// `ca` of the options: a file with the authority that signs the hub's certificate.
    pub(crate) fn start(options: &Value) -> Node {
        let module = format!("file://{}", PathBuf::from(CLIENT).join("dist/index.js").display());
        let mut all = json!({ "module": module, "timeout": 5000, "longestPause": 500 });
        all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let mut command = Command::new("node");
        // Before version 22, WebSocket is an experiment.
        command.args(["--no-warnings", "--experimental-websocket"]);
        command.arg(Path::new(CLIENT).join("test/client.mjs")).arg(all.to_string());
        if let Some(ca) = options["ca"].as_str() {
            command.env("NODE_EXTRA_CA_CERTS", ca);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).all(|line| tell.send(serde_json::from_str(&line).unwrap()).is_ok())
        });
        Node { child, input, lines, seen: Vec::new(), looked: HashMap::new() }
    }

    pub(crate) fn send(&mut self, command: &Value) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// The member of the next line that has it. Lines with other members may come in between.
    #[track_caller]
    pub(crate) fn next(&mut self, member: &str) -> Value {
        let looked = self.looked.entry(member.to_owned()).or_default();
        loop {
            while let Some(line) = self.seen.get(*looked) {
                *looked += 1;
                if let Some(value) = line.get(member) {
                    return value.clone();
                }
            }
            let Ok(line) = self.lines.recv_timeout(HANG) else { panic!("no {member}: {:#?}", self.seen) };
            self.seen.push(line);
        }
    }

    /// The next line about its state in which it is this one.
    #[track_caller]
    pub(crate) fn until(&mut self, state: &str) -> Value {
        while self.next("state") != state {}
        self.seen[self.looked["state"] - 1].clone()
    }

    /// The next answer that is no mere consent.
    #[track_caller]
    fn answer(&mut self) -> Value {
        loop {
            let answer = self.next("answer");
            if !answer.is_null() {
                return answer;
            }
        }
    }

    #[track_caller]
    pub(crate) fn texts<const N: usize>(&mut self) -> [String; N] {
        [(); N].map(|()| self.next("text").as_str().unwrap().to_owned())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn comes_back_whatever_happens(test: &str, transport: &str) {
    if need(test, "node").is_none() {
        return;
    }
    if transport == "websocket" && !Node::has_websocket() {
        return skipped(test, "this Node has no WebSocket");
    }
    let mut hub = Hub::start("");
    let mut client = Node::start(
        &json!({ "url": hub.url("/connect"), "transports": [transport], "secret": SECRET, "lifetime": 3600 }),
    );
    client.send(&json!({ "subscribe": "news" }));
    let connected = client.until("connected");
    assert_eq!((&connected["transport"], &connected["user"]), (&json!(transport), &json!("ann")), "{connected}");
    assert_eq!(client.next("subscribed")["offset"], 0);
    for text in ["1", "2"] {
        hub.publish(text);
    }
    assert_eq!(client.texts(), ["1", "2"]);
    client.send(&json!({ "publish": ["news", "3"] }));
    client.send(&json!({ "publish": ["news", { "bytes": [0, 255] }] }));
    client.send(&json!({ "publish": ["secret", "x"] }));
    assert_eq!((client.texts(), client.next("base64")), (["3".to_owned()], json!("AP8=")));
    assert_eq!(client.next("error"), "forbidden");
    client.send(&json!({ "presence": "news" }));
    assert_eq!(client.answer()["list"][0]["user"], "ann");
    client.send(&json!({ "history": "news" }));
    assert_eq!(client.answer()["messages"].as_array().unwrap().len(), 4);
    client.send(&json!({ "subscribe": "secret" }));
    assert_eq!(client.next("ended"), "forbidden");

    // The backend ends the session: the client comes back, and gets what it missed.
    assert_eq!(hub.request("DELETE", "/users/ann", b"").json()["sessions"], 1);
    for text in ["5", "6", "7"] {
        hub.publish(text);
    }
    let subscribed = client.next("subscribed");
    assert_eq!(subscribed["recovered"], true, "{subscribed}");
    assert_eq!(client.texts(), ["5", "6", "7"]);

    // The hub drains and is killed. Its history is gone, and the client gets `recovered: false`.
    for (signal, text) in [(Signal::TERM, "8"), (Signal::KILL, "9")] {
        hub.restart(signal);
        let subscribed = client.next("subscribed");
        assert_eq!(subscribed["recovered"], false, "{subscribed}");
        hub.publish(text);
        assert_eq!(client.texts(), [text]);
    }
    client.send(&json!({ "unsubscribe": "news" }));
    client.send(&json!({ "subscribe": "new*" }));
    client.next("subscribed");
    hub.publish("10");
    assert_eq!(client.texts(), ["10"]);
    client.send(&json!({ "close": true }));
    client.until("closed");
    let all: Vec<_> = client.seen.iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(all, ["1", "2", "3", "5", "6", "7", "8", "9", "10"], "each once, in order");
}

#[test]
fn a_client_comes_back_over_websocket() {
    comes_back_whatever_happens("a_client_comes_back_over_websocket", "websocket");
}

#[test]
fn a_client_comes_back_over_events() {
    comes_back_whatever_happens("a_client_comes_back_over_events", "sse");
}

#[test]
fn a_client_comes_back_over_polls() {
    comes_back_whatever_happens("a_client_comes_back_over_polls", "poll");
}

/// The hub's own tests say which messages are deltas.
#[test]
fn a_client_builds_whole_texts_from_deltas() {
    if need("a_client_builds_whole_texts_from_deltas", "node").is_none() {
        return;
    }
    let hub = Hub::start("");
    let text =
        |number: u32| format!("{number} of many, \u{1f600} and what never changes in a long text: \u{e9} {number}");
    hub.publish_to("price", &text(9));
    for transport in ["sse", "poll"] {
        let mut client = Node::start(
            &json!({ "url": hub.url("/connect"), "transports": [transport], "secret": SECRET, "lifetime": 3600 }),
        );
        client.send(&json!({ "subscribe": "delta", "options": { "delta": true } }));
        assert_eq!(client.next("subscribed")["delta"], true);
        let mut sent = Vec::new();
        for _ in 0..2 {
            for number in [1, 2, 30, 4] {
                hub.publish_to("delta", &text(number));
                sent.push(text(number));
            }
            hub.publish_to("delta", "short");
            sent.push("short".to_owned());
            let all: Vec<String> = sent.iter().map(|_| client.next("text").as_str().unwrap().to_owned()).collect();
            assert_eq!(all, sent);
            sent.clear();
            // The messages that it misses come whole, and deltas begin at the last of them.
            assert_eq!(hub.request("DELETE", "/users/ann", b"").json()["sessions"], 1);
            hub.publish_to("delta", &text(5));
            sent.push(text(5));
            assert_eq!(client.next("subscribed")["recovered"], true);
        }
        assert_eq!(client.texts(), [text(5)]);
        // The newest value comes behind the answer, and a delta follows it without another subscription.
        client.send(&json!({ "subscribe": "price", "options": { "delta": true } }));
        assert_eq!(client.next("subscribed")["latest"], true);
        assert_eq!(client.texts(), [text(9)]);
        for number in [8, 9] {
            hub.publish_to("price", &text(number));
            assert_eq!(client.texts(), [text(number)]);
        }
        client.send(&json!({ "close": true }));
        client.until("closed");
        let of_price = |line: &&Value| line["subscribed"]["channel"] == "price";
        assert_eq!(client.seen.iter().filter(of_price).count(), 1, "{:?}", client.seen);
    }
}

/// The hub tells a client who is there, who comes and who goes; after a reconnection, who is there again.
fn sees_who_comes_and_goes(test: &str, transport: &str) {
    if need(test, "node").is_none() {
        return;
    }
    let mut hub = Hub::start("");
    let start = |transport: &str| {
        Node::start(&json!({
            "url": hub.url("/connect"), "transports": [transport], "secret": SECRET, "lifetime": 3600,
        }))
    };
    let (mut watcher, mut other) = (start(transport), start("poll"));
    watcher.send(&json!({ "subscribe": "room", "options": { "presence": true } }));
    assert_eq!(watcher.next("clients"), 1, "itself");
    other.send(&json!({ "subscribe": "room" }));
    let joined = watcher.next("joined");
    assert_eq!(joined["user"], "ann", "{joined}");
    assert!(other.next("subscribed").get("presence").is_none(), "it did not ask");
    other.send(&json!({ "unsubscribe": "room" }));
    assert_eq!(watcher.next("left"), joined);
    other.send(&json!({ "subscribe": "room" }));
    assert_eq!(watcher.next("joined"), joined);
    hub.restart(Signal::KILL);
    // The two come back in any order.
    let again = watcher.next("list").as_array().unwrap().len();
    if watcher.next("list").as_array().unwrap().len() == 1 {
        assert_eq!(again, 1);
        assert_eq!(watcher.next("joined")["user"], "ann");
    }
    watcher.send(&json!({ "subscribe": "room:*", "options": { "presence": true } }));
    assert_eq!(watcher.next("ended"), "forbidden", "a pattern has no presence");
    let direct: Vec<_> = watcher.seen.iter().filter(|line| line.get("text").is_some()).collect();
    assert!(direct.is_empty(), "{direct:?}");
}

#[test]
fn a_client_sees_who_comes_and_goes_over_events() {
    sees_who_comes_and_goes("a_client_sees_who_comes_and_goes_over_events", "sse");
}

#[test]
fn a_client_sees_who_comes_and_goes_over_polls() {
    sees_who_comes_and_goes("a_client_sees_who_comes_and_goes_over_polls", "poll");
}

/// 503 with Retry-After is no end of a session that polls: the client asks again for the same. Without, it is one.
#[test]
fn a_client_asks_a_busy_hub_again() {
    if need("a_client_asks_a_busy_hub_again", "node").is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/connect", listener.local_addr().unwrap());
    let busy = (503, "Retry-After: 0\r\n", "{}");
    let first = (200, "", r#"{"session":"s","client":"c","token":"t","next":0}"#);
    let batch = r#"{"messages":[{"id":2,"subscribed":{"channel":"news"}},{"channel":"news","text":"one"}],"next":1}"#;
    let (tell, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut polls, mut commands) = (VecDeque::from([busy, busy]), VecDeque::from([busy, (200, "", "[null]")]));
        let mut rest = [(200, "", batch), (503, "", "{}")].into_iter();
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = Vec::new();
            let target = loop {
                if let Some(end) = end_of_head(&bytes) {
                    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                    if bytes.len() >= end + length.unwrap_or(0) {
                        break head.split(' ').nth(1).unwrap().to_owned();
                    }
                }
                assert!(read_more(&mut stream, &mut bytes), "the client leaves");
            };
            let is_poll = target.starts_with("/poll");
            let answer = if is_poll {
                // It is busy until it has taken the commands, too.
                polls.pop_front().or_else(|| if commands.is_empty() { rest.next() } else { Some(busy) })
            } else if target.starts_with("/command") {
                commands.pop_front()
            } else {
                Some(first)
            };
            let _ = tell.send(target);
            let Some((status, fields, body)) = answer else {
                held.push(stream);
                continue;
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{fields}\r\n");
            let _ = stream.write_all((head + body).as_bytes());
        }
    });
    let mut client = Node::start(&json!({ "url": url, "transports": ["poll"] }));
    client.send(&json!({ "subscribe": "news" }));
    assert_eq!(client.next("subscribed")["channel"], "news");
    assert_eq!(client.texts(), ["one"]);
    let waiting = client.until("waiting");
    assert_eq!(waiting["why"], "503 to a poll", "{waiting}");
    client.until("connected");
    // The requests of the session that ends. The next session begins with another /connect, and polls from 0 again.
    let asked = asked.try_iter().enumerate().take_while(|(at, target)| *at == 0 || !target.starts_with("/connect"));
    let asked: Vec<String> = asked.map(|(_, target)| target).collect();
    let of = |what: &str| asked.iter().filter(|target| target.starts_with(what)).cloned().collect::<Vec<_>>();
    let polls = of("/poll?session=s&token=t&after=0");
    assert!(polls.len() >= 3, "{asked:?}");
    assert_eq!(of("/poll")[polls.len()..], ["/poll?session=s&token=t&after=1"], "{asked:?}");
    assert_eq!(of("/command"), [(); 2].map(|()| "/command?session=s&token=t".to_owned()));
}

#[test]
fn a_client_falls_back_to_what_the_hub_offers() {
    if need("a_client_falls_back_to_what_the_hub_offers", "node").is_none() {
        return;
    }
    for transport in ["sse", "poll"] {
        let hub = Hub::start(&format!("transports = [\"{transport}\"]"));
        let mut client = Node::start(&json!({ "url": hub.url("/connect") }));
        client.send(&json!({ "subscribe": "news" }));
        assert_eq!(client.until("connected")["transport"], transport);
        client.next("subscribed");
        hub.publish("x");
        assert_eq!(client.texts(), ["x"]);
    }
}

#[test]
fn a_client_refreshes_its_token() {
    if need("a_client_refreshes_its_token", "node").is_none() {
        return;
    }
    let hub = Hub::start("");
    let options = json!({ "url": hub.url("/connect"), "transports": ["sse"], "secret": SECRET, "lifetime": 8 });
    let mut client = Node::start(&options);
    client.until("connected");
    // The first is for connecting. When the third one comes, the first one has ended.
    (0..3).for_each(|_| drop(client.next("token")));
    let states: Vec<_> = client.seen.iter().filter_map(|line| line["state"].as_str()).collect();
    assert_eq!(states, ["connecting", "connected"]);
    assert_eq!(hub.request("GET", "/status", b"").json()["sessions"]["opened"]["sse"], 1);
}

#[test]
fn a_page_comes_back_when_its_hub_does() {
    let test = "a_page_comes_back_when_its_hub_does";
    let Some(program) = chromium::need(test) else { return };
    let mut hub = Hub::start("");
    let mut browser = Browser::start(program);
    let tab = browser.tab(&hub.url("/ping"));
    let module = std::fs::read_to_string(Path::new(CLIENT).join("dist/index.js")).unwrap();
    let script = format!(
        "(async () => {{
           const url = URL.createObjectURL(new Blob([{}], {{ type: 'text/javascript' }}))
           const {{ Push }} = await import(url)
           const log = document.body.appendChild(document.createElement('pre'))
           log.id = 'log'
           const print = (line) => log.append(line + '\\n')
           window.client = new Push({}, {{ longestPause: 500, state: (state) => print(state) }})
           client.subscribe('news', {{
             message: ({{ text }}) => print('got ' + text),
             subscribed: ({{ recovered }}) => print('recovered ' + recovered),
           }})
         }})()",
        json!(module),
        json!(hub.url("/connect"))
    );
    browser.evaluate(&tab, &script);
    browser.wait_for(&tab, "log.innerText.includes('recovered undefined')");
    assert_eq!(browser.evaluate(&tab, "client.transport"), "websocket");
    hub.publish("one");
    browser.wait_for(&tab, "log.innerText.includes('got one')");
    let sessions = hub.request("GET", "/sessions", b"").json();
    let key = sessions["sessions"][0].as_str().unwrap().to_owned();
    assert_eq!(hub.request("DELETE", &format!("/sessions/{key}"), b"").status, 204);
    hub.publish("two");
    browser.wait_for(&tab, "log.innerText.includes('recovered true\\ngot two')");
    for (signal, text) in [(Signal::TERM, "three"), (Signal::KILL, "four")] {
        hub.restart(signal);
        browser.wait_for(&tab, "log.innerText.trimEnd().endsWith('recovered false')");
        hub.publish(text);
        browser.wait_for(&tab, &format!("log.innerText.includes('got {text}')"));
    }
    browser.evaluate(&tab, "client.close()");
    browser.wait_for(&tab, "log.innerText.trimEnd().endsWith('closed')");
    let got = "log.innerText.match(/got .*/g).join(' ')";
    assert_eq!(browser.evaluate(&tab, got), "got one got two got three got four");
}
