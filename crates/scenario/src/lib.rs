//! Journeys of users, written in Lua.

pub mod import;
