//! Where targets may be: what keeps a value that somebody else has written from pointing at anything else.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Component, Path};

use crate::key;
use crate::value::Target;

/// Which targets are allowed. Nothing is, unless a rule says so:
///
/// - `10.0.0.0/8`, `fd00::/8`, `192.0.2.7`: addresses. An IPv4 address that is written as IPv6 (`::ffff:10.0.0.1`)
///   counts as itself.
/// - `.internal`, `app.example`: names below a suffix, or one name.
/// - `unix:/run/apps/`: unix sockets below a folder, or one socket. Paths are compared as they are written, so a link
///   below it leads wherever it leads; `..` is refused.
/// - `any`: everything.
///
/// A name's addresses are checked as well, once it is resolved ([`Allow::resolved`]). Where there are rules for
/// addresses and none for names, a name is allowed if what it resolves to is.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Allow {
    any: bool,
    networks: Vec<Network>,
    names: Vec<Name>,
    unix: Vec<String>,
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllowError {
    /// Write it in one of the forms of [`Allow`].
    #[error(
        "`{rule}` is not a place: expected a network (10.0.0.0/8), an address, a name (app.example), a suffix of names \
         (.example), a folder of unix sockets (unix:/run/apps/) or `any`"
    )]
    Unknown {
        /// As it was given.
        rule: String,
    },
    /// Make the prefix longer, or the address that network's first.
    #[error("`{rule}` has an address behind its prefix: expected `{network}`, or a longer prefix")]
    HostBits {
        /// As it was given.
        rule: String,
        /// The network that the address is in.
        network: String,
    },
    /// Write the path in full, without `.` and `..`.
    #[error(
        "`{rule}` does not name a place for unix sockets: expected an absolute path without `.` and `..`, such as \
         unix:/run/apps/"
    )]
    Path {
        /// As it was given.
        rule: String,
    },
}

impl Allow {
    /// Everything is allowed.
    pub fn any() -> Self {
        Allow { any: true, ..Allow::default() }
    }

    /// Reads rules.
    ///
    /// # Errors
    /// What is wrong with each that is none.
    pub fn parse<'a>(rules: impl IntoIterator<Item = &'a str>) -> Result<Self, Vec<AllowError>> {
        let (mut allow, mut errors) = (Allow::default(), Vec::new());
        for rule in rules {
            if let Err(error) = allow.add(rule) {
                errors.push(error);
            }
        }
        if errors.is_empty() { Ok(allow) } else { Err(errors) }
    }

    /// Whether there is no rule at all, so that no target is allowed.
    pub fn is_empty(&self) -> bool {
        *self == Allow::default()
    }

    /// Whether a target may stand in a value. A name that passes is to be checked again when it is resolved:
    /// [`Allow::resolved`].
    pub fn target(&self, target: &Target) -> bool {
        match target {
            Target::V4 { address, .. } => self.address(IpAddr::V4(*address)),
            Target::V6 { address, .. } => self.address(IpAddr::V6(*address)),
            Target::Name { name, .. } => self.name(name),
            Target::Unix(path) => self.unix(Path::new(&**path)),
        }
    }

    /// Whether an address is in one of the networks.
    pub fn address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.any || self.networks.iter().any(|network| network.contains(address))
    }

    /// Whether a name is allowed, before it is resolved. In lower case, as in a [`Target`].
    pub fn name(&self, name: &str) -> bool {
        self.any
            || self.names.iter().any(|rule| rule.matches(name))
            || self.names.is_empty() && !self.networks.is_empty()
    }

    /// Whether an allowed name may lead to this address: one of the networks, if there are rules for any.
    pub fn resolved(&self, address: IpAddr) -> bool {
        self.address(address) || self.networks.is_empty() && !self.names.is_empty()
    }

    /// Whether a unix socket is at one of the paths, or below one.
    pub fn unix(&self, path: &Path) -> bool {
        let Some(path) = path.to_str().filter(|path| is_plain(path)) else { return false };
        self.any
            || self.unix.iter().any(|rule| {
                path.strip_prefix(rule.as_str())
                    .is_some_and(|rest| rule.ends_with('/') && !rest.is_empty() || rest.is_empty())
            })
    }

    fn add(&mut self, rule: &str) -> Result<(), AllowError> {
        let unknown = || AllowError::Unknown { rule: rule.to_owned() };
        if rule == "any" {
            self.any = true;
        } else if let Some(path) = rule.strip_prefix("unix:") {
            let folder = path.strip_suffix('/').unwrap_or(path);
            if !(is_plain(folder) || path == "/") {
                return Err(AllowError::Path { rule: rule.to_owned() });
            }
            self.unix.push(path.to_owned());
        } else if let Some(network) = Network::parse(rule).ok_or_else(unknown)? {
            let first = network.first();
            if first != network {
                return Err(AllowError::HostBits { rule: rule.to_owned(), network: first.to_string() });
            }
            self.networks.push(network);
        } else {
            let (suffix, name) = rule.strip_prefix('.').map_or((false, rule), |name| (true, name));
            let name = key::name_or_ipv4(name).map_err(|_| unknown())?.into_owned();
            self.names.push(if suffix { Name::Below(format!(".{name}")) } else { Name::Is(name) });
        }
        Ok(())
    }
}

/// The rules, as they can be read again.
impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rules: Vec<String> = self.networks.iter().map(Network::to_string).collect();
        rules.extend(self.names.iter().map(|name| match name {
            Name::Is(name) | Name::Below(name) => name.clone(),
        }));
        rules.extend(self.unix.iter().map(|path| format!("unix:{path}")));
        rules.extend(self.any.then(|| "any".to_owned()));
        f.write_str(&rules.join(", "))
    }
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allow({self})")
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
    /// A network or one address; `Ok(None)` for what looks like a name.
    fn parse(rule: &str) -> Option<Option<Network>> {
        let (address, prefix) = rule.split_once('/').map_or((rule, None), |(address, prefix)| (address, Some(prefix)));
        let Ok(address) = address.parse::<IpAddr>() else { return if prefix.is_some() { None } else { Some(None) } };
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let digits = prefix.map(|prefix| prefix.bytes().all(|byte| byte.is_ascii_digit()).then_some(prefix));
        let prefix = match digits {
            None => longest,
            Some(digits) => digits?.parse().ok().filter(|&prefix: &u8| prefix <= longest)?,
        };
        // A network of IPv4 addresses in IPv6's writing is the network of these, as an address of it is one of these.
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

/// Whether a path is absolute and says where it leads: without `.`, `..` and empty parts.
pub(crate) fn is_plain(path: &str) -> bool {
    let parts = Path::new(path).components();
    path.len() > 1
        && path.starts_with('/')
        // `components` leaves out `.` and empty parts, so a path that has some is not the sum of them.
        && parts.clone().skip(1).all(|part| matches!(part, Component::Normal(_)))
        && parts.skip(1).map(|part| part.as_os_str().len() + 1).sum::<usize>() == path.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(rules: &[&str]) -> Allow {
        Allow::parse(rules.iter().copied()).unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let none = Allow::default();
        assert!(none.is_empty() && !none.address(ip("10.0.0.1")) && !none.name("a.example"));
        assert!(!none.resolved(ip("10.0.0.1")) && !none.unix(Path::new("/run/a")));
        let any = Allow::any();
        assert!(
            any.address(ip("::1")) && any.name("a") && any.resolved(ip("1.1.1.1")) && any.unix(Path::new("/run/a"))
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
        assert!(by_name.name("a.b.internal") && by_name.name("app.example"));
        assert!(!by_name.name("internal") && !by_name.name("xinternal") && !by_name.name("b.app.example"));
        assert!(by_name.resolved(ip("127.0.0.1")) && !by_name.address(ip("127.0.0.1")));
        let by_network = allow(&["10.0.0.0/8"]);
        assert!(
            by_network.name("anything.example")
                && by_network.resolved(ip("10.1.1.1"))
                && !by_network.resolved(ip("11.1.1.1"))
        );
        let by_both = allow(&["10.0.0.0/8", ".internal"]);
        assert!(!by_both.name("a.example") && by_both.name("a.internal") && !by_both.resolved(ip("127.0.0.1")));
        assert!(!allow(&["unix:/run/"]).name("a.example"));
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
        ];
        assert_eq!(Allow::parse(wrong).unwrap_err().len(), wrong.len());
        let message = Allow::parse(["10.0.0.1/8"]).unwrap_err()[0].to_string();
        assert!(message.contains("10.0.0.0/8"), "{message}");
    }

    #[test]
    fn the_rules_can_be_read_again() {
        let rules = allow(&["10.0.0.0/8", "fd00::/8", ".internal", "app.example", "unix:/run/apps/", "any"]);
        let text = rules.to_string();
        assert_eq!(Allow::parse(text.split(", ")).unwrap(), rules);
    }
}
