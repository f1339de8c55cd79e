//! Keys and tokens: made at random, compared in constant time.

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns 128 random bits as 32 hexadecimal digits: a session's key, a token.
pub(crate) fn key() -> String {
    format!("{:032x}", bits())
}

/// Returns sixteen bytes that nobody can guess.
pub(crate) fn bytes() -> [u8; 16] {
    bits().to_be_bytes()
}

/// Returns a number that no other run of any node has.
pub(crate) fn number() -> u64 {
    bits() as u64
}

/// Compares two byte strings. The time that it takes does not depend on where they differ.
pub(crate) fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |differences, (a, b)| differences | (a ^ b));
    // Keeps the optimiser from stopping early.
    std::hint::black_box(differences) == 0 && a.len() == b.len()
}

fn bits() -> u128 {
    let mut bits = [0; 16];
    // Once the kernel has booted, getrandom(2) never fails for so few bytes and never returns only some of them.
    while getrandom(&mut bits, GetRandomFlags::empty()) != Ok(bits.len()) {
        std::thread::yield_now();
    }
    u128::from_ne_bytes(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ() {
        let keys: std::collections::HashSet<String> = (0..1000).map(|_| key()).collect();
        assert!(keys.len() == 1000 && keys.iter().all(|key| key.len() == 32));
    }

    #[test]
    fn tokens_are_the_same_or_not() {
        assert!(is_same(b"", b"") && is_same(b"abc", b"abc"));
        for (a, b) in [("abc", "abd"), ("abc", "ab"), ("ab", "abc"), ("", "a"), ("a", "")] {
            assert!(!is_same(a.as_bytes(), b.as_bytes()), "{a} {b}");
        }
    }
}
