//! Results over commits: what is kept of each result, where levels changed, and whether the newest commit is worse.
//!
//! Knows: entries, which hold the figures of one result with its commit and its machine; series of them, their steps,
//! the noise of each machine; verdicts on a commit; Otava's CSV. Does not know: files, git, flags, how anything is
//! shown. The command line reads and writes the folder; `oroshi-report` draws it.
//!
//! Read it in this order:
//!
//! 1. [`entry`]: an entry as JSON, and how it is made of a result.
//! 2. [`series`]: entries of one machine, load and figure in the order of commits, with their steps.
//! 3. [`mod@check`]: a commit against the level before it, or the level at another commit.
//! 4. [`known`]: an entry beside those that a history has.
//! 5. [`otava`]: the CSV that Apache Otava reads.

pub mod check;
pub mod entry;
pub mod known;
pub mod otava;
pub mod series;

pub use check::{Against, Checked, Judged, check};
pub use entry::{Commit, Entry, EntryError};
pub use series::{Series, all};
