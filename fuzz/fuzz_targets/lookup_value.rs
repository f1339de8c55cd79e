#![no_main]

#[path = "../lookup_checks.rs"]
mod lookup_checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| lookup_checks::lookup_value(data));
