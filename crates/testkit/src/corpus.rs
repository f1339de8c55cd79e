//! The committed corpora of the fuzz targets. A test runs a target's check over its corpus, without the fuzzer.

use std::fs;
use std::path::Path;

/// A corpus with fewer files is taken for a broken one.
const LEAST: usize = 20;

/// Calls `check` with each file of `fuzz/corpus/TARGET`, in the order of their names. Panics with the file that breaks
/// the check.
pub fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("the corpus is committed").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    assert!(files.len() >= LEAST, "only {} files in {}", files.len(), folder.display());
    for file in files {
        let bytes = fs::read(&file).expect("readable");
        let outcome = std::panic::catch_unwind(|| check(&bytes));
        assert!(outcome.is_ok(), "{} breaks the check of {target}", file.display());
    }
}
