//! Retries after failures that may pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oroshi_client::{Phase, Retries};
use oroshi_testkit::Port;

use crate::support::{Peer, block_on, builder, told};

const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";
const DONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";

/// Short waits: the test is about the order of things.
fn retries(most: u32) -> Retries {
    Retries { most, first: Duration::from_millis(1), longest: Duration::from_millis(4) }
}

/// Answers so many requests with one answer, and all others with DONE. Returns the count of requests too.
fn failing(times: usize, answer: &'static str) -> (Peer, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let peer = Peer::start(move |mut peer, _| {
        while peer.request().is_some() {
            let number = counter.fetch_add(1, Ordering::SeqCst);
            peer.send(if number < times { answer } else { DONE });
            if answer.is_empty() && number < times {
                return;
            }
        }
    });
    (peer, count)
}

#[test]
fn a_passing_status_is_tried_again_as_often_as_allowed() {
    block_on(async {
        for (times, most, status, requests) in [(2, 3, 200, 3), (3, 3, 200, 4), (4, 3, 503, 4), (1, 0, 503, 1)] {
            let (peer, count) = failing(times, BUSY);
            let client = builder().retries(retries(most)).build_local().unwrap();
            let response = client.get(peer.url("/")).send().await.unwrap();
            assert_eq!((response.status(), count.load(Ordering::SeqCst)), (status, requests));
            assert_eq!(response.text().await.unwrap(), if status == 200 { "done" } else { "busy" });
            assert_eq!(client.counts().retries as usize, requests - 1);
            assert_eq!(peer.accepted(), 1, "the connection is kept");
        }
        // A request's own number, and methods.
        let (peer, count) = failing(9, BUSY);
        let client = builder().retries(retries(0)).build_local().unwrap();
        assert_eq!(client.get(peer.url("/")).retries(2).send().await.unwrap().status(), 503);
        assert_eq!(count.swap(0, Ordering::SeqCst), 3);
        assert_eq!(client.post(peer.url("/")).retries(2).body("x").send().await.unwrap().status(), 503);
        assert_eq!(count.swap(0, Ordering::SeqCst), 1, "it may have been carried out");
    });
}

#[test]
fn an_idempotent_post_is_sent_again_with_its_body_and_a_reader_is_not() {
    block_on(async {
        let peer = Peer::start(|mut peer, _| {
            let mut busy = true;
            while peer.request().is_some() {
                assert_eq!(peer.body(5), b"hello");
                peer.send(if busy { BUSY } else { DONE });
                busy = false;
            }
        });
        let client = builder().retries(retries(1)).build_local().unwrap();
        let url = peer.url("/");
        assert_eq!(client.post(&*url).idempotent(true).body("hello").send().await.unwrap().status(), 200);
        let (peer, count) = failing(9, BUSY);
        let reader = Box::pin(&b"hello"[..]);
        assert_eq!(client.put(peer.url("/")).reader(reader, Some(5)).send().await.unwrap().status(), 503);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn failures_are_tried_again_where_that_is_safe() {
    let nobody = Port::reserve();
    block_on(async {
        let client = builder().retries(retries(3)).build_local().unwrap();
        let error = client.post(nobody.url()).body("x").send().await.unwrap_err();
        assert_eq!((error.phase(), client.counts().retries), (Phase::Connect, 3), "{}", told(&error));
        // Twice at once after a broken connection, as always; and then again.
        let (peer, count) = failing(5, "");
        assert_eq!(client.get(peer.url("/")).send().await.unwrap().status(), 200);
        assert_eq!(count.swap(0, Ordering::SeqCst), 6);
        let (peer, count) = failing(5, "");
        assert!(client.post(peer.url("/")).body("x").send().await.is_err());
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let before = client.counts().retries;
        assert!(client.get("nonsense").send().await.is_err());
        assert_eq!(client.counts().retries, before);
    });
}

#[test]
fn the_server_says_when_within_limits() {
    const LATER: &str = "HTTP/1.1 429 Slow\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
    block_on(async {
        let (peer, count) = failing(1, LATER);
        let patient = Retries { longest: Duration::from_secs(5), ..retries(1) };
        let client = builder().retries(patient).build_local().unwrap();
        let response = client.get(peer.url("/")).send().await.unwrap();
        assert_eq!((response.status(), count.load(Ordering::SeqCst)), (200, 2));
        assert!(response.timings().total >= Duration::from_secs(1));
        // Longer than the longest wait, or than the time that is left.
        for (retries, timeout) in [(retries(1), Duration::from_secs(60)), (patient, Duration::from_millis(900))] {
            let (peer, count) = failing(1, LATER);
            let client = builder().retries(retries).build_local().unwrap();
            let response = client.get(peer.url("/")).timeout(timeout).send().await.unwrap();
            assert_eq!((response.status(), count.load(Ordering::SeqCst)), (429, 1));
        }
    });
}
