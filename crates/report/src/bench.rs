//! The page of runs: headline figures and the bottleneck first, then the details.
//!
//! [`agents`]: the load machines. [`latency`]: percentiles and phases. [`time`]: figures over time. [`sides`]: costs of
//! server and generator.
//! [`outcome`]: outcomes of requests. [`scenario`]: what users did; [`flow`]: how steps followed each other.

mod agents;
mod flow;
pub(crate) mod latency;
mod outcome;
mod scenario;
pub(crate) mod sides;
mod time;

use maud::{Markup, html};
use oroshi_bench::record::{ClockRecord, Condition, ConditionOutcome};
use oroshi_bench::{Bottleneck, Grade, Record};
use oroshi_words::units;

use crate::Named;
use crate::chart::{Swatch, key};
use crate::figure::{self, Unit};
use crate::machine;
use crate::page::{self, Page, Section, big, cell, table};
use crate::words;

/// Renders the page of one run.
pub(crate) fn one(run: &Named<'_>) -> String {
    let record = run.record;
    let runs = std::slice::from_ref(run);
    let to = words::target(record);
    let header = html! {
        @if let Some(alarm) = words::alarm(record) { p.grade.bad { strong { (alarm) } } }
        (scenario::alarm(record))
        h1.where { (to) }
        p.lede { (words::how(record)) }
        @if record.cut_short { p.badge { "ended early, after " (Unit::Seconds.text(record.elapsed_s)) } }
        (tiles(record))
        (grade(&record.grade))
        (conditions(&record.fail_if))
        (page::warnings(&record.warnings))
    };
    let mut sections = record.scenario.as_ref().map(|scenario| scenario::sections(scenario)).unwrap_or_default();
    if !record.agents.is_empty() {
        sections.push(Section { id: "agents", title: "Agents", body: agents::table_of(&record.agents) });
    }
    sections.extend([Section { id: "latency", title: "Latency", body: latency::one(record) }]);
    if !record.urls.is_empty() {
        sections.push(Section { id: "urls", title: "URLs", body: scenario::requests_by("URL", "URLs", &record.urls) });
    }
    sections.extend([
        Section { id: "time", title: "Over time", body: time::charts(runs) },
        Section { id: "phases", title: "Phases", body: latency::phases(record) },
        Section { id: "server", title: "Server and generator", body: sides::one(record) },
        Section { id: "outcome", title: "Requests", body: outcome::one(record) },
        Section { id: "environment", title: "Environment", body: machine::origin(&run.record.environment) },
    ]);
    Page {
        title: format!("{} – {to}", main_figure(record)),
        kind: format!("oroshi bench · {}", figure::date(record.started_unix_s)),
        header,
        sections,
        footer: footer(),
    }
    .render()
}

/// Returns the figure for a page's title: the score, or requests per second.
fn main_figure(record: &Record) -> String {
    match score(record) {
        Some(score) => format!("score {score}"),
        None => format!("{} requests/s", units::number(record.rates.requests_per_s)),
    }
}

/// Returns the score of a run with scenarios, or that it is void.
fn score(record: &Record) -> Option<String> {
    let score = record.scenario.as_ref()?.score.as_ref()?;
    Some(if score.void.is_some() { "void".into() } else { words::scenario::points(score.value) })
}

/// Renders the page of several runs, or of none.
pub(crate) fn several(runs: &[Named<'_>]) -> String {
    let header = html! {
        h1 { (units::plural(runs.len() as u64, "run")) }
        @if runs.len() > 1 {
            p.lede {
                "These runs were made one after the other, perhaps on different machines: a difference between them \
                 may be the day's. What proves one is runs that take turns: " code { "oroshi compare" } "."
            }
        }
        (legend(runs))
        (side_by_side(runs))
        @for run in runs {
            @if words::alarm(run.record).is_some() {
                p.grade.bad {
                    strong { (run.name) } " is " (run.record.grade.bottleneck.name()) ": " (run.record.grade.because)
                }
            }
        }
    };
    Page {
        title: format!("{} – oroshi", runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ")),
        kind: "oroshi report".into(),
        header,
        sections: vec![
            Section { id: "latency", title: "Latency", body: latency::several(runs) },
            Section { id: "time", title: "Over time", body: time::charts(runs) },
            Section { id: "outcome", title: "Requests", body: outcome::several(runs) },
            Section {
                id: "environment",
                title: "Environment",
                body: html! { @for run in runs { h3 { (run.name) } (machine::origin(&run.record.environment)) } },
            },
        ],
        footer: footer(),
    }
    .render()
}

/// Renders the colours of the runs.
fn legend(runs: &[Named<'_>]) -> Markup {
    key(&runs.iter().enumerate().map(|(i, run)| (Swatch::Mark(i), run.name.clone())).collect::<Vec<_>>())
}

/// Returns the clock of the headline figures with its name: response time in an open loop, service time in a closed
/// one.
fn main_clock(record: &Record) -> (&'static str, &ClockRecord) {
    if words::is_open(record) { ("response", &record.latency.response) } else { ("service", &record.latency.service) }
}

/// Returns the server's CPU time per response.
fn server_cpu(record: &Record) -> Option<String> {
    let us = record.server_cpu_us_per_request()?;
    Some(figure::time(us * 1e3))
}

fn tiles(record: &Record) -> Markup {
    let (clock, of) = main_clock(record);
    let due = record.requests.started;
    let errors = match record.errors {
        0 => "no request failed".to_owned(),
        n => format!("{} of all requests", figure::share(n, due)),
    };
    let read = Unit::Bytes.text(record.rates.read_bytes_per_s);
    let error = words::rate_error(record).map(|error| format!("{error}, ")).unwrap_or_default();
    html! {
        dl.tiles {
            @for (name, value, what) in record.scenario.iter().flat_map(|scenario| scenario::tiles(scenario)) {
                (tile(name, value, what))
            }
            (tile("requests/s", units::number(record.rates.requests_per_s), error + &format!("reading {read}/s")))
            (tile("p50", figure::percentile_value(of.summary.p50), format!("{clock} time")))
            (tile("p99", figure::percentile_value(of.summary.p99), format!("{clock} time")))
            (tile("server CPU", server_cpu(record).unwrap_or_else(|| "–".into()),
                record.server.as_ref().map_or("not known", |_| "per request").to_owned()))
            (tile("errors", units::count(record.errors), errors))
        }
    }
}

pub(crate) fn tile(name: &str, value: String, what: String) -> Markup {
    html! {
        div { dt { (name) } dd { (big(&value)) } dd.what { (what) } }
    }
}

/// Renders the bottleneck, with advice.
pub(crate) fn grade(grade: &Grade) -> Markup {
    let doubtful =
        matches!(grade.bottleneck, Bottleneck::GeneratorBound | Bottleneck::PortBound | Bottleneck::ServerGone);
    html! {
        div.grade.bad[doubtful] {
            p { strong { (grade.bottleneck.name()) } }
            p { (grade.because) }
            @if let Some(advice) = &grade.advice { p.advice { (advice) } }
        }
    }
}

/// Renders the conditions of `--fail-if` and their results.
pub(crate) fn conditions(fail_if: &[Condition]) -> Markup {
    let row = |condition: &Condition| {
        let outcome = match condition.outcome {
            ConditionOutcome::Passed => html! { "passed" },
            failed => html! { strong { (failed.name()) } },
        };
        [cell(&condition.condition), outcome, html! { span.words { (condition.measured) } }]
    };
    html! {
        @if !fail_if.is_empty() {
            (table("Conditions", &["--fail-if", "outcome", "what was measured"], fail_if.iter().map(row)))
        }
    }
}

/// Renders one row of figures per run.
fn side_by_side(runs: &[Named<'_>]) -> Markup {
    let scored = runs.iter().any(|run| score(run.record).is_some());
    let head = ["", "score", "requests/s", "p50", "p99", "max", "server CPU/request", "errors", "bottleneck"];
    let shown = |place: &usize| scored || *place != 1;
    let head: Vec<&str> =
        head.into_iter().enumerate().filter(|(place, _)| shown(place)).map(|(_, name)| name).collect();
    let rows = runs.iter().map(|run| {
        let record = run.record;
        let of = main_clock(record).1;
        let cells = [
            cell(&run.name),
            cell(score(record).unwrap_or_else(|| "–".into())),
            cell(units::number(record.rates.requests_per_s)),
            cell(figure::percentile_value(of.summary.p50)),
            cell(figure::percentile_value(of.summary.p99)),
            cell(figure::quantile_value(of.histogram.quantile(1.0))),
            cell(server_cpu(record).unwrap_or_else(|| "–".into())),
            cell(units::count(record.errors)),
            cell(record.grade.bottleneck.name()),
        ];
        cells.into_iter().enumerate().filter(|(place, _)| shown(place)).map(|(_, cell)| cell).collect::<Vec<_>>()
    });
    html! {
        (table("The runs side by side", &head, rows))
        p.small { "Latency is response time in an open loop, service time in a closed one." }
    }
}

/// Renders the origin of a page.
pub(crate) fn footer() -> Markup {
    html! {
        p {
            "Drawn by oroshi " (env!("CARGO_PKG_VERSION")) ". It loads nothing and runs no script. "
            code { "oroshi report FILE.json" } " draws it again from a saved result, and several beside each other."
        }
    }
}
