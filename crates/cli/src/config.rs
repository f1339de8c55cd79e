//! Configurations of servers: a tree of keys (`document`) read from TOML (`toml`), and what is made of its texts (`values`). Every
//! mistake is found at once, each with its line.

pub(crate) mod document;
pub(crate) mod toml;
pub(crate) mod values;
pub(crate) mod written;
