//! The event loop of a worker: wait, read, answer, on Ruby's main thread.
//!
//! One epoll set holds the listeners, every waiting connection, and the lifeline. Ruby's lock is released only while
//! nothing is ready. A new connection is read at once; it enters the set only if its request is incomplete, or when it
//! is kept.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use magnus::{Error, Ruby};
use oroshi_http1::{RequestEvent, RequestHead};

use crate::accept::{self, LISTENER, Listener};
use crate::after::Callbacks;
use crate::budget;
use crate::clock::{self, DateLine};
use crate::connection::{Connection, Next, Stage};
use crate::env::{Common, Environments};
use crate::exchange::Body;
use crate::peers::LEFT_FOR;
use crate::poll::Poll;
use crate::progress_deadline;
use crate::rb;
use crate::request::{BodyError, RequestStart, begin, gather};
use crate::siblings;
use crate::slot::{GC_FIGURES, State};
use crate::socket::{self, is_for_later};
use crate::stop::Ended;
use crate::title::ProcessTitle;
use crate::watcher::{Watch, Watcher};
use crate::worker::Worker;

/// The state of a running worker.
pub(crate) struct Engine<'w> {
    pub(crate) ruby: &'w Ruby,
    pub(crate) worker: &'w Worker,
    pub(crate) poll: Poll,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) watch: &'w Watch,
    /// Ends with the engine.
    _watcher: Watcher,
    /// Whether another worker may have handed a connection over.
    pub(crate) queue_is_ready: bool,
    /// The token that the current connection was given.
    pub(crate) fresh_token: Option<u64>,
    /// Connections whose next request has already arrived.
    pub(crate) waiting: VecDeque<u64>,
    scratch: Vec<u8>,
    /// The answer being written.
    pub(crate) out: Vec<u8>,
    pub(crate) environments: Environments<'w>,
    pub(crate) callbacks: Callbacks,
    pub(crate) date: DateLine,
    pub(crate) title: Option<ProcessTitle>,
    pub(crate) requests: u64,
    /// When the garbage collector runs next, counted in requests.
    pub(crate) collect_at: u64,
    pub(crate) now_ms: u64,
    /// When the worker last had no work.
    pub(crate) rested_ms: u64,
    /// When it last asked the kernel for the arrival of a request.
    pub(crate) asked_ms: u64,
    /// The number of requests when the garbage collector's figures were published.
    published: u64,
    swept_ms: u64,
    pub(crate) complained_ms: u64,
    /// Since when it has been stopping, and why.
    pub(crate) stopping: Option<(u64, Ended)>,
    /// Whether it still accepts clients that had connected before the listeners refused new ones.
    pub(crate) drains: bool,
    /// When it last accepted a connection.
    pub(crate) accepted_ms: u64,
    /// The exception that leaves the loop: `exit`, a signal's, a `throw`.
    pub(crate) leave: Option<Error>,
    /// The parent process.
    pub(crate) parent: u32,
    /// Whether the worker has several threads.
    pub(crate) has_siblings: bool,
    /// Whether it takes no connections until it is needed.
    pub(crate) rests: bool,
    /// When it last let other threads run.
    pub(crate) yielded_ms: u64,
}

/// The lifeline's token. It and the waker's have the bit of LISTENER; tokens without it are connections'.
pub(crate) const LIFELINE: u64 = u64::MAX;
/// The token of the eventfd by which other workers wake this one.
const WAKER: u64 = u64::MAX - 1;
/// The token of the queue of connections handed over. Those of listeners are less.
pub(crate) const QUEUE: u64 = u64::MAX - 2;
/// Bytes read at once.
pub(crate) const SCRATCH_BYTES: usize = 64 * 1024;
/// Reads for one connection before the others get their turn.
const READS: usize = 16;
/// How often deadlines are swept.
pub(crate) const SWEEP_MS: u64 = 1000;

impl<'w> Engine<'w> {
    pub(crate) fn new(ruby: &'w Ruby, worker: &'w Worker) -> Result<Self, Error> {
        let settings = &worker.settings;
        budget::MEMORY.limit(settings.buffer_bytes);
        budget::FILES.limit(settings.answer_file_bytes);
        budget::BODY_FILES.limit(settings.body_file_bytes);
        budget::HEADS.limit(settings.buffer_bytes);
        progress_deadline::limit(settings.timeout_ms, settings.least_rate);
        let callbacks = Callbacks::new(&worker.roots)?;
        let common = Common {
            rack2: settings.rack2,
            multiprocess: settings.multiprocess,
            multithread: worker.has_siblings(),
            https: settings.https,
            errors: rb::raw(settings.errors),
            after_reply: callbacks.after_reply,
            response_finished: callbacks.response_finished,
            in_place: settings.in_place,
        };
        let poll = Poll::new().map_err(|error| broken(ruby, "epoll_create1", &error))?;
        let listeners =
            accept::prepare(&worker.listeners, &poll).map_err(|(what, error)| broken(ruby, &what, &error))?;
        if let Some(lifeline) = settings.lifeline_fd {
            poll.add(lifeline, LIFELINE)
                .map_err(|error| broken(ruby, &format!("cannot watch the lifeline, descriptor {lifeline}"), &error))?;
        }
        if let Some(waker) = worker.peers.own_waker() {
            poll.add(waker.number(), WAKER)
                .map_err(|error| broken(ruby, "cannot watch the worker's eventfd", &error))?;
        }
        poll.add_listener(worker.board.queue().number(), QUEUE)
            .map_err(|error| broken(ruby, "cannot watch for connections of other workers", &error))?;
        let watch = worker.watch(poll.number());
        let watcher =
            Watcher::start(watch).map_err(|error| broken(ruby, "cannot start the watcher's thread", &error))?;
        let title = settings.title.as_deref().map(|fixed| ProcessTitle::new(ruby, fixed)).transpose()?;
        let mut engine = Engine {
            ruby,
            worker,
            poll,
            listeners,
            watch,
            _watcher: watcher,
            queue_is_ready: false,
            fresh_token: None,
            waiting: VecDeque::new(),
            scratch: vec![0; SCRATCH_BYTES],
            out: Vec::with_capacity(SCRATCH_BYTES),
            environments: Environments::new(&worker.roots, common)?,
            callbacks,
            date: DateLine::default(),
            title,
            requests: 0,
            collect_at: 0,
            now_ms: clock::coarse_ms(),
            rested_ms: 0,
            asked_ms: 0,
            published: 0,
            swept_ms: 0,
            complained_ms: 0,
            stopping: None,
            drains: false,
            accepted_ms: 0,
            leave: None,
            parent: std::os::unix::process::parent_id(),
            has_siblings: worker.has_siblings(),
            rests: false,
            yielded_ms: 0,
        };
        engine.worker.present.borrow_mut().poll = engine.poll.number();
        engine.plan_collection();
        // Threads that start later have clients' descriptors around them.
        if worker.is_first() {
            budget::share_descriptors();
        }
        Ok(engine)
    }

    /// Serves until told to stop, and until everything begun is finished.
    pub(crate) fn run(mut self) -> Result<Ended, Error> {
        self.worker
            .right
            .install(self.worker.slot)
            .map_err(|error| broken(self.ruby, "sigaction for SIGURG", &error))?;
        crate::crash::install().map_err(|error| broken(self.ruby, "sigaction for SIGSEGV", &error))?;
        self.worker.slot.set_state(State::Idle);
        self.worker.slot.begins_to_serve(self.now_ms);
        self.publish();
        self.show_idle();
        loop {
            self.take_notes();
            self.take_news();
            if let Some(error) = self.leave.take() {
                self.worker.log.borrow_mut().flush();
                self.watch.hand_over_all(true);
                return Err(error);
            }
            if let Some((_, why)) = self.stopping
                && self.is_drained()
            {
                self.worker.log.borrow_mut().flush();
                return Ok(why);
            }
            let nothing_at_hand = self.waiting.is_empty() && !self.has_ready_listener();
            let mut ready = self.poll.look().map_err(|error| broken(self.ruby, "epoll_wait", &error))?;
            if ready == 0 && nothing_at_hand {
                ready = self.wait()?;
                self.now_ms = clock::coarse_ms();
                self.rested_ms = self.now_ms;
                self.worker.slot.goes_on(self.now_ms);
            } else {
                self.now_ms = clock::coarse_ms();
            }
            self.serve(ready);
            let is_due = self.now_ms.saturating_sub(self.swept_ms) >= SWEEP_MS || self.stopping.is_some();
            if is_due && self.leave.is_none() {
                self.sweep();
            }
        }
    }

    /// Handles the ready events, unless an exception leaves the loop.
    fn serve(&mut self, ready: usize) {
        let mut connections = 0;
        for index in 0..ready {
            match self.poll.event(index).token {
                LIFELINE => self.stop(Ended::ManagerGone),
                WAKER => self.called_to_the_listeners(),
                QUEUE => self.queue_is_ready = true,
                token if token & LISTENER != 0 => self.listener_is_ready(token),
                _ => connections += 1,
            }
        }
        if connections > 0 && self.has_ready_listener() {
            self.call_for_help();
        }
        for index in 0..ready {
            if self.leave.is_some() {
                return;
            }
            let token = self.poll.event(index).token;
            if token & LISTENER == 0 {
                self.wake(token);
            }
        }
        self.accept();
        // One request of each, so that a long pipeline delays no other connection.
        for _ in 0..self.waiting.len() {
            if self.leave.is_some() {
                return;
            }
            if let Some(token) = self.waiting.pop_front() {
                self.go_on(token);
            }
        }
    }

    /// Waits without Ruby's lock. Ruby's signal handlers run before this returns.
    fn wait(&mut self) -> Result<usize, Error> {
        self.worker.log.borrow_mut().flush();
        self.shrink();
        self.worker.slot.set_state(match self.stopping {
            Some(_) => State::Stopping,
            None if self.rests => State::Resting,
            None => State::Idle,
        });
        self.show_idle();
        let timeout_ms = match self.stopping {
            // Stopping: check often whether it is done.
            Some(_) => 50,
            None if self.has_left_listener() => LEFT_FOR.as_millis() as i32,
            None if self.watch.connections.taken() > 0
                || self.published != self.requests
                || self.has_paused_listener()
                || self.is_watching() =>
            {
                SWEEP_MS as i32
            }
            None => -1,
        };
        let (poll, worker, stopping) = (&mut self.poll, self.worker, self.stopping.is_some());
        worker.slot.rests();
        // Traps may run on the way in, before a signal could interrupt the wait; their notes must not wait.
        let waited = if self.has_siblings {
            siblings::wait(worker, poll, timeout_ms, stopping)
        } else {
            rb::without_gvl(|| if worker.has_notes(stopping) { Ok(0) } else { poll.wait(timeout_ms) })
        };
        waited?.map_err(|error| broken(self.ruby, "epoll_wait", &error))
    }

    /// Acts on the notes of the worker's methods, which traps may have called.
    fn take_notes(&mut self) {
        if self.worker.has_notes(self.stopping.is_some()) {
            self.stop(Ended::Stopped);
        }
        if self.has_siblings {
            self.rest_or_go_on();
        }
    }

    /// Acts on the watcher's findings during the application's call.
    fn take_news(&mut self) {
        let Some(refused) = self.watch.take_news() else { return };
        for token in self.watch.connections.tokens(Connection::has_request) {
            if !self.waiting.contains(&token) {
                self.waiting.push_back(token);
            }
        }
        refused.into_iter().for_each(|one| self.note_refused(&one));
    }

    // Connections.

    /// Handles an event of a waiting connection.
    fn wake(&mut self, token: u64) {
        let Some(mut connection) = self.watch.connections.take(token) else { return };
        match connection.stage {
            // The request that has arrived is served in its turn.
            _ if connection.has_request() => self.watch.connections.put(connection),
            Stage::Writing(next) => match connection.output.flush(connection.number()) {
                Ok(true) => self.settle(connection, next),
                Ok(false) => {
                    connection.due_ms = connection.output.deadline.over_ms();
                    self.watch.connections.put(connection);
                }
                Err(_) => self.close(connection, Next::Abort),
            },
            Stage::Lingering => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let received = socket::receive(connection.number(), &mut scratch);
                self.scratch = scratch;
                match received {
                    Ok(1..) => self.watch.connections.put(connection),
                    Err(error) if is_for_later(&error) => self.watch.connections.put(connection),
                    _ => self.close(connection, Next::Close),
                }
            }
            Stage::Idle | Stage::Head | Stage::Body(_) => {
                self.guarded(Some(token), |engine| engine.read(connection));
            }
        }
    }

    /// Serves the next request of a connection, which has already arrived.
    fn go_on(&mut self, token: u64) {
        let Some(mut connection) = self.watch.connections.take(token) else { return };
        if !connection.has_request() {
            self.watch.connections.put(connection);
            return;
        }
        self.guarded(Some(token), |engine| {
            let input = std::mem::take(&mut connection.input);
            if let Some(connection) = engine.take_requests(connection, &input) {
                engine.park(connection);
            }
        });
    }

    /// Runs `work`; a panic becomes a closed connection, a line in the log, and an answer if possible. Nothing from the
    /// network may end the process. `token`: the current connection's, if it has one yet.
    pub(crate) fn guarded(&mut self, token: Option<u64>, work: impl FnOnce(&mut Self)) {
        self.fresh_token = None;
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            let connection = {
                let mut present = self.worker.present.borrow_mut();
                present.forget_objects();
                present.stream = None;
                present.connection.take()
            };
            self.scratch.resize(SCRATCH_BYTES, 0);
            self.worker.slot.end();
            self.complain("a defect of the server: a panic; its message stands above");
            let may_answer = self.worker.right.claim();
            match connection {
                Some(connection) if may_answer => self.refuse(connection, 500),
                Some(connection) => self.close(connection, Next::Abort),
                // The panic dropped the connection; its entry must not stay reserved.
                None => self.release(token.or(self.fresh_token)),
            }
        }
    }

    pub(crate) fn read(&mut self, connection: Box<Connection>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut more = Some(connection);
        for _ in 0..READS {
            let Some(mut connection) = more.take() else { break };
            match socket::receive(connection.number(), &mut scratch) {
                Ok(0) => {
                    let ended = connection.decoder.eof();
                    match ended {
                        Ok(()) => self.close(connection, Next::Close),
                        Err(error) => self.refuse(connection, error.status()),
                    }
                }
                Ok(received) => {
                    if connection.input.is_empty() {
                        more = self.take_requests(connection, &scratch[..received]);
                    } else {
                        let mut input = std::mem::take(&mut connection.input);
                        input.extend_from_slice(&scratch[..received]);
                        more = self.take_requests(connection, &input);
                    }
                    // After a short read the socket is empty.
                    if received < SCRATCH_BYTES {
                        break;
                    }
                }
                Err(error) if is_for_later(&error) => {
                    more = Some(connection);
                    break;
                }
                Err(_) => self.close(connection, Next::Close),
            }
        }
        self.scratch = scratch;
        if let Some(connection) = more {
            self.park(connection);
        }
    }

    /// Serves the next request in `bytes`, all unused bytes received. Returns the connection if more must arrive first.
    pub(crate) fn take_requests(&mut self, mut connection: Box<Connection>, bytes: &[u8]) -> Option<Box<Connection>> {
        let worker = self.worker;
        let limits = &worker.settings.limits;
        let mut rest = bytes;
        if let Stage::Body(_) = connection.stage {
            connection.is_whole = false;
            return self.take_body(connection, rest);
        }
        match connection.decoder.decode(limits, &mut rest) {
            Err(error) => {
                self.refuse(connection, error.status());
                None
            }
            Ok(Some(RequestEvent::Head(head))) => self.take_head(connection, &head, bytes, rest),
            // No other event precedes a head.
            Ok(_) => {
                if !rest.is_empty() && matches!(connection.stage, Stage::Idle) {
                    connection.stage = Stage::Head;
                    connection.due_ms = self.now_ms + worker.settings.timeout_ms;
                }
                connection.input.extend_from_slice(rest);
                Some(connection)
            }
        }
    }

    /// Handles a complete head; `rest` follows it in `bytes`.
    fn take_head(
        &mut self,
        mut connection: Box<Connection>,
        head: &RequestHead<'_>,
        bytes: &[u8],
        mut rest: &[u8],
    ) -> Option<Box<Connection>> {
        let worker = self.worker;
        let limits = &worker.settings.limits;
        connection.stage = Stage::Idle;
        let head_bytes = &bytes[..bytes.len() - rest.len()];
        match begin(&mut connection, head, head_bytes, rest, worker.settings.spool_bytes) {
            RequestStart::Whole => {}
            RequestStart::Gathers => return self.take_body(connection, rest),
            RequestStart::Refused(status) => {
                self.refuse(connection, status);
                return None;
            }
            RequestStart::Gone => {
                self.close(connection, Next::Abort);
                return None;
            }
        }
        // The usual case: the whole body is here, in one piece.
        let mut body: &[u8] = &[];
        loop {
            match connection.decoder.decode(limits, &mut rest) {
                Ok(Some(RequestEvent::Data(data))) => body = data,
                Ok(Some(RequestEvent::End)) => break,
                Ok(_) => {
                    self.refuse(connection, 400);
                    return None;
                }
                Err(error) => {
                    self.refuse(connection, error.status());
                    return None;
                }
            }
        }
        connection.input.extend_from_slice(rest);
        self.exchange(connection, head, Body::Bytes(body));
        None
    }

    /// Handles more bytes of a body.
    fn take_body(&mut self, mut connection: Box<Connection>, mut rest: &[u8]) -> Option<Box<Connection>> {
        let limits = &self.worker.settings.limits;
        let Stage::Body(mut incoming) = std::mem::take(&mut connection.stage) else { return Some(connection) };
        let arrived = rest.len();
        if !incoming.spool.has_room(arrived) && !self.make_room_for_body(connection.deadline, &incoming.spool, arrived)
        {
            let status = if incoming.spool.is_beyond(arrived as u64) { 413 } else { 503 };
            self.complain_now_and_then(&format!(
                "a request's body was refused with {status}: BodyFiles, {} bytes for all of a worker's, is used up",
                budget::BODY_FILES.most()
            ));
            connection.stage = Stage::Body(incoming);
            self.refuse(connection, status);
            return None;
        }
        match gather(&mut connection.decoder, limits, &mut rest, &mut incoming.spool) {
            Ok(false) => {
                connection.input.extend_from_slice(rest);
                connection.deadline.credit(arrived as u64);
                connection.due_ms = connection.deadline.over_ms();
                connection.stage = Stage::Body(incoming);
                return Some(connection);
            }
            Ok(true) => {
                connection.input.extend_from_slice(rest);
                match incoming.parts(limits) {
                    Ok((head, spool)) => self.exchange(connection, &head, Body::Spooled(spool)),
                    Err(error) => self.refuse(connection, error.status()),
                }
            }
            Err(BodyError::Bad(error)) => {
                connection.stage = Stage::Body(incoming);
                self.refuse(connection, error.status());
            }
            Err(BodyError::Spool(error)) => {
                connection.stage = Stage::Body(incoming);
                self.complain_now_and_then(&format!("a request's body cannot be stored in a temporary file: {error}"));
                self.refuse(connection, 500);
            }
        }
        None
    }

    /// Handles connections whose deadline has passed.
    fn sweep(&mut self) {
        self.swept_ms = self.now_ms;
        budget::trim();
        self.tell_of_pressure();
        self.look_for_manager();
        self.resume();
        self.publish();
        let now_ms = self.now_ms;
        self.watch.has_looked(now_ms);
        for token in self.watch.connections.tokens(|connection| connection.due_ms <= now_ms) {
            let Some(connection) = self.watch.connections.take(token) else { continue };
            match connection.stage {
                _ if connection.has_request() => self.watch.connections.put(connection),
                Stage::Idle | Stage::Lingering if !socket::has_unread(connection.number()) => {
                    self.close(connection, Next::Close);
                }
                Stage::Lingering => self.close(connection, Next::Close),
                Stage::Idle | Stage::Head | Stage::Body(_) | Stage::Writing(_) => {
                    self.guarded(Some(token), |engine| engine.give_last_chance(connection));
                }
            }
        }
    }

    /// Ends a connection at its deadline, unless bytes moved while the application had this thread, when nobody looked:
    /// these still count.
    pub(crate) fn give_last_chance(&mut self, mut connection: Box<Connection>) {
        if let Stage::Writing(next) = connection.stage {
            return match connection.output.flush(connection.number()) {
                Ok(true) => self.settle(connection, next),
                Ok(false) if !connection.output.deadline.is_over() => self.send_off(connection, next),
                _ => self.close(connection, Next::Abort),
            };
        }
        let mut piece = vec![0; SCRATCH_BYTES];
        if let Ok(count @ 1..) = socket::receive(connection.number(), &mut piece) {
            let mut bytes = std::mem::take(&mut connection.input);
            bytes.extend_from_slice(&piece[..count]);
            let Some(more) = self.take_requests(connection, &bytes) else { return };
            connection = more;
        }
        if connection.due_ms <= clock::coarse_ms() { self.refuse(connection, 408) } else { self.park(connection) }
    }

    /// Publishes the garbage collector's figures.
    fn publish(&mut self) {
        self.published = self.requests;
        // A key that this Ruby does not know reads as 0.
        let figures = GC_FIGURES.map(|(key, _)| self.ruby.gc_stat(key).unwrap_or_default() as u64);
        self.worker.slot.publish_gc(figures);
    }

    pub(crate) fn show_idle(&mut self) {
        if let Some(title) = &mut self.title {
            title.show(self.requests, &[if self.stopping.is_some() { b"stopping" } else { b"idle" }]);
        }
    }
}

fn broken(ruby: &Ruby, what: &str, error: &io::Error) -> Error {
    Error::new(ruby.exception_runtime_error(), format!("{what}: {error}"))
}
