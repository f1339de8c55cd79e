//! The flags of `oroshi bench`, as they are typed.
//!
//! Values stay text here: the parser would stop at the first wrong one; `read` finds all of them.

use std::path::PathBuf;

use clap::ValueEnum;

use super::subscribe::SubscribeArgs;
use crate::tls::TlsArgs;

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people, as wide as the terminal (40 to 110 characters; elsewhere 110, or COLUMNS).
    #[default]
    Text,
    /// All data.
    Json,
    /// wrk's report, for scripts that read it; its Req/Sec row is the time series divided by the threads.
    Wrk,
    /// ab's report, for scripts that read it.
    Ab,
    /// A line per point of the run's time series, for spreadsheets.
    Csv,
    /// The same as metrics with timestamps, in OpenMetrics' text format, for Prometheus.
    Prometheus,
    /// A test case for each --fail-if, as JUnit's XML.
    Junit,
}

const EXAMPLES: &str = "\
Examples:
  oroshi bench -c100 -d30s http://localhost:8080/
      closed loop: each of 100 connections sends its next request when it has its response
  oroshi bench -c100 -R 2k http://localhost:8080/
      open loop: 2,000 requests are due per second, whether or not earlier ones were answered
  oroshi bench --stages 10s:1000,30s:5000 http://localhost:8080/
      10 s at 1,000 requests/s, then a linear rise to 5,000/s within 30 s
  oroshi bench -s examples/lua/token.lua http://localhost:8080/ -- /login
      a wrk script makes the requests; its init() receives the words after --
  oroshi bench -s examples/scenarios/shop.lua --users 50 http://localhost:8080/
      50 users make the journeys of a script: logins, pages, checks, a score
  oroshi bench --http2 -c4 --streams 32 https://localhost:8443/
      HTTP/2: each of 4 connections has 32 requests in progress
  oroshi bench --close -P /run/app.sock http://app.example/path
      one connection per request, over a unix socket
  oroshi bench --fail-if 'p99>10ms' --fail-if 'errors>0' http://localhost:8080/
      for CI: exit code 3 if the latency is too high or anything failed
  oroshi bench --mode ws -c 1000 --publish http://localhost:8080/pub http://localhost:8080/sub
      for push hubs: holds 1,000 WebSockets, and publishes one message after the other to all of them

URLs:
  http://host:port/path, https://..., unix:/run/app.sock, unix:/run/app.sock:/path,
  unix:@abstract-name:/path

Numbers take k, M, G. Times take ns, us, ms, s, m, h; a plain number is seconds.

Exit codes: 0 done; 1 could not run, nothing was answered, a server was gone when the run ended, or the
score is void; 2 wrong usage; 3 a --fail-if condition held, or could not be decided; 130 ended by Ctrl-C before
anything was measured, or by a second Ctrl-C (the first one ends a run early and still reports).";

/// Measure an HTTP server: throughput, latency, failures, and what limited the run
///
/// wrk's flags mean the same here (-t -c -d -s -H -L --timeout, and -P of its unix socket patch).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Send requests to these URLs in turn
    #[arg(value_name = "URL")]
    pub(super) url: Vec<String>,

    #[command(flatten)]
    pub(super) load: LoadArgs,

    /// Read more URLs from a file, one per line; # begins a comment; repeatable
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    pub(super) urls: Vec<PathBuf>,

    #[command(flatten)]
    pub(super) script: ScriptArgs,

    #[command(flatten)]
    pub(super) scenario: ScenarioArgs,

    #[command(flatten)]
    pub(super) subscribe: SubscribeArgs,

    #[command(flatten)]
    pub(super) agents: AgentsArgs,
    #[command(flatten)]
    pub(super) collect: CollectArgs,

    #[command(flatten)]
    pub(super) output: OutputArgs,

    /// Measure oroshi itself: the latency that it adds to servers of known delay; takes a minute
    ///
    /// Over HTTP/1.1, or with --http2-prior-knowledge (unix socket) or --http2 (TLS), and --streams, over HTTP/2.
    #[arg(long, help_heading = "Self-test")]
    pub(super) self_test: bool,
}

/// The flags of a load, for `bench`, `compare` and `lab`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct LoadArgs {
    /// Open this many connections [default: 10]
    #[arg(short, long, value_name = "N", help_heading = "Load")]
    pub(crate) connections: Option<String>,

    /// Measure for this long [default: 10s, or until --requests or --stages are done]
    #[arg(short, long, value_name = "TIME", help_heading = "Load")]
    pub(crate) duration: Option<String>,

    /// Use this many threads, each with a share of the connections and of the timetable [default: 2; 1 for an open
    /// loop of up to 10,000/s; fewer with fewer CPUs or connections]
    #[arg(short, long, value_name = "N", help_heading = "Load")]
    pub(crate) threads: Option<String>,

    /// End after this many requests; of a script of scenarios, journeys
    #[arg(short = 'n', long, value_name = "N", help_heading = "Load")]
    pub(crate) requests: Option<String>,

    /// Send this many requests per second, whether or not earlier ones were answered (open loop); of a script of
    /// scenarios, begin journeys [default: closed loop]
    #[arg(short = 'R', long, value_name = "PER_SECOND", help_heading = "Load")]
    pub(crate) rate: Option<String>,

    /// Change the rate of an open loop linearly to RATE within TIME, stage by stage
    ///
    /// The first stage holds its rate from the beginning. A stage of 0s is a jump.
    #[arg(long, value_name = "TIME:RATE,...", conflicts_with = "rate", help_heading = "Load")]
    pub(crate) stages: Option<String>,

    /// Space the requests of an open loop evenly, or at random as independent users do [default: constant]
    #[arg(long, value_name = "constant|poisson", help_heading = "Load")]
    pub(crate) arrivals: Option<String>,

    /// Draw the gaps of Poisson arrivals from this seed, and all choices of scenarios; the same seed repeats them
    /// [default: 0; random for scenarios]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub(crate) seed: Option<String>,

    /// Send load for this long before the measured part; it does not count [default: none]
    #[arg(short, long, value_name = "TIME", help_heading = "Load")]
    pub(crate) warmup: Option<String>,

    /// Fail a request, or a connect, that takes longer [default: 2s; 10s for scenarios]
    #[arg(short = 'T', long, value_name = "TIME", help_heading = "Load")]
    pub(crate) timeout: Option<String>,

    /// Connect to this unix socket (a path, or @name); the URL then gives Host and path
    #[arg(short = 'P', long, value_name = "SOCKET", help_heading = "Connections")]
    pub(crate) unix: Option<String>,

    /// Use one connection per request, with `Connection: close`
    #[arg(long, conflicts_with = "requests_per_connection", help_heading = "Connections")]
    pub(crate) close: bool,

    /// Replace each connection after this many requests [default: unlimited]
    #[arg(long, value_name = "N|unlimited", help_heading = "Connections")]
    pub(crate) requests_per_connection: Option<String>,

    /// Keep this many requests in progress per connection; not with --close [default: 1]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    pub(crate) pipeline: Option<String>,

    /// Speak HTTP/2 with https URLs; a server that does not choose it (ALPN) is an error
    #[arg(long, help_heading = "Connections")]
    pub(crate) http2: bool,

    /// Speak HTTP/2 without asking, also with http and unix URLs (h2c)
    #[arg(long, conflicts_with = "http2", help_heading = "Connections")]
    pub(crate) http2_prior_knowledge: bool,

    /// Keep this many requests in progress per HTTP/2 connection, each on a stream of its own [default: 1]
    ///
    /// h2load calls it -m. Where the server allows fewer streams, the others stay unused, and the report says so.
    #[arg(long, value_name = "N", help_heading = "Connections")]
    pub(crate) streams: Option<String>,

    /// Wait this long before reading, each time: less CPU time per request, longer latencies [default: 0]
    ///
    /// For closed loops with many requests in progress. Latencies include the wait, and the report says so.
    #[arg(long, value_name = "TIME", help_heading = "Connections")]
    pub(crate) gather: Option<String>,

    /// Keep this many idle connections open beside the load [default: none]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    pub(crate) hold: Option<String>,

    /// Connect from these local addresses in turn: 127.0.0.2-127.0.0.20,10.0.0.1 [default: the kernel's choice]
    #[arg(long, value_name = "ADDRESSES", help_heading = "Connections")]
    pub(crate) source: Option<String>,

    /// Connect to HOST2:PORT2 in place of HOST1:PORT1 and keep the Host, as in curl; any part may be empty;
    /// repeatable
    #[arg(long, value_name = "HOST1:PORT1:HOST2:PORT2", help_heading = "Connections")]
    pub(crate) connect_to: Vec<String>,

    /// Set the request method [default: GET, or POST with a body]
    #[arg(short, long, help_heading = "Request")]
    pub(crate) method: Option<String>,

    /// Add a header; repeatable
    ///
    /// Yours replaces oroshi's own `Host`, `Connection` and `Content-Length`. A `Content-Length` that is not the
    /// body's length is an error.
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Request")]
    pub(crate) header: Vec<String>,

    /// Send this request body
    #[arg(short, long, value_name = "TEXT", help_heading = "Request")]
    pub(crate) body: Option<String>,

    /// Send this file as the request body
    #[arg(long, value_name = "FILE", conflicts_with = "body", help_heading = "Request")]
    pub(crate) body_file: Option<PathBuf>,

    /// Check each response: status=200,3xx, length=BYTES or contains=TEXT; repeatable
    ///
    /// A response that fails a check counts as a failure.
    #[arg(long, value_name = "CHECK", help_heading = "Request")]
    pub(crate) check: Vec<String>,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    /// Measure the CPU time and memory of this process; auto finds the process that listens, if it is on this
    /// machine; none measures no process [default: auto]
    ///
    /// The children of the process count too. With several servers, auto watches the first and reports no CPU time
    /// per request.
    #[arg(long, value_name = "PID|auto|none", help_heading = "Measuring")]
    pub(crate) watch: Option<String>,

    /// Pin the threads to these CPUs in turn: 0,2-3 [default: not pinned]
    #[arg(long, value_name = "LIST", help_heading = "Measuring")]
    pub(crate) cpus: Option<String>,
}

/// The flags of a script that makes the requests.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(super) struct ScriptArgs {
    /// Let this Lua script make the requests: one of wrk's, or scenarios of users (docs/scenarios.md)
    #[arg(id = "script", short = 's', long = "script", value_name = "FILE", help_heading = "Script")]
    pub(super) file: Option<PathBuf>,

    /// Interrupt a call into the script that takes longer [default: 10s]
    #[arg(
        id = "script_limit",
        long = "script-limit",
        value_name = "TIME",
        requires = "script",
        help_heading = "Script"
    )]
    pub(super) limit: Option<String>,

    /// Pass these arguments to the script's init(), after the URL
    #[arg(id = "script_args", last = true, value_name = "ARGS", requires = "script", help_heading = "Script")]
    pub(super) args: Vec<String>,
}

/// The flags of a script with scenarios.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct ScenarioArgs {
    /// Let this many users make journeys; with --rate, at most so many at a time [default: 10; 1k with --rate]
    #[arg(long, value_name = "N", requires = "script", help_heading = "Scenarios")]
    pub(crate) users: Option<String>,

    /// Change the number of users: within each TIME linearly to USERS, as in 30s:100,1m:100,10s:0
    #[arg(
        long,
        value_name = "STAGES",
        requires = "script",
        conflicts_with_all = ["users", "rate", "stages"],
        help_heading = "Scenarios"
    )]
    pub(crate) ramp: Option<String>,

    /// End each user after this many journeys
    #[arg(long, value_name = "N", requires = "script", help_heading = "Scenarios")]
    pub(crate) iterations: Option<String>,

    /// Show every request and check, for writing scripts
    #[arg(long, requires = "script", help_heading = "Scenarios")]
    pub(crate) verbose: bool,
}

/// The flags of a run on other machines.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct AgentsArgs {
    /// Run on so many agents, or on those with these names (a,b,c), as one (docs/agents.md)
    #[arg(long, value_name = "N|NAMES", requires_all = ["nats", "key_file"], help_heading = "Agents")]
    pub(crate) agents: Vec<String>,

    /// Meet the agents at these NATS servers: nats://host:4222, several with commas
    ///
    /// tls:// insists on TLS. A name and password, or a token, stand before the host. A file keeps them out of the
    /// process list: @FILE.
    #[arg(long, value_name = "URL", help_heading = "Agents")]
    pub(crate) nats: Option<String>,

    /// Talk to the agents of this group [default: default]
    #[arg(long, value_name = "NAME", help_heading = "Agents")]
    pub(crate) group: Option<String>,

    /// Sign messages with the key in this file, which the agents have too; or with the seed of an nkey
    #[arg(id = "key_file", long = "key-file", value_name = "FILE", help_heading = "Agents")]
    pub(crate) key_file: Option<PathBuf>,

    /// With an nkey: believe agents with these public keys, with commas; @FILE reads them from a file, one a line
    #[arg(long, value_name = "KEYS", requires = "key_file", help_heading = "Agents")]
    pub(crate) accept: Option<String>,

    /// End the run when an agent is lost, or let the others go on [default: abort]
    #[arg(long, value_name = "abort|continue", requires = "agents", help_heading = "Agents")]
    pub(crate) on_agent_loss: Option<String>,
}

/// The flag of a run on other machines whose coordinator has ended.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct CollectArgs {
    /// Report a run whose coordinator was killed, from what its agents keep
    #[arg(long, value_name = "RUN", requires_all = ["nats", "key_file"], conflicts_with = "agents", help_heading = "Agents")]
    pub(crate) collect: Option<String>,
}

/// The flags of the report, with its format and file.
#[derive(Debug, Default, PartialEq, clap::Args)]
pub(super) struct OutputArgs {
    #[command(flatten)]
    pub(super) report: ReportArgs,

    /// Draw the run on the whole terminal: rate, percentiles, histogram and heat map as they grow, errors, the server's
    /// CPU; q or Ctrl-C ends the run
    ///
    /// The view is on the terminal itself, whatever becomes of standard output. When the run is over, the terminal is
    /// as before, and the report follows. If standard error is no terminal, a line of figures appears each 10 s
    /// instead.
    #[arg(long, conflicts_with_all = ["mode", "self_test", "collect", "verbose"], help_heading = "Output")]
    pub(super) tui: bool,

    /// Choose the format of the report
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub(super) format: Format,

    /// Also write the report in this format to a file: junit=report.xml; repeatable
    #[arg(long, value_name = "FORMAT=FILE", help_heading = "Output")]
    pub(super) also: Vec<String>,

    /// Also send the run's time series to this receiver of Prometheus' remote write, when the run is over
    #[arg(long, value_name = "URL", help_heading = "Output")]
    pub(super) remote_write: Option<String>,

    /// Add a header to that request; repeatable
    #[arg(long, value_name = "NAME: VALUE", requires = "remote_write", help_heading = "Output")]
    pub(super) remote_write_header: Vec<String>,

    /// Write the report to a file [default: standard output]
    ///
    /// An earlier file keeps its content until the new report is complete. If writing fails, the report goes to
    /// standard output, and the exit code is 1.
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(super) output: Option<PathBuf>,
}

/// The flags of the report, without its format and file.
#[derive(Debug, Default, PartialEq, clap::Args)]
pub(super) struct ReportArgs {
    /// Print the latency distribution in detail
    #[arg(short = 'L', long, help_heading = "Output")]
    pub(super) latency: bool,

    /// Also draw an HTML page with charts; it needs no network and no scripts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) report: Option<PathBuf>,

    /// Also write an HdrHistogram log: per second one histogram of service times and one of response times
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) hdr: Option<PathBuf>,

    /// With --format wrk: add values to the latencies as wrk's correction does, instead of reporting them as measured
    #[arg(long, help_heading = "Output")]
    pub(super) wrk_backfill: bool,

    /// With --format ab: accept responses of different lengths, as ab's -l does
    #[arg(long, help_heading = "Output")]
    pub(super) ab_any_length: bool,

    /// With --format ab and -g: print milliseconds with 0 to 6 decimals [default: 0, as ab]
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub(super) ab_decimals: Option<String>,

    /// Also write a line per answered request, in the order in which they began, as ab's -g does for gnuplot
    /// (tab-separated)
    #[arg(short = 'g', long, value_name = "FILE", help_heading = "Output")]
    pub(super) gnuplot: Option<PathBuf>,

    /// Also write the times of the percentiles 0 to 100, as ab's -e does (CSV)
    #[arg(short = 'e', long, value_name = "FILE", help_heading = "Output")]
    pub(super) percentiles: Option<PathBuf>,

    /// Exit with code 3 if this condition holds or cannot be decided: 'p99>10ms', 'errors>0', 'rps<50k',
    /// 'server.cpu>40us', of scenarios 'score<40000', 'checks<99%', 'step.login.p99>200ms'; repeatable
    #[arg(long, value_name = "METRIC OP VALUE", help_heading = "Output")]
    pub(super) fail_if: Vec<String>,
}
