//! The files of the repository agree with each other: pages, experiments, kept results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "repository/packaging.rs"]
mod packaging;
#[path = "repository/pages.rs"]
mod pages;

/// The largest kept result, in bytes: each clone downloads all of them.
const MAX_RESULT_BYTES: u64 = 200_000;

/// The most lines of a Rust file, and the most columns of a comment.
const MAX_LINES: usize = 600;
const MAX_COLUMNS: usize = 120;

/// Folders that are built, or belong to others.
const NOT_OURS: [&str; 4] = ["target", "tmp", "pkg", "node_modules"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Returns the files below the folder whose name ends like this.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            if !name.starts_with('.') && !NOT_OURS.contains(&name.as_str()) {
                found.extend(files(&path, end));
            }
        } else if name.ends_with(end) {
            found.push(path);
        }
    }
    found
}

/// Removes blocks between lines of three backquotes.
fn without_blocks(page: &str) -> String {
    let mut inside = false;
    let outside = page.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    outside.collect::<Vec<_>>().join("\n")
}

#[test]
fn paths_in_pages_exist() {
    let root = root();
    let tops: Vec<String> = fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !NOT_OURS.contains(&name.as_str()))
        .collect();
    let mut checked = 0;
    let mut missing = Vec::new();
    for page in files(&root, ".md") {
        let text = without_blocks(&fs::read_to_string(&page).unwrap());
        for quoted in text.split('`').skip(1).step_by(2) {
            // A word such as `crates/*/src` or `{{dir}}/x` is a pattern.
            let words = quoted.split(|c: char| c.is_whitespace() || "()[]:,;'\"|".contains(c));
            for word in words.filter(|word| !word.contains(['*', '{', '<', '$', '…'])) {
                let Some((top, _)) = word.split_once('/') else { continue };
                if tops.iter().any(|name| name == top) {
                    checked += 1;
                    if !root.join(word).exists() {
                        missing.push(format!("{}: `{word}`", page.strip_prefix(&root).unwrap().display()));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "these paths do not exist:\n{}", missing.join("\n"));
    assert!(checked > 50, "only {checked} paths were found");
}

#[test]
fn no_text_stands_twice_in_an_experiment() {
    let mut texts = 0;
    for file in files(&root().join("experiments"), ".toml") {
        let experiment = fs::read_to_string(&file).unwrap();
        let mut seen = BTreeMap::new();
        for quotes in ["\"\"\"", "'''"] {
            for text in experiment.split(quotes).skip(1).step_by(2) {
                texts += 1;
                let line =
                    1 + experiment[..text.as_ptr() as usize - experiment.as_ptr() as usize].matches('\n').count();
                if let Some(first) = seen.insert(text, line) {
                    panic!("{}: line {line} repeats the text of line {first}: move it to [files]", file.display());
                }
            }
        }
    }
    assert!(texts > 20, "only {texts} texts were found");
}

#[test]
fn kept_results_are_small() {
    let kept = files(&root().join("docs/benchmarks"), ".json");
    assert!(kept.len() > 10, "{kept:?}");
    for file in kept {
        let bytes = file.metadata().unwrap().len();
        assert!(bytes <= MAX_RESULT_BYTES, "{} has {bytes} bytes: expected {MAX_RESULT_BYTES} at most", file.display());
    }
}

/// CONTRIBUTING.md promises both. rustfmt leaves comments as they are.
#[test]
fn files_are_short_and_comments_narrow() {
    let mut wrong = Vec::new();
    for path in files(&root(), ".rs") {
        let text = fs::read_to_string(&path).unwrap();
        if text.lines().count() > MAX_LINES {
            wrong.push(format!("{}: {} lines", path.display(), text.lines().count()));
        }
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") && line.chars().count() > MAX_COLUMNS {
                wrong.push(format!("{}:{}: {} columns", path.display(), number + 1, line.chars().count()));
            }
        }
    }
    assert!(wrong.is_empty(), "expected at most {MAX_LINES} lines and {MAX_COLUMNS} columns:\n{}", wrong.join("\n"));
}
