//! The flags of `oroshi bench`, as they are typed.
//!
//! Values stay text here: the parser would stop at the first one that is wrong, where `read` finds all of them.

use std::path::PathBuf;

use clap::ValueEnum;

use super::subscribe::SubscribeArgs;

/// How the report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// Everything that was measured, as data.
    Json,
    /// As wrk prints it, for scripts that read wrk; its Req/Sec row is about all threads' average.
    Wrk,
    /// As ab prints it, for scripts that read ab.
    Ab,
}

const EXAMPLES: &str = "\
Examples:
  oroshi bench -c100 -d30s http://localhost:8080/
      closed loop: each of 100 connections sends again once it has its answer
  oroshi bench -c100 -R 2k http://localhost:8080/
      open loop: 2,000 requests are due per second, whether or not earlier ones were answered
  oroshi bench --stages 10s:1000,30s:5000 http://localhost:8080/
      10 s at 1,000 requests/s, then up to 5,000/s in a straight line over 30 s
  oroshi bench -s examples/lua/token.lua http://localhost:8080/ -- /login
      a wrk script makes the requests; what follows -- is for its init()
  oroshi bench --close -P /run/app.sock http://app.example/path
      one connection per request, over a unix socket
  oroshi bench --fail-if 'p99>10ms' --fail-if 'errors>0' http://localhost:8080/
      for CI: exit code 3 if the latency is too high or anything failed
  oroshi bench --mode ws -c 1000 --publish http://localhost:8080/pub http://localhost:8080/sub
      the other way round: 1,000 WebSockets are held, and one message after the other is published to all

URLs:
  http://host:port/path, https://..., unix:/run/app.sock, unix:/run/app.sock:/path,
  unix:@abstract-name:/path

Numbers take k, M, G; times take ns, us, ms, s, m, h, and are seconds without.

Exit codes: 0 done; 1 could not run, not one request was answered, or a server was gone when the run
ended; 2 wrong usage; 3 a --fail-if condition held, or could not be decided; 130 ended by Ctrl-C
before anything was measured, or by a second one (the first ends a run early, and still reports).";

/// Measure an HTTP server: throughput, latency, errors, and who was the bottleneck.
///
/// wrk's flags mean the same here (-t -c -d -s -H -L --timeout, and -P of its unix socket patch).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to send requests; several are taken in turn
    #[arg(value_name = "URL")]
    pub(super) url: Vec<String>,

    #[command(flatten)]
    pub(super) load: LoadArgs,

    /// Read more URLs from a file: one per line, # begins a comment
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    pub(super) urls: Vec<PathBuf>,

    #[command(flatten)]
    pub(super) script: ScriptArgs,

    #[command(flatten)]
    pub(super) subscribe: SubscribeArgs,

    #[command(flatten)]
    pub(super) output: OutputArgs,

    /// Measure this tool instead: what it adds to servers of known delay (takes a minute)
    #[arg(long, help_heading = "Self-test")]
    pub(super) self_test: bool,
}

/// What is done to a server, wherever it is: the flags of whatever makes load.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(crate) struct LoadArgs {
    /// Connections to keep open [default: 10]
    #[arg(short, long, value_name = "N", help_heading = "Load")]
    pub(crate) connections: Option<String>,

    /// Length of the measured part [default: 10s, or until --requests or --stages are done]
    #[arg(short, long, value_name = "TIME", help_heading = "Load")]
    pub(crate) duration: Option<String>,

    /// Threads, each with its share of the connections [default: 2; 1 for an open loop of up to 10,000/s; fewer where there
    /// are fewer CPUs or connections]
    #[arg(short, long, value_name = "N", help_heading = "Load")]
    pub(crate) threads: Option<String>,

    /// End after this many requests
    #[arg(short = 'n', long, value_name = "N", help_heading = "Load")]
    pub(crate) requests: Option<String>,

    /// Open loop: requests due per second, whether or not earlier ones were answered
    #[arg(short = 'R', long, value_name = "PER_SECOND", help_heading = "Load")]
    pub(crate) rate: Option<String>,

    /// Open loop whose rate changes: after each TIME, in a straight line, it is RATE
    #[arg(long, value_name = "TIME:RATE,...", conflicts_with = "rate", help_heading = "Load")]
    pub(crate) stages: Option<String>,

    /// How requests are spaced in the open loop: like a metronome, or like users who do not know of each other
    #[arg(long, value_name = "constant|poisson", help_heading = "Load")]
    pub(crate) arrivals: Option<String>,

    /// For Poisson arrivals: the same seed gives the same timetable [default: 0]
    #[arg(long, value_name = "N", help_heading = "Load")]
    pub(crate) seed: Option<String>,

    /// Send for this long before the measured part begins
    #[arg(short, long, value_name = "TIME", help_heading = "Load")]
    pub(crate) warmup: Option<String>,

    /// A request, or a connect, that takes longer has failed [default: 2s]
    #[arg(short = 'T', long, value_name = "TIME", help_heading = "Load")]
    pub(crate) timeout: Option<String>,

    /// Connect to this unix socket (a path, or @name); the URL then says Host and path
    #[arg(short = 'P', long, value_name = "SOCKET", help_heading = "Connections")]
    pub(crate) unix: Option<String>,

    /// One connection per request
    #[arg(long, conflicts_with = "requests_per_connection", help_heading = "Connections")]
    pub(crate) close: bool,

    /// Close each connection after this many requests [default: unlimited]
    #[arg(long, value_name = "N|unlimited", help_heading = "Connections")]
    pub(crate) requests_per_connection: Option<String>,

    /// Requests in flight per connection [default: 1]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    pub(crate) pipeline: Option<String>,

    /// Keep this many idle connections open beside the load
    #[arg(long, value_name = "N", help_heading = "Connections")]
    pub(crate) hold: Option<String>,

    /// Local addresses to connect from, in turn: 127.0.0.2-127.0.0.20,10.0.0.1
    #[arg(long, value_name = "ADDRESSES", help_heading = "Connections")]
    pub(crate) source: Option<String>,

    /// Connect elsewhere for HOST1:PORT1, as curl does (any part may be empty); repeatable
    #[arg(long, value_name = "HOST1:PORT1:HOST2:PORT2", help_heading = "Connections")]
    pub(crate) connect_to: Vec<String>,

    /// Request method [default: GET, or POST with a body]
    #[arg(short, long, help_heading = "Request")]
    pub(crate) method: Option<String>,

    /// Add a header; repeatable
    #[arg(short = 'H', long, value_name = "NAME: VALUE", help_heading = "Request")]
    pub(crate) header: Vec<String>,

    /// Request body
    #[arg(short, long, value_name = "TEXT", help_heading = "Request")]
    pub(crate) body: Option<String>,

    /// Request body from a file
    #[arg(long, value_name = "FILE", conflicts_with = "body", help_heading = "Request")]
    pub(crate) body_file: Option<PathBuf>,

    /// What each answer must be: status=200,3xx or length=BYTES or contains=TEXT; repeatable
    #[arg(long, value_name = "CHECK", help_heading = "Request")]
    pub(crate) check: Vec<String>,

    /// Trust these certificate authorities (PEM) instead of the system's
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", help_heading = "TLS")]
    pub(crate) cacert: Vec<PathBuf>,

    /// Show this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "TLS")]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    pub(crate) key: Option<PathBuf>,

    /// Do not verify the server's certificate
    #[arg(short = 'k', long, help_heading = "TLS")]
    pub(crate) insecure: bool,

    /// Whose CPU time and memory to take: auto finds who listens, if it is on this machine [default: auto]
    #[arg(long, value_name = "PID|auto|none", help_heading = "Measuring")]
    pub(crate) watch: Option<String>,

    /// CPUs to pin the threads to, in turn: 0,2-3
    #[arg(long, value_name = "LIST", help_heading = "Measuring")]
    pub(crate) cpus: Option<String>,
}

/// A program that makes the requests.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(super) struct ScriptArgs {
    /// Run this wrk script (LuaJIT): it makes the requests, and may look at the answers
    #[arg(id = "script", short = 's', long = "script", value_name = "FILE", help_heading = "Script")]
    pub(super) file: Option<PathBuf>,

    /// The longest that one call into the script may take [default: 10s]
    #[arg(
        id = "script_limit",
        long = "script-limit",
        value_name = "TIME",
        requires = "script",
        help_heading = "Script"
    )]
    pub(super) limit: Option<String>,

    /// Arguments for the script's init()
    #[arg(id = "script_args", last = true, value_name = "ARGS", requires = "script", help_heading = "Script")]
    pub(super) args: Vec<String>,
}

#[derive(Debug, Default, PartialEq, clap::Args)]
pub(super) struct OutputArgs {
    #[command(flatten)]
    pub(super) report: ReportArgs,

    /// How to write the report
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub(super) format: Format,

    /// Write the report to a file
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Debug, Default, PartialEq, clap::Args)]
pub(super) struct ReportArgs {
    /// Show the latency distribution in detail
    #[arg(short = 'L', long, help_heading = "Output")]
    pub(super) latency: bool,

    /// Draw the report as an HTML page too, with charts; it stands alone, without network or scripts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) report: Option<PathBuf>,

    /// Write an HdrHistogram log: a histogram per second of service and of response times
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(super) hdr: Option<PathBuf>,

    /// With --format wrk: wrk's own corrected latencies, instead of those measured
    #[arg(long, help_heading = "Output")]
    pub(super) wrk_backfill: bool,

    /// With --format ab: answers may differ in length (ab's -l)
    #[arg(long, help_heading = "Output")]
    pub(super) ab_any_length: bool,

    /// With --format ab and -g: digits after the point of milliseconds, 0 to 6 [default: 0, as ab]
    #[arg(long, value_name = "N", help_heading = "Output")]
    pub(super) ab_decimals: Option<String>,

    /// Write a line per answered request, in the order in which they began, as ab's -g for gnuplot (tab-separated)
    #[arg(short = 'g', long, value_name = "FILE", help_heading = "Output")]
    pub(super) gnuplot: Option<PathBuf>,

    /// Write the times of the percentiles 0 to 100, as ab's -e (CSV)
    #[arg(short = 'e', long, value_name = "FILE", help_heading = "Output")]
    pub(super) percentiles: Option<PathBuf>,

    /// Exit with code 3 if this holds: 'p99>10ms', 'errors>0', 'rps<50k', 'server.cpu>40us'; repeatable
    #[arg(long, value_name = "METRIC OP VALUE", help_heading = "Output")]
    pub(super) fail_if: Vec<String>,
}
