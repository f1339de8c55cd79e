//! A server that answers every request alike: the target of self-tests and experiments.
//!
//! It knows delays, statuses, body sizes and how to count. It does not know flags or terminals.
//!
//! Read [`Plan`] first, then [`Target`] (`run`), `responder` (one request), `answers` (responses encoded beforehand) and `delay`
//! (one timer for all that wait).

mod answers;
mod delay;
mod plan;
mod responder;
mod run;

pub use answers::Rotation;
pub use plan::{Place, Plan, TlsFiles};
pub use run::{Target, TargetError};
