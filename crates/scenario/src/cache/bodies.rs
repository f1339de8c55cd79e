//! Stored responses, shared by all users of a thread: ten thousand users see the same style sheet.
//!
//! Two responses share a body if every byte is the same, and their fields too if those are. No digest stands in for the
//! bytes, so a server that answers two users differently under one `ETag` is seen to do so.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::{Rc, Weak};

use bytes::Bytes;
use oroshi_client::Headers;
use oroshi_net::Endpoint;

/// The most bodies of one URL and length that a new one is compared with.
const COMPARED_BODIES: usize = 8;
/// The most sets of fields of one body that new ones are compared with.
const COMPARED_HEADS: usize = 4;
/// The share of the store that one response may take: an eighth.
const SHARE: usize = 8;
/// The bytes that a body or a set of fields takes beside its content.
const OVERHEAD: usize = 128;

/// The responses that the users of a thread have stored.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// The most bytes of bodies and fields; those not used for the longest time give way, roughly.
    limit: usize,
    /// Unix time in nanoseconds when the monotonic clock was 0.
    unix_at_zero: u64,
    ledger: Rc<Ledger>,
    known: HashMap<u64, Vec<Weak<Body>>>,
    /// All bodies in the order in which they may give way: a body that was used since its last turn gets another one.
    turns: VecDeque<Weak<Body>>,
}

/// What is stored now.
#[derive(Debug, Default)]
struct Ledger {
    bytes: Cell<usize>,
    bodies: Cell<usize>,
}

impl Ledger {
    fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn subtract(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
    }
}

/// A body that responses share.
#[derive(Debug)]
struct Body {
    /// `None` after it gave way.
    bytes: RefCell<Option<Bytes>>,
    used: Cell<bool>,
    /// Fields that came with it lately.
    heads: RefCell<Vec<Weak<Stored>>>,
    ledger: Rc<Ledger>,
}

/// A response as stored.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) url: Endpoint,
    pub(super) status: u16,
    pub(super) headers: Headers,
    head_bytes: usize,
    body: Rc<Body>,
}

impl Stored {
    /// Returns the body, unless it gave way.
    pub(super) fn body(&self) -> Option<Bytes> {
        self.body.used.set(true);
        self.body.bytes.borrow().clone()
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.body.ledger.subtract(self.head_bytes);
    }
}

impl Body {
    fn give_way(&self) {
        if let Some(bytes) = self.bytes.take() {
            self.ledger.subtract(bytes.len() + OVERHEAD);
            self.ledger.bodies.set(self.ledger.bodies.get() - 1);
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.give_way();
    }
}

/// The body of a new response.
pub(super) enum Content<'b> {
    /// Bytes in a buffer of somebody else, to be copied.
    Borrowed(&'b [u8]),
    /// Bytes that were stored before.
    Shared(&'b Bytes),
}

impl Content<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Content::Borrowed(bytes) => bytes,
            Content::Shared(bytes) => bytes,
        }
    }
}

impl Bodies {
    /// Returns an empty store for at most `limit` bytes. `unix_at_zero`: Unix time in nanoseconds when the monotonic
    /// clock was 0, since servers write calendar dates.
    pub(crate) fn new(limit: usize, unix_at_zero: u64) -> Self {
        let (ledger, known, turns) = (Rc::default(), HashMap::new(), VecDeque::new());
        Bodies { limit, unix_at_zero, ledger, known, turns }
    }

    /// Returns the bytes of all stored bodies and fields.
    pub(crate) fn bytes(&self) -> usize {
        self.ledger.bytes.get()
    }

    /// Returns the Unix time in seconds at a time of the monotonic clock.
    pub(super) fn unix_s(&self, now: u64) -> u64 {
        self.unix_at_zero.saturating_add(now) / 1_000_000_000
    }

    /// Stores a response, or finds the same one; `None` if there is no room for it.
    pub(super) fn intern(
        &mut self,
        url: &Endpoint,
        status: u16,
        headers: Headers,
        content: &Content<'_>,
    ) -> Option<Rc<Stored>> {
        let head_bytes = OVERHEAD
            + url.target.len()
            + headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>();
        let body_bytes = OVERHEAD + content.as_slice().len();
        if head_bytes + body_bytes > self.limit / SHARE {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (url, content.as_slice().len()).hash(&mut hasher);
        let key = hasher.finish();
        let body = match self.find(key, content.as_slice()) {
            Some(body) => body,
            None => {
                self.make_room(body_bytes + head_bytes).then_some(())?;
                self.add(key, content)
            }
        };
        let mut heads = body.heads.borrow_mut();
        heads.retain(|head| head.strong_count() > 0);
        let same = heads
            .iter()
            .filter_map(Weak::upgrade)
            .find(|head| head.status == status && head.url == *url && head.headers == headers);
        if let Some(same) = same {
            return Some(same);
        }
        self.make_room(head_bytes).then_some(())?;
        self.ledger.add(head_bytes);
        let stored = Rc::new(Stored { url: url.clone(), status, headers, head_bytes, body: Rc::clone(&body) });
        if heads.len() == COMPARED_HEADS {
            heads.remove(0);
        }
        heads.push(Rc::downgrade(&stored));
        drop(heads);
        Some(stored)
    }

    fn find(&self, key: u64, content: &[u8]) -> Option<Rc<Body>> {
        let same = |body: &Rc<Body>| body.bytes.borrow().as_ref().is_some_and(|bytes| bytes == content);
        let found = self.known.get(&key)?.iter().rev().filter_map(Weak::upgrade).find(same)?;
        found.used.set(true);
        Some(found)
    }

    fn add(&mut self, key: u64, content: &Content<'_>) -> Rc<Body> {
        let bytes = match content {
            // Its buffer may be far larger than the body.
            Content::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Content::Shared(bytes) => Bytes::clone(bytes),
        };
        self.ledger.add(bytes.len() + OVERHEAD);
        self.ledger.bodies.set(self.ledger.bodies.get() + 1);
        let body = Rc::new(Body {
            bytes: RefCell::new(Some(bytes)),
            used: Cell::new(false),
            heads: RefCell::default(),
            ledger: Rc::clone(&self.ledger),
        });
        self.tidy();
        let alike = self.known.entry(key).or_default();
        alike.retain(is_there);
        if alike.len() == COMPARED_BODIES {
            alike.remove(0);
        }
        alike.push(Rc::downgrade(&body));
        self.turns.push_back(Rc::downgrade(&body));
        body
    }

    /// Makes room for as many bytes. Returns whether there is.
    fn make_room(&mut self, bytes: usize) -> bool {
        // Each body may have been used since its last turn.
        let mut left = 2 * self.turns.len();
        while self.bytes() + bytes > self.limit {
            if left == 0 {
                return false;
            }
            left -= 1;
            let Some(body) = self.turns.pop_front() else { return false };
            if let Some(body) = body.upgrade() {
                if body.used.take() {
                    self.turns.push_back(Rc::downgrade(&body));
                } else {
                    body.give_way();
                }
            }
        }
        true
    }

    /// Forgets bodies that are gone, once they are the larger part.
    fn tidy(&mut self) {
        let most = 2 * self.ledger.bodies.get() + 64;
        if self.turns.len() > most {
            self.turns.retain(|body| body.strong_count() > 0);
        }
        if self.known.len() > most {
            self.known.retain(|_, alike| {
                alike.retain(is_there);
                !alike.is_empty()
            });
        }
    }
}

/// Whether a body is stored still.
fn is_there(body: &Weak<Body>) -> bool {
    body.upgrade().is_some_and(|body| body.bytes.borrow().is_some())
}

#[cfg(test)]
impl Bodies {
    /// Returns the number of places that the store has for bodies, gone ones included.
    pub(super) fn places(&self) -> usize {
        self.turns.len() + self.known.len()
    }
}
