//! Connections that are used again, or must not be: closed ones, poisoned ones, those of answers without a body; and
//! who gets them.

use std::sync::mpsc;

use crate::support::{Peer, block_on, builder, told};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn a_connection_that_was_closed_while_idle_is_not_used() {
    for reset in [false, true] {
        let ((close, may_close), (closed, is_closed)) = (mpsc::channel::<()>(), mpsc::channel());
        let may_close = std::sync::Mutex::new(may_close);
        let peer = Peer::start(move |mut peer, number| {
            while peer.request().is_some() {
                peer.send(HELLO);
                if number == 0 {
                    may_close.lock().unwrap().recv().unwrap();
                    if reset {
                        peer.reset();
                    } else {
                        drop(peer);
                    }
                    closed.send(()).unwrap();
                    return;
                }
            }
        });
        block_on(async {
            let client = builder().build_local().unwrap();
            client.get(peer.url("/")).send().await.unwrap();
            assert_eq!(client.counts().idle, 1);
            // The thread is busy with something else meanwhile, so tokio does not hear of it.
            close.send(()).unwrap();
            is_closed.recv().unwrap();
            // Even what is not idempotent: nothing was sent on the dead one.
            let response = client.post(peer.url("/")).body("x").send().await.map_err(|error| told(&error)).unwrap();
            assert_eq!(response.text().await.unwrap(), "hello");
            assert_eq!((client.counts().retries, peer.accepted()), (0, 2));
        });
    }
}

#[test]
fn who_has_waited_for_a_dead_connection_is_still_the_first_in_line() {
    let (closed, is_closed) = mpsc::channel();
    let (arrived, order) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    let peer = Peer::start(move |mut peer, number| {
        while let Some(head) = peer.request() {
            arrived.send(head.split(' ').nth(1).unwrap().to_owned()).unwrap();
            if number == 0 {
                may_go.lock().unwrap().recv().unwrap();
            }
            peer.send(HELLO);
            if number == 0 {
                drop(peer);
                closed.send(()).unwrap();
                return;
            }
        }
    });
    block_on(async {
        let client = builder().connections_per_host(1).build_local().unwrap();
        let mut tasks = Vec::new();
        for target in ["/first", "/second", "/third"] {
            tasks.push(tokio::task::spawn_local(client.get(peer.url(target)).send()));
            tokio::task::yield_now().await;
        }
        assert_eq!(client.counts().waiting, 2);
        go.send(()).unwrap();
        // Both the answer and the end are there when the client looks: the second is given a connection that is dead.
        is_closed.recv().unwrap();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap().text().await.unwrap(), "hello");
        }
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), ["/first", "/second", "/third"]);
        assert_eq!((client.counts().retries, peer.accepted()), (0, 2));
    });
}

/// A peer that closes its first connection when the second request on it has come.
fn closes_at_reuse() -> Peer {
    Peer::start(|mut peer, number| {
        peer.request();
        peer.send(HELLO);
        peer.request();
        if number > 0 {
            peer.send(HELLO);
        }
        peer.reset();
    })
}

#[test]
fn a_retry_that_has_to_wait_gets_a_fresh_connection_too() {
    let (go, may_go) = mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    let peer = Peer::start(move |mut peer, number| {
        peer.request();
        peer.send(HELLO);
        peer.request();
        if number == 0 {
            may_go.lock().unwrap().recv().unwrap();
            return peer.reset();
        }
        peer.send(HELLO);
    });
    block_on(async {
        let client = builder().connections_per_host(1).build_local().unwrap();
        client.get(peer.url("/")).send().await.unwrap();
        // The first's connection breaks when the second waits, which is then served before the first's retry.
        let mut tasks = Vec::new();
        for target in ["/first", "/second"] {
            tasks.push(tokio::task::spawn_local(client.get(peer.url(target)).send()));
            tokio::task::yield_now().await;
        }
        assert_eq!(client.counts().waiting, 1);
        go.send(()).unwrap();
        for task in tasks {
            assert_eq!(task.await.unwrap().unwrap().text().await.unwrap(), "hello");
        }
        assert_eq!((client.counts().retries, peer.accepted()), (1, 3));
    });
}

#[test]
fn a_reset_at_reuse_is_retried_once_where_that_is_safe() {
    let peer = closes_at_reuse();
    block_on(async {
        let client = builder().build_local().unwrap();
        client.get(peer.url("/")).send().await.unwrap();
        let again = client.get(peer.url("/")).send().await.map_err(|error| told(&error)).unwrap();
        assert_eq!(again.text().await.unwrap(), "hello");
        assert_eq!((client.counts().retries, peer.accepted()), (1, 2));
    });
    let peer = closes_at_reuse();
    block_on(async {
        let client = builder().build_local().unwrap();
        client.get(peer.url("/")).send().await.unwrap();
        let error = client.post(peer.url("/")).body("x").send().await.unwrap_err();
        assert!(!error.retry_is_safe() && client.counts().retries == 0, "{}", told(&error));
        client.get(peer.url("/")).send().await.unwrap();
        // The same with an idempotency key.
        let again = client.post(peer.url("/")).body("x").idempotent(true).send().await;
        assert!(again.is_ok(), "the second connection answers twice");
    });
}

#[test]
fn who_never_answers_is_asked_twice_and_no_more() {
    let peer = Peer::start(|mut peer, _| {
        peer.request();
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        let error = client.get(peer.url("/")).send().await.unwrap_err();
        assert_eq!((error.name(), error.retry_is_safe(), peer.accepted()), ("read-eof", true, 2));
        let error = client.post(peer.url("/")).send().await.unwrap_err();
        assert_eq!((error.name(), error.retry_is_safe(), peer.accepted()), ("read-eof", false, 3));
        // A reader is used up by the first attempt.
        let error = client.put(peer.url("/")).reader(&b"abc"[..], None).send().await.unwrap_err();
        // Whether it is while sending or while waiting that it learns of the end, is chance.
        assert!(matches!(error.name(), "read-eof" | "read-reset" | "write"), "{}", told(&error));
        assert_eq!((error.retry_is_safe(), peer.accepted()), (true, 4));
    });
}

#[test]
fn more_than_the_answer_costs_the_connection_and_nothing_else() {
    let peer = Peer::answering(format!("{HELLO}HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"), false);
    block_on(async {
        let client = builder().build_local().unwrap();
        for _ in 0..3 {
            assert_eq!(client.get(peer.url("/")).send().await.unwrap().text().await.unwrap(), "hello");
        }
        assert_eq!(client.counts().connects, 3);
    });
}

#[test]
fn an_answer_without_a_body_leaves_the_connection_for_the_next() {
    let peer = Peer::start(|mut peer, _| {
        while let Some(head) = peer.request() {
            // A length that is announced for what another request would have been answered with (RFC 9112, section
            // 6.3).
            let status = match head.split(' ').nth(1) {
                Some("/304") => "304 Not Modified\r\nContent-Length: 5\r\nContent-Encoding: gzip",
                Some("/204") => "204 No Content",
                _ if head.starts_with("HEAD") => "200 OK\r\nContent-Length: 5\r\nContent-Encoding: gzip",
                _ => "200 OK\r\nContent-Length: 0\r\nContent-Encoding: gzip",
            };
            peer.send(format!("HTTP/1.1 {status}\r\n\r\n"));
        }
    });
    block_on(async {
        let client = builder().build_local().unwrap();
        for request in [client.head(peer.url("/")), client.get(peer.url("/304")), client.get(peer.url("/204"))] {
            let response = request.send().await.map_err(|error| told(&error)).unwrap();
            assert!(response.bytes().await.unwrap().is_empty());
        }
        assert!(client.get(peer.url("/")).send().await.unwrap().bytes().await.unwrap().is_empty());
        assert_eq!((peer.accepted(), client.counts().idle), (1, 1));
    });
}
