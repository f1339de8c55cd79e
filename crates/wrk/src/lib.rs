//! wrk's Lua API, as the script of a load.
