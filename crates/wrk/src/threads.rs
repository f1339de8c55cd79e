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
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// All load threads of a script.
#[derive(Debug)]
pub(crate) struct Threads {
    file: String,
    mailboxes: Vec<Mailbox>,
    shared: Mutex<Shared>,
}

/// The messages and the settings of one thread.
#[derive(Debug)]
struct Mailbox {
    sender: Sender<Message>,
    /// None after the thread has taken it.
    receiver: Mutex<Option<Receiver<Message>>>,
    /// `thread.addr`.
    peer: Mutex<PeerSetting>,
    /// `thread:stop()` was called.
    stopped: AtomicBool,
}

/// The address that a thread connects to.
#[derive(Debug, Default)]
struct PeerSetting {
    peer: Option<Peer>,
    /// Whether the thread has begun.
    is_final: bool,
}

#[derive(Debug, Default)]
struct Shared {
    /// The reason why no more calls are made.
    end_reason: Option<ScriptError>,
    interrupted: bool,
    /// Handles of all states.
    handles: Vec<Handle>,
}

/// A message to a load thread.
#[derive(Debug)]
pub(crate) enum Message {
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

impl Threads {
    /// Makes the mailboxes for `cores` threads; the first thread has its turn.
    pub(crate) fn new(file: &Path, cores: usize) -> Self {
        let mailboxes: Vec<Mailbox> = (0..cores).map(|_| Mailbox::new()).collect();
        let threads = Self { file: file.display().to_string(), mailboxes, shared: Mutex::default() };
        threads.tell(0, Message::Turn);
        threads
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
    pub(crate) fn take_receiver(&self, core: usize) -> Option<Receiver<Message>> {
        locked(&self.mailboxes.get(core)?.receiver).take()
    }

    /// Sends a message to a thread; no effect if the thread has ended.
    pub(crate) fn tell(&self, core: usize, what: Message) {
        if let Some(mailbox) = self.mailboxes.get(core) {
            let _ = mailbox.sender.send(what);
        }
    }

    /// Passes the turn on after a thread is set up: to the next thread, or starts all after the last.
    pub(crate) fn pass_turn(&self, core: usize) {
        if core + 1 < self.mailboxes.len() {
            return self.tell(core + 1, Message::Turn);
        }
        (0..self.mailboxes.len()).for_each(|core| self.tell(core, Message::Go));
    }

    /// Asks for a value from a thread's state. A busy thread answers when it next waits.
    pub(crate) fn ask(
        &self,
        core: usize,
        ask: impl FnOnce(Sender<Result<Data, String>>) -> Message,
    ) -> Result<Data, String> {
        let gone = || format!("thread {} has ended: its values are gone", core + 1);
        let (reply, answer) = channel();
        self.mailboxes[core].sender.send(ask(reply)).map_err(|_| gone())?;
        loop {
            match answer.recv_timeout(POLL_INTERVAL) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if self.shared().interrupted => return Err("interrupted".into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the address for a thread, if known.
    pub(crate) fn peer(&self, core: usize) -> Option<Peer> {
        locked(&self.mailboxes[core].peer).peer.clone()
    }

    /// Sets the address for a thread.
    pub(crate) fn set_peer(&self, core: usize, peer: Peer) -> Result<(), String> {
        let mut setting = locked(&self.mailboxes[core].peer);
        if setting.is_final {
            return Err(format!("thread {} has begun: its addr can be set in setup() and init()", core + 1));
        }
        setting.peer = Some(peer);
        Ok(())
    }

    /// Returns the thread's final address.
    pub(crate) fn final_peer(&self, core: usize) -> Option<Peer> {
        let mut setting = locked(&self.mailboxes[core].peer);
        setting.is_final = true;
        setting.peer.clone()
    }

    #[inline]
    pub(crate) fn is_stopped(&self, core: usize) -> bool {
        self.mailboxes[core].stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self, core: usize) {
        self.mailboxes[core].stopped.store(true, Ordering::Relaxed);
    }

    /// Registers a state before its first call.
    pub(crate) fn register(&self, handle: Handle) {
        let mut shared = self.shared();
        if shared.interrupted {
            handle.interrupt();
        }
        shared.handles.push(handle);
    }

    /// Records an error before the run, so that no thread waits for set-up. Returns the first error.
    pub(crate) fn fail(&self, error: ScriptError) -> ScriptError {
        let first = self.shared().end_reason.get_or_insert(error).clone();
        self.end();
        first
    }

    /// Returns the reason for the end.
    pub(crate) fn end_reason(&self) -> ScriptError {
        self.shared().end_reason.clone().unwrap_or_else(|| self.error("the run has ended"))
    }

    /// Ends all calls.
    pub(crate) fn interrupt(&self) {
        let mut shared = self.shared();
        shared.interrupted = true;
        shared.end_reason.get_or_insert_with(|| self.error("interrupted"));
        shared.handles.iter().for_each(Handle::interrupt);
        drop(shared);
        self.end();
    }

    /// Ends all present and later waits.
    pub(crate) fn end(&self) {
        (0..self.mailboxes.len()).for_each(|core| self.tell(core, Message::End));
    }

    /// Returns a call that cannot be ended.
    pub(crate) fn stuck(&self) -> Option<ScriptError> {
        self.shared().handles.iter().find_map(Handle::stuck).map(crate::script_error)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        locked(&self.shared)
    }
}

impl Mailbox {
    fn new() -> Self {
        let (sender, receiver) = channel();
        let receiver = Mutex::new(Some(receiver));
        Self { sender, receiver, peer: Mutex::default(), stopped: AtomicBool::new(false) }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
