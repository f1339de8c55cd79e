//! A page, and the questions that scripts ask about it.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use url::Url;

use super::charset;
use super::scan::{Element, Found, Query, Scan, Want, Which};
use super::{HtmlError, Limits, Selector};

/// Selectors that are remembered for a step.
const LEARNED: usize = 32;
/// Pages in a row that do without a selector before it is forgotten.
const IDLE_PAGES: u8 = 32;
/// Answers that a page keeps. A script that asks more asks for another pass over the page.
const ANSWERS: usize = 256;

pub(super) const FIRST: Want = Want { which: Which::First, content: false };
pub(super) const COUNT: Want = Want { which: Which::Count, content: false };
pub(super) const CONTENT: Want = Want { which: Which::First, content: true };
pub(super) const ALL: Want = Want { which: Which::All, content: true };

/// The selectors that scripts ask of the pages of one step.
///
/// The first question about a page is answered together with all of these, so that three questions cost one pass over
/// the page instead of three. Selectors that 32 pages in a row did not need are forgotten.
#[derive(Debug, Default)]
pub struct Learned {
    asked: Vec<Asked>,
}

#[derive(Debug)]
struct Asked {
    selector: Selector,
    want: Want,
    idle: u8,
}

impl Learned {
    /// Creates an empty set, to be shared by the pages of one step on one thread.
    pub fn shared() -> Rc<RefCell<Self>> {
        Rc::default()
    }

    /// Returns how many selectors are remembered.
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Tells whether no selector is remembered.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Notes that a script asked.
    fn note(&mut self, selector: &Selector, want: Want) {
        if let Some(known) = self.asked.iter_mut().find(|asked| asked.selector.css() == selector.css()) {
            known.want = known.want.and(want);
            known.idle = 0;
        } else if self.asked.len() < LEARNED {
            self.asked.push(Asked { selector: selector.clone(), want, idle: 0 });
        }
    }

    /// Begins a page: returns the questions that it is expected to get.
    fn begin(&mut self) -> Vec<Query> {
        self.asked.retain_mut(|asked| {
            asked.idle += 1;
            asked.idle <= IDLE_PAGES
        });
        self.asked.iter().map(|asked| Query { selector: asked.selector.clone(), want: asked.want }).collect()
    }
}

/// A match of [`Page::all`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The element's name in lower case.
    pub name: String,
    /// The text as in [`Page::text`].
    pub text: String,
    /// The attributes in the page's order, names in lower case.
    pub attributes: Vec<(String, String)>,
    /// The inner HTML as in [`Page::inner`].
    pub inner: Bytes,
}

/// An HTML page, which is read when it is asked.
#[derive(Debug)]
pub struct Page {
    body: Bytes,
    content_type: Option<Box<str>>,
    url: Box<str>,
    learned: Rc<RefCell<Learned>>,
    limits: Limits,
    /// The body in UTF-8.
    utf8: OnceCell<Bytes>,
    answers: RefCell<Vec<Answer>>,
}

#[derive(Debug)]
struct Answer {
    css: Box<str>,
    want: Want,
    found: Rc<Found>,
    query: usize,
}

impl Page {
    /// Creates a page of a response's body, `Content-Type` field and URL. It reads nothing yet.
    ///
    /// `learned` belongs to the step, so that pages of one step are asked the same. Fails if the body has more than
    /// [`Limits::page_bytes`].
    pub fn new(
        body: Bytes,
        content_type: Option<&str>,
        url: &str,
        learned: Rc<RefCell<Learned>>,
        limits: Limits,
    ) -> Result<Self, HtmlError> {
        if body.len() > limits.page_bytes {
            return Err(HtmlError::PageBytes { max: limits.page_bytes });
        }
        let content_type = content_type.map(Box::from);
        Ok(Self {
            body,
            content_type,
            url: url.into(),
            learned,
            limits,
            utf8: OnceCell::new(),
            answers: RefCell::default(),
        })
    }

    /// Returns the URL of the page as given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the text of the first match: references decoded, white space collapsed and trimmed.
    ///
    /// Contains the text of nested elements, but no comments, scripts or styles (unless it is the text of a `script` or
    /// `style` itself).
    pub fn text(&self, css: &str) -> Result<Option<String>, HtmlError> {
        self.first(css, CONTENT, |element| element.text())
    }

    /// Returns an attribute of the first match, references decoded.
    pub fn attr(&self, css: &str, name: &str) -> Result<Option<String>, HtmlError> {
        Ok(self.first(css, FIRST, |element| Ok(element.attribute(name)))?.flatten())
    }

    /// Tells whether an element matches.
    pub fn has(&self, css: &str) -> Result<bool, HtmlError> {
        let (found, query) = self.ask(css, FIRST)?;
        Ok(found.count(query) > 0)
    }

    /// Returns how many elements match.
    pub fn count(&self, css: &str) -> Result<u64, HtmlError> {
        let (found, query) = self.ask(css, COUNT)?;
        Ok(found.count(query))
    }

    /// Returns the inner HTML of the first match, as sent (pages in other charsets: in UTF-8).
    pub fn inner(&self, css: &str) -> Result<Option<Bytes>, HtmlError> {
        self.first(css, CONTENT, |element| Ok(element.inner()))
    }

    /// Returns all matches, in the page's order.
    ///
    /// Fails if there are more than [`Limits::matches`], or their text, attributes and inner HTML together have more
    /// than [`Limits::total_bytes`] (each nested element counts again).
    pub fn all(&self, css: &str) -> Result<Vec<Match>, HtmlError> {
        let (found, query) = self.ask(css, ALL)?;
        let mut budget = self.limits.total_bytes;
        let over = || HtmlError::TotalBytes { css: css.to_owned(), max: self.limits.total_bytes };
        let mut list = Vec::new();
        for element in found.all(query)? {
            let attributes = element.attributes()?;
            let attribute_bytes = attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            budget = budget.checked_sub(attribute_bytes).ok_or_else(over)?;
            let inner = element.inner_within(budget).ok_or_else(over)?;
            budget -= inner.len();
            let text = element.text()?;
            budget = budget.checked_sub(text.len()).ok_or_else(over)?;
            list.push(Match { name: element.name(), text, attributes, inner });
        }
        Ok(list)
    }

    fn first<T>(
        &self,
        css: &str,
        want: Want,
        read: impl FnOnce(Element<'_>) -> Result<T, HtmlError>,
    ) -> Result<Option<T>, HtmlError> {
        let (found, query) = self.ask(css, want)?;
        found.first(query).map(read).transpose()
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the URL that relative URLs of the page are relative to, given the `href` of its first `<base>`.
    pub(super) fn base(&self, href: Option<&str>) -> Result<(Url, Url), HtmlError> {
        let page = Url::parse(&self.url)
            .map_err(|error| HtmlError::Url { url: self.url.to_string(), why: error.to_string() })?;
        let base = href.and_then(|href| page.join(href).ok()).filter(|base| !base.cannot_be_a_base());
        let base = base.unwrap_or_else(|| page.clone());
        Ok((page, base))
    }

    /// Answers one question.
    pub(super) fn ask(&self, css: &str, want: Want) -> Result<(Rc<Found>, usize), HtmlError> {
        Ok(self.ask_all([(css, want)])?.remove(0))
    }

    /// Answers several questions, in their order, with at most one pass over the page.
    pub(super) fn ask_all<const N: usize>(
        &self,
        questions: [(&str, Want); N],
    ) -> Result<Vec<(Rc<Found>, usize)>, HtmlError> {
        let known = |css: &str, want: Want| {
            let answers = self.answers.borrow();
            let answer = answers.iter().find(|answer| answer.want.covers(want) && *answer.css == *css)?;
            Some((answer.found.clone(), answer.query))
        };
        let mut queries = Vec::new();
        {
            let mut learned = self.learned.borrow_mut();
            if self.answers.borrow().is_empty() {
                queries = learned.begin();
            }
            for (css, want) in questions {
                let selector = Selector::new(css)?;
                learned.note(&selector, want);
                if known(css, want).is_some() {
                    continue;
                }
                match queries.iter_mut().find(|query: &&mut Query| query.selector.css() == css) {
                    Some(query) => query.want = query.want.and(want),
                    None => queries.push(Query { selector, want }),
                }
            }
        }
        if questions.iter().any(|(css, want)| known(css, *want).is_none()) {
            self.scan(queries)?;
        }
        Ok(questions.iter().filter_map(|(css, want)| known(css, *want)).collect())
    }

    fn scan(&self, queries: Vec<Query>) -> Result<(), HtmlError> {
        let mut scan = Scan::new(&queries, self.limits);
        scan.feed(self.utf8()?);
        let found = Rc::new(scan.finish()?);
        let mut answers = self.answers.borrow_mut();
        if answers.len() + queries.len() > ANSWERS {
            answers.clear();
        }
        answers.extend(queries.into_iter().enumerate().map(|(query, Query { selector, want })| Answer {
            css: selector.css().into(),
            want,
            found: found.clone(),
            query,
        }));
        Ok(())
    }

    /// Returns how many passes over the page its kept answers took.
    #[cfg(test)]
    pub(super) fn passes(&self) -> usize {
        let answers = self.answers.borrow();
        let mut founds: Vec<_> = answers.iter().map(|answer| Rc::as_ptr(&answer.found)).collect();
        founds.sort_unstable();
        founds.dedup();
        founds.len()
    }

    /// Returns how many answers the page keeps.
    #[cfg(test)]
    pub(super) fn answers(&self) -> usize {
        self.answers.borrow().len()
    }

    fn utf8(&self) -> Result<&Bytes, HtmlError> {
        if self.utf8.get().is_none() {
            let max = self.limits.page_bytes;
            let utf8 =
                charset::to_utf8(&self.body, self.content_type.as_deref(), max).ok_or(HtmlError::PageBytes { max })?;
            self.utf8.get_or_init(|| utf8);
        }
        Ok(self.utf8.get_or_init(Bytes::new))
    }
}
