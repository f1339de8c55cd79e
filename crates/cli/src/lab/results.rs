//! An experiment carried out, and what is kept of it: `result.json`, `report.html`, and what the servers wrote.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use oroshi_lab::result::{CellResult, SCHEMA};
use oroshi_lab::{Experiment, LabResult};
use oroshi_lab::{LabError, Tools};
use oroshi_net::Shutdown;
use oroshi_stats::compare::Verdict;
use oroshi_words::Date;

use crate::interrupt;
use crate::lab_live::LabLive;
use crate::lab_text::cell_name;

/// A verdict came out against the user.
pub(super) const EXIT_VERDICT: u8 = 3;
/// Where results go when nothing else is said.
const FOLDER: &str = "oroshi-results";
const DATA: &str = "result.json";
const PAGE: &str = "report.html";
const OUTPUT: &str = "output";

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResultsError {
    /// Choose another folder or file.
    #[error("{} cannot be written", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Correct the path.
    #[error("{} cannot be read", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Name a result.json of `oroshi lab run`.
    #[error("{} is no result of an experiment: expected a {DATA} that `oroshi lab run` has written", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// Where it is not.
        source: serde_json::Error,
    },
    /// Take the version of oroshi that wrote it.
    #[error("{} is of schema {found}: this version reads {SCHEMA}", path.display())]
    Schema {
        /// Which file.
        path: PathBuf,
        /// Its schema.
        found: String,
    },
    /// The result could not be put into JSON: a defect.
    #[error("the result cannot be written as JSON")]
    ToJson(#[source] serde_json::Error),
    /// This program's own file is gone.
    #[error("cannot find this program")]
    Program(#[source] io::Error),
    /// It could not be run.
    #[error(transparent)]
    Lab(#[from] LabError),
}

impl ResultsError {
    /// 130 when Ctrl-C came before there was a result, 2 when what was to be read is not there, 1 when the work failed.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Lab(LabError::Cancelled) => interrupt::EXIT_CODE,
            Self::Read { .. } | Self::Json { .. } | Self::Schema { .. } => 2,
            _ => 1,
        }
    }
}

/// Files that hold a result.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// All of it, as JSON.
    pub(crate) data: PathBuf,
    /// The page.
    pub(crate) page: PathBuf,
}

/// Carries it out, with a live line on the terminal. The servers' output goes into the folder, which is made.
///
/// # Errors
/// When there is no result.
pub(crate) fn measure(experiment: Experiment, folder: &Path, shutdown: Shutdown) -> Result<LabResult, ResultsError> {
    let output = folder.join(OUTPUT);
    let failed = |source| ResultsError::Write { path: output.clone(), source };
    fs::create_dir_all(&output).map_err(failed)?;
    // Of an earlier run into the same folder: output is appended.
    for entry in fs::read_dir(&output).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == "log") {
            fs::remove_file(&path).map_err(failed)?;
        }
    }
    let oroshi = std::env::current_exe().map_err(ResultsError::Program)?;
    let keeper = vec![oroshi.clone().into_os_string(), "keep".into()];
    let tools = Tools { keeper, oroshi, output: output.canonicalize().map_err(failed)? };
    let mut live = LabLive::new(shutdown);
    let result = oroshi_lab::run(experiment, &tools, &mut live);
    live.finish();
    if result.is_err() {
        // Folders with something in them stay.
        let _ = fs::remove_dir(&output).and_then(|()| fs::remove_dir(folder));
    }
    Ok(result?)
}

/// Keeps a result in a folder.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn store(result: &LabResult, folder: &Path) -> Result<Kept, ResultsError> {
    let kept = Kept { data: folder.join(DATA), page: folder.join(PAGE) };
    let json = serde_json::to_string(result).map_err(ResultsError::ToJson)? + "\n";
    fs::write(&kept.data, json).map_err(|source| ResultsError::Write { path: kept.data.clone(), source })?;
    write_page(result, &kept.page)?;
    Ok(kept)
}

/// Draws the page.
pub(super) fn write_page(result: &LabResult, path: &Path) -> Result<(), ResultsError> {
    let page = oroshi_report::lab_page(result);
    fs::write(path, page).map_err(|source| ResultsError::Write { path: path.to_owned(), source })
}

/// Reads a kept result: its file, or the folder it is in.
pub(super) fn load(path: &Path) -> Result<LabResult, ResultsError> {
    let path = if path.is_dir() { path.join(DATA) } else { path.to_owned() };
    let text = fs::read(&path).map_err(|source| ResultsError::Read { path: path.clone(), source })?;
    let parsed = serde_json::from_slice::<LabResult>(&text);
    // What makes it unreadable may be its version.
    let schema = |value: serde_json::Value| value.get("schema").and_then(|s| s.as_str()).map(str::to_owned);
    let found = serde_json::from_slice(&text).ok().and_then(schema).unwrap_or_default();
    let major = |schema: &str| schema.split('.').next().map(str::to_owned);
    if found.starts_with("oroshi-lab/") && major(&found) != major(SCHEMA) {
        return Err(ResultsError::Schema { path, found });
    }
    parsed.map_err(|source| ResultsError::Json { path, source })
}

/// A folder that is not there yet: `oroshi-results/keepalive-20260521-101500`.
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

/// How it ended as far as comparing went: 0 when there is something to tell; otherwise a code and why.
pub(super) fn outcome(result: &LabResult) -> (u8, Option<&'static str>) {
    let cells = &result.cells;
    let compared = cells.iter().flat_map(|cell| &cell.comparisons).any(|comparison| comparison.ratio.is_some());
    let asked = cells.iter().any(|cell| cell.variants.len() > 1);
    let measured = cells.iter().any(|cell| !cell.runs.is_empty());
    if compared || (!asked && measured) {
        return (0, None);
    }
    let variants_failed = |cell: &CellResult| cell.variants.iter().any(|variant| variant.failed.is_some());
    if cells.iter().any(variants_failed) {
        (1, Some("error: nothing could be compared: variants failed"))
    } else if result.cut_short {
        (interrupt::EXIT_CODE, Some("ended by Ctrl-C before there was enough to compare"))
    } else {
        (1, Some("error: nothing could be compared; the report says why"))
    }
}

/// The primary metric's verdicts beside the first of each group, with where they came out.
pub(super) fn judged(result: &LabResult) -> Vec<(Verdict, String)> {
    let Some(primary) = result.metrics.first() else { return Vec::new() };
    let sweep = result.sweep.as_ref().map(|sweep| (sweep.label.as_str(), sweep.values.as_slice()));
    let mut judged = Vec::new();
    for cell in &result.cells {
        let name = cell_name(&cell.group, cell.point, sweep);
        let place = if name.is_empty() { name } else { format!("{name}: ") };
        let on_first = cell.comparisons.iter().filter(|c| c.metric == primary.metric && c.base == 0);
        judged.extend(on_first.map(|c| (c.verdict, format!("{place}{}", c.words))));
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab_text::sample;

    #[test]
    fn a_folder_carries_the_date() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_399), "20000228-235959");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(4_107_542_400), "21000301-000000");
        assert!(fresh_folder("x").starts_with("oroshi-results"));
    }

    #[test]
    fn a_result_is_kept_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let result = sample::two();
        let kept = store(&result, folder.path()).unwrap();
        for path in [folder.path(), &kept.data] {
            let read = load(path).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&result).unwrap());
        }
        assert!(fs::read_to_string(&kept.page).unwrap().contains(&result.title));
        fs::write(&kept.data, "{\"schema\": \"oroshi-lab/99.0\"}").unwrap();
        assert!(load(folder.path()).unwrap_err().to_string().contains("99.0"));
        fs::write(&kept.data, "{\"schema\": \"oroshi-bench/1.0\"}").unwrap();
        assert!(load(folder.path()).unwrap_err().to_string().contains("is no result"));
        assert!(matches!(load(Path::new("/nonexistent")), Err(ResultsError::Read { .. })));
    }

    #[test]
    fn a_result_without_a_comparison_is_a_failure_of_something() {
        let mut result = sample::two();
        let code = |result: &LabResult| outcome(result).0;
        let failure = oroshi_lab::result::Failure { block: 4, why: "it ended".into(), output: Vec::new() };
        result.cells[0].variants[1].failed = Some(failure);
        assert_eq!(code(&result), 0, "it had been compared before");
        result.cells[0].comparisons.clear();
        assert_eq!(code(&result), 1);
        result.cells[0].variants[1].failed = None;
        assert_eq!(code(&result), 1, "latencies at different rates, say");
        result.cut_short = true;
        assert_eq!(code(&result), 130);
        result.cells[0].variants.truncate(1);
        assert_eq!(
            code(&result),
            if result.cells[0].runs.is_empty() { 130 } else { 0 },
            "there was nothing to compare"
        );
    }

    #[test]
    fn verdicts_say_where_they_came_out() {
        let result = sample::groups();
        let judged = judged(&result);
        let expected: usize = result
            .cells
            .iter()
            .map(|cell| cell.comparisons.iter().filter(|c| c.base == 0 && c.metric == result.metrics[0].metric).count())
            .sum();
        assert_eq!(judged.len(), expected);
        assert!(judged[0].1.starts_with(&format!("{}: ", result.cells[0].group)), "{judged:?}");
    }
}
