//! The committed corpora of the fuzz targets, run without the fuzzer.

#[path = "../../../../fuzz/lookup_checks.rs"]
mod lookup_checks;

use oroshi_testkit::corpus::run;

#[test]
fn memcached_reply() {
    run("memcached_reply", lookup_checks::memcached_reply);
}

#[test]
fn lookup_value() {
    run("lookup_value", lookup_checks::lookup_value);
}
