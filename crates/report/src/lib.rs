//! Results for people: as one HTML page (inline SVG, no scripts, no network), and as text.
//!
//! Knows how to present a result, and how to draw charts. Does not know files, flags or terminals: it takes a record,
//! or the result of an experiment, and returns the text of a page. It escapes all text from servers, URLs and
//! commands; the page forbids the browser to load anything.
//!
//! Read it in this order:
//!
//! 1. [`words`]: a run in the words that the terminal uses too.
//! 2. `bench`, `push`, `lab` and `history`: the pages, from the headline down.
//! 3. [`text`]: the same for a terminal, with `table` and [`paint`]. [`ci`]: for continuous integration.
//!    [`over_time`]: a run for other programs.
//! 4. `page`: the frame of all pages. `chart`: scales, axes and marks. `figure`: formatted numbers. `machine`: the
//!    machine of a run. `sample`: results for tests.

mod bench;
mod chart;
pub mod ci;
mod figure;
mod history;
mod lab;
mod machine;
pub mod over_time;
mod page;
pub mod paint;
mod push;
#[cfg(any(test, feature = "samples"))]
pub mod sample;
pub mod table;
pub mod text;
pub mod words;

use oroshi_bench::Record;
use oroshi_lab::LabResult;

/// A run with a distinct name.
#[derive(Clone, Debug)]
pub struct Named<'a> {
    /// Its name, for example its file's.
    pub name: String,
    /// The run.
    pub record: &'a Record,
}

/// Renders the page of one or several runs, in the same charts. Without any it says so.
#[must_use]
pub fn bench_page(runs: &[Named<'_>]) -> String {
    match runs {
        [only] => bench::one(only),
        several => bench::several(several),
    }
}

/// Renders the page of a run of subscriptions (`oroshi bench --mode`).
#[must_use]
pub fn subscribe_page(record: &oroshi_bench::push::Record) -> String {
    push::page(record)
}

/// Renders the page of a history: its steps, and a chart of each series by commit.
#[must_use]
pub fn history_page(title: &str, series: &[oroshi_history::Series<'_>]) -> String {
    history::page(title, series)
}

/// Renders the page of an experiment.
#[must_use]
pub fn lab_page(result: &LabResult) -> String {
    lab::page(result)
}
