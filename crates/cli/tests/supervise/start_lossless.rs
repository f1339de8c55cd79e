//! Restarts under load: no request is refused, reset or left without an answer, in front of servers that end in good
//! order.
//!
//! The load is that of `oroshi bench`. It does not send anything a second time: a request that a server took and did
//! not answer is an error. A kept connection that is closed between two requests is none (RFC 9112, section 9.3), and
//! is counted as `closed_by_server`.
//!
//! `cargo test -p oroshi --test supervise start_lossless:: -- --ignored --nocapture` makes 20 restarts of every server,
//! those included that do lose requests, and prints the table that stands in docs/start.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::common::OROSHI;
use crate::common::support::HANG;
use crate::common::support::load::{draft, run_seen};
use crate::superdaemon::{Kind, World, have, wait_for};
use oroshi_bench::follow::Progress;
use oroshi_bench::{Draft, Failure, Observer, Record};
use rustix::process::Signal;

/// A server, as it is run behind `oroshi start`.
struct Server {
    name: &'static str,
    programs: &'static [&'static str],
    /// Flags of `oroshi start`.
    flags: &'static [&'static str],
    command: &'static [&'static str],
    /// What it can do behind a superdaemon at all.
    can: fn(Socket, Load) -> bool,
    /// Under what load it loses requests, by its own doing.
    loses: fn(Load) -> bool,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Connections are kept.
    Kept,
    /// Each request has a connection of its own.
    Closed,
}

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    Tcp,
    Unix,
}

const TARGET: Server = Server {
    name: "oroshi target",
    programs: &[],
    flags: &[],
    command: &[OROSHI, "target"],
    can: |_, _| true,
    loses: |_| false,
};

const GATE: Server = Server { name: "oroshi gate", command: &[OROSHI, "gate", "--config", "gate.toml"], ..TARGET };

/// The oroshi gem, where it is built: `make gem`, and ruby/exe on the PATH.
const RACK: Server = Server {
    name: "oroshi-rack",
    programs: &["oroshi-rack"],
    flags: &[],
    command: &["oroshi-rack", "-E", "none", "-O", "MaxWorkers=2", "-O", "MaxRequestPerChild=0", "config.ru"],
    can: |_, _| true,
    loses: |_| false,
};

/// It closes every connection after its answer, and takes QUIT for "finish what you have", TERM for "at once".
const UNICORN: Server = Server {
    name: "unicorn",
    programs: &["unicorn"],
    flags: &["--signal-on-hup", "QUIT", "--signal-on-term", "QUIT"],
    command: &["unicorn", "--env", "none", "--config-file", "unicorn.rb", "config.ru"],
    can: |_, _| true,
    loses: |_| false,
};

/// Its reactor, when it is shut down, closes every connection from which nothing of a request has been read: kept ones
/// in between two requests, and, once in tens of thousands, one that has only just been accepted. Now and then, with
/// kept connections in use, it does not end.
const PUMA: Server = Server {
    name: "puma",
    programs: &["puma"],
    flags: &["--stop-timeout", "20"],
    command: &["puma", "--config", "puma.rb", "config.ru"],
    can: |_, _| true,
    loses: |_| true,
};

/// Without that reactor: a thread that has accepted a connection waits for its request, and closes behind the answer.
const PUMA_UNQUEUED: Server = Server {
    name: "puma, `queue_requests false`",
    command: &["puma", "--config", "puma-unqueued.rb", "config.ru"],
    loses: |_| false,
    ..PUMA
};

const STARLET: Server = Server {
    name: "starlet",
    programs: &["plackup", "perl -MPlack::Handler::Starlet -e0"],
    flags: &[],
    command: &[
        "plackup",
        "--server",
        "Starlet",
        "--env",
        "deployment",
        "--max-workers=6",
        "--max-keepalive-reqs=1000000",
        "--max-reqs-per-child=1000000",
        "app.psgi",
    ],
    can: |_, _| true,
    loses: |_| false,
};

/// A worker that is told to end does not know whether it has just accepted a connection. It takes every socket for one
/// of TCP, and dies of the others; and it does not end as long as a kept connection is in use, so that one never lets
/// go of the other.
const STARMAN: Server = Server {
    name: "starman",
    programs: &["starman", "perl -MNet::Server::SS::PreFork -e0"],
    flags: &["--signal-on-hup", "QUIT", "--signal-on-term", "QUIT"],
    command: &["starman", "--env", "deployment", "--workers", "6", "--max-requests", "1000000", "app.psgi"],
    can: |socket, load| socket == Socket::Tcp && load == Load::Closed,
    loses: |_| true,
};

const CONFIG_RU: &str =
    r#"run ->(env) { [200, { "content-type" => "text/plain", "content-length" => "12" }, ["Hello, world"]] }"#;
const GATE_TOML: &str = "threads = 2\n[[route]]\nanswer = { status = 200, body = \"Hello, world\" }\n";
const PSGI: &str = r#"sub { [200, ["Content-Type" => "text/plain", "Content-Length" => 12], ["Hello, world"]] }"#;
const UNICORN_RB: &str = "worker_processes 2\n";
const PUMA_RB: &str = "quiet\nenvironment 'production'\nthreads 4, 4\nbind_to_activated_sockets 'only'\n";

/// Connections of the load. A server with a process per connection has more processes than that, so that a generation
/// that is replaced cannot keep out anybody.
const CONNECTIONS: usize = 4;

/// As many set-ups at once.
const LANES: usize = 3;

#[test]
fn a_restart_loses_no_request_of_oroshi_target() {
    nothing_is_lost("a_restart_loses_no_request_of_oroshi_target", &TARGET, 5);
}

#[test]
fn a_restart_loses_no_request_of_oroshi_gate() {
    nothing_is_lost("a_restart_loses_no_request_of_oroshi_gate", &GATE, 5);
}

#[test]
fn a_restart_loses_no_request_of_the_gem() {
    nothing_is_lost("a_restart_loses_no_request_of_the_gem", &RACK, 5);
}

#[test]
fn a_restart_loses_no_request_of_unicorn() {
    nothing_is_lost("a_restart_loses_no_request_of_unicorn", &UNICORN, 3);
}

#[test]
fn a_restart_loses_no_request_of_puma() {
    nothing_is_lost("a_restart_loses_no_request_of_puma", &PUMA_UNQUEUED, 3);
}

#[test]
fn a_restart_loses_no_request_of_starlet() {
    nothing_is_lost("a_restart_loses_no_request_of_starlet", &STARLET, 3);
}

fn nothing_is_lost(test: &str, server: &Server, restarts: u32) {
    if !have(test, server.programs) {
        return;
    }
    let cases: Vec<_> = server.cases().filter(|&(_, load)| !(server.loses)(load)).collect();
    thread::scope(|scope| {
        let runs: Vec<_> =
            cases.iter().map(|&case| scope.spawn(move || (case, under_load(server, case, restarts)))).collect();
        for run in runs {
            let (case, run) = run.join().unwrap_or_else(|panic| resume_unwind(panic));
            assert!(run.record.failures.keys().all(|&f| f == Failure::CutOffAtEnd), "{}, {case:?}: {run}", server.name);
            assert_eq!(run.record.statuses.keys().collect::<Vec<_>>(), [&200], "{run}");
        }
    });
}

impl Server {
    fn cases(&self) -> impl Iterator<Item = (Socket, Load)> + use<> {
        let can = self.can;
        let all =
            [Socket::Tcp, Socket::Unix].into_iter().flat_map(|socket| [(socket, Load::Kept), (socket, Load::Closed)]);
        all.filter(move |&(socket, load)| can(socket, load))
    }
}

/// What came of one set-up.
struct Run {
    record: Record,
    restarts: u32,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let failures: BTreeMap<_, _> = self.record.failures.iter().map(|(failure, n)| (failure.name(), n)).collect();
        let (requests, connections) = (&self.record.requests, &self.record.connections);
        write!(f, "{} restarts, {requests:?}, {connections:?}, {failures:?}", self.restarts)
    }
}

/// Restarts a server so often, one after the other, while the load goes on.
fn under_load(server: &Server, (socket, load): (Socket, Load), restarts: u32) -> Run {
    let mut world = World::new(Kind::Ours);
    let unqueued = format!("{PUMA_RB}queue_requests false\n");
    let files = [
        ("config.ru", CONFIG_RU),
        ("gate.toml", GATE_TOML),
        ("app.psgi", PSGI),
        ("unicorn.rb", UNICORN_RB),
        ("puma.rb", PUMA_RB),
    ];
    for (name, text) in files.into_iter().chain([("puma-unqueued.rb", unqueued.as_str())]) {
        world.write(name, text);
    }
    let (flag, place, url) = match socket {
        Socket::Tcp => {
            let port = world.port();
            ("--port", format!("127.0.0.1:{port}"), format!("http://127.0.0.1:{port}/"))
        }
        Socket::Unix => ("--path", world.path("socket"), format!("unix:{}", world.path("socket"))),
    };
    let status = world.path("status");
    // By time alone, a busy machine's new generation would be told to end before it has set up what listens to that.
    let flags = [flag, &place, "--status-file", &status, "--ready", &url, "--interval", "0"];
    world.start_as(&[&flags, server.flags, &["--"], server.command].concat());
    alone(&world, 1);

    let load = Draft {
        connections: CONNECTIONS,
        requests_per_connection: (load == Load::Closed).then_some(1),
        duration: Some(HANG * restarts.max(1)),
        timeout: HANG / 2,
        ..draft(&url)
    };
    let answered = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let record = thread::scope(|scope| {
        let running = scope.spawn(|| run_seen(load, &mut Watch { answered: &answered, over: &over }));
        let restarting = catch_unwind(AssertUnwindSafe(|| {
            answers(&world, &answered);
            for restart in 1..=restarts {
                world.send(Signal::HUP);
                alone(&world, restart + 1);
                answers(&world, &answered);
            }
        }));
        over.store(true, Ordering::Relaxed);
        let record = running.join();
        restarting.unwrap_or_else(|panic| resume_unwind(panic));
        record.unwrap_or_else(|panic| resume_unwind(panic))
    });
    world.send(Signal::TERM);
    world.end();
    Run { record, restarts }
}

/// Waits until this generation is there, and the older ones are gone.
fn alone(world: &World, generation: u32) {
    world.file("status", &format!("generation {generation} alone"), |text| {
        text.starts_with(&format!("{generation}:")) && text.lines().count() == 1
    });
}

/// Waits until there are new answers: the load goes on.
fn answers(world: &World, answered: &AtomicU64) {
    let before = answered.load(Ordering::Relaxed);
    wait_for(|| format!("answers\n{}", world.told()), || (answered.load(Ordering::Relaxed) > before).then_some(()));
}

/// Follows the load, and ends it.
struct Watch<'a> {
    answered: &'a AtomicU64,
    over: &'a AtomicBool,
}

impl Observer for Watch<'_> {
    fn progress(&mut self, progress: &Progress) {
        self.answered.store(progress.done, Ordering::Relaxed);
    }

    fn cancelled(&mut self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

#[test]
#[ignore = "takes minutes: every server, every socket, every load, 20 restarts of each"]
#[allow(clippy::print_stdout, reason = "for whoever runs this test alone")]
fn twenty_restarts_of_everything() {
    let servers = [&TARGET, &RACK, &UNICORN, &PUMA, &PUMA_UNQUEUED, &STARLET, &STARMAN];
    let cases: Vec<_> = servers
        .into_iter()
        .filter(|server| have("twenty_restarts_of_everything", server.programs))
        .flat_map(|server| server.cases().map(move |case| (server, case)))
        .collect();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(server, case)) = cases.get(at) else { break };
                    let run = under_load(server, case, 20);
                    rows.lock().unwrap().insert(at, row(server, case, &run));
                    let lost = run.record.errors;
                    assert!(lost == 0 || (server.loses)(case.1), "{}, {case:?}: {run}", server.name);
                }
            });
        }
    });
    println!(
        "| server | socket | connections | answered | refused | reset | ended without an answer | other errors | \
         closed between requests |"
    );
    println!("|---|---|---|---:|---:|---:|---:|---:|---:|");
    for row in rows.into_inner().unwrap().values() {
        println!("{row}");
    }
}

fn row(server: &Server, (socket, load): (Socket, Load), run: &Run) -> String {
    let record = &run.record;
    let of = |failure| record.failures.get(&failure).copied().unwrap_or(0);
    let named = [Failure::ConnectRefused, Failure::ReadReset, Failure::ReadEof].map(of);
    let mut row = format!("| {} | {} |", server.name, if socket == Socket::Tcp { "TCP" } else { "unix" });
    let _ = write!(row, " {} |", if load == Load::Kept { "kept" } else { "one per request" });
    let [refused, reset, eof] = named;
    let other = record.errors - named.iter().sum::<u64>();
    let _ = write!(
        row,
        " {} | {refused} | {reset} | {eof} | {other} | {} |",
        record.requests.completed, record.connections.closed_by_server
    );
    row
}
