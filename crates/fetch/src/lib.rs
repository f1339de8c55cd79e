//! Fetches many URLs concurrently: reads a list, and returns a record for each of its lines.
//!
//! **Knows**: lists, retries, the results of an earlier run, files for bodies. What it does not know: flags,
//! terminals, the format of a summary. The caller opens a [`Fetch`], runs it, and follows it ([`Observer`]).
//!
//! Read the modules in this order: [`plan`] is the validated configuration. [`mod@run`] opens its files, and divides
//! the work among three threads: one reads the list (`reader`, `list`), one does the `work` with an event loop and a
//! client of its own, the caller's writes the [`record`]s. Between them are queues of some hundred entries, so memory
//! does not grow with the list. `retry` decides about retries, `resume` reads the results of an earlier run, `sink` and
//! `body_files` write bodies.

mod body_files;
mod list;
mod out;
pub mod plan;
mod reader;
pub mod record;
mod resume;
mod retry;
pub mod run;
mod sink;
mod work;

pub use list::{ListError, Source};
pub use out::SharedWriter;
pub use plan::{Bodies, Defaults, LARGEST_BURST, Pace, Plan};
pub use record::Record;
pub use resume::ResumeError;
pub use run::{Error, Fetch, Observer, Progress, RunSummary, Warning};
pub use work::WorkError;
