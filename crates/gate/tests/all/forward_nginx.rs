//! The gateway in front of nginx, a server that others wrote: files, ranges, uploads, its own limits.

use std::thread;

use oroshi_gate::forward::Failure;
use oroshi_gate::upstream::Target;

use crate::support::nginx::Nginx;
use crate::support::{GET, Setup};

const SERVER: &str = "keepalive_requests 7;
    location = / { return 200 'hello from nginx'; }
    location = /none { return 204; }
    location = /away { return 302 /; }
    location /put/ { dav_methods PUT DELETE; create_full_put_path on; }
    location = /echo { client_body_in_single_buffer on; client_body_buffer_size 1m; proxy_pass \
                      http://unix:@FOLDER@/nginx.sock:/; }";

#[test]
fn thousands_of_requests_lose_none_although_nginx_closes_every_seventh_time() {
    let Some(nginx) = Nginx::start("thousands_of_requests_lose_none_although_nginx_closes_every_seventh_time", SERVER)
    else {
        return;
    };
    for target in [&nginx.tcp, &nginx.unix] {
        let gate = Setup::to(target).start();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut client = gate.connect();
                    for _ in 0..250 {
                        assert_eq!(client.send(GET).answer().text(), "hello from nginx");
                        // Not safe to send twice: it must not have to be.
                        client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
                        assert_eq!(client.answer().text(), "hello from nginx");
                    }
                });
            }
        });
        let counts = gate.until("idle", |counts| counts.answers == 4_000);
        assert_eq!((counts.failures.iter().sum::<u64>(), counts.retries), (0, 0));
        // nginx says that it closes with the seventh answer, and so nothing is found dead.
        assert_eq!(counts.stale, 0);
        assert!((4_000 / 7..4_000 / 7 + 9).contains(&counts.connects), "{}", counts.connects);
        gate.stop();
    }
}

#[test]
fn files_and_uploads_arrive_whole() {
    let Some(nginx) = Nginx::start("files_and_uploads_arrive_whole", SERVER) else { return };
    for target in [&nginx.unix, &nginx.h2c] {
        carry_files(target);
    }
}

fn carry_files(target: &Target) {
    let gate = Setup::to(target).start();
    let mut client = gate.connect();
    let body: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    client.send(format!("PUT /put/a HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len())).send(&body);
    assert_eq!(client.answer().status, 201);
    client.send("PUT /put/b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.answer().status, 100);
    for piece in body.chunks(77_777) {
        client.send(format!("{:x}\r\n", piece.len())).send(piece).send("\r\n");
    }
    assert_eq!(client.send("0\r\n\r\n").answer().status, 201);
    for name in ["a", "b"] {
        let answer = client.send(format!("GET /put/{name} HTTP/1.1\r\nHost: a\r\n\r\n")).answer();
        assert!(answer.body == body, "{} bytes of {}", answer.body.len(), body.len());
        let head = client.send(format!("HEAD /put/{name} HTTP/1.1\r\nHost: a\r\n\r\n")).answer_to("HEAD");
        assert_eq!(head.field("content-length"), Some("12000000"));
        let range = format!("GET /put/{name} HTTP/1.1\r\nHost: a\r\nRange: bytes=4-7\r\n\r\n");
        let answer = client.send(range).answer();
        assert_eq!((answer.status, &*answer.body), (206, &1_u32.to_le_bytes()[..]));
        let tag = answer.field("etag").unwrap();
        let again = format!("GET /put/{name} HTTP/1.1\r\nHost: a\r\nIf-None-Match: {tag}\r\n\r\n");
        assert_eq!(client.send(again).answer().status, 304);
        assert_eq!(client.send(format!("DELETE /put/{name} HTTP/1.1\r\nHost: a\r\n\r\n")).answer().status, 204);
    }
    assert_eq!(client.send("GET /none HTTP/1.1\r\nHost: a\r\n\r\n").answer().status, 204);
    let away = client.send("GET /away HTTP/1.1\r\nHost: example.org\r\n\r\n").answer();
    assert_eq!((away.status, away.field("location")), (302, Some("http://example.org/")));
    let counts = gate.counts();
    // nginx has gone away from several connections.
    let failures = counts.failures.iter().sum::<u64>() - counts.failure(Failure::Refused);
    assert_eq!(failures, 0);
    drop(client);
    gate.stop();
}

#[test]
fn over_http_2_nginx_goes_away_every_seventh_time_and_every_request_is_answered() {
    let test = "over_http_2_nginx_goes_away_every_seventh_time_and_every_request_is_answered";
    let Some(nginx) = Nginx::start(test, SERVER) else { return };
    let gate = Setup::to(&nginx.h2c).start();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = gate.connect_http2();
                for _ in 0..200 {
                    let id = client.get("/");
                    assert_eq!(client.answer(id).text(), "hello from nginx");
                    let id = client.request("POST", "/echo", &[("content-length", b"5")], false);
                    client.data(id, b"hello", true);
                    assert_eq!(client.answer(id).text(), "hello from nginx");
                }
            });
        }
    });
    let counts = gate.until("idle", |counts| counts.answers == 1_200);
    let failures = counts.failures.iter().sum::<u64>() - counts.failure(Failure::Refused);
    assert_eq!(failures, 0, "{counts:?}");
    assert!(counts.connects >= 1_200 / 7, "{}", counts.connects);
    gate.stop();
}
