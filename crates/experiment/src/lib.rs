//! Reads experiments from files: from TOML to an [`Experiment`](oroshi_lab::Experiment), with every mistake at its
//! line.
//!
//! **Knows**: the keys of a file, the programs and CPUs of this machine, the project's own experiments. What it
//! does not know: flags, terminals, how an experiment runs. The keys of a load are the long flags of `oroshi bench`;
//! the command line lends its parser for them ([`LoadKeys`]).
//!
//! Read the modules in this order: [`find`] finds a file. [`experiment`] reads it, once for each `point` of its sweep:
//! `top`, `network`, `server` and `load` read their keys, `keys` passes a load's keys to the parser of flags, `machine`
//! finds installed programs. `secrets` hides values that a result must not repeat. [`rules`] reads the values that
//! files and the flags of `oroshi compare` share. [`text`] describes an experiment, [`words`] a load.
//!
//! **Circles.** `keys`, `load` and `server`: a server's variants have a load, a load's command is a program like a
//! server's, and `keys` passes both to the parser of flags.

pub mod experiment;
pub mod find;
mod keys;
mod load;
mod machine;
mod network;
mod point;
pub mod rules;
mod secrets;
mod server;
pub mod text;
mod top;
pub mod words;

pub use experiment::{ExperimentError, ParsedExperiment, RunOptions, Source, read};
pub use keys::{Form, LoadKeys, LoadValues};
pub use machine::Machine;
