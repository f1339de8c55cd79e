#![no_main]

#[path = "../http2_checks.rs"]
mod http2_checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http2_checks::http2_hpack(data));
