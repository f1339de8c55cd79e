//! Connections that the servers of several cores may hold together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bound on connections over all servers that share it, so that clients leave descriptors for whoever does not share it: operators, what is
/// behind, files.
#[derive(Debug)]
pub struct Room {
    most: usize,
    held: AtomicUsize,
    waiting: AtomicUsize,
}

impl Room {
    /// Room for `most` connections. Each listener of each core may accept one more in the moment in which the last place is taken.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Room { most, held: AtomicUsize::new(0), waiting: AtomicUsize::new(0) })
    }

    /// Takes a place, also where there is none: for a connection that was accepted already, such as one that was
    /// [handed off](crate::Exchange::upgrade). Dropping it gives it back.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Place {
        self.held.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(self))
    }

    /// How many connections there may be.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// How many there are.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether there are as many as there may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held() >= self.most
    }

    /// Whether somebody waits for a place.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Counts one who waits for a place, for as long as the guard lives.
    pub(crate) fn want(&self) -> Wanted<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Wanted(self)
    }
}

/// A connection's place in a [`Room`].
#[derive(Debug)]
pub struct Place(Arc<Room>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Somebody waits for a place.
#[derive(Debug)]
pub(crate) struct Wanted<'r>(&'r Room);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
