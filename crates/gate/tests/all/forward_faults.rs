//! Servers behind that are down, slow, rude or wrong, and clients that are: what each comes to, and what is counted.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use crate::support::{Behind, GET, Gate, HANG, OK, SHORT, Setup, Upstream, nobody};
use oroshi_gate::forward::Failure;
use oroshi_gate::upstream::{Ejection, Place, PoolSettings, Target};

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

/// Asserts what one request came to, and that nothing else failed.
fn came_to(gate: &Gate, status: u16, failure: Failure) {
    let record = gate.records(1)[0].clone();
    assert_eq!((record.status, record.failure), (status, Some(failure)), "{record:?}");
    let counts = gate.until(failure.name(), |counts| counts.failure(failure) == 1);
    assert_eq!(counts.failures.iter().sum::<u64>(), 1, "{counts:?}");
}

/// A gateway whose route does not wait for bodies.
fn streaming(upstream: &Upstream) -> Gate {
    let mut setup = Setup::to(&upstream.target);
    setup.rules.buffer = 0;
    setup.start()
}

#[test]
fn nobody_listens() {
    let (_held, target) = nobody();
    let gate = Setup::to(&target).start();
    let mut client = gate.connect();
    let answer = client.send(POST).answer();
    assert_eq!((answer.status, answer.text()), (502, "the server behind this gateway cannot be reached\n"));
    came_to(&gate, 502, Failure::Connect);
    assert!(gate.records(1)[0].detail.contains("connect-refused"));
    // The client's connection goes on: its request was read.
    assert_eq!(client.send(GET).answer().status, 502);
    assert_eq!((gate.counts().open, gate.counts().connects), (0, 0));
    drop(client);
    gate.stop();

    // All that is known is told where the route asks for it.
    let mut setup = Setup::to(&"unix:/nowhere/at.all".parse().unwrap());
    setup.rules.explain = true;
    let gate = setup.start();
    assert!(gate.ask(GET).text().contains("connect unix:/nowhere/at.all"));
    gate.stop();
}

#[test]
fn names_and_addresses_that_are_not_allowed() {
    let upstream = Upstream::answering(OK);
    let Place::Peer(oroshi_net::Peer::Tcp(address)) = upstream.target.place else { panic!("a unix socket") };
    let named: Target = format!("localhost:{}", address.port()).parse().unwrap();
    for target in [&upstream.target, &named] {
        for allowed in [true, false] {
            let mut setup = Setup::to(target);
            setup.pool.allow = Some(Arc::new(move |address| allowed || !address.ip().is_loopback()));
            let gate = setup.start();
            assert_eq!(gate.ask(GET).status, if allowed { 200 } else { 502 }, "{target}");
            if !allowed {
                came_to(&gate, 502, Failure::NotAllowed);
            }
            gate.stop();
        }
    }
    assert_eq!(upstream.accepted(), 2);
    // RFC 6761: names under .invalid never exist.
    let gate = Setup::to(&"nowhere.invalid:80".parse().unwrap()).start();
    assert_eq!(gate.ask(GET).status, 502);
    came_to(&gate, 502, Failure::Resolve);
    gate.stop();
    upstream.end();
}

#[test]
fn a_connection_that_is_closed_at_the_moment_of_reuse_costs_nothing() {
    // The first connection takes its second request and closes without a word.
    let upstream = Upstream::start(|number, behind| {
        behind.request().unwrap();
        behind.send(OK);
        if behind.request().is_some() && number > 0 {
            behind.send(OK);
            behind.closed();
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    assert_eq!(client.send(GET).answer().text(), "ok");
    assert_eq!(client.send(GET).answer().text(), "ok");
    let record = gate.records(2)[1].clone();
    assert_eq!((record.failure, record.retries, record.reused), (None, 1, false));
    let counts = gate.counts();
    assert_eq!((counts.retries, counts.connects, counts.failure(Failure::Closed)), (1, 2, 1));
    assert_eq!(counts.requests, 3, "once on each connection");
    // What must not be done twice is not: the server may have done it.
    assert_eq!(client.send(POST).answer().text(), "ok");
    drop(client);
    gate.stop();
    upstream.end();

    let upstream = Upstream::start(|_, behind| {
        behind.request().unwrap();
        behind.send(OK);
        assert!(behind.request().unwrap().line().starts_with("POST"));
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(GET).answer();
    assert_eq!(client.send(POST).answer().status, 502);
    assert_eq!(upstream.accepted(), 1);
    assert_eq!((gate.counts().retries, gate.counts().failure(Failure::Closed)), (0, 1));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_request_is_sent_twice_at_most() {
    // Every connection closes at its second request; and every new one at its first, but for the very first.
    let upstream = Upstream::start(|number, behind| {
        behind.request().unwrap();
        if number == 0 {
            behind.send(OK);
            behind.request().unwrap();
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(GET).answer();
    assert_eq!(client.send(GET).answer().status, 502);
    assert_eq!(upstream.accepted(), 2);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn connections_that_were_closed_while_idle_are_not_used_again() {
    let (close, closing) = mpsc::channel::<()>();
    let closing = std::sync::Mutex::new(closing);
    let (closed, has_closed) = mpsc::channel();
    let upstream = Upstream::start(move |number, behind| {
        behind.request().unwrap();
        behind.send(OK);
        if number == 0 {
            closing.lock().unwrap().recv().unwrap();
            behind.stream.shutdown(std::net::Shutdown::Both).unwrap();
            closed.send(()).unwrap();
        } else {
            behind.closed();
        }
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(GET).answer();
    gate.until("idle", |counts| counts.idle == 1);
    close.send(()).unwrap();
    has_closed.recv().unwrap();
    // POST, which would not be sent again.
    assert_eq!(client.send(POST).answer().text(), "ok");
    let counts = gate.counts();
    assert_eq!((counts.stale, counts.retries, counts.connects, counts.requests), (1, 0, 2, 2));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn answers_that_are_not_valid_are_refused_and_their_connections_closed() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX: y\r\n folded\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "hello\r\n",
        "\0",
    ] {
        let upstream = Upstream::start(move |_, behind| {
            behind.request().unwrap();
            behind.send(answer);
            behind.closed();
        });
        let gate = Setup::to(&upstream.target).start();
        let answered = gate.ask(GET);
        assert_eq!(answered.status, 502, "{answer:?}");
        assert_eq!(answered.text(), "the server behind this gateway gave an answer that is not valid\n");
        came_to(&gate, 502, Failure::Malformed);
        gate.stop();
        upstream.end();
    }
}

#[test]
fn floods_of_interim_answers_end() {
    let upstream = Upstream::start(|_, behind| {
        behind.request().unwrap();
        for _ in 0..1_000 {
            behind.send("HTTP/1.1 102 Processing\r\n\r\n");
        }
        behind.rest();
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    client.send(GET);
    for _ in 0..16 {
        assert_eq!(client.answer().status, 102);
    }
    assert_eq!(client.answer().status, 502);
    came_to(&gate, 502, Failure::Malformed);
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn what_follows_an_answer_is_never_taken_for_the_next_one() {
    let upstream = Upstream::start(|_, behind| {
        behind.request().unwrap();
        behind.send(format!("{OK}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"));
        behind.rest();
    });
    let gate = Setup::to(&upstream.target).start();
    let mut client = gate.connect();
    for connections in 1..4 {
        assert_eq!(client.send(GET).answer().text(), "ok");
        assert_eq!(upstream.accepted(), connections);
    }
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn answers_that_break_off_do_not_look_complete() {
    const LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    const BAD_CHUNK: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nx";
    for (answer, reset, old_client) in [
        (LENGTH, false, false),
        (LENGTH, true, false),
        (CHUNKED, false, false),
        (CHUNKED, true, true),
        (BAD_CHUNK, false, false),
        (BAD_CHUNK, false, true),
    ] {
        let sent = Arc::new(Barrier::new(2));
        let (told, wait) = (Arc::clone(&sent), reset);
        let upstream = Upstream::start(move |_, behind| {
            behind.request().unwrap();
            behind.send(answer);
            if wait {
                // A reset throws away what was not read yet: not before the client has it.
                told.wait();
                behind.reset();
            }
        });
        let gate = Setup::to(&upstream.target).start();
        let mut client = gate.connect();
        client.send(if old_client { "GET / HTTP/1.0\r\n\r\n" } else { GET });
        if reset {
            client.until_head();
            client.exactly(if old_client { 5 } else { answer.len() - answer.find("\r\n\r\n").unwrap() - 4 });
            sent.wait();
        }
        let rest = if old_client { client.was_reset() } else { client.end() };
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", rest.escape_ascii());
        let failure = if answer == BAD_CHUNK { Failure::Malformed } else { Failure::Cut };
        came_to(&gate, 200, failure);
        gate.stop();
        upstream.end();
    }
}

#[test]
fn each_phase_has_its_time() {
    let silent = |_: usize, behind: &mut Behind| drop(behind.rest());
    let begins = |_: usize, behind: &mut Behind| {
        behind.request();
        behind.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        behind.rest();
    };
    type Script = Box<dyn Fn(usize, &mut Behind) + Send + Sync>;
    let cases: [(Script, Failure, u16); 4] = [
        (Box::new(silent), Failure::HeadTimeout, 504),
        (Box::new(begins), Failure::BodyTimeout, 200),
        (Box::new(silent), Failure::TotalTimeout, 504),
        (Box::new(begins), Failure::TotalTimeout, 200),
    ];
    for (script, failure, status) in cases {
        let upstream = Upstream::start(script);
        let mut setup = Setup::to(&upstream.target);
        match failure {
            Failure::HeadTimeout => setup.rules.timeouts.head = SHORT,
            Failure::BodyTimeout => setup.rules.timeouts.between = SHORT,
            _ => setup.rules.timeouts.total = SHORT,
        }
        let gate = setup.start();
        let mut client = gate.connect();
        client.send(GET);
        if status == 504 {
            assert_eq!(client.answer().status, 504);
        } else {
            assert!(client.end().ends_with(b"hello"));
        }
        came_to(&gate, status, failure);
        drop(client);
        gate.stop();
        upstream.end();
    }
}

#[test]
fn a_server_that_does_not_take_the_request_is_given_up() {
    let (done, ended) = mpsc::channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let upstream = Upstream::start(move |_, behind| {
        behind.head();
        // Reads nothing until the gateway has given up.
        let _ = ended.lock().unwrap().recv();
        behind.rest();
    });
    let mut setup = Setup::to(&upstream.target);
    setup.rules.timeouts.between = SHORT;
    let gate = setup.start();
    let mut client = gate.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    let sending = client.send_until_refused(&[b'x'; 65536]);
    assert_eq!(client.answer().status, 504);
    came_to(&gate, 504, Failure::SendTimeout);
    drop(done);
    client.give_up();
    sending.join().unwrap();
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn a_backlog_that_is_full_is_not_waited_for_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.sock");
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let _first = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let mut setup = Setup::to(&format!("unix:{}", path.display()).parse().unwrap());
    setup.rules.timeouts.connect = SHORT;
    let gate = setup.start();
    assert_eq!(gate.ask(GET).status, 504);
    came_to(&gate, 504, Failure::ConnectTimeout);
    gate.stop();
}

#[test]
fn lines_have_an_end_and_a_time() {
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let begun = Arc::new(Barrier::new(2));
    let has_begun = Arc::clone(&begun);
    let upstream = Upstream::start(move |_, behind| {
        behind.request().unwrap();
        has_begun.wait();
        released.lock().unwrap().recv().unwrap();
        behind.send(OK);
        behind.closed();
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool = PoolSettings { connections: 1, queue: 1, ..setup.pool };
    setup.rules.timeouts.queue = SHORT;
    let gate = setup.start();
    let mut first = gate.connect();
    first.send(GET);
    begun.wait();
    let mut second = gate.connect();
    second.send(GET);
    gate.until("in line", |counts| counts.queued == 1 || counts.failure(Failure::QueueTimeout) == 1);
    assert_eq!(second.answer().status, 503);
    let counts = gate.counts();
    assert_eq!((counts.failure(Failure::QueueTimeout), counts.queued), (1, 0));
    release.send(()).unwrap();
    assert_eq!(first.answer().text(), "ok");
    drop((first, second));
    gate.stop();
    upstream.end();
}

#[test]
fn a_full_line_refuses_at_once() {
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let upstream = Upstream::start(move |_, behind| {
        while behind.request().is_some() {
            released.lock().unwrap().recv().unwrap();
            behind.send(OK);
        }
    });
    let mut setup = Setup::to(&upstream.target);
    setup.pool = PoolSettings { connections: 1, queue: 1, ..setup.pool };
    let gate = setup.start();
    let mut clients = [gate.connect(), gate.connect()];
    clients[0].send(GET);
    gate.until("under way", |counts| counts.requests == 1);
    clients[1].send(GET);
    gate.until("in line", |counts| counts.queued == 1);
    let answer = gate.ask(GET);
    assert_eq!((answer.status, gate.counts().failure(Failure::QueueFull)), (503, 1));
    release.send(()).unwrap();
    release.send(()).unwrap();
    for client in &mut clients {
        assert_eq!(client.answer().text(), "ok");
    }
    gate.until("idle", |counts| (counts.open, counts.idle, counts.queued) == (1, 1, 0));
    drop(clients);
    gate.stop();
    upstream.end();
}

#[test]
fn the_next_target_is_tried_when_one_cannot_be_reached() {
    let (_held, dead) = nobody();
    let upstream = Upstream::answering(OK);
    let mut setup = Setup::to(&dead);
    setup.targets.push((upstream.target.clone(), 1));
    setup.pool.ejection = Ejection { failures: 3, back_off: HANG, ..Ejection::default() };
    let gate = setup.start();
    let mut client = gate.connect();
    // Whatever the method: nothing was sent.
    for _ in 0..20 {
        assert_eq!(client.send(POST).answer().text(), "ok");
    }
    let counts = gate.registry.counts();
    let dead = counts.iter().find(|found| *found.target == dead.to_string()).unwrap().counts;
    assert_eq!((dead.requests, dead.failure(Failure::Connect), dead.ejections, dead.ejected), (3, 3, 1, 1));
    drop(client);
    gate.stop();
    upstream.end();
}

#[test]
fn with_all_targets_down_each_is_tried_once() {
    let held = [nobody(), nobody(), nobody()];
    let mut setup = Setup::to(&held[0].1);
    setup.targets = held.iter().map(|(_, target)| (target.clone(), 1)).collect();
    setup.pool.ejection = Ejection { failures: 1, back_off: HANG, ..Ejection::default() };
    let gate = setup.start();
    for round in 1..4 {
        assert_eq!(gate.ask(GET).status, 502);
        assert_eq!(gate.records(round)[round - 1].retries, 2);
        // Never all of them are left out.
        assert!(gate.registry.counts().iter().all(|target| target.counts.requests == round as u64));
    }
    gate.stop();
}

#[test]
fn a_new_connection_that_closes_without_an_answer_sends_what_may_be_repeated_elsewhere() {
    let rude = Upstream::start(|_, behind| drop(behind.request()));
    let polite = Upstream::answering(OK);
    let mut setup = Setup::to(&rude.target);
    setup.targets.push((polite.target.clone(), 1));
    let gate = setup.start();
    let mut client = gate.connect();
    for _ in 0..4 {
        assert_eq!(client.send(GET).answer().text(), "ok");
    }
    let statuses: Vec<u16> = (0..4).map(|_| client.send(POST).answer().status).collect();
    assert_eq!(statuses.iter().filter(|&&status| status == 502).count(), 2, "{statuses:?}");
    drop(client);
    gate.stop();
    rude.end();
    polite.end();
}

#[test]
fn answers_of_500_and_more_may_count_as_failures() {
    let broken = Upstream::answering("HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n");
    let sound = Upstream::answering(OK);
    let mut setup = Setup::to(&broken.target);
    setup.targets.push((sound.target.clone(), 1));
    setup.pool.ejection = Ejection { failures: 2, back_off: HANG, server_errors: true, ..Ejection::default() };
    let gate = setup.start();
    let mut client = gate.connect();
    let statuses: Vec<u16> = (0..10).map(|_| client.send(GET).answer().status).collect();
    assert_eq!(statuses.iter().filter(|&&status| status == 500).count(), 2, "{statuses:?}");
    drop(client);
    gate.stop();
    broken.end();
    sound.end();
}

#[test]
fn clients_that_go_are_counted_and_the_server_behind_is_told() {
    let upstream = Upstream::start(|_, behind| {
        behind.head().unwrap();
        behind.rest();
    });
    let gate = streaming(&upstream);
    let mut client = gate.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhello");
    gate.until("under way", |counts| counts.open == 1);
    client.reset();
    gate.until("gone", |counts| counts.failure(Failure::ClientGone) == 1 && counts.open == 0);
    assert_eq!(gate.records(1)[0].failure, Some(Failure::ClientGone));
    gate.stop();
    upstream.end();
}

#[test]
fn bodies_that_are_not_valid_never_reach_the_server_behind_whole() {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    let upstream = Upstream::start(move |_, behind| {
        if behind.head().is_some() {
            seen.fetch_add(1, Ordering::SeqCst);
            assert!(!behind.rest().ends_with(b"0\r\n\r\n"));
        }
    });
    let gate = streaming(&upstream);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    // What comes with its head is not even begun.
    let mut client = gate.connect();
    assert_eq!(client.send(format!("{head}5\r\nhello\r\nx\r\n")).answer().status, 400);
    drop(client);
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    let mut client = gate.connect();
    client.send(format!("{head}5\r\nhello\r\n"));
    gate.until("under way", |counts| counts.open == 1);
    assert_eq!(client.send("x\r\n").answer().status, 400);
    drop(client);
    let records = gate.records(2);
    assert!(records.iter().all(|record| record.failure == Some(Failure::ClientBody)), "{records:?}");
    gate.until("closed", |counts| counts.open == 0);
    gate.stop();
    upstream.end();
}

#[test]
fn slow_readers_hold_back_the_server_behind_and_nothing_is_lost() {
    const PIECES: usize = 512;
    let (block, blocked) = mpsc::channel();
    let upstream = Upstream::start(move |_, behind| {
        behind.request().unwrap();
        behind.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PIECES * 65_536));
        behind.stream.set_write_timeout(Some(SHORT)).unwrap();
        for number in 0..PIECES {
            let (piece, mut sent) = ([number as u8; 65_536], 0);
            while sent < piece.len() {
                match behind.stream.write(&piece[sent..]) {
                    Ok(count) => sent += count,
                    // Nothing was taken for a while. Later on nobody asks any more.
                    Err(_) => drop(block.send(number)),
                }
            }
        }
        behind.closed();
    });
    let mut setup = Setup::to(&upstream.target);
    // A client that does not read is not the server's fault.
    setup.rules.timeouts.between = SHORT;
    let gate = setup.start();
    let mut client = gate.connect();
    client.send(GET).until_head();
    // Well before the end: it is nowhere gathered.
    assert!(blocked.recv().unwrap() < PIECES / 2);
    for number in 0..PIECES {
        assert!(client.exactly(65_536).iter().all(|&byte| byte == number as u8), "piece {number}");
    }
    assert_eq!(gate.until("idle", |counts| counts.idle == 1).failures.iter().sum::<u64>(), 0);
    drop((client, blocked));
    gate.stop();
    upstream.end();
}
