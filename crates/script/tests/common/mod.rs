//! Scripts in their own files, and a time limit for tests that might hang.

use std::path::Path;
use std::time::Duration;

use mlua::Function;
use oroshi_script::{Engine, Error};

/// Runs a script's top level in a state with a time limit per call, then `work`, on a separate thread.
#[allow(dead_code, reason = "not every test file needs it")]
pub(crate) fn with<R: Send + 'static>(
    source: impl AsRef<[u8]>,
    limit: Duration,
    work: impl FnOnce(Result<Engine, Error>) -> R + Send + 'static,
) -> R {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.lua");
    std::fs::write(&file, source).unwrap();
    bounded(move || {
        let engine = Engine::new(&file, limit).unwrap();
        work(engine.load().map(|()| engine))
    })
}

/// Fails instead of hanging.
pub(crate) fn bounded<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    oroshi_testkit::bounded(oroshi_script::STACK_BYTES, work)
}

/// Returns a function of the script.
#[allow(dead_code, reason = "not every test file calls one")]
pub(crate) fn function(engine: &Engine, name: &str) -> Function {
    engine.lua().globals().get(name).unwrap()
}

/// Formats the error without the folder in its position.
pub(crate) fn told(error: &Error) -> String {
    let (path, line) = error.place.split_once(':').map_or((&*error.place, ""), |(path, line)| (path, line));
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    let what = error.what.replace(path, "a.lua");
    if line.is_empty() { format!("{name}: {what}") } else { format!("{name}:{line}: {what}") }
}
