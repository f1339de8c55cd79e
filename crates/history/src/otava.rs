//! CSV as Apache Otava reads and writes it: a row per measurement, with its time, its commit, and a column per metric.

use std::collections::{BTreeMap, HashMap};

use oroshi_words::date::{Date, days_since_1970};

use crate::entry::{Commit, Entry, Figure, Machine, RANGE, SCHEMA, Subject, Unit, digest};
use crate::series::Series;

/// The most rows of a file.
const MOST_ROWS: usize = 100_000;
/// The most columns.
const MOST_COLUMNS: usize = 1_000;

/// How a file is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The subject of all figures: the test's name in Otava.
    pub name: String,
    /// The machine's name: files with different names never share a series.
    pub machine: String,
    /// The column with the time.
    pub time_column: String,
    /// The column with the commit.
    pub commit_column: String,
    /// Columns whose figures are better the lower they are; Otava's `direction: -1`.
    pub lower: Vec<String>,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OtavaError {
    /// Correct the line.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: u64,
        /// The mistake.
        what: String,
    },
    /// Name a column that there is.
    #[error("there is no column `{name}`: expected one of {}", columns.join(", "))]
    Column {
        /// The missing one.
        name: String,
        /// Those that there are.
        columns: Vec<String>,
    },
    /// Choose a file with figures.
    #[error("{0}")]
    Nothing(String),
    /// Correct the file.
    #[error("it is no CSV")]
    Csv(#[from] csv::Error),
}

/// The content of a CSV file.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// An entry for each row with a figure, in the order of the file.
    pub entries: Vec<Entry>,
    /// Columns without a number.
    pub left_out: Vec<String>,
    /// Number of rows without a figure.
    pub empty_rows: usize,
}

/// A file for Otava, with the test that reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The file's name.
    pub file: String,
    /// Its text.
    pub csv: String,
    /// The test in Otava's configuration, without the key `tests`.
    pub yaml: String,
}

/// Reads a file: an entry for each row. Columns without a number are left out; so are empty cells.
///
/// A row is known by its place: the subject, the machine, its time, its commit, and its number among the rows with
/// these. A longer file thus adds its new rows only. A row whose figures or directions changed is told from the earlier
/// one by [`known`](crate::known::known()).
///
/// # Errors
/// A mistake in the file, with its line.
pub fn import(text: &str, how: &Import) -> Result<Imported, OtavaError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let columns: Vec<String> = reader.headers()?.iter().map(str::to_owned).collect();
    if columns.len() > MOST_COLUMNS {
        return Err(OtavaError::Nothing(format!("it has more than {MOST_COLUMNS} columns")));
    }
    let place = |name: &String| {
        let found = columns.iter().position(|column| column == name);
        found.ok_or_else(|| OtavaError::Column { name: name.clone(), columns: columns.clone() })
    };
    let (time, commit) = (place(&how.time_column)?, place(&how.commit_column)?);
    how.lower.iter().try_for_each(|name| place(name).map(drop))?;
    let rows = reader.records().take(MOST_ROWS + 1).collect::<Result<Vec<_>, _>>()?;
    if rows.len() > MOST_ROWS {
        return Err(OtavaError::Nothing(format!("it has more than {MOST_ROWS} rows")));
    }
    let has_number = |column: &usize| rows.iter().any(|row| row.get(*column).and_then(number).is_some());
    let others = (0..columns.len()).filter(|column| *column != time && *column != commit);
    let (metrics, left_out): (Vec<usize>, Vec<usize>) = others.partition(has_number);
    if metrics.is_empty() {
        return Err(OtavaError::Nothing("it has no column of numbers beside the time and the commit".into()));
    }
    let file = File { how, columns: &columns, time, commit, metrics: &metrics };
    let mut occurrences = HashMap::new();
    let mut entries = Vec::new();
    for row in &rows {
        entries.extend(file.entry(row, &mut occurrences)?);
    }
    Ok(Imported {
        empty_rows: rows.len() - entries.len(),
        entries,
        left_out: left_out.into_iter().map(|column| columns[column].clone()).collect(),
    })
}

/// A file's columns.
struct File<'f> {
    how: &'f Import,
    columns: &'f [String],
    time: usize,
    commit: usize,
    metrics: &'f [usize],
}

impl File<'_> {
    /// Makes an entry of a row, unless all its cells are empty. `occurrences`: the number of rows so far by time and
    /// commit.
    fn entry(
        &self,
        row: &csv::StringRecord,
        occurrences: &mut HashMap<(u64, String), usize>,
    ) -> Result<Option<Entry>, OtavaError> {
        let how = self.how;
        let wrong = |what: String| OtavaError::Line { line: row.position().map_or(0, csv::Position::line), what };
        let at = row.get(self.time).unwrap_or_default();
        let unix_s = parse_time(at).ok_or_else(|| {
            wrong(format!("`{at}` is no time: expected 2026-03-01 14:05:00, with or without +0100, or Unix seconds"))
        })?;
        let id = row.get(self.commit).unwrap_or_default();
        if id.is_empty() || id.len() > 200 {
            return Err(wrong("the commit has no name, or a very long one".into()));
        }
        let occurrence = occurrences.entry((unix_s.to_bits(), id.to_owned())).or_default();
        *occurrence += 1;
        let mut figures = BTreeMap::new();
        for column in self.metrics {
            let (name, cell) = (&self.columns[*column], row.get(*column).unwrap_or_default());
            if cell.is_empty() {
                continue;
            }
            let value = number(cell).ok_or_else(|| {
                wrong(format!("`{cell}` in the column {name} is no number: expected one, or an empty cell"))
            })?;
            if value <= 0.0 {
                return Err(wrong(format!("{name} is not positive, so it has no ratios")));
            }
            if !RANGE.contains(&value) {
                let (least, most) = (RANGE.start(), RANGE.end());
                return Err(wrong(format!("`{cell}` in the column {name}: expected {least:e} to {most:e}")));
            }
            let higher_is_better = !how.lower.contains(name);
            let figure =
                Figure { value, interval: None, runs: 1, unit: Unit::Plain, higher_is_better, sensitive: false };
            figures.insert(name.clone(), figure);
        }
        if figures.is_empty() {
            return Ok(None);
        }
        let source = serde_json::json!([how.name, how.machine, unix_s, id, occurrence]);
        Ok(Some(Entry {
            schema: SCHEMA.into(),
            commit: Commit { id: id.to_owned(), unix_s, ..Commit::default() },
            measured_unix_s: unix_s,
            machine: Machine {
                fingerprint: digest(&how.machine)[..12].to_owned(),
                words: how.machine.clone(),
                conditions: BTreeMap::new(),
            },
            source: digest(&source.to_string()),
            subjects: vec![Subject {
                name: how.name.clone(),
                plan: digest("otava")[..12].to_owned(),
                load: "imported from Otava".into(),
                disturbed: None,
                figures,
            }],
        }))
    }
}

/// A cell's number.
fn number(cell: &str) -> Option<f64> {
    cell.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Writes a file for each subject of each machine. Disturbed measurements are left out, and rows without one of the
/// figures, because Otava refuses empty cells.
///
/// # Errors
/// The CSV cannot be written: a defect.
pub fn export(series: &[Series<'_>]) -> Result<Vec<Exported>, OtavaError> {
    let mut subjects: BTreeMap<(&str, &str, &str), Vec<&Series<'_>>> = BTreeMap::new();
    for one in series {
        let key = (one.machine.fingerprint.as_str(), one.subject, one.plan);
        subjects.entry(key).or_default().push(one);
    }
    subjects.into_iter().map(|((machine, name, plan), metrics)| file(machine, name, plan, &metrics)).collect()
}

/// The date of a row's commit, its name, and the digest of its result.
type RowKey<'h> = (u64, &'h str, &'h str);

fn file(machine: &str, name: &str, plan: &str, metrics: &[&Series<'_>]) -> Result<Exported, OtavaError> {
    let plain = |text: &str| text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>();
    // Different names can look alike without their signs, and file systems limit the length.
    let key = digest(&serde_json::json!([machine, name, plan]).to_string());
    let test = format!("{}-{}", plain(name).chars().take(60).collect::<String>(), &key[..12]);
    let mut rows: BTreeMap<RowKey<'_>, Vec<(usize, f64)>> = BTreeMap::new();
    for (place, series) in metrics.iter().enumerate() {
        for index in series.sound() {
            let point = series.points[index];
            let key = (point.entry.commit.unix_s as u64, point.entry.commit.id.as_str(), point.entry.source.as_str());
            rows.entry(key).or_default().push((place, point.figure.value));
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["time", "commit"].into_iter().chain(metrics.iter().map(|series| series.metric)))?;
    for ((unix_s, commit, _), values) in rows.iter().filter(|(_, values)| values.len() == metrics.len()) {
        let numbers = values.iter().map(|(_, value)| value.to_string());
        writer.write_record([written(*unix_s), (*commit).to_owned()].into_iter().chain(numbers))?;
    }
    let csv = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    let file = format!("{test}.csv");
    let mut yaml = format!(
        "  {test}:\n    type: csv\n    file: {file}\n    time_column: time\n    attributes: [commit]\n    metrics:\n"
    );
    for series in metrics {
        let direction = if series.higher_is_better { 1 } else { -1 };
        yaml += &format!("      {0}:\n        column: {0}\n        direction: {direction}\n", quoted(series.metric));
    }
    Ok(Exported { file, csv: String::from_utf8_lossy(&csv).into_owned(), yaml })
}

/// A text as YAML reads it whatever it holds: in double quotes, as in JSON.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// `2026-03-01 14:05:00 +0000`.
fn written(unix_s: u64) -> String {
    let Date { year, month, day, hour, minute, second } = Date::at(unix_s);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} +0000")
}

/// Reads a time as people write it in CSV: Unix seconds, or a date (with `-`, `.` or `/`, the year first) and a time of
/// day, with an offset such as `+0100`, `+01:00` or `Z`. Without one it is UTC.
pub fn parse_time(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return (0.0..1e12).contains(&seconds).then_some(seconds);
    }
    let text = text.replace('T', " ");
    let (date, rest) = text.split_once(' ').unwrap_or((&text, "0:0:0"));
    let parts: Vec<i64> = date.split(['-', '.', '/']).map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [year, month, day] = parts[..] else { return None };
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let rest = rest.trim();
    let (clock, offset_s) = match rest.find(['+', '-', 'Z']) {
        None => (rest, 0),
        Some(at) => (rest[..at].trim(), parse_offset(&rest[at..])?),
    };
    let mut parts = clock.splitn(3, ':');
    let mut whole = |most: i64| {
        parts.next().map_or(Some(0), |part| part.parse::<i64>().ok()).filter(|part| (0..=most).contains(part))
    };
    let (hour, minute) = (whole(23)?, whole(59)?);
    let second = parts.next().map_or(Some(0.0), |part| part.parse::<f64>().ok())?;
    let second = Some(second).filter(|second| (0.0..61.0).contains(second))?;
    let days = days_since_1970(year, month, day);
    // The days of February, say, count on into March.
    let back = Date::at((days * 86_400) as u64);
    if [back.year, back.month, back.day] != [year, month, day].map(|part| part as u64) {
        return None;
    }
    let seconds = (days * 86_400 + hour * 3600 + minute * 60 - offset_s) as f64 + second;
    (seconds >= 0.0).then_some(seconds)
}

/// `Z`, `+0100`, `+01:00` or `+01`, as seconds.
fn parse_offset(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let digits: String = rest.chars().filter(|c| *c != ':').collect();
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) || ![2, 4].contains(&digits.len()) {
        return None;
    }
    let (hours, minutes): (i64, i64) = (digits[..2].parse().ok()?, digits.get(2..).unwrap_or("0").parse().unwrap_or(0));
    if hours > 23 || minutes > 59 {
        return None;
    }
    Some(sign * (hours * 3600 + minutes * 60))
}
