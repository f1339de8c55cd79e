//! One request: calls the application, and handles its answer or exception.

use std::net::IpAddr;

use magnus::error::ErrorType;
use magnus::{Error, Exception, Value, value::ReprValue as _};
use oroshi_http1::{Framing, RequestDecoder, RequestEvent, RequestHead, Version, encode};
use rb_sys::VALUE;

use crate::clock::{self, DateLine};
use crate::connection::{Connection, Next, Stage};
use crate::engine::Engine;
use crate::env::Facts;
use crate::forked;
use crate::log::NO_ANSWER;
use crate::rb;
use crate::request::Spool;
use crate::slot::State;
use crate::socket;
use crate::stop::Stop;
use crate::watcher::RefusedClient;

/// The status in the access log of a request whose client had gone.
const CLIENT_GONE: u16 = 499;

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Body<'b> {
    /// The whole body, empty if there is none.
    Bytes(&'b [u8]),
    /// A body that was collected.
    Spooled(&'b mut Spool),
}

/// The facts of a request that its answer depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerFacts {
    pub(crate) http11: bool,
    /// HEAD: as GET, without the body.
    pub(crate) head_only: bool,
    /// Whether the request allows to keep the connection.
    pub(crate) keep: bool,
}

impl AnswerFacts {
    /// For bytes that are no request, or perhaps none.
    pub(crate) const REFUSAL: AnswerFacts = AnswerFacts { http11: true, head_only: false, keep: false };
}

impl Engine<'_> {
    /// Serves a request.
    pub(crate) fn exchange(&mut self, mut connection: Box<Connection>, head: &RequestHead<'_>, body: Body<'_>) {
        let worker = self.worker;
        let known = &worker.known;
        if worker.settings.check_client && connection.input.is_empty() && socket::has_ended(connection.number()) {
            return self.client_has_gone(connection, head);
        }
        let answer_facts = AnswerFacts {
            http11: head.version == Version::Http11,
            head_only: head.method == "HEAD",
            keep: head.keep_alive && worker.settings.keep_alive_ms > 0,
        };
        connection.is_last = !head.keep_alive;
        connection.has_asked = true;
        let wait_us = arrival_to_now(std::mem::take(&mut connection.arrived_ms));
        let serial = self.begin(head, connection.peer, answer_facts.http11, wait_us);
        let decoded_bytes = match &body {
            Body::Spooled(spool) if head.framing == Framing::Chunked => Some(spool.length()),
            _ => None,
        };
        let address = &self.listeners[connection.listener].address;
        let facts = Facts { head: *head, peer: connection.peer, address, decoded_bytes, wait_us };
        let (token, socket) = (connection.token, connection.number());
        {
            worker.present.borrow_mut().begin(connection);
        }
        worker.right.arm(serial, socket, answer_facts.head_only);
        let mut file = rb::NIL;
        let mut env = rb::NIL;
        let hints_on = worker.settings.early_hints && answer_facts.http11;
        let io_on = worker.settings.on_io_bound.is_some();
        let environments = &mut self.environments;
        let mut serve = |given: Result<VALUE, &[u8]>| {
            rb::protect(|| {
                let input = given.unwrap_or_else(|bytes| worker.input_of_bytes(bytes));
                // SAFETY: a class whose objects have no state.
                let hijack = unsafe { rb_sys::rb_obj_alloc(known.hijack) };
                env = environments.build(&facts, input, hijack);
                let hints = if hints_on { add_object(env, "rack.early_hints", known.hints) } else { 0 };
                let io_bound = if io_on { add_object(env, "oroshi.io_bound", known.io_bound) } else { 0 };
                {
                    let mut present = worker.present.borrow_mut();
                    present.env = env;
                    present.hijack = hijack;
                    present.hints = hints;
                    present.io_bound = io_bound;
                }
                let response = rb::call_raising(rb::raw(worker.app), known.call, &[env]);
                // `present` knows them by their addresses; until here the stack held them.
                std::hint::black_box((&hijack, &hints, &io_bound));
                response
            })
        };
        let lent = self.watch.lend();
        let response = match body {
            Body::Bytes(bytes) => serve(Err(bytes)),
            Body::Spooled(spool) => worker.input_of(spool).and_then(|input| {
                file = input;
                serve(Ok(input))
            }),
        };
        drop(lent);
        let (connection, hijacked) = {
            let mut present = worker.present.borrow_mut();
            present.forget_objects();
            (present.connection.take(), present.hijacked)
        };
        if forked::is_child() {
            return self.leave_to_parent(response.err());
        }
        worker.slot.set_state(State::Writing);
        let finished = self.callbacks.finished(env, &response);
        match (connection, response) {
            (Some(connection), Ok(response)) if !hijacked => self.respond(connection, response, answer_facts),
            (Some(connection), Err(error)) if !hijacked => self.failed(connection, error, answer_facts),
            (_, response) => {
                self.release(token);
                self.worker.log.borrow_mut().end(NO_ANSWER, 0);
                match response {
                    Ok(response) => self.close_body_of(response),
                    Err(error) => self.report(error),
                }
            }
        }
        if file != rb::NIL {
            // Close the file now, not when the garbage collector finds it.
            let _ = rb::call(file, known.close, &[]);
        }
        if let Some(finished) = finished
            && !forked::is_child()
        {
            self.finish(&finished);
        }
        std::hint::black_box(&env);
        self.end();
    }

    /// Begins a request. Returns its serial in the scoreboard.
    fn begin(&mut self, head: &RequestHead<'_>, peer: Option<IpAddr>, http11: bool, wait_us: Option<u64>) -> u64 {
        let serial = self.worker.slot.begin(head.method, head.target, http11);
        self.requests += 1;
        if let Some(title) = &mut self.title {
            // Every local user can see it, and queries contain secrets.
            let target = head.target.as_bytes();
            let path = &target[..memchr::memchr(b'?', target).unwrap_or(target.len())];
            title.show(self.requests, &[head.method.as_bytes(), b" ", path]);
        }
        if self.worker.log.borrow().is_on() {
            self.log_begins(peer, Some(head));
        }
        self.environments.look_at(head);
        let queue_us = self.environments.queue_us;
        if queue_us.is_some() || wait_us.is_some() {
            self.note_waits(queue_us, wait_us);
        }
        serial
    }

    /// Counts how long the request has waited: since a proxy received it, and for this worker.
    #[cold]
    fn note_waits(&mut self, queue_us: Option<u64>, wait_us: Option<u64>) {
        let slot = self.worker.slot;
        for (times, us) in [(&slot.queue, queue_us), (&slot.wait, wait_us)] {
            us.into_iter().for_each(|us| times.add(us));
        }
        self.worker.log.borrow_mut().waited(queue_us, wait_us);
    }

    /// Drops the request of a client that has disconnected. The access log says 499, as nginx's does.
    fn client_has_gone(&mut self, connection: Box<Connection>, head: &RequestHead<'_>) {
        if self.worker.log.borrow().is_on() {
            self.log_begins(connection.peer, Some(head));
            self.worker.log.borrow_mut().end(CLIENT_GONE, 0);
        }
        self.close(connection, Next::Close);
    }

    /// Begins a line of the access log; without a head if none was readable.
    fn log_begins(&self, peer: Option<IpAddr>, head: Option<&RequestHead<'_>>) {
        let remote = peer.map(|peer| peer.to_string()).unwrap_or_default();
        let mut log = self.worker.log.borrow_mut();
        let Some(head) = head else {
            return log.begin([remote.as_bytes(), b"-", b"-", b"", b"", b""], true);
        };
        let field = |name| head.headers.get(name).unwrap_or_default();
        let (target, host) = (head.target.as_bytes(), head.host.unwrap_or_default());
        log.begin(
            [remote.as_bytes(), head.method.as_bytes(), target, host, field("Referer"), field("User-Agent")],
            head.version == Version::Http11,
        );
    }

    /// Ends a request, and does the work between two requests.
    fn end(&mut self) {
        if forked::is_child() {
            return;
        }
        let worker = self.worker;
        worker.slot.end();
        // The slot shows idle only when the worker waits: other workers leave connections to idle ones.
        if self.stopping.is_some() {
            worker.slot.set_state(State::Stopping);
        }
        if self.requests == self.collect_at {
            // SAFETY: no arguments; finalizers may raise. An application that has disabled the garbage collector during
            // requests wants it here all the same.
            let collected = rb::protect(|| unsafe {
                let disabled = rb_sys::rb_gc_enable();
                rb_sys::rb_gc_start();
                if disabled == rb::TRUE { rb_sys::rb_gc_disable() } else { rb::NIL }
            });
            if let Err(error) = collected {
                self.report(error);
            }
            self.plan_collection();
        }
        if worker.settings.quit_after.is_some_and(|most| self.requests_of_all() >= most) && !worker.enough.replace(true)
        {
            let called = worker.settings.on_enough.map(|it| it.funcall::<_, _, Value>("call", ()));
            if let Some(Err(error)) = called {
                self.report(error);
            }
        }
        if self.has_siblings {
            self.end_among_siblings();
        }
    }

    /// Returns the number of requests of the worker, of all its threads.
    fn requests_of_all(&self) -> u64 {
        if self.has_siblings { self.worker.requests_of_all() } else { self.requests }
    }

    /// Chooses when the garbage collector runs next: at random within its range, so that workers do not pause together.
    pub(crate) fn plan_collection(&mut self) {
        let Some((min, max)) = self.worker.settings.oob_gc else { return };
        let seed = clock::exact_us() ^ u64::from(std::process::id()) << 32;
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.collect_at = self.requests + min + (mixed ^ (mixed >> 27)) % (max - min + 1);
    }

    /// Returns the connection's next state after a framed answer.
    pub(crate) fn next(&self, connection: &Connection, keep: bool) -> Next {
        let stopping = self.stopping.is_some() || self.worker.stop.get() != Stop::No;
        match keep && !stopping && !self.is_better_off_elsewhere(connection) {
            true => Next::Keep,
            // Closing over unread bytes would reset the connection, and lose the answer.
            false if !connection.input.is_empty() => Next::Linger,
            false => Next::Close,
        }
    }

    /// Answers for an application that raised before any of its answer was sent.
    pub(crate) fn failed(&mut self, connection: Box<Connection>, error: Error, answer_facts: AnswerFacts) {
        if forked::is_child() {
            return self.leave_to_parent(Some(error));
        }
        self.report(error);
        if !self.worker.right.claim() {
            return self.told(connection);
        }
        let keep = answer_facts.keep && self.leave.is_none();
        self.answer_plainly(connection, 500, answer_facts, keep);
    }

    /// Refuses bytes that never became a request for the application. The connection closes, because the next request's
    /// start is unknown.
    pub(crate) fn refuse(&mut self, mut connection: Box<Connection>, status: u16) {
        if self.worker.log.borrow().is_on() {
            let peer = connection.peer;
            // If only the body is at fault, the log shows the head.
            match &mut connection.stage {
                Stage::Body(incoming) => match incoming.parts(&self.worker.settings.limits) {
                    Ok((head, _)) => self.log_begins(peer, Some(&head)),
                    Err(_) => self.log_begins(peer, None),
                },
                _ => self.log_begins(peer, None),
            }
        }
        self.answer_plainly(connection, status, AnswerFacts::REFUSAL, false);
    }

    /// Logs a client that the watcher has refused.
    pub(crate) fn note_refused(&mut self, refused: &RefusedClient) {
        if let Some(why) = &refused.why {
            self.complain_now_and_then(why);
        }
        if !self.worker.log.borrow().is_on() {
            return;
        }
        match RequestDecoder::default().decode(&self.worker.settings.limits, &mut &refused.head[..]) {
            Ok(Some(RequestEvent::Head(head))) => self.log_begins(refused.peer, Some(&head)),
            _ => self.log_begins(refused.peer, None),
        }
        self.worker.log.borrow_mut().end(refused.status, refused.body_bytes);
    }

    /// Sends an answer of the server's own: the status in words.
    fn answer_plainly(&mut self, mut connection: Box<Connection>, status: u16, answer_facts: AnswerFacts, keep: bool) {
        let next = match self.next(&connection, keep) {
            Next::Keep => Next::Keep,
            // More may still arrive.
            _ => Next::Linger,
        };
        let body_bytes = plain_answer(&mut self.out, &mut self.date, status, next, answer_facts);
        self.worker.log.borrow_mut().end(status, body_bytes);
        let sent = connection.output.send_one(connection.number(), &self.out);
        let next = self.after(sent, next);
        self.send_off(connection, next);
    }

    /// Returns the connection's next state after sending. A client that left is not reported; an answer that could not
    /// be kept for a slow client is, once a second.
    pub(crate) fn after(&mut self, sent: std::io::Result<()>, next: Next) -> Next {
        let Err(error) = sent else { return next };
        if error.kind() == std::io::ErrorKind::Other && error.raw_os_error().is_none() {
            self.complain_now_and_then(&error.to_string());
        }
        Next::Abort
    }

    /// Leaves the loop in a child that the application has forked: drops its copies of connections silently, and passes
    /// on the `exit` or error that led here.
    pub(crate) fn leave_to_parent(&mut self, error: Option<Error>) {
        self.worker.log.borrow_mut().forget();
        if let Some(error) = error {
            self.report(error);
        }
        let message = "a process that the application has forked came back into the server; it was expected to end, by \
                       exit! or at the end of fork's block";
        let other = || Error::new(self.ruby.exception_runtime_error(), message);
        self.leave = self.leave.take().or_else(|| Some(other()));
    }

    /// Writes an application's error to `rack.errors`. An exception that wants to end the process leaves the loop
    /// instead.
    pub(crate) fn report(&mut self, error: Error) {
        let exception = match error.error_type() {
            ErrorType::Exception(exception) => *exception,
            ErrorType::Error(..) => {
                let text = error.to_string();
                return self.complain(&text);
            }
            ErrorType::Jump(_) => {
                self.leave = Some(error);
                return;
            }
        };
        let leaves = ["SystemExit", "SignalException"].iter().any(|name| is_a(exception, name));
        if leaves {
            self.leave = Some(error);
            return;
        }
        let text = exception.funcall::<_, _, String>("full_message", (magnus::kwargs!("highlight" => false),));
        self.complain(&text.unwrap_or_else(|_| error.to_string()));
    }

    /// Closes the body of an answer that is not sent.
    pub(crate) fn close_body_of(&mut self, response: VALUE) {
        if let Some([_, _, body]) = triple(response) {
            self.close_body(body);
        }
    }

    /// Calls `close` on a body that has it. Call this once for each body.
    pub(crate) fn close_body(&mut self, body: VALUE) {
        if rb::is_plain_array(body) {
            return;
        }
        let close = self.worker.known.close;
        let closed = rb::responds(body, close).and_then(|it| if it { rb::call(body, close, &[]) } else { Ok(rb::NIL) });
        if let Err(error) = closed {
            self.report(error);
        }
    }
}

/// Returns the microseconds since a request's arrival, in milliseconds of the coarse clock; `None` for 0.
fn arrival_to_now(arrived_ms: u64) -> Option<u64> {
    (arrived_ms != 0).then(|| clock::coarse_ms().saturating_sub(arrived_ms) * 1000)
}

/// Puts an object of `class` into the environment, and returns it. May raise.
fn add_object(env: VALUE, key: &str, class: VALUE) -> VALUE {
    // SAFETY: a class whose objects have no state, and a Hash on the stack.
    unsafe {
        let object = rb_sys::rb_obj_alloc(class);
        rb_sys::rb_hash_aset(env, rb::interned(key), object);
        object
    }
}

/// Writes an answer of the server's own into `out`: the status in words. Returns the length of its body.
pub(crate) fn plain_answer(
    out: &mut Vec<u8>,
    date: &mut DateLine,
    status: u16,
    next: Next,
    answer_facts: AnswerFacts,
) -> u64 {
    let reason = encode::standard_reason(status);
    let length = reason.len() as u64 + 1;
    out.clear();
    // The status and the fields are our own, and valid.
    let _ = encode::status_line(out, Version::Http11, status, None);
    out.extend_from_slice(date.now());
    if status == 405 {
        out.extend_from_slice(b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n");
    }
    if status == 503 {
        out.extend_from_slice(b"Retry-After: 1\r\n");
    }
    out.extend_from_slice(b"Content-Type: text/plain\r\n");
    encode::content_length(out, length);
    match (next, answer_facts.http11) {
        (Next::Keep, true) => {}
        (Next::Keep, false) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        _ => out.extend_from_slice(b"Connection: close\r\n"),
    }
    encode::end_of_head(out);
    if answer_facts.head_only {
        return 0;
    }
    out.extend_from_slice(reason.as_bytes());
    out.push(b'\n');
    length
}

/// Returns the three parts of an answer.
pub(crate) fn triple(response: VALUE) -> Option<[VALUE; 3]> {
    if !rb::is_array(response) {
        return None;
    }
    // SAFETY: an Array that the caller holds; no Ruby code runs while it is looked at.
    unsafe { rb::elements(response) }.first_chunk().copied()
}

fn is_a(exception: Exception, class: &str) -> bool {
    let class: Result<magnus::RClass, Error> = magnus::Module::const_get(rb::ruby().class_object(), class);
    class.is_ok_and(|class| exception.is_kind_of(class))
}
