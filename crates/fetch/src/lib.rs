//! Many URLs at a time: a list goes in, a record for each of its lines comes out.
//!
//! What it knows: lists, retries, what an earlier run has done, files for bodies. What it does not know: flags,
//! terminals, how a summary is written. The caller opens a [`Fetch`], runs it, and follows it ([`Follow`]).
//!
//! Read the modules in this order: [`plan`] is what is to be done. [`mod@run`] opens what the plan names, and shares
//! the work among three threads: one reads the list (`reader`, `list`), one does the `work` with an event loop and a
//! client of its own, the caller's writes the [`record`]s. Between them are queues of some hundred entries, so nothing
//! grows with the list. `retry` decides what is tried again, `resume` what an earlier run has done, `sink` and
//! `body_files` where bodies go.

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
pub use out::Out;
pub use plan::{Bodies, Defaults, LARGEST_BURST, Pace, Plan};
pub use record::Record;
pub use resume::ResumeError;
pub use retry::Retries;
pub use run::{Done, Error, Fetch, Follow, Standing, Warning};
pub use work::WorkError;
