//! What this machine has: programs, CPUs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oroshi_net::{CpuList, available_cpus};

use crate::child::two_cpus;

/// Where servers live on systems whose users do not have these folders in their PATH.
const SERVERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// A test whether something is installed takes no longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What an experiment may need.
#[derive(Debug)]
pub(super) struct Machine {
    path: Vec<PathBuf>,
    /// CPUs that this process may use; `None`: unknown.
    pub(super) cpus: Option<CpuList>,
    /// Two of them on different cores: one for the load, one for the servers.
    pub(super) apart: Option<(usize, usize)>,
    /// Commands that have been tried, and why they failed.
    tried: RefCell<BTreeMap<String, Option<String>>>,
}

/// A program that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// It is found by its name.
    Named,
    /// It is here, where a search by name does not look.
    At(PathBuf),
    /// It is nowhere.
    Missing,
}

impl Machine {
    /// This one.
    pub(super) fn this() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            path: std::env::split_paths(&path).collect(),
            cpus: available_cpus().ok(),
            apart: two_cpus(),
            tried: RefCell::default(),
        }
    }

    /// Looks for a program by its name.
    pub(super) fn program(&self, name: &str) -> Program {
        if self.path.iter().any(|folder| is_program(&folder.join(name))) {
            return Program::Named;
        }
        let elsewhere = SERVERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| is_program(path));
        elsewhere.map_or(Program::Missing, Program::At)
    }

    /// Why something that is required is not there: `nginx is not installed`. Several words are a command that must succeed.
    pub(super) fn lacks(&self, requirement: &str) -> Option<String> {
        let words = shell_words::split(requirement).unwrap_or_default();
        let program = words.first()?;
        let found = program.contains('/') && is_program(Path::new(program));
        let program = match self.program(program) {
            Program::Missing if !found => return Some(format!("{program} is not installed")),
            Program::At(path) => path,
            _ => PathBuf::from(program),
        };
        if words.len() == 1 {
            return None;
        }
        let mut tried = self.tried.borrow_mut();
        tried.entry(requirement.to_owned()).or_insert_with(|| failure(requirement, &program, &words[1..])).clone()
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Why a command does not succeed.
fn failure(command: &str, program: &Path, arguments: &[String]) -> Option<String> {
    let spawned =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Some(format!("`{command}` cannot be run: {error}")),
    };
    let said = child.stderr.take().map(|mut stderr| {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            // What it said until an error is what there is to tell.
            let _ = stderr.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        })
    });
    let ended = wait(&mut child);
    if ended == Some(true) {
        return None;
    }
    if ended.is_none() {
        // Both fail only when it has just ended.
        let _ = child.kill();
        let _ = child.wait();
        return Some(format!("`{command}` has not ended after {} seconds", PATIENCE.as_secs()));
    }
    let said = said.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let reason = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim();
    // The end of a long line is what it comes to: where it happened is said before.
    let reason = if reason.len() > 80 { reason.rsplit(": ").next().unwrap_or(reason) } else { reason };
    Some(format!("`{command}` fails: {reason}"))
}

/// Whether it succeeded; `None`: it has not ended.
fn wait(child: &mut Child) -> Option<bool> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return Some(false),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("server");
        std::fs::write(&program, "").unwrap();
        let machine = Machine { path: vec![folder.path().to_owned()], ..Machine::this() };
        assert_eq!(machine.program("server"), Program::Missing, "it is no program yet");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(machine.program("server"), Program::Named);
        assert_eq!((machine.lacks("server"), machine.lacks(program.to_str().unwrap())), (None, None));
        assert_eq!(machine.lacks("surely-not-here -v").unwrap(), "surely-not-here is not installed");
    }

    #[test]
    fn a_command_that_is_required_must_succeed() {
        let machine = Machine::this();
        assert_eq!(machine.lacks("sh -c 'exit 0'"), None);
        let why = machine.lacks("sh -c 'echo no such gem >&2; exit 3'").unwrap();
        assert!(why.ends_with("fails: no such gem"), "{why}");
        assert!(machine.lacks("sh -c 'exit 1'").unwrap().ends_with("it says nothing"));
    }
}
