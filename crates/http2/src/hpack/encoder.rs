//! Encodes header blocks (RFC 7541 section 6).

use super::name::Kind;
use super::table::{ENTRY_BYTES, Table};
use super::{huffman, integer, static_table};

/// How an encoder spends time to save bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// References to the static table, everything else in plain text. Blocks do not depend on each other, so a block
    /// can be encoded once and sent many times.
    #[default]
    Static,
    /// Repeated fields become references to the dynamic table; text is Huffman-coded where that is shorter.
    Dynamic,
}

/// The greatest dynamic table of an encoder, whatever the peer offers: its memory is ours.
const MOST_TABLE_BYTES: usize = 4096;

/// Places of the index of the dynamic table. A collision only costs a reference.
const PLACES: usize = 64;

/// Encodes the header blocks of one direction of a connection.
#[derive(Debug)]
pub struct Encoder {
    compression: Compression,
    table: Table,
    /// Number of the newest entry plus 1, by the hash of name and value; empty before the first entry.
    fields: Vec<u64>,
    /// The smallest and the last table size that the next block must announce.
    update: Option<(usize, usize)>,
}

impl Encoder {
    /// Makes an encoder for the start of a connection, where the peer's table has 4,096 bytes.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Encoder { compression, table: Table::new(MOST_TABLE_BYTES), fields: Vec::new(), update: None }
    }

    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE. The next block announces the new size.
    pub fn set_peer_table_bytes(&mut self, bytes: usize) {
        let size = bytes.min(MOST_TABLE_BYTES);
        if size != self.table.max() {
            self.table.set_max(size);
            let smallest = self.update.map_or(size, |(smallest, _)| smallest.min(size));
            self.update = Some((smallest, size));
        }
    }

    /// Begins a header block: appends the table sizes that are due (RFC 7541 section 4.2).
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.update.take() {
            if smallest < last {
                integer::encode(smallest, 5, 0x20, out);
            }
            integer::encode(last, 5, 0x20, out);
        }
    }

    /// Forgets the dynamic table, because a block that was encoded will not be sent.
    pub fn discard(&mut self) {
        let max = self.table.max();
        self.table.set_max(0);
        self.table.set_max(max);
        self.update = Some((0, max));
    }

    /// Appends one field. The caller has checked it: the name is a token in lower case, perhaps after a colon.
    ///
    /// Credentials are marked as never to be indexed (RFC 7541 section 7.1.3).
    #[inline]
    pub fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        // A field in the dynamic table passed the other checks when it entered.
        let slot = if self.fields.is_empty() { 0 } else { slot(name, value) };
        if let Some(place) = self.dynamic_place(slot, name, value) {
            integer::encode(static_table::FIELDS.len() + 1 + place, 7, 0x80, out);
            return;
        }
        let first = static_table::find_name(name);
        if let Some(index) = first.and_then(|first| static_table::find_value(first, value)) {
            integer::encode(index, 7, 0x80, out);
            return;
        }
        if is_secret(name, value) {
            self.literal(out, 4, 0x10, first, name, value);
        } else if self.compression == Compression::Static || !repeats(name) {
            self.literal(out, 4, 0x00, first, name, value);
        } else {
            self.dynamic(out, first, name, value);
        }
    }

    /// Appends `:status`, without a search.
    #[inline]
    pub fn status(&mut self, out: &mut Vec<u8>, status: u16) {
        match [200, 204, 206, 304, 400, 404, 500].iter().position(|&known| known == status) {
            Some(place) => out.push(0x88 + place as u8),
            None => {
                let digits =
                    [b'0' + (status / 100 % 10) as u8, b'0' + (status / 10 % 10) as u8, b'0' + (status % 10) as u8];
                self.field(out, b":status", &digits);
            }
        }
    }

    /// Returns the place of a field in the dynamic table, if the index has it.
    #[inline]
    fn dynamic_place(&self, slot: usize, name: &[u8], value: &[u8]) -> Option<usize> {
        let number = self.fields.get(slot)?.checked_sub(1)?;
        let place = self.table.place_of(number)?;
        self.table.get(place).filter(|field| field.name == name && field.value == value).map(|_| place)
    }

    /// Appends a field that is not in the dynamic table, and adds it.
    fn dynamic(&mut self, out: &mut Vec<u8>, first: Option<usize>, name: &[u8], value: &[u8]) {
        // A field that takes more than a quarter of the table would drive the others out.
        if name.len() + value.len() + ENTRY_BYTES > self.table.max() / 4 {
            self.literal(out, 4, 0x00, first, name, value);
            return;
        }
        self.literal(out, 6, 0x40, first, name, value);
        self.fields.resize(PLACES, 0);
        self.fields[slot(name, value)] = self.table.next_number() + 1;
        // An insertion changes no number: those of entries that leave are never used again.
        self.table.insert(name, value, Kind::Other, None);
    }

    fn literal(&self, out: &mut Vec<u8>, prefix: u32, other: u8, name_index: Option<usize>, name: &[u8], value: &[u8]) {
        integer::encode(name_index.unwrap_or(0), prefix, other, out);
        if name_index.is_none() {
            self.text(out, name);
        }
        self.text(out, value);
    }

    fn text(&self, out: &mut Vec<u8>, text: &[u8]) {
        if self.compression == Compression::Dynamic {
            let length = huffman::encoded_len(text);
            if length < text.len() {
                integer::encode(length, 7, 0x80, out);
                huffman::encode(text, out);
                return;
            }
        }
        integer::encode(text.len(), 7, 0x00, out);
        out.extend_from_slice(text);
    }
}

/// Whether intermediaries must not put the field into a table: an attacker who can guess values could confirm a guess
/// by the block's length. Short cookies can be guessed.
fn is_secret(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"authorization" | b"proxy-authorization" => true,
        b"cookie" | b"set-cookie" => value.len() < 20,
        _ => false,
    }
}

/// Whether a field tends to have the same value in the next message.
fn repeats(name: &[u8]) -> bool {
    !matches!(
        name,
        b":path"
            | b"age"
            | b"content-length"
            | b"etag"
            | b"if-modified-since"
            | b"if-none-match"
            | b"location"
            | b"set-cookie"
    )
}

/// Returns the slot of a field in the index: by FNV-1a over whole words, which has few enough collisions among the
/// fields of one peer.
#[inline]
fn slot(name: &[u8], value: &[u8]) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ name.len() as u64;
    for text in [name, value] {
        let (words, rest) = text.as_chunks::<8>();
        for word in words {
            hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x100_0000_01b3);
            hash ^= hash >> 29;
        }
        for &byte in rest {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    (hash ^ hash >> 32) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(encoder: &mut Encoder, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for (name, value) in fields {
            encoder.field(&mut out, name.as_bytes(), value.as_bytes());
        }
        out
    }

    #[test]
    fn a_repeated_field_becomes_one_byte() {
        let mut encoder = Encoder::new(Compression::Dynamic);
        let fields = [("server", "oroshi"), ("x-a", "b")];
        assert!(block(&mut encoder, &fields).len() > 10);
        assert_eq!(block(&mut encoder, &fields), [0xbf, 0xbe]);
        let mut encoder = Encoder::new(Compression::Static);
        assert_eq!(block(&mut encoder, &fields), block(&mut encoder, &fields));
        assert_eq!(block(&mut encoder, &[("server", "a")]), b"\x0f\x27\x01a");
    }

    #[test]
    fn table_sizes_are_announced_smallest_first() {
        let mut encoder = Encoder::new(Compression::Dynamic);
        encoder.set_peer_table_bytes(65_536);
        assert_eq!(block(&mut encoder, &[]), [], "the own limit stays");
        encoder.set_peer_table_bytes(0);
        encoder.set_peer_table_bytes(100);
        assert_eq!(block(&mut encoder, &[]), [0x20, 0x3f, 0x45]);
        encoder.set_peer_table_bytes(0);
        assert_eq!(block(&mut encoder, &[("server", "oroshi")])[0], 0x20);
        assert!(encoder.fields.is_empty(), "a table of size 0 takes nothing");
        let first = block(&mut encoder, &[("server", "oroshi")]);
        assert_eq!(first, block(&mut encoder, &[("server", "oroshi")]), "nothing is indexed");
    }

    #[test]
    fn secrets_are_never_indexed() {
        let mut encoder = Encoder::new(Compression::Dynamic);
        for (name, value) in [("authorization", "Basic YTpi"), ("cookie", "a=b"), ("set-cookie", "a=b")] {
            let out = block(&mut encoder, &[(name, value)]);
            assert_eq!(out[0] & 0xf0, 0x10, "{name}");
        }
    }

    #[test]
    fn after_a_discarded_block_both_tables_are_empty() {
        let mut encoder = Encoder::new(Compression::Dynamic);
        let mut decoder = super::super::Decoder::new(4096);
        let fields = [("x-a", "1"), ("x-b", "2")];
        decoder.decode(&block(&mut encoder, &fields), &mut Vec::new(), |_| ()).unwrap();
        block(&mut encoder, &[("x-c", "3")]);
        encoder.discard();
        for _ in 0..2 {
            let mut seen = Vec::new();
            let sent = block(&mut encoder, &fields);
            decoder
                .decode(&sent, &mut Vec::new(), |field| seen.push((field.name.to_vec(), field.value.to_vec())))
                .unwrap();
            assert_eq!(seen, fields.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())));
        }
    }
}
