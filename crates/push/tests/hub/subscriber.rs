//! A client of any transport, for what holds for all of them.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::{Answer, Got, Hub, PATIENCE, WebSocket, end_of_head, head, key_of, read_more};

/// How a session is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    WebSocket,
    Events,
    Lines,
    Poll,
}

pub const TRANSPORTS: [Transport; 4] = [Transport::WebSocket, Transport::Events, Transport::Lines, Transport::Poll];

/// What a subscriber is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Text(String),
    /// So many messages are missing here.
    Gap(u64),
    End(End),
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// In good form. `retry_ms`: when to come back, if that was said.
    Clean { retry_ms: Option<u64> },
    /// The connection broke.
    Cut,
}

/// A session's client. Its receive buffer is small, so that it does not take much for it to be full.
pub struct Subscriber {
    pub key: String,
    pub transport: Transport,
    pipe: Pipe,
}

enum Pipe {
    Socket(WebSocket),
    Chunks(Chunks),
    Poll(Poller),
}

impl Subscriber {
    /// Opens a session that was told its key. `query` goes to the hub: `group=g`.
    pub fn open(hub: &Hub, transport: Transport, query: &str) -> Subscriber {
        let target = format!("/connect?{query}");
        let (key, pipe) = match transport {
            Transport::WebSocket => {
                let mut socket =
                    WebSocket::open_on(narrow(hub.address), &target, &[]).map_err(|answer| answer.text().to_owned());
                let key = key_of(&socket.as_mut().unwrap().text());
                (key, Pipe::Socket(socket.unwrap()))
            }
            Transport::Lines => {
                let mut chunks = Chunks::open(narrow(hub.address), &target, &[]);
                (key_of(&chunks.next().unwrap()), Pipe::Chunks(chunks))
            }
            Transport::Events => {
                let mut chunks = Chunks::open(narrow(hub.address), &target, &[("Accept", "text/event-stream")]);
                let first = chunks.next().unwrap();
                let (_, data) = first.split_once("event: session\ndata: ").unwrap_or_else(|| panic!("{first}"));
                (key_of(data), Pipe::Chunks(chunks))
            }
            Transport::Poll => {
                let poller = Poller::open(hub.address, query);
                (poller.session.clone(), Pipe::Poll(poller))
            }
        };
        Subscriber { key, transport, pipe }
    }

    /// What comes next.
    pub fn next(&mut self) -> Heard {
        match &mut self.pipe {
            Pipe::Socket(socket) => match socket.next() {
                Got::Text(text) => heard(text),
                Got::Close(_, why) => {
                    let hint = why.split_once(" in ").and_then(|(_, hint)| hint.strip_suffix(" ms")?.parse().ok());
                    socket.close(1000);
                    Heard::End(End::Clean { retry_ms: hint })
                }
                Got::End => Heard::End(End::Cut),
                other => panic!("{other:?}"),
            },
            Pipe::Chunks(chunks) => {
                let mut retry_ms = None;
                loop {
                    let Some(chunk) = chunks.next() else {
                        return Heard::End(if chunks.is_whole { End::Clean { retry_ms } } else { End::Cut });
                    };
                    if self.transport == Transport::Lines {
                        return heard(chunk.trim_end_matches('\n').to_owned());
                    }
                    let event = chunk.trim_end_matches('\n');
                    if let Some(ms) = event.strip_prefix("retry: ") {
                        retry_ms = Some(ms.parse().unwrap());
                    } else {
                        let data = event.rsplit("data: ").next().unwrap().to_owned();
                        return if event.starts_with("data: ") { Heard::Text(data) } else { heard(data) };
                    }
                }
            }
            Pipe::Poll(poller) => poller.next(),
        }
    }

    /// The next message.
    pub fn text(&mut self) -> String {
        match self.next() {
            Heard::Text(text) => text,
            other => panic!("{:?}: {other:?}", self.transport),
        }
    }

    /// Says that what was heard has arrived, where that takes saying.
    pub fn acknowledge(&mut self) {
        if let Pipe::Poll(poller) = &mut self.pipe {
            poller.poll();
        }
    }

    /// What polls for it.
    pub fn poller(&mut self) -> &mut Poller {
        let Pipe::Poll(poller) = &mut self.pipe else { panic!("it does not poll") };
        poller
    }
}

fn heard(text: String) -> Heard {
    match text.strip_prefix("{\"gap\":") {
        Some(count) => Heard::Gap(count.trim_end_matches('}').parse().unwrap()),
        None => Heard::Text(text),
    }
}

/// A connection with a receive buffer of a few messages.
fn narrow(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The chunks of an answer that does not end by itself: each message is one.
pub struct Chunks {
    stream: TcpStream,
    bytes: Vec<u8>,
    /// Whether the last chunk has come.
    pub is_whole: bool,
}

impl Chunks {
    pub fn open(mut stream: TcpStream, target: &str, headers: &[(&str, &str)]) -> Chunks {
        stream.write_all(&head("GET", target, headers, None, false)).unwrap();
        let mut chunks = Chunks { stream, bytes: Vec::new(), is_whole: false };
        let end = chunks.find(b"\r\n\r\n").expect("an answer");
        let head: Vec<u8> = chunks.bytes.drain(..end + 4).collect();
        assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
        chunks
    }

    /// The next one; `None` at the end of the answer, or of the connection.
    pub fn next(&mut self) -> Option<String> {
        let end = self.find(b"\r\n")?;
        let size = usize::from_str_radix(str::from_utf8(&self.bytes[..end]).unwrap(), 16).unwrap();
        let (start, whole) = (end + 2, end + 2 + size + 2);
        while self.bytes.len() < whole {
            read_more(&mut self.stream, &mut self.bytes).then_some(())?;
        }
        let chunk = String::from_utf8(self.bytes[start..start + size].to_vec()).unwrap();
        self.bytes.drain(..whole);
        self.is_whole = size == 0;
        (size > 0).then_some(chunk)
    }

    fn find(&mut self, what: &[u8]) -> Option<usize> {
        loop {
            if let Some(at) = self.bytes.windows(what.len()).position(|window| window == what) {
                return Some(at);
            }
            read_more(&mut self.stream, &mut self.bytes).then_some(())?;
        }
    }
}

/// A client that polls, on a connection that it keeps for as long as the hub does.
pub struct Poller {
    address: SocketAddr,
    session: String,
    token: String,
    after: u64,
    stream: Option<TcpStream>,
    waiting: VecDeque<Heard>,
}

impl Poller {
    fn open(address: SocketAddr, query: &str) -> Poller {
        let mut poller = Poller {
            address,
            session: String::new(),
            token: String::new(),
            after: 0,
            stream: None,
            waiting: VecDeque::new(),
        };
        let request = head("GET", &format!("/connect?transport=poll&{query}"), &[], None, false);
        let (status, opened) = poller.ask(&request).expect("an answer");
        assert_eq!(status, 200, "{opened}");
        let field = |name: &str| opened[name].as_str().unwrap().to_owned();
        (poller.session, poller.token) = (field("session"), field("token"));
        poller
    }

    fn next(&mut self) -> Heard {
        while self.waiting.is_empty() {
            self.poll();
        }
        self.waiting.pop_front().unwrap()
    }

    /// Asks once; what comes waits to be heard.
    fn poll(&mut self) {
        let request = self.request();
        let answered = self.ask(&request);
        self.take(answered);
    }

    /// A request for what comes next.
    pub fn request(&self) -> Vec<u8> {
        let Poller { session, token, after, .. } = self;
        head("GET", &format!("/poll?session={session}&token={token}&after={after}"), &[], None, false)
    }

    /// Sends a part of a request.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.as_mut().expect("the connection is kept").write_all(bytes).unwrap();
    }

    /// Takes the answer to a request that was sent.
    pub fn receive(&mut self) {
        let answered = self.answer();
        self.take(answered);
    }

    fn take(&mut self, answered: Option<(u16, Value)>) {
        let Some((status, body)) = answered else { return self.waiting.push_back(Heard::End(End::Cut)) };
        if status != 200 {
            assert!(matches!(status, 404 | 410), "{status} {body}");
            return self.waiting.push_back(Heard::End(End::Clean { retry_ms: None }));
        }
        self.after = body["next"].as_u64().unwrap();
        for message in body["messages"].as_array().unwrap() {
            self.waiting.push_back(match message["gap"].as_u64() {
                Some(lost) => Heard::Gap(lost),
                None => Heard::Text(message["text"].as_str().unwrap().to_owned()),
            });
        }
    }

    /// `None`: nobody is there to answer.
    fn ask(&mut self, request: &[u8]) -> Option<(u16, Value)> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            self.stream = Some(stream);
        }
        self.stream.as_mut()?.write_all(request).ok()?;
        self.answer()
    }

    fn answer(&mut self) -> Option<(u16, Value)> {
        let stream = self.stream.as_mut()?;
        let mut got = Vec::new();
        loop {
            if let Some(end) = end_of_head(&got) {
                let answer = Answer::new(&got, end);
                if answer.field("Content-Length") == Some(answer.body.len().to_string().as_str()) {
                    if answer.field("Connection") == Some("close") {
                        self.stream = None;
                    }
                    return Some((answer.status, answer.json()));
                }
            }
            read_more(stream, &mut got).then_some(())?;
        }
    }
}
