//! Every failure has one name: each is brought about by a peer that does what peers do, and is counted exactly.
//!
//! First those of making a connection, then those of using it, then what no slot may lose by any of them. Answers that
//! are cut short or wrong are in `answers.rs`.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Mutex;
use std::time::Duration;

use crate::support::load::{
    SHORT, all_answered, all_bounds, draft, failed, failures, refused, requests, run, run_seen, until,
};
use crate::support::peer::{Conn, Listening, Peer, Place, Port, answers, server_config, unix_listener};
use crate::support::tls::Identity;
use crate::support::{HANG, OK, OK_CLOSE, in_a_process, must_pass, skipped};
use oroshi_bench::{Bottleneck, Draft, Failure, Load, RunError, Spacing, Watching};
use oroshi_testkit::test_name;

/// More than the kernel holds for both ends of a connection, so that writing it takes as long as the peer reads.
const LARGE: usize = 24 << 20;

fn post(url: &str, n: u64, body: usize) -> Draft {
    Draft { method: "POST".into(), body: vec![b'x'; body].into(), ..requests(url, n, 1) }
}

// Before the run.

#[test]
fn a_name_that_does_not_resolve_ends_the_run_before_it_begins() {
    // No such name can exist (RFC 6761, section 6.4).
    let error = refused(requests("http://nobody.invalid/", 1, 1));
    assert!(matches!(error, RunError::Dns(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("dns: ") && text.contains("nobody.invalid"), "{text}");
}

#[test]
fn with_nobody_there_the_run_does_not_begin() {
    let port = Port::reserve();
    let folder = tempfile::tempdir().unwrap();
    let leftover = folder.path().join("leftover");
    drop(UnixListener::bind(&leftover).unwrap());
    let missing = folder.path().join("missing");
    let unix = [leftover, missing].map(|path| format!("unix:{}", path.display()));
    for (url, name) in [
        (&*port.url(), "connect-refused"),
        (&unix[0], "connect-refused"),
        (&unix[1], "connect-not-found"),
        ("unix:@oroshi-bench-nobody", "connect-refused"),
        ("unix:/etc/passwd", "connect-not-a-socket"),
    ] {
        let error = refused(requests(url, 1, 1));
        assert!(matches!(error, RunError::Connect { .. }), "{url}: {error:?}");
        assert!(error.to_string().starts_with(&format!("{name}: cannot connect to ")), "{url}: {error}");
    }
}

#[test]
fn what_is_no_number_of_connections_or_no_process_is_refused() {
    let peer = Peer::answering(|_| OK.into());
    let error = refused(requests(&peer.url, 1 << 40, 1 << 40));
    assert!(matches!(error, RunError::Descriptors(_)), "{error:?}");
    // The highest process id that Linux gives is 2^22 - 1.
    let error = refused(Draft { watch: Watching::Pid(1 << 22), ..requests(&peer.url, 1, 1) });
    assert!(matches!(error, RunError::Watch { pid: 0x40_0000, .. }), "{error:?}");
    assert_eq!(peer.seen().requests, 0);
}

#[test]
fn a_certificate_that_is_not_accepted_ends_the_run_before_it_begins() {
    let identity = Identity::new();
    let peer = Peer::start_tls(Place::Tcp, &identity, answers(|_| OK.into()));
    let plain = Peer::start(Place::Tcp, |mut conn| {
        conn.send("HTTP/1.1 400 Bad Request\r\n\r\n");
        conn.close_gently();
    });
    let stranger = requests(&peer.url, 1, 1);
    let mut misnamed = Draft { tls: identity.trusted(), ..requests(&peer.url, 1, 1) };
    misnamed.tls.server_name = Some("elsewhere.example".into());
    let no_tls = Draft { tls: identity.trusted(), ..requests(&plain.url.replace("http:", "https:"), 1, 1) };
    for draft in [stranger, misnamed, no_tls] {
        let error = refused(draft);
        assert!(matches!(error, RunError::Connect { .. }), "{error:?}");
        assert!(error.to_string().starts_with("tls: cannot connect to "), "{error}");
    }
}

// Connections of the run.

/// A peer that goes away for good with its 20th answer: what is left of the requests fails, and the run ends.
#[test]
fn a_listener_that_goes_away_during_the_run_refuses() {
    for place in [Place::Tcp, Place::Unix, Place::Abstract] {
        let peer = Peer::start(place, |mut conn| {
            while let Some(request) = conn.request() {
                if request.number == 19 {
                    conn.close_listener();
                    conn.send(OK_CLOSE);
                    return;
                }
                conn.send(OK);
            }
        });
        let record = run(requests(&peer.url, 25, 1));
        assert_eq!((record.requests.completed, record.requests.failed), (20, 5));
        assert_eq!(record.failures, failures([(Failure::ConnectRefused, 5)]));
        assert_eq!(record.connections.alive_at_end, 0);
    }
}

/// What a million requests would take against a server that is gone, nobody wants to wait for.
#[test]
fn a_run_of_many_requests_against_a_server_that_is_gone_is_given_up() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if conn.request().is_some() {
            conn.close_listener();
            conn.send(OK_CLOSE);
        }
    });
    let record = run(Draft { timeout: SHORT, ..requests(&peer.url, 1_000_000, 1) });
    assert!(record.cut_short, "{:?}", record.requests);
    assert!(
        record.warnings.iter().any(|warning| warning.contains("no connection could be made")),
        "{:?}",
        record.warnings
    );
    assert_eq!(record.requests.completed, 1);
    assert_eq!(record.grade.bottleneck, Bottleneck::ServerGone);
}

/// Such a peer takes no byte and closes nothing: only the timeout ends it.
#[test]
fn a_peer_that_reads_nothing_and_stays_costs_a_timeout_each_time() {
    for requests_per_connection in [None, Some(1)] {
        let kept = Mutex::new(Vec::new());
        let peer = Peer::start(Place::Unix, move |conn| {
            conn.stop_reading();
            kept.lock().unwrap().push(conn);
        });
        let record = run(Draft { timeout: SHORT, requests_per_connection, ..requests(&peer.url, 3, 1) });
        assert_eq!((record.requests.started, record.requests.failed), (3, 3));
        let expected = failed(&record, Failure::Write) + failed(&record, Failure::Timeout);
        assert_eq!(record.errors, expected, "{:?}", record.failures);
    }
}

/// A request that never got a connection took at least that long: the percentiles must not be of the lucky ones alone.
#[test]
fn a_request_that_waited_for_a_connection_in_vain_counts_in_the_response_times() {
    let port = Port::reserve();
    let _listener: TcpListener = port.listen(0);
    let record = run(Draft { timeout: SHORT, requests_per_connection: Some(1), ..requests(&port.url(), 3, 1) });
    assert_eq!(record.failures, failures([(Failure::ConnectTimeout, 3)]));
    assert_eq!(record.latency.response.summary.censored, 3);
    all_bounds(&record.latency.response, SHORT);
}

#[test]
fn a_listener_that_comes_back_has_all_its_connections_again() {
    let port = Port::reserve();
    let closing = |mut conn: Conn| {
        while let Some(request) = conn.request() {
            if request.number == 19 {
                conn.close_listener();
            }
            if request.number >= 19 {
                conn.send(OK_CLOSE);
                return;
            }
            conn.send(OK);
        }
    };
    let first = Peer::listening(port.url(), Listening::Tcp(port.listen(64)), closing);
    let mut second = None;
    // Both connections are lost when the first failure is seen; then somebody listens again.
    let mut observer = until(|progress| {
        if progress.errors >= 2 && progress.alive == 0 && second.is_none() {
            let listener = Listening::Tcp(port.listen(64));
            second = Some(Peer::listening(port.url(), listener, answers(|_| OK.into())));
        }
        second.is_some() && progress.alive == 2
    });
    let record = run_seen(Draft { duration: Some(HANG), connections: 2, ..draft(&first.url) }, &mut observer);
    assert!(record.cut_short);
    assert_eq!(record.connections.alive_at_end, 2);
    assert_eq!(record.connections.fewest_alive, 0);
    // A server that was started again is not one that has gone, and is told of.
    assert_eq!(record.gone, None);
    assert!(
        record.warnings.iter().any(|warning| warning.contains("refused") && warning.contains("started again")),
        "{:?}",
        record.warnings
    );
    let (seen, r) = (first.seen().requests + second.unwrap().seen().requests, record.requests);
    assert!((r.completed..=r.completed + r.cut_off).contains(&seen), "{seen} of {r:?}");
    assert_eq!(record.errors, failed(&record, Failure::ConnectRefused));
}

/// The generator's first connection is never accepted, and stands in the only place of the queue from then on.
#[test]
fn a_full_tcp_backlog_times_out() {
    let port = Port::reserve();
    let _listener: TcpListener = port.listen(0);
    let record = run(Draft { timeout: SHORT, ..requests(&port.url(), 3, 1) });
    assert_eq!((record.requests.started, record.requests.failed), (3, 3));
    assert_eq!(record.failures, failures([(Failure::ConnectTimeout, 3)]));
    assert_eq!((record.connections.opened, record.connections.alive_at_end), (0, 0));
}

#[test]
fn a_full_unix_backlog_is_waited_for_until_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = unix_listener(&path, 0);
    let record = run(Draft { timeout: SHORT, ..requests(&format!("unix:{}", path.display()), 3, 1) });
    assert_eq!((record.requests.started, record.requests.failed), (3, 3));
    // The first attempt is made before the run, and ends before it: nothing was due yet.
    assert_eq!(record.errors, failed(&record, Failure::ConnectBacklog));
    assert!((3..=4).contains(&record.errors), "{:?}", record.failures);
    assert_eq!((record.connections.opened, record.connections.alive_at_end), (0, 0));
}

#[test]
fn a_backlog_of_one_that_is_emptied_refuses_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listening::Unix(unix_listener(&path, 0));
    let peer = Peer::listening(format!("unix:{}", path.display()), listener, answers(|_| OK.into()));
    let record = run(requests(&peer.url, 160, 16));
    all_answered(&record, 160);
    assert_eq!(record.connections.opened, 16);
    let per_request = run(Draft { requests_per_connection: Some(1), ..requests(&peer.url, 160, 16) });
    all_answered(&per_request, 160);
    assert_eq!(per_request.connections.opened, 160);
}

/// In a network of its own that has four local ports, where the machine lets a test have one.
#[test]
fn ports_run_out() {
    let test = "ports_run_out";
    let lower = "ip link set lo up && echo 40000 40003 > /proc/sys/net/ipv4/ip_local_port_range";
    let root = vec!["unshare", "--net"];
    let user = vec!["unshare", "--user", "--map-root-user", "--net"];
    for mut wrapper in [root, user] {
        wrapper.extend(["sh", "-c"]);
        let check = std::process::Command::new(wrapper[0]).args(&wrapper[1..]).arg(lower).output();
        if check.is_ok_and(|output| output.status.success()) {
            let run = format!("{lower} && exec \"$@\"");
            wrapper.extend([&run, "sh"]);
            must_pass(in_a_process(&wrapper, test_name!("in_a_network_of_four_ports")));
            return;
        }
    }
    skipped(test, "no network namespace with a port range of its own can be made (unshare, ip)");
}

#[test]
#[ignore = "needs a network of its own: ports_run_out makes it"]
fn in_a_network_of_four_ports() {
    let listener = |port| Listening::Tcp(TcpListener::bind(("127.0.0.1", port)).unwrap());
    let peer = Peer::listening("http://127.0.0.1:80/".into(), listener(80), answers(|_| OK.into()));
    // The generator's first connection may still hold one of the four.
    let kept = run(requests(&peer.url, 100, 8));
    assert!((3..=4).contains(&kept.connections.opened), "{:?}", kept.connections);
    assert!(failed(&kept, Failure::PortsExhausted) >= 4, "{:?}", kept.failures);
    assert_eq!(kept.errors, failed(&kept, Failure::PortsExhausted));
    assert_eq!(kept.requests.completed + kept.requests.failed, 100);
    assert_eq!(kept.grade.bottleneck, Bottleneck::PortBound);

    // This side closes first, so its ports wait (TIME_WAIT), the first of them already.
    let closed_by_us = Peer::listening("http://127.0.0.1:81/".into(), listener(81), |mut conn| {
        if conn.request().is_some() && conn.send(OK_CLOSE) {
            conn.ignore();
        }
    });
    let each = run(Draft { requests_per_connection: Some(1), ..requests(&closed_by_us.url, 10, 1) });
    assert!(each.requests.completed >= 3, "{:?}", each.requests);
    assert!(each.requests.failed > 0, "{:?}", each.requests);
    assert_eq!(each.failures, failures([(Failure::PortsExhausted, each.requests.failed)]));
    assert!(each.warnings.is_empty() || each.warnings[0].contains("4 local ports"), "{:?}", each.warnings);

    // Another source address has four ports of its own.
    let sources = vec!["127.0.0.2".parse().unwrap(), "127.0.0.3".parse().unwrap()];
    let spread = run(Draft { sources, ..requests(&peer.url, 100, 6) });
    all_answered(&spread, 100);
}

#[test]
fn handshakes_that_fail_during_the_run_are_counted() {
    let identity = Identity::new();
    let config = server_config(&identity);
    let mut peer = Peer::start(Place::Tcp, move |mut conn| {
        if conn.index > 1 {
            conn.send("HTTP/1.1 400 Bad Request\r\n\r\n");
            conn.close_gently();
        } else if let Some(mut conn) = conn.into_tls(&config) {
            while let Some(request) = conn.request() {
                conn.send(if request.number < 2 { OK } else { OK_CLOSE });
            }
        }
    });
    peer.url = peer.url.replace("http:", "https:");
    let record = run(Draft { tls: identity.trusted(), ..requests(&peer.url, 8, 1) });
    assert_eq!((record.requests.completed, record.requests.failed), (3, 5));
    assert_eq!(record.failures, failures([(Failure::Tls, 5)]));
    assert_eq!((record.connections.opened, record.latency.tls.summary.count), (1, 1));
}

#[test]
fn a_handshake_that_never_ends_times_out() {
    let identity = Identity::new();
    let config = server_config(&identity);
    let mut peer = Peer::start(Place::Tcp, move |conn| {
        if conn.index == 0 {
            conn.into_tls(&config);
        } else {
            conn.stall();
        }
    });
    peer.url = peer.url.replace("http:", "https:");
    let record = run(Draft { tls: identity.trusted(), timeout: SHORT, ..requests(&peer.url, 2, 1) });
    assert_eq!(record.requests.failed, 2);
    assert_eq!(record.failures, failures([(Failure::ConnectTimeout, 2)]));
}

#[test]
fn bytes_that_are_no_tls_record_are_counted() {
    let identity = Identity::new();
    let peer = Peer::start_tls(Place::Tcp, &identity, |mut conn| {
        conn.request();
        conn.send(OK);
        conn.request();
        conn.send_raw(b"HTTP/1.1 200 OK\r\n\r\n");
        conn.close_gently();
    });
    let record = run(Draft { tls: identity.trusted(), ..requests(&peer.url, 6, 1) });
    assert_eq!((record.requests.completed, record.requests.failed), (3, 3));
    assert_eq!(record.failures, failures([(Failure::Tls, 3)]));
}

// Writing.

#[test]
fn a_reset_while_the_body_is_sent_is_a_failed_write() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if conn.head().is_some() {
            conn.reset();
        }
    });
    let record = run(post(&peer.url, 3, LARGE));
    assert_eq!(record.requests.failed, 3);
    assert_eq!(record.failures, failures([(Failure::Write, 3)]));
    assert_eq!(record.connections.opened, 3);
}

#[test]
fn a_peer_that_stops_reading_fails_the_write_unless_it_has_answered() {
    let silent = Peer::start(Place::Unix, |mut conn| {
        conn.head();
        conn.stop_reading();
        // A close with unread bytes would be a reset, which the client may read first.
        conn.ignore();
    });
    let record = run(post(&silent.url, 3, LARGE));
    assert_eq!(record.failures, failures([(Failure::Write, 3)]));
    assert_eq!(record.requests.failed, 3);

    let answering = Peer::start(Place::Unix, |mut conn| {
        conn.head();
        conn.stop_reading();
        conn.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!");
        conn.ignore();
    });
    let record = run(post(&answering.url, 3, LARGE));
    assert_eq!((record.requests.completed, record.requests.failed), (3, 0));
    assert_eq!(record.failures, failures([(Failure::Status, 3)]));
}

/// What was answered before the write failed is answered.
#[test]
fn answers_that_came_before_a_failed_write_count() {
    let peer = Peer::start(Place::Unix, |mut conn| {
        let mut all = Vec::new();
        for _ in 0..5 {
            conn.request();
            all.extend_from_slice(OK);
        }
        conn.head();
        conn.stop_reading();
        conn.send(all);
        conn.ignore();
    });
    // Six requests are in flight: five answered, the sixth half sent.
    let record = run(Draft { pipeline: 6, ..post(&peer.url, 6, 1 << 20) });
    assert_eq!((record.requests.completed, record.requests.failed), (5, 1));
    assert_eq!(record.failures, failures([(Failure::Write, 1)]));
}

/// With the socket full, the end of a body stood in the TLS session's buffer for ever. That takes a peer that is slower
/// than the generator, and a body that ends where the session has room and the socket has none: one of these does.
#[test]
fn a_body_in_tls_is_sent_to_its_end() {
    let identity = Identity::new();
    let peer = Peer::start_tls(Place::Unix, &identity, |mut conn| {
        conn.slow_down(Duration::from_micros(50));
        while conn.request().is_some() && conn.send(OK) {}
    });
    for size in (1 << 20..1_300_000).step_by(16_000) {
        all_answered(&run(Draft { tls: identity.trusted(), timeout: HANG / 4, ..post(&peer.url, 1, size) }), 1);
    }
}

// Waiting.

#[test]
fn requests_without_an_answer_time_out_and_the_percentiles_know() {
    let peer = Peer::start(Place::Tcp, Conn::stall);
    let record = run(Draft { timeout: SHORT, ..requests(&peer.url, 4, 2) });
    assert_eq!(record.requests.failed, 4);
    assert_eq!(record.failures, failures([(Failure::Timeout, 4)]));
    assert_eq!(record.connections.opened, 4, "a connection that timed out is replaced");
    assert_eq!(record.latency.service.summary.censored, 4);
    all_bounds(&record.latency.service, SHORT);
    all_bounds(&record.latency.response, SHORT);
    assert!(record.elapsed_s >= 2.0 * SHORT.as_secs_f64(), "two in turn on each connection");
}

#[test]
fn an_answer_that_stalls_or_never_ends_times_out() {
    let stalls = Peer::start(Place::Tcp, |mut conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        conn.stall();
    });
    let endless = Peer::start(Place::Tcp, |mut conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while conn.send("5\r\nhello\r\n") {}
    });
    for peer in [stalls, endless] {
        let record = run(Draft { timeout: SHORT, ..requests(&peer.url, 2, 1) });
        assert_eq!(record.requests.failed, 2);
        assert_eq!(record.failures, failures([(Failure::Timeout, 2)]));
        assert_eq!(record.latency.first_byte.summary.count, 2);
        all_bounds(&record.latency.service, SHORT);
    }
}

#[test]
fn percentiles_are_bounds_from_where_timeouts_begin() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            if request.number % 8 == 7 {
                return conn.stall();
            }
            conn.send(OK);
        }
    });
    let record = run(Draft { timeout: SHORT, ..requests(&peer.url, 80, 4) });
    assert_eq!((record.requests.completed, record.requests.failed), (70, 10));
    assert_eq!(record.failures, failures([(Failure::Timeout, 10)]));
    let summary = &record.latency.response.summary;
    assert!(!summary.p50.unwrap().at_least && !summary.p75.unwrap().at_least);
    // 12.5 % timed out.
    for percentile in [summary.p90, summary.p95, summary.p99].map(Option::unwrap) {
        assert!(percentile.at_least && u128::from(percentile.value_ns) >= SHORT.as_nanos(), "{percentile:?}");
    }
}

#[test]
fn a_run_ends_on_time_whatever_the_peer_withholds() {
    let silent = Peer::start(Place::Tcp, Conn::stall);
    let stalls = Peer::start(Place::Tcp, |mut conn| {
        conn.request();
        conn.send("HTTP/1.1 200 OK\r\n");
        conn.stall();
    });
    for peer in [silent, stalls] {
        let record = run(Draft { duration: Some(SHORT), connections: 3, ..draft(&peer.url) });
        assert_eq!((record.requests.started, record.requests.cut_off), (3, 3));
        assert_eq!(record.failures, failures([(Failure::CutOffAtEnd, 3)]));
        assert_eq!((record.errors, record.connections.alive_at_end), (0, 3));
        assert!(record.elapsed_s >= SHORT.as_secs_f64() && record.elapsed_s < HANG.as_secs_f64() / 2.0);
        all_bounds(&record.latency.response, Duration::ZERO);
        assert_eq!(record.latency.service.summary.censored, 3);
    }
}

// No slot is lost.

#[test]
fn connections_that_are_reset_again_and_again_are_all_up_at_the_end() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            if request.number < 60 && request.number % 3 == 2 {
                return conn.reset();
            }
            conn.send(OK);
        }
    });
    let record = run(requests(&peer.url, 500, 8));
    assert_eq!((record.requests.completed, record.requests.failed), (480, 20));
    assert_eq!(record.failures, failures([(Failure::ReadReset, 20)]));
    assert_eq!((record.connections.opened, record.connections.alive_at_end), (28, 8));
}

#[test]
fn every_kind_of_failure_in_one_run_leaves_all_connections_up() {
    let peer = Peer::start(Place::Unix, |mut conn| {
        while let Some(request) = conn.request() {
            match request.number {
                n if n >= 70 => {}
                n => match n % 7 {
                    0 => return conn.reset(),
                    1 => return,
                    2 => {
                        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
                        return;
                    }
                    3 => {
                        conn.send("SSH-2.0-OpenSSH\r\n");
                        return conn.close_gently();
                    }
                    4 => return conn.stall(),
                    5 => {
                        conn.send("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n");
                        continue;
                    }
                    _ => {}
                },
            }
            conn.send(OK);
        }
    });
    // Until everything that could go wrong has, and everybody is back.
    let mut observer = until(|progress| progress.errors == 60 && progress.alive == 8);
    let plan = Draft { duration: Some(HANG), connections: 8, timeout: SHORT * 2, ..draft(&peer.url) };
    let record = run_seen(plan, &mut observer);
    assert!(record.cut_short);
    assert_eq!((record.connections.alive_at_end, record.requests.failed), (8, 50));
    let ends = failed(&record, Failure::ReadEof) + failed(&record, Failure::ReadReset);
    assert_eq!(ends, 30, "{:?}", record.failures);
    for (failure, n) in [(Failure::Parse, 10), (Failure::Timeout, 10), (Failure::Status, 10)] {
        assert_eq!(failed(&record, failure), n, "{failure}");
    }
}

/// A peer that closes whatever it accepts was connected to as often as the machine allowed.
#[test]
fn a_peer_that_closes_at_once_is_not_hammered() {
    let peer = Peer::start(Place::Unix, drop);
    let plan = Draft {
        // One arrival, at once, that fails; after that there is nothing to send, and the slots wait in connections.
        load: Load::rate(1e-3, Spacing::Constant, 0),
        duration: Some(SHORT * 2),
        connections: 2,
        ..draft(&peer.url)
    };
    let record = run(plan);
    // The pauses double from 1 ms to 100 ms: 8 attempts take a quarter of a second.
    assert!(record.connections.opened <= 2 * 20, "{:?}", record.connections);
    assert_eq!(record.requests.started, 1);
}
