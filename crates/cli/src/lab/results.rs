//! Runs an experiment and keeps its result: `result.json`, `report.html`, and the servers' output.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use oroshi_lab::{Experiment, LabError, LabResult, Tools};
use oroshi_net::Shutdown;
use oroshi_words::Date;
use oroshi_words::hidden;
use serde::Deserialize;

use crate::interrupt::{self, Temporary};
use crate::lab_live::LabLive;

/// The default folder of results.
pub(crate) const FOLDER: &str = "oroshi-results";
pub(super) const DATA: &str = "result.json";
const PAGE: &str = "report.html";
const OUTPUT: &str = "output";

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResultsError {
    /// Choose another folder or file.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Name another folder with --out, or move the file away.
    #[error(
        "{} is in the way: {} holds no result of `oroshi lab run` that could be replaced; \
         name another folder with --out, or move that away",
        path.display(), folder.display()
    )]
    InTheWay {
        /// The file that would be overwritten.
        path: PathBuf,
        /// The folder for the result.
        folder: PathBuf,
    },
    /// The result cannot be written as JSON: a defect.
    #[error("the result cannot be written as JSON")]
    ToJson(#[source] serde_json::Error),
    /// This program's own file is gone.
    #[error("cannot find this program")]
    Program(#[source] io::Error),
    /// The experiment failed.
    #[error(transparent)]
    Lab(#[from] LabError),
}

impl ResultsError {
    /// 130 when Ctrl-C came before there was a result, 2 for an invalid folder, 1 when the work failed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Lab(LabError::Cancelled) => interrupt::EXIT_CODE,
            Self::InTheWay { .. } => 2,
            _ => 1,
        }
    }
}

/// Runs the experiment with a live line on the terminal. Servers and load programs write into `output`, an existing
/// folder.
///
/// # Errors
/// There is no result.
pub(crate) fn measure(experiment: Experiment, output: &Path, shutdown: Shutdown) -> Result<LabResult, ResultsError> {
    let oroshi = std::env::current_exe().map_err(ResultsError::Program)?;
    let keeper = vec![oroshi.clone().into_os_string(), "keep".into()];
    let output = output.canonicalize().map_err(|source| ResultsError::Write { path: output.to_owned(), source })?;
    let tools = Tools { keeper, oroshi, output };
    let mut live = LabLive::new(shutdown);
    let result = oroshi_lab::run(experiment, &tools, &mut live);
    live.finish();
    let mut result = result?;
    for command in result.cells.iter_mut().flat_map(|cell| &mut cell.runs).filter_map(|run| run.command.as_mut()) {
        command.words = hidden::program(std::mem::take(&mut command.words));
    }
    Ok(result)
}

/// The files of a result.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// All data, as JSON.
    pub(super) data: PathBuf,
    /// The page.
    pub(super) page: PathBuf,
}

/// A folder for a result. An earlier result in it stays unchanged until [`ResultFolder::store`]; without that call, the
/// new files are removed.
#[derive(Debug)]
pub(super) struct ResultFolder {
    folder: PathBuf,
    /// The folder within, where the new result is prepared.
    part: PathBuf,
    /// The folder, or only the part if the folder existed before.
    made: Temporary,
}

impl ResultFolder {
    /// Creates the folder.
    ///
    /// # Errors
    /// A file that is no result would be overwritten, or the folder is not writable.
    pub(super) fn make(folder: PathBuf) -> Result<Self, ResultsError> {
        if let Some(path) = in_the_way(&folder) {
            return Err(ResultsError::InTheWay { path, folder });
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| ResultsError::Write { path, source }
        };
        let new = !folder.exists();
        fs::create_dir_all(&folder).map_err(failed(&folder))?;
        let made = new.then(|| Temporary::new(folder.clone()));
        let part = folder.join(format!("{OUTPUT}.{}", std::process::id()));
        fs::create_dir(&part).map_err(failed(&part))?;
        let made = made.unwrap_or_else(|| Temporary::new(part.clone()));
        Ok(Self { folder, part, made })
    }

    /// Returns an empty folder for the servers' output.
    pub(super) fn output(&self) -> &Path {
        &self.part
    }

    /// Keeps a result, and replaces an earlier one.
    ///
    /// # Errors
    /// The result cannot be written.
    pub(super) fn store(self, result: &LabResult) -> Result<Kept, ResultsError> {
        let json = serde_json::to_string(result).map_err(ResultsError::ToJson)? + "\n";
        let output = self.folder.join(OUTPUT);
        let path = output.clone();
        self.replace(&json, &oroshi_report::lab_page(result), &output)
            .map_err(|source| ResultsError::Write { path, source })?;
        let kept = Kept { data: self.folder.join(DATA), page: self.folder.join(PAGE) };
        self.made.keep();
        Ok(kept)
    }

    /// Writes everything before it touches the earlier result.
    fn replace(&self, json: &str, page: &str, output: &Path) -> io::Result<()> {
        for (name, text) in [(DATA, json), (PAGE, page)] {
            let mut file = File::create(self.part.join(name))?;
            file.write_all(text.as_bytes())?;
            // After a crash, the folder has the earlier result or this one.
            file.sync_all()?;
        }
        fs::create_dir_all(output)?;
        for entry in fs::read_dir(output)? {
            let entry = entry?;
            if is_log(&entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
        for entry in fs::read_dir(&self.part)? {
            let entry = entry?;
            let name = entry.file_name();
            let to = if name == DATA || name == PAGE { &self.folder } else { output };
            fs::rename(entry.path(), to.join(name))?;
        }
        fs::remove_dir(&self.part)
    }
}

/// Returns a file of a folder that would be overwritten and is no part of a result.
fn in_the_way(folder: &Path) -> Option<PathBuf> {
    if folder.exists() && !folder.is_dir() {
        return Some(folder.to_owned());
    }
    let (data, output) = (folder.join(DATA), folder.join(OUTPUT));
    if is_result(&data) {
        return (output.exists() && !output.is_dir()).then_some(output);
    }
    [data, folder.join(PAGE), output].into_iter().find(|path| path.symlink_metadata().is_ok())
}

/// Whether a file holds the result of an experiment, of any version.
fn is_result(path: &Path) -> bool {
    #[derive(Deserialize)]
    struct Head {
        schema: String,
    }
    let head = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Head>(&text).ok());
    head.is_some_and(|head| head.schema.starts_with("oroshi-lab/"))
}

/// Whether a file in the output folder is ours: `01-nginx.log`.
fn is_log(name: &str) -> bool {
    let (number, rest) = name.split_once('-').unwrap_or_default();
    number.len() >= 2 && number.bytes().all(|byte| byte.is_ascii_digit()) && rest.ends_with(".log")
}

/// Returns a folder that does not exist yet: `oroshi-results/keepalive-20260521-101500`.
pub(super) fn fresh_folder(name: &str) -> PathBuf {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let folder = Path::new(FOLDER).join(format!("{name}-{}", stamp(now)));
    let another = (2..).map(|n| Path::new(FOLDER).join(format!("{name}-{}-{n}", stamp(now))));
    std::iter::once(folder).chain(another).find(|folder| !folder.exists()).unwrap_or_default()
}

/// `20260521-101500`, UTC.
fn stamp(unix_s: u64) -> String {
    let Date { year, month, day, hour, minute, second } = Date::at(unix_s);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use oroshi_report::sample::lab as sample;

    #[test]
    fn a_folder_carries_the_date() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_399), "20000228-235959");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(4_107_542_400), "21000301-000000");
        assert!(fresh_folder("x").starts_with("oroshi-results"));
    }

    fn files(folder: &Path) -> Vec<String> {
        let mut files: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        files
    }

    #[test]
    fn a_result_takes_the_place_of_an_earlier_one_and_of_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/b");
        let store = |log: &str| {
            let made = ResultFolder::make(place.clone()).unwrap();
            fs::write(made.output().join(log), "a line").unwrap();
            made.store(&sample::two()).unwrap()
        };
        let kept = store("01-one.log");
        assert_eq!(files(&place), [OUTPUT, PAGE, DATA]);
        let read: LabResult = serde_json::from_slice(&fs::read(&kept.data).unwrap()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(sample::two()).unwrap());
        assert!(fs::read_to_string(&kept.page).unwrap().contains(&sample::two().title));
        // Files of others stay.
        for name in ["mine.log", "1-x.log", "02-notes.txt"] {
            fs::write(place.join(OUTPUT).join(name), "mine").unwrap();
        }
        fs::write(place.join("notes.txt"), "mine").unwrap();
        store("01-two.log");
        assert_eq!(files(&place.join(OUTPUT)), ["01-two.log", "02-notes.txt", "1-x.log", "mine.log"]);
        assert_eq!(files(&place), ["notes.txt", OUTPUT, PAGE, DATA]);
    }

    #[test]
    fn without_a_new_result_the_earlier_one_stays_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("x");
        let made = ResultFolder::make(place.clone()).unwrap();
        fs::write(made.output().join("01-one.log"), "a line").unwrap();
        drop(made);
        assert!(!place.exists());
        let made = ResultFolder::make(place.clone()).unwrap();
        fs::write(made.output().join("01-one.log"), "a line").unwrap();
        let kept = made.store(&sample::two()).unwrap();
        let before = fs::read(&kept.data).unwrap();
        let cancelled = ResultFolder::make(place.clone()).unwrap();
        fs::write(cancelled.output().join("01-two.log"), "a line").unwrap();
        drop(cancelled);
        assert_eq!(files(&place), [OUTPUT, PAGE, DATA]);
        assert_eq!(files(&place.join(OUTPUT)), ["01-one.log"]);
        assert_eq!(fs::read(&kept.data).unwrap(), before);
    }

    #[test]
    fn what_is_no_result_is_not_written_over() {
        for (name, text) in [
            (DATA, "{}"),
            (DATA, "no JSON"),
            (DATA, "{\"schema\": \"oroshi-bench/1.0\"}"),
            (PAGE, "<p>mine"),
            ("output/01-precious.log", "mine"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            let error = ResultFolder::make(folder.path().to_owned()).unwrap_err();
            let words = error.to_string();
            assert!(error.exit_code() == 2 && words.contains("is in the way") && words.contains("--out"), "{words}");
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert_eq!(files(folder.path()).len(), 1);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(ResultFolder::make(file.path().to_owned()), Err(ResultsError::InTheWay { .. })));
    }
}
