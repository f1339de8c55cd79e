//! The running log: reopens a file, restarts a log command.

use std::time::{Duration, Instant};

use oroshi_words::with_causes;

use super::{StartError, Superdaemon};
use crate::machine::{AfterFailure, seconds};
use crate::output::Log;

impl Superdaemon<'_> {
    /// Waits until a log command has read the lines so far.
    pub(super) async fn wait_for_log_reader(&mut self) -> Result<(), StartError> {
        if let Some(reader) = self.log.as_mut().and_then(Log::reader_mut) {
            reader.until_it_reads().await?;
            if self.plan.draft.daemonize {
                reader.leave_outputs();
            }
        }
        Ok(())
    }

    /// Returns the time of the log command's next start.
    pub(super) fn log_due(&self) -> Option<Instant> {
        self.log.as_ref()?.reader()?.next_start
    }

    /// Schedules another start if the ended process is the log command. Lines wait in its pipe.
    pub(super) fn log_may_have_ended(&mut self, pid: u32, how: &str) {
        let reader = self.log.as_mut().and_then(Log::reader_mut).filter(|reader| reader.pid == Some(pid));
        let Some(reader) = reader else { return };
        let now = Instant::now();
        let lived = reader.has_ended(now, how.to_owned());
        let after = reader.next_start.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let (command, lived, next) = (&reader.command, seconds(lived), AfterFailure::Start { after });
        let news = format!("the log command `{command}` (pid {pid}): {how}, {lived} after its start; {next}");
        self.tell(&news);
    }

    pub(super) fn restart_log(&mut self) {
        let Some(reader) = self.log.as_mut().and_then(Log::reader_mut) else { return };
        let news = match reader.restart() {
            Ok(pid) => format!("the log command (pid {pid}): started again"),
            Err(error) => with_causes(&error),
        };
        self.tell(&news);
    }

    pub(super) fn reopen_log(&mut self, why: &str) {
        if let Some(Err(error)) = self.log.as_mut().map(Log::reopen) {
            return self.tell(&with_causes(&error));
        }
        self.tell(why);
    }
}
