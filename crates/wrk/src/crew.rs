//! What the states of a script share, each on its own thread: whose turn it is, what they ask of each other, and that it is over.
//!
//! Each core has a seat. The main state and the cores that are set up ask through it for values; a core that waits, for its turn
//! or for anything else, waits at its seat and answers. So nobody waits for somebody who does not listen.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oroshi_bench::ScriptError;
use oroshi_net::Peer;
use oroshi_script::{Data, Handle};

/// How often somebody who waits for an answer looks whether there can still be one.
const LOOK: Duration = Duration::from_millis(20);

/// All of them.
#[derive(Debug)]
pub(crate) struct Crew {
    file: String,
    seats: Vec<Seat>,
    common: Mutex<Common>,
}

/// One core's place.
#[derive(Debug)]
struct Seat {
    ask: Sender<Ask>,
    /// Until the core takes it.
    asked: Mutex<Option<Receiver<Ask>>>,
    /// `thread.addr`.
    peer: Mutex<Choice>,
    /// `thread:stop()` was called.
    stopped: AtomicBool,
}

/// Where a core connects.
#[derive(Debug, Default)]
struct Choice {
    peer: Option<Peer>,
    /// It does so already.
    made: bool,
}

#[derive(Debug, Default)]
struct Common {
    /// Nothing is called any more, or nothing needs to be.
    over: Option<ScriptError>,
    interrupted: bool,
    /// All states that there are.
    handles: Vec<Handle>,
}

/// What a core is asked, or told.
#[derive(Debug)]
pub(crate) enum Ask {
    /// It is this core's turn to be set up.
    Turn,
    /// What the main state was asked is done.
    Done(Result<(), ScriptError>),
    /// All cores are set up.
    Go,
    /// The value of a global, for `thread:get`.
    Get(Vec<u8>, Sender<Result<Data, String>>),
    /// Set a global, for `thread:set`.
    Set(Vec<u8>, Data, Sender<Result<Data, String>>),
    /// There is nothing to wait for any more.
    End,
}

impl Crew {
    /// A crew of `cores`, of which the first has its turn.
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

    /// An error without a line.
    pub(crate) fn error(&self, what: impl Into<String>) -> ScriptError {
        ScriptError { place: self.file.clone(), what: what.into() }
    }

    /// The receiving end of a core's seat; `None` if the core has taken it before, or there is no such core.
    pub(crate) fn sit_down(&self, core: usize) -> Option<Receiver<Ask>> {
        locked(&self.seats.get(core)?.asked).take()
    }

    /// Tells a core something; in vain if it is gone.
    pub(crate) fn tell(&self, core: usize, what: Ask) {
        if let Some(seat) = self.seats.get(core) {
            let _ = seat.ask.send(what);
        }
    }

    /// A core is set up: the next one has its turn. Was it the last one, all may go.
    pub(crate) fn pass_on(&self, core: usize) {
        if core + 1 < self.seats.len() {
            return self.tell(core + 1, Ask::Turn);
        }
        (0..self.seats.len()).for_each(|core| self.tell(core, Ask::Go));
    }

    /// A value from a core's state. The core may be at work: it answers when it next waits.
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

    /// Where a core is to connect, as far as that is known.
    pub(crate) fn peer(&self, core: usize) -> Option<Peer> {
        locked(&self.seats[core].peer).peer.clone()
    }

    /// Says where a core is to connect.
    pub(crate) fn choose(&self, core: usize, peer: Peer) -> Result<(), String> {
        let mut choice = locked(&self.seats[core].peer);
        if choice.made {
            return Err(format!("thread {} has begun: its addr can be set in setup() and init()", core + 1));
        }
        choice.peer = Some(peer);
        Ok(())
    }

    /// Where a core connects from now on.
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

    /// A state begins to be called.
    pub(crate) fn register(&self, handle: Handle) {
        let mut common = self.common();
        if common.interrupted {
            handle.interrupt();
        }
        common.handles.push(handle);
    }

    /// The script has failed before the run: whoever waits for a core to be set up need not. Gives back the first error.
    pub(crate) fn fail(&self, error: ScriptError) -> ScriptError {
        let first = self.common().over.get_or_insert(error).clone();
        self.end();
        first
    }

    /// Why there is nothing to wait for.
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

    /// Everybody who waits at a seat, or comes to wait there, leaves.
    pub(crate) fn end(&self) {
        (0..self.seats.len()).for_each(|core| self.tell(core, Ask::End));
    }

    /// A call that cannot be ended.
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
