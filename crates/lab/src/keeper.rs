//! The keeper process: starts servers, and ends them whatever becomes of us.
//!
//! A server may fork, leave its process group or ignore signals, and we may be killed in the middle of a run. So each
//! server has its own `oroshi keep` process above it, which inherits all orphaned descendants (PR_SET_CHILD_SUBREAPER)
//! and whose standard input is a pipe from us. Requests arrive through that pipe (`message`). When the pipe closes, or
//! a request says stop, the keeper ends everything below itself, removes the folder that it made, and exits.
//!
//! Read it in this order: `process`, the keeper itself; `bounded`, the output that it keeps; `client`, our side of the
//! pipe; `message`, the protocol.

mod bounded;
mod client;
mod message;
mod process;

pub use client::KeeperError;
pub use process::{KeeperSettings, keep};

pub(crate) use bounded::HEAD;
pub(crate) use client::Keeper;
pub(crate) use message::{Ended, Reply, Request};
