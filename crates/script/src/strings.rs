//! Replaces LuaJIT's C functions that may run for long, in confined states.
//!
//! Nothing can end such a C function. The replacements charge their work to the call's instructions, and stop when
//! there are none left. `strings.lua` is their Lua side.

use mlua::{Lua, LuaString, MultiValue, Table, Value};

use crate::guard::Handle;
use crate::pattern::{Capture, Fault, Match, Matcher, find_text, is_pattern};

/// Steps of a match that count as one instruction: they take about as long.
const STEPS_PER_INSTRUCTION: u64 = 8;

/// The most steps of one match where instructions are not limited: about a second.
const MOST_STEPS: u64 = 200_000_000;

/// Copied bytes per step.
const BYTES_PER_STEP: usize = 64;

/// A text, a pattern for it, and a number.
type PatternArgs = (LuaString, LuaString, f64);

/// Adds the functions to the table shared by Rust and the preludes. They return a script's errors as `false` and a
/// text, and Lua raises these at the script's line.
///
/// `instructions`: the limit for one function where instructions are not counted. `memory`: the state's memory limit,
/// bytes.
pub(crate) fn install(lua: &Lua, own: &Table, handle: Handle, instructions: u64, memory: usize) -> mlua::Result<()> {
    own.raw_set("memory", memory as f64)?;
    let meter = Meter { handle, uncounted: instructions, memory };
    let costs = meter.clone();
    let find = move |lua: &Lua, (subject, pattern, init, plain): (LuaString, LuaString, f64, bool)| {
        let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
        let from = place(init, subject.len());
        if plain || !is_pattern(&pattern) {
            let (found, steps) = find_text(&subject, &pattern, from);
            costs.charge(steps / STEPS_PER_INSTRUCTION);
            return Ok(MultiValue::from_vec(found.map_or_else(|| vec![Value::Nil], |found| ends(found).into())));
        }
        costs.search(lua, (&*subject, &*pattern), |matcher, is_anchored| {
            let Some(found) = matcher.find(from, is_anchored)? else { return Ok(None) };
            let mut values = Vec::from(ends(found));
            let count = matcher.captures();
            add_captures(lua, &mut values, matcher, count, &subject, found)?;
            Ok(Some(values))
        })
    };
    own.raw_set("find", lua.create_function(find)?)?;
    let costs = meter.clone();
    let first = move |lua: &Lua, (subject, pattern, init): PatternArgs| {
        let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
        costs.search(lua, (&*subject, &*pattern), |matcher, is_anchored| {
            let found = matcher.find(place(init, subject.len()), is_anchored)?;
            found.map(|found| captures(lua, Vec::new(), matcher, &subject, found)).transpose()
        })
    };
    own.raw_set("match", lua.create_function(first)?)?;
    // Position to continue from, from 0, and the captures. `^` is an ordinary byte here.
    let costs = meter.clone();
    let next = move |lua: &Lua, (subject, pattern, from): PatternArgs| {
        let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
        costs.run(lua, &subject, &pattern, |matcher| {
            let Some(found) = matcher.find(from as usize, false)? else { return Ok(None) };
            let on = found.end + usize::from(found.end == found.start);
            captures(lua, vec![number(on)], matcher, &subject, found).map(Some)
        })
    };
    own.raw_set("gmatch", lua.create_function(next)?)?;
    // The next match from a position on, from 0: begin, end, and the captures or only the first of them.
    let costs = meter.clone();
    let step = move |lua: &Lua, (subject, pattern, from, all): (LuaString, LuaString, f64, bool)| {
        let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
        costs.search(lua, (&*subject, &*pattern), |matcher, is_anchored| {
            let Some(found) = matcher.find(from as usize, is_anchored)? else { return Ok(None) };
            let mut values = vec![number(found.start), number(found.end)];
            let count = if all { matcher.captures().max(1) } else { 1 };
            add_captures(lua, &mut values, matcher, count, &subject, found)?;
            Ok(Some(values))
        })
    };
    own.raw_set("step", lua.create_function(step)?)?;
    let costs = meter.clone();
    let gsub = move |lua: &Lua, (subject, pattern, with, most): (LuaString, LuaString, LuaString, f64)| {
        let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
        let room = costs.memory.saturating_sub(lua.used_memory());
        costs.search(lua, (&*subject, &*pattern), |matcher, is_anchored| {
            let with = with.as_bytes();
            let (text, count) = substitute(matcher, is_anchored, &subject, &with, most, room)?;
            Ok(Some(vec![Value::String(lua.create_string(&text)?), Value::Number(count as f64)]))
        })
    };
    own.raw_set("gsub", lua.create_function(gsub)?)?;
    let costs = meter.clone();
    own.raw_set("sort", lua.create_function(move |_, (table, count): (Table, usize)| costs.sort(&table, count))?)?;
    let charge = move |_: &Lua, instructions: f64| {
        meter.charge(instructions as u64);
        Ok(())
    };
    own.raw_set("charge", lua.create_function(charge)?)
}

/// Charges the work of functions.
#[derive(Clone)]
struct Meter {
    handle: Handle,
    uncounted: u64,
    memory: usize,
}

/// The reason why there is no result.
enum Failure {
    /// An error of the script.
    Fault(Fault),
    /// An error of Lua.
    Lua(mlua::Error),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Fault(fault)
    }
}

impl From<mlua::Error> for Failure {
    fn from(error: mlua::Error) -> Self {
        Failure::Lua(error)
    }
}

impl Meter {
    /// Charges this many instructions.
    fn charge(&self, instructions: u64) {
        match self.handle.left() {
            None if instructions > self.uncounted => self.handle.exhaust(),
            None => {}
            Some(_) => self.handle.charge(instructions),
        }
    }

    /// Like [`run`](Self::run), for a pattern that may begin with `^`; returns whether it does.
    fn search(
        &self,
        lua: &Lua,
        (subject, pattern): (&[u8], &[u8]),
        work: impl FnOnce(&mut Matcher<'_>, bool) -> Result<Option<Vec<Value>>, Failure>,
    ) -> mlua::Result<MultiValue> {
        match pattern.strip_prefix(b"^") {
            Some(rest) => self.run(lua, subject, rest, |matcher| work(matcher, true)),
            None => self.run(lua, subject, pattern, |matcher| work(matcher, false)),
        }
    }

    /// Runs a match within the instructions left. Nil without a match.
    fn run(
        &self,
        lua: &Lua,
        subject: &[u8],
        pattern: &[u8],
        work: impl FnOnce(&mut Matcher<'_>) -> Result<Option<Vec<Value>>, Failure>,
    ) -> mlua::Result<MultiValue> {
        let allowed = self.handle.left().unwrap_or(self.uncounted).saturating_mul(STEPS_PER_INSTRUCTION);
        let most = allowed.min(MOST_STEPS);
        let mut matcher = Matcher::new(subject, pattern, most);
        let done = work(&mut matcher);
        let taken = most - matcher.steps();
        let values = match done {
            Ok(values) => values.unwrap_or_else(|| vec![Value::Nil]),
            Err(Failure::Fault(Fault::Pattern(what))) => wrong(lua, what)?,
            Err(Failure::Fault(Fault::Steps)) => {
                if most == allowed {
                    self.handle.exhaust();
                }
                // After `exhaust` never read, because the next instruction ends the call; unless there is none.
                return wrong(lua, "the pattern takes too many steps").map(MultiValue::from_vec);
            }
            Err(Failure::Lua(error)) => {
                // Work before the memory ended is charged too: the script may retry.
                self.charge(taken / STEPS_PER_INSTRUCTION);
                return Err(error);
            }
        };
        self.charge(taken / STEPS_PER_INSTRUCTION);
        Ok(MultiValue::from_vec(values))
    }

    /// Sorts the first `count` values of a table if all are numbers; returns whether they are.
    fn sort(&self, table: &Table, count: usize) -> mlua::Result<bool> {
        if !matches!(table.raw_get(1)?, Value::Number(_) | Value::Integer(_)) {
            return Ok(false);
        }
        let work = count as u64 + count as u64 * u64::from(count.max(1).ilog2()) / 4;
        let is_too_much = work > self.handle.left().unwrap_or(self.uncounted);
        self.charge(work);
        if is_too_much {
            return Ok(true);
        }
        let mut numbers = Vec::with_capacity(count);
        for place in 1..=count {
            match table.raw_get(place)? {
                Value::Number(number) => numbers.push(number),
                Value::Integer(number) => numbers.push(number as f64),
                _ => return Ok(false),
            }
        }
        numbers.sort_unstable_by(f64::total_cmp);
        for (index, number) in numbers.into_iter().enumerate() {
            table.raw_set(index + 1, number)?;
        }
        Ok(true)
    }
}

fn wrong(lua: &Lua, what: &str) -> mlua::Result<Vec<Value>> {
    Ok(vec![Value::Boolean(false), Value::String(lua.create_string(what)?)])
}

/// Converts Lua's `init` for a text of `bytes` bytes to a position from 0: negative values count from the end.
fn place(init: f64, bytes: usize) -> usize {
    let from = if init < 0.0 { bytes as f64 + init.trunc() } else { init.trunc() - 1.0 };
    // Clamps values beyond either end, and NaN.
    (from.max(0.0) as usize).min(bytes)
}

fn number(place: usize) -> Value {
    Value::Number(place as f64)
}

/// Returns the range as Lua counts: first byte, from 1, and last byte.
fn ends(found: Match) -> [Value; 2] {
    [number(found.start + 1), number(found.end)]
}

/// Returns a match's captures, or all of it if the pattern has none.
fn captures(
    lua: &Lua,
    mut values: Vec<Value>,
    matcher: &mut Matcher<'_>,
    subject: &[u8],
    found: Match,
) -> Result<Vec<Value>, Failure> {
    let count = matcher.captures().max(1);
    add_captures(lua, &mut values, matcher, count, subject, found)?;
    Ok(values)
}

fn add_captures(
    lua: &Lua,
    values: &mut Vec<Value>,
    matcher: &mut Matcher<'_>,
    count: usize,
    subject: &[u8],
    found: Match,
) -> Result<(), Failure> {
    for index in 0..count {
        values.push(match matcher.capture(index, found)? {
            Capture::Bytes(start, end) => {
                matcher.spend(((end - start) / BYTES_PER_STEP) as u64)?;
                Value::String(lua.create_string(&subject[start..end])?)
            }
            Capture::Position(place) => number(place + 1),
        });
    }
    Ok(())
}

/// Replaces up to `most` matches; returns the text, and their number. More than `room` bytes is a lack of memory.
fn substitute(
    matcher: &mut Matcher<'_>,
    is_anchored: bool,
    subject: &[u8],
    with: &[u8],
    most: f64,
    room: usize,
) -> Result<(Vec<u8>, usize), Failure> {
    let mut text = BoundedText { bytes: Vec::new(), room };
    let (mut copied, mut count, mut from) = (0, 0, 0);
    while (count as f64) < most && from <= subject.len() {
        let Some(found) = matcher.find(from, is_anchored)? else { break };
        count += 1;
        text.add(matcher, &subject[copied..found.start])?;
        replace(&mut text, matcher, subject, with, found)?;
        (copied, from) = (found.end, found.end + usize::from(found.end == found.start));
        if is_anchored {
            break;
        }
    }
    text.add(matcher, &subject[copied..])?;
    Ok((text.bytes, count))
}

/// Appends the replacement of a match: `%1` is a capture, `%0` the match, and `%` before any other byte is that byte.
fn replace(
    text: &mut BoundedText,
    matcher: &mut Matcher<'_>,
    subject: &[u8],
    with: &[u8],
    found: Match,
) -> Result<(), Failure> {
    let mut left = with;
    while let Some(escape) = memchr::memchr(b'%', left) {
        text.add(matcher, &left[..escape])?;
        // After the end there is a zero byte in C, which LuaJIT takes as the escaped byte.
        let escaped = left.get(escape + 1).copied().unwrap_or(0);
        match escaped {
            b'0' => text.add(matcher, &subject[found.start..found.end])?,
            b'1'..=b'9' => match matcher.capture(usize::from(escaped - b'1'), found)? {
                Capture::Bytes(start, end) => text.add(matcher, &subject[start..end])?,
                Capture::Position(place) => text.add(matcher, (place + 1).to_string().as_bytes())?,
            },
            other => text.add(matcher, &[other])?,
        }
        left = left.get(escape + 2..).unwrap_or_default();
    }
    text.add(matcher, left)
}

/// A text that grows up to a limit.
struct BoundedText {
    bytes: Vec<u8>,
    room: usize,
}

impl BoundedText {
    fn add(&mut self, matcher: &mut Matcher<'_>, piece: &[u8]) -> Result<(), Failure> {
        if self.bytes.len() + piece.len() > self.room {
            return Err(Failure::Lua(mlua::Error::MemoryError("not enough memory".to_owned())));
        }
        matcher.spend(1 + (piece.len() / BYTES_PER_STEP) as u64)?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}
