//! Bodies that come slowly: what they hold of the servers behind, and what is waited for.

use std::sync::mpsc;
use std::time::Duration;

use crate::support::{Behind, Client, GET, Gate, HANG, OK, SHORT, Setup, Upstream};
use oroshi_gate::forward::Failure;
use oroshi_server::ErrorKind;

const CLIENTS: usize = 50;

fn answering() -> Upstream {
    Upstream::answering(OK)
}

/// Clients that have sent one byte of five.
fn begun(gate: &Gate) -> Vec<Client> {
    let begin = |_| {
        let mut client = gate.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nh");
        client
    };
    (0..CLIENTS).map(begin).collect()
}

#[test]
fn bodies_that_are_not_there_hold_no_connection_behind() {
    let upstream = answering();
    let gate = Setup::to(&upstream.target).start();
    let mut clients = begun(&gate);
    // One thread serves them all, and it was asked by them first.
    for _ in 0..10 {
        assert_eq!(gate.ask(GET).status, 200);
    }
    assert_eq!((upstream.accepted(), gate.counts().open), (1, 1));
    for client in &mut clients {
        assert_eq!(client.send("ello").answer().text(), "ok");
    }
    assert_eq!(upstream.accepted(), 1, "one connection is enough for them one by one");
    drop(clients);
    gate.stop();
    upstream.end();

    // Where the route does not wait, each has one.
    let upstream = Upstream::start(|_, behind| drop(behind.rest()));
    let mut setup = Setup::to(&upstream.target);
    setup.rules.buffer = 0;
    let gate = setup.start();
    let clients = begun(&gate);
    gate.until("all have one", |counts| counts.open == CLIENTS as u64);
    drop(clients);
    gate.stop();
    upstream.end();
}

#[test]
fn slow_bodies_are_ended_by_408_and_counted() {
    let limits: [fn(&mut oroshi_server::Settings); 3] = [
        |settings| settings.request_timeout = SHORT,
        |settings| settings.body_timeout = SHORT,
        |settings| (settings.body_rate, settings.body_rate_window) = (1000, SHORT),
    ];
    for limit in limits {
        let upstream = answering();
        let mut setup = Setup::to(&upstream.target);
        limit(&mut setup.server);
        let gate = setup.start();
        for mut client in begun(&gate) {
            let answer = client.answer();
            assert_eq!((answer.status, answer.field("connection")), (408, Some("close")));
            client.half_close().closed();
        }
        let records = gate.records(CLIENTS);
        assert!(records.iter().all(|record| record.failure == Some(Failure::ClientBody)), "{records:?}");
        assert_eq!((upstream.accepted(), gate.counts().failures.iter().sum::<u64>()), (0, 0));
        assert_eq!(gate.stop().error(ErrorKind::BodyTimeout), CLIENTS as u64);
        upstream.end();
    }
}

#[test]
fn what_is_beyond_the_buffer_streams() {
    let (saw, seen) = mpsc::channel();
    let upstream = Upstream::start(move |_, behind: &mut Behind| {
        let head = behind.head().unwrap();
        assert!(head.contains("\r\nContent-Length: 200000\r\n"), "{head}");
        let first = behind.exactly(100_000).unwrap();
        saw.send(()).unwrap();
        let rest = behind.exactly(100_000).unwrap();
        assert!(first.iter().all(|&byte| byte == b'a') && rest.iter().all(|&byte| byte == b'b'));
        behind.send(OK);
        behind.closed();
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n").send("a".repeat(100_000));
    seen.recv_timeout(HANG).expect("the server behind gets what is there");
    assert_eq!(client.send("b".repeat(100_000)).answer().text(), "ok");
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_body_that_is_waited_for_goes_on_as_it_came() {
    let upstream = Upstream::start(|_, behind| {
        let received = behind.request().unwrap();
        assert_eq!(
            (received.field("expect"), received.field("content-length"), &*received.body),
            (None, Some("5"), &b"hello"[..])
        );
        behind.send(OK);
        let received = behind.request().unwrap();
        assert_eq!((&*received.body, &*received.trailers), (&b"hello world"[..], "X-Sum: 1\r\n"));
        behind.send(OK);
        // One that was whole may be sent again, as nothing of an answer came.
        assert_eq!(behind.request().unwrap().body, b"again");
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    // The gateway gives leave, as it is the one that waits.
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.answer().status, 100);
    assert_eq!(client.send("hello").answer().text(), "ok");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n");
    client.send("5\r\nworld\r\n").send("0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(client.answer().text(), "ok");
    drop(client);
    gate.stop();
    drop(upstream);
}

#[test]
fn what_a_script_leaves_out_of_a_request_is_not_in_its_trailers_either() {
    for buffer in [0, 64 * 1024] {
        let upstream = Upstream::start(|_, behind| {
            let received = behind.request().unwrap();
            assert_eq!(received.field("x-user"), Some("alice"));
            assert_eq!((received.field("x-gone"), &*received.trailers), (None, "X-Sum: 1\r\n"));
            behind.send(OK);
            behind.closed();
        });
        let mut setup = Setup::to(&upstream.target);
        setup.rules.buffer = buffer;
        setup.request.set("X-User", b"alice").unwrap().remove("X-Gone").unwrap();
        let gate = setup.start();
        let mut client = gate.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nX-User: root\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
        client.send("0\r\nX-User: root\r\nX-Sum: 1\r\nx-gone: 1\r\n\r\n");
        assert_eq!(client.answer().text(), "ok", "{buffer}");
        drop(client);
        gate.stop();
        upstream.end();
    }
}

#[test]
fn a_body_that_is_waited_for_is_bounded_by_the_limit_on_the_whole() {
    let upstream = answering();
    let mut setup = Setup::to(&upstream.target);
    setup.rules.timeouts.total = SHORT;
    let gate = setup.start();
    for mut client in begun(&gate) {
        assert_eq!(client.answer().status, 504);
    }
    let records = gate.records(CLIENTS);
    assert!(records.iter().all(|record| record.failure == Some(Failure::TotalTimeout)), "{records:?}");
    assert_eq!(upstream.accepted(), 0);
    gate.stop();
    upstream.end();
}

#[test]
fn a_put_whose_body_was_waited_for_is_sent_again_where_its_connection_was_closed() {
    let upstream = Upstream::start(|number, behind| {
        while let Some(received) = behind.request() {
            if received.line().starts_with("PUT") && number == 0 {
                return;
            }
            behind.send(OK);
        }
    });
    let gate = Setup::to(&upstream.target).start();
    assert_eq!(gate.ask(GET).status, 200);
    let mut client = gate.connect();
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n").send("h");
    assert_eq!(client.send("ello").answer().text(), "ok");
    assert_eq!(gate.records(2)[1].retries, 1);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_client_that_goes_in_the_middle_reaches_nobody() {
    let upstream = answering();
    let gate = Setup::to(&upstream.target).start();
    drop(begun(&gate));
    let records = gate.records(CLIENTS);
    assert!(records.iter().all(|record| record.failure == Some(Failure::ClientGone)), "{records:?}");
    assert_eq!(upstream.accepted(), 0);
    gate.stop();
    upstream.end();
}

#[test]
fn streams_of_events_outlive_the_limit_on_the_whole() {
    for (kind, ends) in [("text/event-stream; charset=utf-8", false), ("text/plain", true)] {
        let (go_on, goes_on) = mpsc::channel();
        let goes_on = std::sync::Mutex::new(goes_on);
        let upstream = Upstream::start(move |_, behind| {
            behind.request().unwrap();
            behind.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n"
            ));
            let _ = goes_on.lock().unwrap().recv();
            behind.send("2\r\nb\n\r\n0\r\n\r\n");
            behind.rest();
        });
        let mut setup = Setup::to(&upstream.target);
        setup.rules.timeouts.total = SHORT;
        let gate = setup.start();
        let mut client = gate.connect();
        client.send(GET);
        client.until_head();
        assert_eq!(client.exactly(7), b"2\r\na\n\r\n");
        if ends {
            let record = &gate.records(1)[0];
            assert_eq!(record.failure, Some(Failure::TotalTimeout), "{record:?}");
        } else {
            // Many times the limit.
            std::thread::sleep(SHORT * 10 + Duration::from_millis(1));
            go_on.send(()).unwrap();
            assert_eq!(client.exactly(12), b"2\r\nb\n\r\n0\r\n\r\n");
        }
        drop((client, go_on));
        gate.stop();
        upstream.end();
    }
}
