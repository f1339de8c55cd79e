//! Quantities and names as people write and read them: `30s`, `1k`, `1.23ms`, `45,678`, and "did you mean ...?".
//!
//! What it knows: text. What it does not know: where the text comes from, and what it is about. [`units`] reads and
//! writes times, counts and sizes, [`date`] the calendar, [`query`] what stands behind a `?`; [`metrics`] writes
//! numbers for Prometheus; [`nearest`](mod@nearest) finds the known name that a mistyped one was probably meant to be,
//! [`printable`](mod@printable) shows what would steer a terminal. [`mistake`] says what is wrong with a field,
//! [`causes`] writes errors with their causes. [`secret`] keeps texts that are never shown, [`hidden`] repeats command
//! lines without secrets.

pub mod causes;
pub mod date;
pub mod hidden;
pub mod metrics;
pub mod mistake;
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
