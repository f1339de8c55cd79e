//! Limits of HTTP/2 connections: hostile clients, slow clients, and what an idle connection holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oroshi_http2::{Config, ErrorCode, Grants, Limits};
use oroshi_server::{Error, ErrorKind, Exchange, Settings};
use oroshi_testkit::http2::{Client, Seen, frame};
use oroshi_testkit::wait_until;

use crate::support::{Running, SHORT, describe, patient};

const PING: u8 = 6;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const HEADERS: u8 = 1;

/// A handler that counts those of its calls that are under way.
fn counting(
    under_way: &Arc<AtomicUsize>,
) -> impl AsyncFn(&mut Exchange<'_>) -> Result<(), Error> + Clone + Send + Sync + use<> {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let under_way = Arc::clone(under_way);
    async move |exchange: &mut Exchange<'_>| {
        under_way.fetch_add(1, Ordering::SeqCst);
        let _guard = Guard(Arc::clone(&under_way));
        if exchange.head.target == "/wait" {
            return std::future::pending().await;
        }
        describe(exchange).await
    }
}

/// CVE-2023-44487: the handlers of reset streams are dropped, and the connection ends after a bounded number.
#[test]
fn rapid_reset() {
    let under_way = Arc::new(AtomicUsize::new(0));
    let server = Running::start(patient(), counting(&under_way));
    let mut client = Client::connect(server.tcp());
    for _ in 0..1000 {
        let id = client.get("/wait");
        client.reset(id);
    }
    assert_eq!(client.closed(), Some(ErrorCode::ENHANCE_YOUR_CALM));
    drop(client);
    wait_until("the handlers are dropped", || under_way.load(Ordering::SeqCst) == 0);
    let counts = server.stop();
    assert!(counts.requests <= 201 && counts.alive == 0, "{counts:?}");
}

/// CVE-2025-8671 (MadeYouReset): resets that the client provokes count as its own.
#[test]
fn made_you_reset() {
    let under_way = Arc::new(AtomicUsize::new(0));
    let server = Running::start(patient(), counting(&under_way));
    let mut client = Client::connect(server.tcp());
    for _ in 0..1000 {
        let id = client.get("/wait");
        // A WINDOW_UPDATE by 0.
        if !client.raw(&frame(WINDOW_UPDATE, 0, id, &[0; 4])) {
            break;
        }
    }
    assert_eq!(client.closed(), Some(ErrorCode::ENHANCE_YOUR_CALM));
    drop(client);
    wait_until("the handlers are dropped", || under_way.load(Ordering::SeqCst) == 0);
    let counts = server.stop();
    assert!(counts.requests <= 201 && counts.error(ErrorKind::Refused) >= 200, "{counts:?}");
}

/// CVE-2026-47774: streams whose client never opens a window end by the limit on writes, and hold little until then.
#[test]
fn windows_held_at_zero() {
    let under_way = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&under_way);
    let server =
        Running::start(Settings { write_timeout: SHORT, ..patient() }, async move |exchange: &mut Exchange<'_>| {
            exchange.reply.begin(200, [], None)?;
            loop {
                exchange.reply.write(&[b'x'; 1000]).await?;
                counted.fetch_add(1000, Ordering::SeqCst);
            }
        });
    let config = Config { stream_window: 0, grants: Grants::Manual, ..Config::default() };
    let mut client = Client::with(server.tcp(), config);
    let ids: Vec<u32> = (0..100).map(|_| client.get("/")).collect();
    for id in ids {
        assert!(matches!(client.next(id), Seen::Head(..)));
        assert_eq!(client.next(id), Seen::Reset(id, ErrorCode::CANCEL));
    }
    assert!(under_way.load(Ordering::SeqCst) <= 100 * 33_000, "{under_way:?} bytes were taken");
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::WriteTimeout), 100);
}

/// CVE-2016-6581 over many streams: heads that handlers still hold have a limit per connection.
#[test]
fn heads_of_streams_under_way_are_bounded() {
    const HEADS_BYTES: usize = 512 * 1024;
    let under_way = Arc::new(AtomicUsize::new(0));
    let server = Running::start(patient(), counting(&under_way));
    let mut client = Client::connect(server.tcp());
    let value = [b'v'; 4000];
    let fields: [(&str, &[u8]); 8] = [("x-large", &value); 8];
    let ids: Vec<u32> = (0..40).map(|_| client.request("POST", "/wait", &fields, false)).collect();
    let fit = HEADS_BYTES / (8 * 4010);
    for &id in &ids[fit..] {
        assert_eq!(client.next(id), Seen::Reset(id, ErrorCode::REFUSED_STREAM));
    }
    wait_until("the others are under way", || under_way.load(Ordering::SeqCst) == fit);
    // There is room again once a stream has ended; small heads fit in any case.
    let small = client.get("/");
    assert_eq!(client.answer(small).text(), "GET / 0");
    client.reset(ids[0]);
    wait_until("its handler is dropped", || under_way.load(Ordering::SeqCst) == fit - 1);
    let id = client.request("GET", "/", &fields, true);
    assert_eq!(client.answer(id).text(), "GET / 0");
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::Refused), (ids.len() - fit) as u64);
}

#[test]
fn a_client_that_reads_nothing_is_dropped() {
    let server = Running::start(Settings { write_timeout: SHORT, ..patient() }, async |exchange: &mut Exchange<'_>| {
        exchange.reply.send(200, [], &[b'x'; 100_000]).await
    });
    let config =
        Config { stream_window: 1 << 30, connection_window: 1 << 30, grants: Grants::Manual, ..Config::default() };
    let mut client = Client::with(server.tcp(), config);
    for _ in 0..100 {
        client.get("/");
    }
    // Far more than the sockets hold.
    wait_until("the connection ends", || !client.raw(&frame(PING, 0, 0, &[0; 8])));
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::WriteTimeout), 1);
}

#[test]
fn a_slow_body_is_answered_408() {
    let server = Running::start(Settings { body_timeout: SHORT, ..patient() }, describe);
    let mut client = Client::connect(server.tcp());
    let id = client.request("POST", "/", &[], false);
    client.data(id, b"some", false);
    assert_eq!(client.answer(id).status, 408);
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "GET / 0");
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::BodyTimeout), 1);
}

#[test]
fn a_head_that_does_not_end_ends_the_connection() {
    let server = Running::start(Settings { head_timeout: SHORT, ..patient() }, describe);
    for bytes in [frame(HEADERS, 0, 1, &[0x82]), vec![0, 0, 9, HEADERS]] {
        let mut client = Client::connect(server.tcp());
        // The client's acknowledgement of settings must not come within the head.
        assert!(client.find(|seen| *seen == Seen::Opened).is_some());
        assert!(client.raw(&bytes));
        assert_eq!(client.closed(), Some(ErrorCode::ENHANCE_YOUR_CALM), "{bytes:?}");
    }
    // A slow client whose frames are complete is none.
    let mut client = Client::connect(server.tcp());
    let id = client.request("POST", "/", &[], false);
    client.data(id, b"body", true);
    assert_eq!(client.answer(id).text(), "POST / 4");
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::HeadTimeout), 2);
}

#[test]
fn an_idle_connection_says_goodbye() {
    let server = Running::start(Settings { idle_timeout: SHORT, ..patient() }, describe);
    let mut client = Client::connect(server.tcp());
    let id = client.get("/");
    assert_eq!(client.answer(id).status, 200);
    assert_eq!(client.closed(), Some(ErrorCode::NO_ERROR));
    assert_eq!(server.stop().errors.iter().sum::<u64>(), 0);
}

#[test]
fn streams_beyond_the_limit_are_refused_and_the_others_go_on() {
    let under_way = Arc::new(AtomicUsize::new(0));
    let server = Running::start(patient(), counting(&under_way));
    let mut client = Client::connect(server.tcp());
    // Before the settings have come, the client knows no limit.
    let ids: Vec<u32> = (0..130).map(|_| client.get("/wait")).collect();
    for &id in &ids[128..] {
        assert_eq!(client.next(id), Seen::Reset(id, ErrorCode::REFUSED_STREAM));
    }
    assert_eq!(under_way.load(Ordering::SeqCst), 128);
    client.reset(ids[0]);
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "GET / 0");
    drop(client);
    let counts = server.stop();
    assert_eq!((counts.requests, counts.error(ErrorKind::Refused)), (129, 2));
}

#[test]
fn a_flood_of_pings_ends_the_connection() {
    let server = Running::start(patient(), describe);
    // The client itself tolerates the answers.
    let limits = Limits { answered_frames: u32::MAX, ..Limits::default() };
    let mut client = Client::with(server.tcp(), Config { limits, ..Config::default() });
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(2000);
    client.raw(&pings);
    assert_eq!(client.closed(), Some(ErrorCode::ENHANCE_YOUR_CALM));
    drop(client);
    server.stop();
}

#[test]
fn refused_requests_leave_the_connection_open() {
    let limits = oroshi_http1::Limits { head_bytes: 1000, target_bytes: 100, body_bytes: 10, ..Default::default() };
    let server = Running::start(Settings { limits, ..patient() }, describe);
    let mut client = Client::with(server.tcp(), Config { limits: Limits::default(), ..Config::default() });
    let long = "/".repeat(200);
    let id = client.get(&long);
    assert_eq!(client.answer(id).status, 414);
    let id = client.request("GET", "/", &[("x", &[b'x'; 2000])], true);
    assert_eq!(client.answer(id).status, 431);
    let id = client.request("POST", "/", &[("content-length", b"11")], false);
    assert_eq!(client.answer(id).status, 413);
    let id = client.get("/");
    assert_eq!(client.answer(id).text(), "GET / 0");
    // A frame for a stream that was never opened is a mistake of the connection.
    client.raw(&frame(RST_STREAM, 0, 99, &[0; 4]));
    assert_eq!(client.closed(), Some(ErrorCode::PROTOCOL_ERROR));
    drop(client);
    let counts = server.stop();
    assert_eq!((counts.requests, counts.error(ErrorKind::Refused)), (1, 4));
}

#[test]
fn connections_over_the_cap_wait_for_idle_ones_to_end() {
    let settings = Settings { connections: 1, crowded_timeout: std::time::Duration::ZERO, ..patient() };
    let server = Running::start(settings, describe);
    let mut first = Client::connect(server.tcp());
    let id = first.get("/1");
    assert_eq!(first.answer(id).text(), "GET /1 0");
    let mut second = Client::connect(server.tcp());
    let id = second.get("/2");
    assert_eq!(second.answer(id).text(), "GET /2 0");
    first.closed();
    drop(second);
    assert_eq!(server.stop().error(ErrorKind::Crowded), 1);
}
