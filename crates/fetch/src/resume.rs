//! Resuming an interrupted list: reads from the output which lines are done.
//!
//! A line is done if the output has a record for its number and its request (method, URL, id), and that record is
//! final: a complete answer, with a status that would not change. After an error or a temporary status (429, 503 ...)
//! the line is fetched again, also if its body's file is missing. If the list has changed and a line has another
//! request, it is fetched too, and counted.
//!
//! An output is locked while it is written: a second run would fetch the same lines, and truncate the first run's
//! output. On file systems without locks, the user must prevent this.
//!
//! Memory holds four bytes per record, so a list of ten million lines takes 40 MB.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;

use crate::retry::is_passing;

/// Lines per page.
const PAGE: u64 = 65_536;

/// The lines that an earlier run has done.
#[derive(Debug, Default)]
pub(crate) struct DoneLines {
    /// Pages by number. Each line has 0, or the fingerprint of its request with the state in the lowest two bits.
    pages: HashMap<u64, Box<[u32]>>,
}

/// The state of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    Nothing,
    /// The record is of another request.
    Changed,
    /// Done, either ok or with a status of 400 or more.
    Done {
        ok: bool,
    },
}

/// The fields of a record that matter for resuming.
#[derive(Deserialize)]
struct PastRecord {
    n: u64,
    id: Option<Value>,
    ok: bool,
    method: Option<String>,
    url: Option<String>,
    status: Option<u16>,
    #[serde(default)]
    body_file: Option<String>,
    error: Option<Value>,
}

/// Why an output cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// Check the system's error.
    #[error("it cannot be read or written")]
    Io(#[from] io::Error),
    /// A pipe or a device cannot be read back: name a file.
    #[error("it is no regular file")]
    NoFile,
    /// The file is something else: name another.
    #[error("line {line} is no record of oroshi fetch, so this is not the output of an earlier run")]
    NoRecord {
        /// The line, from 1.
        line: u64,
        /// Why the line is no record.
        source: serde_json::Error,
    },
}

impl DoneLines {
    /// Returns the state of a line with this request.
    pub(crate) fn known(&self, n: u64, method: &str, url: &str, id: Option<&Value>) -> LineState {
        let entry = self.pages.get(&(n / PAGE)).map_or(0, |page| page[(n % PAGE) as usize]);
        match entry & 3 {
            0 => LineState::Nothing,
            _ if entry & !3 != fingerprint(method, url, id) => LineState::Changed,
            state => LineState::Done { ok: state == 1 },
        }
    }

    /// Notes a record whose line is done. With a folder for bodies, the body's file must exist.
    fn note(&mut self, past: &PastRecord, bodies: Option<&Path>) {
        let ended = past.error.is_none() && past.status.is_some_and(|status| !is_passing(status));
        let has_body =
            bodies.is_none_or(|folder| past.body_file.as_ref().is_some_and(|name| folder.join(name).is_file()));
        let (Some(method), Some(url)) = (&past.method, &past.url) else { return };
        if !ended || !has_body {
            return;
        }
        let page = self.pages.entry(past.n / PAGE).or_insert_with(|| vec![0; PAGE as usize].into());
        let state = if past.ok { 1 } else { 2 };
        page[(past.n % PAGE) as usize] = fingerprint(method, url, past.id.as_ref()) | state;
    }
}

/// Returns a request's fingerprint; the lowest two bits are free.
fn fingerprint(method: &str, url: &str, id: Option<&Value>) -> u32 {
    let mut hasher = DefaultHasher::new();
    (method, url, id.map(Value::to_string)).hash(&mut hasher);
    (hasher.finish() as u32) & !3
}

/// An output, open for appending.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    /// The lock keeps other runs out until the file is closed. Pipes and devices are not locked, and may have several
    /// writers.
    pub(crate) lock: Lock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    Held,
    /// Not needed: it is no file.
    Needless,
    /// The file system has no locks.
    Missing,
}

/// Opens the output of an earlier run for appending, and reads its records. Removes a truncated last line. Creates a
/// missing file. With a folder for bodies, a line whose body file is missing is not done.
///
/// # Errors
/// [`ResumeError`]: the file cannot be used, and is unchanged. [`io::ErrorKind::WouldBlock`]: another run writes it.
pub(crate) fn open(path: &Path, bodies: Option<&Path>) -> Result<(Opened, DoneLines), ResumeError> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(ResumeError::NoFile);
    }
    let lock = locked(file.try_lock())?;
    let (done_lines, whole) = read(BufReader::with_capacity(1 << 20, &file), bodies)?;
    if whole < file.metadata()?.len() {
        file.set_len(whole)?;
    }
    Ok((Opened { file, lock }, done_lines))
}

/// Interprets an attempt to lock a file.
fn locked(attempt: Result<(), TryLockError>) -> io::Result<Lock> {
    match attempt {
        Ok(()) => Ok(Lock::Held),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        // Network file systems without a lock service, and FUSE file systems without locks.
        Err(TryLockError::Error(error))
            if Errno::from_io_error(&error)
                .is_some_and(|errno| [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS].contains(&errno)) =>
        {
            Ok(Lock::Missing)
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Reads the records, and returns the length of all complete lines.
fn read(mut input: impl BufRead, bodies: Option<&Path>) -> Result<(DoneLines, u64), ResumeError> {
    let (mut done_lines, mut whole, mut number) = (DoneLines::default(), 0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = input.read_until(b'\n', &mut line)?;
        number += 1;
        if !line.ends_with(b"\n") {
            if !may_begin_a_record(&line) {
                let source = serde::de::Error::custom("it has no end, and does not begin like a record");
                return Err(ResumeError::NoRecord { line: number, source });
            }
            // A line without an end is truncated, even if it looks complete, so it is fetched again.
            return Ok((done_lines, whole));
        }
        let past = serde_json::from_slice(&line);
        done_lines.note(&past.map_err(|source| ResumeError::NoRecord { line: number, source })?, bodies);
        whole += count as u64;
    }
}

/// Whether these bytes, a line without an end, are the beginning of a record. Other bytes are not ours, and are kept.
fn may_begin_a_record(line: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"n\":";
    line.starts_with(BEGINNING) || BEGINNING.starts_with(line)
}

/// Opens an empty or new output.
///
/// # Errors
/// It cannot be created, holds something ([`io::ErrorKind::AlreadyExists`]), or another run writes it
/// ([`io::ErrorKind::WouldBlock`]).
pub(crate) fn open_new(path: &Path) -> io::Result<Opened> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    // A pipe or a device has no length.
    if !file.metadata()?.is_file() {
        return Ok(Opened { file, lock: Lock::Needless });
    }
    let lock = locked(file.try_lock())?;
    if file.metadata()?.len() > 0 {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(Opened { file, lock })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::record::{Failure, Record};
    use super::*;

    fn record(n: u64, status: Option<u16>) -> Record {
        let error = status.is_none().then(|| Failure::of_line("why".to_owned()));
        let ok = status.is_some_and(|status| status < 400);
        Record { n, ok, status, error, method: "GET".to_owned(), url: format!("http://h/{n}"), ..Record::default() }
    }

    fn lines(records: &[Record]) -> String {
        records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect()
    }

    fn known(done_lines: &DoneLines, n: u64) -> LineState {
        done_lines.known(n, "GET", &format!("http://h/{n}"), None)
    }

    #[test]
    fn what_has_an_end_is_done_and_the_rest_is_not() {
        let last = record(10_000_000, Some(204));
        let records =
            [record(1, Some(200)), record(2, Some(404)), record(3, Some(503)), record(4, None), record(5, None), last];
        let again = [record(5, Some(301)), record(1, None)];
        let (done_lines, _) = read((lines(&records) + &lines(&again)).as_bytes(), None).unwrap();
        for (n, expected) in [
            (1, LineState::Done { ok: true }),
            (2, LineState::Done { ok: false }),
            (3, LineState::Nothing),
            (4, LineState::Nothing),
            (5, LineState::Done { ok: true }),
            (6, LineState::Nothing),
            (10_000_000, LineState::Done { ok: true }),
        ] {
            assert_eq!(known(&done_lines, n), expected, "{n}");
        }
        assert_eq!(done_lines.pages.len(), 2, "pages that nothing is on do not exist");
    }

    #[test]
    fn a_line_without_an_end_is_cut_off_only_where_it_may_be_a_record() {
        let whole = lines(&[record(1, Some(200))]);
        for cut in ["", "{", "{\"n\"", "{\"n\":2,\"ok\":tr"] {
            assert_eq!(read(format!("{whole}{cut}").as_bytes(), None).unwrap().1, whole.len() as u64, "{cut}");
        }
        for foreign in ["API_KEY=abc", "http://127.0.0.1/a", "{\"token\":\"precious\"}"] {
            for (before, line) in [("", 1), (whole.as_str(), 2)] {
                let error = read(format!("{before}{foreign}").as_bytes(), None).unwrap_err();
                assert!(matches!(error, ResumeError::NoRecord { line: found, .. } if found == line), "{error}");
            }
        }
    }

    #[test]
    fn a_changed_line_is_noticed() {
        let of = |id: Option<Value>| Record { id, ..record(1, Some(200)) };
        let (done_lines, _) = read(lines(&[of(Some(7.into()))]).as_bytes(), None).unwrap();
        let seven = Value::from(7);
        assert_eq!(done_lines.known(1, "GET", "http://h/1", Some(&seven)), LineState::Done { ok: true });
        for (method, url, id) in
            [("PUT", "http://h/1", Some(&seven)), ("GET", "http://h/2", Some(&seven)), ("GET", "http://h/1", None)]
        {
            assert_eq!(done_lines.known(1, method, url, id), LineState::Changed, "{method} {url} {id:?}");
        }
    }

    /// Retries opening a file that was closed just now. Another test may start a process at the same moment; until
    /// exec, that process has a copy of the descriptor, and with it the lock.
    fn patiently<T>(attempt: impl Fn() -> Result<T, ResumeError>) -> Result<T, ResumeError> {
        let over = Instant::now() + Duration::from_secs(30);
        loop {
            match attempt() {
                Err(ResumeError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < over => {
                    thread::yield_now();
                }
                result => return result,
            }
        }
    }

    #[test]
    fn a_last_line_that_was_cut_is_taken_out_wherever_it_was() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (first, second) = (lines(&[record(1, Some(200))]), lines(&[record(2, Some(200))]));
        for cut in 0..second.len() {
            std::fs::write(file.path(), first.clone() + &second[..cut]).unwrap();
            let (mut opened, done_lines) = patiently(|| open(file.path(), None)).unwrap();
            assert_eq!(
                (known(&done_lines, 1), known(&done_lines, 2)),
                (LineState::Done { ok: true }, LineState::Nothing),
                "{cut}"
            );
            opened.file.write_all(second.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), first.clone() + &second, "{cut}");
        }
    }

    #[test]
    fn another_file_is_left_as_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = lines(&[record(1, Some(200))]) + "{\"n\":2}\nhttp://h/";
        std::fs::write(file.path(), &text).unwrap();
        let error = open(file.path(), None).unwrap_err();
        assert!(error.to_string().starts_with("line 2 is no record"), "{error}");
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), text);
        let Err(ResumeError::Io(error)) = patiently(|| Ok(open_new(file.path())?)) else { panic!("it was opened") };
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let folder = tempfile::tempdir().unwrap();
        let (_, done_lines) = open(&folder.path().join("new"), None).unwrap();
        assert_eq!(known(&done_lines, 1), LineState::Nothing);
        patiently(|| Ok(open_new(&folder.path().join("new"))?)).unwrap();
        open_new(Path::new("/dev/null")).unwrap();
        assert!(matches!(open(Path::new("/dev/null"), None), Err(ResumeError::NoFile)));
    }

    #[test]
    fn one_run_at_a_time_has_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let first = open_new(&path).unwrap();
        assert_eq!(open_new(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let Err(ResumeError::Io(error)) = open(&path, None) else { panic!("it was opened") };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(first);
        patiently(|| open(&path, None)).unwrap();
        let devices = [open_new(Path::new("/dev/null")), open_new(Path::new("/dev/null"))];
        assert!(devices.iter().all(Result::is_ok), "a device takes any number of writers");
    }

    /// The run ended with "No locks available".
    #[test]
    fn a_file_system_without_locks_will_do() {
        let failed = |errno: Errno| locked(Err(TryLockError::Error(errno.into())));
        for none in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS] {
            assert_eq!(failed(none).unwrap(), Lock::Missing, "{none}");
        }
        assert_eq!(failed(Errno::IO).unwrap_err().kind(), io::Error::from(Errno::IO).kind());
        assert_eq!(locked(Ok(())).unwrap(), Lock::Held);
        assert_eq!(open_new(Path::new("/dev/null")).unwrap().lock, Lock::Needless);
    }

    #[test]
    fn without_its_body_a_line_is_not_done() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there"), "body").unwrap();
        let of = |n, file: Option<&str>| Record { body_file: file.map(str::to_owned), ..record(n, Some(200)) };
        let text = lines(&[of(1, Some("there")), of(2, Some("gone")), of(3, None)]);
        let done = |bodies| {
            let (done_lines, _) = read(text.as_bytes(), bodies).unwrap();
            [1, 2, 3].map(|n| known(&done_lines, n) == LineState::Done { ok: true })
        };
        assert_eq!((done(Some(folder.path())), done(None)), ([true, false, false], [true; 3]));
    }
}
