//! Servers that are ready to be measured, and commands that run to their end.

mod error;
mod output;
mod ready;

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use oroshi_net::process::children;
use oroshi_net::{CpuList, Endpoint};
use regex_lite::Regex;
use rustix::process::Signal;

use crate::keeper::{Ended, Keeper, KeeperError, Reply, Request};
use crate::plan::{Ready, Server, Stop};
use crate::program;
use crate::result::Program;
use crate::template::{TemplateError, Values, fill, names};
use crate::workspace::Workspace;
use output::Output;

pub use error::{RunError, StartError, StopError};

/// How often to ask whether to end, and whether a server is ready. Also the time that another server has to answer at
/// our server's address.
const OTHERS: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(20);
/// Limit for a setup step, which may download or compile.
const SETUP: Duration = Duration::from_secs(600);
/// First limit for a server's answer; each further attempt doubles it.
const FIRST_PATIENCE: Duration = Duration::from_secs(1);
/// Lines of output in an error.
const LINES: usize = 20;
/// Bytes kept of a command's output.
const OUTPUT: usize = 16 * 1024;

/// The environment of started processes.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The command that [keeps](crate::keeper::keep) them.
    pub keeper: &'a [OsString],
    /// Their CPUs; `None`: any.
    pub cpus: Option<&'a CpuList>,
    /// The file that receives their standard output and error.
    pub output: &'a Path,
    /// Values of the names that all servers share: `oroshi`, `cpus.server`, `cpus.load`, `ip.MACHINE`.
    pub values: &'a Values,
}

/// A server that became ready. Dropping it ends the server, and so does any end of this process.
#[derive(Debug)]
pub struct Running {
    /// `None` once stopped.
    keeper: Option<Keeper>,
    keeper_pid: u32,
    /// The command's leading process.
    leader: u32,
    values: Values,
    program: Option<Program>,
    output: Output,
    /// How it ended, if it ended by itself.
    ended: Option<String>,
    stop: Signal,
    grace: Duration,
}

impl Running {
    /// Starts a server: writes its files, runs its setup steps, starts it, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready. Then everything has been ended again, the teardown steps have run, and the folder
    /// is gone; failures of these are in the error too ([`StartError::AndEnd`]).
    pub fn start(
        server: &Server,
        launch: &Launch<'_>,
        cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<Self, StartError> {
        let workspace = Workspace::choose();
        let filled = Filled::new(server, &workspace, launch.values)?;
        let output = Output::from_now(launch.output)
            .map_err(|source| StartError::Output { path: launch.output.display().to_string(), source })?;
        let keeper = Keeper::start(launch.keeper, launch.cpus, Some(workspace.folder()), launch.output)?;
        let mut running = Self {
            keeper_pid: keeper.pid(),
            keeper: Some(keeper),
            leader: 0,
            values: filled.values.clone(),
            program: None,
            output,
            ended: None,
            stop: signal(server.stop),
            grace: server.stop_timeout,
        };
        let Err(start) = running.bring_up(server, &filled, workspace.folder(), cancelled) else { return Ok(running) };
        Err(match running.stop() {
            Ok(()) => start,
            Err(end) => StartError::AndEnd { start: Box::new(start), end },
        })
    }

    /// Returns the values of this server's names: ports, sockets and folder.
    #[must_use]
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the started file, if it can be found.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// Returns the started process, or its keeper if it left other processes behind: all of the server's processes
    /// descend from the result.
    #[must_use]
    pub fn pid(&self) -> u32 {
        if children(self.keeper_pid) == [self.leader] { self.leader } else { self.keeper_pid }
    }

    /// Returns how it ended, if it did so by itself: `exit code 3`. An end becomes known after a moment.
    pub fn ended(&mut self) -> Option<String> {
        while self.ended.is_none() {
            let keeper = self.keeper.as_mut()?;
            match keeper.next(Duration::ZERO) {
                Ok(None) => break,
                // A server that daemonizes leaves another process behind.
                Ok(Some(Reply::Ended(Ended { code: Some(0), others: true, .. }))) => {}
                Ok(Some(Reply::Ended(Ended { how, .. }) | Reply::Gone(how))) => self.ended = Some(how),
                Ok(Some(Reply::Done(_))) => {
                    self.ended = Some("somebody told the process that keeps it to end".to_owned());
                }
                Ok(Some(Reply::Ready | Reply::Started(_) | Reply::Failed(_))) => {}
                Err(error) => self.ended = Some(error.to_string()),
            }
        }
        self.ended.clone()
    }

    /// Returns the last lines that the server and its setup steps have written, at most `count`.
    #[must_use]
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        self.output.last_lines(count)
    }

    /// Stops it: signal, grace period, kill; then runs the teardown steps and removes the folder.
    ///
    /// # Errors
    /// When something of that failed. The server has ended all the same, except for processes that the error names.
    pub fn stop(mut self) -> Result<(), StopError> {
        let Some(keeper) = self.keeper.take() else { return Ok(()) };
        let done = keeper.stop(self.stop, self.grace)?;
        if done.troubles.is_empty() { Ok(()) } else { Err(StopError::Troubles(done.troubles)) }
    }

    fn bring_up(
        &mut self,
        server: &Server,
        filled: &Filled,
        folder: &Path,
        cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), StartError> {
        for (path, text) in &filled.files {
            write(folder, path, text)?;
        }
        let keeper = self.keeper()?;
        for (name, value) in &filled.env {
            keeper.tell(&Request::Env(name.into(), value.into()))?;
        }
        let working = server.folder.as_deref().unwrap_or(folder);
        keeper.tell(&Request::Folder(working.into()))?;
        for words in &filled.teardown {
            keeper.tell(&Request::Teardown(words.iter().map(OsString::from).collect()))?;
        }
        for url in &filled.urls {
            if ready::answers(url, OTHERS, cancelled).is_ok() {
                return Err(StartError::Taken { url: url.to_string() });
            }
        }
        for words in &filled.setup {
            self.step(words, cancelled)?;
        }
        self.output.look_from_now();
        self.leader = self.keeper()?.run(&filled.start).map_err(|error| match error {
            KeeperError::Failed(why) => StartError::Program(why),
            error => error.into(),
        })?;
        self.program = filled.start.first().and_then(|word| program::find(word, &filled.env, working));
        match &server.ready {
            Ready::Line(pattern) => self.until_line(pattern, server.ready_timeout, cancelled),
            Ready::Answers(_) => self.until_answers(&filled.urls, server.ready_timeout, cancelled),
        }
    }

    /// Runs a setup step to its end; it must succeed.
    fn step(&mut self, words: &[String], cancelled: &mut dyn FnMut() -> bool) -> Result<(), StartError> {
        let deadline = Instant::now() + SETUP;
        let how = match self.keeper()?.run(words) {
            Ok(_) => loop {
                if cancelled() {
                    return Err(StartError::Cancelled);
                }
                match self.keeper()?.next(LOOK)? {
                    Some(Reply::Ended(Ended { code: Some(0), .. })) => return Ok(()),
                    Some(Reply::Ended(Ended { how, .. })) => break how,
                    _ if Instant::now() >= deadline => break format!("not done within {} s", SETUP.as_secs()),
                    _ => {}
                }
            },
            Err(KeeperError::Failed(why)) => why,
            Err(error) => return Err(error.into()),
        };
        Err(StartError::Setup { command: shell_words::join(words), how, output: self.last_lines(LINES) })
    }

    fn until_line(
        &mut self,
        pattern: &Regex,
        patience: Duration,
        cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), StartError> {
        let deadline = Instant::now() + patience;
        loop {
            // Asks for the end first, so that the last words are not missed.
            let ended = self.ended();
            let found = self.output.has_line(pattern);
            if found.as_ref().is_ok_and(|found| *found) {
                return Ok(());
            }
            if let Some(how) = ended {
                return Err(StartError::Ended { how, output: self.last_lines(LINES) });
            }
            if Instant::now() >= deadline {
                let why = match found {
                    Ok(_) => format!("no line matches /{pattern}/"),
                    Err(error) => format!("its output cannot be read: {error}"),
                };
                return Err(StartError::NotReady { waited: patience, why, output: self.last_lines(LINES) });
            }
            if cancelled() {
                return Err(StartError::Cancelled);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn until_answers(
        &mut self,
        urls: &[Endpoint],
        patience: Duration,
        cancelled: &mut dyn FnMut() -> bool,
    ) -> Result<(), StartError> {
        let deadline = Instant::now() + patience;
        for url in urls {
            let mut attempt = FIRST_PATIENCE;
            loop {
                let asked = Instant::now();
                let timeout = attempt.min(deadline.saturating_duration_since(asked)).max(LOOK);
                let Err(why) = ready::answers(url, timeout, &mut || cancelled() || self.ended().is_some()) else {
                    break;
                };
                if cancelled() {
                    return Err(StartError::Cancelled);
                }
                if let Some(how) = self.ended() {
                    return Err(StartError::Ended { how, output: self.last_lines(LINES) });
                }
                if Instant::now() >= deadline {
                    let why = format!("{url}: {why}");
                    return Err(StartError::NotReady { waited: patience, why, output: self.last_lines(LINES) });
                }
                // A refusal or another answer came at once: more time would not have helped.
                if asked.elapsed() >= timeout {
                    attempt = attempt.saturating_mul(2).min(patience);
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    fn keeper(&mut self) -> Result<&mut Keeper, KeeperError> {
        self.keeper.as_mut().ok_or(KeeperError::Lost)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            // Nobody is left to report to.
            let _ = keeper.stop(self.stop, self.grace);
        }
    }
}

/// A command that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Its exit code; `None`: ended by a signal.
    pub code: Option<i32>,
    /// How it ended, in words: `exit code 0`.
    pub how: String,
    /// Its duration, seconds.
    pub elapsed_s: f64,
    /// CPU time of the command and all descendants, seconds, in steps of 10 ms.
    pub cpu_s: f64,
    /// Its output, at most the last 16 KiB.
    pub output: String,
}

/// Runs a command, templates filled in, to its end; then ends what it left behind.
///
/// # Errors
/// When it does not start, exceeds its limit, or `cancelled` ends it. A failing command is no error.
pub fn run_to_end(
    words: &[String],
    env: &[(String, String)],
    folder: &Path,
    launch: &Launch<'_>,
    timeout: Duration,
    cancelled: &mut dyn FnMut() -> bool,
) -> Result<Finished, RunError> {
    let output = Output::from_now(launch.output)
        .map_err(|source| RunError::Output { path: launch.output.display().to_string(), source })?;
    let mut keeper = Keeper::start(launch.keeper, launch.cpus, None, launch.output)?;
    for (name, value) in env {
        keeper.tell(&Request::Env(name.into(), value.into()))?;
    }
    keeper.tell(&Request::Folder(folder.into()))?;
    keeper.run(words).map_err(|error| match error {
        KeeperError::Failed(why) => RunError::Program(why),
        error => error.into(),
    })?;
    let deadline = Instant::now() + timeout;
    let ended = loop {
        if cancelled() {
            return Err(RunError::Cancelled);
        }
        match keeper.next(LOOK)? {
            Some(Reply::Ended(ended)) => break ended,
            Some(Reply::Done(_)) => return Err(KeeperError::Lost.into()),
            _ => {}
        }
        if Instant::now() >= deadline {
            let command = shell_words::join(words);
            return Err(RunError::Timeout { command, after: timeout, output: output.last_lines(LINES) });
        }
    };
    let done = keeper.stop(Signal::KILL, Duration::ZERO)?;
    Ok(Finished {
        code: ended.code,
        how: ended.how,
        elapsed_s: ended.elapsed.as_secs_f64(),
        cpu_s: done.cpu_s,
        output: output.tail(OUTPUT),
    })
}

/// A server's plan, templates filled in.
struct Filled {
    values: Values,
    start: Vec<String>,
    env: Vec<(String, String)>,
    files: Vec<(String, String)>,
    setup: Vec<Vec<String>>,
    teardown: Vec<Vec<String>>,
    /// The URLs that show whether it is ready.
    urls: Vec<Endpoint>,
}

impl Filled {
    fn new(server: &Server, workspace: &Workspace, values: &Values) -> Result<Self, StartError> {
        let urls = match &server.ready {
            Ready::Answers(urls) => &urls[..],
            Ready::Line(_) => &[],
        };
        let steps = server.setup.iter().chain(&server.teardown).flatten();
        let texts = server.start.iter().chain(steps);
        let texts = texts.chain(server.env.iter().chain(&server.files).map(|(_, text)| text));
        let mut used = Vec::new();
        for text in texts {
            used.extend(names(text)?);
        }
        let mut values = values.clone();
        workspace.provide(used, &mut values)?;
        let text = |text: &String| fill(text, &values);
        let words = |words: &Vec<String>| words.iter().map(text).collect::<Result<Vec<_>, TemplateError>>();
        let named = |(name, value): &(String, String)| Ok::<_, TemplateError>((name.clone(), text(value)?));
        let url = |url: &String| {
            let url = text(url)?;
            url.parse().map_err(|source| StartError::Url { url, source })
        };
        Ok(Self {
            start: words(&server.start)?,
            env: server.env.iter().map(named).collect::<Result<_, _>>()?,
            files: server.files.iter().map(named).collect::<Result<_, _>>()?,
            setup: server.setup.iter().map(words).collect::<Result<_, _>>()?,
            teardown: server.teardown.iter().map(words).collect::<Result<_, _>>()?,
            urls: urls.iter().map(url).collect::<Result<_, StartError>>()?,
            values,
        })
    }
}

/// Writes a file, only below this folder.
fn write(folder: &Path, path: &str, text: &str) -> Result<(), StartError> {
    let failed = |source| StartError::File { path: path.to_owned(), source };
    let relative = PathBuf::from(path);
    let inside = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside || relative.file_name().is_none() {
        return Err(failed(None));
    }
    let file = folder.join(relative);
    file.parent().map_or(Ok(()), fs::create_dir_all).map_err(|error| failed(Some(error)))?;
    fs::write(file, text).map_err(|error| failed(Some(error)))
}

fn signal(stop: Stop) -> Signal {
    match stop {
        Stop::Term => Signal::TERM,
        Stop::Int => Signal::INT,
        Stop::Quit => Signal::QUIT,
        Stop::Hup => Signal::HUP,
        Stop::Usr1 => Signal::USR1,
        Stop::Usr2 => Signal::USR2,
        Stop::Kill => Signal::KILL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(ready: Ready) -> Server {
        Server {
            name: "s".into(),
            machine: None,
            start: vec!["{{oroshi}}".into(), "{{ port }}".into()],
            env: vec![("SOCKET".into(), "{{socket}}".into())],
            folder: None,
            files: vec![("conf/a".into(), "{{port.admin}} {{port}} {{dir}}".into())],
            setup: vec![vec!["touch".into(), "{{socket.x}}".into()]],
            teardown: vec![],
            ready,
            ready_timeout: Duration::from_secs(1),
            stop: Stop::Term,
            stop_timeout: Duration::from_secs(1),
        }
    }

    fn own_values() -> Values {
        let mut values = Values::default();
        values.set("oroshi", "/bin/oroshi");
        values
    }

    #[test]
    fn a_name_stands_for_the_same_everywhere_in_one_start() {
        let workspace = Workspace::choose();
        let ready = Ready::Answers(vec!["http://127.0.0.1:{{port}}/".into(), "unix:{{socket}}".into()]);
        let filled = Filled::new(&server(ready), &workspace, &own_values()).unwrap();
        let (port, dir) = (filled.values.get("port").unwrap(), workspace.folder().to_str().unwrap());
        assert_eq!(filled.start, ["/bin/oroshi", port]);
        assert_eq!(filled.urls[0].to_string(), format!("http://127.0.0.1:{port}/"));
        assert!(filled.urls[1].to_string().contains(&format!("{dir}/socket.sock")));
        assert_eq!(filled.env[0].1, format!("{dir}/socket.sock"));
        assert_eq!(filled.files[0].1, format!("{} {port} {dir}", filled.values.get("port.admin").unwrap()));
        assert_eq!(filled.setup[0][1], format!("{dir}/x.sock"));
    }

    #[test]
    fn what_cannot_be_filled_in_is_told_before_anything_is_started() {
        let said = |url: &str| {
            let server = server(Ready::Answers(vec![url.to_owned()]));
            Filled::new(&server, &Workspace::choose(), &own_values()).err().unwrap().to_string()
        };
        assert!(said("http://127.0.0.1:{{port.x}}/").contains("does not listen there"));
        assert!(said("http://127.0.0.1:{{prot}}/").contains("did you mean {{port}}?"));
        assert!(said("127.0.0.1").contains("`127.0.0.1` cannot be asked"));
    }

    #[test]
    fn files_are_written_below_the_folder_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a/b.conf", "text").unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("a/b.conf")).unwrap(), "text");
        for path in ["/etc/x", "../x", "a/../../x", "", "."] {
            assert!(matches!(write(folder.path(), path, ""), Err(StartError::File { source: None, .. })), "{path}");
        }
    }
}
