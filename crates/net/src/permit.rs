//! Rules for addresses and unix sockets to which connections may go.
//!
//! A caller that connects where somebody else says, such as an agent of a load, gives the rules to its connectors.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path};

use crate::address::Peer;

/// Rules for permitted addresses and unix sockets. Nothing is permitted without a rule:
///
/// - `10.0.0.0/8`, `fd00::/8`, `192.0.2.7`: addresses. An IPv4 address that is written as IPv6 (`::ffff:10.0.0.1`)
///   counts as IPv4.
/// - `unix:/run/apps/`: unix sockets below a folder, or one socket. Paths are compared as written, so links below the
///   folder may lead out of it; `..` is refused.
/// - `any`: everything.
///
/// Addresses and `any` hold for every port, unless a port or a range follows: `10.0.0.0/8:8080`, `[fd00::/8]:8080`
/// (IPv6 in brackets), `any:8000-8999`. `any` with ports permits no unix sockets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Permitted {
    any: Vec<Ports>,
    networks: Vec<(Network, Ports)>,
    unix: Vec<String>,
}

/// An error in a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// Write it in one of the forms of [`Permitted`], or of the type that has names too.
    #[error(
        "`{rule}` is not a place: expected a network (10.0.0.0/8), an address, a name (app.example), a suffix of names \
         (.example), a folder of unix sockets (unix:/run/apps/) or `any`; with a port or a range of ports behind it, \
         if not all are meant (10.0.0.0/8:8080, [fd00::/8]:8000-8999)"
    )]
    Unknown {
        /// The rule as given.
        rule: String,
    },
    /// Make the prefix longer, or use the network's first address.
    #[error("`{rule}` has an address behind its prefix: expected `{network}`, or a longer prefix")]
    HostBits {
        /// The rule as given.
        rule: String,
        /// The network that contains the address.
        network: String,
    },
    /// Name a port from 1 to 65535, or two of them with the lower one first.
    #[error("`{rule}` does not end in ports: expected one from 1 to 65535, or a range such as 8000-8999")]
    Ports {
        /// The rule as given.
        rule: String,
    },
    /// Write the path in full, without `.` and `..`.
    #[error(
        "`{rule}` does not name a place for unix sockets: expected an absolute path without `.` and `..`, such as \
         unix:/run/apps/"
    )]
    Path {
        /// The rule as given.
        rule: String,
    },
}

/// A rule that is not about addresses or sockets: it may be about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRule<'r> {
    /// The rule without its ports.
    pub name: &'r str,
    /// The ports for which it holds.
    pub ports: Ports,
}

impl Permitted {
    /// Permits everything.
    pub fn any() -> Self {
        Permitted { any: vec![Ports::ALL], ..Permitted::default() }
    }

    /// Permits the addresses of loopback.
    pub fn loopback() -> Self {
        let network = |address: IpAddr, prefix| (Network { address, prefix }, Ports::ALL);
        let networks = vec![network(Ipv4Addr::new(127, 0, 0, 0).into(), 8), network(Ipv6Addr::LOCALHOST.into(), 128)];
        Permitted { networks, ..Permitted::default() }
    }

    /// Adds a rule. Returns the rule if it is about a name, which has no place here.
    ///
    /// # Errors
    /// The rule is invalid.
    pub fn add<'r>(&mut self, rule: &'r str) -> Result<Option<NameRule<'r>>, RuleError> {
        let unknown = || RuleError::Unknown { rule: rule.to_owned() };
        if let Some(path) = rule.strip_prefix("unix:") {
            let folder = path.strip_suffix('/').unwrap_or(path);
            if !(is_plain(folder) || path == "/") {
                return Err(RuleError::Path { rule: rule.to_owned() });
            }
            self.unix.push(path.to_owned());
            return Ok(None);
        }
        let (place, ports) = split_ports(rule);
        let ports = match ports {
            None => Ports::ALL,
            Some(ports) => Ports::parse(ports).ok_or_else(|| RuleError::Ports { rule: rule.to_owned() })?,
        };
        if place == "any" {
            self.any.push(ports);
        } else if let Some(network) = Network::parse(place).ok_or_else(unknown)? {
            let first = network.first();
            if first != network {
                return Err(RuleError::HostBits { rule: rule.to_owned(), network: first.to_string() });
            }
            self.networks.push((network, ports));
        } else {
            return Ok(Some(NameRule { name: place, ports }));
        }
        Ok(None)
    }

    /// Whether a connection may go there.
    pub fn peer(&self, peer: &Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.address(*address),
            Peer::Unix(socket) => socket.as_path().is_some_and(|path| self.unix(path)) || self.has_all(),
        }
    }

    /// Whether a network contains this address and permits its port.
    pub fn address(&self, address: SocketAddr) -> bool {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        self.has_any(port) || self.networks.iter().any(|(network, ports)| ports.hold(port) && network.contains(ip))
    }

    /// Whether a rule permits this unix socket.
    pub fn unix(&self, path: &Path) -> bool {
        let Some(path) = path.to_str().filter(|path| is_plain(path)) else { return false };
        self.has_all()
            || self.unix.iter().any(|rule| {
                path.strip_prefix(rule.as_str())
                    .is_some_and(|rest| rule.ends_with('/') && !rest.is_empty() || rest.is_empty())
            })
    }

    /// Whether there are rules about addresses.
    pub fn has_networks(&self) -> bool {
        !self.networks.is_empty()
    }

    /// Whether every address is permitted at this port.
    pub fn has_any(&self, port: u16) -> bool {
        self.any.iter().any(|ports| ports.hold(port))
    }

    /// A socket has no port, so `any` with ports does not include it.
    fn has_all(&self) -> bool {
        self.any.contains(&Ports::ALL)
    }

    /// Returns the rules about addresses, about sockets, and `any`, in this order, in a form that can be read again.
    pub fn rules(&self) -> [Vec<String>; 3] {
        [
            self.networks.iter().map(|(network, ports)| ports.behind(network.to_string())).collect(),
            self.unix.iter().map(|path| format!("unix:{path}")).collect(),
            self.any.iter().map(|ports| ports.behind("any".to_owned())).collect(),
        ]
    }
}

/// The rules in a form that can be read again.
impl fmt::Display for Permitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rules().concat().join(", "))
    }
}

impl fmt::Debug for Permitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permitted({self})")
    }
}

/// Splits a rule from its ports, if it has some. IPv6 addresses need brackets before ports.
fn split_ports(rule: &str) -> (&str, Option<&str>) {
    if let Some((place, behind)) = rule.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && place.contains(':')
    {
        match behind.strip_prefix(':') {
            Some(ports) => return (place, Some(ports)),
            None if behind.is_empty() => return (place, None),
            None => {}
        }
    }
    match rule.split_once(':') {
        Some((place, ports)) if !ports.contains(':') => (place, Some(ports)),
        _ => (rule, None),
    }
}

/// A range of ports, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// All ports.
    pub const ALL: Ports = Ports { first: 0, last: u16::MAX };

    /// `8080` or `8000-8999`.
    fn parse(text: &str) -> Option<Self> {
        let port = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok()).flatten().filter(|&port: &u16| port > 0)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ports = Ports { first: port(first)?, last: port(last)? };
        (ports.first <= ports.last).then_some(ports)
    }

    /// Returns a place with these ports behind it, as in a rule.
    pub fn behind(self, place: String) -> String {
        match (self == Self::ALL, place.contains(':')) {
            (true, _) => place,
            (false, true) => format!("[{place}]:{self}"),
            (false, false) => format!("{place}:{self}"),
        }
    }

    /// Whether a port is one of them.
    pub fn hold(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Parses a network or an address; `Ok(None)` if it looks like a name.
    fn parse(rule: &str) -> Option<Option<Network>> {
        let (address, prefix) = rule.split_once('/').map_or((rule, None), |(address, prefix)| (address, Some(prefix)));
        let Ok(address) = address.parse::<IpAddr>() else { return if prefix.is_some() { None } else { Some(None) } };
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let digits = prefix.map(|prefix| prefix.bytes().all(|byte| byte.is_ascii_digit()).then_some(prefix));
        let prefix = match digits {
            None => longest,
            Some(digits) => digits?.parse().ok().filter(|&prefix: &u8| prefix <= longest)?,
        };
        // A network of IPv4 addresses that is written as IPv6 counts as IPv4, as its addresses do.
        Some(Some(match address.to_canonical() {
            IpAddr::V4(mapped) if address.is_ipv6() && prefix >= 96 => {
                Network { address: mapped.into(), prefix: prefix - 96 }
            }
            _ => Network { address, prefix },
        }))
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Network { address, prefix: self.prefix }.first().address == self.first().address
    }

    /// The same network by its first address.
    fn first(self) -> Network {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        };
        Network { address, prefix: self.prefix }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Whether a path is absolute and has no `.`, `..` or empty parts.
pub fn is_plain(path: &str) -> bool {
    let parts = Path::new(path).components();
    path.len() > 1
        && path.starts_with('/')
        // `components` omits `.` and empty parts, so the lengths differ if a path has some.
        && parts.clone().skip(1).all(|part| matches!(part, Component::Normal(_)))
        && parts.skip(1).map(|part| part.as_os_str().len() + 1).sum::<usize>() == path.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UnixAddress;

    #[test]
    fn loopback_alone_is_what_an_agent_begins_with() {
        let loopback = Permitted::loopback();
        let tcp = |text: &str| Peer::Tcp(text.parse().unwrap());
        for inside in ["127.0.0.1:80", "127.9.9.9:1", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert!(loopback.peer(&tcp(inside)), "{inside}");
        }
        for outside in ["10.0.0.1:80", "[::2]:80", "0.0.0.0:80", "[::]:80", "169.254.169.254:80"] {
            assert!(!loopback.peer(&tcp(outside)), "{outside}");
        }
        let socket = Peer::Unix(UnixAddress::path("/run/docker.sock").unwrap());
        assert!(!loopback.peer(&socket) && Permitted::any().peer(&socket));
        assert!(Permitted::any().peer(&Peer::Unix(UnixAddress::parse("@name").unwrap())));
        let mut folder = Permitted::default();
        assert_eq!(folder.add("unix:/run/"), Ok(None));
        assert!(folder.peer(&socket) && !folder.peer(&tcp("127.0.0.1:80")));
    }

    #[test]
    fn a_rule_about_a_name_is_given_back() {
        let mut rules = Permitted::default();
        let name = rules.add("app.example:80-90").unwrap().unwrap();
        assert_eq!((name.name, name.ports.hold(85), name.ports.hold(91)), ("app.example", true, false));
        assert_eq!(rules, Permitted::default());
        assert!(rules.add("10.0.0.1/8").is_err());
    }
}
