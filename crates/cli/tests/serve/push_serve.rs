//! `oroshi push` as a process: its listeners, sockets that are handed down, readiness, what it tells, how it ends.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Command;

use crate::push;
use crate::push::{Client, Got, HANG, Process, request};
use rustix::process::Signal;

fn oroshi(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oroshi"));
    command.arg("push").args(args);
    command
}

/// The status of a GET over TCP.
fn get(port: u16, target: &str) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.write_all(&push::head("GET", target, &["Connection: close"])).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn clients_and_backends_have_doors_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let admin = folder.path().join("admin.sock");
    let config = folder.path().join("push.toml");
    fs::write(&config, format!("[listen]\npublic = \"127.0.0.1:0\"\nadmin = \"{}\"\n", admin.display())).unwrap();
    let mut hub = push::start(&mut oroshi(&["--config", config.to_str().unwrap()])).unwrap();
    let port = hub.port();
    // What is not for clients is not there for them.
    for (target, public) in
        [("/ping", 200), ("/status", 404), ("/metrics", 404), ("/stats", 404), ("/publish", 404), ("/sessions/a", 404)]
    {
        assert_eq!(get(port, target), public, "{target}");
    }
    for (target, inside) in [
        ("/ping", 200),
        ("/status", 200),
        ("/metrics", 200),
        ("/stats", 200),
        ("/publish", 405),
        ("/connect", 404),
        ("/poll", 404),
    ] {
        assert_eq!(request(&admin, "GET", target, &[], b"").status, inside, "{target}");
    }
    // Whoever could write there could publish.
    assert_eq!(fs::metadata(&admin).unwrap().permissions().mode() & 0o777, 0o600);
    hub.signal(Signal::TERM);
    assert_eq!(hub.ended().code(), Some(0));
    assert!(!admin.exists(), "its file stays behind");
    let told = hub.said.join("\n");
    for words in
        ["info: configuration: ", "(public: connecting and polling)", "(admin: publishing and status)", "info: ended"]
    {
        assert!(told.contains(words), "{words} is not in\n{told}");
    }
    assert!(!told.contains("warn"), "{told}");
}

#[test]
fn it_says_when_it_is_ready_and_when_anybody_may_publish() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let notify = UnixDatagram::bind(&path).unwrap();
    notify.set_read_timeout(Some(HANG)).unwrap();
    let mut hub = push::start(oroshi(&["--port", "0"]).env("NOTIFY_SOCKET", &path)).unwrap();
    let mut message = [0; 64];
    let length = notify.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1\n");
    let port = hub.port();
    assert_eq!(get(port, "/status"), 200);
    hub.signal(Signal::INT);
    assert_eq!(hub.ended().code(), Some(0));
    let told = hub.said.join("\n");
    // All addresses are shown as such, and not as one of them.
    let all = if std::net::TcpListener::bind("[::1]:0").is_ok() { "*" } else { "0.0.0.0" };
    assert!(told.contains(&format!("warn: every client that reaches http://{all}:{port}/ may publish")), "{told}");
    assert!(told.contains(&format!("info: listening on http://{all}:{port}/ (everything)")), "{told}");
}

#[test]
fn publishing_without_a_token_is_warned_of_where_others_could() {
    let folder = tempfile::tempdir().unwrap();
    let (config, admin) = (folder.path().join("push.toml"), folder.path().join("admin.sock"));
    let warnings = |listen: &str, rest: &str| {
        fs::write(&config, format!("[listen]\n{listen}\n{rest}")).unwrap();
        let mut command = oroshi(&["--config", config.to_str().unwrap()]);
        let mut hub = push::start(command.env("TOKEN", "s3cret")).unwrap();
        hub.signal(Signal::TERM);
        assert_eq!(hub.ended().code(), Some(0));
        hub.said
            .iter()
            .filter(|line| line.contains(" warn: "))
            .map(|line| line.split(" warn: ").nth(1).unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let public = "public = \"127.0.0.1:0\"";
    let loopback = format!("{public}\nadmin = \"127.0.0.1:0\"");
    let told = warnings(&loopback, "");
    assert!(
        matches!(&told[..], [one] if one.starts_with("every program on this machine may publish at http://127.0.0.1:")),
        "{told:?}"
    );
    let told = warnings("everything = \"127.0.0.1:0\"", "");
    assert!(matches!(&told[..], [one] if one.starts_with("every client that reaches http://127.0.0.1:")), "{told:?}");
    for (listen, rest) in [
        (loopback, "[auth]\ntoken-env = \"TOKEN\"\n"),
        ("everything = \"127.0.0.1:0\"".into(), "[auth]\ntoken-env = \"TOKEN\"\n"),
        (format!("{public}\nadmin = \"{}\"", admin.display()), ""),
    ] {
        assert_eq!(warnings(&listen, rest), [""; 0], "{listen}");
    }
    // Histories in JetStream, and no channel that has one. That NATS is not there is another warning.
    let cluster = "[auth]\ntoken-env = \"TOKEN\"\n[cluster]\nnats = \"nats://127.0.0.1:1\"\nhistory = \"jetstream\"\n";
    let kept = format!("{cluster}[[group]]\npattern = \"news\"\nlatest = true\n");
    for (rest, is_warned) in [(cluster, true), (kept.as_str(), false)] {
        let told = warnings(public, rest);
        let of_history = |line: &String| line.starts_with("cluster.history = \"jetstream\" keeps nothing");
        assert_eq!(told.iter().any(of_history), is_warned, "{told:?}");
    }
}

/// What is there is said where it may be asked for.
#[test]
fn clients_are_told_of_what_there_is_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("push.toml");
    let listen = "[listen]\npublic = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n";
    for (first, expected) in [("", "/connect, /poll or /ping"), ("transports = [\"sse\"]\n", "/connect or /ping")] {
        fs::write(&config, format!("{first}{listen}")).unwrap();
        let mut hub = push::start(&mut oroshi(&["--config", config.to_str().unwrap()])).unwrap();
        let [public, admin] = hub.ports(2)[..] else { panic!("{:?}", hub.said) };
        let message = |port: u16, target: &str| {
            let answer = push::request_at(port, "GET", target, &["Host: localhost"], b"");
            assert_eq!(answer.status, 404, "{target}: {answer:?}");
            answer.json()["message"].as_str().unwrap().to_owned()
        };
        for target in ["/openapi.json", "/status", "/"] {
            assert_eq!(
                message(public, target),
                format!("there is nothing at `{target}` for clients: expected {expected}")
            );
        }
        assert_eq!(message(admin, "/nothing"), "there is nothing at `/nothing`: /openapi.json says what there is");
    }
}

#[test]
fn the_level_says_how_much_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("push.sock");
    let told = |level: &str| {
        let mut command = oroshi(&["-log-level", level, "-sock"]);
        let mut child = command.arg(&socket).stderr(std::process::Stdio::piped()).spawn().unwrap();
        // Signals are taken before anything listens.
        while !socket.exists() || std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            std::thread::yield_now();
        }
        assert_eq!(request(&socket, "GET", "/ping", &[], b"").status, 200);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!((told("error"), told("warn")), (String::new(), String::new()));
    // Where the limit on descriptors is low there is a line about it.
    let info = told("info");
    assert_eq!(info.lines().filter(|line| !line.contains("limits.sessions is lowered to ")).count(), 2, "{info}");
    assert!(told("debug").contains("debug: [limits]"));
}

/// Starts a hub with a listening socket at descriptor 3, as systemd and `oroshi start` do.
fn inheriting(listener: &UnixListener, variables: &[(&str, &str)], args: &[&str]) -> Result<Process, String> {
    // A shell does what is between fork and exec. It gets the socket as its standard input, because dash knows no
    // descriptor above 9.
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ exec \"$@\"";
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_oroshi"), "push"]).args(args);
    command.envs(variables.iter().copied());
    command.stdin(OwnedFd::from(listener.try_clone().unwrap()));
    push::start_with_stdin(&mut command)
}

#[test]
fn sockets_that_are_handed_down_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, config) = (folder.path().join("a.sock"), folder.path().join("push.toml"));
    let listener = UnixListener::bind(&socket).unwrap();
    // Without a configuration: everything.
    let hub = inheriting(&listener, &[("LISTEN_FDS", "1")], &[]).unwrap();
    assert_eq!(request(&socket, "GET", "/status", &[], b"").status, 200);
    let mut client = Client::open(&socket, "/connect", &[]).unwrap_or_else(|answer| panic!("{answer:?}"));
    assert!(matches!(client.next(), Got::Text(_)));
    drop(hub);
    // By its name.
    let only = |args: &str| fs::write(&config, args).unwrap();
    only("[listen]\nadmin = \"127.0.0.1:0\"\n");
    let named = [("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", "public")];
    let hub = inheriting(&listener, &named, &["--config", config.to_str().unwrap()]).unwrap();
    assert_eq!(request(&socket, "GET", "/status", &[], b"").status, 404);
    drop(hub);
    // By its address, as `oroshi start` names it.
    only(&format!("[listen]\nadmin = \"unix:{}\"\npublic = \"127.0.0.1:0\"\n", socket.display()));
    let variable = format!("{}=3", socket.display());
    let hub =
        inheriting(&listener, &[("SERVER_STARTER_PORT", &variable)], &["--config", config.to_str().unwrap()]).unwrap();
    assert_eq!(request(&socket, "GET", "/connect", &[], b"").status, 404);
    assert_eq!(request(&socket, "GET", "/status", &[], b"").status, 200);
    drop(hub);
    // One that nothing is said about could let the wrong people in.
    only("[listen]\neverything = \"127.0.0.1:0\"\n");
    let refused = inheriting(&listener, &[("LISTEN_FDS", "1")], &["--config", config.to_str().unwrap()]).err().unwrap();
    assert!(refused.contains("LISTEN_FDS passes a socket named `unknown`"), "{refused}");
    // One for TLS is never served without it.
    let named = [("LISTEN_FDS", "1"), ("LISTEN_FDNAMES", "tls")];
    let refused = inheriting(&listener, &named, &["--config", config.to_str().unwrap()]).err().unwrap();
    assert!(refused.contains("listen.tls: there is no certificate"), "{refused}");
    assert!(Path::new(&socket).exists(), "the file is the supervisor's");
}

#[test]
fn an_address_in_use_is_told_with_who_has_it() {
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = oroshi(&["--port", &port]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("cannot listen on `:{port}`")) && told.contains("next: find the process"), "{told}");
}
