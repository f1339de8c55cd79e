//! The command's environment, and the superdaemon's settings in it.
//!
//! `start_server` passes its options on to the command as variables. It reads a folder of variables (`--envdir`, like
//! daemontools' envdir) at the beginning and on every event, and takes its own settings from the result. The first
//! reading of the folder stays: if a variable's file is removed later, the variable keeps its initial value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oroshi_words::units::parse_time;

use crate::machine::Tunables;

/// Default interval between automatic restarts.
const AUTO_RESTART: Duration = Duration::from_secs(360);
/// Default delay before older generations are told to stop, with automatic restarts.
const AUTO_KILL_OLD_DELAY: Duration = Duration::from_secs(5);
/// Longest value of a variable, bytes; longer ones are ignored.
const LONGEST: u64 = 1 << 20;

/// The folder of variables.
pub const ENVDIR: &str = "ENVDIR";
/// Switches automatic restarts on.
pub const ENABLE_AUTO_RESTART: &str = "ENABLE_AUTO_RESTART";
/// The interval between automatic restarts.
pub const AUTO_RESTART_INTERVAL: &str = "AUTO_RESTART_INTERVAL";
/// How long older generations keep serving.
pub const KILL_OLD_DELAY: &str = "KILL_OLD_DELAY";

/// The variables of the command.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The process's variables, the options, and the first reading of the folder.
    base: BTreeMap<OsString, OsString>,
    /// The last reading of the folder.
    folder: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Combines the process's variables with those of the options, and reads the folder; also returns its problems.
    pub fn new(
        own: impl IntoIterator<Item = (OsString, OsString)>,
        options: impl IntoIterator<Item = (&'static str, OsString)>,
    ) -> (Self, Vec<String>) {
        let mut base: BTreeMap<OsString, OsString> = own.into_iter().collect();
        base.extend(options.into_iter().map(|(name, value)| (OsString::from(name), value)));
        let mut environment = Self { base, folder: BTreeMap::new() };
        let problems = environment.reload();
        let first = environment.folder.clone();
        environment.base.extend(first);
        (environment, problems)
    }

    /// Reads the folder again; returns its problems.
    pub fn reload(&mut self) -> Vec<String> {
        let Some(folder) = self.envdir() else { return Vec::new() };
        let (read, problems) = read_folder(&folder);
        self.folder = read;
        problems
    }

    /// The folder of variables, if there is one.
    pub fn envdir(&self) -> Option<PathBuf> {
        self.base.get(OsStr::new(ENVDIR)).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Returns the present value of a variable.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let name = OsStr::new(name);
        self.folder.get(name).or_else(|| self.base.get(name)).map(OsString::as_os_str)
    }

    /// Returns every variable with its present value.
    pub fn variables(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let others = self.base.iter().filter(|(name, _)| !self.folder.contains_key(*name));
        self.folder.iter().chain(others).map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Returns the superdaemon's settings in the variables, and the problems in them.
    pub fn tunables(&self) -> (Tunables, Vec<String>) {
        let mut problems = Vec::new();
        let mut time = |name: &str, default: Duration| match self.text(name) {
            None => default,
            Some(text) => parse_time(&text).unwrap_or_else(|why| {
                problems.push(format!("{name}: {why}; taking {}s", default.as_secs_f64()));
                default
            }),
        };
        // Truth as in Perl, for compatibility.
        let enabled = self.get(ENABLE_AUTO_RESTART).is_some_and(|value| !value.is_empty() && value != "0");
        let interval = match time(AUTO_RESTART_INTERVAL, AUTO_RESTART) {
            Duration::ZERO => AUTO_RESTART,
            interval => interval,
        };
        let delay = if enabled { AUTO_KILL_OLD_DELAY } else { Duration::ZERO };
        let tunables =
            Tunables { kill_old_delay: time(KILL_OLD_DELAY, delay), auto_restart: enabled.then_some(interval) };
        (tunables, problems)
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(self.get(name)?.to_string_lossy().trim().to_owned()).filter(|text| !text.is_empty())
    }
}

/// Reads a variable from each file: its name, and its first line. Skips unreadable files and reports them.
fn read_folder(folder: &Path) -> (BTreeMap<OsString, OsString>, Vec<String>) {
    let mut read = BTreeMap::new();
    let mut problems = Vec::new();
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(error) => {
            problems.push(format!("cannot read the folder of variables {}: {error}", folder.display()));
            return (read, problems);
        }
    };
    for entry in entries.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let bytes = name.as_bytes();
        // Reading a pipe would block; a folder has no first line.
        if bytes.starts_with(b".") || bytes.contains(&b'=') || !path.is_file() {
            continue;
        }
        match first_line(&path) {
            Ok(Some(value)) => _ = read.insert(name, value),
            Ok(None) => {}
            Err(error) => problems.push(format!("cannot read the variable {}: {error}", path.display())),
        }
    }
    (read, problems)
}

/// `None` for an empty file, which sets nothing.
fn first_line(path: &Path) -> io::Result<Option<OsString>> {
    let mut line = Vec::new();
    BufReader::new(File::open(path)?.take(LONGEST)).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    // A variable cannot contain a NUL.
    line.truncate(line.iter().position(|byte| *byte == 0).unwrap_or(line.len()));
    Ok(Some(OsString::from_vec(line)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(own: &[(&str, &str)], options: &[(&'static str, &str)]) -> Environment {
        let own = own.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Environment::new(own, options.iter().map(|(name, value)| (*name, OsString::from(value)))).0
    }

    #[test]
    fn options_go_before_the_environment_and_the_folder_before_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        fs::write(folder.path().join("B"), "folder\nsecond line\n").unwrap();
        fs::write(folder.path().join(".C"), "hidden\n").unwrap();
        fs::write(folder.path().join("EMPTY"), "").unwrap();
        fs::write(folder.path().join("BLANK"), "\n").unwrap();
        fs::create_dir(folder.path().join("D")).unwrap();
        let mut environment = of(&[("A", "own"), ("B", "own"), (KILL_OLD_DELAY, "7")], &[(ENVDIR, path)]);
        let get = |environment: &Environment, name| environment.get(name).and_then(OsStr::to_str).map(str::to_owned);
        assert_eq!(get(&environment, "A").as_deref(), Some("own"));
        assert_eq!(get(&environment, "B").as_deref(), Some("folder"));
        assert_eq!(get(&environment, "BLANK").as_deref(), Some(""));
        assert_eq!([get(&environment, "EMPTY"), get(&environment, "D"), get(&environment, ".C")], [None, None, None]);
        assert_eq!(environment.tunables().0.kill_old_delay, Duration::from_secs(7));

        fs::write(folder.path().join("A"), "later").unwrap();
        fs::remove_file(folder.path().join("B")).unwrap();
        fs::write(folder.path().join(KILL_OLD_DELAY), "0.5\n").unwrap();
        assert_eq!(environment.reload(), Vec::<String>::new());
        assert_eq!(get(&environment, "A").as_deref(), Some("later"));
        assert_eq!(get(&environment, "B").as_deref(), Some("folder"), "as start_server has it");
        assert_eq!(environment.tunables().0.kill_old_delay, Duration::from_millis(500));
        fs::remove_file(folder.path().join("A")).unwrap();
        environment.reload();
        assert_eq!(get(&environment, "A").as_deref(), Some("own"));
        let names: Vec<_> = environment.variables().filter(|(name, _)| *name == "A").collect();
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_told() {
        let (mut environment, problems) = Environment::new([], [(ENVDIR, "/no/such/folder".into())]);
        assert!(problems[0].contains("/no/such/folder"), "{problems:?}");
        assert_eq!(environment.reload().len(), 1);
    }

    #[test]
    fn settings_are_understood_as_start_server_does() {
        let tunables = |variables: &[(&str, &str)]| of(variables, &[]).tunables();
        let both = |kill_old_delay, auto_restart: Option<u64>| Tunables {
            kill_old_delay: Duration::from_secs(kill_old_delay),
            auto_restart: auto_restart.map(Duration::from_secs),
        };
        assert_eq!(tunables(&[]).0, both(0, None));
        assert_eq!(tunables(&[(ENABLE_AUTO_RESTART, "1")]).0, both(5, Some(360)));
        assert_eq!(tunables(&[(ENABLE_AUTO_RESTART, "0")]).0, both(0, None));
        assert_eq!(tunables(&[(ENABLE_AUTO_RESTART, "1"), (KILL_OLD_DELAY, "0")]).0, both(0, Some(360)));
        let interval = [(ENABLE_AUTO_RESTART, "1"), (AUTO_RESTART_INTERVAL, "60")];
        assert_eq!(tunables(&interval).0, both(5, Some(60)));
        assert_eq!(tunables(&[(AUTO_RESTART_INTERVAL, "60")]).0, both(0, None));
        let (taken, problems) = tunables(&[(KILL_OLD_DELAY, "soon")]);
        assert_eq!(taken, both(0, None));
        assert!(problems[0].contains("KILL_OLD_DELAY") && problems[0].contains("soon"), "{problems:?}");
    }
}
