//! Stands in for `remote` in a build without the feature `remote-write`.

use oroshi_bench::Record;

use crate::problems::Problems;

/// No receiver can be read.
#[derive(Clone, Debug)]
pub(crate) enum Receiver {}

impl Receiver {
    /// Refuses the flag.
    pub(super) fn read(url: Option<&str>, _headers: &[String], problems: &mut Problems) -> Option<Self> {
        if url.is_some() {
            problems.add("--remote-write", "this build lacks it: build oroshi with the feature remote-write");
        }
        None
    }

    pub(super) fn send(&self, _record: &Record, _target: &str) -> Result<(), super::Error> {
        match *self {}
    }
}
