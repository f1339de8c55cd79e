//! The URLs whose requests are counted apart.

use std::collections::HashMap;

use oroshi_net::Endpoint;

/// URLs that are counted apart. Requests to all later ones are counted together, under one number more.
const MOST: usize = 100;
/// The most numbers of URLs.
pub(crate) const MOST_URLS: usize = MOST + 1;
/// The name of the URLs after the first [`MOST`].
const OTHERS: &str = "(others)";
/// The longest name, bytes; longer ones are cut.
const NAME_BYTES: usize = 200;

/// Numbers of the URLs of a plan, in the order of their first use. A URL that comes twice has one number.
#[derive(Debug, Default)]
pub(super) struct UrlNumbers {
    numbers: HashMap<String, u16>,
    names: Vec<String>,
}

impl UrlNumbers {
    /// Takes the URLs of a plan. If they are one and the same, it gets no number: the counts of the run are its own.
    pub(super) fn of(urls: &[Endpoint]) -> Self {
        let mut all = Self::default();
        let Some(first) = urls.first().map(ToString::to_string) else { return all };
        if urls.iter().skip(1).all(|url| url.to_string() == first) {
            return all;
        }
        for url in urls {
            let url = url.to_string();
            let number = all.names.len();
            if number == MOST_URLS || all.numbers.contains_key(&url) {
                continue;
            }
            let name = if number == MOST { OTHERS } else { &url[..url.floor_char_boundary(NAME_BYTES)] };
            all.names.push(name.to_owned());
            all.numbers.insert(url, number as u16);
        }
        all
    }

    /// The number of a URL.
    pub(super) fn get(&self, url: &Endpoint) -> Option<u16> {
        let others = self.names.len().checked_sub(1)? as u16;
        Some(self.numbers.get(&url.to_string()).copied().unwrap_or(others))
    }

    /// The names by number.
    pub(super) fn into_names(self) -> Vec<String> {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(count: usize) -> Vec<Endpoint> {
        (0..count).map(|i| format!("http://h/{i}").parse().unwrap()).collect()
    }

    #[test]
    fn a_url_that_comes_twice_has_one_number_and_the_only_one_has_none() {
        let numbers = |text: &[&str]| {
            let urls: Vec<Endpoint> = text.iter().map(|url| url.parse().unwrap()).collect();
            let all = UrlNumbers::of(&urls);
            urls.iter().map(|url| all.get(url)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&["http://h/a", "http://h/b", "http://h/a"]), [Some(0), Some(1), Some(0)]);
        assert_eq!(numbers(&["http://h/a", "http://h/a"]), [None, None]);
        assert_eq!(numbers(&["http://h/a"]), [None]);
        assert!(numbers(&[]).is_empty());
    }

    #[test]
    fn from_the_hundred_and_first_on_urls_are_counted_together() {
        for (count, names) in [(100, 100), (101, 101), (102, 101), (5_000, 101)] {
            let urls = urls(count);
            let all = UrlNumbers::of(&urls);
            let last = all.get(urls.last().unwrap()).unwrap();
            assert_eq!(usize::from(last), names - 1, "{count}");
            assert_eq!(all.get(&urls[3]), Some(3));
            let shown = all.into_names();
            assert_eq!(shown.len(), names);
            assert_eq!(shown[99], "http://h/99");
            assert_eq!(shown.get(100).map(String::as_str), (names == 101).then_some(OTHERS), "{count}");
        }
    }
}
