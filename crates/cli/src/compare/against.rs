//! A set-up beside itself as of an earlier commit: `--against REF`.
//!
//! The commit is checked out in a clone of its own, in the user's cache folder, and built there by `--build`. Then both
//! trees are compared in turn like any two set-ups. A repository has one such clone: the next commit replaces it.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oroshi_experiment::rules;

use super::variants::Typed;
use crate::say;

/// The name of the present tree, unless the set-up has one.
const PRESENT: &str = "this";

/// Why there are no two trees to compare.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgainstError {
    /// Install git, or repair the repository.
    #[error("git {what}: {why}")]
    Git {
        /// The subcommand.
        what: String,
        /// The message of git.
        why: String,
    },
    /// Correct the command, or the tree.
    #[error("--build: `{command}` failed in {}: {why}", folder.display())]
    Build {
        /// The command.
        command: String,
        /// Its folder.
        folder: PathBuf,
        /// How it ended.
        why: String,
    },
    /// Make room in the cache folder, or set XDG_CACHE_HOME to another.
    #[error("cannot keep the tree in {}", path.display())]
    Cache {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The two trees, not made yet.
#[derive(Clone, Debug)]
pub(super) struct Trees {
    /// The top of the repository.
    top: PathBuf,
    /// The present folder below the top.
    below: PathBuf,
    commit: String,
    /// The command that builds a tree, as typed, and as words.
    build: Option<(String, Vec<String>)>,
    /// The folder of the repository's clone.
    cache: PathBuf,
}

impl Trees {
    /// Finds the commit in the repository of the present folder. Changes nothing.
    ///
    /// # Errors
    /// All mistakes, each with its flag.
    pub(super) fn find(reference: &str, build: Option<&str>) -> Result<Self, Vec<String>> {
        let words = build.map(|build| match rules::words(build) {
            Ok(words) if words.first().is_some_and(|program| !program.trim().is_empty()) => {
                Ok((build.to_owned(), words))
            }
            Ok(_) => Err("--build: the command is empty: expected a program and its arguments".to_owned()),
            Err(error) => Err(format!("--build: {error}")),
        });
        let build = words.transpose().map_err(|problem| vec![problem])?;
        let find = || {
            let top = PathBuf::from(git(Path::new("."), &["rev-parse", "--show-toplevel"])?);
            let below = PathBuf::from(git(Path::new("."), &["rev-parse", "--show-prefix"])?);
            let commit = format!("{reference}^{{commit}}");
            let commit = git(Path::new("."), &["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]);
            let commit = commit.map_err(|_| {
                format!(
                    "--against: `{reference}` is no commit, tag or branch of {}: expected one that is there (a shallow \
                     clone lacks most: in CI fetch it, with fetch-depth: 0 or GIT_DEPTH: 0)",
                    top.display()
                )
            })?;
            Ok::<_, String>((top, below, commit))
        };
        let (top, below, commit) = find().map_err(|problem| vec![problem])?;
        let cache = cache_of(&top);
        Ok(Self { top, below, commit, build, cache })
    }

    /// Returns both set-ups, the earlier one first. `reference` names it.
    pub(super) fn set_ups(&self, present: Typed, reference: &str, is_named: bool) -> [Typed; 2] {
        let name = if is_named { present.name.clone() } else { PRESENT.to_owned() };
        let plain = |char: char| if char.is_ascii_alphanumeric() || "-_.".contains(char) { char } else { '-' };
        let mut earlier: String = reference.chars().map(plain).collect();
        if earlier == name {
            earlier.push_str("-before");
        }
        let folder = Some(self.earlier().join(&self.below));
        [Typed { name: earlier, folder, ..present.clone() }, Typed { name, ..present }]
    }

    /// Makes the earlier tree, unless it is there, and builds both. Until the returned file is dropped, no other
    /// process replaces the tree.
    ///
    /// # Errors
    /// git or the build fails.
    pub(super) fn make(&self) -> Result<File, AgainstError> {
        let cache = |source| AgainstError::Cache { path: self.cache.clone(), source };
        fs::create_dir_all(&self.cache).map_err(cache)?;
        let lock = File::create(self.cache.join("lock")).map_err(cache)?;
        lock.lock().map_err(cache)?;
        self.make_earlier()?;
        if let Some((text, words)) = &self.build {
            build(text, words, &self.top.join(&self.below))?;
        }
        Ok(lock)
    }

    fn make_earlier(&self) -> Result<(), AgainstError> {
        let cache = |source| AgainstError::Cache { path: self.cache.clone(), source };
        let (tree, mark) = (self.earlier(), self.cache.join("built"));
        // Written last: a tree without it is not whole.
        let wanted = format!("{}\n{}\n", self.commit, self.build.as_ref().map_or("", |(text, _)| text));
        if tree.is_dir() && fs::read_to_string(&mark).is_ok_and(|built| built == wanted) {
            return Ok(());
        }
        remove(&mark).map_err(cache)?;
        for entry in fs::read_dir(&self.cache).map_err(cache)? {
            let path = entry.map_err(cache)?.path();
            if path.is_dir() {
                fs::remove_dir_all(&path).map_err(cache)?;
            }
        }
        say(&format!("checking out {} in {}", &self.commit[..self.commit.len().min(12)], tree.display()));
        let (from, to) = (self.top.to_string_lossy(), tree.to_string_lossy());
        let run = |folder: &Path, arguments: &[&str]| {
            git(folder, arguments).map_err(|why| AgainstError::Git { what: arguments[0].to_owned(), why })
        };
        run(&self.top, &["clone", "--quiet", "--no-checkout", "--", &from, &to])?;
        // A clone of a shallow clone lacks commits that only a remote branch has.
        run(&tree, &["checkout", "--quiet", "--detach", &self.commit]).map_err(|error| match error {
            AgainstError::Git { what, why } => {
                let why = format!("{why}; in a shallow clone fetch all history first (fetch-depth: 0, GIT_DEPTH: 0)");
                AgainstError::Git { what, why }
            }
            error => error,
        })?;
        if let Some((text, words)) = &self.build {
            build(text, words, &tree.join(&self.below))?;
        }
        fs::write(&mark, wanted).map_err(cache)
    }

    fn earlier(&self) -> PathBuf {
        self.cache.join(&self.commit)
    }
}

/// The clone's folder: in the user's cache folder, named after the repository.
fn cache_of(top: &Path) -> PathBuf {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let caches = absolute("XDG_CACHE_HOME").or_else(home).unwrap_or_else(std::env::temp_dir);
    let mut hasher = DefaultHasher::new();
    top.hash(&mut hasher);
    let name = top.file_name().unwrap_or_default().to_string_lossy().into_owned();
    caches.join("oroshi/against").join(format!("{name}-{:016x}", hasher.finish()))
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Builds a tree. What the command writes goes to standard error.
fn build(text: &str, words: &[String], folder: &Path) -> Result<(), AgainstError> {
    let failed = |why: String| AgainstError::Build { command: text.to_owned(), folder: folder.to_owned(), why };
    say(&format!("building in {}: {text}", folder.display()));
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(io::stderr());
    let status = command.status().map_err(|error| failed(format!("cannot start {program}: {error}")))?;
    if status.success() { Ok(()) } else { Err(failed(format!("it ended with {status}"))) }
}

/// Runs git in a folder; its message names the flag.
fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    crate::git::git(folder, arguments).map_err(|why| format!("--against: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trees() -> Trees {
        Trees {
            top: "/src/app".into(),
            below: "web".into(),
            commit: "0123456789abcdef".into(),
            build: None,
            cache: "/cache/app".into(),
        }
    }

    fn typed(name: &str) -> Typed {
        let start = Some(vec!["./app".to_owned()]);
        Typed { name: name.into(), start, urls: vec!["http://h/".into()], folder: None }
    }

    #[test]
    fn both_run_the_same_command_in_their_own_trees() {
        let [earlier, present] = trees().set_ups(typed("A"), "origin/main", false);
        assert_eq!((earlier.name.as_str(), present.name.as_str()), ("origin-main", "this"));
        assert_eq!(earlier.folder, Some(PathBuf::from("/cache/app/0123456789abcdef/web")));
        assert_eq!((present.folder.as_ref(), earlier.start), (None, present.start));
    }

    #[test]
    fn names_differ() {
        let [earlier, present] = trees().set_ups(typed("main"), "main", true);
        assert_eq!((earlier.name.as_str(), present.name.as_str()), ("main-before", "main"));
    }

    #[test]
    fn repositories_of_one_name_have_different_caches() {
        let [one, other] = ["/a/app", "/b/app"].map(|top| cache_of(Path::new(top)));
        assert_ne!(one, other);
        assert!(one.file_name().unwrap().to_string_lossy().starts_with("app-"), "{one:?}");
    }
}
