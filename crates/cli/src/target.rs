//! `oroshi target`: the test server of self-tests and experiments. It answers every request in the same configured way and
//! counts exactly.
//!
//! [`Args`] are the flags; `read` turns them into a plan.

mod read;

use std::io::{self, Write};
use std::process::ExitCode;

use oroshi_net::Shutdown;
use oroshi_net::inherit::{InheritError, inherited};
use oroshi_target::{Target, TargetError};

/// Serve test responses whose delays, sizes and statuses you choose
///
/// Every request gets the same kind of response, whatever its method and path. Without --listen the target serves
/// the sockets that Server::Starter (SERVER_STARTER_PORT) or systemd (LISTEN_FDS) hands down. It prints where it listens. On TERM
/// or INT it prints how many requests it answered on how many connections, and exits; a second signal ends it at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Listen here: 127.0.0.1:8080, :8080, http://127.0.0.1:0/ (a free port), https://..., unix:/path, unix:@name;
    /// repeatable [default: inherited sockets]
    #[arg(long, value_name = "ENDPOINT")]
    listen: Vec<String>,
    /// Delay each response by this time, counted from the request's last byte [default: none]
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// Distribute delays around --delay: constant; uniform, from zero to twice the mean; exponential; bimodal, where
    /// nine of ten take half the mean and the tenth takes 5.5 times the mean
    #[arg(long, value_name = "SHAPE", default_value = "constant")]
    delay_shape: String,
    /// Do this many rounds of arithmetic before each response, about a nanosecond or two each: CPU time per request
    /// [default: none]
    #[arg(long, value_name = "N")]
    work: Option<String>,
    /// Send bodies of this length; k, M and G stand for thousand, million and billion
    #[arg(long, value_name = "BYTES", default_value = "12")]
    size: String,
    /// Send the body in chunked coding instead of with Content-Length
    #[arg(long)]
    chunked: bool,
    /// Close the connection after each response
    #[arg(long)]
    close: bool,
    /// Send these statuses by share: of each 100 responses, 200=99,500=1 makes exactly one a 500, always at the same
    /// place
    #[arg(long, value_name = "STATUS[=SHARE],...", default_value = "200")]
    status: String,
    /// Never answer every N-th request, and keep its connection open
    #[arg(long, value_name = "N")]
    stall_one_in: Option<String>,
    /// Serve https with this certificate and its chain (PEM); an address without http:// or https:// is then https
    #[arg(long, value_name = "FILE")]
    cert: Option<String>,
    /// Use this private key for --cert (PEM)
    #[arg(long, value_name = "FILE")]
    key: Option<String>,
    /// Serve with this many threads, each with connections of its own [default: one per CPU of --cpus, else 1]
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Pin the threads to these CPUs: 0,2-3 [default: not pinned]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
}

/// The reasons why the target failed.
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
    // First, because a descriptor opened earlier could take the number of an inherited one.
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

/// Prints and flushes: a parent process may wait for the line.
fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map_err(|source| Error::System { what: "cannot write to standard output", source })
}
