//! How a core calls its part of the script: a failure or a stop ends the core's part of the run.

use std::time::Duration;

use super::Core;
use crate::batch::Batch;
use crate::script::{ResponseView, ScriptError};
use crate::scripting::Scripting;

impl Core {
    /// Whether a script makes requests, batch by batch.
    #[inline]
    pub(crate) fn makes_requests(&self) -> bool {
        self.script.as_ref().is_some_and(Scripting::makes_requests)
    }

    /// Whether a script wants pauses.
    #[inline]
    pub(crate) fn delays(&self) -> bool {
        self.script.as_ref().is_some_and(|script| script.features.delays)
    }

    /// Makes the next batch of requests. False when that ended the core's part of the run.
    pub(crate) fn make_requests(&self, batch: &mut Batch) -> bool {
        self.call_script(|script| script.request(batch, &self.rules)).is_some()
    }

    /// Returns the pause before the next batch; `None` when the core's part of the run has ended.
    pub(crate) fn ask_for_pause(&self) -> Option<Duration> {
        self.call_script(Scripting::delay)
    }

    /// Hands a response to the script. False when that ended the core's part of the run.
    #[cold]
    pub(crate) fn tell_script(&self, response: &ResponseView) -> bool {
        self.call_script(|script| script.response(response)).is_some()
    }

    /// Counts bytes of a body that is kept for the script. False when that ended the core's part of the run.
    pub(crate) fn keep_body(&self, bytes: usize) -> bool {
        let fits = |script: &Scripting| if script.keep(bytes) { Ok(()) } else { Err(script.bodies_too_large()) };
        self.script.is_none() || self.call_script(fits).is_some()
    }

    /// Takes back bytes counted by [`keep_body`](Self::keep_body).
    pub(crate) fn release_body(&self, bytes: usize) {
        if let Some(script) = &self.script {
            script.release_body(bytes);
        }
    }

    /// Ends the core's part of the run because of what a function of the script returned.
    #[cold]
    pub(crate) fn fail_script(&self, function: &str, what: String) {
        self.call_script(|script| -> Result<(), _> { Err(script.error(function, what)) });
    }

    /// Calls the script, and ends the core's part of the run if it fails or says stop.
    fn call_script<T>(&self, call: impl FnOnce(&Scripting) -> Result<T, ScriptError>) -> Option<T> {
        let script = self.script.as_ref()?;
        let result = call(script);
        if result.is_err() || script.stopped() {
            self.tickets.set_budget(0);
            self.activity.halt();
        }
        result.map_err(|error| script.fail(error)).ok()
    }
}
