//! What packages hold: units of systemd, versions.

use std::fs;
use std::process::Command;

use super::{files, root};
use oroshi_testkit::need;

/// systemd's grade of exposure, in tenths: what it calls OK ends at 49.
const MAX_EXPOSURE: &str = "25";

#[test]
fn units_are_hardened() {
    let Some(_) = need("units_are_hardened", "systemd-analyze") else { return };
    let units = files(&root().join("packaging/systemd"), ".service");
    assert_eq!(units.len(), 3, "{units:?}");
    for unit in units {
        let threshold = format!("--threshold={MAX_EXPOSURE}");
        let graded = Command::new("systemd-analyze")
            .args(["security", "--no-pager", "--offline=true", &threshold])
            .arg(&unit)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&graded.stdout);
        assert!(graded.status.success() && told.contains("Overall exposure level"), "{}:\n{told}", unit.display());
    }
}

#[test]
fn units_name_files_that_the_package_has() {
    let root = root();
    for unit in files(&root.join("packaging/systemd"), ".service") {
        let text = fs::read_to_string(&unit).unwrap();
        let mut named = 0;
        for path in text.split_whitespace().filter_map(|word| word.split_once("/etc/oroshi/").map(|(_, path)| path)) {
            named += 1;
            let path = path.trim_end_matches([',', '.']);
            // `%i` is the instance: the package has one, as an example.
            let place = root.join("packaging/etc").join(path.replace("%i", "hello").replace("NAME", "hello"));
            assert!(place.exists(), "{}: /etc/oroshi/{path} is not in packaging/etc", unit.display());
        }
        assert!(named > 0, "{}", unit.display());
        for command in text.lines().filter(|line| line.starts_with("Exec")) {
            let program = command.split_once('=').unwrap().1;
            assert!(program.starts_with("/usr/bin/oroshi ") || program.starts_with("/bin/kill "), "{command}");
        }
    }
}

/// The version of the gem and the command is one.
#[test]
fn versions_agree() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let manifest = read("Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"')).unwrap();
    assert!(read("ruby/lib/oroshi/version.rb").contains(&format!("\"{version}\"")), "version.rb: expected {version}");
    let changes = read("CHANGELOG.md");
    assert!(
        changes.contains(&format!("\n## [{version}]")) || changes.contains("\n## [Unreleased]"),
        "CHANGELOG.md has neither a section of {version} nor one of what is not released"
    );
}
