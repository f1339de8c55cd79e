//! What RFC 9113 demands of servers and clients, as h2spec asks it.

use std::path::Path;
use std::process::Command;

use oroshi_testkit::need;

/// `target`, `gate` and `push` over cleartext and TLS; `bench` and `fetch`. The script knows each case that does not
/// pass, with its reason.
#[test]
fn h2spec_finds_nothing_but_what_is_known() {
    let test = "h2spec_finds_nothing_but_what_is_known";
    for program in ["python3", "openssl", "h2spec", "h2specd"] {
        if need(test, program).is_none() {
            return;
        }
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/h2spec");
    let ran = Command::new(script).args(["--oroshi", env!("CARGO_BIN_EXE_oroshi")]).output().unwrap();
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{printed}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(printed.matches(" cases pass").count(), 7, "{printed}");
}
