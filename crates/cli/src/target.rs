//! `oroshi target`: the test server of self-tests and experiments. It answers every request in the same configured way
//! and counts exactly.
//!
//! [`Args`] are the flags; `read` turns them into a plan.

mod read;

use std::process::ExitCode;

use oroshi_target::{Target, TargetError};

use crate::service::{self, RoleError, ServiceError};

/// Serve test responses whose delays, sizes and statuses you choose
///
/// Every request gets the same kind of response, whatever its method and path. Without --listen the target serves
/// the sockets that Server::Starter (SERVER_STARTER_PORT) or systemd (LISTEN_FDS) hands down. It prints where it
/// listens. On TERM or INT it prints how many requests it answered on how many connections, and exits; a second signal
/// ends it at once.
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
pub(crate) type Error = ServiceError<RunError>;

/// An error of the target alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// Nothing says where to listen. Give --listen, or start it by a supervisor that hands sockets down.
    #[error(
        "nowhere to listen: give --listen 127.0.0.1:8080 (or unix:/path/app.sock), or start this under \
         Server::Starter or systemd, which hand down sockets in SERVER_STARTER_PORT or LISTEN_FDS (neither is set)"
    )]
    Nowhere,
    /// It could not listen or serve; the message says why.
    #[error(transparent)]
    Target(TargetError),
}

impl RoleError for RunError {
    fn is_usage(&self) -> bool {
        match self {
            RunError::Nowhere => true,
            RunError::Target(error) => error.is_usage(),
        }
    }
}

impl From<TargetError> for Error {
    fn from(error: TargetError) -> Self {
        ServiceError::Role(RunError::Target(error))
    }
}

/// Runs the target until a signal ends it.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    let inherited = if args.listen.is_empty() { service::take_inherited()? } else { Vec::new() };
    let plan = read::plan(args).map_err(Error::Usage)?;
    if inherited.is_empty() && plan.listen.is_empty() {
        return Err(Error::Role(RunError::Nowhere));
    }
    let shutdown = service::shutdown_on_signals()?;
    let target = Target::bind(plan, inherited)?;
    service::print(&target.addresses().iter().map(|address| format!("listening on {address}\n")).collect::<String>())?;
    let counts = target.serve(&shutdown)?;
    service::print(&format!("served {} requests on {} connections\n", counts.answers, counts.accepted))?;
    Ok(ExitCode::SUCCESS)
}
