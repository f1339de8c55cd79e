//! The file of a command, with size and time, so that a later experiment can tell whether it changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::result::Program;

/// Returns the file that a command's first word starts, with these variables in this folder; `None` if there is none.
pub(crate) fn find(word: &str, env: &[(String, String)], folder: &Path) -> Option<Program> {
    if word.contains('/') {
        return program(&folder.join(word));
    }
    let own = env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, value)| value.into());
    let path = own.or_else(|| std::env::var_os("PATH"))?;
    std::env::split_paths(&path).find_map(|below| program(&folder.join(below).join(word)))
}

fn program(path: &Path) -> Option<Program> {
    let path: PathBuf = path.canonicalize().ok()?;
    let file = fs::metadata(&path).ok()?;
    if !file.is_file() || file.permissions().mode() & 0o111 == 0 {
        return None;
    }
    let modified = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Program { path: path.display().to_string(), bytes: file.len(), modified_unix_s: modified.as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_file_is_the_one_that_would_be_started() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let file = |name: &str, mode: u32| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let (locked, real) = (file("a/serve", 0o644), file("b/serve-1.2", 0o755));
        symlink("serve-1.2", root.join("b/serve")).unwrap();
        let path_of = |word: &str, env: &[(String, String)]| find(word, env, &root).map(|program| program.path);
        // Searches this PATH, as the started process does, and skips files that are not executable.
        let env = [("PATH".to_owned(), format!("{0}/a:{0}/b", root.display()))];
        assert_eq!(path_of("serve", &env), Some(real.clone()));
        assert_eq!(path_of("serve", &[]), None);
        assert_eq!(path_of("b/serve", &[]), Some(real.clone()), "from the working folder");
        assert_eq!((path_of(&locked, &env), path_of(root.to_str().unwrap(), &env)), (None, None));
        let found = find(&real, &[], Path::new("/")).unwrap();
        assert_eq!(found.bytes, 10);
        assert!(found.modified_unix_s > 1.6e9, "{found:?}");
        assert!(find("sh", &[], Path::new("/")).is_some());
    }
}
