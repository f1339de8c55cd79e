//! Autobahn's test suite against a hub that sends every message back: what others understand by WebSocket.
//!
//! Groups 12 and 13 are about compression. A case sends up to 128 MiB, which takes the suite's Python minutes; the test
//! runs the cases of up to 8 KiB, and all with `OROSHI_AUTOBAHN=all`.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use crate::hub::{Hub, skipped};
use serde_json::{Value, json};

/// What of the suite has no verdict, because the standard leaves it open: closing with codes from 5000 on.
const INFORMATIONAL: [&str; 3] = ["7.1.6", "7.13.1", "7.13.2"];

/// Frames, pings, fragments, UTF-8 and closing handshakes. There is no group 8.
#[test]
fn groups_1_to_7_and_10() {
    run("groups_1_to_7_and_10", &["1.*", "2.*", "3.*", "4.*", "5.*", "6.*", "7.*", "10.*"], 247);
}

/// Messages of up to 16 MiB, whole, in fragments and in small pieces; then many messages.
#[test]
fn group_9() {
    run("group_9", &["9.*"], 54);
}

/// Compressed messages, whole and in fragments, with each set of parameters that the suite offers.
#[test]
fn groups_12_and_13() {
    let sizes = if std::env::var_os("OROSHI_AUTOBAHN").is_some_and(|which| which == "all") { 18 } else { 6 };
    let groups = (1..=5).map(|group| (12, group)).chain((1..=7).map(|group| (13, group)));
    let cases: Vec<String> =
        groups.flat_map(|(major, minor)| (1..=sizes).map(move |size| format!("{major}.{minor}.{size}"))).collect();
    let cases: Vec<&str> = cases.iter().map(String::as_str).collect();
    run("groups_12_and_13", &cases, 12 * sizes);
}

#[track_caller]
fn run(test: &str, cases: &[&str], expected: usize) {
    static WSTEST: LazyLock<Result<PathBuf, String>> = LazyLock::new(wstest);
    let wstest = match &*WSTEST {
        Ok(wstest) => wstest,
        Err(why) => return skipped(test, why),
    };
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(|plan| {
        plan.echo = true;
        // Room for the suite's largest messages, and for many of them.
        plan.limits.message_bytes = 16 << 20;
        plan.limits.session_queue_bytes = 1 << 30;
        plan.limits.session_queue_messages = 1 << 20;
        plan.limits.total_queue_bytes = 1 << 31;
        plan.limits.ping = None;
        plan.compress_from_bytes = Some(0);
    });
    let specification = folder.path().join("cases.json");
    fs::write(&specification, client(hub.address, folder.path(), cases).to_string()).unwrap();
    let status = Command::new(wstest)
        .args(["--mode", "fuzzingclient", "--spec"])
        .arg(&specification)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.path().join("errors")).unwrap())
        .status()
        .unwrap();
    let errors = fs::read_to_string(folder.path().join("errors")).unwrap();
    assert!(status.success(), "{status}: {errors}");
    let report = fs::read(folder.path().join("report/index.json")).unwrap_or_else(|_| panic!("no report: {errors}"));
    let report: Value = serde_json::from_slice(&report).unwrap();
    judge(report["oroshi"].as_object().expect("a report on this server").iter(), expected);
}

/// Every case, as it went and as it was closed: as the standard has it.
fn judge<'r>(report: impl Iterator<Item = (&'r String, &'r Value)>, expected: usize) {
    let verdicts: BTreeMap<&str, [&str; 2]> = report
        .map(|(case, result)| (&**case, ["behavior", "behaviorClose"].map(|what| result[what].as_str().unwrap())))
        .collect();
    assert_eq!(verdicts.len(), expected, "cases that were run");
    for (case, verdict) in verdicts {
        match verdict {
            ["OK", "OK" | "INFORMATIONAL"] => {}
            ["INFORMATIONAL", _] if INFORMATIONAL.contains(&case) => {}
            other => panic!("case {case}: {other:?}"),
        }
    }
}

/// What the suite is to do.
fn client(server: SocketAddr, folder: &Path, cases: &[&str]) -> Value {
    json!({
        "outdir": folder.join("report"),
        "servers": [{ "agent": "oroshi", "url": format!("ws://{server}/connect") }],
        "cases": cases,
        "exclude-cases": [],
        "exclude-agent-cases": {},
    })
}

/// The suite's program, installed where it is not yet; or why there is none.
fn wstest() -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/autobahn");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("autobahn");
    let ran = Command::new(script).arg(folder).stdin(Stdio::null()).output().expect("a script of this project");
    if ran.status.success() {
        return Ok(String::from_utf8(ran.stdout).expect("a path").trim().into());
    }
    let errors = String::from_utf8_lossy(&ran.stderr);
    Err(errors.lines().last().unwrap_or("scripts/autobahn says nothing").trim_start_matches("autobahn: ").to_owned())
}
