//! Deltas: a publication as the difference from the one before it in its channel.
//!
//! A delta is an array of steps, which build the new text from the old one. A positive number copies as many units from
//! the old text, a negative one passes over as many, a string is inserted. Units are UTF-16's, because browsers count
//! characters so. What follows the last step in the old text is not copied.

use std::fmt::{Arguments, Write as _};
use std::str::from_utf8;
use std::sync::{Arc, OnceLock};

use imara_diff::{Algorithm, Diff, Hunk, InternedInput};
use oroshi_websocket::Kind;
use serde_json::json;

use crate::message::{Message, Place};

/// The longest text that deltas are made of, bytes.
const MOST_BYTES: usize = 256 * 1024;

/// The bytes of a delta's frame that a whole message's lacks.
const MORE_BYTES: usize = 32;

/// The most pieces of a text that are compared with pieces of another one. The time grows with their square if the
/// texts are made for it: 512 pieces take one to three milliseconds, 65,536 take five seconds.
const MOST_PIECES: usize = 512;

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
        // A delta that saves less is not worth the client's work.
        let most = new.len() / 4 * 3;
        let steps = steps(from_utf8(old).ok()?, from_utf8(new).ok()?, most)?;
        (steps.len() + MORE_BYTES <= most).then(|| next.to_delta(self.from.offset, steps)).flatten()
    }
}

/// Returns the steps from `old` to `new`, as JSON; `None` if they insert more than `most` bytes.
fn steps(old: &str, new: &str, most: usize) -> Option<String> {
    let alike = |(a, b): &(char, char)| a == b;
    let length = |(a, _): (char, char)| a.len_utf8();
    let begin: usize = old.chars().zip(new.chars()).take_while(alike).map(length).sum();
    let (from, to) = (&old[begin..], &new[begin..]);
    let end: usize = from.chars().rev().zip(to.chars().rev()).take_while(alike).map(length).sum();
    let (before, after) = both(&from[..from.len() - end], &to[..to.len() - end]);
    let mut input = InternedInput::default();
    input.update_before(before.iter().copied());
    input.update_after(after.iter().copied());
    let diff = Diff::compute(Algorithm::Histogram, &input);
    let come = |hunk: Hunk| after[hunk.after.start as usize..hunk.after.end as usize].iter();
    if diff.hunks().flat_map(come).map(|piece| piece.len()).sum::<usize>() > most {
        return None;
    }
    let mut steps = Steps::default();
    steps.copy(units(&old[..begin]));
    let mut copied = 0;
    for hunk in diff.hunks() {
        let [gone, come] = [hunk.before, hunk.after].map(|of| of.start as usize..of.end as usize);
        steps.copy(before[copied..gone.start].iter().copied().map(units).sum());
        steps.pass(before[gone.clone()].iter().copied().map(units).sum());
        steps.insert(&after[come].concat());
        copied = gone.end;
    }
    steps.copy(before[copied..].iter().copied().map(units).sum());
    steps.copy(units(&from[from.len() - end..]));
    Some(steps.finish())
}

fn units(text: &str) -> usize {
    text.encode_utf16().count()
}

/// Divides two texts into few enough pieces: words, else what commas and lines divide, else one each.
fn both<'a>(old: &'a str, new: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    for divide in [word, clause] {
        if let (Some(old), Some(new)) = (pieces(old, divide), pieces(new, divide)) {
            return (old, new);
        }
    }
    (vec![old], vec![new])
}

/// Divides a text; `None` if that gives too many pieces. `length` returns the length of the first one, bytes.
fn pieces(text: &str, length: fn(&str) -> usize) -> Option<Vec<&str>> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(length(rest));
        pieces.push(piece);
        rest = behind;
        if pieces.len() > MOST_PIECES {
            return None;
        }
    }
    Some(pieces)
}

/// A word or number of ASCII, or else one character.
fn word(text: &str) -> usize {
    let first = text.chars().next().map_or(0, char::len_utf8);
    text.bytes().take_while(u8::is_ascii_alphanumeric).count().max(first)
}

fn clause(text: &str) -> usize {
    text.find([',', '\n']).map_or(text.len(), |at| at + 1)
}

/// Steps as JSON. Copies in a row become one.
#[derive(Default)]
struct Steps {
    out: String,
    copies: usize,
}

impl Steps {
    fn copy(&mut self, count: usize) {
        self.copies += count;
    }

    fn pass(&mut self, count: usize) {
        if count > 0 {
            self.step(format_args!("-{count}"));
        }
    }

    fn insert(&mut self, text: &str) {
        if !text.is_empty() {
            self.step(format_args!("{}", json!(text)));
        }
    }

    fn step(&mut self, step: Arguments<'_>) {
        let copies = std::mem::take(&mut self.copies);
        if copies > 0 {
            self.step(format_args!("{copies}"));
        }
        self.out.push(if self.out.is_empty() { '[' } else { ',' });
        let _ = self.out.write_fmt(step);
    }

    fn finish(mut self) -> String {
        let copies = std::mem::take(&mut self.copies);
        if copies > 0 || self.out.is_empty() {
            self.step(format_args!("{copies}"));
        }
        self.out.push(']');
        self.out
    }
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
            (r#"{"price":101,"of":"x"}"#, r#"{"price":102,"of":"x"}"#, r#"[11,-1,"2",10]"#),
            ("", "", "[0]"),
            ("", "a\"b", r#"["a\"b"]"#),
            ("gone", "", "[-4]"),
            ("same", "same", "[4]"),
            // A character outside of the basic plane has two units.
            ("\u{1f600} one", "\u{1f600} two", r#"[3,-3,"two"]"#),
        ] {
            assert_eq!(steps(old, new, 100).unwrap(), expected, "{old} -> {new}");
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
            prop_assert_eq!(apply(&old, &steps(&old, &new, usize::MAX).unwrap()), new);
        }
    }

    /// Texts that would take seconds word by word: the parts that differ are long, and made of few words.
    #[test]
    fn long_differences_are_divided_into_fewer_pieces() {
        let hostile = |seed: u64| {
            let mut random = fastrand::Rng::with_seed(seed);
            (0..300_000).map(|_| random.choice(['!', '?']).unwrap()).collect::<String>()
        };
        let (old, new) = (format!("same{}same", hostile(1)), format!("same{}same", hostile(2)));
        let found = steps(&old, &new, usize::MAX).unwrap();
        assert_eq!(apply(&old, &found), new);
        assert_eq!(steps(&old, &new, 200_000), None);
        assert!(found.matches(',').count() < 10, "one piece replaces the other");
        let list = |of: usize| (0..400).map(move |at| format!("{at} {} a,", if at % 100 == of { "x y" } else { "y" }));
        let (old, new): (String, String) = (list(7).collect(), list(8).collect());
        let found = steps(&old, &new, 1000).unwrap();
        assert_eq!(apply(&old, &found), new);
        assert!(found.len() < 200 && pieces(&old, word).is_none(), "{found}");
    }

    /// Few words that come often are compared by another algorithm.
    #[test]
    fn texts_of_two_words_in_any_order() {
        let mut random = fastrand::Rng::with_seed(7);
        for lengths in [(500, 500), (500, 250), (100, 500), (300, 1)] {
            let mut text = |length| (0..length).map(|_| random.choice(['!', '?']).unwrap()).collect::<String>();
            let (old, new) = (text(lengths.0), text(lengths.1));
            assert_eq!(apply(&old, &steps(&old, &new, usize::MAX).unwrap()), new);
        }
    }

    #[test]
    fn a_delta_is_made_once_and_only_where_it_is_shorter() {
        let long = "a value with many words that stay, so that less than its half is sent, and one that changes: ";
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
