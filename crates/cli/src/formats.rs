//! The formats of a comparison's report, and the files beside it.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use oroshi_lab::LabResult;
use oroshi_lab::baseline::BaselineComparison;
use oroshi_report::ci::{self, Finding};
use oroshi_report::paint::Paint;
use oroshi_report::text;
use serde::Serialize;

use crate::bench;
use crate::output::Output as OutputFile;

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// All data.
    Json,
    /// For summaries and comments of GitHub and GitLab.
    Markdown,
    /// The text, folded, and GitHub's annotations.
    Github,
    /// A test case for each verdict, as JUnit's XML.
    Junit,
}

/// A report beside the main one: `junit=report.xml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Also<F = Format> {
    pub(crate) format: F,
    pub(crate) path: PathBuf,
}

/// A file for such a report, opened before the run.
#[derive(Debug)]
pub(crate) struct AlsoFile {
    path: PathBuf,
    file: OutputFile,
}

/// The content of reports.
pub(crate) struct Subject<'r> {
    pub(crate) result: &'r LabResult,
    pub(crate) findings: &'r [Finding],
    /// The comparison with a saved result, and its file.
    pub(crate) against: Option<(&'r BaselineComparison, &'r Path)>,
}

/// A result in JSON: the format of `lab`, with the comparison with a saved result.
#[derive(Serialize)]
struct Data<'r> {
    #[serde(flatten)]
    result: &'r LabResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<&'r BaselineComparison>,
}

impl Subject<'_> {
    /// Writes the report. `paint` is for text.
    ///
    /// # Errors
    /// The result cannot be written as JSON.
    pub(crate) fn report(&self, format: Format, paint: Paint) -> Result<String, bench::Error> {
        let Self { result, findings, against } = *self;
        Ok(match format {
            Format::Text => {
                let report = text::lab(result, paint);
                report + &against.map_or(String::new(), |(rows, file)| text::against(rows, result, file, paint))
            }
            Format::Json => {
                let data = Data { result, against: against.map(|(rows, _)| rows) };
                serde_json::to_string_pretty(&data).map_err(bench::Error::Json)? + "\n"
            }
            Format::Markdown => ci::markdown(result, findings),
            Format::Github => {
                // Seeded by the system: no server can guess it.
                let token = format!("oroshi-{:016x}", RandomState::new().hash_one(std::process::id()));
                ci::github(result, findings, &self.report(Format::Text, Paint::PLAIN)?, &token)
            }
            Format::Junit => ci::junit(result, findings),
        })
    }
}

impl<F> Also<F> {
    /// Opens the file, so that an unwritable one is reported before the run.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn open(&self) -> Result<AlsoFile, bench::Error> {
        Ok(AlsoFile { path: self.path.clone(), file: bench::open(&self.path)? })
    }
}

impl AlsoFile {
    /// Writes the report.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(self, report: &str) -> Result<(), bench::Error> {
        bench::write_beside(report, self.file, &self.path)
    }
}

impl<F: ValueEnum> FromStr for Also<F> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || {
            let names = F::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>().join(", ")
        };
        let Some((format, path)) = text.split_once('=').filter(|(_, path)| !path.is_empty()) else {
            return Err(format!("`{text}` names no file: expected FORMAT=FILE, as in markdown=summary.md"));
        };
        let format =
            F::from_str(format, false).map_err(|_| format!("`{format}` is no format: expected one of {}", names()))?;
        Ok(Self { format, path: path.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{saved, verdicts};
    use oroshi_lab::baseline::SavedResult;
    use oroshi_report::sample::lab as sample;

    #[test]
    fn a_file_has_a_format() {
        let read = |text: &str| text.parse::<Also>();
        assert_eq!(read("junit=a=b.xml"), Ok(Also { format: Format::Junit, path: "a=b.xml".into() }));
        assert!(read("summary.md").unwrap_err().contains("expected FORMAT=FILE"));
        assert!(read("json=").is_err());
        let error = read("html=x").unwrap_err();
        assert_eq!(error, "`html` is no format: expected one of text, json, markdown, github, junit");
    }

    #[test]
    fn each_format_has_the_verdict() {
        let result = sample::two();
        let findings = verdicts::findings(&result, None, &[]);
        let subject = Subject { result: &result, findings: &findings, against: None };
        for format in Format::value_variants() {
            let report = subject.report(*format, Paint::PLAIN).unwrap();
            assert!(report.contains(&findings[0].words), "{format:?}: {report}");
        }
    }

    #[test]
    fn what_is_written_as_json_can_be_read_again() {
        let against = BaselineComparison { comparisons: Vec::new(), caveats: Vec::new() };
        let result = sample::two();
        let subject = Subject { result: &result, findings: &[], against: Some((&against, Path::new("x.json"))) };
        let text = subject.report(Format::Json, Paint::PLAIN).unwrap();
        assert!(text.contains("\"against\"") && matches!(saved::parse(&text), Ok(SavedResult::Lab(_))));
    }
}
