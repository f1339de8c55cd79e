//! The watcher: a native thread of each worker. While the application has the main thread, requests may arrive on the
//! worker's other connections. Once a call has taken some milliseconds, the watcher reads them (`attend`), hands whole
//! requests to other workers (`handover`), and ends clients whose deadline has passed. When the manager has condemned
//! the current request, or the process crashes, it hands all connections over.
//!
//! It takes no lock of Ruby's and touches no Ruby object. The main thread owns the connections, and lends them to the
//! watcher while it is in the application (`lend`), at one store and one exchange per call. A process that the
//! application forks serves nobody and has no watcher.

mod attend;

use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use oroshi_http1::Limits;

use crate::accept::LISTENER;
use crate::clock;
use crate::connection::{Connection, Connections, Next, Stage};
use crate::crash;
use crate::engine::SWEEP_MS;
use crate::forked;
use crate::handover::{MOST_INPUT, Note, Pending, Queue};
use crate::log::Format;
use crate::output::Output;
use crate::poll::{Interest, peek_at, remove_from};
use crate::pressure::tell_busy;
use crate::request::behind_end;
use crate::scoreboard::Scoreboard;
use crate::settings::Settings;
use crate::slot::Slot;
use crate::socket::{self, has_ended, has_unread};

pub(crate) use attend::RefusedClient;
use attend::Tools;

/// How often the watcher looks. A call that it sees twice has taken at least this long.
const TICK: Duration = Duration::from_millis(10);
/// The same for a worker with several threads, whose calls usually wait for something.
const TICK_AMONG_SIBLINGS: Duration = Duration::from_millis(3);
/// Ticks without a request after which it sleeps until the next one.
const QUIET_TICKS: u32 = 100;
/// How long an ending process waits for others to take connections from a full queue.
const MOST_WAIT_MS: u64 = 500;
/// The longest sleep, because a wake-up can be missed.
static SLEEP: libc::timespec = libc::timespec { tv_sec: 1, tv_nsec: 0 };

/// The main thread is within the server and owns the connections.
const CLOSED: u32 = 0;
/// The main thread is within the application: connections can be taken.
const OPEN: u32 = 1;
/// A thread has taken the connections, and returns them soon.
const TAKEN: u32 = 2;

/// The state that the main thread and the watcher share.
#[derive(Debug)]
pub(crate) struct Watch {
    window: AtomicU32,
    /// 1 while the watcher sleeps until there are requests.
    asleep: AtomicU32,
    over: AtomicBool,
    pub(crate) connections: Connections,
    pub(crate) poll: RawFd,
    board: Scoreboard,
    own: usize,
    pub(crate) slot: &'static Slot,
    /// Connections closed to make room for others, since the last report.
    pub(crate) cut_off: AtomicU32,
    queue: &'static Queue,
    limits: Limits,
    timeout_ms: u64,
    spool_bytes: usize,
    /// Whether there is an access log.
    logs: bool,
    /// The last check of deadlines on the coarse clock, by either thread.
    looked_ms: AtomicU64,
    /// Whether the main thread has to look: the watcher has left it a whole request, or has refused a client.
    has_news: AtomicBool,
    refused: Mutex<Vec<RefusedClient>>,
}

/// Which connections to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Those with a whole request, and those that the watcher had no room to read.
    Waiting,
    /// All whose state another worker can continue.
    Movable,
    /// All, because the process ends.
    All,
}

/// Lends the connections out; dropping it takes them back.
#[derive(Debug)]
pub(crate) struct LendGuard<'w>(&'w Watch);

impl Watch {
    /// `poll`: the worker's epoll set; `own`: its slot.
    pub(crate) fn new(poll: RawFd, board: Scoreboard, own: usize, settings: &Settings) -> Self {
        Watch {
            window: AtomicU32::new(CLOSED),
            asleep: AtomicU32::new(0),
            over: AtomicBool::new(false),
            connections: Connections::default(),
            poll,
            board,
            own,
            slot: &board.all()[own],
            cut_off: AtomicU32::new(0),
            queue: board.queue(),
            limits: settings.limits.clone(),
            timeout_ms: settings.timeout_ms,
            spool_bytes: settings.spool_bytes,
            logs: settings.log_format != Format::Off,
            looked_ms: AtomicU64::new(0),
            has_news: AtomicBool::new(false),
            refused: Mutex::default(),
        }
    }

    /// Notes a check of deadlines.
    pub(crate) fn has_looked(&self, now_ms: u64) {
        self.looked_ms.store(now_ms, Relaxed);
    }

    /// Returns the clients that the watcher has refused since the last call; `None` if it has no news at all.
    pub(crate) fn take_news(&self) -> Option<Vec<RefusedClient>> {
        if !self.has_news.load(Relaxed) {
            return None;
        }
        self.has_news.store(false, Relaxed);
        Some(std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Closes a connection. The caller has the table.
    pub(crate) fn close(&self, connection: Box<Connection>, next: Next) {
        if connection.interest != Interest::None {
            remove_from(self.poll, connection.number());
        }
        self.release(connection.token);
        if next == Next::Abort {
            socket::reset_on_close(connection.number());
        }
        if connection.must_shut || forked::has_forked() {
            socket::shut(connection.number());
        }
    }

    /// Releases the entry of a closed connection, if it had one.
    pub(crate) fn release(&self, token: Option<u64>) {
        if let Some(token) = token {
            self.connections.release(token);
            self.slot.keep(self.connections.taken());
        }
    }

    /// Lends the connections out during a call of the application. The caller must not touch them until the guard is
    /// dropped.
    pub(crate) fn lend(&self) -> LendGuard<'_> {
        self.window.store(OPEN, Release);
        if self.asleep.load(Relaxed) != 0 {
            self.wake();
        }
        LendGuard(self)
    }

    fn take_back(&self) {
        if self.window.compare_exchange(OPEN, CLOSED, Acquire, Acquire).is_ok() {
            return;
        }
        // Waits for a few system calls of the watcher's. In a forked child nobody returns them.
        while !forked::is_child() && self.window.compare_exchange(OPEN, CLOSED, Acquire, Acquire).is_err() {
            thread::yield_now();
        }
    }

    /// Hands over all connections that can be, because this process is about to end. For the main thread: within the
    /// application, in a trap, or where it owns the connections (`within_server`).
    pub(crate) fn hand_over_all(&self, within_server: bool) {
        if !within_server {
            self.within_call(|| self.pass(Which::All));
        } else if !forked::is_child() {
            self.pass(Which::All);
        }
    }

    /// Hands over the connections that others can take as they are. For the main thread, within the server.
    pub(crate) fn pass_on(&self) {
        if !forked::is_child() {
            self.pass(Which::Movable);
        }
    }

    /// The same, in a call by the application.
    pub(crate) fn pass_on_within_call(&self) {
        self.within_call(|| self.pass(Which::Movable));
    }

    /// Uses the connections on the main thread while they are lent out: in a trap, or in a call by the application.
    /// `None` during the server's own work, and in a forked child.
    pub(crate) fn within_call<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        while self.window.compare_exchange(OPEN, TAKEN, Acquire, Acquire).is_err() {
            if self.window.load(Acquire) == CLOSED || forked::is_child() {
                return None;
            }
            thread::yield_now();
        }
        // After a panic the main thread would wait for ever for the connections.
        let done = if forked::is_child() { None } else { catch_unwind(AssertUnwindSafe(work)).ok() };
        self.window.store(OPEN, Release);
        done
    }

    // The watcher's part.

    fn run(&self) {
        let mut tools = Tools::default();
        let (mut last, mut seen, mut quiet, mut given_up) = (0, 0, 0, 0);
        let tick = if self.board.threads().most > 1 { TICK_AMONG_SIBLINGS } else { TICK };
        let mut crashes = crash::Watcher::new();
        while !self.over.load(Acquire) {
            thread::sleep(tick);
            let (serial, requests) = (self.slot.serial(), self.slot.requests());
            let condemned = self.slot.condemned().filter(|&serial| serial != given_up);
            let is_busy = serial != 0 && self.slot.kept() > 0;
            let is_slow = is_busy && serial == last;
            // Many short calls in a row keep the main thread from checking, too.
            let is_due = is_busy && clock::coarse_ms().saturating_sub(self.looked_ms.load(Relaxed)) > SWEEP_MS;
            let ends = condemned.is_some() || crashes.has_crashed();
            if (ends || is_slow || is_due) && self.window.compare_exchange(OPEN, TAKEN, Acquire, Relaxed).is_ok() {
                let done = catch_unwind(AssertUnwindSafe(|| {
                    if ends {
                        return self.pass(Which::All);
                    }
                    if is_slow {
                        self.attend(&mut tools);
                    }
                    if is_due {
                        self.expire(&mut tools);
                    }
                    if is_slow && self.has_others() {
                        self.pass(Which::Waiting);
                    }
                }));
                self.window.store(OPEN, Release);
                given_up = condemned.unwrap_or(given_up);
                crashes.done();
                if done.is_err() {
                    return; // its message stands in the log; the worker does without
                }
            }
            quiet = if serial == 0 && requests == seen { quiet + 1 } else { 0 };
            (last, seen) = (serial, requests);
            if quiet > QUIET_TICKS {
                self.sleep(seen);
                quiet = 0;
            }
        }
    }

    /// Whether another worker serves.
    fn has_others(&self) -> bool {
        let slots = self.board.all().iter().enumerate();
        slots.filter(|(number, _)| *number != self.own).any(|(_, slot)| slot.state().serves())
    }

    /// Hands connections over. The caller has the table.
    fn pass(&self, which: Which) {
        if self.connections.taken() == 0 {
            return;
        }
        let tokens = if which != Which::Waiting {
            // If the queue has no room for all, the most urgent go first.
            let waits =
                |it: &Connection| !matches!(it.stage, Stage::Idle) || !it.input.is_empty() || has_unread(it.number());
            let mut ranked = self.connections.ranked(|it| Some(!waits(it)));
            ranked.sort_unstable();
            ranked.into_iter().map(|(_, token)| token).collect()
        } else {
            let mut tokens = self.connections.tokens(Connection::has_request);
            tokens.extend(peek_at::<64>(self.poll).filter(|token| token & LISTENER == 0));
            tokens
        };
        let over_ms = clock::coarse_ms() + MOST_WAIT_MS;
        for token in tokens {
            while let Some(connection) = self.connections.take(token) {
                let Err((mut connection, error)) = self.hand_over(connection, token, which) else { break };
                let left_ms = over_ms.saturating_sub(clock::coarse_ms());
                match error {
                    None => {}
                    // There may be room later.
                    Some(_) if which != Which::All => {
                        self.connections.put(connection);
                        self.slot.keep(self.connections.taken());
                        return;
                    }
                    Some(error) if left_ms > 0 && is_full(&error) => {
                        self.connections.put(connection);
                        self.queue.wait_for_room(left_ms as i32);
                        if error.kind() != io::ErrorKind::WouldBlock {
                            thread::sleep(Duration::from_millis(5));
                        }
                        continue;
                    }
                    Some(_) => give_up(&mut connection),
                }
                self.connections.put(connection);
                break;
            }
        }
        self.slot.keep(self.connections.taken());
    }

    /// Hands one connection over. Returns it if that is impossible, with the error.
    fn hand_over(
        &self,
        mut connection: Box<Connection>,
        token: u64,
        which: Which,
    ) -> Result<(), (Box<Connection>, Option<io::Error>)> {
        let all = which == Which::All;
        let pending = match &connection.stage {
            Stage::Idle | Stage::Head if connection.input.len() <= MOST_INPUT => Pending::Request,
            Stage::Body(_) => Pending::Refusal, // unless it can be moved
            Stage::Writing(next) if all && *next != Next::Abort => Pending::Rest(*next),
            _ => return Err((connection, None)),
        };
        let is_unread = || matches!(connection.stage, Stage::Idle) && !has_ended(connection.number());
        if !(which != Which::Waiting || connection.has_request() || is_unread()) {
            return Err((connection, None));
        }
        let note = Note {
            pending,
            listener: connection.listener as u16,
            must_shut: connection.must_shut || forked::has_forked(),
            has_asked: connection.has_asked,
            due_ms: connection.due_ms,
            arrived_ms: connection.arrived_ms,
            deadline_left_us: match pending {
                Pending::Rest(_) => connection.output.deadline.left_us(),
                _ => connection.deadline.left_us(),
            },
        };
        let deadline = connection.output.deadline;
        let files = match std::mem::take(&mut connection.output).into_files() {
            Ok(files) => files,
            Err(error) => {
                // The rest of its answer was lost.
                connection.stage = Stage::Writing(Next::Abort);
                connection.due_ms = 0;
                return Err((connection, Some(error)));
            }
        };
        let number = connection.number();
        let one = &mut *connection;
        let sent = match &mut one.stage {
            Stage::Body(incoming) if one.is_whole => match behind_end(&one.decoder, &self.limits, &one.input) {
                Some(rest) => incoming.whole_as_file().and_then(|(head, body)| {
                    self.queue.send(number, Note { pending: Pending::Whole, ..note }, &[head, rest].concat(), &[body])
                }),
                None if all => self.queue.send(number, note, &[], &[]),
                // The main thread refuses it.
                None => return Err((connection, None)),
            },
            Stage::Body(incoming) => match incoming.as_file(&self.limits) {
                Some(Ok((head, body))) => {
                    self.queue.send(number, Note { pending: Pending::Request, ..note }, head, &[body])
                }
                Some(Err(error)) => Err(error),
                None if all => self.queue.send(number, note, &[], &[]),
                None => return Err((connection, None)),
            },
            _ => self.queue.send(number, note, &one.input, &files),
        };
        if let Err(error) = sent {
            connection.output = Output::of_files(files, deadline);
            return Err((connection, Some(error)));
        }
        self.slot.has_handed_over();
        remove_from(self.poll, connection.number());
        self.connections.release(token);
        Ok(())
    }

    /// Sleeps until there are more requests than `seen`.
    fn sleep(&self, seen: u64) {
        self.asleep.store(1, Release);
        if self.slot.requests() == seen && !self.over.load(Acquire) {
            // SAFETY: the address of a word that outlives the call, and a constant.
            unsafe {
                let word = self.asleep.as_ptr();
                libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 1, &raw const SLEEP);
            }
        }
        self.asleep.store(0, Release);
    }

    #[cold]
    fn wake(&self) {
        self.asleep.store(0, Release);
        // SAFETY: the address of a word of ours.
        unsafe { libc::syscall(libc::SYS_futex, self.asleep.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }
}

impl Drop for LendGuard<'_> {
    fn drop(&mut self) {
        self.0.take_back();
    }
}

/// The thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Watcher {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts the thread. It handles no signals: traps and handlers are the main thread's.
    pub(crate) fn start(watch: &Arc<Watch>) -> io::Result<Self> {
        let shared = Arc::clone(watch);
        let thread = without_signals(|| {
            thread::Builder::new().name("oroshi-watcher".to_owned()).stack_size(256 * 1024).spawn(move || shared.run())
        })?;
        Ok(Watcher { watch: Arc::clone(watch), thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.watch.over.store(true, Release);
        let Some(thread) = self.thread.take() else { return };
        if forked::is_child() {
            // The thread is the parent's; here is only its memory.
            return std::mem::forget(thread);
        }
        self.watch.wake();
        let _ = thread.join();
    }
}

/// Calls `start` with all signals blocked, which its threads inherit.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: zeros are a valid set; both sets are locals.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        started
    }
}

/// Answers a client that waits, when the process ends and no worker can take its connection.
fn give_up(connection: &mut Connection) {
    let waits = match connection.stage {
        Stage::Idle => !connection.input.is_empty() || has_unread(connection.number()),
        Stage::Head | Stage::Body(_) => true,
        Stage::Writing(_) | Stage::Lingering => false,
    };
    if waits {
        tell_busy(connection);
        // If the process continues after all, its next sweep closes it.
        connection.stage = Stage::Lingering;
        connection.due_ms = 0;
    }
}

/// Whether the queue has no room, or this user has too many descriptors in flight.
fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ETOOMANYREFS)
}
