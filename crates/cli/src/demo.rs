//! `oroshi demo`: the question that this project began with, answered on the spot. How much faster is a unix socket than TCP,
//! with kept connections and with one per request?
//!
//! The four set-ups take turns in rounds, in opposite order from round to round, and what is said are medians of the ratios
//! within a round: drift of the machine then hits all of them alike.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use oroshi_bench::plan::Problems;
use oroshi_bench::{Bottleneck, Draft, Record, RunError, Watching};
use oroshi_net::Shutdown;

use crate::bench::{Error, Live};
use crate::child::{Target, only, two_cpus, unix_name};
use crate::interrupt;
use crate::paint::Paint;
use crate::table::columns;
use oroshi_words::units;

const ROUNDS: usize = 3;
const RUN: Duration = Duration::from_millis(1500);
const WARMUP: Duration = Duration::from_millis(250);
const CONNECTIONS: usize = 20;

/// Compare TCP with a unix socket, on this machine, in half a minute
///
/// It starts a small server of its own and measures it with kept connections and with one connection per request.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Measures and tells.
///
/// # Errors
/// When the server or a run cannot be started, or Ctrl-C came before a round was complete.
pub(crate) fn run() -> Result<ExitCode, Error> {
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let cpus = two_cpus();
    let listen = ["127.0.0.1:0".to_owned(), unix_name("demo")];
    let target = Target::start(&listen, &[], cpus.map(|c| c.1))?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        match measure_round(&target, round, cpus, &shutdown)? {
            Some(figures) => rounds.push(figures),
            None => break,
        }
    }
    if rounds.is_empty() {
        return Err(Error::Interrupted);
    }
    let text = report(&rounds, cpus, Paint::on(&std::io::stdout()));
    // Whoever reads only the beginning has read what they wanted.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// What is compared, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setup {
    TcpKept,
    UnixKept,
    TcpNew,
    UnixNew,
}

impl Setup {
    const ALL: [Self; 4] = [Self::TcpKept, Self::UnixKept, Self::TcpNew, Self::UnixNew];

    fn name(self) -> &'static str {
        match self {
            Self::TcpKept => "TCP, kept connections",
            Self::UnixKept => "unix socket, kept connections",
            Self::TcpNew => "TCP, one connection per request",
            Self::UnixNew => "unix socket, one connection per request",
        }
    }

    fn is_unix(self) -> bool {
        matches!(self, Self::UnixKept | Self::UnixNew)
    }

    fn connects_per_request(self) -> bool {
        matches!(self, Self::TcpNew | Self::UnixNew)
    }
}

/// One run's figures.
#[derive(Clone, Copy, Debug)]
struct Figures {
    rate: f64,
    p50: f64,
    p99: f64,
    /// CPU nanoseconds per request.
    server: Option<f64>,
    generator: Option<f64>,
    errors: f64,
    generator_bound: bool,
}

/// All four, one after the other.
#[derive(Clone, Debug)]
struct Round {
    figures: [Figures; 4],
    /// What made them doubtful.
    warnings: Vec<String>,
}

fn measure_round(
    target: &Target,
    round: usize,
    cpus: Option<(usize, usize)>,
    shutdown: &Shutdown,
) -> Result<Option<Round>, Error> {
    let mut found = [None; 4];
    let mut warnings = Vec::new();
    for step in 0..4 {
        let place = if round.is_multiple_of(2) { step } else { 3 - step };
        let setup = Setup::ALL[place];
        let draft = Draft {
            urls: vec![target.urls[usize::from(setup.is_unix())].clone()],
            threads: Some(1),
            connections: CONNECTIONS,
            duration: Some(RUN),
            warmup: WARMUP,
            requests_per_connection: setup.connects_per_request().then_some(1),
            cpus: cpus.and_then(|c| only(c.0)),
            watch: Watching::Auto,
            ..Draft::default()
        };
        let plan = draft.plan().map_err(|Problems(p)| Error::Usage(p.iter().map(ToString::to_string).collect()))?;
        // Said before each run with new connections, and true of any.
        let forecast = oroshi_bench::ports::forecast(&plan);
        let label = format!("{}/{}  {}  ", round * 4 + step + 1, ROUNDS * 4, setup.name());
        let mut live = Live::new(shutdown.clone(), CONNECTIONS, None, None).labelled(label);
        let record = oroshi_bench::run(plan, &mut live);
        live.finish(record.is_ok())?;
        let record = match record {
            Err(RunError::Cancelled) => return Ok(None),
            record => record?,
        };
        if record.cut_short {
            return Ok(None);
        }
        found[place] = Some(Figures::of(&record));
        warnings.extend(record.warnings.into_iter().filter(|w| Some(w) != forecast.as_ref()));
    }
    let [Some(a), Some(b), Some(c), Some(d)] = found else { return Ok(None) };
    Ok(Some(Round { figures: [a, b, c, d], warnings }))
}

impl Figures {
    fn of(record: &Record) -> Self {
        let summary = &record.latency.response.summary;
        let ns = |percentile: Option<oroshi_stats::Percentile>| percentile.map_or(f64::NAN, |p| p.value_ns as f64);
        let server = record.server.as_ref().and_then(|s| s.cpu_us_per_request(record.requests.answered));
        Self {
            rate: record.rates.requests_per_s,
            p50: ns(summary.p50),
            p99: ns(summary.p99),
            server: server.map(|us| us * 1e3),
            generator: record.generator.cpu_us_per_request.map(|us| us * 1e3),
            errors: record.errors as f64,
            generator_bound: record.grade.bottleneck == Bottleneck::GeneratorBound,
        }
    }
}

/// Medians over the rounds.
struct Medians<'r>(&'r [Round]);

impl Medians<'_> {
    fn value(&self, setup: Setup, of: fn(&Figures) -> Option<f64>) -> Option<f64> {
        median(self.0.iter().filter_map(|round| of(&round.figures[setup as usize])).collect())
    }

    /// The median of the ratios within a round.
    fn ratio(&self, over: Setup, under: Setup, of: fn(&Figures) -> Option<f64>) -> Option<f64> {
        let ratios = self
            .0
            .iter()
            .filter_map(|round| Some(of(&round.figures[over as usize])? / of(&round.figures[under as usize])?));
        median(ratios.filter(|ratio| ratio.is_finite()).collect())
    }
}

fn report(rounds: &[Round], cpus: Option<(usize, usize)>, paint: Paint) -> String {
    let medians = Medians(rounds);
    let place = match cpus {
        Some((load, server)) => format!("load on CPU {load}, server on CPU {server}"),
        None => "load and server share the only CPU".into(),
    };
    let mut text =
        paint.bold("Is a unix socket faster than TCP? A small server on this machine, asked both ways") + "\n";
    text += &format!(
        "{} of {} each, {CONNECTIONS} connections, {place}; medians\n\n",
        units::plural(rounds.len() as u64, "round"),
        units::length(RUN.as_secs_f64())
    );
    let head = ["", "requests/s", "p50", "p99", "server CPU/request", "generator CPU/request"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for pair in [[Setup::TcpKept, Setup::UnixKept], [Setup::TcpNew, Setup::UnixNew]] {
        rows.extend(pair.map(|setup| figures_row(&medians, setup)));
        rows.push(ratio_row(&medians, pair[1], pair[0]));
        rows.push(Vec::new());
    }
    text += &columns(0, &rows);
    text += &(conclusion(&medians) + "\n");
    for doubt in doubts(rounds, cpus) {
        text += &(paint.yellow(&doubt) + "\n");
    }
    text + "\nMeasure your own:  oroshi bench http://localhost:8080/     oroshi bench unix:/run/app.sock\n"
}

fn figures_row(medians: &Medians<'_>, setup: Setup) -> Vec<String> {
    let time = |of: fn(&Figures) -> Option<f64>| medians.value(setup, of).map_or_else(|| "-".into(), units::time);
    vec![
        setup.name().to_owned(),
        medians.value(setup, |f| Some(f.rate)).map_or_else(|| "-".into(), units::number),
        time(|f| Some(f.p50)),
        time(|f| Some(f.p99)),
        time(|f| f.server),
        time(|f| f.generator),
    ]
}

fn ratio_row(medians: &Medians<'_>, over: Setup, under: Setup) -> Vec<String> {
    let ratio = |of: fn(&Figures) -> Option<f64>| medians.ratio(over, under, of).map_or_else(|| "-".into(), times);
    vec![
        "  unix / TCP".to_owned(),
        ratio(|f| Some(f.rate)),
        ratio(|f| Some(f.p50)),
        ratio(|f| Some(f.p99)),
        ratio(|f| f.server),
        ratio(|f| f.generator),
    ]
}

fn times(ratio: f64) -> String {
    format!("x {ratio:.2}")
}

/// What was found, in words.
fn conclusion(medians: &Medians<'_>) -> String {
    let rate = |over, under| medians.ratio(over, under, |f| Some(f.rate));
    let cpu = |over, under| medians.ratio(over, under, |f| f.server);
    let sentence = |how: &str, over, under| {
        let rate = rate(over, under).unwrap_or(f64::NAN);
        let cost = match cpu(over, under) {
            Some(cpu) => format!(" and cost the server {} CPU per request", less_or_more(cpu)),
            None => String::new(),
        };
        format!("{how} the unix socket carried {} times the requests of TCP{cost}.", two_digits(rate))
    };
    let keeping = rate(Setup::TcpKept, Setup::TcpNew).unwrap_or(f64::NAN);
    format!(
        "{}\n{}\nKeeping connections is worth {} times the requests over TCP.",
        sentence("With kept connections", Setup::UnixKept, Setup::TcpKept),
        sentence("With one connection per request", Setup::UnixNew, Setup::TcpNew),
        two_digits(keeping)
    )
}

/// `34 % less`.
fn less_or_more(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    let word = if percent < 0.0 { "less" } else { "more" };
    format!("{:.0} % {word}", percent.abs())
}

fn two_digits(ratio: f64) -> String {
    if ratio < 9.95 { format!("{ratio:.1}") } else { format!("{ratio:.0}") }
}

/// What makes the figures doubtful.
fn doubts(rounds: &[Round], cpus: Option<(usize, usize)>) -> Vec<String> {
    let mut doubts = Vec::new();
    let bound =
        Setup::ALL.into_iter().filter(|s| rounds.iter().any(|round| round.figures[*s as usize].generator_bound));
    let bound: Vec<&str> = bound.map(Setup::name).collect();
    if !bound.is_empty() && cpus.is_some() {
        doubts.push(format!(
            "The generator was at its limit too ({}): there the server can do more requests/s than this shows. \
             CPU per request holds all the same.",
            bound.join("; ")
        ));
    }
    if cpus.is_none() {
        doubts.push(
            "With one CPU for both, requests/s shows what they cost together; CPU per request tells them apart.".into(),
        );
    }
    let warnings: Vec<&String> = rounds.iter().flat_map(|round| &round.warnings).collect();
    if let Some(first) = warnings.first() {
        let runs = rounds.len() * Setup::ALL.len();
        doubts.push(format!("{} in {runs} runs, the first: {first}.", units::plural(warnings.len() as u64, "warning")));
    }
    if rounds.len() < ROUNDS {
        doubts.push(format!("Ended early, after {} of {ROUNDS} rounds.", rounds.len()));
    }
    let errors: f64 = rounds.iter().flat_map(|round| round.figures).map(|f| f.errors).sum();
    if errors > 0.0 {
        doubts.push(format!("{} requests or connects failed.", units::number(errors)));
    }
    doubts
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|v| !v.is_nan());
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rate: f64, server_us: f64) -> Figures {
        let (server, generator) = (Some(server_us * 1e3), Some(5e3));
        Figures { rate, p50: 2e5, p99: 4e5, server, generator, errors: 0.0, generator_bound: false }
    }

    fn round(scale: f64) -> Round {
        let figures = [(80e3, 10.0), (120e3, 6.0), (20e3, 40.0), (50e3, 16.0)]
            .map(|(rate, us)| figures(rate * scale, us / scale));
        Round { figures, warnings: Vec::new() }
    }

    #[test]
    fn ratios_are_taken_within_a_round_so_drift_does_not_move_them() {
        let rounds = [round(1.0), round(0.3), round(2.0)];
        let medians = Medians(&rounds);
        assert_eq!(medians.ratio(Setup::UnixKept, Setup::TcpKept, |f| Some(f.rate)), Some(1.5));
        assert_eq!(medians.value(Setup::TcpKept, |f| Some(f.rate)), Some(80e3));
        let text = report(&rounds, Some((0, 1)), Paint::PLAIN);
        assert!(text.contains("With kept connections the unix socket carried 1.5 times the requests of TCP and cost the server 40 % less CPU"), "{text}");
        assert!(text.contains("With one connection per request the unix socket carried 2.5 times"), "{text}");
        assert!(text.contains("worth 4.0 times"), "{text}");
    }

    #[test]
    fn doubts_are_said() {
        let mut rounds = [round(1.0), round(1.0)];
        rounds[0].figures[1].generator_bound = true;
        rounds[1].figures[2].errors = 3.0;
        rounds[1].warnings = vec!["somebody else was busy".into()];
        let text = doubts(&rounds, Some((0, 1))).join("\n");
        assert!(text.contains("at its limit") && text.contains("2 of 3") && text.contains("3.00 requests"), "{text}");
        assert!(text.contains("1 warning in 8 runs, the first: somebody else was busy."), "{text}");
        assert!(doubts(&[round(1.0), round(1.0), round(1.0)], Some((0, 1))).is_empty());
        assert_eq!(doubts(&[round(1.0), round(1.0), round(1.0)], None).len(), 1);
    }

    #[test]
    fn a_median_is_of_what_there_is() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![1.0, 2.0]), Some(1.5));
        assert_eq!((median(vec![]), median(vec![f64::NAN])), (None, None));
    }
}
