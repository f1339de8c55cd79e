//! A client that speaks the protocol of channels.

use std::net::SocketAddr;

use oroshi_websocket::Kind;
use serde_json::{Value, json};

use super::{Hub, WebSocket};

/// A client on a WebSocket.
pub struct Client {
    pub socket: WebSocket,
    pub first: Value,
    next_id: u64,
}

impl Client {
    pub fn open(hub: &Hub) -> Client {
        Client::open_with(hub.address, "/connect")
    }

    pub fn open_with(address: SocketAddr, target: &str) -> Client {
        let fields = [("Sec-WebSocket-Protocol", "other, oroshi.v1")];
        let mut socket = WebSocket::open(address, target, &fields).unwrap_or_else(|answer| panic!("{answer:?}"));
        let first = frame(&socket.text());
        Client { socket, first, next_id: 1 }
    }

    pub fn next(&mut self) -> Value {
        frame(&self.socket.text())
    }

    pub fn send(&mut self, command: &Value) {
        self.socket.send(Kind::Text, command.to_string().as_bytes());
    }

    /// Sends a command, and returns the next frame, which is its answer.
    pub fn ask(&mut self, mut command: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        command["id"] = json!(id);
        self.send(&command);
        let answer = self.next();
        assert_eq!(answer["id"], id, "{command}: {answer}");
        answer
    }

    pub fn subscribe(&mut self, channel: &str, since: Option<&Value>) -> Value {
        let mut subscribe = json!({ "channel": channel });
        if let Some(since) = since {
            subscribe["since"] = json!({ "epoch": since["epoch"], "offset": since["offset"] });
        }
        self.ask(json!({ "subscribe": subscribe }))["subscribed"].clone()
    }

    pub fn client(&self) -> &str {
        self.first["client"].as_str().unwrap()
    }
}

/// Reads a frame of the hub.
pub fn frame(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
