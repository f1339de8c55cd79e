//! How threads hand each other work.

use std::rc::Rc;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

/// Work for a thread, which it does on its own `H`.
pub(crate) type Job<H> = Box<dyn FnOnce(&Rc<H>) + Send>;

/// A mailbox for each thread of a process.
#[derive(Debug)]
pub(crate) struct Mailboxes<H> {
    // Bounded by the requests that wait for what they sent.
    senders: Box<[UnboundedSender<Job<H>>]>,
}

impl<H: 'static> Mailboxes<H> {
    /// Creates `threads` mailboxes, and returns the receiving end of each.
    pub(crate) fn new(threads: usize) -> (Self, Vec<UnboundedReceiver<Job<H>>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::unbounded_channel()).unzip();
        (Mailboxes { senders: senders.into() }, receivers)
    }

    /// Gives a thread a job. The job is dropped if the thread has ended.
    pub(crate) fn tell(&self, thread: u16, job: Job<H>) {
        let _ = self.senders[usize::from(thread)].send(job);
    }

    /// Runs `work` in a task of a thread, and returns its result; an error if the thread has ended.
    pub(crate) fn ask<T, F>(&self, thread: u16, work: impl FnOnce(Rc<H>) -> F + Send + 'static) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (answer, asked) = oneshot::channel();
        self.tell(
            thread,
            Box::new(move |hub| {
                let work = work(Rc::clone(hub));
                tokio::task::spawn_local(async move {
                    // The caller may have gone.
                    let _ = answer.send(work.await);
                });
            }),
        );
        asked
    }
}
