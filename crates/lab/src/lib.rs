//! Experiments: start set-ups, let them take turns, compare.
//!
//! It knows processes, the order of runs, and what may be concluded from them. It does not know flags, TOML, terminals or HTML:
//! the command line makes an [`Experiment`] and prints a [`LabResult`]; the report crate draws it.
//!
//! Read it in this order:
//!
//! 1. [`plan`]: what is to be done. [`metric`]: what is compared.
//! 2. [`result`]: what came out. [`follow`]: seen while it lasts.

pub mod follow;
pub mod metric;
pub mod plan;
pub mod result;

pub use follow::{Event, Follow};
pub use metric::Metric;
pub use plan::Experiment;
pub use result::LabResult;
