//! Deltas: a publication as the difference from the one before it in its channel.
//!
//! A delta is an array of steps, which build the new text from the old one. A positive number copies as many units from
//! the old text, a negative one passes over as many, a string is inserted. Units are UTF-16's, because browsers count
//! characters so. What follows the last step in the old text is not copied.

use std::fmt::Write as _;
use std::str::from_utf8;
use std::sync::{Arc, OnceLock};

use imara_diff::{Algorithm, Diff, InternedInput};
use oroshi_websocket::Kind;
use serde_json::json;

use crate::message::{Message, Place};

/// The longest text that deltas are made of, bytes. It bounds the time that one takes.
const MOST_BYTES: usize = 256 * 1024;

/// The way from one publication of a channel to the next, for all threads.
#[derive(Debug)]
pub(crate) struct Successor {
    base: Arc<Message>,
    from: Place,
    delta: OnceLock<Option<Arc<Message>>>,
}

impl Successor {
    /// Takes the publication before another one. `None` if no delta can begin at it: it is binary, or clients may have
    /// got only its place, because it expires.
    pub(crate) fn new(base: Arc<Message>) -> Option<Self> {
        let from = base.place()?;
        let is_certain = base.ttl().is_none() && matches!(base.payload(), Some((Kind::Text, _)));
        is_certain.then(|| Successor { base, from, delta: OnceLock::new() })
    }

    /// Returns the place of the publication that a delta begins at.
    pub(crate) fn from(&self) -> Place {
        self.from
    }

    /// Returns `next` as a delta, for clients that have the publication before it. `None` if it is shorter as it is.
    pub(crate) fn delta(&self, next: &Message) -> Option<&Arc<Message>> {
        self.delta.get_or_init(|| self.make(next).map(Arc::new)).as_ref()
    }

    fn make(&self, next: &Message) -> Option<Message> {
        let (Some((Kind::Text, old)), Some((Kind::Text, new))) = (self.base.payload(), next.payload()) else {
            return None;
        };
        if old.len().max(new.len()) > MOST_BYTES || next.place()?.epoch != self.from.epoch {
            return None;
        }
        let steps = steps(from_utf8(old).ok()?, from_utf8(new).ok()?);
        // Below this, the work of the client would buy nothing.
        (steps.len() <= new.len() / 4 * 3).then(|| next.to_delta(self.from.offset, steps)).flatten()
    }
}

/// Returns the steps from `old` to `new`, as JSON.
fn steps(old: &str, new: &str) -> String {
    let (before, after) = (tokens(old), tokens(new));
    let mut input = InternedInput::default();
    input.update_before(before.iter().copied());
    input.update_after(after.iter().copied());
    let units = |tokens: &[&str]| tokens.iter().map(|token| token.encode_utf16().count()).sum::<usize>();
    let mut out = String::from("[");
    let mut copied = 0;
    for hunk in Diff::compute(Algorithm::Histogram, &input).hunks() {
        let (gone, come) = (index(&hunk.before), index(&hunk.after));
        number(&mut out, "", units(&before[copied..gone.start]));
        number(&mut out, "-", units(&before[gone.clone()]));
        let inserted: String = after[come].concat();
        if !inserted.is_empty() {
            let _ = write!(out, "{},", json!(inserted));
        }
        copied = gone.end;
    }
    number(&mut out, "", units(&before[copied..]));
    if out.ends_with(',') {
        out.pop();
    }
    out.push(']');
    out
}

fn index(range: &std::ops::Range<u32>) -> std::ops::Range<usize> {
    range.start as usize..range.end as usize
}

fn number(out: &mut String, sign: &str, count: usize) {
    if count > 0 {
        let _ = write!(out, "{sign}{count},");
    }
}

/// Divides a text into words and numbers of ASCII, and single characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::with_capacity(text.len() / 3);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let (token, behind) = rest.split_at(word.max(first.len_utf8()));
        tokens.push(token);
        rest = behind;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::message::Framing;

    /// Carries out steps as a client does.
    fn apply(old: &str, steps: &str) -> String {
        let old: Vec<u16> = old.encode_utf16().collect();
        let (mut at, mut new) = (0, Vec::new());
        for step in serde_json::from_str::<Vec<Value>>(steps).unwrap() {
            match (step.as_i64(), step.as_str()) {
                (Some(count @ 1..), _) => {
                    new.extend_from_slice(&old[at..at + count as usize]);
                    at += count as usize;
                }
                (Some(count), _) => at += usize::try_from(-count).unwrap(),
                (_, Some(text)) => new.extend(text.encode_utf16()),
                _ => panic!("{step}"),
            }
        }
        assert!(at <= old.len());
        String::from_utf16(&new).unwrap()
    }

    fn publication(text: &str, offset: u64) -> Message {
        let place = Place { epoch: 7, offset };
        Message::data(Kind::Text, Bytes::copy_from_slice(text.as_bytes())).to_publication(Some("a".into()), Some(place))
    }

    #[test]
    fn steps_copy_pass_over_and_insert() {
        for (old, new, expected) in [
            (r#"{"price":101,"of":"x"}"#, r#"{"price":102,"of":"x"}"#, r#"[9,-3,"102",10]"#),
            ("", "a\"b", r#"["a\"b"]"#),
            ("gone", "", "[-4]"),
            ("same", "same", "[4]"),
            // A character outside of the basic plane has two units.
            ("\u{1f600} one", "\u{1f600} two", r#"[3,-3,"two"]"#),
        ] {
            assert_eq!(steps(old, new), expected, "{old} -> {new}");
            assert_eq!(apply(old, expected), new);
        }
    }

    proptest! {
        #[test]
        fn steps_lead_to_the_new_text(
            parts in prop::collection::vec(("[a-c0-9 ,\u{e9}\u{1f600}\"\\\\]{0,6}", 0..4u8), 0..30),
        ) {
            let old: String = parts.iter().filter(|(_, kind)| *kind != 1).map(|(part, _)| part.as_str()).collect();
            let new: String = parts.iter().filter(|(_, kind)| *kind != 2).map(|(part, _)| part.as_str()).collect();
            prop_assert_eq!(apply(&old, &steps(&old, &new)), new);
        }
    }

    #[test]
    fn a_delta_is_made_once_and_only_where_it_is_shorter() {
        let long = "a value with many words that stay, and one that changes: ";
        let (old, new) = (publication(&format!("{long}1"), 4), publication(&format!("{long}2"), 5));
        let successor = Successor::new(Arc::new(old)).unwrap();
        let delta = successor.delta(&new).unwrap();
        assert!(Arc::ptr_eq(delta, successor.delta(&new).unwrap()));
        let frame = String::from_utf8(delta.frame(Framing::Poll).to_vec()).unwrap();
        let expected = format!(
            r#"{{"channel":"a","epoch":"0000000000000007","offset":5,"base":4,"delta":[{},-1,"2"]}}"#,
            long.len()
        );
        assert_eq!(frame, expected);
        assert!(delta.is_data() && delta.place() == new.place());
        let of = |text: &str| Successor::new(Arc::new(publication(text, 4)));
        assert!(of("nothing alike").unwrap().delta(&new).is_none());
        assert!(of(&"a ".repeat(MOST_BYTES)).unwrap().delta(&publication(&"a ".repeat(MOST_BYTES), 5)).is_none());
    }

    #[test]
    fn no_delta_begins_at_what_a_client_may_lack() {
        let place = Some(Place { epoch: 7, offset: 4 });
        let binary = Message::data(Kind::Binary, Bytes::from_static(b"x")).to_publication(Some("a".into()), place);
        assert!(Successor::new(Arc::new(binary)).is_none());
        let expires = publication("x", 4).with_ttl(Some(Duration::from_secs(9)));
        assert!(Successor::new(Arc::new(expires)).is_none());
    }
}
