//! Watches a server while processes on other machines load it.
//!
//! The coordinator of such a run sends no requests. It begins and ends the watch at the edges of the measured part, by
//! its own clock, and opens no connection to the server. A busy machine may begin the watch late: then the CPU time is
//! scaled to the measured part.

use std::time::{Duration, Instant};

use oroshi_net::Peer;

use crate::plan::{Plan, Watching};
use crate::watch::{Clocks, ServerUsage, Watch};

/// How often the server's processes are sampled, nanoseconds.
const SAMPLE: u64 = 250_000_000;
/// How long looking up the server's name may take.
const LOOK_UP: Duration = Duration::from_secs(2);

/// A watch on the server of a run, if the server is on this machine. Times are nanoseconds of the monotonic clock.
#[derive(Debug)]
pub struct ServerWatch {
    watch: Result<Watch, String>,
    /// The measured part: its begin and, where it is known beforehand, its end.
    measured: Option<(u64, Option<u64>)>,
    /// When the watch began.
    begun: Option<(u64, Instant)>,
    sampled: u64,
    usage: Option<Result<ServerUsage, String>>,
}

impl ServerWatch {
    /// Finds the server of a plan: the process that [`Plan::watch`] names, or the listener of its first origin.
    #[must_use]
    pub fn find(plan: &Plan) -> Self {
        let watch = match plan.watch {
            Watching::Pid(pid) => Watch::for_pid(pid).map_err(|error| error.to_string()),
            Watching::Auto => listener(plan),
            Watching::None => Err("not watched (--watch none)".to_owned()),
        };
        Self { watch, measured: None, begun: None, sampled: 0, usage: None }
    }

    /// Returns why the server is not watched, if it is not.
    #[must_use]
    pub fn unknown(&self) -> Option<&str> {
        self.watch.as_ref().err().map(String::as_str)
    }

    /// Sets the measured part. Without `until`, it ends at [`finish`](Self::finish).
    pub fn measure(&mut self, from: u64, until: Option<u64>) {
        self.measured = Some((from, until));
    }

    /// Returns when [`tick`](Self::tick) should be called next, if it has anything to do.
    #[must_use]
    pub fn due(&self) -> Option<u64> {
        let (from, until) = self.measured.filter(|_| self.watch.is_ok() && self.usage.is_none())?;
        if self.begun.is_none() {
            return Some(from);
        }
        let sample = self.sampled + SAMPLE;
        Some(until.map_or(sample, |until| until.min(sample)))
    }

    /// Begins, samples or ends the watch, as is due at `now`.
    pub fn tick(&mut self, now: u64) {
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        let (Some((_, until)), Ok(watch)) = (self.measured, &mut self.watch) else { return };
        match self.begun {
            None => {
                watch.begin();
                self.begun = Some((now, Instant::now()));
                self.sampled = now;
            }
            Some(_) if until.is_some_and(|until| now >= until) => self.end(now),
            Some((_, begun)) => {
                watch.sample(begun.elapsed());
                self.sampled = now;
            }
        }
    }

    /// Returns what the server used in the measured part.
    ///
    /// # Errors
    /// Why that is not known, in words.
    pub fn finish(mut self, now: u64) -> Result<ServerUsage, String> {
        if self.usage.is_none() && self.watch.is_ok() {
            self.end(now);
        }
        match self.watch {
            Ok(_) => self.usage.unwrap_or_else(|| Err("the run ended before its measured part".to_owned())),
            Err(why) => Err(why),
        }
    }

    fn end(&mut self, now: u64) {
        let (Some((from, until)), Some((began, begun)), Ok(watch)) = (self.measured, self.begun, &mut self.watch)
        else {
            return;
        };
        let usage = watch.finish(begun.elapsed(), &Clocks::default());
        let usage = usage.ok_or_else(|| "its processes ended during the run".to_owned());
        let end = until.unwrap_or(now).max(from);
        // A server that nobody asks any more uses little, so only a late begin makes a difference.
        let (seen, all) = (end.saturating_sub(began), end - from);
        self.usage = Some(usage.and_then(|usage| match seen > all / 2 {
            true => Ok(scaled(usage, all as f64 / seen as f64)),
            false => Err("this machine was too busy to look at its processes in time".into()),
        }));
    }
}

/// Scales the CPU time of a part of a run to all of it.
fn scaled(usage: ServerUsage, factor: f64) -> ServerUsage {
    ServerUsage {
        cpu_seconds: usage.cpu_seconds * factor,
        user_seconds: usage.user_seconds * factor,
        system_seconds: usage.system_seconds * factor,
        ..usage
    }
}

/// Watches the processes that accept connections at an address of the first origin.
fn listener(plan: &Plan) -> Result<Watch, String> {
    let Some(origin) = plan.origins.first() else { return Err("nothing to watch".to_owned()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("its name cannot be looked up: {error}"))?;
    let peers = runtime.block_on(async { tokio::time::timeout(LOOK_UP, origin.peers()).await });
    // A look-up that hangs must not keep the run from beginning.
    runtime.shutdown_background();
    let peers = match peers {
        Ok(Ok(peers)) => peers,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("its name was not looked up in time".to_owned()),
    };
    let mut why = "it has no address".to_owned();
    for peer in &peers {
        let found = match peer {
            Peer::Tcp(address) => Watch::for_tcp(*address),
            Peer::Unix(address) => Watch::for_unix(address, None),
        };
        match found {
            Ok(watch) => return Ok(watch),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::Draft;

    const SECOND: u64 = 1_000_000_000;

    /// A process that burns CPU time until it is dropped.
    struct Busy(Child);

    impl Busy {
        fn start() -> Self {
            Self(Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap())
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn plan(watch: Watching) -> Plan {
        Draft { urls: vec!["http://127.0.0.1:1/".parse().unwrap()], watch, ..Draft::default() }.plan().unwrap()
    }

    #[test]
    fn the_watch_begins_and_ends_at_the_edges_of_the_measured_part() {
        let busy = Busy::start();
        let mut watch = ServerWatch::find(&plan(Watching::Pid(busy.0.id())));
        assert_eq!(watch.due(), None);
        watch.measure(10 * SECOND, Some(11 * SECOND));
        watch.tick(9 * SECOND);
        assert_eq!(watch.due(), Some(10 * SECOND));
        watch.tick(10 * SECOND);
        assert_eq!(watch.due(), Some(10 * SECOND + SAMPLE));
        watch.tick(11 * SECOND - 1);
        assert_eq!(watch.due(), Some(11 * SECOND));
        watch.tick(11 * SECOND);
        assert_eq!(watch.due(), None);
        let usage = watch.finish(13 * SECOND).unwrap();
        assert_eq!((usage.process_count, usage.processes[0].pid), (1, busy.0.id()));
    }

    #[test]
    fn a_very_late_look_gives_no_figure_and_a_run_without_an_end_ends_at_the_last_message() {
        let busy = Busy::start();
        let watched = |until, begin, end| {
            let mut watch = ServerWatch::find(&plan(Watching::Pid(busy.0.id())));
            watch.measure(10 * SECOND, until);
            watch.tick(begin);
            watch.finish(end)
        };
        assert!(watched(Some(11 * SECOND), 10 * SECOND + SECOND / 2, 11 * SECOND).unwrap_err().contains("too busy"));
        assert!(watched(Some(11 * SECOND), 11 * SECOND, 12 * SECOND).unwrap_err().contains("too busy"));
        assert!(watched(Some(11 * SECOND), 10 * SECOND + SECOND / 3, 12 * SECOND).is_ok());
        assert!(watched(Some(11 * SECOND), 9 * SECOND, 9 * SECOND).unwrap_err().contains("ended before"));
        let usage = watched(None, 10 * SECOND, 17 * SECOND).unwrap();
        let half = scaled(usage.clone(), 2.0);
        assert_eq!(half.cpu_seconds, 2.0 * usage.cpu_seconds);
    }

    #[test]
    fn a_server_that_is_not_here_is_not_watched_and_the_reason_is_told() {
        // TEST-NET-1 (RFC 5737): no machine has such an address.
        let urls = vec!["http://192.0.2.1/".parse().unwrap()];
        let plan = Draft { urls, ..Draft::default() }.plan().unwrap();
        let mut watch = ServerWatch::find(&plan);
        watch.measure(SECOND, None);
        assert_eq!(watch.due(), None);
        assert!(watch.finish(2 * SECOND).unwrap_err().contains("192.0.2.1 is not an address of this machine"));
    }
}
