//! `oroshi history`: real results over commits of a real repository, planted steps, garbage.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use oroshi_testkit::need;
use serde_json::Value;

use crate::common::{OROSHI, Ran, Target, measured, oroshi, to_the_end};

/// A git repository, and beside it a history.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(place.path("app")).unwrap();
        place.git(&["init", "--quiet", "--initial-branch", "main"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn git(&self, args: &[&str]) -> String {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]);
        let ran = to_the_end({
            command.args(args).current_dir(self.path("app"));
            command
        });
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.out.trim().to_owned()
    }

    /// Makes a commit, so many hours after the first one.
    fn commit(&self, hour: usize) -> String {
        fs::write(self.path("app/file"), hour.to_string()).unwrap();
        self.git(&["add", "file"]);
        let date = format!("{} +0000", 1_770_000_000 + 3600 * hour);
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]);
        command.args(["commit", "--quiet", "-m", &format!("change {hour}")]).current_dir(self.path("app"));
        command.env("GIT_COMMITTER_DATE", &date).env("GIT_AUTHOR_DATE", &date);
        assert_eq!(to_the_end(command).code, Some(0));
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs `oroshi history` in the repository.
    fn history(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(OROSHI);
        command.arg("history").args(args).current_dir(self.path("app"));
        to_the_end(command)
    }

    /// Adds a result whose server's CPU time per request is multiplied by this factor.
    fn add(&self, record: &Value, factor: f64) -> Ran {
        // A number that no two results share: the same text is added only once.
        static ADDED: AtomicU32 = AtomicU32::new(0);
        let mut changed = record.clone();
        let number = f64::from(ADDED.fetch_add(1, Ordering::Relaxed));
        changed["elapsed_s"] = (record["elapsed_s"].as_f64().unwrap() + 1e-9 * number).into();
        let figure = changed["generator"]["cpu_us_per_request"].as_f64().unwrap();
        changed["generator"]["cpu_us_per_request"] = (figure * factor).into();
        fs::write(self.path("run.json"), changed.to_string()).unwrap();
        self.history(&["add", "../perf", "../run.json", "--name", "hello"])
    }
}

/// A run of `oroshi bench`, as JSON.
fn run() -> Value {
    let target = Target::start(&[]);
    serde_json::to_value(measured(&["-n", "500", "-c", "2", target.url()])).unwrap()
}

/// Factors that scatter by 1 %, the same each time.
fn scatter(index: usize) -> f64 {
    1.0 + 0.01 * ((index * 7919 % 13) as f64 - 6.0) / 6.0
}

#[test]
fn a_planted_step_is_shown_and_the_commit_fails_the_check() {
    const NAME: &str = "a_planted_step_is_shown_and_the_commit_fails_the_check";
    if need(NAME, "git").is_none() {
        return;
    }
    let (place, record) = (Place::new(), run());
    let mut commits = Vec::new();
    for index in 0..24 {
        commits.push(place.commit(index));
        let added = place.add(&record, scatter(index) * if index >= 16 { 1.1 } else { 1.0 });
        assert_eq!(added.code, Some(0), "{added:?}");
        let only = ["--metrics", "load-cpu"];
        let checked = place.history(&[&["check", "../perf"][..], &only].concat());
        // A level has at least two measurements: until then the next commit is compared with the old level as well.
        let expected = if [16, 17].contains(&index) { 3 } else { 0 };
        assert_eq!(checked.code, Some(expected), "commit {index}: {checked:?}");
        if index == 16 {
            assert!(checked.err.contains("FAILED  --fail-if slower: hello: load-cpu: worse: "), "{checked:?}");
        }
    }
    let shown = place.history(&["show", "../perf", "--metrics", "load-cpu", "--report", "../page.html"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let short = &commits[16][..10];
    assert!(shown.out.contains("worse  hello: load-cpu: +"), "{shown:?}");
    assert_eq!(shown.out.matches(&format!("at {short} ")).count(), 1, "{shown:?}");
    assert!(shown.out.contains("change 16"), "{shown:?}");
    let page = fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.contains(short) && page.contains("oroshi history") && page.contains("<svg"), "{short}");
    assert!(!page.contains("<script") && !page.contains("NaN"));

    let against = |commit: &str| {
        place.history(&["check", "../perf", "--metrics", "load-cpu", "--against", commit, "--format", "json"])
    };
    let before = against("HEAD~10");
    assert_eq!(before.code, Some(3), "{before:?}");
    let found: Value = serde_json::from_str(&before.out).unwrap();
    assert_eq!((&found[0]["verdict"], &found[0]["metric"]), (&"slower".into(), &"load-cpu".into()));
    assert_eq!(against(&commits[20][..12]).code, Some(0), "the level at that commit is the present one");
    assert_eq!(against("elsewhere").code, Some(2));
}

#[test]
fn a_result_is_added_once_with_its_commit() {
    const NAME: &str = "a_result_is_added_once_with_its_commit";
    if need(NAME, "git").is_none() {
        return;
    }
    let (place, record) = (Place::new(), run());
    let outside = place.add(&record, 1.0);
    assert_eq!(outside.code, Some(2), "a repository without a commit: {outside:?}");
    let commit = place.commit(0);
    assert!(place.add(&record, 1.0).err.contains("wrote "));
    let again = place.history(&["add", "../perf", "../run.json", "--name", "hello"]);
    assert!(again.err.contains("1 is already in the history"), "{again:?}");
    let files: Vec<PathBuf> = fs::read_dir(place.path("perf")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let entry: Value = serde_json::from_str(&fs::read_to_string(&files[0]).unwrap()).unwrap();
    assert_eq!((&entry["commit"]["id"], &entry["commit"]["subject"]), (&commit.clone().into(), &"change 0".into()));
    assert_eq!(entry["commit"]["number"], 1);
    assert_eq!(entry["commit"]["changed"], false);
    let twice = place.history(&["add", "../perf", "../run.json", "--commit", "r7", "--date", "2026-03-01 10:00"]);
    let why = format!("holds this result of the commit {} instead of r7", &commit[..10]);
    assert!(twice.code == Some(2) && twice.err.contains(&why), "one result counts once: {twice:?}");
    let renamed = place.history(&["add", "../perf", "../run.json", "--name", "other"]);
    assert!(renamed.code == Some(2) && renamed.err.contains("`hello` instead of `other`"), "{renamed:?}");
    assert_eq!(fs::read_dir(place.path("perf")).unwrap().count(), 1, "nothing was written");

    fs::write(place.path("app/file"), "changed").unwrap();
    let changed = place.add(&record, 2.0);
    assert!(changed.code == Some(0) && changed.err.contains("the tree has changes (file)"), "{changed:?}");
    fs::write(place.path("app/new.rs"), "more").unwrap();
    let changed = place.add(&record, 3.0);
    assert!(changed.code == Some(0) && changed.err.contains("(file and 1 more)"), "{changed:?}");
    let shown = place.history(&["show", "../perf"]);
    assert!(shown.out.contains("hello: rps"), "{shown:?}");
    let several = place.history(&["check", "../perf", "--commit", "HEAD+"]);
    assert!(several.code == Some(2) && several.err.contains("several trees with changes"), "{several:?}");
    let clean = place.history(&["check", "../perf", "--commit", "HEAD", "--metrics", "load-cpu"]);
    assert!(clean.code == Some(0) && clean.out.starts_with(&format!("commit {} ", &commit[..10])), "{clean:?}");
    assert!(clean.err.contains("unknown  --fail-if slower: nothing could be judged"), "{clean:?}");

    // The history and results of experiments are no change of the tree.
    place.git(&["checkout", "--quiet", "--", "file"]);
    fs::remove_file(place.path("app/new.rs")).unwrap();
    fs::create_dir_all(place.path("app/oroshi-results/a")).unwrap();
    fs::write(place.path("app/oroshi-results/a/result.json"), "{}").unwrap();
    fs::write(place.path("app/run.json"), record.to_string()).unwrap();
    let inside = place.history(&["add", "perf", "run.json"]);
    assert!(inside.code == Some(0) && !inside.err.contains("the tree has changes"), "{inside:?}");
    fs::remove_file(place.path("app/run.json")).unwrap();
    let again = place.add(&record, 4.0);
    assert!(again.err.contains("the tree has changes (perf/"), "another folder is one: {again:?}");
    let unknown = place.history(&["add", "../perf", "../run.json", "--commit", "r8"]);
    assert!(unknown.code == Some(2) && unknown.err.contains("expected --date"), "{unknown:?}");
}

#[test]
fn garbage_in_the_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let file = folder.path().join("x.json");
    for (text, why) in [
        ("", "no entry of a history"),
        ("{\"schema\": \"oroshi-bench/1.7\"}", "expected \"schema\": \"oroshi-history/1.1\""),
        ("{\"schema\": \"oroshi-history/7.0\"}", "it is of schema oroshi-history/7.0"),
        ("{\"schema\": \"oroshi-history/1.0\", \"commit\": 3}", "no entry of a history"),
    ] {
        fs::write(&file, text).unwrap();
        let shown = oroshi(&["history", "show", dir]);
        assert!(shown.code == Some(2) && shown.err.contains(why) && shown.err.contains("x.json"), "{text}: {shown:?}");
    }
    fs::write(&file, [0xff, 0xfe, 0]).unwrap();
    assert_eq!(oroshi(&["history", "check", dir]).code, Some(2));
    fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, 0o600.into()).unwrap();
    let pipe = oroshi(&["history", "show", dir]);
    assert!(pipe.code == Some(2) && pipe.err.contains("it is no regular file"), "a pipe holds up nothing: {pipe:?}");
    fs::remove_file(&file).unwrap();
    fs::write(folder.path().join("README.md"), "what this is").unwrap();
    let empty = oroshi(&["history", "show", dir]);
    assert!(empty.code == Some(2) && empty.err.contains("nothing in it"), "{empty:?}");
    let missing = oroshi(&["history", "show", "/nonexistent/perf"]);
    assert!(missing.code == Some(2) && missing.err.contains("/nonexistent/perf cannot be read"), "{missing:?}");
    let no_result = oroshi(&["history", "add", dir, "/dev/null", "--commit", "a", "--date", "2026-01-01"]);
    assert!(no_result.code == Some(2) && no_result.err.contains("no JSON"), "{no_result:?}");
}

/// The sample of Otava's documentation, with its step.
fn otava_csv(path: &Path) {
    let mut csv = String::from("time,commit,metric1,metric2\n");
    for index in 0..20_usize {
        let (one, other) = (if index < 12 { 154_000.0 } else { 120_000.0 } * scatter(index), 10.4 * scatter(index + 3));
        csv += &format!("2024.01.{:02} 3:00:00 +0100,aaa{index},{one},{other}\n", index + 1);
    }
    fs::write(path, csv).unwrap();
}

#[test]
fn csv_of_otava_comes_and_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    otava_csv(&folder.path().join("local.csv"));
    let (perf, csv, out) = (path("perf"), path("local.csv"), path("out"));
    let imported = oroshi(&["history", "import", &perf, &csv, "--lower", "metric2"]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert!(oroshi(&["history", "import", &perf, &csv, "--lower", "metric2"]).err.contains("20 are already"));
    let turned = oroshi(&["history", "import", &perf, &csv]);
    assert!(turned.code == Some(2) && turned.err.contains("with another direction of metric2"), "{turned:?}");
    let shown = oroshi(&["history", "show", &perf]);
    assert!(shown.out.contains("worse  local: metric1: -22") && shown.out.contains("at aaa12 "), "{shown:?}");
    assert!(!shown.out.contains("local: metric2: "), "{shown:?}");
    // Branches that imported it in different ways were merged.
    let mixed = path("mixed");
    fs::create_dir(&mixed).unwrap();
    for (name, is_turned) in [("a.json", false), ("b.json", true)] {
        let first = fs::read_dir(&perf).unwrap().next().unwrap().unwrap().path();
        let mut entry: Value = serde_json::from_str(&fs::read_to_string(first).unwrap()).unwrap();
        entry["subjects"][0]["figures"]["metric2"]["higher_is_better"] = is_turned.into();
        fs::write(Path::new(&mixed).join(name), entry.to_string()).unwrap();
    }
    let shown = oroshi(&["history", "show", &mixed]);
    let why = "b.json have different directions of local: metric2";
    assert!(shown.code == Some(2) && shown.err.contains("a.json and ") && shown.err.contains(why), "{shown:?}");
    let wrong = oroshi(&["history", "import", &perf, &csv, "--time-column", "when"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("no column `when`"), "{wrong:?}");
    let exported = oroshi(&["history", "export", &perf, &out]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    let files: Vec<String> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    let yaml = fs::read_to_string(folder.path().join("out/otava.yaml")).unwrap();
    assert!(yaml.starts_with("tests:\n  local-") && yaml.contains("direction: 1\n"), "{yaml}");
}
