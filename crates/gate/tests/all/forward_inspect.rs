//! Answers that somebody looks at before the client gets them.

use std::sync::mpsc;
use std::time::Duration;

use crate::support;
use crate::support::{Answer, Behind, GET, HANG, Setup, Upstream, patient};
use oroshi_gate::forward::{Edits, Failure, Inspect, InspectFuture, InspectedHead, Verdict};

/// Takes its time, then does what the answer's `X-Do` says.
#[derive(Debug)]
struct Looks;

impl Inspect for Looks {
    fn inspect(&self, head: InspectedHead) -> InspectFuture {
        Box::pin(async move {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            let lines = String::from_utf8(head.lines.to_vec()).unwrap();
            assert!(!lines.contains("Content-Length") && !lines.contains("Connection"), "{lines}");
            let wish = lines.lines().find_map(|line| line.strip_prefix("X-Do: ")).unwrap_or("pass");
            let mut changes = Edits::none();
            match wish {
                "replace" => {
                    Verdict::Replace { status: 403, fields: vec![("X-By".into(), b"us".into())], body: b"no".into() }
                }
                "fail" => Verdict::Fail("on purpose".into()),
                "hang" => std::future::pending().await,
                _ => {
                    changes.set("X-Seen", b"yes").unwrap().remove("X-Do").unwrap().remove("X-Secret").unwrap();
                    Verdict::Pass { status: if wish == "status" { 404 } else { head.status }, changes }
                }
            }
        })
    }
}

/// The first line.
fn told(answer: &Answer) -> &str {
    answer.head.lines().next().unwrap()
}

fn setup(upstream: &Upstream) -> Setup {
    Setup { inspect: Some(&Looks), ..Setup::to(&upstream.target) }
}

const ANSWERS: [(&str, &str, &str, &str); 7] = [
    ("GET", "HTTP/1.1 200 Fine\r\nX-Secret: 1\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 Fine", "hello"),
    ("GET", "HTTP/1.1 200 OK\r\nX-Do: status\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 404 Not Found", "hello"),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200 OK", ""),
    ("GET", "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", "HTTP/1.1 204 No Content", ""),
    ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n", "HTTP/1.1 304 Not Modified", ""),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX-Secret: 2\r\nX-End: 1\r\n\
         \r\n",
        "HTTP/1.1 200 OK",
        "hello",
    ),
    ("GET", "HTTP/1.1 200 OK\r\nX-Do: replace\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 403 Forbidden", "no"),
];

/// However an answer comes in, the client gets the same one, and both connections go on.
#[test]
fn an_answer_may_come_in_any_pieces() {
    for (method, answer, line, body) in ANSWERS {
        let upstream = Upstream::start(move |_, behind: &mut Behind| {
            // Cut at another place for each request.
            let mut cut = 0;
            while behind.request().is_some() {
                cut = (cut + 1) % answer.len();
                behind.send(&answer[..cut]);
                std::thread::yield_now();
                behind.send(&answer[cut..]);
            }
        });
        let gate = setup(&upstream).start();
        let mut client = gate.connect();
        for _ in 0..answer.len() {
            let got = client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")).answer_to(method);
            assert_eq!((told(&got), got.text()), (line, body), "{answer:?}");
            assert_eq!((got.field("x-secret"), got.field("x-do")), (None, None), "{answer:?}");
            let is_ours = line.contains("403");
            assert_eq!(got.field("x-seen"), (!is_ours).then_some("yes"), "{answer:?}");
            assert_eq!(got.field("x-by"), is_ours.then_some("us"), "{answer:?}");
        }
        if !line.contains("403") {
            assert_eq!(upstream.accepted(), 1, "{answer:?}");
        }
        drop(client);
        gate.stop();
        upstream.end();
    }
}

#[test]
fn an_answer_in_place_of_one_that_is_not_over_ends_that_connection_alone() {
    let upstream = Upstream::start(|number, behind: &mut Behind| {
        assert!(behind.request().is_some());
        if number == 0 {
            behind.send("HTTP/1.1 500 Oh\r\nX-Do: replace\r\nContent-Length: 1000000\r\n\r\nhello");
            behind.closed();
        } else {
            behind.send(support::OK);
            behind.rest();
        }
    });
    let gate = setup(&upstream).start();
    let mut client = gate.connect();
    let answer = client.send(GET).answer();
    assert_eq!((told(&answer), answer.text()), ("HTTP/1.1 403 Forbidden", "no"));
    assert_eq!(client.send(GET).answer().text(), "ok");
    // What the server has said is its own doing, whatever the client got.
    assert_eq!(gate.counts().server_errors, 1);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn one_that_fails_is_a_500_and_not_the_servers_fault() {
    let upstream = Upstream::answering("HTTP/1.1 200 OK\r\nX-Do: fail\r\nContent-Length: 5\r\n\r\nhello");
    let gate = setup(&upstream).start();
    let answer = gate.ask(GET);
    assert_eq!(
        (told(&answer), answer.text()),
        ("HTTP/1.1 500 Internal Server Error", "a script of this gateway failed\n")
    );
    let record = &gate.records(1)[0];
    assert_eq!((record.failure, &*record.detail, record.retries), (Some(Failure::Script), "on purpose", 0));
    gate.stop();
    upstream.end();
}

/// The server's own time limits do not run meanwhile; that on the whole exchange does.
#[test]
fn whoever_looks_is_not_the_server() {
    let upstream = Upstream::answering("HTTP/1.1 200 OK\r\nX-Do: hang\r\nContent-Length: 5\r\n\r\nhello");
    let mut setup = setup(&upstream);
    setup.rules.timeouts.head = Duration::from_millis(20);
    setup.rules.timeouts.between = Duration::from_millis(20);
    setup.rules.timeouts.total = Duration::from_millis(200);
    let gate = setup.start();
    assert_eq!(told(&gate.ask(GET)), "HTTP/1.1 504 Gateway Timeout");
    assert_eq!(gate.records(1)[0].failure, Some(Failure::TotalTimeout));
    gate.stop();
    upstream.end();
}

/// The head is looked at while the client still sends.
#[test]
fn an_early_answer_is_looked_at_as_well() {
    let (go, may_go) = mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    let upstream = Upstream::start(move |_, behind: &mut Behind| {
        behind.head();
        behind.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        may_go.lock().unwrap().recv_timeout(HANG).unwrap();
        assert_eq!(behind.exactly(6).unwrap(), b"abcdef");
        behind.rest();
    });
    let mut setup = Setup { server: patient(), ..setup(&upstream) };
    setup.rules.buffer = 0;
    let gate = setup.start();
    let mut client = gate.connect();
    let answer = client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc").answer();
    assert_eq!((told(&answer), answer.field("x-seen"), answer.text()), ("HTTP/1.1 200 OK", Some("yes"), "hello"));
    client.send("def");
    go.send(()).unwrap();
    drop(client);
    gate.stop();
    drop(upstream);
}
