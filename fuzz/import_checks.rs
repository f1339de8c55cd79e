//! What must hold for any recording and any command line from which a script is written; one function for each fuzz
//! target. The fuzzer calls them with bytes it makes up; a test of the crate scenario calls them with those in
//! `corpus/`.
#![allow(dead_code)] // each target uses one of them

use oroshi_scenario::import::{self, Assets, Commands, Options};

/// A recording. The first byte says what becomes of assets and of secrets.
pub(crate) fn import_har(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else { return };
    let assets = [Assets::Page, Assets::List, Assets::None][usize::from(first % 3)];
    let options = Options { assets, keep_secrets: first & 64 != 0, ..Options::default() };
    let text = String::from_utf8_lossy(bytes);
    if let Ok(script) = import::from_har(&text, &options) {
        loads(&script);
        assert_eq!(import::from_har(&text, &options).ok().as_ref(), Some(&script), "the same each time");
    }
}

/// Command lines of curl; a file that they name has their own text.
pub(crate) fn import_curl(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let files = |_: &str| Ok(data.to_vec());
    if let Ok(script) = import::from_curl(Commands::Text(&text), &Options::default(), &files) {
        loads(&script);
    }
}

/// LuaJIT reads the script, and its top level declares a scenario and nothing else.
fn loads(script: &str) {
    let lua = mlua::Lua::new();
    let stubs =
        "function options() end function scenario(name, run) assert(type(run) == 'function') declared = true end";
    lua.load(stubs).exec().expect("stubs");
    lua.load(script).exec().unwrap_or_else(|error| panic!("{error}\n{script}"));
    assert!(lua.globals().get::<bool>("declared").unwrap_or(false), "no scenario\n{script}");
}
