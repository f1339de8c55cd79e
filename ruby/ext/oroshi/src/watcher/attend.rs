//! What the watcher does for connections while the application has the main thread: it reads them, and ends clients whose
//! time is over. So a client that drips has no more time at a busy worker than at an idle one. A request that is not whole
//! stays with its worker: nobody looks at limits in the queue.
//!
//! The watcher refuses no malformed request. It leaves the bytes as they are, and the thread that serves the request decodes
//! them once more.

use std::net::IpAddr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use oroshi_http1::RequestEvent;

use super::Watch;
use crate::accept::LISTENER;
use crate::budget::HEADS;
use crate::clock::{self, DateLine};
use crate::connection::{Connection, Next, Stage};
use crate::engine::{SCRATCH_BYTES, SWEEP_MS};
use crate::exchange::{Terms, plain_answer};
use crate::parking::LINGER_MS;
use crate::poll::peek_at;
use crate::request::{Begun, Spool, begin, gather_up_to_end};
use crate::socket::{self, has_unread};

/// So many bytes are read in one go: the main thread may be waiting for its connections.
const MOST_AT_ONCE: usize = 2 << 20;

/// What the watcher's thread has for itself.
#[derive(Debug)]
pub(super) struct Tools {
    scratch: Vec<u8>,
    out: Vec<u8>,
    date: DateLine,
}

impl Default for Tools {
    fn default() -> Self {
        Tools { scratch: vec![0; SCRATCH_BYTES], out: Vec::new(), date: DateLine::default() }
    }
}

/// A client that the watcher has refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) peer: Option<IpAddr>,
    /// Its request's head, if that was there, and there is a log.
    pub(crate) head: Vec<u8>,
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    /// What the log of errors has to say of it.
    pub(crate) why: Option<String>,
}

/// What has come of bytes.
enum Took {
    /// More must come.
    Waits,
    /// A request that somebody can serve.
    Whole,
    /// A client that is refused with this status, and perhaps a line for the log of errors.
    Refused(u16, Option<String>),
    /// A connection that has ended.
    Gone(Next),
}

impl Watch {
    /// Reads what has come. The caller has the seats.
    pub(super) fn attend(&self, tools: &mut Tools) {
        let mut left = MOST_AT_ONCE;
        for token in peek_at::<64>(self.poll).filter(|token| token & LISTENER == 0) {
            while let Some(connection) = self.seats.take(token) {
                let read = self.take_in(connection, tools);
                left = left.saturating_sub(read);
                if left == 0 {
                    return;
                }
                // After a short read there is nothing left.
                if read < SCRATCH_BYTES {
                    break;
                }
            }
        }
    }

    /// Ends the patience with connections whose time is over. The caller has the seats.
    pub(super) fn expire(&self, tools: &mut Tools) {
        let now_ms = clock::coarse_ms();
        self.has_looked(now_ms);
        for token in self.seats.tokens(|it| it.due_ms <= now_ms && !it.has_request()) {
            let Some(connection) = self.seats.take(token) else { continue };
            match connection.stage {
                Stage::Idle if has_unread(connection.number()) => self.seats.put(connection),
                Stage::Idle | Stage::Lingering => self.close(connection, Next::Close),
                Stage::Writing(_) => self.send_once_more(connection),
                Stage::Head | Stage::Body(_) => {
                    // What has come by now counts still.
                    self.take_in(connection, tools);
                    let Some(connection) = self.seats.take(token) else { continue };
                    if connection.has_request() || connection.due_ms > clock::coarse_ms() {
                        self.seats.put(connection);
                    } else {
                        let status = if self.has_room(&connection) { 408 } else { 503 };
                        self.refuse(connection, status, None, tools);
                    }
                }
            }
        }
    }

    /// Reads what has come on a connection. Gives how many bytes.
    fn take_in(&self, mut connection: Box<Connection>, tools: &mut Tools) -> usize {
        let is_other = connection.has_request() || matches!(connection.stage, Stage::Writing(_));
        let received = match is_other || !self.has_room(&connection) {
            true => None,
            false => socket::receive(connection.number(), &mut tools.scratch).ok(),
        };
        // Nothing has come, or the connection has broken, which the main thread will see.
        let Some(received) = received else {
            self.seats.put(connection);
            return 0;
        };
        let took = match (&connection.stage, received) {
            (Stage::Lingering, 1..) => Took::Waits,
            (Stage::Lingering, 0) => Took::Gone(Next::Close),
            (_, 0) => match connection.decoder.eof() {
                Ok(()) => Took::Gone(Next::Close),
                Err(error) => Took::Refused(error.status(), None),
            },
            _ => self.digest(&mut connection, &tools.scratch[..received]),
        };
        match took {
            Took::Gone(next) => self.close(connection, next),
            Took::Refused(status, why) => self.refuse(connection, status, why, tools),
            Took::Waits | Took::Whole => {
                if matches!(took, Took::Whole) {
                    self.has_news.store(true, Relaxed);
                }
                connection.count_input();
                self.seats.put(connection);
            }
        }
        received
    }

    /// Whether there is room for what is read at once.
    fn has_room(&self, connection: &Connection) -> bool {
        match &connection.stage {
            Stage::Body(incoming) => incoming.spool.has_room(SCRATCH_BYTES),
            Stage::Lingering => true,
            _ => !HEADS.is_over() && Spool::new(self.spool_bytes).has_room(SCRATCH_BYTES),
        }
    }

    /// Bytes have come of a request.
    fn digest(&self, connection: &mut Connection, piece: &[u8]) -> Took {
        let mut bytes = std::mem::take(&mut connection.input);
        bytes.extend_from_slice(piece);
        let mut rest = &bytes[..];
        if !matches!(connection.stage, Stage::Body(_)) {
            let mut decoder = connection.decoder.clone();
            match decoder.decode(&self.limits, &mut rest) {
                Ok(Some(RequestEvent::Head(head))) => {
                    connection.stage = Stage::Idle;
                    let head_bytes = &bytes[..bytes.len() - rest.len()];
                    match begin(connection, &head, head_bytes, rest, self.spool_bytes) {
                        Begun::Gathers => connection.decoder = decoder,
                        Begun::Gone => return Took::Gone(Next::Abort),
                        Begun::Whole | Begun::Refused(_) => {
                            connection.input = bytes;
                            return Took::Whole;
                        }
                    }
                }
                Ok(None) => {
                    if !rest.is_empty() && matches!(connection.stage, Stage::Idle) {
                        connection.stage = Stage::Head;
                        connection.due_ms = clock::coarse_ms() + self.timeout_ms;
                    }
                    connection.decoder = decoder;
                    connection.input = rest.to_vec();
                    return Took::Waits;
                }
                Ok(Some(_)) | Err(_) => {
                    connection.stage = Stage::Idle;
                    connection.input = bytes;
                    return Took::Whole;
                }
            }
        }
        let arrived = rest.len();
        let Stage::Body(incoming) = &mut connection.stage else { return Took::Waits };
        let gathered = gather_up_to_end(&mut connection.decoder, &self.limits, &mut rest, &mut incoming.spool);
        connection.input = rest.to_vec();
        match gathered {
            Ok(true) => {
                connection.is_whole = true;
                Took::Whole
            }
            Ok(false) => {
                connection.patience.credit(arrived as u64);
                connection.due_ms = connection.patience.over_ms();
                Took::Waits
            }
            Err(error) => {
                let why = format!("a request's body cannot be stored in a temporary file: {error}");
                Took::Refused(500, Some(why))
            }
        }
    }

    /// A slow reader's time is over. First sends what its socket takes by now, which may give it more time.
    fn send_once_more(&self, mut connection: Box<Connection>) {
        match connection.output.flush(connection.number()) {
            // The main thread goes on with it.
            Ok(true) => connection.due_ms = clock::coarse_ms() + SWEEP_MS,
            Ok(false) if !connection.output.patience.is_over() => {
                connection.due_ms = connection.output.patience.over_ms();
            }
            _ => return self.close(connection, Next::Abort),
        }
        self.seats.put(connection);
    }

    /// Tells a client that its request is refused. What does not go out at once is lost.
    fn refuse(&self, mut connection: Box<Connection>, status: u16, why: Option<String>, tools: &mut Tools) {
        let body_bytes = plain_answer(&mut tools.out, &mut tools.date, status, Next::Linger, Terms::REFUSAL);
        let _ = socket::send(connection.number(), &tools.out, false);
        socket::shut_sending(connection.number());
        let head = match &connection.stage {
            Stage::Body(incoming) if self.logs => incoming.head().to_vec(),
            _ => Vec::new(),
        };
        let refused = Refused { peer: connection.peer, head, status, body_bytes, why };
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(refused);
        self.has_news.store(true, Relaxed);
        (connection.stage, connection.input) = (Stage::Lingering, Vec::new());
        connection.count_input();
        connection.due_ms = clock::coarse_ms() + LINGER_MS;
        self.seats.put(connection);
    }
}
