//! The mistakes that the readers of one file share.

use std::cell::RefCell;

use oroshi_words::Mistake;

/// The mistakes found so far, shared by all readers of one file.
#[derive(Debug, Default)]
pub struct Mistakes {
    found: RefCell<Vec<Mistake>>,
    style: Style,
}

/// How a reader names elements of lists, and which values count as texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// Elements have numbers: `route[2].to`. Switches and dates are texts as well.
    #[default]
    Settings,
    /// Elements have the name of their list: `variant.url`. Switches and dates are no texts.
    Typed,
}

impl Mistakes {
    /// Collects mistakes for a reader that distinguishes switches and dates from texts, and names elements of a list by
    /// the list's key alone: `variant.url`.
    #[must_use]
    pub fn typed() -> Self {
        Self { style: Style::Typed, ..Self::default() }
    }

    /// Adds a mistake.
    pub fn push(&self, mistake: Mistake) {
        self.found.borrow_mut().push(mistake);
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Returns all mistakes in the order of lines, each once.
    #[must_use]
    pub fn into_vec(self) -> Vec<Mistake> {
        let mut found = self.found.into_inner();
        found.sort();
        found.dedup();
        found
    }

    pub(crate) fn style(&self) -> Style {
        self.style
    }
}
