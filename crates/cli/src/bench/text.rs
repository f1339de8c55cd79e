//! The report for people.
//!
//! In the order in which one asks: what was done, can it be trusted, how fast, what went wrong, what did it cost on either
//! side, who was the bottleneck.

use oroshi_bench::record::{ClockRecord, OriginRecord, PlanRecord};
use oroshi_bench::watch::{Precision, ServerUsage};
use oroshi_bench::{Bottleneck, Failure, Load, Record, Spacing};
use oroshi_stats::Quantile;

use crate::paint::Paint;
use crate::table::columns;
use oroshi_words::units::{self, plural};

/// No line is longer, but for those that cannot be broken.
const WIDTH: usize = 110;
/// Width of the names on the left.
const NAME: usize = 12;
/// Columns of the latency table.
const SHOWN: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
/// Percentiles of the detailed distribution, in percent.
const SPECTRUM: [&str; 12] = ["10", "25", "50", "75", "90", "95", "99", "99.5", "99.9", "99.99", "99.999", "99.9999"];

/// Writes the report.
pub(crate) fn report(record: &Record, spectrum: bool, paint: Paint) -> String {
    let mut page = Page { text: String::new(), paint };
    wrap(&headline(record), WIDTH).iter().for_each(|line| page.line(&paint.bold(line)));
    if record.cut_short {
        page.line(&paint.yellow(&format!("ended early, after {}", units::length(record.elapsed_s))));
    }
    let generator_bound = record.grade.bottleneck == Bottleneck::GeneratorBound;
    if generator_bound {
        page.line(&paint.red("GENERATOR-BOUND: these figures say more about the load generator than about the server"));
        page.verdict(record);
    }
    page.line("");
    page.row("Throughput", &throughput(record));
    page.row("Requests", &requests(record));
    page.latency(record);
    if spectrum {
        page.spectrum(record);
    }
    page.failures(record);
    page.row("Connections", &connections(record));
    match &record.server {
        Some(server) => server_rows(server, record).iter().for_each(|(name, text)| page.row(name, text)),
        None => {
            let why = record.server_unknown.as_deref().unwrap_or("not found");
            page.painted_row("Server", &format!("not known: {why}"), Paint::dim);
        }
    }
    page.row("Generator", &generator(record));
    page.painted_row("Machine", &machine(record), Paint::dim);
    if !generator_bound {
        page.verdict(record);
    }
    for warning in &record.warnings {
        page.painted_row("Warning", warning, Paint::yellow);
    }
    page.text
}

/// What was done, in one line.
pub(crate) fn headline(record: &Record) -> String {
    let plan = &record.plan;
    let connections = plural(plan.connections as u64, "connection");
    let mut parts = vec![
        length_of(record),
        format!("{connections} on {}", plural(plan.threads as u64, "thread")),
        rhythm(&plan.load),
    ];
    match plan.requests_per_connection {
        Some(1) => parts.push("one connection per request".into()),
        Some(n) => parts.push(format!("{} per connection", plural(n, "request"))),
        None => {}
    }
    if plan.pipeline > 1 {
        parts.push(format!("{} pipelined", plan.pipeline));
    }
    if plan.hold > 0 {
        parts.push(format!("beside {}", plural(plan.hold as u64, "idle connection")));
    }
    if plan.warmup_s > 0.0 {
        parts.push(format!("after {} of warm-up", units::length(plan.warmup_s)));
    }
    parts.push(where_to(plan));
    parts.join(", ")
}

struct Page {
    text: String,
    paint: Paint,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// A name and what is to be said of it, under itself where it is long.
    fn row(&mut self, name: &str, text: &str) {
        self.painted_row(name, text, |_, line| line.to_owned());
    }

    fn painted_row(&mut self, name: &str, text: &str, paint: fn(Paint, &str) -> String) {
        for (i, line) in wrap(text, WIDTH - NAME).iter().enumerate() {
            let name = if i == 0 { name } else { "" };
            self.line(&format!("{name:<NAME$}{}", paint(self.paint, line)));
        }
    }

    fn verdict(&mut self, record: &Record) {
        let name = record.grade.bottleneck.name();
        let text = format!("{name}: {}", record.grade.because);
        self.row("Bottleneck", &text);
        if let Some(advice) = &record.grade.advice {
            self.painted_row("", advice, Paint::yellow);
        }
    }

    fn latency(&mut self, record: &Record) {
        let clocks = measured_clocks(record);
        if clocks.is_empty() {
            return;
        }
        let head = std::iter::once("Latency").chain(SHOWN.map(|(name, _)| name)).chain(["max"]);
        let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
        for (name, clock) in clocks {
            let figures = SHOWN.iter().map(|(_, q)| quantile(clock, *q)).chain([quantile(clock, 1.0)]);
            rows.push(std::iter::once(format!("  {name:<width$}", width = NAME - 2)).chain(figures).collect());
        }
        let table = columns(0, &rows);
        let (head, body) = table.split_once('\n').unwrap_or((&table, ""));
        self.line(&self.paint.bold(head));
        self.text.push_str(body);
    }

    /// Every percentile that there are requests for.
    fn spectrum(&mut self, record: &Record) {
        let mut clocks = vec![("service", &record.latency.service)];
        if is_open(record) {
            clocks.insert(0, ("response", &record.latency.response));
        }
        let total = clocks[0].1.summary.count + clocks[0].1.summary.censored;
        if total == 0 {
            return;
        }
        let head = std::iter::once("Spectrum").chain(clocks.iter().map(|(name, _)| *name)).chain(["slower"]);
        let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
        for percent in SPECTRUM {
            let share = percent.parse::<f64>().unwrap_or(0.0) / 100.0;
            let slower = (total as f64 * (1.0 - share) + 1e-6).floor();
            if slower < 1.0 {
                break;
            }
            let values = clocks.iter().map(|(_, clock)| quantile(clock, share));
            rows.push(
                std::iter::once(format!("  p{percent}")).chain(values).chain([units::count(slower as u64)]).collect(),
            );
        }
        let last = clocks.iter().map(|(_, clock)| quantile(clock, 1.0));
        rows.push(std::iter::once("  max".to_owned()).chain(last).chain(["0".to_owned()]).collect());
        // Of what was answered: the others could only move them by who knows how much.
        if record.requests.completed > 0 {
            let mean = clocks.iter().map(|(_, clock)| units::time(clock.summary.mean_ns));
            rows.push(
                std::iter::once("  mean".to_owned()).chain(mean).chain(["of those answered".to_owned()]).collect(),
            );
            let deviation = clocks.iter().map(|(_, clock)| units::time(clock.summary.stdev_ns));
            rows.push(std::iter::once("  stdev".to_owned()).chain(deviation).collect());
        }
        self.text.push_str(&columns(0, &rows));
    }

    fn failures(&mut self, record: &Record) {
        if record.errors > 0 {
            self.line(&self.paint.red(&format!("{:<NAME$}{}", "Errors", units::count(record.errors))));
            let errors = record.failures.iter().filter(|(failure, _)| failure.is_error());
            for (failure, n) in errors {
                let line = format!("  {:<16}{:>10}  {}", failure.name(), units::count(*n), meaning(*failure));
                self.line(&line);
            }
        }
        if record.statuses.keys().any(|status| *status != 200) {
            let each = record.statuses.iter().map(|(status, n)| format!("{} x {status}", units::count(*n)));
            self.row("Statuses", &each.collect::<Vec<_>>().join(", "));
        }
    }
}

fn length_of(record: &Record) -> String {
    let plan = &record.plan;
    match (plan.requests, plan.duration_s) {
        (Some(n), None) => format!("{} in {}", plural(n, "request"), units::time(record.elapsed_s * 1e9)),
        (Some(n), Some(seconds)) => format!("{} or {}", plural(n, "request"), units::length(seconds)),
        (None, Some(seconds)) => units::length(seconds),
        (None, None) => units::length(record.elapsed_s),
    }
}

fn rhythm(load: &Load) -> String {
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

fn where_to(plan: &PlanRecord) -> String {
    match plan.origins.as_slice() {
        [only] if only.requests.len() == 1 => request_url(only, &only.requests[0]),
        [only] => format!("{} to {}", plural(only.requests.len() as u64, "request"), address(only)),
        many => {
            let requests: usize = many.iter().map(|o| o.requests.len()).sum();
            let names = many.iter().take(3).map(address).collect::<Vec<_>>().join(" ");
            let rest = if many.len() > 3 { " ..." } else { "" };
            format!("{} to {} servers: {names}{rest}", plural(requests as u64, "request"), many.len())
        }
    }
}

/// `GET http://localhost:8080/path`, `GET unix:/run/app.sock:/path`.
fn request_url(origin: &OriginRecord, line: &str) -> String {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or("GET"), words.next().unwrap_or("/"));
    if origin.address.starts_with("unix:") {
        format!("{method} {}:{target}", address(origin))
    } else {
        format!("{method} {}{target}", address(origin))
    }
}

fn address(origin: &OriginRecord) -> String {
    match (origin.address.starts_with("unix:"), origin.scheme.as_str()) {
        (true, "https") => format!("https over {}", origin.address),
        (true, _) => origin.address.clone(),
        (false, scheme) => format!("{scheme}://{}", origin.address),
    }
}

fn throughput(record: &Record) -> String {
    let rates = &record.rates;
    format!(
        "{} requests/s, read {}/s, written {}/s",
        units::number(rates.requests_per_s),
        units::bytes(rates.read_bytes_per_s),
        units::bytes(rates.written_bytes_per_s)
    )
}

fn requests(record: &Record) -> String {
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

/// Those that say something: the response time of a closed loop is its service time, unless connecting is part of it.
fn measured_clocks(record: &Record) -> Vec<(String, &ClockRecord)> {
    let kept_closed = !is_open(record) && record.plan.requests_per_connection != Some(1);
    let clocks = record.latency.each().into_iter();
    clocks
        .filter(|(_, clock)| clock.summary.count + clock.summary.censored > 0)
        .filter(|(name, _)| !(kept_closed && *name == "response"))
        .map(|(name, clock)| (name.replace('_', " "), clock))
        .collect()
}

fn is_open(record: &Record) -> bool {
    record.plan.load != Load::Closed
}

fn quantile(clock: &ClockRecord, q: f64) -> String {
    match clock.histogram.quantile(q) {
        None => "-".into(),
        Some(Quantile::Exact(ns)) => units::time(ns as f64),
        Some(Quantile::AtLeast(ns)) => format!(">= {}", units::time(ns as f64)),
    }
}

fn connections(record: &Record) -> String {
    let (c, plan) = (&record.connections, &record.plan);
    let mut parts = Vec::new();
    if plan.requests_per_connection == Some(1) {
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

fn server_rows(server: &ServerUsage, record: &Record) -> Vec<(&'static str, String)> {
    let requests = record.requests.answered;
    let per_request = match server.cpu_us_per_request(requests) {
        Some(us) => format!("{} CPU per request, ", units::time(us * 1e3)),
        None => String::new(),
    };
    let cores = units::number(server.cpu_seconds / record.elapsed_s.max(1e-9));
    let first = format!(
        "{per_request}{cores} cores used{}, busiest thread {}, {}",
        if server.precision == Precision::Ticks { " (in clock ticks)" } else { "" },
        units::percent(server.busiest_thread),
        processes(server)
    );
    let switches = server.voluntary_switches + server.involuntary_switches;
    let mut second = format!("{} memory", units::bytes(server.rss_end_bytes as f64));
    if server.rss_peak_bytes as f64 > server.rss_end_bytes as f64 * 1.05 {
        second.push_str(&format!(" (peak {})", units::bytes(server.rss_peak_bytes as f64)));
    }
    if server.rss_end_bytes as f64 > server.rss_begin_bytes as f64 * 1.1 {
        second.push_str(&format!(", from {}", units::bytes(server.rss_begin_bytes as f64)));
    }
    if requests > 0 {
        let each = units::number(switches as f64 / requests as f64);
        second.push_str(&format!(", {each} context switches per request"));
    }
    if server.exited > 0 {
        second.push_str(&format!(", {} of its processes ended", units::count(server.exited)));
    }
    vec![("Server", first), ("", second)]
}

/// `nginx (pid 17)`, `nginx x4 (pids 17 18 19 ...)`.
fn processes(server: &ServerUsage) -> String {
    let Some(busiest) = server.processes.first() else { return "no process left".into() };
    if server.process_count == 1 {
        return format!("{} (pid {})", busiest.name, busiest.pid);
    }
    let shown = server.processes.iter().take(3).map(|p| p.pid.to_string()).collect::<Vec<_>>().join(" ");
    let rest = if server.process_count > 3 { " ..." } else { "" };
    format!("{} x{} (pids {shown}{rest})", busiest.name, server.process_count)
}

fn generator(record: &Record) -> String {
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

fn machine(record: &Record) -> String {
    let e = &record.environment;
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

/// Lines of at most `width`, broken between words.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// What an error's name means, for somebody who sees it for the first time.
fn meaning(failure: Failure) -> &'static str {
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
        Failure::Parse => "the answer is not valid HTTP/1.1, or more came than was asked for",
        Failure::Timeout => "no whole answer within --timeout; the connection was replaced",
        Failure::Status => "answers with a status of 400 or more",
        Failure::Check => "answers that did not pass --check",
        Failure::CutOffAtEnd => "the run ended first",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample;

    #[test]
    fn a_plain_run() {
        let text = report(&sample::closed(), false, Paint::PLAIN);
        assert_eq!(text, include_str!("golden/closed.txt"), "\n{text}");
        assert!(text.lines().count() <= 25);
    }

    #[test]
    fn an_open_loop_with_a_server_that_stalled() {
        let text = report(&sample::open(), true, Paint::PLAIN);
        assert!(text.contains(">= "), "{text}");
        assert_eq!(text, include_str!("golden/open.txt"), "\n{text}");
    }

    #[test]
    fn nothing_measured_breaks_nothing() {
        let text = report(&sample::nothing(), true, Paint::PLAIN);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.contains("connect-refused"), "{text}");
    }

    #[test]
    fn a_generator_at_its_limit_is_said_first_and_in_colour() {
        let mut record = sample::closed();
        record.grade.bottleneck = Bottleneck::GeneratorBound;
        let text = report(&record, false, Paint::PLAIN);
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("GENERATOR-BOUND")), "{text}");
        assert_eq!(text.matches(&record.grade.because).count(), 1);
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable", 3), ["unbreakable"]);
        assert_eq!(wrap("", 3), [""]);
    }

    #[test]
    fn each_failure_is_explained() {
        for failure in Failure::ALL {
            assert!(meaning(failure).len() > 10, "{failure}");
        }
        // It stands for unreachable networks too, and for those that forbid.
        assert!(meaning(Failure::ConnectRefused).contains("the network said no"));
    }
}
