//! `oroshi target`: the server that load is pointed at in self-tests and experiments. It answers the same to everything, in
//! ways that can be set and counted.
//!
//! [`Args`] is what was typed, `plan` makes sense of it, `responder` answers, with `answers` written out beforehand and
//! `delay` keeping time.

mod answers;
mod delay;
mod plan;
mod responder;

use std::future::poll_fn;
use std::io::{self, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use oroshi_net::cores::CoresError;
use oroshi_net::inherit::{InheritError, inherited};
use oroshi_net::limits::ensure_descriptors;
use oroshi_net::listen::ListenError;
use oroshi_net::tls::TlsConfigError;
use oroshi_net::{BoundListener, Cores, CoresOptions, ListenOptions, Peer, ServerTls, Shutdown};
use oroshi_server::{Counts, Door, Server};

use plan::{Place, Plan};
use responder::{Responder, Shared};

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
    /// The address cannot be listened on; the cause says why.
    #[error("--listen {endpoint}: cannot listen")]
    Listen {
        /// As it was given.
        endpoint: String,
        /// What is wrong.
        source: ListenError,
    },
    /// The sockets that the environment names cannot be used; the cause says which and why.
    #[error("cannot use the inherited sockets")]
    Inherit(#[source] InheritError),
    /// The certificate or the key cannot be used; the cause names the file.
    #[error("--cert, --key: cannot use them for https")]
    Tls(#[source] TlsConfigError),
    /// The threads could not be started, or one of them panicked.
    #[error("cannot run the threads that serve")]
    Cores(#[source] CoresError),
    /// The system refused what a server needs: a descriptor, a thread, a place to print.
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
            Error::Usage(_) | Error::Nowhere | Error::Tls(_) => 2,
            Error::Listen { source: ListenError::Address { .. } | ListenError::Unix { .. }, .. } => 2,
            _ => 1,
        }
    }
}

/// Runs the target until it is told to end.
pub(crate) fn run(args: Args) -> Result<ExitCode, Error> {
    // First thing, as other descriptors could take the places of those that are inherited.
    let inherited = if args.listen.is_empty() { inherited().map_err(Error::Inherit)? } else { Vec::new() };
    let plan = Arc::new(Plan::new(args).map_err(Error::Usage)?);
    if inherited.is_empty() && plan.places.is_empty() {
        return Err(Error::Nowhere);
    }
    let tls = plan.tls.as_ref().map(|files| ServerTls::from_files(&files.cert, &files.key, &Default::default()));
    let tls = tls.transpose().map_err(Error::Tls)?;
    // As far as the limit can be raised; where it is too low for the load, connections wait in the backlog.
    let _ = [200_000, 50_000, 12_000].into_iter().find(|&count| ensure_descriptors(count).is_ok());

    let shutdown = Shutdown::on_signals().map_err(|source| Error::System { what: "cannot take signals", source })?;
    let mut doors: Vec<Vec<(BoundListener, Option<ServerTls>)>> = (0..plan.threads).map(|_| Vec::new()).collect();
    let mut said = String::new();
    for place in &plan.places {
        let all = bind(place, plan.threads)?;
        let tls = tls.clone().filter(|_| place.https);
        said.push_str(&line(&all[0], tls.is_some()));
        for (door, bound) in doors.iter_mut().zip(all) {
            door.push((bound, tls.clone()));
        }
    }
    for socket in inherited {
        let tls = tls.clone().filter(|_| matches!(socket.listener.address(), Peer::Tcp(_)));
        said.push_str(&line(&socket.listener, tls.is_some()));
        for door in &mut doors {
            let bound = socket.listener.try_clone();
            let bound = bound.map_err(|source| Error::System { what: "cannot share an inherited socket", source })?;
            door.push((bound, tls.clone()));
        }
    }
    say(&said)?;

    let counts = serve(&plan, doors, &shutdown)?;
    say(&format!("served {} requests on {} connections\n", counts.answers, counts.accepted))?;
    Ok(ExitCode::SUCCESS)
}

fn bind(place: &Place, threads: usize) -> Result<Vec<BoundListener>, Error> {
    let options = ListenOptions { backlog: u32::from(u16::MAX), reuse_port: threads > 1, ..ListenOptions::default() };
    BoundListener::bind_for_cores(&place.address, &options, threads)
        .map_err(|source| Error::Listen { endpoint: place.typed.clone(), source })
}

fn line(bound: &BoundListener, https: bool) -> String {
    format!("listening on {}\n", bound.local_address().shown(if https { "https" } else { "http" }))
}

/// Prints, and sees to it that it is out: whoever started this may be waiting for it.
fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let said = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    said.map_err(|source| Error::System { what: "cannot write to standard output", source })
}

fn serve(
    plan: &Arc<Plan>,
    doors: Vec<Vec<(BoundListener, Option<ServerTls>)>>,
    shutdown: &Shutdown,
) -> Result<Counts, Error> {
    let mut options = CoresOptions::new("target", plan.threads);
    options.cpus = plan.cpus.clone();
    options.stop = Some(shutdown.clone());
    let (plan, shutdown, shared) = (Arc::clone(plan), shutdown.clone(), Arc::new(Shared::default()));
    // Taken out by the threads: a listener that stayed here would keep its socket open during the shutdown.
    let doors = Mutex::new(doors);
    let counts = Cores::run(&options, move |_| {
        let mine = doors.lock().map(|mut doors| doors.pop()).ok().flatten().unwrap_or_default();
        let (plan, shutdown, shared) = (Arc::clone(&plan), shutdown.clone(), Arc::clone(&shared));
        async move {
            let (responder, timekeeper) = Responder::new(&plan, shared)?;
            if let Some(timekeeper) = timekeeper {
                tokio::task::spawn_local(timekeeper);
            }
            let doors: io::Result<Vec<Door>> =
                mine.into_iter().map(|(bound, tls)| Ok(Door { listener: bound.into_listener()?, tls })).collect();
            let server = Server::new(responder, plan.settings());
            let mut serving = pin!(server.serve(doors?, shutdown.reached(1)));
            let mut at_once = pin!(shutdown.reached(2));
            poll_fn(|context| match serving.as_mut().poll(context) {
                Poll::Pending => at_once.as_mut().poll(context),
                ready => ready,
            })
            .await;
            io::Result::Ok(server.counters().counts())
        }
    });
    let counts: io::Result<Vec<Counts>> = counts.map_err(Error::Cores)?.into_iter().collect();
    let counts = counts.map_err(|source| Error::System { what: "cannot make what a thread needs to serve", source })?;
    Ok(counts.into_iter().sum())
}
