//! What the linker is to know about the command.
#![allow(clippy::print_stdout, reason = "cargo reads what a build script prints")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Lua's own functions are visible to what a script loads: modules written in C (`require "cjson"`) call them.
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=lua*");
}
