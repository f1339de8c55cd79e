//! Redirects against real sockets: how many, who sees what, and what a redirect's own body may cost.

use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Peer, block_on, builder, patient, told};
use oroshi_client::{Cause, Deadlines};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A peer that says hello, and tells what it was asked.
fn tells() -> (Peer, mpsc::Receiver<String>) {
    let (tell, heads) = mpsc::channel();
    let peer = Peer::start(move |mut peer, _| {
        while let Some(head) = peer.request() {
            tell.send(head).unwrap();
            peer.send(HELLO);
        }
    });
    (peer, heads)
}

#[test]
fn redirects_are_bounded_and_keep_secrets_at_home() {
    let (other, told_to_other) = tells();
    let (sender, told_at_home) = mpsc::channel();
    let away = other.url("/there");
    let home = Peer::start(move |mut peer, _| {
        while let Some(head) = peer.request() {
            let target = head.split(' ').nth(1).unwrap().to_owned();
            let (status, location) = match target.as_str() {
                "/away" => (307, away.as_str()),
                "/home" => (303, "/here"),
                "/socket" => (302, "http://unix:/run/docker.sock:/"),
                "/loop" => (302, "/loop"),
                _ => (200, ""),
            };
            if head.starts_with("POST") {
                peer.body(4);
            }
            sender.send(head).unwrap();
            peer.send(format!("HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: 5\r\n\r\nhello"));
        }
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let post = |target: &str| {
            client
                .post(home.url(target))
                .bearer_auth("hidden")
                .header("Cookie", "a=hidden")
                .header("X-Kept", "1")
                .body("body")
        };
        let response = post("/away").send().await.unwrap();
        assert_eq!((response.redirects(), response.url().to_string()), (1, other.url("/there")));
        let head = told_to_other.recv().unwrap();
        assert!(
            head.starts_with("POST /there") && head.contains("Content-Length: 4") && head.contains("X-Kept"),
            "{head}"
        );
        assert!(!head.contains("hidden") && told_at_home.recv().unwrap().contains("hidden"), "{head}");

        post("/home").send().await.unwrap();
        let (_, head) = (told_at_home.recv().unwrap(), told_at_home.recv().unwrap());
        assert!(head.starts_with("GET /here") && head.contains("hidden") && !head.contains("Content-Length"), "{head}");

        let error = client.get(home.url("/loop")).send().await.unwrap_err();
        assert!(matches!(error.cause(), Cause::TooManyRedirects { limit: 10, .. }), "{}", told(&error));
        let error = client.get(home.url("/socket")).send().await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Location { .. }), "{}", told(&error));
        let response = client.get(home.url("/loop")).redirects(0).send().await.unwrap();
        assert_eq!((response.status(), response.redirects()), (302, 0));
        // A reader gives its body only once.
        let error = client.post(home.url("/away")).reader(&b"body"[..], Some(4)).send().await.unwrap_err();
        assert!(matches!(error.cause(), Cause::BodyUsed), "{}", told(&error));
        assert_eq!((home.accepted(), client.counts().in_flight), (1, 0));
    });
}

#[test]
fn the_clients_own_secrets_do_not_follow_a_redirect_to_another_origin() {
    let (other, told_to_other) = tells();
    let away = other.url("/there");
    let home = Peer::answering(format!("HTTP/1.1 302 Found\r\nLocation: {away}\r\nContent-Length: 0\r\n\r\n"), false);
    block_on(async {
        let client = builder().header("Authorization", "Bearer hidden").header("cookie", "a=hidden");
        let client = client.header("X-Kept", "1").build_local().unwrap();
        let response = client.get(home.url("/")).send().await.unwrap();
        assert_eq!(response.text().await.unwrap(), "hello");
        let head = told_to_other.recv().unwrap();
        assert!(head.contains("X-Kept: 1") && !head.contains("hidden"), "{head}");
        // Asked directly, it may see them.
        client.get(&away).send().await.unwrap();
        assert!(told_to_other.recv().unwrap().contains("hidden"));
    });
}

#[test]
fn a_redirect_whose_body_does_not_come_is_followed_all_the_same() {
    let peer = Peer::start(|mut peer, _| {
        while let Some(head) = peer.request() {
            if head.starts_with("GET /here ") {
                peer.send(HELLO);
            } else {
                peer.send("HTTP/1.1 302 Found\r\nLocation: /here\r\nContent-Length: 100\r\n\r\nsee");
            }
        }
    });
    block_on(async {
        // Without a limit on the pause within a body it would wait for the total deadline, and fail.
        let deadlines = Deadlines { between_bytes: Duration::MAX, ..patient() };
        let client = builder().deadlines(deadlines).build_local().unwrap();
        let response = client.get(peer.url("/")).send().await.map_err(|error| told(&error)).unwrap();
        assert_eq!((response.text().await.unwrap().as_str(), peer.accepted()), ("hello", 2));
    });
}

/// The GET that a POST becomes was not sent, so it was told that the POST could be sent again, though it had been
/// carried out.
#[test]
fn a_post_that_was_answered_with_a_redirect_is_not_safe_to_send_again() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let peer =
        Peer::answering(format!("HTTP/1.1 303 X\r\nLocation: http://{nobody}/\r\nContent-Length: 0\r\n\r\n"), true);
    block_on(async {
        let client = builder().build_local().unwrap();
        for (method, safe) in [("POST", false), ("PUT", true)] {
            let error = client.request(method, peer.url("/")).send().await.unwrap_err();
            assert_eq!((error.name(), error.retry_is_safe()), ("connect-refused", safe), "{method}: {}", told(&error));
        }
    });
}
