//! ab and `--format ab` against the same servers: what both report must agree, field by field.

use std::sync::{Arc, Mutex};

use crate::common::ab::{Report, SAME, ab, agree, ours};
use crate::common::support::nginx;
use crate::common::support::peer::{Peer, Place};
use crate::common::support::{OK, OK_CLOSE};
use crate::common::{Target, bench};

#[test]
fn nginx_is_reported_on_alike() {
    let test = "nginx_is_reported_on_alike";
    let Some(nginx) = nginx::start(test, 1) else { return };
    for path in ["", "missing?a=b", "large"] {
        for (theirs, flags) in [
            (&["-k"][..], &[][..]),
            (&[], &["--close"]),
            (&["-k", "-i"], &["-m", "HEAD"]),
            (&["-i"], &["-m", "HEAD", "--close"]),
            (&["-k", "-l"], &["--ab-any-length"]),
        ] {
            let url = format!("{}{path}", nginx.http);
            let load = ["-n", "60", "-c", "4", &url];
            let Some(theirs) = ab(test, &[theirs, &load].concat()) else { return };
            agree(&theirs, &ours(&[flags, &load].concat()), 0);
        }
    }
    // A single request has no percentages.
    let load = ["-n", "1", "-c", "1", &nginx.http];
    let Some(theirs) = ab(test, &load) else { return };
    agree(&theirs, &ours(&[&["--close"], &load[..]].concat()), 0);
}

#[test]
fn nginx_behind_tls_is_reported_on_alike() {
    let test = "nginx_behind_tls_is_reported_on_alike";
    let Some(nginx) = nginx::start(test, 1) else { return };
    for host in ["localhost", "127.0.0.1"] {
        let url = nginx.https.replace("localhost", host);
        for (theirs, flags) in [(&["-k"][..], &["--insecure"][..]), (&[], &["--insecure", "--close"])] {
            let load = ["-n", "40", "-c", "4", &url];
            let Some(theirs) = ab(test, &[theirs, &load].concat()) else { return };
            let ours = ours(&[flags, &load].concat());
            agree(&theirs, &ours, 0);
            assert_eq!(theirs.field("TLS Server Name"), ours.field("TLS Server Name"));
            // Version, cipher suite, the certificate's key, the suite's key.
            let tls = |report: &Report| report.field("SSL/TLS Protocol").unwrap().split(',').count();
            assert_eq!((tls(&theirs), tls(&ours)), (4, 4));
            let version = ours.field("SSL/TLS Protocol").unwrap();
            assert!(
                version.starts_with("TLSv1.") && version.contains("AES") || version.contains("CHACHA"),
                "{version}"
            );
        }
    }
}

/// ab asks in HTTP/1.0, where it must be told that the connection is kept.
#[test]
fn oroshis_own_target_is_reported_on_alike() {
    let test = "oroshis_own_target_is_reported_on_alike";
    for flags in [&[][..], &["--size", "0"], &["--size", "100k"], &["--status", "200=97,404=2,500=1"]] {
        let target = Target::start(flags);
        let load = ["-n", "100", "-c", "4", target.url()];
        let Some(theirs) = ab(test, &[&["-k"], &load[..]].concat()) else { return };
        agree(&theirs, &ours(&load), 100 * "Connection: keep-alive\r\n".len() as u64);
        let Some(theirs) = ab(test, &load) else { return };
        agree(&theirs, &ours(&[&["--close"], &load[..]].concat()), 0);
    }
}

/// A peer that answers one request per connection, and keeps what was asked.
fn one_answer_each(heads: &Arc<Mutex<Vec<String>>>) -> Peer {
    let heads = Arc::clone(heads);
    Peer::start(Place::Tcp, move |mut conn| {
        if let Some(request) = conn.request() {
            heads.lock().unwrap().push(request.head);
            conn.send(OK_CLOSE);
            conn.close_gently();
        }
    })
}

/// The two heads differ, and nothing else.
#[test]
fn what_was_sent_is_heads_and_bodies() {
    let test = "what_was_sent_is_heads_and_bodies";
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body");
    std::fs::write(&body, vec![b'x'; 300]).unwrap();
    let body = body.to_str().unwrap();
    let heads = Arc::default();
    let peer = one_answer_each(&heads);
    let sent = |report: &Report, n: usize| {
        let heads = std::mem::take(&mut *heads.lock().unwrap());
        assert!(heads.len() == n && heads.iter().all(|head| *head == heads[0]), "{heads:?}");
        assert_eq!(report.number("Total body sent"), (n * (heads[0].len() + 300)) as u64, "{}", report.text);
        heads[0].clone()
    };
    for method in [("-p", "POST"), ("-u", "PUT")] {
        let Some(theirs) = ab(test, &["-n", "20", "-c", "2", method.0, body, "-T", "text/x", &peer.url]) else {
            return;
        };
        let their_head = sent(&theirs, 20);
        let ours = ours(&[
            "-n",
            "20",
            "-c",
            "2",
            "--close",
            "-m",
            method.1,
            "--body-file",
            body,
            "-H",
            "Content-Type: text/x",
            &peer.url,
        ]);
        let our_head = sent(&ours, 20);
        agree(&theirs, &ours, 0);
        for head in [their_head, our_head] {
            assert!(
                head.starts_with(method.1) && head.to_lowercase().contains("\r\ncontent-type: text/x\r\n"),
                "{head}"
            );
        }
    }
}

/// What the table in docs/bench.md gives in place of ab's flags is what ab sends.
#[test]
fn headers_are_those_of_abs_flags() {
    let test = "headers_are_those_of_abs_flags";
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let peer = one_answer_each(&heads);
    for (theirs, flags) in [
        (&["-C", "a=b"][..], &["-H", "Cookie: a=b"][..]),
        (&["-A", "user:password"], &["-H", "Authorization: Basic dXNlcjpwYXNzd29yZA=="]),
        (&["-H", "X-Key: c"], &["-H", "X-Key: c"]),
        (&["-H", "Host: other"], &["-H", "Host: other"]),
    ] {
        let Some(_) = ab(test, &[theirs, &["-n", "1", &peer.url]].concat()) else { return };
        ours(&[flags, &["-n", "1", "-c", "1", "--close", &peer.url]].concat());
        let heads = std::mem::take(&mut *heads.lock().unwrap());
        let header = flags[1];
        assert!(heads.len() == 2 && heads.iter().all(|head| head.contains(&format!("\r\n{header}\r\n"))), "{heads:?}");
    }
}

// Servers that are not quite right.

/// Bodies of 5, 6 and 7 bytes in turn; each tenth answer is the connection's last.
fn of_many_lengths() -> Peer {
    Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            let body = &b"xxxxxxx"[..5 + request.number as usize % 3];
            let last = request.on_connection == 9 || !request.head.to_lowercase().contains("keep-alive");
            let connection = if last { "close" } else { "keep-alive" };
            let head = format!("Server: A Peer/1.0\r\nContent-Length: {}\r\nConnection: {connection}", body.len());
            conn.send([format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes(), body].concat());
            if last {
                return conn.close_gently();
            }
        }
    })
}

#[test]
fn other_lengths_and_connections_that_end_are_counted_alike() {
    let test = "other_lengths_and_connections_that_end_are_counted_alike";
    for (theirs, flags) in [(&[][..], &[][..]), (&["-l"], &["--ab-any-length"])] {
        let load = ["-n", "60", "-c", "1"];
        let peer = of_many_lengths();
        let Some(theirs) = ab(test, &[theirs, &["-k"], &load, &[&peer.url]].concat()) else { return };
        let peer = of_many_lengths();
        // In HTTP/1.1 nobody says that a connection is kept, so this peer has to be told as ab does.
        let ours = ours(&[flags, &["-H", "Connection: keep-alive"], &load, &[&peer.url]].concat());
        for label in SAME.iter().filter(|label| **label != "Server Port") {
            assert_eq!(theirs.field(label), ours.field(label), "{label}\n{}\n{}", theirs.text, ours.text);
        }
        assert_eq!(theirs.shape(), ours.shape());
        let counted = ["Complete requests", "Failed requests", "Keep-Alive requests"].map(|label| ours.number(label));
        assert_eq!(counted, [60, if flags.is_empty() { 40 } else { 0 }, 54]);
        assert_eq!(ours.field("Server Software"), Some("A"), "ab keeps the first word");
    }
}

/// ab takes a connection that ends without an answer for a complete request of the wrong length.
#[test]
fn what_was_never_answered_is_not_complete() {
    let test = "what_was_never_answered_is_not_complete";
    let peer = || {
        Peer::start(Place::Tcp, |mut conn| {
            if let Some(request) = conn.request()
                && request.number % 5 != 4
            {
                conn.send(OK_CLOSE);
            }
            conn.close_gently();
        })
    };
    let there = peer();
    let Some(theirs) = ab(test, &["-n", "20", "-c", "2", &there.url]) else { return };
    let here = peer();
    let ours = ours(&["-n", "20", "-c", "2", "--close", &here.url]);
    assert_eq!((theirs.number("Complete requests"), ours.number("Complete requests")), (20, 16));
    assert_eq!((theirs.number("Failed requests"), ours.number("Failed requests")), (4, 4));
    let kinds = |report: &Report| report.text.lines().find(|line| line.starts_with("   (")).unwrap().to_owned();
    assert_eq!(kinds(&theirs), "   (Connect: 0, Receive: 0, Length: 4, Exceptions: 0)");
    assert_eq!(kinds(&ours), "   (Connect: 0, Receive: 4, Length: 0, Exceptions: 0)");
    assert_eq!(theirs.shape(), ours.shape());
}

/// ab counts the frames of chunks as part of the document.
#[test]
fn chunks_are_put_together() {
    let test = "chunks_are_put_together";
    let target = Target::start(&["--chunked", "--close"]);
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let peer = Peer::start(Place::Tcp, move |mut conn| {
        if conn.request().is_some() {
            conn.send(answer);
            conn.close_gently();
        }
    });
    let load = ["-n", "20", "-c", "2", &peer.url];
    let ours = |load: &[&str]| ours(&[&["--close"], load].concat());
    let chunked = ours(&load);
    assert_eq!((chunked.field("Document Length"), chunked.number("HTML transferred")), (Some("3 bytes"), 60));
    assert_eq!(ours(&["-n", "20", target.url()]).number("HTML transferred"), 240);
    let Some(theirs) = ab(test, &load) else { return };
    assert_eq!((theirs.field("Document Length"), theirs.number("HTML transferred")), (Some("13 bytes"), 260));
    assert_eq!(theirs.number("Total transferred"), chunked.number("Total transferred"));
}

#[test]
fn nothing_answered_is_a_report_without_rates() {
    let peer = Peer::start(Place::Tcp, |mut conn| drop(conn.request()));
    let folder = tempfile::tempdir().unwrap();
    let [list, csv] = ["list.tsv", "percentiles.csv"].map(|name| folder.path().join(name));
    let files = ["-g", list.to_str().unwrap(), "-e", csv.to_str().unwrap()];
    let ran = bench(&[&["--format", "ab", "-n", "5", "-c", "1"], &files[..], &[&peer.url]].concat());
    ran.said(1, &["not one request was answered"]);
    let report = Report::read(&ran.out);
    assert_eq!((report.number("Complete requests"), report.number("Failed requests")), (0, 5));
    assert!(report.text.ends_with("\nHTML transferred:       0 bytes\n"), "{}", report.text);
    assert_eq!(std::fs::read_to_string(list).unwrap(), "starttime\tseconds\tctime\tdtime\tttime\twait\n");
    assert_eq!(std::fs::read_to_string(csv).unwrap(), "Percentage served,Time in ms\n");
}

#[test]
fn what_hangs_is_in_the_percentages() {
    let peer = Peer::start(Place::Tcp, |mut conn| {
        while let Some(request) = conn.request() {
            if request.number % 5 == 4 {
                return conn.stall();
            }
            conn.send(OK);
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("percentiles.csv");
    let report = ours(&["-n", "20", "--timeout", "250ms", "-e", csv.to_str().unwrap(), &peer.url]);
    assert!(report.text.contains("\nFailed requests:        4\n   (Connect: 0, Receive: 4, "), "{}", report.text);
    assert!(report.percentage("90%") >= 250.0, "{}", report.text);
    for (percent, end) in [("90%", " (at least)"), ("100%", " (longest request, at least)")] {
        let line = report.text.lines().find(|line| line.trim_start().starts_with(percent)).unwrap();
        assert!(line.ends_with(end), "{line}");
    }
    assert!(!report.text.contains("50%  ") || report.percentage("50%") < 250.0, "{}", report.text);
    let rows = std::fs::read_to_string(csv).unwrap();
    let bounds: Vec<&str> = rows.lines().filter_map(|row| row.split_once(",>=")).map(|row| row.0).collect();
    assert_eq!((bounds.len(), bounds.first(), bounds.last()), (20, Some(&"81"), Some(&"100")), "{rows}");
}
