//! `oroshi target`: the server that load is pointed at in self-tests and experiments. It answers every request alike, in configurable
//! and countable ways.
//!
//! [`Args`] are the flags; `read` makes a plan of them.

mod read;

use std::io::{self, Write};
use std::process::ExitCode;

use oroshi_net::Shutdown;
use oroshi_net::inherit::{InheritError, inherited};
use oroshi_target::{Target, TargetError};

/// Answers every request, whatever its method and path, in the way that the options say
///
/// Without --listen it serves the sockets that Server::Starter (SERVER_STARTER_PORT) or systemd
/// (LISTEN_FDS) hand down. It says on standard output where it listens, and at the end, on TERM or INT, how many
/// requests it answered on how many connections; a second signal ends it at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen: 127.0.0.1:8080, :8080, http://127.0.0.1:0/ (a free port), https://..., unix:/path, unix:@name.
    /// May be given several times
    #[arg(long, value_name = "ENDPOINT")]
    listen: Vec<String>,
    /// How long each answer waits, for example 100ms
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// How delays are distributed around that: constant, uniform, exponential, bimodal (nine of ten half as long, the tenth 5.5
    /// times as long)
    #[arg(long, value_name = "SHAPE", default_value = "constant")]
    delay_shape: String,
    /// Do so many rounds of arithmetic before each answer: CPU time that a request costs
    #[arg(long, value_name = "N")]
    work: Option<String>,
    /// The body's length in bytes; k, M and G stand for thousand, million and billion
    #[arg(long, value_name = "BYTES", default_value = "12")]
    size: String,
    /// Send the body in the chunked coding instead of with a Content-Length
    #[arg(long)]
    chunked: bool,
    /// Close the connection after each answer
    #[arg(long)]
    close: bool,
    /// Statuses and their shares: of 100 answers, 200=99,500=1 gives exactly one 500, always at the same place
    #[arg(long, value_name = "STATUS[=SHARE],...", default_value = "200")]
    status: String,
    /// Never answer every N-th request, but keep its connection open
    #[arg(long, value_name = "N")]
    stall_one_in: Option<String>,
    /// The certificate for https, with its chain, a PEM file. An address given without http:// or https:// then is https
    #[arg(long, value_name = "FILE")]
    cert: Option<String>,
    /// The certificate's private key, a PEM file
    #[arg(long, value_name = "FILE")]
    key: Option<String>,
    /// How many threads serve, each with connections of its own [default: one per CPU of --cpus, else 1]
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// The CPUs to pin the threads to, such as 0,2-3
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
}

/// Why the target did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The options do not make sense: each line names one, its value, and what was expected. Correct them.
    #[error("{}", .0.join("\n"))]
    Usage(Vec<String>),
    /// Nothing says where to listen. Give --listen, or start it by a supervisor that hands sockets down.
    #[error(
        "nowhere to listen: give --listen 127.0.0.1:8080 (or unix:/path/app.sock), or start this under \
         Server::Starter or systemd, which hand down sockets in SERVER_STARTER_PORT or LISTEN_FDS (neither is set)"
    )]
    Nowhere,
    /// The sockets that the environment names cannot be used; the cause says which and why.
    #[error("cannot use the inherited sockets")]
    Inherit(#[source] InheritError),
    /// It could not listen or serve; the message says why.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The system refused to take signals, or to print.
    #[error("{what}")]
    System {
        /// What could not be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// 2 when the command line was wrong, 1 when the work failed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Nowhere => 2,
            Error::Target(error) if error.is_usage() => 2,
            _ => 1,
        }
    }
}

/// Runs the target until a signal ends it.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    // First thing, as other descriptors could take the places of those that are inherited.
    let inherited = if args.listen.is_empty() { inherited().map_err(Error::Inherit)? } else { Vec::new() };
    let plan = read::plan(args).map_err(Error::Usage)?;
    if inherited.is_empty() && plan.listen.is_empty() {
        return Err(Error::Nowhere);
    }
    let shutdown = Shutdown::on_signals().map_err(|source| Error::System { what: "cannot take signals", source })?;
    let target = Target::bind(plan, inherited)?;
    say(&target.addresses().iter().map(|address| format!("listening on {address}\n")).collect::<String>())?;
    let counts = target.serve(&shutdown)?;
    say(&format!("served {} requests on {} connections\n", counts.answers, counts.accepted))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints and flushes, as whoever started this may be waiting for it.
fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map_err(|source| Error::System { what: "cannot write to standard output", source })
}
