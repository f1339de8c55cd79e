//! Connections that share a bound: who makes room for whom, and whose place it is after an upgrade.

use std::io::Write as _;
use std::sync::Arc;

use crate::support::{Client, Running, block_on, patient};
use oroshi_server::{Capacity, Error, ErrorKind, Exchange, Handler, Settings};
use oroshi_testkit::http2::Client as Http2Client;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Notify;

/// A server that knows whoever asks for this.
async fn known_by_target(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let is_known = exchange.head.target == "/known";
    if is_known {
        exchange.vouch();
    }
    exchange.reply.send(if is_known { 200 } else { 401 }, [], b"").await
}

#[test]
fn a_crowd_that_nobody_vouches_for_keeps_nobody_out() {
    const EACH: usize = 20;
    let capacity = Capacity::new(4);
    // No limit in time ends any of them.
    let settings = Settings { capacity: Some(Arc::clone(&capacity)), vouching: true, ..patient() };
    let server = Running::start(settings, known_by_target);
    let crowd = || -> Vec<Client> {
        let says = ["", "GET /known HTTP/1.1\r\n", "GET /strange HTTP/1.1\r\nHost: a\r\n\r\n"];
        let begin = |says: &&str| {
            let client = server.connect();
            // It may have been sent away already.
            let _ = (&*client.socket).write_all(says.as_bytes());
            client
        };
        (0..EACH).flat_map(|_| says.iter().map(begin)).collect()
    };
    let first = crowd();
    let mut known = server.connect();
    let ask = |known: &mut Client| {
        assert_eq!(known.send("GET /known HTTP/1.1\r\nHost: a\r\n\r\n").answer().status, 200);
    };
    ask(&mut known);
    // They come and go; whoever was vouched for stays.
    let second = crowd();
    ask(&mut server.connect());
    ask(&mut known);
    drop((first, second, known));
    let counts = server.stop();
    assert!(counts.error(ErrorKind::Crowded) > EACH as u64, "{counts:?}");
    assert_eq!(capacity.held(), 0);
}

/// Hands connections off to a task, which holds each until it is told to end it.
#[derive(Clone)]
struct HandOff {
    capacity: Arc<Capacity>,
    may_end: Arc<Notify>,
    has_ended: Arc<Notify>,
}

impl Handler for HandOff {
    async fn handle(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        let (mut stream, _) = exchange.upgrade(101, &[("Upgrade", b"x")]).await?;
        let place = exchange.take_permit();
        assert!(place.is_some() && exchange.take_permit().is_none());
        let HandOff { capacity, may_end, has_ended } = self.clone();
        tokio::task::spawn_local(async move {
            // After the handler.
            tokio::task::yield_now().await;
            stream.write_all(&[b'0' + capacity.held() as u8]).await.unwrap();
            may_end.notified().await;
            drop((stream, place));
            has_ended.notify_one();
        });
        assert_eq!(self.capacity.held(), 1);
        Ok(())
    }
}

#[test]
fn a_connection_that_is_handed_off_has_one_place_and_keeps_it() {
    let capacity = Capacity::new(1);
    let hand_off = HandOff { capacity: Arc::clone(&capacity), may_end: Arc::default(), has_ended: Arc::default() };
    let server = Running::start(Settings { capacity: Some(Arc::clone(&capacity)), ..patient() }, hand_off.clone());
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").until_head();
    assert_eq!(client.exactly(1), b"1", "connections once the handler has ended");
    hand_off.may_end.notify_one();
    block_on(hand_off.has_ended.notified());
    assert_eq!(capacity.held(), 0);
    server.stop();
}

#[test]
fn a_stream_of_http2_that_finds_no_room_for_its_sockets_is_told_so() {
    // The connection has one place; a feed's pair of sockets takes two.
    for (most, status, refused) in [(2, 503, 1), (3, 200, 0)] {
        let capacity = Capacity::new(most);
        let settings = Settings { capacity: Some(Arc::clone(&capacity)), ..patient() };
        let server = Running::start(settings, async |exchange: &mut Exchange<'_>| {
            let (mut feed, ..) = exchange.detach(200, &[]).await?;
            tokio::task::spawn_local(async move { feed.write_all(b"fed").await.unwrap() });
            Ok(())
        });
        let mut client = Http2Client::connect(server.tcp());
        let feed = client.get("/");
        assert_eq!(client.answer(feed).status, status);
        drop(client);
        let counts = server.stop();
        assert_eq!((counts.error(ErrorKind::Accept), counts.error(ErrorKind::Handler)), (refused, 0), "{counts:?}");
        assert_eq!(capacity.held(), 0);
    }
}
