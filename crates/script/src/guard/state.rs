//! Makes states with their libraries.

use std::ffi::{c_int, c_void};
use std::ptr;

use mlua::{Function, Lua, LuaOptions, StdLib, ffi};

use super::stack;

/// Makes a state with all of LuaJIT's libraries.
pub(crate) fn new_state() -> mlua::Result<Lua> {
    // SAFETY: with `ffi` and `debug` a script may do anything that a program may. The user asked to run it as one.
    let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, LuaOptions::default()) };
    wrap_c_functions(&lua)?;
    Ok(lua)
}

/// Makes a state with a memory limit in bytes, and the libraries from which a confined script gets parts. `compiles`:
/// whether LuaJIT compiles.
pub(crate) fn new_confined_state(memory: usize, compiles: bool) -> mlua::Result<Lua> {
    let mut libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS | StdLib::BIT | StdLib::DEBUG;
    if compiles {
        // Opening it turns the compiler on.
        libraries |= StdLib::JIT;
    }
    // SAFETY: confine.lua removes `debug` before a script can use it.
    let lua = unsafe { Lua::unsafe_new_with(libraries, LuaOptions::default()) };
    wrap_c_functions(&lua)?;
    lua.set_memory_limit(memory)?;
    Ok(lua)
}

fn wrap_c_functions(lua: &Lua) -> mlua::Result<()> {
    let wrapper: unsafe extern "C-unwind" fn(*mut ffi::lua_State, ffi::lua_CFunction) -> u64 = call_c_function;
    // SAFETY: the wrapper has the signature that LuaJIT expects, with a wider result whose upper half is 0. It is
    // then removed from the stack.
    let wraps = unsafe {
        lua.exec_raw::<bool>((), |state| {
            ffi::lua_pushlightuserdata(state, wrapper as *mut c_void);
            let done = luaJIT_setmode(state, -1, MODE_WRAPCFUNC | MODE_ON);
            ffi::lua_pop(state, 1);
            ffi::lua_pushboolean(state, done);
        })?
    };
    if wraps { Ok(()) } else { Err(mlua::Error::runtime("LuaJIT does not call C functions through another")) }
}

/// Calls a C function for LuaJIT, with a clean upper half of the result, and a check of the stack.
///
/// LuaJIT reads all 64 bits of the result's register although the result has 32. Compilers may leave anything in the
/// upper half, and rustc does so for mlua's finalisers. Without this wrapper, memory is corrupted.
///
/// LuaJIT does not limit the use of the thread's stack by functions that call functions of the script; this wrapper
/// does. LuaJIT's own libraries bypass it: confine.lua handles those.
unsafe extern "C-unwind" fn call_c_function(state: *mut ffi::lua_State, function: ffi::lua_CFunction) -> u64 {
    if stack::is_low() && !ptr::fn_addr_eq(function, STACK_ENDS) && stack::ends() {
        // SAFETY: it leaves this function like an error of a C function, at the line that called it. No value with a
        // destructor is alive.
        unsafe { ffi::luaL_error(state, c"C stack overflow".as_ptr()) };
    }
    // SAFETY: LuaJIT would call it the same way.
    u64::from(unsafe { function(state) }.cast_unsigned())
}

/// Makes a function that returns whether too little of the thread's stack is left to call a function that may call
/// back.
pub(crate) fn stack_ends(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: a C function has stack space for some values, and this one leaves one.
    unsafe { lua.create_c_function(STACK_ENDS) }
}

const STACK_ENDS: ffi::lua_CFunction = tell_whether_stack_ends;

unsafe extern "C-unwind" fn tell_whether_stack_ends(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as above.
    unsafe { ffi::lua_pushboolean(state, c_int::from(stack::is_low() && stack::ends())) };
    1
}

// luajit.h
const MODE_WRAPCFUNC: c_int = 0x10;
const MODE_ON: c_int = 0x100;

unsafe extern "C-unwind" {
    fn luaJIT_setmode(state: *mut ffi::lua_State, index: c_int, mode: c_int) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one result, with other bits in the upper half of the register.
    unsafe extern "C-unwind" fn one(state: *mut ffi::lua_State) -> u64 {
        // SAFETY: a C function has stack space for some values.
        unsafe { ffi::lua_pushinteger(state, 7) };
        0xdead_beef_0000_0001
    }

    #[test]
    fn a_c_function_s_result_is_its_lower_half() {
        let lua = new_state().unwrap();
        // SAFETY: C treats both as one type of function: the upper half of a register with a 32-bit result is
        // undefined.
        let one = unsafe {
            type Wide = unsafe extern "C-unwind" fn(*mut ffi::lua_State) -> u64;
            lua.create_c_function(std::mem::transmute::<Wide, ffi::lua_CFunction>(one)).unwrap()
        };
        lua.globals().set("one", one).unwrap();
        let code = "local sum = 0 for i = 1, 1000 do sum = sum + one() end assert(select('#', one()) == 1) return sum";
        assert_eq!(lua.load(code).eval::<u32>().unwrap(), 7000);
    }
}
