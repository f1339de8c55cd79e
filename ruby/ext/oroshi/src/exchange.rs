//! One request: what the application is given, and what becomes of what it gives back or raises.

use std::net::IpAddr;

use magnus::error::ErrorType;
use magnus::{Error, Exception, Value, value::ReprValue as _};
use oroshi_http1::{Framing, RequestDecoder, RequestEvent, RequestHead, Version, encode};
use rb_sys::VALUE;

use crate::clock::DateLine;
use crate::connection::{Connection, Next, Stage};
use crate::engine::Engine;
use crate::env::Facts;
use crate::forked;
use crate::log::NO_ANSWER;
use crate::overdue;
use crate::rb;
use crate::request::Spool;
use crate::scoreboard::State;
use crate::watcher::Refused;
use crate::worker::Stop;

/// The body of a request.
#[derive(Debug)]
pub(crate) enum Body<'b> {
    /// All of it, empty if there is none.
    Bytes(&'b [u8]),
    /// It was gathered.
    Spooled(&'b mut Spool),
}

/// What an answer must know of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) http11: bool,
    /// HEAD: everything as for GET, without the body.
    pub(crate) head_only: bool,
    /// Whether the connection may be kept, as far as the request goes.
    pub(crate) keep: bool,
}

impl Terms {
    /// Of what was no request, or may have been none.
    pub(crate) const REFUSAL: Terms = Terms { http11: true, head_only: false, keep: false };
}

impl Engine<'_> {
    /// Has a request answered.
    pub(crate) fn exchange(&mut self, mut connection: Box<Connection>, head: &RequestHead<'_>, body: Body<'_>) {
        let worker = self.worker;
        let known = &worker.known;
        let terms = Terms {
            http11: head.version == Version::Http11,
            head_only: head.method == "HEAD",
            keep: head.keep_alive && worker.settings.keep_alive_ms > 0,
        };
        connection.is_last = !head.keep_alive;
        connection.has_asked = true;
        let serial = self.begin(head, connection.peer, terms.http11);
        let decoded_bytes = match &body {
            Body::Spooled(spool) if head.framing == Framing::Chunked => Some(spool.length()),
            _ => None,
        };
        let place = &self.listeners[connection.listener].place;
        let facts = Facts { head: *head, peer: connection.peer, place, decoded_bytes };
        let (seat, socket) = (connection.seat, connection.number());
        {
            let mut present = worker.present.borrow_mut();
            present.number += 1;
            present.connection = Some(connection);
            present.hijacked = false;
        }
        overdue::arm(serial, socket, terms.head_only);
        let mut file = rb::NIL;
        let environments = &mut self.environments;
        let mut serve = |given: Result<VALUE, &[u8]>| {
            rb::protect(|| {
                let input = given.unwrap_or_else(|bytes| worker.input_of_bytes(bytes));
                // SAFETY: a class whose objects have no state.
                let hijack = unsafe { rb_sys::rb_obj_alloc(known.hijack) };
                let env = environments.build(&facts, input, hijack);
                {
                    let mut present = worker.present.borrow_mut();
                    present.env = env;
                    present.hijack = hijack;
                }
                let response = rb::call_raising(rb::raw(worker.app), known.call, &[env]);
                // `present` knows both by their addresses: until here the stack has held them.
                std::hint::black_box((&env, &hijack));
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
            (present.env, present.hijack) = (0, 0);
            (present.connection.take(), present.hijacked)
        };
        if forked::is_child() {
            return self.leave_to_parent(response.err());
        }
        worker.slot.set_state(State::Writing);
        match (connection, response) {
            (Some(connection), Ok(response)) if !hijacked => self.respond(connection, response, terms),
            (Some(connection), Err(error)) if !hijacked => self.failed(connection, error, terms),
            (_, response) => {
                self.release(seat);
                self.worker.log.borrow_mut().end(NO_ANSWER, 0);
                match response {
                    Ok(response) => self.close_body_of(response),
                    Err(error) => self.report(error),
                }
            }
        }
        if file != rb::NIL {
            // A file goes now, not when the collector finds it.
            let _ = rb::call(file, known.close, &[]);
        }
        self.end();
    }

    /// A request begins. Returns its serial in the scoreboard.
    fn begin(&mut self, head: &RequestHead<'_>, peer: Option<IpAddr>, http11: bool) -> u64 {
        let serial = self.worker.slot.begin(head.method, head.target, http11);
        self.requests += 1;
        if let Some(title) = &mut self.title {
            // Every local user can see it: queries have secrets.
            let path = head.target.split('?').next().unwrap_or_default();
            title.show(self.requests, &[head.method.as_bytes(), b" ", path.as_bytes()]);
        }
        if self.worker.log.borrow().is_on() {
            self.log_begins(peer, Some(head));
        }
        self.environments.look_at(head);
        serial
    }

    /// A line of the access log begins; without a head, if what came has none that could be read.
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

    /// A request is over: what is done between two.
    fn end(&mut self) {
        if forked::is_child() {
            return;
        }
        let worker = self.worker;
        worker.slot.end();
        // It is idle when it waits, and not before: other workers leave connections to idle ones.
        if self.stopping.is_some() {
            worker.slot.set_state(State::Stopping);
        }
        if self.requests == self.collect_at {
            // SAFETY: no arguments; finalizers may raise. An application that has switched the collector off, so that it
            // does not run within requests, wants it here all the same.
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
        if worker.settings.quit_after.is_some_and(|most| self.requests >= most) && !worker.enough.replace(true) {
            let called = worker.settings.on_enough.map(|it| it.funcall::<_, _, Value>("call", ()));
            if let Some(Err(error)) = called {
                self.report(error);
            }
        }
    }

    /// Chooses when the collector runs next: at random within its range, so that workers do not pause together.
    pub(crate) fn plan_collection(&mut self) {
        let Some((min, max)) = self.worker.settings.oob_gc else { return };
        let seed = crate::clock::exact_us() ^ u64::from(std::process::id()) << 32;
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.collect_at = self.requests + min + (mixed ^ (mixed >> 27)) % (max - min + 1);
    }

    /// Where a connection goes after an answer that was framed.
    pub(crate) fn next(&self, connection: &Connection, keep: bool) -> Next {
        let stopping = self.stopping.is_some() || self.worker.stop.get() != Stop::No;
        match keep && !stopping && !self.is_better_off_elsewhere(connection) {
            true => Next::Keep,
            // Closing over bytes that nobody has read would reset the connection, and with it the answer.
            false if !connection.input.is_empty() => Next::Linger,
            false => Next::Close,
        }
    }

    /// The application raised, and nothing of an answer was sent.
    pub(crate) fn failed(&mut self, connection: Box<Connection>, error: Error, terms: Terms) {
        if forked::is_child() {
            return self.leave_to_parent(Some(error));
        }
        self.report(error);
        if !overdue::claim() {
            return self.told(connection);
        }
        let keep = terms.keep && self.leave.is_none();
        self.answer_plainly(connection, 500, terms, keep);
    }

    /// Refuses what never became a request that the application could see. The connection closes: where the next request
    /// would begin is not known.
    pub(crate) fn refuse(&mut self, mut connection: Box<Connection>, status: u16) {
        if self.worker.log.borrow().is_on() {
            let peer = connection.peer;
            // Where only the body is at fault, the head can be told.
            match &mut connection.stage {
                Stage::Body(incoming) => match incoming.parts(&self.worker.settings.limits) {
                    Ok((head, _)) => self.log_begins(peer, Some(&head)),
                    Err(_) => self.log_begins(peer, None),
                },
                _ => self.log_begins(peer, None),
            }
        }
        self.answer_plainly(connection, status, Terms::REFUSAL, false);
    }

    /// The watcher has refused a client: what the log has to say of it.
    pub(crate) fn note_refused(&mut self, refused: &Refused) {
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

    /// An answer of the server's own: the status in words.
    fn answer_plainly(&mut self, mut connection: Box<Connection>, status: u16, terms: Terms, keep: bool) {
        let next = match self.next(&connection, keep) {
            Next::Keep => Next::Keep,
            // Something may still be coming in.
            _ => Next::Linger,
        };
        let body_bytes = plain_answer(&mut self.out, &mut self.date, status, next, terms);
        self.worker.log.borrow_mut().end(status, body_bytes);
        let sent = connection.output.send_one(connection.number(), &self.out);
        let next = self.after(sent, next);
        self.send_off(connection, next);
    }

    /// Where a connection goes after what became of its answer. A client that has gone is no news; that an answer could
    /// not be kept for a slow one is, once a second.
    pub(crate) fn after(&mut self, sent: std::io::Result<()>, next: Next) -> Next {
        let Err(error) = sent else { return next };
        if error.kind() == std::io::ErrorKind::Other && error.raw_os_error().is_none() {
            self.complain_now_and_then(&error.to_string());
        }
        Next::Abort
    }

    /// The application has forked, and this is the child. Its copies of connections are dropped without a word, and it
    /// leaves the loop: by the `exit` that has brought it here, or by an error.
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

    /// Writes an error of the application's to `rack.errors`; one that is no error, but wants to end the process, leaves
    /// the loop.
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

    /// Calls `close`, if the body has one. To be called once for each body.
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

/// Writes an answer of the server's own into `out`: the status in words. Gives how many bytes its body has.
pub(crate) fn plain_answer(out: &mut Vec<u8>, date: &mut DateLine, status: u16, next: Next, terms: Terms) -> u64 {
    let reason = encode::standard_reason(status);
    let length = reason.len() as u64 + 1;
    out.clear();
    // The status and the fields are ours, and sound.
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
    match (next, terms.http11) {
        (Next::Keep, true) => {}
        (Next::Keep, false) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        _ => out.extend_from_slice(b"Connection: close\r\n"),
    }
    encode::end_of_head(out);
    if terms.head_only {
        return 0;
    }
    out.extend_from_slice(reason.as_bytes());
    out.push(b'\n');
    length
}

/// The three parts of an answer.
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
