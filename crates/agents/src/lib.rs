//! One load from several machines: a coordinator, its agents, and the messages between them over NATS.
//!
//! This crate knows how agents are found, how their clocks are compared, when they start, how their counts reach the
//! coordinator, and what follows when a process or NATS vanishes. It does not know flags, files or how a job's words
//! are read: the command line gives it a reader. It does not know what is counted: `bench` does.
//!
//! Read in this order:
//!
//! 1. [`wire`]: the messages, their signature and limits; [`nkey`]: keys in NATS's own form. [`clock`]: the offset of
//!    another machine's clock. [`parcel`]: plans that are larger than a message.
//! 2. [`agent`] and [`coordinator`]: the two state machines. They do no I/O, and time is an argument.
//! 3. [`bus`]: the connection to NATS. [`serve`]: an agent with its load. [`lead`]: a coordinator with its record.
//!    [`collect`]: a coordinator after its predecessor's death.

pub mod agent;
pub mod bus;
pub mod clock;
pub mod collect;
pub mod coordinator;
pub mod lead;
pub mod nkey;
pub mod parcel;
pub mod serve;
#[cfg(test)]
mod simulation;
pub mod wire;
