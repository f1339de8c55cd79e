//! wrk's Lua API, as the script of a load.
//!
//! A script written for wrk runs unchanged: it has the same globals and the same table `wrk`, its functions are
//! called in the same order, and its states share no more than wrk's do. A main state runs `setup` and `done`; one
//! state per load thread runs everything else. This crate knows the API; `oroshi_bench` sends requests, and
//! `oroshi_script` runs Lua.
//!
//! Read it in this order:
//!
//! 1. Here: [`Options`] and [`Wrk`], a script for a run.
//! 2. `wrk.lua`: the API's Lua part, `wrk.format` above all.
//! 3. `state`: a Lua state with the API. `main_state` and `thread_script`: the main state, and the state of a load
//!    thread.
//! 4. `threads`: their mailboxes and turns.
//! 5. `addr`, `stats`: the data behind the objects of scripts.
//! 6. [`summary`]: wrk's figures of a run.

mod addr;

mod execute;
mod main_state;

mod state;
mod stats;
pub mod summary;
mod thread_script;
mod threads;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oroshi_bench::{CoreScript, Record, Script, ScriptError};
use oroshi_net::{Endpoint, Peer, Shutdown};

use crate::main_state::MainState;
use crate::state::Source;
use crate::summary::Summary;
use crate::thread_script::ThreadScript;
use crate::threads::Threads;

/// Options of a script.
#[derive(Clone, Debug)]
pub struct Options {
    /// The script.
    pub file: PathBuf,
    /// Arguments for its `init`: those after `--`.
    pub args: Vec<String>,
    /// The URL of requests.
    pub url: Endpoint,
    /// The URL as typed: `init` gets it.
    pub typed: String,
    /// `wrk.method`; `None` is GET.
    pub method: Option<String>,
    /// `wrk.headers`: the last one of a name counts, in any case.
    pub headers: Vec<(String, String)>,
    /// `wrk.body`.
    pub body: Option<Vec<u8>>,
    /// Number of load threads in the plan.
    pub threads: usize,
    /// The longest time for one call into the script.
    pub limit: Duration,
    /// Whether `done` gets latencies with wrk's correction, as the report does with `--wrk-backfill`.
    pub backfill: bool,
    /// Interrupts the script's top level and its `done`, if raised while they run.
    pub shutdown: Option<Shutdown>,
}

/// A loaded script, for one run.
#[derive(Debug)]
pub struct Wrk {
    source: Arc<Source>,
    main: MainState,
}

impl Wrk {
    /// Runs the script's file in the main state.
    ///
    /// # Errors
    /// When it cannot be read, is not Lua or fails.
    pub fn load(options: Options) -> Result<Arc<Self>, ScriptError> {
        let threads = Threads::new(&options.file, options.threads);
        let source = Arc::new(Source { options, peers: OnceLock::new(), threads });
        let main = MainState::start(&source)?;
        Ok(Arc::new(Self { source, main }))
    }

    /// Writes out the script's output, which Lua buffers. Call it before printing between the run's end and
    /// [`done`](Self::done).
    pub fn flush(&self) {
        self.main.flush();
    }

    /// Whether the script has a `done`.
    pub fn has_done(&self) -> bool {
        self.main.has("done")
    }

    /// Whether the script has a `setup`.
    pub fn has_setup(&self) -> bool {
        self.main.has("setup")
    }

    /// Calls the script's `done`, if there is one. It may ask for values of load threads: they answer between the end
    /// of the run and [`Script::release`].
    ///
    /// # Errors
    /// The script's error.
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
        let threads = &self.source.threads;
        let Some(messages) = threads.take_receiver(core) else {
            let count = self.source.options.threads;
            let what = format!("thread {} cannot begin: the script is loaded for one run of {count} threads", core + 1);
            return Err(threads.fail(threads.error(what)));
        };
        self.source.peers.get_or_init(|| peers.to_vec());
        match ThreadScript::bring_up(&self.source, &self.main, core, messages) {
            Ok(part) => Ok(Box::new(part)),
            Err(error) => Err(threads.fail(error)),
        }
    }

    fn interrupt(&self) {
        self.source.threads.interrupt();
    }

    fn stuck(&self) -> Option<ScriptError> {
        self.source.threads.stuck()
    }

    fn release(&self) {
        self.source.threads.end();
    }
}

/// Ends all waits: no more questions can come.
impl Drop for Wrk {
    fn drop(&mut self) {
        self.release();
    }
}

/// Converts the engine's error.
fn script_error(error: oroshi_script::Error) -> ScriptError {
    ScriptError { place: error.place, what: error.what }
}
