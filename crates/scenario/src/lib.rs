//! Journeys of users, written in Lua.

#[allow(dead_code, unused_imports)]
mod data;
#[allow(dead_code)]
mod ramp;
#[allow(dead_code)]
mod random;
#[allow(dead_code)]
mod shared;
