//! A LuaJIT state for one thread.
