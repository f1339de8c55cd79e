//! `oroshi bench --self-test`: measures the latency that oroshi itself adds.
//!
//! A ladder of known delays and numbers of connections runs against `oroshi target`, in an open loop. Latency
//! beyond the delay, counted from when a request was due, was added by this generator, the target's timer, or the
//! kernel. Each rung keeps half of its connections busy, but uses at most a quarter of the machine's capacity: at
//! its limit any generator adds queueing, and `oroshi bench` reports such a run as generator-bound.
//!
//! Over HTTP/2 each stream counts as a connection does over HTTP/1. With TLS the target has a certificate made for this
//! run, and listens on TCP.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use oroshi_bench::environment::Environment;
use oroshi_bench::plan::Problems;
use oroshi_bench::record::ClockRecord;
use oroshi_bench::{Bottleneck, Draft, Http2, Load, Protocol, Record, RunError, Spacing, Watching};
use oroshi_net::limits::ensure_descriptors;
use oroshi_net::tls::Roots;
use oroshi_net::{CpuList, Endpoint, Shutdown, two_cpus};
use oroshi_report::paint::Paint;
use oroshi_report::table::columns;
use oroshi_words::units;
use serde::Serialize;

use super::{Error, Format, Live, open, write};
use crate::child::{Target, unix_name};
use crate::interrupt::{self, Temporary};
use crate::terminal;

const DELAYS_MS: [u64; 3] = [1, 10, 100];
/// Requests that may be in progress at once: connections, times the streams of each.
const PLACES: [usize; 4] = [10, 100, 1000, 10_000];
/// Length of a rung if --duration does not say it, and of its warm-up.
const RUNG: Duration = Duration::from_secs(4);
const WARMUP: Duration = Duration::from_millis(500);
/// Length of the measurement without delay, likewise.
const NULL: Duration = Duration::from_millis(1500);
const NULL_PLACES: usize = 10;
/// Share of a rung's connections, or of their streams, that are busy.
const BUSY: f64 = 0.5;
/// Share of the machine's capacity that a rung may use.
const EASY: f64 = 0.25;
/// Descriptors of each of the two processes that are not connections.
const OTHER_DESCRIPTORS: u64 = 128;

/// The name and version of the JSON.
const SCHEMA: &str = "oroshi-self-test/1.1";

/// The result, as JSON shows it. Times are in nanoseconds.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    protocol: Protocol,
    /// Whether TLS over TCP carries it, or else a unix socket without TLS.
    tls: bool,
    load_cpu: Option<usize>,
    target_cpu: Option<usize>,
    /// The capacity of load and target: without delay, in a closed loop.
    null: Null,
    rungs: Vec<Rung>,
    /// Whether Ctrl-C ended it early.
    cut_short: bool,
    notes: Vec<String>,
    environment: Environment,
}

#[derive(Debug, Serialize)]
struct Null {
    #[serde(flatten)]
    places: Places,
    requests_per_s: f64,
    p50_ns: u64,
    bottleneck: Bottleneck,
}

#[derive(Debug, Serialize)]
struct Rung {
    delay_ns: u64,
    #[serde(flatten)]
    places: Places,
    /// Requests that were due per second.
    rate_per_s: f64,
    /// Requests that were answered.
    requests: u64,
    /// From due to answered, minus the delay.
    added: Added,
    /// From due to handed to the kernel.
    lateness: Added,
    errors: u64,
    bottleneck: Bottleneck,
    /// Doubts about the figures.
    warnings: Vec<String>,
}

/// Where requests may be in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Places {
    connections: usize,
    /// Streams of each connection; 1 over HTTP/1.
    streams: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Added {
    p50_ns: i64,
    p99_ns: i64,
    max_ns: i64,
}

/// Runs the ladder and reports. `base` has the version of HTTP, the most streams of a connection, and the length of a
/// rung.
///
/// # Errors
/// If the target or a run cannot be started, or nothing was measured.
pub(crate) fn run(base: Draft, format: Format, path: Option<&Path>) -> Result<ExitCode, Error> {
    let file = path.map(open).transpose()?;
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let report = climb(base, &shutdown)?;
    let text = match format {
        Format::Json => serde_json::to_string_pretty(&report)? + "\n",
        _ => text(&report, if path.is_none() { terminal::paint(&io::stdout()) } else { Paint::PLAIN }),
    };
    write(&text, file, path)?;
    Ok(ExitCode::SUCCESS)
}

fn climb(base: Draft, shutdown: &Shutdown) -> Result<Report, Error> {
    let cpus = two_cpus();
    let mut notes = Vec::new();
    let (protocol, streams) = (base.protocol(), base.streams);
    let most = most_connections(streams, &mut notes);
    if cpus.is_none() {
        notes.push(
            "there is one CPU only, which load and target share: what they add to each other is part of the figures"
                .into(),
        );
    }
    let tls = base.http2 == Some(Http2::Alpn);
    let identity = if tls { Some(Identity::make().map_err(Error::Identity)?) } else { None };
    let ladder = Ladder { base, identity, cpus, shutdown };
    let null = ladder.null()?;
    let mut rungs = Vec::new();
    'ladder: for delay_ms in DELAYS_MS {
        let target = ladder.target(Some(delay_ms))?;
        for places in steps(most, streams) {
            let delay = Duration::from_millis(delay_ms);
            let rate = rate(delay, places.count(), null.requests_per_s);
            let record = match ladder.rung(&target.urls[0], delay, places, rate) {
                Err(Error::Run(RunError::Cancelled)) => break 'ladder,
                record => record?,
            };
            if record.cut_short {
                break 'ladder;
            }
            rungs.extend(Rung::of(&record, delay, places, rate));
        }
    }
    if rungs.is_empty() {
        return Err(Error::Interrupted);
    }
    Ok(Report {
        schema: SCHEMA,
        protocol,
        tls,
        load_cpu: cpus.map(|c| c.0),
        target_cpu: cpus.map(|c| c.1),
        null,
        rungs,
        cut_short: shutdown.count() > 0,
        notes,
        environment: Environment::capture(),
    })
}

/// A certificate for 127.0.0.1 and its key, for one run.
struct Identity(Temporary);

impl Identity {
    fn make() -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).map_err(io::Error::other)?;
        let identity = Self(Temporary::folder("self-test").map_err(|(_, error)| error)?);
        fs::write(identity.certificate(), made.cert.pem())?;
        fs::write(identity.key(), made.signing_key.serialize_pem())?;
        Ok(identity)
    }

    fn certificate(&self) -> PathBuf {
        self.0.path().join("certificate.pem")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }
}

impl Places {
    /// Shares `count` requests in progress among connections of at most `streams` each.
    fn of(count: usize, streams: usize) -> Self {
        let streams = streams.clamp(1, count.max(1));
        Self { connections: count / streams, streams }
    }

    fn count(self) -> usize {
        self.connections * self.streams
    }

    /// `31x32`: connections, and the streams of each if there are several.
    fn words(self) -> String {
        let connections = units::count(self.connections as u64);
        if self.streams == 1 { connections } else { format!("{connections}x{}", units::count(self.streams as u64)) }
    }
}

struct Ladder<'s> {
    base: Draft,
    /// The target's, with TLS.
    identity: Option<Identity>,
    cpus: Option<(usize, usize)>,
    shutdown: &'s Shutdown,
}

impl Ladder<'_> {
    fn target(&self, delay_ms: Option<u64>) -> Result<Target, Error> {
        let mut options = delay_ms.map_or_else(Vec::new, |ms| vec!["--delay".to_owned(), format!("{ms}ms")]);
        let place = match &self.identity {
            None => unix_name(&format!("self-test-{}", delay_ms.unwrap_or(0))),
            Some(identity) => {
                for (flag, file) in [("--cert", identity.certificate()), ("--key", identity.key())] {
                    options.extend([flag.to_owned(), file.to_string_lossy().into_owned()]);
                }
                "127.0.0.1:0".to_owned()
            }
        };
        Ok(Target::start(&[place], &options, self.cpus.map(|c| c.1))?)
    }

    fn null(&self) -> Result<Null, Error> {
        let target = self.target(None)?;
        let places = Places::of(NULL_PLACES, self.base.streams);
        let draft = Draft { duration: self.base.duration.or(Some(NULL)), ..self.draft(&target.urls[0], places) };
        let record = self.load(draft, "without delay: ")?;
        let p50_ns = record.latency.service.summary.p50.ok_or(Error::Interrupted)?.value_ns;
        Ok(Null { places, requests_per_s: record.rates.requests_per_s, p50_ns, bottleneck: record.grade.bottleneck })
    }

    fn rung(&self, url: &Endpoint, delay: Duration, places: Places, rate: f64) -> Result<Record, Error> {
        let draft = Draft {
            duration: self.base.duration.or(Some(RUNG)),
            load: Load::rate(rate, Spacing::Constant, 0),
            ..self.draft(url, places)
        };
        self.load(draft, &format!("{} ms x {}: ", delay.as_millis(), places.words()))
    }

    fn draft(&self, url: &Endpoint, places: Places) -> Draft {
        let mut tls = self.base.tls.clone();
        if let Some(identity) = &self.identity {
            tls.roots = Roots::Only(vec![identity.certificate()]);
        }
        Draft {
            urls: vec![url.clone()],
            connections: places.connections,
            streams: places.streams,
            tls,
            threads: Some(1),
            warmup: WARMUP,
            timeout: Duration::from_secs(10),
            cpus: self.cpus.map(|cpus| CpuList::one(cpus.0)),
            watch: Watching::Auto,
            ..self.base.clone()
        }
    }

    fn load(&self, draft: Draft, label: &str) -> Result<Record, Error> {
        let plan = draft.plan().map_err(|Problems(p)| Error::Usage(p.iter().map(ToString::to_string).collect()))?;
        let mut live = Live::new(self.shutdown.clone(), plan.connections, None, None).labelled(label.to_owned());
        let record = oroshi_bench::run(plan, &mut live);
        live.finish(record.is_ok())?;
        Ok(record?)
    }
}

impl Rung {
    fn of(record: &Record, delay: Duration, places: Places, rate: f64) -> Option<Self> {
        let delay_ns = delay.as_nanos() as u64;
        Some(Self {
            delay_ns,
            places,
            rate_per_s: rate,
            requests: record.requests.completed,
            added: Added::of(&record.latency.response, delay_ns)?,
            lateness: Added::of(&record.latency.lateness, 0)?,
            errors: record.errors,
            bottleneck: record.grade.bottleneck,
            warnings: record.warnings.clone(),
        })
    }

    /// A rung at the machine's limit says nothing about fidelity.
    fn is_strained(&self) -> bool {
        matches!(self.bottleneck, Bottleneck::GeneratorBound | Bottleneck::ServerBound)
    }
}

impl Added {
    fn of(clock: &ClockRecord, delay_ns: u64) -> Option<Self> {
        let added = |q| Some(clock.histogram.quantile(q)?.value() as i64 - delay_ns as i64);
        Some(Self { p50_ns: added(0.5)?, p99_ns: added(0.99)?, max_ns: added(1.0)? })
    }
}

/// Returns the rate of a rung: half of its places busy, within the machine's capacity, in round numbers.
fn rate(delay: Duration, places: usize, capacity: f64) -> f64 {
    let wanted = BUSY * places as f64 / delay.as_secs_f64();
    let rate = wanted.min(EASY * capacity).max(10.0);
    let step = 10f64.powf(rate.log10().floor() - 1.0);
    (rate / step + 1e-9).floor() * step
}

/// Returns the ladder's steps: at most `most` connections of at most `streams` each.
fn steps(most: usize, streams: usize) -> Vec<Places> {
    let mut steps: Vec<Places> = PLACES
        .iter()
        .map(|&count| Places::of(count, streams))
        .map(|places| Places { connections: places.connections.min(most), ..places })
        .collect();
    steps.dedup();
    steps
}

/// Raises the descriptor limit, which the target inherits, and returns the number of connections that it allows.
fn most_connections(streams: usize, notes: &mut Vec<String>) -> usize {
    let wanted = Places::of(PLACES[PLACES.len() - 1], streams).connections;
    match ensure_descriptors(wanted as u64 + OTHER_DESCRIPTORS) {
        Ok(_) => wanted,
        Err(error) => {
            let most = error.hard.saturating_sub(error.open + 2 * OTHER_DESCRIPTORS).max(1);
            // The target is a child, and must have them too.
            let _ = ensure_descriptors(most);
            notes.push(format!(
                "the last rungs have {} instead of {} connections, as this process may open {} files (ulimit -Hn)",
                units::count(most),
                units::count(wanted as u64),
                units::count(error.hard)
            ));
            most as usize
        }
    }
}

fn text(report: &Report, paint: Paint) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let place = match (report.load_cpu, report.target_cpu) {
        (Some(load), Some(target)) => format!("load on CPU {load}, target on CPU {target}"),
        _ => "both on one CPU".into(),
    };
    let way = match (report.protocol, report.tls) {
        (Protocol::Http1, _) => "unix socket",
        (Protocol::Http2, false) => "HTTP/2, unix socket",
        (Protocol::Http2, true) => "HTTP/2, TLS over TCP",
    };
    let mut text = paint.bold(&format!("What oroshi {version} adds to servers of known delay ({way}, {place})")) + "\n";
    let busy = if report.protocol == Protocol::Http2 { "streams" } else { "connections" };
    text += &format!(
        "From the moment a request was due until its answer was read, minus the delay; open loop, half of the\n\
         {busy} busy where the machine can do that. The target's own timer and the kernel are part of it.\n\n"
    );
    let head = ["delay", "connections", "requests/s", "added p50", "p99", "max", "late p50", "p99", "errors", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let time = |ns: i64| if ns < 0 { format!("-{}", units::time(-ns as f64)) } else { units::time(ns as f64) };
    for rung in &report.rungs {
        rows.push(vec![
            units::length(rung.delay_ns as f64 / 1e9),
            rung.places.words(),
            units::number(rung.rate_per_s),
            time(rung.added.p50_ns),
            time(rung.added.p99_ns),
            time(rung.added.max_ns),
            time(rung.lateness.p50_ns),
            time(rung.lateness.p99_ns),
            units::count(rung.errors),
            if rung.is_strained() { rung.bottleneck.name().to_owned() } else { String::new() },
        ]);
    }
    text += &columns(0, &rows);
    let null = &report.null;
    text += &format!(
        "\nWithout delay, {} connections, closed loop: {} requests/s, p50 {} ({}).\n",
        null.places.words(),
        units::number(null.requests_per_s),
        units::time(null.p50_ns as f64),
        null.bottleneck.name()
    );
    if let Some(worst) = report.rungs.iter().filter(|r| !r.is_strained()).max_by_key(|r| r.added.p99_ns) {
        let median = median(report.rungs.iter().map(|r| r.added.p50_ns).collect());
        text += &format!(
            "The median rung adds {} at p50; the worst p99 is {} ({} x {}).\n",
            time(median),
            time(worst.added.p99_ns),
            units::length(worst.delay_ns as f64 / 1e9),
            worst.places.words()
        );
    }
    if report.cut_short {
        text += &(paint.yellow("ended early: the rungs after these were not measured") + "\n");
    }
    let doubtful: Vec<&Rung> = report.rungs.iter().filter(|rung| !rung.warnings.is_empty()).collect();
    if let Some(first) = doubtful.first() {
        let (n, all, why) = (doubtful.len(), report.rungs.len(), &first.warnings[0]);
        text += &(paint.yellow(&format!("note: {n} of {all} rungs have warnings, the first: {why}")) + "\n");
    }
    for note in &report.notes {
        text += &(paint.yellow(&format!("note: {note}")) + "\n");
    }
    text
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_keep_half_of_the_connections_busy_within_what_is_easy() {
        let ms = Duration::from_millis;
        assert_eq!(rate(ms(1), 10, 80_000.0), 5000.0);
        assert_eq!(rate(ms(100), 10, 80_000.0), 50.0);
        assert_eq!(rate(ms(1), 10_000, 80_000.0), 20_000.0);
        assert_eq!(rate(ms(100), 10_000, 88_765.0), 22_000.0);
        assert_eq!(rate(ms(1), 1000, 0.0), 10.0);
    }

    #[test]
    fn the_ladder_ends_where_descriptors_do() {
        let connections = |most| steps(most, 1).iter().map(|places| places.connections).collect::<Vec<_>>();
        assert_eq!(connections(10_000), [10, 100, 1000, 10_000]);
        assert_eq!(connections(3000), [10, 100, 1000, 3000]);
        assert_eq!(connections(500), [10, 100, 500]);
    }

    #[test]
    fn streams_take_the_place_of_connections() {
        let words = |most, streams| steps(most, streams).into_iter().map(Places::words).collect::<Vec<_>>();
        assert_eq!(words(312, 32), ["1x10", "3x32", "31x32", "312x32"]);
        assert_eq!(words(100, 32), ["1x10", "3x32", "31x32", "100x32"]);
        assert_eq!(words(1, 100_000), ["1x10", "1x100", "1x1,000", "1x10,000"]);
    }

    #[test]
    fn the_table_has_a_row_per_rung() {
        let rung = |connections, bottleneck| Rung {
            delay_ns: 1_000_000,
            places: Places { connections, streams: 1 },
            rate_per_s: 5000.0,
            requests: 20_000,
            added: Added { p50_ns: 60_000, p99_ns: 130_000, max_ns: 1_200_000 },
            lateness: Added { p50_ns: 8_000, p99_ns: 21_000, max_ns: 90_000 },
            errors: 0,
            bottleneck,
            warnings: vec!["others were busy".into()],
        };
        let report = Report {
            schema: SCHEMA,
            protocol: Protocol::Http1,
            tls: false,
            load_cpu: Some(0),
            target_cpu: Some(1),
            null: Null {
                places: Places { connections: 10, streams: 1 },
                requests_per_s: 85_000.0,
                p50_ns: 95_000,
                bottleneck: Bottleneck::ServerBound,
            },
            rungs: vec![rung(10, Bottleneck::RateBound), rung(10_000, Bottleneck::ServerBound)],
            cut_short: true,
            notes: vec!["noted".into()],
            environment: Environment::default(),
        };
        let text = text(&report, Paint::PLAIN);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("1ms")).collect();
        assert_eq!(rows[0], "1ms             10       5,000     60.0us  130us  1.20ms    8.00us  21.0us       0");
        assert!(rows[1].ends_with("server-bound"));
        assert!(
            text.contains("worst p99 is 130us (1ms x 10)")
                && text.contains("note: noted")
                && text.contains("ended early")
        );
        assert!(text.contains("2 of 2 rungs have warnings, the first: others were busy"));
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.contains("\"p99_ns\":130000") && json.contains("\"connections\":10000,\"streams\":1"), "{json}");
    }
}
