//! A gateway for HTTP/1.1 and HTTP/2: finds the upstream of each request and forwards the request over kept
//! connections.
//!
//! **What it knows**: which route a request takes; which fields belong to one connection; which peers may say where a
//! request came from; when a retry is safe; pools of connections per target and core; balancing and ejection of failing
//! targets; the response where no upstream gives one.
//!
//! **What it does not know**: HTTP on the wire (`oroshi-http1`), a client connection's life (`oroshi-server`), how to
//! open sockets (`oroshi-net`), where a key's targets are stored (`oroshi-lookup`), files and flags.
//!
//! # Where to read
//!
//! 1. [`Draft`] (`draft`) and [`Plan`] (`plan`): a gateway's configuration before and after validation. [`Gate`]
//!    (`run`): the running gateway.
//! 2. [`route`]: which route a request takes. `site`: its handling on one core. `record`: its log entry. `generation`:
//!    the state that cores share. `admin`: the operators' pages.
//! 3. [`forward`]: one request to an upstream and its response; a route's settings for that.
//! 4. [`upstream`]: targets, their pools of connections, balancing. `failure`: how forwarding fails.
//! 5. `script`: scripts in Lua, their hooks and functions.
//! 6. [`access`]: the access log. [`limit`]: rate limits. `tls`: the certificates in force (`oroshi-certificates` finds
//!    them). `clients`: certificates of clients.
//!
//! **Circles.** `draft`, `forward`, `run` and `script` have the types that their own parts share: the parent calls its
//! parts, and they return its types. In `script`, LuaJIT also calls the functions of `api` back.

pub mod access;
mod admin;
mod clients;
mod draft;
mod failure;
pub mod forward;
mod generation;
pub mod limit;
mod plan;
mod record;
pub mod route;
mod run;
mod script;
mod site;
mod tls;
pub mod upstream;

pub use clients::{ClientRule, ClientSettings};
pub use draft::{Draft, KeyDraft, LookupDraft, RouteDraft, ScriptDraft, TlsDraft, UpstreamDraft};
pub use oroshi_script::panics_are_contained;
pub use plan::{
    Action, Answer, HashBy, KeyFrom, Limits, Listener, Lookup, Plan, Route, Script, Serves, Template, TemplateValues,
    Upstream,
};
pub use run::{Gate, OpenListener, RunError};
pub use script::{ErrorKind as ScriptErrorKind, Hook, HookSet, Modules, ScriptError, ScriptSettings};
pub use tls::{TlsPlan, TlsSettings};
