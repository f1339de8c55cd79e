//! The conformance table of `oroshi-http1`, through a real connection: what is refused gets the table's status and a
//! closed connection, and nothing behind it is taken for a request; what is accepted arrives as the table says.

use crate::support::{Answer, Running, patient};
use oroshi_http1::Limits;
use oroshi_server::{Error, Exchange, Settings};
use oroshi_testkit::conformance::{self, Case, Kind, Verdict};

/// Says what it was given: the request line and the body.
async fn mirror(exchange: &mut Exchange<'_>) -> Result<(), Error> {
    let mut said = format!("{} {} ", exchange.head.method, exchange.head.target).into_bytes();
    while let Some(piece) = exchange.body.chunk().await? {
        said.extend_from_slice(piece);
    }
    let status = if exchange.head.method == "CONNECT" { 405 } else { 200 };
    exchange.reply.send(status, [], &said).await
}

#[test]
fn every_request_of_the_table_is_taken_or_refused_as_it_says() {
    let mut requests = 0;
    for case in conformance::cases().iter().filter(|case| case.kind == Kind::Request) {
        requests += 1;
        let server = Running::start(Settings { limits: limits(case), http2: false, ..patient() }, mirror);
        let mut client = server.connect();
        client.send(&case.bytes).half_close();
        for message in case.messages.iter().filter(|message| message.complete) {
            let mut words = message.summary.split(' ');
            let (method, target) = (words.next().unwrap(), words.next().unwrap());
            let answer = client.answer_to(method);
            assert!([200, 405].contains(&answer.status), "{}: {answer:?}", case.id);
            if method != "HEAD" {
                let said = [format!("{method} {target} ").as_bytes(), &message.body].concat();
                assert!(answer.body == said, "{}: {}", case.id, answer.body.escape_ascii());
            }
            if message.summary.ends_with(" close") {
                assert_eq!(answer.field("connection"), Some("close"), "{}", case.id);
            }
        }
        match &case.verdict {
            Verdict::Accept => {}
            Verdict::Incomplete => refused(case, &client.answer(), 400),
            Verdict::Reject(_, status) => refused(case, &client.answer(), *status),
        }
        client.closed();
        server.stop();
    }
    assert!(requests > 80, "only {requests} requests were found in the table");
}

fn refused(case: &Case, answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{}: {answer:?}", case.id);
    assert_eq!(answer.field("connection"), Some("close"), "{}", case.id);
}

fn limits(case: &Case) -> Limits {
    let mut limits = Limits::default();
    for (name, most) in &case.limits {
        let size = usize::try_from(*most).unwrap();
        match name.as_str() {
            "head_bytes" => limits.head_bytes = size,
            "headers" => limits.headers = size,
            "target_bytes" => limits.target_bytes = size,
            "chunk_line_bytes" => limits.chunk_line_bytes = size,
            "extension_bytes" => limits.extension_bytes = size,
            "trailer_bytes" => limits.trailer_bytes = size,
            "trailers" => limits.trailers = size,
            "body_bytes" => limits.body_bytes = *most,
            other => panic!("{}: unknown limit `{other}`", case.id),
        }
    }
    limits
}
