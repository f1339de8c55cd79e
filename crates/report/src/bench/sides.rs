//! Costs of a run on both sides.

use maud::{Markup, html};
use oroshi_bench::Record;
use oroshi_bench::watch::{FoundBy, Precision, ServerUsage};
use oroshi_words::units;

use crate::figure::{self, Unit};
use crate::page::{cell, facts, folded, table};
use crate::words;

/// Renders the server's side, and the generator's.
pub(super) fn one(record: &Record) -> Markup {
    let server = record.server.as_ref().map(|server| server_side(server, record));
    both(server, record.server_unknown.as_deref(), &generator_side(record))
}

/// Renders both sides under their headings; `unknown`: why the server's side is unknown.
pub(crate) fn both(server: Option<Markup>, unknown: Option<&str>, generator: &Markup) -> Markup {
    html! {
        h3 { "Server" }
        @match server {
            Some(server) => (server),
            None => p { "Not known: " (unknown.unwrap_or("nobody was found")) "." },
        }
        h3 { "Generator" }
        (generator)
    }
}

/// Formats the server's CPU use, as a number of CPUs out of its permitted ones.
pub(crate) fn cpus_used(server: &ServerUsage, elapsed_s: f64) -> String {
    format!("{} of {}", units::number(server.cpu_seconds / elapsed_s.max(1e-9)), server.cpus_allowed)
}

/// Formats a share of a CPU.
pub(crate) fn of_a_cpu(share: f64) -> String {
    format!("{} of a CPU", figure::percent(share))
}

fn server_side(server: &ServerUsage, record: &Record) -> Markup {
    let answers = record.requests.answered;
    let elapsed = record.elapsed_s.max(1e-9);
    let bytes = |n: u64| Unit::Bytes.text(n as f64);
    let found = match server.found_by {
        FoundBy::TcpListener => "they hold the listening TCP socket",
        FoundBy::UnixListener => "they hold the listening unix socket",
        FoundBy::PeerCredentials => "one of them opened the unix socket",
        FoundBy::Pid => "named with --watch",
    };
    let precision = match server.precision {
        Precision::Nanoseconds => "",
        Precision::Ticks => ", in clock ticks of 10 ms",
    };
    let switches = server.voluntary_switches + server.involuntary_switches;
    let limit = server.cpu_limit.map(|cpus| format!(", limited to {} by control group", units::number(cpus)));
    let processes = server.processes.iter().map(|process| {
        let cpu = if record.elapsed_s > 0.0 { process.cpu_seconds / elapsed } else { 0.0 };
        [
            cell(&process.name),
            cell(process.pid.to_string()),
            cell(process.threads.to_string()),
            cell(figure::percent(cpu)),
            cell(bytes(process.rss_bytes)),
        ]
    });
    html! {
        (facts([
            ("CPU per request", record.server_cpu_us_per_request().map(|us| figure::time(us * 1e3))),
            ("CPUs used", Some(format!("{}{}{precision}", cpus_used(server, elapsed), limit.unwrap_or_default()))),
            ("CPU time", Some(format!(
                "{} in user mode, {} in the kernel",
                Unit::Seconds.text(server.user_seconds),
                Unit::Seconds.text(server.system_seconds)
            ))),
            ("Busiest thread", Some(of_a_cpu(server.busiest_thread))),
            ("Of all the CPU it may have", Some(figure::percent(server.of_allowed_cpus))),
            ("Memory", Some(format!(
                "{} at the end, {} before, at most {}",
                bytes(server.rss_end_bytes),
                bytes(server.rss_begin_bytes),
                bytes(server.rss_peak_bytes)
            ))),
            ("Memory, shared pages divided", server.pss_end_bytes.map(bytes)),
            ("Context switches per request", (answers > 0).then(|| units::number(switches as f64 / answers as f64))),
            ("Processes", Some(format!("{}: {found}", words::processes(server)))),
            ("Watched by", record.server_watched_by.clone()),
            ("Processes that ended", (server.exited > 0).then(|| units::count(server.exited))),
        ]))
        @if server.processes.len() > 1 {
            @let columns = ["process", "pid", "threads", "CPU", "memory"];
            (folded("Each process", &table("Processes of the server", &columns, processes.collect::<Vec<_>>())))
        }
    }
}

fn generator_side(record: &Record) -> Markup {
    let generator = &record.generator;
    let threads = generator.thread_cpu.iter().map(|share| figure::percent(*share)).collect::<Vec<_>>();
    let lateness = &record.latency.lateness.summary;
    facts([
        ("CPU per request", generator.cpu_us_per_request.map(|us| figure::time(us * 1e3))),
        ("CPU of each thread", (!threads.is_empty()).then(|| threads.join(", "))),
        (
            "Its timers were late by",
            generator.lag.p99.map(|p99| format!("{} at p99", figure::time(p99.value_ns as f64))),
        ),
        (
            "Requests left late by",
            lateness.p99.map(|p99| format!("{} at p99", figure::bound(p99.value_ns, p99.at_least))),
        ),
    ])
}
