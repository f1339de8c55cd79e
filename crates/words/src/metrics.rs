//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write};

/// Metrics as text, each named `PREFIX_NAME`.
#[derive(Debug)]
pub struct Metrics {
    prefix: &'static str,
    text: String,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
}

impl Metrics {
    /// Starts an empty page.
    pub fn new(prefix: &'static str) -> Self {
        Metrics { prefix, text: String::new() }
    }

    /// Begins a family; its samples follow. `help` is a sentence without its full stop.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.begin(name, kind, help)
    }

    /// Adds a number without labels.
    pub fn one(&mut self, name: &'static str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }

    /// Begins a family of histograms.
    pub fn histograms(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.begin(name, "histogram", help)
    }

    fn begin(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        // Writing to a `String` does not fail.
        let _ = write!(self.text, "# HELP {0}_{name} {help}.\n# TYPE {0}_{name} {kind}\n", self.prefix);
        Family { metrics: self, name }
    }

    /// Returns the whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// The samples of one metric.
#[derive(Debug)]
pub struct Family<'m> {
    metrics: &'m mut Metrics,
    name: &'static str,
}

impl Family<'_> {
    /// Adds a sample with its labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.write("", labels, value);
    }

    /// Adds a histogram: upper bounds in seconds, each with the count of its own bucket (not cumulative); the count
    /// beyond all; the sum in seconds.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        within: impl Iterator<Item = (f64, u64)>,
        beyond: u64,
        sum_s: f64,
    ) {
        let mut so_far = 0;
        for (bound, count) in within {
            so_far += count;
            let bound = bound.to_string();
            self.write("_bucket", &[labels, &[("le", &bound)]].concat(), so_far);
        }
        so_far += beyond;
        self.write("_bucket", &[labels, &[("le", "+Inf")]].concat(), so_far);
        self.write("_sum", labels, sum_s);
        self.write("_count", labels, so_far);
    }

    fn write(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let text = &mut self.metrics.text;
        let _ = write!(text, "{}_{}{suffix}", self.metrics.prefix, self.name);
        for (place, (name, value)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            let _ = write!(text, "{before}{name}=\"");
            for c in value.chars() {
                match c {
                    '\\' => text.push_str("\\\\"),
                    '"' => text.push_str("\\\""),
                    '\n' => text.push_str("\\n"),
                    c => text.push(c),
                }
            }
            text.push('"');
        }
        if !labels.is_empty() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_as_prometheus_reads_them() {
        let mut metrics = Metrics::new("oroshi_x");
        metrics.one("up", Kind::Gauge, "Whether it is up", 1);
        let mut family = metrics.family("seen_total", Kind::Counter, "What was seen");
        family.sample(&[("of", "a\"b\\c\nd"), ("by", "me")], 2);
        metrics.histograms("took_seconds", "How long").histogram(
            &[("of", "a")],
            [(0.001, 2), (0.5, 3)].into_iter(),
            1,
            1.25,
        );
        let expected = "# HELP oroshi_x_up Whether it is up.\n# TYPE oroshi_x_up gauge\noroshi_x_up 1\n\
            # HELP oroshi_x_seen_total What was seen.\n# TYPE oroshi_x_seen_total counter\n\
            oroshi_x_seen_total{of=\"a\\\"b\\\\c\\nd\",by=\"me\"} 2\n\
            # HELP oroshi_x_took_seconds How long.\n# TYPE oroshi_x_took_seconds histogram\n\
            oroshi_x_took_seconds_bucket{of=\"a\",le=\"0.001\"} 2\n\
            oroshi_x_took_seconds_bucket{of=\"a\",le=\"0.5\"} 5\n\
            oroshi_x_took_seconds_bucket{of=\"a\",le=\"+Inf\"} 6\noroshi_x_took_seconds_sum{of=\"a\"} 1.25\n\
            oroshi_x_took_seconds_count{of=\"a\"} 6\n";
        assert_eq!(metrics.into_text(), expected);
    }
}
