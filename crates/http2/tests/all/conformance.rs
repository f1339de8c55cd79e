//! Runs the conformance table: each case whole, byte by byte, and cut in two at every offset.

use std::collections::HashSet;

use oroshi_http2::{Config, Role};

use crate::notation::{bytes, frames, unescape};
use crate::trace::{Cut, Step, Trace, run};

#[derive(Debug)]
struct Case {
    id: String,
    line: usize,
    role: Role,
    config: Config,
    shake: bool,
    script: Vec<Step>,
    events: Vec<String>,
    fields: Option<Vec<String>>,
    out: Vec<String>,
    error: Option<String>,
    why: String,
}

#[test]
fn every_case_ends_as_the_table_says_whatever_the_cuts() {
    let mut defects = Vec::new();
    for case in cases() {
        let trace = |cut| run(case.role, &case.config, case.shake, &case.script, cut);
        let whole = trace(Cut::Whole);
        if let Some(defect) = defect(&case, &whole) {
            defects.push(format!("{} (cases.txt:{}): {defect}", case.id, case.line));
        }
        let length: usize =
            case.script.iter().map(|step| if let Step::In(bytes) = step { bytes.len() } else { 0 }).sum();
        // Long cases are cut around the frames' heads only.
        let cuts = (0..=length).filter(|at| length < 2_000 || at % 16_393 < 20 || length - at < 30);
        for cut in cuts.map(Cut::At).chain([Cut::Bytewise, Cut::Every(7)]) {
            let mut cut_trace = trace(cut);
            assert!(cut_trace.kept < 16_393, "{}, {cut:?}: {} bytes were kept", case.id, cut_trace.kept);
            cut_trace.kept = whole.kept;
            assert_eq!(cut_trace, whole, "{}, {cut:?}", case.id);
        }
    }
    assert!(defects.is_empty(), "{} cases differ:\n{}", defects.len(), defects.join("\n"));
}

#[test]
fn the_table_is_large_and_its_names_are_unique() {
    let cases = cases();
    let ids: HashSet<&str> = cases.iter().map(|case| case.id.as_str()).collect();
    assert_eq!(ids.len(), cases.len(), "an id stands twice");
    assert!(cases.len() >= 150, "only {} cases were read", cases.len());
    assert!(cases.iter().all(|case| !case.why.is_empty()), "a case has no reason");
}

/// Every defect that a peer can cause has a case, so that no refusal stays untested.
#[test]
fn every_defect_has_a_case() {
    let source = include_str!("../../src/error.rs");
    let table = source.split_once("\ndefects! {").expect("the table of defects").1;
    let names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.trim().split_once(", \"")?.1.split_once("\", ").map(|(name, _)| name))
        .collect();
    assert!(names.len() > 40, "the names were not found: {names:?}");
    let text = include_str!("../../conformance/cases.txt");
    for name in names {
        let tested = text.lines().any(|line| {
            (line.starts_with("error: ") || line.starts_with("event: re")) && line.split(' ').any(|word| word == name)
        });
        assert!(tested, "no case for {name}");
    }
}

/// The short cases with default limits and without commands, each with the first byte of its corpus file and with its
/// bytes in one step.
pub(crate) fn scripts() -> impl Iterator<Item = (String, u8, Vec<Step>)> {
    cases().into_iter().filter(|case| case.shake && case.config == Config::default()).filter_map(|case| {
        let mut bytes = Vec::new();
        for step in &case.script {
            let Step::In(more) = step else { return None };
            bytes.extend_from_slice(more);
        }
        (bytes.len() < 2_000).then(|| (case.id, u8::from(case.role == Role::Client), vec![Step::In(bytes)]))
    })
}

/// Returns the difference between a trace and its case.
fn defect(case: &Case, trace: &Trace) -> Option<String> {
    let error = trace.error.map(|defect| format!("{} {}", defect.name(), defect.code()));
    let mut out = frames(&trace.out);
    // The GOAWAY of an error has the error's code: it stands in the table once.
    if trace.error.is_some() {
        let last = out.pop().unwrap_or_default();
        if !last.starts_with("GOAWAY ") || !last.ends_with(&trace.error?.code().to_string()) {
            return Some(format!("no GOAWAY after the error, but {last}"));
        }
    }
    if (&trace.events, &out, &error) != (&case.events, &case.out, &case.error) {
        return Some(format!(
            "\n  is     {:?} {out:?} {error:?}\n  should {:?} {:?} {:?}",
            trace.events, case.events, case.out, case.error
        ));
    }
    let fields = case.fields.as_ref()?;
    (*fields != trace.fields).then(|| format!("\n  is     {:?}\n  should {fields:?}", trace.fields))
}

fn cases() -> Vec<Case> {
    let text = include_str!("../../conformance/cases.txt");
    let mut cases = Vec::new();
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    for (number, line) in text.lines().chain([""]).enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if !line.is_empty() {
            paragraph.push((number + 1, line));
        } else if !paragraph.is_empty() {
            cases.push(case(&std::mem::take(&mut paragraph)));
        }
    }
    cases
}

fn case(lines: &[(usize, &str)]) -> Case {
    let mut case = Case {
        id: String::new(),
        line: lines[0].0,
        role: Role::Server,
        config: Config::default(),
        shake: true,
        script: Vec::new(),
        events: Vec::new(),
        fields: None,
        out: Vec::new(),
        error: None,
        why: String::new(),
    };
    for &(number, line) in lines {
        let (key, value) = line.split_once(": ").unwrap_or((line, ""));
        match key {
            "case" => case.id = value.to_owned(),
            "role" => case.role = if value == "client" { Role::Client } else { Role::Server },
            "config" => value.split(' ').for_each(|word| set(&mut case.config, word)),
            "no-handshake" => case.shake = false,
            "in" => case.script.push(Step::In(bytes(value))),
            "repeat" => {
                let (count, frame) = value.split_once(' ').expect("a count and a frame");
                case.script.push(Step::In(bytes(frame).repeat(count.parse().expect("a count"))));
            }
            "do" => case.script.push(Step::Do(value.split(' ').map(str::to_owned).collect())),
            "event" if value.contains("\\{") => {
                case.events.push(String::from_utf8(unescape(value)).expect("text"));
            }
            "event" => case.events.push(value.to_owned()),
            "field" => case.fields.get_or_insert_default().push(value.to_owned()),
            "out" => case.out.push(value.to_owned()),
            "error" => case.error = Some(value.to_owned()),
            "why" => case.why = value.to_owned(),
            _ => panic!("cases.txt:{number}: unknown key `{key}`"),
        }
    }
    case
}

fn set(config: &mut Config, word: &str) {
    let (name, value) = word.split_once('=').expect("name=number");
    let value: u64 = value.parse().expect("a number");
    let limits = &mut config.limits;
    match name {
        "block_bytes" => limits.block_bytes = value as usize,
        "continuations" => limits.continuations = value as usize,
        "head_bytes" => limits.head_bytes = value as usize,
        "headers" => limits.headers = value as usize,
        "target_bytes" => limits.target_bytes = value as usize,
        "trailer_bytes" => limits.trailer_bytes = value as usize,
        "trailers" => limits.trailers = value as usize,
        "body_bytes" => limits.body_bytes = value,
        "informational" => limits.informational = value as u8,
        "resets" => limits.resets = value as u32,
        "answered_frames" => limits.answered_frames = value as u32,
        "idle_frames" => limits.idle_frames = value as u32,
        "table_bytes" => config.table_bytes = value as u32,
        "stream_window" => config.stream_window = value as u32,
        "connection_window" => config.connection_window = value as u32,
        "streams" => config.streams = value as u32,
        "extended_connect" => config.extended_connect = value == 1,
        other => panic!("unknown setting `{other}`"),
    }
}
