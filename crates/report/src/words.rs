//! A run in words: the same on the terminal and on a page.

pub mod push;
pub mod scenario;

use oroshi_bench::environment::Environment;
use oroshi_bench::record::{AgentRecord, AgentState, ClockRecord, OriginRecord, PlanRecord};
use oroshi_bench::watch::ServerUsage;
use oroshi_bench::{Bottleneck, Failure, Load, Protocol, Record, Spacing};
use oroshi_stats::Quantile;
use oroshi_words::units::{self, plural};

/// From this share of a rate on, its error is shown.
const WORTH_SHOWING: f64 = 0.01;

/// Describes the run in one line.
#[must_use]
pub fn headline(record: &Record) -> String {
    format!("{}, {}", how(record), target(record))
}

/// Describes what the load consists of, and its target: a script's name and the server, or [`where_to`].
#[must_use]
pub fn target(record: &Record) -> String {
    let script = record.plan.script.as_deref().filter(|_| record.scenario.is_some());
    match (script, record.plan.origins.as_slice()) {
        (Some(script), [only]) => {
            let scenarios = record.scenario.as_ref().map_or(0, |scenario| scenario.journeys.len());
            let scenarios = plural(scenarios as u64, "scenario");
            format!("{scenarios} of {} to {}", scenario::one_line(script, 200), address(only))
        }
        _ => where_to(&record.plan),
    }
}

/// Describes duration, connections and rhythm.
#[must_use]
pub fn how(record: &Record) -> String {
    let plan = &record.plan;
    let load = match &record.scenario {
        Some(scenario) => scenario::users(record, scenario),
        None => {
            let connections = plural(plan.connections as u64, "connection");
            format!("{connections} on {}, {}", plural(plan.threads as u64, "thread"), rhythm(&plan.load))
        }
    };
    let mut parts = vec![length_of(record), load];
    match plan.requests_per_connection {
        Some(1) => parts.push("one connection per request".into()),
        Some(n) => parts.push(format!("{} per connection", plural(n, "request"))),
        None => {}
    }
    if plan.pipeline > 1 {
        parts.push(format!("{} pipelined", plan.pipeline));
    }
    if plan.protocol == Protocol::Http2 {
        parts.push(format!("HTTP/2 with {} on each", plural(plan.streams as u64, "stream")));
    }
    if plan.gather_s > 0.0 {
        parts.push(format!("gathering for {}, which latencies include", units::length(plan.gather_s)));
    }
    if plan.hold > 0 {
        parts.push(format!("beside {}", plural(plan.hold as u64, "idle connection")));
    }
    if plan.warmup_s > 0.0 {
        parts.push(format!("after {} of warm-up", units::length(plan.warmup_s)));
    }
    parts.join(", ")
}

/// Describes the actual duration and number of requests, and the plan where it differs.
fn length_of(record: &Record) -> String {
    let plan = &record.plan;
    let took = match plan.duration_s {
        // As long as requested, with a small tolerance.
        Some(seconds) if (record.elapsed_s - seconds).abs() < 0.02 * seconds => units::length(seconds),
        Some(seconds) if plan.requests.is_none() => {
            format!("{} of {}", units::time(record.elapsed_s * 1e9), units::length(seconds))
        }
        _ => units::time(record.elapsed_s * 1e9),
    };
    match plan.requests {
        None => took,
        Some(n) if record.requests.completed == n => format!("{} in {took}", plural(n, "request")),
        Some(n) => {
            format!("{} of {} answered in {took}", units::count(record.requests.completed), plural(n, "request"))
        }
    }
}

/// Describes the closed or open loop.
#[must_use]
pub fn rhythm(load: &Load) -> String {
    let Load::Open { stages, spacing, seed } = load else { return "closed loop".into() };
    let spacing = match spacing {
        Spacing::Constant => String::new(),
        Spacing::Poisson => format!(" (poisson, seed {seed})"),
    };
    match stages.as_slice() {
        [only] => format!("open loop at {}/s{spacing}", units::number(only.rate)),
        stages => {
            let each = stages.iter().map(|s| format!("{}:{}", units::length(s.duration.as_secs_f64()), s.rate));
            format!("open loop {}{spacing}", each.collect::<Vec<_>>().join(","))
        }
    }
}

/// Describes the target of requests: `GET http://localhost:8080/path`.
#[must_use]
pub fn where_to(plan: &PlanRecord) -> String {
    match plan.origins.as_slice() {
        [only] if only.count() == 1 && only.requests.len() == 1 => request_url(only, &only.requests[0]),
        [only] => format!("{} to {}", plural(only.count() as u64, "request"), address(only)),
        many => {
            let requests: usize = many.iter().map(OriginRecord::count).sum();
            let names = many.iter().take(3).map(address).collect::<Vec<_>>().join(" ");
            let rest = if many.len() > 3 { " ..." } else { "" };
            format!("{} to {} servers: {names}{rest}", plural(requests as u64, "request"), many.len())
        }
    }
}

/// Formats `GET http://localhost:8080/path`, `GET unix:/run/app.sock:/path`.
fn request_url(origin: &OriginRecord, line: &str) -> String {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or("GET"), words.next().unwrap_or("/"));
    if !origin.authority.is_empty() {
        format!("{method} {}://{}{target} at {}", origin.scheme, origin.authority, origin.address)
    } else if origin.address.starts_with("unix:") {
        format!("{method} {}:{target}", address(origin))
    } else {
        format!("{method} {}{target}", address(origin))
    }
}

fn address(origin: &OriginRecord) -> String {
    if !origin.authority.is_empty() {
        return format!("{}://{} at {}", origin.scheme, origin.authority, origin.address);
    }
    match (origin.address.starts_with("unix:"), origin.scheme.as_str()) {
        (true, "https") => format!("https over {}", origin.address),
        (true, _) => origin.address.clone(),
        (false, scheme) => format!("{scheme}://{}", origin.address),
    }
}

/// Describes the throughput.
#[must_use]
pub fn throughput(record: &Record) -> String {
    let rates = &record.rates;
    let error = rate_error(record).map(|error| format!(" {error}")).unwrap_or_default();
    format!(
        "{}{error} requests/s, read {}/s, written {}/s",
        units::number(rates.requests_per_s),
        units::bytes(rates.read_bytes_per_s),
        units::bytes(rates.written_bytes_per_s)
    )
}

/// Returns the possible error of the rate, `±1.00`, if it is worth showing.
#[must_use]
pub fn rate_error(record: &Record) -> Option<String> {
    let rates = &record.rates;
    let error = rates.requests_per_s_error.filter(|error| *error > WORTH_SHOWING * rates.requests_per_s);
    error.map(|error| format!("±{}", units::number(error)))
}

/// Describes the outcomes of requests.
#[must_use]
pub fn requests(record: &Record) -> String {
    let r = &record.requests;
    let mut parts = vec![format!("{} answered", units::count(r.completed))];
    let others = [
        (r.failed, "failed"),
        (r.unsent, "due and not sent by the end of the run"),
        (r.waited, "waited for a free connection"),
        (r.cut_off, "cut off by the end of the run"),
    ];
    parts.extend(others.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", units::count(*n))));
    parts.join(", ")
}

/// Returns the relevant clocks. In a closed loop the response time equals the service time, unless it includes
/// connecting.
#[must_use]
pub fn measured_clocks(record: &Record) -> Vec<(String, &ClockRecord)> {
    // A user's request may wait for one of its connections, or for a new one.
    let has_own = is_open(record) || record.scenario.is_some() || record.plan.requests_per_connection == Some(1);
    let clocks = record.latency.each().into_iter();
    clocks
        .filter(|(_, clock)| clock.summary.count + clock.summary.censored > 0)
        .filter(|(name, _)| has_own || *name != "response")
        .map(|(name, clock)| (name.replace('_', " "), clock))
        .collect()
}

/// Whether requests followed a timetable.
#[must_use]
pub fn is_open(record: &Record) -> bool {
    record.plan.load != Load::Closed
}

/// Returns a warning for the top: that the figures are misleading.
#[must_use]
pub fn alarm(record: &Record) -> Option<String> {
    if let Some(gone) = &record.gone {
        return Some(format!("SERVER GONE: {}", gone.words()));
    }
    if record.requests.started > 0 && record.requests.completed == 0 {
        return Some("NOTHING ANSWERED: not one request was answered".into());
    }
    (record.grade.bottleneck == Bottleneck::GeneratorBound)
        .then(|| "GENERATOR-BOUND: these figures say more about the load generator than about the server".into())
}

/// Returns the kinds of invalid responses: the broken rule, the count, and the beginning of the first of them.
pub fn unreadable(record: &Record) -> impl Iterator<Item = (&str, u64, String)> {
    record.parse.iter().map(|kind| {
        let begins = match kind.first_bytes.as_str() {
            "" => String::new(),
            bytes => format!("; the first begins with \"{bytes}\""),
        };
        (kind.rule.as_str(), kind.count, format!("{}{begins}", kind.what))
    })
}

/// Returns the codes with which the server ended streams or connections, the counts, and the texts of GOAWAYs.
pub fn stream_ends(record: &Record, failure: Failure) -> impl Iterator<Item = (&str, u64, String)> {
    let ends = record.http2.iter().flat_map(|http2| &http2.ends).filter(move |end| end.failure == failure);
    ends.map(|end| {
        let says = match end.text.as_str() {
            "" => String::new(),
            text => format!("the server says \"{text}\""),
        };
        (end.code.as_str(), end.count, says)
    })
}

/// Formats a quantile of a clock, `>= x` for a bound, a dash without a value.
#[must_use]
pub fn quantile(clock: &ClockRecord, q: f64) -> String {
    match clock.histogram.quantile(q) {
        None => "-".into(),
        Some(Quantile::Exact(ns)) => units::time(ns as f64),
        Some(Quantile::AtLeast(ns)) => format!(">= {}", units::time_at_least(ns)),
    }
}

/// Describes the outcomes of connections.
#[must_use]
pub fn connections(record: &Record) -> String {
    let (c, plan) = (&record.connections, &record.plan);
    let mut parts = Vec::new();
    if record.scenario.is_some() {
        // Users open as many as they need.
        parts.push(format!("{} alive at the end", units::count(c.alive_at_end as u64)));
        parts.push(format!("{} opened", units::count(c.opened)));
    } else if plan.requests_per_connection == Some(1) {
        parts.push(format!(
            "{} opened, {}/s",
            units::count(c.opened),
            units::number(c.opened as f64 / record.elapsed_s)
        ));
    } else {
        let of = units::count(plan.connections as u64);
        parts.push(format!("{} of {of} alive at the end", units::count(c.alive_at_end as u64)));
        if c.fewest_alive < c.alive_at_end.min(plan.connections) {
            parts.push(format!("never fewer than {}", units::count(c.fewest_alive as u64)));
        }
        parts.push(format!("{} opened", units::count(c.opened)));
    }
    if c.closed_by_server > 0 {
        parts.push(format!("{} closed by the server between requests", units::count(c.closed_by_server)));
    }
    if plan.hold > 0 {
        parts.push(format!("{} of {} held", units::count(c.held_at_end as u64), units::count(plan.hold as u64)));
    }
    parts.join(", ")
}

/// Describes the load machines of a run as a whole: how many, the skew of their start, their clocks.
pub fn agents(agents: &[AgentRecord]) -> String {
    let time = |ns: u64| units::time(ns as f64);
    let most = |of: fn(&AgentRecord) -> Option<u64>| agents.iter().filter_map(of).max().map_or("?".to_owned(), time);
    let lost = agents.iter().filter(|agent| agent.state == AgentState::Lost).count();
    let missing = if lost > 0 { format!(", {lost} of them lost") } else { String::new() };
    let last = agents.iter().max_by_key(|agent| agent.start_late_ns);
    let queued = last.and_then(|agent| agent.start_queued_ns).filter(|queued| *queued > 0);
    let queued = queued.map_or(String::new(), |ns| format!(" (the last one waited {} of it for a CPU)", time(ns)));
    let clocks = match agents.iter().map(|agent| agent.clock_bound_ns).collect::<Option<Vec<_>>>() {
        Some(bounds) if bounds.iter().all(|&bound| bound == 0) => "all read one clock".to_owned(),
        _ => format!("clocks known to ±{}", most(|agent| agent.clock_bound_ns)),
    };
    let late = most(|agent| agent.start_late_ns);
    format!("{}{missing}; all began within {late} of the agreed moment{queued}; {clocks}", agents.len())
}

/// Formats `nginx (pid 17)`, `nginx x4 (pids 17 18 19 ...)`.
#[must_use]
pub fn processes(server: &ServerUsage) -> String {
    let Some(busiest) = server.processes.first() else { return "no process left".into() };
    if server.process_count == 1 {
        return format!("{} (pid {})", busiest.name, busiest.pid);
    }
    let shown = server.processes.iter().take(3).map(|p| p.pid.to_string()).collect::<Vec<_>>().join(" ");
    let rest = if server.process_count > 3 { " ..." } else { "" };
    format!("{} x{} (pids {shown}{rest})", busiest.name, server.process_count)
}

/// Describes the load generator's own cost.
#[must_use]
pub fn generator(record: &Record) -> String {
    let generator = &record.generator;
    let busiest = generator.thread_cpu.iter().copied().fold(0.0, f64::max);
    let mut parts = Vec::new();
    parts.extend(generator.cpu_us_per_request.map(|us| format!("{} CPU per request", units::time(us * 1e3))));
    parts.push(format!("busiest thread {}", units::percent(busiest)));
    if let Some(p99) = generator.lag.p99 {
        parts.push(format!("timers late by {} (p99)", units::time(p99.value_ns as f64)));
    }
    parts.join(", ")
}

/// Describes the machine in one line.
#[must_use]
pub fn machine(e: &Environment) -> String {
    let mut parts = Vec::new();
    let cpus = e.cpu.online.map(|n| plural(n as u64, "CPU"));
    match (&e.cpu.model, cpus) {
        (Some(model), Some(cpus)) => parts.push(format!("{cpus} ({})", model.trim())),
        (_, Some(cpus)) => parts.push(cpus),
        _ => {}
    }
    if let Some(virtual_machine) = &e.virtual_machine {
        parts.push(format!("in a virtual machine ({virtual_machine})"));
    }
    parts.push(format!("Linux {}", e.kernel));
    parts.join(", ")
}

/// Explains a failure's name to new users.
#[must_use]
pub fn meaning(failure: Failure) -> &'static str {
    match failure {
        Failure::Dns => "the name did not resolve",
        Failure::ConnectRefused => "nobody listened there, or the network said no",
        Failure::ConnectTimeout => "no connection within --timeout: backlog full, or packets dropped",
        Failure::ConnectBacklog => "the unix socket's backlog stayed full: the server accepts too slowly",
        Failure::PortsExhausted => "no local port was left: use --source addresses, kept connections, or a unix socket",
        Failure::Tls => "the TLS handshake failed, or a record was bad",
        Failure::Write => "the server had closed the connection before the request was out",
        Failure::ReadReset => "the connection was reset before the answer was whole",
        Failure::ReadEof => "the connection was closed before the answer was whole",
        Failure::Goaway => "the server ended the HTTP/2 connection (GOAWAY) before the answer was whole",
        Failure::StreamReset => "the server reset the HTTP/2 stream before the answer was whole",
        Failure::Parse => "the answer is not valid HTTP, or more came than was asked for",
        Failure::Timeout => "no whole answer within --timeout; connection or stream replaced",
        Failure::FlowControlStall => "no window for the rest of the body within --timeout: the server did not read it",
        Failure::Status => "answers with a status of 400 or more",
        Failure::Check => "answers that did not pass --check, or a script's limits (redirects, body_limit)",
        Failure::CutOffAtEnd => "the run ended first",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_explained() {
        for failure in Failure::ALL {
            assert!(meaning(failure).len() > 10, "{failure}");
        }
        // The name also covers unreachable networks, and those that forbid.
        assert!(meaning(Failure::ConnectRefused).contains("the network said no"));
    }
}
