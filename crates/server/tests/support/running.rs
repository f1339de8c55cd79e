//! A server on a thread of its own. The client's tests use this file too.

use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use oroshi_net::{BoundListener, ListenOptions, Peer, ServerTls, Shutdown, Threads, ThreadsOptions};
use oroshi_server::{Counts, Error, Exchange, Handler, HttpListener, RefusedRequest, Server, Settings};
use oroshi_testkit::http::Client;

/// A server with a handler of the test's.
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
        let handler = OneType(Arc::new(handler));
        let shutdown = Shutdown::new();
        let ending = shutdown.clone();
        // Taken out by the thread: a listener that stayed here would keep its socket open after the shutdown.
        let bound = Mutex::new(Some(bound));
        let threads = Threads::start(&ThreadsOptions::new("server", 1), move |_| {
            let server = Server::new(handler.clone(), settings.clone());
            let (bound, tls, ending) = (bound.lock().unwrap().take().unwrap(), tls.clone(), ending.clone());
            async move {
                let listener = bound.into_listener().unwrap();
                server.serve([HttpListener { listener, tls, proxied: None }], ending.reached(1)).await;
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

    pub fn url(&self, target: &str) -> String {
        match &self.address {
            Peer::Tcp(address) => format!("http://{address}{target}"),
            unix => format!("{unix}:{target}"),
        }
    }

    /// Shuts down, waits for the end, and gives what was counted.
    pub fn stop(self) -> Counts {
        self.shutdown.request();
        let counts = self.threads.join().unwrap();
        counts[0]
    }
}

/// Handlers of all types as one type, so that the compiler makes one server for all tests and not one for each.
#[derive(Clone)]
struct OneType(Arc<dyn DynHandler + Send + Sync>);

impl Handler for OneType {
    async fn handle(&self, exchange: &mut Exchange<'_>) -> Result<(), Error> {
        self.0.handle(exchange).await
    }

    fn refused(&self, request: &RefusedRequest<'_>) {
        self.0.refused(request);
    }
}

trait DynHandler: 'static {
    fn handle<'h, 'e: 'h>(&'h self, exchange: &'h mut Exchange<'e>) -> Answering<'h>;
    fn refused(&self, request: &RefusedRequest<'_>);
}

type Answering<'h> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'h>>;

impl<H: Handler> DynHandler for H {
    fn handle<'h, 'e: 'h>(&'h self, exchange: &'h mut Exchange<'e>) -> Answering<'h> {
        Box::pin(Handler::handle(self, exchange))
    }

    fn refused(&self, request: &RefusedRequest<'_>) {
        Handler::refused(self, request);
    }
}
