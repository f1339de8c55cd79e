//! kuiperbelt's clients and backends, step by step (`push/cases.txt`): against ours always, and against kuiperbelt
//! itself where its `ekbo` is on the PATH.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use crate::push;
use crate::push::{Answer, Backend, Client, Got, Lines, Process, request};
use oroshi_testkit::need;
use oroshi_websocket::Kind;
use rustix::process::Signal;
use serde_json::{Value, json};

const CASES: &str = include_str!("../push/cases.txt");

/// How many cases run at the same time.
const AT_ONCE: usize = 4;

/// A case of the file.
struct Case {
    name: &'static str,
    /// It shows a trap that kuiperbelt has and ours has not.
    mended: bool,
    /// Each with its line in the file.
    steps: Vec<(usize, Vec<String>)>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (at, line) in CASES.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("== ") {
            let (name, mended) = name.strip_suffix(" [mended]").map_or((name, false), |name| (name, true));
            cases.push(Case { name, mended, steps: Vec::new() });
        } else {
            let words = shell_words::split(line).unwrap_or_else(|error| panic!("line {}: {error}", at + 1));
            cases.last_mut().unwrap().steps.push((at + 1, words));
        }
    }
    cases
}

/// Whose behaviour is looked at.
#[derive(Clone, Copy, PartialEq)]
enum Hub {
    Ours,
    Ekbo,
}

/// A case at work.
struct Scene {
    folder: tempfile::TempDir,
    backend: Backend,
    hub: Option<Process>,
    ends: bool,
    clients: HashMap<String, Client>,
    streams: HashMap<String, Lines>,
    /// How many messages a client that was stalled has still to read.
    unread: HashMap<String, usize>,
    /// What `$NAME` stands for.
    names: Vec<(String, String)>,
}

impl Scene {
    /// A folder and a backend; no hub yet.
    fn new() -> Self {
        Scene {
            folder: tempfile::tempdir().unwrap(),
            backend: Backend::start(),
            hub: None,
            ends: false,
            clients: HashMap::new(),
            streams: HashMap::new(),
            unread: HashMap::new(),
            names: Vec::new(),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("push.sock")
    }

    fn start(&mut self, hub: Hub, config: &[String], callbacks: &[String]) -> Result<(), String> {
        let mut lines: BTreeMap<&str, String> = BTreeMap::new();
        let mut callback = String::new();
        for name in callbacks {
            // Its query is there to be replaced.
            let query = if name == "connect" { "?configured=1" } else { "" };
            let _ = writeln!(callback, "  {name}: http://{}/{name}{query}", self.backend.address);
        }
        lines.insert("endpoint", " push.test:9180".into());
        lines.insert("compat", " ekbo".into());
        for line in config {
            match line.split_once(':').unwrap() {
                ("callback_timeout", value) => callback += &format!("  timeout:{value}\n"),
                (key, value) => {
                    lines.insert(key, value.to_owned());
                }
            }
        }
        if !callback.is_empty() {
            lines.insert("callback", format!("\n{}", callback.trim_end()));
        }
        let text: String = lines.iter().map(|(key, value)| format!("{key}:{value}\n")).collect();
        let file = self.folder.path().join("config.yml");
        std::fs::write(&file, text).unwrap();
        let mut command = match hub {
            Hub::Ours => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
                command.arg("push");
                command
            }
            Hub::Ekbo => {
                let mut command = Command::new("ekbo");
                command.args(["-gops-addr", "127.0.0.1:0"]);
                command
            }
        };
        self.hub = Some(push::start(command.arg("-config").arg(&file).arg("-sock").arg(self.socket()))?);
        Ok(())
    }

    /// Carries a step out.
    fn step(&mut self, words: &[String]) -> Result<(), String> {
        let words: Vec<String> = words.iter().map(|word| self.filled(word)).collect();
        let (asked, wanted) = match words.iter().position(|word| word == "->") {
            Some(at) => (&words[..at], Some(&words[at + 1..])),
            None => (&words[..], None),
        };
        let rest = &asked[1..];
        match (asked[0].as_str(), wanted) {
            ("connect", wanted) => self.connect(rest, wanted),
            ("say", None) => {
                let kind = if rest[1] == "text" { Kind::Text } else { Kind::Binary };
                self.client(&rest[0])?.send(kind, &bytes(&rest[1], &rest[2]));
                Ok(())
            }
            ("recv", None) => {
                let wanted = match rest[1].as_str() {
                    "text" => Got::Text(rest[2].clone()),
                    _ => Got::Binary(bytes("binary", &rest[2])),
                };
                same(&self.client(&rest[0])?.next(), &wanted)
            }
            ("bye", None) => {
                self.client(&rest[0])?.close(rest[1].parse().unwrap());
                Ok(())
            }
            ("drop", None) => {
                self.client(&rest[0])?;
                self.clients.remove(&rest[0]);
                Ok(())
            }
            ("ends", None) => {
                let client = self.client(&rest[0])?;
                if let Some(code) = rest.get(1) {
                    match client.next() {
                        Got::Close(Some(found), _) => same(&found.to_string(), code)?,
                        other => return Err(format!("expected a close frame of {code}, found {other:?}")),
                    }
                }
                same(&client.next(), &Got::End)?;
                self.clients.remove(&rest[0]);
                Ok(())
            }
            ("stream", None) => {
                let mut lines = Lines::open(&self.socket(), &rest[1]);
                let first: Value = serde_json::from_str(&lines.next()).map_err(|error| error.to_string())?;
                let key = first["UUID"].as_str().ok_or("the first line has no UUID")?;
                self.names.push((format!("${}", rest[0]), key.to_owned()));
                self.streams.insert(rest[0].clone(), lines);
                Ok(())
            }
            ("stall", None) => self.stall(&rest[0]),
            ("catch-up", None) => {
                for number in 0..self.unread.remove(&rest[0]).ok_or("it was not stalled")? {
                    same(&self.client(&rest[0])?.next(), &Got::Text(large(number)))?;
                }
                Ok(())
            }
            ("each", wanted) => {
                for number in 0..rest[0].parse().unwrap() {
                    let arrow = wanted.map(|wanted| [&["->".to_owned()], wanted].concat()).unwrap_or_default();
                    let step =
                        rest[1..].iter().chain(&arrow).map(|word| word.replace("{}", &usize::to_string(&number)));
                    self.step(&step.collect::<Vec<_>>())?;
                }
                Ok(())
            }
            ("line", None) => same(&self.streams.get_mut(&rest[0]).ok_or("no such stream")?.next(), &rest[1]),
            ("callback", None) => {
                let called = self.backend.next(&rest[0])?;
                let method = if rest[0] == "connect" { "GET" } else { "POST" };
                rest[1..].iter().try_fold((), |(), word| came(&called, word))?;
                same(&called.method.as_str(), &method)
            }
            ("none", None) => match self.backend.left(&rest[0]) {
                None => Ok(()),
                Some(called) => Err(format!("nobody waits for {called:?}")),
            },
            ("release", None) => {
                self.backend.release();
                Ok(())
            }
            ("terminate", None) => {
                self.hub.as_ref().ok_or("nothing runs")?.signal(Signal::TERM);
                self.ends = true;
                Ok(())
            }
            (method, Some(wanted)) => {
                let (target, rest) = rest.split_first().ok_or("no target")?;
                let body = rest.iter().find_map(|word| match word.split_once('=')? {
                    ("body", text) => Some(text.as_bytes().to_vec()),
                    ("hex", hex) => Some(bytes("binary", hex)),
                    _ => None,
                });
                let headers: Vec<String> =
                    rest.iter().filter(|word| word.contains(": ")).flat_map(|word| repeated(word)).collect();
                let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
                answered(&request(&self.socket(), method, target, &headers, &body.unwrap_or_default()), wanted)
            }
            _ => Err("the test does not know this step".into()),
        }
    }

    fn connect(&mut self, words: &[String], wanted: Option<&[String]>) -> Result<(), String> {
        let headers: Vec<&str> = words[2..].iter().map(String::as_str).collect();
        match (Client::open(&self.socket(), &words[1], &headers), wanted) {
            (Ok(client), None) => {
                self.clients.insert(words[0].clone(), client);
                Ok(())
            }
            (Ok(client), Some(wanted)) => {
                answered(&Answer { status: 101, head: client.head.clone(), body: Vec::new() }, wanted)?;
                self.clients.insert(words[0].clone(), client);
                Ok(())
            }
            (Err(answer), Some(wanted)) => answered(&answer, wanted),
            (Err(answer), None) => Err(format!("refused: {answer:?}")),
        }
    }

    /// Sends to a client that does not read, until the hub has waited for it in vain.
    fn stall(&mut self, key: &str) -> Result<(), String> {
        let header = format!("X-Kuiperbelt-Session: {key}");
        let refused = json!([{ "error": "context deadline exceeded", "session": key }]);
        for number in 0..1000 {
            let answer = request(&self.socket(), "POST", "/send", &[&header], large(number).as_bytes());
            if answer.text() != r#"{"result":"OK"}"# {
                self.unread.insert(key.to_owned(), number);
                let told: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
                return same(&told["errors"], &refused);
            }
        }
        Err("it takes everything".into())
    }

    fn client(&mut self, name: &str) -> Result<&mut Client, String> {
        self.clients.get_mut(name).ok_or_else(|| format!("there is no client {name}"))
    }

    fn filled(&self, word: &str) -> String {
        self.names.iter().fold(word.to_owned(), |word, (name, value)| word.replace(name, value))
    }
}

/// The header that stands in a word; several where its value ends in `{COUNT}`, with a number each.
fn repeated(word: &str) -> Vec<String> {
    match word.strip_suffix('}').and_then(|word| word.rsplit_once('{')) {
        Some((name, count)) => (0..count.parse().unwrap()).map(|number: usize| format!("{name}{number}")).collect(),
        None => vec![word.to_owned()],
    }
}

/// A text of which a socket holds a few.
fn large(number: usize) -> String {
    format!("{number} {}", "x".repeat(64 * 1024))
}

/// Runs a case; `Err` says where it went wrong, and how.
fn run(case: &Case, hub: Hub) -> Result<(), String> {
    let mut scene = Scene::new();
    let mut config = Vec::new();
    let mut callbacks: Vec<String> = ["connect", "establish", "receive", "close"].map(String::from).to_vec();
    for (line, words) in &case.steps {
        let told = |error: String| format!("line {line}: {}: {error}", words.join(" "));
        match words[0].as_str() {
            "config" => config.push(words[1..].join(" ")),
            "callbacks" => callbacks = words[1..].to_vec(),
            "fails" => {
                let why = scene.start(hub, &config, &callbacks).err().ok_or_else(|| told("it runs".into()))?;
                return if why.contains(&words[1]) { Ok(()) } else { Err(told(why)) };
            }
            _ => {
                if scene.hub.is_none() {
                    scene.start(hub, &config, &callbacks).map_err(told)?;
                }
                scene.step(words).map_err(told)?;
            }
        }
    }
    if let (true, Some(mut hub)) = (scene.ends, scene.hub) {
        let status = hub.ended();
        if !status.success() {
            return Err(format!("it ended with {status}: {:?}", hub.said));
        }
    }
    Ok(())
}

/// Holds an answer against `STATUS [type=TYPE] [has=TEXT] [!HEADER]... [body=BODY] [BODY]`.
fn answered(answer: &Answer, wanted: &[String]) -> Result<(), String> {
    same(&answer.status.to_string(), &wanted[0]).map_err(|error| format!("{error} in {answer:?}"))?;
    for word in &wanted[1..] {
        if let Some(kind) = word.strip_prefix("type=") {
            same(&answer.field("Content-Type"), &Some(kind))?;
        } else if let Some(text) = word.strip_prefix("has=") {
            same(&answer.text().contains(text), &true).map_err(|_| format!("{text} is not in {answer:?}"))?;
        } else if let Some(name) = word.strip_prefix('!') {
            same(&answer.field(name), &None)?;
        } else {
            let body = word.strip_prefix("body=").unwrap_or(word);
            match serde_json::from_str::<Value>(body) {
                Ok(json) => same(&serde_json::from_slice(&answer.body).unwrap_or(Value::Null), &json)?,
                Err(_) => same(&answer.text().trim_end(), &body)?,
            }
        }
    }
    Ok(())
}

/// Holds a callback against a word about it.
fn came(called: &push::Called, word: &str) -> Result<(), String> {
    let holds = if let Some(target) = word.strip_prefix("target=") {
        called.target == target
    } else if let Some(body) = word.strip_prefix("body=") {
        called.body == body.as_bytes()
    } else if let Some(hex) = word.strip_prefix("hex=") {
        called.body == bytes("binary", hex)
    } else if let Some(name) = word.strip_prefix('!') {
        called.header(name).is_none()
    } else {
        let (name, value) = word.split_once(": ").ok_or_else(|| format!("what is {word}?"))?;
        called.has(name, value)
    };
    if holds { Ok(()) } else { Err(format!("{word} does not hold for {called:?}")) }
}

fn bytes(kind: &str, text: &str) -> Vec<u8> {
    match kind {
        "text" => text.as_bytes().to_vec(),
        _ => {
            text.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(found: &T, wanted: &T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("expected {wanted:?}, found {found:?}")) }
}

/// Runs cases, some at a time, and tells of all that went wrong.
fn run_all(cases: Vec<Case>, hub: Hub) {
    assert!(!cases.is_empty());
    let (cases, wrong) = (Mutex::new(cases), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().pop() else { break };
                    let ran = std::panic::catch_unwind(|| run(&case, hub));
                    let ran = ran.unwrap_or_else(|_| Err("a panic, told above".into()));
                    if let Err(why) = ran {
                        wrong.lock().unwrap().push(format!("{}: {why}", case.name));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ours_does_what_kuiperbelt_does_and_mends_its_traps() {
    run_all(cases(), Hub::Ours);
}

#[test]
fn kuiperbelt_itself_does_what_the_cases_say() {
    if need("kuiperbelt_itself_does_what_the_cases_say", "ekbo").is_none() {
        return;
    }
    run_all(cases().into_iter().filter(|case| !case.mended).collect(), Hub::Ekbo);
}

/// kuiperbelt has no limits on sizes; these are as large as its users were found to send.
#[test]
fn messages_may_be_as_large_as_with_kuiperbelt() {
    let callbacks = ["connect", "receive"].map(String::from);
    for (compat, received, sent) in [("ekbo", 1 << 20, 16 << 20), ("none", 64 << 10, 1 << 20)] {
        let mut scene = Scene::new();
        scene.start(Hub::Ours, &[format!("compat: {compat}")], &callbacks).unwrap();
        let socket = scene.socket();
        let mut client = Client::open(&socket, "/connect?key=a", &[]).unwrap();
        client.send(Kind::Text, &vec![b'x'; received]);
        assert_eq!(scene.backend.next("receive").unwrap().body.len(), received, "{compat}");
        let send = |bytes: usize| request(&socket, "POST", "/send", &["X-Kuiperbelt-Session: a"], &vec![b'y'; bytes]);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(sent));
            assert_eq!(client.text().len(), sent, "{compat}");
            assert_eq!(sending.join().unwrap().text(), r#"{"result":"OK"}"#, "{compat}");
        });
        let refused = send(sent + 1);
        assert_eq!((refused.status, refused.json()["error"].as_str()), (413, Some("too-large")), "{compat}");
        client.send(Kind::Text, &vec![b'x'; received + 1]);
        assert!(matches!(client.next(), Got::Close(Some(1009), _)), "{compat}");
    }
}
