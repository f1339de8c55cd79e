//! Checks whether a server answers.

use std::time::{Duration, Instant};

use oroshi_bench::{Draft, Failure, Http2, Observer, Record, Watching};
use oroshi_net::Endpoint;
use oroshi_net::tls::{ClientTlsOptions, Roots};

/// Sends one request, and expects a complete answer with a status below 500. A server that does not speak HTTP/1.1 is
/// asked over HTTP/2.
///
/// # Errors
/// Another outcome, in words; also when `given_up` ends the wait.
pub(super) fn answers(url: &Endpoint, timeout: Duration, given_up: &mut dyn FnMut() -> bool) -> Result<(), String> {
    let mut record = ask(url, None, timeout, given_up)?;
    let is_other_protocol = |failure: &Failure| matches!(failure, Failure::Parse | Failure::Tls);
    if record.statuses.is_empty() && record.failures.keys().any(is_other_protocol) {
        let other = ask(url, Some(Http2::PriorKnowledge), timeout, given_up)?;
        if !other.statuses.is_empty() {
            record = other;
        }
    }
    match record.statuses.keys().next() {
        Some(status) if *status < 500 => Ok(()),
        Some(status) => Err(format!("it answered with status {status}")),
        None => {
            let names: Vec<String> = record.failures.keys().map(ToString::to_string).collect();
            Err(format!("it gave no complete answer ({})", names.join(", ")))
        }
    }
}

/// Sends one request, by this version of HTTP.
fn ask(
    url: &Endpoint,
    http2: Option<Http2>,
    timeout: Duration,
    given_up: &mut dyn FnMut() -> bool,
) -> Result<Record, String> {
    let draft = Draft {
        urls: vec![url.clone()],
        http2,
        connections: 1,
        threads: Some(1),
        requests: Some(1),
        timeout,
        // The measuring side checks certificates.
        tls: ClientTlsOptions { roots: Roots::Insecure, ..ClientTlsOptions::default() },
        watch: Watching::None,
        ..Draft::default()
    };
    let plan = draft.plan().map_err(|error| error.to_string())?;
    // Connection and answer have the timeout each.
    let mut waiting = Waiting { deadline: Instant::now() + 2 * timeout, given_up };
    oroshi_bench::run(plan, &mut waiting).map_err(|error| error.to_string())
}

struct Waiting<'a> {
    deadline: Instant,
    given_up: &'a mut dyn FnMut() -> bool,
}

impl Observer for Waiting<'_> {
    fn cancelled(&mut self) -> bool {
        Instant::now() >= self.deadline || (self.given_up)()
    }
}
