//! What must hold for any records behind a handshake. The fuzzer calls it with bytes it makes up; a test of the crate
//! net calls it with those in `corpus/`.

#[path = "../crates/net/tests/tls_peer/mod.rs"]
pub(crate) mod tls_peer;

use std::future::poll_fn;
use std::io::Write as _;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::Poll;

use oroshi_net::Stream;
use oroshi_testkit::Identity;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Steps of client and server, each a kind and a length of one byte; kinds below 4 have a payload of that length.
pub(crate) fn tls_session(data: &[u8]) {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    let identity = IDENTITY.get_or_init(Identity::new);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(perform(identity, data));
}

async fn perform(identity: &Identity, mut data: &[u8]) {
    let (mut stream, mut peer) = tls_peer::meet(identity).await;
    peer.socket.set_nonblocking(true).expect("a socket");
    // The records that wait to be sent, and the application data of those sent while the client keeps the protocol.
    let (mut records, mut sent, mut is_sound) = (Vec::new(), Vec::new(), true);
    let (mut got, mut written) = (Vec::new(), Vec::new());
    while let Some((&[kind, length], rest)) = data.split_first_chunk::<2>() {
        let length = usize::from(length);
        let (payload, behind) = rest.split_at(if kind % 12 < 4 { length.min(rest.len()) } else { 0 });
        data = behind;
        match kind % 12 {
            0 => {
                records.extend(peer.record(23, payload));
                if is_sound {
                    sent.extend_from_slice(payload);
                }
            }
            1 => {
                records.extend(peer.record(22, &payload.repeat(1 + usize::from(kind >> 4))));
                is_sound = false;
            }
            2 => {
                records.extend(peer.record(21, payload));
                is_sound = false;
            }
            3 => {
                records.extend_from_slice(payload);
                is_sound = false;
            }
            4 => records.extend(peer.key_update(length & 1 == 1)),
            5 | 6 => {
                let count = if kind % 12 == 5 { records.len() } else { length.min(records.len()) };
                let part: Vec<u8> = records.drain(..count).collect();
                if peer.socket.write_all(&part).is_err() {
                    break;
                }
                settle().await;
            }
            7 => {
                let mut room = vec![0; 1 + length * 80];
                let mut into = ReadBuf::new(&mut room);
                let read = poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_read(context, &mut into))).await;
                got.extend_from_slice(into.filled());
                assert!(!matches!(read, Poll::Ready(Err(_))) || into.filled().is_empty(), "an error and bytes");
            }
            8 => {
                let block = vec![length as u8; 1 + length * 300];
                let write = poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_write(context, &block))).await;
                if let Poll::Ready(Ok(count)) = write {
                    written.extend_from_slice(&block[..count]);
                }
            }
            9 => drop(poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_flush(context))).await),
            10 => {
                let _ = peer.socket.shutdown(Shutdown::Write);
                settle().await;
            }
            // Records and a reset that the server sees at once.
            _ => {
                let _ = peer.socket.write_all(&records);
                peer.reset();
                settle().await;
                let mut room = [0; 100];
                let mut into = ReadBuf::new(&mut room);
                let _ = poll_fn(|context| Poll::Ready(Pin::new(&mut stream).poll_read(context, &mut into))).await;
                return shut(&mut stream).await;
            }
        }
        assert!(!is_sound || sent.starts_with(&got), "the server reads what was sent");
    }
    shut(&mut stream).await;
    settle().await;
    let mut said = Vec::new();
    peer.take(&mut said);
    assert!(written.starts_with(&said), "the client reads what was written");
}

async fn shut(stream: &mut Stream) {
    let _ = poll_fn(|context| Poll::Ready(Pin::new(&mut *stream).poll_shutdown(context))).await;
}

/// Lets the runtime see what has come.
async fn settle() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}
