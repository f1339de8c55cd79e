//! Links, the list of pages, and the marks of commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{files, root, without_blocks};

/// Returns the pages of the repository: every Markdown file that is not a template or a text of a test.
fn pages() -> Vec<PathBuf> {
    let found: Vec<_> = files(&root(), ".md")
        .into_iter()
        .filter(|path| !path.components().any(|part| part.as_os_str() == "src" || part.as_os_str() == "tests"))
        .collect();
    assert!(found.len() > 40, "{found:?}");
    found
}

/// Removes spans between backquotes, which may show links.
fn without_code(text: &str) -> String {
    let mut outside = String::new();
    for (place, part) in text.split('`').enumerate() {
        outside.push_str(if place % 2 == 0 { part } else { "code" });
    }
    outside
}

/// Returns the targets of `[text](target)`.
fn links(page: &str) -> Vec<String> {
    let text = without_code(&without_blocks(page));
    text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// Returns the anchors of the headings, as GitHub and mdBook name them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let mut anchors = BTreeSet::new();
    for line in without_blocks(page).lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim();
        // Of a link counts its text.
        let mut text = String::new();
        for (place, part) in heading.split("](").enumerate() {
            text.push_str(if place == 0 { part } else { part.split_once(')').map_or(part, |(_, after)| after) });
        }
        let slug: String = text
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let count = seen.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

/// Resolves `..` without a look at the disk.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn links_of_pages_lead_somewhere() {
    let root = root();
    let mut checked = 0;
    let mut broken = Vec::new();
    for page in pages() {
        let name = page.strip_prefix(&root).unwrap().display().to_string();
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let place = if path.is_empty() { page.clone() } else { plain(&page.parent().unwrap().join(path)) };
            if !place.exists() {
                broken.push(format!("{name}: {link}: there is no such file"));
            } else if !anchor.is_empty() && !anchors(&fs::read_to_string(&place).unwrap()).contains(anchor) {
                broken.push(format!("{name}: {link}: there is no such heading"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    assert!(checked > 400, "only {checked} links were found");
}

#[test]
fn a_broken_link_would_be_found() {
    let page = "# One `two`, three\n\n[a](b.md#c) `[no](link)`\n\n```\n[no](link)\n# no heading\n```\n## One\n## One\n";
    assert_eq!(links(page), ["b.md#c"]);
    assert_eq!(anchors(page), ["one", "one-1", "one-two-three"].map(str::to_owned).into());
}

/// The site has the pages of this list (`make site`).
#[test]
fn the_summary_has_every_page() {
    let root = root();
    let docs = root.join("docs");
    let listed: BTreeSet<_> = links(&fs::read_to_string(docs.join("SUMMARY.md")).unwrap())
        .into_iter()
        .map(|link| plain(&docs.join(link)))
        .collect();
    let missing: Vec<_> = pages()
        .into_iter()
        .filter(|page| !listed.contains(page) && *page != docs.join("SUMMARY.md"))
        .map(|page| page.strip_prefix(&root).unwrap().display().to_string())
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lists the pages of the site; these are missing: {missing:?}");
}
