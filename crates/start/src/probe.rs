//! Probes over HTTP whether a generation is ready, and ensures that this generation answers.
//!
//! Old and new generation accept from the same sockets, so a response alone may come from the old one. The kernel
//! does not tell a client which process accepted its connection. But it does tell which socket is at the other end,
//! and `/proc` tells which process has that socket. So the probe sends each request without its last two bytes, for
//! which any server waits. Then it looks up which process accepted the connection, and sends the rest only to a
//! process of the new generation. It closes connections of other processes without a complete request.
//!
//! The kernel chooses the process for each connection, perhaps the old one each time. Then the probe opens several
//! connections at once, doubling the number each time up to a limit, because busy processes cannot accept the next.
//! It does not keep the old generation busy for long: a round ends soon after the old one's first connection, and the
//! pause grows with the number.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use oroshi_net::diag::other_end;
use oroshi_net::process::{descendants, holds_socket};
use oroshi_net::{Connector, ConnectorOptions, Endpoint, Peer, Stream};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};
use tokio::time::{sleep, timeout};

use crate::http::{answer, request, write};

/// Pause between two rounds: a minimum, and also the time per connection of the previous round.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_EACH: Duration = Duration::from_millis(50);
/// Time for a round's connections to be accepted, and for a response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for the new generation to accept another connection after the old one accepted one. Meanwhile a worker of the
/// old one may wait for the rest of a request.
const GRACE: Duration = Duration::from_millis(50);
/// Interval for checking which process has accepted.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The most simultaneous connections.
const MOST: u32 = 8;

/// Probes until the process `pid` or a descendant gives a good response; reports each change of the result.
pub(crate) async fn until_answered(url: &Endpoint, pid: u32, mut found: impl FnMut(String)) {
    let connector = Connector::new(ConnectorOptions::default());
    let mut connections: u32 = 1;
    let mut last = String::new();
    let mut has_answered = false;
    loop {
        let pause = PAUSE.max(PAUSE_EACH * connections);
        let what = match timeout(PATIENCE, round(url, pid, &connector, connections)).await {
            Ok(Round::Good) => return,
            Ok(Round::Bad { what, by_it }) => {
                connections = 1;
                has_answered |= by_it;
                what
            }
            Ok(Round::Others(what)) => {
                connections = (connections * 2).min(MOST);
                // Its own earlier response says more.
                if has_answered { last.clone() } else { what }
            }
            Err(_) => format!("no answer within {}s", PATIENCE.as_secs()),
        };
        if what != last {
            found(what.clone());
            last = what;
        }
        sleep(pause).await;
    }
}

/// The result of one round.
enum Round {
    /// The generation gave a good response.
    Good,
    /// It did not.
    Bad {
        /// A description.
        what: String,
        /// Whether it gave the response.
        by_it: bool,
    },
    /// Only other processes answered; a description.
    Others(String),
}

impl Round {
    fn bad(what: impl ToString) -> Self {
        Round::Bad { what: what.to_string(), by_it: false }
    }
}

async fn round(url: &Endpoint, pid: u32, connector: &Connector, connections: u32) -> Round {
    let peers = match url.peers().await {
        Ok(peers) => peers,
        Err(error) => return Round::bad(error),
    };
    let request = match request("GET", &url.authority, &url.target) {
        Ok(request) => request,
        Err(error) => return Round::bad(error),
    };
    let (most, rest) = request.split_at(request.len() - 2);
    let mut open = Vec::new();
    for _ in 0..connections {
        match connect(connector, &peers, most).await {
            Ok(stream) => open.push(stream),
            Err(error) if open.is_empty() => return Round::bad(error),
            // The connections so far suffice.
            Err(_) => break,
        }
    }
    let mut others: Option<(Instant, String)> = None;
    let mut taken: Vec<Stream> = Vec::new();
    while !open.is_empty() && others.as_ref().is_none_or(|(first, _)| first.elapsed() < GRACE) {
        let mut waiting = Vec::new();
        for mut stream in open {
            match accepted_by(&stream, pid) {
                Ok(Accepted::NotYet) => waiting.push(stream),
                Ok(Accepted::Ours) => return finish(&mut stream, rest).await,
                Ok(Accepted::Other(who)) => {
                    others.get_or_insert((Instant::now(), who));
                    // Kept open for now, which keeps its process busy.
                    taken.push(stream);
                }
                Err(error) => return Round::bad(format!("it cannot be told who answers: {error}")),
            }
        }
        open = waiting;
        if !open.is_empty() {
            sleep(POLL_INTERVAL).await;
        }
    }
    Round::Others(others.map(|(_, who)| who).unwrap_or_default())
}

async fn connect(connector: &Connector, peers: &[Peer], first: &[u8]) -> Result<Stream, String> {
    let mut last = "no address".to_owned();
    for peer in peers {
        match connector.connect(peer, Some(Instant::now() + PATIENCE)).await {
            Ok(connected) => {
                let mut stream = connected.stream;
                return match write(&mut stream, first).await {
                    Ok(()) => Ok(stream),
                    Err(error) => Err(format!("{peer}: the connection broke: {error}")),
                };
            }
            Err(error) => last = format!("{peer}: {error}"),
        }
    }
    Err(last)
}

async fn finish(stream: &mut Stream, rest: &[u8]) -> Round {
    let answered = match write(stream, rest).await {
        Ok(()) => answer(stream).await.map_err(|error| error.to_string()),
        Err(error) => Err(format!("the connection broke: {error}")),
    };
    match answered {
        Ok(answer) if (200..400).contains(&answer.status) => Round::Good,
        Ok(answer) => Round::Bad { what: format!("it answered with status {}", answer.status), by_it: true },
        Err(what) => Round::Bad { what, by_it: true },
    }
}

/// The process that accepted a connection.
enum Accepted {
    NotYet,
    /// The probed process, or a descendant.
    Ours,
    /// Another process; a description.
    Other(String),
}

fn accepted_by(stream: &Stream, pid: u32) -> io::Result<Accepted> {
    // A process that answers or closes already has not waited for the whole request; then there is no peer to look
    // up.
    match peek(stream) {
        Err(Errno::AGAIN) => {}
        Ok(0) | Err(_) => return Err(io::Error::other("the connection was closed before the request was complete")),
        Ok(_) => {
            let what = "the answer came before the request was complete: expected a server that reads its head to \
                        the end; else use --ready notify";
            return Err(io::Error::other(what));
        }
    }
    let Some(inode) = other_end(stream)? else { return Ok(Accepted::NotYet) };
    let hidden = Cell::new(None);
    let holds = |pid: u32| match holds_socket(pid, inode) {
        Ok(holds) => holds,
        Err(error) => {
            if error.kind() == io::ErrorKind::PermissionDenied {
                hidden.set(Some(pid));
            }
            false
        }
    };
    let ours: Vec<u32> = std::iter::once(pid).chain(descendants(pid)).collect();
    if ours.iter().any(|pid| holds(*pid)) {
        return Ok(Accepted::Ours);
    }
    if let Some(pid) = hidden.get() {
        let what = format!("process {pid} belongs to another user, and its sockets are not to be seen");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    // Most likely the previous generation.
    let other = descendants(std::process::id()).into_iter().find(|pid| holds(*pid));
    Ok(Accepted::Other(match other {
        Some(pid) => format!("only others answered, such as process {pid}"),
        None => "only others answered, processes that are not below this one".to_owned(),
    }))
}

/// Returns the number of unread bytes, at most one; zero: the other side has closed.
fn peek(stream: &Stream) -> Result<usize, Errno> {
    let mut byte = [0];
    retry_on_intr(|| recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT)).map(|(_, length)| length)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::{Sender, channel};
    use std::thread;

    use super::*;

    /// Answers with these statuses, then with 200; sends on what it received on each connection.
    fn serve<S: Read + Write>(mut accept: impl FnMut() -> S, statuses: &[u16], heard: &Sender<String>) {
        let mut statuses = statuses.iter();
        loop {
            let mut stream = accept();
            let mut text = Vec::new();
            let mut byte = [0];
            while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
                text.push(byte[0]);
            }
            if text.ends_with(b"\r\n\r\n") {
                let status = statuses.next().unwrap_or(&200);
                let _ = write!(stream, "HTTP/1.1 {status} So\r\nContent-Length: 2\r\n\r\nok");
            }
            if heard.send(String::from_utf8(text).unwrap()).is_err() {
                return;
            }
        }
    }

    /// Probes the process `pid` until it answers, or until this result; returns all results.
    fn ask(url: &str, pid: u32, enough: &str) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url: Endpoint = url.parse().unwrap();
        let found = std::cell::RefCell::new(Vec::new());
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        runtime.block_on(async {
            let mut asking = std::pin::pin!(until_answered(&url, pid, |what| {
                if !enough.is_empty() && what.contains(enough) {
                    sender.send(()).unwrap();
                }
                found.borrow_mut().push(what);
            }));
            let mut enough = std::pin::pin!(receiver.recv());
            std::future::poll_fn(|context| {
                if asking.as_mut().poll(context).is_ready() || enough.as_mut().poll(context).is_ready() {
                    return std::task::Poll::Ready(());
                }
                std::task::Poll::Pending
            })
            .await;
        });
        found.into_inner()
    }

    #[test]
    fn an_answer_counts_when_it_is_good() {
        let (heard, requests) = channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/health?x", listener.local_addr().unwrap());
        thread::spawn(move || serve(|| listener.accept().unwrap().0, &[503, 404, 302], &heard));
        assert_eq!(ask(&url, std::process::id(), ""), ["it answered with status 503", "it answered with status 404"]);
        let request = requests.recv().unwrap();
        assert!(request.starts_with("GET /health?x HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
    }

    #[test]
    fn a_unix_socket_can_be_asked() {
        let (heard, _requests) = channel();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let can_tell = oroshi_net::diag::queue(&listener).is_some();
        thread::spawn(move || serve(|| listener.accept().unwrap().0, &[], &heard));
        let url = format!("unix:{}:/health", path.display());
        if can_tell {
            assert!(ask(&url, std::process::id(), "").is_empty());
        } else {
            // A kernel without `unix_diag`.
            let found = ask(&url, std::process::id(), "cannot be told");
            assert!(found[0].contains("unix_diag"), "{found:?}");
        }
    }

    #[test]
    fn what_others_accept_does_not_count_and_is_no_request() {
        let (heard, requests) = channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        thread::spawn(move || serve(|| listener.accept().unwrap().0, &[], &heard));
        // The probed process is not the one that answers, which is this one.
        let mut other = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let found = ask(&url, other.id(), "only others answered");
        assert_eq!(found, ["only others answered, processes that are not below this one"]);
        let sent = requests.recv().unwrap();
        assert!(sent.starts_with("GET / ") && sent.ends_with("close\r\n"), "{sent}");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn others_are_not_held_up_while_the_new_generation_does_not_accept() {
        let (heard, requests) = channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        // A worker of the old generation, which waits for a whole request; further connections stay in the queue.
        thread::spawn(move || {
            loop {
                let mut stream = listener.accept().unwrap().0;
                let begun = Instant::now();
                let _ = stream.read_to_end(&mut Vec::new());
                if heard.send(begun.elapsed()).is_err() {
                    return;
                }
            }
        });
        let mut other = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = other.id();
        thread::spawn(move || ask(&url, pid, "a thing that is never said"));
        // Until more than one is opened at once.
        let held: Vec<Duration> = requests.iter().take(12).collect();
        // A hundred times the grace would equal the probe's patience with a queue.
        assert!(held.iter().all(|held| *held < PATIENCE / 2), "{held:?}");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn whoever_does_not_wait_for_the_request_is_told_of() {
        for (says, wanted) in
            [("HTTP/1.0 200 OK\r\n\r\n", "before the request was complete: expected"), ("", "was closed before")]
        {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            thread::spawn(move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(says.as_bytes());
                }
            });
            // A server that is held up between its accept and its answer gets the whole request meanwhile, and is
            // good; the next attempt tells.
            let found = (0..100).map(|_| ask(&url, std::process::id(), wanted)).find(|found| !found.is_empty());
            assert!(found.as_ref().is_some_and(|found| found.last().unwrap().contains(wanted)), "{found:?}");
        }
    }

    #[test]
    fn nobody_there_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let found = ask(&url, std::process::id(), "refused");
        assert!(found[0].contains("refused"), "{found:?}");
    }
}
