//! What has been slipped past proxies before: each message holds a second one, for a reader who sees the first end
//! somewhere else. It is refused, or everybody takes the second for a body.
//!
//! The classes are those of published advisories and of HTTP Garden's list. `crates/http1/conformance/cases.txt` has
//! each defect alone.

use super::{Sent, Then};

/// The message inside.
const INNER: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\nX-Inner: yes\r\n\r\n";

pub(super) fn cases() -> Vec<Sent> {
    let mut cases = Vec::new();
    two_framings(&mut cases);
    odd_lengths(&mut cases);
    odd_chunks(&mut cases);
    odd_lines(&mut cases);
    bodies(&mut cases);
    hops(&mut cases);
    cases
}

fn refused(cases: &mut Vec<Sent>, name: String, message: String, status: u16) {
    cases.push(Sent { name, bytes: message.into_bytes(), through: Vec::new(), then: Then::Refused(status) });
}

fn passes(cases: &mut Vec<Sent>, name: &str, message: String, through: &[(&str, &str, &str)]) {
    let own = |&(method, target, body): &(&str, &str, &str)| (method.to_owned(), target.to_owned(), body.into());
    let through = through.iter().map(own).collect();
    cases.push(Sent { name: name.to_owned(), bytes: message.into_bytes(), through, then: Then::KeepAlive });
}

/// A length and something that some take for chunked: for the one the message inside is a body, for the other what
/// follows one.
fn two_framings(cases: &mut Vec<Sent>) {
    // RFC 9112, section 6.1: a coding that is unknown is 501; but the first defect decides.
    for (coding, status) in [
        ("Transfer-Encoding: chunked", 400),
        ("Transfer-Encoding:chunked", 400),
        ("Transfer-Encoding:\tchunked\t", 400),
        ("TRANSFER-ENCODING: CHUNKED", 400),
        ("Transfer-Encoding : chunked", 400),
        ("Transfer-Encoding\t: chunked", 400),
        (" Transfer-Encoding: chunked", 400),
        ("\tTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: xchunked", 400),
        ("Transfer-Encoding: chunkedx", 400),
        ("Transfer-Encoding: x chunked", 400),
        ("Transfer-Encoding: \"chunked\"", 400),
        ("Transfer-Encoding: 'chunked'", 400),
        ("Transfer-Encoding: chunked;", 400),
        ("Transfer-Encoding: chunked; q=1", 400),
        ("Transfer-Encoding: ,chunked", 400),
        ("Transfer-Encoding: chunked,", 400),
        ("Transfer-Encoding: chunked, chunked", 400),
        ("Transfer-Encoding: chunked, identity", 400),
        ("Transfer-Encoding: identity, chunked", 501),
        ("Transfer-Encoding: gzip, chunked", 501),
        ("Transfer-Encoding: chunked, gzip", 400),
        ("Transfer-Encoding: identity", 400),
        ("Transfer-Encoding: ", 400),
        ("Transfer-Encoding:", 400),
        ("Transfer-Encoding: \x0bchunked", 400),
        ("Transfer-Encoding: \x0cchunked", 400),
        ("Transfer-Encoding: chunked\x0b", 400),
        ("Transfer-Encoding: chun\0ked", 400),
        ("Transfer-Encoding: chunked\0", 400),
        ("Transfer-Encoding:\r\n chunked", 400),
        ("Transfer-Encoding\r\n: chunked", 400),
        ("Transfer-Encoding: x\r\n chunked", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: x", 400),
        ("Transfer-Encoding: x\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: chunked\nX: y", 400),
        ("X: y\nTransfer-Encoding: chunked", 400),
        ("X: y\rTransfer-Encoding: chunked", 400),
        ("X: y\r\r\nTransfer-Encoding: chunked", 400),
        ("X: y\0\r\nTransfer-Encoding: chunked", 400),
        ("Transfer_Encoding: chunked", 400),
        ("Transfer-Encoding\0: chunked", 400),
        ("Transfer\u{2010}Encoding: chunked", 400),
        ("Transfer Encoding: chunked", 400),
        (": chunked\r\nTransfer-Encoding: chunked", 400),
    ] {
        let chunks = format!("0\r\n\r\n{INNER}");
        for (order, head, status) in [
            ("length first", format!("Content-Length: {}\r\n{coding}", chunks.len()), 400),
            ("coding first", format!("{coding}\r\nContent-Length: {}", chunks.len()), status),
        ] {
            let message = format!("POST / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n{chunks}");
            refused(cases, format!("{order}: {}", coding.escape_debug()), message, status);
        }
    }
    // And the other way round: a short length, which leaves the rest of the chunk.
    let chunk = format!("{:x}\r\n{INNER}\r\n0\r\n\r\n", INNER.len());
    let message =
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
    refused(cases, "a length that ends within the chunks".to_owned(), message, 400);
    let message = format!("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{INNER}");
    refused(cases, "chunked in HTTP/1.0".to_owned(), message, 400);
    let message = format!(
        "POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\
         \r\n0\r\n\r\n{INNER}",
        5 + INNER.len()
    );
    refused(cases, "both in HTTP/1.0".to_owned(), message, 400);
    for (coding, status) in [("gzip, chunked", 501), ("deflate, chunked", 501), ("x", 400)] {
        let message = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n{INNER}");
        refused(cases, format!("coding {coding}"), message, status);
    }
}

/// A length that can be read in two ways, or twice.
fn odd_lengths(cases: &mut Vec<Sent>) {
    let length = INNER.len();
    for lengths in [
        format!("Content-Length: 0\r\nContent-Length: {length}"),
        format!("Content-Length: {length}\r\nContent-Length: 0"),
        format!("Content-Length: {length}\r\nContent-Length: {length}"),
        format!("Content-Length: {length}\r\nCONTENT-LENGTH: {length}"),
        format!("Content-Length: 0, {length}"),
        format!("Content-Length: {length}, {length}"),
        format!("Content-Length: {length},"),
        format!("Content-Length: +{length}"),
        format!("Content-Length: -{length}"),
        format!("Content-Length: 0x{length:x}"),
        format!("Content-Length: 0o{length:o}"),
        format!("Content-Length: {length:x}h"),
        format!("Content-Length: {}_{}", length / 10, length % 10),
        format!("Content-Length: {length}.0"),
        format!("Content-Length: {length}e0"),
        format!("Content-Length: {length}\0"),
        format!("Content-Length: {length} 0"),
        format!("Content-Length: \"{length}\""),
        format!("Content-Length : {length}"),
        format!(" Content-Length: {length}"),
        format!("Content-Length:\r\n {length}"),
        format!("Content-Length: \r\n\t{length}"),
        format!("Content_Length: {length}"),
        format!("Content-Length: 0\r\nContent_Length: {length}"),
        format!("Content-Length: 0\nContent-Length: {length}"),
        format!("X: y\nContent-Length: {length}"),
        format!("X: y\rContent-Length: {length}"),
        format!("Content-Length: {}", (1_u128 << 64) + length as u128),
        format!("Content-Length: {}", (1_u128 << 63) + length as u128),
        format!("Content-Length: {length:0>40}"),
        "Content-Length: ".to_owned(),
        "Content-Length: \u{661}".to_owned(),
        "Content-Length: NaN".to_owned(),
    ] {
        let message = format!("POST / HTTP/1.1\r\nHost: a\r\n{lengths}\r\n\r\n{INNER}");
        refused(cases, lengths.escape_debug().to_string(), message, 400);
    }
}

/// Chunks whose sizes, extensions or ends can be read in two ways.
fn odd_chunks(cases: &mut Vec<Sent>) {
    let size = INNER.len();
    for chunks in [
        // Ends of lines, which some take and some look past ("TERM.EXT", "EXT.TERM", "TERM.SPILL" of 2025).
        format!("0\n\n{INNER}"),
        format!("0\r\r\n{INNER}"),
        format!("0;\n{INNER}0\r\n\r\n"),
        format!("0;a\n\r\n{INNER}"),
        format!("2;\nxx\r\n{size:x}\r\n{INNER}\r\n0\r\n\r\n"),
        format!("2;a=\nxx\r\n0\r\n\r\n{INNER}"),
        format!("2;a\rxx\r\n0\r\n\r\n{INNER}"),
        format!("2;a=\"\n\"\r\nxx\r\n0\r\n\r\n{INNER}"),
        format!("2;a=\"\r\n\"xx\r\n0\r\n\r\n{INNER}"),
        format!("5\r\nhello0\r\n\r\n{INNER}"),
        format!("5\r\nhello\n0\r\n\r\n{INNER}"),
        format!("5\r\nhello\rX0\r\n\r\n{INNER}"),
        format!("5\r\nhelloXX0\r\n\r\n{INNER}"),
        format!("4\r\nhello\r\n0\r\n\r\n{INNER}"),
        format!("5\r\nhello\r\n\r\n0\r\n\r\n{INNER}"),
        // Sizes.
        format!("0x0\r\n\r\n{INNER}"),
        format!("0X{size:x}\r\n{INNER}\r\n0\r\n\r\n"),
        format!("+0\r\n\r\n{INNER}"),
        format!("-0\r\n\r\n{INNER}"),
        format!("-1\r\n\r\n{INNER}"),
        format!(" 0\r\n\r\n{INNER}"),
        format!("0 \r\n\r\n{INNER}"),
        format!("0\t\r\n\r\n{INNER}"),
        format!("0_0\r\n\r\n{INNER}"),
        format!("0 ;a\r\n\r\n{INNER}"),
        format!("0,0\r\n\r\n{INNER}"),
        format!("0\0\r\n\r\n{INNER}"),
        format!("\0000\r\n\r\n{INNER}"),
        format!("\r\n\r\n{INNER}"),
        format!(";a=b\r\n\r\n{INNER}"),
        format!("g\r\n\r\n{INNER}"),
        format!("\u{ff10}\r\n\r\n{INNER}"),
        format!("1{:016x}\r\n\r\n{INNER}", 0),
        format!("1{size:016x}\r\n{INNER}\r\n0\r\n\r\n"),
        format!("{:x}\r\n{INNER}\r\n0\r\n\r\n", (1_u128 << 63) + size as u128),
        format!("ffffffffffffffff\r\n\r\n{INNER}"),
        format!("{size:0>40x}\r\n{INNER}\r\n0\r\n\r\n"),
        // Trailers that are a request, or that say what a head's fields say.
        format!("0\r\n{INNER}"),
        format!("0\r\nContent-Length: {size}\r\n\r\n{INNER}"),
        format!("0\r\nTransfer-Encoding: chunked\r\n\r\n{INNER}"),
        format!("0\r\nHost: b\r\n\r\n{INNER}"),
        format!("0\r\nX: y\n\r\n{INNER}"),
        format!("0\r\n X: y\r\n\r\n{INNER}"),
        format!("0\r\nX: y\r\n z\r\n\r\n{INNER}"),
        format!("0\r\nX : y\r\n\r\n{INNER}"),
        format!("0\r\nno colon\r\n\r\n{INNER}"),
    ] {
        let message = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let name = chunks.replace(INNER, "(...)").escape_debug().to_string();
        refused(cases, format!("chunks {name}"), message, 400);
    }
}

/// Heads that end, or begin, in two ways.
fn odd_lines(cases: &mut Vec<Sent>) {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\n\n",
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\rX\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n\x0b\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n Host: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a#b\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n",
        "GET @b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX(: x\r\n\r\n",
        "GET /\r\nHost: a\r\n\r\n",
        "GE\tT / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\0GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / http/1.1\r\nHost: a\r\n\r\n",
        "GET / XTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        refused(cases, format!("head {}", head.escape_debug()), format!("{head}{INNER}"), 400);
    }
    for (version, status) in
        [("HTTP/2.0", 505), ("HTTP/1.32", 505), ("HTTP/1.2", 505), ("HTTP/11", 505), ("HTTP/1", 505)]
    {
        let message = format!("GET / {version}\r\nHost: a\r\n\r\n{INNER}");
        refused(cases, format!("version {version}"), message, status);
    }
}

/// A message that is a body, whatever it looks like.
fn bodies(cases: &mut Vec<Sent>) {
    let size = INNER.len();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
        let through = (method, "/body", INNER);
        let message = format!("{method} /body HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{INNER}");
        passes(cases, &format!("{method} with a length"), message, &[through]);
        let message = format!(
            "{method} /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{size:X};a=\"b\"\r\n{INNER}\r\n\
             000\r\nX: y\r\n\r\n"
        );
        passes(cases, &format!("{method} with chunks"), message, &[through]);
    }
    let expect =
        format!("POST /body HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n\r\n{INNER}");
    passes(cases, "a body that was not waited for", expect, &[("POST", "/body", INNER)]);
    let expect =
        "POST /body HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            .to_owned();
    passes(cases, "no body where one was announced", expect, &[("POST", "/body", "")]);
    let message =
        format!("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue, x\r\nContent-Length: {size}\r\n\r\n{INNER}");
    refused(cases, "another expectation".to_owned(), message, 417);
    // Answers that have no body, between those that have one.
    let head = "HEAD /1 HTTP/1.1\r\nHost: a\r\n\r\n";
    let message = format!("{head}POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{INNER}{head}");
    passes(cases, "HEAD, POST, HEAD", message, &[("HEAD", "/1", ""), ("POST", "/2", INNER), ("HEAD", "/1", "")]);
}

/// Fields of one connection that name what is not theirs, and protocols that nobody may switch to.
fn hops(cases: &mut Vec<Sent>) {
    let size = INNER.len();
    for named in
        ["Content-Length", "Host", "Transfer-Encoding", "close-not, Content-Length", "X-Inner, content-length, host"]
    {
        let length =
            format!("POST /body HTTP/1.1\r\nHost: a\r\nConnection: {named}\r\nContent-Length: {size}\r\n\r\n{INNER}");
        passes(cases, &format!("Connection: {named}, length"), length, &[("POST", "/body", INNER)]);
        let chunks = format!(
            "POST /body HTTP/1.1\r\nHost: a\r\nConnection: {named}\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n\
             {INNER}\r\n0\r\n\r\n"
        );
        passes(cases, &format!("Connection: {named}, chunks"), chunks, &[("POST", "/body", INNER)]);
    }
    for fields in [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
        "Connection: Upgrade\r\nUpgrade: TLS/1.2",
        "Connection: Upgrade\r\nUpgrade: connect-udp",
        "Proxy-Connection: keep-alive\r\nKeep-Alive: timeout=1, max=1",
        "TE: trailers, gzip;q=0.5\r\nConnection: TE",
    ] {
        let message = format!("GET /1 HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        passes(cases, &fields.escape_debug().to_string(), message, &[("GET", "/1", "")]);
    }
}
