//! The flags of `oroshi compare`, as they are typed.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::bench::LoadArgs;

/// How the report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// Everything that was measured, as data.
    Json,
}

const EXAMPLES: &str = "\
Examples:
  oroshi compare -c50 http://localhost:8080/ http://localhost:8081/
      two servers that run already: which carries more requests per second?
  oroshi compare -c50 tcp=http://localhost:8080/ unix=unix:/run/app.sock
      the same with names
  oroshi compare old='./app-1 --port {{port}}' @http://127.0.0.1:{{port}}/ \\
                 new='./app-2 --port {{port}}' @http://127.0.0.1:{{port}}/
      two commands: each is started anew for each block, on a free port
  oroshi compare --primary p99 -R 2k http://localhost:8080/ http://localhost:8081/
      latency, at the same 2,000 requests per second
  oroshi compare --fail-if slower --smallest-effect 5% main='...' @http://... this='...' @http://...
      for CI: exit code 3 if this is slower than main
  oroshi compare --format json -o saved.json app=http://localhost:8080/
  oroshi compare --baseline saved.json app=http://localhost:8080/
      against a saved result: weaker, and it says what it cannot prove

What is compared, each by a word or two:
  URL, NAME=URL, NAME='COMMAND' @URL; unnamed ones are A, B, C. No shell is involved. In a command and
  its URL, {{port}} is a free port, {{socket}} a path for a unix socket, {{dir}} a folder, each its own.

Exit codes: 0 done; 1 something failed, or there is no verdict (disturbed, not compared); 2 wrong usage; 3 a --fail-if
condition held, and all was compared; 130 ended by Ctrl-C before there was enough to compare, or by a
second one (the first ends it early, and still reports).";

/// Find out which of two or more servers is faster: they take turns in short runs, and the ratio comes with its interval.
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    mut_arg("duration", |arg| arg.help("Length of the measured part of each run [default: 1s]")),
    mut_arg("warmup", |arg| arg.help("Send for this long before the measured part of each run [default: 250ms]")),
    mut_arg("rate", |arg| arg.help(
        "Open loop: requests due per second, or 60% of what the slowest of them can do, which is found first",
    )),
    mut_arg("cpus", |arg| arg.help("CPUs to pin the load's threads to, in turn: 0,2-3")),
)]
pub(crate) struct Args {
    /// What is compared: URL, NAME=URL, or NAME='COMMAND' @URL; the first is the base of all ratios
    #[arg(value_name = "WHAT")]
    pub(super) variants: Vec<String>,

    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) rules: RuleArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Comparison")]
pub(super) struct RuleArgs {
    /// The figure that decides: rps, p50, p90, p99, p99.9, mean, cpu, load-cpu or memory [default: rps; p99 with a rate]
    #[arg(long, value_name = "METRIC")]
    pub(super) primary: Option<String>,

    /// What is compared, the first one deciding [default: rps,p50,p99,cpu; p99,p50,cpu,rps with a rate]
    #[arg(long, value_name = "METRIC,...", value_delimiter = ',')]
    pub(super) metrics: Vec<String>,

    /// Differences of less than this do not matter [default: 3%]
    #[arg(long, value_name = "PERCENT")]
    pub(super) smallest_effect: Option<String>,

    /// Enough when the ratio is known this well, to either side [default: 2%]
    #[arg(long, value_name = "PERCENT")]
    pub(super) precision: Option<String>,

    /// Blocks at least and at most; a block is a run of each [default: 10-50]
    #[arg(long, value_name = "N-N")]
    pub(super) blocks: Option<String>,

    /// Begin no further block after this time, unless there are fewer than three
    #[arg(long, value_name = "TIME")]
    pub(super) max_time: Option<String>,

    /// No verdict on rates and latencies where more than this share of the runs of one side met a machine that was busy with something
    /// else; 100% never minds [default: 20%]
    #[arg(long, value_name = "PERCENT")]
    pub(super) disturbed: Option<String>,

    /// Compare even where answers are of different kinds: by status class (2xx, 3xx), or by the length of their bodies
    #[arg(long)]
    pub(super) any_answers: bool,

    /// Processes that belong to the servers although they are not started here: a database, a container's daemon
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(super) processes: Vec<String>,

    /// Decides who runs when [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) order_seed: Option<String>,

    /// CPUs to pin started servers to
    #[arg(long, value_name = "LIST")]
    pub(super) server_cpus: Option<String>,

    /// Blocks until started servers are started anew, or `all` [default: 1]
    #[arg(long, value_name = "N|all")]
    pub(super) blocks_per_start: Option<String>,

    /// How long a started server may take to answer [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(super) ready_timeout: Option<String>,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Compare with this saved result of `compare`, `lab` or `bench` (JSON); one WHAT is enough then
    #[arg(long, value_name = "FILE")]
    pub(super) baseline: Option<PathBuf>,

    /// Exit with code 3 if one of them is slower, faster, different or undecided beside the first, or beside --baseline
    #[arg(long, value_name = "VERDICT,...", value_delimiter = ',')]
    pub(super) fail_if: Vec<String>,

    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,

    /// Write the report to a file
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,

    /// Write an HTML page as well
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}
