//! What a handler needs that passes on other servers' answers, as a gateway does.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use crate::support;
use crate::support::{Running, patient};
use oroshi_server::{Error, Exchange, Settings};

#[test]
fn field_lines_go_out_as_they_are() {
    let relay = async |exchange: &mut Exchange<'_>| {
        let head = exchange.head.method == "HEAD";
        let length = (exchange.head.target != "/chunked").then_some(5);
        exchange.reply.relay(299, b"Quite fine", length, |out| {
            out.extend_from_slice(b"X-A:  1 \r\nx-a:2\r\n");
            if exchange.head.target == "/dated" {
                out.extend_from_slice(b"dAtE: then\r\n");
                return true;
            }
            false
        })?;
        poll_fn(|context| exchange.reply.push(context, b"hello").into_poll()).await?;
        if head { exchange.reply.finish() } else { exchange.reply.finish_with([("X-Sum", &b"1"[..])]) }
    };
    // A date that is missing is added, whatever the settings say.
    let server = Running::start(Settings { date: false, ..patient() }, relay);
    let mut client = server.connect();
    let answer = client.send("GET /dated HTTP/1.1\r\nHost: a\r\n\r\n").answer();
    assert_eq!(answer.head, "HTTP/1.1 299 Quite fine\r\nX-A:  1 \r\nx-a:2\r\ndAtE: then\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(answer.text(), "hello");
    let answer = client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").answer_to("HEAD");
    assert!(answer.field("date").is_some() && answer.field("content-length") == Some("5"));
    client.send("GET /chunked HTTP/1.1\r\nHost: a\r\n\r\n").until_head();
    assert_eq!(client.exactly(25), b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n");
    drop(client);
    server.stop();
}

/// Lets `?` be used on what a poll gives at once.
trait IntoPoll<T> {
    fn into_poll(self) -> std::task::Poll<T>;
}

impl<T> IntoPoll<T> for T {
    fn into_poll(self) -> std::task::Poll<T> {
        std::task::Poll::Ready(self)
    }
}

#[test]
fn pieces_that_are_pushed_arrive_whole_however_slowly_they_are_read() {
    const PIECES: usize = 200;
    let relay = async |exchange: &mut Exchange<'_>| {
        let length = (exchange.head.target == "/length").then_some((PIECES * 65_536) as u64);
        exchange.reply.begin(200, [], length)?;
        let mut piece = vec![0; 65_536];
        for number in 0..PIECES {
            poll_fn(|context| {
                std::task::ready!(exchange.reply.poll_room(context))?;
                piece.fill(number as u8);
                exchange.reply.push(context, &piece).into_poll()
            })
            .await?;
            // Taken at once: what is done to it afterwards changes nothing.
            piece.fill(0xff);
        }
        exchange.reply.finish()
    };
    let server = Running::start(patient(), relay);
    let mut client = server.connect();
    for target in ["/length", "/chunked"] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = client.answer();
        assert_eq!(answer.body.len(), PIECES * 65_536);
        for (number, piece) in answer.body.chunks(65_536).enumerate() {
            assert!(piece.iter().all(|&byte| byte == number as u8), "piece {number}");
        }
    }
    drop(client);
    server.stop();
}

#[test]
fn pieces_beyond_the_length_are_refused() {
    let relay = async |exchange: &mut Exchange<'_>| {
        let early = poll_fn(|context| exchange.reply.push(context, b"x").into_poll()).await;
        assert!(matches!(early, Err(Error::Misuse(_))));
        exchange.reply.begin(200, [], Some(1))?;
        let long = poll_fn(|context| exchange.reply.push(context, b"xy").into_poll()).await;
        assert!(matches!(long, Err(Error::Misuse(_))));
        exchange.reply.write(b"x").await?;
        exchange.reply.finish()
    };
    let server = Running::start(patient(), relay);
    assert_eq!(server.connect().send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "x");
    server.stop();
}

#[test]
fn what_has_come_with_the_head_is_at_hand_and_leave_to_send_is_the_handlers_to_give() {
    let relay = async |exchange: &mut Exchange<'_>| {
        let mut said = Vec::new();
        exchange.body.leave_continue();
        while let Some(piece) = exchange.body.at_hand()? {
            said.extend_from_slice(piece);
        }
        said.push(b'|');
        if !exchange.body.is_ended() {
            assert!(exchange.body.at_hand()?.is_none(), "nothing is waited for");
            exchange.reply.inform(100, [])?;
            // A second one is not asked for.
            exchange.reply.inform(100, [])?;
            assert!(matches!(exchange.reply.inform(101, []), Err(Error::Misuse(_))));
        }
        while let Some(piece) = exchange.body.chunk().await? {
            said.extend_from_slice(piece);
        }
        exchange.reply.send(200, [], &said).await
    };
    let server = Running::start(patient(), relay);
    let mut client = server.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.answer().text(), "hello|");
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "|");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(client.answer().head, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(client.send("hello").answer().text(), "|hello");
    drop(client);
    server.stop();
}

#[test]
fn addresses_are_those_of_the_connection() {
    type Addresses = (Option<std::net::SocketAddr>, Option<std::net::SocketAddr>);
    let seen: Arc<Mutex<Vec<Addresses>>> = Arc::default();
    let noting = Arc::clone(&seen);
    let server = Running::start(patient(), async move |exchange: &mut Exchange<'_>| {
        noting.lock().unwrap().push((exchange.local(), exchange.remote()));
        exchange.reply.send(204, [], b"").await
    });
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer();
    }
    let support::Socket::Tcp(stream) = &*client.socket else { panic!("a unix socket") };
    let expected = (Some(stream.peer_addr().unwrap()), Some(stream.local_addr().unwrap()));
    assert_eq!(*seen.lock().unwrap(), [expected, expected]);
    drop(client);
    server.stop();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server.sock");
    let server =
        Running::start_at(&format!("unix:{}", path.display()), None, patient(), async |exchange: &mut Exchange<'_>| {
            assert_eq!((exchange.local(), exchange.remote()), (None, None));
            exchange.reply.send(204, [], b"").await
        });
    support::Client::unix(&path).send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer();
    server.stop();
}
