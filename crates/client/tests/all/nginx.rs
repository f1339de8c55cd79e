//! Against nginx: plain, TLS and a unix socket, with connections that it closes after five requests.

use crate::support::nginx;
use crate::support::{block_on, builder, told};
use oroshi_client::{Coding, Phase, local};

/// What all three ways must do alike.
async fn works(client: &local::Client, base: &str) {
    for _ in 0..12 {
        let response = client.get(base).send().await.map_err(|error| told(&error)).unwrap();
        assert_eq!((response.status(), response.reason()), (200, &b"OK"[..]), "{base}");
        assert_eq!(response.text().await.unwrap(), "hello from nginx");
    }
    let counts = client.counts();
    assert_eq!(counts.open, counts.idle, "{counts:?}");
    assert!(counts.connects < 6, "connections are used again, and nginx closes them after five: {counts:?}");

    let large = client.get(format!("{base}large")).send().await.unwrap();
    assert_eq!((large.content_length(), large.coding()), (Some(1 << 20), None));
    assert!(large.bytes().await.unwrap() == vec![b'x'; 1 << 20]);

    let packed = client.get(format!("{base}text.html")).send().await.unwrap();
    assert_eq!(packed.coding(), Some(Coding::Gzip));
    assert_eq!(packed.text().await.unwrap(), "a line of text\n".repeat(10_000));

    let away = client.get(format!("{base}away")).send().await.unwrap();
    assert_eq!((away.status(), away.redirects(), away.url().target.as_str()), (200, 1, "/"));
    let error = client.get(format!("{base}loop")).redirects(3).send().await.unwrap_err();
    assert_eq!((error.phase(), error.name()), (Phase::Redirect, "too-many-redirects"), "{}", told(&error));

    assert_eq!(client.get(format!("{base}none")).send().await.unwrap().bytes().await.unwrap(), b"");
    let head = client.head(format!("{base}large")).send().await.unwrap();
    assert_eq!(head.headers().get_str("Content-Length"), Some("1048576"));
    assert!(head.bytes().await.unwrap().is_empty());
    assert_eq!(client.get(format!("{base}missing")).send().await.unwrap().status(), 404);
    assert_eq!(client.counts().in_flight, 0);
}

#[test]
fn nginx_over_tcp() {
    let Some(nginx) = nginx::start("nginx_over_tcp") else { return };
    block_on(async { works(&builder().build_local().unwrap(), &nginx.http).await });
}

#[test]
fn nginx_over_a_unix_socket() {
    let Some(nginx) = nginx::start("nginx_over_a_unix_socket") else { return };
    let base = nginx.unix_url("/");
    block_on(async { works(&builder().build_local().unwrap(), &base).await });
}

#[test]
fn nginx_over_tls() {
    let Some(nginx) = nginx::start("nginx_over_tls") else { return };
    block_on(async {
        let client = builder().tls(nginx.identity.trusted()).build_local().unwrap();
        works(&client, &nginx.https).await;
        let timings = client.get(&nginx.https).send().await.unwrap().timings();
        assert!(timings.total >= timings.first_byte, "{timings:?}");

        let stranger = builder().build_local().unwrap();
        let error = stranger.get(&nginx.https).send().await.unwrap_err();
        assert!(error.phase() == Phase::Tls && error.retry_is_safe(), "{}", told(&error));
        let plain = nginx.https.replace("https", "http");
        // nginx answers a plain request on a TLS port with 400.
        assert_eq!(client.get(plain).send().await.unwrap().status(), 400);
        let tls = nginx.http.replace("http", "https");
        let error = client.get(tls).send().await.unwrap_err();
        assert_eq!((error.phase(), error.name()), (Phase::Tls, "tls"), "{}", told(&error));
    });
}

#[test]
fn nginx_takes_bodies_of_every_kind() {
    let Some(nginx) = nginx::start("nginx_takes_bodies_of_every_kind") else { return };
    block_on(async {
        let client = builder().build_local().unwrap();
        let url = format!("{}post", nginx.http);
        let data = vec![b'y'; 1 << 20];
        let sized = client.post(&url).reader(std::io::Cursor::new(data.clone()), Some(1 << 20));
        let chunked = client.post(&url).reader(std::io::Cursor::new(data.clone()), None);
        for request in [client.post(&url).body(data), sized, chunked, client.post(&url).form([("a", "b")])] {
            let response = request.send().await.map_err(|error| told(&error)).unwrap();
            assert_eq!((response.status(), response.text().await.unwrap().as_str()), (200, "hello from nginx"));
        }
    });
}
