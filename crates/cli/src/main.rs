//! The `oroshi` command.
fn main() {}
