//! Measures the time to decode one message, in nanoseconds: `cargo run --release -p oroshi-http1 --example
//! parse_speed`.
//!
//! Each line is the fastest and the median of some rounds, beside httparse alone, which does less.
#![allow(clippy::print_stdout)] // an example is a program of its own

use std::hint::black_box;
use std::time::Instant;

use oroshi_http1::{ExpectedResponse, Limits, RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent};

/// nginx's response for a 12-byte file.
const NGINX: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sat, 21 Nov 2026 03:41:12 GMT\r\n\
    Content-Type: application/octet-stream\r\nContent-Length: 12\r\nLast-Modified: Sat, 21 Nov 2026 03:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"673ea9f0-c\"\r\nAccept-Ranges: bytes\r\n\r\nhello world\n";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\nhello world\n\r\n0\r\n\r\n";
/// A load generator's request.
const SMALL: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: localhost:8080\r\n\r\n";
/// A browser's request.
const BROWSER: &[u8] = b"GET /articles/2026/11/wind?utm_source=feed&page=2 HTTP/1.1\r\nHost: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\nAccept-Language: en-US,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\nReferer: https://www.example.org/articles\r\nDNT: 1\r\n\
    Connection: keep-alive\r\nCookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\
    Upgrade-Insecure-Requests: 1\r\nSec-Fetch-Dest: document\r\nSec-Fetch-Mode: navigate\r\n\
    Sec-Fetch-Site: same-origin\r\nPriority: u=0, i\r\n\r\n";

const MESSAGES: u32 = 200_000;
const ROUNDS: usize = 15;

fn main() {
    println!("{:42} {:>6} {:>8} {:>8}", "ns per message", "bytes", "fastest", "median");
    report("response: nginx, 12 bytes", NGINX.len(), responses(NGINX));
    report("response: nginx, httparse alone", NGINX.len(), || {
        let mut table = [httparse::EMPTY_HEADER; 32];
        let mut response = httparse::Response::new(&mut table);
        black_box(response.parse(black_box(NGINX))).is_ok()
    });
    report("response: one chunk", CHUNKED.len(), responses(CHUNKED));
    report("request: small", SMALL.len(), requests(SMALL));
    report("request: browser", BROWSER.len(), requests(BROWSER));
    report("request: browser, httparse alone", BROWSER.len(), || {
        let mut table = [httparse::EMPTY_HEADER; 32];
        let mut request = httparse::Request::new(&mut table);
        black_box(request.parse(black_box(BROWSER))).is_ok()
    });
    report("request: browser, in two halves", BROWSER.len(), {
        let (limits, mut decoder) = (Limits::default(), RequestDecoder::default());
        move || {
            let mut half = black_box(&BROWSER[..BROWSER.len() / 2]);
            assert_eq!(decoder.decode(&limits, &mut half), Ok(None));
            whole_request(&mut decoder, &limits, black_box(BROWSER))
        }
    });
}

fn responses(bytes: &'static [u8]) -> impl FnMut() -> bool {
    let (limits, mut decoder) = (Limits::default(), ResponseDecoder::default());
    move || {
        decoder.expect(ExpectedResponse::Body);
        let mut input = black_box(bytes);
        while let Ok(Some(event)) = decoder.decode(&limits, &mut input) {
            if let ResponseEvent::End = black_box(event) {
                return input.is_empty();
            }
        }
        false
    }
}

fn requests(bytes: &'static [u8]) -> impl FnMut() -> bool {
    let (limits, mut decoder) = (Limits::default(), RequestDecoder::default());
    move || whole_request(&mut decoder, &limits, black_box(bytes))
}

fn whole_request(decoder: &mut RequestDecoder, limits: &Limits, mut input: &[u8]) -> bool {
    while let Ok(Some(event)) = decoder.decode(limits, &mut input) {
        if let RequestEvent::End = black_box(event) {
            return input.is_empty();
        }
    }
    false
}

fn report(what: &str, bytes: usize, mut message: impl FnMut() -> bool) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..MESSAGES {
                assert!(message(), "{what} did not decode");
            }
            start.elapsed().as_nanos() as f64 / f64::from(MESSAGES)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{what:42} {bytes:6} {:8.1} {:8.1}", rounds[0], rounds[ROUNDS / 2]);
}
