//! Sessions of the server with a client that sends any records.

use std::io::Write;
use std::time::Duration;

use oroshi_testkit::Identity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::on_a_core;
use crate::corpus::tls_checks::tls_peer::meet;

/// A fragment that begins a message of nearly 64 KiB (type 24, length 65,531).
fn begun(length: usize) -> Vec<u8> {
    let mut fragment = vec![7; length];
    fragment[..4].copy_from_slice(&[24, 0, 0xff, 0xfb]);
    fragment
}

/// It once was a panic in rustls, which ends the process: the session had dropped bytes that rustls had noted.
#[test]
fn a_message_without_end_ends_its_session_alone() {
    let identity = Identity::new();
    on_a_core(async {
        let (mut stream, mut peer) = meet(&identity).await;
        let mut records = peer.record(22, &begun(1000));
        for _ in 1..66 {
            records.extend(peer.record(22, &[7; 1000]));
        }
        // In pieces, so that the server reads and keeps some of them between.
        let sending = std::thread::spawn(move || {
            let _ = records.chunks(999).try_for_each(|piece| peer.socket.write_all(piece));
            peer
        });
        let error = stream.read(&mut [0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
        stream.read(&mut [0; 100]).await.unwrap_err();
        stream.write(b"x").await.unwrap_err();
        let _ = stream.shutdown().await;
        drop(sending.join().unwrap());
    });
}

/// Likewise: what came in the same call as the reset was dropped.
#[test]
fn a_reset_behind_a_part_of_a_message_ends_its_session_alone() {
    let identity = Identity::new();
    on_a_core(async {
        let (mut stream, mut peer) = meet(&identity).await;
        let part = peer.record(22, &[24]);
        peer.socket.write_all(&part).unwrap();
        // Nothing polls the socket between the two.
        peer.reset();
        stream.read(&mut [0; 100]).await.unwrap_err();
        let _ = stream.write_all(b"x").await;
        let _ = stream.shutdown().await;
    });
}

#[test]
fn records_may_be_cut_anywhere_and_nothing_counts_behind_the_end() {
    let identity = Identity::new();
    on_a_core(async {
        for cut in 0.. {
            let (mut stream, mut peer) = meet(&identity).await;
            let mut records = peer.record(23, b"a");
            // A handshake message without bytes stays in front of what follows.
            records.extend(peer.record(22, &[]));
            records.extend(peer.record(23, b"b"));
            records.extend(peer.key_update(true));
            records.extend([peer.record(23, b"c"), peer.record(21, &[1, 0]), vec![9; 70]].concat());
            if cut > records.len() {
                break;
            }
            let (first, second) = records.split_at(cut);
            peer.socket.write_all(first).unwrap();
            let mut got = Vec::new();
            // The server reads the complete records before the rest comes.
            let read = tokio::time::timeout(Duration::from_millis(1), stream.read_buf(&mut got)).await;
            assert!(!matches!(read, Ok(Err(_))), "cut at {cut}: {read:?}");
            peer.socket.write_all(second).unwrap();
            stream.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"abc", "cut at {cut}");
            // Behind the answer to the key update.
            stream.write_all(b"answer").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut said = Vec::new();
            peer.take(&mut said);
            assert_eq!(said, b"answer", "cut at {cut}");
        }
    });
}
