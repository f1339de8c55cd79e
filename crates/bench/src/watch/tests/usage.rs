//! What servers used: CPU time, memory, switches, CPUs.

use std::io::Read;
use std::os::unix::net::UnixStream;

use oroshi_net::clock::cpu_ns_of;

use super::*;

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

/// Whoever looks on is late at both ends.
#[test]
fn the_measured_part_is_what_its_own_clocks_say() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    assert_eq!(watch.pids(), [server.pid()]);
    let before = cpu_ns_of(server.pid()).unwrap();
    server.order("burn 30");
    watch.begin();
    server.order("burn 50");
    let after = cpu_ns_of(server.pid()).unwrap();
    server.order("burn 40");
    let clocks = Clocks { length: HALF, ends: HashMap::from([(server.pid(), (before, after))]) };
    let usage = watch.finish(Duration::from_secs(1), &clocks).unwrap();
    assert_eq!(usage.precision, Precision::Nanoseconds);
    assert_near(usage.cpu_seconds, seconds(after - before), 1e-9);
    assert_near(usage.busiest_process, 2.0 * usage.cpu_seconds, 1e-9);
    // What it did when is told by the one that looked on.
    assert_near(usage.samples[0].cpu, 0.09, NANOSECONDS_OFF);
}

#[test]
fn beginning_again_forgets_the_warm_up() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    server.order("burn 100");
    server.order("burn-in-child 100");
    server.ask("keep-child");
    watch.sample(HALF);
    server.ask("end-child");
    watch.begin();
    let before = server.order("clock");
    let used = seconds(server.order("burn 50") - before);
    let usage = finish(&mut watch);
    assert_near(usage.cpu_seconds, used, NANOSECONDS_OFF);
    assert_eq!((usage.exited, usage.precision), (0, Precision::Nanoseconds));
}

/// What a thread used that ended is in the process's own clock.
#[test]
fn threads_that_end_are_counted_to_the_nanosecond() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    let before = server.order("clock");
    watch.begin();
    let used = seconds(server.order("burn-in-thread 150") - before);
    let usage = finish(&mut watch);
    assert_eq!(usage.precision, Precision::Nanoseconds);
    assert_near(usage.cpu_seconds, used, NANOSECONDS_OFF);
    assert!(usage.busiest_thread < used / 2.0, "what is left of its threads did little: {usage:?}");
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
    watch.sample(HALF);
    let usage = finish(&mut watch);
    let found = usage.processes.iter().find(|process| process.pid == worker).unwrap();
    assert_near(found.cpu_seconds, used, NANOSECONDS_OFF);
    assert_eq!(usage.precision, Precision::Nanoseconds);
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
            watch.sample(HALF);
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
    watch.sample(HALF);
    server.ask("end-child");
    let usage = finish(&mut watch);
    assert_eq!(usage.exited, 1);
    assert_near(usage.cpu_seconds - usage.processes[0].cpu_seconds, used, TICKS_OFF);
}

// ---- over time ----

#[test]
fn samples_say_when_what_was_used() {
    const SIZE: u64 = 64 << 20;
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    server.order("burn 100");
    watch.sample(HALF);
    let before = server.order("clock");
    watch.begin();
    let early = server.order("burn 100") - before;
    server.ask(&format!("grow {SIZE}"));
    watch.sample(HALF);
    server.ask("shrink");
    let before = server.order("clock");
    let late = server.order("burn 200") - before;
    server.order("burn-in-child 100");
    let usage = finish(&mut watch);
    assert_eq!(usage.samples.iter().map(|sample| sample.at_s).collect::<Vec<_>>(), [0.5, 1.0], "{usage:?}");
    let used: Vec<f64> = usage.samples.iter().map(|sample| sample.cpu * 0.5).collect();
    // What it took to fill the memory and to free it is on top.
    assert!(used[0] >= seconds(early) - NANOSECONDS_OFF, "{usage:?}");
    assert!(used[1] >= seconds(late) + 0.1 - NANOSECONDS_OFF - TICKS_OFF, "{usage:?}");
    assert_near(used.iter().sum(), usage.cpu_seconds, 1e-3);
    let rss: Vec<u64> = usage.samples.iter().map(|sample| sample.rss_bytes).collect();
    assert!(rss[0] == usage.rss_peak_bytes && rss[1] == usage.rss_end_bytes && rss[0] > rss[1] + SIZE / 2, "{usage:?}");
}

#[test]
fn a_server_that_ended_has_no_figures() {
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    server.end();
    watch.sample(HALF);
    assert_eq!(watch.finish(Duration::from_secs(1), &Clocks::default()), None);
}

// ---- memory, switches, CPUs ----

#[test]
fn the_peak_of_memory_is_seen_in_samples() {
    const SIZE: u64 = 64 << 20;
    let mut server = Server::start();
    let mut watch = Watch::for_pid(server.pid()).unwrap();
    watch.begin();
    server.ask(&format!("grow {SIZE}"));
    watch.sample(HALF);
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

// ---- a real server ----

#[test]
fn nginx_is_watched_with_its_workers() {
    let http = "server { listen unix:@UNIX@; location / { return 200 hello; } }";
    let setup = oroshi_testkit::nginx::Setup { workers: 2, http, ..Default::default() };
    let Some(nginx) = setup.start("nginx_is_watched_with_its_workers") else { return };
    let get = || {
        let mut stream = UnixStream::connect(&nginx.unix).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let address = UnixAddress::path(&nginx.unix).unwrap();
    let mut watch = Watch::for_unix(&address, None).unwrap();
    watch.begin();
    (0..2000).for_each(|_| assert!(get().ends_with("hello")));
    watch.sample(HALF);
    let usage = finish(&mut watch);
    assert_eq!((usage.process_count, usage.precision), (3, Precision::Nanoseconds), "{usage:?}");
    assert!(usage.processes.iter().all(|process| process.name == "nginx"));
    assert!(usage.cpu_seconds > 0.0 && usage.voluntary_switches > 0 && usage.rss_end_bytes > 0, "{usage:?}");
}
