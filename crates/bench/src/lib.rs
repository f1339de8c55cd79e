//! Load: a [`Plan`] says what to do, workers carry it out, a [`Record`] says what happened.
//!
//! This crate knows when requests are due, how to send them as fast as one core can, the name of each failure, and what
//! limited a run. It does not know flags, files or terminals: the command line makes a [`Draft`] and prints the record.
//!
//! One thread per core, each with its own connections, clock and counters; threads share nothing while requests flow.
//! Read it in this order:
//!
//! 1. [`plan`]: what to do. [`request`] and [`check`]: what to send, and what the responses must be.
//! 2. [`arrivals`]: when requests are due in an open loop. [`script`]: the interface of scripts; `scripting`, `batch`:
//!    how a core calls one. [`journey`]: the interface of users who do more than send requests in turn.
//! 3. `prepare`: what happens before the first request. `shared`: what workers share, and what they report. `worker`:
//!    one core from start to end; `silence`: when it gives up.
//! 4. `core`: what the connections of a core share, with `rules`, `dialer` and `first`. `slot`: the task of one slot.
//!    `connection`: one connection's life, the hot path; `http2`: the same with many streams. `answer`: the response
//!    that they read; `flight`: how a request is counted, whatever carries it.
//! 5. [`failure`], [`request_counts`] and [`tally`]: what is counted. `unreadable`: responses that are no HTTP.
//!    `ending`: whether the servers were there to the end.
//! 6. [`run`](mod@run): all of it together; [`follow`]: seen while it lasts (`heat`: its latencies). [`watch`] and
//!    [`environment`]: the server's side and the machine's; `machine`, `backlog`, [`ports`]: what else may have limited
//!    it.
//! 7. `assemble` puts the [`record`] together; [`grade`] and `hints` judge it.
//! 8. [`part`]: a run that several processes share: what each hands over, and how a coordinator puts it together.
//!    `server_watch`: the server's side of it, as the coordinator sees it.
//! 9. [`push`]: load on a push hub, with subscriptions and publishers. It uses the plan, preparation, connections,
//!    timetable, meters and grades of requests, and has its own connections, counters and record.
//!
//! **Circles.** `core` with `slots`, `stagger` and `tickets`, and `connection` with `end` and `scripted`: one type
//! each, its methods split by subject. `push/core` and `push/subscription`: a core opens subscriptions, and they report
//! to it.

mod answer;
pub mod arrivals;
mod assemble;
mod backlog;
mod batch;
pub mod check;
mod connection;
mod core;
mod course;
mod dialer;
mod ending;
pub mod environment;
mod error;
pub mod failure;
mod first;
mod flight;
pub mod follow;
pub mod grade;
mod heat;
mod hints;
mod http2;
pub mod journey;
mod machine;
pub mod part;
pub mod plan;
pub mod ports;
mod prepare;
pub mod push;
pub mod record;
pub mod request;
pub mod request_counts;
mod rules;
pub mod run;
pub mod script;
mod scripting;
mod server_watch;
mod shared;
mod silence;
mod slot;
pub mod tally;
mod unreadable;
pub mod watch;
mod worker;

pub use arrivals::{Arrivals, Spacing, Stage};
pub use check::Check;
pub use course::{Course, PointData};
pub use failure::{Failure, FailureCounts};
pub use follow::{Observer, Progress, RequestTimes, SecondHistograms};
pub use grade::{Bottleneck, Grade};
pub use journey::{CoreJourneys, Exchange, Journeys, Meter};
pub use part::{Delta, Part, PartObserver, Whole};
pub use plan::{ConnectTo, Draft, Http2, Load, Plan, Problems, Protocol, Watching};
pub use record::Record;
pub use request_counts::RequestCounts;
pub use run::{RunError, run, run_part, run_then};
pub use script::{CoreScript, ResponseParts, ResponseView, Script, ScriptError, ScriptFeatures};
pub use server_watch::ServerWatch;
