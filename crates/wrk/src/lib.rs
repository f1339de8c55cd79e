//! wrk's Lua API, as the script of a load.
//!
//! A script written for wrk runs unchanged: it finds the same globals and the same table `wrk`, its functions are called in the same
//! order, and its states share no more than they do there. There is one main state, in which `setup` and `done` run, and
//! one for each core, in which everything else does. This crate knows what the API means; it does not send anything, which
//! is `oroshi_bench`'s part, and it does not know Lua's inside, which is `oroshi_script`'s.
//!
//! Read it in this order:
//!
//! 1. Here: [`Options`] and [`Wrk`], a script as a run has it.
//! 2. `wrk.lua`: the API's Lua part, `wrk.format` before all.
//! 3. `state`: a Lua state with the API in it. `main_state` and `part`: what the main one and each core's do.
//! 4. `crew`: how they wait for and ask each other.
//! 5. `addr`, `stats`: what stands behind the objects that scripts hold.
//! 6. [`summary`]: what wrk tells of a run.

mod addr;
mod crew;
mod execute;
mod main_state;
mod part;
mod state;
mod stats;
pub mod summary;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oroshi_bench::{CoreScript, Record, Script, ScriptError};
use oroshi_net::{Endpoint, Peer, Shutdown};

use crate::crew::Crew;
use crate::main_state::Main;
use crate::part::Part;
use crate::state::Source;
use crate::summary::Summary;

/// What a script is run with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The script.
    pub file: PathBuf,
    /// Arguments for its `init`: those after `--`.
    pub args: Vec<String>,
    /// Where requests go.
    pub url: Endpoint,
    /// The same as it was typed: `init` sees that.
    pub typed: String,
    /// `wrk.method`; `None` is GET.
    pub method: Option<String>,
    /// `wrk.headers`: of several with one name, in whatever case, the last one counts.
    pub headers: Vec<(String, String)>,
    /// `wrk.body`.
    pub body: Option<Vec<u8>>,
    /// Cores that will enter: as many as the plan has threads.
    pub threads: usize,
    /// The longest that one call into the script may take.
    pub limit: Duration,
    /// `done` gets latencies after wrk's correction, as the report does with `--wrk-backfill`.
    pub backfill: bool,
    /// Interrupts the script's first lines and its `done`, when it is raised while they run.
    pub shutdown: Option<Shutdown>,
}

/// A script that is loaded. It is good for one run.
#[derive(Debug)]
pub struct Wrk {
    source: Arc<Source>,
    main: Main,
}

impl Wrk {
    /// Runs the script's file in the main state.
    ///
    /// # Errors
    /// When it cannot be read, is not Lua or fails.
    pub fn load(options: Options) -> Result<Arc<Self>, ScriptError> {
        let crew = Crew::new(&options.file, options.threads);
        let source = Arc::new(Source { options, peers: OnceLock::new(), crew });
        let main = Main::start(&source)?;
        Ok(Arc::new(Self { source, main }))
    }

    /// Writes out what the script has printed while requests flowed: Lua's output has a buffer of its own. For whoever prints
    /// something between the run's end and [`done`](Self::done).
    pub fn flush(&self) {
        self.main.flush();
    }

    /// Whether the script has something to say of the run.
    pub fn has_done(&self) -> bool {
        self.main.has_done()
    }

    /// Calls the script's `done`, if there is one. It may ask for the cores' values: they answer between the end of the run and
    /// [`Script::release`].
    ///
    /// # Errors
    /// What went wrong in the script.
    pub fn done(&self, record: &Record) -> Result<(), ScriptError> {
        self.main.done(Summary::of(record, self.source.options.backfill))
    }
}

impl Script for Wrk {
    fn name(&self) -> String {
        let file = &self.source.options.file;
        file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned()
    }

    fn enter(&self, core: usize, peers: &[Peer]) -> Result<Box<dyn CoreScript>, ScriptError> {
        let crew = &self.source.crew;
        let Some(asked) = crew.sit_down(core) else {
            let threads = self.source.options.threads;
            let what =
                format!("thread {} cannot begin: the script is loaded for one run of {threads} threads", core + 1);
            return Err(crew.fail(crew.error(what)));
        };
        self.source.peers.get_or_init(|| peers.to_vec());
        match Part::bring_up(&self.source, &self.main, core, asked) {
            Ok(part) => Ok(Box::new(part)),
            Err(error) => Err(crew.fail(error)),
        }
    }

    fn interrupt(&self) {
        self.source.crew.interrupt();
    }

    fn stuck(&self) -> Option<ScriptError> {
        self.source.crew.stuck()
    }

    fn release(&self) {
        self.source.crew.end();
    }
}

/// Whoever still waits need not: nobody is left who could ask.
impl Drop for Wrk {
    fn drop(&mut self) {
        self.release();
    }
}

/// The engine's error as the run tells it.
fn told(error: oroshi_script::Error) -> ScriptError {
    ScriptError { place: error.place, what: error.what }
}
