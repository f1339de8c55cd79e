//! The commit of results: as named, or as checked out, with the changes that the tree has beside it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use oroshi_history::Commit;
use oroshi_history::entry::{digest, digest_of};
use oroshi_history::otava;
use oroshi_history::series::short;
use oroshi_words::printable;
use serde_json::json;

use crate::git::git;
use crate::{lab, say};

/// Of so many bytes of changed files the content counts; of further files size and time.
const MOST_BYTES: u64 = 1 << 30;

/// Returns the whole hash of a tag or branch of the repository here, or the name itself. `HEAD+` is the commit with
/// changes.
pub(super) fn resolved(name: String) -> String {
    let whole = |name: &str| {
        let commit = format!("{name}^{{commit}}");
        git(Path::new("."), &["rev-parse", "--verify", "--quiet", "--end-of-options", &commit])
    };
    if let Ok(id) = whole(&name) {
        return id;
    }
    let tree = name.rsplit_once('+').and_then(|(id, difference)| Some(format!("{}+{difference}", whole(id).ok()?)));
    tree.unwrap_or(name)
}

/// Finds the commit of results: as named, or the one that is checked out in the repository of the folder. `own`: files
/// and folders that are no change of the tree.
pub(super) fn commit(
    name: Option<&str>,
    date: Option<&str>,
    folder: &Path,
    own: &[&Path],
) -> Result<Commit, Vec<String>> {
    let wrong = |what: String| vec![what];
    let dated = date
        .map(|text| {
            otava::parse_time(text).ok_or_else(|| {
                wrong(format!("--date: `{text}` is no date: expected 2026-03-01, with or without 14:05:00, or seconds"))
            })
        })
        .transpose()?;
    let of = format!("{}^{{commit}}", name.unwrap_or("HEAD"));
    match (git(folder, &["rev-parse", "--verify", "--quiet", "--end-of-options", &of]), name) {
        (Ok(id), _) => {
            let told = git(folder, &["show", "--no-patch", "--format=%ct%n%s", &id]).map_err(wrong)?;
            let (seconds, subject) = told.split_once('\n').unwrap_or((&told, ""));
            let unix_s = dated.or_else(|| seconds.parse().ok()).unwrap_or_default();
            let difference = if name.is_none() { difference(folder, own).map_err(wrong)? } else { None };
            let commit = Commit {
                number: number(folder, &id),
                id,
                unix_s,
                subject: subject.chars().take(200).collect(),
                changed: difference.is_some(),
                difference: difference.as_ref().map(|difference| difference.digest.clone()),
            };
            if let Some(difference) = difference {
                say(&format!(
                    "the tree has changes ({}), so it counts as {}, beside the commit; --commit HEAD names the commit",
                    printable(&difference.words),
                    short(&commit)
                ));
            }
            Ok(commit)
        }
        (Err(_), Some(name)) => match dated {
            Some(unix_s) if !name.is_empty() && name.len() <= 200 => {
                Ok(Commit { id: name.to_owned(), unix_s, ..Commit::default() })
            }
            Some(_) => Err(wrong("--commit: expected a name of 1 to 200 characters".into())),
            None => Err(wrong(format!(
                "--commit: `{name}` is no commit of a git repository here: expected --date DATE as well"
            ))),
        },
        (Err(_), None) => Err(wrong(
            "--commit: there is no git repository with a commit here: expected --commit NAME and --date DATE".into(),
        )),
    }
}

/// Returns the number of first parents up to a commit; `None` in a shallow clone, which lacks most of them.
fn number(folder: &Path, id: &str) -> Option<u64> {
    let is_shallow = git(folder, &["rev-parse", "--is-shallow-repository"]).ok()?;
    if is_shallow != "false" {
        return None;
    }
    git(folder, &["rev-list", "--count", "--first-parent", id]).ok()?.parse().ok()
}

/// Changes of a tree that its commit lacks.
struct Difference {
    digest: String,
    /// The first file, and the number of others.
    words: String,
}

/// Looks for files that differ from the commit, and for new ones that git does not ignore.
fn difference(folder: &Path, own: &[&Path]) -> Result<Option<Difference>, String> {
    // A repository without a tree has no changes.
    let Ok(top) = git(folder, &["rev-parse", "--show-toplevel"]).map(PathBuf::from) else { return Ok(None) };
    // A history in the top folder does not hide the sources beside it.
    let is_below = |path: &PathBuf| !top.starts_with(path);
    let own: Vec<PathBuf> = own.iter().filter_map(|path| path.canonicalize().ok()).filter(is_below).collect();
    let changed = git(&top, &["diff", "HEAD", "--name-only", "--no-renames", "-z"])?;
    let new = git(&top, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    let is_source = |name: &&str| {
        let path = top.join(name);
        // Results of experiments are no source, in whichever folder they were measured.
        let is_result = Path::new(name).components().any(|part| part.as_os_str() == lab::FOLDER);
        !name.is_empty() && !is_result && !own.iter().any(|own| path.starts_with(own))
    };
    let names: BTreeSet<&str> = changed.split('\0').chain(new.split('\0')).filter(is_source).collect();
    let Some(first) = names.first() else { return Ok(None) };
    let words = match names.len() {
        1 => (*first).to_owned(),
        more => format!("{first} and {} more", more - 1),
    };
    let mut left = MOST_BYTES;
    let files: Vec<[String; 2]> =
        names.iter().map(|name| [(*name).to_owned(), content(&top.join(name), &mut left)]).collect();
    Ok(Some(Difference { digest: digest(&json!(files).to_string())[..12].to_owned(), words }))
}

/// Describes what a path holds. `left`: how many bytes may still be read.
fn content(path: &Path, left: &mut u64) -> String {
    let Ok(metadata) = path.symlink_metadata() else { return "removed".into() };
    let kind = metadata.file_type();
    if kind.is_symlink() {
        let target = path.read_link().unwrap_or_default();
        return format!("link {}", target.display());
    }
    if kind.is_dir() {
        // A submodule, or a repository of its own.
        return format!("repository {}", git(path, &["rev-parse", "HEAD"]).unwrap_or_default());
    }
    if !kind.is_file() {
        return "special".into();
    }
    let (length, mode) = (metadata.len(), metadata.permissions().mode() & 0o111);
    let Some(rest) = left.checked_sub(length) else {
        return format!("large {mode:o} {length} {} {}", metadata.mtime(), metadata.mtime_nsec());
    };
    *left = rest;
    let read = File::open(path).and_then(|file| digest_of(file.take(length)));
    read.map_or_else(|error| format!("unreadable {:?}", error.kind()), |digest| format!("file {mode:o} {digest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_outside_of_git_needs_a_name_and_a_date() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name, date| commit(name, date, folder.path(), &[]);
        assert!(of(None, None).unwrap_err()[0].contains("--commit NAME and --date DATE"));
        assert!(of(Some("r1"), None).unwrap_err()[0].contains("expected --date"));
        assert!(of(Some("r1"), Some("soon")).unwrap_err()[0].contains("`soon` is no date"));
        let named = of(Some("r1"), Some("2026-03-01")).unwrap();
        assert_eq!((named.id.as_str(), named.unix_s, named.changed), ("r1", 1_772_323_200.0, false));
    }

    #[test]
    fn the_content_of_files_counts_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut left = 5;
        assert_eq!(content(&path, &mut left), "removed");
        std::fs::write(&path, "one").unwrap();
        let first = content(&path, &mut left);
        std::fs::write(&path, "two").unwrap();
        assert_eq!(left, 2);
        assert!(content(&path, &mut left).starts_with("large "), "it has more than is left");
        let second = content(&path, &mut 5);
        assert!(first.starts_with("file ") && second.starts_with("file ") && first != second, "{first} {second}");
    }
}
