//! The process that keeps others: it starts them, and whatever becomes of us, it ends them.
//!
//! A server may fork, leave its process group, ignore signals; and we may be killed in the middle of a run. So each server has a
//! process of our own above it, `oroshi keep`, which all of its descendants fall to when their parent ends
//! (PR_SET_CHILD_SUBREAPER), and whose standard input is a pipe from us. It does as it is told through that pipe
//! (`message`); when the pipe closes, because it was told to stop or because we are gone, it ends everything below itself,
//! removes the folder that it made, and ends.
//!
//! Read it in this order: `process`, the process itself; `bounded`, what it keeps of their output; `client`, our side of the pipe; `message`, what goes through it.

mod bounded;
mod client;
mod message;
mod process;

pub use client::KeeperError;
pub use process::{Keep, keep};

pub(crate) use bounded::HEAD;
pub(crate) use client::Keeper;
pub(crate) use message::{Ended, Order, Reply};
