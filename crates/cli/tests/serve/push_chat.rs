//! The example in `examples/push-chat`, as a user has it: started by its one command, seen by two tabs of Chromium.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::push;
use crate::push::{HANG, Process};
use oroshi_testkit::chromium::{self, Browser};
use oroshi_testkit::skipped;
use rustix::process::{Pid, Signal, kill_process_group};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/push-chat/chat.rb");

const TOKEN: &str = "s3cret";

#[test]
fn what_one_says_the_others_see() {
    let test = "what_one_says_the_others_see";
    let Some(program) = chromium::need(test) else { return };
    if !Command::new("ruby").arg("-e0").status().is_ok_and(|status| status.success()) {
        return skipped(test, "ruby is not installed");
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

    // What is larger than the hub takes is told, and stays where it was written.
    browser.evaluate(&ann, "text.value = 'é'.repeat(35000); say.requestSubmit()");
    browser.wait_for(&ann, "log.innerText.includes('Not sent: it has 70000 bytes, and a message at most 65536.')");
    assert_eq!(browser.evaluate(&ann, "text.value.length"), 35000);
    browser.evaluate(&ann, "text.value = 'é'.repeat(32768); say.requestSubmit()");
    browser.wait_for(&bob, "log.innerText.includes('é'.repeat(32768))");

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
            command.env("OROSHI", env!("CARGO_BIN_EXE_oroshi")).env("PUSH_TOKEN", TOKEN).process_group(0);
            match push::start(&mut command) {
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
                &[
                    "Connection: close",
                    &format!("Authorization: Bearer {TOKEN}"),
                    &format!("Content-Length: {}", message.len()),
                ],
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
