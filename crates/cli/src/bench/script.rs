//! `oroshi bench -s`: lets a script written for wrk make the requests.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use oroshi_bench::{Draft, Plan, ScriptError};
use oroshi_net::Shutdown;
use oroshi_words::units;
use oroshi_wrk::{Options, Wrk};

use super::args::ScriptArgs;
use crate::problems::Problems;

/// The default of `--script-limit`.
const LIMIT: Duration = Duration::from_secs(10);

/// A script that has been read and not run yet.
#[derive(Clone, Debug)]
pub(crate) struct Scripted(Options);

impl Scripted {
    /// Reads the flags. `draft` has the defaults of the script's requests; `typed` is the URL as typed.
    pub(super) fn read(
        args: ScriptArgs,
        draft: &Draft,
        typed: &str,
        backfill: bool,
        problems: &mut Problems,
    ) -> Option<Self> {
        let file = args.file?;
        if let Err(why) = can_be_read(&file) {
            let number = file.to_str().is_some_and(|text| units::parse_time(text).is_ok());
            let hint = if number { " (ab's -s, a time, is --timeout here)" } else { "" };
            problems.add("--script", format!("{} {why}{hint}", file.display()));
        }
        let limit = problems.one("--script-limit", args.limit.as_deref(), parse_limit).unwrap_or(LIMIT);
        let [url] = &draft.urls[..] else {
            // If there is no URL, the plan reports that.
            if draft.urls.len() > 1 {
                let text = format!("a script makes the requests for one URL, and there are {}", draft.urls.len());
                problems.add("--script", text + ": give one, and set wrk.path in the script for others");
            }
            return None;
        };
        Some(Self(Options {
            file,
            args: args.args,
            url: url.clone(),
            typed: typed.to_owned(),
            method: Some(draft.method.clone()),
            headers: draft.headers.clone(),
            body: (!draft.body.is_empty()).then(|| draft.body.to_vec()),
            // The plan decides.
            threads: 0,
            limit,
            backfill,
            shutdown: None,
        }))
    }

    /// As [`load`](Self::load), for the coordinator of a run whose load threads are on agents: it has none.
    ///
    /// # Errors
    /// If the script is not Lua, or fails.
    #[cfg(feature = "agents")]
    pub(super) fn lead(self, plan: &mut Plan, shutdown: &Shutdown) -> Result<Arc<Wrk>, ScriptError> {
        let script = Wrk::load(Options { threads: 0, shutdown: Some(shutdown.clone()), ..self.0 })?;
        plan.script = Some(Arc::clone(&script) as _);
        Ok(script)
    }

    /// Runs the script's top level and puts the script into the plan. `shutdown` interrupts the top level.
    ///
    /// # Errors
    /// If the script is not Lua, or fails.
    pub(crate) fn load(self, plan: &mut Plan, shutdown: &Shutdown) -> Result<Arc<Wrk>, ScriptError> {
        let script = Wrk::load(Options { threads: plan.threads, shutdown: Some(shutdown.clone()), ..self.0 })?;
        plan.script = Some(Arc::clone(&script) as _);
        Ok(script)
    }
}

/// Checks that the script is a regular file: each thread reads it again, and a pipe can be read once.
fn can_be_read(file: &Path) -> Result<(), String> {
    let told = |error: io::Error| format!("cannot be read: {error}");
    match fs::metadata(file).map_err(told)? {
        found if found.is_dir() => Err("is a folder: expected a Lua script".into()),
        found if !found.is_file() => {
            Err("is no regular file: each thread reads the script anew, so save it as one".into())
        }
        _ => File::open(file).map(drop).map_err(told),
    }
}

fn parse_limit(text: &str) -> Result<Duration, String> {
    let limit = units::parse_time(text).map_err(|error| error.to_string())?;
    if limit.is_zero() { Err(format!("`{text}`: expected more than 0")) } else { Ok(limit) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn read(args: ScriptArgs, urls: &[&str]) -> (Option<Options>, Vec<String>) {
        let urls: Vec<_> = urls.iter().map(|url| url.parse().unwrap()).collect();
        let body = b"x".as_slice().into();
        let draft =
            Draft { urls, method: "PUT".into(), headers: vec![("A".into(), "b".into())], body, ..Draft::default() };
        let mut problems = Problems::of_flags();
        let script = Scripted::read(args, &draft, "http://h/x", false, &mut problems);
        (script.map(|script| script.0), problems.lines())
    }

    fn args(file: impl Into<PathBuf>) -> ScriptArgs {
        ScriptArgs { file: Some(file.into()), ..ScriptArgs::default() }
    }

    #[test]
    fn requests_are_as_the_flags_say_until_the_script_says_otherwise() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let flags = ScriptArgs { limit: Some("250ms".into()), args: vec!["a".into()], ..args(file.path()) };
        let (options, problems) = read(flags, &["http://h/x"]);
        let options = options.unwrap();
        assert_eq!(
            (problems.len(), options.limit, options.args),
            (0, Duration::from_millis(250), vec!["a".to_owned()])
        );
        assert_eq!((options.method.as_deref(), options.body.as_deref()), (Some("PUT"), Some(&b"x"[..])));
        assert_eq!((options.headers, &*options.typed), (vec![("A".to_owned(), "b".to_owned())], "http://h/x"));
        assert_eq!(read(args(file.path()), &["http://h/"]).0.unwrap().limit, LIMIT);
        assert!(read(ScriptArgs::default(), &["http://h/", "http://i/"]).0.is_none());
    }

    #[test]
    fn what_cannot_be_run_is_told_before_anything_is() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none.lua");
        for (file, why) in
            [(missing.as_path(), "No such file"), (folder.path(), "folder"), (Path::new("/dev/null"), "file")]
        {
            let problems = read(args(file), &["http://h/"]).1;
            assert!(
                problems.len() == 1 && problems[0].starts_with("--script: ") && problems[0].contains(why),
                "{problems:?}"
            );
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        for limit in ["0", "soon"] {
            let flags = ScriptArgs { limit: Some(limit.into()), ..args(file.path()) };
            assert!(read(flags, &["http://h/"]).1[0].starts_with(&format!("--script-limit: `{limit}`")));
        }
        let (options, problems) = read(args(file.path()), &["http://h/", "http://i/"]);
        assert!(options.is_none() && problems[0].contains("there are 2"), "{problems:?}");
        assert!(read(args(file.path()), &[]).1.is_empty());
    }
}
