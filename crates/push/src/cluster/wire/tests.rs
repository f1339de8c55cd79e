//! What is read is what was written, and nothing else is read.

use bytes::Bytes;
use proptest::prelude::*;

use super::reader::CUT_OFF;
use super::*;

const MOST: u64 = 1 << 20;

fn every_kind() -> Vec<Body> {
    let names = |names: &[&str]| names.iter().map(|&name| name.into()).collect::<Vec<Box<str>>>();
    let message = |kind, data: &'static [u8], key: Option<&str>| {
        let sender = key.map(|_| r#"{"client":"a"}"#.into());
        let ttl = key.map(|_| Duration::from_millis(1500));
        let message = Message::data(kind, Bytes::from_static(data)).with_key(key.map(Box::from));
        Arc::new(message.with_sender(sender).with_ttl(ttl))
    };
    let publish = Publish {
        message: message(Kind::Text, "grüß".as_bytes(), Some("k")),
        to: Targets { all: true, groups: names(&["a", ""]), sessions: names(&["s1", "s2"]), users: names(&["u"]) },
        except: names(&["s3"]),
        wait: ReceiptWait::Written,
        deadline: Duration::from_millis(70_000),
        stored: vec![7, 1 << 40],
    };
    let requests = [
        Request::Publish(publish),
        Request::Find { key: "k".into() },
        Request::Close {
            key: "k".into(),
            last: Some(message(Kind::Binary, b"\xff\0", None)),
            code: CloseCode::NORMAL,
            reason: "bye".into(),
        },
        Request::Close { key: "k".into(), last: None, code: CloseCode(4999), reason: "".into() },
        Request::Join { key: "k".into(), group: "g".into() },
        Request::Leave { key: "k".into(), group: "g".into() },
        Request::GroupSize { group: "g".into() },
        Request::Claim { keys: names(&["a", "b"]) },
        Request::Members { channel: "c".into() },
        Request::UserSize { user: "u".into() },
        Request::CloseUser { user: "u".into(), code: CloseCode(4999), reason: "bye".into() },
        Request::Poll { key: "k".into(), token: "t".into(), after: 300 },
        Request::Commands { key: "k".into(), token: "t".into(), commands: names(&["{}"]) },
    ];
    let info = SessionInfo {
        transport: "poll",
        groups: names(&["g"]),
        user: Some("u".into()),
        queued_messages: 3,
        queued_bytes: 4096,
        age: Duration::from_millis(1),
    };
    let part = PartialReceipt {
        matched: 300,
        written: 200,
        queued: 1,
        dropped: 2,
        closed: 3,
        found: vec![0, 129],
        refused: names(&["r"]),
    };
    let replies = [
        Reply::Receipt(part),
        Reply::Session(Some(info)),
        Reply::Session(None),
        Reply::Closed(Closed::Done),
        Reply::Closed(Closed::Already),
        Reply::Closed(Closed::Unknown),
        Reply::Known(true),
        Reply::GroupSize(u64::MAX),
        Reply::Members(2, vec![Member { client: 1, user: None }, Member { client: u64::MAX, user: Some("u".into()) }]),
    ];
    use PollError::{Batch, Gone, TooLarge, Unknown, Unreached};
    let polled = [Unknown, Gone, Batch(300), Unreached, TooLarge].map(Err);
    let further = [Reply::Polled(Ok("{}".into())), Reply::Answers(None), Reply::Answers(Some("[]".into()))];
    let replies = replies.into_iter().chain(polled.map(Reply::Polled)).chain(further);
    let beats = [vec![], vec![Echo { node: u64::MAX, sent_ms: 5, heard_ms: MOST_MS }]];
    let mut all = vec![Body::Working];
    all.extend(beats.map(|heard| Body::Heartbeat { leaving: heard.is_empty(), heard }));
    all.extend(requests.map(|request| Body::Request { patience: Duration::from_secs(2), request }));
    all.extend(replies.map(Body::Reply));
    all
}

#[test]
fn what_is_written_can_be_read() {
    for body in every_kind() {
        let head = Head { sender: 7, number: 0, sent_ms: 9, broadcasts: BroadcastCounts::default() };
        let broadcasts = BroadcastCounts { all: 3, groups: u64::MAX };
        let mut frame = body.encode(head);
        set_number(&mut frame, 8, broadcasts);
        let (read, again) = decode(&frame, MOST).unwrap_or_else(|refused| panic!("{body:?}: {refused}"));
        assert_eq!(read, Head { number: 8, broadcasts, ..head });
        assert_eq!(again.encode(read), frame, "{body:?}");
    }
}

#[test]
fn what_is_cut_off_or_goes_on_is_refused() {
    for body in every_kind() {
        let mut frame = body.encode(Head::default());
        for cut in 0..frame.len() {
            assert!(decode(&frame[..cut], MOST).is_err(), "{body:?} cut at {cut}");
        }
        frame.push(0);
        assert!(decode(&frame, MOST).is_err(), "{body:?} and more");
    }
}

#[test]
fn other_versions_and_large_messages_are_refused_by_name() {
    let mut frame = Body::Working.encode(Head::default());
    frame[0] = VERSION + 1;
    assert_eq!(decode(&frame, MOST).unwrap_err(), DecodeError::Version(VERSION + 1));
    let publish = &every_kind()[3].encode(Head::default());
    assert!(decode(publish, 6).is_ok());
    assert_eq!(decode(publish, 5).unwrap_err(), DecodeError::Malformed("a message over limits.publish"));
}

#[test]
fn a_list_that_claims_much_takes_nothing() {
    let mut frame = Body::Heartbeat { leaving: false, heard: Vec::new() }.encode(Head::default());
    frame.truncate(HEAD + 1);
    number(&mut frame, u64::MAX);
    assert_eq!(decode(&frame, MOST).unwrap_err(), CUT_OFF);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever comes is refused, or is exactly what a node would have written.
    #[test]
    fn there_is_one_way_to_write_a_thing(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 0..12),
    ) {
        let kinds = every_kind();
        let head = Head { sender: 1, number: 2, sent_ms: 3, broadcasts: BroadcastCounts::default() };
        let mut frame = kinds[which.index(kinds.len())].encode(head);
        let at = at.index(frame.len());
        let end = (at + bytes.len()).min(frame.len());
        frame.splice(at..end, bytes);
        if let Ok((head, body)) = decode(&frame, MOST) {
            prop_assert_eq!(body.encode(head), frame);
        }
    }

    #[test]
    fn noise_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut frame = vec![VERSION, bytes.first().copied().unwrap_or(0) % 4];
        frame.extend_from_slice(&bytes);
        if let Ok((head, body)) = decode(&frame, MOST) {
            prop_assert_eq!(body.encode(head), frame);
        }
    }
}
