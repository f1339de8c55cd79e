//! `--connect-to` and `--unix`: connections for one host and port go elsewhere.

use std::sync::Arc;

use oroshi_net::{Address, Endpoint};

use super::Draft;

/// One `--connect-to HOST1:PORT1:HOST2:PORT2`: requests for HOST1:PORT1 go to HOST2:PORT2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectTo {
    /// The URL's host; `None` is any.
    pub from_host: Option<String>,
    /// The URL's port; `None` is any.
    pub from_port: Option<u16>,
    /// Where to connect; `None` keeps the URL's.
    pub to_host: Option<String>,
    /// Where to connect; `None` keeps the URL's.
    pub to_port: Option<u16>,
}

impl std::str::FromStr for ConnectTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || format!("`{text}`: expected HOST1:PORT1:HOST2:PORT2, each of them possibly empty (IPv6 in brackets)");
        let mut parts = Vec::new();
        let mut rest = text;
        loop {
            let end = if rest.starts_with('[') {
                rest.find(']').ok_or_else(expected)? + 1
            } else {
                rest.find(':').unwrap_or(rest.len())
            };
            parts.push(rest[..end].trim_matches(['[', ']']));
            match rest[end..].strip_prefix(':') {
                Some(next) => rest = next,
                None if end == rest.len() => break,
                None => return Err(expected()),
            }
        }
        let [from_host, from_port, to_host, to_port] = parts[..] else { return Err(expected()) };
        let port = |p: &str| if p.is_empty() { Ok(None) } else { p.parse().map(Some).map_err(|_| expected()) };
        let host = |h: &str| (!h.is_empty()).then(|| h.to_owned());
        Ok(Self {
            from_host: host(from_host),
            from_port: port(from_port)?,
            to_host: host(to_host),
            to_port: port(to_port)?,
        })
    }
}

impl Draft {
    /// Where connections for a URL go.
    pub(super) fn destination(&self, url: &Endpoint) -> Address {
        if let Some(unix) = &self.unix {
            return Address::Unix(unix.clone());
        }
        let Address::Tcp { host, port } = &url.address else { return url.address.clone() };
        let matching = self.connect_to.iter().find(|rule| {
            rule.from_host.as_ref().is_none_or(|h| h.eq_ignore_ascii_case(host))
                && rule.from_port.is_none_or(|p| p == *port)
        });
        match matching {
            Some(rule) => Address::Tcp {
                host: rule.to_host.as_deref().map_or_else(|| Arc::clone(host), Arc::from),
                port: rule.to_port.unwrap_or(*port),
            },
            None => url.address.clone(),
        }
    }
}
