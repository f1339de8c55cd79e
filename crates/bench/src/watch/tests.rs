//! Watching real processes: this very test program, started again in the role of a server that does as it is told.
//!
//! CPU time is compared with CPU time: what was seen from outside with the server's own CPU clock. Nothing depends on
//! how long anything takes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use super::*;

const ROLE: &str = "OROSHI_WATCH_TEST_ROLE";
const MS: u64 = 1_000_000;

/// What two looks at a process that sleeps can miss of its clock: system calls on its way to sleep.
const NANOSECONDS_OFF: f64 = 0.004;
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
            "clock" => cpu_clock().to_string(),
            "burn" => burn(number()).to_string(),
            "burn-in-thread" => {
                let ms = number();
                std::thread::spawn(move || burn(ms)).join().unwrap();
                cpu_clock().to_string()
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
    let thread_clock = || nanoseconds(rustix::time::ClockId::ThreadCPUTime);
    let end = thread_clock() + ms * MS;
    while thread_clock() < end {
        std::hint::black_box((0..1000_u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
    }
    cpu_clock()
}

fn cpu_clock() -> u64 {
    nanoseconds(rustix::time::ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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
    watch.finish(Duration::from_secs(1)).unwrap()
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

// ---- CPU time ----

#[test]
fn a_process_is_measured_to_the_nanosecond() {
    let mut server = Server::start();
    server.order("burn 60");
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    let before = server.order("clock");
    watch.begin();
    let used = seconds(server.order("burn 150") - before);
    let usage = finish(&mut watch);
    assert_eq!(
        (usage.precision, usage.found_by, usage.process_count, usage.exited),
        (Precision::Nanoseconds, FoundBy::Pid, 1, 0)
    );
    assert_near(usage.cpu_seconds, used, NANOSECONDS_OFF);
    assert_near(usage.user_seconds + usage.system_seconds, used, TICKS_OFF);
    assert_near(usage.busiest_process, used, NANOSECONDS_OFF);
    assert_near(usage.busiest_thread, used, NANOSECONDS_OFF);
    assert_near(usage.cpu_us_per_request(1000).unwrap(), usage.cpu_seconds * 1000.0, 1e-6);
    assert_eq!(usage.cpu_us_per_request(0), None);
    assert_eq!(usage.processes[0].pid, server.pid());
}

#[test]
fn beginning_again_forgets_the_warm_up() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    server.order("burn 100");
    server.order("burn-in-child 100");
    server.ask("keep-child");
    watch.sample();
    server.ask("end-child");
    watch.begin();
    let before = server.order("clock");
    let used = seconds(server.order("burn 50") - before);
    let usage = finish(&mut watch);
    assert_near(usage.cpu_seconds, used, NANOSECONDS_OFF);
    assert_eq!((usage.exited, usage.precision), (0, Precision::Nanoseconds));
}

/// What a thread used that ended is known to the process's account only.
#[test]
fn threads_that_end_are_counted_in_ticks() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    let before = server.order("clock");
    watch.begin();
    let used = seconds(server.order("burn-in-thread 150") - before);
    let usage = finish(&mut watch);
    assert_eq!(usage.precision, Precision::Ticks, "the threads are the same at both ends, and yet they are not all");
    assert_near(usage.cpu_seconds, used, TICKS_OFF);
}

#[test]
fn children_that_are_born_and_end_unseen_are_counted() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    let used = seconds(server.order("burn-in-child 200"));
    let usage = finish(&mut watch);
    assert_eq!((usage.precision, usage.exited), (Precision::Ticks, 0));
    // The parent's own part, starting and waiting, is on top; so is the child's end.
    let own = usage.processes[0].cpu_seconds;
    assert_near(usage.cpu_seconds - own, used, TICKS_OFF);
}

#[test]
fn workers_are_measured_with_their_master() {
    let mut server = Server::start();
    server.ask("keep-child");
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    let before = server.order("child clock");
    watch.begin();
    let used = seconds(server.order("child burn 150") - before);
    let usage = finish(&mut watch);
    assert_eq!((usage.precision, usage.process_count), (Precision::Nanoseconds, 2));
    assert_near(usage.cpu_seconds, used, 2.0 * NANOSECONDS_OFF);
    assert_near(usage.busiest_process, used, NANOSECONDS_OFF);
    assert_eq!(usage.processes[0].parent, server.pid(), "the worker is the busiest");
}

/// Such a worker's whole life is in its own account: from its birth, which the measured part saw.
#[test]
fn workers_born_during_the_run_count_from_their_birth() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    let worker = server.order("keep-child") as u32;
    let used = seconds(server.order("child burn 150"));
    watch.sample();
    let usage = finish(&mut watch);
    let found = usage.processes.iter().find(|process| process.pid == worker).unwrap();
    assert_near(found.cpu_seconds, used, TICKS_OFF);
}

/// The master collects the whole of a worker's life. What is before the run must come off.
#[test]
fn workers_that_end_count_without_what_was_before() {
    for seen in [true, false] {
        let mut server = Server::start();
        server.ask("keep-child");
        let before = server.order("child burn 300");
        let mut watch = Watch::for_pid(server.pid()).unwrap();
        watch.begin();
        let used = seconds(server.order("child burn 150") - before);
        if seen {
            watch.sample();
        }
        server.ask("end-child");
        let usage = finish(&mut watch);
        assert_eq!((usage.process_count, usage.exited, usage.precision), (1, 1, Precision::Ticks));
        assert_near(usage.cpu_seconds - usage.processes[0].cpu_seconds, used, TICKS_OFF);
    }
}

/// All at once gone: what the worker's child used before comes off what the master collects of the worker.
#[test]
fn workers_that_end_with_their_children_count_without_what_was_before() {
    let mut server = Server::start();
    server.ask("keep-child");
    server.ask("child keep-child");
    let before = server.order("child child burn 300");
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    let used = seconds(server.order("child child burn 150") - before);
    server.ask("child end-child");
    server.ask("end-child");
    let usage = finish(&mut watch);
    assert_eq!((usage.process_count, usage.exited), (1, 2));
    assert_near(usage.cpu_seconds - usage.processes[0].cpu_seconds, used, TICKS_OFF);
}

#[test]
fn workers_that_nobody_waits_for_count_as_last_seen() {
    let mut server = Server::start_ignoring_children();
    server.ask("keep-child");
    let before = server.order("child burn 200");
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    let used = seconds(server.order("child burn 150") - before);
    watch.sample();
    server.ask("end-child");
    let usage = finish(&mut watch);
    assert_eq!(usage.exited, 1);
    assert_near(usage.cpu_seconds - usage.processes[0].cpu_seconds, used, TICKS_OFF);
}

#[test]
fn a_server_that_ended_has_no_figures() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    server.end();
    watch.sample();
    assert_eq!(watch.finish(Duration::from_secs(1)), None);
}

// ---- memory, switches, CPUs ----

#[test]
fn the_peak_of_memory_is_seen_in_samples() {
    const SIZE: u64 = 64 << 20;
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    server.ask(&format!("grow {SIZE}"));
    watch.sample();
    server.ask("shrink");
    let usage = finish(&mut watch);
    assert!(usage.rss_peak_bytes >= usage.rss_begin_bytes + SIZE * 9 / 10, "{usage:?}");
    assert!(usage.rss_end_bytes <= usage.rss_peak_bytes - SIZE / 2, "{usage:?}");
    // Counters of resident memory are kept per CPU and may lag by some hundred KiB.
    assert!(usage.pss_end_bytes.unwrap() <= usage.rss_end_bytes + (1 << 20), "{usage:?}");
}

#[test]
fn waiting_is_a_voluntary_switch() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    // Each time the server is asleep before the next order comes.
    (0..40).for_each(|_| drop(server.ask("clock")));
    let usage = finish(&mut watch);
    assert!((40..400).contains(&usage.voluntary_switches), "{usage:?}");
}

#[test]
fn a_pinned_server_has_fewer_cpus() {
    let all = oroshi_net::available_cpus().unwrap();
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    assert_eq!(finish(&mut watch).cpus_allowed, all.len());
    let mut one = rustix::thread::CpuSet::new();
    one.set(all.iter().next().unwrap());
    for task in fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().flatten() {
        let tid = task.file_name().to_str().unwrap().parse().unwrap();
        rustix::thread::sched_setaffinity(rustix::process::Pid::from_raw(tid), &one).unwrap();
    }
    watch.begin();
    server.order("burn 50");
    let usage = finish(&mut watch);
    assert_eq!(usage.cpus_allowed, 1);
    if usage.cpu_limit.is_none() {
        assert_near(usage.of_allowed_cpus, usage.cpu_seconds, 1e-9);
    }
}

// ---- finding ----

#[track_caller]
fn assert_watches(found: Result<Watch, NotFound>, by: FoundBy, server: &Server) {
    let usage = finish(&mut found.unwrap());
    assert_eq!(usage.found_by, by);
    assert_eq!(usage.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [server.pid()]);
}

#[test]
fn a_tcp_listener_is_found_by_the_address_that_reaches_it() {
    for (bound, reached) in [
        ("127.0.0.1:0", vec!["127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]"]),
        ("0.0.0.0:0", vec!["127.0.0.1", "127.0.0.77"]),
        ("[::1]:0", vec!["[::1]", "[::]"]),
        ("[::]:0", vec!["127.0.0.1", "[::1]"]),
    ] {
        let Ok(probe) = TcpListener::bind(bound) else { continue };
        drop(probe);
        let mut server = Server::start();
        let address: SocketAddr = server.ask(&format!("tcp {bound}")).parse().unwrap();
        for ip in reached {
            let address = format!("{ip}:{}", address.port()).parse().unwrap();
            assert_watches(Watch::for_tcp(address), FoundBy::TcpListener, &server);
        }
    }
}

#[test]
fn all_holders_of_a_socket_are_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A process that another test is just starting holds all our sockets until it has become another program: hence not
    // at once.
    eventually(|| matches!(Watch::for_tcp(address), Err(NotFound::OwnProcess)));
    let holder = || {
        let socket = Stdio::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap()));
        Holder(Command::new("sleep").arg("1000").stdin(socket).spawn().unwrap())
    };
    let holders = [holder(), holder()];
    let expected = HashSet::from(holders.each_ref().map(|holder| holder.0.id()));
    // We hold it as well, and are not watched for it.
    eventually(|| {
        let usage = finish(&mut Watch::for_tcp(address).unwrap());
        usage.processes.iter().map(|process| process.pid).collect::<HashSet<_>>() == expected
    });
}

#[track_caller]
fn eventually(mut condition: impl FnMut() -> bool) {
    assert!((0..1000).any(|_| condition()), "it never came to be");
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_unix_listener_is_found_by_its_name() {
    let folder = Folder::new("a folder with spaces");
    let (path, link) = (folder.path("app socket"), folder.path("link"));
    let mut server = Server::start();
    server.ask(&format!("unix {path}"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for name in [&path, &link] {
        let address = UnixAddress::path(name).unwrap();
        assert_watches(Watch::for_unix(&address, None), FoundBy::UnixListener, &server);
    }
    let name = format!("oroshi-watch-{}", std::process::id());
    server.ask(&format!("abstract {name}"));
    let address = UnixAddress::abstract_name(name).unwrap();
    assert_watches(Watch::for_unix(&address, None), FoundBy::UnixListener, &server);
}

/// The server bound a path relative to its own folder: only the kernel's word for the peer helps.
#[test]
fn a_unix_listener_of_unknown_name_is_found_by_its_credentials() {
    let mut server = Server::start();
    let address = UnixAddress::abstract_name("oroshi-watch-nobody-listens-here").unwrap();
    assert!(matches!(Watch::for_unix(&address, None), Err(NotFound::NoListener(_))));
    assert_watches(Watch::for_unix(&address, Some(server.pid())), FoundBy::PeerCredentials, &server);
    server.end();
    assert!(matches!(Watch::for_unix(&address, Some(server.pid())), Err(NotFound::NoProcess(_))));
}

#[test]
fn there_is_a_reason_for_finding_nothing() {
    let reason = |address: &str| Watch::for_tcp(address.parse().unwrap()).unwrap_err();
    assert!(matches!(reason("192.0.2.1:80"), NotFound::Remote(_)));
    assert!(matches!(reason("[2001:db8::1]:80"), NotFound::Remote(_)));
    // A port that is taken, so that nobody else listens there, by a socket that does not listen.
    let bound = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&bound).unwrap()).unwrap();
    assert!(matches!(reason(&address.to_string()), NotFound::NoListener(_)));
    assert!(matches!(Watch::for_pid(std::process::id()), Err(NotFound::OwnProcess)));
    assert!(matches!(Watch::for_pid(0), Err(NotFound::NoProcess(0))));
    assert!(matches!(Watch::for_pid(u32::MAX), Err(NotFound::NoProcess(_))));
}

/// Whoever started us is no part of the server, nor are we part of it.
#[test]
fn we_are_not_among_our_parent_s_children() {
    let parent = match process::look(std::process::id()) {
        process::Look::Here(own) => own.parent,
        other => panic!("{other:?}"),
    };
    if parent == 0 {
        return;
    }
    let mut ours = Server::start();
    let usage = finish(&mut Watch::for_pid(parent).unwrap());
    let pids: Vec<u32> = usage.processes.iter().map(|process| process.pid).collect();
    assert!(pids.contains(&parent));
    assert!(!pids.contains(&std::process::id()) && !pids.contains(&ours.pid()));
    ours.end();
}

// ---- a real server ----

#[test]
fn nginx_is_watched_with_its_workers() {
    if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
        return; // not installed
    }
    let folder = Folder::new("nginx");
    let socket = folder.path("s");
    let config = format!(
        "daemon off; worker_processes 2; pid {pid}; error_log {log}; events {{ accept_mutex off; }} http {{ access_log off; \
         client_body_temp_path {t}; proxy_temp_path {t}; fastcgi_temp_path {t}; uwsgi_temp_path {t}; scgi_temp_path {t}; \
         server {{ listen unix:{socket}; location / {{ return 200 'hello'; }} }} }}",
        pid = folder.path("pid"),
        log = folder.path("log"),
        t = folder.path("tmp"),
    );
    fs::write(folder.path("conf"), config).unwrap();
    let mut nginx =
        Nginx(Command::new("nginx").args(["-c", &folder.path("conf"), "-e", &folder.path("log")]).spawn().unwrap());
    let get = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(&socket)?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    while get().is_err() {
        assert!(nginx.0.try_wait().unwrap().is_none(), "{}", fs::read_to_string(folder.path("log")).unwrap());
        std::thread::yield_now();
    }
    let address = UnixAddress::path(Path::new(&socket)).unwrap();
    let mut watch = Watch::for_unix(&address, None).unwrap();
    watch.begin();
    (0..2000).for_each(|_| assert!(get().unwrap().ends_with("hello")));
    watch.sample();
    let usage = finish(&mut watch);
    assert_eq!((usage.process_count, usage.precision), (3, Precision::Nanoseconds), "{usage:?}");
    assert!(usage.processes.iter().all(|process| process.name == "nginx"));
    assert!(usage.cpu_seconds > 0.0 && usage.voluntary_switches > 0 && usage.rss_end_bytes > 0, "{usage:?}");
}

struct Nginx(Child);

/// Asked to end, for a master that is killed leaves its workers behind.
impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// TCP connections are no listeners, though they have the same port.
#[test]
fn connections_do_not_hide_the_listener() {
    let mut server = Server::start();
    let address: SocketAddr = server.ask("tcp 127.0.0.1:0").parse().unwrap();
    let _clients: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_watches(Watch::for_tcp(address), FoundBy::TcpListener, &server);
}
