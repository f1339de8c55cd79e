//! Rate limits of `oroshi gate`: who is refused, for how long, and what operators see of it.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::gate::{Answer, Gate, HANG};
use crate::metrics::Metrics;
use oroshi_testkit::stores::Memcached;
use oroshi_testkit::wait_until;

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

/// Two gateways share the counts of a real memcached; without it each goes on alone, and says so.
#[test]
fn gateways_share_a_limit_by_memcached_and_go_on_alone_without_it() {
    let test = "gateways_share_a_limit_by_memcached_and_go_on_alone_without_it";
    let Some(mut memcached) = Memcached::start(test) else { return };
    let config = format!(
        "[memcached.counts]\nservers = [\"{}\"]\nbreaker = {{ failures = 1, pause = \"50ms\", pause-max = \"50ms\" }}\n\
         [limit.all]\nkey = [\"header X-Key\"]\nrate = \"4/24h\"\nmemcached = {{ store = \"counts\" }}\n\
         [[route]]\nlimit = \"all\"\nanswer = {{ body = \"ok\" }}\n",
        memcached.address()
    );
    let mut gates = [(); 2].map(|()| Gate::start(tempfile::tempdir().unwrap(), &config));
    let ask_at = |socket: &Path, key: &str| {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\nConnection: close\r\n\r\n").unwrap();
        Answer::read(stream)
    };
    let ask = |gate: &Gate, key: &str| ask_at(&gate.path("public.sock"), key);
    let turns = |gates: &[Gate; 2], key: &str, count: usize| -> Vec<u16> {
        (0..count).map(|turn| ask(&gates[turn % 2], key).status).collect()
    };
    assert_eq!(turns(&gates, "a", 7), [200, 200, 200, 200, 429, 429, 429]);
    let refused = ask(&gates[1], "a");
    let wait: u64 = refused.field("retry-after").unwrap().parse().unwrap();
    assert!((21_500..=21_600).contains(&wait), "a quarter of a day: {wait}");
    // What a gateway knows to be refused does not reach memcached.
    let asked = memcached.stat("cmd_get");
    assert_eq!(turns(&gates, "a", 20), [429; 20]);
    assert_eq!(memcached.stat("cmd_get"), asked);
    assert_eq!(turns(&gates, "b", 5), [200, 200, 200, 200, 429]);
    // Clients at both at once.
    let passed: usize = std::thread::scope(|scope| {
        let one = |gate: &Gate| {
            let socket = gate.path("public.sock");
            scope.spawn(move || (0..10).filter(|_| ask_at(&socket, "c").status == 200).count())
        };
        let all: Vec<_> = gates.iter().chain(&gates).map(one).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(passed, 4);
    assert_eq!(gates[0].status()["limits"]["all"]["alone"], 0);

    memcached.0.kill();
    // Known keys stay refused, and new ones have a burst at each gateway.
    assert_eq!(turns(&gates, "a", 2), [429, 429]);
    assert_eq!(turns(&gates, "d", 10), [200, 200, 200, 200, 200, 200, 200, 200, 429, 429]);
    for gate in &mut gates {
        assert_eq!(gate.status()["limits"]["all"]["alone"], 4);
        assert_eq!(Metrics::of(gate).get("limit_alone_total{limit=\"all\"}"), 4);
        gate.process.until("counts the requests of this gateway alone");
    }
    memcached.0.restart();
    // Once the gateways have found it again, they share their counts again.
    wait_until("memcached is found again", || {
        let count = |gate: &Gate| gate.status()["limits"]["all"]["alone"].as_u64().unwrap();
        let before = gates.each_ref().map(count);
        let key = format!("e{}", before.iter().sum::<u64>());
        turns(&gates, &key, 2);
        gates.each_ref().map(count) == before
    });
    assert_eq!(turns(&gates, "f", 5), [200, 200, 200, 200, 429]);
}
