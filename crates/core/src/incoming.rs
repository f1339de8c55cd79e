//! Bytes that a connection keeps while a message is incomplete.

use crate::buffers::spares;

/// The received part of an incomplete message. At all other times it is empty and has no buffer.
///
/// A connection reads into the thread's [`Scratch`](crate::Scratch) and passes the bytes to [`decode`](Self::decode).
/// Only bytes that the decoder leaves are copied.
#[derive(Debug, Default)]
pub struct Incoming(Vec<u8>);

/// The most bytes that are kept in an allocation of their own. A short remainder gets its own allocation: a spare
/// buffer can be a thousand times larger, and each slow peer would hold one for a byte.
const SMALL: usize = 256;

impl Incoming {
    /// Keeps bytes for the next call to decode.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let mut incoming = Incoming(bytes);
        if incoming.is_empty() {
            incoming.clear();
        }
        incoming
    }

    /// Returns whether nothing is kept.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops the kept bytes.
    #[inline]
    pub fn clear(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        if buffer.capacity() > SMALL {
            spares::give(buffer);
        }
    }

    /// Calls `decode` with the kept bytes followed by `data`. `decode` advances its argument past the bytes that it has
    /// used; the rest is kept.
    #[inline]
    pub fn decode<T>(&mut self, data: &[u8], decode: impl FnOnce(&mut &[u8]) -> T) -> T {
        if self.0.is_empty() {
            let mut left = data;
            let result = decode(&mut left);
            self.keep(left);
            return result;
        }
        self.append(data);
        let mut left = &self.0[..];
        let result = decode(&mut left);
        let count = left.len();
        self.keep_last(count);
        result
    }

    /// As [`decode`](Self::decode), for a decoder that changes the bytes in place.
    #[inline]
    pub fn decode_mut<T>(&mut self, data: &mut [u8], decode: impl FnOnce(&mut &mut [u8]) -> T) -> T {
        if self.0.is_empty() {
            let mut left = data;
            let result = decode(&mut left);
            self.keep(left);
            return result;
        }
        self.append(data);
        let mut left = &mut self.0[..];
        let result = decode(&mut left);
        let count = left.len();
        self.keep_last(count);
        result
    }

    #[inline]
    fn keep(&mut self, left: &[u8]) {
        if !left.is_empty() {
            self.0 = if left.len() > SMALL { spares::take() } else { Vec::with_capacity(left.len()) };
            self.0.extend_from_slice(left);
        }
    }

    fn append(&mut self, data: &[u8]) {
        if self.0.capacity() <= SMALL && self.0.len() + data.len() > SMALL {
            let small = std::mem::replace(&mut self.0, spares::take());
            self.0.extend_from_slice(&small);
        }
        self.0.extend_from_slice(data);
    }

    fn keep_last(&mut self, count: usize) {
        let used = self.0.len().saturating_sub(count);
        if count > SMALL || self.0.capacity() <= SMALL && count > 0 {
            self.0.drain(..used);
        } else {
            let all = Incoming(std::mem::take(&mut self.0));
            self.keep(&all.0[used..]);
        }
    }
}

impl Drop for Incoming {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each message of this protocol is its length in one byte, then its bytes.
    fn encoded(messages: &[Vec<u8>]) -> Vec<u8> {
        messages.iter().flat_map(|message| [&[message.len() as u8], &message[..]].concat()).collect()
    }

    fn read(input: &mut &[u8], messages: &mut Vec<Vec<u8>>) {
        while let Some((length, rest)) = input.split_first()
            && let Some((message, rest)) = rest.split_at_checked(usize::from(*length))
        {
            messages.push(message.to_vec());
            *input = rest;
        }
    }

    /// As above, and flips the bytes of each message in place.
    fn read_flipped(input: &mut &mut [u8], messages: &mut Vec<Vec<u8>>) {
        while let Some(length) = input.first().map(|length| usize::from(*length))
            && input.len() > length
        {
            let (message, rest) = std::mem::take(input).split_at_mut(length + 1);
            message[1..].iter_mut().for_each(|byte| *byte = !*byte);
            messages.push(message[1..].to_vec());
            *input = rest;
        }
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_their_bytes_are_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=255), 0..20),
            cuts in prop::collection::vec(1usize..700, 1..100),
        ) {
            let bytes = encoded(&messages);
            let (mut incoming, mut incoming_mut) = (Incoming::default(), Incoming::default());
            let (mut found, mut flipped, mut at) = (Vec::new(), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let piece = &bytes[at..bytes.len().min(at + cut)];
                at += piece.len();
                incoming.decode(piece, |input| read(input, &mut found));
                incoming_mut.decode_mut(&mut piece.to_vec(), |input| read_flipped(input, &mut flipped));
                // The kept bytes are those of the incomplete message.
                let complete: usize = found.iter().map(|message: &Vec<u8>| message.len() + 1).sum();
                prop_assert_eq!(&incoming.0[..], &bytes[complete..at]);
                prop_assert_eq!(&incoming_mut.0[..], &bytes[complete..at]);
                if complete == at {
                    prop_assert_eq!((incoming.0.capacity(), incoming_mut.0.capacity()), (0, 0));
                }
                if at == bytes.len() {
                    break;
                }
            }
            flipped.iter_mut().flatten().for_each(|byte| *byte = !*byte);
            prop_assert_eq!(&found, &messages);
            prop_assert_eq!(&flipped, &messages);
            prop_assert!(incoming.is_empty() && incoming_mut.is_empty());
        }
    }

    #[test]
    fn what_was_kept_is_read_again_without_anything_new() {
        let mut incoming = Incoming::from_bytes(vec![1, 7, 2, 8]);
        let mut messages = Vec::new();
        incoming.decode(&[], |input| read(input, &mut messages));
        incoming.decode(&[9], |input| read(input, &mut messages));
        assert_eq!(messages, [vec![7], vec![8, 9]]);
        assert_eq!(Incoming::from_bytes(Vec::with_capacity(100)).0.capacity(), 0);
    }

    #[test]
    fn large_rests_use_spare_buffers_again_and_small_ones_hold_none() {
        std::thread::spawn(|| {
            let mut incoming = Incoming::default();
            incoming.decode(&[1; SMALL + 1], |_| ());
            let address = incoming.0.as_ptr();
            incoming.decode(&[], |input| *input = &[]);
            assert_eq!(incoming.0.capacity(), 0);
            incoming.decode(&[2; SMALL + 1], |_| ());
            assert_eq!(incoming.0.as_ptr(), address);
            // A small rest of it gives the spare buffer back, which serves when more comes.
            incoming.decode(&[], |input| *input = &input[SMALL..]);
            assert_eq!((&incoming.0[..], incoming.0.capacity()), (&[2][..], 1));
            incoming.decode(&[3; SMALL], |_| ());
            assert_eq!((incoming.0.as_ptr(), incoming.0.len()), (address, SMALL + 1));
            drop(incoming);
            let spare = spares::take();
            assert_eq!(spare.as_ptr(), address);
            let mut slow = Incoming::default();
            spares::give(spare);
            (0..SMALL).for_each(|_| slow.decode(&[4], |_| ()));
            let spare = spares::take();
            assert!(slow.0.capacity() <= SMALL && spare.as_ptr() == address);
        })
        .join()
        .unwrap();
    }

    /// Connections and subscriptions by the ten thousand have one of these.
    #[test]
    fn it_is_no_larger_than_a_vec() {
        assert_eq!(size_of::<Incoming>(), size_of::<Vec<u8>>());
    }
}
