//! `Oroshi::Native::Worker`: a worker, or one of its threads, as Ruby holds it. Its methods leave notes, which the loop
//! reads between two requests; so a trap may call them at any moment.
//!
//! A worker with several threads has an object for each: each thread has a loop, connections and a slot of its own, as
//! if it were a worker. Threads hand connections to each other as workers do.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use magnus::rb_sys::AsRawValue as _;
use magnus::scan_args::{get_kwargs, scan_args};
use magnus::{DataTypeFunctions, Error, RHash, Ruby, Symbol, TypedData, Value, gc};

use crate::engine::Engine;
use crate::log::{AccessLog, NO_ANSWER};
use crate::overdue::{AnswerRight, right_of};
use crate::peers::Peers;
use crate::present::CurrentExchange;
use crate::rb::{self, Roots};
use crate::scoreboard::{MOST_THREADS, Scoreboard};
use crate::settings::Settings;
use crate::slot::{Slot, State};
use crate::stop::{Ended, Stop, StopNote};
use crate::watcher::Watch;

/// A worker, or one of its threads.
#[derive(Debug, TypedData)]
#[magnus(class = "Oroshi::Native::Worker", mark, size)]
pub(crate) struct Worker {
    pub(crate) app: Value,
    pub(crate) listeners: Vec<RawFd>,
    pub(crate) settings: Settings,
    pub(crate) slot: &'static Slot,
    pub(crate) peers: Peers,
    pub(crate) roots: Roots,
    pub(crate) present: RefCell<CurrentExchange>,
    pub(crate) stop: StopNote,
    pub(crate) log: RefCell<AccessLog>,
    pub(crate) enough: Cell<bool>,
    /// To write to the client of the present request.
    pub(crate) right: &'static AnswerRight,
    /// Whether a request that waits has left its place to another thread (`io_bound`).
    pub(crate) aside: Cell<bool>,
    /// Whether the thread takes no connections until it is needed.
    pub(crate) resting: Cell<bool>,
    pub(crate) known: RubyNames,
    pub(crate) board: Scoreboard,
    pub(crate) watch: OnceCell<Arc<Watch>>,
    own: usize,
    thread: usize,
}

// SAFETY: magnus requires it because an object may be dropped on any thread. Only the thread that runs the worker and
// traps use it, all under the GVL.
unsafe impl Send for Worker {}

impl DataTypeFunctions for Worker {
    fn mark(&self, marker: &gc::Marker) {
        marker.mark(self.app);
        marker.mark(self.settings.errors);
        for hook in self.settings.hooks() {
            marker.mark(hook);
        }
        self.roots.mark();
    }
}

/// Ruby objects and names that the loop uses. The worker's roots keep the objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RubyNames {
    pub(crate) call: rb_sys::ID,
    pub(crate) close: rb_sys::ID,
    pub(crate) each: rb_sys::ID,
    pub(crate) to_path: rb_sys::ID,
    pub(crate) to_ary: rb_sys::ID,
    pub(crate) new: rb_sys::ID,
    pub(crate) for_fd: rb_sys::ID,
    pub(crate) plain_headers: rb_sys::ID,
    pub(crate) plain_body: rb_sys::ID,
    pub(crate) oroshi: rb_sys::VALUE,
    pub(crate) stream: rb_sys::VALUE,
    pub(crate) null_input: rb_sys::VALUE,
    pub(crate) hijack: rb_sys::VALUE,
    pub(crate) hints: rb_sys::VALUE,
    pub(crate) io_bound: rb_sys::VALUE,
    pub(crate) string_io: rb_sys::VALUE,
    pub(crate) file: rb_sys::VALUE,
}

impl RubyNames {
    fn find(ruby: &Ruby, roots: &Roots) -> Result<Self, Error> {
        let find = |what: &str| -> Result<rb_sys::VALUE, Error> {
            let raw = ruby.eval::<Value>(what)?.as_raw();
            roots.add(raw);
            Ok(raw)
        };
        Ok(RubyNames {
            call: rb::id(c"call"),
            close: rb::id(c"close"),
            each: rb::id(c"each"),
            to_path: rb::id(c"to_path"),
            to_ary: rb::id(c"to_ary"),
            new: rb::id(c"new"),
            for_fd: rb::id(c"for_fd"),
            plain_headers: rb::id(c"plain_headers"),
            plain_body: rb::id(c"plain_body"),
            oroshi: find("Oroshi")?,
            stream: find("Oroshi::Stream")?,
            null_input: find("Oroshi::NULL_INPUT")?,
            hijack: find("Oroshi::Native::Hijack")?,
            hints: find("Oroshi::Native::EarlyHints")?,
            io_bound: find("Oroshi::Native::IoBound")?,
            string_io: find("::StringIO")?,
            file: find("::File")?,
        })
    }
}

/// The running threads of the worker, for objects that outlive their request and for traps.
static ACTIVE: [AtomicPtr<Worker>; MOST_THREADS] = [const { AtomicPtr::new(ptr::null_mut()) }; MOST_THREADS];

/// Returns the worker's thread of this number, which is below [`MOST_THREADS`], if it runs in this process.
pub(crate) fn active(thread: usize) -> Option<&'static Worker> {
    // SAFETY: set while `run` holds a reference to it. Callers use it at once, under the GVL.
    unsafe { ACTIVE[thread].load(Ordering::Acquire).as_ref() }
}

impl Worker {
    /// `Worker.new(app, listener_fds:, scoreboard:, slot:, settings:, thread: 0)`: thread: its number in the worker.
    /// The first takes the listeners over; others have copies.
    pub(crate) fn new(ruby: &Ruby, arguments: &[Value]) -> Result<Self, Error> {
        let arguments = scan_args::<(Value,), (), (), (), _, ()>(arguments)?;
        let (app,) = arguments.required;
        let given = get_kwargs::<_, (Vec<RawFd>, &Scoreboard, usize, RHash), (Option<usize>,), ()>(
            arguments.keywords,
            &["listener_fds", "scoreboard", "slot", "settings"],
            &["thread"],
        )?;
        let (mut listeners, scoreboard, slot, settings) = given.required;
        let thread = given.optional.0.unwrap_or(0);
        let board = *scoreboard;
        let own = board.index(ruby, slot, thread)?;
        let peers = Peers::new(board, own);
        let slot = &board.all()[own];
        let settings = Settings::read(ruby, settings)?;
        let roots = Roots::default();
        let known = RubyNames::find(ruby, &roots)?;
        if thread == 0 {
            crate::forked::watch();
            crate::crash::forget_watchers();
        } else {
            listeners = copies(ruby, &listeners)?;
        }
        slot.set_pid(std::process::id() as i32);
        slot.set_state(State::Starting);
        let log = RefCell::new(AccessLog::new(settings.log_format, settings.log_fd));
        Ok(Worker {
            log,
            app,
            listeners,
            settings,
            slot,
            peers,
            roots,
            present: RefCell::new(CurrentExchange::of_thread(thread)),
            stop: StopNote::default(),
            enough: Cell::new(false),
            right: right_of(thread),
            aside: Cell::new(false),
            resting: Cell::new(false),
            known,
            board,
            watch: OnceCell::new(),
            own,
            thread,
        })
    }

    /// Returns the state shared with the watcher, created at the first call. `poll`: the epoll set.
    pub(crate) fn watch(&self, poll: RawFd) -> &Arc<Watch> {
        self.watch.get_or_init(|| Arc::new(Watch::new(poll, self.board, self.own, &self.settings)))
    }

    /// `#run`: serves until it is told to stop.
    pub(crate) fn run(ruby: &Ruby, worker: &Self) -> Result<Symbol, Error> {
        let pointer = ptr::from_ref(worker).cast_mut();
        let place = &ACTIVE[worker.thread];
        if place.compare_exchange(ptr::null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire).is_err() {
            let message = "a worker runs in this process already; one process has one";
            return Err(Error::new(ruby.exception_runtime_error(), message));
        }
        let _active = Active(place);
        let ended = Engine::new(ruby, worker)?.run()?;
        Ok(ruby.to_symbol(match ended {
            Ended::Stopped => "stopped",
            Ended::ManagerGone => "manager_gone",
        }))
    }

    /// `#stop`
    pub(crate) fn stop(&self) {
        self.stop.raise(Stop::Gently);
        self.wake();
    }

    /// `#stop_now`
    pub(crate) fn stop_now(&self) {
        self.stop.raise(Stop::Now);
        self.wake();
    }

    /// `#resume`: ends the rest of a thread.
    pub(crate) fn resume(&self) {
        self.resting.set(false);
        self.wake();
    }

    /// Wakes the loop, which may be on another thread than the caller, so that it reads its notes.
    fn wake(&self) {
        if self.has_siblings()
            && let Some(waker) = self.peers.own_waker()
        {
            waker.wake();
        }
    }

    /// Whether this is the worker's first thread.
    pub(crate) fn is_first(&self) -> bool {
        self.thread == 0
    }

    /// Whether the worker has several threads.
    pub(crate) fn has_siblings(&self) -> bool {
        self.board.threads().most > 1
    }

    /// Returns the number of requests of all the worker's threads.
    pub(crate) fn requests_of_all(&self) -> u64 {
        self.board.siblings(self.own).iter().map(Slot::requests).sum()
    }

    /// Whether the loop has notes to act on before it waits.
    pub(crate) fn has_notes(&self, stopping: bool) -> bool {
        self.stop.get() != Stop::No && !stopping
    }

    /// `#flush_log`: writes the collected lines of the access log, and the line of an unfinished request, for a process
    /// that is about to end. For traps too.
    pub(crate) fn flush_log(&self) {
        let (status, body_bytes) = match self.present.try_borrow().as_ref().map(|present| &present.stream) {
            Ok(Some(stream)) if stream.begun => (stream.status, stream.body_bytes),
            _ if self.slot.has_told() => (504, self.right.told_bytes()),
            _ => (NO_ANSWER, 0),
        };
        if let Ok(mut log) = self.log.try_borrow_mut() {
            log.end(status, body_bytes);
            log.flush();
        }
    }

    /// `#hand_over`: gives all connections except the current one to the other workers, for a process that is about to
    /// end. For traps too.
    pub(crate) fn hand_over(&self) {
        if let Some(watch) = self.watch.get() {
            watch.hand_over_all(false);
        }
    }

    /// `#wants_replacing?`
    pub(crate) fn wants_replacing(&self) -> bool {
        self.enough.get()
    }
}

/// `Oroshi::Native.refuse_new(fd)`: makes a listener refuse new clients; those that have connected can still be
/// accepted.
pub(crate) fn refuse_new(ruby: &Ruby, listener: RawFd) -> Result<(), Error> {
    crate::socket::refuse_new(listener).map_err(|error| {
        Error::new(ruby.exception_io_error(), format!("descriptor {listener} cannot be made to refuse: {error}"))
    })
}

/// `Oroshi::Native.adopt_orphans`: this process becomes the parent of its descendants' orphans, and reaps them
/// (PR_SET_CHILD_SUBREAPER).
pub(crate) fn adopt_orphans(ruby: &Ruby) -> Result<(), Error> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    prctl_done(ruby, "PR_SET_CHILD_SUBREAPER", result)
}

/// `Oroshi::Native.end_with_parent(signal)`: the kernel sends this signal when the parent process ends; 0: none
/// (PR_SET_PDEATHSIG).
pub(crate) fn end_with_parent(ruby: &Ruby, signal: i32) -> Result<(), Error> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) };
    prctl_done(ruby, "PR_SET_PDEATHSIG", result)
}

fn prctl_done(ruby: &Ruby, what: &str, result: i32) -> Result<(), Error> {
    crate::socket::checked(result as isize)
        .map(|_| ())
        .map_err(|error| Error::new(ruby.exception_runtime_error(), format!("prctl {what}: {error}")))
}

/// Clears the place of an active thread, however `run` ends.
struct Active(&'static AtomicPtr<Worker>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Returns new descriptors of listeners, which the caller's thread closes when it stops.
fn copies(ruby: &Ruby, listeners: &[RawFd]) -> Result<Vec<RawFd>, Error> {
    let copy = |&listener: &RawFd| {
        crate::socket::copy(listener).map_err(|error| {
            Error::new(ruby.exception_io_error(), format!("descriptor {listener} cannot be copied: {error}"))
        })
    };
    listeners.iter().map(copy).collect()
}

impl Worker {
    /// Returns a collected body as an IO.
    pub(crate) fn input_of(&self, spool: &mut crate::request::Spool) -> Result<rb_sys::VALUE, Error> {
        let file = spool.take_file().map_err(|error| {
            Error::new(rb::ruby().exception_io_error(), format!("the request's body cannot be read back: {error}"))
        })?;
        match file {
            Some(file) => {
                let number = std::os::fd::IntoRawFd::into_raw_fd(file);
                rb::protect(|| {
                    // SAFETY: a small number.
                    let number = unsafe { rb_sys::macros::LONG2FIX(i64::from(number)) };
                    rb::call_raising(self.known.file, self.known.for_fd, &[number, rb::string(b"r+b")])
                })
            }
            None => rb::protect(|| self.input_of_bytes(spool.memory())),
        }
    }

    /// Returns bytes as a StringIO; the shared empty input if there are none. May raise.
    pub(crate) fn input_of_bytes(&self, bytes: &[u8]) -> rb_sys::VALUE {
        if bytes.is_empty() {
            return self.known.null_input;
        }
        rb::call_raising(self.known.string_io, self.known.new, &[rb::string(bytes)])
    }
}
