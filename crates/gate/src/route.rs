//! Which route a request takes: the most specific one that fits.
//!
//! Of all routes that fit a request, the one with the most specific host wins (a name before a wildcard, a long wildcard before a short
//! one, any host last), then the longest path, then the most conditions on method and header fields, then the one written first.
//! `spelling`: what paths may be read as.

mod spelling;

use std::cmp::Reverse;
use std::collections::HashMap;

use oroshi_http1::Headers;

pub use spelling::{PathError, Readings, in_ascii, plain_path, readings};

/// What a request must have to take a route. `Default` fits every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Any of these hosts; empty: any host.
    pub hosts: Vec<HostPattern>,
    /// The beginning of its path, at whole segments: `/api` fits `/api` and `/api/x`, not `/apix`. Empty: any path.
    pub path: String,
    /// Any of these methods; empty: any method.
    pub methods: Vec<String>,
    /// All of these header fields.
    pub headers: Vec<HeaderPattern>,
}

/// Hosts, in canonical form: lower case, ASCII, without a port, without a dot at the end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This one.
    Exact(String),
    /// Every name below this one, however deep: `*.example.org` is `Below("example.org")`, which is not among them itself.
    Below(String),
}

/// A header field that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderPattern {
    /// Its name, in any spelling.
    pub name: String,
    /// Its value; `None`: any. Where several fields have the name, [`Asked::repeated`] says which of them must have it.
    pub value: Option<String>,
}

/// Which of several fields of one name decide. A server behind may go by the first, by the last, or by all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// One that fits is enough.
    Any,
    /// All must fit.
    All,
}

/// What of a request decides about its route.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The host, in canonical form; empty: the request names none.
    pub host: &'a str,
    /// The path, in one of its [`readings`].
    pub path: &'a str,
    /// The method.
    pub method: &'a str,
    /// All header fields.
    pub headers: Headers<'a>,
    /// Which fields of one name must have a rule's value.
    pub repeated: Repeated,
}

/// All routes, by host. A request looks at those alone that its host can take.
#[derive(Debug, Default)]
pub struct Table {
    routes: Vec<Matcher>,
    /// Numbers of routes, the most specific first.
    exact: HashMap<String, Vec<usize>>,
    below: HashMap<String, Vec<usize>>,
    anywhere: Vec<usize>,
    /// Names of fields whose values decide, each once.
    fields: Vec<String>,
}

impl Table {
    /// A table of routes, in the order in which they are written.
    #[must_use]
    pub fn new(routes: Vec<Matcher>) -> Self {
        let mut order: Vec<usize> = (0..routes.len()).collect();
        order.sort_by_key(|&number| {
            let route = &routes[number];
            Reverse((segments(&route.path).len(), usize::from(!route.methods.is_empty()) + route.headers.len()))
        });
        let mut table = Table::default();
        for number in order {
            let hosts = &routes[number].hosts;
            if hosts.is_empty() {
                table.anywhere.push(number);
            }
            for host in hosts {
                let list = match host {
                    HostPattern::Exact(name) => table.exact.entry(name.clone()).or_default(),
                    HostPattern::Below(name) => table.below.entry(name.clone()).or_default(),
                };
                // A host may be written twice.
                if list.last() != Some(&number) {
                    list.push(number);
                }
            }
        }
        for pattern in routes.iter().flat_map(|route| &route.headers).filter(|pattern| pattern.value.is_some()) {
            if !table.fields.iter().any(|name| name.eq_ignore_ascii_case(&pattern.name)) {
                table.fields.push(pattern.name.clone());
            }
        }
        table.routes = routes;
        table
    }

    /// Whether a field that a rule knows the value of is there more than once, so that requests may take two routes: one by any of its values,
    /// another one by all of them.
    #[must_use]
    pub fn is_repeated(&self, headers: Headers<'_>) -> bool {
        self.fields.iter().any(|name| headers.get_all(name).nth(1).is_some())
    }

    /// What a request must have to take the route of this number.
    #[must_use]
    pub fn matcher(&self, number: usize) -> Option<&Matcher> {
        self.routes.get(number)
    }

    /// The number of the route that a request takes. Nothing is allocated.
    #[must_use]
    pub fn find(&self, asked: &Asked<'_>) -> Option<usize> {
        let first = |list: &[usize]| list.iter().copied().find(|&number| self.routes[number].fits(asked));
        if let Some(found) = self.exact.get(asked.host).and_then(|list| first(list)) {
            return Some(found);
        }
        if !self.below.is_empty() {
            let mut name = asked.host;
            while let Some((_, above)) = name.split_once('.') {
                if let Some(found) = self.below.get(above).and_then(|list| first(list)) {
                    return Some(found);
                }
                name = above;
            }
        }
        first(&self.anywhere)
    }
}

impl Matcher {
    /// Whether a request fits in everything but its host.
    fn fits(&self, asked: &Asked<'_>) -> bool {
        is_below(asked.path, &self.path)
            && (self.methods.is_empty() || self.methods.iter().any(|method| method == asked.method))
            && self.headers.iter().all(|pattern| pattern.fits(asked))
    }
}

impl HeaderPattern {
    fn fits(&self, asked: &Asked<'_>) -> bool {
        let mut values = asked.headers.get_all(&self.name);
        match (&self.value, asked.repeated) {
            (None, _) => values.next().is_some(),
            (Some(value), Repeated::Any) => values.any(|found| found == value.as_bytes()),
            (Some(value), Repeated::All) => {
                values.next().is_some_and(|first| first == value.as_bytes())
                    && values.all(|next| next == value.as_bytes())
            }
        }
    }
}

/// Whether a path lies at or below another, by whole segments.
#[must_use]
pub fn is_below(path: &str, prefix: &str) -> bool {
    let prefix = segments(prefix);
    let rest = if prefix.is_empty() { Some(path) } else { path.strip_prefix(prefix) };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `/api/` and `/api` mean the same segments.
fn segments(prefix: &str) -> &str {
    prefix.strip_suffix('/').unwrap_or(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(routes: &[(&str, &str)]) -> Table {
        let matcher = |&(host, path): &(&str, &str)| Matcher {
            hosts: match host.strip_prefix("*.") {
                _ if host == "*" => Vec::new(),
                Some(name) => vec![HostPattern::Below(name.to_owned())],
                None => vec![HostPattern::Exact(host.to_owned())],
            },
            path: path.to_owned(),
            ..Matcher::default()
        };
        Table::new(routes.iter().map(matcher).collect())
    }

    fn asked<'a>(host: &'a str, path: &'a str) -> Asked<'a> {
        Asked { host, path, method: "GET", headers: Headers::default(), repeated: Repeated::Any }
    }

    #[test]
    fn the_most_specific_host_wins_then_the_longest_path() {
        let table = table(&[
            ("*", ""),
            ("*", "/api"),
            ("*.example.org", ""),
            ("*.a.example.org", "/api/"),
            ("example.org", "/api"),
            ("example.org", "/api/v2"),
        ]);
        for (host, path, route) in [
            ("other", "/", Some(0)),
            ("other", "/api", Some(1)),
            ("other", "/apix", Some(0)),
            ("x.example.org", "/api", Some(2)),
            ("b.a.example.org", "/api/1", Some(3)),
            // Nothing at the closer host: on to the wider.
            ("b.a.example.org", "/", Some(2)),
            ("example.org", "/api/v2/x", Some(5)),
            ("example.org", "/api/v3", Some(4)),
            ("example.org", "/", Some(0)),
            ("xexample.org", "/", Some(0)),
            ("", "/", Some(0)),
        ] {
            assert_eq!(table.find(&asked(host, path)), route, "{host}{path}");
        }
    }

    #[test]
    fn conditions_come_before_none_and_the_first_written_before_the_next() {
        let header =
            |value: Option<&str>| vec![HeaderPattern { name: "x-beta".to_owned(), value: value.map(str::to_owned) }];
        let table = Table::new(vec![
            Matcher { path: "/".to_owned(), ..Matcher::default() },
            Matcher { headers: header(None), ..Matcher::default() },
            Matcher { headers: header(Some("2")), methods: vec!["PUT".to_owned()], ..Matcher::default() },
            Matcher { headers: header(Some("2")), ..Matcher::default() },
        ]);
        let find_by = |repeated: Repeated, method: &str, lines: &str| {
            let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let mut decoder = oroshi_http1::RequestDecoder::default();
            let limits = oroshi_http1::Limits::default();
            let Ok(Some(oroshi_http1::RequestEvent::Head(head))) = decoder.decode(&limits, &mut text.as_bytes()) else {
                panic!("{text}");
            };
            assert_eq!(table.is_repeated(head.headers), lines.to_lowercase().matches("x-beta").count() > 1, "{lines}");
            table.find(&Asked { host: "a", path: "/", method: head.method, headers: head.headers, repeated })
        };
        let find = |method: &str, lines: &str| find_by(Repeated::Any, method, lines);
        assert_eq!(find("GET", ""), Some(0));
        assert_eq!(find("GET", "X-Beta: 1\r\n"), Some(1));
        assert_eq!(find("PUT", "X-Beta: 1\r\nx-BETA: 2\r\n"), Some(2));
        assert_eq!(find("GET", "X-Beta: 2\r\n"), Some(1), "as many conditions: the first");
        assert_eq!(find_by(Repeated::All, "PUT", "X-Beta: 1\r\nx-BETA: 2\r\n"), Some(1));
        assert_eq!(find("PUT", "X-Beta: 1\r\nx-BETA: 2\r\nX-Beta: 3\r\n"), Some(2));
        assert_eq!(find_by(Repeated::All, "PUT", "X-Beta: 2\r\nx-BETA: 2\r\n"), Some(2));
        assert_eq!(find_by(Repeated::All, "PUT", ""), Some(0));
        assert!(Table::new(Vec::new()).find(&asked("a", "/")).is_none());
    }
}
