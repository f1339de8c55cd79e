//! Answers to challenges that other machines entered in the store.
//!
//! Anyone can ask for a token. If each token were looked up, a client with invented ones would use up any limit on such
//! look-ups, and the authority would get no answer. Therefore one task reads all answers at once, for all that wait, a
//! few times a second. The table is small: it has the orders that are under way.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::store::Store;

/// The pause between two reads.
const PAUSE: Duration = Duration::from_millis(250);

/// Where serving threads find answers of other machines.
pub(crate) struct FoundAnswers {
    /// Notified when somebody waits for a read.
    wanted: Notify,
    /// The number of reads that began.
    begun: AtomicU64,
    read: watch::Receiver<Read>,
}

/// The latest read.
#[derive(Default)]
pub(crate) struct Read {
    number: u64,
    answers: HashMap<String, String>,
}

impl FoundAnswers {
    /// Returns them, and what [`read_all`](Self::read_all) takes.
    pub(crate) fn new() -> (Self, watch::Sender<Read>) {
        let (sender, read) = watch::channel(Read::default());
        (FoundAnswers { wanted: Notify::new(), begun: AtomicU64::new(0), read }, sender)
    }

    /// Finds an answer that was entered before the call. `None`: there is none, or the reads have ended.
    pub(crate) async fn find(&self, id: &str) -> Option<String> {
        let mut read = self.read.clone();
        // The read that is under way may have passed the row already.
        let needed = self.begun.load(SeqCst) + 1;
        loop {
            {
                let latest = read.borrow_and_update();
                if latest.number >= needed {
                    return latest.answers.get(id).cloned();
                }
            }
            self.wanted.notify_one();
            read.changed().await.ok()?;
        }
    }

    /// Reads the store whenever somebody waits. Never ends.
    pub(crate) async fn read_all(&self, sender: watch::Sender<Read>, store: impl Fn() -> Store, now: impl Fn() -> i64) {
        loop {
            self.wanted.notified().await;
            let number = self.begun.fetch_add(1, SeqCst) + 1;
            let answers = store().answers(now()).await.unwrap_or_else(|error| {
                tracing::warn!("the answers to challenges of other machines could not be read: {error}");
                HashMap::new()
            });
            sender.send_replace(Read { number, answers });
            sleep(PAUSE).await;
        }
    }
}

impl fmt::Debug for FoundAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoundAnswers").field("begun", &self.begun).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tokio::task::{JoinSet, spawn_local};

    use super::*;
    use crate::store::tests::in_each_database;

    #[test]
    fn invented_tokens_do_not_keep_the_authority_from_an_answer() {
        in_each_database("invented_tokens_do_not_keep_the_authority_from_an_answer", async |here, there| {
            let (found, sender) = FoundAnswers::new();
            let (found, store) = (Rc::new(found), there.clone());
            let reading = Rc::clone(&found);
            let reader = spawn_local(async move { reading.read_all(sender, || store.clone(), || 100).await });
            let mut invented = JoinSet::new();
            for round in 0..3 {
                for number in 0..1000 {
                    let found = Rc::clone(&found);
                    invented.spawn_local(async move { found.find(&format!("invented-{round}-{number}")).await });
                }
                let token = format!("token-{round}");
                here.enter_answer(&token, "answer", 200).await.unwrap();
                assert_eq!(found.find(&token).await.as_deref(), Some("answer"));
            }
            while let Some(answer) = invented.join_next().await {
                assert_eq!(answer.unwrap(), None);
            }
            let reads = found.begun.load(SeqCst);
            assert!(reads <= 8, "{reads} reads for 3,003 tokens");
            here.enter_answer("old", "answer", 100).await.unwrap();
            assert_eq!(found.find("old").await, None, "its time is over");
            reader.abort();
            let _ = reader.await; // it was cancelled
            assert_eq!(found.find("token-0").await, None, "nobody reads any more");
        });
    }
}
