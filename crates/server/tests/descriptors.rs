//! Running out of file descriptors. Alone in its process, whose limit it lowers.

mod support;

use std::net::TcpStream;

use oroshi_server::ErrorKind;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use support::{Client, Running, describe, patient};

#[test]
fn without_descriptors_accepting_pauses_and_goes_on() {
    const CLIENTS: usize = 20;
    let server = Running::start(patient(), describe);
    // The clients' own sockets are made before, so that the limit is the server's to meet.
    let sockets: Vec<Socket> = (0..CLIENTS).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 4), maximum: limit.maximum }).unwrap();
    for socket in &sockets {
        socket.connect(&server.tcp().into()).unwrap();
    }
    // Each that ends makes room for others, in the order in which they came.
    for socket in sockets {
        let mut client = Client::new(TcpStream::from(socket));
        assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "GET / 0");
    }
    setrlimit(Resource::Nofile, limit).unwrap();
    let counts = server.stop();
    assert_eq!((counts.accepted, counts.answers), (CLIENTS as u64, CLIENTS as u64));
    assert!(counts.error(ErrorKind::Accept) > 0);
}
