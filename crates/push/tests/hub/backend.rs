//! A backend for callbacks: a server on a free port that answers as a test wants, and keeps what it was asked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use super::PATIENCE;

/// A request that came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub target: String,
    pub head: String,
    pub body: Vec<u8>,
}

/// What is answered: status, more header lines (each with its CRLF), body.
pub type Said = (u16, String, String);

/// A backend at work; it ends with the process.
pub struct Backend {
    pub address: SocketAddr,
    asked: Receiver<Asked>,
}

impl Backend {
    pub fn start(answer: impl Fn(&Asked) -> Said + Send + Sync + 'static) -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, asked) = mpsc::channel();
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (tell, answer) = (tell.clone(), Arc::clone(&answer));
                std::thread::spawn(move || serve(stream, &tell, &*answer));
            }
        });
        Backend { address, asked }
    }

    pub fn url(&self, path: &str) -> Option<String> {
        Some(format!("http://{}{path}", self.address))
    }

    /// The next request to come.
    pub fn next(&self) -> Asked {
        self.asked.recv_timeout(PATIENCE).unwrap()
    }
}

fn serve(mut stream: TcpStream, tell: &Sender<Asked>, answer: &dyn Fn(&Asked) -> Said) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if !more(&mut stream, &mut bytes) {
                return;
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while bytes.len() < end + length {
            if !more(&mut stream, &mut bytes) {
                return;
            }
        }
        let body = bytes[end..end + length].to_vec();
        bytes.drain(..end + length);
        let asked = Asked { target: head.split(' ').nth(1).unwrap_or_default().to_owned(), head, body };
        let (status, fields, body) = answer(&asked);
        let said = format!("HTTP/1.1 {status} X\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len());
        // The test may have gone.
        if stream.write_all(said.as_bytes()).is_err() || tell.send(asked).is_err() {
            return;
        }
    }
}

fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 16 * 1024];
    let count = stream.read(&mut buffer).unwrap_or(0);
    bytes.extend_from_slice(&buffer[..count]);
    count > 0
}
