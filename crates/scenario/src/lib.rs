//! Journeys of users, written in Lua.

#[allow(dead_code)] // used by the runtime
mod cache;
#[allow(dead_code)] // used by the runtime
mod cookies;
#[allow(dead_code)] // used by the runtime
mod sample;
