//! A limit of connections that the servers of several cores share.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::seldom::Seldom;

/// The shortest time between two calls of [`Room::telling`]'s function.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A limit of connections over all servers that share it. It keeps descriptors free for other uses: operators,
/// upstreams, files.
#[derive(Debug)]
pub struct Room {
    most: usize,
    held: AtomicUsize,
    waiting: AtomicUsize,
    unproven: AtomicUsize,
    told: Option<Told>,
}

/// A report of [`Room::telling`]: the room is full, and a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowding {
    /// The number of connections.
    pub held: usize,
    /// The maximum of connections.
    pub most: usize,
    /// Connections ended to make room since the last report.
    pub ended: u64,
}

/// The function that gets the reports, and the time of the last one.
struct Told {
    seldom: Mutex<Seldom>,
    tell: Box<dyn Fn(Crowding) + Send + Sync>,
}

impl Room {
    /// Creates a room for `most` connections. Each listener of each core may hold one more, which it has accepted and
    /// which waits for its place.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Room::with(most, None))
    }

    /// As [`new`](Self::new). Calls `tell` when a client waits and the room is full, at most once in ten seconds.
    #[must_use]
    pub fn telling(most: usize, tell: impl Fn(Crowding) + Send + Sync + 'static) -> Arc<Self> {
        let told = Told { seldom: Mutex::new(Seldom::every(TELL_EVERY)), tell: Box::new(tell) };
        Arc::new(Room::with(most, Some(told)))
    }

    fn with(most: usize, told: Option<Told>) -> Self {
        let none = AtomicUsize::default;
        Room { most, held: none(), waiting: none(), unproven: none(), told }
    }

    /// Takes a place, if one is free. Dropping it frees it.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Place> {
        let more = |held: usize| (held < self.most).then_some(held + 1);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place(Arc::clone(self)))
    }

    /// Takes a place even if none is free: at the shutdown, for clients that are connected from their point of view.
    pub(crate) fn enter(self: &Arc<Self>) -> Place {
        self.held.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(self))
    }

    /// Returns the maximum of connections.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the maximum is reached.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.held() >= self.most
    }

    /// Whether a client waits for a place.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Counts a waiting client for as long as the guard lives.
    pub(crate) fn want(&self) -> Wanted<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Wanted(self)
    }

    /// Whether there are unproven connections: no handler has vouched for them yet.
    pub(crate) fn has_unproven(&self) -> bool {
        self.unproven.load(Ordering::Relaxed) > 0
    }

    /// Counts one more unproven connection.
    pub(crate) fn add_unproven(&self) {
        self.unproven.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes an unproven connection that has ended, or that a handler has vouched for.
    pub(crate) fn remove_unproven(&self) {
        self.unproven.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reports, at most every [`TELL_EVERY`], that a client waits while the room is full. `ended` is the number of
    /// connections just ended to make room.
    pub(crate) fn tell_crowding(&self, ended: usize) {
        let Some(Told { seldom, tell }) = self.told.as_ref().filter(|_| self.is_full()) else { return };
        let due = seldom.lock().unwrap_or_else(PoisonError::into_inner).add(ended as u64, Instant::now());
        if let Some(ended) = due {
            tell(Crowding { held: self.held(), most: self.most, ended });
        }
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Told").field("seldom", &self.seldom).finish_non_exhaustive()
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

/// A client that waits for a place.
#[derive(Debug)]
pub(crate) struct Wanted<'r>(&'r Room);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_than_there_may_be() {
        const MOST: usize = 3;
        let room = Room::new(MOST);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let place = room.try_enter();
                        assert!(room.held() <= MOST, "{} of {MOST}", room.held());
                        drop(place);
                    }
                });
            }
        });
        assert_eq!(room.held(), 0);
        let places: Vec<_> = (0..5).map_while(|_| room.try_enter()).collect();
        assert_eq!((places.len(), room.is_full()), (MOST, true));
    }

    #[test]
    fn that_there_is_no_room_is_told_once_with_what_was_ended() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let room = Room::telling(1, move |crowding| tells.lock().unwrap().push(crowding));
        room.tell_crowding(1);
        assert!(told.lock().unwrap().is_empty(), "there is room");
        let _place = room.enter();
        (0..1000).for_each(|_| room.tell_crowding(1));
        assert_eq!(*told.lock().unwrap(), [Crowding { held: 1, most: 1, ended: 1 }]);
    }
}
