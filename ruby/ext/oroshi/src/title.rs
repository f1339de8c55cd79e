//! The process title, as `ps` shows it: `oroshi worker 2: 1234 requests, GET /slow`. Ruby makes room for it once; the
//! worker then writes into that room without a call.

use magnus::{Error, Module as _, RModule, Ruby, value::ReprValue as _};

/// Bytes after the fixed part.
const FIELD_BYTES: usize = 80;

/// The changing part of the title: memory of this process that the kernel shows to others.
#[derive(Debug)]
pub(crate) struct ProcessTitle {
    field: &'static mut [u8],
}

impl ProcessTitle {
    /// Sets the title to `fixed` with room behind it, and finds the room. Without any (a very short command line, an
    /// odd kernel) Ruby's title stays.
    pub(crate) fn new(ruby: &Ruby, fixed: &str) -> Result<Self, Error> {
        let process: RModule = ruby.class_object().const_get("Process")?;
        let padded = format!("{fixed}: {}", ".".repeat(FIELD_BYTES));
        process.funcall::<_, _, magnus::Value>("setproctitle", (padded.as_str(),))?;
        let title = ProcessTitle { field: find(fixed.as_bytes()).unwrap_or_default() };
        title.field.fill(b' ');
        Ok(title)
    }

    /// Shows the number of requests, and the current one if any.
    pub(crate) fn show(&mut self, requests: u64, doing: &[&[u8]]) {
        if self.field.is_empty() {
            return;
        }
        let mut rest = &mut *self.field;
        let mut digits = [0; MOST_DIGITS];
        for piece in [decimal(requests, &mut digits), b" requests, "].iter().chain(doing) {
            let count = piece.len().min(rest.len());
            let (place, behind) = rest.split_at_mut(count);
            place.copy_from_slice(&piece[..count]);
            rest = behind;
        }
        rest.fill(b' ');
    }
}

/// Digits of the largest number.
const MOST_DIGITS: usize = 20;

/// Writes a number in decimal. Its title changes with every request, so this does without `fmt`.
fn decimal(number: u64, digits: &mut [u8; MOST_DIGITS]) -> &[u8] {
    let mut rest = number;
    let mut at = MOST_DIGITS;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &digits[at..];
        }
    }
}

/// Finds the dots after the fixed part, where the kernel says that the title is.
fn find(fixed: &[u8]) -> Option<&'static mut [u8]> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The fields after the command's name, which may contain anything, from the third on; arg_start is the 48th and
    // env_end the 51st. Ruby extends a long title over the environment, which it has copied away.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(45);
    let start: usize = fields.next()?.parse().ok()?;
    let end: usize = fields.nth(2)?.parse().ok()?;
    if start == 0 || end <= start {
        return None;
    }
    // SAFETY: the kernel says that this is the process's own memory of arguments and environment: writable, and valid
    // for its whole life. Ruby writes there only when its title is set again.
    let area =
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(start), end - start) };
    if !area.starts_with(fixed) {
        return None;
    }
    let behind = area.get_mut(fixed.len() + 2..)?;
    let dots = behind.iter().take_while(|&&byte| byte == b'.').count();
    Some(&mut behind[..dots])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_digits() {
        for number in [0, 9, 10, 1234, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; MOST_DIGITS]), number.to_string().as_bytes());
        }
    }
}
