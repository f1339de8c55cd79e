#![no_main]

#[path = "../proxy_checks.rs"]
mod proxy_checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy_checks::proxy_header(data));
