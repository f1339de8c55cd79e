use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::encode;

const LIMITS: Limits = Limits { message_bytes: 1000 };

/// An owned copy of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    Message(Kind, Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<CloseCode>, String),
}

/// All events of the bytes, and the final error.
type Trace = (Vec<Came>, Option<Violation>);

/// Decodes `bytes` in pieces that end at `cuts`, in any order.
fn decoded(role: Role, bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> Trace {
    let mut ends: Vec<usize> = cuts.into_iter().filter(|&cut| cut < bytes.len()).chain([bytes.len()]).collect();
    ends.sort_unstable();
    let mut decoder = Decoder::new(role);
    let (mut all, mut kept, mut from) = (Vec::new(), Vec::new(), 0);
    for end in ends {
        kept.extend_from_slice(&bytes[from..end]);
        from = end;
        let mut input = &mut kept[..];
        loop {
            match decoder.decode(&LIMITS, &mut input) {
                Ok(Some(event)) => all.push(owned(event)),
                Ok(None) => break,
                Err(violation) => {
                    assert_eq!(decoder.decode(&LIMITS, &mut &mut *frame(0x81, b"a")), Err(violation), "it is final");
                    return (all, Some(violation));
                }
            }
        }
        assert!(input.len() <= 130, "{} bytes are left to the caller", input.len());
        assert!(decoder.held_bytes() <= LIMITS.message_bytes, "{} bytes are held", decoder.held_bytes());
        kept = input.to_vec();
    }
    (all, None)
}

fn owned(event: Event<'_>) -> Came {
    match event {
        Event::Message { kind, data } => Came::Message(kind, data.into_owned()),
        Event::Ping(payload) => Came::Ping(payload.to_vec()),
        Event::Pong(payload) => Came::Pong(payload.to_vec()),
        Event::Close { code, reason } => Came::Close(code, reason.to_owned()),
    }
}

fn of_client(bytes: &[u8]) -> Trace {
    decoded(Role::Server, bytes, [])
}

/// Builds a client's frame with this first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    frame_with(first, payload, Some([1, 2, 3, 4]))
}

/// Builds a frame with this mask, without the code under test.
fn frame_with(first: u8, payload: &[u8], key: Option<[u8; 4]>) -> Vec<u8> {
    let masked = if key.is_some() { 0x80 } else { 0 };
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..126 => bytes.push(masked | short as u8),
        long => {
            bytes.push(masked | 126);
            bytes.extend_from_slice(&(long as u16).to_be_bytes());
        }
    }
    bytes.extend(key.unwrap_or_default().iter().filter(|_| key.is_some()));
    let key = key.unwrap_or_default();
    bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]));
    bytes
}

#[test]
fn messages_whole_and_in_fragments() {
    let bytes = [
        frame(0x81, "grün".as_bytes()),
        frame(0x02, b"bi"),
        frame(0x89, b"now?"),
        frame(0x00, b""),
        frame(0x80, b"nary"),
        frame(0x8a, b""),
        frame(0x88, b"\x03\xe8done"),
        frame(0x81, b"not read any more"),
    ]
    .concat();
    let expected = [
        Came::Message(Kind::Text, "grün".into()),
        Came::Ping(b"now?".to_vec()),
        Came::Message(Kind::Binary, b"binary".to_vec()),
        Came::Pong(Vec::new()),
        Came::Close(Some(CloseCode::NORMAL), "done".to_owned()),
    ];
    assert_eq!(of_client(&bytes), (expected.to_vec(), None));
}

#[test]
fn what_is_wrong_ends_it_with_its_code() {
    let wrong = |bytes: &[u8]| of_client(bytes).1.map(|violation| (violation, violation.code().0));
    assert_eq!(wrong(&[0x81, 0x01, b'a']), Some((Violation::Unmasked, 1002)));
    assert_eq!(decoded(Role::Client, &frame(0x81, b"a"), []).1, Some(Violation::Masked));
    assert_eq!(wrong(&frame(0x80, b"a")), Some((Violation::Continuation, 1002)));
    assert_eq!(wrong(&[frame(0x01, b"a"), frame(0x81, b"b")].concat()), Some((Violation::Interleaved, 1002)));
    assert_eq!(wrong(&frame(0x88, b"\x03")), Some((Violation::Close, 1002)));
    assert_eq!(wrong(&frame(0x88, &1006_u16.to_be_bytes())), Some((Violation::Close, 1002)));
    assert_eq!(wrong(&frame(0x88, b"\x03\xe8\xff")), Some((Violation::Utf8, 1007)));
    assert_eq!(wrong(&frame(0x81, b"\xc3")), Some((Violation::Utf8, 1007)));
    assert_eq!(wrong(&[frame(0x01, b"\xc3"), frame(0x80, b"")].concat()), Some((Violation::Utf8, 1007)));
    // At the first invalid byte, not at the end of the message.
    assert_eq!(wrong(&frame(0x01, b"\xff")), Some((Violation::Utf8, 1007)));
    assert_eq!(wrong(&frame(0x82, &[0; 1001])), Some((Violation::TooLarge, 1009)));
    let pieces = [frame(0x02, &[0; 600]), frame(0x80, &[0; 401])].concat();
    assert_eq!(wrong(&pieces), Some((Violation::TooLarge, 1009)));
    assert_eq!(wrong(&frame(0x82, &[0; 1000])), None);
}

/// Decodes the frames of a client with which compression was agreed on.
fn of_compressing_client(limits: &Limits, bytes: &[u8], size: usize) -> (Trace, usize) {
    let mut decoder = Decoder::with_deflate(Role::Server);
    let (mut all, mut kept, mut most_held) = (Vec::new(), Vec::new(), 0);
    for piece in bytes.chunks(size) {
        kept.extend_from_slice(piece);
        let mut input = &mut kept[..];
        loop {
            match decoder.decode(limits, &mut input) {
                Ok(Some(event)) => all.push(owned(event)),
                Ok(None) => break,
                Err(violation) => return ((all, Some(violation)), most_held),
            }
        }
        most_held = most_held.max(decoder.held_bytes());
        kept = input.to_vec();
    }
    ((all, None), most_held)
}

/// RFC 7692, section 7.2.3.1: a message in one frame, and in two.
#[test]
fn compressed_messages_whole_and_in_fragments() {
    const HELLO: &[u8] = &[0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    let bytes = [
        frame(0xc1, HELLO),
        frame(0x81, b"plain"),
        frame(0x41, &HELLO[..3]),
        frame(0x89, b"?"),
        frame(0x80, &HELLO[3..]),
        frame(0xc2, HELLO),
        frame(0xc1, &[0x00]),
    ]
    .concat();
    let expected = vec![
        Came::Message(Kind::Text, b"Hello".to_vec()),
        Came::Message(Kind::Text, b"plain".to_vec()),
        Came::Ping(b"?".to_vec()),
        Came::Message(Kind::Text, b"Hello".to_vec()),
        Came::Message(Kind::Binary, b"Hello".to_vec()),
        Came::Message(Kind::Text, Vec::new()),
    ];
    for size in 1..=bytes.len() {
        assert_eq!(of_compressing_client(&LIMITS, &bytes, size).0, (expected.clone(), None), "{size}");
    }
    assert_eq!(of_client(&bytes), (Vec::new(), Some(Violation::ReservedBits)), "nothing was agreed on");
}

#[test]
fn what_is_wrong_with_a_compressed_message_ends_it() {
    let wrong = |bytes: &[u8]| {
        let whole = of_compressing_client(&LIMITS, bytes, bytes.len()).0.1;
        assert_eq!(of_compressing_client(&LIMITS, bytes, 1).0.1, whole);
        whole.map(|violation| (violation, violation.code().0))
    };
    assert_eq!(wrong(&frame(0xc9, b"")), Some((Violation::ReservedBits, 1002)));
    assert_eq!(wrong(&[frame(0x41, b"\xf2"), frame(0xc0, b"\x00")].concat()), Some((Violation::ReservedBits, 1002)));
    assert_eq!(wrong(&frame(0xe1, b"")), Some((Violation::ReservedBits, 1002)));
    assert_eq!(wrong(&frame(0xc1, b"\xff")), Some((Violation::Deflate, 1007)));
    assert_eq!(wrong(&frame(0xc1, b"\xf2\x48")), Some((Violation::Deflate, 1007)), "it ends within a block");
    // One byte 0xff, which is no UTF-8.
    let not_text = [0x00, 0x01, 0x00, 0xfe, 0xff, 0xff, 0x00];
    assert_eq!(wrong(&frame(0xc1, &not_text)), Some((Violation::Utf8, 1007)));
    assert_eq!(wrong(&frame(0xc2, &not_text)), None);
}

#[test]
fn a_compressed_message_is_limited_before_and_after_inflation() {
    let limits = Limits { message_bytes: 100_000 };
    let of = |length: usize| {
        let mut bytes = Vec::new();
        assert!(encode::masked_deflated_message(&mut bytes, Kind::Binary, &vec![7; length], [1, 2, 3, 4]));
        assert!(bytes.len() < length / 500);
        of_compressing_client(&limits, &bytes, bytes.len()).0.1
    };
    assert_eq!(of(100_000), None);
    assert_eq!(of(100_001), Some(Violation::TooLarge));
    assert_eq!(of(100_000_000), Some(Violation::TooLarge));
    // What a frame announces is refused before it comes.
    let mut long = vec![0xc2, 0xff];
    long.extend_from_slice(&200_000_u64.to_be_bytes());
    long.extend_from_slice(&[1, 2, 3, 4]);
    assert_eq!(of_compressing_client(&limits, &long, 1).0.1, Some(Violation::TooLarge));
    // Fragments count together, and memory stays within the bound.
    let pieces = [frame(0x42, &[0; 60_000]), frame(0x00, &[0; 50_000]), frame(0x80, &[0; 9_000])].concat();
    let ((_, violation), held) = of_compressing_client(&limits, &pieces, 1000);
    assert_eq!(violation, Some(Violation::TooLarge));
    assert!(held <= 112_564, "{held}");
}

/// An announced length allocates nothing: memory grows with the received bytes.
#[test]
fn a_length_alone_takes_no_memory() {
    let mut bytes = frame(0x82, &[7; 1000]);
    bytes.truncate(20);
    let mut decoder = Decoder::new(Role::Server);
    assert_eq!(decoder.decode(&LIMITS, &mut &mut bytes[..]), Ok(None));
    assert!((1..100).contains(&decoder.held_bytes()), "{}", decoder.held_bytes());
}

#[test]
fn an_idle_decoder_is_small_and_a_whole_message_takes_no_memory() {
    assert!(size_of::<Decoder>() <= 32, "{} bytes", size_of::<Decoder>());
    let mut bytes = frame(0x81, b"hello");
    let mut decoder = Decoder::new(Role::Server);
    let allocated = allocation_counter::measure(|| {
        let mut input = &mut bytes[..];
        let event = decoder.decode(&Limits::default(), &mut input);
        assert!(matches!(event, Ok(Some(Event::Message { data: Cow::Borrowed(b"hello"), .. }))));
    });
    assert_eq!((allocated.count_total, decoder.held_bytes()), (0, 0));
}

/// A message in fragments, with a control frame after each but the last.
type Sent = (bool, Vec<u8>, Vec<(Index, Option<bool>)>);

fn sent() -> impl Strategy<Value = Sent> {
    let fragments = || vec((any::<Index>(), any::<Option<bool>>()), 0..5);
    let text = (".{0,100}".prop_map(String::into_bytes), fragments()).prop_map(|(data, at)| (true, data, at));
    let binary = (vec(any::<u8>(), 0..400), fragments()).prop_map(|(data, at)| (false, data, at));
    prop_oneof![text, binary]
}

/// Writes a message as a peer could, and returns the expected events.
fn write(out: &mut Vec<u8>, (text, data, fragments): &Sent, mut key: impl FnMut() -> Option<[u8; 4]>) -> Vec<Came> {
    let (kind, mut opcode) = if *text { (Kind::Text, 1) } else { (Kind::Binary, 2) };
    let mut ends: Vec<usize> = fragments.iter().map(|(end, _)| end.index(data.len() + 1)).collect();
    ends.sort_unstable();
    let (mut from, mut came) = (0, Vec::new());
    for (end, (_, ping)) in ends.into_iter().zip(fragments) {
        out.extend(frame_with(mem::take(&mut opcode), &data[from..end], key()));
        from = end;
        let Some(ping) = ping else { continue };
        let payload = data[..end.min(125)].to_vec();
        out.extend(frame_with(if *ping { 0x89 } else { 0x8a }, &payload, key()));
        came.push(if *ping { Came::Ping(payload) } else { Came::Pong(payload) });
    }
    out.extend(frame_with(0x80 | opcode, &data[from..], key()));
    came.push(Came::Message(kind, data.clone()));
    came
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_a_peer_sends_comes_whatever_the_fragments_masks_and_cuts(
        messages in vec(sent(), 0..5),
        keys in vec(any::<[u8; 4]>(), 1..4),
        server: bool,
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let mut keys = keys.iter().copied().cycle();
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for message in &messages {
            expected.extend(write(&mut bytes, message, || keys.next().filter(|_| server)));
        }
        let role = if server { Role::Server } else { Role::Client };
        let cuts = cuts.iter().map(|cut| cut.index(bytes.len() + 1));
        prop_assert_eq!(decoded(role, &bytes, cuts), (expected.clone(), None));
        prop_assert_eq!(decoded(role, &bytes, 0..bytes.len()), (expected, None));
    }

    #[test]
    fn what_is_encoded_is_decoded(
        text in ".{0,200}",
        data in vec(any::<u8>(), 0..900),
        key: [u8; 4],
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let (mut plain, mut masked) = (Vec::new(), Vec::new());
        encode::message(&mut plain, Kind::Text, text.as_bytes());
        encode::masked_message(&mut masked, Kind::Text, text.as_bytes(), key);
        encode::ping(&mut plain, &data, None);
        encode::ping(&mut masked, &data, Some(key));
        encode::pong(&mut plain, &data, None);
        encode::pong(&mut masked, &data, Some(key));
        encode::message(&mut plain, Kind::Binary, &data);
        encode::masked_message(&mut masked, Kind::Binary, &data, key);
        encode::close(&mut plain, CloseCode::GOING_AWAY, &text);
        encode::masked_close(&mut masked, CloseCode::GOING_AWAY, &text, key);
        let end = (0..=text.len().min(123)).rev().find(|&end| text.is_char_boundary(end)).unwrap();
        let expected = vec![
            Came::Message(Kind::Text, text.clone().into_bytes()),
            Came::Ping(data[..data.len().min(125)].to_vec()),
            Came::Pong(data[..data.len().min(125)].to_vec()),
            Came::Message(Kind::Binary, data),
            Came::Close(Some(CloseCode::GOING_AWAY), text[..end].to_owned()),
        ];
        for (role, bytes) in [(Role::Client, plain), (Role::Server, masked)] {
            let cuts = cuts.iter().map(|cut| cut.index(bytes.len() + 1));
            prop_assert_eq!(decoded(role, &bytes, cuts), (expected.clone(), None));
        }
    }

    #[test]
    fn cuts_change_nothing_about_bytes_that_make_no_sense(
        frames in vec((any::<u8>(), vec(any::<u8>(), 0..300)), 0..6),
        noise in vec(any::<u8>(), 0..20),
        cuts in vec(any::<Index>(), 0..8),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, payload)| frame(*first, payload)).chain(noise).collect();
        let whole = of_client(&bytes);
        let cuts = cuts.iter().map(|cut| cut.index(bytes.len() + 1));
        prop_assert_eq!(decoded(Role::Server, &bytes, cuts), whole.clone());
        prop_assert_eq!(decoded(Role::Server, &bytes, 0..bytes.len()), whole);
    }
}
