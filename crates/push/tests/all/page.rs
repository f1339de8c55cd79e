//! The page for operators, and the list of slow sessions that it shows.

use oroshi_push::Serves;
use oroshi_testkit::chromium::{self, Browser};
use oroshi_words::Secret;
use serde_json::json;

use crate::hub::{Hub, key_of};

const TOKEN: [(&str, &str); 1] = [("Authorization", "Bearer s3cret")];

/// A name that a page must not take for markup.
const NAME: &str = "<img src=x onerror=alert(1)>";

fn hub() -> Hub {
    Hub::start(|plan| plan.token = Some(Secret::new("s3cret")))
}

#[test]
fn the_page_loads_nothing_from_elsewhere_and_holds_nothing_of_the_hub() {
    let hub = hub();
    let page = hub.request("GET", "/page", &[], b"");
    let policy = page.field("Content-Security-Policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(page.field("X-Content-Type-Options"), Some("nosniff"));
    for inline in ["<style", " style=", " onclick", "javascript:", "http:", "https:"] {
        assert!(!page.text().contains(inline), "{inline}");
    }
    for (path, kind) in
        [("/page/page.js", "text/javascript"), ("/page/page.css", "text/css"), ("/page/icon.svg", "image/svg+xml")]
    {
        assert!(page.text().contains(path), "{path}");
        let file = hub.request("GET", path, &[], b"");
        assert!(file.status == 200 && file.field("Content-Type").unwrap().starts_with(kind), "{path}");
    }
    let script = hub.request("GET", "/page/page.js", &[], b"");
    for markup in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
        assert!(!script.text().contains(markup), "{markup}");
    }
    // What it shows takes the token, and no page of another origin gets it.
    assert_eq!(hub.request("GET", "/slow", &[], b"").status, 401);
    assert_eq!(hub.request("GET", "/page", &[("Origin", "http://a.test")], b"").status, 403);
    assert_eq!(hub.request("POST", "/page", &[], b"").status, 405);
    let clients = Hub::start(|plan| plan.listeners[0].serves = Serves::Sessions);
    assert_eq!(clients.request("GET", "/page", &[], b"").status, 404);
}

#[test]
fn slow_sessions_are_listed_longest_queue_first() {
    let hub = Hub::start(|plan| plan.threads = 2);
    let slow = || hub.request("GET", "/slow", &[], b"").json()["sessions"].clone();
    assert_eq!(slow(), json!([]));
    // A polling session's messages wait until it asks for them.
    let keys: Vec<String> = (0..25)
        .map(|_| hub.request("GET", "/connect?transport=poll", &[], b"").json()["session"].as_str().unwrap().to_owned())
        .collect();
    for (at, key) in keys.iter().enumerate() {
        hub.publish(json!({ "sessions": [key], "text": "x".repeat(100 + at) }));
    }
    let list = slow();
    let listed: Vec<&str> = list.as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
    let expected: Vec<&str> = keys.iter().rev().take(20).map(String::as_str).collect();
    assert_eq!(listed, expected);
    let length = "x".repeat(124).len() + "{\"text\":\"\"}".len();
    assert_eq!((&list[0]["transport"], &list[0]["queued_messages"]), (&json!("poll"), &json!(1)));
    assert_eq!(list[0]["queued_bytes"], length);
}

#[test]
fn a_browser_shows_what_the_hub_does() {
    let Some(program) = chromium::need("a_browser_shows_what_the_hub_does") else { return };
    let hub = hub();
    let mut socket = hub.websocket("/connect");
    let key = key_of(&socket.text());
    let group = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E";
    let joined = hub.request("PUT", &format!("/sessions/{key}/groups/{group}"), &TOKEN, b"");
    assert!(joined.status < 300, "{joined:?}");
    let mut browser = Browser::start(program);
    let tab = browser.tab(&format!("http://{}/page", hub.address));
    browser.wait_for(&tab, "!login.hidden && document.getElementById('main').hidden");
    browser.evaluate(&tab, "document.getElementById('token').value = 'wrong'; login.requestSubmit()");
    browser.wait_for(&tab, "document.getElementById('state').textContent === 'wrong token'");
    browser.evaluate(&tab, "document.getElementById('token').value = 's3cret'; login.requestSubmit()");
    browser.wait_for(&tab, "!document.getElementById('main').hidden");
    browser.wait_for(&tab, "document.getElementById('sessions').textContent === '1'");
    browser.wait_for(&tab, "document.getElementById('state').textContent === 'serving'");
    // A name is a text, whatever it looks like.
    assert_eq!(browser.evaluate(&tab, "document.getElementById('groups').rows[0].cells[0].textContent"), NAME);
    assert_eq!(browser.evaluate(&tab, "document.querySelectorAll('main img').length"), 0);
    // It follows the hub without a reload, and shows rates from the second sample on.
    drop(socket);
    browser.wait_for(&tab, "document.getElementById('sessions').textContent === '0'");
    browser.wait_for(&tab, "/^[\\d.,]+$/.test(document.getElementById('written').textContent)");
    assert_eq!(browser.evaluate(&tab, "document.documentElement.scrollWidth <= innerWidth"), true);
}
