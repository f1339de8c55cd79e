//! HTML for scenarios: what CSS selectors find in a page, its forms, and what a browser would fetch for it.
//!
//! Knows: bytes, selectors, URLs. Does not know: Lua, sockets, clocks. Read `page` first, then `scan`: a page asks, and
//! one pass over its bytes by lol_html answers all questions that scripts asked of earlier pages of the same step.
//! `selector` compiles selectors; `text` makes text of markup; `charset` turns other charsets into UTF-8; `entities`
//! reads character references; `form` and `resources` read forms and links.
//!
//! lol_html builds no tree. That makes it fast and its memory bounded, and it has these consequences:
//!
//! - It closes elements at the end tags that are there. Text and inner HTML of an element whose end tag may be left out
//!   (`li`, `p`, `td`, `option`, ...) end where a browser would end them, but the next `li` is a child of the unclosed
//!   one for `>` and `:nth-child`.
//! - Attribute selectors compare with the value as sent: write `[href="/?a=1&amp;b=2"]` if the page does.
//! - The content of `noscript` is not looked at, as in a browser that runs scripts.

mod charset;
mod entities;
mod form;
mod page;
mod resources;
mod scan;
mod selector;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use entities::decode_attribute;
pub use form::{Encoding, Form, Method};
pub use page::{Learned, Match, Page};
pub use resources::{Kind, Resource, Resources};
pub use scan::{Element, Found, Query, Scan, Want, Which};
pub use selector::{Selector, SelectorError};

/// What a page may cost. Servers are not trusted: exceeding a limit is an error that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a page, before and after conversion to UTF-8.
    pub page_bytes: usize,
    /// Bytes of memory for open elements and for a tag that is not complete. Unclosed elements count as open: about
    /// 200 bytes each.
    pub parser_bytes: usize,
    /// Different names of elements in a page; checked where a selector counts by type (`:nth-of-type`).
    pub element_names: usize,
    /// Matches that are kept of one selector. Counting has no limit.
    pub matches: usize,
    /// Attributes of one element in an answer with all of them. One attribute is found among any number.
    pub attributes: usize,
    /// Bytes of the text of one element.
    pub text_bytes: usize,
    /// Bytes of the attributes, texts and inner HTML of one answer together; nested elements count again.
    pub total_bytes: usize,
    /// Fields of a form.
    pub fields: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            page_bytes: 8 << 20,
            parser_bytes: 2 << 20,
            element_names: 1_000,
            matches: 10_000,
            attributes: 256,
            text_bytes: 1 << 20,
            total_bytes: 16 << 20,
            fields: 1_000,
        }
    }
}

/// Why a question about a page has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HtmlError {
    /// The selector is not CSS, or is CSS that is not supported: correct the script.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The page is larger than `page_bytes`: the server sent more than a page.
    #[error("the page has more than {max} bytes; read its body instead")]
    PageBytes {
        /// The limit.
        max: usize,
    },
    /// The page nests too deep, or has a tag that is too long.
    #[error("the page's elements nest too deep, or a tag is too long: reading it takes more than {max} bytes")]
    ParserBytes {
        /// The limit.
        max: usize,
    },
    /// The page has too many different names of elements for a selector that counts by type.
    #[error(
        "the page has more than {max} different names of elements, too many for :nth-of-type; use another selector"
    )]
    ElementNames {
        /// The limit.
        max: usize,
    },
    /// More elements match than are kept: count them, or use a narrower selector.
    #[error("more than {max} elements match `{css}`; use a narrower selector, or count them")]
    Matches {
        /// The selector.
        css: String,
        /// The limit.
        max: usize,
    },
    /// An element has too many attributes.
    #[error("an element that matches `{css}` has more than {max} attributes")]
    Attributes {
        /// The selector.
        css: String,
        /// The limit.
        max: usize,
    },
    /// An element's text is too long: use a narrower selector.
    #[error("the text of `{css}` has more than {max} bytes; use a narrower selector, or inner()")]
    TextBytes {
        /// The selector.
        css: String,
        /// The limit.
        max: usize,
    },
    /// The answer is too large: use a narrower selector.
    #[error("what `{css}` matches has more than {max} bytes; use a narrower selector")]
    TotalBytes {
        /// The selector.
        css: String,
        /// The limit.
        max: usize,
    },
    /// The element is no form: name the form itself.
    #[error("`{css}` matches <{element}>; expected a <form>")]
    NoForm {
        /// The selector.
        css: String,
        /// What it matches.
        element: String,
    },
    /// A form has too many fields.
    #[error("the form `{css}` has more than {max} fields")]
    Fields {
        /// The form's selector.
        css: String,
        /// The limit.
        max: usize,
    },
    /// The page's URL, or one that it names, cannot be resolved.
    #[error("`{url}` is not a URL: {why}")]
    Url {
        /// The URL as given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
}
