//! CSS selectors, compiled once per thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Compiled selectors that a thread keeps. A script has a few dozen; one that builds selectors from data starts over.
const CACHED: usize = 512;
/// Bytes of a selector.
const LONGEST: usize = 4096;

const SUPPORTED: &str = "supported are element, *, .class, #id, [attribute] with =, ~=, ^=, $=, *= and |=, \
     :first-child, :nth-child(), :first-of-type, :nth-of-type(), :not(), descendants (a b), children (a > b), \
     and lists (a, b)";
const ATTRIBUTE: &str = "what stands in [] is not an attribute; expected [name] or [name=\"value\"]";
const PSEUDO_CLASSES: [&str; 5] = ["first-child", "nth-child", "first-of-type", "nth-of-type", "not"];

/// A compiled CSS selector, or a list of them; cheap to clone.
#[derive(Clone, Debug)]
pub struct Selector(Rc<Compiled>);

#[derive(Debug)]
struct Compiled {
    css: Box<str>,
    parsed: lol_html::Selector,
    of_type: bool,
}

/// A selector that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("selector `{css}`: {why}")]
pub struct SelectorError {
    /// The selector as written (the start of it, if it is long).
    pub css: String,
    /// What is wrong, and what is supported.
    pub why: String,
}

impl Selector {
    /// Returns the compiled selector, from the thread's cache if it is there.
    ///
    /// Fails if `css` is not a selector, or has parts that are not supported (siblings, `:has`, ...).
    pub fn new(css: &str) -> Result<Self, SelectorError> {
        thread_local! {
            static CACHE: RefCell<HashMap<Box<str>, Selector>> = RefCell::default();
        }
        if let Some(known) = CACHE.with_borrow(|cache| cache.get(css).cloned()) {
            return Ok(known);
        }
        let compiled = Self(Rc::new(compile(css)?));
        CACHE.with_borrow_mut(|cache| {
            if cache.len() >= CACHED {
                cache.clear();
            }
            cache.insert(css.into(), compiled.clone());
        });
        Ok(compiled)
    }

    /// Returns the selector as written.
    pub fn css(&self) -> &str {
        &self.0.css
    }

    pub(super) fn parsed(&self) -> &lol_html::Selector {
        &self.0.parsed
    }

    /// Tells whether matching counts elements by name, which costs memory for each name.
    pub(super) fn counts_by_type(&self) -> bool {
        self.0.of_type
    }
}

fn compile(css: &str) -> Result<Compiled, SelectorError> {
    if css.len() > LONGEST {
        let css = css.chars().take(60).chain(['.', '.', '.']).collect();
        return Err(SelectorError { css, why: format!("has more than {LONGEST} bytes") });
    }
    match css.parse() {
        Ok(parsed) => Ok(Compiled { css: css.into(), parsed, of_type: css.contains("of-type") }),
        Err(error) => Err(SelectorError { css: css.to_owned(), why: why(css, error) }),
    }
}

fn why(css: &str, error: lol_html::errors::SelectorError) -> String {
    use lol_html::errors::SelectorError as E;
    match error {
        E::EmptySelector | E::UnexpectedEnd if css.trim().is_empty() => {
            "is empty; expected CSS, as in `h1.title`".into()
        }
        E::UnsupportedCombinator(sign) => format!("`{sign}` (siblings) is not supported; {SUPPORTED}"),
        E::UnsupportedPseudoClassOrElement | E::UnsupportedSyntax => match pseudo(css) {
            Some(name) => format!("`{name}` is not supported; {SUPPORTED}"),
            None => format!("such a `:not` or `:nth-child` is not supported; {SUPPORTED}"),
        },
        E::UnexpectedEnd | E::UnexpectedToken if css.contains("[]") || css.trim_end().ends_with('[') => {
            ATTRIBUTE.into()
        }
        E::NamespacedSelector => format!("namespaces (`a|b`) are not supported; {SUPPORTED}"),
        E::DanglingCombinator => "ends or begins with `>` or another combinator; expected an element beside it".into(),
        E::MissingAttributeName | E::UnexpectedTokenInAttribute => ATTRIBUTE.into(),
        _ => format!("is not CSS: {}; {SUPPORTED}", error.to_string().trim_end_matches('.').to_lowercase()),
    }
}

/// Finds the first pseudo-class or pseudo-element that is not supported, outside strings and brackets.
fn pseudo(css: &str) -> Option<&str> {
    let bytes = css.as_bytes();
    let (mut quote, mut bracket, mut at) = (None, false, 0);
    while at < bytes.len() {
        match (bytes[at], quote) {
            (b'\\', _) => at += 1,
            (byte, Some(open)) if byte == open => quote = None,
            (_, Some(_)) => {}
            (byte @ (b'"' | b'\''), None) => quote = Some(byte),
            (b'[', None) => bracket = true,
            (b']', None) => bracket = false,
            (b':', None) if !bracket => {
                let colons = 1 + usize::from(bytes.get(at + 1) == Some(&b':'));
                let name = bytes[at + colons..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'-').count();
                let end = at + colons + name;
                let known = PSEUDO_CLASSES.iter().any(|known| known.eq_ignore_ascii_case(&css[at + colons..end]));
                if colons == 2 || !known {
                    return Some(&css[at..end]);
                }
                at = end - 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(css: &str) -> String {
        Selector::new(css).expect_err(css).to_string()
    }

    #[test]
    fn supported_selectors_compile_and_are_kept() {
        for css in [
            "*",
            "h1",
            ".a.b",
            "#id",
            "[x]",
            "a[href^='/']",
            "ul > li:nth-child(2n+1)",
            "p:first-of-type",
            "a, b",
            "div p",
            "input[name=csrf]",
            "a:not(.b)",
            "[a='x' i]",
            "li:not(:first-child)",
        ] {
            let first = Selector::new(css).expect(css);
            assert_eq!(first.css(), css);
            assert!(Rc::ptr_eq(&first.0, &Selector::new(css).unwrap().0), "{css} is compiled once");
        }
        assert!(Selector::new("a:nth-of-type(2)").unwrap().counts_by_type());
    }

    #[test]
    fn the_cache_is_bounded() {
        for n in 0..3 * CACHED {
            Selector::new(&format!("#n{n}")).unwrap();
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        assert!(
            error("h1 + p").starts_with("selector `h1 + p`: `+` (siblings) is not supported; supported are element")
        );
        assert!(error("h1 ~ p").contains("`~` (siblings)"));
        assert!(error("div:has(p)").contains("`:has` is not supported"));
        assert!(error("p::before").contains("`::before` is not supported"));
        assert!(error("a:hover").contains("`:hover` is not supported"));
        assert!(error("a:not(.b):last-child").contains("`:last-child` is not supported"));
        assert!(error("[a=':x']:is(b)").contains("`:is` is not supported"));
        assert!(error("svg|a").contains("namespaces"));
        assert!(error(":contains(x)").contains("`:contains`"));
        assert!(error("p:empty").contains("`:empty`"));
        assert!(error("p:root").contains("`:root`"));
    }

    #[test]
    fn what_is_not_css_says_what_was_expected() {
        assert!(error("").contains("is empty; expected CSS"));
        assert!(error("  ").contains("is empty"));
        assert!(error("div >").contains("combinator"));
        assert!(error("[]").contains("expected [name]"));
        assert!(error("a[").contains("selector `a[`"));
        assert!(error("h1)").contains("is not CSS"));
        assert!(error(".1").contains("selector `.1`"));
        assert!(error(&"a".repeat(5000)).contains("more than 4096 bytes"));
    }
}
