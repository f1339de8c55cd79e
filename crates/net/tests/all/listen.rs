//! Binding, sharing, accepting and cleaning up.

use std::collections::HashSet;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::common;
use crate::common::{abstract_address, connect, has_ipv6, in_a_process, listener, must_pass, on_a_core, unix_address};
use oroshi_net::listen::{AcceptError, ListenError};
use oroshi_net::{BoundListener, ListenOptions, Peer};
use oroshi_testkit::test_name;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn path_of(listener: &BoundListener) -> &Path {
    match listener.address() {
        Peer::Unix(address) => address.as_path().unwrap(),
        Peer::Tcp(_) => panic!("not a unix socket"),
    }
}

fn refused(address: &str) -> ListenError {
    BoundListener::bind(address, &ListenOptions::default()).unwrap_err()
}

#[test]
fn addresses_are_read_in_every_form() {
    for (address, shown) in [
        ("127.0.0.1:0", "127.0.0.1:"),
        ("0.0.0.0:0", "127.0.0.1:"),
        ("localhost:0", ""),
        ("[::1]:0", "[::1]:"),
        ("[::]:0", "[::1]:"),
    ] {
        if address.starts_with('[') && !has_ipv6() {
            continue;
        }
        let listener = listener(address);
        let Peer::Tcp(bound) = listener.address() else { panic!("not TCP") };
        assert_ne!(bound.port(), 0);
        let text = listener.local_address().to_string();
        assert!(text.starts_with(shown) && text.ends_with(&format!(":{}", bound.port())), "{address}: {text}");
        // In displayed addresses, "all addresses" is not one of them.
        let all = match address {
            "0.0.0.0:0" => format!("https://0.0.0.0:{}/", bound.port()),
            "[::]:0" => format!("https://*:{}/", bound.port()),
            _ => format!("https://{text}/"),
        };
        assert_eq!(listener.local_address().shown("https"), all, "{address}");
    }
    let (_folder, unix) = unix_address();
    for (address, shown) in [(unix.as_str(), unix.as_str()), (&unix[5..], &unix), ("unix:@oroshi-a", "unix:@oroshi-a")]
    {
        let listener = listener(address);
        assert_eq!(listener.local_address().to_string(), shown);
        assert_eq!(listener.local_address().shown("http"), shown);
    }
}

#[test]
fn every_address_takes_both_families() {
    for address in [":0", "0"] {
        let listener = listener(address);
        let Peer::Tcp(bound) = listener.address() else { panic!("not TCP") };
        TcpStream::connect(("127.0.0.1", bound.port())).unwrap();
        if has_ipv6() {
            TcpStream::connect(("::1", bound.port())).unwrap();
        }
    }
}

#[test]
fn what_is_no_address_is_refused() {
    for address in ["", "localhost", "a b:80", "http://a:80", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:+1"] {
        let error = refused(address);
        assert!(matches!(error, ListenError::Address { .. }), "{address:?}: {error}");
        assert!(error.to_string().contains("unix:/run/app.sock"), "{error}");
    }
    assert!(matches!(refused("unix:"), ListenError::Unix { .. }));
    assert!(matches!(refused(&format!("unix:/{}", "x".repeat(200))), ListenError::Unix { .. }));
    assert!(matches!(refused("no-such-host.invalid:80"), ListenError::Resolve { .. }));
}

#[test]
fn an_address_in_use_or_elsewhere_is_refused() {
    let first = listener("127.0.0.1:0");
    let error = refused(&first.local_address().to_string());
    assert!(matches!(error, ListenError::InUse { .. }), "{error}");
    // TEST-NET-1 (RFC 5737) is never assigned.
    assert!(matches!(refused("192.0.2.1:80"), ListenError::NoSuchAddress { .. }));
    let name = abstract_address();
    let _first = listener(&name);
    assert!(matches!(refused(&name), ListenError::InUse { .. }));
}

#[test]
fn cores_share_a_port_or_a_socket() {
    let (_folder, unix) = unix_address();
    for (address, reuse_port, sockets) in [("127.0.0.1:0", true, 3), ("127.0.0.1:0", false, 1), (&unix, true, 1)] {
        let options = ListenOptions { reuse_port, ..ListenOptions::default() };
        let all = BoundListener::bind_for_cores(address, &options, 3).unwrap();
        assert_eq!(all.iter().map(inode).collect::<HashSet<_>>().len(), sockets, "{address} {reuse_port}");
        assert!(all.iter().all(|one| one.address() == all[0].address()));
        on_a_core(async {
            let peer = all[0].local_address().peer();
            let all: Vec<_> = all.into_iter().map(|one| one.into_listener().unwrap()).collect();
            connect(&peer).await.unwrap();
            // The kernel chooses which one gets it.
            let mut accepts: Vec<_> = all.iter().map(|one| Box::pin(one.accept())).collect();
            std::future::poll_fn(|cx| {
                let ready = accepts.iter_mut().find_map(|one| match one.as_mut().poll(cx) {
                    std::task::Poll::Ready(stream) => Some(stream.unwrap()),
                    std::task::Poll::Pending => None,
                });
                ready.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
            })
            .await;
        });
    }
}

fn inode(listener: &BoundListener) -> String {
    use std::os::fd::{AsFd, AsRawFd};
    let link = format!("/proc/self/fd/{}", listener.as_fd().as_raw_fd());
    std::fs::read_link(link).unwrap().display().to_string()
}

#[test]
fn a_leftover_file_is_replaced_and_a_live_socket_is_not() {
    let (folder, address) = unix_address();
    let path = folder.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves the file");
    let live = listener(&address);
    UnixStream::connect(&path).unwrap();

    let error = refused(&address);
    assert!(matches!(error, ListenError::InUse { .. }), "{error}");
    UnixStream::connect(&path).expect("the first still listens there");

    drop(live);
    assert!(!path.exists());
}

#[test]
fn a_live_socket_with_a_full_backlog_is_not_replaced() {
    let (_folder, address) = unix_address();
    let live = common::narrow_listener(&address);
    let _held = fill(path_of(&live));
    let error = refused(&address);
    assert!(matches!(error, ListenError::InUse { .. }), "{error}");
}

/// Opens connections until the backlog is full.
fn fill(path: &Path) -> Vec<rustix::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let mut held = Vec::new();
    loop {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        match connect(&socket, &SocketAddrUnix::new(path).unwrap()) {
            Ok(()) => held.push(socket),
            Err(errno) => {
                assert_eq!(errno, rustix::io::Errno::AGAIN);
                return held;
            }
        }
    }
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let (folder, address) = unix_address();
    let path = folder.path().join("socket");
    std::fs::write(&path, "precious").unwrap();
    let error = refused(&address);
    assert!(error.to_string().contains("is a regular file, not a socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");

    std::fs::remove_file(&path).unwrap();
    symlink("/nowhere", &path).unwrap();
    let error = refused(&address);
    assert!(error.to_string().contains("symbolic link"), "{error}");
    assert!(path.is_symlink());

    let missing = format!("unix:{}", folder.path().join("no/folder").display());
    assert!(matches!(refused(&missing), ListenError::NoFolder { .. }));
}

#[test]
fn the_file_has_the_mode_asked_for() {
    let (_folder, address) = unix_address();
    for mode in [0o600, 0o666] {
        let options = ListenOptions { unix_mode: Some(mode), ..ListenOptions::default() };
        let listener = BoundListener::bind(&address, &options).unwrap();
        assert_eq!(std::fs::metadata(path_of(&listener)).unwrap().permissions().mode() & 0o777, mode);
    }
}

#[test]
fn the_file_goes_with_the_last_handle() {
    let (folder, address) = unix_address();
    let path = folder.path().join("socket");
    let first = listener(&address);
    let second = first.try_clone().unwrap();
    drop(first);
    assert!(path.exists());
    on_a_core(async move { drop(second.into_listener().unwrap()) });
    assert!(!path.exists());
}

#[test]
fn a_file_that_another_server_put_there_stays() {
    let (folder, address) = unix_address();
    let path = folder.path().join("socket");
    let first = listener(&address);
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(first);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn accept_tells_the_end() {
    on_a_core(async {
        let listener = listener("127.0.0.1:0").into_listener().unwrap();
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        let error = listener.accept().await.unwrap_err();
        assert!(error.is_fatal(), "{error}");
    });
}

#[test]
fn accept_survives_without_descriptors() {
    must_pass(in_a_process(test_name!("accepting_without_descriptors"), ""));
}

#[test]
#[ignore = "changes the process's limit: accept_survives_without_descriptors runs it"]
fn accepting_without_descriptors() {
    let (_folder, unix) = unix_address();
    for address in ["127.0.0.1:0", &unix] {
        on_a_core(async {
            let listener = listener(address).into_listener().unwrap();
            let before = getrlimit(Resource::Nofile);
            let mut waiting = Vec::new();
            for _ in 0..20 {
                waiting.push(connect(listener.address()).await.unwrap());
            }
            // The lowest free descriptor and a few more.
            let limit = 5 + waiting.iter().map(|one| descriptor(&one.stream)).max().unwrap();
            setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: before.maximum }).unwrap();
            let mut accepted = Vec::new();
            let error = loop {
                match listener.accept().await {
                    Ok(stream) => accepted.push(stream),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, AcceptError::Exhausted(_)) && !error.is_fatal(), "{error}");
            assert!(!accepted.is_empty() && accepted.len() < 20);

            // From here on it waits silently until there is room.
            let next = tokio::task::spawn_local(async move { (listener.accept().await, listener) });
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(!next.is_finished());
            accepted.pop();
            let (stream, listener) = next.await.unwrap();
            accepted.push(stream.unwrap());
            // It is reported again when it happens again.
            assert!(matches!(listener.accept().await, Err(AcceptError::Exhausted(_))));
            setrlimit(Resource::Nofile, before).unwrap();
            // All connections except the closed one.
            while accepted.len() < 19 {
                accepted.push(listener.accept().await.unwrap());
            }
            assert_eq!(listener.aborted(), 0);
        });
    }
}

fn descriptor(stream: &oroshi_net::Stream) -> u64 {
    use std::os::fd::{AsFd, AsRawFd};
    stream.as_fd().as_raw_fd() as u64
}
