//! Connections against peers that do as they are told.

mod bodies;
mod ends;
mod streams;
mod support;
