//! The superdaemon: owns listening sockets, runs a command behind them, and replaces it without refusing or resetting
//! a connection. A drop-in for Server::Starter's `start_server`, with readiness.
//!
//! **Knows**: generations of a process; the sockets, files, variables and signals of `start_server`, with the same
//! names and meaning; systemd's socket passing, and sd_notify(3).
//!
//! **Does not know**: flags, terminals, exit codes; how the command uses its sockets.
//!
//! # Where to read
//!
//! 1. [`Draft`] and [`Plan`] (`plan`): the configuration. [`SocketSpec`] (`socket_spec`): listening addresses.
//! 2. [`machine`]: decisions, from events to actions, without any I/O.
//! 3. `run`: the running superdaemon: feeds events to the machine, and carries out its actions.
//! 4. `child`: starts a generation. `sockets`, [`environment`]: its inputs.
//! 5. `watch`: detects readiness: by a message (`notify`), or by a response (`probe`, with `http`).
//! 6. `control`, [`Status`] (`status`), `waiting`: the control socket. `files`, `output`: files and log.
//! 7. [`guard()`]: ends the command with the superdaemon.

mod child;
mod control;
pub mod environment;
mod files;
mod guard;
mod http;
pub mod machine;
mod notify;
mod output;
mod plan;
mod probe;
mod run;
mod socket_spec;
mod sockets;
pub mod status;
mod waiting;
mod watch;

pub use child::{Child, ChildError};
pub use control::{ControlError, Outcome, ask_restart, ask_status};
pub use files::{FileError, Running, listed_generations};
pub use guard::guard;
pub use http::{Answer, HttpError};
pub use output::{LogDestination, LogError};
pub use plan::{ControlAddress, Draft, Plan, Ready};
pub use run::{StartError, run};
pub use socket_spec::{Host, Kind, SocketSpec};
pub use sockets::{SocketError, SocketOptions};
pub use status::Status;
