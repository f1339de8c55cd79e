//! Runs the checks of the client's fuzz targets over their committed corpora: the fuzzer's knowledge, on stable and in a moment.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/client_checks.rs"]
mod client_checks;

#[test]
fn client_response() {
    run("client_response", client_checks::client_response);
}

#[test]
fn client_url() {
    run("client_url", client_checks::client_url);
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
