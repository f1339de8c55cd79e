//! Results for people: as one HTML page (inline SVG, no scripts, no network), and as text.
//!
//! It knows how a result is best looked at, and how charts are drawn. It does not know files, flags or terminals: it is given a
//! record, or the result of an experiment, and returns a text or a page. Whatever a server, a URL or a command has put into the
//! result is escaped; the page forbids its reader's browser to load anything.
//!
//! Read it in this order:
//!
//! 1. [`words`]: what a run was, in the words that the terminal uses too.
//! 2. `bench`, `push` and `lab`: the pages, from the headline down.
//! 3. [`text`]: reports for terminals, with [`table`] for columns and lines and [`paint`] for colour.
//! 4. `page`: what both are set in. `chart`: scales, axes and the marks in between. `figure`: numbers as a page writes them.

mod bench;
mod chart;
mod figure;
mod lab;
mod machine;
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

/// A run with a name to tell it from others.
#[derive(Clone, Debug)]
pub struct Named<'a> {
    /// Its name: that of its file, say.
    pub name: String,
    /// The run.
    pub record: &'a Record,
}

/// The page of a run; of several, all of them in the same charts. Without any it says so.
#[must_use]
pub fn bench_page(runs: &[Named<'_>]) -> String {
    match runs {
        [only] => bench::one(only),
        several => bench::several(several),
    }
}

/// The page of a run of subscriptions (`oroshi bench --mode`).
#[must_use]
pub fn subscribe_page(record: &oroshi_bench::push::Record) -> String {
    push::page(record)
}

/// The page of an experiment.
#[must_use]
pub fn lab_page(result: &LabResult) -> String {
    lab::page(result)
}
