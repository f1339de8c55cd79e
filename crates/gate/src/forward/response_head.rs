//! The response's fields for the client: the upstream's, without fields of its connection.

use std::time::Duration;

use oroshi_http1::{Header, Headers, ResponseHead, keep_alive_timeout};

use super::edits::Edits;
use super::fields::{copy_kept, is_named, is_plain_connection, named_by_connection};
use super::request_head::write_via;
use super::rules::Rules;

/// Facts found while copying the fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseFacts {
    /// There is a `Date`.
    pub(crate) date: bool,
    /// The keep-alive time that the server announced.
    pub(crate) keep: Option<Duration>,
    /// `Connection` names fields.
    named: bool,
}

/// Appends the field lines of a response's head, except those that the server sets for its own connection.
pub(crate) fn write(out: &mut Vec<u8>, head: &ResponseHead<'_>, rules: &Rules, edits: &Edits) -> ResponseFacts {
    let start = out.len();
    let drops = |name: &str| rules.settings.response.drops(name) || edits.drops(name);
    let mut seen = ResponseFacts::default();
    copy_kept(head.headers, out, |field| is_for_all(field, &mut seen) && !drops(field.name));
    if seen.named {
        out.truncate(start);
        let named = named_by_connection(head.headers);
        copy_kept(head.headers, out, |field| {
            is_for_all(field, &mut seen) && !is_named(field.name, &named) && !drops(field.name)
        });
    }
    if !rules.settings.via.is_empty() {
        write_via(out, head.version, &rules.settings.via);
    }
    out.extend_from_slice(rules.settings.response.lines());
    out.extend_from_slice(edits.lines());
    seen
}

/// Returns the fields of an interim response, or of a protocol switch, which keeps its `Upgrade`.
pub(crate) fn fields<'h>(headers: Headers<'h>, switch: bool) -> Vec<(&'h str, &'h [u8])> {
    let named = named_by_connection(headers);
    let kept = |field: &Header<'_>| {
        let upgrade = switch && field.name.eq_ignore_ascii_case("upgrade");
        upgrade || (is_for_all(field, &mut ResponseFacts::default()) && !is_named(field.name, &named))
    };
    headers.iter().filter(kept).map(|field| (field.name, field.value)).collect()
}

/// Returns whether a field is valid beyond its connection.
#[inline]
fn is_for_all(field: &Header<'_>, seen: &mut ResponseFacts) -> bool {
    let is = |other: &str| field.name.eq_ignore_ascii_case(other);
    // The length first: it excludes most fields without comparing names.
    match field.name.len() {
        2 if is("te") => false,
        4 => {
            seen.date |= is("date");
            true
        }
        7 if is("upgrade") => false,
        10 if is("connection") => {
            seen.named |= !is_plain_connection(field.value);
            false
        }
        10 if is("keep-alive") => {
            seen.keep = keep_alive_timeout(field.value);
            false
        }
        14 if is("content-length") => false,
        16 if is("proxy-connection") => false,
        17 if is("transfer-encoding") => false,
        18 if is("proxy-authenticate") => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use oroshi_http1::{ExpectedResponse, Limits, ResponseDecoder, ResponseEvent};

    use super::*;
    use crate::forward::Settings;

    fn written(head: &str, settings: Settings) -> (String, ResponseFacts) {
        let mut decoder = ResponseDecoder::default();
        decoder.expect(ExpectedResponse::Body);
        let mut input = head.as_bytes();
        let Ok(Some(ResponseEvent::Head(head))) = decoder.decode(&Limits::default(), &mut input) else {
            panic!("{head}")
        };
        let mut out = Vec::new();
        let seen = write(&mut out, &head, &Rules::new(settings).unwrap(), &Edits::none());
        (String::from_utf8(out).unwrap(), seen)
    }

    #[test]
    fn what_belongs_to_one_connection_stays_there() {
        let (out, seen) = written(
            "HTTP/1.1 200 OK\r\nServer: a\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5, max=9\r\n\
             X-Hop: 1\r\n\
             Upgrade: h2c\r\nTE: x\r\nProxy-Connection: close\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\
             DATE: today\r\nX-End:  2 \r\n\r\n",
            Settings::default(),
        );
        assert_eq!(out, "Server: a\r\nDATE: today\r\nX-End:  2 \r\n");
        assert!(seen.date);
        assert_eq!(seen.keep, Some(Duration::from_secs(4)));
    }

    #[test]
    fn routes_change_fields() {
        let mut response = Edits::none();
        response.set("Server", b"gate").unwrap().remove("X-Powered-By").unwrap().add("X-A", b"2").unwrap();
        let settings = Settings { response, via: "g".to_owned(), ..Settings::default() };
        let (out, seen) = written("HTTP/1.0 200 OK\r\nServer: a\r\nX-Powered-By: b\r\nX-A: 1\r\n\r\n", settings);
        assert_eq!(out, "X-A: 1\r\nVia: 1.0 g\r\nServer: gate\r\nX-A: 2\r\n");
        assert!(!seen.date && seen.keep.is_none());
    }
}
