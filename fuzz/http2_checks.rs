#[path = "../crates/http2/tests/trace/mod.rs"]
pub(crate) mod trace;
