//! A connection to a peer on a thread of its own.

use std::cell::Cell;
use std::future::poll_fn;
use std::net::TcpListener;
use std::rc::Rc;
use std::task::Poll;
use std::thread::JoinHandle;

use oroshi_multiplex::{Config, Connection, Error, Place, Request, Stream, Watch};
use oroshi_testkit::http2::server::Server;
use tokio::sync::Notify;

/// Counts what the observer is told, and wakes a test that waits for a change.
#[derive(Clone, Default)]
pub(crate) struct Seen(Rc<(Notify, Cell<usize>, Cell<usize>)>);

impl Watch for Seen {
    fn changed(&self) {
        self.0.0.notify_one();
    }

    fn received(&self, bytes: usize) {
        self.0.1.set(self.0.1.get() + bytes);
    }

    fn sent(&self, bytes: usize) {
        self.0.2.set(self.0.2.get() + bytes);
    }
}

impl Seen {
    /// Waits until this holds, which is asked at each change.
    pub(crate) async fn until(&self, mut holds: impl FnMut() -> bool) {
        while !holds() {
            self.0.0.notified().await;
        }
    }

    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.0.1.get(), self.0.2.get())
    }
}

/// Runs a future where `spawn_local` works.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default());
    runtime.unwrap().block_on(future)
}

/// Runs a test with a connection to a peer. Both must end well.
pub(crate) fn with<P: Send + 'static, F: Future>(
    config: Config,
    peer: impl FnOnce(Server) -> P + Send + 'static,
    test: impl FnOnce(Connection, Seen) -> F,
) -> (F::Output, P) {
    with_server(config, Server::on, peer, test)
}

/// As [`with`], with a server of its own settings.
pub(crate) fn with_server<P: Send + 'static, F: Future>(
    config: Config,
    server: impl FnOnce(std::net::TcpStream) -> Server + Send + 'static,
    peer: impl FnOnce(Server) -> P + Send + 'static,
    test: impl FnOnce(Connection, Seen) -> F,
) -> (F::Output, P) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving: JoinHandle<P> = std::thread::spawn(move || peer(server(listener.accept().unwrap().0)));
    let output = block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let seen = Seen::default();
        let connection = Connection::start(stream.into(), &config, seen.clone());
        let output = test(connection, seen).await;
        // The task ends after its last handle, and says goodbye.
        tokio::task::yield_now().await;
        output
    });
    (output, serving.join().unwrap())
}

/// A request without fields.
pub(crate) fn request<'r>(method: &'r str, path: &'r str) -> Request<'r> {
    Request { method, scheme: "http", authority: "a.test", path, protocol: None }
}

/// Waits for room.
pub(crate) async fn place(connection: &Connection, seen: &Seen) -> Place {
    let mut place = None;
    seen.until(|| {
        place = connection.reserve();
        place.is_some()
    })
    .await;
    place.unwrap()
}

pub(crate) async fn get(connection: &Connection, seen: &Seen, path: &str) -> Stream {
    place(connection, seen).await.begin(&request("GET", path), [], true).unwrap()
}

pub(crate) async fn status(stream: &mut Stream) -> Result<u16, Error> {
    poll_fn(|cx| stream.poll_head(cx, |head| head.status)).await
}

/// The whole body.
pub(crate) async fn body(stream: &mut Stream) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while poll_fn(|cx| stream.poll_data(cx, &mut body)).await? {}
    Ok(body)
}

/// Status and body.
pub(crate) async fn whole(stream: &mut Stream) -> Result<(u16, Vec<u8>), Error> {
    Ok((status(stream).await?, body(stream).await?))
}

/// Writes all bytes.
pub(crate) async fn write(stream: &mut Stream, mut bytes: &[u8], end: bool) -> Result<(), Error> {
    loop {
        let count = poll_fn(|cx| stream.poll_write(cx, bytes, end)).await?;
        bytes = &bytes[count..];
        if bytes.is_empty() {
            return Ok(());
        }
    }
}

/// Polls once.
pub(crate) async fn once<T>(mut poll: impl FnMut(&mut std::task::Context<'_>) -> Poll<T>) -> Poll<T> {
    poll_fn(|cx| Poll::Ready(poll(cx))).await
}
