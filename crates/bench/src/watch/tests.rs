//! Watching real processes: this very test program, started again in the role of a server that does as it is told.
//!
//! CPU time is compared with CPU time: what was seen from outside with the server's own CPU clock. Nothing depends on
//! how long anything takes.

mod finding;
mod usage;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use oroshi_net::clock::{process_cpu_ns, thread_cpu_ns};

use super::*;

const ROLE: &str = "OROSHI_WATCH_TEST_ROLE";
const MS: u64 = 1_000_000;

/// What two looks at a process that sleeps can miss of its clock: system calls on its way to sleep.
const NANOSECONDS_OFF: f64 = 0.004;
/// A moment amid a run of [`finish`]'s length.
const HALF: Duration = Duration::from_millis(500);
/// User and system time are each cut off to a tick, at both ends.
const TICKS_OFF: f64 = 0.035;

// ---- the server's role ----

/// Not a test but the server: it carries out one order per line and answers with its CPU clock, or with what it was
/// asked for.
#[test]
#[ignore = "run by the tests below, as a process of its own"]
fn role() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let (mut kept, mut held): (Vec<Server>, Vec<Box<dyn std::any::Any>>) = Default::default();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (order, argument) = line.split_once(' ').unwrap_or((&line, ""));
        let number = || argument.parse::<u64>().unwrap();
        let answer = match order {
            "clock" => process_cpu_ns().to_string(),
            "burn" => burn(number()).to_string(),
            "burn-in-thread" => {
                let ms = number();
                std::thread::spawn(move || burn(ms)).join().unwrap();
                process_cpu_ns().to_string()
            }
            "burn-in-child" => {
                let mut child = Server::start();
                let clock = child.order(&format!("burn {argument}"));
                child.end();
                clock.to_string()
            }
            "keep-child" => {
                kept.push(Server::start());
                kept.last().unwrap().pid().to_string()
            }
            "child" => kept.last_mut().unwrap().ask(argument),
            "end-child" => {
                kept.pop().unwrap().end();
                String::new()
            }
            "grow" => {
                held.push(Box::new(vec![1_u8; number() as usize]));
                String::new()
            }
            "shrink" => {
                held.clear();
                String::new()
            }
            "adopt" => {
                rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
                String::new()
            }
            // As a server does that goes to the background by itself.
            "daemon" => {
                let output = Command::new("sh").args(["-c", "sleep 1000 >/dev/null 2>&1 & echo $!"]).output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            }
            "tcp" => {
                let listener = TcpListener::bind(argument).unwrap();
                let address = listener.local_addr().unwrap().to_string();
                held.push(Box::new(listener));
                address
            }
            "unix" => {
                held.push(Box::new(UnixListener::bind(argument).unwrap()));
                String::new()
            }
            "abstract" => {
                let address = std::os::unix::net::SocketAddr::from_abstract_name(argument).unwrap();
                held.push(Box::new(UnixListener::bind_addr(&address).unwrap()));
                String::new()
            }
            _ => panic!("what is {line:?}?"),
        };
        writeln!(std::io::stdout(), "> {answer}").unwrap();
    }
    std::process::exit(0);
}

/// Uses CPU time, by the clock of the calling thread, and gives the process's.
fn burn(ms: u64) -> u64 {
    let end = thread_cpu_ns() + ms * MS;
    while thread_cpu_ns() < end {
        std::hint::black_box((0..1000_u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
    }
    process_cpu_ns()
}

// ---- the tests' side ----

/// A server process, which ends with this value.
struct Server {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start() -> Self {
        Self::start_with(Command::new(std::env::current_exe().unwrap()))
    }

    /// Ignores SIGCHLD, as a shell hands it on: no child's time is ever collected.
    fn start_ignoring_children() -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"trap "" CHLD; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
        Self::start_with(shell)
    }

    fn start_with(mut command: Command) -> Self {
        command
            .args(["--exact", "watch::tests::role", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, "server");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut server = Self { child, orders, answers };
        server.ask("clock");
        server
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has an order carried out, and waits until the process and its threads sleep again: only then is the account that
    /// the kernel keeps of them complete.
    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        let answer = loop {
            let mut line = String::new();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the server died of {order:?}");
            // The test harness prints lines of its own.
            if let Some(answer) = line.split_once("> ") {
                break answer.1.trim().to_owned();
            }
        };
        while !is_asleep(self.pid()) {
            std::thread::yield_now();
        }
        answer
    }

    fn order(&mut self, order: &str) -> u64 {
        self.ask(order).parse().unwrap()
    }

    fn end(&mut self) {
        drop(self.orders.take());
        // With SIGCHLD ignored there is nothing to wait for, and wait says so when the child is gone.
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn is_asleep(pid: u32) -> bool {
    let Ok(tasks) = procfs::process::Process::new(pid as i32).and_then(|process| process.tasks()) else { return true };
    tasks.flatten().all(|task| task.stat().is_ok_and(|stat| stat.state != 'R'))
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The elapsed time only scales shares; here they are of one second.
fn finish(watch: &mut Watch) -> ServerUsage {
    watch.finish(Duration::from_secs(1), &Clocks::default()).unwrap()
}

#[track_caller]
fn assert_near(found: f64, expected: f64, off: f64) {
    assert!((found - expected).abs() <= off, "{found} is not within {off} of {expected}");
}

/// A folder that goes with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("oroshi-watch-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
