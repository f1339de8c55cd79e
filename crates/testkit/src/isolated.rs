//! A test in a process of its own, where it may change what belongs to a process: limits, variables, descriptors,
//! signals.

use std::ffi::OsString;
use std::process::Command;

/// Returns a command that runs one ignored test of this binary. `wrapper` is a command that runs the command behind it;
/// an empty one is left out. `test` is the test's whole name; [`test_name!`](crate::test_name) makes it.
#[must_use]
pub fn in_a_process(wrapper: &[&str], test: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(OsString::from).chain([this.into()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--ignored", "--exact", "--nocapture", "--test-threads=1", test]);
    command
}

/// Runs such a command to its end. Panics unless exactly one test ran and passed.
#[track_caller]
pub fn must_pass(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}\n{errors}", output.status);
}

/// Returns a path without its first part, which names the crate.
#[must_use]
pub fn without_crate(path: &'static str) -> &'static str {
    path.split_once("::").expect("a path behind the crate's name").1
}
