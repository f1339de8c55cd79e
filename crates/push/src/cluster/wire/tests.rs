//! What is read is what was written, and nothing else is read.

use bytes::Bytes;
use proptest::prelude::*;

use super::reader::CUT_OFF;
use super::*;
use crate::presence::Part;

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
    let member = |client, user: Option<&str>| Member { client, user: user.map(Arc::from) };
    let parts = [
        Part::List(vec![]),
        Part::List(vec![member(1, None), member(u64::MAX, Some("u"))]),
        Part::Count(1 << 40),
        Part::Joined(member(300, Some("ann"))),
        Part::Left(300),
    ];
    let parts = parts.into_iter().map(|part| ("c".into(), part)).collect();
    all.extend([
        Body::Watch(Watch::default()),
        Body::Watch(Watch { feed: 300, number: 1, unwatched: names(&["a"]), watched: names(&["b", "c"]) }),
        Body::Presence(Presence { feed: 1, number: 300, last_watch: 0, parts: Vec::new() }),
        Body::Presence(Presence { feed: 1, number: 301, last_watch: 7, parts }),
    ]);
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
    frame[0] = PRESENCE_VERSION + 1;
    assert_eq!(decode(&frame, MOST).unwrap_err(), DecodeError::Version(PRESENCE_VERSION + 1));
    frame[0] = PRESENCE_VERSION;
    assert_eq!(decode(&frame, MOST).unwrap_err(), DecodeError::Malformed("a kind of another version"));
    let mut watch = Body::Watch(Watch::default()).encode(Head::default());
    watch[0] = VERSION;
    assert_eq!(decode(&watch, MOST).unwrap_err(), DecodeError::Malformed("a kind of another version"));
    let publish = &every_kind()[3].encode(Head::default());
    assert!(decode(publish, 6).is_ok());
    assert_eq!(decode(publish, 5).unwrap_err(), DecodeError::Malformed("a message over limits.publish"));
}

/// JetStream keeps messages of the version before the events of presence: they must stay readable.
#[test]
fn what_the_first_version_stored_is_read() {
    let counts: &[u8] = &[0; 16];
    let publish = b"\xd0\x0f\0\0\x02hi\0\0\0\0\x01\x04news\0\0\0\0\x88\x27\0";
    let stored = [&[5, 1], &7u64.to_le_bytes()[..], &[0; 8], &9u64.to_le_bytes(), counts, publish].concat();
    let (head, body) = decode(&stored, MOST).unwrap();
    assert_eq!((head.sender, head.sent_ms), (7, 9));
    let Body::Request { patience, request: Request::Publish(publish) } = body else { panic!("{body:?}") };
    assert_eq!((patience, publish.deadline), (Duration::from_secs(2), Duration::from_secs(5)));
    assert_eq!(publish.to.groups, [Box::from("news")]);
    assert_eq!(publish.message.payload().unwrap().1, "hi");
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
        let kind = bytes.first().copied().unwrap_or(0) % 6;
        let mut frame = vec![version(kind), kind];
        frame.extend_from_slice(&bytes);
        if let Ok((head, body)) = decode(&frame, MOST) {
            prop_assert_eq!(body.encode(head), frame);
        }
    }
}
