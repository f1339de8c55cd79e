//! A virtual user: what it has while a journey lasts.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use oroshi_client::cookies::Jar;

use crate::api::Lease;
use crate::cache::Cache;
use crate::random::Choices;
use crate::request::Last;
use crate::tally::NO_STEP;

/// A virtual user of a thread.
#[derive(Debug)]
pub(crate) struct User {
    /// From 1 on, over all threads.
    pub(crate) id: u64,
    /// From 1 on.
    pub(crate) journey: Cell<u64>,
    /// The scenario's number.
    pub(crate) scenario: Cell<u16>,
    pub(crate) choices: RefCell<Choices>,
    /// Fields of all requests.
    pub(crate) headers: RefCell<Vec<(String, String)>>,
    pub(crate) jar: RefCell<Jar>,
    pub(crate) cache: RefCell<Cache>,
    /// The step before.
    pub(crate) step: Cell<u32>,
    /// When an arrival was due whose first request has not begun.
    pub(crate) due: Cell<Option<u64>>,
    pub(crate) leases: RefCell<Vec<Lease>>,
    /// The blocks that the script times and has not left, the outermost first: when each began, and its name.
    pub(crate) timers: RefCell<Vec<(u64, String)>>,
    /// The last exchange, for samples.
    pub(crate) last: RefCell<Option<Last>>,
    /// The reason of `fail`, or of `abort`, until the journey has ended.
    pub(crate) failed: RefCell<Option<String>>,
    /// Requests on their way.
    pub(crate) under_way: Cell<usize>,
}

impl User {
    pub(crate) fn new(id: u64, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            id,
            journey: Cell::new(0),
            scenario: Cell::new(0),
            choices: RefCell::new(Choices::new(seed, id, 0)),
            headers: RefCell::default(),
            jar: RefCell::default(),
            cache: RefCell::default(),
            step: Cell::new(NO_STEP),
            due: Cell::new(None),
            leases: RefCell::default(),
            timers: RefCell::default(),
            last: RefCell::default(),
            failed: RefCell::default(),
            under_way: Cell::new(0),
        })
    }

    /// Begins the next journey. `fresh`: without cookies and cache.
    pub(crate) fn begin(&self, seed: u64, fresh: bool) {
        self.journey.set(self.journey.get() + 1);
        self.choices.replace(Choices::new(seed, self.id, self.journey.get()));
        self.step.set(NO_STEP);
        self.headers.borrow_mut().clear();
        self.failed.replace(None);
        self.last.replace(None);
        if fresh {
            self.forget();
        }
    }

    /// Forgets cookies and what was cached.
    pub(crate) fn forget(&self) {
        self.jar.borrow_mut().clear();
        self.cache.borrow_mut().clear();
    }
}

/// `user 3, journey 12`.
impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.id, self.journey.get()) {
            (0, _) => f.write_str("      "),
            (id, journey) => write!(f, "user {id}, journey {journey}:"),
        }
    }
}
