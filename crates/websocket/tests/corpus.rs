//! Runs the checks of the fuzz targets over their committed corpora, on stable Rust and within seconds.

#[path = "../../../fuzz/websocket_checks.rs"]
mod websocket_checks;

use oroshi_testkit::corpus::run;

#[test]
fn websocket_decode() {
    run("websocket_decode", websocket_checks::websocket_decode);
}

#[test]
fn websocket_deflate() {
    run("websocket_deflate", websocket_checks::websocket_deflate);
}

#[test]
fn websocket_handshake() {
    run("websocket_handshake", websocket_checks::websocket_handshake);
}
