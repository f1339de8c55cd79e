//! The flags of `oroshi compare`, as they are typed.

use std::path::PathBuf;

use crate::bench::{AgentsArgs, LoadArgs};
use crate::formats::Format;
use crate::script_load::ScriptLoadArgs;

const EXAMPLES: &str = "\
Examples:
  oroshi compare -c50 http://localhost:8080/ http://localhost:8081/
      two running servers: which one serves more requests per second?
  oroshi compare -c50 tcp=http://localhost:8080/ unix=unix:/run/app.sock
      the same with names
  oroshi compare old='./app-1 --port {{port}}' @http://127.0.0.1:{{port}}/ \\
                 new='./app-2 --port {{port}}' @http://127.0.0.1:{{port}}/
      two commands: oroshi starts each anew for each block, on a free port
  oroshi compare --primary p99 -R 2k http://localhost:8080/ http://localhost:8081/
      latency, at the same rate of 2,000 requests per second
  oroshi compare --fail-if slower --smallest-effect 5% main='...' @http://... this='...' @http://...
      for CI: exit code 3 if this is slower than main
  oroshi compare --against main --build 'make app' --fail-if slower \
                 './app --port {{port}}' @http://127.0.0.1:{{port}}/
      the tree here beside main, which oroshi checks out and builds
  oroshi compare --format json -o saved.json app=http://localhost:8080/
  oroshi compare --baseline saved.json app=http://localhost:8080/
      against a saved result: weaker, and the report says what it cannot prove

Set-ups:
  URL, NAME=URL, NAME='COMMAND' @URL; unnamed ones are called A, B, C. oroshi starts no shell. In a
  command and its URL, {{port}} is a free port, {{socket}} a path for a unix socket, {{dir}} a folder.

Exit codes: 0 done; 1 something failed, or was not compared; 2 wrong usage; 3 a --fail-if condition
held, and everything was compared; 4 the same, and only `undecided` held; 5 no verdict: the machine was
disturbed; 130 ended by Ctrl-C before there was enough to compare, or by a second Ctrl-C (the first one
ends it early and still reports).";

const DURATION: &str = "Measure each run for this long [default: 1s]";
const LONGER_RUNS: &str = "The default grows to ten response times of the slowest set-up if that is longer.";
const WARMUP: &str = "Send load for this long before the measured part of each run [default: 250ms]";
const LONGER_WARMUPS: &str = "The default grows to two of the longest response times if the set-ups are slow.";
const RATE: &str = "Send this many requests per second (open loop), or a share such as 60% of the slowest set-up's \
                    capacity, which is measured first [default: closed loop]";

/// Compare two or more servers in alternating runs: a ratio, its interval, and a verdict
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    mut_arg("duration", |arg| arg.help(DURATION).long_help(format!("{DURATION}\n\n{LONGER_RUNS}"))),
    mut_arg("warmup", |arg| arg.help(WARMUP).long_help(format!("{WARMUP}\n\n{LONGER_WARMUPS}"))),
    mut_arg("rate", |arg| arg.help(RATE)),
    mut_arg("cpus", |arg| arg.help("Pin the load's threads to these CPUs in turn: 0,2-3 [default: not pinned]")),
)]
pub(crate) struct Args {
    /// Compare these set-ups: URL, NAME=URL, or NAME='COMMAND' @URL; the first is the base of all ratios
    #[arg(value_name = "WHAT")]
    pub(super) variants: Vec<String>,

    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) scenario: ScriptLoadArgs,
    #[command(flatten)]
    pub(super) agents: AgentsArgs,
    #[command(flatten)]
    pub(super) rules: RuleArgs,
    #[command(flatten)]
    pub(super) against: AgainstArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Comparison")]
pub(super) struct RuleArgs {
    /// Decide by this metric: score (of a script), rps, p50, p90, p99, p99.9, mean, cpu (the server's CPU time per
    /// request), load-cpu (the load's own) or memory [default: rps; with a rate p99; with a script score, if it has
    /// one]
    #[arg(long, value_name = "METRIC")]
    pub(super) primary: Option<String>,

    /// Compare these metrics; the first one decides, unless --primary names another [default: rps,p50,p99,cpu; with a
    /// rate p99,p50,cpu,rps]
    #[arg(long, value_name = "METRIC,...", value_delimiter = ',')]
    pub(super) metrics: Vec<String>,

    /// Treat differences smaller than this as none [default: 3%]
    #[arg(long, value_name = "PERCENT")]
    pub(super) smallest_effect: Option<String>,

    /// Stop when the primary ratio's interval reaches no further than this to either side [default: 2%]
    #[arg(long, value_name = "PERCENT")]
    pub(super) precision: Option<String>,

    /// Run at least and at most this many blocks; one number is both [default: 10-50]
    ///
    /// A block is one run of each set-up.
    #[arg(long, value_name = "N-N")]
    pub(super) blocks: Option<String>,

    /// Begin no further block after this time, unless there are fewer than three [default: none]
    #[arg(long, value_name = "TIME")]
    pub(super) max_time: Option<String>,

    /// Give no verdict on rates and latencies if more than this share of one side's runs met a machine with other
    /// work; 100% always gives one [default: 20%]
    #[arg(long, value_name = "PERCENT")]
    pub(super) disturbed: Option<String>,

    /// Compare even if the responses are of different kinds: by status class (2xx, 3xx), or by body length
    #[arg(long)]
    pub(super) any_answers: bool,

    /// Count these programs as part of the servers, although oroshi does not start them: a database, a container's
    /// daemon
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(super) processes: Vec<String>,

    /// Draw the order of the runs within the blocks from this seed [default: 1]
    ///
    /// --seed is the seed of Poisson arrivals, as in `bench`.
    #[arg(long, value_name = "N")]
    pub(super) order_seed: Option<String>,

    /// Pin commands that oroshi starts to these CPUs [default: not pinned]
    #[arg(long, value_name = "LIST")]
    pub(super) server_cpus: Option<String>,

    /// Restart commands after this many blocks; all: start them once [default: 1]
    #[arg(long, value_name = "N|all")]
    pub(super) blocks_per_start: Option<String>,

    /// Give up a command that does not answer within this time [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(super) ready_timeout: Option<String>,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Comparison")]
pub(super) struct AgainstArgs {
    /// Compare the one set-up, a command, with itself as of this commit, tag or branch of the git repository here
    ///
    /// oroshi checks the commit out in a clone in the user's cache folder, and runs the command in the folder there
    /// that corresponds to the present one. The earlier tree is the base of all ratios.
    #[arg(long, value_name = "REF")]
    pub(super) against: Option<String>,

    /// Run this command in both trees before the comparison; the earlier tree keeps its build for the next time
    #[arg(long, value_name = "COMMAND", requires = "against")]
    pub(super) build: Option<String>,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    /// Compare with this saved result of `compare`, `lab` or `bench` (JSON); one set-up is then enough
    ///
    /// --fail-if then compares the present result with the saved one.
    #[arg(long, value_name = "FILE")]
    pub(super) baseline: Option<PathBuf>,

    /// Exit with code 3 if a later set-up's verdict against the first, or against --baseline, is slower, faster,
    /// different (either), or with 4 if it is undecided
    #[arg(long, value_name = "VERDICT,...", value_delimiter = ',')]
    pub(super) fail_if: Vec<String>,

    /// Choose the format of the report
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,

    /// Also write the report in this format to a file: markdown=summary.md; repeatable
    #[arg(long, value_name = "FORMAT=FILE")]
    pub(super) also: Vec<String>,

    /// Write the report to a file [default: standard output]
    ///
    /// An earlier file keeps its content until the new report is complete. If writing fails, the report goes to
    /// standard output, and the exit code is 1. With --format json, a single set-up can be measured and saved.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,

    /// Also write an HTML page
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
}
