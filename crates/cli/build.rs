//! What the linker is to know about the command.
#![allow(clippy::print_stdout, reason = "cargo reads what a build script prints")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Lua's own functions are visible to what a script loads: modules written in C (`require "cjson"`) call them.
    // A static binary loads no module in C, and its linker (zig's) does not know the flag.
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("musl") {
        return;
    }
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=lua*");
}
