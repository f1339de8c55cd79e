//! The checks of the fuzz targets of this crate, over their committed corpora.

#[path = "../../../../fuzz/proxy_checks.rs"]
mod proxy_checks;
#[path = "../../../../fuzz/tls_checks.rs"]
pub(crate) mod tls_checks;

#[test]
fn proxy_header() {
    oroshi_testkit::corpus::run("proxy_header", proxy_checks::proxy_header);
}

#[test]
fn tls_session() {
    oroshi_testkit::corpus::run("tls_session", tls_checks::tls_session);
}
