//! Many short texts in two allocations.

/// Texts by index, stored one behind the other.
#[derive(Debug, Default)]
pub(super) struct Cells {
    text: Vec<u8>,
    /// Where each text ends. A file of at most [`MAX_FILE_BYTES`](super::MAX_FILE_BYTES) fits.
    ends: Vec<u32>,
}

impl Cells {
    /// Creates an empty store with room for this many bytes. Room that stays unused takes no memory.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), ends: Vec::new() }
    }

    /// Appends a text.
    pub(super) fn push(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        self.ends.push(self.text.len() as u32);
    }

    /// Returns a text; `None` if there is none of this index.
    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(&self.text[start..end])
    }

    /// Returns the number of texts.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns unused room to the system.
    pub(super) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Memory in use, bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}
