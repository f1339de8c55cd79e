//! `oroshi target` as a child process, which ends whatever becomes of this one.
//!
//! Dropping it ends it. Where nothing is dropped any more, as after a crash or SIGKILL, the kernel does
//! (PR_SET_PDEATHSIG, asked for by the child itself). It is in a process group of its own, so that Ctrl-C reaches only
//! this process, which then ends it in its own time.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use oroshi_net::Endpoint;
use oroshi_net::endpoint::EndpointError;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Tells the child whose child it is.
const PARENT: &str = "OROSHI_PARENT";

/// A server for measuring against.
#[derive(Debug)]
pub(crate) struct Target {
    child: Child,
    /// Where it listens, in the order asked for.
    pub(crate) urls: Vec<Endpoint>,
    /// Kept open: the child would fail to write into a closed pipe.
    _output: BufReader<ChildStdout>,
}

/// Why there is no target.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// The program's own file is gone, or no process can be made: see the cause.
    #[error("could not start `oroshi target`")]
    Start(#[source] io::Error),
    /// It said why on standard error.
    #[error("`oroshi target` ended before it listened")]
    Ended,
    /// A defect: it names a place that is none.
    #[error("`oroshi target` said `{said}`")]
    Said {
        /// The line.
        said: String,
        /// What is wrong with it.
        source: EndpointError,
    },
}

impl Target {
    /// Starts one and waits until it listens on each of `listen`.
    ///
    /// The kernel ends the child with the *thread* that calls this, so it is for the main thread.
    ///
    /// # Errors
    /// When it does not come to that.
    pub(crate) fn start(listen: &[String], options: &[String], cpu: Option<usize>) -> Result<Self, TargetError> {
        let program = std::env::current_exe().map_err(TargetError::Start)?;
        let mut command = Command::new(program);
        command.arg("target").args(options);
        command.args(listen.iter().flat_map(|place| ["--listen", place]));
        if let Some(cpu) = cpu {
            command.args(["--cpus", &cpu.to_string()]);
        }
        command.env(PARENT, std::process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(TargetError::Start)?;
        let output = child.stdout.take();
        // From here on it is ended on every way out.
        let mut target = Ending(Some(child));
        let mut output = BufReader::new(output.ok_or(TargetError::Ended)?);
        let mut urls = Vec::new();
        while urls.len() < listen.len() {
            let mut line = String::new();
            if output.read_line(&mut line).map_err(TargetError::Start)? == 0 {
                return Err(TargetError::Ended);
            }
            if let Some(url) = line.trim().strip_prefix("listening on ") {
                let said = || line.trim().to_owned();
                urls.push(url.parse().map_err(|source| TargetError::Said { said: said(), source })?);
            }
        }
        match target.0.take() {
            Some(child) => Ok(Self { child, urls, _output: output }),
            None => Err(TargetError::Ended),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A child that is ended unless it is taken out.
struct Ending(Option<Child>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn end(child: &mut Child) {
    // Both fail only when it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// In a child started by [`Target::start`]: ends with its parent. Elsewhere it does nothing.
pub(crate) fn end_with_parent() {
    let Some(parent) = std::env::var(PARENT).ok().and_then(|pid| pid.parse().ok()) else { return };
    // Before Linux 2.1.57 there was no such thing; a child without it is still ended by its parent's Drop.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have ended before that.
    if getppid().map(Pid::as_raw_nonzero).map(std::num::NonZeroI32::get) != Some(parent) {
        std::process::exit(1);
    }
}

/// A name for a unix socket that no other process has. It is in the abstract namespace: no file is left behind,
/// whatever happens.
pub(crate) fn unix_name(what: &str) -> String {
    format!("unix:@oroshi-{what}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_name_is_an_endpoint() {
        let endpoint: Endpoint = unix_name("test").parse().unwrap();
        assert!(endpoint.to_string().starts_with("unix:@oroshi-test-"));
    }
}
