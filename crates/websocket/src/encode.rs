//! Encodes messages to bytes. A server's frames have no mask, so one encoded frame serves all clients.

use crate::close::CloseCode;
use crate::deflate::{self, Window};
use crate::frame::{CONTROL_BYTES, Header, Kind, Opcode, mask};

/// Appends a server's message in one frame. Text must be UTF-8, or the peer ends the connection.
pub fn message(out: &mut Vec<u8>, kind: Kind, data: &[u8]) {
    frame(out, Opcode::Message(kind), data, None);
}

/// Appends a client's message in one frame. `key` is its mask; it must be unpredictable (section 5.3).
pub fn masked_message(out: &mut Vec<u8>, kind: Kind, data: &[u8], key: [u8; 4]) {
    frame(out, Opcode::Message(kind), data, Some(key));
}

/// Appends a server's message in one compressed frame, or as [`message`] does if it would not become smaller. Returns
/// whether it is compressed. Only for clients with an [`Agreement`](deflate::Agreement) on this window.
pub fn deflated_message(out: &mut Vec<u8>, kind: Kind, data: &[u8], window: Window) -> bool {
    deflated(out, kind, data, window, None)
}

/// Appends a client's message as [`deflated_message`] does; `key` is its mask.
pub fn masked_deflated_message(out: &mut Vec<u8>, kind: Kind, data: &[u8], key: [u8; 4]) -> bool {
    deflated(out, kind, data, Window::Full, Some(key))
}

fn deflated(out: &mut Vec<u8>, kind: Kind, data: &[u8], window: Window, key: Option<[u8; 4]>) -> bool {
    let compressed = deflate::compress(data, window);
    frame_with(out, Opcode::Message(kind), compressed.as_deref().unwrap_or(data), compressed.is_some(), key);
    compressed.is_some()
}

/// Appends a ping, with the payload truncated to 125 bytes. A client passes a `key`, as for [`masked_message`].
pub fn ping(out: &mut Vec<u8>, payload: &[u8], key: Option<[u8; 4]>) {
    frame(out, Opcode::Ping, &payload[..payload.len().min(CONTROL_BYTES as usize)], key);
}

/// Appends a pong with the payload of the ping.
pub fn pong(out: &mut Vec<u8>, payload: &[u8], key: Option<[u8; 4]>) {
    frame(out, Opcode::Pong, &payload[..payload.len().min(CONTROL_BYTES as usize)], key);
}

/// Appends a server's close frame, with the reason truncated to 123 bytes at the end of a character.
pub fn close(out: &mut Vec<u8>, code: CloseCode, reason: &str) {
    close_with(out, code, reason, None);
}

/// Appends a client's close frame.
pub fn masked_close(out: &mut Vec<u8>, code: CloseCode, reason: &str, key: [u8; 4]) {
    close_with(out, code, reason, Some(key));
}

fn close_with(out: &mut Vec<u8>, code: CloseCode, reason: &str, key: Option<[u8; 4]>) {
    let code = code.0.to_be_bytes();
    let most = CONTROL_BYTES as usize - code.len();
    let end = (0..=most.min(reason.len())).rev().find(|&end| reason.is_char_boundary(end)).unwrap_or(0);
    let reason = &reason[..end];
    let mut payload = Vec::with_capacity(code.len() + reason.len());
    payload.extend_from_slice(&code);
    payload.extend_from_slice(reason.as_bytes());
    frame(out, Opcode::Close, &payload, key);
}

fn frame(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], key: Option<[u8; 4]>) {
    frame_with(out, opcode, payload, false, key);
}

fn frame_with(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], compressed: bool, key: Option<[u8; 4]>) {
    Header { last: true, compressed, opcode, length: payload.len() as u64, mask: key }.write(out);
    let from = out.len();
    out.extend_from_slice(payload);
    if let Some(key) = key {
        mask(&mut out[from..], key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_at_a_character() {
        let mut out = Vec::new();
        close(&mut out, CloseCode::RESTART, &"ü".repeat(100));
        assert_eq!(out.len(), 2 + 2 + 122);
        assert_eq!(out[1], 124);
    }

    #[test]
    fn the_examples_of_the_standard() {
        let written = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            write(&mut out);
            out
        };
        assert_eq!(written(&|out| message(out, Kind::Text, b"Hello")), b"\x81\x05Hello");
        let masked = written(&|out| masked_message(out, Kind::Text, b"Hello", [0x37, 0xfa, 0x21, 0x3d]));
        assert_eq!(masked, [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
        assert_eq!(written(&|out| ping(out, b"Hello", None)), b"\x89\x05Hello");
        let pong = written(&|out| pong(out, b"Hello", Some([0x37, 0xfa, 0x21, 0x3d])));
        assert_eq!(pong, [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
    }
}
