//! The plan in a record.

use serde::{Deserialize, Serialize};

use crate::plan::{Load, Plan, Protocol};
use crate::request::Request;

/// The plan, as in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanRecord {
    /// The origins, each with the lines of its requests.
    pub origins: Vec<OriginRecord>,
    /// Threads.
    pub threads: usize,
    /// Connections under load.
    pub connections: usize,
    /// Idle connections beside them.
    pub hold: usize,
    /// Closed or open loop.
    pub load: Load,
    /// Planned length, seconds.
    pub duration_s: Option<f64>,
    /// Planned number of requests.
    pub requests: Option<u64>,
    /// Warm-up before the measured part, seconds.
    pub warmup_s: f64,
    /// Timeout, seconds.
    pub timeout_s: f64,
    /// Requests per connection; `None`: no limit.
    pub requests_per_connection: Option<u64>,
    /// Requests in flight per connection of HTTP/1.1.
    pub pipeline: usize,
    /// The version of HTTP: `http/1.1` or `h2`. `http/1.1` in records before 1.6.
    #[serde(default)]
    pub protocol: Protocol,
    /// Streams at once on each connection of HTTP/2; 1 for HTTP/1.1, and in records before 1.6.
    #[serde(default = "one")]
    pub streams: usize,
    /// How long each thread waited before it read, seconds. Latencies include it. 0: it did not, as in records before
    /// 1.7.
    #[serde(default)]
    pub gather_s: f64,
    /// The script that made the requests, if any.
    #[serde(default)]
    pub script: Option<String>,
}

/// One origin of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OriginRecord {
    /// Host and port, or the unix socket.
    pub address: String,
    /// `http` or `https`.
    pub scheme: String,
    /// The URL's host and port, where connections went elsewhere (`--connect-to`, `--unix`). Otherwise, and in records
    /// before 1.3, empty.
    #[serde(default)]
    pub authority: String,
    /// Connections to it.
    pub connections: usize,
    /// The first line of each request, at most a hundred; of a script, that of its first request.
    pub requests: Vec<String>,
    /// Number of requests, sent in turn. 0 in records before 1.3.
    #[serde(default)]
    pub request_count: usize,
    /// Size of the first request, bytes.
    pub request_bytes: usize,
}

impl OriginRecord {
    /// Returns the number of requests, in records of any version.
    #[must_use]
    pub fn count(&self) -> usize {
        self.request_count.max(self.requests.len())
    }
}

impl PlanRecord {
    pub(crate) fn of(plan: &Plan) -> Self {
        let first_line = |bytes: &[u8]| {
            let end = bytes.iter().position(|&b| b == b'\r').unwrap_or(bytes.len());
            let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
            match line.strip_suffix("HTTP/1.1") {
                Some(parts) if plan.protocol == Protocol::Http2 => format!("{parts}HTTP/2"),
                _ => line,
            }
        };
        Self {
            origins: plan
                .origins
                .iter()
                .map(|o| OriginRecord {
                    address: o.name(),
                    scheme: o.scheme.as_str().to_owned(),
                    authority: o.elsewhere.clone().unwrap_or_default(),
                    connections: o.connections,
                    requests: o.requests.iter().take(100).map(|r| first_line(&r.keep)).collect(),
                    request_count: o.requests.len(),
                    request_bytes: o.requests.first().map_or(0, Request::size),
                })
                .collect(),
            threads: plan.position(0).1,
            connections: plan.connections,
            hold: plan.hold,
            load: plan.load.clone(),
            duration_s: plan.duration.map(|d| d.as_secs_f64()),
            requests: plan.requests,
            warmup_s: plan.warmup.as_secs_f64(),
            timeout_s: plan.timeout.as_secs_f64(),
            requests_per_connection: if plan.connects_per_request() { Some(1) } else { plan.requests_per_connection },
            pipeline: plan.pipeline,
            protocol: plan.protocol,
            streams: plan.streams,
            gather_s: plan.gather.as_secs_f64(),
            script: plan.script.as_ref().map(|script| script.name()).or(plan.journeys.as_ref().map(|it| it.name())),
        }
    }
}

impl PlanRecord {
    /// Requests that may be in progress at once: connections, times the streams or the pipelined requests of each.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.connections * self.pipeline.max(self.streams)
    }
}

fn one() -> usize {
    1
}
