#![no_main]

#[path = "../websocket_checks.rs"]
mod websocket_checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| websocket_checks::websocket_deflate(data));
