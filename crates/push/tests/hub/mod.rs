//! A hub on free ports, and clients that speak to it over plain blocking sockets.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test file uses a part of it

mod backend;
mod client;
mod subscriber;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use backend::{Asked, Backend, Said};
pub use client::{Client, frame};
use oroshi_net::{Peer, Shutdown};
use oroshi_push::{Listener, OpenListener, Plan, RunError, Serves};
pub use oroshi_testkit::http::{Answer, connect, end_of_head, read_more};
pub use oroshi_testkit::websocket::Got;
pub use oroshi_testkit::{HANG as PATIENCE, skipped};
pub use subscriber::{Chunks, End, Heard, Subscriber, TRANSPORTS, Transport};

/// A hub at work. Dropping it ends it in good form.
pub struct Hub {
    pub address: SocketAddr,
    pub shutdown: Shutdown,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Hub {
    /// Starts one with everything behind one listener.
    pub fn start(change: impl FnOnce(&mut Plan)) -> Hub {
        let listeners = vec![Listener { address: "127.0.0.1:0".to_owned(), serves: Serves::Everything }];
        let mut plan = Plan { listeners, ..Plan::default() };
        plan.drain.timeout = Duration::from_secs(1);
        change(&mut plan);
        let bound = OpenListener::bind(&plan.listeners, plan.threads).unwrap();
        let Peer::Tcp(address) = *bound[0].sockets[0].address() else { panic!("not a TCP listener") };
        let shutdown = Shutdown::new();
        let (ready, is_ready) = mpsc::channel();
        let theirs = shutdown.clone();
        let thread = std::thread::spawn(move || {
            oroshi_push::run(plan, bound, &theirs, move || {
                let _ = ready.send(());
            })
        });
        is_ready.recv_timeout(PATIENCE).unwrap();
        Hub { address, shutdown, thread: Some(thread) }
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) {
        self.shutdown.request();
        let (tell, ended) = mpsc::channel();
        let thread = self.thread.take().unwrap();
        std::thread::spawn(move || tell.send(thread.join()));
        ended.recv_timeout(PATIENCE).expect("the hub ends").unwrap().unwrap();
    }

    pub fn websocket(&self, target: &str) -> WebSocket {
        WebSocket::open(self.address, target, &[]).unwrap_or_else(|answer| panic!("{answer:?}"))
    }

    /// A session that was told its key.
    pub fn session(&self) -> (WebSocket, String) {
        let mut socket = self.websocket("/connect");
        let key = key_of(&socket.text());
        (socket, key)
    }

    pub fn request(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        request(self.address, method, target, headers, body)
    }

    /// Publishes by the native API, and gives the receipt.
    pub fn publish(&self, envelope: serde_json::Value) -> serde_json::Value {
        let json = [("Content-Type", "application/json")];
        let answer = self.request("POST", "/publish", &json, envelope.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{} {}", answer.text(), self.status()["cluster"]);
        answer.json()
    }

    pub fn status(&self) -> serde_json::Value {
        self.request("GET", "/status", &[], b"").json()
    }

    /// Waits until `/status` is as `is` wants it.
    pub fn until(&self, what: &str, is: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {status}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shutdown.request();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap().unwrap();
            }
        }
    }
}

/// The key in a session's first words.
pub fn key_of(text: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    value["session"].as_str().unwrap().to_owned()
}

/// One request on a connection of its own.
pub fn request(address: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = connect(address);
    stream.write_all(&head(method, target, headers, Some(body.len()), true)).unwrap();
    stream.write_all(body).unwrap();
    Answer::read(stream)
}

pub fn head(method: &str, target: &str, headers: &[(&str, &str)], length: Option<usize>, close: bool) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: hub.test\r\n");
    if close {
        head.push_str("Connection: close\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(length) = length.filter(|_| method != "GET") {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// A WebSocket client over TCP.
pub type WebSocket = oroshi_testkit::websocket::WebSocket<TcpStream>;
