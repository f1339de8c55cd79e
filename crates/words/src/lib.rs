//! Quantities and names as people write and read them: `30s`, `1k`, `1.23ms`, `45,678`, and "did you mean ...?".
//!
//! Knows: text. Does not know: its source and its subject. [`units`] reads and writes times, counts and sizes;
//! [`date`] the calendar; [`query`] paths and queries; [`metrics`] Prometheus' format; [`access_line`] lines of access
//! logs. [`mistake`] is a mistake in a configuration, [`causes`] an error with its causes. [`secret`] is a text that is
//! never shown, and [`hidden`] removes secrets from words. [`nearest`](mod@nearest) finds the known name for a mistyped
//! one, [`named`] reads tables of names, and [`printable`](mod@printable) escapes terminal control characters.

pub mod access_line;
pub mod causes;
pub mod date;
pub mod hidden;
pub mod metrics;
pub mod mistake;
pub mod named;
pub mod nearest;
pub mod printable;
pub mod query;
pub mod secret;
pub mod units;

pub use causes::with_causes;
pub use date::Date;
pub use mistake::{Kind, Mistake, Naming};
pub use nearest::nearest;
pub use printable::printable;
pub use secret::Secret;
