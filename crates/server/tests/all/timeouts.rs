//! Time limits by phase. Each client waits for what the server does when the limit has come: no test looks at a clock.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use crate::support::{Running, SHORT, describe, patient};
use oroshi_http1::Limits;
use oroshi_server::{Error, ErrorKind, Exchange, Settings, Wait};

#[test]
fn an_idle_connection_is_closed_silently() {
    let server = Running::start(Settings { idle_timeout: SHORT, ..patient() }, describe);
    server.connect().closed();
    let mut used = server.connect();
    assert_eq!(used.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().status, 200);
    used.closed();
    assert_eq!(server.stop().errors.iter().sum::<u64>(), 0);
}

#[test]
fn a_head_that_does_not_end_is_answered_408() {
    let server = Running::start(Settings { head_timeout: SHORT, ..patient() }, describe);
    let mut client = server.connect();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HT");
    assert_eq!(client.answer().text(), "GET /1 0");
    let answer = client.answer();
    assert_eq!((answer.status, answer.field("connection")), (408, Some("close")));
    client.half_close().closed();
    assert_eq!(server.stop().error(ErrorKind::HeadTimeout), 1);
}

#[test]
fn a_head_that_drips_is_answered_408_all_the_same() {
    let limits = Limits { head_bytes: u32::MAX as usize, ..Limits::default() };
    let server = Running::start(Settings { limits, head_timeout: SHORT, ..patient() }, describe);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nX: ");
    // Bytes never pause: the limit is for the head as a whole.
    let dripping = client.send_until_refused(b"x");
    assert_eq!(client.answer().status, 408);
    client.give_up();
    dripping.join().unwrap();
    server.stop();
}

#[test]
fn a_body_that_pauses_is_the_handlers_to_know_and_408_when_it_passes_that_on() {
    let server = Running::start(Settings { body_timeout: SHORT, ..patient() }, async |exchange: &mut Exchange<'_>| {
        let error = loop {
            match exchange.body.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => return exchange.reply.send(200, [], b"").await,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Timeout(Wait::Body)), "{error:?}");
        match exchange.head.target {
            "/own" => exchange.reply.send(503, [], b"my own words").await,
            _ => Err(error),
        }
    });
    for (target, status) in [("/own", 503), ("/passed-on", 408)] {
        let mut client = server.connect();
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc"));
        assert_eq!(client.answer().status, status);
        client.half_close().closed();
    }
    let counts = server.stop();
    assert_eq!((counts.answers, counts.error(ErrorKind::BodyTimeout)), (1, 1));
}

#[test]
fn a_request_that_drips_on_has_a_limit_as_a_whole() {
    let settings = Settings { request_timeout: SHORT, ..patient() };
    let server = Running::start(settings, describe);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let dripping = client.send_until_refused(b"1\r\nx\r\n");
    assert_eq!(client.answer().status, 408);
    client.give_up();
    dripping.join().unwrap();
    server.stop();
}

#[test]
fn a_body_that_drips_is_too_slow_and_one_that_keeps_up_is_not() {
    // A byte a second is a byte in any window of less: what drips without a pause is fast enough for it, and far too
    // slow for a gigabyte.
    for (body_rate, is_too_slow) in [(1 << 30, true), (1, false)] {
        let settings = Settings { body_rate, body_rate_window: SHORT, ..patient() };
        let server = Running::start(settings, describe);
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        if is_too_slow {
            let dripping = client.send_until_refused(b"1\r\nx\r\n");
            assert_eq!(client.answer().status, 408);
            client.give_up();
            dripping.join().unwrap();
        } else {
            for _ in 0..20 {
                client.send("1\r\nx\r\n");
                std::thread::sleep(SHORT / 5);
            }
            assert_eq!(client.send("0\r\n\r\n").answer().text(), "POST / 20");
        }
        server.stop();
    }
}

#[test]
fn a_body_that_was_fast_enough_must_be_so_in_the_next_window_too() {
    // Ten bytes in each window.
    let body_rate = 10 * 1000 / SHORT.as_millis() as u64;
    let server = Running::start(Settings { body_rate, body_rate_window: SHORT, ..patient() }, describe);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.answer().status, 100);
    // All that the first window must bring, and no more: nothing else limits how long the rest may take.
    client.send("0123456789");
    assert_eq!(client.answer().status, 408);
    client.half_close().closed();
    assert_eq!(server.stop().error(ErrorKind::BodyTimeout), 1);
}

#[test]
fn the_time_in_which_nobody_asks_for_a_body_does_not_make_it_slow() {
    let (body_rate, body_rate_window) = (1_000_000, SHORT);
    let server =
        Running::start(Settings { body_rate, body_rate_window, ..patient() }, async |exchange: &mut Exchange<'_>| {
            exchange.body.chunk().await?;
            tokio::time::sleep(SHORT * 6).await;
            while exchange.body.chunk().await?.is_some() {}
            exchange.reply.send(200, [], b"all").await
        });
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na").send("b");
    assert_eq!(client.answer().text(), "all");
    server.stop();
}

#[test]
fn an_unread_body_that_does_not_come_is_not_waited_for_without_end() {
    let settings = Settings { body_timeout: SHORT, linger_timeout: SHORT, ..patient() };
    let server =
        Running::start(settings, async |exchange: &mut Exchange<'_>| exchange.reply.send(200, [], b"ignored").await);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.answer().text(), "ignored");
    client.closed();
    let counts = server.stop();
    assert_eq!((counts.answers, counts.errors.iter().sum::<u64>()), (1, 0));
}

#[test]
fn a_peer_that_does_not_read_is_dropped() {
    let (dropped, was_dropped) = std::sync::mpsc::channel();
    let server =
        Running::start(Settings { write_timeout: SHORT, ..patient() }, async move |exchange: &mut Exchange<'_>| {
            let _told = TellWhenDropped(dropped.clone());
            exchange.reply.begin(200, [], None)?;
            loop {
                exchange.reply.write(&[b'x'; 10_000]).await?;
            }
        });
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    was_dropped.recv().unwrap();
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::WriteTimeout), 1);
}

#[test]
fn a_handler_that_waits_for_something_else_is_dropped_with_a_peer_that_does_not_read() {
    let (dropped, was_dropped) = std::sync::mpsc::channel();
    let server =
        Running::start(Settings { write_timeout: SHORT, ..patient() }, async move |exchange: &mut Exchange<'_>| {
            let _told = TellWhenDropped(dropped.clone());
            exchange.reply.begin(200, [], None)?;
            while poll_once(exchange.reply.write(&[b'x'; 10_000])).await.is_some() {}
            std::future::pending().await
        });
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    was_dropped.recv().unwrap();
    drop(client);
    assert_eq!(server.stop().error(ErrorKind::WriteTimeout), 1);
}

#[test]
fn a_refused_peer_that_goes_on_sending_is_cut_off_in_the_end() {
    let server = Running::start(Settings { linger_timeout: SHORT, ..patient() }, describe);
    let mut client = server.connect();
    client.send("NO SUCH THING\r\n\r\n");
    assert_eq!(client.answer().status, 400);
    // Ends because the server closes.
    client.send_until_refused(&[b'x'; 1000]).join().unwrap();
    server.stop();
}

/// The future's output if it has one at once.
async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

struct TellWhenDropped(std::sync::mpsc::Sender<()>);

impl Drop for TellWhenDropped {
    fn drop(&mut self) {
        // The test may have ended.
        let _ = self.0.send(());
    }
}
