//! A push hub of some lines, for WebSocket, server-sent events and endless responses, that does to each message what
//! its test says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oroshi_http1::{RequestDecoder, RequestEvent, encode};
use oroshi_websocket::deflate::Window;
use oroshi_websocket::handshake::UpgradeRequest;
use oroshi_websocket::{CloseCode, Decoder, Event, Kind, Limits, Role, encode as frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;

/// What the hub does with message `index` (from 0, as they were published) for subscriber `n` (the number in its URL).
pub type Behaviour = fn(index: u64, n: u32) -> Does;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Deliver,
    Drop,
    DeliverTwice,
    /// Delivers it behind the next one.
    DeliverLate,
    /// Closes instead: with this code, where that is possible.
    Close(u16),
}

/// What the hub does with somebody who wants to subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Yes,
    Refuses(u16),
    /// Never answers.
    Stalls,
}

#[derive(Clone, Copy)]
pub struct Settings {
    pub does: Behaviour,
    pub takes: fn(n: u32) -> Takes,
    /// What the one who publishes message `index` is told.
    pub answers: fn(index: u64) -> u16,
    /// Whom a message for `n` is sent to.
    pub routes: fn(n: u32) -> u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { does: |_, _| Does::Deliver, takes: |_| Takes::Yes, answers: |_| 200, routes: |n| n }
    }
}

/// A hub on a thread of its own, until it is dropped.
pub struct Hub {
    /// `127.0.0.1:PORT`.
    pub address: String,
    pub pongs: Arc<AtomicU64>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Hub {
    pub fn start(settings: Settings) -> Self {
        let (end, ended) = tokio::sync::oneshot::channel();
        let (said, told) = std::sync::mpsc::channel();
        let pongs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&pongs);
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default()).unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                said.send(listener.local_addr().unwrap()).unwrap();
                let state = Arc::new(State {
                    settings,
                    pongs: counted,
                    subscribers: Mutex::default(),
                    index: AtomicU64::new(0),
                });
                spawn_local(async move {
                    while let Ok((stream, _)) = listener.accept().await {
                        stream.set_nodelay(true).unwrap();
                        spawn_local(serve(stream, Arc::clone(&state)));
                    }
                });
                let _ = ended.await;
            });
            runtime.shutdown_timeout(Duration::ZERO);
        });
        Self { address: told.recv().unwrap().to_string(), pongs, end: Some(end), thread: Some(thread) }
    }

    /// Where to subscribe by `ws`, `sse` or `stream`.
    pub fn url(&self, mode: &str) -> String {
        format!("http://{}/{mode}/{{n}}", self.address)
    }

    /// Where to publish: `publish`, or `send/{n}`.
    pub fn publish(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().unwrap().join();
    }
}

struct State {
    settings: Settings,
    pongs: Arc<AtomicU64>,
    subscribers: Mutex<BTreeMap<u32, Subscriber>>,
    index: AtomicU64,
}

struct Subscriber {
    sender: UnboundedSender<Said>,
    late: Option<String>,
}

enum Said {
    Message(String),
    Close(u16),
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    let (mut decoder, mut kept) = (RequestDecoder::default(), Vec::new());
    let (mut path, mut body, mut opening, mut deflate) = (String::new(), Vec::new(), Vec::new(), None);
    loop {
        let mut input = &kept[..];
        let mut whole = false;
        while let Ok(Some(event)) = decoder.decode(&Default::default(), &mut input) {
            match event {
                RequestEvent::Head(head) => {
                    path = head.target.to_owned();
                    body.clear();
                    opening.clear();
                    if let Ok(asked) = UpgradeRequest::of(&head) {
                        deflate = asked.deflate().unwrap().map(|agreement| agreement.window);
                        asked.agree(&mut opening, None, asked.deflate().unwrap());
                    }
                }
                RequestEvent::Data(data) => body.extend_from_slice(data),
                RequestEvent::End => {
                    whole = true;
                    break;
                }
                RequestEvent::Trailers(_) => {}
            }
        }
        let left = input.len();
        kept.drain(..kept.len() - left);
        if !whole {
            if !matches!(stream.read_buf(&mut kept).await, Ok(1..)) {
                return;
            }
            continue;
        }
        let mut words = path.trim_start_matches('/').split('/');
        let (first, n) = (words.next().unwrap(), words.next().and_then(|n| n.parse().ok()));
        match (first, n) {
            ("publish" | "send", n) => {
                let status = state.publish(&String::from_utf8(std::mem::take(&mut body)).unwrap(), n);
                let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\nok");
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
            (mode, Some(n)) => match (state.settings.takes)(n) {
                Takes::Yes => {
                    let opening = (&opening[..], deflate);
                    return subscriber(stream, mode, n, opening, kept, &state).await;
                }
                Takes::Refuses(status) => {
                    let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
                    return drop(stream.write_all(answer.as_bytes()).await);
                }
                Takes::Stalls => std::future::pending().await,
            },
            _ => return,
        }
    }
}

impl State {
    fn publish(&self, text: &str, to: Option<u32>) -> u16 {
        let mut subscribers = self.subscribers.lock().unwrap();
        if let Some(n) = to {
            let to = subscribers.get_mut(&(self.settings.routes)(n));
            to.map(|subscriber| subscriber.sender.send(Said::Message(text.to_owned())));
            return 200;
        }
        let index = self.index.fetch_add(1, Ordering::Relaxed);
        for (n, subscriber) in subscribers.iter_mut() {
            let send = |said| drop(subscriber.sender.send(said));
            let does = (self.settings.does)(index, *n);
            match does {
                Does::Deliver => send(Said::Message(text.to_owned())),
                Does::Drop | Does::DeliverLate => {}
                Does::DeliverTwice => (0..2).for_each(|_| send(Said::Message(text.to_owned()))),
                Does::Close(code) => send(Said::Close(code)),
            }
            if let Some(late) = subscriber.late.take() {
                send(Said::Message(late));
            }
            if does == Does::DeliverLate {
                subscriber.late = Some(text.to_owned());
            }
        }
        (self.settings.answers)(index)
    }
}

/// Speaks to one who has subscribed.
async fn subscriber(
    mut stream: TcpStream,
    mode: &str,
    n: u32,
    (opening, deflate): (&[u8], Option<Window>),
    mut kept: Vec<u8>,
    state: &State,
) {
    let (sender, mut said) = unbounded_channel();
    let mut out = match mode {
        "ws" => opening.to_vec(),
        "sse" => b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n{\"id\":1}\n".to_vec(),
    };
    match mode {
        // A greeting together with the answer, and a ping.
        "ws" => {
            frame::message(&mut out, Kind::Text, b"welcome");
            frame::ping(&mut out, b"there?", None);
        }
        "sse" => encode::chunk(&mut out, b": welcome\n\n"),
        _ => {}
    }
    state.subscribers.lock().unwrap().insert(n, Subscriber { sender, late: None });
    let mut decoder = Decoder::new(Role::Server);
    loop {
        if stream.write_all(&out).await.is_err() {
            break;
        }
        out.clear();
        tokio::select! {
            next = said.recv() => match next {
                Some(Said::Message(text)) => match mode {
                    "ws" => {
                        let text = format!("{{\"data\":{text}}}");
                        match deflate {
                            Some(window) => drop(frame::deflated_message(&mut out, Kind::Text, text.as_bytes(), window)),
                            None => frame::message(&mut out, Kind::Text, text.as_bytes()),
                        }
                    }
                    "sse" => encode::chunk(&mut out, format!("data: {text}\n\n").as_bytes()),
                    _ => out.extend_from_slice(format!("{text}\n").as_bytes()),
                },
                Some(Said::Close(code)) => {
                    match mode {
                        "ws" => frame::close(&mut out, CloseCode(code), "fault"),
                        "sse" => encode::last_chunk(&mut out, []).unwrap(),
                        _ => {}
                    }
                    let _ = stream.write_all(&out).await;
                    break;
                }
                None => break,
            },
            read = stream.read_buf(&mut kept) => {
                if !matches!(read, Ok(1..)) {
                    break;
                }
                let mut input = &mut kept[..];
                while let Ok(Some(event)) = decoder.decode(&Limits::default(), &mut input) {
                    if event == Event::Pong(b"there?") {
                        state.pongs.fetch_add(1, Ordering::Relaxed);
                    }
                }
                let left = input.len();
                kept.drain(..kept.len() - left);
            }
        }
    }
    state.subscribers.lock().unwrap().remove(&n);
}
