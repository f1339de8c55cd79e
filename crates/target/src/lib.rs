//! A server that answers every request alike: the target of self-tests and experiments.
//!
//! Knows delays, statuses, body sizes and counters. Does not know flags or terminals.
//!
//! Read [`Plan`] first, then [`Target`] (`run`), `responder` (one request), `answers` (encoded responses) and `delay`
//! (one timer for all waits).

mod answers;
mod delay;
mod plan;
mod responder;
mod run;

pub use answers::Rotation;
pub use plan::{ListenAddress, Plan, TlsFiles};
pub use run::{Target, TargetError};
