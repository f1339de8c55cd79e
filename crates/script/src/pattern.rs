//! Lua 5.1's patterns, with a limit on the work of a match. Bytes in, positions out; independent of any state.
//!
//! LuaJIT's matcher is a C function that tries every way to match, and nothing can end it. This one counts its steps
//! and stops at a limit. It parses patterns as LuaJIT does (lib_string.c), including quirks that scripts may use: a
//! zero byte ends a pattern, `%z` matches one, and `%f` sees a zero byte on either side of the subject.

use memchr::memmem;

/// The most captures of a pattern, as in LuaJIT (luaconf.h, `LUA_MAXCAPTURES`).
const MOST_CAPTURES: usize = 32;

/// The deepest nesting of a pattern's items, as in LuaJIT (lj_def.h, `LJ_MAX_XLEVEL`).
const MOST_DEPTH: usize = 200;

/// Bytes per step when comparing, or searching for a fixed text.
const BYTES_PER_STEP: usize = 64;

/// Bytes per step when searching a set (`[a-z]`).
const SET_BYTES_PER_STEP: usize = 8;

/// The reason why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The pattern is not valid, or a requested capture does not exist; in LuaJIT's words.
    Pattern(&'static str),
    /// It exceeded its steps.
    Steps,
}

/// A capture of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// These bytes of the subject, from start to end.
    Bytes(usize, usize),
    /// `()`: a position in the subject, from 0.
    Position(usize),
}

/// The range of a match: first byte, and first byte after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Matches a pattern against a subject.
#[derive(Debug)]
pub(crate) struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: [(usize, Length); MOST_CAPTURES],
    /// Number of captures begun.
    level: usize,
    depth: usize,
    /// Steps left.
    steps: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Unfinished,
    Position,
    Bytes(usize),
}

/// Whether a pattern is more than a fixed text.
pub(crate) fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

/// Finds a fixed text from `from` on, in a time linear in both lengths. Returns its range, and the steps.
pub(crate) fn find_text(subject: &[u8], text: &[u8], from: usize) -> (Option<Match>, u64) {
    let rest = subject.get(from..).unwrap_or_default();
    let found = memmem::find(rest, text).map(|at| Match { start: from + at, end: from + at + text.len() });
    let looked_at = found.map_or(rest.len(), |found| found.end - from);
    (found, ((looked_at + text.len()) / BYTES_PER_STEP) as u64)
}

impl<'a> Matcher<'a> {
    /// Makes a matcher for a pattern without its `^`. `steps`: the limit for all its matches together.
    pub(crate) fn new(subject: &'a [u8], pattern: &'a [u8], steps: u64) -> Self {
        let captures = [(0, Length::Unfinished); MOST_CAPTURES];
        Matcher { subject, pattern, captures, level: 0, depth: 0, steps }
    }

    /// Steps left.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Charges work outside the matching.
    ///
    /// # Errors
    /// The steps are used up.
    pub(crate) fn spend(&mut self, steps: u64) -> Result<(), Fault> {
        self.steps = self.steps.checked_sub(steps).ok_or(Fault::Steps)?;
        Ok(())
    }

    /// Finds the first match from `from` on; with `anchored`, only at `from`.
    ///
    /// # Errors
    /// The pattern is not valid as far as it was parsed, or the steps are used up.
    pub(crate) fn find(&mut self, from: usize, anchored: bool) -> Result<Option<Match>, Fault> {
        let last = if anchored { from } else { self.subject.len() };
        for start in from..=last {
            (self.level, self.depth) = (0, 0);
            if let Some(end) = self.matches(start, 0)? {
                return Ok(Some(Match { start, end }));
            }
        }
        Ok(None)
    }

    /// Number of captures of the last match.
    pub(crate) fn captures(&self) -> usize {
        self.level
    }

    /// Returns a capture of the last match, from 0. For a pattern without captures, the first one is the whole match.
    ///
    /// # Errors
    /// There is none, or it has no end.
    pub(crate) fn capture(&self, index: usize, whole: Match) -> Result<Capture, Fault> {
        if index >= self.level {
            let first = index == 0;
            return if first { Ok(Capture::Bytes(whole.start, whole.end)) } else { Err(INVALID_INDEX) };
        }
        match self.captures[index] {
            (_, Length::Unfinished) => Err(Fault::Pattern("unfinished capture")),
            (start, Length::Position) => Ok(Capture::Position(start)),
            (start, Length::Bytes(length)) => Ok(Capture::Bytes(start, start + length)),
        }
    }

    /// Returns a byte of the pattern; 0 after its end, as in C.
    fn at(&self, place: usize) -> u8 {
        self.pattern.get(place).copied().unwrap_or(0)
    }

    fn step(&mut self, count: usize) -> Result<(), Fault> {
        self.spend(count as u64)
    }

    /// Matches the pattern from `p` on at `s`; returns the end of the match.
    fn matches(&mut self, s: usize, p: usize) -> Result<Option<usize>, Fault> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(Fault::Pattern("pattern too complex"));
        }
        let end = self.match_items(s, p)?;
        self.depth -= 1;
        Ok(end)
    }

    fn match_items(&mut self, mut s: usize, mut p: usize) -> Result<Option<usize>, Fault> {
        loop {
            self.step(1)?;
            match self.at(p) {
                b'(' if self.at(p + 1) == b')' => return self.begin_capture(s, p + 2, Length::Position),
                b'(' => return self.begin_capture(s, p + 1, Length::Unfinished),
                b')' => return self.end_capture(s, p + 1),
                0 => return Ok(Some(s)),
                b'$' if self.at(p + 1) == 0 => return Ok((s == self.subject.len()).then_some(s)),
                b'%' if self.at(p + 1) == b'b' => match self.balanced(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                b'%' if self.at(p + 1) == b'f' => match self.frontier(s, p + 2)? {
                    Some(next) => p = next,
                    None => return Ok(None),
                },
                b'%' if self.at(p + 1).is_ascii_digit() => match self.same_as_capture(s, self.at(p + 1))? {
                    Some(end) => (s, p) = (end, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let next = self.item_end(p)?;
                    let fits = self.fits(s, p, next)?;
                    match self.at(next) {
                        b'?' => {
                            if fits && let Some(end) = self.matches(s + 1, next + 1)? {
                                return Ok(Some(end));
                            }
                            p = next + 1;
                        }
                        b'*' => return self.most(s, p, next),
                        b'+' => return if fits { self.most(s + 1, p, next) } else { Ok(None) },
                        b'-' => return self.fewest(s, p, next),
                        _ if fits => (s, p) = (s + 1, next),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// Returns the position after an item that matches one byte.
    fn item_end(&mut self, p: usize) -> Result<usize, Fault> {
        match self.at(p) {
            b'%' if self.at(p + 1) == 0 => Err(Fault::Pattern("malformed pattern (ends with '%')")),
            b'%' => Ok(p + 2),
            b'[' => {
                let mut place = p + 1;
                if self.at(place) == b'^' {
                    place += 1;
                }
                loop {
                    // A leading bracket is part of the set.
                    let byte = self.at(place);
                    if byte == 0 {
                        return Err(Fault::Pattern("malformed pattern (missing ']')"));
                    }
                    place += 1;
                    if byte == b'%' && self.at(place) != 0 {
                        place += 1;
                    }
                    if self.at(place) == b']' {
                        break;
                    }
                }
                self.step((place - p) / SET_BYTES_PER_STEP)?;
                Ok(place + 1)
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether the item from `p` to `next` matches the subject's byte at `s`.
    fn fits(&mut self, s: usize, p: usize, next: usize) -> Result<bool, Fault> {
        self.step(1 + (next - p) / SET_BYTES_PER_STEP)?;
        let Some(&byte) = self.subject.get(s) else { return Ok(false) };
        Ok(match self.at(p) {
            b'.' => true,
            b'%' => is_in_class(byte, self.at(p + 1)),
            b'[' => self.is_in_set(byte, p, next - 1),
            plain => plain == byte,
        })
    }

    /// Whether a byte is in the set that begins at `p` and closes at `end`.
    fn is_in_set(&self, byte: u8, mut p: usize, end: usize) -> bool {
        let is_inverted = self.at(p + 1) == b'^';
        if is_inverted {
            p += 1;
        }
        loop {
            p += 1;
            if p >= end {
                return is_inverted;
            }
            let is_one = if self.at(p) == b'%' {
                p += 1;
                is_in_class(byte, self.at(p))
            } else if self.at(p + 1) == b'-' && p + 2 < end {
                p += 2;
                (self.at(p - 2)..=self.at(p)).contains(&byte)
            } else {
                self.at(p) == byte
            };
            if is_one {
                return !is_inverted;
            }
        }
    }

    fn most(&mut self, s: usize, p: usize, next: usize) -> Result<Option<usize>, Fault> {
        let mut count = 0;
        while self.fits(s + count, p, next)? {
            count += 1;
        }
        loop {
            if let Some(end) = self.matches(s + count, next + 1)? {
                return Ok(Some(end));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn fewest(&mut self, mut s: usize, p: usize, next: usize) -> Result<Option<usize>, Fault> {
        loop {
            if let Some(end) = self.matches(s, next + 1)? {
                return Ok(Some(end));
            }
            if !self.fits(s, p, next)? {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn begin_capture(&mut self, s: usize, p: usize, length: Length) -> Result<Option<usize>, Fault> {
        if self.level >= MOST_CAPTURES {
            return Err(Fault::Pattern("too many captures"));
        }
        self.captures[self.level] = (s, length);
        self.level += 1;
        let end = self.matches(s, p)?;
        if end.is_none() {
            self.level -= 1;
        }
        Ok(end)
    }

    fn end_capture(&mut self, s: usize, p: usize) -> Result<Option<usize>, Fault> {
        let begun = &self.captures[..self.level];
        let open = begun.iter().rposition(|(_, length)| *length == Length::Unfinished);
        let open = open.ok_or(Fault::Pattern("invalid pattern capture"))?;
        self.captures[open].1 = Length::Bytes(s - self.captures[open].0);
        let end = self.matches(s, p)?;
        if end.is_none() {
            self.captures[open].1 = Length::Unfinished;
        }
        Ok(end)
    }

    /// Matches `%bxy`.
    fn balanced(&mut self, s: usize, p: usize) -> Result<Option<usize>, Fault> {
        let (open, close) = (self.at(p), self.at(p + 1));
        if open == 0 || close == 0 {
            return Err(Fault::Pattern("unbalanced pattern"));
        }
        // In C the subject ends with a zero byte, but no pattern can ask for it here.
        if self.subject.get(s) != Some(&open) {
            return Ok(None);
        }
        let mut depth = 1;
        for (index, &byte) in self.subject[s + 1..].iter().enumerate() {
            if index % BYTES_PER_STEP == 0 {
                self.step(BYTES_PER_STEP / SET_BYTES_PER_STEP)?;
            }
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(s + 1 + index + 1));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// Matches `%f[set]` at `s`; returns the position after it in the pattern.
    fn frontier(&mut self, s: usize, p: usize) -> Result<Option<usize>, Fault> {
        if self.at(p) != b'[' {
            return Err(Fault::Pattern("missing '[' after '%f' in pattern"));
        }
        let next = self.item_end(p)?;
        self.step(2 * (next - p) / SET_BYTES_PER_STEP)?;
        let before = if s == 0 { 0 } else { self.subject[s - 1] };
        let here = self.subject.get(s).copied().unwrap_or(0);
        let holds = !self.is_in_set(before, p, next - 1) && self.is_in_set(here, p, next - 1);
        Ok(holds.then_some(next))
    }

    /// Matches `%1`: returns the position after the capture's bytes if they occur at `s` again.
    fn same_as_capture(&mut self, s: usize, digit: u8) -> Result<Option<usize>, Fault> {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let (start, length) = match self.captures[..self.level].get(index) {
            Some(&(start, Length::Bytes(length))) => (start, length),
            // LuaJIT uses the mark of a position capture as a length, which never matches.
            Some((_, Length::Position)) => return Ok(None),
            Some((_, Length::Unfinished)) | None => return Err(INVALID_INDEX),
        };
        self.step(length / BYTES_PER_STEP)?;
        let rest = &self.subject[s..];
        let is_same = rest.get(..length) == Some(&self.subject[start..start + length]);
        Ok(is_same.then_some(s + length))
    }
}

const INVALID_INDEX: Fault = Fault::Pattern("invalid capture index");

/// Whether a byte is in a class such as `%a`; an upper-case class is the complement.
fn is_in_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, 9..=13 | b' '),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(subject: &str, pattern: &str, steps: u64) -> Result<Option<(usize, usize)>, Fault> {
        let found = Matcher::new(subject.as_bytes(), pattern.as_bytes(), steps).find(0, false)?;
        Ok(found.map(|found| (found.start, found.end)))
    }

    #[test]
    fn a_match_that_would_take_for_ever_ends_at_its_steps() {
        let shapes = [
            ("a".repeat(40), ".-.-.-.-.-.-.-.-b".to_owned()),
            ("a".repeat(100_000), ".*.*b".to_owned()),
            ("a".repeat(100_000), "[aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa]*b".to_owned()),
            ("a".repeat(100_000), format!("[{}]b", "b".repeat(100_000))),
            ("(".repeat(100_000), "%b()".to_owned()),
            ("a".repeat(200_000), "(.*)%1b".to_owned()),
            ("ab".repeat(50_000), format!("%f[{}]", "x".repeat(50_000))),
        ];
        for (subject, pattern) in shapes {
            assert_eq!(find(&subject, &pattern, 1_000_000), Err(Fault::Steps), "{pattern:.40}");
        }
    }

    #[test]
    fn what_a_match_takes_grows_with_what_is_looked_at() {
        let taken = |bytes: usize| {
            let subject = "a".repeat(bytes);
            let mut matcher = Matcher::new(subject.as_bytes(), b"a*$", u64::MAX);
            assert_eq!(matcher.find(0, true), Ok(Some(Match { start: 0, end: bytes })));
            u64::MAX - matcher.steps()
        };
        assert_eq!(taken(2000) - taken(1000), 1000);
        assert_eq!(taken(3000) - taken(2000), 1000);
    }

    #[test]
    fn a_fixed_text_is_found_in_linear_time() {
        let subject = vec![b'a'; 4 << 20];
        let text = [vec![b'a'; 2 << 20], vec![b'b']].concat();
        // Trying each position would take 10^12 comparisons.
        let (found, steps) = find_text(&subject, &text, 0);
        assert_eq!((found, steps), (None, ((6 << 20) / 64) as u64));
        assert_eq!(find_text(b"abcabc", b"bc", 2).0, Some(Match { start: 4, end: 6 }));
        assert_eq!(find_text(b"abc", b"", 3).0, Some(Match { start: 3, end: 3 }));
    }

    #[test]
    fn depth_is_bounded() {
        assert_eq!(find("a", &"a?".repeat(250), 1 << 20).unwrap(), Some((0, 1)));
        let deep = find(&"a".repeat(300), &"a?".repeat(250), 1 << 20);
        assert_eq!(deep, Err(Fault::Pattern("pattern too complex")));
    }
}
