//! Watches starting generations until they are ready.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

use oroshi_net::notify::NOTIFY_SOCKET;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::machine::Event;
use crate::notify::{NotifySocket, WATCHDOG};
use crate::plan::Ready;
use crate::probe::until_answered;

/// The watchers of generations, each until its generation ends.
#[derive(Debug, Default)]
pub(crate) struct Watchers(HashMap<u64, AbortHandle>);

/// Resources for watching a generation, made before its start.
#[derive(Debug)]
pub(crate) struct Watch(Option<NotifySocket>);

impl Watch {
    /// Makes the resources for a readiness condition.
    ///
    /// # Errors
    /// When the notify socket cannot be made.
    pub(crate) fn new(ready: Option<&Ready>) -> io::Result<Self> {
        match ready {
            Some(Ready::Notify) => NotifySocket::new().map(|notify| Watch(Some(notify))),
            _ => Ok(Watch(None)),
        }
    }

    /// Returns variables for the command; `None`: remove it. systemd's own are for the superdaemon, which sends its
    /// own messages.
    pub(crate) fn variables(&self) -> Vec<(&'static str, Option<OsString>)> {
        let socket = self.0.as_ref().map(|notify| notify.path().as_os_str().to_owned());
        let nothing = WATCHDOG.into_iter().map(|name| (name, None));
        std::iter::once((NOTIFY_SOCKET, socket)).chain(nothing).collect()
    }
}

impl Watchers {
    /// Begins to watch a started generation.
    pub(crate) fn begin(
        &mut self,
        number: u64,
        pid: u32,
        ready: Option<&Ready>,
        watch: Watch,
        tell: impl Fn(Event) + 'static,
    ) {
        let task = match (ready, watch.0) {
            (Some(Ready::Notify), Some(notify)) => tokio::task::spawn_local(listen(notify, number, tell)),
            (Some(Ready::Answers(url)), _) => {
                let url = url.clone();
                tokio::task::spawn_local(async move {
                    until_answered(&url, pid, |what| tell(Event::Found { number, what })).await;
                    tell(Event::Ready { number });
                })
            }
            _ => return,
        };
        self.0.insert(number, task.abort_handle());
    }

    /// Ends the watch of a generation that has ended, or was told to.
    pub(crate) fn end(&mut self, number: u64) {
        if let Some(task) = self.0.remove(&number) {
            task.abort();
        }
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.0.drain().for_each(|(_, task)| task.abort());
    }
}

/// The minimum time between two reports of a generation's status.
const PAUSE: Duration = Duration::from_millis(100);

/// Receives a generation's messages until it is ready.
async fn listen(notify: NotifySocket, number: u64, tell: impl Fn(Event)) {
    let mut found = Some("it has said nothing to NOTIFY_SOCKET, where READY=1 is expected".to_owned());
    let mut next_tell = Instant::now();
    loop {
        let said = match found.take() {
            None => notify.next().await,
            // It may send more than needed: the last message counts.
            Some(what) => match timeout_at(next_tell, notify.next()).await {
                Ok(said) => {
                    found = Some(what);
                    said
                }
                Err(_) => {
                    tell(Event::Found { number, what });
                    next_tell = Instant::now() + PAUSE;
                    continue;
                }
            },
        };
        let Ok(said) = said else { return };
        found = said.status.or(found);
        if said.ready {
            break tell(Event::Ready { number });
        }
    }
    // Reads for as long as it lives: a sender must not block for lack of a reader.
    while notify.next().await.is_ok() {}
}
