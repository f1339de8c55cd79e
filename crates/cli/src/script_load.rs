//! The load of a script's scenarios in experiments: flags of `compare`, keys of `lab`.

use std::path::PathBuf;
use std::sync::Arc;

use oroshi_bench::Draft;
use oroshi_lab::plan::Script;
use oroshi_words::{Naming, units};

use crate::bench::{LoadArgs, parse_size, read_load};
use crate::problems::Problems;

/// The flags of a script with scenarios.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct ScriptLoadArgs {
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
    /// The seed of all choices.
    pub(crate) seed: Option<u64>,
}

/// Loads a script; the error is in words.
pub(crate) type Loader = fn(Given) -> Result<Arc<dyn Script>, String>;

/// A load as it was read.
#[derive(Debug)]
pub(crate) struct ReadLoad {
    pub(crate) draft: Draft,
    /// The rate is this share of a capacity.
    pub(crate) share: Option<f64>,
    pub(crate) script: Option<Arc<dyn Script>>,
    pub(crate) problems: Problems,
}

impl ScriptLoadArgs {
    /// Reads the flags of a load, and those of its script.
    pub(crate) fn read(&self, mut load: LoadArgs, naming: Naming, loader: Loader) -> ReadLoad {
        let Some(file) = self.file.clone() else {
            let (draft, share, problems) = read_load(load, naming);
            return ReadLoad { draft, share, script: None, problems };
        };
        // It is for all choices of the script, not only for arrivals.
        let seed = load.seed.take();
        let (mut draft, share, mut problems) = read_load(load.clone(), naming);
        let seed = problems.one("--seed", seed.as_deref(), units::parse_count);
        let foreign = [
            ("--close", load.close),
            ("--requests-per-connection", load.requests_per_connection.is_some()),
            ("--pipeline", load.pipeline.is_some()),
            ("--http2", load.http2),
            ("--http2-prior-knowledge", load.http2_prior_knowledge),
            ("--streams", load.streams.is_some()),
            ("--hold", load.hold.is_some()),
            ("--source", load.source.is_some()),
            ("--connect-to", !load.connect_to.is_empty()),
            ("--check", !load.check.is_empty()),
            ("--method", load.method.is_some()),
            ("--body", load.body.is_some()),
            ("--body-file", load.body_file.is_some()),
            ("--requests", load.requests.is_some()),
        ];
        for (flag, _) in foreign.into_iter().filter(|flag| flag.1) {
            problems.add(flag, "the script decides that: leave it out");
        }
        if share.is_some() {
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
            ("seed", seed.is_some()),
            ("timeout", load.timeout.is_some()),
            ("header", !load.header.is_empty()),
        ];
        let flags = given.into_iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
        let script = loader(Given { file, flags, seed }).map_err(|why| problems.add("--script", why)).ok();
        ReadLoad { draft, share, script, problems }
    }
}

/// Loads the scenarios of a script.
///
/// # Errors
/// The script's first mistake.
#[cfg(feature = "script")]
pub(crate) fn load(given: Given) -> Result<Arc<dyn Script>, String> {
    real::load(given).map_err(|error| format!("{error}; docs/scenarios.md describes the API"))
}

/// Refuses a script, as this build has no LuaJIT.
#[cfg(not(feature = "script"))]
pub(crate) fn load(_: Given) -> Result<Arc<dyn Script>, String> {
    use crate::absent::{Absent, NEXT};

    Err(format!("{}: {NEXT}", Absent { what: "LuaJIT".to_owned(), feature: "script" }))
}

#[cfg(feature = "script")]
mod real {
    use std::sync::Arc;

    use oroshi_bench::{Draft, Journeys, Load, ScriptError};
    use oroshi_lab::plan::Script;
    use oroshi_scenario::{Options, PartOptions, Scenario, Settings};

    use super::Given;

    /// A script whose runs differ in their URL.
    #[derive(Debug)]
    struct Scenarios {
        scenario: Arc<Scenario>,
        given: Given,
    }

    pub(super) fn load(given: Given) -> Result<Arc<dyn Script>, ScriptError> {
        let scenario = Scenario::load(Options {
            file: given.file.clone(),
            // Each run has its own.
            flags: Settings { url: Some("http://localhost/".into()), ..Settings::default() },
            unix: None,
            tls: Draft::default().tls,
            limit: None,
            // Many runs of many set-ups: what they print would hide the live line.
            tell: Arc::new(|_| {}),
            verbose: false,
            part: PartOptions::default(),
        })?;
        Ok(Arc::new(Scenarios { scenario, given }))
    }

    impl Script for Scenarios {
        fn name(&self) -> String {
            self.scenario.name()
        }

        fn prepare(&self, draft: &mut Draft) -> Result<(), ScriptError> {
            let [url] = &draft.urls[..] else {
                let what =
                    format!("a script has one URL to which its paths are relative, and there are {}", draft.urls.len());
                return Err(ScriptError { place: self.given.file.display().to_string(), what });
            };
            let base = match draft.unix.take() {
                Some(unix) => url.clone().with_unix(unix),
                None => url.clone(),
            };
            let scenario = self.scenario.at(base.clone(), draft.tls.clone(), self.flags(draft));
            let settings = scenario.settings();
            draft.urls = vec![base];
            draft.headers.clear();
            draft.connections = settings.most_users();
            draft.duration = settings.length();
            draft.warmup = settings.warmup.unwrap_or_default();
            draft.timeout = settings.request_timeout();
            draft.load = Load::Closed;
            draft.journeys = Some(scenario);
            Ok(())
        }
    }

    impl Scenarios {
        /// Returns what the user said of the run, beside the script.
        fn flags(&self, draft: &Draft) -> Settings {
            let says = |flag| self.given.flags.contains(&flag);
            let (stages, spacing) = match &draft.load {
                Load::Open { stages, spacing, .. } => (Some(stages.clone()), says("arrivals").then_some(*spacing)),
                Load::Closed => (None, None),
            };
            Settings {
                users: says("users").then_some(draft.connections),
                stages,
                spacing,
                duration: draft.duration.filter(|_| says("duration")),
                warmup: says("warmup").then_some(draft.warmup),
                timeout: says("timeout").then_some(draft.timeout),
                seed: self.given.seed,
                headers: draft.headers.clone(),
                ..Settings::default()
            }
        }
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
