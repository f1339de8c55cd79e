//! `oroshi scenario`: scripts from recordings and from commands of curl, written to where they shall go.

use std::fs;
use std::io::{Seek, Write};
use std::process::Command;

use crate::common::{OROSHI, Ran, oroshi, to_the_end_with_input};

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenario/src/import/recordings");

fn with_input(args: &[&str], input: &str) -> Ran {
    let mut command = Command::new(OROSHI);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input.as_bytes()).unwrap();
    file.rewind().unwrap();
    command.arg("scenario").args(args).stdin(file);
    to_the_end_with_input(command)
}

#[test]
fn a_recording_becomes_a_script_and_replaces_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (har, script) = (format!("{RECORDINGS}/chromium.har"), path("shop.lua"));
    let ran = oroshi(&["scenario", "from-har", &har, "-o", &script]);
    assert_eq!((ran.code, &*ran.out), (Some(0), ""), "{ran:?}");
    assert!(ran.err.contains("shop.lua --users 1 --iterations 1 --verbose"), "{ran:?}");
    // Only the name of the recording differs from the script that the crate's own test compares.
    let expected = fs::read_to_string(format!("{RECORDINGS}/chromium.lua")).unwrap();
    let written = fs::read_to_string(&script).unwrap();
    assert_eq!(written.lines().skip(1).collect::<Vec<_>>(), expected.lines().skip(1).collect::<Vec<_>>());

    fs::write(&script, "mine").unwrap();
    oroshi(&["scenario", "from-har", &har, "-o", &script])
        .said(2, &["--output: ", "shop.lua exists: expected a new file", "add --force"]);
    assert_eq!(fs::read_to_string(&script).unwrap(), "mine");
    let ran = oroshi(&["scenario", "from-har", &har, "-o", &script, "--force", "--keep-secrets", "--assets", "list"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let written = fs::read_to_string(&script).unwrap();
    assert!(written.contains("correct horse") && written.contains("/shop.css"), "{written}");
    let ran = oroshi(&["scenario", "from-har", &har, "--host", "cdn.example.com", "--assets", "list"]);
    assert!(ran.out.contains("\"https://cdn.example.com/lib.js\""), "{ran:?}");
}

#[test]
fn commands_come_as_arguments_as_a_file_or_on_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("body.json"), "{\"a\": 1}").unwrap();
    let data = format!("@{}", path("body.json"));
    let typed = oroshi(&["scenario", "from-curl", "--", "curl", "-L", "http://h/x", "--json", &data]);
    assert_eq!((typed.code, &*typed.err), (Some(0), ""), "{typed:?}");
    assert!(typed.out.contains("user:post(\"/x\"") && typed.out.contains("json = { a = 1 }"), "{typed:?}");

    let text = "curl 'http://h/login' \\\n  -H 'accept: */*' \\\n  --data-raw $'name=al\\u0021&password=x1'\n";
    fs::write(path("commands.sh"), text).unwrap();
    let read = with_input(&["from-curl"], text);
    assert!(read.out.contains("form = { name = \"al!\", password = secret.password }"), "{read:?}");
    let journey = |ran: &Ran| ran.out.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    for other in [with_input(&["from-curl", "-"], text), oroshi(&["scenario", "from-curl", &path("commands.sh")])] {
        assert_eq!((other.code, journey(&other)), (Some(0), journey(&read)), "{other:?}");
    }
    let whole = oroshi(&["scenario", "from-curl", "--", text.trim_end()]);
    assert_eq!(journey(&whole), journey(&read));
}

#[test]
fn mistakes_name_the_input_the_place_and_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    oroshi(&["scenario", "from-har", &path("none.har")]).said(2, &["none.har cannot be read", "No such file"]);
    with_input(&["from-har", "-"], "{\"log\":\n 7}")
        .said(2, &["standard input: line 2, column 2: invalid type", "expected a HAR 1.2 recording", "network panel"]);
    let entry = r#"{"log":{"entries":[{"request":{"method":"GET","url":"/x"}}]}}"#;
    with_input(&["from-har", "-"], entry).said(2, &["entry 1: request.url is `/x`", "expected an absolute URL"]);
    with_input(&["from-curl"], "curl a\ncurl b --haeder x: y")
        .said(2, &["standard input: line 2: `--haeder`", "did you mean --header?", "from-curl --help"]);
    oroshi(&["scenario", "from-curl", "--", "curl", "a", "-d", "@/nonexistent"])
        .said(2, &["the command: -d: /nonexistent cannot be read"]);
    let script = path("no/such/folder.lua");
    oroshi(&["scenario", "from-curl", "-o", &script, "--", "curl", "a"]).said(1, &["folder.lua cannot be written"]);
    oroshi(&["scenario", "from-har"]).said(2, &["required"]);
}
