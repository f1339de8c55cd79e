//! Configurations: a file becomes a tree, a reader asks the tree for its keys, and every mistake is found in one pass.
//!
//! What it knows: TOML and YAML, the line of each key, unknown keys and their nearest known names, secrets in files and
//! in the environment. What it does not know: what a key means, flags, terminals.
//!
//! Read the modules in this order: [`document`] is the tree and its reader, which collects [`mistakes`]. [`mod@toml`]
//! and [`yaml`] make trees of texts. [`values`] reads numbers and switches, [`mod@secret`] reads secrets.
//! [`mod@file`] opens a configuration and reports its mistakes. [`written`] writes TOML.

pub mod document;
pub mod file;
pub mod mistakes;
pub mod secret;
pub mod toml;
pub mod values;
pub mod written;
pub mod yaml;

pub use document::{Field, Node, Table};
pub use file::{ConfigError, text_of};
pub use mistakes::Mistakes;
pub use secret::{SecretSource, secret};
