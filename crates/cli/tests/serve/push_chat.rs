//! The example in `examples/push-chat`, as a user has it: started by its one command, seen by two tabs of Chromium.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::push;
use crate::push::Process;
use oroshi_testkit::chromium::{self, Browser};
use oroshi_testkit::skipped;
use rustix::process::{Pid, Signal, kill_process_group};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/push-chat/chat.rb");

#[test]
fn what_one_says_the_others_see() {
    let test = "what_one_says_the_others_see";
    let Some(program) = chromium::need(test) else { return };
    if !Command::new("ruby").arg("-e0").status().is_ok_and(|status| status.success()) {
        return skipped(test, "ruby is not installed");
    }
    let mut chat = Chat::start();
    let mut browser = Browser::start(program);
    // The cookies of two host names are those of two users.
    let log_in = |browser: &mut Browser, host: &str, name: &str| {
        let url = format!("http://{host}:{}/?room=tea", chat.page);
        let tab = browser.tab(&url);
        browser.wait_for(&tab, "document.getElementById('login')?.action.includes('/login?room=tea')");
        // As the form is sent, but without the next page, which would end the script.
        let body = "new URLSearchParams(new FormData(login))";
        let send = format!("fetch(login.action, {{ method: login.method, body: {body} }}).then(({{ ok }}) => ok)");
        browser.evaluate(&tab, &format!("login.elements.name.value = '{name}'"));
        assert_eq!(browser.evaluate(&tab, &send), true);
        let tab = browser.tab(&url);
        browser.wait_for(&tab, "state?.textContent === 'connected'");
        tab
    };
    let ann = log_in(&mut browser, "127.0.0.1", "Ann");
    browser.wait_for(&ann, "there.textContent === 'with Ann'");
    browser.evaluate(&ann, "text.value = 'early'; say.requestSubmit()");
    browser.wait_for(&ann, "log.innerText.includes('Ann early')");
    let bob = log_in(&mut browser, "localhost", "Bob Ü");
    for tab in [&ann, &bob] {
        browser.wait_for(tab, "there.textContent === 'with Ann, Bob Ü'");
    }
    browser.wait_for(&bob, "log.innerText.includes('Ann early')");

    // A message comes back to its author, too, and the page shows it as text, not as markup.
    browser.evaluate(&bob, "text.value = 'Tea? <img src=x>'; say.requestSubmit()");
    for tab in [&ann, &bob] {
        browser.wait_for(tab, "log.innerText.includes('Bob Ü Tea? <img src=x>')");
        assert_eq!(browser.evaluate(tab, "log.querySelectorAll('img').length"), 0);
        assert_eq!(browser.evaluate(tab, "log.children.length"), 2);
    }
    let look = "const look = () => text.value ? setTimeout(look, 10) : done(true)";
    browser.evaluate(&bob, &format!("new Promise(done => {{ {look}; look() }})"));

    // A second page of a user is no second user, and nobody is gone before the last one.
    let second = browser.tab(&format!("http://localhost:{}/?room=tea", chat.page));
    browser.wait_for(&second, "document.getElementById('there')?.textContent === 'with Ann, Bob Ü'");
    browser.close(&bob);
    browser.evaluate(&second, "text.value = 'still here'; say.requestSubmit()");
    browser.wait_for(&ann, "log.innerText.includes('Bob Ü still here')");
    assert_eq!(browser.evaluate(&ann, "there.textContent"), "with Ann, Bob Ü");
    browser.close(&second);
    browser.wait_for(&ann, "there.textContent === 'with Ann'");

    // The hub ends, and tells each client how long to wait before it comes back.
    let observe = "window.states = []; new MutationObserver(() => states.push(state.textContent))";
    browser.evaluate(&ann, &format!("{observe}.observe(state, {{ childList: true }})"));
    chat.process.signal(Signal::TERM);
    browser.wait_for(&ann, r"states.some((text) => /^waiting: 1012 .* in \d+ ms$/.test(text))");
    assert!(chat.process.ended().success(), "{:?}", chat.process.said);
}

/// The example, with its hub.
struct Chat {
    process: Process,
    page: u16,
}

impl Chat {
    /// Starts it at ports that are free. Somebody else may be faster to take them; then others are tried.
    fn start() -> Chat {
        let mut tries = 0..3;
        loop {
            let free: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            let ports: Vec<u16> = free.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
            drop(free);
            let mut command = Command::new("ruby");
            command.arg(EXAMPLE).args(ports.iter().map(u16::to_string));
            // Their group holds the hub as well, for whoever has to end both.
            command.env("OROSHI", env!("CARGO_BIN_EXE_oroshi")).process_group(0);
            match push::start(&mut command) {
                Ok(process) => return Chat { process, page: ports[0] },
                Err(said) => assert!(tries.next().is_some() && said.contains("in use"), "{said}"),
            }
        }
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
