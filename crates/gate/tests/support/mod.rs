//! A gateway on a thread of its own, and servers behind it that do what their test says.
#![allow(dead_code, unreachable_pub, unused_imports)] // a module of each test file, which uses its part

pub mod nginx;
#[path = "../../../server/tests/support/mod.rs"]
pub mod server;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use oroshi_gate::forward::{self, Call, CallTargets, Edits, Failure, Inspect, Outcome, Rules};
use oroshi_gate::upstream::Protocol;
use oroshi_gate::upstream::{self, Balancer, Counts, Place, Policy, PoolSettings, Pools, Registry, Target};
use oroshi_net::{BoundListener, ListenOptions, Peer, Shutdown, Threads, ThreadsOptions};
use oroshi_server::{Exchange, Server};
#[allow(unused_imports)] // as above
pub use oroshi_testkit::http2::server::{Asked, Requested, Server as Server2};
pub use oroshi_testkit::http2::{Config, ErrorCode, Grants, Seen};
#[allow(unused_imports)] // as above
pub use oroshi_testkit::skipped;
#[allow(unused_imports)] // as above
pub use server::{Answer, Client, HANG, SHORT, patient};

/// What a test's gateway is made of.
pub struct Setup {
    pub targets: Vec<(Target, u32)>,
    pub policy: Policy,
    pub pool: PoolSettings,
    pub rules: forward::Settings,
    /// What a script changes in requests.
    pub request: Edits,
    pub server: oroshi_server::Settings,
    /// Who looks at answers.
    pub inspect: Option<&'static (dyn Inspect + Sync)>,
    /// Where it listens.
    pub listen: String,
}

impl Setup {
    /// One target, and limits that no test reaches by accident.
    pub fn to(target: &Target) -> Setup {
        let timeouts = forward::Timeouts {
            queue: HANG * 2,
            connect: HANG * 2,
            head: HANG * 2,
            between: HANG * 2,
            tunnel: HANG * 2,
            half_close: HANG * 2,
            ..Default::default()
        };
        Setup {
            targets: vec![(target.clone(), 1)],
            policy: Policy::default(),
            pool: PoolSettings { idle_timeout: HANG * 2, ..PoolSettings::default() },
            rules: forward::Settings { timeouts, ..Default::default() },
            request: Edits::none(),
            server: patient(),
            inspect: None,
            listen: "127.0.0.1:0".to_owned(),
        }
    }

    pub fn start(self) -> Gate {
        Gate::start(self)
    }
}

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Record {
    pub status: u16,
    pub failure: Option<Failure>,
    pub detail: String,
    pub target: Option<String>,
    pub reused: bool,
    pub retries: u32,
    pub bytes: u64,
    pub bytes_up: u64,
    pub ended: bool,
    pub request_id: Option<String>,
    pub traceparent: Option<String>,
}

/// A gateway, until it is stopped.
pub struct Gate {
    pub address: Peer,
    pub registry: Arc<Registry>,
    records: Arc<(Mutex<Vec<Record>>, Condvar)>,
    shutdown: Shutdown,
    running: Threads<oroshi_server::Counts>,
}

/// Notes what became of a request, also when its future is dropped.
struct Noting<'n>(&'n (Mutex<Vec<Record>>, Condvar), Outcome);

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        let Noting(records, outcome) = self;
        records.0.lock().unwrap().push(Record {
            status: outcome.status,
            failure: outcome.failure,
            detail: std::mem::take(&mut outcome.detail),
            target: outcome.target.as_ref().map(|pool| pool.target().to_string()),
            reused: outcome.reused,
            retries: outcome.retries,
            bytes: outcome.bytes,
            bytes_up: outcome.bytes_up,
            ended: outcome.is_ended(),
            request_id: outcome.request_id.map(|id| id.as_str().to_owned()),
            traceparent: outcome.traceparent.map(|trace| trace.as_str().to_owned()),
        });
        records.1.notify_all();
    }
}

impl Gate {
    fn start(setup: Setup) -> Gate {
        let Setup { targets, policy, pool, rules, request, server, inspect, listen } = setup;
        let bound = BoundListener::bind(&listen, &ListenOptions::default()).unwrap();
        let address = bound.address().clone();
        let bound = Mutex::new(Some(bound));
        let registry: Arc<Registry> = Arc::default();
        let records: Arc<(Mutex<Vec<Record>>, Condvar)> = Arc::default();
        let shutdown = Shutdown::new();
        let rules = Arc::new(Rules::new(rules).unwrap());
        let (ending, counting, noting) = (shutdown.clone(), Arc::clone(&registry), Arc::clone(&records));
        let running = Threads::start(&ThreadsOptions::new("gate", 1), move |_| {
            let bound = bound.lock().unwrap().take().unwrap();
            let (ending, registry, records) = (ending.clone(), Arc::clone(&counting), Arc::clone(&noting));
            let (targets, pool, rules, server) = (targets.clone(), pool.clone(), Arc::clone(&rules), server.clone());
            let request = request.clone();
            async move {
                let pools = Pools::new(upstream::Settings::default(), registry);
                let pool = Rc::new(pool);
                let members = targets.iter().map(|(target, weight)| (pools.pool(target, &pool), *weight));
                let balancer = Balancer::new(members, policy);
                let handler = async move |exchange: &mut Exchange<'_>| {
                    let mut noting = Noting(&records, Outcome::default());
                    let to = match balancer.pools().count() {
                        1 => CallTargets::One(balancer.pools().next().unwrap()),
                        _ => CallTargets::Any(&balancer),
                    };
                    let key = upstream::hash(exchange.head.target.as_bytes());
                    let inspect = inspect.map(|inspect| -> &dyn Inspect { inspect });
                    let call = Call { key, inspect, request: &request, ..Call::new(&rules, to) };
                    forward::forward(exchange, &call, &mut noting.1).await
                };
                let server = Server::new(handler, server);
                server.serve([bound.into_listener().unwrap().into()], ending.reached(1)).await;
                drop(pools);
                server.counters().counts()
            }
        });
        Gate { address, registry, records, shutdown, running: running.unwrap() }
    }

    pub fn connect(&self) -> Client {
        let Peer::Tcp(address) = self.address else { panic!("a unix socket") };
        Client::new(TcpStream::connect(address).unwrap())
    }

    pub fn connect_http2(&self) -> oroshi_testkit::http2::Client {
        let Peer::Tcp(address) = self.address else { panic!("a unix socket") };
        oroshi_testkit::http2::Client::connect(address)
    }

    /// One request on a connection of its own, and its answer.
    pub fn ask(&self, request: &str) -> Answer {
        self.connect().send(request).answer()
    }

    /// The records of the first `count` requests, once there are so many.
    pub fn records(&self, count: usize) -> Vec<Record> {
        let (records, more) = &*self.records;
        let records = records.lock().unwrap();
        let (records, waited) = more.wait_timeout_while(records, HANG, |records| records.len() < count).unwrap();
        assert!(!waited.timed_out(), "only {} requests of {count} have ended", records.len());
        records.clone()
    }

    /// The figures of the only target; none as long as the gateway's thread has not made its pool.
    pub fn counts(&self) -> Counts {
        let counts = self.registry.counts();
        assert!(counts.len() <= 1);
        counts.first().map(|target| target.counts).unwrap_or_default()
    }

    /// Waits until the target's figures are as asked for: what they count may happen a moment after the client has its
    /// answer.
    pub fn until(&self, what: &str, fits: impl Fn(&Counts) -> bool) -> Counts {
        let began = std::time::Instant::now();
        loop {
            let counts = self.counts();
            if fits(&counts) {
                return counts;
            }
            assert!(began.elapsed() < HANG, "{what}: {counts:?}");
            std::thread::yield_now();
        }
    }

    /// Shuts down, waits for the end, and gives what the server has counted.
    pub fn stop(self) -> oroshi_server::Counts {
        self.shutdown.request();
        self.running.join().unwrap()[0]
    }
}

/// A request without a body.
pub const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// An answer with a short body.
pub const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A server behind the gateway that does what its script says to each of its connections, on a thread of its own for
/// each.
pub struct Upstream {
    pub target: Target,
    accepted: Arc<AtomicUsize>,
    ending: Arc<AtomicBool>,
    accepting: Option<JoinHandle<Vec<JoinHandle<()>>>>,
}

impl Upstream {
    /// The script gets the number of the connection, from 0, and the connection.
    pub fn start(script: impl Fn(usize, &mut Behind) + Send + Sync + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::from(Peer::from(listener.local_addr().unwrap()));
        let (script, accepted, ending) =
            (Arc::new(script), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counted, ended) = (Arc::clone(&accepted), Arc::clone(&ending));
        let accepting = std::thread::spawn(move || {
            let mut threads = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if ended.load(Ordering::SeqCst) {
                    break;
                }
                stream.set_read_timeout(Some(HANG)).unwrap();
                stream.set_nodelay(true).unwrap();
                let number = counted.fetch_add(1, Ordering::SeqCst);
                let script = Arc::clone(&script);
                let run = move || script(number, &mut Behind { stream, ahead: Vec::new() });
                threads.push(std::thread::spawn(run));
            }
            threads
        });
        Upstream { target, accepted, ending, accepting: Some(accepting) }
    }

    /// Answers every request with this.
    pub fn answering(answer: impl Into<Vec<u8>>) -> Upstream {
        let answer = answer.into();
        Upstream::start(move |_, behind| {
            while behind.request().is_some() {
                behind.send(&answer);
            }
        })
    }

    /// A server of HTTP/2. The script gets the number of the connection and the connection.
    pub fn http2(script: impl Fn(usize, &mut Server2) + Send + Sync + 'static) -> Upstream {
        let config = Config { grants: Grants::Automatic, ..Config::default() };
        Upstream::http2_with(config, script)
    }

    /// As [`http2`](Self::http2), with a configuration.
    pub fn http2_with(config: Config, script: impl Fn(usize, &mut Server2) + Send + Sync + 'static) -> Upstream {
        let mut upstream = Upstream::start(move |number, behind| {
            script(number, &mut Server2::with(behind.stream.try_clone().unwrap(), config.clone()));
        });
        upstream.target.protocol = Protocol::H2c;
        upstream
    }

    /// How many connections were made.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Waits for the end of all connections, which the gateway must have closed, and for what their scripts have found.
    pub fn end(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.ending.store(true, Ordering::SeqCst);
        let Place::Peer(Peer::Tcp(address)) = self.target.place else { return };
        let _ = TcpStream::connect(address);
        for thread in accepting.join().unwrap() {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// A connection as the server behind sees it.
pub struct Behind {
    pub stream: TcpStream,
    ahead: Vec<u8>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    pub head: String,
    pub body: Vec<u8>,
    /// The lines behind the last chunk.
    pub trailers: String,
}

impl Received {
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Behind {
    /// The next request, whole. `None` when the gateway has closed the connection.
    pub fn request(&mut self) -> Option<Received> {
        let head = self.head()?;
        let mut received = Received { head, body: Vec::new(), trailers: String::new() };
        if let Some(length) = received.field("content-length") {
            let length = length.parse().unwrap();
            received.body = self.exactly(length).unwrap();
        } else if received.field("transfer-encoding").is_some() {
            loop {
                let line = self.until(b"\r\n").unwrap();
                let length = usize::from_str_radix(line.trim(), 16).unwrap();
                if length == 0 {
                    break;
                }
                received.body.extend(self.exactly(length).unwrap());
                assert_eq!(self.exactly(2).unwrap(), b"\r\n");
            }
            loop {
                let line = self.until(b"\r\n").unwrap();
                if line == "\r\n" {
                    break;
                }
                received.trailers += &line;
            }
        }
        Some(received)
    }

    /// The next head.
    pub fn head(&mut self) -> Option<String> {
        self.until(b"\r\n\r\n")
    }

    /// So many bytes; `None` when the connection ends before.
    pub fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.ahead.len() < length {
            self.more().ok().filter(|&count| count > 0)?;
        }
        Some(self.ahead.drain(..length).collect())
    }

    pub fn until(&mut self, mark: &[u8]) -> Option<String> {
        loop {
            if let Some(place) = self.ahead.windows(mark.len()).position(|window| window == mark) {
                return self.exactly(place + mark.len()).map(|bytes| String::from_utf8(bytes).unwrap());
            }
            match self.more() {
                Ok(1..) => {}
                _ if self.ahead.is_empty() => return None,
                ended => panic!("{ended:?} in the middle of {}", self.ahead.escape_ascii()),
            }
        }
    }

    /// Everything until the gateway closes or resets.
    pub fn rest(&mut self) -> Vec<u8> {
        while self.more().is_ok_and(|count| count > 0) {}
        std::mem::take(&mut self.ahead)
    }

    /// Waits until the gateway has closed the connection, or reset it, without another byte.
    pub fn closed(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }

    fn more(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 64 * 1024];
        let count = oroshi_testkit::http::read(&mut self.stream, &mut buffer)?;
        self.ahead.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    /// Sends, if the gateway still listens.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Ends the sending side.
    pub fn half_close(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Has the close be a reset.
    pub fn reset(&mut self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// A place where nobody listens.
pub fn nobody() -> (socket2::Socket, Target) {
    // Bound and never listened at, so that nobody else gets the port.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let target = Target::from(Peer::from(socket.local_addr().unwrap().as_socket().unwrap()));
    (socket, target)
}
