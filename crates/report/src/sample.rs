//! Results made by hand, for tests: those of this crate, and of crates with the feature `samples`.

pub mod bench;
pub mod lab;
pub mod scenario;
