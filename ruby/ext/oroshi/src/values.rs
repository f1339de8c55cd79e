//! Header values that come again and again, request for request: a browser's User-Agent, a proxy's Forwarded.
//!
//! A long value that was the same last time is kept once, frozen; each request gets a String of its own that shares the
//! memory until somebody changes it. Short values are not worth it: Ruby stores them inside the String itself.

use rb_sys::VALUE;

use crate::rb::{self, Roots};

/// Values up to this length fit into a String's own slot (Ruby 3.1; later ones have more room, and lose nothing).
const EMBEDDED_BYTES: usize = 23;

/// Longer values are not remembered.
const MOST_BYTES: usize = 1024;

/// The last value in one place of a header shape.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    bytes: Vec<u8>,
    /// Where the frozen String is kept, once there was one.
    place: Option<usize>,
    /// Whether that String has these bytes.
    kept: bool,
}

impl Recent {
    /// A String with these bytes. May raise.
    pub(crate) fn value(&mut self, roots: &Roots, bytes: &[u8]) -> VALUE {
        if bytes.len() <= EMBEDDED_BYTES || bytes.len() > MOST_BYTES {
            return rb::string(bytes);
        }
        if self.bytes != bytes {
            // What comes once may never come again: only the bytes are noted.
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
            self.kept = false;
            return rb::string(bytes);
        }
        match self.place {
            Some(place) if self.kept => rb::shared(roots.get(place)),
            place => {
                let root = rb::frozen(bytes);
                match place {
                    Some(place) => roots.set(place, root),
                    None => self.place = Some(roots.add(root)),
                }
                self.kept = true;
                rb::shared(root)
            }
        }
    }

    /// Lets go of the frozen String: this place of a header shape is given up.
    pub(crate) fn release(self, roots: &Roots) {
        if let Some(place) = self.place {
            roots.release(place);
        }
    }
}

/// A frozen String made from bytes that seldom change: a host, an address.
#[derive(Debug, Default)]
pub(crate) struct Last<const N: usize> {
    key: Vec<u8>,
    places: Option<[usize; N]>,
}

impl<const N: usize> Last<N> {
    /// The Strings for `key`: those of the last time, or new ones. May raise.
    pub(crate) fn values(&mut self, roots: &Roots, key: &[u8], make: impl FnOnce() -> [VALUE; N]) -> [VALUE; N] {
        if let Some(places) = self.places
            && self.key == key
        {
            return places.map(|place| roots.get(place));
        }
        let values = make();
        match self.places {
            Some(places) => {
                for (place, value) in places.into_iter().zip(values) {
                    roots.set(place, value);
                }
            }
            None => self.places = Some(values.map(|value| roots.add(value))),
        }
        self.key.clear();
        self.key.extend_from_slice(key);
        values
    }
}
