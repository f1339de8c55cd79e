//! The check of the fuzz target `proxy_header`, over its committed corpus.

#[path = "../../../../fuzz/proxy_checks.rs"]
mod proxy_checks;

#[test]
fn proxy_header() {
    oroshi_testkit::corpus::run("proxy_header", proxy_checks::proxy_header);
}
