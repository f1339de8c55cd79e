//! The files of ab's `-g` and `-e`: a line per request for gnuplot, and the percentiles as CSV.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use oroshi_bench::{Record, RequestTimes};
use oroshi_words::Date;

use super::{ms, quantile_ms, totals};
use crate::bench::observer::{LogError, empty};
use crate::bench::open_kept;

const HEADER: &[u8] = b"starttime\tseconds\tctime\tdtime\tttime\twait\n";
const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A line per answered request, written while the run lasts, in the order in which the requests began.
#[derive(Debug)]
pub(crate) struct RequestLog {
    path: PathBuf,
    decimals: usize,
    state: State,
    /// The last written second, and its text.
    second: (u64, String),
}

#[derive(Debug)]
enum State {
    /// Nothing is written yet: an earlier file keeps its content until the run has begun.
    Waiting(File),
    Writing(BufWriter<File>),
    Failed(io::Error),
}

impl RequestLog {
    /// Opens the file, so that a wrong path is noticed before the run.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(crate) fn create(path: &Path, decimals: usize) -> Result<Self, LogError> {
        let file = open_kept(path).map_err(|error| error_at(path, error))?;
        Ok(Self { path: path.to_owned(), decimals, state: State::Waiting(file), second: (0, starttime(0)) })
    }

    pub(crate) fn write(&mut self, requests: &[RequestTimes]) {
        if let State::Waiting(_) = self.state {
            self.begin();
        }
        let Self { decimals, state, second, .. } = self;
        let State::Writing(out) = state else { return };
        if let Err(error) = requests.iter().try_for_each(|request| write_line(out, request, *decimals, second)) {
            *state = State::Failed(error);
        }
    }

    /// Empties an earlier file and writes the header.
    fn begin(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Failed(io::ErrorKind::Interrupted.into())) {
            State::Waiting(file) => {
                empty(&file);
                let mut out = BufWriter::with_capacity(1 << 16, file);
                out.write_all(HEADER).map_or_else(State::Failed, |()| State::Writing(out))
            }
            other => other,
        };
    }

    /// Completes the file; `ran`: whether the run took place.
    ///
    /// # Errors
    /// If the file could not be written, now or earlier.
    pub(crate) fn finish(mut self, ran: bool) -> Result<(), LogError> {
        if ran && matches!(self.state, State::Waiting(_)) {
            self.begin();
        }
        let result = match self.state {
            State::Failed(error) => Err(error),
            State::Waiting(_) => Ok(()),
            State::Writing(mut out) => out.flush(),
        };
        result.map_err(|error| error_at(&self.path, error))
    }
}

fn error_at(path: &Path, error: io::Error) -> LogError {
    LogError::new("the list of requests", path, error)
}

fn write_line(
    out: &mut impl Write,
    request: &RequestTimes,
    decimals: usize,
    second: &mut (u64, String),
) -> io::Result<()> {
    let began = request.began.duration_since(UNIX_EPOCH).unwrap_or_default();
    if began.as_secs() != second.0 {
        *second = (began.as_secs(), starttime(began.as_secs()));
    }
    write!(out, "{}\t{}", second.1, second.0)?;
    if decimals > 0 {
        // As fine as the times beside it, to distinguish requests of the same second.
        let digits = (decimals + 3).min(9);
        write!(out, ".{:0digits$}", began.subsec_nanos() / 10_u32.pow(9 - digits as u32))?;
    }
    let RequestTimes { connect_ns, wait_ns, total_ns, .. } = *request;
    for ns in [connect_ns, total_ns.saturating_sub(connect_ns), total_ns, wait_ns] {
        write!(out, "\t{}", ms(ns, decimals))?;
    }
    out.write_all(b"\n")
}

/// `Sat Nov 21 22:39:58 2026`, UTC.
fn starttime(unix_s: u64) -> String {
    let Date { year, month, day, hour, minute, second } = Date::at(unix_s);
    let (weekday, month) = (DAYS[(unix_s / 86_400 % 7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday} {month} {day:02} {hour:02}:{minute:02}:{second:02} {year}")
}

/// Returns the CSV of the times within which each whole percentage of the requests was answered.
///
/// `>=` precedes a lower bound, so that no program reads it as a number.
pub(crate) fn percentiles(record: &Record) -> String {
    let totals = totals(record);
    let mut text = "Percentage served,Time in ms\n".to_owned();
    for percent in 0..=100_u32 {
        let Some(quantile) = totals.quantile(f64::from(percent) / 100.0) else { break };
        let bound = if quantile.is_bound() { ">=" } else { "" };
        text += &format!("{percent},{bound}{}\n", quantile_ms(quantile, 3));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use oroshi_stats::Latency;

    use super::*;
    use oroshi_report::sample::bench as sample;

    /// It began so many milliseconds after a second of 2023.
    fn request(ms: u64) -> RequestTimes {
        RequestTimes {
            began: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + ms),
            connect_ns: 499_999,
            wait_ns: 1_500_000,
            total_ns: 2_499_999,
        }
    }

    fn written(decimals: usize, batches: &[&[RequestTimes]]) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "what an earlier run wrote, which was longer than this one").unwrap();
        let mut log = RequestLog::create(file.path(), decimals).unwrap();
        batches.iter().for_each(|requests| log.write(requests));
        log.finish(true).unwrap();
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn requests_are_lines_of_whole_milliseconds() {
        let text = written(0, &[&[request(0)], &[], &[request(999), request(1000)]]);
        let expected = "\
starttime\tseconds\tctime\tdtime\tttime\twait
Tue Nov 14 22:13:20 2023\t1700000000\t0\t2\t2\t2
Tue Nov 14 22:13:20 2023\t1700000000\t0\t2\t2\t2
Tue Nov 14 22:13:21 2023\t1700000001\t0\t2\t2\t2
";
        assert_eq!(text, expected);
    }

    #[test]
    fn decimals_are_those_of_the_seconds_too() {
        let text = written(3, &[&[request(7)]]);
        let line = text.lines().nth(1).unwrap();
        assert_eq!(line, "Tue Nov 14 22:13:20 2023\t1700000000.007000\t0.500\t2.000\t2.500\t1.500");
        assert!(
            written(6, &[&[request(7)]]).contains("\t1700000000.007000000\t0.499999\t2.000000\t2.499999\t1.500000\n")
        );
    }

    #[test]
    fn days_have_two_digits_and_weekdays_are_right() {
        assert_eq!(starttime(0), "Thu Jan 01 00:00:00 1970");
        assert_eq!(starttime(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(starttime(1_795_300_798), "Sat Nov 21 22:39:58 2026");
    }

    #[test]
    fn without_an_answer_there_is_the_header_and_without_a_run_what_was_there() {
        assert_eq!(written(0, &[]).as_bytes(), HEADER);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "an earlier one").unwrap();
        RequestLog::create(file.path(), 0).unwrap().finish(false).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "an earlier one");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = RequestLog::create(Path::new("/nonexistent/x.tsv"), 0).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.tsv"), "{error}");
        let mut full = RequestLog::create(Path::new("/dev/full"), 0).unwrap();
        full.write(&[request(0)]);
        assert!(full.finish(true).is_err());
        let mut full = RequestLog::create(Path::new("/dev/full"), 0).unwrap();
        // More than is held back.
        full.write(&vec![request(0); 10_000]);
        full.write(&[request(1)]);
        assert!(full.finish(true).is_err());
    }

    #[test]
    fn percentiles_go_from_the_least_to_the_greatest() {
        let text = percentiles(&sample::ab());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (102, "Percentage served,Time in ms"));
        let value = |line: &str| line.split_once(',').unwrap().1.parse::<f64>().unwrap();
        assert_eq!((lines[1], lines[101]), ("0,0.050", "100,1.070"));
        assert!(lines[1..].iter().map(|line| value(line)).is_sorted());
        assert!((value(lines[51]) - 0.55).abs() < 0.002, "{}", lines[51]);
        assert_eq!(percentiles(&sample::nothing()), "Percentage served,Time in ms\n");
    }

    #[test]
    fn what_is_only_a_bound_is_no_number() {
        let mut record = sample::ab();
        let mut response = Latency::new();
        (0..5000).for_each(|_| response.record_censored(2_000_000_000));
        record.latency.response = response.into();
        let text = percentiles(&record);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 102);
        assert!(lines[95].starts_with("94,1."), "{}", lines[95]);
        assert_eq!(lines[97], "96,>=2000.000");
        assert_eq!(lines[101], "100,>=2000.000");
    }
}
