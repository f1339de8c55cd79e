//! Validates UTF-8 that arrives in pieces.

/// The bytes of an incomplete last character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Utf8 {
    begun: [u8; 4],
    bytes: u8,
}

impl Utf8 {
    /// Adds bytes. Returns false if no continuation can make the text valid.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> bool {
        while self.bytes > 0 {
            let Some((&byte, rest)) = bytes.split_first() else { return true };
            self.begun[usize::from(self.bytes)] = byte;
            self.bytes += 1;
            bytes = rest;
            match std::str::from_utf8(&self.begun[..usize::from(self.bytes)]) {
                Ok(_) => self.bytes = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(bytes) else { return true };
        let begun = &bytes[error.valid_up_to()..];
        if error.error_len().is_some() || begun.len() > 3 {
            return false;
        }
        self.begun[..begun.len()].copy_from_slice(begun);
        self.bytes = begun.len() as u8;
        true
    }

    /// Whether the text does not end within a character.
    pub(crate) fn is_whole(self) -> bool {
        self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Utf8;

    /// Whether `bytes`, in pieces of these lengths, are accepted as a text.
    fn taken(bytes: &[u8], cuts: &[usize]) -> bool {
        let mut utf8 = Utf8::default();
        let mut rest = bytes;
        for &cut in cuts {
            let (piece, more) = rest.split_at(cut.min(rest.len()));
            if !utf8.push(piece) {
                return false;
            }
            rest = more;
        }
        utf8.push(rest) && utf8.is_whole()
    }

    #[test]
    fn a_wrong_byte_is_told_when_it_comes() {
        let mut utf8 = Utf8::default();
        assert!(utf8.push(b"\xf4"));
        assert!(!utf8.push(b"\x90"), "beyond U+10FFFF");
        let mut utf8 = Utf8::default();
        assert!(utf8.push(b"a\xed"));
        assert!(!utf8.push(b"\xa0"), "a surrogate");
    }

    proptest! {
        #[test]
        fn it_is_what_the_whole_is(text: String, bytes: Vec<u8>, cuts in prop::collection::vec(0..5usize, 0..20)) {
            prop_assert!(taken(text.as_bytes(), &cuts));
            prop_assert_eq!(taken(&bytes, &cuts), std::str::from_utf8(&bytes).is_ok());
            let mixed = [text.as_bytes(), &bytes].concat();
            prop_assert_eq!(taken(&mixed, &cuts), std::str::from_utf8(&mixed).is_ok());
        }
    }
}
