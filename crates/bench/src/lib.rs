//! Load: a [`Plan`] says what to do, workers carry it out, a [`Record`] says what happened.
//!
//! It knows when requests are due, how to send them as fast as one core can, what to call each way of failing, and who was
//! the bottleneck. It does not know flags, files or terminals: the command line makes a [`Draft`] and prints the record.
//!
//! One thread per core, each with its own connections, clock and counters; nothing is shared while requests flow. Read it
//! in this order:
//!
//! 1. [`plan`]: what was asked for. [`request`] and [`check`]: what is sent, and what must come back.
//! 2. [`arrivals`]: when requests are due in an open loop. [`script`]: a program that decides what is sent; `scripting`, `batch`: how it is
//!    heeded.
//! 3. `worker`: one core from start to end. `core`: what its connections share. `slot`: the place of
//!    a connection. `connection`: one connection's life, the hot path; `answer`: what it is reading.
//! 4. [`failure`] and [`tally`]: what is counted. `unreadable`: answers that are no HTTP. `ending`: whether the servers were there to the end; `hope`: when a run is given up.
//! 5. [`run`](mod@run): all of it together; [`follow`]: seen while it lasts (`heat`: its latencies). [`watch`] and [`environment`]: the server's side and the machine's; `machine`: what the machine
//!    did meanwhile; `backlog`: whose queue of connections overflowed.
//! 6. [`record`] and [`grade`]: what is said afterwards.
//! 7. [`subscribe`]: the other kind of load, in which many wait for messages and somebody publishes. It has a plan, a run and a record of
//!    its own.

mod answer;
pub mod arrivals;
mod backlog;
mod batch;
pub mod check;
mod connection;
mod core;
mod ending;
pub mod environment;
pub mod failure;
pub mod follow;
pub mod grade;
mod heat;
mod hints;
mod hope;
mod machine;
pub mod plan;
pub mod ports;
pub mod record;
pub mod request;
pub mod run;
pub mod script;
mod scripting;
mod slot;
pub mod subscribe;
pub mod tally;
mod unreadable;
pub mod watch;
mod worker;

pub use arrivals::{Arrivals, Spacing, Stage};
pub use check::Check;
pub use failure::{Failure, FailureCounts};
pub use follow::{Observer, Progress, RequestTimes, SecondHistograms};
pub use grade::{Bottleneck, Grade};
pub use plan::{ConnectTo, Draft, Load, Plan, Problems, Watching};
pub use record::Record;
pub use run::{RunError, run, run_then};
pub use script::{CoreScript, Heard, Script, ScriptError, Terms, Wanted};
