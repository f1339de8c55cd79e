//! Callbacks behind an answer: `rack.after_reply` (Unicorn, Puma) and `rack.response_finished` (Rack 3).
//!
//! Each is one Array that stands in all environments of the worker: it costs a request nothing that does not use it.
//! After each request the worker empties the Arrays that are not empty, and calls their elements.

use magnus::Error;
use magnus::error::ErrorType;
use rb_sys::VALUE;

use crate::engine::Engine;
use crate::exchange::triple;
use crate::rb;

/// The Arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callbacks {
    pub(crate) after_reply: VALUE,
    pub(crate) response_finished: VALUE,
}

/// What callbacks of `rack.response_finished` receive. The stack keeps it alive.
#[derive(Debug)]
pub(crate) struct Finished {
    arguments: [VALUE; 4],
}

impl Callbacks {
    /// Returns new Arrays, which stay alive with the worker.
    pub(crate) fn new(roots: &rb::Roots) -> Result<Self, Error> {
        let array = || -> Result<VALUE, Error> {
            // SAFETY: a new Array, on the stack until it is in `roots`.
            let array = rb::protect(|| unsafe { rb_sys::rb_ary_new() })?;
            roots.add(array);
            Ok(array)
        };
        Ok(Callbacks { after_reply: array()?, response_finished: array()? })
    }

    /// Returns the arguments of this request's callbacks; `None` without callbacks.
    pub(crate) fn finished(&self, env: VALUE, response: &Result<VALUE, Error>) -> Option<Finished> {
        // SAFETY: the worker's Arrays; no Ruby code runs while they are looked at.
        let any =
            unsafe { !rb::elements(self.after_reply).is_empty() || !rb::elements(self.response_finished).is_empty() };
        if !any {
            return None;
        }
        let arguments = match response {
            Ok(response) => {
                let [status, headers] =
                    triple(*response).map_or([rb::NIL; 2], |[status, headers, _]| [status, headers]);
                [env, status, headers, rb::NIL]
            }
            Err(error) => {
                let error = match error.error_type() {
                    ErrorType::Exception(exception) => rb::raw(*exception),
                    _ => rb::NIL,
                };
                [env, rb::NIL, rb::NIL, error]
            }
        };
        Some(Finished { arguments })
    }
}

impl Engine<'_> {
    /// Calls the callbacks: those of `rack.response_finished` in reverse order, as Rack asks, then the others. An error
    /// of one is logged, and the next runs.
    pub(crate) fn finish(&mut self, finished: &Finished) {
        let Callbacks { after_reply, response_finished } = self.callbacks;
        self.call_all(response_finished, &finished.arguments, true);
        self.call_all(after_reply, &[], false);
        std::hint::black_box(finished);
    }

    fn call_all(&mut self, array: VALUE, arguments: &[VALUE], reverse: bool) {
        // A callback may add others, which belong to the next request.
        let taken = rb::protect(|| {
            // SAFETY: an Array, and its copy on the stack.
            unsafe {
                let taken = rb_sys::rb_ary_dup(array);
                rb_sys::rb_ary_clear(array);
                if reverse { rb_sys::rb_ary_reverse(taken) } else { taken }
            }
        });
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return self.report(error),
        };
        // SAFETY: an Array that nobody else has, on the stack.
        let count = unsafe { rb::elements(taken) }.len();
        for at in 0..count {
            // SAFETY: as above; the slice ends before Ruby code runs.
            let callback = unsafe { rb::elements(taken)[at] };
            if let Err(error) = rb::call(callback, self.worker.known.call, arguments) {
                self.report(error);
            }
        }
        std::hint::black_box(&taken);
    }
}
