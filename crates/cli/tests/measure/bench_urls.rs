//! Several URLs in one run: what each got, in all outputs.

use oroshi_bench::{Failure, Record};

use crate::common::support::OK;
use crate::common::support::peer::{Peer, Place};
use crate::common::{Recorded as _, Target, bench};

const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n";

/// Answers `/missing` with 404, and everything else with 200.
fn with_a_missing_page() -> Peer {
    Peer::answering(|request| if request.head.starts_with("GET /missing ") { NOT_FOUND.into() } else { OK.into() })
}

/// Name, requests, errors and cut-off requests of each URL.
fn counts(record: &Record) -> Vec<(&str, u64, u64, u64)> {
    record.urls.iter().map(|url| (url.name.as_str(), url.count, url.errors, url.cut_off)).collect()
}

#[test]
fn each_url_has_its_own_counts_and_times() {
    let peer = with_a_missing_page();
    let base = peer.url.trim_end_matches('/');
    let [a, missing] = ["/a", "/missing"].map(|path| format!("{base}{path}"));
    let folder = tempfile::tempdir().unwrap();
    let (urls, page) = (folder.path().join("urls"), folder.path().join("page.html"));
    // /a comes twice in three requests.
    std::fs::write(&urls, format!("{a}\n{missing}\n{a}\n")).unwrap();
    let flags = ["-t1", "-c2", "-n", "300", "--urls", urls.to_str().unwrap()];
    let record = bench(&[&flags[..], &["--format", "json"]].concat()).record();
    assert_eq!(counts(&record), [(a.as_str(), 200, 0, 0), (missing.as_str(), 100, 100, 0)]);
    assert_eq!(record.urls[0].statuses.iter().collect::<Vec<_>>(), [(&200, &200)]);
    assert_eq!(record.urls[1].statuses.iter().collect::<Vec<_>>(), [(&404, &100)]);
    assert_eq!(record.urls[1].body_bytes, 300);
    for (url, count) in record.urls.iter().zip([200, 100]) {
        assert_eq!((url.service.summary.count, url.response.summary.count), (count, count), "{}", url.name);
        assert!(url.per_s > 0.0);
    }

    let ran = bench(&[&flags[..], &["--report", page.to_str().unwrap()]].concat());
    let row = ran.out.lines().find(|line| line.contains("/missing") && !line.contains("GET")).unwrap();
    assert_eq!(row.split_whitespace().filter(|word| *word == "100").count(), 2, "requests and errors: {row}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("id=\"urls\"") && page.contains("404 × 100"), "{page}");
}

#[test]
fn over_http2_too_and_the_only_url_has_no_table() {
    let target = Target::start(&[]);
    let flags = ["--http2-prior-knowledge", "--streams", "4", "-t1", "-c2", "-n", "200"];
    let urls = ["a", "b"].map(|path| format!("{}{path}", target.url()));
    let record = bench(&[&flags[..], &["--format", "json", &urls[0], &urls[1]]].concat()).record();
    assert_eq!(counts(&record), [(urls[0].as_str(), 100, 0, 0), (urls[1].as_str(), 100, 0, 0)]);
    let ran = bench(&[&flags[..], &[&urls[0]]].concat());
    assert!(!ran.out.contains("URLs"), "{}", ran.out);
    let record = bench(&[&flags[..], &["--format", "json", &urls[0], &urls[0]]].concat()).record();
    assert!(record.urls.is_empty(), "{record:?}");
}

#[test]
fn requests_whose_connect_fails_belong_to_their_url() {
    let peer = with_a_missing_page();
    // It answers one request, and is gone.
    let dies = Peer::start(Place::Tcp, |mut conn| {
        if conn.request().is_some() {
            conn.send(OK);
            conn.close_listener();
        }
    });
    let record = bench(&["-t1", "-c2", "-n", "20", "--close", "--format", "json", &peer.url, &dies.url]).record();
    let [alive, gone] = &record.urls[..] else { panic!("{record:?}") };
    assert_eq!((alive.errors, gone.count - gone.errors), (0, 1), "{record:?}");
    assert!(gone.errors > 0 && gone.failures.keys().eq([&Failure::ConnectRefused]), "{record:?}");
    assert_eq!(alive.count + gone.count, record.requests.completed + record.requests.failed, "{record:?}");
}
