//! The open loop: a timetable that nobody holds up, and what becomes of the requests that nobody could carry.

use std::time::Duration;

use crate::support::OK;
use crate::support::load::{SHORT, all_answered, all_bounds, draft, failed, failures, run, run_seen, until};
use crate::support::peer::{Conn, Peer, Place, answers};
use oroshi_bench::{Arrivals, Draft, Failure, Load, Record, Spacing, Stage};

fn rate(url: &str, per_second: f64, connections: usize) -> Draft {
    Draft { load: Load::rate(per_second, Spacing::Constant, 0), connections, ..draft(url) }
}

/// How many requests a timetable has before `end`.
fn due_before(mut arrivals: Arrivals, end: Duration) -> u64 {
    let mut n = 0;
    while arrivals.next_due() < end.as_nanos() as u64 {
        arrivals.take();
        n += 1;
    }
    n
}

/// What is true of every open loop: each request that was sent has its lateness.
fn check_lateness(record: &Record) {
    let sent = record.latency.lateness.summary.count;
    let r = record.requests;
    assert!(sent >= r.completed && sent <= r.started - r.unsent, "{sent} of {r:?}");
}

#[test]
fn a_rate_for_a_time_is_an_exact_number_of_requests() {
    let peer = Peer::answering(|_| OK.into());
    for (threads, per_second) in [(1, 400.0), (2, 400.0), (2, 1000.0)] {
        let duration = Duration::from_millis(500);
        let record = run(Draft { duration: Some(duration), threads: Some(threads), ..rate(&peer.url, per_second, 8) });
        let expected = (per_second / 2.0) as u64;
        assert!(record.requests.started.abs_diff(expected) < threads as u64, "{:?}", record.requests);
        assert_eq!((record.errors, record.connections.opened), (0, 8));
        check_lateness(&record);
    }
}

#[test]
fn a_number_of_requests_at_a_rate_is_that_number() {
    let peer = Peer::answering(|_| OK.into());
    for (threads, per_connection) in [(1, None), (2, None), (2, Some(1)), (1, Some(3))] {
        let plan = Draft {
            requests: Some(101),
            threads: Some(threads),
            requests_per_connection: per_connection,
            ..rate(&peer.url, 1000.0, 5)
        };
        let record = run(plan);
        all_answered(&record, 101);
        assert_eq!(record.latency.lateness.summary.count, 101);
        // The last one is due when a hundred gaps have passed; two timetables of half the rate differ by half of one.
        assert!(record.elapsed_s >= 0.098, "{}", record.elapsed_s);
    }
    assert_eq!(peer.seen().requests, 4 * 101);
}

#[test]
fn poisson_arrivals_are_those_of_the_seed() {
    let peer = Peer::answering(|_| OK.into());
    let count = |seed| {
        let load = Load::rate(500.0, Spacing::Poisson, seed);
        run(Draft { load, duration: Some(SHORT), connections: 8, ..draft(&peer.url) }).requests.started
    };
    let expected = |seed| due_before(Arrivals::steady(500.0, Spacing::Poisson, seed), SHORT);
    let seeds = [1, 2, 3];
    assert_eq!(seeds.map(count), seeds.map(expected));
    assert_eq!(seeds.map(count), seeds.map(expected));
    assert_ne!(expected(1), expected(2));
}

#[test]
fn stages_are_followed_and_end_the_run() {
    let peer = Peer::answering(|_| OK.into());
    let stage = |ms, rate| Stage { duration: Duration::from_millis(ms), rate };
    let stages = vec![stage(0, 100.0), stage(200, 900.0), stage(100, 900.0), stage(100, 0.0)];
    let load = Load::Open { stages: stages.clone(), spacing: Spacing::Constant, seed: 0 };
    let record = run(Draft { load, connections: 8, ..draft(&peer.url) });
    // 100 + 90 + 45: the areas under the ramps.
    let expected = due_before(Arrivals::stages(&stages, 1.0, Spacing::Constant, 0), Duration::from_millis(400));
    assert!(expected.abs_diff(235) <= 1, "{expected}");
    assert_eq!(record.requests.started, expected);
    assert_eq!(record.plan.duration_s, Some(0.4));
    assert!(record.elapsed_s >= 0.4);
    check_lateness(&record);
}

#[test]
fn the_warm_up_uses_up_none_of_the_requests() {
    let peer = Peer::answering(|_| OK.into());
    let plan = Draft { requests: Some(50), warmup: Duration::from_millis(100), ..rate(&peer.url, 500.0, 4) };
    all_answered(&run(plan), 50);
    assert!(peer.seen().requests > 50);
}

/// The first request is never answered. Those behind it do not wait for it: the other connections carry them.
#[test]
fn a_stalled_connection_holds_nobody_up() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            if request.number == 0 {
                return conn.stall();
            }
            conn.send(OK);
        }
    });
    for connections in [2, 8] {
        let base = peer.seen().requests;
        let stalled = u64::from(base == 0);
        let mut observer = until(|progress| progress.done == 60 - stalled);
        let record = run_seen(Draft { requests: Some(60), ..rate(&peer.url, 500.0, connections) }, &mut observer);
        assert_eq!(record.requests.started, 60);
        assert_eq!((record.requests.completed, record.requests.cut_off), (60 - stalled, stalled));
        assert_eq!((record.requests.unsent, record.errors), (0, 0));
        assert_eq!(record.connections.alive_at_end, connections);
        // One of sixty is open: the median is known, the end is not.
        let summary = &record.latency.response.summary;
        assert!(!summary.p50.unwrap().at_least);
        assert_eq!(summary.p99_99.unwrap().at_least, stalled == 1);
    }
}

/// A connection's answers come only when others are due: what was late for want of a connection is the server's doing.
#[test]
fn waiting_for_a_connection_is_not_lateness() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while conn.request().is_some() {
            std::thread::sleep(Duration::from_millis(20));
            conn.send(OK);
        }
    });
    let record = run(Draft { requests: Some(20), ..rate(&peer.url, 10_000.0, 1) });
    all_answered(&record, 20);
    assert_eq!(record.requests.waited, 19);
    // The last was due after 2 ms, and its answer came when twenty answers had taken 20 ms each.
    let response = &record.latency.response.summary;
    assert!(response.max_ns >= 398_000_000, "{response:?}");
    assert!(record.latency.service.summary.min_ns >= 20_000_000);
    let lateness = &record.latency.lateness.summary;
    assert!(lateness.count == 20 && lateness.mean_ns < response.mean_ns / 2.0, "{lateness:?}");
}

#[test]
fn with_all_connections_stuck_what_was_due_is_unsent_and_the_percentiles_are_bounds() {
    let peer = Peer::start(Place::Tcp, Conn::stall);
    let record = run(Draft { duration: Some(SHORT), ..rate(&peer.url, 200.0, 2) });
    let r = record.requests;
    assert_eq!((r.started, r.cut_off, r.unsent), (50, 2, 48));
    assert_eq!(record.failures, failures([(Failure::CutOffAtEnd, 2)]));
    assert_eq!(record.connections.alive_at_end, 2);
    all_bounds(&record.latency.response, Duration::ZERO);
    // The first was due at the start.
    let most = record.latency.response.summary.p99_99.unwrap().value_ns;
    assert!(u128::from(most) >= SHORT.as_nanos() * 99 / 100, "{most}");
    assert_eq!(record.latency.service.summary.censored, 2, "what was not sent has no service time");
    check_lateness(&record);
}

#[test]
fn timeouts_free_connections_for_what_is_due() {
    let peer = Peer::start(Place::Tcp, Conn::stall);
    let plan = Draft { requests: Some(6), timeout: Duration::from_millis(60), ..rate(&peer.url, 1000.0, 2) };
    let record = run(plan);
    assert_eq!(record.requests.failed, 6);
    assert_eq!(record.failures, failures([(Failure::Timeout, 6)]));
    all_bounds(&record.latency.response, Duration::from_millis(60));
    // Three in turn on each connection: the last have waited for two timeouts, and for their own.
    assert!(record.latency.response.summary.p99_99.unwrap().value_ns >= 170_000_000);
}

/// A server that closes idle connections: between requests it may, and what it hits of requests is counted.
#[test]
fn connections_closed_between_requests_are_replaced() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        if conn.request().is_some() {
            conn.send(OK);
        }
        conn.close_gently();
    });
    let record = run(Draft { requests: Some(30), ..rate(&peer.url, 200.0, 2) });
    let r = record.requests;
    assert_eq!(r.completed + r.failed, 30);
    // A request that was sent before the end of its connection was seen has failed. The gaps are long enough for most.
    assert_eq!(
        r.failed,
        failed(&record, Failure::ReadEof) + failed(&record, Failure::ReadReset) + failed(&record, Failure::Write)
    );
    assert!(record.connections.closed_by_server > 0, "{:?} {:?}", record.connections, record.failures);
    assert!(record.connections.opened as i64 >= r.completed as i64);
}

#[test]
fn refused_connections_hold_up_nobody_else() {
    let dead = Peer::start(Place::Tcp, |conn| conn.close_listener());
    let alive = Peer::start(Place::Tcp, answers(|_| OK.into()));
    let urls = [&dead.url, &alive.url].map(|url| url.parse().unwrap()).to_vec();
    let record = run(Draft { urls, requests: Some(50), ..rate(&alive.url, 500.0, 4) });
    // Arrivals go to whichever connection is free. Those to the dead place never are, but for two that may have come
    // just before it went away.
    assert_eq!(record.requests.completed + record.requests.failed, 50);
    assert!(record.requests.failed <= 2, "{:?}", record.failures);
    assert!(failed(&record, Failure::ConnectRefused) >= 2, "{:?}", record.failures);
    assert_eq!(record.connections.alive_at_end, 2);
}
