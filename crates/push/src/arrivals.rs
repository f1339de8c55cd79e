//! Messages that have come from JetStream, until a receipt asks what became of them.
//!
//! The stream brings a message, and a request of the publisher's node asks for its receipt: in any order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{self, Receiver, Sender};

use crate::session::tally::Part;

/// The most messages that are remembered. Receipts ask within milliseconds.
const MOST: usize = 4096;

/// The outcome of a message on each thread.
pub(crate) type Parts = Vec<Receiver<Part>>;

/// The outcomes of the latest messages of the stream.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_sequence: HashMap<u64, Arrival>,
    /// Sequence numbers, the oldest first.
    order: VecDeque<u64>,
}

#[derive(Debug)]
enum Arrival {
    Come(Parts),
    Awaited(Sender<Parts>),
}

impl Arrivals {
    /// Takes the outcome of a message that the stream brought.
    pub(crate) fn come(&self, sequence: u64, parts: Parts) {
        let mut table = self.lock();
        match table.by_sequence.remove(&sequence) {
            Some(Arrival::Awaited(waiter)) => {
                // The publisher may have gone.
                let _ = waiter.send(parts);
            }
            _ => table.insert(sequence, Arrival::Come(parts)),
        }
    }

    /// Returns the outcome of a message, once the stream has brought it. An error if it is not remembered any more.
    pub(crate) fn of(&self, sequence: u64) -> Receiver<Parts> {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.lock();
        match table.by_sequence.remove(&sequence) {
            Some(Arrival::Come(parts)) => {
                let _ = sender.send(parts);
            }
            _ => table.insert(sequence, Arrival::Awaited(sender)),
        }
        receiver
    }

    /// Forgets all messages: their numbers are given to others.
    pub(crate) fn clear(&self) {
        *self.lock() = Table::default();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn insert(&mut self, sequence: u64, arrival: Arrival) {
        self.by_sequence.insert(sequence, arrival);
        self.order.push_back(sequence);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_sequence.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_and_the_receipt_come_in_any_order_and_few_are_kept() {
        let arrivals = Arrivals::default();
        arrivals.come(1, Vec::new());
        assert!(arrivals.of(1).try_recv().is_ok());
        let mut awaited = arrivals.of(2);
        assert!(awaited.try_recv().is_err());
        arrivals.come(2, Vec::new());
        assert!(awaited.try_recv().is_ok());
        let mut never = arrivals.of(3);
        (4..4 + MOST as u64).for_each(|sequence| arrivals.come(sequence, Vec::new()));
        assert_eq!(never.try_recv().err(), Some(oneshot::error::TryRecvError::Closed), "it is given up");
        {
            let table = arrivals.lock();
            assert!(table.by_sequence.len() <= MOST && table.order.len() == MOST);
        }
        // The stream begins anew: nobody gets the outcome of another message of the same number.
        arrivals.clear();
        assert!(arrivals.of(4 + MOST as u64 - 1).try_recv().is_err());
    }
}
