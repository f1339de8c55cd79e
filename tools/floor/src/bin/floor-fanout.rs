//! The floor under a push hub: the CPU time that the kernel alone needs to send one message to many.
//!
//! One thread, one epoll loop. A WebSocket client gets its opening handshake and then all messages; every POST's body
//! goes to all clients as one text frame, a `send` for each, before the POST is answered. Nothing is checked or queued:
//! a slow reader loses messages. A hub's cost above this is its own.
//!
//! ```text
//! floor-fanout 127.0.0.1:8080
//! ```
//!
//! It prints its address; the kernel chooses the port for port 0.

use std::collections::HashMap;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use sha1::{Digest, Sha1};

/// Proves that a WebSocket server has read the request (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Maximum length of a message.
const MOST: usize = 65_535;

fn main() -> ExitCode {
    let address = std::env::args().nth(1).and_then(|text| text.parse::<SocketAddrV4>().ok());
    let Some(address) = address else {
        eprintln!("floor-fanout: expected where to listen, such as 127.0.0.1:8080");
        return ExitCode::from(2);
    };
    match serve(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor-fanout: {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: &SocketAddrV4) -> Result<(), Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    net::bind(&listener, address)?;
    net::listen(&listener, 4096)?;
    let listening = SocketAddrV4::try_from(net::getsockname(&listener)?)?;
    println!("floor-fanout: listening on {listening}");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, number(&listener), EventFlags::IN)?;
    let mut hub = Hub::default();
    let mut events = Vec::with_capacity(1024);
    let mut bytes = vec![0; 2 * MOST];
    loop {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        for event in &events {
            let from = event.data.u64();
            if from == number(&listener).u64() {
                while let Ok(socket) = net::accept_with(&listener, flags) {
                    sockopt::set_tcp_nodelay(&socket, true)?;
                    epoll::add(&epoll, &socket, number(&socket), EventFlags::IN | EventFlags::ET)?;
                    hub.connections.insert(number(&socket).u64(), Connection { socket, read: Vec::new() });
                }
            } else {
                hub.turn(from, &mut bytes);
            }
        }
    }
}

fn number(socket: &OwnedFd) -> EventData {
    EventData::new_u64(socket.as_raw_fd() as u64)
}

struct Connection {
    socket: OwnedFd,
    /// Bytes of an incomplete request.
    read: Vec<u8>,
}

#[derive(Default)]
struct Hub {
    connections: HashMap<u64, Connection>,
    /// The receivers of messages.
    subscribers: Vec<OwnedFd>,
}

impl Hub {
    /// Reads from a connection, and answers it.
    fn turn(&mut self, from: u64, bytes: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(&from) else { return };
        match net::recv(&connection.socket, &mut *bytes, RecvFlags::empty()) {
            Ok((_, 1..)) if connection.read.len() > 2 * MOST => drop(self.connections.remove(&from)),
            Ok((_, count @ 1..)) => {
                connection.read.extend_from_slice(&bytes[..count]);
                match request(&connection.read) {
                    None => {}
                    Some(Request::Probe) => {
                        connection.read.clear();
                        let _ = net::send(&connection.socket, ANSWER, SendFlags::NOSIGNAL);
                    }
                    Some(Request::Subscribe(key)) => {
                        let answer = format!(
                            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                             Sec-WebSocket-Accept: {}\r\n\r\n",
                            STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize()),
                        );
                        let _ = net::send(&connection.socket, answer.as_bytes(), SendFlags::NOSIGNAL);
                        // Subscribers' bytes are never read; a failing send shows a close.
                        if let Some(connection) = self.connections.remove(&from) {
                            self.subscribers.push(connection.socket);
                        }
                    }
                    Some(Request::Publish(frame)) => {
                        connection.read.clear();
                        self.subscribers.retain(|subscriber| {
                            !matches!(
                                net::send(subscriber, &frame, SendFlags::NOSIGNAL),
                                Err(Errno::PIPE | Errno::CONNRESET)
                            )
                        });
                        let _ = net::send(&connection.socket, ANSWER, SendFlags::NOSIGNAL);
                    }
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => drop(self.connections.remove(&from)),
        }
    }
}

/// A complete request.
enum Request {
    /// Asks whether the server is there.
    Probe,
    /// Subscribes; holds the key of its handshake.
    Subscribe(Vec<u8>),
    /// Sends this frame to all.
    Publish(Vec<u8>),
}

fn request(bytes: &[u8]) -> Option<Request> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]);
    let field = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    };
    if head.starts_with("GET ") {
        return Some(field("Sec-WebSocket-Key").map_or(Request::Probe, |key| Request::Subscribe(key.into_bytes())));
    }
    let length: usize = field("Content-Length").and_then(|text| text.parse().ok()).unwrap_or(0).min(MOST);
    let body = bytes.get(end + 4..end + 4 + length)?;
    let mut frame = vec![0x81];
    match u8::try_from(length) {
        Ok(short @ ..126) => frame.push(short),
        _ => {
            frame.push(126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(body);
    Some(Request::Publish(frame))
}
