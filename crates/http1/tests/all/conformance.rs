//! Runs the conformance table: each case whole, byte by byte, and cut in two at every offset.

use std::collections::HashSet;

use oroshi_http1::{ExpectedResponse, Limits};

use crate::trace;
use crate::trace::{Event, Side, Trace};
use oroshi_testkit::conformance::{self, Case, Kind, Message, Verdict};

#[test]
fn every_case_ends_as_the_table_says_whatever_the_cuts() {
    let mut defects = Vec::new();
    for case in conformance::cases() {
        let (side, limits) = (side(&case), limits(&case));
        let whole = trace::whole(&side, &limits, &case.bytes);
        if let Some(defect) = defect(&case, &whole) {
            defects.push(format!("{} (cases.txt:{}): {defect}", case.id, case.line));
        }
        assert_eq!(trace::bytewise(&side, &limits, &case.bytes), whole, "{}, byte by byte", case.id);
        for cut in 0..=case.bytes.len() {
            let (first, second) = case.bytes.split_at(cut);
            assert_eq!(trace::pieces(&side, &limits, [first, second]), whole, "{}, cut at {cut}", case.id);
        }
    }
    assert!(defects.is_empty(), "{} cases differ:\n{}", defects.len(), defects.join("\n"));
}

#[test]
fn the_table_is_large_and_its_names_are_unique() {
    let cases = conformance::cases();
    let ids: HashSet<&str> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(ids.len(), cases.len(), "an id stands twice");
    assert!(cases.len() >= 160, "only {} cases were read", cases.len());
}

/// Every error that a peer can cause has a case, so that no refusal stays untested.
#[test]
fn every_error_has_a_case() {
    let cases = conformance::cases();
    let tested: HashSet<&str> = cases
        .iter()
        .filter_map(|case| match &case.verdict {
            Verdict::Reject(name, _) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    let source = include_str!("../../src/error.rs");
    let names: Vec<&str> = source.split(" => \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(names.len() > 40, "the names were not found: {names:?}");
    for name in names {
        // The first is a caller's defect, the second the verdict `incomplete`.
        if !["too-many-expected", "unexpected-eof"].contains(&name) {
            assert!(tested.contains(name), "no case for {name}");
        }
    }
}

fn side(case: &Case) -> Side {
    let expect = |name: &String| match name.as_str() {
        "body" => ExpectedResponse::Body,
        "head" => ExpectedResponse::Head,
        "connect" => ExpectedResponse::Connect,
        "upgrade" => ExpectedResponse::Upgrade,
        "nothing" => panic!("`nothing` stands alone"),
        other => panic!("{}: unknown kind of request `{other}`", case.id),
    };
    match (case.kind, &case.to[..]) {
        (Kind::Request, _) => Side::Requests,
        (Kind::Response, []) => Side::Responses(vec![ExpectedResponse::Body]),
        (Kind::Response, [nothing]) if nothing == "nothing" => Side::Responses(vec![]),
        (Kind::Response, names) => Side::Responses(names.iter().map(expect).collect()),
    }
}

fn limits(case: &Case) -> Limits {
    let mut limits = Limits::default();
    for (name, most) in &case.limits {
        let field = match name.as_str() {
            "head_bytes" => &mut limits.head_bytes,
            "headers" => &mut limits.headers,
            "target_bytes" => &mut limits.target_bytes,
            "chunk_line_bytes" => &mut limits.chunk_line_bytes,
            "extension_bytes" => &mut limits.extension_bytes,
            "trailer_bytes" => &mut limits.trailer_bytes,
            "trailers" => &mut limits.trailers,
            "informational" => &mut limits.informational,
            "body_bytes" => {
                limits.body_bytes = *most;
                continue;
            }
            other => panic!("{}: unknown limit `{other}`", case.id),
        };
        *field = *most as usize;
    }
    limits
}

/// Returns the difference between a trace and its case.
fn defect(case: &Case, trace: &Trace) -> Option<String> {
    let verdict = match trace.error {
        None => Verdict::Accept,
        Some(oroshi_http1::DecodeError::UnexpectedEof) => Verdict::Incomplete,
        Some(error) => Verdict::Reject(error.name().to_owned(), error.status()),
    };
    if verdict != case.verdict {
        return Some(format!("{verdict:?} instead of {:?}", case.verdict));
    }
    if verdict == Verdict::Accept && trace.rest != case.rest {
        return Some(format!("left over: {}", trace.rest.escape_ascii()));
    }
    let messages = messages(trace, &case.messages);
    (messages != case.messages).then(|| format!("\n  is     {messages:?}\n  should {:?}", case.messages))
}

/// Converts a trace to the form of the table, with only those facts and fields that the table names.
fn messages(trace: &Trace, asked: &[Message]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut open = Message::default();
    for event in &trace.events {
        match event {
            Event::Informational(head) => open.interim.push(head.first.parse().unwrap()),
            Event::Head(head) => {
                open.summary = head.summary();
                let Some(asked) = asked.get(messages.len()) else { continue };
                let find = |name: &String| {
                    let mut all = head.facts.iter().chain(&head.fields);
                    all.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
                };
                open.has = asked.has.iter().filter_map(|(name, _)| Some((name.clone(), find(name)?))).collect();
                open.lacks = asked.lacks.iter().filter(|name| find(name).is_none()).cloned().collect();
            }
            Event::Data(data) => open.body.extend(data),
            Event::Trailers(trailers) => open.trailers.extend(trailers.iter().cloned()),
            Event::End => {
                open.complete = true;
                messages.push(std::mem::take(&mut open));
            }
        }
    }
    if open != Message::default() {
        messages.push(open);
    }
    messages
}
