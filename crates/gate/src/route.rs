//! Chooses a request's route: the most specific one that matches.
//!
//! Among matching routes, the most specific host wins: a name before a wildcard, a long wildcard before a short one,
//! any host last. Then the longest path wins, then the most conditions on method and header fields, then the first one
//! in the configuration.
//! `spelling`: how servers may read a path.

mod spelling;

use std::cmp::Reverse;
use std::collections::HashMap;

use oroshi_http1::Headers;

pub use spelling::{PathError, PathReadings, in_ascii, plain_path, readings};

/// The conditions of a route. `Default` matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Any of these hosts; empty: any host.
    pub hosts: Vec<HostPattern>,
    /// The path's prefix, in whole segments: `/api` matches `/api` and `/api/x`, not `/apix`. Empty: any path.
    pub path: String,
    /// Any of these methods; empty: any method.
    pub methods: Vec<String>,
    /// All of these header fields.
    pub headers: Vec<HeaderPattern>,
}

/// A host pattern in canonical form: lower case, ASCII, no port, no trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host.
    Exact(String),
    /// Every name below this one, at any depth: `*.example.org` is `Below("example.org")`, and does not match
    /// `example.org`.
    Below(String),
}

/// A header field that the request must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderPattern {
    /// Its name; case does not matter.
    pub name: String,
    /// Its value; `None`: any. If several fields have the name, [`RouteQuery::repeated`] says which must have the
    /// value.
    pub value: Option<String>,
}

/// Which of several fields with the same name must match. Upstreams may use the first, the last, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// At least one matches.
    Any,
    /// All match.
    All,
}

/// The parts of a request that decide its route.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery<'a> {
    /// The host in canonical form; empty if the request names none.
    pub host: &'a str,
    /// One [reading](readings) of the path.
    pub path: &'a str,
    /// The method.
    pub method: &'a str,
    /// All header fields.
    pub headers: Headers<'a>,
    /// Which of several fields with the same name must match.
    pub repeated: Repeated,
}

/// All routes, indexed by host, so that a request checks only routes for its host.
#[derive(Debug, Default)]
pub struct Table {
    routes: Vec<Matcher>,
    /// Indexes of routes, the most specific first.
    exact: HashMap<String, Vec<usize>>,
    below: HashMap<String, Vec<usize>>,
    anywhere: Vec<usize>,
    /// Names of fields whose values routes check, without duplicates.
    fields: Vec<String>,
}

impl Table {
    /// Makes a table of routes, given in the configuration's order.
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
                // A route may list a host twice.
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

    /// Returns whether the request repeats a field whose value some route checks. It could then take two routes, one by
    /// any value and another by all values.
    #[must_use]
    pub fn is_repeated(&self, headers: Headers<'_>) -> bool {
        self.fields.iter().any(|name| headers.get_all(name).nth(1).is_some())
    }

    /// Returns the conditions of the route with this index.
    #[must_use]
    pub fn matcher(&self, number: usize) -> Option<&Matcher> {
        self.routes.get(number)
    }

    /// Returns the index of the request's route. Does not allocate.
    #[must_use]
    pub fn find(&self, query: &RouteQuery<'_>) -> Option<usize> {
        let first = |list: &[usize]| list.iter().copied().find(|&number| self.routes[number].fits(query));
        if let Some(found) = self.exact.get(query.host).and_then(|list| first(list)) {
            return Some(found);
        }
        if !self.below.is_empty() {
            let mut name = query.host;
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
    /// Returns whether a request matches in everything but its host.
    fn fits(&self, query: &RouteQuery<'_>) -> bool {
        is_below(query.path, &self.path)
            && (self.methods.is_empty() || self.methods.iter().any(|method| method == query.method))
            && self.headers.iter().all(|pattern| pattern.fits(query))
    }
}

impl HeaderPattern {
    fn fits(&self, query: &RouteQuery<'_>) -> bool {
        let mut values = query.headers.get_all(&self.name);
        match (&self.value, query.repeated) {
            (None, _) => values.next().is_some(),
            (Some(value), Repeated::Any) => values.any(|found| found == value.as_bytes()),
            (Some(value), Repeated::All) => {
                values.next().is_some_and(|first| first == value.as_bytes())
                    && values.all(|next| next == value.as_bytes())
            }
        }
    }
}

/// Returns whether a path is at or below `prefix`, by whole segments.
#[must_use]
pub fn is_below(path: &str, prefix: &str) -> bool {
    let prefix = segments(prefix);
    let rest = if prefix.is_empty() { Some(path) } else { path.strip_prefix(prefix) };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Drops the trailing slash: `/api/` and `/api` have the same segments.
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

    fn query<'a>(host: &'a str, path: &'a str) -> RouteQuery<'a> {
        RouteQuery { host, path, method: "GET", headers: Headers::default(), repeated: Repeated::Any }
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
            assert_eq!(table.find(&query(host, path)), route, "{host}{path}");
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
            table.find(&RouteQuery { host: "a", path: "/", method: head.method, headers: head.headers, repeated })
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
        assert!(Table::new(Vec::new()).find(&query("a", "/")).is_none());
    }
}
