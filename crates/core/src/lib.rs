//! What a thread of the engine has once, whatever runs on it: deadlines, buffers, names.
//!
//! **What it knows**: which waits end when, and which tasks to wake then; buffers that connections share; bytes of an
//! incomplete message; the addresses of names.
//!
//! **What it does not know**: protocols, connections, pools, which limits there are.
//!
//! Everything here belongs to one thread and takes no lock, except the threads that look names up.
//!
//! # Where to read
//!
//! 1. [`Deadlines`] (`deadlines`): the waits of a thread, without a timer each. [`Deadline`] is one wait,
//!    [`Registration`] a place among the others. `sweeper`: the task that sleeps until the earliest of them.
//! 2. [`Scratch`] and [`spares`] (`buffers`): the buffer for every read, and buffers that are used again.
//! 3. [`Incoming`] (`incoming`): bytes that a connection keeps while a message is incomplete.
//! 4. [`Names`] (`names`): a cache of addresses, and look-ups on threads of their own.

mod buffers;
mod deadlines;
mod incoming;
mod names;
mod sweeper;

pub use buffers::{Scratch, Spare, spares};
pub use deadlines::{Deadline, Deadlines, Entry, Expire, HasDeadlines, Registration, after, sweep_pause, ticks};
pub use incoming::Incoming;
pub use names::{Addresses, Answer, Asking, Lookup, Names, Ttl, system};
