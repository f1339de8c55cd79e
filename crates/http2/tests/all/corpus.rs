//! Runs the checks of the fuzz targets over their committed corpora, on stable Rust and within seconds.

use std::path::Path;

use oroshi_testkit::corpus::run;

use crate::conformance;
use crate::http2_checks;
use crate::trace::Step;

/// Writes the cases of the table to the corpus, if asked: `OROSHI_WRITE=1 cargo test -p oroshi-http2 cases_are_in`.
#[test]
fn cases_are_in_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/http2_connection");
    let mut missing = Vec::new();
    for (id, how, script) in conformance::scripts() {
        let [Step::In(bytes)] = &script[..] else { continue };
        let (file, content) = (folder.join(&id), [&[how], &bytes[..]].concat());
        if std::env::var_os("OROSHI_WRITE").is_some() {
            std::fs::write(&file, content).expect("the corpus can be written");
        } else if std::fs::read(&file).ok() != Some(content) {
            missing.push(id);
        }
    }
    assert!(missing.is_empty(), "not in the corpus: {missing:?}");
}

#[test]
fn http2_connection() {
    run("http2_connection", http2_checks::http2_connection);
}

#[test]
fn http2_hpack() {
    run("http2_hpack", http2_checks::http2_hpack);
}
