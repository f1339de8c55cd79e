//! Runs the checks of the fuzz targets of imports over their committed corpora.

#[path = "../../../../fuzz/import_checks.rs"]
mod import_checks;

use oroshi_testkit::corpus::run;

#[test]
fn import_har() {
    run("import_har", import_checks::import_har);
}

#[test]
fn import_curl() {
    run("import_curl", import_checks::import_curl);
}
