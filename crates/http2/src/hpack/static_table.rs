//! The static table of HPACK (RFC 7541 appendix A), from index to field and back.

use super::name::Kind;

/// A name and its value; many have none.
pub(crate) type StaticField = (&'static [u8], &'static [u8]);

/// The fields from index 1 on.
pub(crate) const FIELDS: [StaticField; 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// The meaning of each name of [`FIELDS`].
pub(crate) static KINDS: [Kind; FIELDS.len()] = kinds();

const fn kinds() -> [Kind; FIELDS.len()] {
    let mut kinds = [Kind::Other; FIELDS.len()];
    let mut place = 0;
    while place < FIELDS.len() {
        kinds[place] = Kind::of(FIELDS[place].0);
        place += 1;
    }
    kinds
}

/// Returns the first index with this name. Indexes with one name follow each other.
#[inline]
pub(crate) fn find_name(name: &[u8]) -> Option<usize> {
    let mut slot = hash(name);
    loop {
        let index = usize::from(SLOTS[slot]);
        if index == 0 {
            return None;
        }
        if FIELDS[index - 1].0 == name {
            return Some(index);
        }
        slot = (slot + 1) % SLOTS.len();
    }
}

/// Returns the index with this name and value, where `first` is the first index of the name.
#[inline]
pub(crate) fn find_value(first: usize, value: &[u8]) -> Option<usize> {
    let name = FIELDS[first - 1].0;
    let same = FIELDS[first - 1..].iter().take_while(|field| field.0 == name);
    same.zip(first..).find(|(field, _)| field.1 == value && !value.is_empty()).map(|(_, index)| index)
}

/// Indexes by the hash of their names; 0 is empty.
static SLOTS: [u8; 256] = slots();

const fn slots() -> [u8; 256] {
    let mut slots = [0; 256];
    let mut index = 1;
    while index <= FIELDS.len() {
        let name = FIELDS[index - 1].0;
        // Only the first index of a name.
        if index == 1 || !Kind::same(FIELDS[index - 2].0, name) {
            let mut slot = hash(name);
            while slots[slot] != 0 {
                slot = (slot + 1) % slots.len();
            }
            slots[slot] = index as u8;
        }
        index += 1;
    }
    slots
}

/// The length and three letters distinguish nearly all names of the table.
#[inline]
const fn hash(name: &[u8]) -> usize {
    let length = name.len();
    if length == 0 {
        return 0;
    }
    let (first, middle, last) = (name[0] as usize, name[length / 2] as usize, name[length - 1] as usize);
    (length * 37 + first * 5 + middle * 11 + last * 3) % 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_at_its_index() {
        for (place, (name, value)) in FIELDS.iter().enumerate() {
            let first = find_name(name).expect("the name has an index");
            assert!(first <= place + 1 && FIELDS[first - 1].0 == *name);
            if !value.is_empty() {
                assert_eq!(find_value(first, value), Some(place + 1));
            }
            assert_eq!(find_value(first, b"no such value"), None);
            assert_eq!(find_value(first, b""), None, "an empty value in the table stands for none");
        }
        for absent in [&b""[..], b"x", b"Host", b":protocol", b"hosts", b"www-authenticat\xff"] {
            assert_eq!(find_name(absent), None);
        }
    }
}
