//! Chromium driven by a test: tabs, and the values of expressions in them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::HANG;

/// A Chromium that reads commands of its DevTools protocol from a pipe: JSON, with a NUL behind each. Dropping it kills
/// it.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    /// Messages that no call has waited for yet.
    events: Vec<Value>,
    calls: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts the browser.
    #[must_use]
    pub fn start(program: &str) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        // Chromium reads from descriptor 3, and writes to 4.
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

    /// Opens a page in a new tab, and returns the tab's name.
    pub fn tab(&mut self, url: &str) -> String {
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

    /// Closes a tab.
    ///
    /// A page that another one follows in its tab may live on in the browser's cache, with its connections.
    pub fn close(&mut self, tab: &str) {
        self.call(tab, "Page.close", json!({}));
    }

    /// Evaluates an expression in a tab, where elements are available by their ids.
    pub fn evaluate(&mut self, tab: &str, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call(tab, "Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until a condition holds, and checks it whenever the page changes.
    pub fn wait_for(&mut self, tab: &str, condition: &str) {
        let (at, log) = ("document.getElementById", "document.body.innerText");
        let script = format!(
            "(() => {{ const [state, log] = [{at}('state'), {at}('log')]
               const holds = () => {condition}
               return new Promise((done, failed) => {{
                 if (holds()) return done()
                 new MutationObserver(() => holds() && done()).observe(document, {{ subtree: true, childList: true, \
             characterData: true }})
                 setTimeout(() => failed(new Error({log})), {})
               }}) }})()",
            HANG.as_millis()
        );
        self.evaluate(tab, &script);
    }

    /// Calls a method of a tab, or of the browser.
    pub fn call(&mut self, tab: &str, method: &str, params: Value) -> Value {
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
        // Its other processes are in its group.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
