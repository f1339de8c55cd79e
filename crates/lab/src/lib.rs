//! Experiments: start set-ups, run them in turn, compare them.
//!
//! The crate knows processes, the order of runs, and which conclusions they allow. It does not know flags, TOML,
//! terminals or HTML: the command line makes an [`Experiment`] and prints a [`LabResult`]; the report crate draws it.
//!
//! Read it in this order:
//!
//! 1. [`plan`]: the experiment; [`network`]: its machines. [`metric`]: the figures to compare.
//! 2. [`result`]: the outcome; `compact`: the form that is kept. [`follow`]: its progress.
//! 3. [`template`], [`workspace`]: ports, sockets and folders. [`keeper`]: the process above a server. [`serving`]:
//!    servers that are ready, commands that run to their end. [`machines`]: network namespaces for both.
//! 4. [`order`]: the order of runs. [`analysis`]: from runs to verdicts. [`decide`]: when to stop. [`doubts`]: problems
//!    of the machine. [`disturbed`]: when these forbid a verdict. [`baseline`]: today against a saved result.
//! 5. [`run`](mod@run): all of it together. [`calibrate`]: how often intervals contain the true ratio.
//!
//! **Circles.** `result` and `compact`: a result reads both of its forms. `run`, `analysis` and `calibrate` have the
//! types that their own parts share: the parent calls its parts, and they return its types.

pub mod analysis;
pub mod baseline;
pub mod calibrate;
mod compact;
pub mod decide;
pub mod disturbed;
pub mod doubts;
pub mod follow;
pub mod keeper;
pub mod machines;
pub mod metric;
pub mod network;
pub mod order;
pub mod plan;
mod program;
pub mod result;
pub mod run;
#[cfg(test)]
mod sample;
pub mod serving;
pub mod template;
pub mod workspace;

pub use follow::{Event, ExperimentObserver};
pub use metric::Metric;
pub use plan::Experiment;
pub use result::LabResult;
pub use run::{LabError, Tools, run};
