//! Names that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

/// A hundred and twenty-eight random bits, as 32 hexadecimal digits: a session's key, a token.
pub(crate) fn key() -> String {
    format!("{:032x}", bits())
}

/// A number that no other run of any node has.
pub(crate) fn number() -> u64 {
    bits() as u64
}

fn bits() -> u128 {
    let mut bits = [0; 16];
    // For so few bytes it neither fails nor comes back with a part of them, once the kernel has booted (getrandom(2)).
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
}
