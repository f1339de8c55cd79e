//! The plan of an experiment, with every decision made: servers, loads, number of runs, metrics.
//!
//! Files or flags become this plan; [`run`](crate::run()) carries it out. Texts called *templates* may contain
//! `{{name}}` (see [`template`](crate::template)), because ports, sockets and folders are unknown before a server
//! starts.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oroshi_bench::{Draft, Observer, Record, ScriptError, push};
use oroshi_net::CpuList;
use regex_lite::Regex;

use crate::metric::Metric;
use crate::network::Network;
use crate::result::{Skipped, cell_name};

/// A question, the set-ups that may answer it, and the rules. The default asks nothing.
#[derive(Clone, Debug, Default)]
pub struct Experiment {
    /// A short name, fit for a folder: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// The title, one line.
    pub title: String,
    /// The question; may be empty.
    pub question: String,
    /// The file that it came from, without secrets.
    pub source: Option<String>,
    /// The command that repeats it.
    pub rerun: Vec<String>,
    /// A quick look, which the report mentions.
    pub quick: bool,
    /// The metrics to compare, the primary one first. Never empty.
    pub metrics: Vec<Metric>,
    /// Whether the score, if it is the primary one, gives way to the next where a run of the first block has none.
    pub score_if_any: bool,
    /// The rules.
    pub rules: Rules,
    /// CPUs for the servers; `None`: any.
    pub server_cpus: Option<CpuList>,
    /// CPUs for the load; `None`: any.
    pub load_cpus: Option<CpuList>,
    /// The machines on which servers and loads run; `None`: all on this one.
    pub network: Option<Network>,
    /// The number that varies over the cells.
    pub sweep: Option<Sweep>,
    /// The comparisons, in order. Never empty.
    pub cells: Vec<Cell>,
    /// Variants that are left out, and why, for example a missing program.
    pub skipped: Vec<Skipped>,
}

impl Experiment {
    /// Returns the name that tells a cell from others, like [`LabResult::cell_name`](crate::LabResult::cell_name).
    #[must_use]
    pub fn cell_name(&self, cell: &Cell) -> String {
        let sweep = self.sweep.as_ref().map(|sweep| (sweep.label.as_str(), sweep.values.as_slice()));
        cell_name(&cell.group, cell.point, sweep)
    }
}

/// The rules for when a comparison ends. Fixed before the first run; nothing else decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Smaller differences than this share do not matter: 0.03 is 3 %.
    pub smallest_effect: f64,
    /// The comparison ends when every primary ratio's interval reaches no further than this share to either side.
    pub precision: f64,
    /// Minimum number of blocks.
    pub min_blocks: usize,
    /// Maximum number of blocks.
    pub max_blocks: usize,
    /// Time for the whole experiment, shared evenly among its cells. When a cell's share is over, it begins no further
    /// block, once it has [`LEAST_BLOCKS`].
    pub max_time: Option<Duration>,
    /// Blocks until the servers restart; `None`: they start once.
    pub blocks_per_start: Option<usize>,
    /// No verdict on rates and latencies if more than this share of one side's runs were [disturbed](crate::disturbed);
    /// 1: ignore. Below 1 a disturbed block is repeated, at most half as many times as the minimum number of blocks.
    pub disturbed: f64,
    /// Compares variants even if their answers differ in kind: by status class, or by length of bodies.
    pub any_answers: bool,
    /// Names of processes that belong to the set-ups but are started elsewhere: a database, a container. Their CPU time
    /// does not count as disturbance.
    pub processes: Vec<String>,
    /// Seed of the order of runs.
    pub seed: u64,
}

/// With fewer blocks than this, no difference is judged.
pub const LEAST_BLOCKS: usize = 3;

impl Default for Rules {
    fn default() -> Self {
        Self {
            smallest_effect: 0.03,
            precision: 0.02,
            min_blocks: 10,
            max_blocks: 50,
            max_time: None,
            blocks_per_start: Some(1),
            disturbed: 0.2,
            any_answers: false,
            processes: Vec::new(),
            seed: 1,
        }
    }
}

/// The number that varies; each cell has one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Its name in templates.
    pub name: String,
    /// The label for an axis.
    pub label: String,
    /// The values in order, as written.
    pub values: Vec<String>,
}

/// One comparison: variants that alternate, block by block, under the same conditions.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// The group of variants; empty if the experiment has only one.
    pub group: String,
    /// Its value of the sweep: an index into [`Sweep::values`].
    pub point: Option<usize>,
    /// Its servers, all of which run for as long as the cell does.
    pub servers: Vec<Server>,
    /// Its variants. The first is the base of the ratios.
    pub variants: Vec<Variant>,
    /// The share of the least throughput at which latency is compared (0.6 is 60 %). Each variant first runs its closed
    /// loop once; all blocks then run in an open loop at this share of the least rate found.
    pub rate_share: Option<f64>,
}

/// A process that answers requests, and its steps.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name, for files and logs.
    pub name: String,
    /// The machine that it and its steps run on: an index into [`Network::machines`]; `None`: this one.
    pub machine: Option<usize>,
    /// The command; each word is a template. No shell is involved.
    pub start: Vec<String>,
    /// Variables added to this process's environment; values are templates.
    pub env: Vec<(String, String)>,
    /// Its working folder; `None`: the folder of its workspace.
    pub folder: Option<PathBuf>,
    /// Files written into its folder before anything starts: relative path, and template of the content.
    pub files: Vec<(String, String)>,
    /// Commands run to their end before the start; each must succeed.
    pub setup: Vec<Vec<String>>,
    /// Commands run after the end in every case.
    pub teardown: Vec<Vec<String>>,
    /// The condition for being ready.
    pub ready: Ready,
    /// The limit for becoming ready.
    pub ready_timeout: Duration,
    /// The signal that asks it to end.
    pub stop: Stop,
    /// The time to end before it is killed.
    pub stop_timeout: Duration,
}

impl Server {
    /// Returns a server without other steps. It is ready when all `urls` (templates) answer within 10 s, and has 5 s to
    /// end after SIGTERM.
    #[must_use]
    pub fn new(name: impl Into<String>, start: Vec<String>, urls: Vec<String>) -> Self {
        Self {
            name: name.into(),
            machine: None,
            start,
            env: Vec::new(),
            folder: None,
            files: Vec::new(),
            setup: Vec::new(),
            teardown: Vec::new(),
            ready: Ready::Answers(urls),
            ready_timeout: Duration::from_secs(10),
            stop: Stop::default(),
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// Signals that servers understand as "end now".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// SIGTERM.
    #[default]
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
    /// SIGKILL.
    Kill,
}

/// The condition for a server being ready.
#[derive(Clone, Debug)]
pub enum Ready {
    /// Each of these URLs (templates) returns a status below 500.
    Answers(Vec<String>),
    /// The server has written a line that matches.
    Line(Regex),
}

/// A set-up to compare.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name; unique within the cell.
    pub name: String,
    /// Its server: an index into [`Cell::servers`]; `None`: an external one.
    pub server: Option<usize>,
    /// The URLs of requests: templates.
    pub urls: Vec<String>,
    /// Its load.
    pub load: Load,
    /// The load in words, for reports: `100 connections, 5s`.
    pub load_words: String,
    /// The machine that the load runs on: an index into [`Network::machines`]; `None`: this one.
    pub machine: Option<usize>,
    /// The agents that carry out the load, which is no [`Load::Command`]; `None`: this process does.
    pub agents: Option<Arc<dyn AgentsLoad>>,
}

/// A load of agents on other machines.
pub trait AgentsLoad: fmt::Debug + Send + Sync {
    /// Carries out one run, as one load. `draft` has the run's URLs, rate and lengths, and the server to watch; of a
    /// [`Load::Script`], its journeys.
    ///
    /// A run that lost an agent is no error: its record says so.
    ///
    /// # Errors
    /// There is no record.
    fn run(&self, draft: Draft, observer: &mut dyn Observer) -> Result<Record, AgentsError>;

    /// As [`run`](Self::run), for subscriptions.
    ///
    /// # Errors
    /// There is no record.
    fn subscribe(&self, draft: push::Draft, observer: &mut dyn Observer) -> Result<push::Record, AgentsError>;
}

/// Why a run on agents has no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentsError {
    /// The observer ended it.
    #[error("ended before the run began")]
    Cancelled,
    /// It could not begin, or nothing was heard of it: the text says why.
    #[error("{0}")]
    Failed(String),
}

/// The load of one run.
#[derive(Clone, Debug)]
pub enum Load {
    /// Our own load. Its `urls` are empty: they come from [`Variant::urls`]. Its warm-up and duration are set.
    Bench(Box<Draft>),
    /// Journeys of a script. Users and the rate are the draft's; its duration may be the script's.
    Script(Box<Draft>, Arc<dyn Script>),
    /// Our own load of subscriptions. A delivered message counts as an answered request, its delay as a response time.
    Subscribe(Box<Subscribe>),
    /// A load program. It runs from start to end within one run; its output contains the figures.
    Command(Command),
}

/// A script that makes the journeys of users.
pub trait Script: fmt::Debug + Send + Sync {
    /// Returns its name in reports: its file's.
    fn name(&self) -> String;

    /// Prepares one run: sets `draft.journeys`, and what the script's options say where the user said nothing. The
    /// draft has the run's URLs. Journeys are new for each run, so that it begins with its own `initialize`.
    ///
    /// # Errors
    /// When the script cannot be used.
    fn prepare(&self, draft: &mut Draft) -> Result<(), ScriptError>;
}

/// A load of subscriptions.
#[derive(Clone, Debug)]
pub struct Subscribe {
    /// The subscriptions. The `urls` of its base are empty, as in [`Load::Bench`]; the templates below replace the
    /// publishers' URLs.
    pub draft: push::Draft,
    /// The URL for messages to all: a template.
    pub publish: Option<String>,
    /// The URL for messages to single subscribers: a template.
    pub publish_to: Option<String>,
}

/// A program that makes the load and prints figures.
#[derive(Clone, Debug)]
pub struct Command {
    /// The command; each word is a template, in which `{{url}}` is the first URL.
    pub words: Vec<String>,
    /// Variables added to its environment; values are templates.
    pub env: Vec<(String, String)>,
    /// Figures to find in its output.
    pub figures: Vec<Figure>,
    /// Finds the number of answered requests. Without it, CPU time per request is unknown unless a [`Metric::Rps`]
    /// figure and the run's length give it.
    pub requests: Option<Regex>,
    /// The number of requests that it sends at the same moment, if it sends nothing else. Latencies of bursts of one
    /// size compare at any rate. Unanswered requests are errors, so `requests` is needed. `None`: no burst.
    pub burst: Option<u64>,
    /// Our own load that warms the server before each run of the program. Its duration is the warm-up's; its figures
    /// are discarded; its `urls` are empty, as in [`Load::Bench`]. `None`: no warm-up.
    pub warmup: Option<Box<Draft>>,
    /// The limit for its run, after which it is ended as failed.
    pub timeout: Duration,
}

/// A figure in a program's output.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The metric.
    pub metric: Metric,
    /// The pattern. Its first group is the number, with a unit if any (`1.23ms`, `12.3k`). The last match counts.
    pub pattern: Regex,
    /// Factor from a bare number to the metric's unit (nanoseconds, per second, bytes).
    pub scale: f64,
}
