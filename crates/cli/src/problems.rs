//! Mistakes in the arguments: all of them, each with its flag.

use std::fs;
use std::path::Path;

use oroshi_words::{Mistake, Naming};

/// All that is wrong so far.
#[derive(Debug)]
pub(crate) struct Problems {
    naming: Naming,
    /// Each with its flag, `--connections`, or with the file and line: `urls.txt line 5`. Where flags stand in a file,
    /// with their key.
    pub(crate) found: Vec<Mistake>,
}

impl Problems {
    /// Nothing yet. `naming`: whether they are flags of a command line, or keys of a file.
    pub(crate) fn new(naming: Naming) -> Self {
        Self { naming, found: Vec::new() }
    }

    /// Nothing yet, with the flags of a command line.
    pub(crate) fn of_flags() -> Self {
        Self::new(Naming::Flags)
    }

    /// Another flag, as a text about this one writes it.
    pub(crate) fn name(&self, flag: &str) -> String {
        self.naming.of(flag)
    }

    /// One line for each.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.found.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn add(&mut self, flag: &str, text: impl Into<String>) {
        let key = match self.naming {
            Naming::Flags => flag,
            Naming::Keys => flag.trim_start_matches("--"),
        };
        self.found.push(Mistake::new(key, text));
    }

    /// The value, if it is right.
    pub(crate) fn take<T, E: ToString>(&mut self, flag: &str, read: Result<T, E>) -> Option<T> {
        read.map_err(|error| self.add(flag, error.to_string())).ok()
    }

    /// Puts the value in its place, if there is one and it is right.
    #[cfg(feature = "start")]
    pub(crate) fn set<T, E: ToString>(&mut self, place: &mut T, flag: &str, read: Option<Result<T, E>>) {
        if let Some(value) = read.and_then(|read| self.take(flag, read)) {
            *place = value;
        }
    }

    pub(crate) fn one<T, E: ToString>(
        &mut self,
        flag: &str,
        text: Option<&str>,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.take(flag, read(text?))
    }

    pub(crate) fn all<T, E: ToString>(
        &mut self,
        flag: &str,
        texts: &[String],
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        texts.iter().filter_map(|text| self.one(flag, Some(text), &read)).collect()
    }

    pub(crate) fn read(&mut self, flag: &str, file: &Path) -> Option<Vec<u8>> {
        self.take(flag, fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display())))
    }
}
