//! The parts that each thread of the engine has once: deadlines, buffers, the addresses of names.
//!
//! **What it knows**: when waits end and which tasks to wake then; buffers that connections share; bytes of an
//! incomplete message; the addresses of names.
//!
//! **What it does not know**: protocols, connections, pools, limits.
//!
//! Everything belongs to one thread and takes no lock, except the threads that resolve names.
//!
//! Three places have parts of their own, each for a reason:
//! - The server keeps received bytes in buffers from [`spares`], without [`Incoming`]: a handler reads the body from
//!   behind its head, and the next request from behind the body.
//! - The push hub counts ticks in 32 bits and checks all sessions per tick: a session is small and has several waits.
//! - The load waits on a `timerfd` (`net::Timer`): its pacing is below a millisecond.
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
