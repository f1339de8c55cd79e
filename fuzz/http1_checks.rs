//! What must hold for any bytes, one function for each fuzz target. The fuzzer calls them with bytes it makes up; a
//! test of the crate http1 calls them with those in `corpus/`, so that every finding stays found.
#![allow(dead_code)] // each target uses one of them

use oroshi_http1::{ExpectedResponse, Framing, Limits, Version, encode};

#[path = "../crates/http1/tests/trace/mod.rs"]
pub(crate) mod trace;

use trace::{Event, Side, Trace};

/// Requests, from the first byte on.
pub(crate) fn request_head(data: &[u8]) {
    for limits in [Limits::default(), small()] {
        let trace = trace_of(&Side::Requests, &limits, data);
        for event in &trace.events {
            if let Event::Head(head) = event {
                request_is_read_as_rewritten(head);
            }
        }
    }
}

/// Responses. The first byte says what kinds of requests they answer, two bits each.
pub(crate) fn response_head(data: &[u8]) {
    let Some((&kinds, data)) = data.split_first() else { return };
    let kind = |n: u8| {
        [ExpectedResponse::Body, ExpectedResponse::Head, ExpectedResponse::Connect, ExpectedResponse::Upgrade]
            [usize::from(kinds >> (2 * n) & 3)]
    };
    let side = Side::Responses((0..4).map(kind).collect());
    for limits in [Limits::default(), small()] {
        let trace = trace_of(&side, &limits, data);
        for event in &trace.events {
            if let Event::Head(head) | Event::Informational(head) = event {
                response_is_read_as_rewritten(head);
            }
        }
    }
}

/// A chunked body, from its first chunk line on, and what comes after it.
pub(crate) fn chunked_body(data: &[u8]) {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let bytes = [head, data].concat();
    let small = Limits { head_bytes: 200, headers: 10, ..small() };
    for limits in [Limits::default(), small] {
        let trace = trace_of(&Side::Requests, &limits, &bytes);
        let body: Vec<u8> = match trace.events.get(1) {
            Some(Event::Data(body)) => body.clone(),
            _ => Vec::new(),
        };
        assert!(body.len() < data.len().max(1), "a chunk has a line besides its data");
        assert!(body.len() as u64 <= limits.body_bytes);
        if trace.events.contains(&Event::End) {
            body_is_read_as_rewritten(head, &trace.events, &body);
        }
    }
}

/// Limits so small that the fuzzer meets them.
fn small() -> Limits {
    Limits {
        head_bytes: 100,
        headers: 3,
        target_bytes: 20,
        chunk_line_bytes: 10,
        extension_bytes: 15,
        trailer_bytes: 30,
        trailers: 2,
        body_bytes: 40,
        informational: 2,
    }
}

/// The trace of `data`, and that it is the same however the bytes are cut.
fn trace_of(side: &Side, limits: &Limits, data: &[u8]) -> Trace {
    let whole = trace::whole(side, limits, data);
    assert_eq!(trace::bytewise(side, limits, data), whole, "byte by byte");
    for size in [2, 3, 7, 16, data.len() / 2, data.len().saturating_sub(1)] {
        assert_eq!(trace::pieces(side, limits, data.chunks(size.max(1))), whole, "in pieces of {size} bytes");
    }
    whole
}

fn request_is_read_as_rewritten(head: &trace::Head) {
    let (method, target) = head.first.split_once(' ').expect("a method and a target");
    let mut bytes = Vec::new();
    encode::request_head(&mut bytes, method, target, head.version, borrow(&head.fields))
        .expect("what was read can be written");
    let again = trace::whole(&Side::Requests, &unlimited(), &bytes);
    assert_eq!(again.events.first(), Some(&Event::Head(head.clone())));
}

fn response_is_read_as_rewritten(head: &trace::Head) {
    let status = head.first.parse().expect("a status");
    let reason = head.facts.first().map(|(_, reason)| reason.as_slice());
    let mut bytes = Vec::new();
    encode::response_head(&mut bytes, head.version, status, reason, borrow(&head.fields))
        .expect("what was read can be written");
    let kinds = [ExpectedResponse::Body, ExpectedResponse::Head, ExpectedResponse::Connect, ExpectedResponse::Upgrade];
    let found = kinds.iter().any(|&kind| {
        let again = trace::whole(&Side::Responses(vec![kind]), &unlimited(), &bytes);
        matches!(again.events.first(), Some(Event::Head(same) | Event::Informational(same)) if same == head)
    });
    assert!(found, "{head:?}");
}

/// Only what a rewritten head could exceed: a space more in each field, a reason's space.
fn unlimited() -> Limits {
    Limits { head_bytes: 1 << 20, target_bytes: 1 << 20, ..Limits::default() }
}

fn body_is_read_as_rewritten(head: &[u8], events: &[Event], body: &[u8]) {
    let trailers = events.iter().take_while(|event| **event != Event::End).find_map(|event| match event {
        Event::Trailers(trailers) => Some(trailers.clone()),
        _ => None,
    });
    let mut bytes = head.to_vec();
    for part in body.chunks(5) {
        encode::chunk(&mut bytes, part);
    }
    encode::last_chunk(&mut bytes, borrow(&trailers.unwrap_or_default())).expect("what was read can be written");
    let again = trace::whole(&Side::Requests, &Limits { trailer_bytes: 1 << 20, ..Limits::default() }, &bytes);
    let end = events.iter().position(|event| *event == Event::End).expect("it was there");
    assert_eq!(again.events, events[..=end]);
    assert!(
        matches!(&events[0], Event::Head(head) if head.framing == Framing::Chunked && head.version == Version::Http11)
    );
}

fn borrow(fields: &[(String, Vec<u8>)]) -> impl Iterator<Item = (&str, &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}
