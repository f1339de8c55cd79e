//! Request bodies: read as they come, refused, left unread; limits; 100-continue.

use std::io::Write;
use std::sync::Arc;

use crate::support;
use crate::support::{Running, describe, patient};
use oroshi_http1::{DecodeError, Limits};
use oroshi_server::{Error, ErrorKind, Exchange, Settings};
use tokio::sync::Notify;

async fn echo(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    exchange.reply.begin(200, [], None)?;
    while let Some(piece) = exchange.body.chunk().await? {
        exchange.reply.write(piece).await?;
    }
    let trailers: Vec<_> = exchange.body.trailers().collect();
    exchange.reply.finish_with(trailers)
}

async fn ignore(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    exchange.reply.send(200, [], b"ignored").await
}

#[test]
fn a_body_is_read_and_answered_at_the_same_time() {
    let server = Running::start(patient(), echo);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Each piece is answered before the next is sent: nothing waits for the end.
    let mut head = client.exactly(4);
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(client.exactly(1));
    }
    for piece in ["a", "bcd", "efghij"] {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
        assert_eq!(client.exactly(piece.len() + 5), format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
    }
    client.send("0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(client.exactly(15), b"0\r\nX-Sum: 1\r\n\r\n");
    server.stop();
}

#[test]
fn a_large_body_comes_back_as_it_was() {
    let server = Running::start(patient(), echo);
    let mut client = server.connect();
    let body: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let sent = body.clone();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
    let socket = Arc::clone(&client.socket);
    let sending = std::thread::spawn(move || (&*socket).write_all(&sent).unwrap());
    assert!(client.answer().body == body);
    sending.join().unwrap();
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().body, b"");
    server.stop();
}

#[test]
fn a_client_that_waits_is_told_to_continue_at_the_first_read() {
    let server = Running::start(patient(), describe);
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
        assert_eq!(client.answer().status, 100);
        assert_eq!(client.send("ab").answer().text(), "PUT / 2");
    }
    server.stop();
}

#[test]
fn a_client_that_does_not_wait_is_not_told_to() {
    let server = Running::start(patient(), describe);
    let mut client = server.connect();
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nab");
    assert_eq!(client.answer().text(), "PUT / 2");
    server.stop();
}

#[test]
fn an_answer_without_reading_spares_a_waiting_client_its_upload() {
    let server = Running::start(patient(), ignore);
    let mut client = server.connect();
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    let answer = client.answer();
    // Whether the body still comes is unknown, so nothing after it could be understood.
    assert_eq!((answer.text(), answer.field("connection")), ("ignored", Some("close")));
    client.half_close().closed();
    server.stop();
}

#[test]
fn continue_is_not_said_once_an_answer_has_begun() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        exchange.reply.begin(200, [], None)?;
        while exchange.body.chunk().await?.is_some() {}
        exchange.reply.finish()
    });
    let mut client = server.connect();
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    client.send("ab");
    assert_eq!(client.answer().status, 200);
    client.half_close().closed();
    server.stop();
}

#[test]
fn a_small_unread_body_is_skipped_and_the_connection_goes_on() {
    let server = Running::start(patient(), ignore);
    let mut client = server.connect();
    for framing in ["Content-Length: 5\r\n\r\nabcde", "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"] {
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}"));
        let answer = client.answer();
        assert_eq!((answer.text(), answer.field("connection")), ("ignored", None));
    }
    // Also when the body comes only after the answer.
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.answer().text(), "ignored");
    client.send("abcdeGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().text(), "ignored");
    assert_eq!(server.stop().answers, 4);
}

#[test]
fn a_large_unread_body_ends_the_connection_but_the_answer_arrives() {
    let server = Running::start(patient(), ignore);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
    // A server that just closed would have these bytes reset the connection, and the answer with it.
    client.send(vec![b'x'; 5_000_000]);
    let answer = client.answer();
    assert_eq!((answer.text(), answer.field("connection")), ("ignored", Some("close")));
    client.send(vec![b'x'; 5_000_000]).half_close().closed();
    server.stop();
}

#[test]
fn an_unread_chunked_body_that_goes_on_and_on_ends_the_connection() {
    let server = Running::start(Settings { drain_bytes: 1000, ..patient() }, ignore);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(client.answer().text(), "ignored");
    for _ in 0..100 {
        client.send(format!("64\r\n{}\r\n", "x".repeat(100)));
    }
    client.half_close().closed();
    server.stop();
}

#[test]
fn limits_are_answered_with_their_status_and_a_close() {
    let limits = Limits { head_bytes: 1000, headers: 3, target_bytes: 100, body_bytes: 10, ..Limits::default() };
    let server = Running::start(Settings { limits, ..patient() }, describe);
    let long = "x".repeat(2000);
    let cases = [
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431),
        ("GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n".to_owned(), 431),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", &long[..200]), 414),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world".to_owned(), 413),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n".to_owned(),
            413,
        ),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(), 505),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: more\r\n\r\n".to_owned(), 417),
        ("BREW / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".to_owned(), 501),
    ];
    let count = cases.len() as u64;
    for (request, status) in cases {
        let mut client = server.connect();
        client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n").send(&request);
        assert_eq!(client.answer().text(), "GET /first 0");
        let answer = client.answer();
        assert_eq!((answer.status, answer.field("connection")), (status, Some("close")), "{request}");
        client.half_close().closed();
    }
    assert_eq!(server.stop().error(ErrorKind::Refused), count);
}

#[test]
fn a_malformed_body_is_the_handlers_to_know_and_400_when_it_passes_that_on() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        let read = async {
            while exchange.body.chunk().await?.is_some() {}
            Ok(())
        };
        match read.await {
            Err(Error::Request(DecodeError::BadChunkSize)) if exchange.head.target == "/own" => {
                exchange.reply.send(422, [], b"my own words").await
            }
            result => result,
        }
    });
    for (target, status) in [("/own", 422), ("/passed-on", 400)] {
        let mut client = server.connect();
        client
            .send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n-1\r\n"));
        assert_eq!(client.answer().status, status);
        client.half_close().closed();
    }
    server.stop();
}

#[test]
fn a_body_that_was_cut_off_is_an_error_and_not_an_end() {
    let server = Running::start(patient(), describe);
    for framing in ["Content-Length: 5\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"] {
        let mut client = server.connect();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}")).half_close();
        assert_eq!(client.answer().status, 400);
        client.closed();
    }
    // In the middle of a head too.
    let mut client = server.connect();
    assert_eq!(client.send("GET / HTTP/1.1\r\nHo").half_close().answer().status, 400);
    client.closed();
    let counts = server.stop();
    assert_eq!((counts.requests, counts.answers, counts.error(ErrorKind::Disconnected)), (2, 0, 3));
}

#[test]
fn a_reset_in_the_middle_ends_the_exchange_and_nothing_else() {
    let arrived = Arc::new(Notify::new());
    let reading = Arc::clone(&arrived);
    let server = Running::start(patient(), async move |exchange: &mut Exchange<'_>| {
        let first = exchange.body.chunk().await?;
        if first.is_some() {
            reading.notify_one();
        }
        while exchange.body.chunk().await?.is_some() {}
        exchange.reply.send(200, [], b"all").await
    });
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc");
    support::block_on(arrived.notified());
    client.reset();
    let mut other = server.connect();
    assert_eq!(other.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "all");
    let counts = server.stop();
    assert_eq!((counts.answers, counts.error(ErrorKind::Disconnected)), (1, 1));
}

#[test]
fn a_handler_learns_that_its_peer_is_gone_and_keeps_what_was_pipelined() {
    let gone = Arc::new(Notify::new());
    let seen = Arc::clone(&gone);
    let server = Running::start(patient(), async move |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/wait" {
            exchange.body.peer_closed().await;
            seen.notify_one();
        }
        exchange.reply.send(200, [], exchange.head.target.as_bytes()).await
    });
    let mut client = server.connect();
    client.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    client.send("GET /after HTTP/1.1\r\nHost: a\r\n\r\n").half_close();
    support::block_on(gone.notified());
    for expected in ["/wait", "/next", "/after"] {
        assert_eq!(client.answer().text(), expected);
    }
    client.closed();
    server.stop();
}
