//! What the hub tells its operator, one line each on standard error.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use oroshi_words::Date;

/// How much a line matters. More of them are told the lower the level that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// What is in force.
    Debug,
    /// Where it listens, that it serves, that it ends.
    Info,
    /// What is most likely not meant so.
    Warn,
    /// Nothing but why it ended.
    Error,
}

impl Level {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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

/// Tells what is at least of this level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log(pub(super) Level);

impl Log {
    /// Tells it, if it matters enough.
    pub(super) fn tell(self, level: Level, text: &str) {
        if level < self.0 {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Date { year, month, day, hour, minute, second } = Date::at(now.as_secs());
        let (millisecond, process, level) = (now.subsec_millis(), std::process::id(), level.name());
        let time = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z");
        // Nobody may be there to read it. One write, as other processes write to the same place.
        let _ = io::stderr().write_all(format!("{time} oroshi push[{process}]: {level}: {text}\n").as_bytes());
    }
}
