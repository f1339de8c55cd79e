//! A NATS server of the test's own, and nodes that meet there.
#![allow(dead_code, unreachable_pub, unused_imports)] // each test file uses a part of it

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use oroshi_push::{Cluster, Plan};
pub use oroshi_testkit::daemon::{freeze, signal};
use oroshi_testkit::nats;
use oroshi_words::Secret;
use serde_json::Value;

use crate::hub::Hub;

/// A NATS server. Dropping it kills it.
pub struct Nats(nats::Nats);

impl Nats {
    /// Starts one; `None`, and a line for whoever runs the tests, if there is no such program.
    pub fn start(test: &str, arguments: &[&str]) -> Option<Nats> {
        nats::Nats::start(test, arguments).map(Nats)
    }

    /// A node here, with as many threads.
    pub fn node(&self, threads: usize, change: impl FnOnce(&mut Plan)) -> Hub {
        Hub::start(|plan| {
            plan.threads = threads;
            plan.cluster = Some(cluster(&self.url()));
            change(plan);
        })
    }

    /// Nodes that know each other.
    pub fn nodes(&self, count: usize) -> Vec<Hub> {
        let nodes: Vec<Hub> = (0..count).map(|_| self.node(2, |_| {})).collect();
        nodes.iter().for_each(|node| knows(node, count - 1));
        nodes
    }
}

impl Deref for Nats {
    type Target = nats::Nats;

    fn deref(&self) -> &nats::Nats {
        &self.0
    }
}

impl DerefMut for Nats {
    fn deref_mut(&mut self) -> &mut nats::Nats {
        &mut self.0
    }
}

/// What a node is told of the others.
pub fn cluster(url: &str) -> Cluster {
    // Long enough for a busy machine, where it is not what a test is about.
    Cluster { nats: Secret::new(url), name: "test".to_owned(), receipt_timeout: Duration::from_secs(10), history: None }
}

/// Waits until a node knows so many others.
pub fn knows(node: &Hub, others: usize) {
    node.until("the other nodes", |status| {
        status["cluster"]["connected"] == true && status["cluster"]["nodes"] == others
    });
}

/// How many nodes a receipt knows of, and how many of them answered.
pub fn nodes(receipt: &Value) -> (u64, u64) {
    (receipt["nodes"]["known"].as_u64().unwrap(), receipt["nodes"]["answered"].as_u64().unwrap())
}

/// A counter of a node's `/status`.
pub fn counter(node: &Hub, name: &str) -> u64 {
    node.status()["cluster"][name].as_u64().unwrap()
}
