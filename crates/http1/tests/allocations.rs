//! Parsing allocates nothing: heads, bodies, chunks and trailers, whole or cut, valid or not.

use oroshi_http1::{ExpectedResponse, Limits, RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent};

const REQUESTS: &[u8] = b"GET /a?b HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n\
    POST /c HTTP/1.1\r\nHost: example.org\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello\
    POST http://example.org/d HTTP/1.1\r\nHost: example.org:80\r\nTransfer-Encoding: chunked\r\n\r\n\
    5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";

const RESPONSES: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
    HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello\
    HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n\
    HTTP/1.1 200 OK\r\n\r\nuntil close";

#[test]
fn requests_are_decoded_without_allocation() {
    let limits = Limits::default();
    for cut in 0..=REQUESTS.len() {
        let mut fields = 0;
        let mut ends = 0;
        let counted = allocation_counter::measure(|| {
            let mut decoder = RequestDecoder::default();
            let mut consumed = 0;
            for end in [cut, REQUESTS.len()] {
                let mut input = &REQUESTS[consumed..end];
                while let Some(event) = decoder.decode(&limits, &mut input).expect("sound") {
                    match event {
                        RequestEvent::Head(head) => {
                            fields += head.headers.iter().count();
                            assert!(head.headers.get("Host").is_some());
                        }
                        RequestEvent::Trailers(trailers) => fields += trailers.iter().count(),
                        RequestEvent::Data(_) => {}
                        RequestEvent::End => ends += 1,
                    }
                }
                consumed = end - input.len();
            }
            decoder.eof().expect("complete");
        });
        assert_eq!((ends, fields), (3, 9), "cut at {cut}");
        assert_eq!(counted.count_total, 0, "cut at {cut}");
    }
}

#[test]
fn responses_are_decoded_without_allocation() {
    let limits = Limits::default();
    for cut in 0..=RESPONSES.len() {
        let mut ends = 0;
        let counted = allocation_counter::measure(|| {
            let mut decoder = ResponseDecoder::default();
            for _ in 0..3 {
                decoder.expect(ExpectedResponse::Body);
            }
            let mut consumed = 0;
            for end in [cut, RESPONSES.len()] {
                let mut input = &RESPONSES[consumed..end];
                while let Some(event) = decoder.decode(&limits, &mut input).expect("sound") {
                    ends += usize::from(event == ResponseEvent::End);
                }
                consumed = end - input.len();
            }
            ends += usize::from(decoder.eof() == Ok(Some(ResponseEvent::End)));
        });
        assert_eq!(ends, 3, "cut at {cut}");
        assert_eq!(counted.count_total, 0, "cut at {cut}");
    }
}

#[test]
fn refusals_allocate_nothing() {
    let limits = Limits::default();
    let counted = allocation_counter::measure(|| {
        for bad in [
            &b"GET / HTTP/1.1\r\nHost : a\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            b"GET / HTTP/1.1\nHost: a\n\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: b\r\n\r\n",
        ] {
            let (mut decoder, mut input) = (RequestDecoder::default(), bad);
            while let Ok(Some(_)) = decoder.decode(&limits, &mut input) {}
            assert!(decoder.decode(&limits, &mut input).is_err());
        }
    });
    assert_eq!(counted.count_total, 0);
}

/// Checks the counter itself: otherwise the tests above could not fail.
#[test]
fn an_allocation_is_seen() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(counted.count_total, 1);
}
