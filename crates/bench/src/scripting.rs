//! How a core calls its part of a script, and checks the results.

use std::cell::{Cell, RefCell};
use std::task::Poll;
use std::time::Duration;

use oroshi_net::monotonic_ns;

use crate::batch::{Batch, BatchError};
use crate::core::Core;
use crate::rules::Rules;
use crate::script::{CoreScript, ResponseView, ScriptError, ScriptFeatures};

/// The most bytes of bodies that one core keeps for a script.
const BODIES: usize = 256 * 1024 * 1024;

/// The pause that a script wants before a connection or stream sends its next requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Pause {
    /// The script has not been asked yet.
    #[default]
    ToAsk,
    /// Nanoseconds of the monotonic clock; the slot's deadline until then.
    Until(u64),
    Over,
}

impl Pause {
    /// Waits with slot `id` for as long as the script wants.
    pub(crate) fn poll(&mut self, core: &Core, id: usize) -> Poll<()> {
        loop {
            match self {
                Pause::Over => return Poll::Ready(()),
                Pause::Until(end) => {
                    if monotonic_ns() < *end {
                        core.wake_at(id, *end);
                        return Poll::Pending;
                    }
                    *self = Pause::Over;
                }
                Pause::ToAsk => {
                    *self = match core.ask_for_pause() {
                        Some(pause) if pause.is_zero() => Pause::Over,
                        Some(pause) => Pause::Until(monotonic_ns() + pause.as_nanos() as u64),
                        // The script has ended: no request follows the pause.
                        None => Pause::Over,
                    }
                }
            }
        }
    }
}

/// A core's part of a script while requests flow.
#[derive(Debug)]
pub(crate) struct Scripting {
    part: RefCell<Box<dyn CoreScript>>,
    pub(crate) features: ScriptFeatures,
    /// Bytes of bodies that are kept.
    bodies: Cell<usize>,
    /// The error that ended the core's part of the run.
    error: RefCell<Option<ScriptError>>,
    /// The first request: its first line and its length.
    first: RefCell<Option<(String, usize)>>,
}

impl Scripting {
    pub(crate) fn new(part: Box<dyn CoreScript>, features: ScriptFeatures) -> Self {
        let (bodies, error, first) = (Cell::new(0), RefCell::default(), RefCell::default());
        Self { part: RefCell::new(part), features, bodies, error, first }
    }

    pub(crate) fn begin(&self, end: Option<u64>) {
        self.part.borrow_mut().begin(end);
    }

    /// Whether `request` is called for each batch.
    #[inline]
    pub(crate) fn makes_requests(&self) -> bool {
        self.features.request.is_none()
    }

    /// Fills `batch` with the next requests.
    pub(crate) fn request(&self, batch: &mut Batch, rules: &Rules) -> Result<(), ScriptError> {
        batch.clear();
        self.part.borrow_mut().request(&mut batch.bytes)?;
        batch.divide().map_err(|error| self.unusable(error))?;
        let several = batch.requests.len();
        if several > 1 && (rules.per_connection != u64::MAX || rules.open || rules.streams > 0) {
            let (what, step) = if rules.streams > 0 {
                ("each stream of HTTP/2 carries one", "--http2")
            } else if rules.open {
                ("an open loop (--rate, --stages) sends each when it is due", "--rate")
            } else {
                ("connections carry a limited number of requests", "--close or --requests-per-connection")
            };
            let what =
                format!("request() returned {several} requests at once, and {what}: return one, or leave out {step}");
            return Err(self.error("request", what));
        }
        if self.first.borrow().is_none() {
            self.note_first(batch.bytes_of(&batch.requests[0]));
        }
        Ok(())
    }

    /// Calls `delay`.
    pub(crate) fn delay(&self) -> Result<Duration, ScriptError> {
        self.part.borrow_mut().delay()
    }

    /// Calls `response`.
    pub(crate) fn response(&self, answer: &ResponseView) -> Result<(), ScriptError> {
        self.part.borrow_mut().response(answer)
    }

    pub(crate) fn stopped(&self) -> bool {
        self.part.borrow().stopped()
    }

    /// Counts bytes of a body that is kept. False when they are too many.
    pub(crate) fn keep(&self, bytes: usize) -> bool {
        self.bodies.set(self.bodies.get() + bytes);
        self.bodies.get() <= BODIES
    }

    pub(crate) fn release_body(&self, bytes: usize) {
        self.bodies.set(self.bodies.get().saturating_sub(bytes));
    }

    pub(crate) fn bodies_too_large(&self) -> ScriptError {
        let most = BODIES / (1024 * 1024);
        let what = format!(
            "answers that response() is to see have bodies of more than {most} MiB in all on one thread: leave out \
             its third parameter, or use fewer connections"
        );
        self.error("response", what)
    }

    pub(crate) fn unusable(&self, error: BatchError) -> ScriptError {
        self.error("request", format!("request() returned {error}"))
    }

    pub(crate) fn error(&self, function: &str, what: String) -> ScriptError {
        ScriptError { place: self.part.borrow().place(function), what }
    }

    /// Remembers the first error.
    pub(crate) fn fail(&self, error: ScriptError) {
        self.error.borrow_mut().get_or_insert(error);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error.borrow().is_some()
    }

    pub(crate) fn take_error(&self) -> Option<ScriptError> {
        self.error.take()
    }

    pub(crate) fn note_first(&self, bytes: &[u8]) {
        let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
        *self.first.borrow_mut() = Some((String::from_utf8_lossy(line).into_owned(), bytes.len()));
    }

    pub(crate) fn first(&self) -> Option<(String, usize)> {
        self.first.borrow().clone()
    }

    pub(crate) fn leave(&self) {
        self.part.borrow_mut().leave();
    }
}
