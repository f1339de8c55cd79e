//! The HdrHistogram interval log: one histogram per interval, as text that other tools plot.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, IntervalLogWriterError, Tag};

use crate::latency::Latency;

/// Writes an interval log in format 1.3.
///
/// The log has a header, then one line per interval: an optional tag, start, length, maximum, and the histogram of
/// recorded values (the format cannot hold censored ones). Values are in nanoseconds, including the maximum; times
/// are in seconds since the start of the log.
#[derive(Debug)]
pub struct IntervalLog<W: Write> {
    writer: W,
}

impl<W: Write> IntervalLog<W> {
    /// Writes the header. `start` is when the run began; each line of `comment`, which may be empty, becomes a comment.
    ///
    /// # Errors
    ///
    /// When `writer` fails.
    pub fn new(mut writer: W, start: SystemTime, comment: &str) -> io::Result<Self> {
        let mut header = IntervalLogWriterBuilder::new();
        header.add_comment("[Histogram log format version 1.3]").add_comment("[Values are in nanoseconds]");
        if !comment.is_empty() {
            header.add_comment(comment);
        }
        // Both are needed: readers take StartTime as the date, and BaseTime as the origin of the lines' times.
        header.with_start_time(start).with_base_time(start);
        header.begin_log_with(&mut writer, &mut V2DeflateSerializer::new())?;
        writeln!(writer, r#""StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram""#)?;
        Ok(Self { writer })
    }

    /// Writes one interval that began `offset` after the start of the log.
    ///
    /// # Errors
    ///
    /// [`IntervalLogError::Tag`] when the tag cannot be written, [`IntervalLogError::Write`] when the writer fails.
    pub fn write(
        &mut self,
        tag: Option<&str>,
        offset: Duration,
        length: Duration,
        latency: &Latency,
    ) -> Result<(), IntervalLogError> {
        let tag = match tag {
            Some(text) => Some(Tag::new(text).ok_or_else(|| IntervalLogError::Tag(text.to_owned()))?),
            None => None,
        };
        // The crate's writer borrows its output, so it cannot be stored beside it; making one writes nothing.
        let mut serializer = V2DeflateSerializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .begin_log_with(&mut self.writer, &mut serializer)
            .map_err(IntervalLogError::Write)?;
        log.write_histogram(latency.histogram(), offset, length, tag).map_err(|error| match error {
            IntervalLogWriterError::IoError(error) => IntervalLogError::Write(error),
            IntervalLogWriterError::SerializeError(error) => IntervalLogError::Write(io::Error::other(error)),
        })
    }

    /// Flushes the writer and gives it back.
    ///
    /// # Errors
    ///
    /// When the flush fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.writer.flush()?;
        Ok(self.writer)
    }
}

/// An interval that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum IntervalLogError {
    /// The format separates by commas and spaces: use a tag without them and without line breaks.
    #[error("the tag {0:?} has a comma, a space or a line break, which an interval log cannot hold")]
    Tag(String),
    /// The writer failed: check the disk and the permissions of the file.
    #[error("an interval could not be written")]
    Write(#[source] io::Error),
}
