//! Copies a head's fields, unchanged and in as few pieces as possible.

use oroshi_http1::{Header, Headers};

/// Appends the lines of the fields for which `keep` returns true.
#[inline]
pub(super) fn copy_kept(headers: Headers<'_>, out: &mut Vec<u8>, mut keep: impl FnMut(&Header<'_>) -> bool) {
    let section = headers.as_bytes();
    let (mut begin, mut at) = (0, 0);
    for (field, line) in headers.lines() {
        let end = at + line.len();
        if !keep(&field) {
            out.extend_from_slice(&section[begin..at]);
            begin = end;
        }
        at = end;
    }
    out.extend_from_slice(&section[begin..at]);
}

/// Returns whether a `Connection` value contains only options that the gateway handles itself.
#[inline]
pub(super) fn is_plain_connection(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close") || options(value).next().is_none()
}

/// Returns the field names in `Connection`, which belong to that connection alone (RFC 9110, section 7.6.1).
pub(super) fn named_by_connection(headers: Headers<'_>) -> Vec<&[u8]> {
    headers.get_all("connection").flat_map(options).collect()
}

/// Returns the options in a `Connection` value that name fields.
fn options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let known = |option: &&[u8]| {
        let option: &[u8] = option;
        option.is_empty()
            || option.eq_ignore_ascii_case(b"close")
            || option.eq_ignore_ascii_case(b"keep-alive")
            || option.eq_ignore_ascii_case(b"upgrade")
            || option.eq_ignore_ascii_case(b"te")
    };
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(move |option| !known(option))
}

/// The field that reveals loops through several gateways (RFC 8586): each adds its id.
pub(crate) const LOOP: &str = "cdn-loop";

/// This gateway's id in that field.
const LOOP_ID: &[u8] = b"oroshi";

/// This gateway's line of that field.
pub(super) const LOOP_LINE: &[u8] = b"CDN-Loop: oroshi\r\n";

/// Counts the gateways of this kind that a request passed through, as its fields say.
pub(crate) fn hops(headers: Headers<'_>) -> usize {
    let entries = headers.get_all(LOOP).flat_map(|value| value.split(|&byte| byte == b','));
    let ids = entries.map(|entry| entry.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii());
    ids.filter(|id| id.eq_ignore_ascii_case(LOOP_ID)).count()
}

/// Returns whether `Connection` names a field.
pub(super) fn is_named(name: &str, named: &[&[u8]]) -> bool {
    named.iter().any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns whether a comma-separated value contains an element, ignoring case and parameters after a semicolon.
pub(super) fn holds(value: &[u8], element: &[u8]) -> bool {
    value.split(|&byte| byte == b',').any(|part| {
        let name = part.split(|&byte| byte == b';').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(element)
    })
}
/// Returns whether a request asks to switch to WebSocket, the only supported protocol.
pub(crate) fn is_websocket(upgrade: Option<&[u8]>) -> bool {
    upgrade.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}
