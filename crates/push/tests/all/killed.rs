//! A backend process that is killed in the middle of callbacks: it gets them when it is back, or the hub counts them.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::hub::{Hub, PATIENCE, WebSocket, skipped};
use oroshi_websocket::Kind;
use serde_json::json;
use tempfile::TempDir;

/// A backend in Python that keeps a journal. Dropping it kills it.
struct Backend {
    child: Child,
    folder: TempDir,
}

/// Something that the backend was told.
#[derive(Debug)]
struct Told {
    path: String,
    session: String,
    name: String,
    body: String,
}

impl Backend {
    /// Starts one that hangs from this message on (0: never); `None`, and a word about it, without Python.
    fn start(test: &str, hangs_from: usize) -> Option<Backend> {
        if !Command::new("python3").arg("-c0").status().is_ok_and(|status| status.success()) {
            skipped(test, "python3 is not installed");
            return None;
        }
        let folder = TempDir::new().unwrap();
        Some(Backend { child: spawn(&folder, hangs_from), folder })
    }

    /// Ends it as `kill -9` does.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, on the same socket and with the same journal.
    fn restart(&mut self) {
        self.child = spawn(&self.folder, 0);
    }

    /// Waits until it was told so much, and gives that in order.
    fn until(&self, lines: usize) -> Vec<Told> {
        let start = Instant::now();
        loop {
            let journal = std::fs::read_to_string(self.folder.path().join("journal")).unwrap_or_default();
            let told: Vec<Told> = journal
                .split_inclusive('\n')
                // One may be half written.
                .filter_map(|line| line.strip_suffix('\n'))
                .map(|line| {
                    let mut words = line.splitn(4, ' ').map(str::to_owned);
                    let mut word = || words.next().unwrap();
                    Told { path: word(), session: word(), name: word(), body: word() }
                })
                .collect();
            if told.len() >= lines {
                assert_eq!(told.len(), lines, "{told:?}");
                return told;
            }
            assert!(start.elapsed() < PATIENCE, "{lines} are due: {told:?}");
            std::thread::yield_now();
        }
    }

    /// A hub that asks and tells it.
    fn hub(&self, retries: u32) -> Hub {
        let socket = self.folder.path().join("backend.sock");
        let url = |path: &str| Some(format!("unix:{}:/{path}", socket.display()));
        Hub::start(|plan| {
            plan.threads = 2;
            plan.callbacks.connect = url("connect");
            plan.callbacks.receive = url("receive");
            plan.callbacks.close = url("close");
            plan.callbacks.timeout = PATIENCE;
            plan.callbacks.retries = retries;
            // The clients read nothing while they wait for the backend. A session that ends meanwhile, because no
            // answer to a ping comes, would tell the backend of one end more.
            plan.limits.ping = None;
        })
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &TempDir, hangs_from: usize) -> Child {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/killed/backend.py");
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new("python3");
    command.arg(script).arg(path("backend.sock")).arg(path("journal")).arg(hangs_from.to_string());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "listens\n");
    child
}

#[test]
fn what_a_killed_backend_missed_comes_in_order_when_it_is_back() {
    // The hub reads a session no further while 16 of its messages wait, and would not see that it leaves.
    const MESSAGES: usize = 15;
    // No session is through with its messages by then.
    const HANGS_FROM: usize = 11;
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    let test = "what_a_killed_backend_missed_comes_in_order_when_it_is_back";
    let Some(mut backend) = Backend::start(test, HANGS_FROM) else { return };
    let hub = backend.hub(100);
    let mut clients: Vec<WebSocket> = KEYS.map(|key| hub.websocket(&format!("/connect?{key}"))).into();
    for number in 0..MESSAGES {
        for client in &mut clients {
            client.send(Kind::Text, number.to_string().as_bytes());
        }
    }
    // Each session has told it something that it has written down and not answered.
    let unanswered = KEYS.len();
    backend.until(HANGS_FROM - 1 + unanswered);
    backend.kill();

    // Nobody comes in, and who is in stays.
    let refused = WebSocket::open(hub.address, "/connect?e", &[]).map(|_| ()).unwrap_err();
    assert_eq!(refused.status, 502, "{}", refused.text());
    assert!(refused.text().contains("cannot be reached"), "{}", refused.text());
    assert_eq!(hub.publish(json!({ "sessions": KEYS, "text": "still here" }))["written"], KEYS.len());
    for client in &mut clients {
        assert_eq!(client.text(), "still here");
    }
    // Whoever leaves now is told of once the backend is back.
    clients.remove(0).close(1000);
    let status = hub.until("it has left", |status| status["sessions"]["current"] == KEYS.len() - 1);
    assert_eq!(
        (&status["callbacks"]["receive"]["accepted"], &status["dead_letters"]),
        (&json!(HANGS_FROM - 1), &json!(0))
    );

    backend.restart();
    let all = KEYS.len() * MESSAGES;
    let told = backend.until(all + unanswered + 1);
    let mut of: HashMap<&str, Vec<&Told>> = HashMap::new();
    told.iter().for_each(|told| of.entry(&told.session).or_default().push(told));
    for key in KEYS {
        let mut told = of.remove(key).unwrap();
        let before = told.len();
        // A second try has the name of the first, and follows it at once.
        told.dedup_by(|second, first| second.path == "/receive" && second.name == first.name);
        assert_eq!(before - told.len(), 1, "{key}: {told:?}");
        if key == KEYS[0] {
            assert_eq!(told.pop().map(|told| told.path.as_str()), Some("/close"));
        }
        let bodies: Vec<String> = told.iter().map(|told| told.body.clone()).collect();
        assert_eq!(bodies, (0..MESSAGES).map(|number| number.to_string()).collect::<Vec<_>>(), "{key}");
    }
    let status = hub.until("all are answered", |status| status["callbacks"]["receive"]["accepted"] == all);
    assert_eq!((&status["callbacks"]["receive"]["failed"], &status["dead_letters"]), (&json!(0), &json!(0)));
    drop(hub.websocket("/connect?e"));
}

#[test]
fn what_a_backend_misses_for_too_long_is_counted_and_then_all_goes_on() {
    let test = "what_a_backend_misses_for_too_long_is_counted_and_then_all_goes_on";
    let Some(mut backend) = Backend::start(test, 0) else { return };
    let hub = backend.hub(1);
    let [mut stays, mut leaves] = ["a", "b"].map(|key| hub.websocket(&format!("/connect?{key}")));
    stays.send(Kind::Text, b"before");
    backend.until(1);
    hub.until("it is answered", |status| status["callbacks"]["receive"]["accepted"] == 1);
    backend.kill();

    for text in ["lost 1", "lost 2", "lost 3"] {
        stays.send(Kind::Text, text.as_bytes());
    }
    leaves.close(1000);
    let status = hub.until("all are given up", |status| status["dead_letters"] == 4);
    let receive = json!({ "accepted": 1, "refused": 0, "failed": 3, "retried": 3, "crowded": 0 });
    let close = json!({ "accepted": 0, "refused": 0, "failed": 1, "retried": 1, "crowded": 0 });
    assert_eq!((&status["callbacks"]["receive"], &status["callbacks"]["close"]), (&receive, &close));

    backend.restart();
    stays.send(Kind::Text, b"after");
    drop(hub.websocket("/connect?c"));
    let mut told = backend.until(3);
    // Of different sessions, which comes first is open.
    told.sort_by(|a, b| a.session.cmp(&b.session));
    let told: Vec<_> =
        told.iter().map(|told| (told.session.as_str(), told.path.as_str(), told.body.as_str())).collect();
    assert_eq!(told, [("a", "/receive", "before"), ("a", "/receive", "after"), ("c", "/close", "")]);
    assert_eq!(hub.status()["dead_letters"], 4);
}
