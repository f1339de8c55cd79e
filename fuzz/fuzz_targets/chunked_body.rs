#![no_main]

#[path = "../http1_checks.rs"]
mod http1_checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http1_checks::chunked_body(data));
