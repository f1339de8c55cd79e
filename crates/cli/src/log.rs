//! The log of a server: one line per event, on standard error.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use oroshi_words::Date;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The severity of a line. A lower level in the configuration logs more lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// The configuration in force.
    Debug,
    /// Listeners, the start and the end of service.
    Info,
    /// Probable mistakes.
    Warn,
    /// Only the reason of the end.
    Error,
}

impl Level {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "debug" => Ok(Level::Debug),
            "info" => Ok(Level::Info),
            "warn" => Ok(Level::Warn),
            "error" => Ok(Level::Error),
            _ => Err(format!("`{text}` is no level: expected debug, info, warn or error")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

/// Logs lines of at least this level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    /// The lowest level that is logged.
    pub(crate) level: Level,
    /// The subcommand.
    pub(crate) part: &'static str,
    /// The crate whose events are logged from `level` on; other crates log only warnings.
    pub(crate) own: &'static str,
}

impl Log {
    /// Logs the `tracing` events of the server and its libraries too.
    pub(crate) fn listen(self) {
        // This fails only if there is a subscriber already, and this program has no other one.
        let _ = tracing::subscriber::set_global_default(self);
    }

    /// Logs a line, if its level is high enough.
    pub(crate) fn tell(self, level: Level, text: &str) {
        if level < self.level {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Date { year, month, day, hour, minute, second } = Date::at(now.as_secs());
        let (millisecond, process, level) = (now.subsec_millis(), std::process::id(), level.name());
        let part = self.part;
        let time = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z");
        // Standard error may be closed. One write per line, because other processes write to the same file.
        let _ = io::stderr().write_all(format!("{time} oroshi {part}[{process}]: {level}: {text}\n").as_bytes());
    }
}

/// Writes each event as a line, and ignores spans.
impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = level_of(*metadata.level());
        level >= self.level && (level >= Level::Warn || metadata.target().starts_with(self.own))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.tell(level_of(*event.metadata().level()), &line.text());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn level_of(level: tracing::Level) -> Level {
    match level {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        _ => Level::Debug,
    }
}

/// Collects an event's message and its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn text(&self) -> String {
        let text = format!("{}{}", self.message, self.fields);
        // An event stays one line, whatever it contains.
        text.trim_start().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.fields, " {name}={value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_stands_in_it() {
        let line = Line { message: "given up: a\nb".to_owned(), fields: " session=x\x1b[2J".to_owned() };
        assert_eq!(line.text(), "given up: a b session=x [2J");
    }
}
