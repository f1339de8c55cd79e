//! Wakers of a connection's streams: each wake marks its stream, and wakes the connection's task once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// The most streams of a connection that can have a handler or output at once: a handler may go on for a while after
/// its stream has ended, so there are more than the peer may open.
pub(super) const MOST_SLOTS: usize = 256;

const WORD_BITS: usize = u64::BITS as usize;

/// The streams that were woken. Any thread may wake one.
#[derive(Debug, Default)]
pub(super) struct Ready {
    marks: [AtomicU64; MOST_SLOTS / WORD_BITS],
    /// Whether the task runs or was woken: then a mark needs no other wake.
    awake: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Ready {
    /// Returns the waker of a stream.
    pub(super) fn waker(self: &Arc<Self>, slot: usize) -> Waker {
        Waker::from(Arc::new(StreamWaker { ready: Arc::clone(self), slot }))
    }

    /// Notes that the task runs.
    pub(super) fn begin(&self, context: &Context<'_>) {
        self.awake.store(true, Ordering::SeqCst);
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            *task = Some(context.waker().clone());
        }
    }

    /// Notes that the task is about to wait. Returns whether it may: no stream was woken meanwhile.
    pub(super) fn rest(&self) -> bool {
        self.awake.store(false, Ordering::SeqCst);
        self.marks.iter().all(|word| word.load(Ordering::SeqCst) == 0)
    }

    /// Marks a stream. The task runs, so it needs no wake.
    pub(super) fn mark(&self, slot: usize) {
        if let Some(word) = self.marks.get(slot / WORD_BITS) {
            word.fetch_or(1 << (slot % WORD_BITS), Ordering::SeqCst);
        }
    }

    /// Wakes the task, unless it runs.
    pub(super) fn wake_task(&self) {
        // Reading costs less than a swap, and mostly the task runs.
        if !self.awake.load(Ordering::SeqCst)
            && !self.awake.swap(true, Ordering::SeqCst)
            && let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner)
        {
            task.wake_by_ref();
        }
    }

    /// Calls `each` with the marked streams, and removes the marks. Returns whether there were any.
    pub(super) fn take(&self, mut each: impl FnMut(usize)) -> bool {
        let mut any = false;
        for (place, word) in self.marks.iter().enumerate() {
            // Reading costs less than a swap, and most words of most connections are empty.
            if word.load(Ordering::SeqCst) == 0 {
                continue;
            }
            let mut marks = word.swap(0, Ordering::SeqCst);
            any = true;
            while marks != 0 {
                each(place * WORD_BITS + marks.trailing_zeros() as usize);
                marks &= marks - 1;
            }
        }
        any
    }
}

struct StreamWaker {
    ready: Arc<Ready>,
    slot: usize,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.mark(self.slot);
        self.ready.wake_task();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waiting_task_is_woken_once_and_finds_all_marks() {
        let (ready, count) = (Arc::new(Ready::default()), Arc::new(Count::default()));
        let task = Waker::from(Arc::clone(&count));
        let wakers: Vec<Waker> = [0, 63, 64, 255].into_iter().map(|slot| ready.waker(slot)).collect();
        ready.begin(&Context::from_waker(&task));
        wakers[0].wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 0, "the task runs");
        assert!(!ready.rest(), "it must look again");
        ready.begin(&Context::from_waker(&task));
        let mut found = Vec::new();
        assert!(ready.take(|slot| found.push(slot)));
        assert!(ready.rest());
        std::thread::scope(|scope| wakers.iter().for_each(|waker| drop(scope.spawn(|| waker.wake_by_ref()))));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        ready.begin(&Context::from_waker(&task));
        assert!(ready.take(|slot| found.push(slot)));
        assert!(!ready.take(|_| panic!("the marks were taken")));
        assert_eq!(found, [0, 0, 63, 64, 255]);
    }
}
