//! Shutdowns, upgrades, TLS, the cap on connections: how connections begin and end.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

use crate::support::{Client, HANG, Running, SHORT, describe, patient};
use oroshi_net::tls::{Roots, ServerTlsOptions};
use oroshi_net::{
    BoundListener, ClientTls, ClientTlsOptions, Connector, ConnectorOptions, ListenOptions, Peer, ServerTls, Threads,
    ThreadsOptions,
};
use oroshi_server::{Error, ErrorKind, Exchange, Handler, Server, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

/// A handler that says when a request to `/held` is in progress, and ends it when it is told to.
fn held(begun: mpsc::Sender<()>, release: &Arc<Notify>) -> impl Handler + Clone + Send + Sync + use<> {
    let release = Arc::clone(release);
    async move |exchange: &mut Exchange<'_>| {
        if exchange.head.target == "/held" {
            begun.send(()).unwrap();
            release.notified().await;
        }
        exchange.reply.send(200, [], b"done").await
    }
}

#[test]
fn a_shutdown_closes_idle_connections_at_once_and_finishes_what_is_in_progress() {
    let (begun, has_begun) = mpsc::channel();
    let release = Arc::new(Notify::new());
    let server = Running::start(patient(), held(begun, &release));
    let (mut unused, mut idle, mut busy) = (server.connect(), server.connect(), server.connect());
    assert_eq!(idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().field("connection"), None);
    busy.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    has_begun.recv().unwrap();
    server.shutdown.request();
    unused.closed();
    idle.closed();
    assert!(std::net::TcpStream::connect(server.tcp()).is_err(), "it still listens");
    release.notify_one();
    let answer = busy.answer();
    assert_eq!((answer.text(), answer.field("connection")), ("done", Some("close")));
    busy.closed();
    let counts = server.stop();
    assert_eq!((counts.accepted, counts.alive, counts.answers), (3, 0, 2));
    assert_eq!(counts.errors.iter().sum::<u64>(), 0);
}

/// A client that keeps its connection cannot know of the shutdown: what it sends a moment later is not to be lost.
#[test]
fn idle_connections_may_be_given_time_for_one_more_request() {
    let settings = Settings { last_request_timeout: HANG, drain_timeout: HANG, ..patient() };
    let server = Running::start(settings, describe);
    let (mut unused, mut idle, mut silent) = (server.connect(), server.connect(), server.connect());
    assert_eq!(idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().field("connection"), None);
    server.shutdown.request();
    while std::net::TcpStream::connect(server.tcp()).is_ok() {}
    for client in [&mut unused, &mut idle] {
        let answer = client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer();
        assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
        client.closed();
    }
    silent.half_close().closed();
    assert_eq!(server.stop().errors.iter().sum::<u64>(), 0);

    // Who sends nothing is closed when the time is over.
    let server = Running::start(Settings { last_request_timeout: SHORT, ..patient() }, describe);
    let mut idle = server.connect();
    server.shutdown.request();
    idle.closed();
    assert_eq!(server.stop().errors.iter().sum::<u64>(), 0);
}

#[test]
fn the_answer_in_progress_says_close_and_what_is_pipelined_behind_it_is_not_begun() {
    let (begun, has_begun) = mpsc::channel();
    let release = Arc::new(Notify::new());
    let server = Running::start(patient(), held(begun, &release));
    let mut client = server.connect();
    // The answer to the first is written before the shutdown and says nothing of it.
    client.send(
        "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /held HTTP/1.1\r\nHost: a\r\n\r\nGET /lost HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    has_begun.recv().unwrap();
    server.shutdown.request();
    wait_until_refused(&server);
    release.notify_one();
    assert_eq!(client.answer().field("connection"), None);
    assert_eq!(client.answer().field("connection"), Some("close"));
    client.half_close().closed();
    assert_eq!(server.stop().answers, 2);
}

#[test]
fn what_does_not_finish_in_time_is_cut_off() {
    let (begun, has_begun) = mpsc::channel();
    let release = Arc::new(Notify::new());
    let server = Running::start(Settings { drain_timeout: SHORT, ..patient() }, held(begun, &release));
    let mut busy = server.connect();
    busy.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    has_begun.recv().unwrap();
    let counts = server.stop();
    busy.closed();
    assert_eq!((counts.alive, counts.answers, counts.error(ErrorKind::Shutdown)), (0, 0, 1));
}

/// tokio lets a task take 128 things at a time, then says that there is nothing: all clients behind that were reset.
#[test]
fn a_whole_backlog_is_answered_at_the_shutdown() {
    const CLIENTS: usize = 300;
    for connections in [patient().connections, 10] {
        let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
        let Peer::Tcp(address) = *bound.address() else { unreachable!("it is TCP") };
        let connect = || Client::new(std::net::TcpStream::connect(address).unwrap());
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| connect()).collect();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        let bound = Mutex::new(Some(bound));
        let threads = Threads::start(&ThreadsOptions::new("server", 1), move |_| {
            let server = Server::new(describe, Settings { connections, ..patient() });
            let bound = bound.lock().unwrap().take().unwrap();
            async move {
                server.serve([bound.into_listener().unwrap().into()], std::future::ready(())).await;
                server.counters().counts()
            }
        });
        let answered = clients.iter_mut().map(Client::end).filter(|end| end.starts_with(b"HTTP/1.1 200")).count();
        assert_eq!(answered, CLIENTS, "with {connections} connections at most");
        let counts = threads.unwrap().join().unwrap();
        assert_eq!((counts[0].answers, counts[0].errors.iter().sum::<u64>()), (CLIENTS as u64, 0));
    }
}

/// Who waits for a seat that is not given up is not waited for longer than the drain may take.
#[test]
fn a_backlog_behind_a_full_house_ends_with_the_drain() {
    let (begun, has_begun) = mpsc::channel();
    let settings = Settings { connections: 1, drain_timeout: SHORT, ..patient() };
    let server = Running::start(settings, held(begun, &Arc::new(Notify::new())));
    let (mut busy, mut waiting) = (server.connect(), server.connect());
    busy.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    has_begun.recv().unwrap();
    let counts = server.stop();
    assert_eq!((busy.end(), waiting.end()), (Vec::new(), Vec::new()));
    assert_eq!((counts.accepted, counts.alive, counts.error(ErrorKind::Shutdown)), (1, 0, 1));
}

#[test]
fn a_handler_can_wait_for_the_shutdown() {
    let (begun, has_begun) = mpsc::channel();
    let server = Running::start(patient(), async move |exchange: &mut Exchange<'_>| {
        let closing = exchange.closing();
        exchange.reply.begin(200, [("Content-Type", &b"text/event-stream"[..])], None)?;
        exchange.reply.write(b"data: hello\n\n").await?;
        begun.send(()).unwrap();
        closing.begun().await;
        assert!(closing.has_begun());
        exchange.reply.write(b"data: bye\n\n").await?;
        exchange.reply.finish()
    });
    let mut client = server.connect();
    client.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    has_begun.recv().unwrap();
    server.shutdown.request();
    assert_eq!(client.answer().text(), "data: hello\n\ndata: bye\n\n");
    client.closed();
    server.stop();
}

#[test]
fn an_upgrade_hands_over_the_stream_and_what_was_sent_ahead() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        if exchange.head.upgrade.is_none() {
            let refused = exchange.upgrade(101, &[("Upgrade", b"echo")]).await;
            assert!(matches!(refused, Err(Error::Misuse(_))));
            return exchange.reply.send(426, [("Upgrade", &b"echo"[..])], b"").await;
        }
        assert!(matches!(exchange.upgrade(101, &[]).await, Err(Error::Misuse(_))), "without naming the protocol");
        assert!(matches!(exchange.upgrade(200, &[]).await, Err(Error::Misuse(_))), "200 is for CONNECT");
        let (mut stream, ahead) = exchange.upgrade(101, &[("Upgrade", b"echo")]).await?;
        assert!(matches!(exchange.body.chunk().await, Ok(None)));
        assert!(matches!(exchange.reply.send(200, [], b"").await, Err(Error::Misuse(_))));
        stream.write_all(&ahead).await.map_err(Error::Io)?;
        let mut buffer = [0; 100];
        loop {
            let count = stream.read(&mut buffer).await.map_err(Error::Io)?;
            if count == 0 {
                return Ok(());
            }
            stream.write_all(&buffer[..count]).await.map_err(Error::Io)?;
        }
    });
    let mut client = server.connect();
    assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().status, 426);
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").send(b"\0ahead\xff");
    let answer = client.answer();
    assert_eq!((answer.status, answer.field("connection")), (101, Some("upgrade")));
    assert_eq!((answer.field("upgrade"), answer.field("content-length")), (Some("echo"), None));
    assert_eq!(client.exactly(7), b"\0ahead\xff");
    client.send("more").half_close();
    assert_eq!(client.rest(), b"more");
    let counts = server.stop();
    assert_eq!((counts.requests, counts.answers, counts.errors.iter().sum::<u64>()), (2, 2, 0));
}

#[test]
fn connect_is_answered_with_a_tunnel_and_an_upgrade_waits_for_the_body() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        if exchange.head.method == "POST" {
            let early = exchange.upgrade(101, &[("Upgrade", b"x")]).await;
            assert!(matches!(early, Err(Error::Misuse(_))));
            while exchange.body.chunk().await?.is_some() {}
            let (mut stream, ahead) = exchange.upgrade(101, &[("Upgrade", b"x")]).await?;
            return stream.write_all(&ahead).await.map_err(Error::Io);
        }
        assert!(matches!(exchange.reply.send(200, [], b"no tunnel").await, Err(Error::Misuse(_))));
        let (mut stream, ahead) = exchange.upgrade(200, &[]).await?;
        stream.write_all(&ahead).await.map_err(Error::Io)
    });
    let mut client = server.connect();
    client.send("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\nGET / not even HTTP");
    assert_eq!(String::from_utf8(client.rest()).unwrap(), "HTTP/1.1 200 OK\r\n\r\nGET / not even HTTP");
    let mut client = server.connect();
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 4\r\n\r\nbodyahead");
    assert_eq!(client.answer().status, 101);
    assert_eq!(client.rest(), b"ahead");
    server.stop();
}

#[test]
fn at_the_cap_others_wait_their_turn() {
    let server = Running::start(Settings { connections: 2, ..patient() }, describe);
    let (mut first, mut second, mut third) = (server.connect(), server.connect(), server.connect());
    third.send("GET /third HTTP/1.1\r\nHost: a\r\n\r\n");
    for turn in 0..4 {
        let client = if turn % 2 == 0 { &mut first } else { &mut second };
        assert_eq!(client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().status, 200);
    }
    first.half_close().closed();
    assert_eq!(third.answer().text(), "GET /third 0");
    drop((second, third));
    assert_eq!(server.stop().accepted, 3);
}

#[test]
fn writes_wake_a_handler_that_brings_its_own_waker() {
    // As FuturesUnordered and its like do: the write is polled again only when its own waker was woken. Meanwhile the
    // connection itself sends what waits, under the task's waker.
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        exchange.reply.begin(200, [], None)?;
        let piece = [b'x'; 10_000];
        for _ in 0..1000 {
            by_itself(exchange.reply.write(&piece)).await?;
        }
        exchange.reply.finish()
    });
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().body.len(), 10_000_000);
    server.stop();
}

#[test]
fn tls_serves_keeps_alive_and_says_goodbye() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let tls = ServerTls::from_der(
        vec![certified.cert.der().to_vec()],
        certified.signing_key.serialize_der(),
        &ServerTlsOptions::default(),
    );
    let handler = async |exchange: &mut Exchange<'_>| {
        assert!(exchange.is_tls());
        exchange.reply.send(200, [], &[b'x'; 100_000]).await
    };
    let server =
        Running::start_at("127.0.0.1:0", Some(tls.unwrap()), Settings { head_timeout: SHORT, ..patient() }, handler);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    runtime.block_on(async {
        let options = ClientTlsOptions { roots: Roots::Insecure, ..ClientTlsOptions::default() };
        let tls = Some(ClientTls::new(&options, "localhost").unwrap());
        let connector = Connector::new(ConnectorOptions { tls, ..ConnectorOptions::default() });
        let mut stream = connector.connect(&server.address, None).await.unwrap().stream;
        for close in ["", "Connection: close\r\n"] {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{close}\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(&[b'x'; 100_000]) {
                assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
            }
        }
        // An end without a close_notify would be an error here.
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    });

    // Peers that speak something else, or nothing.
    let mut plain = server.connect();
    plain.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    plain.end();
    server.connect().closed();
    let counts = server.stop();
    assert_eq!((counts.answers, counts.error(ErrorKind::Tls), counts.error(ErrorKind::HeadTimeout)), (2, 1, 1));
}

#[test]
fn a_handler_that_panics_takes_its_connection_with_it_and_nothing_else() {
    let server = Running::start(patient(), async |exchange: &mut Exchange<'_>| {
        assert_ne!(exchange.head.target, "/panic", "this panic is part of the test");
        exchange.reply.send(200, [], b"fine").await
    });
    let mut other = server.connect();
    server.connect().send("GET /panic HTTP/1.1\r\nHost: a\r\n\r\n").end();
    assert_eq!(other.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").answer().text(), "fine");
    drop(other);
    let counts = server.stop();
    assert_eq!((counts.alive, counts.requests, counts.answers), (0, 2, 1));
}

#[test]
fn dropping_the_servers_future_cuts_everything_off() {
    let (begun, has_begun) = mpsc::channel();
    let (drop_it, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let bound = BoundListener::bind("127.0.0.1:0", &ListenOptions::default()).unwrap();
    let Peer::Tcp(address) = *bound.address() else { unreachable!("it is TCP") };
    let bound = Mutex::new(Some(bound));
    let (dropping, ending) = (Arc::clone(&drop_it), Arc::clone(&end));
    let threads = Threads::start(&ThreadsOptions::new("server", 1), move |_| {
        let bound = bound.lock().unwrap().take().unwrap();
        let server = Server::new(held(begun.clone(), &Arc::new(Notify::new())), patient());
        let (dropping, ending) = (Arc::clone(&dropping), Arc::clone(&ending));
        async move {
            {
                let mut serving = pin!(server.serve([bound.into_listener().unwrap().into()], std::future::pending()));
                let mut dropping = pin!(dropping.notified());
                poll_fn(|context| {
                    assert!(serving.as_mut().poll(context).is_pending());
                    dropping.as_mut().poll(context)
                })
                .await;
            }
            ending.notified().await;
            server.counters().counts().alive
        }
    });
    let mut busy = Client::new(std::net::TcpStream::connect(address).unwrap());
    busy.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    has_begun.recv().unwrap();
    drop_it.notify_one();
    // The thread and its runtime go on meanwhile.
    assert_eq!(busy.end(), b"");
    end.notify_one();
    assert_eq!(threads.unwrap().join().unwrap(), [0]);
}

/// Waits, by connecting, until the server no longer listens.
fn wait_until_refused(server: &Running) {
    loop {
        match std::net::TcpStream::connect(server.tcp()) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => return,
            // It came in the moment in which the listener was closed.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
            // Accepted in the last moment: it could still send a request, and says that it will not.
            Ok(stream) => drop(Client::new(stream).half_close().end()),
        }
    }
}

/// Polls a future only when the waker it was given was woken.
async fn by_itself<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let flag = Arc::new(Flag { woken: AtomicBool::new(true), task: Mutex::new(None) });
    let waker = Waker::from(Arc::clone(&flag));
    poll_fn(|context| {
        *flag.task.lock().unwrap() = Some(context.waker().clone());
        if !flag.woken.swap(false, Ordering::Relaxed) {
            return Poll::Pending;
        }
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

struct Flag {
    woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
        if let Some(task) = &*self.task.lock().unwrap() {
            task.wake_by_ref();
        }
    }
}
