//! What a browser would fetch for a page: styles, scripts, images, icons.

use std::collections::HashSet;

use url::Url;

use super::page::ALL;
use super::scan::Element;
use super::{HtmlError, Page};

const LINKS: &str = "base, link, script, img, template";

/// What a resource is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A style sheet.
    Style,
    /// A script.
    Script,
    /// An image.
    Image,
    /// The page's icon; `/favicon.ico` if the page links none.
    Icon,
    /// Linked by `preload` or `modulepreload`.
    Preload,
    /// A web app's manifest.
    Manifest,
}

/// A resource of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its URL, `http` or `https`, without a fragment.
    pub url: Url,
    /// What it is for.
    pub kind: Kind,
}

/// The resources of a page, each URL once, in the page's order; the icon that no link names comes last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The resources, up to the limit.
    pub list: Vec<Resource>,
    /// How many more the page has.
    pub left_out: usize,
}

impl Page {
    /// Returns what a browser would fetch for the page, at most `limit` resources.
    ///
    /// Images that say `loading=lazy` count only if `lazy` is set. Of an image without `src`, the first candidate of
    /// `srcset` counts. Fails if the page has more such elements than [`Limits::matches`](super::Limits::matches).
    pub fn resources(&self, limit: usize, lazy: bool) -> Result<Resources, HtmlError> {
        let (found, query) = self.ask(LINKS, ALL)?;
        let mut href = None;
        let mut links = Vec::new();
        // Templates are not part of the page until a script copies them.
        let mut template_end = 0;
        for element in found.all(query)? {
            let at = element.at();
            if at.start < template_end {
                continue;
            }
            match element.name().as_str() {
                "template" => template_end = at.end,
                "base" => href = href.or_else(|| element.attribute("href")),
                "link" => links.extend(link(&element)),
                "script" => links.extend(script(&element).map(|url| (url, Kind::Script))),
                "img" => links.extend(image(&element, lazy).map(|url| (url, Kind::Image))),
                _ => {}
            }
        }
        let (page, base) = self.base(href.as_deref())?;
        let icon = links.iter().any(|(_, kind)| *kind == Kind::Icon);
        let urls = links.into_iter().filter_map(|(url, kind)| Some((base.join(url.trim()).ok()?, kind)));
        let favicon = (!icon).then(|| page.join("/favicon.ico").ok()).flatten();
        let mut known = HashSet::new();
        let mut resources = Resources { list: Vec::new(), left_out: 0 };
        for (mut url, kind) in urls.chain(favicon.map(|url| (url, Kind::Icon))) {
            url.set_fragment(None);
            if !matches!(url.scheme(), "http" | "https") || !known.insert(url.to_string()) {
                continue;
            }
            if resources.list.len() < limit {
                resources.list.push(Resource { url, kind });
            } else {
                resources.left_out += 1;
            }
        }
        Ok(resources)
    }
}

fn link(element: &Element<'_>) -> Option<(String, Kind)> {
    let rel = element.attribute("rel")?.to_ascii_lowercase();
    let has = |name: &str| rel.split_ascii_whitespace().any(|other| other == name);
    let kind = if has("stylesheet") {
        if has("alternate") || element.has_attribute("disabled") {
            return None;
        }
        Kind::Style
    } else if has("icon") {
        Kind::Icon
    } else if has("preload") || has("modulepreload") {
        Kind::Preload
    } else if has("manifest") {
        Kind::Manifest
    } else {
        return None;
    };
    Some((given(element, "href")?, kind))
}

/// Returns the source of a script, unless it is data, or for browsers without modules.
fn script(element: &Element<'_>) -> Option<String> {
    let kind = element.attribute("type").unwrap_or_default().trim().to_ascii_lowercase();
    let runs = matches!(kind.as_str(), "" | "module") || kind.ends_with("javascript") || kind.ends_with("ecmascript");
    if !runs || element.has_attribute("nomodule") {
        return None;
    }
    given(element, "src")
}

fn image(element: &Element<'_>, lazy: bool) -> Option<String> {
    if !lazy && element.attribute("loading").is_some_and(|loading| loading.eq_ignore_ascii_case("lazy")) {
        return None;
    }
    given(element, "src").or_else(|| {
        let candidates = element.attribute("srcset")?;
        let first = candidates.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',');
        let first = first.split_ascii_whitespace().next()?.trim_end_matches(',');
        (!first.is_empty()).then(|| first.to_owned())
    })
}

/// Returns an attribute that names a URL, unless it is empty.
fn given(element: &Element<'_>, name: &str) -> Option<String> {
    element.attribute(name).filter(|url| !url.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::tests::page;

    fn resources(html: &str) -> Vec<(String, Kind)> {
        let resources = page(html).resources(100, false).unwrap();
        assert_eq!(resources.left_out, 0);
        resources.list.into_iter().map(|resource| (resource.url.to_string(), resource.kind)).collect()
    }

    const ICON: &str = "<link rel=icon href=/i>";

    fn without_icon(html: &str) -> Vec<String> {
        let list = resources(&format!("{html}{ICON}"));
        list.into_iter().map(|(url, _)| url).filter(|url| url != "http://shop.test/i").collect()
    }

    #[test]
    fn all_kinds_in_the_order_of_the_page() {
        let html = "<link rel=StyleSheet href=a.css><link rel='shortcut icon' href=/f.ico><link rel=preload as=font \
            href=//cdn.test/f.woff2><link rel=manifest href=/m.json><script src='/s.js?a=1&amp;b=2#x'></script>\
            <img src=https://img.test/1.png>";
        let want = [
            ("http://shop.test/list/a.css", Kind::Style),
            ("http://shop.test/f.ico", Kind::Icon),
            ("http://cdn.test/f.woff2", Kind::Preload),
            ("http://shop.test/m.json", Kind::Manifest),
            ("http://shop.test/s.js?a=1&b=2", Kind::Script),
            ("https://img.test/1.png", Kind::Image),
        ];
        assert_eq!(resources(html), want.map(|(url, kind)| (url.to_owned(), kind)));
    }

    #[test]
    fn the_favicon_is_fetched_where_no_icon_is_linked() {
        let favicon = "http://shop.test/favicon.ico".to_owned();
        assert_eq!(resources("<base href=http://other.test/>"), [(favicon.clone(), Kind::Icon)]);
        assert_eq!(resources("<img src=/favicon.ico>"), [(favicon, Kind::Image)]);
        assert_eq!(resources(ICON), [("http://shop.test/i".to_owned(), Kind::Icon)]);
    }

    #[test]
    fn the_base_counts_wherever_it_stands() {
        assert_eq!(without_icon("<img src=a><base><base href=../b/><base href=/c/>"), ["http://shop.test/b/a"]);
    }

    #[test]
    fn what_a_browser_does_not_fetch_is_left_out() {
        let html = "<link rel='alternate stylesheet' href=a><link rel=stylesheet href=b disabled><link rel=canonical \
            href=c><link rel=stylesheet><link href=d><script>x</script><script type=application/json src=e></script>\
            <script nomodule src=f></script><img src=data:image/png;base64,AA><img src=''><img src=' '><img>\
            <img src=javascript:x><img src=file:///etc/passwd><img src='http://[x'><noscript><img src=g></noscript>";
        assert_eq!(without_icon(html), Vec::<String>::new());
        let html = "<template><img src=a><template></template><img src=b></template><img src=/c>";
        assert_eq!(without_icon(html), ["http://shop.test/c"]);
        let html = "<script type=module src=/a></script><script type=text/javascript src=/b></script>";
        assert_eq!(without_icon(html), ["http://shop.test/a", "http://shop.test/b"]);
    }

    #[test]
    fn a_url_is_fetched_once() {
        assert_eq!(
            without_icon("<img src=/a><img src=/a#b><script src=http://SHOP.test/a></script>"),
            ["http://shop.test/a"]
        );
    }

    #[test]
    fn lazy_images_and_candidates() {
        let html =
            "<img loading=Lazy src=/a><img srcset=' /b 1x, /c 2x' ><img srcset='/d, /e 2x'><img src=/f srcset=/g>";
        let url = |path: &str| format!("http://shop.test/{path}");
        assert_eq!(without_icon(html), [url("b"), url("d"), url("f")]);
        let all = page(html).resources(100, true).unwrap().list;
        assert_eq!(all[0].url.as_str(), url("a"));
    }

    #[test]
    fn a_limit_leaves_out_the_rest_and_says_so() {
        let html: String = (0..50).map(|n| format!("<img src={n}>")).collect();
        let resources = page(&html).resources(7, false).unwrap();
        assert_eq!((resources.list.len(), resources.left_out), (7, 44));
    }

    #[test]
    fn endless_links_are_an_error() {
        let error = page(&"<img src=a>".repeat(10_001)).resources(7, false).unwrap_err();
        assert!(matches!(error, HtmlError::Matches { max: 10_000, .. }));
    }
}
