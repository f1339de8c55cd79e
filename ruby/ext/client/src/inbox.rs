//! The inbox of a call: collects outcomes until Ruby takes them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oroshi_client::is_idempotent;
use oroshi_net::Endpoint;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

use crate::outcome::{LostRequest, Outcome};

/// Maximum requests of a call that wait at the thread without having begun.
///
/// Few, so that a list of a million URLs is read no faster than it is processed, and a request's time begins late.
/// Enough to keep the thread busy while Ruby wakes up.
const UNBEGUN: usize = 128;

/// Bytes of pieces that wait for Ruby: then their request is read no further.
const PIECE_BYTES: usize = 256 * 1024;

/// The last descriptors of the process, which calls leave to connections if other calls wait already. Without them a
/// crowd of threads takes every descriptor to wait with, and no connection is left whose end could free one.
const FOR_CONNECTIONS: u64 = 8;

/// How many calls of this process hold a descriptor.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Forgets the calls of the process that this one was forked from: their threads are not here.
pub(crate) fn forget_waiting() {
    WAITING.store(0, Ordering::Relaxed);
}

/// The outcomes of one call, and a descriptor that becomes readable when there are some, or room for more requests.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Wakes the requests when the call is finished.
    given_up: Notify,
    /// Wakes requests whose pieces wait for Ruby.
    taken: Notify,
}

#[derive(Debug)]
struct State {
    /// `None` once the call is finished: descriptors are few, and the garbage collector may run late.
    ready: Option<Readiness>,
    outcomes: Vec<(usize, Outcome)>,
    /// Bytes of pieces among the outcomes.
    piece_bytes: usize,
    unbegun: usize,
    /// A request was refused, and its call waits for room.
    refused: bool,
    /// The call is finished.
    given_up: bool,
}

impl Inbox {
    /// # Errors
    /// No descriptor is left, or only those for connections.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let ready = Readiness::new()?;
        let state = State {
            ready: Some(ready),
            outcomes: Vec::new(),
            piece_bytes: 0,
            unbegun: 0,
            refused: false,
            given_up: false,
        };
        Ok(Arc::new(Inbox { state: Mutex::new(state), given_up: Notify::new(), taken: Notify::new() }))
    }

    /// Returns the descriptor's number, until the call is finished.
    pub(crate) fn fileno(&self) -> Option<RawFd> {
        self.lock().ready.as_ref().map(|ready| ready.0.as_raw_fd())
    }

    // Ruby's side.

    /// Reserves room for a request. False if there is none; the descriptor becomes readable when there is.
    pub(crate) fn make_room(&self) -> bool {
        let mut state = self.lock();
        state.refused = state.unbegun >= UNBEGUN;
        state.unbegun += usize::from(!state.refused);
        !state.refused
    }

    /// Returns the outcomes since the last call.
    pub(crate) fn take(&self) -> Vec<(usize, Outcome)> {
        let mut state = self.lock();
        if let Some(ready) = &state.ready {
            // It need not be readable.
            let _ = rustix::io::read(&ready.0, &mut [0; 8]);
        }
        let outcomes = std::mem::take(&mut state.outcomes);
        if std::mem::take(&mut state.piece_bytes) > 0 {
            drop(state);
            self.taken.notify_waiters();
        }
        outcomes
    }

    /// Finishes the call and closes the descriptor. The thread cancels requests under way.
    pub(crate) fn give_up(&self) {
        let mut state = self.lock();
        state.given_up = true;
        state.ready = None;
        state.outcomes.clear();
        drop(state);
        self.given_up.notify_waiters();
    }

    // The thread's side.

    /// Resolves when the call is finished. Create it before [`Ticket::begin`], so that it misses nothing.
    pub(crate) fn given_up(&self) -> impl Future<Output = ()> {
        self.given_up.notified()
    }

    /// Counts one waiting request less.
    fn begun(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.unbegun -= 1;
        if state.refused && state.unbegun <= UNBEGUN / 2 {
            state.refused = false;
            state.make_readable();
        }
        state
    }

    /// Resolves when Ruby has taken pieces so far that there is room for another.
    pub(crate) async fn piece_room(&self) {
        loop {
            // Before the look, so that it misses nothing.
            let taken = self.taken.notified();
            if self.lock().piece_bytes < PIECE_BYTES {
                return;
            }
            taken.await;
        }
    }

    /// Adds an outcome. True if it is the first, for which the descriptor must become readable.
    fn put(&self, tag: usize, outcome: Outcome) -> bool {
        let mut state = self.lock();
        if state.given_up {
            return false;
        }
        if let Outcome::Piece(bytes) = &outcome {
            state.piece_bytes += bytes.len();
        }
        state.outcomes.push((tag, outcome));
        state.outcomes.len() == 1
    }

    /// Makes the descriptor readable.
    fn make_readable(&self) {
        self.lock().make_readable();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn make_readable(&self) {
        if let Some(ready) = &self.ready {
            // It fails only if the counter is full, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&ready.0, &1_u64.to_ne_bytes());
        }
    }
}

/// The descriptor of a call, counted in [`WAITING`].
#[derive(Debug)]
struct Readiness(OwnedFd);

impl Readiness {
    fn new() -> io::Result<Self> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let others = WAITING.fetch_add(1, Ordering::Relaxed);
        let ready = Readiness(ready);
        // Descriptors have the lowest free number, so a high one tells that those below are in use.
        let number = u64::from(ready.0.as_raw_fd().unsigned_abs());
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if others > 0 && number.saturating_add(FOR_CONNECTIONS) >= limit {
            return Err(Errno::MFILE.into());
        }
        Ok(ready)
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The duty to report the outcome of a request. Dropping it reports the request as lost.
#[derive(Debug)]
pub(crate) struct Ticket {
    inbox: Arc<Inbox>,
    tag: usize,
    /// `None` for a question.
    summary: Option<RequestSummary>,
    begun: bool,
    told: bool,
}

/// The facts that the report of a lost request needs.
#[derive(Debug)]
pub(crate) struct RequestSummary {
    pub(crate) method: String,
    pub(crate) url: String,
    idempotent: bool,
    at: Instant,
}

impl RequestSummary {
    /// `idempotent` overrides the method's property.
    pub(crate) fn new(method: String, url: String, idempotent: Option<bool>) -> Self {
        let idempotent = idempotent.unwrap_or_else(|| is_idempotent(&method));
        RequestSummary { method, url, idempotent, at: Instant::now() }
    }

    /// Returns the report of a lost request.
    fn lost(&self, begun: bool) -> LostRequest {
        // Without the query, which may hold a secret. An unreadable URL may hold one anywhere.
        let url = self.url.parse::<Endpoint>().map_or_else(|_| String::new(), |endpoint| endpoint.to_string());
        let url = url.split('?').next().unwrap_or_default();
        let what = format!("{} {url}: ", self.method.escape_default());
        LostRequest { what, retry_is_safe: self.idempotent || !begun, after: self.at.elapsed() }
    }
}

impl Ticket {
    /// For a request, after [`Inbox::make_room`].
    pub(crate) fn for_request(inbox: &Arc<Inbox>, tag: usize, summary: RequestSummary) -> Self {
        Ticket { inbox: Arc::clone(inbox), tag, summary: Some(summary), begun: false, told: false }
    }

    /// For a question, which is answered at once and needs no room.
    pub(crate) fn for_question(inbox: &Arc<Inbox>) -> Self {
        Ticket { inbox: Arc::clone(inbox), tag: 0, summary: None, begun: true, told: false }
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Returns the request; `None` for a question.
    pub(crate) fn summary(&self) -> Option<&RequestSummary> {
        self.summary.as_ref()
    }

    /// Marks the request as begun. False if the call is finished.
    pub(crate) fn begin(&mut self) -> bool {
        self.begun = true;
        !self.inbox.begun().given_up
    }

    /// Reports a part of the outcome, the head or a piece of the body, and has `notifier` wake the call.
    pub(crate) fn tell_part(&self, part: Outcome, notifier: &Notifier) {
        if self.inbox.put(self.tag, part) {
            notifier.notify(&self.inbox);
        }
    }

    /// Reports the outcome, and has `notifier` wake the call.
    pub(crate) fn tell(mut self, outcome: Outcome, notifier: &Notifier) {
        self.told = true;
        if self.inbox.put(self.tag, outcome) {
            notifier.notify(&self.inbox);
        }
    }

    /// Ends the duty without a report: the call is finished.
    pub(crate) fn discard(mut self) {
        self.told = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.begun {
            drop(self.inbox.begun());
        }
        if self.told {
            return;
        }
        // A question sends nothing.
        let nothing = LostRequest { what: String::new(), retry_is_safe: true, after: Duration::ZERO };
        let lost = self.summary.as_ref().map_or(nothing, |summary| summary.lost(self.begun));
        if self.inbox.put(self.tag, Outcome::Lost(lost)) {
            self.inbox.make_readable();
        }
    }
}

/// Wakes calls, once for all outcomes of a turn of the event loop.
///
/// Waking at once would cost a switch of threads per outcome. Instead the first outcome makes the notifier's task
/// ready, which runs after all tasks that were ready by then.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    inboxes: RefCell<Vec<Arc<Inbox>>>,
    news: Notify,
}

impl Notifier {
    fn notify(&self, inbox: &Arc<Inbox>) {
        let mut inboxes = self.inboxes.borrow_mut();
        if inboxes.is_empty() {
            self.news.notify_one();
        }
        inboxes.push(Arc::clone(inbox));
    }

    /// Runs the task that wakes calls.
    pub(crate) async fn run(&self) {
        loop {
            self.news.notified().await;
            for inbox in self.inboxes.borrow_mut().drain(..) {
                inbox.make_readable();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(inbox: &Inbox) -> bool {
        rustix::io::read(&inbox.lock().ready.as_ref().unwrap().0, &mut [0; 8]).is_ok()
    }

    fn request(inbox: &Arc<Inbox>, tag: usize) -> Ticket {
        Ticket::for_request(inbox, tag, RequestSummary::new("GET".to_owned(), "http://a/".to_owned(), None))
    }

    fn counts() -> Outcome {
        Outcome::Counts(Default::default())
    }

    /// A URL may contain a password, and a method anything.
    #[test]
    fn a_request_that_is_lost_tells_no_secrets() {
        for (method, url, what) in [
            ("GET", "http://a/b?c=hidden", "GET http://a/b: "),
            ("GET", "http://me:hidden@a/", "GET : "),
            ("G\nT", "hidden", "G\\nT : "),
        ] {
            assert_eq!(RequestSummary::new(method.to_owned(), url.to_owned(), None).lost(true).what, what);
        }
    }

    fn tags(inbox: &Inbox) -> Vec<usize> {
        inbox.take().into_iter().map(|(tag, _)| tag).collect()
    }

    #[test]
    fn an_order_that_is_dropped_is_told_as_lost() {
        let inbox = Inbox::new().unwrap();
        assert!(inbox.make_room() && inbox.take().is_empty());
        drop(request(&inbox, 7));
        assert!(is_readable(&inbox));
        assert!(matches!(inbox.take()[..], [(7, Outcome::Lost(_))]));
        assert_eq!(inbox.lock().unbegun, 0);
    }

    #[test]
    fn the_descriptor_is_readable_once_for_all_that_came_in_one_go() {
        let (inbox, notifier) = (Inbox::new().unwrap(), Notifier::default());
        for tag in 0..3 {
            Ticket::for_question(&inbox).tell(counts(), &notifier);
            assert!(inbox.make_room());
            request(&inbox, tag).tell(counts(), &notifier);
        }
        assert_eq!(notifier.inboxes.borrow().len(), 1);
        assert_eq!(tags(&inbox), [0, 0, 0, 1, 0, 2]);
        Ticket::for_question(&inbox).tell(counts(), &notifier);
        assert_eq!(notifier.inboxes.borrow().len(), 2, "taken, so it must be told again");
    }

    #[test]
    fn orders_lie_about_only_up_to_a_number() {
        let inbox = Inbox::new().unwrap();
        let mut tickets: Vec<_> = std::iter::repeat_with(|| inbox.make_room().then(|| request(&inbox, 0)))
            .map_while(|ticket| ticket)
            .collect();
        assert_eq!(tickets.len(), UNBEGUN);
        for ticket in &mut tickets[..UNBEGUN / 2 - 1] {
            assert!(ticket.begin() && !is_readable(&inbox));
        }
        assert!(tickets[UNBEGUN - 1].begin());
        assert!(is_readable(&inbox) && inbox.make_room());
    }

    #[test]
    fn nobody_is_told_after_giving_up() {
        let (inbox, notifier) = (Inbox::new().unwrap(), Notifier::default());
        let (mut first, second) = [1, 2].map(|tag| (inbox.make_room(), request(&inbox, tag)).1).into();
        inbox.give_up();
        assert!(!first.begin());
        first.tell(counts(), &notifier);
        drop(second);
        assert!(inbox.take().is_empty() && notifier.inboxes.borrow().is_empty());
        assert_eq!(inbox.fileno(), None, "the descriptor is closed");
    }
}
