//! Experiments: start set-ups, let them take turns, compare.
//!
//! It knows processes, the order of runs, and what may be concluded from them. It does not know flags, TOML, terminals or HTML:
//! the command line makes an [`Experiment`] and prints a [`LabResult`]; the report crate draws it.
//!
//! Read it in this order:
//!
//! 1. [`plan`]: what is to be done. [`metric`]: what is compared.
//! 2. [`result`]: what came out; `compact`: the form that is kept. [`follow`]: seen while it lasts.
//! 3. [`template`], [`place`]: ports, sockets and folders. [`keeper`]: the process above a server. [`serving`]: servers that are
//!    ready, commands that run to their end.
//! 4. [`order`]: who runs when. [`analysis`]: from runs to verdicts. [`decide`]: when it is enough. [`doubts`]: what is wrong with the
//!    machine. [`disturbed`]: when that forbids a verdict. [`baseline`]: today against a saved result.
//! 5. [`run`](mod@run): all of it together. [`calibrate`]: how often its intervals hold the truth.

pub mod analysis;
pub mod baseline;
pub mod calibrate;
mod compact;
pub mod decide;
pub mod disturbed;
pub mod doubts;
pub mod follow;
pub mod keeper;
pub mod metric;
pub mod order;
pub mod place;
pub mod plan;
mod program;
pub mod result;
pub mod run;
#[cfg(test)]
mod sample;
pub mod serving;
pub mod template;

pub use follow::{Event, Follow};
pub use metric::Metric;
pub use plan::Experiment;
pub use result::LabResult;
pub use run::{LabError, Tools, run};
