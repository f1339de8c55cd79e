//! Coordination of a script's states, each on its own thread: turns, requests between states, and the end.
//!
//! Each load thread has a mailbox. The main state and the threads in set-up ask it for values. A thread that waits
//! for anything, for example its turn, waits at its mailbox and answers. So no thread waits for one that does not
//! listen.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oroshi_bench::ScriptError;
use oroshi_net::Peer;
use oroshi_script::{Data, Handle};

/// Interval at which a waiting thread checks whether an answer is still possible.
const LOOK: Duration = Duration::from_millis(20);

/// All load threads of a script.
#[derive(Debug)]
pub(crate) struct Crew {
    file: String,
    seats: Vec<Seat>,
    common: Mutex<Common>,
}

/// The messages and the settings of one thread.
#[derive(Debug)]
struct Seat {
    ask: Sender<Ask>,
    /// None after the thread has taken it.
    asked: Mutex<Option<Receiver<Ask>>>,
    /// `thread.addr`.
    peer: Mutex<Choice>,
    /// `thread:stop()` was called.
    stopped: AtomicBool,
}

/// The address that a thread connects to.
#[derive(Debug, Default)]
struct Choice {
    peer: Option<Peer>,
    /// Whether the thread has begun.
    made: bool,
}

#[derive(Debug, Default)]
struct Common {
    /// The reason why no more calls are made.
    over: Option<ScriptError>,
    interrupted: bool,
    /// Handles of all states.
    handles: Vec<Handle>,
}

/// A message to a load thread.
#[derive(Debug)]
pub(crate) enum Ask {
    /// It is this thread's turn to set up.
    Turn,
    /// The main state has finished the requested task.
    Done(Result<(), ScriptError>),
    /// All threads are set up.
    Go,
    /// Get a global, for `thread:get`.
    Get(Vec<u8>, Sender<Result<Data, String>>),
    /// Set a global, for `thread:set`.
    Set(Vec<u8>, Data, Sender<Result<Data, String>>),
    /// Stop waiting.
    End,
}

impl Crew {
    /// Makes the mailboxes for `cores` threads; the first thread has its turn.
    pub(crate) fn new(file: &Path, cores: usize) -> Self {
        let seats: Vec<Seat> = (0..cores).map(|_| Seat::new()).collect();
        let crew = Self { file: file.display().to_string(), seats, common: Mutex::default() };
        crew.tell(0, Ask::Turn);
        crew
    }

    /// The script's file, as it was named.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Makes an error without a line.
    pub(crate) fn error(&self, what: impl Into<String>) -> ScriptError {
        ScriptError { place: self.file.clone(), what: what.into() }
    }

    /// Takes the receiving end of a thread's mailbox; `None` if it was taken before, or there is no such thread.
    pub(crate) fn sit_down(&self, core: usize) -> Option<Receiver<Ask>> {
        locked(&self.seats.get(core)?.asked).take()
    }

    /// Sends a message to a thread; no effect if the thread has ended.
    pub(crate) fn tell(&self, core: usize, what: Ask) {
        if let Some(seat) = self.seats.get(core) {
            let _ = seat.ask.send(what);
        }
    }

    /// Passes the turn on after a thread is set up: to the next thread, or starts all after the last.
    pub(crate) fn pass_on(&self, core: usize) {
        if core + 1 < self.seats.len() {
            return self.tell(core + 1, Ask::Turn);
        }
        (0..self.seats.len()).for_each(|core| self.tell(core, Ask::Go));
    }

    /// Asks for a value from a thread's state. A busy thread answers when it next waits.
    pub(crate) fn ask(
        &self,
        core: usize,
        ask: impl FnOnce(Sender<Result<Data, String>>) -> Ask,
    ) -> Result<Data, String> {
        let gone = || format!("thread {} has ended: its values are gone", core + 1);
        let (reply, answer) = channel();
        self.seats[core].ask.send(ask(reply)).map_err(|_| gone())?;
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if self.common().interrupted => return Err("interrupted".into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the address for a thread, if known.
    pub(crate) fn peer(&self, core: usize) -> Option<Peer> {
        locked(&self.seats[core].peer).peer.clone()
    }

    /// Sets the address for a thread.
    pub(crate) fn choose(&self, core: usize, peer: Peer) -> Result<(), String> {
        let mut choice = locked(&self.seats[core].peer);
        if choice.made {
            return Err(format!("thread {} has begun: its addr can be set in setup() and init()", core + 1));
        }
        choice.peer = Some(peer);
        Ok(())
    }

    /// Returns the thread's final address.
    pub(crate) fn chosen(&self, core: usize) -> Option<Peer> {
        let mut choice = locked(&self.seats[core].peer);
        choice.made = true;
        choice.peer.clone()
    }

    #[inline]
    pub(crate) fn is_stopped(&self, core: usize) -> bool {
        self.seats[core].stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self, core: usize) {
        self.seats[core].stopped.store(true, Ordering::Relaxed);
    }

    /// Registers a state before its first call.
    pub(crate) fn register(&self, handle: Handle) {
        let mut common = self.common();
        if common.interrupted {
            handle.interrupt();
        }
        common.handles.push(handle);
    }

    /// Records an error before the run, so that no thread waits for set-up. Returns the first error.
    pub(crate) fn fail(&self, error: ScriptError) -> ScriptError {
        let first = self.common().over.get_or_insert(error).clone();
        self.end();
        first
    }

    /// Returns the reason for the end.
    pub(crate) fn over(&self) -> ScriptError {
        self.common().over.clone().unwrap_or_else(|| self.error("the run has ended"))
    }

    /// Ends all calls.
    pub(crate) fn interrupt(&self) {
        let mut common = self.common();
        common.interrupted = true;
        common.over.get_or_insert_with(|| self.error("interrupted"));
        common.handles.iter().for_each(Handle::interrupt);
        drop(common);
        self.end();
    }

    /// Ends all present and later waits.
    pub(crate) fn end(&self) {
        (0..self.seats.len()).for_each(|core| self.tell(core, Ask::End));
    }

    /// Returns a call that cannot be ended.
    pub(crate) fn stuck(&self) -> Option<ScriptError> {
        self.common().handles.iter().find_map(Handle::stuck).map(crate::told)
    }

    fn common(&self) -> MutexGuard<'_, Common> {
        locked(&self.common)
    }
}

impl Seat {
    fn new() -> Self {
        let (ask, asked) = channel();
        let asked = Mutex::new(Some(asked));
        Self { ask, asked, peer: Mutex::default(), stopped: AtomicBool::new(false) }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
