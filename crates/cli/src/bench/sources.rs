//! Lists of local addresses with ranges: `127.0.0.2-127.0.0.20,10.0.0.1`.

use std::net::IpAddr;

/// Longer lists are rejected as typing errors.
const MOST: u128 = 65_536;

/// Reads a list of addresses and ranges.
///
/// # Errors
/// If the text is no such list, in words.
pub(crate) fn parse(text: &str) -> Result<Vec<IpAddr>, String> {
    let mut addresses = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (address(first)?, address(last)?);
        let (from, to) = match (first, last) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits())),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits()),
            _ => return Err(format!("`{part}`: a range goes from IPv4 to IPv4, or from IPv6 to IPv6")),
        };
        if from > to {
            return Err(format!("`{part}`: the range ends before it begins"));
        }
        if to - from >= MOST - addresses.len() as u128 {
            return Err(format!("`{part}`: more than {MOST} addresses"));
        }
        addresses.extend((from..=to).map(|bits| match first {
            IpAddr::V4(_) => IpAddr::V4((bits as u32).into()),
            IpAddr::V6(_) => IpAddr::V6(bits.into()),
        }));
    }
    Ok(addresses)
}

fn address(text: &str) -> Result<IpAddr, String> {
    let expected =
        || format!("`{text}` is no IP address: expected addresses and ranges, as in 127.0.0.2-127.0.0.20,10.0.0.1");
    text.trim().parse().map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        parse(text).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_and_ranges() {
        assert_eq!(list("10.0.0.1"), ["10.0.0.1"]);
        assert_eq!(
            list("127.0.0.254-127.0.1.1,10.0.0.1"),
            ["127.0.0.254", "127.0.0.255", "127.0.1.0", "127.0.1.1", "10.0.0.1"]
        );
        assert_eq!(list("::1, ::fffe-::ffff"), ["::1", "::fffe", "::ffff"]);
        assert_eq!(parse("127.0.0.0-127.0.255.255").unwrap().len(), 65_536);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in
            ["", "10.0.0.1,", "localhost", "10.0.0.2-10.0.0.1", "10.0.0.1-::1", "127.0.0.0-127.1.0.0", "::-::ffff:ffff"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
