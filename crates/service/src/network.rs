//! Networks of IP addresses, for lists of trusted peers.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// A network: `10.0.0.0/8`, `fd00::/8`, or one address. Bits after the prefix must be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// As IPv6; IPv4 addresses are in `::ffff:0:0/96`.
    bits: u128,
    mask: u128,
    v4: bool,
}

/// Why a text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no network: give an address, or one with a prefix length whose other bits are zero, such as 10.0.0.0/8"
)]
pub struct NetworkError(String);

impl Network {
    /// Returns whether the network contains an address. IPv4-mapped IPv6 addresses count as IPv4.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        bits(address) & self.mask == self.bits
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => width,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().map_err(|_| wrong())?,
            Some(_) => return Err(wrong()),
        };
        if prefix > width {
            return Err(wrong());
        }
        let host_bits = width - prefix;
        let mask = if host_bits == 128 { 0 } else { u128::MAX << host_bits };
        let network = Network { bits: bits(address), mask, v4: address.is_ipv4() };
        if network.bits & !mask == 0 { Ok(network) } else { Err(wrong()) }
    }
}

/// Writes the text that parses as the same network.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.bits);
        let zeros = self.mask.trailing_zeros();
        match address.to_ipv4_mapped() {
            Some(address) if self.v4 => write!(f, "{address}/{}", 32 - zeros),
            _ => write!(f, "{address}/{}", 128 - zeros),
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses_and_no_others() {
        let holds = |network: &str, address: &str| {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.to_string().parse::<Network>().unwrap(), network);
            network.contains(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.255.1.2") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("10.0.0.0/8", "::ffff:10.0.0.1") && !holds("10.0.0.0/8", "::10.0.0.1"));
        assert!(holds("127.0.0.1", "127.0.0.1") && !holds("127.0.0.1", "127.0.0.2"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("::/0", "::1") && holds("fd00::/8", "fdff::1") && !holds("fd00::/8", "fe00::"));
        for wrong in ["", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "::/129", "a", "10/8"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
