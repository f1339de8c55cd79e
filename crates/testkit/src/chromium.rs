//! Headless Chromium: [`look`] opens a page at a width, and inspects its elements; a [`Browser`] is driven step by
//! step.

mod driven;

use std::process::Command;

pub use driven::Browser;
use serde_json::{Value, json};

use crate::{find, skipped};

/// Possible names of the program.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The outer page's queries to each inner one. Visible text must have a size, lie within the page and not overlap
/// other text.
const QUESTIONS: &str = r##"
const asks = (frame) => {
  const page = frame.contentDocument, root = page.documentElement, wide = root.clientWidth;
  const style = e => frame.contentWindow.getComputedStyle(e);
  const name = e => e.tagName.toLowerCase() + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 40);
  const all = s => [...page.querySelectorAll(s)];
  const shown = e => e.getClientRects().length > 0 && e.checkVisibility();
  const box = e => e.getBoundingClientRect();
  const outside = all('body *').filter(e => shown(e) && !e.closest('.scroll') && box(e).right > wide + 0.5);
  const labels = all('.labels text').filter(shown);
  const apart = (r, s) =>
    r.left >= s.right - 1 || s.left >= r.right - 1 || r.top >= s.bottom - 1 || s.top >= r.bottom - 1;
  const overlapping = [...new Set(labels.map(e => e.closest('.frame')))].flatMap(chart => {
    const texts = [...chart.querySelectorAll('.labels text')];
    return texts.flatMap((a, i) =>
      texts.slice(i + 1).filter(b => !apart(box(a), box(b))).map(b => a.textContent + ' | ' + b.textContent));
  });
  const texts = all('body *').filter(e => shown(e) && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return {
    overflow: root.scrollWidth - wide,
    outside: outside.map(name),
    left: labels.filter(e => box(e).left < 0).map(name),
    overlapping,
    smallest: Math.min(...texts.map(e => parseFloat(style(e).fontSize))),
    unlabelled: all('svg.frame')
      .filter(e => !e.getAttribute('aria-label') && e.getAttribute('aria-hidden') !== 'true').length,
    background: style(page.body).backgroundColor,
    loaded: all('script, iframe, img, link[rel=stylesheet], object, embed').length,
    counts: Object.fromEntries(SELECTORS.map(s => [s, all(s).length])),
    segments: all('path.line').map(e => (e.getAttribute('d').match(/[ML]/g) || []).length),
    text: page.body.innerText,
  };
};
const views = VIEWS.map(([page, width]) => new Promise(seen => {
  const frame = document.body.appendChild(document.createElement('iframe'));
  frame.style = 'border:0;height:900px;width:' + width + 'px';
  frame.onload = () => seen(asks(frame));
  frame.srcdoc = page;
}));
Promise.all(views).then(found => {
  const escaped = JSON.stringify(found)
    .replace(/[<>&\u0080-\uffff]/g, c => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
  document.getElementById('found').textContent = escaped;
});
"##;

/// The results for some pages.
#[derive(Debug)]
pub struct Seen {
    /// The browser's console: errors, refused loads.
    pub console: Vec<String>,
    /// The answers per page.
    pub pages: Vec<Value>,
}

/// Returns the number of elements that match a requested selector.
#[track_caller]
#[must_use]
pub fn count(page: &Value, selector: &str) -> u64 {
    page["counts"][selector].as_u64().unwrap_or_else(|| panic!("{selector} was not asked for"))
}

/// Returns the browser's program, or notes that `test` was left out.
pub fn need(test: &str) -> Option<&'static str> {
    let found = NAMES.into_iter().find(|name| find(name).is_some());
    if found.is_none() {
        skipped(test, "chromium is not installed");
    }
    found
}

/// Opens pages, each with its width in pixels, light or dark, and counts what the selectors find.
#[must_use]
pub fn look(browser: &str, pages: &[(&str, u32)], dark: bool, selectors: &[&str]) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    // Within a script, text must not end the script.
    let quoted = |value: Value| value.to_string().replace('<', "\\u003c");
    let script = QUESTIONS.replace("SELECTORS", &quoted(selectors.into())).replace("VIEWS", &quoted(json!(pages)));
    let outer = format!("<!doctype html><meta charset=utf-8><body><pre id=found></pre><script>{script}</script>");
    let file = folder.path().join("outer.html");
    std::fs::write(&file, outer).unwrap();
    let scheme =
        if dark { "--blink-settings=preferredColorScheme=0" } else { "--blink-settings=preferredColorScheme=1" };
    let output = Command::new("timeout")
        .args(["300", browser])
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", scheme, "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let found = dom.split("<pre id=\"found\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let found =
        found.filter(|json| !json.is_empty()).unwrap_or_else(|| panic!("{browser} shows nothing: {log}\n{dom:.2000}"));
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    Seen { console, pages: serde_json::from_str(found).unwrap() }
}
