//! HTTP/2 with real servers: this project's own, and nghttpd.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oroshi_client::{Phase, Version, local};
use oroshi_server::{Exchange, Settings};
use oroshi_testkit::{Port, need, test_name, wait_until};

use crate::support::{Identity, Running, block_on, both_versions, builder, http2, keeping, told};

fn version(text: &str) -> Version {
    if text == "2.0" { Version::Http2 } else { Version::Http11 }
}

/// Says the version and the target, and counts requests.
async fn describe(exchange: &mut Exchange<'_>, count: &AtomicUsize) -> Result<(), oroshi_server::Error> {
    count.fetch_add(1, Ordering::SeqCst);
    let text = format!("{} {}", exchange.head.version.number(), exchange.head.target);
    exchange.reply.send(200, [], text.as_bytes()).await
}

/// A server over TLS that counts its requests.
fn serving(tls: oroshi_net::ServerTls, settings: Settings) -> (Running, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let server = Running::start_at("127.0.0.1:0", Some(tls), settings, async move |exchange: &mut Exchange<'_>| {
        describe(exchange, &counter).await
    });
    (server, count)
}

/// Sends so many requests at once. Returns the texts.
async fn all(client: &local::Client, url: impl Fn(usize) -> String, count: usize) -> Vec<String> {
    let requests: Vec<_> = (0..count)
        .map(|number| {
            let (client, url) = (client.clone(), url(number));
            tokio::task::spawn_local(async move {
                let response = client.get(url).send().await.map_err(|error| told(&error)).unwrap();
                let seen = response.version();
                let text = response.text().await.unwrap();
                assert_eq!(version(text.split(' ').next().unwrap()), seen);
                text
            })
        })
        .collect();
    let mut texts = Vec::new();
    for request in requests {
        texts.push(request.await.unwrap());
    }
    texts
}

#[test]
fn a_server_over_tls_chooses_the_version_and_the_first_connection_tells() {
    let identity = Identity::new();
    let (server, count) = serving(both_versions(&identity), keeping());
    let url = |number: usize| format!("https://{}/{number}", server.tcp());
    block_on(async {
        let client = builder().tls(identity.trusted()).build_local().unwrap();
        // All wait for the answer of the first.
        let texts = all(&client, url, 100).await;
        assert!(texts.iter().enumerate().all(|(number, text)| *text == format!("2.0 /{number}")), "{texts:?}");
        assert_eq!((client.counts().connects, client.counts().open), (1, 1));
        // More than one connection takes.
        assert_eq!(all(&client, url, 500).await.len(), 500);
        let counts = client.counts();
        assert!((2..=5).contains(&counts.connects), "{counts:?}");
        assert_eq!((counts.failures, counts.retries, counts.waiting), (0, 0, 0));
        assert_eq!(count.load(Ordering::SeqCst), 600, "each request once");
        // Turned off, or without a connection that is kept.
        for client in [builder().http2(false), builder().keep_alive(false)] {
            let client = client.tls(identity.trusted()).build_local().unwrap();
            assert_eq!(all(&client, url, 1).await, ["1.1 /0"]);
        }
        let client = http2().tls(identity.trusted()).build_local().unwrap();
        assert_eq!(all(&client, url, 2).await, ["2.0 /0", "2.0 /1"]);
    });
    server.stop();
}

#[test]
fn a_server_of_http1_over_tls_gets_a_connection_for_each_request_as_before() {
    let identity = Identity::new();
    let (server, count) = serving(identity.server(), keeping());
    let url = |number: usize| format!("https://{}/{number}", server.tcp());
    block_on(async {
        let client = builder().tls(identity.trusted()).connections(10).build_local().unwrap();
        let texts = all(&client, url, 50).await;
        assert!(texts.iter().all(|text| text.starts_with("1.1 ")));
        let counts = client.counts();
        assert!((2..=10).contains(&counts.connects), "{counts:?}");
        assert_eq!((counts.open as u64, counts.waiting), (counts.connects, 0));
        assert_eq!(count.load(Ordering::SeqCst), 50);
        // Prior knowledge that is wrong.
        let client = http2().tls(identity.trusted()).build_local().unwrap();
        assert!(client.get(url(0)).send().await.is_err());
    });
    server.stop();
}

#[test]
fn waiting_requests_try_for_themselves_when_the_first_cannot_connect() {
    let port = Port::reserve();
    let url = format!("https://{}/", port.address());
    block_on(async {
        let client = builder().build_local().unwrap();
        let requests: Vec<_> = (0..10).map(|_| tokio::task::spawn_local(client.get(&*url).send())).collect();
        for request in requests {
            let error = request.await.unwrap().unwrap_err();
            assert_eq!((error.phase(), error.name()), (Phase::Connect, "connect-refused"));
        }
        assert_eq!((client.counts().open, client.counts().waiting, client.counts().failures), (0, 0, 10));
    });
}

#[test]
fn a_waiting_request_takes_over_when_the_first_is_dropped_while_it_connects() {
    let identity = Identity::new();
    let (server, count) = serving(both_versions(&identity), keeping());
    let url = format!("https://{}/", server.tcp());
    block_on(async {
        let client = builder().tls(identity.trusted()).build_local().unwrap();
        let first = tokio::task::spawn_local(client.get(&*url).send());
        let second = tokio::task::spawn_local(client.get(&*url).send());
        while client.counts().waiting == 0 {
            tokio::task::yield_now().await;
        }
        first.abort();
        let response = second.await.unwrap().map_err(|error| told(&error)).unwrap();
        assert_eq!(response.version(), Version::Http2);
        assert_eq!((client.counts().open, client.counts().waiting), (1, 0));
    });
    assert_eq!(count.load(Ordering::SeqCst), 1);
    server.stop();
}

#[test]
fn nghttpd_over_cleartext_and_tls() {
    let Some(nghttpd) = need(test_name!("nghttpd_over_cleartext_and_tls"), "nghttpd") else { return };
    let folder = tempfile::tempdir().unwrap();
    let page: Vec<u8> = (0..1_000_000u32).map(|number| number as u8).collect();
    std::fs::write(folder.path().join("page"), &page).unwrap();
    let identity = Identity::new();
    let (certificate, key) = identity.files();
    for tls in [false, true] {
        let port = Port::reserve();
        let mut command = Command::new(&nghttpd);
        command.args(["-a", "127.0.0.1", "-d"]).arg(folder.path());
        if !tls {
            command.arg("--no-tls");
        }
        command.arg(port.address().port().to_string());
        if tls {
            command.arg(&key).arg(&certificate);
        }
        let address = port.address();
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("nghttpd listens", || std::net::TcpStream::connect(address).is_ok());
        let client = if tls { builder().tls(identity.trusted()) } else { http2() };
        let url = format!("{}://{address}", if tls { "https" } else { "http" });
        block_on(async {
            let client = client.build_local().unwrap();
            let requests: Vec<_> =
                (0..200).map(|_| tokio::task::spawn_local(client.get(format!("{url}/page")).send())).collect();
            for request in requests {
                let response = request.await.unwrap().map_err(|error| told(&error)).unwrap();
                assert_eq!((response.version(), response.status()), (Version::Http2, 200));
                assert!(response.bytes().await.map_err(|error| told(&error)).unwrap() == page);
            }
            let upload = client.post(format!("{url}/page")).body(page.clone()).send().await.unwrap();
            assert_eq!(upload.status(), 200);
            let missing = client.head(format!("{url}/missing")).send().await.unwrap();
            assert_eq!(missing.status(), 404);
            assert_eq!(client.counts().failures, 0);
        });
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
