//! States, and what there is in them.

use std::ffi::{c_int, c_void};
use std::ptr;

use mlua::{Function, Lua, LuaOptions, StdLib, ffi};

use super::stack;

/// A state with all of LuaJIT's libraries.
pub(crate) fn new_state() -> mlua::Result<Lua> {
    // SAFETY: with `ffi` and `debug` a script may do whatever a program may. It is one, and the user has asked for it to be run.
    let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, LuaOptions::default()) };
    wrap_c_functions(&lua)?;
    Ok(lua)
}

/// A state that may use so many bytes, with the libraries that a confined script may have parts of. Whether LuaJIT compiles in it.
pub(crate) fn new_confined_state(memory: usize, compiles: bool) -> mlua::Result<Lua> {
    let mut libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS | StdLib::BIT | StdLib::DEBUG;
    if compiles {
        // Opening it is what turns the compiler on.
        libraries |= StdLib::JIT;
    }
    // SAFETY: `debug` is taken away before a script can get at it (confine.lua).
    let lua = unsafe { Lua::unsafe_new_with(libraries, LuaOptions::default()) };
    wrap_c_functions(&lua)?;
    lua.set_memory_limit(memory)?;
    Ok(lua)
}

fn wrap_c_functions(lua: &Lua) -> mlua::Result<()> {
    let wrapper: unsafe extern "C-unwind" fn(*mut ffi::lua_State, ffi::lua_CFunction) -> u64 = call_c_function;
    // SAFETY: the wrapper is what LuaJIT wants of one, its result being wider by a half that is 0. It is taken off the stack again.
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

/// Calls a C function for LuaJIT, which takes all 64 bits of the register for the result although it is 32 of them: what stands in the
/// others is for compilers to choose, and rustc's choice for mlua's finalisers is not 0. Without this, memory is corrupted.
///
/// LuaJIT has no measure for the thread's own stack, which functions take that call functions of the script; here it is bounded. LuaJIT's own
/// libraries do not come by here: confine.lua sees to those.
unsafe extern "C-unwind" fn call_c_function(state: *mut ffi::lua_State, function: ffi::lua_CFunction) -> u64 {
    if stack::is_low() && !ptr::fn_addr_eq(function, STACK_ENDS) && stack::ends() {
        // SAFETY: it leaves this function as an error of a C function does, at the line that called it. Nothing that has a destructor is alive.
        unsafe { ffi::luaL_error(state, c"C stack overflow".as_ptr()) };
    }
    // SAFETY: LuaJIT would call it in the same way.
    u64::from(unsafe { function(state) }.cast_unsigned())
}

/// A function that tells whether there is too little of the thread's stack left to call what may call back.
pub(crate) fn stack_ends(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: a C function has room for some values, and this one leaves one.
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

    /// One result, and something in the half of the register that is not the result's.
    unsafe extern "C-unwind" fn one(state: *mut ffi::lua_State) -> u64 {
        // SAFETY: a C function has room for some values.
        unsafe { ffi::lua_pushinteger(state, 7) };
        0xdead_beef_0000_0001
    }

    #[test]
    fn a_c_function_s_result_is_its_lower_half() {
        let lua = new_state().unwrap();
        // SAFETY: as C has it, these are one kind of function: the upper half of a register that holds 32 bits is anything.
        let one = unsafe {
            type Wide = unsafe extern "C-unwind" fn(*mut ffi::lua_State) -> u64;
            lua.create_c_function(std::mem::transmute::<Wide, ffi::lua_CFunction>(one)).unwrap()
        };
        lua.globals().set("one", one).unwrap();
        let code = "local sum = 0 for i = 1, 1000 do sum = sum + one() end assert(select('#', one()) == 1) return sum";
        assert_eq!(lua.load(code).eval::<u32>().unwrap(), 7000);
    }
}
