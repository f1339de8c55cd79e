//! A request head as the decoder reads it, for the unit tests of functions that take one.

use oroshi_http1::{Limits, RequestDecoder, RequestEvent, RequestHead};

/// Parses `GET /` with this `Host` and these field lines, each with its `\r\n`, and calls `look` with the head.
pub fn with<T>(host: &str, fields: &str, look: impl Fn(&RequestHead<'_>) -> T) -> T {
    let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    let mut input = text.as_bytes();
    match RequestDecoder::default().decode(&Limits::default(), &mut input) {
        Ok(Some(RequestEvent::Head(head))) => look(&head),
        other => panic!("{other:?}"),
    }
}
