//! Compression of messages to WebSockets (permessage-deflate, RFC 7692): once per message, for all who get it.

use std::cell::Cell;

use oroshi_websocket::deflate::Window;
use oroshi_websocket::{Kind, encode};

/// The agreement of a hub with the client of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compression {
    /// How far back messages to the client may refer.
    pub(crate) window: Window,
    /// The length of the shortest message that is compressed, bytes; the same in the whole process.
    pub(crate) from_bytes: u32,
}

/// The messages that a thread has compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CompressionCounts {
    /// Each counts once per form, however many sessions get it.
    pub(crate) messages: u64,
    /// Their length before, bytes.
    pub(crate) before: u64,
    /// Their length after, bytes.
    pub(crate) after: u64,
}

thread_local! {
    static COUNTS: Cell<CompressionCounts> = const {
        Cell::new(CompressionCounts { messages: 0, before: 0, after: 0 })
    };
}

/// Appends a message in one frame, compressed if it is long enough and becomes smaller.
pub(crate) fn write(out: &mut Vec<u8>, kind: Kind, data: &[u8], compression: Option<Compression>) {
    let Some(Compression { window, from_bytes }) = compression else { return encode::message(out, kind, data) };
    if data.len() < from_bytes as usize {
        return encode::message(out, kind, data);
    }
    let begin = out.len();
    if encode::deflated_message(out, kind, data, window) {
        let CompressionCounts { messages, before, after } = COUNTS.get();
        COUNTS.set(CompressionCounts {
            messages: messages + 1,
            before: before + data.len() as u64,
            after: after + (out.len() - begin) as u64,
        });
    }
}

/// Returns what this thread has compressed.
pub(crate) fn counts() -> CompressionCounts {
    COUNTS.get()
}
