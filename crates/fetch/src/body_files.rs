//! Body files, named after the line and the URL. A file is complete or absent.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The longest name, in bytes: every file system allows 255, and unfinished files have longer names.
const LONGEST: usize = 150;

/// The suffix of an unfinished file's name.
const UNFINISHED: &str = ".part";

/// The folder of body files.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

/// An unfinished body file. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct BodyFile {
    file: File,
    unfinished: PathBuf,
    path: PathBuf,
}

impl Folder {
    /// Opens the folder, and creates it if it is missing.
    ///
    /// # Errors
    /// It cannot be created, or is no folder.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Folder(path.to_owned()))
    }

    /// Creates a file of this name. Replaces an earlier run's unfinished file.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn begin(&self, name: &str) -> io::Result<BodyFile> {
        let path = self.0.join(name);
        let unfinished = self.0.join(format!("{name}{UNFINISHED}"));
        // A new file, whatever has its name: a link would lead elsewhere.
        let open = || OpenOptions::new().write(true).create_new(true).open(&unfinished);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&unfinished)?;
                open()
            }
            opened => opened,
        }?;
        Ok(BodyFile { file, unfinished, path })
    }
}

impl BodyFile {
    pub(crate) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)
    }

    /// Gives the complete body its name, and replaces any file of that name.
    pub(crate) fn finish(self) -> io::Result<()> {
        fs::rename(&self.unfinished, &self.path)
    }
}

impl Drop for BodyFile {
    fn drop(&mut self) {
        // A finished file no longer has this name.
        let _ = fs::remove_file(&self.unfinished);
    }
}

/// Returns the name for the body of a line: `00000042-example.org_a_b.html`. The number makes it unique and gives it
/// the list's order. Only letters, digits, `.`, `-` and `_` of the URL remain, so no URL leads out of the folder.
pub(crate) fn name(n: u64, url: &str) -> String {
    let shown = url.split_once("://").map_or(url, |(_, rest)| rest);
    let shown = shown.split('#').next().unwrap_or_default().trim_end_matches('/');
    let mut name = format!("{n:08}-");
    for character in shown.chars() {
        if name.len() == LONGEST {
            break;
        }
        name.push(if character.is_ascii_alphanumeric() || ".-_".contains(character) { character } else { '_' });
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_where_a_body_is_from() {
        for (n, url, expected) in [
            (42, "http://example.org/a/b.html", "00000042-example.org_a_b.html"),
            (1, "https://example.org:8443/", "00000001-example.org_8443"),
            (1, "http://h/a?b=c&d#e", "00000001-h_a_b_c_d"),
            (123_456_789, "unix:/run/app.sock:/x", "123456789-unix__run_app.sock__x"),
            (1, "", "00000001-"),
        ] {
            assert_eq!(name(n, url), expected);
        }
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let long = format!("http://h/{}", "x".repeat(1000));
        for url in ["..", "../../etc/passwd", "http://../..", "/etc/passwd", "a\0b", "\u{e4}\n", "%2e%2e%2f", &long] {
            let name = name(3, url);
            assert!(name.starts_with("00000003-") && name.len() <= LONGEST, "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)), "{name}");
        }
    }

    #[test]
    fn a_body_is_there_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(&place.path().join("new/folder")).unwrap();
        let names = || fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        let mut cut = folder.begin("a").unwrap();
        cut.write(b"half of").unwrap();
        assert_eq!(names(), ["a.part"]);
        drop(cut);
        assert!(names().is_empty());
        for text in ["first", "second"] {
            let mut whole = folder.begin("a").unwrap();
            whole.write(text.as_bytes()).unwrap();
            whole.finish().unwrap();
            assert_eq!((names(), fs::read_to_string(folder.0.join("a")).unwrap()), (vec!["a".into()], text.to_owned()));
        }
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (folder, outside) = (Folder::open(&place.path().join("in")).unwrap(), place.path().join("outside"));
        fs::write(&outside, "untouched").unwrap();
        for link in ["a.part", "a"] {
            std::os::unix::fs::symlink(&outside, folder.0.join(link)).unwrap();
        }
        let mut file = folder.begin("a").unwrap();
        file.write(b"body").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "untouched");
        assert!(!folder.0.join("a").is_symlink());
    }
}
