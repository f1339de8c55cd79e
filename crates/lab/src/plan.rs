//! An experiment in which everything has been decided: what is started, under which load, how often, and what counts.
//!
//! Whoever reads files or flags makes one of these; [`run`](crate::run()) carries it out. Texts marked as *templates* may hold
//! `{{name}}` (see [`template`](crate::template)): ports, sockets and folders are only known when a server is started.

use std::path::PathBuf;
use std::time::Duration;

use oroshi_bench::Draft;
use oroshi_net::CpuList;
use regex_lite::Regex;

use crate::metric::Metric;
use crate::result::{Skipped, cell_name};

/// A question, the set-ups that may answer it, and the rules by which they do.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// A short name, fit for a folder: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// What it is about, in a line.
    pub title: String,
    /// What it asks; may be empty.
    pub question: String,
    /// The file it came from, without what may be secret in it.
    pub source: Option<String>,
    /// The command that runs it again.
    pub rerun: Vec<String>,
    /// A fast look was asked for: the report says so.
    pub quick: bool,
    /// What is compared; the first is the primary one. Never empty.
    pub metrics: Vec<Metric>,
    /// How often, and when it is enough.
    pub rules: Rules,
    /// CPUs for the servers; `None`: wherever the kernel puts them.
    pub server_cpus: Option<CpuList>,
    /// CPUs for the load.
    pub load_cpus: Option<CpuList>,
    /// The number that the cells are swept over.
    pub sweep: Option<Sweep>,
    /// The comparisons, in order. Never empty.
    pub cells: Vec<Cell>,
    /// Variants that are left out, and why: a missing program, say.
    pub skipped: Vec<Skipped>,
}

impl Experiment {
    /// What tells a cell from the others, as [`LabResult::cell_name`](crate::LabResult::cell_name) does in the result.
    #[must_use]
    pub fn cell_name(&self, cell: &Cell) -> String {
        let sweep = self.sweep.as_ref().map(|sweep| (sweep.label.as_str(), sweep.values.as_slice()));
        cell_name(&cell.group, cell.point, sweep)
    }
}

/// When a comparison has seen enough. Fixed before the first run; nothing else is looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Differences of less than this share do not matter: 0.03 is 3 %.
    pub smallest_effect: f64,
    /// Enough when the interval of every ratio of the primary metric reaches no further than this share to either side.
    pub precision: f64,
    /// Blocks that are run in any case.
    pub min_blocks: usize,
    /// Blocks after which it ends in any case.
    pub max_blocks: usize,
    /// Time for the whole experiment, shared evenly among its cells. A cell whose share is over begins no further block, once
    /// it has [`LEAST_BLOCKS`].
    pub max_time: Option<Duration>,
    /// Blocks until the servers are started anew; `None`: they are started once.
    pub blocks_per_start: Option<usize>,
    /// No verdict on rates and latencies where more than this share of one side's runs were [disturbed](crate::disturbed); 1: never mind.
    /// Below 1 a disturbed block is made anew, for half as many times as there are blocks at least.
    pub disturbed: f64,
    /// Variants are compared although their answers are of different kinds: by status class, or by the length of bodies.
    pub any_answers: bool,
    /// Names of processes that belong to the set-ups although they are not started here: a database, a container. What they use is
    /// not taken from the servers.
    pub processes: Vec<String>,
    /// Decides the order of the runs.
    pub seed: u64,
}

/// With fewer blocks than this nothing is said of a difference.
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

/// The number that is swept over; each cell stands at one of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Its name in templates.
    pub name: String,
    /// What it is, for an axis.
    pub label: String,
    /// The values in order, as they were written.
    pub values: Vec<String>,
}

/// One comparison: variants that take turns, block by block, under the same conditions.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Which variants belong together; empty if the experiment has only one group.
    pub group: String,
    /// Where it stands in the sweep: an index into [`Sweep::values`].
    pub point: Option<usize>,
    /// What is started for it; all of them are up while it lasts.
    pub servers: Vec<Server>,
    /// What is compared. The first is the base of the ratios.
    pub variants: Vec<Variant>,
    /// Latency is compared at the same rate. With a share here (0.6 is 60 %), each variant is first run once as its load says, a
    /// closed loop; all blocks then run in an open loop at this share of the least throughput found.
    pub rate_share: Option<f64>,
}

/// A process that answers requests, with what belongs to it.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name: files and logs carry it.
    pub name: String,
    /// The command; each word is a template. No shell is involved.
    pub start: Vec<String>,
    /// Variables set for it, beside those of this process; values are templates.
    pub env: Vec<(String, String)>,
    /// Its working folder; `None`: the folder made for it.
    pub folder: Option<PathBuf>,
    /// Files written into the folder made for it before anything is started: relative path, and template of the content.
    pub files: Vec<(String, String)>,
    /// Commands run to their end before the start, each of which must succeed.
    pub setup: Vec<Vec<String>>,
    /// Commands run after the end, whatever happened.
    pub teardown: Vec<Vec<String>>,
    /// When it may be measured.
    pub ready: Ready,
    /// How long that may take.
    pub ready_timeout: Duration,
    /// The signal that asks it to end, as in `TERM`.
    pub stop: Stop,
    /// How long it may take to end before it is killed.
    pub stop_timeout: Duration,
}

/// Signals that servers take for "end now".
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

/// What tells that a server can be measured.
#[derive(Clone, Debug)]
pub enum Ready {
    /// Each of these URLs (templates) gives an answer whose status is below 500.
    Answers(Vec<String>),
    /// It has written a line that matches this.
    Line(Regex),
}

/// One of the set-ups that are compared.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its name; unique within the cell.
    pub name: String,
    /// The server it asks: an index into [`Cell::servers`]; `None`: one that is not ours to start.
    pub server: Option<usize>,
    /// Where requests go: templates.
    pub urls: Vec<String>,
    /// What is done to it.
    pub load: Load,
    /// The load in words, for reports: `100 connections, 5s`.
    pub load_words: String,
}

/// What is done to a server in one run.
#[derive(Clone, Debug)]
pub enum Load {
    /// Our own load. Its `urls` are empty: they come from [`Variant::urls`]. Its warm-up and duration are set.
    Bench(Box<Draft>),
    /// Our own load of subscriptions. A delivered message counts as an answered request, its delay as a response time.
    Subscribe(Box<Subscribe>),
    /// A program. It runs from start to end within one run; what it printed is searched for figures.
    Command(Command),
}

/// A load of subscriptions.
#[derive(Clone, Debug)]
pub struct Subscribe {
    /// What is done. The `urls` of its base are empty, as in [`Load::Bench`], and those of who publishes stand for the templates below.
    pub draft: oroshi_bench::push::Draft,
    /// Where messages for all are posted: a template.
    pub publish: Option<String>,
    /// Where messages for one each are posted: a template.
    pub publish_to: Option<String>,
}

/// A program that makes the load and prints figures.
#[derive(Clone, Debug)]
pub struct Command {
    /// The command; each word is a template, in which `{{url}}` is the first URL.
    pub words: Vec<String>,
    /// Variables set for it; values are templates.
    pub env: Vec<(String, String)>,
    /// What to find in its output.
    pub figures: Vec<Figure>,
    /// The number of requests it answered, for CPU time per request; if absent, CPU time per request is unknown unless a
    /// [`Metric::Rps`] figure and the run's length tell it.
    pub requests: Option<Regex>,
    /// It sends this many requests at the same moment, and that is all. Latencies of bursts of one size compare at whatever rate;
    /// requests of it that were not answered are errors, so `requests` is wanted. `None`: it is no burst.
    pub burst: Option<u64>,
    /// Our own load that goes before each run of the program, so that the server is warm: its duration is that of the warm-up,
    /// and what it finds is thrown away. Its `urls` are empty, as in [`Load::Bench`]. `None`: no warm-up.
    pub warmup: Option<Box<Draft>>,
    /// How long it may take before it is ended as failed.
    pub timeout: Duration,
}

/// A figure in a program's output.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is.
    pub metric: Metric,
    /// Its first group holds the number, with its unit if there is one (`1.23ms`, `12.3k`). The last match counts.
    pub pattern: Regex,
    /// What a bare number is to be multiplied with to get the metric's own unit (nanoseconds, per second, bytes).
    pub scale: f64,
}
