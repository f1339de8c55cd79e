//! The report for people, in the order of their questions: the load, its validity, speed, failures, costs on either
//! side, the bottleneck.

use std::fmt::Display;

use oroshi_bench::environment::Environment;
use oroshi_bench::grade::Grade;
use oroshi_bench::record::ClockRecord;
use oroshi_bench::watch::{Precision, ServerUsage};
use oroshi_bench::{Failure, Record};
use oroshi_words::units;

use super::{agents, scenario};
use crate::paint::Paint;
use crate::table::{fitted, wrap};
use crate::words::{
    alarm, connections, generator, headline, is_open, machine, meaning, measured_clocks, processes, quantile, requests,
    stream_ends, throughput, unreadable,
};

/// Minimum width of a text beside a name and its count; with less room the text stands below.
const LEAST_BESIDE: usize = 30;
/// Width of the names on the left.
pub(super) const NAME: usize = 12;
/// Columns of the latency table.
pub(super) const SHOWN: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
/// Percentiles of the detailed distribution, in percent.
const SPECTRUM: [&str; 12] = ["10", "25", "50", "75", "90", "95", "99", "99.5", "99.9", "99.99", "99.999", "99.9999"];

/// Writes the report, in lines of at most `width` characters.
#[must_use]
pub fn bench(record: &Record, spectrum: bool, paint: Paint, width: usize) -> String {
    let alarm = alarm(record);
    let ended_early = record.cut_short.then_some(record.elapsed_s);
    let mut page = Page::begin(alarm.as_deref(), &headline(record), ended_early, paint, width);
    if alarm.is_some() {
        page.verdict(&record.grade);
    }
    page.line("");
    if let Some(scenario) = &record.scenario {
        scenario::add(&mut page, scenario, spectrum);
    }
    page.row("Throughput", &throughput(record));
    page.row("Requests", &requests(record));
    page.clocks("Latency", &measured_clocks(record));
    if !record.urls.is_empty() {
        scenario::steps(&mut page, ["URLs", "URL times"], &record.urls);
        page.line("");
    }
    if spectrum {
        page.spectrum(record);
    }
    page.failures(record);
    page.row("Connections", &connections(record));
    agents::add(&mut page, &record.agents);
    let server = record.server.as_ref().map(|server| server_rows(server, record));
    page.sides(server, record.server_unknown.as_deref(), &generator(record), &record.environment);
    if alarm.is_none() {
        page.verdict(&record.grade);
    }
    for warning in &record.warnings {
        page.painted_row("Warning", warning, Paint::yellow);
    }
    page.text
}

/// A report in the making.
pub(super) struct Page {
    pub(super) text: String,
    pub(super) paint: Paint,
    /// Characters of a line.
    pub(super) width: usize,
}

impl Page {
    /// Begins a report with its headline; `ended_early`: the length of a run that was cut short, seconds.
    pub(super) fn begin(
        alarm: Option<&str>,
        headline: &str,
        ended_early: Option<f64>,
        paint: Paint,
        width: usize,
    ) -> Self {
        let mut page = Self { text: String::new(), paint, width };
        if let Some(alarm) = alarm {
            page.wrapped(alarm, Paint::red);
        }
        page.wrapped(headline, Paint::bold);
        if let Some(elapsed_s) = ended_early {
            page.line(&paint.yellow(&format!("ended early, after {}", units::length(elapsed_s))));
        }
        page
    }

    /// Writes the costs on either side, and the machine.
    pub(super) fn sides(
        &mut self,
        server: Option<[String; 2]>,
        unknown: Option<&str>,
        generator: &str,
        environment: &Environment,
    ) {
        match server {
            Some(rows) => ["Server", ""].iter().zip(rows).for_each(|(name, text)| self.row(name, &text)),
            None => {
                let why = unknown.unwrap_or("not found");
                self.painted_row("Server", &format!("not known: {why}"), Paint::dim);
            }
        }
        self.row("Generator", generator);
        // Nobody is known to have come to an end: all agents were lost.
        if !environment.kernel.is_empty() {
            self.painted_row("Machine", &machine(environment), Paint::dim);
        }
    }

    pub(super) fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Adds lines.
    pub(super) fn wrapped(&mut self, text: &str, paint: fn(Paint, &str) -> String) {
        wrap(text, self.width).iter().for_each(|line| self.line(&paint(self.paint, line)));
    }

    /// Adds a table whose first line is its head.
    pub(super) fn table(&mut self, rows: &[Vec<String>]) {
        let table = fitted(rows, self.width);
        let (head, body) = table.split_once('\n').unwrap_or((&table, ""));
        self.line(&self.paint.bold(head));
        self.text.push_str(body);
    }

    /// Adds a name, its count, and its meaning: beside them if there is room, otherwise below.
    pub(super) fn counted(&mut self, name: &str, count: u64, text: &str) {
        let begin = format!("  {name:<16}{:>10}", units::count(count));
        let beside = begin.chars().count() + 2;
        let (indent, room) = if self.width >= beside + LEAST_BESIDE {
            (beside, self.width - beside)
        } else {
            self.line(&format!("  {name}  {}", units::count(count)));
            (4, self.width - 4)
        };
        for (i, line) in wrap(text, room).iter().enumerate() {
            if i == 0 && indent == beside {
                self.line(&format!("{begin}  {line}"));
            } else {
                self.line(&format!("{:indent$}{line}", ""));
            }
        }
    }

    /// Adds a name and a text, wrapped if it is long.
    pub(super) fn row(&mut self, name: &str, text: &str) {
        self.painted_row(name, text, |_, line| line.to_owned());
    }

    pub(super) fn painted_row(&mut self, name: &str, text: &str, paint: fn(Paint, &str) -> String) {
        for (i, line) in wrap(text, self.width - NAME).iter().enumerate() {
            let name = if i == 0 { name } else { "" };
            self.line(&format!("{name:<NAME$}{}", paint(self.paint, line)));
        }
    }

    pub(super) fn verdict(&mut self, grade: &Grade) {
        self.row("Bottleneck", &format!("{}: {}", grade.bottleneck.name(), grade.because));
        if let Some(advice) = &grade.advice {
            self.painted_row("", advice, Paint::yellow);
        }
    }

    /// Writes the main percentiles of each clock.
    pub(super) fn clocks<N: Display>(&mut self, title: &str, clocks: &[(N, &ClockRecord)]) {
        if clocks.is_empty() {
            return;
        }
        let head = std::iter::once(title).chain(SHOWN.map(|(name, _)| name)).chain(["max"]);
        let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
        for (name, clock) in clocks {
            let figures = SHOWN.iter().map(|(_, q)| quantile(clock, *q)).chain([quantile(clock, 1.0)]);
            rows.push(std::iter::once(format!("  {name:<width$}", width = NAME - 2)).chain(figures).collect());
        }
        self.table(&rows);
    }

    /// Adds the detailed distribution: every percentile for which there are enough requests.
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
        // Over answered requests: unfinished ones would change both by an unknown amount.
        if record.requests.completed > 0 {
            let mean = clocks.iter().map(|(_, clock)| units::time(clock.summary.mean_ns));
            rows.push(
                std::iter::once("  mean".to_owned()).chain(mean).chain(["of those answered".to_owned()]).collect(),
            );
            let deviation = clocks.iter().map(|(_, clock)| units::time(clock.summary.stdev_ns));
            rows.push(std::iter::once("  stdev".to_owned()).chain(deviation).collect());
        }
        self.text.push_str(&fitted(&rows, self.width));
    }

    fn failures(&mut self, record: &Record) {
        if record.errors > 0 {
            self.line(&self.paint.red(&format!("{:<NAME$}{}", "Errors", units::count(record.errors))));
            let errors = record.failures.iter().filter(|(failure, _)| failure.is_error());
            for (failure, n) in errors {
                self.counted(failure.name(), *n, meaning(*failure));
                if *failure == Failure::Parse {
                    for (rule, count, what) in unreadable(record) {
                        self.counted(&format!("  {rule}"), count, &what);
                    }
                }
                for (code, count, says) in stream_ends(record, *failure) {
                    self.counted(&format!("  {code}"), count, &says);
                }
            }
        }
        if record.statuses.keys().any(|status| *status != 200) {
            let each = record.statuses.iter().map(|(status, n)| format!("{} x {status}", units::count(*n)));
            self.row("Statuses", &each.collect::<Vec<_>>().join(", "));
        }
    }
}

fn server_rows(server: &ServerUsage, record: &Record) -> [String; 2] {
    let requests = record.requests.answered;
    let per_request = match record.server_cpu_us_per_request() {
        Some(us) => format!("{} CPU per request, ", units::time(us * 1e3)),
        None => String::new(),
    };
    let cores = units::number(server.cpu_seconds / record.elapsed_s.max(1e-9));
    let watched_by = record.server_watched_by.as_ref().map(|who| format!(", watched by {who}")).unwrap_or_default();
    let first = format!(
        "{per_request}{cores} cores used{}, busiest thread {}, {}{watched_by}",
        if server.precision == Precision::Ticks { " (in clock ticks)" } else { "" },
        units::percent(server.busiest_thread),
        processes(server)
    );
    let switches = server.voluntary_switches + server.involuntary_switches;
    let mut second = memory(server);
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
    [first, second]
}

/// Returns the server's memory at the end, and its peak if that was clearly more.
pub(super) fn memory(server: &ServerUsage) -> String {
    let mut text = format!("{} memory", units::bytes(server.rss_end_bytes as f64));
    if server.rss_peak_bytes as f64 > server.rss_end_bytes as f64 * 1.05 {
        text.push_str(&format!(" (peak {})", units::bytes(server.rss_peak_bytes as f64)));
    }
    text
}

#[cfg(test)]
mod tests {
    use oroshi_bench::Bottleneck;
    use oroshi_bench::record::{LostServers, ParseRecord};

    use super::*;
    use crate::sample::bench as sample;
    use crate::table::WIDTH;

    #[test]
    fn a_plain_run() {
        let text = bench(&sample::closed(), false, Paint::PLAIN, WIDTH);
        assert_eq!(text, include_str!("golden/closed.txt"), "\n{text}");
        assert!(text.lines().count() <= 25);
    }

    #[test]
    fn an_open_loop_with_a_server_that_stalled() {
        let text = bench(&sample::open(), true, Paint::PLAIN, WIDTH);
        assert!(text.contains(">= "), "{text}");
        assert_eq!(text, include_str!("golden/open.txt"), "\n{text}");
    }

    #[test]
    fn nothing_measured_breaks_nothing() {
        let text = bench(&sample::nothing(), true, Paint::PLAIN, WIDTH);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.contains("connect-refused"), "{text}");
    }

    #[test]
    fn a_generator_at_its_limit_is_said_first_and_in_colour() {
        let mut record = sample::closed();
        record.grade.bottleneck = Bottleneck::GeneratorBound;
        let text = bench(&record, false, Paint::PLAIN, WIDTH);
        assert!(text.starts_with("GENERATOR-BOUND"), "{text}");
        assert_eq!(text.matches(&record.grade.because).count(), 1);
        assert!(bench(&record, false, Paint::COLOURED, WIDTH).starts_with("\x1b[1;31mGENERATOR-BOUND"));
    }

    #[test]
    fn a_server_that_has_gone_is_the_first_line() {
        let mut record = sample::closed();
        record.gone =
            Some(LostServers { silent_s: 4.0, failed_attempts: 7, why: "it left".into(), servers: Vec::new() });
        let text = bench(&record, false, Paint::PLAIN, WIDTH);
        assert!(text.starts_with("SERVER GONE: ") && text.lines().next().unwrap().contains("it left"), "{text}");
    }

    /// Nothing runs over the edge of a terminal but what cannot be broken: names of files, URLs.
    #[test]
    fn a_report_fits_a_narrow_terminal() {
        let mut record = sample::closed();
        record.failures.insert(Failure::Parse, 2);
        record.parse = vec![ParseRecord {
            rule: "length-and-transfer-encoding".into(),
            what: "Content-Length and Transfer-Encoding together".into(),
            count: 2,
            first_bytes: "HTTP/1.1 200 OK".into(),
        }];
        for record in [record, sample::open(), sample::nothing()] {
            for width in [40, 60, 80] {
                let text = bench(&record, true, Paint::PLAIN, width);
                let long: Vec<_> = text.lines().filter(|line| line.chars().count() > width).collect();
                assert!(long.is_empty(), "{width}: {long:#?}");
            }
        }
    }

    #[test]
    fn answers_that_are_no_http_are_told_by_their_rule() {
        let mut record = sample::closed();
        record.failures.insert(Failure::Parse, 3);
        record.parse = vec![ParseRecord {
            rule: "bare-lf".into(),
            what: "line feed without carriage return".into(),
            count: 3,
            first_bytes: r"HTTP/1.1 200 OK\n".into(),
        }];
        let text = bench(&record, false, Paint::PLAIN, WIDTH);
        let expected = "    bare-lf                3  line feed without carriage return; the first begins with \
                        \"HTTP/1.1 200 OK\\n\"\n";
        assert!(text.contains(expected), "{text}");
    }
}
