//! What a history keeps of a result: its figures, its commit, its machine. This is the JSON schema; `docs/history.md`
//! explains it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::RangeInclusive;

use oroshi_bench::Record;
use oroshi_bench::environment::Environment;
use oroshi_lab::baseline::SavedResult;
use oroshi_lab::disturbed::{is_disturbed, is_sensitive};
use oroshi_lab::metric::{self, Metric};
use oroshi_lab::result::{CellResult, LabResult, Run};
use oroshi_stats::compare::{Bootstrap, Interval, Value, level};
use oroshi_words::units;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

/// Version of the schema. The first number changes when a field changes meaning or is removed, the second when one is
/// added.
pub const SCHEMA: &str = "oroshi-history/1.1";

/// The most subjects of an entry.
pub const MOST_SUBJECTS: usize = 10_000;
/// The most figures of a subject.
pub const MOST_FIGURES: usize = 1_000;
/// The range of figures: ratios of figures beyond it leave the range of numbers.
pub const RANGE: RangeInclusive<f64> = 1e-30..=1e30;

/// The figures of one result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// [`SCHEMA`].
    pub schema: String,
    /// The measured commit.
    pub commit: Commit,
    /// When it was measured: seconds since 1970, UTC.
    pub measured_unix_s: f64,
    /// The machine.
    pub machine: Machine,
    /// Digest of the result, in hexadecimal: entries of one result have the same. It is the SHA-256 of the result's
    /// text; of a row of CSV that of its place.
    pub source: String,
    /// What was measured.
    pub subjects: Vec<Subject>,
}

/// A commit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// Its hash, or any other name.
    pub id: String,
    /// Its date, which orders the history: seconds since 1970, UTC.
    pub unix_s: f64,
    /// The first line of its message; may be empty.
    #[serde(default)]
    pub subject: String,
    /// The tree had changes that are not in the commit.
    #[serde(default)]
    pub changed: bool,
    /// Digest of those changes, in hexadecimal: trees with different changes are different trees. `None` without any,
    /// and if they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<String>,
    /// Number of commits from the first one to this one, by first parents: orders commits of the same second. `None`
    /// outside of git.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

impl Commit {
    /// Whether both name the same tree.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.tree() == other.tree()
    }

    /// Returns what tells a tree from others: the commit, and the changes that it had.
    pub(crate) fn tree(&self) -> (&str, bool, Option<&str>) {
        (&self.id, self.changed, self.difference.as_deref())
    }
}

/// A machine, as far as results can be compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Digest of its permanent properties: results with different fingerprints never share a series.
    pub fingerprint: String,
    /// Those properties in words.
    pub words: String,
    /// Properties that may change between measurements: kernel, governor, version of oroshi. A step that coincides with
    /// such a change is reported with it.
    #[serde(default)]
    pub conditions: BTreeMap<String, String>,
}

/// What was measured: a set-up under a load, or a pair of set-ups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Its name: `GET /`, `nginx, unix`, or `this / v1.0` for a ratio.
    pub name: String,
    /// Digest of its load: figures under different loads never share a series.
    pub plan: String,
    /// The load in words.
    pub load: String,
    /// Why rates and latencies say nothing; `None` if they do.
    #[serde(default)]
    pub disturbed: Option<String>,
    /// Its figures, by metric.
    pub figures: BTreeMap<String, Figure>,
}

/// A measured figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The figure; within [`RANGE`].
    pub value: f64,
    /// The ends of its 95 % interval within this result; `None` with fewer than three runs.
    #[serde(default)]
    pub interval: Option<[f64; 2]>,
    /// Number of runs, or of blocks of a ratio.
    pub runs: usize,
    /// Its unit.
    pub unit: Unit,
    /// Whether more is better.
    pub higher_is_better: bool,
    /// Whether other work on the machine distorts it.
    pub sensitive: bool,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Requests per second.
    PerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// Points of a score.
    Points,
    /// A quotient of two figures.
    Ratio,
    /// Unknown: from Otava's CSV.
    Plain,
}

impl Unit {
    /// Writes a value for people: `12.3us`, `81,234/s`.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", units::number(value)),
            Self::Nanoseconds => units::time(value),
            Self::Bytes => units::bytes(value),
            Self::Ratio => format!("x {value:.3}"),
            Self::Points | Self::Plain => units::number(value),
        }
    }
}

impl From<metric::Unit> for Unit {
    fn from(unit: metric::Unit) -> Self {
        match unit {
            metric::Unit::PerSecond => Self::PerSecond,
            metric::Unit::Nanoseconds => Self::Nanoseconds,
            metric::Unit::Bytes => Self::Bytes,
            metric::Unit::Points => Self::Points,
        }
    }
}

/// Why a result or a text is no entry.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EntryError {
    /// Measure again, to the end.
    #[error("it was ended early: a history takes complete results only")]
    CutShort,
    /// Measure again, with a server that answers.
    #[error("it has no figure: nothing was answered, or everything failed")]
    NoFigure,
    /// Measure again.
    #[error("{0}")]
    Gone(String),
    /// Use the version of oroshi that wrote it, or a newer one.
    #[error("it is of schema {found}: this version reads {SCHEMA}")]
    Schema {
        /// Its schema.
        found: String,
    },
    /// Remove the file, or restore it.
    #[error("it is no entry of a history: {0}")]
    Malformed(String),
}

impl Entry {
    /// Makes an entry of a result, whose text has this SHA-256 digest. `name` replaces the name of a run of `bench`.
    ///
    /// # Errors
    /// The result is incomplete, or has no figure.
    pub fn of(result: &SavedResult, source: &str, commit: Commit, name: Option<&str>) -> Result<Self, EntryError> {
        let (environment, measured_unix_s, subjects) = match result {
            SavedResult::Lab(result) => {
                if result.cut_short {
                    return Err(EntryError::CutShort);
                }
                (&result.environment, result.started_unix_s, of_lab(result))
            }
            SavedResult::Bench(records) => {
                let Some(first) = records.first() else { return Err(EntryError::NoFigure) };
                if records.iter().any(|record| record.cut_short) {
                    return Err(EntryError::CutShort);
                }
                if records.iter().any(|record| record.requests.completed == 0) {
                    return Err(EntryError::NoFigure);
                }
                if let Some(gone) = records.iter().find_map(|record| record.gone.as_ref()) {
                    return Err(EntryError::Gone(gone.words()));
                }
                (&first.environment, first.started_unix_s, of_bench(records, name))
            }
        };
        let subjects: Vec<Subject> = subjects.into_iter().filter(|subject| !subject.figures.is_empty()).collect();
        if subjects.is_empty() {
            return Err(EntryError::NoFigure);
        }
        let machine = Machine::of(environment);
        Ok(Self { schema: SCHEMA.into(), commit, measured_unix_s, machine, source: source.to_owned(), subjects })
    }

    /// Parses the text of an entry, and checks its figures.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn parse(text: &str) -> Result<Self, EntryError> {
        let malformed = |error: serde_json::Error| EntryError::Malformed(error.to_string());
        let value: Json = serde_json::from_str(text).map_err(malformed)?;
        let found = value["schema"].as_str().unwrap_or_default();
        let major = |schema: &str| schema.split('.').next().map(str::to_owned);
        if found.split('/').next() != SCHEMA.split('/').next() {
            return Err(EntryError::Malformed(format!("expected \"schema\": \"{SCHEMA}\"")));
        }
        if major(found) != major(SCHEMA) {
            return Err(EntryError::Schema { found: found.to_owned() });
        }
        let entry: Self = serde_json::from_value(value).map_err(malformed)?;
        entry.problem().map_or(Ok(entry), |problem| Err(EntryError::Malformed(problem)))
    }

    /// Returns the name of its file: date of the commit, its hash, digest of the result.
    #[must_use]
    pub fn file_name(&self) -> String {
        let date = oroshi_words::Date::at(self.commit.unix_s.max(0.0) as u64);
        let plain: String = self.commit.id.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
        let digest: String = self.source.chars().take(12).collect();
        format!("{}-{:02}-{:02}-{plain}-{digest}.json", date.year, date.month, date.day)
    }

    fn problem(&self) -> Option<String> {
        let is_time = |seconds: f64| (0.0..1e12).contains(&seconds);
        if !is_time(self.commit.unix_s) || !is_time(self.measured_unix_s) {
            return Some("a date is out of range".into());
        }
        if self.commit.id.is_empty() || self.commit.id.len() > 200 {
            return Some("its commit has no name, or a very long one".into());
        }
        let digests = [("source", &self.source), ("machine.fingerprint", &self.machine.fingerprint)];
        let digests = digests.into_iter().chain(self.commit.difference.iter().map(|it| ("commit.difference", it)));
        let plans = self.subjects.iter().map(|subject| ("plan", &subject.plan));
        if let Some((name, text)) = digests.chain(plans).find(|(_, text)| !is_digest(text)) {
            let text: String = text.chars().take(80).collect();
            return Some(format!("{name} is `{text}`: expected 1 to 64 hexadecimal digits"));
        }
        if self.subjects.len() > MOST_SUBJECTS {
            return Some(format!("it has more than {MOST_SUBJECTS} subjects"));
        }
        self.subjects.iter().find_map(Subject::problem)
    }
}

impl Subject {
    fn problem(&self) -> Option<String> {
        if self.figures.len() > MOST_FIGURES {
            return Some(format!("{} has more than {MOST_FIGURES} figures", self.name));
        }
        self.figures.iter().find_map(|(metric, figure)| {
            let what = figure.problem()?;
            Some(format!("{metric} of {}: {what}", self.name))
        })
    }
}

impl Figure {
    fn problem(&self) -> Option<String> {
        let (least, most) = (RANGE.start(), RANGE.end());
        let mut numbers = self.interval.into_iter().flatten().chain([self.value]);
        if let Some(wrong) = numbers.find(|number| !RANGE.contains(number)) {
            return Some(format!("{wrong:e} is no figure: expected a positive number, {least:e} to {most:e}"));
        }
        let [low, high] = self.interval?;
        let is_inside = (low..=high).contains(&self.value);
        (!is_inside).then(|| format!("its interval, {low} to {high}, does not contain its value, {}", self.value))
    }
}

fn is_digest(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Machine {
    /// Returns the fingerprint and the conditions of a machine.
    #[must_use]
    pub fn of(environment: &Environment) -> Self {
        let cpu = &environment.cpu;
        let gibibytes = environment.memory_bytes.map(|bytes| (bytes as f64 / f64::from(1 << 30)).round());
        let permanent = json!({
            "architecture": environment.architecture, "cpu": cpu.model, "online": cpu.online, "smt": cpu.smt,
            "memory_gib": gibibytes, "virtual": environment.virtual_machine, "cpu_limit": environment.cgroup.cpus,
        });
        let mut words = vec![cpu.model.clone().unwrap_or_else(|| environment.architecture.clone())];
        words.extend(cpu.online.map(|online| units::plural(online as u64, "CPU")));
        words.extend(environment.cgroup.cpus.map(|cpus| format!("limited to {}", units::number(cpus))));
        words.extend(gibibytes.map(|gibibytes| format!("{gibibytes} GiB")));
        words.extend(environment.virtual_machine.clone());
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        let conditions = [
            ("kernel", Some(environment.kernel.clone())),
            ("oroshi", Some(environment.oroshi.clone())),
            ("governor", cpu.governor.clone()),
            ("turbo", cpu.turbo.map(switch)),
            ("clock source", environment.clocksource.clone()),
            ("CPUs of this process", cpu.affinity.clone()),
        ];
        let known = |(name, value): (&str, Option<String>)| Some((name.to_owned(), value?));
        Self {
            fingerprint: short_digest(&permanent.to_string()),
            words: words.join(", "),
            conditions: conditions.into_iter().filter_map(known).filter(|(_, value)| !value.is_empty()).collect(),
        }
    }
}

/// Returns the SHA-256 digest of a text, in hexadecimal.
#[must_use]
pub fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 digest of everything that a reader gives, in hexadecimal.
///
/// # Errors
/// If reading fails.
pub fn digest_of(mut reader: impl Read) -> io::Result<String> {
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; 64 << 10]);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            Ok(read) => sum.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn short_digest(text: &str) -> String {
    digest(text)[..12].to_owned()
}

/// Makes one subject of runs of `bench`.
fn of_bench(records: &[Record], name: Option<&str>) -> Vec<Subject> {
    let Some(first) = records.first() else { return Vec::new() };
    let figure = |metric: Metric| {
        let values: Vec<f64> = records.iter().filter_map(|record| metric.of(record)).collect();
        (values.len() == records.len()).then(|| figure(metric, &values)).flatten()
    };
    let figures = Metric::ALL.into_iter().filter_map(|metric| Some((metric.name().to_owned(), figure(metric)?)));
    let busy = records.iter().filter_map(|record| record.machine.as_ref()).find(|machine| machine.disturbed);
    let plan = plan_of(first);
    vec![Subject {
        name: name.map_or_else(|| requests_of(first), str::to_owned),
        plan: short_digest(&plan.to_string()),
        load: load_of(first),
        disturbed: busy.map(|machine| machine.why.join("; ")),
        figures: figures.collect(),
    }]
}

/// Returns the plan without what differs between runs of the same load: ports and sockets of servers.
fn plan_of(record: &Record) -> Json {
    let mut plan = serde_json::to_value(&record.plan).unwrap_or_default();
    for origin in plan["origins"].as_array_mut().into_iter().flatten() {
        if let Some(origin) = origin.as_object_mut() {
            origin.remove("address");
            origin.remove("authority");
            // The Host field has the port.
            origin.remove("request_bytes");
        }
    }
    plan
}

/// `GET /`, `GET / and 3 more`, or a script's name.
fn requests_of(record: &Record) -> String {
    if let Some(script) = &record.plan.script {
        return script.clone();
    }
    let lines = record.plan.origins.iter().flat_map(|origin| &origin.requests);
    let first = lines.clone().next().map_or("", |line| line.rsplit_once(' ').map_or(line.as_str(), |line| line.0));
    let count: usize = record.plan.origins.iter().map(oroshi_bench::record::OriginRecord::count).sum();
    if count > 1 { format!("{first} and {} more", count - 1) } else { first.to_owned() }
}

fn load_of(record: &Record) -> String {
    let plan = &record.plan;
    let rhythm = match &plan.load {
        oroshi_bench::Load::Closed => "closed loop",
        oroshi_bench::Load::Open { .. } => "open loop",
    };
    format!("{}, {rhythm}", units::plural(plan.connections as u64, "connection"))
}

fn of_lab(result: &LabResult) -> Vec<Subject> {
    result.cells.iter().flat_map(|cell| of_cell(result, cell)).collect()
}

/// Makes a subject of each variant, and of each ratio to the base: the ratio to a pinned base has no drift.
fn of_cell(result: &LabResult, cell: &CellResult) -> Vec<Subject> {
    let place = result.cell_name(cell);
    let named = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}: {name}") };
    let plan = |index: usize| {
        let variant = &cell.variants[index];
        json!({ "urls": variant.urls, "load": variant.load, "quick": result.quick })
    };
    let mut subjects = Vec::new();
    for (index, variant) in cell.variants.iter().enumerate().filter(|(_, variant)| variant.failed.is_none()) {
        let runs = cell.runs.iter().filter(|run| run.variant == index).count();
        let figures = variant
            .figures
            .iter()
            .filter_map(|(metric, interval)| Some((metric.name().to_owned(), of_interval(*metric, interval, runs)?)));
        subjects.push(Subject {
            name: named(&variant.name),
            plan: short_digest(&plan(index).to_string()),
            load: variant.load.clone(),
            disturbed: disturbed(result, cell, &[index]),
            figures: figures.collect(),
        });
    }
    let base = cell.base();
    for (index, variant) in cell.variants.iter().enumerate().filter(|(index, _)| *index != base) {
        let own = cell.comparisons.iter().filter(|it| it.base == base && it.variant == index);
        let figures = own.filter_map(|it| {
            let figure = of_interval(it.metric, &it.ratio?, it.blocks)?;
            Some((it.metric.name().to_owned(), Figure { unit: Unit::Ratio, ..figure }))
        });
        subjects.push(Subject {
            name: named(&format!("{} / {}", variant.name, cell.variants[base].name)),
            plan: short_digest(&json!([plan(base), plan(index)]).to_string()),
            load: variant.load.clone(),
            disturbed: disturbed(result, cell, &[base, index]),
            figures: figures.collect(),
        });
    }
    subjects
}

fn disturbed(result: &LabResult, cell: &CellResult, variants: &[usize]) -> Option<String> {
    let own = || cell.runs.iter().filter(|run: &&Run| variants.contains(&run.variant));
    let (all, busy) = (own().count(), own().filter(|run| is_disturbed(run)).count());
    (busy as f64 > result.rules.disturbed * all as f64)
        .then(|| format!("the machine had other work in {busy} of {}", units::plural(all as u64, "run")))
}

fn of_interval(metric: Metric, interval: &Interval, runs: usize) -> Option<Figure> {
    let (low, high) = (interval.low, interval.high);
    let is_sound = RANGE.contains(&low) && RANGE.contains(&high) && (low..=high).contains(&interval.estimate);
    RANGE.contains(&interval.estimate).then(|| Figure {
        value: interval.estimate,
        interval: is_sound.then_some([low, high]),
        runs,
        unit: metric.unit().into(),
        higher_is_better: metric.is_throughput(),
        sensitive: is_sensitive(metric),
    })
}

fn figure(metric: Metric, values: &[f64]) -> Option<Figure> {
    let each: Vec<Value> = values.iter().enumerate().map(|(session, value)| Value { session, value: *value }).collect();
    if let Some(interval) = level(&each, &Bootstrap::default()) {
        return of_interval(metric, &interval, values.len());
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = *sorted.get(sorted.len() / 2)?;
    let alone = Interval { estimate: middle, low: middle, high: middle };
    Some(Figure { interval: None, ..of_interval(metric, &alone, values.len())? })
}
