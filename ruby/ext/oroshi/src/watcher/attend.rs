//! The watcher's work on connections while the application has the main thread: reads them, and ends clients whose
//! deadline has passed. So a slow sender has no more time at a busy worker than at an idle one. An incomplete request
//! stays with its worker, because nobody checks limits in the queue.
//!
//! The watcher refuses no malformed request. It leaves the bytes as they are, and the thread that serves the request
//! decodes them again.

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
use crate::exchange::{AnswerFacts, plain_answer};
use crate::parking::LINGER_MS;
use crate::poll::peek_at;
use crate::request::{RequestStart, Spool, begin, gather_up_to_end};
use crate::socket::{self, has_unread};

/// Bytes read in one go: the main thread may be waiting for its connections.
const MOST_AT_ONCE: usize = 2 << 20;

/// The state of the watcher's thread alone.
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
pub(crate) struct RefusedClient {
    pub(crate) peer: Option<IpAddr>,
    /// Its request's head, if there was one, and there is a log.
    pub(crate) head: Vec<u8>,
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
    /// The line for the error log.
    pub(crate) why: Option<String>,
}

/// The result of new bytes.
enum ReadOutcome {
    /// More must arrive.
    Waits,
    /// A complete request.
    Whole,
    /// The client is refused with this status, and perhaps a line for the error log.
    Refused(u16, Option<String>),
    /// The connection has ended.
    Gone(Next),
}

impl Watch {
    /// Reads arrived bytes. The caller has the table.
    pub(super) fn attend(&self, tools: &mut Tools) {
        let mut left = MOST_AT_ONCE;
        for token in peek_at::<64>(self.poll).filter(|token| token & LISTENER == 0) {
            while let Some(connection) = self.connections.take(token) {
                let read = self.take_in(connection, tools);
                left = left.saturating_sub(read);
                if left == 0 {
                    return;
                }
                // After a short read the socket is empty.
                if read < SCRATCH_BYTES {
                    break;
                }
            }
        }
    }

    /// Ends connections whose deadline has passed. The caller has the table.
    pub(super) fn expire(&self, tools: &mut Tools) {
        let now_ms = clock::coarse_ms();
        self.has_looked(now_ms);
        for token in self.connections.tokens(|it| it.due_ms <= now_ms && !it.has_request()) {
            let Some(connection) = self.connections.take(token) else { continue };
            match connection.stage {
                Stage::Idle if has_unread(connection.number()) => self.connections.put(connection),
                Stage::Idle | Stage::Lingering => self.close(connection, Next::Close),
                Stage::Writing(_) => self.send_once_more(connection),
                Stage::Head | Stage::Body(_) => {
                    // Bytes that have arrived by now still count.
                    self.take_in(connection, tools);
                    let Some(connection) = self.connections.take(token) else { continue };
                    if connection.has_request() || connection.due_ms > clock::coarse_ms() {
                        self.connections.put(connection);
                    } else {
                        let status = if self.has_room(&connection) { 408 } else { 503 };
                        self.refuse(connection, status, None, tools);
                    }
                }
            }
        }
    }

    /// Reads from a connection. Returns the number of bytes.
    fn take_in(&self, mut connection: Box<Connection>, tools: &mut Tools) -> usize {
        let is_other = connection.has_request() || matches!(connection.stage, Stage::Writing(_));
        let received = match is_other || !self.has_room(&connection) {
            true => None,
            false => socket::receive(connection.number(), &mut tools.scratch).ok(),
        };
        // Nothing has arrived, or the connection has broken, which the main thread will see.
        let Some(received) = received else {
            self.connections.put(connection);
            return 0;
        };
        let took = match (&connection.stage, received) {
            (Stage::Lingering, 1..) => ReadOutcome::Waits,
            (Stage::Lingering, 0) => ReadOutcome::Gone(Next::Close),
            (_, 0) => match connection.decoder.eof() {
                Ok(()) => ReadOutcome::Gone(Next::Close),
                Err(error) => ReadOutcome::Refused(error.status(), None),
            },
            _ => self.digest(&mut connection, &tools.scratch[..received]),
        };
        match took {
            ReadOutcome::Gone(next) => self.close(connection, next),
            ReadOutcome::Refused(status, why) => self.refuse(connection, status, why, tools),
            ReadOutcome::Waits | ReadOutcome::Whole => {
                if matches!(took, ReadOutcome::Whole) {
                    connection.arrived_ms = clock::coarse_ms();
                    self.has_news.store(true, Relaxed);
                }
                connection.count_input();
                self.connections.put(connection);
            }
        }
        received
    }

    /// Whether there is room for one read.
    fn has_room(&self, connection: &Connection) -> bool {
        match &connection.stage {
            Stage::Body(incoming) => incoming.spool.has_room(SCRATCH_BYTES),
            Stage::Lingering => true,
            _ => !HEADS.is_over() && Spool::new(self.spool_bytes).has_room(SCRATCH_BYTES),
        }
    }

    /// Handles bytes of a request.
    fn digest(&self, connection: &mut Connection, piece: &[u8]) -> ReadOutcome {
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
                        RequestStart::Gathers => connection.decoder = decoder,
                        RequestStart::Gone => return ReadOutcome::Gone(Next::Abort),
                        RequestStart::Whole | RequestStart::Refused(_) => {
                            connection.input = bytes;
                            return ReadOutcome::Whole;
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
                    return ReadOutcome::Waits;
                }
                Ok(Some(_)) | Err(_) => {
                    connection.stage = Stage::Idle;
                    connection.input = bytes;
                    return ReadOutcome::Whole;
                }
            }
        }
        let arrived = rest.len();
        let Stage::Body(incoming) = &mut connection.stage else { return ReadOutcome::Waits };
        let gathered = gather_up_to_end(&mut connection.decoder, &self.limits, &mut rest, &mut incoming.spool);
        connection.input = rest.to_vec();
        match gathered {
            Ok(true) => {
                connection.is_whole = true;
                ReadOutcome::Whole
            }
            Ok(false) => {
                connection.deadline.credit(arrived as u64);
                connection.due_ms = connection.deadline.over_ms();
                ReadOutcome::Waits
            }
            Err(error) => {
                let why = format!("a request's body cannot be stored in a temporary file: {error}");
                ReadOutcome::Refused(500, Some(why))
            }
        }
    }

    /// Sends once more to a slow reader at its deadline: progress extends it.
    fn send_once_more(&self, mut connection: Box<Connection>) {
        match connection.output.flush(connection.number()) {
            // The main thread continues with it.
            Ok(true) => connection.due_ms = clock::coarse_ms() + SWEEP_MS,
            Ok(false) if !connection.output.deadline.is_over() => {
                connection.due_ms = connection.output.deadline.over_ms();
            }
            _ => return self.close(connection, Next::Abort),
        }
        self.connections.put(connection);
    }

    /// Sends a refusal, as far as it goes out at once.
    fn refuse(&self, mut connection: Box<Connection>, status: u16, why: Option<String>, tools: &mut Tools) {
        let body_bytes = plain_answer(&mut tools.out, &mut tools.date, status, Next::Linger, AnswerFacts::REFUSAL);
        let _ = socket::send(connection.number(), &tools.out, false);
        socket::shut_sending(connection.number());
        let head = match &connection.stage {
            Stage::Body(incoming) if self.logs => incoming.head().to_vec(),
            _ => Vec::new(),
        };
        let refused = RefusedClient { peer: connection.peer, head, status, body_bytes, why };
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(refused);
        self.has_news.store(true, Relaxed);
        (connection.stage, connection.input) = (Stage::Lingering, Vec::new());
        connection.count_input();
        connection.due_ms = clock::coarse_ms() + LINGER_MS;
        self.connections.put(connection);
    }
}
