//! One pass over a page, for any number of selectors.

use std::cell::RefCell;
use std::collections::HashSet;
use std::mem;
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use lol_html::errors::RewritingError;
use lol_html::{ElementContentHandlers, HandlerResult, HtmlRewriter, MemorySettings, OutputSink, Settings};

use super::text;
use super::{HtmlError, Limits, Selector};

/// Bytes given to lol_html at a time. It may stop between two pieces, and counts only tags that span two as memory.
const PIECE: usize = 8 << 10;
/// The position of what has not ended.
const OPEN: usize = usize::MAX;

/// Which matches of a selector are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// The first match; others are not counted.
    First,
    /// The first match, and the number of all.
    Count,
    /// All matches, up to [`Limits::matches`].
    All,
}

/// What is wanted of the matches of a selector. Names and attributes are always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Which matches.
    pub which: Which,
    /// Whether text and inner HTML are wanted.
    pub content: bool,
}

impl Want {
    /// Returns what satisfies both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { which: self.which.max(other.which), content: self.content || other.content }
    }

    /// Tells whether an answer to this answers `other` too.
    pub fn covers(self, other: Self) -> bool {
        self.and(other) == self
    }
}

/// A selector, and what is wanted of its matches.
#[derive(Clone, Debug)]
pub struct Query {
    /// The selector.
    pub selector: Selector,
    /// What is wanted.
    pub want: Want,
}

/// A pass over a page in UTF-8, which may come in pieces.
///
/// Keeps the bytes of matched elements alone. Stops reading once the first match of each selector is there, if no query
/// wants more.
#[derive(Debug)]
pub struct Scan {
    /// None when nothing more needs to be read.
    rewriter: Option<HtmlRewriter<'static, Sink>>,
    state: Rc<RefCell<State>>,
    limits: Limits,
    fed: usize,
    failed: Option<HtmlError>,
}

impl Scan {
    /// Creates a pass that answers `queries`; [`Found`] numbers them in this order.
    pub fn new(queries: &[Query], limits: Limits) -> Self {
        let state = Rc::new(RefCell::new(State {
            hits: queries.iter().map(|query| Hits::new(query.clone())).collect(),
            waiting: queries.len(),
            max_matches: limits.matches,
            ..State::default()
        }));
        let memory = MemorySettings::new().with_max_allowed_memory_usage(limits.parser_bytes.max(PIECE));
        let mut settings = Settings::new().with_strict(false).with_memory_settings(memory);
        for (index, query) in queries.iter().enumerate() {
            let state = state.clone();
            let handler = move |element: &mut Matched<'_, '_>| matched(&state, index, element);
            let selector = std::borrow::Cow::Borrowed(query.selector.parsed());
            settings =
                settings.append_element_content_handler((selector, ElementContentHandlers::default().element(handler)));
        }
        // Selectors that count by type cost time for each name that a page makes up.
        let any = Selector::new("*").ok().filter(|_| queries.iter().any(|query| query.selector.counts_by_type()));
        if let Some(any) = &any {
            let (mut names, max) = (HashSet::new(), limits.element_names);
            let handler = move |element: &mut Matched<'_, '_>| {
                names.insert(element.tag_name());
                if names.len() > max { Err(Stop::Names.into()) } else { Ok(()) }
            };
            settings = settings.append_element_content_handler((
                std::borrow::Cow::Borrowed(any.parsed()),
                ElementContentHandlers::default().element(handler),
            ));
        }
        let rewriter = (!queries.is_empty()).then(|| HtmlRewriter::new(settings, Sink(state.clone())));
        Self { rewriter, state, limits, fed: 0, failed: None }
    }

    /// Reads the next bytes of the page. Errors come with [`Scan::finish`].
    pub fn feed(&mut self, bytes: &[u8]) {
        self.fed = self.fed.saturating_add(bytes.len());
        if self.fed > self.limits.page_bytes {
            self.fail(HtmlError::PageBytes { max: self.limits.page_bytes });
        }
        for piece in bytes.chunks(PIECE) {
            let Some(rewriter) = &mut self.rewriter else { return };
            if let Err(error) = rewriter.write(piece) {
                self.stopped(&error);
            } else if self.state.borrow().waiting == 0 {
                self.rewriter = None;
            }
        }
    }

    /// Ends the page, and returns what was found.
    ///
    /// Fails if the page was too large, nested too deep, or had too long a tag.
    pub fn finish(mut self) -> Result<Found, HtmlError> {
        if let Some(rewriter) = self.rewriter.take()
            && let Err(error) = rewriter.end()
        {
            self.stopped(&error);
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut state = mem::take(&mut *self.state.borrow_mut());
        let (end, position) = (state.kept.len(), state.position);
        for hit in state.hits.iter_mut().flat_map(|hits| &mut hits.matches) {
            // Unclosed elements, and tags that the end of the page cuts.
            hit.inner = hit.inner.start.min(end)..hit.inner.end.min(end);
            hit.tag.end = hit.tag.end.min(end);
            hit.at.end = hit.at.end.min(position);
        }
        Ok(Found { kept: Bytes::from(state.kept), hits: state.hits, limits: self.limits })
    }

    fn stopped(&mut self, error: &RewritingError) {
        match error {
            RewritingError::ContentHandlerError(stop) => match stop.downcast_ref() {
                Some(Stop::Names) => self.fail(HtmlError::ElementNames { max: self.limits.element_names }),
                Some(Stop::Done) | None => self.rewriter = None,
            },
            // Ambiguities are errors only in strict mode, so what remains is memory.
            _ => self.fail(HtmlError::ParserBytes { max: self.limits.parser_bytes }),
        }
    }

    fn fail(&mut self, error: HtmlError) {
        self.rewriter = None;
        self.failed.get_or_insert(error);
    }
}

type Matched<'r, 't> = lol_html::html_content::Element<'r, 't>;

/// Why a handler ends the pass.
#[derive(Debug, Clone, Copy, thiserror::Error)]
enum Stop {
    #[error("all is found")]
    Done,
    #[error("too many names of elements")]
    Names,
}

/// What handlers and the sink share during a pass.
#[derive(Debug, Default)]
struct State {
    hits: Vec<Hits>,
    /// Queries that need more of the page.
    waiting: usize,
    max_matches: usize,
    /// Bytes of matched elements, in the page's order, each once.
    kept: Vec<u8>,
    /// Elements open whose content is kept.
    open: usize,
    /// Bytes before this position of the page are kept, for tags.
    keep_until: usize,
    /// Bytes of the page that came out of lol_html.
    position: usize,
}

#[derive(Debug)]
struct Hits {
    query: Query,
    count: u64,
    matches: Vec<Hit>,
    /// More elements matched than are kept.
    over: bool,
}

impl Hits {
    fn new(query: Query) -> Self {
        Self { query, count: 0, matches: Vec::new(), over: false }
    }
}

#[derive(Debug, Clone)]
struct Hit {
    /// The start tag, in the kept bytes.
    tag: Range<usize>,
    /// The inner HTML, in the kept bytes; up to where lol_html closes the element.
    inner: Range<usize>,
    /// The element in the page, from its start tag to its end tag.
    at: Range<usize>,
}

/// Notes a match. lol_html has given all bytes before the tag to the sink, and gives the tag next.
fn matched(state: &Rc<RefCell<State>>, index: usize, element: &mut Matched<'_, '_>) -> HandlerResult {
    let mut guard = state.borrow_mut();
    let State { hits, waiting, max_matches, kept, open, keep_until, .. } = &mut *guard;
    let hits = &mut hits[index];
    hits.count += 1;
    let Want { which, content } = hits.query.want;
    if hits.matches.len() >= if which == Which::All { *max_matches } else { 1 } {
        hits.over = which == Which::All;
        return Ok(());
    }
    let at = element.source_location().bytes();
    let tag = kept.len()..kept.len() + at.len();
    *keep_until = at.end;
    let number = hits.matches.len();
    let mut hit = Hit { inner: tag.end..tag.end, tag, at };
    if let Some(handlers) = element.end_tag_handlers().filter(|_| content) {
        *open += 1;
        hit.inner.end = OPEN;
        hit.at.end = OPEN;
        let state = state.clone();
        handlers.push(Box::new(move |end| closed(&state, index, number, end.source_location().bytes().start)));
    } else if which == Which::First {
        *waiting -= 1;
    }
    hits.matches.push(hit);
    Ok(())
}

/// Notes the end of a match's content. lol_html has given all bytes before the end tag to the sink.
fn closed(state: &Rc<RefCell<State>>, index: usize, number: usize, position: usize) -> HandlerResult {
    let mut state = state.borrow_mut();
    state.open -= 1;
    let end = state.kept.len();
    let hits = &mut state.hits[index];
    if let Some(hit) = hits.matches.get_mut(number) {
        hit.inner.end = end;
        hit.at.end = position;
    }
    if hits.query.want.which == Which::First {
        state.waiting -= 1;
        if state.waiting == 0 && state.keep_until <= state.position {
            return Err(Stop::Done.into());
        }
    }
    Ok(())
}

/// Keeps the bytes of matched elements, of all that lol_html writes: the page, unchanged.
struct Sink(Rc<RefCell<State>>);

impl OutputSink for Sink {
    fn handle_chunk(&mut self, chunk: &[u8]) {
        let mut guard = self.0.borrow_mut();
        let state = &mut *guard;
        let keep = if state.open > 0 { chunk.len() } else { state.keep_until.saturating_sub(state.position) };
        state.kept.extend_from_slice(&chunk[..keep.min(chunk.len())]);
        state.position += chunk.len();
    }
}

/// What a pass found.
#[derive(Debug)]
pub struct Found {
    kept: Bytes,
    hits: Vec<Hits>,
    limits: Limits,
}

impl Found {
    /// Returns how many elements match; if only the first was wanted, 0 or at least 1.
    pub fn count(&self, query: usize) -> u64 {
        self.hits[query].count
    }

    /// Returns the first match.
    pub fn first(&self, query: usize) -> Option<Element<'_>> {
        let hits = &self.hits[query];
        hits.matches.first().map(|hit| Element { found: self, hits, hit })
    }

    /// Returns all matches, in the page's order. Fails if there are more than [`Limits::matches`].
    pub fn all(&self, query: usize) -> Result<impl Iterator<Item = Element<'_>>, HtmlError> {
        let hits = &self.hits[query];
        if hits.over {
            return Err(HtmlError::Matches { css: hits.css(), max: self.limits.matches });
        }
        Ok(hits.matches.iter().map(move |hit| Element { found: self, hits, hit }))
    }
}

impl Hits {
    fn css(&self) -> String {
        self.query.selector.css().to_owned()
    }
}

/// An element that matched.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    found: &'a Found,
    hits: &'a Hits,
    hit: &'a Hit,
}

impl<'a> Element<'a> {
    /// Returns the name in lower case.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(text::tag_name(self.tag())).to_ascii_lowercase()
    }

    /// Returns an attribute's value, references decoded. `name` is in lower case.
    pub fn attribute(&self, name: &str) -> Option<String> {
        self.raw_attribute(name).map(|attribute| attribute.value())
    }

    /// Tells whether the attribute is there, if only without a value.
    pub fn has_attribute(&self, name: &str) -> bool {
        self.raw_attribute(name).is_some()
    }

    fn raw_attribute(&self, name: &str) -> Option<text::RawAttribute<'a>> {
        text::attributes(self.tag()).find(|attribute| attribute.name.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Returns all attributes with their names in lower case; of those with the same name, the first.
    ///
    /// Fails if there are more than [`Limits::attributes`].
    pub fn attributes(&self) -> Result<Vec<(String, String)>, HtmlError> {
        let mut list: Vec<(String, String)> = Vec::new();
        for (n, attribute) in text::attributes(self.tag()).enumerate() {
            let max = self.found.limits.attributes;
            if n == max {
                return Err(HtmlError::Attributes { css: self.hits.css(), max });
            }
            let name = String::from_utf8_lossy(attribute.name).to_ascii_lowercase();
            if !list.iter().any(|(other, _)| *other == name) {
                list.push((name, attribute.value()));
            }
        }
        Ok(list)
    }

    /// Returns the text: references decoded, white space collapsed and trimmed, nested elements included.
    ///
    /// Comments, scripts and styles are no text, but a `script` or `style` has its own content as text. Fails if the
    /// text has more than [`Limits::text_bytes`]. Empty if content was not wanted.
    pub fn text(&self) -> Result<String, HtmlError> {
        let max = self.found.limits.text_bytes;
        let inner = &self.found.kept[self.hit.inner.clone()];
        text::text(&self.name(), inner, max).ok_or_else(|| HtmlError::TextBytes { css: self.hits.css(), max })
    }

    /// Returns the inner HTML as sent. Empty if content was not wanted.
    pub fn inner(&self) -> Bytes {
        self.inner_within(usize::MAX).unwrap_or_default()
    }

    /// Returns the inner HTML; `None` if it has more than `max` bytes, for at most the work of reading as many.
    pub(super) fn inner_within(&self, max: usize) -> Option<Bytes> {
        let inner = self.found.kept.slice(self.hit.inner.clone());
        let readable = inner.len().min(max.saturating_add(1));
        let end = text::content_end(&self.name(), &inner[..readable]);
        (end <= max).then(|| inner.slice(..end))
    }

    /// Returns where the element is in the page, from its start tag to its end tag; only if content was wanted.
    pub(super) fn at(&self) -> Range<usize> {
        self.hit.at.clone()
    }

    fn tag(&self) -> &'a [u8] {
        &self.found.kept[self.hit.tag.clone()]
    }
}
