//! `--connect-to`: connections for one host and port go to another.

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
