//! Rate limits of `oroshi gate`: who is refused, for how long, and what operators see of it.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::gate::{Answer, Gate, HANG};
use crate::metrics::Metrics;

const CONFIG: &str = r#"
[proxy-protocol]
trust-unix = true
[access-log]
file = "{dir}/access.log"
[limit.client]
rate = "3/24h"
[limit.key]
key = ["host", "header X-Key"]
rate = "1/24h"
[limit.all]
key = []
rate = "2/h"
answer = { status = 503, body = "slower\n" }
[[route]]
path = "/client"
limit = "client"
answer = { body = "ok" }
[[route]]
path = "/key"
limit = "key"
answer = { body = "ok" }
[[route]]
path = "/all"
limit = "all"
answer = { body = "ok" }
[[route]]
answer = { body = "free" }
"#;

/// The answer to a request of the client at this address.
fn ask(gate: &Gate, client: &str, path: &str, fields: &str) -> Answer {
    let family = if client.contains(':') { ("TCP6", "::1") } else { ("TCP4", "127.0.0.1") };
    let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    let (family, server) = family;
    write!(
        stream,
        "PROXY {family} {client} {server} 1 80\r\nGET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n"
    )
    .unwrap();
    Answer::read(stream)
}

#[test]
fn each_key_has_a_burst_of_its_own_on_all_threads_together() {
    let mut gate = Gate::start(tempfile::tempdir().unwrap(), CONFIG);
    let statuses = |gate: &Gate, client: &str, path: &str, fields: &str, count: usize| -> Vec<u16> {
        (0..count).map(|_| ask(gate, client, path, fields).status).collect()
    };
    assert_eq!(statuses(&gate, "192.0.2.1", "/client", "", 5), [200, 200, 200, 429, 429]);
    assert_eq!(statuses(&gate, "192.0.2.2", "/client", "", 4), [200, 200, 200, 429]);
    // A client of IPv6 is a network.
    assert_eq!(statuses(&gate, "2001:db8::1", "/client", "", 2), [200, 200]);
    assert_eq!(statuses(&gate, "2001:db8::2", "/client", "", 2), [200, 429]);
    assert_eq!(statuses(&gate, "192.0.2.3", "/key", "X-Key: 1\r\n", 2), [200, 429]);
    assert_eq!(statuses(&gate, "192.0.2.4", "/key", "X-Key: 1\r\n", 1), [429]);
    assert_eq!(statuses(&gate, "192.0.2.4", "/key", "X-Key: 2\r\n", 2), [200, 429]);
    assert_eq!(statuses(&gate, "192.0.2.4", "/key", "X-Key: 2\r\nX-Key: 1\r\n", 1), [200]);
    assert_eq!(statuses(&gate, "192.0.2.5", "/all", "", 1), [200]);
    assert_eq!(statuses(&gate, "192.0.2.6", "/all", "", 2), [200, 503]);
    assert_eq!(statuses(&gate, "192.0.2.1", "/", "", 3), [200, 200, 200]);
    let refused = ask(&gate, "192.0.2.7", "/all", "");
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=1800).contains(&wait) && refused.body == "slower\n", "{refused:?}");
    let metrics = Metrics::of(&gate);
    let count = |limit: &str, result: &str| {
        metrics.get(&format!("limit_requests_total{{limit=\"{limit}\",result=\"{result}\"}}"))
    };
    assert_eq!((count("client", "passed"), count("client", "refused")), (9, 4));
    assert_eq!((count("key", "passed"), count("all", "refused")), (3, 2));
    assert_eq!(gate.status()["limits"]["client"]["refused"], 4);
    // A reload keeps the counts of unchanged limits, and no others.
    gate.reload(&CONFIG.replace("\"1/24h\"", "\"2/24h\""));
    assert_eq!(statuses(&gate, "192.0.2.1", "/client", "", 1), [429]);
    assert_eq!(statuses(&gate, "192.0.2.3", "/key", "X-Key: 1\r\n", 3), [200, 200, 429]);
    let log = gate.path("access.log");
    gate.process.signal(rustix::process::Signal::TERM);
    gate.process.ended();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.lines().any(|line| line.contains("\"failure\":\"rate-limit\"") && line.contains("192.0.2.1")), "{log}");
}
