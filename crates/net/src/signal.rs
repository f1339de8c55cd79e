//! Counts INT and TERM, for every thread to check or await.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::thread;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The number of requests to end: 0 continue, 1 finish the work in progress, 2 stop at once. Clones share the count;
/// it never decreases.
#[derive(Debug, Clone)]
pub struct Shutdown(Arc<watch::Sender<usize>>);

impl Shutdown {
    /// Makes a count of 0 that only [`Shutdown::request`] raises.
    pub fn new() -> Self {
        Shutdown(Arc::new(watch::Sender::new(0)))
    }

    /// Makes a count that rises with every INT and TERM of this process, whichever thread waits for it.
    ///
    /// These signals no longer end the process by themselves, even after the last clone is gone. A thread named
    /// `signals` waits for them on its own runtime, so they arrive before any other runtime exists, and however busy
    /// the others are.
    ///
    /// # Errors
    /// When the thread, its runtime or the handlers cannot be made: no descriptors are left.
    pub fn on_signals() -> io::Result<Self> {
        let shutdown = Shutdown::new();
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let context = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        drop(context);
        // Weak, so that the thread alone does not keep the count alive.
        let count = Arc::downgrade(&shutdown.0);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            runtime.block_on(async {
                loop {
                    poll_fn(|cx| {
                        if interrupt.poll_recv(cx).is_ready() {
                            Poll::Ready(())
                        } else {
                            terminate.poll_recv(cx).map(drop)
                        }
                    })
                    .await;
                    match count.upgrade() {
                        Some(count) => Shutdown(count).request(),
                        None => return,
                    }
                }
            });
        })?;
        Ok(shutdown)
    }

    /// Raises the count by one, as a signal does.
    pub fn request(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// The present count; cheap enough to check often.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until the count is at least `count`, on any runtime.
    pub async fn reached(&self, count: usize) {
        let mut watcher = self.0.subscribe();
        // An error would mean that the sender is gone, but `self` holds it.
        let _ = watcher.wait_for(|&now| now >= count).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown::new()
    }
}
