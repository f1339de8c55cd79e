//! The server's own lines in `rack.errors`.

use magnus::value::ReprValue as _;

use crate::engine::{Engine, SWEEP_MS};

impl Engine<'_> {
    /// As [`complain`](Self::complain), at most once a second: for errors that clients can cause at will.
    pub(crate) fn complain_now_and_then(&mut self, what: &str) {
        if self.now_ms.saturating_sub(self.complained_ms) >= SWEEP_MS {
            self.complained_ms = self.now_ms;
            self.complain(what);
        }
    }

    /// Writes a line of the server's own to `rack.errors`.
    pub(crate) fn complain(&self, what: &str) {
        let errors = self.worker.settings.errors;
        // If even this cannot be written, nobody can be told.
        let _ = errors.funcall::<_, _, magnus::Value>("puts", (format!("oroshi: {what}"),));
        let _ = errors.funcall::<_, _, magnus::Value>("flush", ());
    }
}
