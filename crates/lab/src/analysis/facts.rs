//! Facts about a variant's runs that decide which figures can be compared: the rate, the timetable or burst size,
//! failed requests, and who was at the limit.

use oroshi_bench::{Bottleneck, Load, Record};
use oroshi_stats::compare::{self, Verdict};
use oroshi_words::units;

use super::kinds::Kind;
use super::{bootstrap, too_few, values};
use crate::disturbed::Disturbed;
use crate::metric::Metric;
use crate::plan::LEAST_BLOCKS;
use crate::result::Run;

/// Two rates are the same if their ratio is this close to 1.
const SAME_RATE: f64 = 0.02;
/// A timetable was kept if this share of the due requests was answered.
const KEPT: f64 = 0.99;

/// Above this share of errors a server's speed says nothing about its work.
const FAILING: f64 = 0.05;

/// One variant's runs in one cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Median of answers per second.
    pub(crate) rate: Option<f64>,
    /// The timetable, if its load had one (an open loop).
    timetable: Option<Timetable<'a>>,
    /// Requests that its load program sent at the same moment, if it sends bursts, all of one size.
    burst: Option<u64>,
    /// Runs whose bottleneck is known, and those where it was the generator.
    pub(crate) graded: usize,
    pub(crate) generator_bound: usize,
    /// Runs on a busy machine.
    pub(crate) disturbed: Disturbed,
    /// Errors per request.
    errors: f64,
    /// The kind of its answers.
    pub(super) kind: Kind,
    /// Why the server's CPU time and memory are unknown.
    server_unknown: Option<&'a str>,
    /// Whether its load consists of journeys.
    pub(super) journeys: bool,
}

#[derive(Clone, Copy, Debug)]
struct Timetable<'a> {
    load: &'a Load,
    /// Requests due per second, the mean where the rate changes.
    due: f64,
    kept: bool,
}

impl<'a> Facts<'a> {
    /// Returns the facts of one variant's runs, among those of its cell.
    pub(crate) fn of(name: &'a str, runs: &'a [Run], variant: usize) -> Self {
        let own = || runs.iter().filter(|run| run.variant == variant && run.unfinished_agents == 0);
        let records: Vec<&Record> = own().filter_map(|run| run.record.as_deref()).collect();
        let bursts: Vec<Burst> = own().filter_map(Burst::of).collect();
        let at_limit = |record: &&&Record| record.grade.bottleneck == Bottleneck::GeneratorBound;
        let rates = values(runs, variant, Metric::Rps);
        Self {
            name,
            rate: compare::level(&rates, &bootstrap())
                .map(|rate| rate.estimate)
                .or(rates.last().map(|last| last.value)),
            timetable: Timetable::of(&records),
            burst: bursts.first().map(|burst| burst.sent).filter(|sent| bursts.iter().all(|burst| burst.sent == *sent)),
            graded: records.len(),
            generator_bound: records.iter().filter(at_limit).count(),
            disturbed: Disturbed::of(own()),
            errors: errors(&records, &bursts),
            kind: Kind::of(&records),
            server_unknown: records.iter().find_map(|record| record.server_unknown.as_deref()),
            journeys: records.iter().any(|record| record.scenario.is_some()),
        }
    }
}

/// Returns errors per request over all runs.
fn errors(records: &[&Record], bursts: &[Burst]) -> f64 {
    let ours = records.iter().map(|record| (record.errors as f64, record.requests.started as f64));
    let theirs = bursts.iter().map(|burst| (burst.sent as f64 - burst.answered, burst.sent as f64));
    let (failed, sent) = ours.chain(theirs).fold((0.0, 0.0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
    failed / f64::max(sent, 1.0)
}

/// A run in which a program sent requests at the same moment.
struct Burst {
    sent: u64,
    answered: f64,
}

impl Burst {
    fn of(run: &Run) -> Option<Self> {
        let command = run.command.as_ref()?;
        Some(Self { sent: command.burst?, answered: command.requests? })
    }
}

impl<'a> Timetable<'a> {
    fn of(records: &[&'a Record]) -> Option<Self> {
        let load = &records.first()?.plan.load;
        let Load::Open { stages, .. } = load else { return None };
        // Requests under way at the end, at most one per connection, count as on time. A script has journeys due.
        let on_time = |r: &&Record| match &r.scenario {
            Some(scenario) => scenario.users.due.saturating_sub(scenario.users.unbegun),
            None => r.requests.completed + (r.requests.cut_off + r.requests.unsent).min(r.plan.connections as u64),
        };
        let due = |r: &&Record| r.scenario.as_ref().map_or(r.requests.started, |scenario| scenario.users.due);
        let answered: u64 = records.iter().map(on_time).sum();
        let due: u64 = records.iter().map(due).sum();
        let seconds: f64 = records.iter().map(|record| record.elapsed_s).sum();
        let rate = match stages.as_slice() {
            [steady] => steady.rate,
            _ if seconds > 0.0 => due as f64 / seconds,
            _ => 0.0,
        };
        Some(Self { load, due: rate, kept: answered as f64 >= KEPT * due as f64 })
    }
}

/// Returns why no cost or time of requests is compared: one side had too many errors.
pub(super) fn failing(base: &Facts<'_>, variant: &Facts<'_>) -> Option<String> {
    let facts = [base, variant].into_iter().find(|facts| facts.errors > FAILING)?;
    let (name, share) = (facts.name, units::percent(facts.errors));
    Some(format!(
        "{share} of the requests to {name} ended in errors, and failing is not the work that is compared: mend it, or \
         say with a check what is right"
    ))
}

/// Returns why a verdict on rates is not one on the servers: the generator was at its limit in more than half of the
/// runs of the worse side, or of either side if no difference was found. If only the better side was limited, it is
/// better by more, and the sentence says so. The limits of load programs are unknown.
pub(super) fn limited(metric: Metric, verdict: Verdict, [base, variant]: [&Facts<'_>; 2]) -> Option<String> {
    let at_limit =
        |facts: &&&Facts<'_>| facts.graded == facts.disturbed.runs && 2 * facts.generator_bound > facts.graded;
    let asked: &[&Facts<'_>] = match verdict {
        _ if !metric.is_throughput() => &[],
        Verdict::Equivalent => &[base, variant],
        Verdict::Faster => &[base],
        Verdict::Slower => &[variant],
        Verdict::Undecided | Verdict::Disturbed | Verdict::NotCompared => &[],
    };
    let facts = asked.iter().find(at_limit)?;
    Some(format!(
        "the load generator was at its limit in {} of {} of {}, so that is its rate and not the server's; give it more \
         CPUs \
         (`threads`, `cpus`), or compare CPU time per request",
        facts.generator_bound,
        units::plural(facts.graded as u64, "run"),
        facts.name
    ))
}

/// The relation of two loads, as far as it decides requests per second.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Timetables {
    /// The servers decided the rates.
    Ratio,
    /// One timetable, which both kept.
    Kept {
        /// Requests per second.
        rate: f64,
    },
    /// Different timetables: a ratio of the rates shows nothing.
    Differ(String),
}

pub(super) fn timetables(base: &Facts<'_>, variant: &Facts<'_>) -> Timetables {
    let given = |facts: &Facts<'_>, timetable: &Timetable<'_>| {
        let what = if facts.journeys { " journeys" } else { "" };
        format!("{} was asked for {}{what}/s", facts.name, units::number(timetable.due))
    };
    match (&base.timetable, &variant.timetable) {
        (None, None) => Timetables::Ratio,
        (Some(one), Some(other)) if one.load == other.load => {
            if one.kept && other.kept {
                Timetables::Kept { rate: one.due }
            } else {
                Timetables::Ratio
            }
        }
        (Some(one), Some(other)) => Timetables::Differ(format!("{} and {}", given(base, one), given(variant, other))),
        (Some(one), None) => Timetables::Differ(format!("{}, {} for all it can", given(base, one), variant.name)),
        (None, Some(other)) => Timetables::Differ(format!("{}, {} for all it can", given(variant, other), base.name)),
    }
}

/// Checks that two sides' latencies can be compared: same rate, one timetable, or bursts of one size, and not both
/// overloaded. `ratio` is that of their rates.
///
/// # Errors
/// Why they cannot be compared, in words.
pub(crate) fn same_rate(ratio: Option<f64>, base: &Facts<'_>, variant: &Facts<'_>) -> Result<(), String> {
    const ADVICE: &str =
        "run both at the same one (--rate 1k, or --rate 60% of what the slower can; in a file, rate = \"60%\")";
    if let (Some(one), Some(other)) = (&base.timetable, &variant.timetable)
        && !one.kept
        && !other.kept
    {
        return Err(format!(
            "neither kept its timetable ({}/s were due), so both were overloaded, and requests waited the longer the \
             longer the run \
             was: lower the rate",
            units::number(one.due.max(other.due))
        ));
    }
    match (base.burst, variant.burst) {
        (Some(one), Some(other)) if one == other => return Ok(()),
        (Some(one), Some(other)) => {
            return Err(format!(
                "{} sent {} at once and {} {}, and latency depends on how many there are: give both the same `burst`",
                base.name,
                units::plural(one, "request"),
                variant.name,
                units::count(other)
            ));
        }
        _ => {}
    }
    match ratio {
        // In a short run one answer is some percent of the rate, but both had the same timetable.
        _ if matches!(timetables(base, variant), Timetables::Kept { .. }) => Ok(()),
        Some(ratio) if (1.0 / (1.0 + SAME_RATE)..=1.0 + SAME_RATE).contains(&ratio) => Ok(()),
        _ => {
            let rate = |facts: &Facts<'_>| match facts.rate {
                Some(rate) => format!("{} answered {}/s", facts.name, units::number(rate)),
                None => format!("the rate of {} is not known", facts.name),
            };
            Err(format!("{} and {}, and latency depends on the rate: {ADVICE}", rate(base), rate(variant)))
        }
    }
}

/// Returns why this metric has no ratio over these blocks.
pub(super) fn why_no_ratio(metric: Metric, base: &Facts<'_>, variant: &Facts<'_>, blocks: &[(&Run, &Run)]) -> String {
    if blocks.len() < LEAST_BLOCKS {
        return too_few(blocks.len(), "blocks in which both were measured");
    }
    let has = |run: &Run| run.figures.contains_key(&metric);
    let lacking = [(base, blocks.iter().all(|(run, _)| !has(run))), (variant, blocks.iter().all(|(_, run)| !has(run)))];
    match lacking.iter().find(|(_, lacks)| *lacks) {
        Some((facts, _)) => no_figure(metric, facts),
        None => {
            let both = blocks.iter().filter(|(one, other)| has(one) && has(other)).count();
            too_few(both, "blocks in which both have that figure")
        }
    }
}

/// Returns why no run of a variant has a figure.
pub(crate) fn no_figure(metric: Metric, facts: &Facts<'_>) -> String {
    let unseen = facts.server_unknown.filter(|_| matches!(metric, Metric::Cpu | Metric::Memory));
    match unseen {
        Some(why) => format!("the server of {} is out of sight ({why})", facts.name),
        None if metric == Metric::Score => {
            format!("no run of {} has a score above 0: the script is to award points, or to return a score", facts.name)
        }
        None => format!("no run of {} has that figure", facts.name),
    }
}
