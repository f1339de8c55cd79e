//! Journeys of users, written in Lua.
