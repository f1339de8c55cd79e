//! Rules for allowed targets: they keep a value that somebody else wrote from pointing at anything else.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

pub use oroshi_net::permit::RuleError as AllowError;
use oroshi_net::permit::{Permitted, Ports};

use crate::key;
use crate::target::Target;

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
    places: Permitted,
    names: Vec<(Name, Ports)>,
}

impl Allow {
    /// Allows everything.
    pub fn any() -> Self {
        Allow { places: Permitted::any(), ..Allow::default() }
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
            Target::V4 { address, port, .. } => self.address((*address, *port).into()),
            Target::V6 { address, port, .. } => self.address((*address, *port).into()),
            Target::Name { name, port, .. } => self.name(name, *port),
            Target::Unix { path, .. } => self.unix(Path::new(&**path)),
        }
    }

    /// Whether a network contains this address and allows its port.
    pub fn address(&self, address: SocketAddr) -> bool {
        self.places.address(address)
    }

    /// Whether a name is allowed with this port, before it is resolved. Expects lower case, as in a [`Target`].
    pub fn name(&self, name: &str, port: u16) -> bool {
        self.places.has_any(port)
            || self.names.iter().any(|(rule, ports)| ports.hold(port) && rule.matches(name))
            || self.names.is_empty() && self.places.has_networks()
    }

    /// Whether an allowed name may resolve to this address: one in a network, or any address if only names have rules.
    pub fn resolved(&self, address: SocketAddr) -> bool {
        self.address(address) || !self.places.has_networks() && !self.names.is_empty()
    }

    /// Whether a rule allows this unix socket.
    pub fn unix(&self, path: &Path) -> bool {
        self.places.unix(path)
    }

    fn add(&mut self, rule: &str) -> Result<(), AllowError> {
        let Some(found) = self.places.add(rule)? else { return Ok(()) };
        let (suffix, name) = found.name.strip_prefix('.').map_or((false, found.name), |name| (true, name));
        let unknown = |_| AllowError::Unknown { rule: rule.to_owned() };
        let name = key::name_or_ipv4(name).map_err(unknown)?.into_owned();
        self.names.push((if suffix { Name::Below(format!(".{name}")) } else { Name::Is(name) }, found.ports));
        Ok(())
    }
}

/// The rules in a form that can be read again.
impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [networks, unix, any] = self.places.rules();
        let names = self.names.iter().map(|(name, ports)| match name {
            Name::Is(name) | Name::Below(name) => ports.behind(name.clone()),
        });
        f.write_str(&[networks, names.collect(), unix, any].concat().join(", "))
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

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
