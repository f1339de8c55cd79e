//! Journeys of users, written in Lua: requests, pages, checks, data, a score.
//!
//! A script declares scenarios; each virtual user is a coroutine on its thread, and makes one journey after the other.
//! [`oroshi_bench`] keeps the time, and counts and judges requests; this crate knows what users do.
//!
//! Read it in this order:
//!
//! 1. [`Scenario`] (`scenario`): a script for runs. [`Settings`] (`settings`): what it says about its run. `detect`: is
//!    it a scenario at all?
//! 2. `journeys`: the users of a thread, when they begin, what they wait for, how they end. `user`, `thread`, `run`:
//!    what a user, the users of a thread, and all threads have.
//! 3. `state`: a Lua state. `api` and `prelude.lua`: the functions that scripts call.
//! 4. `request`: a user's request, with `cookies`, `cache` and redirects; `response`; `assets`, on `html`.
//! 5. `files`, `data`, `shared`, `random`, `ramp`, `sleeper`: rows, shared values, choices, numbers of users, pauses.
//! 6. `tally`, with `sample`: what is counted, and how it becomes the record.
//! 7. `part`: a run that several processes share.
//! 8. [`import`]: scripts from recordings and from curl's command lines.

mod api;
mod assets;
mod cache;
mod data;
mod detect;
mod files;
mod fulfil;
pub mod html;
pub mod import;
mod journeys;
mod part;
mod ramp;
mod random;
mod request;
mod response;
mod run;
mod sample;
mod scenario;
mod settings;
mod shared;
mod sleeper;
mod state;
mod tally;
mod thread;
mod user;

pub use detect::is_scenario;
pub use ramp::Ramp;
pub use scenario::{Options, PartOptions, Scenario};
pub use settings::{Model, Settings};
pub use thread::Tell;
