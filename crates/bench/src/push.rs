//! Load on a push hub: many subscriptions, and publishers. A [`Plan`] says how many subscriptions to hold, by
//! WebSocket, server-sent events or an endless response, and what to publish. A [`Record`] says what was delivered.
//!
//! Every message carries a stamp: its publisher, its number, the time. From the stamps each subscription knows which
//! messages were lost, duplicated or reordered, and how long they took, with any hub.
//!
//! 1. [`plan`]: what to do. It holds a plan of the crate for each side.
//! 2. `stamp`: what identifies a message. `sequences`: which messages of one publisher came. `wire`: from bytes to
//!    messages.
//! 3. `shared` and `phase`: what all threads share. `core`: one core's subscriptions. `subscription`: one of them.
//!    `publish`: the publishers. `tally` and `published`: what each side counts.
//! 4. [`run`](mod@run): all of it together. [`part`]: a run that several processes share. [`record`] and `grade`: what
//!    a report says.

mod core;
mod grade;
pub mod part;
mod phase;
pub mod plan;
mod publish;
mod published;
pub mod record;
pub mod run;
mod sequences;
mod shared;
mod stamp;
mod subscription;
mod tally;
mod wire;

pub use part::{Delta, PartObserver, Sent, Whole};
pub use plan::{Draft, Mode, Plan, Publication, Publishing, PublishingTo, SubscribeProblem};
pub use record::Record;
pub use run::{run, run_part};
pub use stamp::TemplateError;
