//! The superdaemon with systemd: sockets, readiness, both ways.

use super::*;

#[test]
fn sockets_are_handed_down_as_by_systemd_too() {
    let Some(mut w) = world("sockets_are_handed_down_as_by_systemd_too") else { return };
    let ports = [w.port(), w.port()];
    let (one, two, path) = (format!("127.0.0.1:{}", ports[0]), ports[1].to_string(), w.path("socket"));
    w.start(&["--port", &one, "--path", &path, "--port", &two], &[]);
    w.until(1, "started");
    w.send(Signal::HUP);
    w.until(2, "started");
    for generation in ["1", "2"] {
        let events: Vec<_> = w.journal().into_iter().filter(|event| event.generation == generation).collect();
        let all =
            |what: &str| events.iter().filter(|event| event.what == what).map(|event| &event.more).collect::<Vec<_>>();
        let listen = all("listen");
        assert_eq!(listen.len(), 1, "{}", w.told());
        assert_eq!(listen[0][..2], ["3", "mine"], "{listen:?}");
        assert_eq!(listen[0][2].split(':').count(), 3, "a name each: {listen:?}");
        // In the same order as in SERVER_STARTER_PORT, and the same sockets.
        let (ports, descriptors) = (all("port"), all("listen-fd"));
        let of_ports: Vec<_> = ports.iter().map(|more| &more[1..]).collect();
        let of_descriptors: Vec<_> = descriptors.iter().map(|more| &more[..]).collect();
        assert_eq!(of_ports, of_descriptors, "{}", w.told());
    }
    w.send(Signal::TERM);
    w.end();
}

/// Whoever is started without sockets, or with some that do not stand in a row from 3 on, is not told of any.
#[test]
fn listen_fds_is_left_out_where_it_would_be_wrong() {
    let Some(mut w) = world("listen_fds_is_left_out_where_it_would_be_wrong") else { return };
    let port = w.port();
    for flags in [&[][..], &["--port", &format!("{port}=45")]] {
        // What a superdaemon above this one has said is not for the child.
        w.env("LISTEN_FDS", "1");
        w.env("LISTEN_FDNAMES", "old");
        w.start(flags, &[]);
        w.until(1, "started");
        assert!(w.journal().iter().all(|event| event.what != "listen"), "{}", w.told());
        w.send(Signal::TERM);
        w.end();
        fs::remove_file(w.path("journal")).unwrap();
    }
}

/// `Type=notify` and `Type=notify-reload`: systemd counts on each of these.
#[test]
fn who_started_it_is_told_as_systemd_wants_it() {
    let Some(mut w) = world("who_started_it_is_told_as_systemd_wants_it") else { return };
    let (pid, manager) = (w.path("pid"), w.path("manager"));
    let heard = UnixDatagram::bind(&manager).unwrap();
    heard.set_read_timeout(Some(HANG)).unwrap();
    let next = || {
        let mut room = [0; 4096];
        let length = heard.recv(&mut room).unwrap();
        String::from_utf8(room[..length].to_vec()).unwrap()
    };
    w.env("NOTIFY_SOCKET", &manager);
    w.env("WATCHDOG_USEC", "1000000");
    w.start(&["--pid-file", &pid, "--ready", "notify", "--ready-timeout", "1"], &["notify=1,3"]);
    let first = next();
    assert!(first.lines().any(|line| line == "READY=1") && first.contains("generation 1"), "{first}");
    // The child was given a socket of its own, and no watchdog that is not meant for it.
    let env: Vec<_> = w.journal().into_iter().filter(|event| event.what == "env").map(|event| event.line()).collect();
    assert!(
        !env.contains(&format!("env NOTIFY_SOCKET={manager}")) && !env.iter().any(|line| line.contains("WATCHDOG"))
    );
    for generation in [2, 3] {
        w.send(Signal::HUP);
        let reloading = next();
        let clock = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")?.parse::<f64>().ok());
        assert!(reloading.lines().any(|line| line == "RELOADING=1") && clock.is_some(), "{reloading}");
        // Also where it has failed: the reload is over, and the status says how it came out.
        let done = next();
        let said = format!("generation {generation}");
        assert!(done.lines().any(|line| line == "READY=1") && done.contains(&said), "{done}");
        assert_eq!(done.contains("failed"), generation == 2, "{done}");
    }
    w.send(Signal::TERM);
    assert_eq!(next(), "STOPPING=1");
    assert_eq!(w.end(), Some(0));
}

#[test]
fn sockets_of_systemd_are_handed_on_before_ours() {
    let mut w = World::new(Kind::Ours);
    let (socket, told, pid) = (w.path("systemd.sock"), w.path("told"), w.path("pid"));
    let (unix, tcp) = (UnixListener::bind(&socket).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = tcp.local_addr().unwrap().port();
    // As systemd does it: from descriptor 3 on, for this process alone. A shell does what is between fork and exec; it
    // knows descriptors of one digit alone.
    let variables = "LISTEN_FDS=2 LISTEN_FDNAMES=web:api LISTEN_PID=$$";
    let script = format!("exec 3<&0 4<&1 </dev/null >&2; export {variables}; exec \"$0\" \"$@\"");
    let report =
        r#"echo "$SERVER_STARTER_PORT $LISTEN_FDS $LISTEN_FDNAMES" >"$0"; [ $$ = $LISTEN_PID ] && exec "$1" target"#;
    let ready = format!("unix:{socket}");
    let flags = ["--pid-file", &pid, "--port", "127.0.0.1:0", "--ready", &ready];
    let words = [&["-c", &script, OROSHI, "start"], &flags[..], &["--", "sh", "-c", report, &told, OROSHI]].concat();
    w.start_with_sockets("sh", &words, [unix.into(), tcp.into()]);
    w.file("log", "it serves", |log| log.contains("ready after"));
    until_status(&w, "generation 1 serves", |status| status["state"] == "serving");
    let seen = w.read("told").unwrap();
    let (names, counted) = seen.trim_end().split_once(' ').unwrap();
    assert_eq!(counted, "3 web:api:127.0.0.1_0", "{seen}");
    assert!(names.starts_with(&format!("{socket}=3;127.0.0.1:{port}=4;127.0.0.1:0=5")), "{seen}");
    // A deployment keeps them.
    restart(&w, 0, &["generation 2"]);
    for url in [format!("unix:{socket}"), format!("http://127.0.0.1:{port}/")] {
        let ran = bench(&["-c1", "-n5", "--watch", "none", "--format", "json", &url]);
        assert_eq!((ran.code, ran.record().requests.completed), (Some(0), 5), "{url}: {ran:?}");
    }
    w.send(Signal::TERM);
    assert_eq!(w.end(), Some(0));
    assert!(exists(&socket), "the file is systemd's");
}

#[test]
fn sockets_of_systemd_do_not_go_into_the_background() {
    let w = World::new(Kind::Ours);
    let log = w.path("log");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = "exec 3<&0; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, OROSHI, "start", "--daemonize", "--log-file", &log, "--", "true"]);
    command.stdin(std::os::fd::OwnedFd::from(listener));
    common::to_the_end_with_input(command).said(2, &["--daemonize", "LISTEN_FDS"]);
}
