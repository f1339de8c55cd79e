//! An HTTP/1.1 gateway: it finds the server of each request, and carries the request there over connections that are kept.
//!
//! **What it knows**: which route a request takes; which fields belong to one connection and which go on; who is trusted to say where a request came from; when a
//! request may be sent twice; pools of connections for each target and core, choosing among targets, leaving out those that fail;
//! what to answer when there is no answer.
//!
//! **What it does not know**: how bytes are read as HTTP (`oroshi-http1`), the life of a client's connection (`oroshi-server`), how
//! sockets are opened (`oroshi-net`), where a key's targets stand (`oroshi-lookup`), files and flags.
//!
//! # Where to read
//!
//! 1. [`Draft`] (`draft`) and [`Plan`] (`plan`): a gateway as somebody described it, and as it is carried out. [`Gate`] (`run`): at work.
//! 2. [`route`]: which route a request takes. `site`: what happens to it on one core, `record`: what is told of it. `generation`: what cores share. `admin`: what operators ask.
//! 3. [`forward`]: one request there and its answer back; what a route may ask for.
//! 4. [`upstream`]: targets, their pools of connections, the choice among several. `failure`: how either of the two can fail.
//! 5. [`access`]: the log.

pub mod access;
mod admin;
mod draft;
mod failure;
pub mod forward;
mod generation;
mod plan;
mod record;
pub mod route;
mod run;
mod script;
mod site;
pub mod upstream;

pub use draft::{Draft, KeyDraft, LookupDraft, RouteDraft, ScriptDraft, UpstreamDraft};
pub use oroshi_script::panics_are_contained;
pub use plan::{
    Action, Answer, Door, Filling, HashBy, KeyFrom, Limits, Lookup, Plan, Route, Script, Serves, Template, Upstream,
};
pub use run::{Bound, Gate, RunError};
pub use script::{ErrorKind as ScriptErrorKind, Hook, HookSet, Modules, ScriptError, ScriptSettings};
