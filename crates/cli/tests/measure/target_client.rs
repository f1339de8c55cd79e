//! `oroshi-client` against `oroshi target`, in each of its modes: two parts of this house that must agree.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::Target;
use crate::common::support::HANG;
use crate::common::support::tls::Identity;
use oroshi_client::{Builder, Client, Deadlines, Phase, local};
use oroshi_net::ClientTlsOptions;
use oroshi_net::tls::Roots;

fn builder() -> Builder {
    let deadlines = Deadlines { queue: HANG, first_byte: HANG, between_bytes: HANG, ..Deadlines::default() };
    Client::builder().deadlines(deadlines).connections(4)
}

/// Sends so many requests at the same time; gives the statuses, and the bodies' lengths.
fn fetch(builder: Builder, url: &str, requests: usize) -> (local::Client, Vec<(u16, usize)>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
    runtime.block_on(async {
        let client = builder.build_local().unwrap();
        let tasks: Vec<_> = (0..requests)
            .map(|_| {
                let request = client.get(url);
                tokio::task::spawn_local(async move {
                    let response = request.send().await.unwrap();
                    (response.status(), response.bytes().await.unwrap().len())
                })
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        let counts = client.counts();
        assert_eq!((counts.failures, counts.in_flight, counts.open), (0, 0, counts.idle), "{counts:?}");
        (client, answers)
    })
}

#[test]
fn every_kind_of_socket() {
    let folder = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", folder.path().join("target.sock").display());
    let name = format!("unix:@oroshi-target-client-{}", std::process::id());
    let target = Target::at(3, &["--listen", "127.0.0.1:0", "--listen", &unix, "--listen", &name]);
    for url in &target.urls {
        let (client, answers) = fetch(builder(), url, 100);
        assert_eq!(answers, [(200, 12); 100], "{url}");
        assert_eq!(client.counts().connects, 4, "{url}");
    }
    assert_eq!(target.stop(), (300, 12));
}

#[test]
fn tls() {
    let identity = Identity::new();
    let (cert, key) = identity.files();
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let target = Target::at(1, &["--listen", "https://127.0.0.1:0/", "--cert", cert, "--key", key, "--size", "50k"]);
    let trust = ClientTlsOptions { roots: Roots::Only(vec![identity.ca()]), ..ClientTlsOptions::default() };
    let (client, answers) = fetch(builder().tls(trust), target.url(), 20);
    // HTTP/2, which the server chooses, needs one connection.
    assert_eq!((answers, client.counts().connects), (vec![(200, 50_000); 20], 1));
    let trust = ClientTlsOptions { roots: Roots::Only(vec![identity.ca()]), ..ClientTlsOptions::default() };
    let (client, answers) = fetch(builder().tls(trust).http2(false), target.url(), 20);
    assert_eq!((answers, client.counts().connects), (vec![(200, 50_000); 20], 4));
}

#[test]
fn bodies_of_every_size_and_framing() {
    for (size, length) in [("0", 0), ("12", 12), ("100k", 100_000), ("3M", 3_000_000)] {
        for chunked in [&[][..], &["--chunked"]] {
            let target = Target::start(&[&["--size", size], chunked].concat());
            let (_, answers) = fetch(builder(), target.url(), 10);
            assert_eq!(answers, [(200, length); 10], "{size} {chunked:?}");
        }
    }
}

#[test]
fn statuses_in_their_shares() {
    let target = Target::start(&["--status", "200=97,204=2,500=1"]);
    let (client, answers) = fetch(builder(), target.url(), 200);
    let mut statuses = BTreeMap::new();
    answers.iter().for_each(|&(status, _)| *statuses.entry(status).or_insert(0) += 1);
    assert_eq!(statuses, BTreeMap::from([(200, 194), (204, 4), (500, 2)]));
    assert!(answers.iter().all(|&(status, length)| (length == 0) == (status == 204)));
    assert_eq!(client.counts().connects, 4, "none of them costs a connection");
}

#[test]
fn a_close_after_each_answer() {
    let target = Target::start(&["--close"]);
    let (client, answers) = fetch(builder(), target.url(), 30);
    assert_eq!((answers, client.counts().connects, client.counts().retries), (vec![(200, 12); 30], 30, 0));
    assert_eq!(target.stop(), (30, 30));
}

#[test]
fn a_delay_is_in_the_first_byte() {
    let target = Target::start(&["--delay", "20ms", "--threads", "2"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
    runtime.block_on(async {
        let client = builder().build_local().unwrap();
        let response = client.get(target.url()).send().await.unwrap();
        assert!(response.timings().first_byte >= Duration::from_millis(20), "{:?}", response.timings());
    });
}

#[test]
fn an_answer_that_never_comes() {
    let target = Target::start(&["--stall-one-in", "3"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
    runtime.block_on(async {
        let deadlines = Deadlines { first_byte: Duration::from_millis(50), ..Deadlines::default() };
        let client = builder().build_local().unwrap();
        let mut stalled = 0;
        for _ in 0..9 {
            match client.get(target.url()).deadlines(deadlines).send().await {
                Ok(response) => assert_eq!(response.status(), 200),
                Err(error) => {
                    assert_eq!((error.phase(), error.is_timeout()), (Phase::FirstByte, true), "{error}");
                    assert!(error.retry_is_safe());
                    stalled += 1;
                }
            }
        }
        // A busy machine may be late with others as well.
        assert!(stalled >= 3, "{stalled}");
        assert_eq!(
            (client.counts().in_flight, client.counts().retries),
            (0, 0),
            "a deadline is no reason to ask again"
        );
    });
}
