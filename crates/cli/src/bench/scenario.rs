//! `oroshi bench -s` with a script of scenarios: users make journeys.

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use oroshi_bench::{Draft, Load, RunError, Spacing, Stage};
use oroshi_scenario::{Options, PartOptions, Ramp, Scenario, Settings, is_scenario};
use oroshi_words::units;

use super::args::{Args, LoadArgs};
use super::load::{parse_size, parse_spacing, parse_stages};
use super::read::Output;
use super::{Error, Teller, carry_out_draft};
use crate::problems::Problems;

/// The most journeys per second.
const MOST_JOURNEYS: f64 = 1e6;

/// Whether the flags name a script that is one of scenarios. A file that cannot be read is told elsewhere.
pub(super) fn is_asked_for(args: &Args) -> bool {
    let text = args.script.file.as_ref().and_then(|file| fs::read(file).ok());
    text.is_some_and(|text| is_scenario(&text))
}

/// Runs the script of scenarios.
///
/// # Errors
/// The flags or the script are wrong, or there is no result.
pub(super) fn run(args: Args) -> Result<ExitCode, Error> {
    let Scenarios { draft, output, teller } = read(args, PartOptions::default())?;
    carry_out_draft(draft, None, &output, Vec::new(), Some(&teller)).map_err(|error| match error {
        Error::Run(RunError::Script(error)) => Error::Scenario(error),
        error => error,
    })
}

/// A run of a script of scenarios.
pub(super) struct Scenarios {
    pub(super) draft: Draft,
    pub(super) output: Output,
    pub(super) teller: Teller,
}

/// Reads the flags and loads the script.
///
/// # Errors
/// The flags or the script are wrong.
pub(super) fn read(mut args: Args, part: PartOptions) -> Result<Scenarios, Error> {
    let mut problems = Problems::of_flags();
    let file = args.script.file.take().unwrap_or_default();
    let limit = problems.one("--script-limit", args.script.limit.take().as_deref(), units::parse_time);
    if !args.script.args.is_empty() {
        problems
            .add("--script", "arguments after -- are for a wrk script: a scenario has `options`, and data of files");
        args.script.args.clear();
    }
    let flags = read_flags(&mut args, &mut problems);
    let verbose = args.scenario.verbose;
    let (mut draft, _, mut output, found) = args.read();
    let mut lines = problems.lines();
    lines.extend(found);
    if draft.urls.len() > 1 {
        lines.push(format!(
            "URL: a script has one URL to which its paths are relative, and there are {}",
            draft.urls.len()
        ));
    }
    if !lines.is_empty() {
        return Err(Error::Usage(lines));
    }
    let teller = Teller::default();
    let telling = teller.clone();
    let flags = Settings {
        url: draft.urls.first().map(ToString::to_string),
        headers: std::mem::take(&mut draft.headers),
        ..flags
    };
    let scenario = Scenario::load(Options {
        file,
        flags,
        unix: draft.unix.clone(),
        tls: draft.tls.clone(),
        limit,
        tell: Arc::new(move |line| telling.tell(line)),
        verbose,
        part,
    });
    let scenario = scenario.map_err(Error::Scenario)?;
    let ending = teller.clone();
    scenario.cancelled_by(move || ending.is_cancelled());
    if output.title.is_empty() {
        output.title = scenario.base().to_string();
    }
    let settings = scenario.settings();
    draft.urls = vec![scenario.base().clone()];
    draft.unix = None;
    if settings.stages.is_some() {
        // Each thread has users of its own for its arrivals.
        draft.threads = draft.threads.map(|threads| threads.min(settings.most_users()));
    }
    // The script may ask for more users later: each thread can have some.
    draft.connections = settings.most_users().max(draft.threads.unwrap_or(1));
    draft.duration = settings.length();
    draft.warmup = settings.warmup.unwrap_or(Duration::ZERO);
    draft.timeout = settings.request_timeout();
    draft.load = Load::Closed;
    draft.journeys = Some(scenario);
    Ok(Scenarios { draft, output, teller })
}

/// Reads the flags of a job, and loads its script.
///
/// # Errors
/// The mistakes.
#[cfg(feature = "agents")]
pub(super) fn unpack(args: Args, part: PartOptions) -> Result<Draft, Vec<String>> {
    match read(args, part) {
        Ok(Scenarios { draft, .. }) => Ok(draft),
        Err(Error::Usage(lines)) => Err(lines),
        Err(error) => Err(vec![error.to_string()]),
    }
}

/// Takes the flags that are about users and journeys; what is about requests is a mistake.
fn read_flags(args: &mut Args, problems: &mut Problems) -> Settings {
    let LoadArgs { rate, stages, arrivals, seed, requests, duration, warmup, timeout, .. } = &mut args.load;
    let rate = problems.one("--rate", rate.take().as_deref(), parse_rate);
    let stages = problems.one("--stages", stages.take().as_deref(), parse_stages);
    let steady = rate.map(|rate| vec![Stage { duration: Duration::ZERO, rate }]);
    let spacing: Option<Spacing> = problems.one("--arrivals", arrivals.take().as_deref(), parse_spacing);
    let settings = Settings {
        users: problems.one("--users", args.scenario.users.as_deref(), parse_users),
        ramp: problems.one("--ramp", args.scenario.ramp.as_deref(), Ramp::parse),
        stages: steady.or(stages),
        spacing,
        iterations: problems.one("--iterations", args.scenario.iterations.as_deref(), parse_positive),
        journeys: problems.one("--requests", requests.take().as_deref(), parse_positive),
        duration: problems.one("--duration", duration.take().as_deref(), units::parse_time),
        warmup: problems.one("--warmup", warmup.take().as_deref(), units::parse_time),
        timeout: problems.one("--timeout", timeout.take().as_deref(), units::parse_time),
        seed: problems.one("--seed", seed.take().as_deref(), units::parse_count),
        ..Settings::default()
    };
    let load = &args.load;
    let given = [
        (
            "--connections",
            load.connections.is_some(),
            "--users N says how many users there are; each has its own connections",
        ),
        ("--close", load.close, "options { reconnect = true } lets each journey begin without connections"),
        ("--requests-per-connection", load.requests_per_connection.is_some(), "users keep their connections"),
        ("--pipeline", load.pipeline.is_some(), "users wait for their responses"),
        ("--http2", load.http2, "users speak HTTP/1.1"),
        ("--http2-prior-knowledge", load.http2_prior_knowledge, "users speak HTTP/1.1"),
        ("--streams", load.streams.is_some(), "users speak HTTP/1.1"),
        ("--gather", load.gather.is_some(), "users wait for their responses"),
        ("--hold", load.hold.is_some(), "it is not for scripts of scenarios"),
        ("--source", load.source.is_some(), "it is not for scripts of scenarios"),
        ("--connect-to", !load.connect_to.is_empty(), "--unix connects elsewhere"),
        ("--method", load.method.is_some(), "the script chooses: user:post(\"/path\")"),
        ("--body", load.body.is_some() || load.body_file.is_some(), "the script has it: { body = \"...\" }"),
        ("--check", !load.check.is_empty(), "the script checks: check(\"name\", condition)"),
        ("--urls", !args.urls.is_empty(), "the script has its URLs"),
    ];
    for (flag, _, instead) in given.into_iter().filter(|(_, is_given, _)| *is_given) {
        problems.add(flag, format!("a script of scenarios makes the requests: {instead}"));
    }
    settings
}

fn parse_users(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|users| match users {
        0 => Err("`0`: expected at least 1".to_owned()),
        users => Ok(users),
    })
}

fn parse_positive(text: &str) -> Result<u64, String> {
    units::parse_count(text).and_then(|number| match number {
        0 => Err(format!("`{text}`: expected at least 1")),
        number => Ok(number),
    })
}

/// Parses journeys per second.
fn parse_rate(text: &str) -> Result<f64, String> {
    match units::parse_number(text)? {
        rate if (0.0..=MOST_JOURNEYS).contains(&rate) => Ok(rate),
        _ => Err(format!("`{text}`: expected at most {MOST_JOURNEYS} journeys per second")),
    }
}
