//! The process title, as `ps` shows it: `oroshi worker 2: 1234 requests, GET /slow`. Ruby makes room for it once; the
//! worker then writes into that room without a call.

use std::fmt::Write as _;

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
        let mut digits = Digits::default();
        // Writing into memory does not fail.
        let _ = write!(digits, "{requests} requests, ");
        for piece in [digits.as_bytes()].iter().chain(doing) {
            let count = piece.len().min(rest.len());
            let (place, behind) = rest.split_at_mut(count);
            place.copy_from_slice(&piece[..count]);
            rest = behind;
        }
        rest.fill(b' ');
    }
}

/// A short text on the stack.
#[derive(Default)]
struct Digits {
    bytes: [u8; 32],
    length: usize,
}

impl Digits {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl std::fmt::Write for Digits {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
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
