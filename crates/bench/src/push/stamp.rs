//! The stamp in a message: its publisher, its number and its time. A hub may wrap the message as it likes.
//!
//! `oroshi:RUN:PUBLISHER:SEQUENCE:TIME:`, where RUN is eight hexadecimal digits and the others are decimal. TIME is in
//! nanoseconds of this machine's monotonic clock: sender and receiver must be on one machine. JSON, URLs and HTML
//! escape none of its characters.

use memchr::memmem;

/// How every stamp begins.
const HEAD: &[u8] = b"oroshi:";
/// The publisher number of messages for one connection each.
pub(crate) const TO_ONE: u32 = u32::MAX;
/// The longest stamp: three numbers of 20 digits at most.
pub(crate) const LONGEST: usize = HEAD.len() + 9 + 3 * 21;

/// The content of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Number of the run. A hub may keep messages of an earlier one and send them again.
    pub(crate) run: u32,
    /// Number of the publisher. Each counts its messages for itself; only they have an order.
    pub(crate) publisher: u32,
    pub(crate) sequence: u64,
    /// Nanoseconds of the monotonic clock.
    pub(crate) sent: u64,
}

impl Stamp {
    /// Appends the stamp.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let Self { run, publisher, sequence, sent } = self;
        out.extend_from_slice(format!("oroshi:{run:08x}:{publisher}:{sequence}:{sent}:").as_bytes());
    }
}

/// Calls `found` with every stamp in `text`. Returns the length of the end of `text` that may begin another stamp.
pub(crate) fn find(text: &[u8], mut found: impl FnMut(Stamp)) -> usize {
    let mut rest = text;
    while let Some(at) = memmem::find(rest, HEAD) {
        let behind = &rest[at + HEAD.len()..];
        match read(behind) {
            Read::Stamp(stamp, length) => {
                found(stamp);
                rest = &behind[length..];
            }
            Read::Other => rest = behind,
            Read::Cut => return rest.len() - at,
        }
    }
    (1..HEAD.len().min(rest.len() + 1)).rev().find(|&length| rest.ends_with(&HEAD[..length])).unwrap_or(0)
}

enum Read {
    /// A stamp, and its length behind the head.
    Stamp(Stamp, usize),
    /// Other text that began like a stamp.
    Other,
    /// A stamp so far, and the end of the text.
    Cut,
}

/// Reads what stands behind the head.
fn read(text: &[u8]) -> Read {
    let mut numbers = [0; 4];
    let mut at = 0;
    for (number, radix) in numbers.iter_mut().zip([16, 10, 10, 10]) {
        let start = at;
        loop {
            match text.get(at) {
                None if at < LONGEST => return Read::Cut,
                Some(b':') if at > start => break,
                Some(&byte) if (byte as char).is_digit(radix) && at - start < 20 => {
                    let digit = u64::from((byte as char).to_digit(radix).unwrap_or(0));
                    *number = u64::wrapping_add(u64::wrapping_mul(*number, radix.into()), digit);
                }
                _ => return Read::Other,
            }
            at += 1;
        }
        at += 1;
    }
    let [run, publisher, sequence, sent] = numbers;
    match (u32::try_from(run), u32::try_from(publisher)) {
        (Ok(run), Ok(publisher)) => Read::Stamp(Stamp { run, publisher, sequence, sent }, at),
        _ => Read::Other,
    }
}

/// The text of messages, with placeholders for what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<Part>,
    /// Each message is padded to this length, at [`Part::Padding`].
    length: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Stamp,
    Sequence,
    Time,
    Target,
    Padding,
}

/// Why a body cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Put `{stamp}` somewhere.
    #[error(
        "the body has no {{stamp}}, by which a message is recognised when it comes: put it where the text is, as in \
         '{{\"text\":\"{{stamp}}\"}}'"
    )]
    NoStamp,
    /// Ask for longer messages.
    #[error(
        "messages of {length} bytes: expected at least {least}, which is what the stamp and the JSON around it take"
    )]
    TooShort {
        /// Requested length.
        length: usize,
        /// Least possible length.
        least: usize,
    },
}

impl Template {
    /// A JSON object of `length` bytes.
    pub(crate) fn json(length: usize) -> Result<Self, TemplateError> {
        let parts = vec![Part::Text(b"{\"m\":\"".to_vec()), Part::Stamp, Part::Padding, Part::Text(b"\"}".to_vec())];
        let least = LONGEST + b"{\"m\":\"\"}".len();
        if length < least { Err(TemplateError::TooShort { length, least }) } else { Ok(Self { parts, length }) }
    }

    /// A text with `{stamp}`, and perhaps `{seq}`, `{time_ns}` and, for messages to one, `{n}`. Other braces stand for
    /// themselves.
    pub(crate) fn text(text: &[u8]) -> Result<Self, TemplateError> {
        const PLACES: [(&[u8], Part); 4] =
            [(b"{stamp}", Part::Stamp), (b"{seq}", Part::Sequence), (b"{time_ns}", Part::Time), (b"{n}", Part::Target)];
        let (mut parts, mut plain, mut rest) = (Vec::new(), Vec::new(), text);
        while let Some((&first, behind)) = rest.split_first() {
            match PLACES.iter().find(|(name, _)| rest.starts_with(name)) {
                Some((name, part)) => {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(part.clone());
                    rest = &rest[name.len()..];
                }
                None => {
                    plain.push(first);
                    rest = behind;
                }
            }
        }
        parts.push(Part::Text(plain));
        if parts.contains(&Part::Stamp) { Ok(Self { parts, length: 0 }) } else { Err(TemplateError::NoStamp) }
    }

    /// Whether messages name the connection that they are for.
    pub(crate) fn names_target(&self) -> bool {
        self.parts.contains(&Part::Target)
    }

    /// Replaces the content of `out` by the message. `target`: the number of the connection that the message is for.
    pub(crate) fn write(&self, out: &mut Vec<u8>, stamp: &Stamp, target: Option<u32>) {
        out.clear();
        let mut padding = None;
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Stamp => stamp.write(out),
                Part::Sequence => out.extend_from_slice(stamp.sequence.to_string().as_bytes()),
                Part::Time => out.extend_from_slice(stamp.sent.to_string().as_bytes()),
                Part::Target => out.extend_from_slice(target.map(|n| n.to_string()).unwrap_or_default().as_bytes()),
                Part::Padding => padding = Some(out.len()),
            }
        }
        if let Some(at) = padding {
            let missing = self.length.saturating_sub(out.len());
            out.splice(at..at, std::iter::repeat_n(b'x', missing));
        }
    }
}

/// Returns the connection that message `sequence` for one is for: each open one in turn, but no neighbours in a row.
pub(crate) fn target(opened: &[u32], sequence: u64) -> Option<u32> {
    // A number that is prime to every possible count of connections leads through all of them.
    const STRIDE: u64 = 1_000_000_007;
    opened.get((u128::from(sequence) * u128::from(STRIDE) % opened.len().max(1) as u128) as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { run: 0xab, publisher: 3, sequence: 17, sent: 123_456_789 };

    fn found(text: &[u8]) -> (Vec<Stamp>, usize) {
        let mut all = Vec::new();
        let left = find(text, |stamp| all.push(stamp));
        (all, left)
    }

    #[test]
    fn a_stamp_is_found_whatever_stands_around_it() {
        let mut message = Vec::new();
        Template::json(120).unwrap().write(&mut message, &STAMP, None);
        assert_eq!(message.len(), 120);
        assert!(message.starts_with(b"{\"m\":\"oroshi:000000ab:3:17:123456789:xxx"), "{}", message.escape_ascii());
        let wrapped =
            [b"data: {\"data\":\"{\\\"m\\\":".as_slice(), &message, b"}\n\noroshi: is a tool, oroshi:1:x"].concat();
        assert_eq!(found(&wrapped), (vec![STAMP], 0));
        assert_eq!(found(&[&message[..], &message].concat()).0, [STAMP; 2]);
        for no in ["oroshi:", "oroshi:1:2:3", "oroshi:zz:1:1:1:", "oroshi::1:1:1:", "oroshi:1ffffffff:1:1:1:"] {
            assert_eq!(found(no.as_bytes()).0, [], "{no}");
        }
    }

    #[test]
    fn what_may_be_the_beginning_of_one_is_kept_until_more_is_here() {
        let text = b"oror oroshi:000000ab:3:17:123456789: and then";
        for cut in 0..=text.len() {
            let (mut all, left) = found(&text[..cut]);
            let rest = [&text[cut - left..cut], &text[cut..]].concat();
            let (more, at_end) = found(&rest);
            all.extend(more);
            assert_eq!((all, at_end), (vec![STAMP], 0), "cut at {cut}");
        }
        assert!(found(&b"oroshi:".repeat(1000)).1 <= LONGEST);
        assert_eq!(found(&[b"oroshi:".as_slice(), &[b'1'; 500]].concat()).1, 0, "too long for one");
    }

    #[test]
    fn a_text_of_the_users_own_has_a_stamp_or_is_refused() {
        let mut out = Vec::new();
        let template =
            Template::text(b"{\"to\":{n},\"n\":{seq},\"at\":{time_ns},\"text\":\"{stamp}\",\"{x}\":{}}").unwrap();
        template.write(&mut out, &STAMP, Some(5));
        let expected = b"{\"to\":5,\"n\":17,\"at\":123456789,\"text\":\"oroshi:000000ab:3:17:123456789:\",\"{x}\":{}}";
        assert_eq!(out.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!(Template::text(b"hello"), Err(TemplateError::NoStamp));
        assert!(Template::json(20).unwrap_err().to_string().contains("at least"));
    }
}
