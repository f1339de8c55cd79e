//! Conditions that a response must meet.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A condition on every response; a response that breaks it counts as the failure `check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// `status=200,3xx`: the status is one of these, or of these classes.
    Status(Vec<StatusSet>),
    /// `length=12`: the body has so many bytes (after chunks are taken apart).
    Length(u64),
    /// `contains=TEXT`: the body has these bytes somewhere.
    Contains(String),
}

/// A status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StatusSet {
    /// Exactly this one.
    Exactly(u16),
    /// All of one hundred: 2 for 2xx.
    Class(u16),
}

impl FromStr for Check {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}`: expected status=200,3xx or length=BYTES or contains=TEXT");
        let (what, value) = text.split_once('=').ok_or_else(expected)?;
        match what {
            "status" => {
                value.split(',').map(|s| status_set(s).ok_or_else(expected)).collect::<Result<_, _>>().map(Self::Status)
            }
            "length" => value.parse().map(Self::Length).map_err(|_| expected()),
            "contains" if !value.is_empty() => Ok(Self::Contains(value.to_owned())),
            _ => Err(expected()),
        }
    }
}

fn status_set(text: &str) -> Option<StatusSet> {
    let digit = |c: u8| (b'1'..=b'9').contains(&c).then(|| u16::from(c - b'0'));
    match text.as_bytes() {
        [class, b'x' | b'X', b'x' | b'X'] => digit(*class).map(StatusSet::Class),
        [_, _, _] => text.parse().ok().filter(|s| (100..1000).contains(s)).map(StatusSet::Exactly),
        _ => None,
    }
}

/// Checks one response as it comes in. Keeps at most the length of the longest `contains` text of its body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checking {
    status: u16,
    length: u64,
    /// For each `contains`: whether it was found, and the last bytes that may be its beginning.
    found: Vec<bool>,
    tail: Vec<u8>,
}

impl Checking {
    pub(crate) fn begin(&mut self, checks: &[Check], status: u16) {
        self.status = status;
        self.length = 0;
        self.found.clear();
        self.found.resize(checks.len(), false);
        self.tail.clear();
    }

    pub(crate) fn data(&mut self, checks: &[Check], data: &[u8]) {
        self.length += data.len() as u64;
        let longest = checks.iter().map(|c| if let Check::Contains(t) = c { t.len() } else { 0 }).max().unwrap_or(0);
        if longest == 0 {
            return;
        }
        // A text may straddle two reads: search also where the end of the last read meets this one.
        let seam_end = data.len().min(longest - 1);
        let tail = self.tail.len();
        self.tail.extend_from_slice(&data[..seam_end]);
        for (check, found) in checks.iter().zip(&mut self.found) {
            if let Check::Contains(text) = check {
                *found = *found || contains(&self.tail, text.as_bytes()) || contains(data, text.as_bytes());
            }
        }
        if data.len() >= longest - 1 {
            self.tail.clear();
            self.tail.extend_from_slice(&data[data.len() - (longest - 1)..]);
        } else {
            let keep = (tail + data.len()).min(longest - 1);
            self.tail.drain(..tail + data.len() - keep);
        }
    }

    /// Whether the whole response meets all checks.
    pub(crate) fn holds(&self, checks: &[Check]) -> bool {
        checks.iter().zip(&self.found).all(|(check, &found)| match check {
            Check::Status(sets) => sets.iter().any(|set| match *set {
                StatusSet::Exactly(status) => self.status == status,
                StatusSet::Class(class) => self.status / 100 == class,
            }),
            Check::Length(length) => self.length == *length,
            Check::Contains(_) => found,
        })
    }
}

fn contains(data: &[u8], text: &[u8]) -> bool {
    data.windows(text.len()).any(|w| w == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(check: &str, status: u16, parts: &[&str]) -> bool {
        let checks = [check.parse::<Check>().unwrap()];
        let mut checking = Checking::default();
        checking.begin(&checks, status);
        for part in parts {
            checking.data(&checks, part.as_bytes());
        }
        checking.holds(&checks)
    }

    #[test]
    fn status_and_length() {
        assert!(run("status=200", 200, &[]));
        assert!(run("status=404,2xx", 204, &[]));
        assert!(!run("status=200,3xx", 404, &[]));
        assert!(run("length=5", 200, &["he", "llo"]));
        assert!(!run("length=5", 200, &["hell"]));
    }

    #[test]
    fn a_needle_is_found_wherever_the_reads_are_cut() {
        let body = "xxabcabcdxx";
        for i in 0..=body.len() {
            for j in i..=body.len() {
                let parts = [&body[..i], &body[i..j], &body[j..]];
                assert!(run("contains=abcd", 200, &parts), "{parts:?}");
                assert!(!run("contains=abce", 200, &parts), "{parts:?}");
            }
        }
        let bytes: Vec<String> = body.chars().map(String::from).collect();
        assert!(run("contains=cabcd", 200, &bytes.iter().map(String::as_str).collect::<Vec<_>>()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in
            ["", "status", "status=", "status=2x", "status=2000", "status=0xx", "length=-1", "contains=", "size=3"]
        {
            assert!(bad.parse::<Check>().is_err(), "{bad}");
        }
    }
}
