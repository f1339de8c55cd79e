//! Outcomes of requests and connections.

use maud::{Markup, html};
use oroshi_bench::{Failure, Record};
use oroshi_words::units;

use crate::Named;
use crate::page::{Cell, cell, facts, table};
use crate::words;

/// Renders the outcomes of one run.
pub(super) fn one(record: &Record) -> Markup {
    html! {
        (facts([
            ("Requests", Some(words::requests(record))),
            ("Connections", Some(words::connections(record))),
            ("Throughput", Some(words::throughput(record))),
        ]))
        @if record.failures.is_empty() {
            p.none { "Failures: none." }
        } @else {
            h3 { "Failures" }
            @let meaning = |failure| html! { span.words { (words::meaning(failure)) } };
            @let rows = record.failures.iter();
            @let rows = rows.map(|(failure, n)| [cell(failure.name()), cell(units::count(*n)), meaning(*failure)]);
            (table("Failures by name", &["name", "count", "what happened"], rows.collect::<Vec<_>>()))
        }
        @if !record.parse.is_empty() {
            h3 { "Answers that are no HTTP" }
            @let words = |what: String| html! { span.words { (what) } };
            @let rows = words::unreadable(record);
            @let rows = rows.map(|(rule, n, what)| [cell(rule), cell(units::count(n)), words(what)]);
            (table("Rules that were broken", &["rule", "count", "what came"], rows.collect::<Vec<_>>()))
        }
        @if record.http2.as_ref().is_some_and(|http2| !http2.ends.is_empty()) {
            h3 { "Streams that the server ended" }
            @let words = |what: String| html! { span.words { (what) } };
            @let of = |failure: Failure| words::stream_ends(record, failure).map(move |end| (failure, end));
            @let rows = of(Failure::StreamReset).chain(of(Failure::Goaway));
            @let rows = rows.map(|(failure, (code, n, says))| [
                cell(failure.name()), cell(code), cell(units::count(n)), words(says)
            ]);
            (table("Codes of HTTP/2", &["failure", "code", "count", "text"], rows.collect::<Vec<_>>()))
        }
        @if !record.statuses.is_empty() {
            h3 { "Statuses" }
            @let rows = record.statuses.iter().map(|(status, n)| [cell(status.to_string()), cell(units::count(*n))]);
            (table("Answers by status", &["status", "answers"], rows.collect::<Vec<_>>()))
        }
    }
}

/// Renders the outcomes of several runs, side by side.
pub(super) fn several(runs: &[Named<'_>]) -> Markup {
    let head: Vec<&str> = std::iter::once("").chain(runs.iter().map(|run| run.name.as_str())).collect();
    let row = |name: &str, of: &dyn Fn(&Record) -> String| -> Vec<Cell> {
        std::iter::once(cell(name)).chain(runs.iter().map(|run| cell(of(run.record)))).collect()
    };
    let count = |n: u64| units::count(n);
    let mut rows = vec![
        row("load", &words::headline),
        row("answered", &|r| count(r.requests.completed)),
        row("failed", &|r| count(r.requests.failed)),
        row("cut off at the end", &|r| count(r.requests.cut_off)),
        row("never sent", &|r| count(r.requests.unsent)),
        row("connections opened", &|r| count(r.connections.opened)),
    ];
    for failure in
        Failure::ALL.into_iter().filter(|failure| runs.iter().any(|run| run.record.failures.contains_key(failure)))
    {
        rows.push(row(failure.name(), &|r| count(r.failures.get(&failure).copied().unwrap_or(0))));
    }
    let mut statuses: Vec<u16> = runs.iter().flat_map(|run| run.record.statuses.keys().copied()).collect();
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        rows.push(row(&format!("status {status}"), &|r| count(r.statuses.get(&status).copied().unwrap_or(0))));
    }
    table("Requests of each run", &head, rows)
}
