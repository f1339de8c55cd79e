//! Rejects `oroshi bench -s` in a build without the feature `script`.

use oroshi_bench::{Draft, Plan, Record, ScriptError};
use oroshi_net::Shutdown;

use super::args::ScriptArgs;
use crate::absent::{Absent, NEXT};
use crate::problems::Problems;

/// A requested script, which this build never has.
#[derive(Clone, Debug)]
pub(crate) enum Scripted {}

impl Scripted {
    /// Rejects a script.
    pub(super) fn read(
        args: ScriptArgs,
        _draft: &Draft,
        _typed: &str,
        _backfill: bool,
        problems: &mut Problems,
    ) -> Option<Self> {
        if args.file.is_some() {
            let absent = Absent { what: "LuaJIT".to_owned(), feature: "script" };
            problems.add("--script", format!("{absent}: {NEXT}"));
        }
        None
    }

    pub(super) fn load(self, _plan: &mut Plan, _shutdown: &Shutdown) -> Result<Self, ScriptError> {
        match self {}
    }

    pub(super) fn flush(&self) {
        match *self {}
    }

    pub(super) fn done(&self, _record: &Record) -> Result<(), ScriptError> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_refused_with_the_name_of_the_feature() {
        let mut problems = Problems::of_flags();
        let args = ScriptArgs { file: Some("a.lua".into()), ..ScriptArgs::default() };
        assert!(Scripted::read(args, &Draft::default(), "http://h/", false, &mut problems).is_none());
        let text = problems.lines().join("\n");
        assert!(text.starts_with("--script: LuaJIT is not in this build") && text.contains("`script`"), "{text}");
        assert!(Scripted::read(ScriptArgs::default(), &Draft::default(), "http://h/", false, &mut problems).is_none());
        assert_eq!(problems.found.len(), 1);
    }
}
