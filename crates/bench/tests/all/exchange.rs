//! What goes right: every kind of answer, over every kind of socket, counted exactly at both ends.
//!
//! First messages, then connections: how many there are, who makes them, and what one of them carries.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::support::load::{all_answered, draft, failures, requests, run, run_seen, until};
use crate::support::peer::{Listening, Peer, Place, Port, answers};
use crate::support::tls::Identity;
use crate::support::{HANG, OK, OK_CLOSE, in_a_process, must_pass, skipped};
use oroshi_bench::follow::{Progress, Stage};
use oroshi_bench::{Draft, Failure, Observer, RunError, SecondHistograms};
use oroshi_testkit::test_name;

// Messages.

#[test]
fn counts_and_bytes_are_exact_over_every_socket() {
    let identity = Identity::new();
    let serve = || answers(|_| OK.into());
    let peers = [
        Peer::start(Place::Tcp, serve()),
        Peer::start(Place::Unix, serve()),
        Peer::start(Place::Abstract, serve()),
        Peer::start_tls(Place::Tcp, &identity, serve()),
        Peer::start_tls(Place::Unix, &identity, serve()),
    ];
    for peer in peers {
        let plan = Draft { tls: identity.trusted(), threads: Some(2), ..requests(&peer.url, 301, 4) };
        let request = plan.clone().plan().unwrap().origins[0].requests[0].keep.len() as u64;
        let record = run(plan);
        all_answered(&record, 301);
        let seen = peer.seen();
        // One more connection is made before the run, to see whether somebody is there.
        assert_eq!((seen.requests, seen.accepted), (301, 5), "{}", peer.url);
        assert_eq!((record.connections.opened, record.connections.alive_at_end), (4, 4));
        assert_eq!(record.rates.written_bytes, 301 * request);
        assert_eq!(record.rates.read_bytes, 301 * OK.len() as u64);
        assert_eq!(record.latency.first_byte.summary.count, 301);
        assert_eq!(record.latency.lateness.summary.count, 0, "a closed loop is never late");
        assert_eq!(record.latency.tls.summary.count, if peer.url.starts_with("https") { 4 } else { 0 });
    }
}

/// Whole answers, with the length of their body, and whether the connection can be used again.
const ANSWERS: &[(&str, &str, u64, bool)] = &[
    ("length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 5, true),
    ("no body", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0, true),
    ("no content", "HTTP/1.1 204 No Content\r\n\r\n", 0, true),
    (
        "not modified, with a length that is another's",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        0,
        true,
    ),
    ("no reason, odd case", "HTTP/1.1 200 \r\nCONTENT-length:5\r\n\r\nhello", 5, true),
    (
        "interim answers before it",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        2,
        true,
    ),
    ("chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", 11, true),
    (
        "chunks with extensions and trailers",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0;c\r\nDigest: x\r\nTime: 1\r\n\r\n",
        5,
        true,
    ),
    ("until the end", "HTTP/1.1 200 OK\r\n\r\nhello", 5, false),
    ("until the end, and there is nothing", "HTTP/1.1 200 OK\r\n\r\n", 0, false),
    ("of HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", 5, false),
    ("of HTTP/1.0, kept", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", 5, true),
    ("the last", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", 5, false),
];

/// Each kind of answer, sent at once and byte by byte.
fn exchange_answers(place: fn() -> Place, byte_by_byte: bool) {
    for &(what, bytes, length, kept) in ANSWERS {
        let peer = Peer::start(place(), move |mut conn| {
            while conn.request().is_some() {
                if !(if byte_by_byte { conn.trickle(bytes) } else { conn.send(bytes) }) {
                    return;
                }
                if !kept {
                    return conn.close_gently();
                }
            }
        });
        let checks = vec![format!("length={length}").parse().unwrap()];
        let record = run(Draft { checks, ..requests(&peer.url, 6, 1) });
        assert_eq!((record.requests.completed, record.errors), (6, 0), "{what}: {:?}", record.failures);
        assert_eq!(record.connections.opened, if kept { 1 } else { 6 }, "{what}");
        assert_eq!(record.rates.read_bytes, 6 * bytes.len() as u64, "{what}");
    }
}

#[test]
fn answers_of_every_kind_are_read_to_their_end() {
    exchange_answers(|| Place::Tcp, false);
}

#[test]
fn answers_may_be_cut_at_every_byte() {
    exchange_answers(|| Place::Unix, true);
    exchange_answers(|| Place::Tcp, true);
}

#[test]
fn an_answer_to_head_has_no_body_whatever_it_says() {
    let peer = Peer::answering(|request| {
        assert_eq!(request.method, "HEAD");
        ["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
            [request.number as usize % 2]
            .into()
    });
    let record = run(Draft { method: "HEAD".into(), pipeline: 3, ..requests(&peer.url, 30, 2) });
    all_answered(&record, 30);
    assert_eq!(record.connections.opened, 2);
}

#[test]
fn an_upgrade_that_was_asked_for_is_an_answer() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if conn.request().is_some_and(|request| request.head.contains("Upgrade: echo")) {
            conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello");
            conn.stall();
        }
    });
    let headers = vec![("Upgrade".into(), "echo".into()), ("Connection".into(), "upgrade".into())];
    let record = run(Draft { headers, ..requests(&peer.url, 4, 1) });
    assert_eq!((record.requests.completed, record.errors), (4, 0));
    assert_eq!(record.statuses, BTreeMap::from([(101, 4)]));
    assert_eq!(record.connections.opened, 4);
}

#[test]
fn bodies_are_sent_whole() {
    let peer = Peer::answering(|request| {
        let [status, text] = if request.length == 3_000_000 { ["200", "as sent"] } else { ["400", "cut short"] };
        format!("HTTP/1.1 {status} {text}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    let plan =
        Draft { method: "POST".into(), body: vec![b'x'; 3_000_000].into(), pipeline: 2, ..requests(&peer.url, 10, 2) };
    let record = run(plan);
    all_answered(&record, 10);
    assert!(record.rates.written_bytes > 30_000_000);
}

/// Whoever has an answer before it has sent everything does not go on sending; on that connection nothing can follow.
#[test]
fn an_early_answer_ends_the_sending() {
    for (place, connection) in [(Place::Tcp, "close"), (Place::Unix, "close"), (Place::Tcp, "keep-alive")] {
        let peer = Peer::start(place, move |mut conn| {
            conn.head();
            conn.send(format!(
                "HTTP/1.1 413 Content Too Large\r\nConnection: {connection}\r\nContent-Length: 3\r\n\r\nno!"
            ));
            conn.ignore();
        });
        // More than the kernel holds for both sides: nobody reads it.
        let body = vec![b'x'; 24 << 20];
        let record = run(Draft { method: "POST".into(), body: body.into(), pipeline: 2, ..requests(&peer.url, 4, 1) });
        assert_eq!((record.requests.completed, record.requests.failed), (4, 0), "{connection}: {:?}", record.failures);
        assert_eq!(record.statuses, BTreeMap::from([(413, 4)]));
        assert_eq!(record.failures, failures([(Failure::Status, 4)]));
        assert_eq!(record.connections.opened, 4);
        assert!(record.rates.written_bytes < 4 * (24 << 20));
    }
}

#[test]
fn an_answer_of_any_size_is_read_in_little_memory() {
    must_pass(in_a_process(&[], test_name!("an_answer_of_400_mb")));
}

#[test]
#[ignore = "looks at its process's memory: an_answer_of_any_size_is_read_in_little_memory runs it"]
fn an_answer_of_400_mb() {
    const BLOCK: usize = 1 << 20;
    let highest = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    };
    let peer = Peer::start(Place::Unix, |mut conn| {
        let block = vec![b'x'; BLOCK];
        while conn.request().is_some() {
            conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 400 * BLOCK));
            if !(0..400).all(|_| conn.send(&block)) {
                return;
            }
        }
    });
    let before = highest();
    let record = run(requests(&peer.url, 1, 1));
    all_answered(&record, 1);
    assert!(record.rates.read_bytes > 400 * BLOCK as u64);
    let grown = highest() - before;
    assert!(grown < 40, "{grown} MB more");
}

#[test]
fn several_urls_are_asked_in_turn() {
    let peer = Peer::answering(|_| OK.into());
    let urls = ["a", "b?c=d", "e/f"].map(|path| format!("{}{path}", peer.url).parse().unwrap()).to_vec();
    for threads in [1, 2] {
        run(Draft { urls: urls.clone(), threads: Some(threads), ..requests(&peer.url, 300, 4) });
    }
    let each = ["/a", "/b?c=d", "/e/f"].map(|path| (path.to_owned(), 200));
    assert_eq!(peer.seen().targets, each.into());
}

#[test]
fn several_places_share_the_connections() {
    let identity = Identity::new();
    let plain = Peer::answering(|_| OK.into());
    let tls = Peer::start_tls(Place::Tcp, &identity, answers(|_| OK.into()));
    let urls = [&plain.url, &tls.url].map(|url| url.parse().unwrap()).to_vec();
    let record = run(Draft { urls, tls: identity.trusted(), ..requests(&plain.url, 200, 4) });
    all_answered(&record, 200);
    let (plain, tls) = (plain.seen(), tls.seen());
    assert_eq!(plain.requests + tls.requests, 200);
    assert!(plain.requests > 0 && tls.requests > 0);
    assert_eq!((plain.accepted, tls.accepted), (3, 3));
    assert_eq!(record.plan.origins.iter().map(|o| o.connections).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn ipv6_is_spoken() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return skipped("ipv6_is_spoken", "there is no ::1") };
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let peer = Peer::listening(url, Listening::Tcp(listener), answers(|_| OK.into()));
    let sources = vec!["::1".parse().unwrap()];
    all_answered(&run(Draft { sources: sources.clone(), ..requests(&peer.url, 40, 2) }), 40);
    assert_eq!(peer.seen().sources, [sources[0]; 3]);
}

#[test]
fn a_name_may_lead_elsewhere() {
    let peer = Peer::answering(|request| {
        // Host and path are the URL's, wherever the connection goes (RFC 9112, section 3.2).
        let right = request.head.contains("\r\nHost: nobody.invalid:81\r\n") && request.target == "/a";
        if right { OK.into() } else { b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec() }
    });
    let port = peer.url.trim_end_matches('/').rsplit(':').next().unwrap();
    let rule = |text: String| vec![text.parse().unwrap()];
    let url = "http://nobody.invalid:81/a";
    for connect_to in [rule(format!("nobody.invalid:81:127.0.0.1:{port}")), rule(format!("::127.0.0.1:{port}"))] {
        all_answered(&run(Draft { connect_to, ..requests(url, 20, 2) }), 20);
    }
    let socket = Peer::start(Place::Abstract, answers(|_| OK.into()));
    let unix = Some(oroshi_net::UnixAddress::parse(socket.url.trim_start_matches("unix:")).unwrap());
    all_answered(&run(Draft { unix, ..requests(url, 20, 2) }), 20);
    assert_eq!((peer.seen().requests, socket.seen().targets), (40, BTreeMap::from([("/a".to_owned(), 20)])));
}

/// `localhost` may be ::1 first, where this server is not.
#[test]
fn addresses_of_a_name_that_do_not_answer_are_left_out() {
    let peer = Peer::answering(|_| OK.into());
    let record = run(requests(&peer.url.replace("127.0.0.1", "localhost"), 40, 4));
    all_answered(&record, 40);
    assert_eq!(record.connections.opened, 4);
}

// Connections.

/// The peer answers nothing until it has as many requests as are to be in flight.
#[test]
fn pipelined_requests_are_in_flight_together() {
    for depth in [2, 16, 100] {
        let peer = Peer::start(Place::Tcp, move |mut conn| {
            loop {
                for _ in 0..depth {
                    if conn.request().is_none() {
                        return;
                    }
                }
                conn.send(OK.repeat(depth));
            }
        });
        let n = 10 * depth as u64;
        let record = run(Draft { pipeline: depth, ..requests(&peer.url, n, 1) });
        all_answered(&record, n);
        assert_eq!((peer.seen().requests, record.connections.opened), (n, 1));
    }
}

/// The requests that stand behind the announced end go on to the next connection: nothing is lost, and nothing failed.
#[test]
fn pipelined_requests_behind_an_announced_end_are_sent_again() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        for answer in [OK, OK, OK, OK, OK_CLOSE] {
            if conn.request().is_none() || !conn.send(answer) {
                return;
            }
        }
        conn.close_gently();
    });
    let record = run(Draft { pipeline: 16, ..requests(&peer.url, 100, 1) });
    all_answered(&record, 100);
    assert_eq!(record.connections.opened, 20);
    // Together with a limit of our own: what was sent again counts towards it.
    let limited = Draft { pipeline: 16, requests_per_connection: Some(4), ..requests(&peer.url, 100, 1) };
    let record = run(limited);
    all_answered(&record, 100);
    assert_eq!(record.connections.opened, 25);
}

#[test]
fn a_connection_is_replaced_after_as_many_requests_as_it_may_carry() {
    for pipeline in [1, 4] {
        let peer = Peer::answering(|_| OK.into());
        let record = run(Draft { requests_per_connection: Some(7), pipeline, ..requests(&peer.url, 50, 1) });
        all_answered(&record, 50);
        let seen = peer.seen();
        assert_eq!((seen.accepted, record.connections.opened), (9, 8));
        assert_eq!((seen.most_on_one, seen.last_requests), (7, 7), "the last of each full connection says so");
    }
}

#[test]
fn requests_sent_again_count_towards_what_a_connection_may_carry() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        for answer in [OK, OK_CLOSE] {
            if conn.request().is_none() || !conn.send(answer) {
                return;
            }
        }
        // What stands behind the announced end is seen too.
        while conn.request().is_some() {}
    });
    let record = run(Draft { requests_per_connection: Some(6), pipeline: 4, ..requests(&peer.url, 60, 1) });
    all_answered(&record, 60);
    assert_eq!(record.connections.opened, 30);
    assert!(peer.seen().most_on_one <= 6, "{}", peer.seen().most_on_one);
}

#[test]
fn a_connection_per_request() {
    let identity = Identity::new();
    let answer = || answers(|_| OK_CLOSE.into());
    let closing = vec![("Connection".to_owned(), "close".to_owned())];
    for (peer, headers, per_connection) in [
        (Peer::start(Place::Tcp, answer()), Vec::new(), Some(1)),
        (Peer::start(Place::Unix, answer()), Vec::new(), Some(1)),
        (Peer::start_tls(Place::Tcp, &identity, answer()), Vec::new(), Some(1)),
        (Peer::start(Place::Tcp, answer()), closing, None),
    ] {
        let tls = identity.trusted();
        let begun = Instant::now();
        let record = run(Draft { requests_per_connection: per_connection, headers, tls, ..requests(&peer.url, 90, 3) });
        all_answered(&record, 90);
        let seen = peer.seen();
        assert_eq!((record.connections.opened, seen.accepted), (90, 91));
        assert_eq!((seen.most_on_one, seen.last_requests), (1, 90));
        assert_eq!(record.plan.requests_per_connection, Some(1));
        assert!(begun.elapsed() < HANG, "it once waited for the timeout before it began");
    }
}

#[test]
fn source_addresses_are_used_in_turn() {
    let peer = Peer::answering(|_| OK.into());
    let sources = (2..=5).map(|n| format!("127.0.0.{n}").parse().unwrap()).collect::<Vec<_>>();
    let record = run(Draft { requests_per_connection: Some(1), sources: sources.clone(), ..requests(&peer.url, 8, 1) });
    all_answered(&record, 8);
    let seen = peer.seen().sources;
    assert_eq!((&seen[..1], &seen[1..]), (&sources[..1], &[&sources[..], &sources[..]].concat()[..]));
}

#[test]
fn held_connections_are_open_while_the_load_runs() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while conn.request().is_some() {
            if !conn.wait_for(|seen| seen.most_open == 24) {
                return;
            }
            conn.send(OK);
        }
    });
    let record = run(Draft { hold: 20, threads: Some(2), ..requests(&peer.url, 100, 4) });
    all_answered(&record, 100);
    let connections = record.connections;
    assert_eq!((connections.held_at_end, connections.alive_at_end, connections.opened), (20, 4, 4));
    assert_eq!(peer.seen().accepted, 25);
}

#[test]
fn held_connections_that_are_closed_are_opened_again() {
    let peer = Peer::start(Place::Unix, |mut conn| {
        if conn.index < 10 && conn.index % 2 == 1 {
            return;
        }
        while conn.request().is_some() && conn.send(OK) {}
    });
    // The generator's first, nine of the run of which five are closed, and five in their stead.
    let mut observer = until(|_| peer.seen().accepted == 15);
    let record = run_seen(Draft { hold: 8, duration: Some(HANG), ..draft(&peer.url) }, &mut observer);
    assert!(record.cut_short);
    let connections = record.connections;
    assert_eq!((connections.alive_at_end, connections.held_at_end), (1, 8));
    assert!((4..=5).contains(&connections.closed_by_server), "{connections:?}");
    assert!(record.requests.failed <= 1, "the one under load may have been among the five");
}

// The course of a run.

#[test]
fn fewer_requests_than_connections_are_that_many() {
    let peer = Peer::answering(|_| OK.into());
    for (n, per_connection) in [(1, None), (3, None), (3, Some(1))] {
        let plan = Draft { requests_per_connection: per_connection, ..requests(&peer.url, n, 8) };
        let record = run(Draft { threads: Some(2), ..plan });
        all_answered(&record, n);
        assert_eq!(record.connections.opened, if per_connection.is_some() { n } else { 8 });
    }
    assert_eq!(peer.seen().requests, 7);
}

#[test]
fn of_a_number_and_a_time_the_first_to_be_reached_ends_the_run() {
    let peer = Peer::answering(|_| OK.into());
    all_answered(&run(Draft { duration: Some(HANG), ..requests(&peer.url, 100, 2) }), 100);
    let record = run(Draft { duration: Some(Duration::from_millis(100)), ..requests(&peer.url, 1 << 40, 2) });
    assert!(record.requests.completed > 0 && record.requests.cut_off <= 2, "{:?}", record.requests);
    assert!(record.elapsed_s >= 0.1 && !record.cut_short);
}

#[test]
fn the_warm_up_is_not_counted() {
    let peer = Peer::answering(|_| OK.into());
    let warmup = Duration::from_millis(150);
    let record = run(Draft { warmup, threads: Some(2), ..requests(&peer.url, 50, 4) });
    all_answered(&record, 50);
    assert!(peer.seen().requests > 50, "it was asked during the warm-up too");
    assert_eq!((record.connections.opened, record.connections.alive_at_end), (0, 4), "opened before");
}

/// An observer that notes what it is told.
#[derive(Default)]
struct Notes {
    stages: Vec<Stage>,
    seconds: Vec<SecondHistograms>,
    cancel: Option<Stage>,
}

impl Observer for Notes {
    fn progress(&mut self, progress: &Progress) {
        self.stages.push(progress.stage);
    }

    fn second(&mut self, histograms: &SecondHistograms) {
        self.seconds.push(histograms.clone());
    }

    fn cancelled(&mut self) -> bool {
        self.cancel.is_some() && self.stages.last() == self.cancel.as_ref()
    }
}

#[test]
fn a_run_that_is_cancelled_has_a_whole_record() {
    let peer = Peer::answering(|_| OK.into());
    let plan = |warmup| Draft { warmup, duration: Some(HANG), threads: Some(2), connections: 4, ..draft(&peer.url) };
    let mut notes = Notes { cancel: Some(Stage::Measuring), ..Notes::default() };
    let record = run_seen(plan(Duration::ZERO), &mut notes);
    assert!(record.cut_short && record.elapsed_s < HANG.as_secs_f64());
    assert_eq!(record.errors, 0);
    assert!(record.requests.completed > 0);
    assert_eq!(record.connections.alive_at_end, 4);
    assert!(record.requests.cut_off <= 4);
    // In the warm-up nothing is measured: a record of it would divide by no time at all.
    let mut notes = Notes { cancel: Some(Stage::WarmUp), ..Notes::default() };
    let error = oroshi_bench::run(plan(HANG).plan().unwrap(), &mut notes).unwrap_err();
    assert!(matches!(error, RunError::EndedInWarmUp), "{error:?}");
}

/// Connections that nobody accepts are waited for, until the timeout or until somebody has had enough.
#[test]
fn a_run_that_is_cancelled_before_it_begins_has_no_record() {
    struct AfterSome(usize);
    impl Observer for AfterSome {
        fn cancelled(&mut self) -> bool {
            self.0 = self.0.saturating_sub(1);
            self.0 == 0
        }
    }
    let port = Port::reserve();
    let _listener = port.listen(0);
    for threads in [1, 2] {
        let plan = Draft { threads: Some(threads), ..requests(&port.url(), 10, 4) }.plan().unwrap();
        let error = oroshi_bench::run(plan, &mut AfterSome(20)).unwrap_err();
        assert!(matches!(error, RunError::Cancelled), "{error:?}");
    }
}

#[test]
fn each_second_has_its_histograms() {
    let peer = Peer::answering(|_| OK.into());
    let duration = Duration::from_millis(1200);
    let plan = Draft { interval_histograms: true, duration: Some(duration), connections: 2, ..draft(&peer.url) };
    let mut notes = Notes::default();
    let record = run_seen(plan, &mut notes);
    let mut end = Duration::ZERO;
    for second in &notes.seconds {
        assert_eq!(second.offset, end, "each begins where the one before it ended");
        assert!(second.length >= Duration::from_millis(100), "{:?}", second.length);
        end += second.length;
    }
    assert!(end >= duration && (end.as_secs_f64() - record.elapsed_s).abs() < 1e-6, "{end:?} {}", record.elapsed_s);
    for count in [|s: &SecondHistograms| s.service.len(), |s: &SecondHistograms| s.response.len()] {
        assert_eq!(notes.seconds.iter().map(count).sum::<u64>(), record.requests.completed);
    }
    assert!(notes.stages.iter().all(|stage| *stage == Stage::Measuring) && notes.stages.len() > 1);
}
