//! The committed corpora of the fuzz targets, run without the fuzzer.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../fuzz/lookup_checks.rs"]
mod lookup_checks;

#[test]
fn memcached_reply() {
    run("memcached_reply", lookup_checks::memcached_reply);
}

#[test]
fn lookup_value() {
    run("lookup_value", lookup_checks::lookup_value);
}

fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files: Vec<PathBuf> =
        fs::read_dir(&folder).expect("the corpus is committed").map(|entry| entry.expect("readable").path()).collect();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        check(&fs::read(&file).expect("readable"));
    }
}
