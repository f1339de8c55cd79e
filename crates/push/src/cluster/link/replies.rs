//! The replies of other nodes to a request, and the receipts among them.

use std::collections::HashSet;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout_at;

use super::{Progress, Shared, count};
use crate::cluster::wire::Reply;
use crate::publish::{Nodes, Receipt};

/// The receipts of other nodes for one publish.
pub(crate) struct PendingReceipts<'l> {
    pub(super) shared: &'l Shared,
    pub(super) is_connected: bool,
    /// The other nodes when they were asked.
    pub(super) others: u32,
    pub(super) elsewhere: Vec<Box<str>>,
    pub(super) replies: Replies,
}

impl PendingReceipts<'_> {
    /// Waits for the receipts, and adds them to this node's.
    pub(crate) async fn add_to(mut self, mut receipt: Receipt) -> Receipt {
        let (mut answered, mut found) = (u32::from(!receipt.is_late), HashSet::new());
        while let Some(reply) = self.replies.next().await {
            let Reply::Receipt(part) = reply else { continue };
            answered += 1;
            found.extend(part.found.iter().filter_map(|&index| self.elsewhere.get(usize::try_from(index).ok()?)));
            receipt.matched = receipt.matched.saturating_add(part.matched);
            receipt.written = receipt.written.saturating_add(part.written);
            receipt.queued = receipt.queued.saturating_add(part.queued);
            receipt.dropped = receipt.dropped.saturating_add(part.dropped);
            receipt.closed = receipt.closed.saturating_add(part.closed);
            receipt.refused.extend(part.refused);
        }
        receipt.unknown.retain(|key| !found.contains(key));
        let known = answered.max(self.others + 1);
        receipt.nodes = Nodes { known, answered, connected: Some(self.is_connected) };
        if known > answered {
            count(&self.shared.counters.incomplete, 1);
        }
        receipt
    }
}

/// The replies to a request, as they come.
pub(super) struct Replies {
    /// `None` if no node was asked.
    pub(super) progress: Option<UnboundedReceiver<Progress>>,
    pub(super) until: Instant,
    pub(super) longest: Instant,
}

impl Replies {
    /// Returns the next reply; `None` once all remaining nodes have answered, or the time is over.
    pub(super) async fn next(&mut self) -> Option<Reply> {
        let progress = self.progress.as_mut()?;
        loop {
            match timeout_at(self.until.into(), progress.recv()).await {
                Ok(Some(Progress::Replied(reply))) => return Some(reply),
                Ok(Some(Progress::Working)) => self.until = self.longest,
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Returns the first result of `says` that is not `None`.
    pub(super) async fn first<T>(mut self, says: impl Fn(Reply) -> Option<T>) -> Option<T> {
        while let Some(reply) = self.next().await {
            if let Some(said) = says(reply) {
                return Some(said);
            }
        }
        None
    }
}
