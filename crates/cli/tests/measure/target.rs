//! `oroshi target` as `oroshi bench` measures it: what one says to have sent and the other to have got must agree.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::Command;

use crate::common;
use crate::common::support::peer::Port;
use crate::common::support::tls::Identity;
use crate::common::{OROSHI, Target, all_answered, measured, only_failed, to_the_end_with_input};
use oroshi_bench::Failure;

/// The generator makes one connection before its run.
const PROBE: u64 = 1;

#[test]
fn it_serves_every_kind_of_socket_and_counts() {
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", folder.path().join("target.sock").display());
    let name = format!("unix:@oroshi-target-{}", std::process::id());
    let target = Target::at(3, &["--listen", "127.0.0.1:0", "--listen", &unix, "--listen", &name]);
    for url in &target.urls {
        let record = all_answered(200, &["-c", "4", url]);
        assert_eq!((record.connections.opened, record.connections.alive_at_end), (4, 4));
    }
    assert!(target.urls[1].starts_with(&unix) && target.urls[2].starts_with(&name), "{:?}", target.urls);
    assert_eq!(target.stop(), (600, 3 * (4 + PROBE)));
}

#[test]
fn bodies_have_the_size_and_the_coding_asked_for() {
    for (size, coding) in [("0", None), ("12", None), ("100k", None), ("3M", None), ("100k", Some("--chunked"))] {
        let target = Target::start(&[&["--size", size], coding.as_slice()].concat());
        let bytes = size.replace('k', "000").replace('M', "000000");
        let record = all_answered(20, &["-c", "2", "--check", &format!("length={bytes}"), target.url()]);
        assert!(record.rates.read_bytes >= 20 * bytes.parse::<u64>().unwrap());
        assert_eq!(target.stop(), (20, 2 + PROBE));
    }
}

#[test]
fn head_is_answered_without_a_body() {
    let target = Target::start(&["--size", "1M"]);
    let record = all_answered(50, &["-m", "HEAD", target.url()]);
    assert!(record.rates.read_bytes < 50 * 1000);
}

#[test]
fn a_delay_is_at_least_as_long_as_asked_for() {
    let target = Target::start(&["--delay", "20ms"]);
    let record = all_answered(40, &["-c", "8", target.url()]);
    let service = &record.latency.service.summary;
    assert!(service.min_ns >= 20_000_000, "{service:?}");
    assert_eq!(target.stop(), (40, 8 + PROBE));
}

#[test]
fn it_closes_after_each_answer_if_asked_to() {
    let target = Target::start(&["--close"]);
    let record = all_answered(50, &["-c", "1", target.url()]);
    assert_eq!((record.connections.opened, record.connections.closed_by_server), (50, 50));
    // The other side may also ask for it, and then both agree.
    all_answered(50, &["-c", "1", "--close", target.url()]);
    assert_eq!(target.stop(), (100, 2 * (50 + PROBE)));
}

#[test]
fn shares_of_statuses_are_exact() {
    for threads in ["1", "2"] {
        let target = Target::start(&["--status", "200=97,404=2,500=1", "--threads", threads]);
        let record = measured(&["-n", "400", "-c", "8", target.url()]);
        assert_eq!(record.statuses, BTreeMap::from([(200, 388), (404, 8), (500, 4)]));
        only_failed(&record, Failure::Status, 12);
        assert_eq!(target.stop(), (400, 8 + PROBE));
    }
}

#[test]
fn every_nth_request_is_never_answered() {
    let target = Target::start(&["--stall-one-in", "10"]);
    let record = measured(&["-n", "60", "-c", "4", "--timeout", "250ms", target.url()]);
    assert_eq!((record.requests.completed, record.requests.failed), (54, 6));
    only_failed(&record, Failure::Timeout, 6);
    assert_eq!(target.stop().0, 54);
    // In an open loop the others go on meanwhile.
    let target = Target::start(&["--stall-one-in", "10"]);
    let record = measured(&["-n", "60", "-c", "16", "-R", "1000", "--timeout", "500ms", target.url()]);
    only_failed(&record, Failure::Timeout, 6);
    assert_eq!((record.requests.completed, record.requests.unsent), (54, 0));
}

#[test]
fn it_speaks_tls() {
    let identity = Identity::new();
    let (cert, key) = identity.files();
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let target = Target::at(1, &["--listen", "https://127.0.0.1:0/", "--cert", cert, "--key", key, "--size", "50k"]);
    let ca = identity.ca();
    let trust = ["--cacert", ca.to_str().unwrap()];
    let check = ["--check", "length=50000", "-c", "3", target.url()];
    let record = all_answered(60, &[&trust[..], &check].concat());
    assert_eq!(record.latency.tls.summary.count, 3);
    all_answered(60, &[&["--insecure"], &check[..]].concat());
    let distrust = common::bench(&["-n", "1", target.url()]);
    distrust.said(1, &["tls: ", "certificate", "--cacert"]);
    assert_eq!(target.stop().0, 120);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let target = Target::start(&["--status", "200=3,204=1"]);
    let record = measured(&["-n", "400", "-c", "2", "--pipeline", "16", target.url()]);
    assert_eq!(record.statuses, BTreeMap::from([(200, 300), (204, 100)]));
    assert_eq!((record.errors, target.stop()), (0, (400, 2 + PROBE)));
}

#[test]
fn bodies_of_requests_are_taken() {
    let target = Target::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("body");
    std::fs::write(&file, vec![b'x'; 2_000_000]).unwrap();
    let record = all_answered(20, &["-c", "2", "--body-file", file.to_str().unwrap(), target.url()]);
    assert!(record.rates.written_bytes > 20 * 2_000_000);
    assert!(record.plan.origins[0].requests[0].starts_with("POST "));
}

/// `oroshi target` with a listening socket as descriptor 3, where supervisors put the first one, and a word of shell
/// before it.
fn supervised(port: &Port, words: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec 3<&0 0</dev/null; {words} exec \"$0\" target"), OROSHI]);
    command.stdin(OwnedFd::from(port.listen(128)));
    command
}

#[test]
fn it_takes_a_socket_from_server_starter() {
    let port = Port::reserve();
    let words = format!("SERVER_STARTER_PORT={}=3", port.address());
    let target = Target::by(1, supervised(&port, &words));
    assert_eq!(target.url(), port.url());
    all_answered(50, &["-c", "2", target.url()]);
    assert_eq!(target.stop(), (50, 2 + PROBE));
}

#[test]
fn it_takes_a_socket_from_systemd_if_it_is_meant() {
    let port = Port::reserve();
    let target = Target::by(1, supervised(&port, "LISTEN_FDS=1 LISTEN_PID=$$"));
    assert_eq!(target.url(), port.url());
    all_answered(50, &["-c", "2", target.url()]);
    assert_eq!(target.stop(), (50, 2 + PROBE));

    let ran = to_the_end_with_input(supervised(&Port::reserve(), "LISTEN_FDS=1 LISTEN_PID=1"));
    ran.said(2, &["nowhere to listen"]);
}

#[test]
fn where_somebody_listens_already_it_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = common::oroshi(&["target", "--listen", &address]);
    ran.said(1, &[&address, "cannot listen"]);
}
