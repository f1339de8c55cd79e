//! The other nodes, reached through NATS.
//!
//! Each node announces itself to all others by heartbeats. For sessions that it does not hold, it asks all others: to
//! publish, to find or close a session, to join or leave a group. Each node replies to the asker alone. A publish
//! reaches a node once or not at all: neither NATS nor the nodes store messages.
//!
//! Nodes detect lost publishes. Every message of a node says how many publishes it has made to all sessions and to
//! groups, even if it could reach nobody. So the others see what they missed, and tell their sessions before anything
//! that comes later.
//!
//! - `link` is the threads' end: they send commands to the NATS thread, and never wait for it. The hub uses it.
//! - `nats` is the thread that holds the connection. `serve` does what other nodes ask for; it uses the hub.
//! - `stream`, a part of `nats`, keeps the histories of channels in JetStream.
//! - `wire` has the messages between nodes as bytes; `peers` decides which nodes are there and which requests are
//!   valid; `feeds` notices what was lost of what other nodes tell about the subscribers of channels. None does I/O.

mod feeds;
pub(crate) mod link;
pub(crate) mod nats;
mod peers;
mod serve;
mod stream;
mod wire;
