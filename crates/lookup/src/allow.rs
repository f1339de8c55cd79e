//! Rules for allowed targets: they keep a value that somebody else wrote from pointing at anything else.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path};

use crate::key;
use crate::value::Target;

/// Rules for allowed targets. Nothing is allowed without a rule:
///
/// - `10.0.0.0/8`, `fd00::/8`, `192.0.2.7`: addresses. An IPv4 address that is written as IPv6 (`::ffff:10.0.0.1`)
///   counts as IPv4.
/// - `.internal`, `app.example`: names below a suffix, or one name.
/// - `unix:/run/apps/`: unix sockets below a folder, or one socket. Paths are compared as written, so links below the
///   folder may lead out of it; `..` is refused.
/// - `any`: everything.
///
/// Addresses, names and `any` hold for every port, unless a port or a range follows: `10.0.0.0/8:8080`,
/// `192.0.2.7:8000-8999`, `[fd00::/8]:8080` (IPv6 in brackets), `.internal:8080`, `any:8080`. `any` with ports allows
/// no unix sockets.
///
/// [`Allow::resolved`] checks a name's addresses once it is resolved. If there are rules for addresses and none for
/// names, every name is allowed whose addresses are.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Allow {
    any: Vec<Ports>,
    networks: Vec<(Network, Ports)>,
    names: Vec<(Name, Ports)>,
    unix: Vec<String>,
}

/// An error in a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowError {
    /// Write it in one of the forms of [`Allow`].
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

impl Allow {
    /// Allows everything.
    pub fn any() -> Self {
        Allow { any: vec![Ports::ALL], ..Allow::default() }
    }

    /// Reads rules.
    ///
    /// # Errors
    /// An error for each invalid rule.
    pub fn parse<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, Vec<AllowError>> {
        let (mut allow, mut errors) = (Allow::default(), Vec::new());
        for rule in rules {
            if let Err(error) = allow.add(rule) {
                errors.push(error);
            }
        }
        if errors.is_empty() { Ok(allow) } else { Err(errors) }
    }

    /// Whether there are no rules, so that no target is allowed.
    pub fn is_empty(&self) -> bool {
        *self == Allow::default()
    }

    /// Whether a value may contain this target. Check an allowed name again when it is resolved: [`Allow::resolved`].
    pub fn target(&self, target: &Target) -> bool {
        match target {
            Target::V4 { address, port } => self.address((*address, *port).into()),
            Target::V6 { address, port } => self.address((*address, *port).into()),
            Target::Name { name, port } => self.name(name, *port),
            Target::Unix(path) => self.unix(Path::new(&**path)),
        }
    }

    /// Whether a network contains this address and allows its port.
    pub fn address(&self, address: SocketAddr) -> bool {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        self.has_any(port) || self.networks.iter().any(|(network, ports)| ports.hold(port) && network.contains(ip))
    }

    /// Whether a name is allowed with this port, before it is resolved. Expects lower case, as in a [`Target`].
    pub fn name(&self, name: &str, port: u16) -> bool {
        self.has_any(port)
            || self.names.iter().any(|(rule, ports)| ports.hold(port) && rule.matches(name))
            || self.names.is_empty() && !self.networks.is_empty()
    }

    /// Whether an allowed name may resolve to this address: one in a network, or any address if only names have rules.
    pub fn resolved(&self, address: SocketAddr) -> bool {
        self.address(address) || self.networks.is_empty() && !self.names.is_empty()
    }

    /// Whether a rule allows this unix socket.
    pub fn unix(&self, path: &Path) -> bool {
        let Some(path) = path.to_str().filter(|path| is_plain(path)) else { return false };
        // A socket has no port, so `any` with ports does not include it.
        self.any.contains(&Ports::ALL)
            || self.unix.iter().any(|rule| {
                path.strip_prefix(rule.as_str())
                    .is_some_and(|rest| rule.ends_with('/') && !rest.is_empty() || rest.is_empty())
            })
    }

    fn has_any(&self, port: u16) -> bool {
        self.any.iter().any(|ports| ports.hold(port))
    }

    fn add(&mut self, rule: &str) -> Result<(), AllowError> {
        let unknown = || AllowError::Unknown { rule: rule.to_owned() };
        if let Some(path) = rule.strip_prefix("unix:") {
            let folder = path.strip_suffix('/').unwrap_or(path);
            if !(is_plain(folder) || path == "/") {
                return Err(AllowError::Path { rule: rule.to_owned() });
            }
            self.unix.push(path.to_owned());
            return Ok(());
        }
        let (place, ports) = split_ports(rule);
        let ports = match ports {
            None => Ports::ALL,
            Some(ports) => Ports::parse(ports).ok_or_else(|| AllowError::Ports { rule: rule.to_owned() })?,
        };
        if place == "any" {
            self.any.push(ports);
        } else if let Some(network) = Network::parse(place).ok_or_else(unknown)? {
            let first = network.first();
            if first != network {
                return Err(AllowError::HostBits { rule: rule.to_owned(), network: first.to_string() });
            }
            self.networks.push((network, ports));
        } else {
            let (suffix, name) = place.strip_prefix('.').map_or((false, place), |name| (true, name));
            let name = key::name_or_ipv4(name).map_err(|_| unknown())?.into_owned();
            self.names.push((if suffix { Name::Below(format!(".{name}")) } else { Name::Is(name) }, ports));
        }
        Ok(())
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

/// The rules in a form that can be read again.
impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_ports = |place: String, ports: Ports| match (ports == Ports::ALL, place.contains(':')) {
            (true, _) => place,
            (false, true) => format!("[{place}]:{ports}"),
            (false, false) => format!("{place}:{ports}"),
        };
        let networks = self.networks.iter().map(|(network, ports)| with_ports(network.to_string(), *ports));
        let mut rules: Vec<String> = networks.collect();
        rules.extend(self.names.iter().map(|(name, ports)| match name {
            Name::Is(name) | Name::Below(name) => with_ports(name.clone(), *ports),
        }));
        rules.extend(self.unix.iter().map(|path| format!("unix:{path}")));
        rules.extend(self.any.iter().map(|ports| with_ports("any".to_owned(), *ports)));
        f.write_str(&rules.join(", "))
    }
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allow({self})")
    }
}

/// A range of ports, inclusive.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    const ALL: Ports = Ports { first: 0, last: u16::MAX };

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

    fn hold(self, port: u16) -> bool {
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

#[derive(Clone, PartialEq, Eq)]
enum Name {
    Is(String),
    /// With its leading dot.
    Below(String),
}

impl Name {
    fn matches(&self, name: &str) -> bool {
        match self {
            Name::Is(rule) => name == rule,
            Name::Below(suffix) => name.ends_with(suffix.as_str()),
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
pub(crate) fn is_plain(path: &str) -> bool {
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

    fn allow(rules: &[&str]) -> Allow {
        Allow::parse(rules.iter().copied()).unwrap()
    }

    /// An address with port 80.
    fn ip(text: &str) -> SocketAddr {
        (text.parse::<IpAddr>().unwrap(), 80).into()
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let none = Allow::default();
        assert!(none.is_empty() && !none.address(ip("10.0.0.1")) && !none.name("a.example", 80));
        assert!(!none.resolved(ip("10.0.0.1")) && !none.unix(Path::new("/run/a")));
        let any = Allow::any();
        assert!(
            any.address(ip("::1")) && any.name("a", 80) && any.resolved(ip("1.1.1.1")) && any.unix(Path::new("/run/a"))
        );
        assert!(!any.unix(Path::new("/run/../a")), "a path that does not say where it leads");
    }

    #[test]
    fn addresses_by_network() {
        let rules = allow(&["10.0.0.0/8", "192.0.2.7", "fd00::/8", "0.0.0.0/32"]);
        for inside in ["10.255.0.1", "192.0.2.7", "fd12::1", "::ffff:10.1.2.3", "0.0.0.0"] {
            assert!(rules.address(ip(inside)), "{inside}");
        }
        for outside in ["11.0.0.0", "192.0.2.8", "fe80::1", "::ffff:11.1.2.3", "127.0.0.1", "::10.0.0.1", "::1"] {
            assert!(!rules.address(ip(outside)), "{outside}");
        }
        assert!(allow(&["0.0.0.0/0"]).address(ip("1.2.3.4")) && !allow(&["0.0.0.0/0"]).address(ip("::1")));
        assert!(
            allow(&["::/0"]).address(ip("::1")) && !allow(&["::/0"]).address(ip("::ffff:127.0.0.1")),
            "that is IPv4"
        );
        assert!(allow(&["::ffff:10.0.0.0/104"]).address(ip("10.1.1.1")));
    }

    #[test]
    fn names_and_what_they_lead_to() {
        let by_name = allow(&[".internal", "App.example"]);
        assert!(by_name.name("a.b.internal", 80) && by_name.name("app.example", 80));
        assert!(!by_name.name("internal", 80) && !by_name.name("xinternal", 80) && !by_name.name("b.app.example", 80));
        assert!(by_name.resolved(ip("127.0.0.1")) && !by_name.address(ip("127.0.0.1")));
        let by_network = allow(&["10.0.0.0/8"]);
        assert!(
            by_network.name("anything.example", 80)
                && by_network.resolved(ip("10.1.1.1"))
                && !by_network.resolved(ip("11.1.1.1"))
        );
        let by_both = allow(&["10.0.0.0/8", ".internal"]);
        assert!(!by_both.name("a.example", 80) && by_both.name("a.internal", 80) && !by_both.resolved(ip("127.0.0.1")));
        assert!(!allow(&["unix:/run/"]).name("a.example", 80));
    }

    #[test]
    fn ports_are_those_behind_the_place() {
        let rules = allow(&["127.0.0.1:3000", "10.0.0.0/8:8000-8999", "[fd00::/8]:81", "[fe80::1]", ".internal:82"]);
        let at = |text: &str| rules.address(text.parse().unwrap());
        for inside in [
            "127.0.0.1:3000",
            "10.1.2.3:8000",
            "10.1.2.3:8999",
            "[fd00::1]:81",
            "[fe80::1]:1",
            "[::ffff:10.0.0.1]:8080",
        ] {
            assert!(at(inside), "{inside}");
        }
        for outside in ["127.0.0.1:3306", "10.1.2.3:7999", "10.1.2.3:9000", "[fd00::1]:82", "[fe80::2]:1"] {
            assert!(!at(outside), "{outside}");
        }
        assert!(rules.name("a.internal", 82) && !rules.name("a.internal", 81));
        // The ports of networks hold for resolved names too.
        let by_network = allow(&["127.0.0.0/8:3000"]);
        assert!(by_network.name("a.example", 3306), "its address decides");
        assert!(!by_network.resolved("127.0.0.1:3306".parse().unwrap()));
        assert!(by_network.resolved("127.0.0.1:3000".parse().unwrap()));
        let any = allow(&["any:80-81"]);
        assert!(any.address(ip("1.2.3.4")) && any.name("a", 81));
        assert!(!any.unix(Path::new("/run/a")), "a socket without a port");
        assert!(allow(&["any:80", "unix:/run/"]).unix(Path::new("/run/a")));
        assert!(
            !any.address("1.2.3.4:82".parse().unwrap())
                && !any.name("a", 82)
                && !any.resolved("1.1.1.1:82".parse().unwrap())
        );
        // Several rules for one address add up.
        let two = allow(&["10.0.0.1:80", "10.0.0.1:443"]);
        assert!(two.address("10.0.0.1:443".parse().unwrap()) && two.address(ip("10.0.0.1")));
    }

    #[test]
    fn unix_sockets_by_folder() {
        let rules = allow(&["unix:/run/apps/", "unix:/run/one.sock"]);
        for inside in ["/run/apps/a", "/run/apps/b/c", "/run/one.sock"] {
            assert!(rules.unix(Path::new(inside)), "{inside}");
        }
        for outside in [
            "/run/apps",
            "/run/apps/",
            "/run/apps/../x",
            "/run/apps/./x",
            "/run/apps//x",
            "/run/appsx",
            "/run/one.sock/x",
            "/run/one.sock2",
            "run/apps/a",
            "",
            "/",
        ] {
            assert!(!rules.unix(Path::new(outside)), "{outside}");
        }
        assert!(allow(&["unix:/"]).unix(Path::new("/a")));
    }

    #[test]
    fn mistakes_are_all_told() {
        let wrong = [
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/x",
            "10.0.0.0/+8",
            "unix:run",
            "unix:/a/../b",
            "",
            ".",
            "a b",
            "300.1.1.1",
            "a/8",
            "10.0.0.0/8:0",
            "10.0.0.0/8:",
            "10.0.0.0/8:x",
            "10.0.0.0/8:+80",
            "10.0.0.0/8:65536",
            "10.0.0.0/8:90-80",
            "10.0.0.0/8:80-",
            "10.0.0.0:80/8",
            "[fd00::/8]80",
            "[fd00::]/8:80",
            "[a]:80",
            "any:",
            ".internal:-80",
        ];
        assert_eq!(Allow::parse(wrong).unwrap_err().len(), wrong.len());
        let message = Allow::parse(["10.0.0.1/8"]).unwrap_err()[0].to_string();
        assert!(message.contains("10.0.0.0/8"), "{message}");
    }

    #[test]
    fn the_rules_can_be_read_again() {
        for rules in [
            &["10.0.0.0/8", "fd00::/8", ".internal", "app.example", "unix:/run/apps/", "any"][..],
            &["10.0.0.0/8:80", "[fd00::/8]:80-90", "[::1]:81", ".internal:82", "app.example:83-84", "any:85"],
        ] {
            let rules = allow(rules);
            let text = rules.to_string();
            assert_eq!(Allow::parse(text.split(", ")).unwrap(), rules, "{text}");
        }
    }
}
