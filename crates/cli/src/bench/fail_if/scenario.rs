//! Conditions on what users did: `score<40000`, `checks<99%`, `step.login.p99>200ms`.
//!
//! A name with an operator, a space or a dot may stand in quotes: `step."GET /a.b".p99>1s`. Without quotes a name ends
//! at the first dot after which a known figure follows.

use oroshi_bench::Record;
use oroshi_bench::record::ClockRecord;
use oroshi_bench::record::scenario::{JourneyRecord, ScenarioRecord, StepRecord};
use oroshi_report::words::scenario::{one_line, points, void};
use oroshi_words::{nearest, units};

use super::{Figure, Measured, Rounding, Unit, figure_of, latency, precise_time};

/// Kinds of metrics with a name, and the metrics without one.
const KINDS: [&str; 4] = ["step", "check", "journey", "timer"];
pub(super) const OTHERS: [&str; 6] =
    ["score", "checks", "journeys.begun", "journeys.completed", "journeys.failed", "journeys.cut-off"];
/// Names that a message lists.
const LISTED: usize = 8;
/// The longest name in a message.
const LONGEST: usize = 60;

/// A figure of a run of scenarios.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ScenarioMetric {
    Score,
    /// The share of all checks that passed; of one by name.
    Checks(Option<String>),
    Step(String, StepFigure),
    /// Journeys of one scenario, or of all.
    Journeys(Option<String>, Ended),
    Journey(String, Figure),
    Timer(String, Figure),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StepFigure {
    Response(Figure),
    Service(Figure),
    Errors,
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Begun,
    Completed,
    Failed,
    CutOff,
}

/// Reads a metric; `None`: it is of another kind.
pub(super) fn metric_of(text: &str) -> Option<Result<ScenarioMetric, String>> {
    match text {
        "score" => return Some(Ok(ScenarioMetric::Score)),
        "checks" => return Some(Ok(ScenarioMetric::Checks(None))),
        _ => {}
    }
    let (kind, rest) = text.split_once('.')?;
    let wrong = |figures: &str| Err(format!("`{text}`: expected {kind}.NAME{figures}"));
    Some(match kind {
        "journeys" => match ended(rest) {
            Some(ended) => Ok(ScenarioMetric::Journeys(None, ended)),
            None => Err(format!("`{text}`: expected {}", OTHERS[2..].join(", "))),
        },
        "check" => match quoted(rest) {
            Some((name, "")) => Ok(ScenarioMetric::Checks(Some(name))),
            Some(_) => wrong(""),
            None if rest.is_empty() => wrong(""),
            None => Ok(ScenarioMetric::Checks(Some(rest.to_owned()))),
        },
        "step" => named(rest, step_figure).map_or_else(
            || wrong(" and .p99 (or another percentile, mean, min, max), .service.p99, .errors or .rps"),
            |(name, figure)| Ok(ScenarioMetric::Step(name, figure)),
        ),
        "journey" => named(rest, |figure| figure_of(figure).map(Ok).or_else(|| ended(figure).map(Err))).map_or_else(
            || wrong(" and .p99 (or another percentile, mean, min, max), .begun, .completed, .failed or .cut-off"),
            |(name, figure)| {
                Ok(match figure {
                    Ok(figure) => ScenarioMetric::Journey(name, figure),
                    Err(ended) => ScenarioMetric::Journeys(Some(name), ended),
                })
            },
        ),
        "timer" => named(rest, figure_of).map_or_else(
            || wrong(" and .p99 (or another percentile, mean, min, max)"),
            |(name, figure)| Ok(ScenarioMetric::Timer(name, figure)),
        ),
        _ => return None,
    })
}

/// Returns what was probably meant by an unknown metric: another kind, with the rest as it is.
pub(super) fn meant(text: &str) -> Option<String> {
    let (kind, rest) = text.split_once('.')?;
    nearest(kind, KINDS.into_iter().chain(["journeys"])).map(|near| format!("{near}.{rest}"))
}

fn ended(text: &str) -> Option<Ended> {
    Some(match text {
        "begun" => Ended::Begun,
        "completed" => Ended::Completed,
        "failed" => Ended::Failed,
        "cut-off" => Ended::CutOff,
        _ => return None,
    })
}

fn step_figure(text: &str) -> Option<StepFigure> {
    match text {
        "errors" => return Some(StepFigure::Errors),
        "rps" => return Some(StepFigure::Rate),
        _ => {}
    }
    match text.split_once('.') {
        Some(("service", figure)) => figure_of(figure).map(StepFigure::Service),
        Some(("response", figure)) => figure_of(figure).map(StepFigure::Response),
        _ => figure_of(text).map(StepFigure::Response),
    }
}

/// Splits a name from the figure after it.
fn named<T>(text: &str, figure: impl Fn(&str) -> Option<T>) -> Option<(String, T)> {
    if let Some((name, rest)) = quoted(text) {
        return Some((name, figure(rest.strip_prefix('.')?)?));
    }
    let dots = text.match_indices('.').map(|(at, _)| at).filter(|at| *at > 0);
    dots.filter_map(|at| Some((text[..at].to_owned(), figure(&text[at + 1..])?))).next()
}

/// Reads a name in quotes, in which a backslash stands before a quote or a backslash. Returns the rest too.
fn quoted(text: &str) -> Option<(String, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut name = String::new();
    let mut letters = inside.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((name, &inside[at + 1..])),
            '\\' => name.push(letters.next()?.1),
            letter => name.push(letter),
        }
    }
    None
}

/// Returns where a condition's operator begins: the first that is not in quotes.
pub(super) fn operator(text: &str) -> Option<usize> {
    let (mut inside, mut escaped) = (false, false);
    text.char_indices()
        .find(|(_, letter)| {
            if escaped {
                escaped = false;
                return false;
            }
            match letter {
                '\\' if inside => escaped = true,
                '"' => inside = !inside,
                '<' | '>' => return !inside,
                _ => {}
            }
            false
        })
        .map(|(at, _)| at)
}

impl ScenarioMetric {
    pub(super) fn unit(&self) -> Unit {
        match self {
            Self::Score => Unit::Points,
            Self::Checks(_) => Unit::Share,
            Self::Step(_, StepFigure::Errors) | Self::Journeys(..) => Unit::Count,
            Self::Step(_, StepFigure::Rate) => Unit::Number,
            Self::Step(..) | Self::Journey(..) | Self::Timer(..) => Unit::Time,
        }
    }

    /// Returns the value, or why there is none.
    pub(super) fn measure(&self, record: &Record) -> Result<Measured, String> {
        let scenario = of(record)?;
        let exact = |value| Ok(Measured::exactly(value));
        match self {
            Self::Score => {
                let score = scenario.score.as_ref();
                score.map(|score| Measured::exactly(score.value)).ok_or_else(|| "the script awards no points".into())
            }
            Self::Checks(name) => {
                let (passed, all) = match name {
                    Some(name) => find("check", name, &scenario.checks, |check| &check.name)
                        .map(|check| (check.passed, check.passed + check.failed))?,
                    None => scenario.checks_passed(),
                };
                if all == 0 { Err("no check was made".into()) } else { exact(passed as f64 / all as f64) }
            }
            Self::Step(name, figure) => {
                let step = step(scenario, name)?;
                match *figure {
                    StepFigure::Response(figure) => time(&step.response, figure),
                    StepFigure::Service(figure) => time(&step.service, figure),
                    StepFigure::Errors => exact(step.errors as f64),
                    StepFigure::Rate => exact(step.per_s),
                }
            }
            Self::Journeys(name, ended) => exact(journeys(scenario, name.as_deref(), *ended)? as f64),
            Self::Journey(name, figure) => {
                time(&find("scenario", name, &scenario.journeys, |journey| &journey.name)?.duration, *figure)
            }
            Self::Timer(name, figure) => {
                time(&find("timer", name, &scenario.timers, |timer| &timer.name)?.time, *figure)
            }
        }
    }

    /// Returns the number that a limit in per cent is a share of.
    pub(super) fn whole(&self, record: &Record) -> Result<u64, String> {
        let scenario = of(record)?;
        let (whole, what) = match self {
            Self::Step(name, _) => (step(scenario, name)?.count, "the step sent no request"),
            Self::Journeys(name, _) => (journeys(scenario, name.as_deref(), Ended::Begun)?, "no journey began"),
            _ => (0, "there is no whole"),
        };
        if whole == 0 { Err(what.into()) } else { Ok(whole) }
    }

    /// Writes a value.
    pub(super) fn show(&self, value: f64, way: Rounding, record: &Record) -> String {
        match self {
            Self::Score => points(value),
            Self::Checks(_) => precise_share(value),
            Self::Step(_, StepFigure::Rate) => format!("{value:.1}"),
            Self::Step(_, StepFigure::Errors) | Self::Journeys(..) => match self.whole(record) {
                Ok(whole) => {
                    let share = precise_share(value / whole as f64);
                    let what = if matches!(self, Self::Step(..)) { "requests" } else { "journeys" };
                    format!("{value:.0} ({share} of {} {what})", units::count(whole))
                }
                Err(_) => format!("{value:.0}"),
            },
            Self::Step(..) | Self::Journey(..) | Self::Timer(..) => precise_time(value, way),
        }
    }

    /// Returns why the score counts as less than any limit: it is void.
    pub(super) fn void<'r>(&self, record: &'r Record) -> Option<&'r str> {
        if *self == Self::Score { void(record) } else { None }
    }
}

/// Formats a share so that a limit of three decimals is not rounded over.
fn precise_share(share: f64) -> String {
    let text = format!("{:.3}", (share * 1e5).floor() / 1e3);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

fn of(record: &Record) -> Result<&ScenarioRecord, String> {
    record.scenario.as_deref().ok_or_else(|| "the run has no scenarios (they come from a script: -s FILE)".into())
}

fn time(clock: &ClockRecord, figure: Figure) -> Result<Measured, String> {
    latency(clock, figure)
}

fn step<'r>(scenario: &'r ScenarioRecord, name: &str) -> Result<&'r StepRecord, String> {
    find("step", name, &scenario.steps, |step| &step.name)
}

fn journeys(scenario: &ScenarioRecord, name: Option<&str>, ended: Ended) -> Result<u64, String> {
    let count = |journey: &JourneyRecord| match ended {
        Ended::Begun => journey.begun,
        Ended::Completed => journey.completed,
        Ended::Failed => journey.failed,
        Ended::CutOff => journey.cut_off,
    };
    match name {
        Some(name) => find("scenario", name, &scenario.journeys, |journey| &journey.name).map(count),
        None => Ok(scenario.journeys.iter().map(count).sum()),
    }
}

/// Finds a record by its name; otherwise names the nearest one, and some of those that there are.
fn find<'r, T>(kind: &str, name: &str, records: &'r [T], of: impl Fn(&T) -> &String) -> Result<&'r T, String> {
    if let Some(found) = records.iter().find(|record| of(record) == name) {
        return Ok(found);
    }
    let missing = format!("no {kind} is named `{}`", one_line(name, LONGEST));
    let names: Vec<&str> = records.iter().map(|record| of(record).as_str()).collect();
    let shown = |name: &&str| format!("`{}`", one_line(name, LONGEST));
    let near = nearest(name, names.iter().copied());
    let near = near.map(|near| format!(": did you mean {}?", shown(&near))).unwrap_or_default();
    if names.is_empty() {
        return Err(format!("{missing}: the run has none"));
    }
    let listed = names.iter().take(LISTED).map(shown).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(format!("{missing}{near}; the run has {listed}{more}"))
}

#[cfg(test)]
mod tests {
    use oroshi_bench::record::ConditionOutcome::{self, Failed, Passed, Undecided};
    use oroshi_report::sample::scenario as sample;

    use super::super::Threshold;
    use super::*;

    #[track_caller]
    fn judge(condition: &str, record: &Record) -> (ConditionOutcome, String) {
        let judged = condition.parse::<Threshold>().unwrap().judge(record);
        assert_eq!(judged.condition, condition);
        (judged.outcome, judged.measured)
    }

    #[test]
    fn each_figure_of_a_scenario_can_be_a_condition() {
        let record = sample::shop();
        for (condition, outcome) in [
            ("score<40000", Passed),
            ("score<44k", Failed),
            ("score>=43933", Failed),
            ("score<-5", Passed),
            ("checks<99%", Passed),
            ("checks<99.9%", Failed),
            ("check.title<100%", Failed),
            ("check.title<99%", Passed),
            ("check.logged in<100%", Passed),
            ("check.\"logged in\"<100%", Passed),
            ("step.login.p99>1ms", Failed),
            ("step.login.p99>200ms", Passed),
            ("step.login.p99.9>200ms", Passed),
            ("step.login.service.p50<1ms", Passed),
            ("step.login.response.mean>1s", Passed),
            ("step.item.max>500ms", Failed),
            ("step.item.max>2s", Undecided),
            ("step.top.errors>0", Failed),
            ("step.top.errors>1%", Passed),
            ("step.top.errors>0.9%", Failed),
            ("step.login.rps<30", Passed),
            ("step.login.rps<34", Failed),
            ("journeys.failed>0", Failed),
            ("journeys.failed>1%", Passed),
            ("journeys.completed<1000", Passed),
            ("journey.buy.failed>0", Passed),
            ("journey.browse.cut-off>=20", Failed),
            ("journey.buy.p95>3s", Passed),
            ("journey.buy.p95>1s", Failed),
            ("timer.checkout.p99>1s", Passed),
            ("timer.checkout.p50<200ms", Failed),
        ] {
            let (found, measured) = judge(condition, &record);
            assert_eq!(found, outcome, "{condition}: {measured}");
        }
        assert_eq!(judge("checks<99.9%", &record).1, "measured 99.888 %");
        assert_eq!(judge("step.top.errors>0", &record).1, "measured 12 (0.9 % of 1,333 requests)");
        assert_eq!(judge("score<44k", &record).1, "measured 43,933");
    }

    #[test]
    fn names_may_hold_dots_operators_and_quotes() {
        let mut record = sample::shop();
        for name in ["GET /a.b", "a>b<c", "say \"hi\" \\", "x.p99"] {
            sample::change(&mut record, |scenario| scenario.steps[0].name = name.to_owned());
            let quoted = format!("step.\"{}\".p99>1ns", name.replace('\\', "\\\\").replace('"', "\\\""));
            let judged = quoted.parse::<Threshold>().unwrap().judge(&record);
            assert_eq!(judged.outcome, Failed, "{judged:?}");
            assert_eq!(format!("{}>1ns", judged.metric), quoted);
        }
        sample::change(&mut record, |scenario| scenario.steps[0].name = "GET /a.b".into());
        assert_eq!(judge("step.GET /a.b.p99.9>1ns", &record).0, Failed);
    }

    #[test]
    fn a_void_score_fails_every_lower_limit() {
        for record in [sample::void(), sample::idle()] {
            for condition in ["score<40000", "score<0", "score<=-5"] {
                let (outcome, measured) = judge(condition, &record);
                assert!(outcome == Failed && measured.starts_with("the score is void: "), "{condition}: {measured}");
            }
            assert_eq!(judge("score>1", &record).0, Undecided);
        }
        let mut none = sample::shop();
        sample::change(&mut none, |scenario| scenario.score = None);
        assert_eq!(judge("score<1", &none), (Undecided, "not measured: the script awards no points".into()));
    }

    #[test]
    fn what_the_run_lacks_is_told_with_near_names() {
        let record = sample::shop();
        let told = |condition| {
            let (outcome, measured) = judge(condition, &record);
            assert_eq!(outcome, Undecided, "{measured}");
            measured
        };
        assert_eq!(
            told("step.logn.p99>1s"),
            "not measured: no step is named `logn`: did you mean `login`?; the run has `top`, `item`, `login`, `assets`, `cart`"
        );
        assert!(told("check.titel<100%").contains("did you mean `title`?"));
        assert!(told("journey.bye.p99>1s").contains("`browse`, `buy`"));
        assert!(told("timer.xyzzyqwert.p99>1s").ends_with("the run has `checkout`"));
        assert!(told("step.logn.errors>1%").contains("`login`"));
        assert_eq!(judge("checks<99%", &sample::idle()).1, "not measured: no check was made");
        let plain = oroshi_report::sample::bench::closed();
        assert!(judge("score<1", &plain).1.contains("no scenarios"));
        assert!(judge("step.a.errors>1%", &plain).1.contains("no scenarios"));
    }

    #[test]
    fn mistakes_say_what_was_expected() {
        let error = |text: &str| text.parse::<Threshold>().unwrap_err();
        for (condition, expected) in [
            ("checks<99", "such as 99%"),
            ("check.<1%", "expected check.NAME"),
            ("step.login>1s", ".service.p99"),
            ("step.login.p9x>1s", "expected step.NAME"),
            ("step.login.p99>1", "1ms"),
            ("steps.login.p99>1s", "did you mean `step.login.p99`?"),
            ("timers.a.p99>1s", "did you mean `timer.a.p99`?"),
            ("journeys.filed>0", "journeys.failed"),
            ("journey.buy.x>0", ".cut-off"),
            ("timer.a.errors>0", "expected timer.NAME"),
            ("scores<1", "did you mean `score`?"),
            ("step.\"a.p99>1s", "expected METRIC OP VALUE"),
            ("check.\"a\"x<1%", "expected check.NAME"),
        ] {
            assert!(error(condition).contains(expected), "{condition}: {}", error(condition));
        }
    }
}
