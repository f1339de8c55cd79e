//! The load of a script's scenarios in experiments: flags of `compare`, keys of `lab`.

use std::path::PathBuf;
use std::sync::Arc;

use oroshi_bench::Draft;
use oroshi_lab::plan::Script;

use super::args::LoadArgs;
use super::load::parse_size;
use crate::problems::Problems;

/// The flags of a script with scenarios.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct ScenarioArgs {
    /// Let the users of this script's scenarios make the load, and compare their score
    ///
    /// Each run calls the script's `initialize` and `final` anew. Its length and warm-up are the script's, or those of
    /// --duration and --warmup. A rate is in journeys per second. A run whose score is void has failed.
    #[arg(
        id = "script",
        short = 's',
        long = "script",
        value_name = "FILE",
        value_hint = clap::ValueHint::AnyPath,
        help_heading = "Script"
    )]
    pub(crate) file: Option<PathBuf>,

    /// Run this many users at a time [default: as the script says]
    #[arg(long, value_name = "N", requires = "script", conflicts_with = "connections", help_heading = "Script")]
    pub(crate) users: Option<String>,
}

/// What the flags say of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// The script.
    pub(crate) file: PathBuf,
    /// The flags that were given, which win over the script's options.
    pub(crate) flags: Vec<&'static str>,
}

/// Loads a script; the error is in words.
pub(crate) type Loader = fn(Given) -> Result<Arc<dyn Script>, String>;

/// Loads the scenarios of a script.
///
/// # Errors
/// When this build cannot run them.
pub(crate) fn load(given: Given) -> Result<Arc<dyn Script>, String> {
    Err(format!("this build cannot run the scenarios of {}", given.file.display()))
}

impl ScenarioArgs {
    /// Reads the flags, and puts the number of users into the draft. `load` has the other flags, `share` says that the
    /// rate is one of a capacity.
    pub(crate) fn read(
        &self,
        load: &LoadArgs,
        share: bool,
        draft: &mut Draft,
        loader: Loader,
        problems: &mut Problems,
    ) -> Option<Arc<dyn Script>> {
        let file = self.file.clone()?;
        let foreign = [
            ("--close", load.close),
            ("--requests-per-connection", load.requests_per_connection.is_some()),
            ("--pipeline", load.pipeline.is_some()),
            ("--hold", load.hold.is_some()),
            ("--check", !load.check.is_empty()),
            ("--method", load.method.is_some()),
            ("--body", load.body.is_some()),
            ("--body-file", load.body_file.is_some()),
            ("--requests", load.requests.is_some()),
        ];
        for (flag, _) in foreign.into_iter().filter(|flag| flag.1) {
            problems.add(flag, "the script decides that: leave it out");
        }
        if share {
            problems.add("--rate", "it is a share of what set-ups can do: with a script, expected journeys per second");
        }
        if let Some(users) = problems.one("--users", self.users.as_deref(), parse_size) {
            draft.connections = users;
        }
        let given = [
            ("users", self.users.is_some() || load.connections.is_some()),
            ("duration", load.duration.is_some()),
            ("warmup", load.warmup.is_some()),
            ("rate", load.rate.is_some()),
            ("stages", load.stages.is_some()),
            ("arrivals", load.arrivals.is_some()),
            ("seed", load.seed.is_some()),
            ("timeout", load.timeout.is_some()),
            ("header", !load.header.is_empty()),
        ];
        let flags = given.into_iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
        loader(Given { file, flags }).map_err(|why| problems.add("--script", why)).ok()
    }
}

/// A script for tests, of which no run is made.
#[cfg(test)]
pub(crate) mod fake {
    use std::sync::Arc;

    use oroshi_bench::{Draft, ScriptError};
    use oroshi_lab::plan::Script;

    use super::Given;

    #[derive(Debug)]
    struct Fake(Given);

    impl Script for Fake {
        fn name(&self) -> String {
            format!("{} {}", self.0.file.display(), self.0.flags.join(" ")).trim_end().to_owned()
        }

        fn prepare(&self, _: &mut Draft) -> Result<(), ScriptError> {
            Ok(())
        }
    }

    /// Returns a script whose name has the flags that were given.
    pub(crate) fn load(given: Given) -> Result<Arc<dyn Script>, String> {
        Ok(Arc::new(Fake(given)))
    }
}
