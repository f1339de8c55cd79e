//! Properties of a whole process: inherited sockets, limits, signals. Each case runs in its own process.

use std::io::Read;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{in_a_process, listener, must_pass, on_a_core, unix_address};
use oroshi_net::inherit::inherited;
use oroshi_net::{Shutdown, Threads, ThreadsOptions, ensure_descriptors};
use oroshi_testkit::test_name;
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use tokio::io::AsyncWriteExt;

/// Runs the test with the sockets as descriptors 3 and 4: the shell moves its standard input and output there.
fn with_sockets(test: &str, shell: &str, third: impl Into<OwnedFd>, fourth: impl Into<OwnedFd>) -> Command {
    let mut command = in_a_process(test, &format!("exec 3<&0 4>&1 </dev/null >&2; {shell}"));
    command.stdin(Stdio::from(third.into())).stdout(Stdio::from(fourth.into())).stderr(Stdio::piped());
    command
}

/// Checks the child's report on its standard error, because its standard output is a socket.
fn must_pass_on_stderr(mut command: Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{}\n{text}", output.status);
}

#[test]
fn sockets_come_from_server_starter_and_systemd() {
    for supervisor in ["server-starter", "systemd"] {
        let (folder, address) = unix_address();
        let (tcp, unix) = (listener("127.0.0.1:0"), listener(&address));
        let tcp_address = tcp.local_address().to_string();
        let path = folder.path().join("socket");
        let shell = match supervisor {
            "systemd" => {
                "export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=web:admin EXPECT='LISTEN_FDS web admin';".into()
            }
            _ => {
                let path = path.display();
                format!("export SERVER_STARTER_PORT='{tcp_address}=3;{path}=4'; ")
                    + &format!("export EXPECT='SERVER_STARTER_PORT {tcp_address} {path}';")
            }
        };
        let clones = (duplicate(&tcp), duplicate(&unix));
        let child = with_sockets(test_name!("serving_inherited_sockets"), &shell, clones.0, clones.1).spawn().unwrap();
        // The parent's own handle is still open, so these wait in the backlog until the child accepts.
        let mut text = String::new();
        TcpStream::connect(&tcp_address).unwrap().read_to_string(&mut text).unwrap();
        UnixStream::connect(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "from the childfrom the child");
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(path.exists(), "the child must not remove a file that it did not make");
        drop(unix);
        assert!(!path.exists());
    }
}

fn duplicate(socket: impl std::os::fd::AsFd) -> OwnedFd {
    socket.as_fd().try_clone_to_owned().unwrap()
}

#[test]
#[ignore = "wants inherited sockets: sockets_come_from_server_starter_and_systemd runs it"]
fn serving_inherited_sockets() {
    use rustix::io::{FdFlags, fcntl_getfd};
    let sockets = inherited().unwrap();
    let names: Vec<_> = sockets.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(format!("{} {}", sockets[0].variable, names.join(" ")), std::env::var("EXPECT").unwrap());
    assert!(inherited().is_err(), "they can be taken once");
    on_a_core(async {
        for socket in sockets {
            assert!(fcntl_getfd(&socket.listener).unwrap().contains(FdFlags::CLOEXEC));
            let listener = socket.listener.into_listener().unwrap();
            let mut stream = listener.accept().await.unwrap();
            stream.write_all(b"from the child").await.unwrap();
        }
    });
}

#[test]
fn what_is_no_listening_socket_is_refused() {
    let (folder, _) = unix_address();
    let not_listening = || UnixStream::pair().unwrap().0;
    let datagram = UnixDatagram::bind(folder.path().join("datagram")).unwrap();
    for (third, variables, expected) in [
        (duplicate(listener("127.0.0.1:0")), "a=9999", "descriptor 9999 (a), which is not open"),
        (duplicate(listener("127.0.0.1:0")), "a=2", "descriptor 2 (a), which is standard input, output or error"),
        (duplicate(not_listening()), "a=3", "descriptor 3 (a), which is a socket that does not listen"),
        (duplicate(datagram), "a=3", "descriptor 3 (a), which is a socket that does not listen"),
        (std::fs::File::open("/dev/null").unwrap().into(), "a=3", "descriptor 3 (a), which is not a socket"),
    ] {
        let shell = format!("export SERVER_STARTER_PORT='{variables}' EXPECT='{expected}';");
        must_pass_on_stderr(with_sockets(test_name!("refusing_sockets"), &shell, third, not_listening()));
    }
}

#[test]
fn what_this_process_opened_is_not_inherited() {
    must_pass(in_a_process(test_name!("naming_an_own_socket"), ""));
}

#[test]
#[ignore = "sets a variable: what_this_process_opened_is_not_inherited runs it"]
#[allow(unsafe_code)]
fn naming_an_own_socket() {
    use std::os::fd::{AsFd, AsRawFd};
    let listener = listener("127.0.0.1:0");
    let variable = format!("a={}", listener.as_fd().as_raw_fd());
    // SAFETY: this process runs only this test, and no other thread reads the environment meanwhile.
    unsafe { std::env::set_var("SERVER_STARTER_PORT", variable) };
    let message = inherited().unwrap_err().to_string();
    assert!(message.contains("was opened by this process itself"), "{message}");
}

#[test]
#[ignore = "wants inherited sockets: what_is_no_listening_socket_is_refused runs it"]
fn refusing_sockets() {
    let message = inherited().unwrap_err().to_string();
    let expected = std::env::var("EXPECT").unwrap();
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn nothing_is_inherited_by_default() {
    let mut command = in_a_process(test_name!("inheriting_nothing"), "export LISTEN_PID=1 LISTEN_FDS=1; ");
    command.env_remove("SERVER_STARTER_PORT");
    must_pass(command);
}

#[test]
#[ignore = "wants an environment of its own: nothing_is_inherited_by_default runs it"]
fn inheriting_nothing() {
    assert!(inherited().unwrap().is_empty());
}

#[test]
fn the_descriptor_limit_is_raised_as_far_as_needed() {
    must_pass(in_a_process(test_name!("raising_the_limit"), ""));
}

#[test]
#[ignore = "changes the process's limit: the_descriptor_limit_is_raised_as_far_as_needed runs it"]
fn raising_the_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), maximum }).unwrap();
    let soft = || getrlimit(Resource::Nofile).current.unwrap();
    assert_eq!(ensure_descriptors(1).unwrap(), soft());
    let raised = ensure_descriptors(200).unwrap();
    assert!((200..400).contains(&raised) && raised == soft(), "{raised}");
    assert_eq!(ensure_descriptors(100).unwrap(), raised, "it is never lowered");

    // More than any kernel grants (fs.nr_open), privileged or not.
    let error = ensure_descriptors(1 << 40).unwrap_err();
    assert_eq!(soft(), raised);
    let message = error.to_string();
    for word in ["1099511627776", "ulimit -Hn", "LimitNOFILE=", &format!("may have {}", error.hard)] {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
}

#[test]
fn signals_reach_every_core() {
    must_pass(in_a_process(test_name!("counting_signals"), ""));
}

#[test]
#[ignore = "sends signals to its process: signals_reach_every_core runs it"]
fn counting_signals() {
    let shutdown = Shutdown::on_signals().unwrap();
    let also = Shutdown::on_signals().unwrap();
    assert_eq!(shutdown.count(), 0);
    let seen = shutdown.clone();
    let threads = Threads::start(&ThreadsOptions::new("wait", 2), move |_| {
        let seen = seen.clone();
        async move {
            seen.reached(1).await;
            let first = seen.count();
            seen.reached(2).await;
            (first, seen.count())
        }
    })
    .unwrap();
    kill_process(getpid(), Signal::TERM).unwrap();
    on_a_core(also.reached(1));
    on_a_core(shutdown.reached(1));
    kill_process(getpid(), Signal::INT).unwrap();
    for (first, second) in threads.join().unwrap() {
        assert!(first >= 1 && second == 2, "{first} {second}");
    }
    on_a_core(also.reached(2));
}

#[test]
fn a_request_counts_like_a_signal() {
    let shutdown = Shutdown::new();
    let clone = shutdown.clone();
    let waiting = std::thread::spawn(move || on_a_core(clone.reached(2)));
    shutdown.request();
    assert_eq!(shutdown.count(), 1);
    shutdown.request();
    waiting.join().unwrap();
    assert_eq!(shutdown.count(), 2);
    on_a_core(async { tokio::time::timeout(Duration::ZERO, shutdown.reached(3)).await.unwrap_err() });
}
