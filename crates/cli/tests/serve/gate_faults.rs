//! `oroshi gate` between servers that lie, break off or fall silent and clients that dawdle: what each comes to, that
//! no answer goes astray, and that everybody else is served meanwhile. Each phase and rule alone is tested in
//! `oroshi-gate` itself.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use crate::gate::{Gate, HANG, Process, oroshi, server};
use crate::metrics::{Metrics, until};
use crate::support;
use crate::support::{Behind, Client, OK, Upstream};

/// What a lie comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Comes {
    /// 502, and nothing of it reaches the client.
    Refused,
    /// The answer begins, and is cut off, so that nobody takes it for whole.
    Cut,
    /// A whole answer with this status and body; what is beyond it reaches nobody.
    Whole(u16, &'static str),
}

/// What a server says to a request, and what comes of it. It closes afterwards where it says so.
struct Lie {
    name: &'static str,
    method: &'static str,
    says: Vec<u8>,
    closes: bool,
    comes: Comes,
}

const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";

fn lies() -> Vec<Lie> {
    use Comes::{Cut, Refused, Whole};
    let mut lies = Vec::new();
    let mut lie = |name, method, says: &str, closes, comes| {
        lies.push(Lie { name, method, says: says.as_bytes().to_vec(), closes, comes });
    };
    // Two ways to see where it ends.
    for (name, fields) in [
        ("length and chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked"),
        ("chunked and length", "Transfer-Encoding: chunked\r\nContent-Length: 5"),
        ("two lengths", "Content-Length: 5\r\nContent-Length: 105"),
        ("one length twice", "Content-Length: 5\r\nContent-Length: 5"),
        ("a list of lengths", "Content-Length: 5, 5"),
        ("length with a sign", "Content-Length: +5"),
        ("length below nothing", "Content-Length: -5"),
        ("length in hexadecimal", "Content-Length: 0x5"),
        ("length beyond 64 bits", "Content-Length: 18446744073709551621"),
        ("length with a space before its colon", "Content-Length : 5"),
        ("length on a folded line", "Content-Length:\r\n 5"),
        ("an unknown coding", "Transfer-Encoding: gzip"),
        ("an unknown coding before chunked", "Transfer-Encoding: gzip, chunked"),
        ("chunked twice", "Transfer-Encoding: chunked, chunked"),
        ("a bare LF", "X: y\nContent-Length: 5"),
        ("a bare CR", "X: y\rContent-Length: 5"),
        ("a NUL", "X: \0\r\nContent-Length: 5"),
    ] {
        lie(name, "GET", &format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n0\r\n\r\n{EVIL}"), false, Refused);
    }
    lie(
        "chunked in 1.0",
        "GET",
        &format!("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{EVIL}"),
        false,
        Refused,
    );
    // No answer at all.
    lie("HTTP/2", "GET", "\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\x64\0\x04\0\x10\0\0", false, Refused);
    lie("TLS", "GET", "\x15\x03\x01\0\x02\x02\x46", false, Refused);
    lie("another protocol", "GET", "SSH-2.0-OpenSSH_9.2p1\r\n", false, Refused);
    lie("a page without a head", "GET", "<html>hello</html>", true, Refused);
    lie("bare LFs", "GET", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", false, Refused);
    lie("nothing", "POST", "", true, Refused);
    lie("half a head", "GET", "HTTP/1.1 200 OK\r\nContent-Le", true, Refused);
    lie("a huge head", "GET", &format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(1 << 20)), false, Refused);
    lie("too many fields", "GET", &format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(5000)), false, Refused);
    lie("a flood of 1xx", "GET", &"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000), false, Refused);
    lie("1xx and no answer", "POST", "HTTP/1.1 103 Early Hints\r\n\r\n", true, Refused);
    let switch = format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n{EVIL}");
    lie("another protocol, unasked", "GET", &switch, false, Refused);
    // Less than was promised.
    lie("too short", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", true, Cut);
    lie("no last chunk", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", true, Cut);
    for (name, chunk) in [
        ("a chunk without an end", "5\r\nhelloX"),
        ("a chunk size with a sign", "+5\r\nhello\r\n"),
        ("a chunk size beyond 64 bits", "10000000000000005\r\nhello\r\n"),
        ("a chunk line that ends in LF", "5\nhello\r\n"),
        ("an extension with a bare LF", "5;\nhello\r\n"),
        ("trailers that are an answer", "0\r\nHTTP/1.1 200 OK\r\n"),
        ("a trailer that is framing", "0\r\nContent-Length: 5\r\n"),
    ] {
        lie(
            name,
            "GET",
            &format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}\r\n{EVIL}"),
            false,
            Cut,
        );
    }
    // More than was promised.
    lie("two answers", "GET", &format!("{OK}{EVIL}"), false, Whole(200, "ok"));
    lie(
        "a long body",
        "GET",
        &format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{EVIL}"),
        false,
        Whole(200, "ok"),
    );
    lie("a body to HEAD", "HEAD", EVIL, false, Whole(200, ""));
    lie(
        "an answer behind one to HEAD",
        "HEAD",
        &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{EVIL}", EVIL.len()),
        false,
        Whole(200, ""),
    );
    lie(
        "204 with a body",
        "GET",
        &format!("HTTP/1.1 204 No\r\nContent-Length: {}\r\n\r\n{EVIL}", EVIL.len()),
        false,
        Whole(204, ""),
    );
    lie(
        "204 with chunks",
        "GET",
        "HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n",
        false,
        Whole(204, ""),
    );
    lie(
        "304 with a body",
        "GET",
        &format!("HTTP/1.1 304 No\r\nContent-Length: {}\r\n\r\n{EVIL}", EVIL.len()),
        false,
        Whole(304, ""),
    );
    lie(
        "chunks and more",
        "GET",
        &format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{EVIL}"),
        false,
        Whole(200, "ok"),
    );
    lie(
        "hints before an answer",
        "GET",
        &format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{OK}{EVIL}"),
        false,
        Whole(200, "ok"),
    );
    // The end of the connection is the end of the body.
    lie("no length", "GET", "HTTP/1.1 200 OK\r\n\r\nok", true, Whole(200, "ok"));
    lie("no length in 1.0", "GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nok", true, Whole(200, "ok"));
    lies
}

/// A server that lies under `/lie/N`, and says under any other target which it was.
fn liar() -> Upstream {
    let lies = lies();
    Upstream::start(move |_, behind| {
        while let Some(request) = behind.request() {
            let target = request.line().split(' ').nth(1).unwrap().to_owned();
            let Some(number) = target.strip_prefix("/lie/") else {
                behind.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{target}", target.len()));
                continue;
            };
            let lie = &lies[number.parse::<usize>().unwrap()];
            behind.send(&lie.says);
            if lie.closes {
                behind.half_close();
                behind.rest();
                return;
            }
        }
    })
}

/// On one thread, so that all clients share the connections to the server.
fn gate_to(target: &impl ToString, limits: &str, route: &str) -> Gate {
    let config = format!(
        "threads = 1\nlisten = {{ public = \"unix:{{dir}}/public.sock\", admin = \"unix:{{dir}}/admin.sock\" }}\n\
         {limits}\n\
         [[route]]\nto = \"{}\"\n{route}\n",
        target.to_string()
    );
    Gate::start(tempfile::tempdir().unwrap(), &config)
}

fn client(gate: &Gate) -> Client {
    Client::unix(&gate.path("public.sock"))
}

fn failures(metrics: &Metrics, failure: &str) -> u64 {
    metrics.sum("target_failures_total", &format!("failure=\"{failure}\""))
}

#[test]
fn no_lie_of_a_server_reaches_another_client() {
    let upstream = liar();
    let gate = gate_to(&upstream.target, "", "");
    let mut other = client(&gate);
    let mut markers = 0;
    let mut marker = |client: &mut Client, name: &str| {
        markers += 1;
        // Sent twice it would have been; this may not be.
        let target = format!("/marker/{markers}");
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"));
        let answer = client.answer();
        assert_eq!((answer.status, answer.text()), (200, &*target), "{name}");
    };
    for (number, lie) in lies().into_iter().enumerate() {
        let name = lie.name;
        // The next request comes before the answer to this one.
        let mut liars = client(&gate);
        liars.send(format!("{} /lie/{number} HTTP/1.1\r\nHost: a\r\n\r\n", lie.method));
        let mut answer = if lie.comes == Comes::Cut { None } else { Some(liars.answer_to(lie.method)) };
        let mut interim = 0;
        while let Some(hints) = answer.take_if(|answer| answer.status == 103) {
            interim += 1;
            assert!(interim <= 16, "{name}: {hints:?}");
            answer = Some(liars.answer_to(lie.method));
        }
        match (lie.comes, answer) {
            (Comes::Refused, Some(answer)) => {
                assert_eq!(answer.status, 502, "{name}: {answer:?}");
                assert!(!answer.text().contains("evil"), "{name}");
            }
            (Comes::Whole(status, body), Some(answer)) => {
                assert_eq!((answer.status, answer.text()), (status, body), "{name}");
            }
            _ => {
                let rest = liars.end();
                let text = String::from_utf8_lossy(&rest);
                assert!(text.starts_with("HTTP/1.1 200 ") && !text.contains("evil"), "{name}: {text}");
                assert!(!text.ends_with("0\r\n\r\n"), "{name}: {text}");
                marker(&mut other, name);
                continue;
            }
        }
        // Each on the connection that is used first, whoever had it before.
        for _ in 0..2 {
            marker(&mut other, name);
            marker(&mut liars, name);
        }
    }
    let metrics = Metrics::of(&gate);
    assert_eq!(metrics.sum("target_queued", ""), 0);
    drop((gate, other));
    upstream.end();
}

#[test]
fn an_answer_that_comes_before_the_body_ends_nobodys_connection_but_its_own() {
    // It has read the head alone.
    let upstream = Upstream::start(|_, behind| {
        while let Some(head) = behind.head() {
            if head.starts_with("POST /refused") {
                behind.send("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno\n");
                behind.rest();
                return;
            }
            behind.send(OK);
        }
    });
    let gate = gate_to(&upstream.target, "", "buffer = \"off\"");
    let mut other = client(&gate);
    for framing in ["Content-Length: 10000000", "Transfer-Encoding: chunked"] {
        let mut refused = client(&gate);
        refused.send(format!("POST /refused HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
        let answer = refused.answer();
        assert_eq!((answer.status, answer.text()), (413, "no\n"), "{framing}");
        // What of the body comes now is no request. For chunks: the beginning of one.
        let inner = "1000\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        let _ = (&*refused.socket).write_all(inner.as_bytes());
        refused.half_close();
        let rest = refused.end();
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{framing}: {}", rest.escape_ascii());
        assert_eq!(other.send(support::GET).answer().text(), "ok", "{framing}");
    }
    drop((gate, other));
    upstream.end();
}

#[test]
fn slow_bodies_hold_nothing_behind_and_end_with_408() {
    const CLIENTS: usize = 50;
    let upstream = Upstream::answering(OK);
    for limit in ["body = \"100ms\"", "body-pause = \"100ms\"", "body-rate-window = \"100ms\""] {
        let gate = gate_to(&upstream.target, &format!("[limits]\n{limit}"), "");
        let begin = |_| {
            let mut slow = client(&gate);
            slow.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx");
            slow
        };
        let slow: Vec<_> = (0..CLIENTS).map(begin).collect();
        for mut slow in slow {
            assert_eq!(slow.answer().status, 408, "{limit}");
            slow.half_close().closed();
        }
        let ended = "body-timeout";
        let metrics = until(&gate, limit, |metrics| metrics.sum("client_errors_total", ended) == CLIENTS as u64);
        assert_eq!(metrics.sum("target_connects_total", ""), 0, "{limit}");
        // Whoever sends what it has is served meanwhile, and after.
        assert_eq!(
            client(&gate).send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").answer().text(),
            "ok"
        );
        assert_eq!(Metrics::of(&gate).sum("target_connects_total", ""), 1, "{limit}");
    }
    upstream.end();
}

#[test]
fn a_connection_that_ends_at_the_moment_of_its_reuse_costs_no_answer() {
    // Each connection takes its second request, and is closed without a word.
    let upstream = Upstream::start(|_, behind| {
        behind.request().unwrap();
        behind.send(OK);
        behind.request();
    });
    let gate = gate_to(&upstream.target, "", "");
    let mut client = client(&gate);
    for _ in 0..10 {
        assert_eq!(client.send(support::GET).answer().text(), "ok");
    }
    // The first, and one more for each after it, which found its connection closed.
    let metrics = Metrics::of(&gate);
    let (connects, retries) = (metrics.sum("target_connects_total", ""), metrics.sum("target_retries_total", ""));
    assert_eq!((connects, retries, failures(&metrics, "closed")), (10, 9, 9));
    assert_eq!(upstream.accepted(), 10);
    // What may have been done is not sent again.
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.answer().status, 502);
    assert_eq!(upstream.accepted(), 10);
    drop((gate, client));
    upstream.end();
}

#[test]
fn a_reset_in_the_body_is_seen_by_its_client_and_by_no_other() {
    let (reset, resets) = mpsc::channel::<()>();
    let resets = std::sync::Mutex::new(resets);
    let upstream = Upstream::start(move |_, behind| {
        while let Some(request) = behind.request() {
            if request.line().starts_with("GET /reset") {
                behind.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nhello");
                // Not before the client has what came: a reset would throw it away.
                resets.lock().unwrap().recv().unwrap();
                behind.reset();
                return;
            }
            behind.send(OK);
        }
    });
    let gate = gate_to(&upstream.target, "", "");
    let (mut one, mut other) = (client(&gate), client(&gate));
    one.send("GET /reset HTTP/1.1\r\nHost: a\r\n\r\n").until_head();
    assert_eq!(one.exactly(5), b"hello");
    assert_eq!(other.send(support::GET).answer().text(), "ok");
    reset.send(()).unwrap();
    assert!(one.end().is_empty());
    assert_eq!(other.send(support::GET).answer().text(), "ok");
    until(&gate, "it is counted", |metrics| failures(metrics, "cut") == 1);
    drop((gate, other));
    upstream.end();
}

#[test]
fn a_server_that_never_answers_is_given_up_in_each_phase() {
    let silent = |_: usize, behind: &mut Behind| {
        let Some(request) = behind.head() else { return };
        if request.starts_with("GET /begun") {
            behind.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        }
        behind.rest();
    };
    let upstream = Upstream::start(silent);
    let gate = gate_to(&upstream.target, "", "timeouts = { head = \"100ms\", between = \"100ms\" }");
    let mut asked = client(&gate);
    assert_eq!(asked.send(support::GET).answer().status, 504);
    // The client's connection is as good as before.
    assert_eq!(asked.send(support::GET).answer().status, 504);
    let begun = asked.send("GET /begun HTTP/1.1\r\nHost: a\r\n\r\n").end();
    assert!(begun.ends_with(b"hello"), "{}", begun.escape_ascii());
    until(&gate, "all is counted", |metrics| {
        (failures(metrics, "head-timeout"), failures(metrics, "body-timeout"), metrics.sum("target_connections", ""))
            == (2, 1, 0)
    });
    drop(gate);
    upstream.end();
}

/// As many dawdlers as there may be connections: each has its time. Who comes after them waits for that, and not until
/// they go by themselves.
#[test]
fn slow_clients_have_their_time_and_no_more() {
    const SLOW: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let _server = server(folder.path(), "app.sock", 11);
    let target = format!("unix:{}/app.sock", folder.path().display());
    let limits = "limits = { connections = 50, head = \"300ms\", body = \"300ms\", idle = \"60s\" }";
    let gate = gate_to(&target, limits, "");
    let begin = |begun: &str| -> Vec<Client> {
        let mut slow: Vec<Client> = (0..SLOW).map(|_| client(&gate)).collect();
        for slow in &mut slow {
            slow.send(begun);
        }
        slow
    };
    let refused = |slow: &mut [Client]| {
        for slow in slow {
            assert_eq!(slow.answer().status, 408);
            assert!(slow.end().is_empty());
        }
    };
    refused(&mut begin("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhel"));
    let mut slow = begin("GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ");
    let answer = gate.get("a", "/");
    assert_eq!((answer.status, answer.body.len()), (200, 11));
    refused(&mut slow);
    drop(slow);
    until(&gate, "all have ended", |metrics| metrics.get("client_connections") <= 1);

    // One byte at a time is no way around: the head as a whole has its time.
    let drip = client(&gate);
    let socket = std::sync::Arc::clone(&drip.socket);
    let dripping = std::thread::spawn(move || {
        let _ = (&*socket).write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ");
        while (&*socket).write_all(b"y").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let mut drip = drip;
    assert_eq!(drip.answer().status, 408);
    drip.give_up();
    dripping.join().unwrap();
}

/// With few descriptors: whoever says nothing, at the admin address or the public one, keeps out neither operators nor
/// clients.
#[test]
fn silent_connections_leave_descriptors_for_operators_and_clients() {
    const DESCRIPTORS: u32 = 100;
    const SILENT: usize = 150;
    let folder = tempfile::tempdir().unwrap();
    let _server = server(folder.path(), "app.sock", 11);
    let config = format!("[[route]]\nto = \"unix:{}/app.sock\"\n", folder.path().display());
    let mut gate = Gate::start_with_descriptors(DESCRIPTORS, tempfile::tempdir().unwrap(), &config);
    let said = gate.process.said.iter().find(|line| line.contains("limits.connections is lowered to ")).unwrap();
    let split = said.split_once("is lowered to ").unwrap().1.split_once(", beside 12 of operators: ");
    let connections: u32 = split.unwrap_or_else(|| panic!("{said}")).0.parse().unwrap();
    assert!((15..=30).contains(&connections), "{said}");
    let is_served = |times: usize, who: &str| {
        for _ in 0..times {
            gate.status();
            assert_eq!(gate.get("a", "/").body.len(), 11, "{who}");
        }
        let open = fs::read_dir(format!("/proc/{}/fd", gate.process.id())).unwrap().count();
        assert!(open < DESCRIPTORS as usize, "{open} descriptors: {who}");
    };
    let silent = |socket: &str| -> Vec<UnixStream> {
        (0..SILENT).map(|_| UnixStream::connect(gate.path(socket)).unwrap()).collect()
    };
    let _at_admin = silent("admin.sock");
    is_served(20, "silent ones at the admin address");
    let _at_public = silent("public.sock");
    // Of clients nobody vouches: each of the silent ones has its second.
    is_served(3, "silent ones at both addresses");
    let line = gate.process.until("no room at the admin listener unix:");
    assert!(line.contains("warn: ") && line.contains(" of 12 connections, "), "{line}");
}

/// They ask for much and read nothing: cut off after a while, and what waits for them is little.
#[test]
fn clients_that_do_not_read_are_cut_off_and_hold_little() {
    const SIZE: usize = 50_000_000;
    const READERS: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}/app.sock", folder.path().display());
    let _server =
        Process::start(oroshi().args(["target", "--listen", &listen, "--size", &SIZE.to_string()]), "listening");
    let config = |write: &str| {
        format!(
            "threads = 1\nlimits.write = \"{write}\"\n[listen]\npublic = \"unix:{{dir}}/public.sock\"\n\
             admin = \"unix:{{dir}}/admin.sock\"\n[[route]]\nto = \"{listen}\"\n[[route]]\npath = \"/own\"\n\
             answer = {{ status = 204 }}\n"
        )
    };
    let gate = Gate::start(tempfile::tempdir().unwrap(), &config("500ms"));
    let ask = |_| {
        let mut stream = UnixStream::connect(gate.path("public.sock")).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream
    };
    let lazy: Vec<UnixStream> = (0..READERS).map(ask).collect();
    until(&gate, "all have begun", |metrics| metrics.sum("target_answers_total", "") == READERS as u64);
    // Others are served meanwhile, and who reads gets all.
    assert_eq!(gate.get("a", "/own").status, 204);
    let mut reader = ask(0);
    let (mut room, mut got) = (vec![0; 1 << 20], 0);
    while got < SIZE {
        let count = reader.read(&mut room).unwrap();
        assert!(count > 0, "{got} bytes of {SIZE}");
        got += count;
    }
    until(&gate, "all are cut off", |metrics| failures(metrics, "client-gone") == READERS as u64);
    let status = fs::read_to_string(format!("/proc/{}/status", gate.process.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 100 * 1024, "{peak} KiB for {READERS} clients that read nothing of {SIZE} bytes");
    for mut lazy in lazy {
        let mut count = 0;
        while let Ok(more @ 1..) = lazy.read(&mut room) {
            count += more;
        }
        assert!(count < SIZE, "cut off: {count}");
    }
}
