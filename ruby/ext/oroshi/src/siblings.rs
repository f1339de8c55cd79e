//! The threads of a worker among each other: who waits for Ruby's lock, and who rests.
//!
//! Each thread has a loop of its own (`engine`), and Ruby's lock lets one of them run at a time. Requests that wait may
//! leave their places to other threads (`io_bound`): then the worker has more threads than usual, and as many rest
//! again when such a request is over.

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use magnus::{Error, Value, value::ReprValue as _};

use crate::accept::LISTENER;
use crate::clock;
use crate::engine::{Engine, QUEUE};
use crate::poll::Poll;
use crate::rb;
use crate::slot::State;
use crate::worker::Worker;

/// How many threads of this process have work, and wait for Ruby's lock.
static WANTING: AtomicU32 = AtomicU32::new(0);

/// Waits for events without Ruby's lock, unless there are notes to act on.
pub(crate) fn wait(
    worker: &Worker,
    poll: &mut Poll,
    timeout_ms: i32,
    stopping: bool,
) -> Result<io::Result<usize>, Error> {
    let mut wants = false;
    let waited = rb::without_gvl(|| {
        if worker.has_notes(stopping) {
            return Ok(0);
        }
        let ready = poll.wait(timeout_ms)?;
        if ready == 0 {
            return Ok(0);
        }
        let is_new = |token: u64| token & LISTENER != 0 && token <= QUEUE;
        let is_new = (0..ready).any(|index| is_new(poll.event(index).token));
        // The kernel has woken this thread alone, and the lock may be another thread's for long.
        if is_new && let Some(other) = worker.peers.of_freer_worker() {
            worker.peers.wake(other);
        }
        if !stopping && worker.slot.state() == State::Idle {
            worker.slot.set_state(State::App);
        }
        WANTING.fetch_add(1, Relaxed);
        wants = true;
        Ok(ready)
    });
    if wants {
        WANTING.fetch_sub(1, Relaxed);
    }
    waited
}

impl Engine<'_> {
    /// Begins or ends a rest, as the notes say. A thread that rests hands its kept connections to others.
    pub(crate) fn rest_or_go_on(&mut self) {
        if self.stopping.is_some() {
            self.rests = false;
            return;
        }
        let rests = self.worker.resting.get();
        if rests != self.rests {
            self.rests = rests;
            if rests { self.rest_from_listeners() } else { self.rejoin_listeners() }
        }
        if rests {
            self.watch.pass_on();
        }
    }

    /// Ends a request of a worker with several threads: lets others run, and rests if another has this one's place.
    pub(crate) fn end_among_siblings(&mut self) {
        if self.worker.aside.take() && self.stopping.is_none() {
            self.worker.resting.set(true);
            let called = self.worker.settings.on_rest.map(|hook| hook.funcall::<_, _, Value>("call", ()));
            if let Some(Err(error)) = called {
                self.report(error);
            }
        }
        if WANTING.load(Relaxed) == 0 {
            return;
        }
        // At most once a tick of the clock: a change of threads costs more than a short request.
        let now_ms = clock::coarse_ms();
        if std::mem::replace(&mut self.yielded_ms, now_ms) == now_ms {
            return;
        }
        // SAFETY: no arguments. Signal handlers may run, and may raise.
        let yielded = rb::protect(|| unsafe {
            rb_sys::rb_thread_schedule();
            rb::NIL
        });
        if let Err(error) = yielded {
            self.report(error);
        }
    }
}
