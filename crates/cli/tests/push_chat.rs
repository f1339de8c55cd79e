//! The example in `examples/push-chat`, as a user has it: started by its one command, seen by two tabs of Chromium.

#[path = "../../report/tests/support/browser.rs"]
mod browser;
mod push;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use push::{HANG, Process};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/push-chat/chat.rb");

#[test]
fn what_one_says_the_others_see() {
    let test = "what_one_says_the_others_see";
    let Some(program) = browser::installed() else { return browser::skipped(test, "chromium is not installed") };
    if !Command::new("ruby").arg("-e0").status().is_ok_and(|status| status.success()) {
        return browser::skipped(test, "ruby is not installed");
    }
    let mut chat = Chat::start();
    let mut browser = Browser::start(program);
    let page = |name: &str| format!("http://127.0.0.1:{}/?room=tea&name={name}", chat.page);
    let ann = browser.tab(&page("Ann"));
    browser.wait_for(&ann, "state.textContent === 'connected'");
    let bob = browser.tab(&page("Bob%20%3Cb%3E"));
    browser.wait_for(&bob, "state.textContent === 'connected'");
    browser.wait_for(&ann, "log.innerText.includes('Bob <b> has come')");

    // What is said comes back to whoever said it, too, and nothing of it is taken for markup.
    browser.evaluate(&ann, "text.value = 'Tea? <img src=x>'; say.requestSubmit()");
    for tab in [&ann, &bob] {
        browser.wait_for(tab, "log.innerText.includes('Ann Tea? <img src=x>')");
        assert_eq!(browser.evaluate(tab, "log.querySelectorAll('img').length"), 0);
        assert_eq!(browser.evaluate(tab, "text.value"), "");
    }

    // What the hub tells of a session that was too slow, and a message that the hub had to try again.
    for message in
        [r#"{"gap":3}"#, r#"{"name":"Ann","text":"twice","id":"1"}"#, r#"{"name":"Ann","text":"twice","id":"1"}"#]
    {
        assert!(chat.publish(message).contains(r#""matched":2,"written":2,"#));
    }
    let other = r#"{"name":"Ann","text":"once","id":"2"}"#;
    chat.publish(other);
    browser.wait_for(&bob, "log.innerText.includes('once')");
    assert_eq!(browser.evaluate(&bob, "log.innerText.split('twice').length - 1"), 1);
    assert_eq!(browser.evaluate(&bob, "log.querySelector('.gap').textContent.startsWith('3 missing here')"), true);

    // The hub ends in good form, and tells everybody a time of their own to come back after.
    browser.evaluate(&bob, "socket.addEventListener('close', event => { window.why = event.reason })");
    chat.process.signal(Signal::TERM);
    browser.wait_for(&bob, r"/^disconnected \(1012\), connecting again in \d+\.\d s$/.test(state.textContent)");
    let hinted = r"(/in (\d+) ms/.exec(why)[1] / 1000).toFixed(1) + ' s'";
    let shown = "document.getElementById('state').textContent";
    assert_eq!(browser.evaluate(&bob, &format!("{shown}.endsWith(' ' + {hinted})")), true);
    assert!(chat.process.ended().success(), "{:?}", chat.process.said);
}

/// The example, with its hub.
struct Chat {
    process: Process,
    page: u16,
    admin: u16,
}

impl Chat {
    /// Starts it at ports that are free. Somebody else may be faster to take them; then others are tried.
    fn start() -> Chat {
        let mut tries = 0..3;
        loop {
            let free: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            let ports: Vec<u16> = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
            drop(free);
            let mut command = Command::new("ruby");
            command.arg(EXAMPLE).args(ports.iter().map(u16::to_string));
            // Their group holds the hub as well, for whoever has to end both.
            command.env("OROSHI", env!("CARGO_BIN_EXE_oroshi")).process_group(0);
            match Process::start(&mut command) {
                Ok(process) => return Chat { process, page: ports[0], admin: ports[2] },
                Err(said) => assert!(tries.next().is_some() && said.contains("in use"), "{said}"),
            }
        }
    }

    /// Publishes to the room, and gives the receipt.
    fn publish(&self, message: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin)).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream
            .write_all(&push::head(
                "POST",
                "/publish/raw?group=room:tea",
                &["Connection: close", &format!("Content-Length: {}", message.len())],
            ))
            .unwrap();
        stream.write_all(message.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Chromium, spoken to over pipes in its DevTools protocol: JSON, with a NUL behind each.
struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    /// Those that nobody has waited for yet.
    events: Vec<Value>,
    calls: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    fn start(program: &str) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        // It reads from descriptor 3, and writes to 4.
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1", program]);
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--remote-debugging-pipe",
        ]);
        command.args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=420,640",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let (tell, messages) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.split(0).map_while(Result::ok).all(|json| tell.send(serde_json::from_slice(&json).unwrap()).is_ok())
        });
        let input = child.stdin.take().unwrap();
        Browser { child, input, messages, events: Vec::new(), calls: 0, _profile: profile }
    }

    /// Opens a page in a tab of its own, and gives the tab's name.
    fn tab(&mut self, url: &str) -> String {
        let target = self.call("", "Target.createTarget", json!({"url": "about:blank"}));
        let attached = self.call("", "Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        let tab = attached["sessionId"].as_str().unwrap().to_owned();
        self.call(&tab, "Page.enable", json!({}));
        self.call(&tab, "Page.navigate", json!({"url": url}));
        let loaded = |event: &Value| event["method"] == "Page.loadEventFired" && event["sessionId"] == *tab;
        while !self.events.iter().any(loaded) {
            let event = self.next();
            self.events.push(event);
        }
        tab
    }

    /// What an expression comes to in a tab; an element stands there by its id.
    fn evaluate(&mut self, tab: &str, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call(tab, "Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until a condition holds, looking whenever the page changes.
    fn wait_for(&mut self, tab: &str, condition: &str) {
        let (at, log) = ("document.getElementById", "document.body.innerText");
        let script = format!(
            "(() => {{ const [state, log] = [{at}('state'), {at}('log')]
               const holds = () => {condition}
               return new Promise((done, failed) => {{
                 if (holds()) return done()
                 new MutationObserver(() => holds() && done()).observe(document, {{ subtree: true, childList: true, characterData: true }})
                 setTimeout(() => failed(new Error({log})), {})
               }}) }})()",
            HANG.as_millis()
        );
        self.evaluate(tab, &script);
    }

    /// Calls a method of a tab's, or of the browser's own.
    fn call(&mut self, tab: &str, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if !tab.is_empty() {
            call["sessionId"] = tab.into();
        }
        write!(self.input, "{call}\0").unwrap();
        loop {
            let answer = self.next();
            if answer["id"] == self.calls {
                assert!(answer["error"].is_null(), "{call}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    fn next(&self) -> Value {
        self.messages.recv_timeout(HANG * 2).unwrap_or_else(|error| panic!("chromium says nothing: {error}"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes are of its group.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
