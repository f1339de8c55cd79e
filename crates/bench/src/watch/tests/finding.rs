//! From addresses and process ids to servers.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::*;

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

/// As in an experiment: a process of ours starts a server, which has workers; another one goes to the background, and
/// is left to whoever started its parent.
#[test]
fn all_that_a_child_of_ours_started_is_found_by_the_child_s_id() {
    let mut keeper = Server::start();
    keeper.ask("adopt");
    let server = keeper.order("keep-child") as u32;
    let worker = keeper.order("child keep-child") as u32;
    let daemon = Orphan(keeper.order("daemon") as u32);
    let pids = |watch: &mut Watch| {
        let usage = finish(watch);
        assert_eq!(usage.found_by, FoundBy::Pid);
        usage.processes.iter().map(|process| (process.pid, process.parent)).collect::<HashSet<_>>()
    };
    let own = (keeper.pid(), std::process::id());
    let mut expected = HashSet::from([own, (server, own.0), (worker, server), (daemon.0, own.0)]);
    let mut watch = Watch::for_pid(keeper.pid()).unwrap();
    assert_eq!(pids(&mut watch), expected);
    // Once more, with others: what is known of the first ones must not hide them.
    watch.begin();
    keeper.ask("child end-child");
    keeper.ask("end-child");
    let another = keeper.order("keep-child") as u32;
    expected = HashSet::from([own, (another, own.0), (daemon.0, own.0)]);
    assert_eq!(pids(&mut watch), expected);
}

struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.0 as i32).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
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

/// TCP connections are no listeners, though they have the same port.
#[test]
fn connections_do_not_hide_the_listener() {
    let mut server = Server::start();
    let address: SocketAddr = server.ask("tcp 127.0.0.1:0").parse().unwrap();
    let _clients: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_watches(Watch::for_tcp(address), FoundBy::TcpListener, &server);
}
