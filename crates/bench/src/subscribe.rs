//! Loads of the other kind: many who wait for messages, and somebody who publishes. A [`Plan`] says how many subscriptions are held,
//! by WebSocket, server-sent events or a response without end, and what is published; a [`Record`] says what came of it.
//!
//! Every message carries a stamp: its publisher, its number, the time. By it each subscription knows what it has missed, what came
//! twice or in the wrong place, and how long it took, whatever hub is between.
//!
//! 1. [`plan`]: what was asked for.
//! 2. `stamp`: what makes a message known again. `ledger`: what came of those of one publisher. `wire`: from bytes to messages.
//! 3. `core`: one core's subscriptions. `connection`: one of them. `publish`: those who publish.
//! 4. [`run`](mod@run): all of it together. [`record`]: what is said afterwards.

mod connection;
mod core;
mod ledger;
pub mod plan;
mod publish;
pub mod record;
pub mod run;
mod stamp;
mod wire;

pub use plan::{Draft, Mode, Plan, Publication, Publishing, PublishingTo, SubscribeProblem};
pub use record::Record;
pub use run::run;
pub use stamp::TemplateError;
