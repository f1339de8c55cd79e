//! Tests of the crate's public parts.

mod corpus;
