//! Finds programs and CPUs of this machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use oroshi_net::{CpuList, Shutdown, available_cpus, two_cpus};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process_group};

/// Folders of servers, which users' PATH may lack.
const SERVERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// The timeout of a requirement's command.
const PATIENCE: Duration = Duration::from_secs(20);
/// The maximum of its output that is kept.
const MAX_OUTPUT: usize = 16 * 1024;

/// The machine's resources.
#[derive(Debug)]
pub struct Machine {
    path: Vec<PathBuf>,
    /// CPUs that this process may use; `None`: unknown.
    pub cpus: Option<CpuList>,
    /// Two of them on different cores: one for the load, one for the servers.
    pub cpu_pair: Option<(usize, usize)>,
    /// A shutdown request ends required commands; `None`: no command runs.
    shutdown: Option<Shutdown>,
    /// Required commands, each with its failure if it ran and failed.
    commands: RefCell<BTreeMap<String, Option<String>>>,
}

/// The result of looking for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Found by its name.
    InPath,
    /// Found here, outside the search path.
    At(PathBuf),
    /// Not found.
    Missing,
}

impl Machine {
    /// Describes this machine without running commands.
    #[must_use]
    pub fn this() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            path: std::env::split_paths(&path).collect(),
            cpus: available_cpus().ok(),
            cpu_pair: two_cpus(),
            shutdown: None,
            commands: RefCell::default(),
        }
    }

    /// Describes this machine, and runs required commands until `shutdown` is requested.
    #[must_use]
    pub fn tried_out(shutdown: Shutdown) -> Self {
        Self { shutdown: Some(shutdown), ..Self::this() }
    }

    /// Returns the required commands that were not run.
    #[must_use]
    pub fn untried(&self) -> Vec<String> {
        if self.shutdown.is_some() { Vec::new() } else { self.commands.borrow().keys().cloned().collect() }
    }

    /// Looks for a program by name. `path`: the PATH of its process, if it differs from ours.
    pub(crate) fn program(&self, name: &str, path: Option<&str>) -> Program {
        let own = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>());
        let folders = own.as_ref().unwrap_or(&self.path);
        // Folders with placeholders, and relative ones, are unknown before the start.
        let is_open = |folder: &PathBuf| folder.is_relative() || folder.to_string_lossy().contains("{{");
        if folders.iter().any(|folder| is_program(&folder.join(name)) || (own.is_some() && is_open(folder))) {
            return Program::InPath;
        }
        let elsewhere = SERVERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| is_program(path));
        elsewhere.map_or(Program::Missing, Program::At)
    }

    /// Returns why a requirement is missing: `nginx is not installed`. A requirement of several words is a command that
    /// must succeed, if commands run.
    pub(crate) fn lacks(&self, requirement: &str) -> Option<String> {
        let words = shell_words::split(requirement).unwrap_or_default();
        let program = words.first()?;
        let found = program.contains('/') && is_program(Path::new(program));
        let program = match self.program(program, None) {
            Program::Missing if !found => return Some(format!("{program} is not installed")),
            Program::At(path) => path,
            _ => PathBuf::from(program),
        };
        if words.len() == 1 {
            return None;
        }
        let mut commands = self.commands.borrow_mut();
        let tried =
            || self.shutdown.as_ref().and_then(|shutdown| failure(requirement, &program, &words[1..], shutdown));
        commands.entry(requirement.to_owned()).or_insert_with(tried).clone()
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Runs a command, and returns why it failed. Ends its process group afterwards.
fn failure(command: &str, program: &Path, arguments: &[String], shutdown: &Shutdown) -> Option<String> {
    let mut started = Command::new(program);
    started.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = match started.spawn() {
        Ok(child) => child,
        Err(error) => return Some(format!("`{command}` cannot be run: {error}")),
    };
    let mut said = Said { stderr: child.stderr.take(), text: Vec::new() };
    let ended = wait(&mut child, &mut said, shutdown);
    // Without remaining processes, the group no longer exists.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let Some(status) = ended else {
        let _ = child.wait();
        return Some(match shutdown.count() {
            0 => format!("`{command}` has not ended after {} seconds", PATIENCE.as_secs()),
            _ => format!("`{command}` was ended by Ctrl-C"),
        });
    };
    if status.success() {
        return None;
    }
    let said = String::from_utf8_lossy(&said.text);
    let reason = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim();
    // The end of a long line has the reason; the beginning says where it happened.
    let reason = if reason.len() > 80 { reason.rsplit(": ").next().unwrap_or(reason) } else { reason };
    Some(format!("`{command}` fails: {reason}"))
}

/// Waits for the end; `None` if the command did not end in time.
fn wait(child: &mut Child, said: &mut Said, shutdown: &Shutdown) -> Option<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && shutdown.count() == 0 {
        let ended = child.try_wait().ok()?;
        said.read();
        if ended.is_some() {
            return ended;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// The standard error of a command. It is not read to its end, because other processes may hold it open for long.
struct Said {
    stderr: Option<ChildStderr>,
    text: Vec<u8>,
}

impl Said {
    /// Reads available output.
    fn read(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        if ioctl_fionbio(&*stderr, true).is_err() {
            return;
        }
        let mut part = [0; 4096];
        // Limits the reads, for a command that never stops writing.
        for _ in 0..64 {
            match stderr.read(&mut part) {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    let room = MAX_OUTPUT.saturating_sub(self.text.len());
                    self.text.extend_from_slice(&part[..n.min(room)]);
                }
            }
        }
    }
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
        assert_eq!(machine.program("server", None), Program::Missing, "it is no program yet");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(machine.program("server", None), Program::InPath);
        assert_eq!((machine.lacks("server"), machine.lacks(program.to_str().unwrap())), (None, None));
        assert_eq!(machine.lacks("surely-not-here -v").unwrap(), "surely-not-here is not installed");
        assert_eq!(machine.program("server", Some("/nonexistent")), Program::Missing, "it is not looked for elsewhere");
        let elsewhere = Machine { path: Vec::new(), ..Machine::this() };
        assert_eq!(elsewhere.program("server", Some(folder.path().to_str().unwrap())), Program::InPath);
        for unknown in ["/nonexistent:{{dir}}/bin", "bin"] {
            assert_eq!(elsewhere.program("server", Some(unknown)), Program::InPath, "it may be there by then");
        }
    }

    #[test]
    fn a_command_that_is_required_must_succeed() {
        let machine = Machine::tried_out(Shutdown::new());
        assert_eq!(machine.lacks("sh -c 'exit 0'"), None);
        let why = machine.lacks("sh -c 'echo no such gem >&2; exit 3'").unwrap();
        assert!(why.ends_with("fails: no such gem"), "{why}");
        assert!(machine.lacks("sh -c 'exit 1'").unwrap().ends_with("it says nothing"));
        assert!(machine.untried().is_empty());
    }

    #[test]
    fn a_machine_that_is_only_looked_at_runs_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let command = format!("sh -c 'touch {}'", folder.path().join("ran").display());
        let machine = Machine::this();
        assert_eq!(machine.lacks(&command), None);
        assert_eq!(machine.lacks("surely-not-here -v").unwrap(), "surely-not-here is not installed");
        assert_eq!(machine.untried(), [command]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_command_leaves_behind_is_ended_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let command = format!("sh -c 'sleep 600 & echo $! > {}; echo why >&2; exit 1'", pid.display());
        let why = Machine::tried_out(Shutdown::new()).lacks(&command).unwrap();
        assert!(why.ends_with("fails: why"), "{why}");
        let left = std::fs::read_to_string(pid).unwrap();
        let status = || std::fs::read_to_string(format!("/proc/{}/stat", left.trim())).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(60);
        // The process was told to end; without a waiting parent it remains as a zombie.
        while status().split(") ").nth(1).is_some_and(|rest| !rest.starts_with('Z')) {
            assert!(Instant::now() < deadline, "{}", status());
            std::thread::yield_now();
        }
    }

    #[test]
    fn ctrl_c_ends_a_command_that_is_tried() {
        let shutdown = Shutdown::new();
        shutdown.request();
        let why = Machine::tried_out(shutdown).lacks("sleep 600").unwrap();
        assert_eq!(why, "`sleep 600` was ended by Ctrl-C");
    }
}
