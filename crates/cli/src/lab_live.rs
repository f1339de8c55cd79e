//! An experiment's progress on the terminal: a live line on standard error, and lines that stay for warnings and
//! failures. Without a terminal, only the latter.

use std::collections::BTreeSet;
use std::time::Duration;

use oroshi_bench::Observer;
use oroshi_lab::plan::{Experiment, Load};
use oroshi_lab::{Event, ExperimentObserver};
use oroshi_net::Shutdown;
use oroshi_report::text::asked;
use oroshi_words::units;

use crate::bench::{Live, sparkline};
use crate::terminal;

/// Follows an experiment on the terminal.
#[derive(Debug)]
pub(crate) struct LabLive {
    bench: Live,
    shutdown: Shutdown,
    /// Lines that were printed.
    said: BTreeSet<String>,
    /// Half-width of the widest primary interval so far.
    precision: Option<f64>,
    /// The half-widths after each run of this cell.
    course: Vec<Option<f64>>,
    left: Option<(Duration, Duration)>,
    /// The current block, from 0.
    block: Option<usize>,
}

impl LabLive {
    /// Returns a live line on standard error, if that is a terminal. `shutdown` ends the experiment early.
    pub(crate) fn new(shutdown: Shutdown) -> Self {
        let bench = Live::new(shutdown.clone(), 0, None, None).labelled(" ".into());
        Self { bench, shutdown, said: BTreeSet::new(), precision: None, course: Vec::new(), left: None, block: None }
    }

    /// Removes the line.
    pub(crate) fn finish(self) {
        // There is no log, so nothing can fail.
        let _ = self.bench.finish(true);
    }

    fn say_once(&mut self, text: String) {
        if !self.said.contains(&text) {
            self.bench.say(&text);
            self.said.insert(text);
        }
    }

    /// `kept connections, 2 of 6  block 3 of 10 to 50  ±4.1 % of 2.0 %  20s to 3m left  unix`.
    fn place(&self, experiment: &Experiment, cell: usize, what: &str) -> String {
        let mut parts = Vec::new();
        if let Some(at) = experiment.cells.get(cell).filter(|_| experiment.cells.len() > 1) {
            parts.push(format!("{}, {} of {}", experiment.cell_name(at), cell + 1, experiment.cells.len()));
        }
        let rules = &experiment.rules;
        parts.push(match self.block {
            Some(block) if rules.min_blocks == rules.max_blocks => {
                format!("block {} of {}", block + 1, rules.max_blocks)
            }
            Some(block) => format!("block {} of {} to {}", block + 1, rules.min_blocks, rules.max_blocks),
            None => "before the first block".into(),
        });
        if let Some(precision) = self.precision {
            parts.push(format!("{} ±{}", interval(precision, rules.precision), units::percent(precision)));
            parts.push(format!("of {} {}", asked(rules.precision), sparkline(self.course.iter().copied(), COURSE)));
        }
        if let Some((least, most)) = self.left {
            parts.push(format!("{} left", span(least, most)));
        }
        parts.push(what.to_owned());
        parts.join("  ")
    }
}

impl ExperimentObserver for LabLive {
    fn event(&mut self, experiment: &Experiment, event: Event<'_>) {
        let paint = terminal::paint(&std::io::stderr());
        match event {
            Event::Cell { .. } => {
                (self.precision, self.block) = (None, None);
                self.course.clear();
            }
            Event::Starting { server } => self.bench.note(&format!("{server}: starting or stopping")),
            Event::Run { cell, variant, block } => {
                self.block = block;
                let of = experiment.cells.get(cell).and_then(|cell| cell.variants.get(variant));
                let name = of.map_or("", |variant| variant.name.as_str());
                let connections = match of.map(|variant| &variant.load) {
                    Some(Load::Bench(draft) | Load::Script(draft, _)) => draft.connections,
                    Some(Load::Subscribe(subscribe)) => subscribe.draft.base.connections,
                    _ => 0,
                };
                let place = self.place(experiment, cell, name);
                self.bench.part(place + "  ", connections);
            }
            Event::Ran { precision, left, .. } => {
                self.precision = precision;
                self.course.extend(precision.map(Some));
                self.left = Some(left);
            }
            Event::Warning(text) => self.say_once(paint.yellow(&format!("warning: {text}"))),
            Event::Failed { cell, variant, why } => {
                let cell = experiment.cells.get(cell).map(|cell| experiment.cell_name(cell)).unwrap_or_default();
                let place = if cell.is_empty() { String::new() } else { format!(" ({cell})") };
                self.say_once(paint.red(&format!("failed: {variant}{place}: {why}")));
            }
        }
    }

    fn cancelled(&mut self) -> bool {
        self.shutdown.count() > 0
    }

    fn bench(&mut self) -> &mut dyn Observer {
        &mut self.bench
    }
}

/// The width of the course of the interval, characters.
const COURSE: usize = 10;
/// Half of the width of the drawn interval, characters, and the place of the wanted precision in it.
const ARM: usize = 8;
const WANTED: usize = 2;

/// Draws an interval around its estimate, as it closes in on the wanted precision: `[──────·─•─·──────]`.
fn interval(precision: f64, wanted: f64) -> String {
    let reach = (precision / wanted * WANTED as f64).round().clamp(0.0, ARM as f64) as usize;
    let arm: String = (1..=ARM)
        .map(|place| match (place <= reach, place == WANTED) {
            (_, true) => '|',
            (true, false) => '─',
            (false, false) => ' ',
        })
        .collect();
    let left: String = arm.chars().rev().collect();
    format!("[{left}•{arm}]")
}

/// `20s`, `20s to 3m`.
fn span(least: Duration, most: Duration) -> String {
    let text = |time: Duration| match time.as_secs_f64().ceil() {
        seconds if seconds < 120.0 => format!("{seconds:.0}s"),
        seconds => format!("{:.0}m", (seconds / 60.0).ceil()),
    };
    let (least, most) = (text(least), text(most));
    if least == most { least } else { format!("{least} to {most}") }
}

#[cfg(test)]
mod tests {
    use oroshi_bench::Draft;
    use oroshi_lab::Metric;
    use oroshi_lab::plan::{Cell, Rules, Sweep, Variant};

    use super::*;

    fn experiment(points: usize) -> Experiment {
        let variant = Variant {
            name: "unix".into(),
            server: None,
            urls: Vec::new(),
            load: Load::Bench(Box::new(Draft { connections: 7, ..Draft::default() })),
            load_words: String::new(),
            machine: None,
            agents: None,
        };
        let cell = |point| Cell {
            group: "nginx".into(),
            point: Some(point),
            servers: Vec::new(),
            variants: vec![variant.clone()],
            rate_share: None,
        };
        Experiment {
            name: "x".into(),
            title: String::new(),
            question: String::new(),
            source: None,
            rerun: Vec::new(),
            quick: false,
            metrics: vec![Metric::Rps],
            score_if_any: false,
            rules: Rules::default(),
            server_cpus: None,
            load_cpus: None,
            network: None,
            sweep: Some(Sweep {
                name: "connections".into(),
                label: "connections".into(),
                values: vec!["10".into(), "100".into()],
            }),
            cells: (0..points).map(cell).collect(),
            skipped: Vec::new(),
        }
    }

    #[test]
    fn the_line_says_where_it_stands() {
        let experiment = experiment(2);
        let mut live = LabLive::new(Shutdown::new());
        assert_eq!(live.place(&experiment, 1, "unix"), "nginx, connections 100, 2 of 2  before the first block  unix");
        live.event(&experiment, Event::Run { cell: 0, variant: 0, block: Some(2) });
        let left = (Duration::from_millis(19_500), Duration::from_secs(170));
        let elapsed = Duration::ZERO;
        live.event(&experiment, Event::Ran { cell: 0, variant: 0, precision: Some(0.041), elapsed, left });
        let place = live.place(&experiment, 0, "unix");
        assert_eq!(
            place,
            "nginx, connections 10, 1 of 2  block 3 of 10 to 50  [    ──|─•─|──    ] ±4.1 %  of 2 % █  20s to 3m left  \
             unix"
        );
        let cell = &experiment.cells[1];
        live.event(&experiment, Event::Cell { index: 1, cell });
        assert_eq!(live.precision, None, "the next one begins anew");
    }

    #[test]
    fn the_interval_closes_in() {
        assert_eq!(interval(0.5, 0.02), "[──────|─•─|──────]");
        assert_eq!(interval(0.02, 0.02), "[      |─•─|      ]");
        assert_eq!(interval(0.001, 0.02), "[      | • |      ]");
    }

    #[test]
    fn warnings_and_failures_are_said_once_each() {
        let experiment = experiment(1);
        let mut live = LabLive::new(Shutdown::new());
        for _ in 0..2 {
            live.event(&experiment, Event::Warning("it is busy here"));
            live.event(&experiment, Event::Failed { cell: 0, variant: "unix", why: "it ended" });
        }
        let said: Vec<&str> = live.said.iter().map(String::as_str).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.iter().any(|text| text.contains("failed: unix (nginx, connections 10): it ended")), "{said:?}");
    }

    #[test]
    fn ctrl_c_is_passed_on_to_the_run_as_well() {
        let shutdown = Shutdown::new();
        let mut live = LabLive::new(shutdown.clone());
        assert!(!live.cancelled() && !live.bench().cancelled());
        shutdown.request();
        assert!(live.cancelled() && live.bench().cancelled());
    }

    #[test]
    fn times_are_rounded_up() {
        let of = |least, most| span(Duration::from_millis(least), Duration::from_millis(most));
        assert_eq!(
            (of(0, 0), of(900, 1100), of(119_000, 121_000)),
            ("0s".into(), "1s to 2s".into(), "119s to 3m".into())
        );
    }
}
