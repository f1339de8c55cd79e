//! The view of `oroshi bench --tui` in a build without the feature `tui`: there is none.

use oroshi_bench::{Course, Progress};
use oroshi_net::Shutdown;

use crate::absent::{Absent, NEXT};

/// A view that this build never has.
#[derive(Debug)]
pub(super) enum Tui {}

impl Tui {
    /// Says why there is no view.
    ///
    /// # Errors
    /// Always.
    pub(super) fn open(_: &str, _: Shutdown) -> Result<Self, String> {
        let absent = Absent { what: "the view".to_owned(), feature: "tui" };
        Err(format!("{absent}: {NEXT}"))
    }

    pub(super) fn plan(&mut self, _: usize, _: Option<u64>) {
        match *self {}
    }

    pub(super) fn progress(&mut self, _: &Progress) {
        match *self {}
    }

    pub(super) fn course(&mut self, _: &Course<'_>) {
        match *self {}
    }

    #[cfg(feature = "agents")]
    pub(super) fn agents(&mut self, _: &[String]) {
        match *self {}
    }

    pub(super) fn note(&mut self, _: &str) {
        match *self {}
    }

    pub(super) fn look(&mut self) {
        match *self {}
    }
}
