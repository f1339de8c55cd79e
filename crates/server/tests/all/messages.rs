//! Requests and answers on a connection: keep-alive, pipelining, methods, versions, framing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use crate::support::{Client, Running, describe, patient};
use oroshi_server::{Error, ErrorKind, Exchange};

#[test]
fn a_connection_serves_one_request_after_the_other() {
    let server = Running::start(patient(), describe);
    let mut client = server.connect();
    for number in 0..3 {
        let answer = client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).answer();
        assert_eq!((answer.status, answer.text()), (200, &*format!("GET /{number} 0")));
        assert_eq!(answer.field("connection"), None);
        assert!(answer.field("date").unwrap().ends_with(" GMT"));
        assert_eq!(answer.field("content-type"), Some("text/plain"));
    }
    let answer = client.send("GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").answer();
    assert_eq!(answer.field("connection"), Some("close"));
    client.closed();
    let counts = server.stop();
    assert_eq!((counts.accepted, counts.alive, counts.requests, counts.answers), (1, 0, 4, 4));
    assert_eq!(counts.errors.iter().sum::<u64>(), 0);
}

#[test]
fn a_unix_socket_serves_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = Running::start_at(&format!("unix:{}", path.display()), None, patient(), describe);
    let mut client = Client::unix(&path);
    assert_eq!(client.send("GET /u HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "GET /u 0");
    assert_eq!(server.stop().answers, 1);
}

#[test]
fn a_hundred_requests_in_one_write_are_answered_in_order_and_in_one_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let server = Running::start_at(&format!("unix:{}", path.display()), None, patient(), describe);
    let mut client = Client::unix(&path);
    let requests: String =
        (0..100).map(|number| format!("POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")).collect();
    client.send(requests);
    for number in 0..100 {
        assert_eq!(client.answer().text(), format!("POST /{number} 3"));
    }
    // What one write puts into a unix socket, one read takes out.
    assert_eq!(client.reads, 1);
    assert_eq!(server.stop().answers, 100);
}

#[test]
fn however_many_requests_come_at_once_all_are_answered_and_others_are_too() {
    let server = Running::start(patient(), describe);
    let (mut client, mut other) = (server.connect(), server.connect());
    client.send("GET /many HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1500));
    assert_eq!(other.send("GET /other HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "GET /other 0");
    for _ in 0..1500 {
        assert_eq!(client.answer().text(), "GET /many 0");
    }
    assert_eq!(server.stop().answers, 1501);
}

#[test]
fn pipelined_requests_may_be_cut_anywhere() {
    let server = Running::start(patient(), describe);
    let requests = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n\
        POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: v\r\n\r\n\
        PUT /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd\
        GET /4 HTTP/1.1\r\nHost: a\r\n\r\n";
    for cut in 0..requests.len() {
        let mut client = server.connect();
        client.send(&requests[..cut]).send(&requests[cut..]);
        for expected in ["GET /1 0", "POST /2 5", "PUT /3 4", "GET /4 0"] {
            assert_eq!(client.answer().text(), expected, "cut at {cut}");
        }
    }
    assert_eq!(server.stop().errors.iter().sum::<u64>(), 0);
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = Running::start(patient(), describe);
    let mut client = server.connect();
    for byte in b"POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n" {
        client.send([*byte]);
    }
    assert_eq!(client.answer().text(), "POST /slow 2");
    server.stop();
}

#[test]
fn empty_lines_are_counted_however_slowly_they_come() {
    let server = Running::start(patient(), describe);
    let (mut slow, mut other) = (server.connect(), server.connect());
    let mut send_lines = |slow: &mut Client, count| {
        for _ in 0..count {
            slow.send("\r\n");
            // By the time that this one is answered, the line was read.
            assert_eq!(other.send("GET /other HTTP/1.1\r\nHost: a\r\n\r\n").answer().status, 200);
        }
    };
    for _ in 0..2 {
        send_lines(&mut slow, 8);
        assert_eq!(slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "GET /slow 0");
    }
    send_lines(&mut slow, 9);
    assert_eq!(slow.answer().status, 400);
    slow.half_close().closed();
    server.stop();
}

#[test]
fn an_answer_is_sent_while_the_handler_of_the_next_request_waits() {
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let handler = async move |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/held" {
            // The peer ends the wait, and it does so after it has read the first answer.
            exchange.body.peer_closed().await;
            released.lock().unwrap().recv().unwrap();
        }
        exchange.reply.send(200, [], b"x").await
    };
    let server = Running::start(patient(), handler);
    let mut client = server.connect();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    release.send(()).unwrap();
    assert_eq!(client.half_close().answer().status, 200);
    client.closed();
    server.stop();
}

#[test]
fn head_gets_the_length_without_the_body() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/stream" {
            exchange.reply.begin(200, [], Some(1_000_000))?;
            exchange.reply.write(b"some of it").await?;
            return exchange.reply.finish();
        }
        exchange.reply.send(200, [], b"body").await
    });
    let mut client = server.connect();
    let answer = client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").answer_to("HEAD");
    assert_eq!(answer.field("content-length"), Some("4"));
    let answer = client.send("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n").answer_to("HEAD");
    assert_eq!(answer.field("content-length"), Some("1000000"));
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "body");
    assert_eq!(server.stop().answers, 3);
}

#[test]
fn a_204_has_neither_body_nor_length() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        let refused = exchange.reply.send(204, [], b"body").await;
        assert!(matches!(refused, Err(Error::Misuse(_))));
        exchange.reply.send(204, [], b"").await
    });
    let mut client = server.connect();
    let answer = client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer();
    assert_eq!((answer.status, answer.field("content-length"), answer.field("transfer-encoding")), (204, None, None));
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().status, 204);
    server.stop();
}

/// Three pieces, of which the second is too large to be copied.
async fn stream(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    exchange.reply.begin(200, [], None)?;
    exchange.reply.write(b"first,").await?;
    exchange.reply.write(b"").await?;
    exchange.reply.write(&[b'x'; 300_000]).await?;
    exchange.reply.write(b",last").await?;
    exchange.reply.finish_with([("X-Sum", &b"1"[..])])
}

#[test]
fn a_body_of_unknown_length_is_chunked_for_1_1_and_ends_with_the_connection_for_1_0() {
    let server = Running::start(patient(), stream);
    let expected = [b"first,".as_slice(), &[b'x'; 300_000], b",last"].concat();
    let mut client = server.connect();
    for _ in 0..2 {
        let answer = client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer();
        assert_eq!(answer.field("transfer-encoding"), Some("chunked"));
        assert!(answer.body == expected);
    }
    let answer = client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer();
    assert_eq!(answer.field("transfer-encoding"), None);
    assert_eq!(answer.field("connection"), Some("close"));
    assert!(answer.body == expected);
    assert_eq!(server.stop().answers, 3);
}

#[test]
fn an_http_1_0_client_keeps_its_connection_only_if_it_asks() {
    let server = Running::start(patient(), describe);
    let mut client = server.connect();
    let answer = client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").answer();
    assert_eq!(answer.field("connection"), Some("keep-alive"));
    let answer = client.send("GET / HTTP/1.0\r\n\r\n").answer();
    assert_eq!(answer.field("connection"), Some("close"));
    client.closed();
    server.stop();
}

#[test]
fn a_client_that_has_ended_its_side_gets_its_answers() {
    let server = Running::start(patient(), describe);
    let mut client = server.connect();
    client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n").half_close();
    assert_eq!(client.answer().text(), "GET /1 0");
    assert_eq!(client.answer().text(), "GET /2 0");
    client.closed();
    assert_eq!(server.stop().errors.iter().sum::<u64>(), 0);
}

#[test]
fn interim_answers_come_before_the_final_one_and_only_to_1_1() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        exchange.reply.inform(103, [("Link", &b"</a.css>; rel=preload"[..])])?;
        exchange.reply.send(200, [], b"x").await?;
        assert!(matches!(exchange.reply.inform(103, []), Err(Error::Misuse(_))));
        Ok(())
    });
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let hint = client.answer();
    assert_eq!((hint.status, hint.field("link")), (103, Some("</a.css>; rel=preload")));
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.send("GET / HTTP/1.0\r\n\r\n").answer().status, 200);
    server.stop();
}

#[test]
fn fields_that_would_forge_a_message_are_refused_and_another_answer_can_follow() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        let bad: [(&str, &[u8]); 6] = [
            ("X", b"a\r\nSet-Cookie: b"),
            ("X Y", b"a"),
            ("", b"a"),
            ("Content-Length", b"5"),
            ("transfer-encoding", b"chunked"),
            ("CONNECTION", b"keep-alive"),
        ];
        for (name, value) in bad {
            let refused = exchange.reply.send(200, [("X-Before", &b"1"[..]), (name, value)], b"body").await;
            assert!(matches!(&refused, Err(Error::Header(named)) if named == name), "{name}: {refused:?}");
        }
        assert!(matches!(exchange.reply.send(99, [], b"").await, Err(Error::Misuse(_))));
        exchange.reply.send(500, [], b"sorry").await
    });
    let mut client = server.connect();
    let answer = client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer();
    assert_eq!((answer.status, answer.text(), answer.field("x-before")), (500, "sorry", None));
    server.stop();
}

#[test]
fn the_handlers_own_date_stands_and_none_is_sent_when_switched_off() {
    let dated = async |exchange: &mut Exchange<'_>| {
        let date: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";
        exchange.reply.send(200, (exchange.head.target == "/own").then_some(("date", date)), b"").await
    };
    let server = Running::start(patient(), dated);
    let mut client = server.connect();
    let answer = client.send("GET /own HTTP/1.1\r\nHost: a\r\n\r\n").answer();
    assert_eq!(answer.head.matches("ate: ").count(), 1);
    assert_eq!(answer.field("date"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    server.stop();

    let server = Running::start(oroshi_server::Settings { date: false, ..patient() }, dated);
    assert_eq!(server.connect().send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().field("date"), None);
    server.stop();
}

#[test]
fn an_error_after_the_head_never_makes_a_second_status_line() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        let length = if exchange.head.target == "/length" { Some(100) } else { None };
        exchange.reply.begin(200, [], length)?;
        exchange.reply.write(b"part").await?;
        exchange.reply.flush().await?;
        match exchange.head.target {
            "/length" => exchange.reply.finish(), // 96 bytes are missing
            "/forgotten" => Ok(()),
            _ => Err(Error::Handler("the disk is gone".into())),
        }
    });
    for target in ["/length", "/forgotten", "/failed"] {
        let mut client = server.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let all = String::from_utf8(client.rest()).unwrap();
        assert_eq!(all.matches("HTTP/1.1").count(), 1, "{all}");
        assert!(all.contains("part") && !all.ends_with("\r\n0\r\n\r\n"), "{all}");
    }
    // Where only a proper close would tell the end, there is none.
    let mut client = server.connect();
    client.send("GET /failed HTTP/1.0\r\n\r\n").was_reset();
    let counts = server.stop();
    assert_eq!((counts.answers, counts.error(ErrorKind::Handler)), (0, 4));
}

#[test]
fn a_handler_that_fails_or_gives_no_answer_has_500_answered_for_it() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| match exchange.head.target {
        "/fails" => Err(Error::Handler("secret detail".into())),
        "/cut" => Err(Error::Cut),
        _ => Ok(()),
    });
    for target in ["/fails", "/silent"] {
        let mut client = server.connect();
        let answer = client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).answer();
        assert_eq!((answer.status, answer.field("connection")), (500, Some("close")));
        assert!(!answer.text().contains("secret"));
        client.half_close().closed();
    }
    server.connect().send("GET /cut HTTP/1.1\r\nHost: a\r\n\r\n").closed();
    assert_eq!(server.stop().error(ErrorKind::Handler), 3);
}

#[test]
fn an_answer_written_out_beforehand_is_sent_as_it_is() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok";
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/close" {
            exchange.reply.close();
        }
        exchange.reply.send_raw(ANSWER).await?;
        assert!(matches!(exchange.reply.send_raw(ANSWER).await, Err(Error::Misuse(_))));
        Ok(())
    });
    let mut client = server.connect();
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").exactly(ANSWER.len()), ANSWER);
    assert_eq!(client.send("GET /close HTTP/1.1\r\nHost: a\r\n\r\n").rest(), ANSWER);
    server.stop();
}

#[test]
fn a_reader_that_is_slow_holds_its_handler_back() {
    const LENGTH: usize = 100_000_000;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let server = Running::start(patient(), async move |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/quick" {
            return exchange.reply.send(200, [], b"quick").await;
        }
        exchange.reply.begin(200, [], Some(LENGTH as u64))?;
        for _ in 0..LENGTH / 1000 {
            exchange.reply.write(&[b'x'; 1000]).await?;
            count.fetch_add(1000, Ordering::Relaxed);
        }
        exchange.reply.finish()
    });
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.exactly(8), b"HTTP/1.1");
    // The others are served meanwhile, and what stands in buffers is little.
    let mut other = server.connect();
    assert_eq!(other.send("GET /quick HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "quick");
    assert!(written.load(Ordering::Relaxed) < LENGTH / 2);
    client.exactly(LENGTH);
    drop(client);
    server.stop();
    assert_eq!(written.load(Ordering::Relaxed), LENGTH);
}
