//! The open streams of a connection, and the ones that closed lately.

/// An open stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stream {
    /// The identifier; 0 in an empty place of the table.
    pub(crate) id: u32,
    /// The caller's.
    pub(crate) tag: u32,
    /// Bytes of DATA that we may send. Negative after the peer has shrunk its setting (RFC 9113 section 6.9.2).
    pub(crate) send_window: i32,
    /// Bytes of DATA that the peer may send.
    pub(crate) receive_window: i32,
    /// Granted bytes that no WINDOW_UPDATE has announced yet.
    pub(crate) granted: u32,
    pub(crate) flags: u16,
    /// Ticks without progress although there is something to send.
    pub(crate) stalled_ticks: u16,
    /// Interim responses received.
    pub(crate) informational: u8,
    /// Bytes of the body that may still come; with `EXACT_LENGTH`, bytes that must come.
    pub(crate) body_left: u64,
}

/// The peer has ended its side.
pub(crate) const REMOTE_CLOSED: u16 = 1;
/// We have ended our side.
pub(crate) const LOCAL_CLOSED: u16 = 2;
/// The peer's (final) head has come.
pub(crate) const HEAD_RECEIVED: u16 = 4;
/// Our (final) head is written.
pub(crate) const HEAD_SENT: u16 = 8;
/// Content-Length announced the body.
pub(crate) const EXACT_LENGTH: u16 = 16;
/// The caller waits for a window.
pub(crate) const BLOCKED: u16 = 32;
/// The request's method is HEAD: the response has no body.
pub(crate) const HEAD_METHOD: u16 = 64;
/// The request's method is CONNECT: after the heads the stream is a tunnel.
pub(crate) const CONNECT: u16 = 128;

impl Stream {
    #[inline]
    pub(crate) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The open streams by identifier: a hash table in one allocation, which grows with the number of streams.
///
/// Identifiers follow each other, so the identifier itself is a perfect hash while no stream lasts much longer than the
/// others. Half of the places stay empty: each second one, so that a search ends soon.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    places: Vec<Stream>,
    count: usize,
}

/// Places of the first allocation.
const FEWEST_PLACES: usize = 8;

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the place of a stream.
    #[inline]
    pub(crate) fn find(&self, id: u32) -> Option<usize> {
        if self.places.is_empty() || id == 0 {
            return None;
        }
        let mut place = self.home(id);
        loop {
            match self.places[place].id {
                found if found == id => return Some(place),
                0 => return None,
                _ => place = (place + 1) & (self.places.len() - 1),
            }
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        let place = self.find(id)?;
        Some(&mut self.places[place])
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&Stream> {
        self.find(id).map(|place| &self.places[place])
    }

    /// Adds a stream, whose identifier is new.
    #[inline]
    pub(crate) fn insert(&mut self, stream: Stream) {
        if (self.count + 1) * 2 > self.places.len() {
            self.grow();
        }
        let mut place = self.home(stream.id);
        while self.places[place].id != 0 {
            place = (place + 1) & (self.places.len() - 1);
        }
        self.places[place] = stream;
        self.count += 1;
    }

    /// Removes a stream and returns it.
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> Option<Stream> {
        let mut hole = self.find(id)?;
        let removed = self.places[hole];
        self.count -= 1;
        let mask = self.places.len() - 1;
        // Later streams of the same run move up, unless that would take them before their home.
        let mut next = (hole + 1) & mask;
        while self.places[next].id != 0 {
            let home = self.home(self.places[next].id);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.places[hole].id = 0;
        Some(removed)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.places.iter_mut().filter(|stream| stream.id != 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.places.iter().filter(|stream| stream.id != 0)
    }

    /// Frees the memory of a table without streams.
    pub(crate) fn release(&mut self) {
        if self.count == 0 {
            self.places = Vec::new();
        }
    }

    #[inline]
    fn home(&self, id: u32) -> usize {
        (id & !1) as usize & (self.places.len() - 1)
    }

    #[cold]
    fn grow(&mut self) {
        let places = (self.places.len() * 2).max(FEWEST_PLACES);
        let old = std::mem::replace(&mut self.places, vec![Stream::default(); places]);
        self.count = 0;
        old.into_iter().filter(|stream| stream.id != 0).for_each(|stream| self.insert(stream));
    }
}

/// How a stream closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// Both sides have ended.
    Ended,
    /// By the peer's RST_STREAM.
    ByPeer,
    /// By ours: the peer may not know yet, and its frames are ignored (RFC 9113 section 5.1).
    ByUs,
}

/// Number of remembered streams.
const RECENT: usize = 32;

/// The streams that closed lately. Frames for older ones are ignored.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Identifier and how it closed. The oldest is overwritten first.
    closed: [(u32, u8); RECENT],
    next: u8,
}

impl Recent {
    #[inline]
    pub(crate) fn push(&mut self, id: u32, how: Closed) {
        self.closed[usize::from(self.next)] = (id, how as u8);
        self.next = (self.next + 1) % RECENT as u8;
    }

    pub(crate) fn find(&self, id: u32) -> Option<Closed> {
        let (_, how) = self.closed.iter().find(|(closed, _)| *closed == id && id != 0)?;
        Some([Closed::Ended, Closed::ByPeer, Closed::ByUs][usize::from(*how)])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_table_finds_what_a_map_finds(
            steps in prop::collection::vec((any::<bool>(), 0u32..200), 0..400),
        ) {
            let (mut streams, mut map) = (Streams::default(), BTreeMap::new());
            for (n, (insert, number)) in steps.into_iter().enumerate() {
                let id = 2 * number + 1;
                if insert && !map.contains_key(&id) {
                    streams.insert(Stream { id, tag: n as u32, ..Stream::default() });
                    map.insert(id, n as u32);
                } else {
                    prop_assert_eq!(streams.remove(id).map(|stream| stream.tag), map.remove(&id));
                }
                prop_assert_eq!(streams.len(), map.len());
                for id in 0..402 {
                    prop_assert_eq!(streams.get(id).map(|stream| stream.tag), map.get(&id).copied());
                }
                prop_assert!(streams.places.len() >= map.len() * 2 && streams.places.len() <= 512);
            }
        }
    }

    #[test]
    fn streams_are_small_and_a_table_without_streams_can_be_freed() {
        assert!(size_of::<Stream>() <= 40, "{}", size_of::<Stream>());
        let mut streams = Streams::default();
        streams.insert(Stream { id: 1, ..Stream::default() });
        streams.release();
        assert!(streams.get(1).is_some());
        streams.remove(1);
        streams.release();
        assert_eq!(streams.places.capacity(), 0);
        assert!(streams.find(1).is_none());
    }

    #[test]
    fn the_last_closed_streams_are_known() {
        let mut recent = Recent::default();
        for id in 1..=40 {
            recent.push(id, [Closed::Ended, Closed::ByPeer, Closed::ByUs][id as usize % 3]);
        }
        assert_eq!((recent.find(8), recent.find(0)), (None, None));
        assert_eq!((recent.find(9), recent.find(40)), (Some(Closed::Ended), Some(Closed::ByPeer)));
    }
}
