//! Where the outcomes of a call's requests gather until Ruby takes them.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oroshi_client::is_idempotent;
use oroshi_net::Endpoint;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;

use crate::outcome::{Lost, Outcome};

/// How many orders of a call may lie at the thread without having been begun.
///
/// Few, so that a list of a million URLs is read as it is worked off, and a request does not count as begun long
/// before it is. Enough for the thread to be busy while Ruby is woken up.
const UNBEGUN: usize = 128;

/// The outcomes that wait for one call, and the descriptor that becomes readable when there are some, or when there
/// is room for more orders.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// Wakes the requests when nobody wants them any more.
    given_up: Notify,
}

#[derive(Debug)]
struct State {
    /// Gone when nobody waits any more: descriptors are few, and the collector may come late.
    ready: Option<OwnedFd>,
    outcomes: Vec<(usize, Outcome)>,
    unbegun: usize,
    /// An order was refused, and its call waits for room.
    refused: bool,
    /// Nobody waits any more.
    given_up: bool,
}

impl Inbox {
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { ready: Some(ready), outcomes: Vec::new(), unbegun: 0, refused: false, given_up: false };
        Ok(Arc::new(Inbox { state: Mutex::new(state), given_up: Notify::new() }))
    }

    /// The descriptor's number, as long as somebody waits.
    pub(crate) fn fileno(&self) -> Option<RawFd> {
        self.lock().ready.as_ref().map(AsRawFd::as_raw_fd)
    }

    // On Ruby's side.

    /// Whether there is room for an order; if not, the descriptor becomes readable when there is.
    pub(crate) fn make_room(&self) -> bool {
        let mut state = self.lock();
        state.refused = state.unbegun >= UNBEGUN;
        state.unbegun += usize::from(!state.refused);
        !state.refused
    }

    /// What has come since the last time.
    pub(crate) fn take(&self) -> Vec<(usize, Outcome)> {
        let mut state = self.lock();
        if let Some(ready) = &state.ready {
            // That it was not readable is no error.
            let _ = rustix::io::read(ready, &mut [0; 8]);
        }
        std::mem::take(&mut state.outcomes)
    }

    /// Wants no more outcomes, and closes the descriptor. Those that are under way end as soon as the thread gets to them.
    pub(crate) fn give_up(&self) {
        let mut state = self.lock();
        state.given_up = true;
        state.ready = None;
        state.outcomes.clear();
        drop(state);
        self.given_up.notify_waiters();
    }

    // On the thread's.

    /// Ends when nobody wants outcomes any more. To be made before [`Ticket::begin`] is asked, so that it misses
    /// nothing.
    pub(crate) fn given_up(&self) -> impl Future<Output = ()> {
        self.given_up.notified()
    }

    /// Counts one order less that lies about.
    fn begun(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.unbegun -= 1;
        if state.refused && state.unbegun <= UNBEGUN / 2 {
            state.refused = false;
            state.ring();
        }
        state
    }

    /// Adds an outcome. True if it is the first, for which the descriptor must be made readable.
    fn put(&self, tag: usize, outcome: Outcome) -> bool {
        let mut state = self.lock();
        if state.given_up {
            return false;
        }
        state.outcomes.push((tag, outcome));
        state.outcomes.len() == 1
    }

    /// Makes the descriptor readable.
    fn ring(&self) {
        self.lock().ring();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ring(&self) {
        if let Some(ready) = &self.ready {
            // It fails only when the counter is full, and the descriptor readable anyway.
            let _ = rustix::io::write(ready, &1_u64.to_ne_bytes());
        }
    }
}

/// The duty to tell a call what has become of one of its orders. It cannot be forgotten: whoever drops it tells that
/// the order was lost.
#[derive(Debug)]
pub(crate) struct Ticket {
    inbox: Arc<Inbox>,
    tag: usize,
    /// Nothing for a question.
    asked: Option<Asked>,
    begun: bool,
    told: bool,
}

/// What a request asks for, as far as it takes to say that it was lost.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) url: String,
    idempotent: bool,
    at: Instant,
}

impl Asked {
    /// `idempotent`: where it is not as the method has it.
    pub(crate) fn new(method: String, url: String, idempotent: Option<bool>) -> Self {
        let idempotent = idempotent.unwrap_or_else(|| is_idempotent(&method));
        Asked { method, url, idempotent, at: Instant::now() }
    }

    /// What is said if nobody can say more.
    fn lost(&self, begun: bool) -> Lost {
        // Without the query, which may hold a secret. One that cannot be read may hold it anywhere.
        let url = self.url.parse::<Endpoint>().map_or_else(|_| String::new(), |endpoint| endpoint.to_string());
        let url = url.split('?').next().unwrap_or_default();
        let what = format!("{} {url}: ", self.method.escape_default());
        Lost { what, retry_is_safe: self.idempotent || !begun, after: self.at.elapsed() }
    }
}

impl Ticket {
    /// For an order, after [`Inbox::make_room`].
    pub(crate) fn for_order(inbox: &Arc<Inbox>, tag: usize, asked: Asked) -> Self {
        Ticket { inbox: Arc::clone(inbox), tag, asked: Some(asked), begun: false, told: false }
    }

    /// For what is answered on the spot, and needs no room.
    pub(crate) fn for_question(inbox: &Arc<Inbox>) -> Self {
        Ticket { inbox: Arc::clone(inbox), tag: 0, asked: None, begun: true, told: false }
    }

    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// What is asked for; nothing of a question.
    pub(crate) fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref()
    }

    /// Says that the order is being worked on. False if nobody wants it any more.
    pub(crate) fn begin(&mut self) -> bool {
        self.begun = true;
        !self.inbox.begun().given_up
    }

    /// Tells; `bell` will ring.
    pub(crate) fn tell(mut self, outcome: Outcome, bell: &Bell) {
        self.told = true;
        if self.inbox.put(self.tag, outcome) {
            bell.ring_for(&self.inbox);
        }
    }

    /// Nobody waits for it.
    pub(crate) fn tear_up(mut self) {
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
        // Nothing of a question was sent.
        let nothing = Lost { what: String::new(), retry_is_safe: true, after: Duration::ZERO };
        let lost = self.asked.as_ref().map_or(nothing, |asked| asked.lost(self.begun));
        if self.inbox.put(self.tag, Outcome::Lost(lost)) {
            self.inbox.ring();
        }
    }
}

/// Rings for inboxes, once for all outcomes that come in one go.
///
/// Ringing at once would wake Ruby for every single outcome, with a switch of threads each time. Instead a task of
/// its own rings: made ready by the first outcome, it runs behind all tasks that were ready by then.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    inboxes: RefCell<Vec<Arc<Inbox>>>,
    news: Notify,
}

impl Bell {
    fn ring_for(&self, inbox: &Arc<Inbox>) {
        let mut inboxes = self.inboxes.borrow_mut();
        if inboxes.is_empty() {
            self.news.notify_one();
        }
        inboxes.push(Arc::clone(inbox));
    }

    /// The task that rings.
    pub(crate) async fn ring(&self) {
        loop {
            self.news.notified().await;
            for inbox in self.inboxes.borrow_mut().drain(..) {
                inbox.ring();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(inbox: &Inbox) -> bool {
        rustix::io::read(inbox.lock().ready.as_ref().unwrap(), &mut [0; 8]).is_ok()
    }

    fn order(inbox: &Arc<Inbox>, tag: usize) -> Ticket {
        Ticket::for_order(inbox, tag, Asked::new("GET".to_owned(), "http://a/".to_owned(), None))
    }

    fn counts() -> Outcome {
        Outcome::Counts(Default::default())
    }

    /// Its URL may hold a password, and its method anything.
    #[test]
    fn a_request_that_is_lost_tells_no_secrets() {
        for (method, url, what) in [
            ("GET", "http://a/b?c=hidden", "GET http://a/b: "),
            ("GET", "http://me:hidden@a/", "GET : "),
            ("G\nT", "hidden", "G\\nT : "),
        ] {
            assert_eq!(Asked::new(method.to_owned(), url.to_owned(), None).lost(true).what, what);
        }
    }

    fn tags(inbox: &Inbox) -> Vec<usize> {
        inbox.take().into_iter().map(|(tag, _)| tag).collect()
    }

    #[test]
    fn an_order_that_is_dropped_is_told_as_lost() {
        let inbox = Inbox::new().unwrap();
        assert!(inbox.make_room() && inbox.take().is_empty());
        drop(order(&inbox, 7));
        assert!(is_readable(&inbox));
        assert!(matches!(inbox.take()[..], [(7, Outcome::Lost(_))]));
        assert_eq!(inbox.lock().unbegun, 0);
    }

    #[test]
    fn the_descriptor_is_readable_once_for_all_that_came_in_one_go() {
        let (inbox, bell) = (Inbox::new().unwrap(), Bell::default());
        for tag in 0..3 {
            Ticket::for_question(&inbox).tell(counts(), &bell);
            assert!(inbox.make_room());
            order(&inbox, tag).tell(counts(), &bell);
        }
        assert_eq!(bell.inboxes.borrow().len(), 1);
        assert_eq!(tags(&inbox), [0, 0, 0, 1, 0, 2]);
        Ticket::for_question(&inbox).tell(counts(), &bell);
        assert_eq!(bell.inboxes.borrow().len(), 2, "taken, so it must be told again");
    }

    #[test]
    fn orders_lie_about_only_up_to_a_number() {
        let inbox = Inbox::new().unwrap();
        let mut tickets: Vec<_> =
            std::iter::repeat_with(|| inbox.make_room().then(|| order(&inbox, 0))).map_while(|ticket| ticket).collect();
        assert_eq!(tickets.len(), UNBEGUN);
        for ticket in &mut tickets[..UNBEGUN / 2 - 1] {
            assert!(ticket.begin() && !is_readable(&inbox));
        }
        assert!(tickets[UNBEGUN - 1].begin());
        assert!(is_readable(&inbox) && inbox.make_room());
    }

    #[test]
    fn nobody_is_told_after_giving_up() {
        let (inbox, bell) = (Inbox::new().unwrap(), Bell::default());
        let (mut first, second) = [1, 2].map(|tag| (inbox.make_room(), order(&inbox, tag)).1).into();
        inbox.give_up();
        assert!(!first.begin());
        first.tell(counts(), &bell);
        drop(second);
        assert!(inbox.take().is_empty() && bell.inboxes.borrow().is_empty());
        assert_eq!(inbox.fileno(), None, "the descriptor is closed");
    }
}
