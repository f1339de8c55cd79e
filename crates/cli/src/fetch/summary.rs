//! Counts and times of all records, for the summary.

use std::collections::BTreeMap;
use std::time::Duration;

use oroshi_fetch::record::Times;
use oroshi_fetch::{Record, RunSummary};
use oroshi_report::paint::Paint;
use oroshi_report::table::{columns, wrap};
use oroshi_stats::{Latency, Quantile};
use oroshi_words::units;

/// The maximum of a line's width, except for unbreakable ones.
const WIDTH: usize = 110;
/// The width of the names on the left.
const NAME: usize = 12;

/// The counts so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) ok: u64,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) body_bytes: u64,
    /// Times of completely answered requests, whatever the status.
    total: Latency,
    first_byte: Latency,
    connect: Latency,
    since_burst: Latency,
}

impl Tally {
    pub(super) fn note(&mut self, record: &Record) {
        self.body_bytes += record.body_bytes;
        match record.failure() {
            Some(name) => *self.failures.entry(name).or_default() += 1,
            None => self.ok += 1,
        }
        let (None, Some(Times(timings))) = (&record.error, record.timings) else { return };
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.total.record(ns(timings.total));
        self.first_byte.record(ns(timings.first_byte));
        if let Some(connect) = timings.connect {
            self.connect.record(ns(connect + timings.tls.unwrap_or_default()));
        }
        if let Some(since) = record.since_burst {
            self.since_burst.record(ns(since));
        }
    }

    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    pub(super) fn done(&self) -> u64 {
        self.ok + self.failed()
    }

    /// Returns the summary for people.
    pub(super) fn text(&self, done: &RunSummary, paint: Paint) -> String {
        let mut text = String::new();
        let mut row = |name: &str, words: &str| {
            for (i, line) in wrap(words, WIDTH - NAME).iter().enumerate() {
                let name = if i == 0 { name } else { "" };
                text.push_str(&format!("{name:<NAME$}{line}\n"));
            }
        };
        let seconds = done.elapsed.as_secs_f64();
        let rate = units::number(self.done() as f64 / seconds.max(1e-9));
        let elapsed = units::time(done.elapsed.as_nanos() as f64);
        let answered = format!("{} of {} ok", units::count(self.ok), units::count(self.done()));
        let early = if done.interrupted { ", ended early" } else { "" };
        row("Requests", &format!("{answered} in {elapsed}, {rate}/s{early}"));
        if done.skipped > 0 {
            let failed = match done.skipped_failed {
                0 => String::new(),
                n => format!(", {} of them with a status of 400 or more", units::count(n)),
            };
            row("Skipped", &format!("{} done before{failed}", units::count(done.skipped)));
        }
        if done.changed > 0 {
            row(
                "Changed",
                &format!("{}: fetched anew, as the list is not what it was", units::plural(done.changed, "line")),
            );
        }
        if self.failed() > 0 {
            let mut each: Vec<(&String, &u64)> = self.failures.iter().collect();
            each.sort_by_key(|&(name, n)| (std::cmp::Reverse(*n), name));
            let each: Vec<String> = each.iter().map(|(name, n)| format!("{} x {name}", units::count(**n))).collect();
            row("Failed", &paint.red(&each.join(", ")));
        }
        row("Bodies", &units::bytes(self.body_bytes as f64));
        if let Some(connects) = done.connects {
            row("Connections", &format!("{} opened", units::count(connects)));
        }
        if !self.total.is_empty() {
            text.push_str(&self.times(paint));
        }
        text
    }

    fn times(&self, paint: Paint) -> String {
        let head = ["Time", "mean", "p50", "p90", "p99", "max"].map(str::to_owned).to_vec();
        let clocks = [
            ("total", &self.total),
            ("from burst", &self.since_burst),
            ("connect", &self.connect),
            ("first byte", &self.first_byte),
        ];
        let rows = clocks.into_iter().filter(|(_, clock)| !clock.is_empty()).map(|(name, clock)| {
            let quantile = |q| match clock.quantile(q) {
                Some(Quantile::Exact(ns)) => units::time(ns as f64),
                _ => "-".to_owned(),
            };
            let mut row = vec![format!("  {name:<width$}", width = NAME - 2), units::time(clock.mean())];
            row.extend([0.5, 0.9, 0.99, 1.0].map(quantile));
            row
        });
        let table = columns(0, &std::iter::once(head).chain(rows).collect::<Vec<_>>());
        let (head, body) = table.split_once('\n').unwrap_or((&table, ""));
        format!("{}\n{body}", paint.bold(head))
    }
}

#[cfg(test)]
mod tests {
    use oroshi_client::Timings;

    use super::*;
    use oroshi_fetch::record::Failure;

    fn answered(status: u16, ms: u64) -> Record {
        let time = Duration::from_millis(ms);
        let timings = Timings { total: time, first_byte: time / 2, connect: Some(time / 4), ..Timings::default() };
        Record {
            status: Some(status),
            ok: status < 400,
            body_bytes: 1000,
            timings: Some(Times(timings)),
            ..Record::default()
        }
    }

    #[test]
    fn the_summary_says_what_came_of_the_list() {
        let mut tally = Tally::default();
        for status in [200, 301, 404, 503, 503] {
            tally.note(&answered(status, 100));
        }
        let failure = Failure { kind: "connect-refused", phase: "connect", message: String::new(), retry_safe: true };
        tally.note(&Record { error: Some(failure), ..answered(200, 9000) });
        assert_eq!((tally.done(), tally.ok, tally.failed()), (6, 2, 4));
        let done = RunSummary {
            elapsed: Duration::from_secs(2),
            connects: Some(3),
            skipped: 1000,
            skipped_failed: 2,
            ..RunSummary::default()
        };
        assert_eq!(
            tally.text(&done, Paint::PLAIN),
            "Requests    2 of 6 ok in 2.00s, 3.00/s\n\
             Skipped     1,000 done before, 2 of them with a status of 400 or more\n\
             Failed      2 x status 503, 1 x connect-refused (connect), 1 x status 404\n\
             Bodies      5.86 KiB\n\
             Connections 3 opened\n\
             Time            mean     p50     p90     p99     max\n  \
               total        100ms   100ms   100ms   100ms   100ms\n  \
               connect     25.0ms  25.0ms  25.0ms  25.0ms  25.0ms\n  \
               first byte  50.0ms  50.0ms  50.0ms  50.0ms  50.0ms\n"
        );
    }

    #[test]
    fn nothing_is_told_of_what_did_not_happen() {
        let done =
            RunSummary { elapsed: Duration::from_secs(1), interrupted: true, changed: 1, ..RunSummary::default() };
        let text = Tally::default().text(&done, Paint::PLAIN);
        assert_eq!(
            text,
            "Requests    0 of 0 ok in 1.00s, 0/s, ended early\n\
             Changed     1 line: fetched anew, as the list is not what it was\n\
             Bodies      0 B\n"
        );
    }
}
