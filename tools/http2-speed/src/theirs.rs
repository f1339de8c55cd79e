//! The crate h2, over a transport in memory, polled by hand: no runtime and no waking adds to its figures.

use std::cell::RefCell;
use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::{client, server};
use http::{HeaderName, HeaderValue, Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{BODY, Peer, REQUEST, RESPONSE, STREAMS, Side};

/// Both directions of a transport.
#[derive(Clone, Default)]
struct Pipe(Rc<RefCell<(Vec<u8>, usize, Vec<u8>)>>);

impl Pipe {
    /// Makes `bytes` readable, after all earlier ones were read.
    fn deliver(&self, bytes: &[u8]) {
        let (input, read, out) = &mut *self.0.borrow_mut();
        assert_eq!(input.len(), *read);
        input.clear();
        input.extend_from_slice(bytes);
        *read = 0;
        out.clear();
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let (input, read, _) = &mut *self.0.borrow_mut();
        let rest = &input[*read..];
        if rest.is_empty() {
            return Poll::Pending;
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        *read += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.0.borrow_mut().2.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("not ready"),
    }
}

pub(crate) struct Client {
    send: client::SendRequest<Bytes>,
    connection: client::Connection<Pipe, Bytes>,
    pipe: Pipe,
    request: Request<()>,
}

impl Client {
    pub(crate) fn new(peer: &Peer) -> Self {
        let pipe = Pipe::default();
        let mut builder = client::Builder::new();
        builder.initial_connection_window_size(1_048_576).max_concurrent_reset_streams(0);
        let (send, mut connection) = ready(builder.handshake(pipe.clone())).expect("a handshake");
        pipe.deliver(&peer.hello);
        poll_connection(&mut connection);
        let mut request = Request::get("http://127.0.0.1:8080/").body(()).expect("valid");
        for (name, value) in REQUEST {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Client { send, connection, pipe, request }
    }
}

fn poll_connection(connection: &mut client::Connection<Pipe, Bytes>) {
    let poll = Pin::new(connection).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending(), "{poll:?}");
}

impl Side for Client {
    fn round(&mut self, peer: &mut Peer) -> u32 {
        let mut context = Context::from_waker(Waker::noop());
        let mut responses = Vec::with_capacity(STREAMS as usize);
        for _ in 0..STREAMS {
            assert!(self.send.poll_ready(&mut context).is_ready());
            let (response, _) = self.send.send_request(self.request.clone(), true).expect("may open");
            responses.push(response);
        }
        poll_connection(&mut self.connection);
        black_box(&self.pipe);
        self.pipe.deliver(peer.next());
        poll_connection(&mut self.connection);
        let mut complete = 0;
        for response in responses {
            let response = black_box(ready(response).expect("a response"));
            assert_eq!(response.status(), 200);
            let mut body = response.into_body();
            let Poll::Ready(Some(Ok(data))) = body.poll_data(&mut context) else { panic!("no data") };
            assert_eq!(data.len(), BODY.len());
            body.flow_control().release_capacity(data.len()).expect("was received");
            assert!(body.is_end_stream());
            complete += 1;
        }
        complete
    }
}

pub(crate) struct Server {
    connection: server::Connection<Pipe, Bytes>,
    pipe: Pipe,
    response: Response<()>,
}

impl Server {
    pub(crate) fn new(peer: &Peer) -> Self {
        let pipe = Pipe::default();
        pipe.deliver(&peer.hello);
        let mut connection = ready(server::Builder::new().handshake(pipe.clone())).expect("a handshake");
        assert!(connection.poll_accept(&mut Context::from_waker(Waker::noop())).is_pending());
        let mut response = Response::new(());
        for (name, value) in RESPONSE {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Server { connection, pipe, response }
    }
}

impl Side for Server {
    fn round(&mut self, peer: &mut Peer) -> u32 {
        let mut context = Context::from_waker(Waker::noop());
        let bytes = [&b"\0\0\x04\x08\0\0\0\0\0\0\0\x01\x80"[..], peer.next()].concat();
        self.pipe.deliver(&bytes);
        let mut complete = 0;
        while let Poll::Ready(accepted) = self.connection.poll_accept(&mut context) {
            let (request, mut respond) = accepted.expect("open").expect("sound");
            assert_eq!((black_box(&request).uri().path(), request.method()), ("/", &Method::GET));
            let mut body = respond.send_response(self.response.clone(), false).expect("open");
            body.send_data(Bytes::from_static(BODY), true).expect("open");
            complete += 1;
        }
        black_box(&self.pipe);
        complete
    }
}
