//! After the last generation: cleans up, and logs the end.

use std::time::Duration;

use oroshi_net::process::{descendants, signal_to};
use rustix::io::Errno;
use rustix::process::WaitOptions;

use super::{Control, Superdaemon, kill};
use crate::guard::GuardProcess;
use crate::machine::ENDING;
use crate::output::Log;

/// Time to wait for the control socket, the log command and killed processes.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Interval for checking for processes that should end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Superdaemon<'_> {
    /// Ends the superdaemon after the last generation.
    pub(super) async fn end(mut self) {
        if let Some(Control { task, end }) = self.control.take() {
            end.notify_one();
            // Waiting clients get their outcome.
            let _ = tokio::time::timeout(LAST_WORDS, task).await;
        }
        self.leave_behind().await;
        self.tell("all generations have ended");
        if self.log_due().is_some() {
            // Lines are still waiting for it.
            self.restart_log();
        }
        // Without groups the guard simply ends.
        let guard = self.guarded.take().and_then(|guarded| guarded.pid());
        // The reader may need a moment; if we are process 1, our end kills it.
        let reader = self.log.take().and_then(Log::close);
        let others: Vec<u32> = guard.into_iter().chain(reader).collect();
        self.wait_for(|left| !others.iter().any(|pid| left.contains(pid)), LAST_WORDS).await;
    }

    /// Handles remaining processes of the generations: with `--die-together` they end too.
    async fn leave_behind(&mut self) {
        let own: Vec<u32> = self
            .log
            .iter()
            .filter_map(|log| log.reader()?.pid)
            .chain(self.guarded.iter().filter_map(GuardProcess::pid))
            .collect();
        let left_of = |all: &[u32]| -> Vec<u32> {
            let of_own: Vec<u32> = own.iter().flat_map(|pid| descendants(*pid)).collect();
            all.iter().copied().filter(|pid| !own.contains(pid) && !of_own.contains(pid)).collect()
        };
        // Zombies do not count.
        self.wait_for(|left| left_of(left).is_empty(), Duration::ZERO).await;
        let left = left_of(&descendants(std::process::id()));
        if left.is_empty() {
            return;
        }
        let count = if left.len() == 1 { "1 process".to_owned() } else { format!("{} processes", left.len()) };
        if self.guarded.is_none() {
            return self.tell(&format!("the command has left {count} behind, which go on"));
        }
        self.tell(&format!("the command has left {count} behind, which are ended now"));
        let signal = self.plan.draft.signal_on_term;
        left.iter().for_each(|pid| _ = signal_to(*pid, signal));
        let patience = self.plan.draft.stop_timeout.unwrap_or(ENDING);
        self.wait_for(|left| left_of(left).is_empty(), patience).await;
        left_of(&descendants(std::process::id())).iter().for_each(|pid| kill(*pid));
        self.wait_for(|left| left_of(left).is_empty(), LAST_WORDS).await;
    }

    /// Waits until the remaining descendants satisfy `enough`, or until the time is over.
    async fn wait_for(&mut self, enough: impl Fn(&[u32]) -> bool, patience: Duration) {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            while let Ok(Some(_)) | Err(Errno::INTR) = rustix::process::wait(WaitOptions::NOHANG) {}
            if enough(&descendants(std::process::id())) || tokio::time::Instant::now() >= deadline {
                return;
            }
            // The kernel does not report the end of another parent's processes.
            let look = deadline.min(tokio::time::Instant::now() + POLL_INTERVAL);
            let _ = tokio::time::timeout_at(look, self.events.recv()).await;
        }
    }
}
