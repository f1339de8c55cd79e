//! An experiment's report for people.
//!
//! In the order in which one asks: what was asked and how it was done, what failed, what came out, the figures behind
//! it, what is doubtful, how to run it again. `tables` writes the figures.

mod tables;

use oroshi_lab::LabResult;
use oroshi_lab::result::{CellResult, Comparison, Ended, VariantResult};
use oroshi_stats::compare::Verdict;
use oroshi_words::units::{self, plural};

use crate::paint::Paint;
use crate::table::wrap;
use crate::words::machine;
pub(super) use tables::{Table, grouped_reasons};
pub(crate) use tables::{cell_ratios, own_figure, reasons};

/// No line is longer, but for those that cannot be broken.
const WIDTH: usize = 100;
/// Width of the names on the left of what is said below the tables.
const NAME: usize = 10;
/// Lines of a failed server's output that are shown.
const OUTPUT_LINES: usize = 8;

/// Writes the report.
#[must_use]
pub fn lab(result: &LabResult, paint: Paint) -> String {
    let mut page = Page { text: String::new(), result, paint };
    page.head();
    if let (None, [only]) = (&result.sweep, result.cells.as_slice()) {
        page.subjects(only);
    }
    page.failures();
    match (&result.sweep, result.cells.as_slice()) {
        (Some(sweep), _) => page.sweep(sweep),
        (None, [only]) => {
            page.verdicts(only);
            page.cell(only);
        }
        (None, cells) => {
            page.summary();
            for cell in cells {
                page.line("");
                page.cell_head(cell);
                page.cell(cell);
            }
        }
    }
    page.line("");
    page.notes();
    page.text
}

/// A share as it was asked for: `2 %`, `2.5 %`.
#[must_use]
pub fn asked(share: f64) -> String {
    units::percent(share).replace(".0 %", " %")
}

/// A verdict in the colour it has for `variant`.
pub(super) fn in_colour(paint: Paint, verdict: Verdict, text: &str) -> String {
    match verdict {
        Verdict::Faster => paint.green(text),
        Verdict::Slower => paint.red(text),
        Verdict::Equivalent => paint.bold(text),
        Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared => paint.yellow(text),
    }
}

struct Page<'r> {
    text: String,
    result: &'r LabResult,
    paint: Paint,
}

impl Page<'_> {
    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn wrapped(&mut self, text: &str, paint: fn(Paint, &str) -> String) {
        wrap(text, WIDTH).iter().for_each(|line| self.line(&paint(self.paint, line)));
    }

    /// A name and what is to be said of it, under itself where it is long.
    fn row(&mut self, name: &str, text: &str, paint: fn(Paint, &str) -> String) {
        for (i, line) in wrap(text, WIDTH - NAME).iter().enumerate() {
            let name = if i == 0 { name } else { "" };
            self.line(&format!("{name:<NAME$}{}", paint(self.paint, line)));
        }
    }

    /// Writes the question and the method.
    fn head(&mut self) {
        let result = self.result;
        self.wrapped(&result.title, Paint::bold);
        if !result.question.is_empty() {
            self.wrapped(&result.question, |_, line| line.to_owned());
        }
        self.wrapped(&how(result), Paint::dim);
        if result.quick {
            self.wrapped(
                "A quick look: short runs and few blocks. What it leaves undecided, a full run may tell.",
                Paint::yellow,
            );
        }
        if result.cut_short {
            self.wrapped("Ended early: this is what there was until then.", Paint::yellow);
        }
        self.line("");
    }

    /// Writes the variants.
    fn subjects(&mut self, cell: &CellResult) {
        let same_load = one_load(self.result).is_some();
        let rows: Vec<(&str, String)> =
            cell.variants.iter().map(|v| (v.name.as_str(), subject(v, same_load))).collect();
        let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
        for (name, what) in rows {
            for (i, line) in wrap(&what, WIDTH.saturating_sub(width + 2)).iter().enumerate() {
                let name = if i == 0 { name } else { "" };
                self.line(&format!("{name:<width$}  {}", self.paint.dim(line)));
            }
        }
        self.line("");
    }

    /// The primary metric's verdicts as sentences, those on the first variant first.
    fn verdicts(&mut self, cell: &CellResult) {
        let Some(primary) = self.result.metrics.first() else { return };
        let told = tables::told(cell, primary.metric);
        for comparison in &told {
            for line in wrap(&comparison.words, WIDTH) {
                self.line(&in_colour(self.paint, comparison.verdict, &line));
            }
        }
        if !told.is_empty() {
            self.line("");
        }
    }

    fn cell_head(&mut self, cell: &CellResult) {
        let result = self.result;
        let mut parts = vec![blocks(cell)];
        if one_load(result).is_none() {
            let mut loads: Vec<&str> = cell.variants.iter().map(|v| v.load.as_str()).collect();
            loads.dedup();
            match loads.as_slice() {
                [only] => parts.push((*only).to_owned()),
                _ => parts.extend(cell.variants.iter().map(|v| format!("{}: {}", v.name, v.load))),
            }
        }
        parts.extend(rate(cell));
        parts.push(ended(cell.ended, result));
        let name = result.cell_name(cell);
        self.wrapped(&name, Paint::bold);
        self.wrapped(&parts.join("; "), Paint::dim);
    }

    /// The figures of one comparison.
    fn cell(&mut self, cell: &CellResult) {
        let text = tables::figures(cell, self.result, self.paint);
        self.text.push_str(&text);
        let ratios = tables::ratios(cell, self.result, self.paint);
        if !ratios.is_empty() {
            self.line("");
            self.text.push_str(&ratios);
        }
        for reason in reasons(cell, self.result) {
            self.wrapped(&reason, Paint::dim);
        }
    }

    /// The primary ratios of all comparisons in one table.
    fn summary(&mut self) {
        let text = tables::summary(self.result, self.paint);
        self.text.push_str(&text);
    }

    fn sweep(&mut self, sweep: &oroshi_lab::result::SweepRecord) {
        let text = tables::sweep(self.result, sweep, self.paint);
        self.text.push_str(&text);
    }

    /// Writes the failures, with their last output.
    fn failures(&mut self) {
        let result = self.result;
        let several = result.cells.len() > 1;
        let mut any = false;
        for cell in &result.cells {
            let failed = cell.variants.iter().filter_map(|v| Some((v, v.failed.as_ref()?)));
            for (variant, failure) in failed {
                let place = if several { format!(" ({})", result.cell_name(cell)) } else { String::new() };
                let text = format!("{}{place}, in block {}: {}", variant.name, failure.block + 1, failure.why);
                any = true;
                self.row("Failed", &text, Paint::red);
                let from = failure.output.len().saturating_sub(OUTPUT_LINES);
                for line in failure.output[from..].iter().flat_map(|line| wrap(line, WIDTH - NAME - 2)) {
                    self.line(&format!("{:NAME$}{}", "", self.paint.dim(&format!("| {line}"))));
                }
            }
        }
        if any {
            self.line("");
        }
    }

    /// Writes what is missing or doubtful, and the command for another run.
    fn notes(&mut self) {
        let result = self.result;
        for skipped in &result.skipped {
            self.row("Skipped", &format!("{}: {}", skipped.name, skipped.why), Paint::yellow);
        }
        for warning in &result.warnings {
            self.row("Warning", warning, Paint::yellow);
        }
        self.row("Machine", &machine(&result.environment), Paint::dim);
        if let Some(network) = &result.network {
            self.row("Network", &network.words(), Paint::dim);
        }
        if !result.rerun.is_empty() {
            // Not broken: it is for copying.
            let words = shell_words::join(&result.rerun);
            self.line(&format!("{:<NAME$}{}", "Again", self.paint.dim(&words)));
        }
    }
}

/// How it was done: `24 runs in 12 blocks; 10 connections, closed loop, 1s; servers on CPU 1, load on CPU 0; took
/// 34.2s`.
pub(crate) fn how(result: &LabResult) -> String {
    let runs: usize = result.cells.iter().map(|cell| cell.runs.len()).sum();
    let mut parts = Vec::new();
    match result.cells.as_slice() {
        [only] => parts.push(format!("{} in {}", plural(runs as u64, "run"), blocks(only))),
        cells => {
            let blocks = || cells.iter().map(|cell| cell.blocks);
            let (least, most) = (blocks().min().unwrap_or(0), blocks().max().unwrap_or(0));
            let each = if least == most { units::count(most as u64) } else { format!("{least} to {most}") };
            let comparisons = plural(cells.len() as u64, "comparison");
            parts.push(format!("{comparisons} of {each} blocks each, {}", plural(runs as u64, "run")));
            let again: usize = cells.iter().map(|cell| cell.repeated).sum();
            if again > 0 {
                parts.push(format!("{} made anew, as the machine was disturbed", plural(again as u64, "block")));
            }
        }
    }
    parts.extend(one_load(result).map(str::to_owned));
    if let [only] = result.cells.as_slice() {
        parts.extend(rate(only));
    }
    let pinned = [("servers", &result.server_cpus), ("load", &result.load_cpus)];
    let pinned: Vec<String> =
        pinned.iter().filter_map(|(who, cpus)| Some(format!("{who} on CPU {}", cpus.as_ref()?))).collect();
    if !pinned.is_empty() {
        parts.push(pinned.join(", "));
    }
    if result.cells.iter().flat_map(|cell| &cell.variants).any(|v| v.start.is_some()) {
        parts.push(match result.rules.blocks_per_start {
            None => "servers started once".into(),
            Some(1) => "servers started anew for each block".into(),
            Some(n) => format!("servers started anew every {n} blocks"),
        });
    }
    parts.push(format!("took {}", units::time(result.elapsed_s * 1e9)));
    if let [only] = result.cells.as_slice() {
        parts.push(ended(only.ended, result));
    }
    parts.join("; ")
}

fn blocks(cell: &CellResult) -> String {
    let again = match cell.repeated {
        0 => String::new(),
        again => format!(" ({} made anew, as the machine was disturbed)", units::count(again as u64)),
    };
    plural(cell.blocks as u64, "block") + &again
}

fn rate(cell: &CellResult) -> Option<String> {
    cell.rate.map(|rate| format!("that share is {} requests/s", units::number(rate)))
}

fn ended(ended: Ended, result: &LabResult) -> String {
    match ended {
        Ended::Precise => format!("ended when known to ±{}", asked(result.rules.precision)),
        Ended::MaxBlocks => "ended with the last block allowed".into(),
        Ended::MaxTime => "ended when its time was over".into(),
        Ended::Failed => "ended as too few variants were left".into(),
        Ended::Interrupted => "ended by Ctrl-C".into(),
    }
}

/// The load, if all have the same.
fn one_load(result: &LabResult) -> Option<&str> {
    let mut loads = result.cells.iter().flat_map(|cell| &cell.variants).map(|v| v.load.as_str());
    let first = loads.next()?;
    loads.all(|load| load == first).then_some(first)
}

/// `puma -p 3000, at http://127.0.0.1:3000/`.
fn subject(variant: &VariantResult, same_load: bool) -> String {
    let mut parts = Vec::new();
    parts.extend(variant.start.clone());
    let urls = variant.urls.join(" ");
    parts.push(if variant.start.is_some() { format!("at {urls}") } else { urls });
    if !same_load {
        parts.push(variant.load.clone());
    }
    parts.join(", ")
}

/// `new / old`.
fn pair(cell: &CellResult, comparison: &Comparison) -> String {
    let name = |index: usize| cell.variants.get(index).map_or("?", |v| v.name.as_str());
    format!("{} / {}", name(comparison.variant), name(comparison.base))
}

#[cfg(test)]
mod tests {
    use oroshi_lab::network::{LinkQuality, Network, NetworkRecord};

    use super::*;
    use crate::sample::lab as sample;

    #[test]
    fn two_commands() {
        let text = lab(&sample::two(), Paint::PLAIN);
        assert_eq!(text, include_str!("golden/two.txt"), "\n{text}");
    }

    #[test]
    fn groups_begin_with_a_summary() {
        let text = lab(&sample::groups(), Paint::PLAIN);
        assert_eq!(text, include_str!("golden/groups.txt"), "\n{text}");
    }

    #[test]
    fn a_sweep_is_a_table_per_metric() {
        let text = lab(&sample::sweep(2), Paint::PLAIN);
        assert_eq!(text, include_str!("golden/sweep.txt"), "\n{text}");
        let text = lab(&sample::sweep(4), Paint::PLAIN);
        for name in ["unix / tcp", "abstract / tcp", "tls / tcp", "x 1.333 ±2.0 %  equivalent"] {
            assert!(text.contains(name), "{name}: {text}");
        }
    }

    #[test]
    fn what_failed_is_said_with_its_last_words_and_so_is_what_was_left_out() {
        let text = lab(&sample::many(), Paint::PLAIN);
        for words in [
            "Failed    hey, in block 3: it ended by signal SEGV",
            "          | goroutine 12 [running]: main.main()",
            "Skipped   oha: oha is not installed",
            "hey              failed",
            "not compared: there are only 2 blocks",
            "ab / oroshi ",
            "Warning   steal",
            "Again     oroshi compare -c 20 'a b'",
        ] {
            assert!(text.contains(words), "`{words}`: {text}");
        }
        assert!(!text.contains("goroutine 4 "), "the last lines only: {text}");
    }

    #[test]
    fn machines_are_told_in_one_row() {
        let machines = vec!["server".to_owned(), "load".to_owned()];
        let network = Network::new(machines, LinkQuality { rate: Some(100_000_000), ..LinkQuality::default() });
        let result = LabResult { network: Some(NetworkRecord::from(&network)), ..sample::two() };
        let text = lab(&result, Paint::PLAIN);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains("Network server (198.18.0.1) and load (198.18.0.2), network"), "{text}");
        assert!(words.join(" ").contains("link of 100 Mbit/s"), "{text}");
        assert!(!lab(&sample::two(), Paint::PLAIN).contains("Network"));
    }

    #[test]
    fn no_line_is_too_wide_and_colour_is_all_that_paint_adds() {
        let samples =
            [sample::two(), sample::many(), sample::groups(), sample::sweep(1), sample::sweep(2), sample::sweep(4)];
        for result in samples {
            let plain = lab(&result, Paint::PLAIN);
            assert!(plain.lines().all(|line| line.chars().count() <= WIDTH), "{plain}");
            let mut coloured = lab(&result, Paint::COLOURED);
            assert_ne!(coloured, plain);
            for code in ["\x1b[1m", "\x1b[2m", "\x1b[1;31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"] {
                coloured = coloured.replace(code, "");
            }
            assert_eq!(coloured, plain);
        }
    }

    #[test]
    fn a_disturbed_comparison_says_so_in_its_headline_and_its_table_without_a_colour_of_its_own() {
        let mut result = sample::two();
        let cell = &mut result.cells[0];
        cell.repeated = 2;
        cell.comparisons[0].verdict = Verdict::Disturbed;
        cell.comparisons[0].words = "disturbed: no verdict on requests/s".into();
        let text = lab(&result, Paint::COLOURED);
        assert!(text.contains("\x1b[33mdisturbed: no verdict on requests/s"), "{text}");
        assert!(text.contains("\x1b[33mdisturbed\x1b[0m") && text.contains("x 1.171"), "{text}");
        assert!(text.contains("2 made anew, as the machine was disturbed"), "{text}");
    }

    #[test]
    fn what_ended_early_or_was_a_quick_look_says_so() {
        let result = LabResult { cut_short: true, quick: true, ..sample::two() };
        let text = lab(&result, Paint::PLAIN);
        assert!(text.contains("Ended early") && text.contains("A quick look"), "{text}");
        let nothing = LabResult { cells: Vec::new(), ..sample::two() };
        assert!(!lab(&nothing, Paint::PLAIN).contains("18446744073709551615"));
    }
}
