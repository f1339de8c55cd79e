//! The decoders' state: idle, begun, behaviour at a close, final errors.

use oroshi_http1::{
    DecodeError, ExpectedResponse, Framing, Limits, MAX_EXPECTED, RequestDecoder, RequestEvent, ResponseDecoder,
    ResponseEvent,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// Feeds all of it and returns the number of completed messages.
fn ends(decoder: &mut ResponseDecoder, mut input: &[u8]) -> Result<usize, DecodeError> {
    let mut ends = 0;
    while let Some(event) = decoder.decode(&Limits::default(), &mut input)? {
        ends += usize::from(event == ResponseEvent::End);
    }
    assert!(input.is_empty());
    Ok(ends)
}

#[test]
fn a_request_decoder_is_idle_between_requests_only() {
    let limits = Limits::default();
    let bytes = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    let mut decoder = RequestDecoder::default();
    let mut consumed = 0;
    for end in 0..=bytes.len() {
        assert_eq!(decoder.is_idle(), end <= 1, "with {} bytes", end.saturating_sub(1));
        assert_eq!(decoder.eof().is_ok(), end <= 1);
        let mut input = &bytes[consumed..end];
        while decoder.decode(&limits, &mut input).expect("sound").is_some() {}
        consumed = end - input.len();
    }
    assert!(decoder.is_idle());
    assert_eq!(decoder.eof(), Ok(()));
}

#[test]
fn a_close_is_clean_as_soon_as_the_last_byte_is_read() {
    let mut decoder = RequestDecoder::default();
    let mut input = &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..];
    let event = decoder.decode(&Limits::default(), &mut input);
    assert!(matches!(event, Ok(Some(RequestEvent::Head(_)))));
    assert_eq!(decoder.eof(), Ok(()), "the end was not fetched yet, but nothing is missing");
    assert!(!decoder.is_idle());
    assert_eq!(decoder.decode(&Limits::default(), &mut input), Ok(Some(RequestEvent::End)), "without further input");
    assert!(decoder.is_idle());
}

#[test]
fn a_response_decoder_is_idle_when_nothing_is_due() {
    let mut decoder = ResponseDecoder::default();
    assert!(decoder.is_idle() && !decoder.has_begun());
    assert_eq!(decoder.eof(), Ok(None));

    decoder.expect(ExpectedResponse::Body);
    assert!(!decoder.is_idle() && !decoder.has_begun());
    assert_eq!(ends(&mut decoder, b""), Ok(0));
    let mut closed = decoder.clone();
    assert_eq!(closed.eof(), Err(DecodeError::UnexpectedEof), "the server owed a response");

    let mut input = &OK[..1];
    assert_eq!(decoder.decode(&Limits::default(), &mut input), Ok(None));
    assert!(decoder.has_begun() && !decoder.is_idle());
    assert_eq!(ends(&mut decoder, OK), Ok(1));
    assert!(decoder.is_idle() && !decoder.has_begun());
}

#[test]
fn an_interim_response_is_a_beginning() {
    let mut decoder = ResponseDecoder::default();
    decoder.expect(ExpectedResponse::Body);
    assert_eq!(ends(&mut decoder, b"HTTP/1.1 100 Continue\r\n\r\n"), Ok(0));
    assert!(decoder.has_begun() && !decoder.is_idle());
    assert_eq!(ends(&mut decoder, OK), Ok(1));
    assert!(!decoder.has_begun() && decoder.is_idle());
}

/// Announcing early, late, or in between makes no difference.
#[test]
fn responses_can_be_announced_at_any_time_before_they_come() {
    let limits = Limits::default();
    let bytes = OK.repeat(3);
    let mut early = ResponseDecoder::default();
    for _ in 0..3 {
        early.expect(ExpectedResponse::Body);
    }
    assert_eq!(ends(&mut early, &bytes), Ok(3));

    let mut late = ResponseDecoder::default();
    let mut input = &bytes[..];
    for n in 1..=3 {
        late.expect(ExpectedResponse::Body);
        while late.decode(&limits, &mut input).expect("sound") != Some(ResponseEvent::End) {}
        assert_eq!(input.len(), OK.len() * (3 - n), "no byte of the next response was taken");
    }
    assert!(early.is_idle() && late.is_idle());

    assert_eq!(late.decode(&limits, &mut &b"H"[..]), Err(DecodeError::Unsolicited));
    late.expect(ExpectedResponse::Body);
    assert_eq!(late.decode(&limits, &mut &OK[..]), Err(DecodeError::Unsolicited), "an error is final");
}

#[test]
fn expecting_more_than_there_is_room_for_is_an_error_not_a_guess() {
    let mut decoder = ResponseDecoder::default();
    for _ in 0..MAX_EXPECTED {
        decoder.expect(ExpectedResponse::Body);
    }
    assert_eq!(ends(&mut decoder.clone(), &OK.repeat(MAX_EXPECTED)), Ok(MAX_EXPECTED));
    decoder.expect(ExpectedResponse::Head);
    assert_eq!(ends(&mut decoder, OK), Err(DecodeError::TooManyExpected));
    assert_eq!(decoder.eof(), Err(DecodeError::TooManyExpected));
}

#[test]
fn a_close_ends_a_body_without_length_once() {
    let mut decoder = ResponseDecoder::default();
    decoder.expect(ExpectedResponse::Body);
    assert_eq!(ends(&mut decoder, b"HTTP/1.1 200 OK\r\n\r\nhi"), Ok(0));
    assert_eq!(decoder.eof(), Ok(Some(ResponseEvent::End)));
    assert_eq!(decoder.eof(), Ok(None));

    decoder.expect(ExpectedResponse::Body);
    decoder.expect(ExpectedResponse::Body);
    assert_eq!(ends(&mut decoder, b"HTTP/1.1 200 OK\r\n\r\nhi"), Ok(0));
    assert_eq!(decoder.eof(), Ok(Some(ResponseEvent::End)));
    assert_eq!(decoder.eof(), Err(DecodeError::UnexpectedEof), "the second response was still due");
}

#[test]
fn a_tunnel_takes_nothing_and_says_nothing_more() {
    let limits = Limits::default();
    let mut decoder = ResponseDecoder::default();
    decoder.expect(ExpectedResponse::Upgrade);
    let mut input = &b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n\x81\x00"[..];
    let Ok(Some(ResponseEvent::Head(head))) = decoder.decode(&limits, &mut input) else { panic!("no head") };
    assert_eq!((head.status, head.framing, head.keep_alive), (101, Framing::Tunnel, false));
    for _ in 0..2 {
        assert_eq!(decoder.decode(&limits, &mut input), Ok(None));
        assert_eq!(input, b"\x81\x00");
    }
    assert!(!decoder.is_idle());
    assert_eq!(decoder.eof(), Ok(None));
}

/// Each call takes its own limits, which may differ. The table of a usual head is on the stack; the limit, not the
/// table, decides about longer ones.
#[test]
fn a_head_may_have_as_many_fields_as_its_limit_says() {
    for fields in [100, 255, 256, 257, 5000] {
        let lines = "a:\r\n".repeat(fields - 1);
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let response = format!("HTTP/1.1 204 No Content\r\nDate: a\r\n{lines}\r\n");
        for (headers, verdict) in [(fields, Ok(fields)), (fields - 1, Err(DecodeError::TooManyHeaders))] {
            let limits = Limits { headers, ..Limits::default() };
            // Whole, and in two pieces: a piece must not count as a head with too many fields.
            for first in [request.len(), request.len() - 1] {
                let mut decoder = RequestDecoder::default();
                if first < request.len() {
                    assert_eq!(decoder.decode(&limits, &mut &request.as_bytes()[..first]), Ok(None), "{fields}");
                }
                let read = decoder.decode(&limits, &mut request.as_bytes()).map(|event| match event {
                    Some(RequestEvent::Head(head)) => head.headers.iter().count(),
                    other => panic!("{other:?}"),
                });
                assert_eq!(read, verdict, "a request of {fields} fields where {headers} are allowed");
            }
            let mut decoder = ResponseDecoder::default();
            decoder.expect(ExpectedResponse::Body);
            let read = decoder.decode(&limits, &mut response.as_bytes()).map(|event| match event {
                Some(ResponseEvent::Head(head)) => head.headers.iter().count(),
                other => panic!("{other:?}"),
            });
            assert_eq!(read, verdict, "a response of {fields} fields where {headers} are allowed");
        }
    }
}

#[test]
fn limits_may_change_between_calls() {
    let mut decoder = RequestDecoder::default();
    let bytes = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n";
    let tight = Limits { head_bytes: 10, ..Limits::default() };
    assert_eq!(decoder.decode(&Limits::default(), &mut &bytes[..20]), Ok(None));
    assert_eq!(decoder.decode(&tight, &mut &bytes[..]), Err(DecodeError::HeadTooLarge));
}

#[test]
fn statuses_and_names_are_what_servers_and_tables_rely_on() {
    for (error, status, name) in [
        (DecodeError::BareLf, 400, "bare-lf"),
        (DecodeError::BodyTooLarge, 413, "body-too-large"),
        (DecodeError::TargetTooLong, 414, "target-too-long"),
        (DecodeError::UnknownExpectation, 417, "unknown-expectation"),
        (DecodeError::HeadTooLarge, 431, "head-too-large"),
        (DecodeError::UnsupportedTransferEncoding, 501, "unsupported-transfer-encoding"),
        (DecodeError::UnsupportedVersion, 505, "unsupported-version"),
    ] {
        assert_eq!((error.status(), error.name()), (status, name));
    }
}
