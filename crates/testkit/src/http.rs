//! An HTTP client that writes a test's bytes, and reads answers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::HANG;

/// An HTTP answer with its body: bytes, or text.
#[derive(Clone, Debug)]
pub struct Message<B> {
    /// The status.
    pub status: u16,
    /// The status line and the fields, up to the end of the empty line.
    pub head: String,
    /// The body, without its framing where the reader knows it.
    pub body: B,
}

/// An answer with a body of bytes.
pub type Answer = Message<Vec<u8>>;

/// An answer with a body of text.
pub type TextAnswer = Message<String>;

impl<B> Message<B> {
    fn begin(head: &[u8], body: B) -> Message<B> {
        let head = String::from_utf8(head.to_vec()).unwrap();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Message { status: status.unwrap_or_else(|| panic!("no status: {head:?}")), head, body }
    }

    /// Returns the value of the first field of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

impl Answer {
    /// Splits received bytes. `end` is the end of the head ([`end_of_head`]); everything behind it is the body.
    #[must_use]
    pub fn new(got: &[u8], end: usize) -> Answer {
        Message::begin(&got[..end + 4], got[end + 4..].to_vec())
    }

    /// Reads an answer to the end of its connection.
    pub fn read(mut stream: impl Read) -> Answer {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        let end = end_of_head(&got).unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(&got)));
        Answer::new(&got, end)
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body.escape_ascii()))
    }

    /// Returns the body as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body.escape_ascii()))
    }
}

impl TextAnswer {
    /// Reads an answer to the end of its connection.
    pub fn read(stream: impl Read) -> TextAnswer {
        let Message { status, head, body } = Answer::read(stream);
        Message { status, head, body: String::from_utf8(body).unwrap() }
    }
}

/// Writes a request's head. `lines` are whole header lines; a `Host` among them takes the place of `host`.
#[must_use]
pub fn head(method: &str, target: &str, host: &str, lines: &[&str]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    if !lines.iter().any(|line| line.starts_with("Host: ")) {
        head += &format!("Host: {host}\r\n");
    }
    for line in lines {
        head += &format!("{line}\r\n");
    }
    head += "\r\n";
    head.into_bytes()
}

/// Returns the end of a head, without the empty line.
#[must_use]
pub fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n")
}

/// Reads once; again if a signal interrupts it. Reads with a timeout end with EINTR whichever handler takes the signal
/// (signal(7)): it may be that of a child of another test.
///
/// # Errors
/// As the stream says.
pub fn read(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Appends received bytes to `into`. Returns false at the end of the connection, also at a reset.
pub fn read_more(stream: &mut impl Read, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 16 * 1024];
    match read(stream, &mut buffer) {
        Ok(count) => {
            into.extend_from_slice(&buffer[..count]);
            count > 0
        }
        Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
        Err(error) => panic!("nothing came: {error}"),
    }
}

/// Connects to an address. Each wait on the connection ends after [`HANG`].
#[must_use]
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    set_up(&stream);
    stream
}

fn set_up(stream: &TcpStream) {
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.set_write_timeout(Some(HANG)).unwrap();
    stream.set_nodelay(true).unwrap();
}

/// Connects to a unix socket. Each read on the connection ends after [`HANG`].
#[must_use]
pub fn connect_unix(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

/// A connection of either kind.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).read(buffer),
            Socket::Unix(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write(bytes),
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client on one connection. Each wait ends after [`HANG`].
#[derive(Debug)]
pub struct Client {
    /// The connection.
    pub socket: Arc<Socket>,
    /// Bytes that were read, and not yet requested.
    ahead: Vec<u8>,
    /// The number of reads.
    pub reads: usize,
}

impl Client {
    /// Creates a client on a TCP connection.
    #[must_use]
    pub fn new(stream: TcpStream) -> Client {
        set_up(&stream);
        Client { socket: Arc::new(Socket::Tcp(stream)), ahead: Vec::new(), reads: 0 }
    }

    /// Creates a client on a unix socket.
    #[must_use]
    pub fn unix(path: &Path) -> Client {
        let stream = connect_unix(path);
        Client { socket: Arc::new(Socket::Unix(stream)), ahead: Vec::new(), reads: 0 }
    }

    /// Sends the same bytes on a thread of its own, repeatedly, until that fails.
    #[must_use]
    pub fn send_until_refused(&self, bytes: &'static [u8]) -> std::thread::JoinHandle<()> {
        let socket = Arc::clone(&self.socket);
        std::thread::spawn(move || while (&*socket).write_all(bytes).is_ok() {})
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        (&*self.socket).write_all(bytes.as_ref()).unwrap();
        self
    }

    /// Closes this side. The other side may still send.
    pub fn half_close(&mut self) -> &mut Self {
        self.shut(Shutdown::Write);
        self
    }

    /// Closes both sides, also for a thread that still sends.
    pub fn give_up(&mut self) {
        self.shut(Shutdown::Both);
    }

    /// Closes the connection with a reset.
    pub fn reset(self) {
        let Socket::Tcp(stream) = &*self.socket else { panic!("a unix socket has no reset") };
        socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    fn shut(&self, how: Shutdown) {
        // This fails if the server closed first, which is equally good.
        let _ = match &*self.socket {
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Reads the next answer, to GET.
    pub fn answer(&mut self) -> Answer {
        self.answer_to("GET")
    }

    /// Reads the next answer, with the body that its framing and the method allow.
    pub fn answer_to(&mut self, method: &str) -> Answer {
        let head = self.until(b"\r\n\r\n");
        assert!(head.starts_with(b"HTTP/1.1 "), "no answer: {}", head.escape_ascii());
        let mut answer = Message::begin(&head, Vec::new());
        if method == "HEAD" || answer.status < 200 || answer.status == 204 || answer.status == 304 {
            return answer;
        }
        if let Some(length) = answer.field("content-length") {
            answer.body = self.exactly(length.parse().unwrap());
        } else if answer.field("transfer-encoding") == Some("chunked") {
            answer.body = self.chunks();
        } else {
            answer.body = self.rest();
        }
        answer
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let line = String::from_utf8(self.until(b"\r\n")).unwrap();
            let length = usize::from_str_radix(line.trim(), 16).unwrap();
            if length == 0 {
                while self.until(b"\r\n") != b"\r\n" {}
                return body;
            }
            body.extend(self.exactly(length));
            assert_eq!(self.exactly(2), b"\r\n");
        }
    }

    /// Reads until the server closes, which it must do without an error.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.ahead);
        (&*self.socket).read_to_end(&mut rest).expect("a proper close");
        rest
    }

    /// Panics unless the server closes without another byte.
    pub fn closed(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }

    /// Reads until the connection ends, by a close or a reset.
    pub fn end(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.ahead);
        match (&*self.socket).read_to_end(&mut rest) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
            _ => rest,
        }
    }

    /// Reads until the connection ends. Panics unless that is by a reset.
    pub fn was_reset(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.ahead);
        let error = (&*self.socket).read_to_end(&mut rest).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        rest
    }

    /// Reads a head alone.
    pub fn until_head(&mut self) -> String {
        String::from_utf8(self.until(b"\r\n\r\n")).unwrap()
    }

    fn until(&mut self, mark: &[u8]) -> Vec<u8> {
        loop {
            if let Some(place) = self.ahead.windows(mark.len()).position(|window| window == mark) {
                return self.exactly(place + mark.len());
            }
            self.more();
        }
    }

    /// Reads exactly this many bytes.
    pub fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.ahead.len() < length {
            self.more();
        }
        self.ahead.drain(..length).collect()
    }

    fn more(&mut self) {
        let mut buffer = [0; 64 * 1024];
        let count = read(&mut &*self.socket, &mut buffer).expect("an answer");
        self.reads += 1;
        assert_ne!(count, 0, "closed in the middle: {}", self.ahead.escape_ascii());
        self.ahead.extend_from_slice(&buffer[..count]);
    }
}
