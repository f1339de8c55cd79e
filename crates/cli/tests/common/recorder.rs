//! A server that notes every request to the byte, connection by connection, and answers as many as it is told to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use super::support::HANG;

/// A request as it came.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent {
    /// The first line.
    pub line: String,
    /// The header lines. LuaJIT orders tables anew in each state, so their order means nothing: here it is the
    /// alphabet's.
    pub headers: Vec<String>,
    pub body: Vec<u8>,
}

/// All of a connection's requests, in order.
pub type Sequence = Vec<Sent>;

/// The server. Its threads end with the process.
pub struct Recorder {
    pub url: String,
    shared: Arc<Shared>,
}

/// What a request is answered with.
type Answer = dyn Fn(&Sent) -> Vec<u8> + Send + Sync;

struct Shared {
    connections: Mutex<Vec<Sequence>>,
    changed: Condvar,
    per_connection: usize,
    answer: Box<Answer>,
}

impl Recorder {
    /// Notes and answers so many requests on each connection, and is silent from then on.
    pub fn start(per_connection: usize, answer: impl Fn(&Sent) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (connections, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { connections, changed, per_connection, answer: Box::new(answer) });
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, stream) = (Arc::clone(&serving), stream.unwrap());
                thread::spawn(move || serve(&shared, stream));
            }
        });
        Self { url, shared }
    }

    /// Runs a load generator until so many connections have sent all that is noted of each, then ends it as Ctrl-C
    /// does. What was noted of connections that sent anything comes back, in the order of their first requests, and is
    /// forgotten.
    #[track_caller]
    pub fn record(&self, connections: usize, mut command: Command) -> Vec<Sequence> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let full = |sequence: &&Sequence| sequence.len() == self.shared.per_connection;
        let noted = self.shared.connections.lock().unwrap();
        let missing = |noted: &mut Vec<Sequence>| noted.iter().filter(full).count() < connections;
        let (mut noted, waited) = self.shared.changed.wait_timeout_while(noted, HANG, missing).unwrap();
        interrupt(child, &command);
        assert!(!waited.timed_out(), "{command:?} sent no more than {noted:?}");
        let mut sequences: Vec<Sequence> = std::mem::take(&mut *noted).into_iter().filter(|s| !s.is_empty()).collect();
        sequences.sort();
        assert_eq!(sequences.len(), connections, "{command:?} made other connections: {sequences:?}");
        sequences
    }
}

/// Ends it as Ctrl-C does, and for good if that is not enough.
fn interrupt(mut child: Child, command: &Command) {
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    let (done, ended) = mpsc::channel::<()>();
    let patience = thread::spawn(move || {
        if ended.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let status = child.wait().unwrap();
    drop(done);
    patience.join().unwrap();
    // Others may not heed it; that is theirs.
    let is_ours = command.get_program().as_encoded_bytes().ends_with(b"oroshi");
    assert!(status.success() || (!is_ours && status.signal() == Some(Signal::KILL.as_raw())), "{command:?}: {status}");
}

fn serve(shared: &Shared, mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let index = {
        let mut noted = shared.connections.lock().unwrap();
        noted.push(Vec::new());
        noted.len() - 1
    };
    let (mut ahead, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    for _ in 0..shared.per_connection {
        let sent = loop {
            if let Some(sent) = take(&mut ahead) {
                break sent;
            }
            match oroshi_testkit::http::read(&mut stream, &mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(n) => ahead.extend_from_slice(&buffer[..n]),
            }
        };
        let answer = (shared.answer)(&sent);
        if let Some(sequence) = shared.connections.lock().unwrap().get_mut(index) {
            sequence.push(sent);
        }
        shared.changed.notify_all();
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

/// A whole request from the beginning of these bytes.
fn take(bytes: &mut Vec<u8>) -> Option<Sent> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n").map(str::to_owned);
    let line = lines.next().unwrap();
    let mut headers: Vec<String> = lines.collect();
    headers.sort();
    let length = headers.iter().find_map(|header| header.strip_prefix("Content-Length: "));
    let length = length.map_or(0, |length| length.parse().unwrap());
    let rest = end + 4;
    let body = bytes.get(rest..rest + length)?.to_vec();
    bytes.drain(..rest + length);
    Some(Sent { line, headers, body })
}
