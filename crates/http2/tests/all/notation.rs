//! Frames as text, for the conformance table and for tests of single rules. The head of `cases.txt` describes it.

use oroshi_http2::ErrorCode;

const TYPES: [&str; 10] = [
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
];

/// Returns the bytes of a line of the notation.
pub(crate) fn bytes(line: &str) -> Vec<u8> {
    let mut parts = line.split(" | ");
    let words: Vec<&str> = parts.next().unwrap_or_default().split(' ').collect();
    let parts: Vec<&str> = parts.collect();
    if words[0] == "RAW" {
        return parts.iter().flat_map(|part| unescape(part)).collect();
    }
    let kind = TYPES.iter().position(|kind| *kind == words[0]).map_or_else(
        || words[0].strip_prefix("TYPE").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no type: {line}")),
        |place| place as u8,
    );
    let stream: u32 = words.get(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no stream: {line}"));
    let mut flags = if kind == 1 || kind == 9 { 4 } else { 0 };
    let (mut length, mut before, mut after) = (None, Vec::new(), Vec::new());
    for word in &words[2..] {
        match word.split_once('=') {
            None => match *word {
                "END" | "ACK" => flags |= 1,
                "MORE" => flags &= !4,
                "PADDED" => flags |= 8,
                "PRIORITY" => flags |= 0x20,
                _ => panic!("unknown word {word}: {line}"),
            },
            Some(("pad", count)) => {
                flags |= 8;
                let count: u8 = count.parse().expect("padding");
                before.push(count);
                after = vec![0; usize::from(count)];
            }
            Some(("length", count)) => length = Some(count.parse::<usize>().expect("length")),
            Some(("flags", value)) => flags = value.parse().expect("flags"),
            Some(("depends", on)) => {
                flags |= 0x20;
                before.extend_from_slice(&on.parse::<u32>().expect("stream").to_be_bytes());
                before.push(15);
            }
            Some(_) => panic!("unknown word {word}: {line}"),
        }
    }
    let payload = [before, parts.iter().flat_map(|part| payload(kind, part)).collect(), after].concat();
    let length = length.unwrap_or(payload.len());
    let mut frame = (length as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(&payload);
    frame
}

/// One part of a payload, by the type of its frame.
fn payload(kind: u8, part: &str) -> Vec<u8> {
    if let Some(bytes) = part.strip_prefix("raw ") {
        return unescape(bytes);
    }
    match kind {
        // Header blocks: literal fields, never indexed.
        1 | 5 | 9 => {
            // The colon after the name: a pseudo-header begins with another one.
            let colon = part[1..].find(": ").map_or_else(|| panic!("no field: {part}"), |at| at + 1);
            let (name, value) = (unescape(&part[..colon]), unescape(&part[colon + 2..]));
            let mut field = vec![0x10];
            for text in [name, value] {
                length(&mut field, text.len());
                field.extend(text);
            }
            field
        }
        4 => {
            let (setting, value) = part.split_once('=').unwrap_or_else(|| panic!("no setting: {part}"));
            let mut bytes = setting.parse::<u16>().expect("setting").to_be_bytes().to_vec();
            bytes.extend_from_slice(&value.parse::<u32>().expect("value").to_be_bytes());
            bytes
        }
        0 | 6 => unescape(part),
        // Numbers of 32 bits, or names of error codes.
        _ => part.split(' ').flat_map(|word| word.parse().unwrap_or_else(|_| code(word).0).to_be_bytes()).collect(),
    }
}

/// The length of a string without Huffman coding.
fn length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        block.push(length as u8);
        return;
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(rest as u8 | 128);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn code(name: &str) -> ErrorCode {
    (0..14).map(ErrorCode).find(|code| code.name() == name).unwrap_or_else(|| panic!("no error code {name}"))
}

/// Returns the frames in what a connection has written, one line each, without the payload of DATA and header blocks.
pub(crate) fn frames(mut out: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Some((&[a, b, c, kind, flags, d, e, f, g], rest)) = out.split_first_chunk::<9>() {
        let (payload, rest) = rest.split_at(u32::from_be_bytes([0, a, b, c]) as usize);
        out = rest;
        let stream = u32::from_be_bytes([d, e, f, g]);
        let number = |at: usize| payload.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        let end = if flags & 1 != 0 { " END" } else { "" };
        lines.push(match kind {
            0 => format!("DATA {stream} {}{end}", payload.len()),
            1 | 9 => format!("{} {stream}{end}{}", TYPES[usize::from(kind)], if flags & 4 == 0 { " MORE" } else { "" }),
            3 => format!("RST_STREAM {stream} {}", ErrorCode(number(0))),
            4 if flags & 1 != 0 => "SETTINGS ACK".to_owned(),
            4 => {
                let settings = payload.chunks(6).map(|s| {
                    format!(" {}={}", u16::from_be_bytes([s[0], s[1]]), u32::from_be_bytes([s[2], s[3], s[4], s[5]]))
                });
                format!("SETTINGS{}", settings.collect::<String>())
            }
            6 => format!("PING{} {}", if flags & 1 != 0 { " ACK" } else { "" }, payload.escape_ascii()),
            7 => format!("GOAWAY {} {}", number(0), ErrorCode(number(4))),
            8 => format!("WINDOW_UPDATE {stream} {}", number(0)),
            _ => format!("TYPE{kind} {stream}"),
        });
    }
    assert!(out.is_empty(), "half a frame was written");
    lines
}

/// Resolves `\r \n \t \0 \\ \xHH` and `\{N:text}`.
pub(crate) fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = rest.as_bytes()[at + 1];
        let mut length = 2;
        match escape {
            b'r' => bytes.push(b'\r'),
            b'n' => bytes.push(b'\n'),
            b't' => bytes.push(b'\t'),
            b'0' => bytes.push(0),
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                bytes.push(u8::from_str_radix(&rest[at + 2..at + 4], 16).expect("two hexadecimal digits"));
                length = 4;
            }
            b'{' => {
                let (repeat, after) = rest[at + 2..].split_once('}').expect("a closing brace");
                let (count, text) = repeat.split_once(':').expect("N:text");
                bytes.extend(unescape(text).repeat(count.parse().expect("a number")));
                length = rest.len() - at - after.len();
            }
            other => panic!("unknown escape {}", char::from(other)),
        }
        rest = &rest[at + length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}
