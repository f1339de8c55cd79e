//! `os.execute` for scripts, without the signal handling of the C library's `system`.
//!
//! `system` makes the whole process ignore SIGINT while the command runs, so a Ctrl-C is lost and the run continues.
//! This one leaves signals alone, and ends the command when the run must end.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use mlua::{Lua, LuaString, Table};
use oroshi_net::Shutdown;

/// Pause between two checks of the command: from the first value, doubled up to the second.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(20));

/// Replaces LuaJIT's own function. `shutdown` counts Ctrl-C.
pub(crate) fn replace(lua: &Lua, globals: &Table, shutdown: Option<Shutdown>) -> mlua::Result<()> {
    let os: Table = globals.raw_get("os")?;
    let execute = lua.create_function(move |_, command: Option<LuaString>| {
        // Without a command the function asks whether there is a shell.
        let Some(command) = command else { return Ok(1.0) };
        let shell = Command::new("/bin/sh").arg("-c").arg(text(&command)).spawn();
        let Ok(mut shell) = shell else { return Ok(-1.0) };
        let ended = wait(&mut shell, || shutdown.as_ref().is_some_and(|shutdown| shutdown.count() > 0));
        // Like `system`: the exit code is in the second byte.
        ended.map(|status| f64::from(status.into_raw())).map_err(mlua::Error::runtime)
    })?;
    os.raw_set("execute", execute)
}

fn text(command: &LuaString) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(command.as_bytes().to_vec())
}

fn wait(shell: &mut Child, interrupted: impl Fn() -> bool) -> Result<ExitStatus, String> {
    let mut look = POLL_INTERVAL.0;
    loop {
        match shell.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if interrupted() => {
                // If the kill fails, the shell has ended.
                let _ = shell.kill();
                let _ = shell.wait();
                return Err("os.execute was interrupted".into());
            }
            Ok(None) => {
                std::thread::sleep(look);
                look = (look * 2).min(POLL_INTERVAL.1);
            }
            Err(error) => return Err(format!("os.execute: {error}")),
        }
    }
}
