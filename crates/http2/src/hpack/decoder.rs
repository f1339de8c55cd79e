//! Decodes header blocks (RFC 7541 sections 3 and 6).

use super::name::{self, Kind};
use super::table::Table;
use super::{huffman, integer, static_table};
use crate::Defect;

/// One decoded field.
#[derive(Clone, Copy, Debug)]
pub struct Field<'f> {
    /// The name as the peer encoded it.
    pub name: &'f [u8],
    /// The value.
    pub value: &'f [u8],
    /// The defect of the name or value by itself, as an upper-case letter. HPACK can carry any bytes.
    pub defect: Option<Defect>,
    pub(crate) kind: Kind,
}

/// Decodes the header blocks of one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The setting that the peer has acknowledged: no size update may exceed it.
    allowed: usize,
    /// The setting shrank below the table's size, and the size update has not come yet.
    update_due: bool,
}

impl Decoder {
    /// Makes a decoder with a dynamic table of `table_bytes`. A connection begins with 4,096, whatever it announces.
    #[must_use]
    pub fn new(table_bytes: usize) -> Self {
        Decoder { table: Table::new(table_bytes), allowed: table_bytes, update_due: false }
    }

    /// Applies our SETTINGS_HEADER_TABLE_SIZE, once the peer has acknowledged it.
    pub fn set_allowed(&mut self, table_bytes: usize) {
        self.allowed = table_bytes;
        self.update_due = self.table.max() > table_bytes;
    }

    /// Decodes one whole header block, and calls `each` with its fields in order.
    ///
    /// `scratch` holds decoded strings meanwhile; its content does not matter. Decoding costs time in proportion to the
    /// block and to the bytes that `each` copies: a field of the table is passed by reference.
    ///
    /// # Errors
    ///
    /// A defect of the block, after which the dynamic table is unknown: end the connection. `each` may have been
    /// called.
    #[inline]
    pub fn decode(&mut self, block: &[u8], scratch: &mut Vec<u8>, each: impl FnMut(Field<'_>)) -> Result<(), Defect> {
        self.decode_wanted(block, scratch, |_| true, each)
    }

    /// As [`decode`](Self::decode), but passes the value of an unwanted field as it is encoded, where no table needs
    /// it.
    #[inline]
    pub(crate) fn decode_wanted(
        &mut self,
        mut block: &[u8],
        scratch: &mut Vec<u8>,
        wanted: impl Fn(Kind) -> bool,
        mut each: impl FnMut(Field<'_>),
    ) -> Result<(), Defect> {
        self.table_sizes(&mut block)?;
        while let Some((&first, rest)) = block.split_first() {
            block = rest;
            match first {
                // Section 6.1: indexed.
                0x80.. => each(self.indexed(integer::decode(first, 7, &mut block)?)?),
                // Section 6.2.1: literal with indexing.
                0x40..=0x7f => {
                    let name_index = integer::decode(first, 6, &mut block)?;
                    self.literal::<true>(name_index, &mut block, scratch, &wanted, &mut each)?;
                }
                // Section 6.3: a size update, which belongs to the start.
                0x20..=0x3f => return Err(Defect::MisplacedTableSize),
                // Sections 6.2.2 and 6.2.3: literal without indexing, or never to be indexed.
                _ => {
                    let name_index = integer::decode(first, 4, &mut block)?;
                    self.literal::<false>(name_index, &mut block, scratch, &wanted, &mut each)?;
                }
            }
        }
        Ok(())
    }

    /// Applies the size updates at the start of a block: at most two (RFC 7541 section 4.2).
    fn table_sizes(&mut self, block: &mut &[u8]) -> Result<(), Defect> {
        for _ in 0..2 {
            let [first @ 0x20..=0x3f, rest @ ..] = *block else { break };
            *block = rest;
            let size = integer::decode(*first, 5, block)?;
            if size > self.allowed {
                return Err(Defect::TableTooLarge);
            }
            self.table.set_max(size);
            self.update_due = false;
        }
        Ok(())
    }

    #[inline]
    fn indexed(&self, index: usize) -> Result<Field<'_>, Defect> {
        if let Some(&(name, value)) = static_table::FIELDS.get(index.wrapping_sub(1)) {
            return Ok(Field { name, value, defect: None, kind: static_table::KINDS[index - 1] });
        }
        self.dynamic(index)
    }

    #[inline]
    fn dynamic(&self, index: usize) -> Result<Field<'_>, Defect> {
        if self.update_due {
            return Err(Defect::MissingTableSize);
        }
        let place = index.checked_sub(static_table::FIELDS.len() + 1).ok_or(Defect::BadIndex)?;
        let field = self.table.get(place).ok_or(Defect::BadIndex)?;
        Ok(Field { name: field.name, value: field.value, defect: field.defect, kind: field.kind })
    }

    #[inline]
    fn literal<const INDEX: bool>(
        &mut self,
        name_index: usize,
        block: &mut &[u8],
        scratch: &mut Vec<u8>,
        wanted: &impl Fn(Kind) -> bool,
        each: &mut impl FnMut(Field<'_>),
    ) -> Result<(), Defect> {
        scratch.clear();
        // A decoded string lies in `scratch`, another one in the block or in a table.
        let (kind, defect, name);
        if name_index == 0 {
            name = text(block, scratch)?;
            defect = name::check_name(name.get(scratch, 0));
            kind = Kind::of(name.get(scratch, 0));
        } else if name_index <= static_table::FIELDS.len() {
            name = Text::Plain(static_table::FIELDS[name_index - 1].0);
            kind = static_table::KINDS[name_index - 1];
            defect = None;
        } else {
            // The entry can leave before the new one enters. A name with a defect stays one.
            let field = self.dynamic(name_index)?;
            kind = field.kind;
            defect = name::check_name(field.name);
            scratch.extend_from_slice(field.name);
            name = Text::Decoded(scratch.len());
        }
        if !INDEX && !wanted(kind) {
            let (_, value) = encoded_text(block)?;
            each(Field { name: name.get(scratch, 0), value, defect, kind });
            return Ok(());
        }
        let value_start = scratch.len();
        let value = text(block, scratch)?;
        let (name, value) = (name.get(scratch, 0), value.get(scratch, value_start));
        let defect = defect.or_else(|| name::check_value(value));
        each(Field { name, value, defect, kind });
        if INDEX {
            if self.update_due {
                return Err(Defect::MissingTableSize);
            }
            self.table.insert(name, value, kind, defect);
        }
        Ok(())
    }
}

/// Where a string is.
#[derive(Clone, Copy)]
enum Text<'b> {
    Plain(&'b [u8]),
    /// In the scratch buffer, up to this place.
    Decoded(usize),
}

impl<'b> Text<'b> {
    #[inline]
    fn get(self, scratch: &'b [u8], start: usize) -> &'b [u8] {
        match self {
            Text::Plain(text) => text,
            Text::Decoded(end) => &scratch[start..end],
        }
    }
}

/// Reads a string (RFC 7541 section 5.2).
#[inline]
fn text<'b>(block: &mut &'b [u8], scratch: &mut Vec<u8>) -> Result<Text<'b>, Defect> {
    let (is_huffman, text) = encoded_text(block)?;
    if !is_huffman {
        return Ok(Text::Plain(text));
    }
    huffman::decode(text, scratch).map_err(|_| Defect::BadHuffman)?;
    Ok(Text::Decoded(scratch.len()))
}

/// Reads a string without decoding it, and whether it is Huffman-coded.
#[inline]
fn encoded_text<'b>(block: &mut &'b [u8]) -> Result<(bool, &'b [u8]), Defect> {
    let (&first, rest) = block.split_first().ok_or(Defect::TruncatedBlock)?;
    *block = rest;
    let length = integer::decode(first, 7, block)?;
    let (text, rest) = block.split_at_checked(length).ok_or(Defect::TruncatedBlock)?;
    *block = rest;
    Ok((first & 0x80 != 0, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, Defect> {
        let mut fields = Vec::new();
        decoder.decode(block, &mut Vec::new(), |field| {
            fields.push(format!("{}={}", field.name.escape_ascii(), field.value.escape_ascii()));
        })?;
        Ok(fields)
    }

    #[test]
    fn indexes_without_an_entry_are_refused() {
        for bad in [&[0x80][..], &[0xbe], &[0xff, 0x00], &[0x7f, 0x00, 0x00], &[0x0f, 0x2f, 0x00]] {
            assert_eq!(decode(&mut Decoder::new(4096), bad), Err(Defect::BadIndex), "{bad:x?}");
        }
    }

    #[test]
    fn blocks_that_end_within_a_field_are_refused() {
        let whole = b"\x40\x03abc\x03def\x00\x01x\x81\x1f";
        for end in 1..whole.len() {
            let result = decode(&mut Decoder::new(4096), &whole[..end]);
            let expected = if end == 9 { Ok(vec!["abc=def".to_owned()]) } else { Err(Defect::TruncatedBlock) };
            assert_eq!(result, expected, "{end} bytes");
        }
        assert_eq!(decode(&mut Decoder::new(4096), whole), Ok(vec!["abc=def".to_owned(), "x=a".to_owned()]));
    }

    #[test]
    fn size_updates_stand_first_and_within_the_setting() {
        let mut decoder = Decoder::new(4096);
        assert_eq!(decode(&mut decoder, &[0x20, 0x3f, 0xe1, 0x1f, 0x82]), Ok(vec![":method=GET".to_owned()]));
        assert_eq!(decode(&mut decoder, &[0x3f, 0xe2, 0x1f]), Err(Defect::TableTooLarge));
        assert_eq!(decode(&mut decoder, &[0x82, 0x20]), Err(Defect::MisplacedTableSize));
        assert_eq!(decode(&mut decoder, &[0x20, 0x20, 0x20]), Err(Defect::MisplacedTableSize), "a third one");
    }

    #[test]
    fn after_the_setting_shrank_the_table_needs_its_update() {
        let mut decoder = Decoder::new(4096);
        decode(&mut decoder, b"\x40\x01a\x01b").unwrap();
        decoder.set_allowed(0);
        assert_eq!(decode(&mut decoder, &[0x82]), Ok(vec![":method=GET".to_owned()]), "the static table needs none");
        assert_eq!(decode(&mut decoder, &[0xbe]), Err(Defect::MissingTableSize));
        assert_eq!(decode(&mut decoder, b"\x40\x01a\x01b"), Err(Defect::MissingTableSize));
        assert_eq!(decode(&mut decoder, &[0x20, 0xbe]), Err(Defect::BadIndex), "the update empties the table");
        assert_eq!(decode(&mut decoder, b"\x40\x01a\x01b\x82"), Ok(vec!["a=b".to_owned(), ":method=GET".to_owned()]));
        assert_eq!(decode(&mut decoder, &[0xbe]), Err(Defect::BadIndex), "nothing enters a table of size 0");
    }

    #[test]
    fn a_defect_stays_with_the_entry_and_with_its_name() {
        let mut decoder = Decoder::new(4096);
        let mut defects = Vec::new();
        // `A: b` enters; then it by its index; then its name with another value; then a bad value, and it by its index.
        let block = b"\x40\x01A\x01b\xbe\x7e\x01c\x40\x01a\x01\n\xbe";
        decoder.decode(block, &mut Vec::new(), |field| defects.push(field.defect)).unwrap();
        let (upper, value) = (Some(Defect::UpperCaseName), Some(oroshi_http1::DecodeError::BadFieldValue.into()));
        assert_eq!(defects, [upper, upper, upper, value, value]);
    }

    #[test]
    fn the_name_of_an_entry_that_leaves_is_still_its_name() {
        let mut decoder = Decoder::new(40);
        // The second field takes its name from the first, which leaves to make room for it.
        assert_eq!(
            decode(&mut decoder, b"\x40\x02ab\x02cd\x7e\x02ef\xbe"),
            Ok(vec!["ab=cd".to_owned(), "ab=ef".to_owned(), "ab=ef".to_owned()])
        );
    }
}
