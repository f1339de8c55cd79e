//! Runs the checks of the fuzz targets over their committed corpora, on stable Rust and within seconds.

use crate::http1_checks;

use oroshi_testkit::corpus::run;

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
