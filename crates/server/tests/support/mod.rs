//! A server on a thread of its own, and clients that write raw bytes.
#![allow(dead_code, unreachable_pub, unused_imports)] // a module of each test file, which uses its part

use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use oroshi_net::{BoundListener, ListenOptions, Peer, ServerTls, Shutdown, Threads, ThreadsOptions};
use oroshi_server::{Counts, Error, Exchange, Handler, HttpListener, Server, Settings};
pub use oroshi_testkit::HANG;
pub use oroshi_testkit::http::{Answer, Client, Socket};

pub struct Running {
    pub address: Peer,
    pub shutdown: Shutdown,
    threads: Threads<Counts>,
}

impl Running {
    pub fn start<H: Handler + Clone + Send + Sync>(settings: Settings, handler: H) -> Running {
        Running::start_at("127.0.0.1:0", None, settings, handler)
    }

    pub fn start_at<H: Handler + Clone + Send + Sync>(
        address: &str,
        tls: Option<ServerTls>,
        settings: Settings,
        handler: H,
    ) -> Running {
        let bound = BoundListener::bind(address, &ListenOptions::default()).unwrap();
        let address = bound.address().clone();
        let shutdown = Shutdown::new();
        let ending = shutdown.clone();
        // Taken out by the thread: a listener that stayed here would keep its socket open after the shutdown.
        let bound = Mutex::new(Some(bound));
        let threads = Threads::start(&ThreadsOptions::new("server", 1), move |_| {
            let server = Server::new(handler.clone(), settings.clone());
            let (bound, tls, ending) = (bound.lock().unwrap().take().unwrap(), tls.clone(), ending.clone());
            async move {
                let listener = bound.into_listener().unwrap();
                server.serve([HttpListener { listener, tls }], ending.reached(1)).await;
                server.counters().counts()
            }
        });
        Running { address, shutdown, threads: threads.unwrap() }
    }

    pub fn tcp(&self) -> SocketAddr {
        match &self.address {
            Peer::Tcp(address) => *address,
            Peer::Unix(_) => panic!("a unix socket"),
        }
    }

    pub fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.tcp()).unwrap())
    }

    /// Shuts down, waits for the end, and gives what was counted.
    pub fn stop(self) -> Counts {
        self.shutdown.request();
        let counts = self.threads.join().unwrap();
        counts[0]
    }
}

/// Answers with what was asked: method, target, and the body's length.
pub async fn describe(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let mut length = 0;
    while let Some(piece) = exchange.body.chunk().await? {
        length += piece.len();
    }
    let text = format!("{} {} {length}", exchange.head.method, exchange.head.target);
    exchange.reply.send(200, [("Content-Type", &b"text/plain"[..])], text.as_bytes()).await
}

/// Waits for something that happens on the server's thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Limits that no test reaches by accident.
pub fn patient() -> Settings {
    Settings {
        idle_timeout: HANG * 2,
        head_timeout: HANG * 2,
        body_timeout: HANG * 2,
        write_timeout: HANG * 2,
        linger_timeout: HANG * 2,
        ..Settings::default()
    }
}

/// Short enough to wait for.
pub const SHORT: Duration = Duration::from_millis(50);
