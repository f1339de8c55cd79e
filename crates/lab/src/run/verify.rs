//! Checks a record of our own load: whether the run is usable, and what is doubtful.

use oroshi_bench::record::PointRecord;
use oroshi_bench::record::scenario::ScenarioRecord;
use oroshi_bench::{Bottleneck, Failure, Load, Record};
use oroshi_stats::changepoint;
use oroshi_words::units;

use super::lengths;

/// With a greater share of failed requests, the run measures failing.
const FAILED: f64 = 0.5;
/// A share of errors that deserves a warning.
const ERRORS: f64 = 0.001;
/// Failed checks that a warning names.
const NAMED_CHECKS: usize = 5;
/// A change of level within a run that deserves a warning.
const LEAST_SHIFT: f64 = 0.1;

/// Returns why a run measured only failures, or has a void score.
pub(super) fn failure(record: &Record) -> Option<String> {
    if let Some(why) = record.scenario.as_ref().and_then(|scenario| void(scenario)) {
        return Some(why);
    }
    let (started, answered) = (record.requests.started, record.requests.answered);
    // A run shorter than an answer may receive every answer after its end.
    if answered == 0 && record.requests.completed == 0 {
        return Some(format!("nothing was answered{}", listed(record)));
    }
    let of = |failure| record.failures.get(&failure).copied().unwrap_or(0);
    let wrong = of(Failure::Status) + of(Failure::Check);
    let failed = record.requests.failed + wrong;
    (failed as f64 > FAILED * started as f64).then(|| {
        let statuses: Vec<String> =
            record.statuses.iter().map(|(status, n)| format!("{status} {}", units::plural(*n, "time"))).collect();
        let advice = if of(Failure::Status) > started / 2 {
            format!("; answers had status {}: if that is right here, say so with a check", statuses.join(", "))
        } else {
            String::new()
        };
        format!("{} of {} requests failed{}{advice}", units::count(failed), units::count(started), listed(record))
    })
}

/// Returns why a run of scenarios has no result: the script ended it, or its score is void.
fn void(scenario: &ScenarioRecord) -> Option<String> {
    let ended = scenario.aborted.as_ref().map(|why| format!("the script ended the run: {why}"));
    let void = scenario.score.as_ref().and_then(|score| score.void.as_ref());
    ended.or_else(|| void.map(|why| format!("its score is void: {why}")))
}

/// Says which checks of a script failed.
fn failed_checks(scenario: &ScenarioRecord) -> Option<String> {
    let (passed, all) = scenario.checks_passed();
    let names: Vec<&str> =
        scenario.checks.iter().filter(|check| check.failed > 0).map(|check| check.name.as_str()).collect();
    let more = if names.len() > NAMED_CHECKS { ", ..." } else { "" };
    (passed < all).then(|| {
        let named = names.iter().take(NAMED_CHECKS).copied().collect::<Vec<_>>().join(", ");
        format!("{} of {} failed ({named}{more})", units::count(all - passed), units::plural(all, "check"))
    })
}

/// Writes ` (timeout 12, status 3)`, or nothing.
fn listed(record: &Record) -> String {
    let errors = record.failures.iter().filter(|(failure, _)| failure.is_error());
    let errors: Vec<String> = errors.map(|(failure, n)| format!("{failure} {}", units::count(*n))).collect();
    if errors.is_empty() { String::new() } else { format!(" ({})", errors.join(", ")) }
}

/// Returns reasons to doubt a run.
pub(super) fn warnings(record: &Record) -> Vec<String> {
    let grade = &record.grade;
    let advice = grade.advice.as_ref().map(|advice| format!(" ({advice})")).unwrap_or_default();
    let bound = match grade.bottleneck {
        Bottleneck::GeneratorBound => Some("its rate and latency say little of the server"),
        Bottleneck::PortBound => Some("its rate says how fast ports come back, and not what the server can do"),
        Bottleneck::ServerGone => Some("its figures are of the time before"),
        Bottleneck::ServerBound
        | Bottleneck::LatencyBound
        | Bottleneck::RateBound
        | Bottleneck::MachineBound
        | Bottleneck::NotGraded => None,
    };
    let bound = bound.map(|so| format!("{}, so {so}: {}{advice}", grade.bottleneck.name(), grade.because));
    let share = record.errors as f64 / record.requests.started.max(1) as f64;
    let errors = (share > ERRORS).then(|| {
        let names: Vec<&str> =
            record.failures.keys().filter(|failure| failure.is_error()).map(|failure| failure.name()).collect();
        format!("{} of the requests ended in errors ({})", units::percent(share), names.join(", "))
    });
    let of_record = record.warnings.iter().filter(|text| !is_of_the_machine(text)).cloned();
    let checks = record.scenario.as_ref().and_then(|scenario| failed_checks(scenario));
    of_record.chain(bound).chain(errors).chain(checks).chain(lengths::too_few_rounds(record)).collect()
}

/// Whether a warning is about other processes and machines. [`disturbed`](crate::disturbed) judges those for the CPUs
/// of the experiment, and for load programs too; two rules would contradict each other.
fn is_of_the_machine(warning: &str) -> bool {
    ["other processes used ", "another machine on this host took "].iter().any(|start| warning.starts_with(start))
}

/// Returns why a program's burst measured only failures, or has the wrong size.
pub(super) fn burst_failure(burst: u64, answered: f64) -> Option<String> {
    let (sent, failed) = (burst as f64, burst as f64 - answered);
    let requests = units::plural(burst, "request");
    if answered <= 0.0 {
        Some(format!("none of its {requests} was answered"))
    } else if answered > sent {
        Some(format!("it tells of {} answers, and was to send {requests}", units::number(answered)))
    } else {
        (failed > FAILED * sent).then(|| format!("{} of its {requests} failed", units::number(failed)))
    }
}

/// Returns reasons to doubt a program's burst.
pub(super) fn burst_warning(burst: u64, answered: f64) -> Option<String> {
    let share = (burst as f64 - answered) / burst.max(1) as f64;
    (share > ERRORS).then(|| format!("{} of the requests were not answered", units::percent(share)))
}

/// Says how throughput (closed loop) or latency (open loop) shifted within a run, if it did. A script may change the
/// number of users, so its runs may shift.
pub(super) fn shift(record: &Record) -> Option<String> {
    if record.scenario.is_some() {
        return None;
    }
    let width = record.series.width_s;
    // The last point may be narrower; rounding loses half a millisecond.
    let whole = |point: &&PointRecord| point.at_s + width <= record.elapsed_s + 5e-4;
    let points = record.series.points.iter().filter(whole);
    let closed = record.plan.load == Load::Closed;
    let value = |point: &PointRecord| {
        let value = if closed { point.requests as f64 / width } else { point.p50_ns? as f64 };
        Some((point.at_s, value))
    };
    let (times, values): (Vec<f64>, Vec<f64>) = points.filter_map(value).unzip();
    let shift = changepoint::shift(&values, LEAST_SHIFT)?;
    let what = if closed { "throughput" } else { "p50" };
    let way = if shift.after < shift.before { "fell" } else { "rose" };
    let [before, after] = [shift.before, shift.after]
        .map(|value| if closed { format!("{}/s", units::number(value)) } else { units::time(value) });
    Some(format!("{what} {way} from {before} to {after} at {}", units::length(*times.get(shift.at)?)))
}

#[cfg(test)]
mod tests {
    use oroshi_bench::Spacing;

    use super::*;
    use crate::sample::{noise, record};

    fn closed() -> Record {
        record(&Load::Closed, 1000, "server-bound")
    }

    fn points(values: impl Iterator<Item = (u64, Option<u64>)>) -> Vec<PointRecord> {
        let point = |(index, (requests, p50_ns)): (usize, (u64, Option<u64>))| {
            let json = serde_json::json!({
                "at_s": index as f64 / 10.0, "requests": requests, "errors": 0, "bytes": 0, "p50_ns": p50_ns,
                "p99_ns": null, "max_ns": null,
            });
            serde_json::from_value(json).unwrap()
        };
        values.enumerate().map(point).collect()
    }

    #[test]
    fn a_run_of_failures_is_none() {
        assert_eq!(failure(&closed()), None);
        let mut dead = closed();
        (dead.requests.answered, dead.requests.completed) = (0, 0);
        dead.failures.insert(Failure::ConnectRefused, 40);
        dead.failures.insert(Failure::CutOffAtEnd, 3);
        assert_eq!(failure(&dead).unwrap(), "nothing was answered (connect-refused 40)");

        let mut half = closed();
        half.requests.failed = 500;
        half.failures.insert(Failure::Timeout, 500);
        assert_eq!(failure(&half), None, "half of them is not more than half");
        half.requests.failed = 501;
        assert!(failure(&half).unwrap().starts_with("501 of 1,000 requests failed (timeout 500)"));

        let mut wrong = closed();
        wrong.failures.insert(Failure::Status, 900);
        wrong.statuses = [(200, 100), (404, 900)].into();
        let why = failure(&wrong).unwrap();
        assert!(why.contains("900 of 1,000") && why.contains("404 900 times") && why.contains("with a check"), "{why}");
    }

    #[test]
    fn errors_and_other_bottlenecks_are_warned_of() {
        assert_eq!(warnings(&closed()), Vec::<String>::new());
        let mut doubtful = record(&Load::Closed, 1000, "generator-bound");
        doubtful.warnings.push("as the run said".into());
        doubtful.errors = 12;
        doubtful.failures.insert(Failure::Timeout, 12);
        let said = warnings(&doubtful);
        assert_eq!(said[0], "as the run said");
        assert!(
            said[1].starts_with("generator-bound, so its rate and latency say little of the server: of the sample")
        );
        assert_eq!(said[2], "1.2 % of the requests ended in errors (timeout)");
        assert!(warnings(&record(&Load::Closed, 1, "port-bound"))[0].starts_with("port-bound, so"));
        doubtful.errors = 1;
        assert_eq!(warnings(&doubtful).len(), 2, "one in a thousand is not more than that");
    }

    #[test]
    fn a_burst_is_held_against_what_was_to_be_sent() {
        let failure = |answered| burst_failure(1000, answered);
        assert_eq!(failure(0.0).unwrap(), "none of its 1,000 requests was answered");
        assert_eq!(failure(499.0).unwrap(), "501 of its 1,000 requests failed");
        assert_eq!(failure(1001.0).unwrap(), "it tells of 1,001 answers, and was to send 1,000 requests");
        assert_eq!((failure(500.0), failure(1000.0)), (None, None));
        assert_eq!(burst_warning(1000, 988.0).unwrap(), "1.2 % of the requests were not answered");
        assert_eq!((burst_warning(1000, 999.0), burst_warning(1000, 1000.0)), (None, None));
    }

    #[test]
    fn a_shift_is_found_in_what_the_loop_leaves_free() {
        let mut noise = noise(0.02);
        let levels: Vec<f64> = (0..30).map(|i| if i < 12 { 8100.0 } else { 6000.0 } * noise()).collect();
        let mut run = closed();
        run.elapsed_s = 3.0;
        run.series.points = points(levels.iter().map(|&level| (level as u64, Some(1_000_000))));
        let said = shift(&run).unwrap();
        assert!(
            said.starts_with("throughput fell from 8") && said.contains(" to ") && said.ends_with("/s at 1.2s"),
            "{said}"
        );

        // An open loop fixes the rate, so only latency can shift; points without answers are left out.
        run.plan.load = Load::rate(60_000.0, Spacing::Constant, 0);
        run.series.points =
            points(levels.iter().map(|&level| (6000, (level > 5950.0).then_some((1e10 / level) as u64))));
        let said = shift(&run).unwrap();
        assert!(said.starts_with("p50 rose from 1.2") && said.ends_with("ms at 1.2s"), "{said}");
    }

    #[test]
    fn a_steady_run_is_not_flagged_for_its_last_narrow_point() {
        let mut noise = noise(0.02);
        let mut run = closed();
        run.elapsed_s = 2.03;
        run.series.points = points((0..21).map(|i| ((if i < 20 { 1000.0 * noise() } else { 300.0 }) as u64, None)));
        assert_eq!(shift(&run), None);
    }
}
