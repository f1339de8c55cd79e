//! Runs the checks of the client's fuzz targets over their committed corpora: the fuzzer's knowledge, on stable and in
//! a moment.

#[path = "../../../../fuzz/client_checks.rs"]
mod client_checks;

use oroshi_testkit::corpus::run;

#[test]
fn client_response() {
    run("client_response", client_checks::client_response);
}

#[test]
fn client_url() {
    run("client_url", client_checks::client_url);
}
