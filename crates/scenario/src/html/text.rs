//! Text of markup: the inner HTML of one element in, its text out.
//!
//! This reads tags as a browser's tokenizer does (HTML, section 13.2.5), and skips scripts, styles and comments. It
//! also finds the end of an element whose end tag was left out (section 13.1.2.4).

use std::borrow::Cow;

use super::entities::{Place, decode, decode_attribute};

/// The inner HTML of `element` is longer than its content if its end tag was left out: returns the content's length.
pub(super) fn content_end(element: &str, html: &[u8]) -> usize {
    match Ends::of(element) {
        Some(ends) => walk(element, html, Some(ends), |_| true),
        None => html.len(),
    }
}

/// Returns the text of an element's inner HTML: references decoded, white space collapsed and trimmed.
///
/// Contains the text of nested elements, but no comments, scripts or styles (of a `script` or `style` itself, its
/// content). `None` if the text has more than `max` bytes.
pub(super) fn text(element: &str, html: &[u8], max: usize) -> Option<String> {
    let mut out = Collapsed { text: String::with_capacity(html.len().min(max).min(256)), space: false, max };
    let mut fits = true;
    walk(element, html, Ends::of(element), |piece| {
        let source = String::from_utf8_lossy(piece.bytes);
        let decoded = if piece.raw { source } else { decoded(source) };
        fits = out.push(&decoded);
        fits
    });
    fits.then_some(out.text)
}

/// Returns the value of a `textarea` by its inner HTML: references decoded, without the first line break.
pub(super) fn verbatim(html: &[u8]) -> String {
    let html = html.strip_prefix(b"\r").unwrap_or(html);
    let html = html.strip_prefix(b"\n").unwrap_or(html);
    decoded(String::from_utf8_lossy(html)).into_owned()
}

fn decoded(source: Cow<'_, str>) -> Cow<'_, str> {
    match source {
        Cow::Borrowed(text) => decode(text, Place::Text),
        Cow::Owned(text) => Cow::Owned(decode(&text, Place::Text).into_owned()),
    }
}

/// Text in which runs of white space become one space.
struct Collapsed {
    text: String,
    /// White space came after the text, and is written if more text follows.
    space: bool,
    max: usize,
}

impl Collapsed {
    /// Appends text, and tells whether it fits.
    fn push(&mut self, piece: &str) -> bool {
        for (n, word) in piece.split(|c: char| c.is_ascii_whitespace()).enumerate() {
            self.space |= n > 0;
            if word.is_empty() {
                continue;
            }
            let space = self.space && !self.text.is_empty();
            if self.text.len() + word.len() + usize::from(space) > self.max {
                return false;
            }
            if space {
                self.text.push(' ');
            }
            self.text.push_str(word);
            self.space = false;
        }
        true
    }
}

/// Characters between tags.
struct Piece<'a> {
    bytes: &'a [u8],
    /// Character references in it are not decoded.
    raw: bool,
}

/// Calls `piece` for the text in `html`, the content of `element`, until it returns false. Returns where the content
/// ends by `ends`: at a tag that closes the element, or at the end of `html`.
fn walk<'a>(element: &str, html: &'a [u8], ends: Option<Ends>, mut piece: impl FnMut(Piece<'a>) -> bool) -> usize {
    match Content::of(element.as_bytes()) {
        Content::Markup => {}
        content => {
            piece(Piece { bytes: html, raw: content != Content::References });
            return html.len();
        }
    }
    // Elements open that shield from the tags in `ends`, and open foreign elements (SVG, MathML).
    let (mut shields, mut foreign) = (0usize, 0usize);
    let mut at = 0;
    while at < html.len() {
        let open = memchr::memchr(b'<', &html[at..]).map_or(html.len(), |next| at + next);
        if open > at && !piece(Piece { bytes: &html[at..open], raw: false }) {
            return html.len();
        }
        if open == html.len() {
            break;
        }
        match (html.get(open + 1), html.get(open + 2)) {
            (Some(b'!'), _) if html[open..].starts_with(b"<!--") => at = comment_end(html, open + 4),
            (Some(b'!'), _) if foreign > 0 && html[open..].starts_with(b"<![CDATA[") => {
                let start = open + 9;
                let end = memchr::memmem::find(&html[start..], b"]]>").map_or(html.len(), |n| start + n);
                if !piece(Piece { bytes: &html[start..end], raw: true }) {
                    return html.len();
                }
                at = (end + 3).min(html.len());
            }
            (Some(b'!' | b'?'), _) => at = after(b'>', html, open),
            (Some(b'/'), Some(next)) if next.is_ascii_alphabetic() => {
                let tag = Tag::read(html, open + 2);
                if ends.is_some_and(|ends| ends.shield(tag.name)) {
                    shields = shields.saturating_sub(1);
                }
                if is_foreign(tag.name) {
                    foreign = foreign.saturating_sub(1);
                }
                at = tag.end;
            }
            (Some(b'/'), Some(_)) => at = after(b'>', html, open),
            (Some(next), _) if next.is_ascii_alphabetic() => {
                let tag = Tag::read(html, open + 1);
                if let Some(ends) = ends {
                    if shields == 0 && ends.end(tag.name) {
                        return open;
                    }
                    shields += usize::from(ends.shield(tag.name));
                }
                at = tag.end;
                if is_foreign(tag.name) {
                    foreign += usize::from(!tag.closes_itself);
                } else if foreign == 0 || !tag.closes_itself {
                    let content = Content::of(tag.name);
                    if content != Content::Markup {
                        let end = raw_end(html, at, tag.name);
                        let raw = content != Content::References;
                        let shown = !matches!(content, Content::Hidden);
                        if shown && !piece(Piece { bytes: &html[at..end], raw }) {
                            return html.len();
                        }
                        at = end;
                    }
                }
            }
            // A `<` that begins no tag is text; nothing follows one at the end.
            _ => {
                if !piece(Piece { bytes: &html[open..=open], raw: true }) {
                    return html.len();
                }
                at = open + 1;
            }
        }
    }
    html.len()
}

/// How the content of an element is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Markup,
    /// Text with character references: no tags.
    References,
    /// Plain text until the end of the page.
    Plain,
    /// Text that is not shown: no tags, no references.
    Hidden,
}

impl Content {
    fn of(name: &[u8]) -> Self {
        let is = |names: &[&str]| names.iter().any(|other| other.as_bytes().eq_ignore_ascii_case(name));
        if is(&["title", "textarea"]) {
            Self::References
        } else if is(&["script", "style", "xmp", "iframe", "noembed", "noframes", "noscript"]) {
            Self::Hidden
        } else if is(&["plaintext"]) {
            Self::Plain
        } else {
            Self::Markup
        }
    }
}

/// Returns where the end tag of a raw element begins.
fn raw_end(html: &[u8], from: usize, name: &[u8]) -> usize {
    if name.eq_ignore_ascii_case(b"plaintext") {
        return html.len();
    }
    let is_script = name.eq_ignore_ascii_case(b"script");
    // A script within a comment of a script has an end tag of its own (HTML, sections 13.2.5.17 to 13.2.5.31).
    let (mut in_comment, mut in_inner) = (false, false);
    let mut at = from;
    while let Some(next) = memchr::memchr2(b'<', b'-', &html[at..]) {
        at += next;
        let rest = &html[at..];
        if in_comment && rest.starts_with(b"-->") {
            (in_comment, in_inner) = (false, false);
        } else if is_script && !in_comment && rest.starts_with(b"<!--") {
            in_comment = true;
            // The dashes may be those of the comment's end.
            at += 2;
            continue;
        } else if in_comment && !in_inner && is_tag(rest, 1, name) {
            in_inner = true;
        } else if rest.get(1) == Some(&b'/') && is_tag(rest, 2, name) {
            if !in_inner {
                return at;
            }
            in_inner = false;
        }
        at += 1;
    }
    html.len()
}

/// Whether a tag of this name begins with `<`, its name at `from`.
fn is_tag(html: &[u8], from: usize, name: &[u8]) -> bool {
    let end = from + name.len();
    html.first() == Some(&b'<')
        && html.get(from..end).is_some_and(|other| other.eq_ignore_ascii_case(name))
        && html.get(end).is_none_or(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>'))
}

fn is_foreign(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"svg") || name.eq_ignore_ascii_case(b"math")
}

/// Returns the position after the next `byte`.
fn after(byte: u8, html: &[u8], from: usize) -> usize {
    memchr::memchr(byte, &html[from..]).map_or(html.len(), |next| from + next + 1)
}

/// Returns the position after a comment whose text begins at `from`.
fn comment_end(html: &[u8], from: usize) -> usize {
    let rest = &html[from..];
    if rest.starts_with(b">") {
        return from + 1;
    }
    if rest.starts_with(b"->") {
        return from + 2;
    }
    let mut at = 0;
    while let Some(next) = memchr::memmem::find(&rest[at..], b"--") {
        at += next;
        match rest.get(at + 2) {
            Some(b'>') => return from + at + 3,
            Some(b'!') if rest.get(at + 3) == Some(&b'>') => return from + at + 4,
            _ => at += 1,
        }
    }
    html.len()
}

/// A start or end tag.
struct Tag<'a> {
    name: &'a [u8],
    /// The position after its `>`.
    end: usize,
    closes_itself: bool,
}

impl<'a> Tag<'a> {
    /// Reads the tag whose name begins at `from`. One without `>` ends with the page.
    fn read(html: &'a [u8], from: usize) -> Self {
        let ends_name = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>');
        let name_end = html[from..].iter().position(ends_name).map_or(html.len(), |n| from + n);
        let name = &html[from..name_end];
        let mut at = name_end;
        let mut closes_itself = false;
        while let Some(byte) = html.get(at) {
            match byte {
                b'>' => return Self { name, end: at + 1, closes_itself },
                b'/' => {
                    closes_itself = true;
                    at += 1;
                }
                space if space.is_ascii_whitespace() => at += 1,
                _ => {
                    closes_itself = false;
                    at = attribute_end(html, at);
                }
            }
        }
        Self { name, end: html.len(), closes_itself: false }
    }
}

/// Returns the position after the attribute that begins at `from`.
fn attribute_end(html: &[u8], from: usize) -> usize {
    attribute(html, from).end
}

/// An attribute as it stands in a tag.
pub(super) struct RawAttribute<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    end: usize,
}

impl RawAttribute<'_> {
    /// Returns the value with references decoded.
    pub(super) fn value(&self) -> String {
        decode_attribute(&String::from_utf8_lossy(self.value))
    }
}

/// Reads the attribute that begins at `from`.
fn attribute(html: &[u8], from: usize) -> RawAttribute<'_> {
    let skip = |at: usize, stop: fn(&u8) -> bool| html[at..].iter().position(stop).map_or(html.len(), |n| at + n);
    // An attribute's name may begin with `=`.
    let end = skip(from + 1, |byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>' | b'='));
    let name = &html[from..end];
    let sign = skip(end, |byte| !byte.is_ascii_whitespace());
    if html.get(sign) != Some(&b'=') {
        return RawAttribute { name, value: b"", end };
    }
    let start = skip(sign + 1, |byte| !byte.is_ascii_whitespace());
    match html.get(start) {
        Some(quote @ (b'"' | b'\'')) => {
            let start = start + 1;
            let close = memchr::memchr(*quote, &html[start..]).map_or(html.len(), |n| start + n);
            RawAttribute { name, value: &html[start..close], end: (close + 1).min(html.len()) }
        }
        Some(_) => {
            let end = skip(start, |byte| byte.is_ascii_whitespace() || *byte == b'>');
            RawAttribute { name, value: &html[start..end], end }
        }
        None => RawAttribute { name, value: b"", end: html.len() },
    }
}

/// Returns the name in a start tag (`<a href=x>`).
pub(super) fn tag_name(tag: &[u8]) -> &[u8] {
    let name = tag.strip_prefix(b"<").unwrap_or(tag);
    let end = name.iter().position(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>'));
    &name[..end.unwrap_or(name.len())]
}

/// Returns the attributes of a start tag, in order; a name that comes again is there again.
pub(super) fn attributes(tag: &[u8]) -> impl Iterator<Item = RawAttribute<'_>> {
    let mut at = 1 + tag_name(tag).len();
    std::iter::from_fn(move || {
        while tag.get(at).is_some_and(|byte| byte.is_ascii_whitespace() || *byte == b'/') {
            at += 1;
        }
        if at >= tag.len() || tag[at] == b'>' {
            return None;
        }
        let attribute = attribute(tag, at);
        at = attribute.end;
        Some(attribute)
    })
}

/// The start tags that end an element whose end tag may be left out.
#[derive(Clone, Copy)]
struct Ends {
    by: &'static [&'static str],
    /// Inside these, the same tags belong to another element.
    shields: &'static [&'static str],
}

impl Ends {
    fn of(element: &str) -> Option<Self> {
        const TABLE: &[&str] = &["table"];
        const PARTS: &[&str] = &["tbody", "thead", "tfoot"];
        let (by, shields): (&'static [&'static str], &'static [&'static str]) = match element {
            "li" => (&["li"], &["ul", "ol", "menu"]),
            "dt" | "dd" => (&["dt", "dd"], &["dl"]),
            "p" => (
                &[
                    "address",
                    "article",
                    "aside",
                    "blockquote",
                    "details",
                    "div",
                    "dl",
                    "fieldset",
                    "figcaption",
                    "figure",
                    "footer",
                    "form",
                    "h1",
                    "h2",
                    "h3",
                    "h4",
                    "h5",
                    "h6",
                    "header",
                    "hgroup",
                    "hr",
                    "main",
                    "menu",
                    "nav",
                    "ol",
                    "p",
                    "pre",
                    "search",
                    "section",
                    "table",
                    "ul",
                    "li",
                    "dt",
                    "dd",
                ],
                &["button", "object"],
            ),
            "rt" | "rp" => (&["rt", "rp"], &["ruby"]),
            "option" => (&["option", "optgroup"], &["select"]),
            "optgroup" => (&["optgroup"], &["select"]),
            "td" | "th" => (&["td", "th", "tr", "tbody", "thead", "tfoot"], TABLE),
            "tr" => (&["tr", "tbody", "thead", "tfoot"], TABLE),
            "thead" | "tbody" | "tfoot" | "caption" | "colgroup" => (PARTS, TABLE),
            _ => return None,
        };
        Some(Self { by, shields })
    }

    fn end(self, name: &[u8]) -> bool {
        self.by.iter().any(|other| other.as_bytes().eq_ignore_ascii_case(name))
    }

    fn shield(self, name: &[u8]) -> bool {
        self.shields.iter().any(|other| other.as_bytes().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(element: &str, html: &str) -> String {
        text(element, html.as_bytes(), 1 << 20).unwrap()
    }

    #[test]
    fn text_is_collapsed_and_decoded() {
        assert_eq!(of("div", "  a\n\t b <b>c</b>d&amp;&nbsp;e&#32;&#10; "), "a b cd&\u{a0}e");
        assert_eq!(of("div", "a<br>b <i> c</i>"), "ab c");
        assert_eq!(of("div", "x < y <3 a</>b</ c>d<?php e?>f<!doctype g>h"), "x < y <3 abdfh");
        assert_eq!(of("div", ""), "");
        assert_eq!(text("div", b"caf\xe9 <b>\xff</b>", 100).unwrap(), "caf\u{fffd} \u{fffd}");
    }

    #[test]
    fn tags_are_read_as_browsers_do() {
        assert_eq!(of("div", "a<i title='<b>x'>b</i><i t=\">\">c<i t=a>d"), "abcd");
        assert_eq!(of("div", "a<i =x>b<i x='1'y>c<i x=/>d<i/x>e<I\n>f"), "abcdef");
        assert_eq!(of("div", "a<i x = '>'>b<i x=a'b>c<i x= >d"), "abcd");
        assert_eq!(of("div", "a<b"), "a");
        assert_eq!(of("div", "a<b c='"), "a");
        assert_eq!(of("div", "a<"), "a<");
        assert_eq!(of("div", "a</"), "a</");
    }

    #[test]
    fn comments_scripts_and_styles_are_no_text() {
        assert_eq!(of("div", "a<!-- <b>x</b> -- > -->b<!-->c<!--->d<!--x--!>e<!--"), "abcde");
        assert_eq!(of("div", "a<script>if (a<b) '</i>'</SCRIPT >b<style>c</style>d<noscript>e</noscript>f"), "abdf");
        assert_eq!(of("div", "a<script>b</scripty>c"), "a");
        assert_eq!(of("script", " {\"a\": \"&amp;<b>\"} "), "{\"a\": \"&amp;<b>\"}");
        assert_eq!(of("title", "a &lt; <b>"), "a < <b>");
        assert_eq!(of("div", "<textarea> a <b> &amp;</textarea>c"), "a <b> &c");
        assert_eq!(of("div", "<plaintext>a</plaintext>"), "a</plaintext>");
        assert_eq!(of("p", "<svg><style/><path/><![CDATA[x<y&lt;]]></svg><![CDATA[z]]>w"), "x<y&lt;w");
    }

    #[test]
    fn elements_without_end_tags_end_where_browsers_end_them() {
        assert_eq!(of("li", "a <ul><li>b<li>c</ul>d<li>e"), "a bcd");
        assert_eq!(of("p", "a <b>b</b> <span>c</span><div>d</div>"), "a b c");
        assert_eq!(of("td", "1<table><tr><td>2</table>3<td>4"), "123");
        assert_eq!(of("tr", "<td>1<td>2<tr><td>3"), "12");
        assert_eq!(of("option", " one\n<option>two"), "one");
        assert_eq!(of("dt", "t<dd>d"), "t");
        assert_eq!(of("div", "a<div>b"), "ab");
        assert_eq!(content_end("li", b"a<li>b"), 1);
        assert_eq!(content_end("div", b"a<li>b"), 6);
    }

    #[test]
    fn the_limit_counts_bytes_of_text() {
        assert_eq!(text("div", b"  ab  <b>cd</b> ", 5).as_deref(), Some("ab cd"));
        assert_eq!(text("div", b"  ab  <b>cd</b> ", 4), None);
    }

    #[test]
    fn the_value_of_a_textarea_is_kept_as_it_is() {
        assert_eq!(verbatim(b"\n a\n  b&amp; "), " a\n  b& ");
        assert_eq!(verbatim(b"\r\n\r\nx"), "\r\nx");
    }

    /// Returns the text by lol_html's own tokenizer.
    fn oracle(html: &str) -> String {
        use std::cell::RefCell;
        use std::rc::Rc;
        let out = Rc::new(RefCell::new(Collapsed { text: String::new(), space: false, max: usize::MAX }));
        let node = Rc::new(RefCell::new(String::new()));
        let (to, buffer) = (out.clone(), node.clone());
        let settings = lol_html::Settings::new().with_strict(false).append_element_content_handler(lol_html::text!(
            "body",
            move |chunk| {
                use lol_html::html_content::TextType;
                buffer.borrow_mut().push_str(chunk.as_str());
                if chunk.last_in_text_node() {
                    let text = std::mem::take(&mut *buffer.borrow_mut());
                    match chunk.text_type() {
                        TextType::Data | TextType::RCData => _ = to.borrow_mut().push(&decode(&text, Place::Text)),
                        TextType::PlainText | TextType::CDataSection => _ = to.borrow_mut().push(&text),
                        TextType::RawText | TextType::ScriptData => {}
                    }
                }
                Ok(())
            }
        ));
        let mut rewriter = lol_html::HtmlRewriter::new(settings, |_: &[u8]| {});
        rewriter.write(b"<body>").unwrap();
        rewriter.write(html.as_bytes()).unwrap();
        rewriter.end().unwrap();
        Rc::into_inner(out).unwrap().into_inner().text
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn text_is_what_lol_html_reads(
            html in "(a|b| |<|>|</|/>|/|<i|<b c|=|'|\"|</i>|<br>|<!--|-->|--|!|--!>|<script>|</script>|<title>|</title|\
                     <p>|<?|<!|&amp|;|&|\n|é|</p>|<textarea>|</textarea>|<style>|</style>){0,14}"
        ) {
            // lol_html gives a tag that the page's end cuts as text; a browser drops it.
            let whole = html.clone() + "x'\"-->\">";
            prop_assert_eq!(of("body", &whole), oracle(&whole), "{}", whole);
            of("body", &html);
        }

        #[test]
        fn any_bytes_are_read(
            html in proptest::collection::vec(any::<u8>(), 0..200),
            element in "li|p|td|div|script|svg",
        ) {
            prop_assert!(text(&element, &html, 1 << 20).is_some());
            prop_assert!(content_end(&element, &html) <= html.len());
        }
    }
}
