//! Against a server that others wrote, and that counts for itself.

use std::time::Duration;

use crate::support::load::{all_answered, draft, failed, failures, requests, run};
use crate::support::nginx;
use oroshi_bench::watch::Precision;
use oroshi_bench::{Draft, Failure, Load, Spacing, Watching};

#[test]
fn our_count_is_the_servers() {
    let Some(mut nginx) = nginx::start("our_count_is_the_servers", 1) else { return };
    let places = [nginx.http.clone(), nginx.https.clone(), nginx.unix_url("/")];
    for url in places {
        let plan = |n| Draft { tls: nginx.identity.trusted(), threads: Some(2), ..requests(&url, n, 8) };
        let plans = [
            plan(3000),
            Draft { pipeline: 8, ..plan(3000) },
            Draft { requests_per_connection: Some(1), ..plan(200) },
            Draft { requests_per_connection: Some(7), pipeline: 3, ..plan(300) },
            Draft { load: Load::rate(3000.0, Spacing::Poisson, 7), ..plan(300) },
        ];
        for plan in plans {
            let n = plan.requests.unwrap();
            let before = nginx.requests();
            let record = run(plan);
            all_answered(&record, n);
            assert_eq!(nginx.requests() - before, n, "{url}");
        }
    }
}

/// nginx closes each connection with its thousandth answer (keepalive_requests), and says so.
#[test]
fn connections_that_nginx_ends_are_replaced_without_loss() {
    let Some(mut nginx) = nginx::start("connections_that_nginx_ends_are_replaced_without_loss", 1) else { return };
    for (pipeline, opened) in [(1, 5), (16, 5)] {
        let before = nginx.requests();
        let record = run(Draft { pipeline, ..requests(&nginx.unix_url("/"), 5000, 1) });
        all_answered(&record, 5000);
        assert_eq!(record.connections.opened, opened);
        // Those in flight behind the last answer may have been read, and are sent again.
        let counted = nginx.requests() - before;
        assert!((5000..5000 + 5 * pipeline as u64).contains(&counted), "{counted}");
    }
}

/// By time: what was on the wire at the end may or may not have been counted there.
#[test]
fn a_run_by_time_counts_what_nginx_counts_but_for_what_was_cut_off() {
    let Some(mut nginx) = nginx::start("a_run_by_time_counts_what_nginx_counts", 1) else { return };
    for load in [Load::Closed, Load::rate(2000.0, Spacing::Constant, 0)] {
        let before = nginx.requests();
        let duration = Some(Duration::from_millis(300));
        let record = run(Draft { duration, load, connections: 8, ..draft(&nginx.http) });
        let counted = nginx.requests() - before;
        assert_eq!(record.errors, 0);
        let r = record.requests;
        assert!((r.completed..=r.completed + r.cut_off).contains(&counted), "{counted} of {r:?}");
        assert!(r.completed > 0);
    }
}

#[test]
fn statuses_and_bodies_are_those_of_nginx() {
    let Some(nginx) = nginx::start("statuses_and_bodies_are_those_of_nginx", 1) else { return };
    let large = |n| requests(&format!("{}large", nginx.http), n, 2);
    let checks = vec![format!("length={}", 1 << 20).parse().unwrap(), "status=200".parse().unwrap()];
    let record = run(Draft { checks, ..large(100) });
    all_answered(&record, 100);
    assert!(record.rates.read_bytes > 100 << 20);
    all_answered(&run(Draft { method: "HEAD".into(), ..large(100) }), 100);

    let record = run(requests(&nginx.unix_url("/missing"), 50, 2));
    assert_eq!(record.failures, failures([(Failure::Status, 50)]));
    // client_max_body_size is a megabyte: nginx answers before it has read it all.
    let too_large = Draft { method: "POST".into(), body: vec![b'x'; 8 << 20].into(), ..requests(&nginx.http, 10, 2) };
    let record = run(too_large);
    let refused = failed(&record, Failure::Status);
    assert_eq!(record.requests.completed, refused);
    // nginx closes while we still send: whether its answer or the reset comes first is a matter of chance.
    assert_eq!(refused + failed(&record, Failure::Write) + failed(&record, Failure::ReadReset), 10);
    assert_eq!(record.statuses.get(&413).copied().unwrap_or(0), refused);
}

#[test]
fn the_servers_cpu_time_is_found_over_every_socket() {
    let Some(nginx) = nginx::start("the_servers_cpu_time_is_found_over_every_socket", 2) else { return };
    let master = nginx.pid();
    for (url, watch) in [
        (nginx.http.clone(), Watching::Auto),
        (nginx.https.clone(), Watching::Auto),
        (nginx.unix_url("/"), Watching::Auto),
        (nginx.http.clone(), Watching::Pid(master)),
    ] {
        let record = run(Draft { watch, tls: nginx.identity.trusted(), ..requests(&url, 3000, 8) });
        let server = record.server.unwrap_or_else(|| panic!("{url}: {:?}", record.server_unknown));
        assert!(server.processes.iter().any(|process| process.pid == master), "{url}: {server:?}");
        assert!(server.processes.len() >= 3, "a master and two workers: {server:?}");
    }
}

/// Short enough for a tick to matter, and its workers are processes of their own.
#[test]
fn the_cpu_time_of_a_short_run_is_not_counted_in_ticks() {
    let Some(nginx) = nginx::start("the_cpu_time_of_a_short_run_is_not_counted_in_ticks", 2) else { return };
    let short = Duration::from_millis(100);
    let watch = Watching::Pid(nginx.pid());
    let record = run(Draft { watch, connections: 8, duration: Some(short), ..draft(&nginx.http) });
    let server = record.server.unwrap();
    assert_eq!((server.precision, server.exited), (Precision::Nanoseconds, 0), "{server:?}");
    assert!(server.process_count >= 3 && server.cpu_us_per_request(record.requests.answered) > Some(0.0), "{server:?}");
}
