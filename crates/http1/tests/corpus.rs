//! Runs the checks of the fuzz targets over their committed corpora, on stable Rust and within seconds.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/http1_checks.rs"]
mod http1_checks;

#[test]
fn request_head() {
    run("request_head", http1_checks::request_head);
}

#[test]
fn response_head() {
    run("response_head", http1_checks::response_head);
}

#[test]
fn chunked_body() {
    run("chunked_body", http1_checks::chunked_body);
}

fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("the corpus is committed").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    assert!(files.len() >= 20, "only {} files in {}", files.len(), folder.display());
    for file in files {
        let bytes = fs::read(&file).expect("readable");
        let outcome = std::panic::catch_unwind(|| check(&bytes));
        assert!(outcome.is_ok(), "{} breaks the check of {target}", file.display());
    }
}
