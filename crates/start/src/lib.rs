//! The superdaemon: it owns listening sockets, runs a command behind them, and replaces it by a new generation without a
//! refused or reset connection. A drop-in for Server::Starter's `start_server`, with readiness.
//!
//! **What it knows**: generations of a process, and what becomes of them; the sockets, files, variables and signals that
//! `start_server` has, with the same names and meaning; systemd's way to hand down sockets, and sd_notify(3).
//!
//! **What it does not know**: flags, terminals, exit codes; what the command does with its sockets.
//!
//! # Where to read
//!
//! 1. [`Draft`] and [`Plan`] (`plan`): what can be asked for. [`Place`] (`place`): where to listen.
//! 2. [`machine`]: what is decided, from events to actions, without any I/O.
//! 3. `run`: the superdaemon at work: what happens goes in there, and what comes out is done.
//! 4. `child`: how a generation is started. `sockets`, [`environment`]: what it is given.
//! 5. `watch`: when it is ready: it says so (`notify`), or answers (`probe`, with `http`).
//! 6. `control`, [`Status`] (`status`), `waiting`: being asked. `files`, `output`: what others read.
//! 7. [`guard()`]: ending with the superdaemon.

mod child;
mod control;
pub mod environment;
mod files;
mod guard;
mod http;
pub mod machine;
mod notify;
mod output;
mod place;
mod plan;
mod probe;
mod run;
mod sockets;
pub mod status;
mod waiting;
mod watch;

pub use child::{Child, ChildError};
pub use control::{ControlError, Outcome, ask_restart, ask_status};
pub use files::{FileError, Running, listed_generations};
pub use guard::guard;
pub use http::{Answer, HttpError};
pub use output::{LogError, LogTo};
pub use place::{Host, Kind, Place};
pub use plan::{ControlAt, Draft, Plan, Ready};
pub use run::{StartError, run};
pub use sockets::{Listening, SocketError};
pub use status::Status;
