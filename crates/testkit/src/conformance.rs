//! The conformance table of `oroshi-http1`: reads its `cases.txt`, whose head describes the format.

/// One case of the table.
#[derive(Debug)]
pub struct Case {
    /// Its name, unique in the file.
    pub id: String,
    /// The line where it begins.
    pub line: usize,
    /// Whether the bytes come from a client or from a server.
    pub kind: Kind,
    /// For responses: the kinds of their requests, in order: `body`, `head`, `connect`, `upgrade`.
    pub to: Vec<String>,
    /// The sent bytes.
    pub bytes: Vec<u8>,
    /// Limits that differ from the defaults, by their names in `Limits`.
    pub limits: Vec<(String, u64)>,
    /// The decoded messages, in order.
    pub messages: Vec<Message>,
    /// Remaining bytes after a tunnel's head.
    pub rest: Vec<u8>,
    /// The expected end.
    pub verdict: Verdict,
    /// The rule.
    pub why: String,
}

/// The sender of the bytes of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client.
    Request,
    /// A server.
    Response,
}

/// The end of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All bytes are messages, with the peer's close if that ends the last one.
    Accept,
    /// No error, but the last message is incomplete: a close now is `unexpected-eof`.
    Incomplete,
    /// The name of the error, and the status of a server's response.
    Reject(String, u16),
}

/// A decoded message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `METHOD target framing persistence` or `status framing persistence`.
    pub summary: String,
    /// Statuses of the interim responses before it.
    pub interim: Vec<u16>,
    /// Whether its end was reached.
    pub complete: bool,
    /// The decoded body, as far as it came.
    pub body: Vec<u8>,
    /// The trailer fields.
    pub trailers: Vec<(String, Vec<u8>)>,
    /// Required values of the head, by their names in `cases.txt`: a field's name, or `@host`, `@upgrade`, `@expect`,
    /// `@reason`. The test compares only these.
    pub has: Vec<(String, Vec<u8>)>,
    /// Names that the head must lack.
    pub lacks: Vec<String>,
}

/// Returns all cases. Panics with the line's number if the file is malformed.
#[must_use]
pub fn cases() -> Vec<Case> {
    let text = include_str!("../../http1/conformance/cases.txt");
    let mut cases = Vec::new();
    let mut paragraph: Vec<(usize, &str)> = Vec::new();
    for (number, line) in text.lines().chain([""]).enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if !line.is_empty() {
            paragraph.push((number + 1, line));
        } else if !paragraph.is_empty() {
            cases.push(case(&std::mem::take(&mut paragraph)));
        }
    }
    cases
}

fn case(lines: &[(usize, &str)]) -> Case {
    let first = lines[0].0;
    let mut case = Case {
        id: String::new(),
        line: first,
        kind: Kind::Request,
        to: Vec::new(),
        bytes: Vec::new(),
        limits: Vec::new(),
        messages: Vec::new(),
        rest: Vec::new(),
        verdict: Verdict::Accept,
        why: String::new(),
    };
    let (mut verdicts, mut interim) = (0, Vec::new());
    for &(number, line) in lines {
        let (key, value) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
        let numeric =
            |digits: &str| -> u64 { digits.parse().unwrap_or_else(|_| panic!("cases.txt:{number}: no number")) };
        match key {
            "case" => case.id = value.to_owned(),
            "request" => case.bytes.extend(unescape(value)),
            "response" => {
                case.kind = Kind::Response;
                case.bytes.extend(unescape(value));
            }
            "to" => case.to.extend(value.split(' ').map(str::to_owned)),
            "limits" => case.limits.extend(value.split(' ').map(|limit| {
                let (name, most) = limit.split_once('=').unwrap_or_default();
                (name.to_owned(), numeric(most))
            })),
            "interim" => interim.push(numeric(value) as u16),
            "message" | "partial" => case.messages.push(Message {
                summary: value.to_owned(),
                interim: std::mem::take(&mut interim),
                complete: key == "message",
                ..Message::default()
            }),
            "rest" => case.rest = unescape(value),
            "accept" | "incomplete" | "reject" => {
                verdicts += 1;
                case.verdict = match (key, value.split_once(' ')) {
                    ("accept", None) => Verdict::Accept,
                    ("incomplete", None) => Verdict::Incomplete,
                    ("reject", Some((name, status))) => Verdict::Reject(name.to_owned(), numeric(status) as u16),
                    _ => panic!("cases.txt:{number}: cannot read `{line}`"),
                };
            }
            "why" => case.why = value.to_owned(),
            _ => {
                let message =
                    case.messages.last_mut().unwrap_or_else(|| panic!("cases.txt:{number}: before a message"));
                match key {
                    "body" => message.body.extend(unescape(value)),
                    "trailer" => message.trailers.push(name_and_value(value)),
                    "has" => message.has.push(name_and_value(value)),
                    "lacks" => message.lacks.push(value.to_owned()),
                    _ => panic!("cases.txt:{number}: unknown key `{key}`"),
                }
            }
        }
    }
    // Interim responses without a final one.
    if !interim.is_empty() {
        case.messages.push(Message { interim, ..Message::default() });
    }
    assert!(
        !case.id.is_empty() && !case.why.is_empty() && verdicts == 1,
        "cases.txt:{first}: needs case, why, one verdict"
    );
    case
}

fn name_and_value(text: &str) -> (String, Vec<u8>) {
    let (name, value) = text.split_once(": ").unwrap_or((text.trim_end_matches(':'), ""));
    (name.to_owned(), unescape(value))
}

/// Decodes `\r`, `\n`, `\t`, `\0`, `\\`, `\xHH`, and `\{N:text}` for N times a text.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = rest[at + 1..].chars().next();
        let mut used = 2;
        match escape {
            Some('r') => bytes.push(b'\r'),
            Some('n') => bytes.push(b'\n'),
            Some('t') => bytes.push(b'\t'),
            Some('0') => bytes.push(0),
            Some('\\') => bytes.push(b'\\'),
            Some('x') => {
                bytes.push(u8::from_str_radix(&rest[at + 2..at + 4], 16).expect("two hexadecimal digits after \\x"));
                used = 4;
            }
            Some('{') => {
                let close = at + rest[at..].find('}').expect("a } after \\{");
                let (count, repeated) = rest[at + 2..close].split_once(':').expect("a count and a colon after \\{");
                let repeated = unescape(repeated).repeat(count.parse().expect("a count after \\{"));
                bytes.extend(repeated);
                used = close + 1 - at;
            }
            _ => panic!("cases.txt: unknown escape in `{text}`"),
        }
        rest = &rest[at + used..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}
