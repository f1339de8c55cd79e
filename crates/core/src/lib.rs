//! The parts that each thread of the engine has once: deadlines, buffers, the addresses of names.
//!
//! **What it knows**: when waits end and which tasks to wake then; buffers that connections share; bytes of an
//! incomplete message; the addresses of names.
//!
//! **What it does not know**: protocols, connections, pools, limits.
//!
//! Everything belongs to one thread and takes no lock, except the threads that resolve names.
//!
//! # Where to read
//!
//! 1. [`Deadlines`] (`deadlines`): the waits of a thread, without a timer for each. A [`Deadline`] is one wait, a
//!    [`Registration`] its guard. `sweeper`: the task that sleeps until the earliest deadline.
//! 2. [`Scratch`] and [`spares`] (`buffers`): the buffer for every read, and reusable buffers.
//! 3. [`Incoming`] (`incoming`): bytes that a connection keeps while a message is incomplete.
//! 4. [`Names`] (`names`): a cache of addresses, and the threads that resolve names.

mod buffers;
mod deadlines;
mod incoming;
mod names;
mod sweeper;

pub use buffers::{Scratch, SpareBuffer, spares};
pub use deadlines::{Deadline, Deadlines, Entry, Expire, HasDeadlines, Registration, after, sweep_pause, ticks};
pub use incoming::Incoming;
pub use names::{Addresses, Answer, Lookup, Names, Resolving, Ttl, system};
