//! Header values that repeat from request to request: a browser's User-Agent, a proxy's Forwarded.
//!
//! A long value equal to the last one is kept once, frozen; each request gets its own String that shares the memory
//! until it is changed. Short values are not kept: Ruby stores them inside the String itself.

use rb_sys::VALUE;

use crate::rb::{self, Roots};

/// Values up to this length fit into a String's own slot (Ruby 3.1; later versions have more room, and lose nothing).
const EMBEDDED_BYTES: usize = 23;

/// Longer values are not kept.
const MOST_BYTES: usize = 1024;

/// The last value at one position of a header shape.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    bytes: Vec<u8>,
    /// The frozen String's slot, once there was one.
    place: Option<usize>,
    /// Whether that String has these bytes.
    kept: bool,
}

impl Recent {
    /// Returns a String with these bytes. May raise.
    pub(crate) fn value(&mut self, roots: &Roots, bytes: &[u8]) -> VALUE {
        if bytes.len() <= EMBEDDED_BYTES || bytes.len() > MOST_BYTES {
            return rb::string(bytes);
        }
        if self.bytes != bytes {
            // A single value may never recur: only note its bytes.
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

    /// Releases the frozen String, with its header shape.
    pub(crate) fn release(self, roots: &Roots) {
        if let Some(place) = self.place {
            roots.release(place);
        }
    }
}

/// Frozen Strings made from bytes that seldom change: a host, an address.
#[derive(Debug, Default)]
pub(crate) struct LastStrings<const N: usize> {
    key: Vec<u8>,
    places: Option<[usize; N]>,
}

impl<const N: usize> LastStrings<N> {
    /// Returns the Strings for `key`: the last ones if it is the same, or new ones. May raise.
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
