//! `oroshi push` at the limits of its machine: no descriptors left, and memory after many sessions have come and gone.

mod push;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use push::{Client, Got, HANG, Process, request};
use rustix::process::Signal;

/// A hub on a unix socket in `folder`, behind a hard limit on descriptors if there is one.
fn start(folder: &Path, descriptors: Option<u32>) -> Process {
    let config = folder.join("push.toml");
    let socket = folder.join("hub.sock");
    fs::write(&config, format!("[listen]\neverything = [\"unix:{}\"]\n", socket.display())).unwrap();
    let limit = descriptors.map_or(String::new(), |count| format!("ulimit -n {count} && "));
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{limit}exec \"$0\" \"$@\""));
    command.arg(env!("CARGO_BIN_EXE_oroshi")).args(["push", "--config"]).arg(&config);
    Process::start(&mut command).unwrap()
}

/// Waits until `/status` is as `is` wants it.
fn until(socket: &Path, what: &str, is: impl Fn(&serde_json::Value) -> bool) {
    let start = Instant::now();
    loop {
        let answer = request(socket, "GET", "/status", &[], b"");
        let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        if is(&status) {
            return;
        }
        assert!(start.elapsed() < HANG, "{what}: {status}");
        std::thread::yield_now();
    }
}

#[test]
fn without_descriptors_it_waits_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hub.sock");
    let mut hub = start(folder.path(), Some(64));
    let held: Vec<Client> = (0..40).map(|_| Client::open(&socket, "/connect", &[]).unwrap()).collect();
    // More than there is room for: those who come later wait for their turn, which the kernel keeps for them. Who is in leaves again.
    std::thread::scope(|scope| {
        for _ in 0..80 {
            scope.spawn(|| {
                let mut client = Client::open(&socket, "/connect", &[]).unwrap();
                assert!(matches!(client.next(), Got::Text(_)));
            });
        }
    });
    drop(held);
    until(&socket, "all have gone", |status| status["sessions"]["current"] == 0);
    hub.signal(Signal::TERM);
    assert!(hub.ended().success(), "{:?}", hub.said);
}

/// The process's own memory, in bytes.
fn memory(id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// `OROSHI_SESSIONS=100000` for the whole number; a tenth of it shows a leak just as well.
#[test]
fn memory_returns_once_the_sessions_have_gone() {
    let sessions: usize = std::env::var("OROSHI_SESSIONS").map_or(10_000, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("hub.sock");
    let hub = start(folder.path(), None);
    let round = |count: usize| {
        let clients: Vec<Client> = (0..count).map(|_| Client::open(&socket, "/connect", &[]).unwrap()).collect();
        let answer = request(&socket, "POST", "/publish/raw?all=1", &[], &[b'x'; 1000]);
        assert_eq!(answer.status, 200, "{}", answer.text());
        drop(clients);
        until(&socket, "all have gone", |status| status["sessions"]["current"] == 0);
    };
    round(500);
    let before = memory(hub.id());
    for _ in 0..sessions / 500 {
        round(500);
    }
    let after = memory(hub.id());
    // An allocator keeps some; a hundred bytes left behind by each session would show.
    let most = before + (sessions as u64 * 100).min(1 << 20) + (1 << 20) / 2;
    assert!(after <= most, "{before} bytes before {sessions} sessions, {after} after");
}

#[test]
fn requests_and_callbacks_that_fail_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let (config, socket) = (folder.path().join("push.yml"), folder.path().join("hub.sock"));
    // kuiperbelt's configuration: its access log is on unless it is suppressed. Nobody listens where the callback goes.
    let nobody = folder.path().join("nobody.sock");
    let callback = format!("callback:\n  close: unix:{}:/close\n  retries: 0\n", nobody.display());
    let text = format!("sock: {}\npath:\n  ping: /alive\n{callback}", socket.display());
    for (suppress, told) in [("", true), ("suppress_access_log: true\n", false)] {
        fs::write(&config, format!("{text}{suppress}")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
        let mut hub = Process::start(command.args(["push", "-config"]).arg(&config)).unwrap();
        assert_eq!(request(&socket, "GET", "/alive", &[], b"").status, 200);
        drop(Client::open(&socket, "/connect", &[]).unwrap());
        until(&socket, "the callback is given up", |status| status["dead_letters"] == 1);
        hub.signal(Signal::TERM);
        assert!(hub.ended().success(), "{:?}", hub.said);
        let has = |text: &str| hub.said.iter().any(|line| line.contains(text));
        assert_eq!(has("info: method=GET path=/alive status=200 us="), told, "{:?}", hub.said);
        assert!(has("warn: given up: ") && has(" callback=close session="), "{:?}", hub.said);
    }
}
