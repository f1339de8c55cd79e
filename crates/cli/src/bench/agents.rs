//! `oroshi bench --agents`: the load of other machines as one.

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use oroshi_agents::bus::{Bus, BusError, Settings, check_name};
use oroshi_agents::coordinator::{Coordinator, OnLoss, Wanted};
use oroshi_agents::lead::{LeadError, LeadObserver, collect, lead};
use oroshi_agents::wire::{Key, random};
use oroshi_bench::part::PartProgress;
use oroshi_bench::record::{AgentRecord, AgentState};
use oroshi_bench::{Draft, Observer, Part, Plan, Progress, Record, Watching, Whole, push};
use oroshi_net::monotonic_ns;
use oroshi_scenario::{PartOptions, Scenario};
use oroshi_words::{Naming, Secret, units};

use super::args::{AgentsArgs, Args};
use super::observer::Live;
use super::read::Output;
use super::scenario::{self, Scenarios};
use super::script::Scripted;
use super::subscribe::{self, Share};
use super::travel::{self, Unpacked, UnpackedLoad};
use super::{Error, Made, Reports, Teller, judge};
use crate::interrupt;
use crate::problems::Problems;
use crate::say;

/// How long agents may prepare beyond the timeout of a request.
const PREPARING: Duration = Duration::from_secs(20);
/// The default group.
pub(crate) const GROUP: &str = "default";

/// Whether the flags are about agents.
pub(super) fn is_asked_for(args: &Args) -> bool {
    args.agents != AgentsArgs::default()
}

/// What the flags say about the agents.
pub(crate) struct Meeting {
    pub(crate) settings: Settings,
    pub(crate) key: Key,
}

/// Reads where and how coordinator and agents meet.
pub(crate) fn meeting(
    nats: Option<&str>,
    group: Option<&str>,
    key_file: Option<&std::path::Path>,
    problems: &mut Problems,
) -> Option<Meeting> {
    let nats = problems.one("--nats", nats, |text| match text.strip_prefix('@') {
        Some(file) => fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}")),
        None => Ok(text.to_owned()),
    });
    let nats = nats.map(|text| Secret::new(text.trim()));
    let group = problems.one("--group", group.or(Some(GROUP)), |text| check_name(text).map(|()| text.to_owned()));
    let key = key_file.and_then(|file| problems.read("--key-file", file)).and_then(|bytes| {
        let key = Key::new(&bytes);
        key.map_err(|error| problems.add("--key-file", format!("{error}: make one with `openssl rand -hex 32`"))).ok()
    });
    Some(Meeting { settings: Settings { nats: nats?, group: group?, agent: None }, key: key? })
}

/// Runs the load on agents, or collects a run from them.
///
/// # Errors
/// The flags are wrong, the agents could not begin, or there is no result.
pub(super) fn run(args: Args) -> Result<ExitCode, Error> {
    let mut problems = Problems::of_flags();
    let flags = args.agents.clone();
    let meeting = meeting(flags.nats.as_deref(), flags.group.as_deref(), flags.key_file.as_deref(), &mut problems);
    let wanted = problems.one("--agents", flags.agents.as_deref(), parse_agents);
    let on_loss = problems.one("--on-agent-loss", flags.on_agent_loss.as_deref(), |text| match text {
        "abort" => Ok(OnLoss::Abort),
        "continue" => Ok(OnLoss::Continue),
        _ => Err(format!("`{text}`: expected abort or continue")),
    });
    let collected = problems.one("--collect", flags.collect.as_deref(), |text| {
        u64::from_str_radix(text, 16).map_err(|_| format!("`{text}`: expected a run as `bench --agents` names it"))
    });
    refuse_what_stays(&args, &mut problems);
    if wanted.is_none() && collected.is_none() && flags.agents.is_none() && flags.collect.is_none() {
        problems.add("--nats", "it is about agents: add --agents N, or leave it out");
    }
    let mut lines = problems.lines();
    if let Some(run) = collected {
        let Some(Meeting { settings, key }) = meeting.filter(|_| lines.is_empty()) else {
            return Err(Error::Usage(lines));
        };
        return collect_run(run, args, settings, &key);
    }
    if args.subscribe.is_asked_for() {
        let (Some(Meeting { settings, key }), Some(wanted), true) = (meeting, wanted, lines.is_empty()) else {
            return Err(Error::Usage(lines));
        };
        return subscriptions(args, settings, &key, wanted, on_loss.unwrap_or_default());
    }
    let load = match scenario::is_asked_for(&args) && lines.is_empty() {
        true => {
            let Scenarios { scenario, draft, output, teller } = scenario::read(args, PartOptions::default())?;
            AgentsLoad { draft, output, script: None, scenario: Some((scenario, teller)) }
        }
        false => {
            let (draft, script, output, found) = args.read();
            lines.extend(found);
            AgentsLoad { draft, output, script, scenario: None }
        }
    };
    let Some(Meeting { settings, key }) = meeting.filter(|_| lines.is_empty()) else { return Err(Error::Usage(lines)) };
    let Some(wanted) = wanted else { return Err(Error::Usage(lines)) };
    let AgentsLoad { draft, output, script, scenario } = load;
    let mut plan = plan_of(Draft { part: Some(Part { index: 0, of: wanted.count() }), ..draft }).map_err(Error::Usage)?;
    let mut job = travel::pack(std::env::args().skip(1)).map_err(Error::Usage)?;
    job.threads = plan.threads;
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let script = script.map(|script| script.lead(&mut plan, &shutdown)).transpose()?;
    let mut live =
        AgentsLive { live: Live::new(shutdown.clone(), plan.connections, plan.requests, None), agents: String::new() };
    let (bus, group) = connect(settings)?;
    if let Some((scenario, teller)) = scenario {
        teller.begin(live.live.line(), shutdown);
        travel::pack_beside(&mut job, scenario.files()).map_err(Error::Usage)?;
        job.start = Some(scenario.lead().map_err(Error::Scenario)?);
    }
    let run = random();
    live.live.say(&told(run));
    let preparing = (plan.timeout + PREPARING).as_nanos() as u64;
    let coordinator = Coordinator::new(run, wanted, job, on_loss.unwrap_or_default(), preparing, monotonic_ns());
    let (code, record) = report(&output, || {
        let record = lead(&bus, &key, &group, coordinator, Whole::new(plan), &mut live);
        live.live.line().finish_and_clear();
        record
    })?;
    match script {
        Some(script) if script.has_done() && script.has_setup() => {
            say("note: the script's done() was not called: it may ask for values of threads, which are on the agents");
        }
        Some(script) => script.done(&record)?,
        None => {}
    }
    Ok(code)
}

/// Runs a load on a hub.
fn subscriptions(
    args: Args,
    settings: Settings,
    key: &Key,
    wanted: Wanted,
    on_loss: OnLoss,
) -> Result<ExitCode, Error> {
    let share = Share { part: Some(Part { index: 0, of: wanted.count() }), permitted: None };
    let (plan, output) = subscribe::read(args, share).map_err(Error::Usage)?;
    let mut job = travel::pack(std::env::args().skip(1)).map_err(Error::Usage)?;
    job.threads = plan.connect.threads;
    let run = random();
    job.start = Some(travel::stamps(run as u32));
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let live = Live::new(shutdown, plan.connect.connections, None, None);
    let mut live = AgentsLive { live, agents: String::new() };
    let (bus, group) = connect(settings)?;
    live.live.say(&told(run));
    // Connections are opened at a rate, or many at a time, until each was tried.
    let opening = plan.connect_rate.map_or(Duration::ZERO, |rate| {
        Duration::from_secs_f64((plan.connect.connections as f64 / rate).min(86_400.0))
    });
    let preparing = (plan.connect.timeout * 2 + opening + PREPARING).as_nanos() as u64;
    let coordinator = Coordinator::new(run, wanted, job, on_loss, preparing, monotonic_ns());
    report_subscriptions(&output, || {
        let record = lead(&bus, key, &group, coordinator, push::Whole::new(plan), &mut live);
        live.live.line().finish_and_clear();
        Ok(record?)
    })
}

/// Writes the report of a load on a hub, and says which agents were lost.
fn report_subscriptions(
    output: &subscribe::Output,
    run: impl FnOnce() -> Result<push::Record, Error>,
) -> Result<ExitCode, Error> {
    let mut agents = Vec::new();
    let code = subscribe::report(output, || {
        let record = run()?;
        agents.clone_from(&record.agents);
        Ok(record)
    })?;
    Ok(if tell_lost(&agents) { ExitCode::from(1) } else { code })
}

/// Says how a run can be reported without this command.
fn told(run: u64) -> String {
    format!("run {run:x}: if this command is killed, `oroshi bench --collect {run:x}` reports it")
}

/// Says which agents were lost, if any were.
fn tell_lost(agents: &[AgentRecord]) -> bool {
    let lost: Vec<&str> =
        agents.iter().filter(|agent| agent.state == AgentState::Lost).map(|agent| &*agent.name).collect();
    if !lost.is_empty() {
        say(&format!("error: {} of {} agents lost: {}", lost.len(), agents.len(), lost.join(", ")));
    }
    !lost.is_empty()
}

impl From<LeadError> for Error {
    fn from(error: LeadError) -> Self {
        match error {
            LeadError::Cancelled => Error::Interrupted,
            LeadError::Refused(lines) => Error::Refused(lines),
            LeadError::Script(error) => Error::Scenario(error),
            error => Error::Agents(error.to_string()),
        }
    }
}

/// A load for agents, as the flags say it.
struct AgentsLoad {
    draft: Draft,
    output: Output,
    /// A wrk script.
    script: Option<Scripted>,
    scenario: Option<(Arc<Scenario>, Teller)>,
}

/// Reports a run whose coordinator ended.
fn collect_run(run: u64, args: Args, settings: Settings, key: &Key) -> Result<ExitCode, Error> {
    let (bus, group) = connect(settings)?;
    let kept = collect(&bus, key, &group, run)?;
    // A script of scenarios needs its files until its `final` has ended.
    let Unpacked { load, folder: _folder } = travel::unpack(kept.job(), None, true).map_err(Error::Refused)?;
    match load {
        UnpackedLoad::Requests(draft, _) => {
            let (_, _, output, found) = args.read();
            if !found.is_empty() {
                return Err(Error::Usage(found));
            }
            let plan = plan_of(Draft { watch: Watching::None, ..*draft }).map_err(Error::Refused)?;
            if let Some(journeys) = &plan.journeys {
                journeys.initialize(1).map_err(Error::Scenario)?;
            }
            let (code, _) = report(&output, || kept.add_up(Whole::new(plan)))?;
            Ok(code)
        }
        UnpackedLoad::Subscriptions(plan) => {
            let mut problems = Problems::of_flags();
            let output = subscribe::read_output(args.output, &mut problems);
            if !problems.lines().is_empty() {
                return Err(Error::Usage(problems.lines()));
            }
            report_subscriptions(&output, || Ok(kept.add_up(push::Whole::new(*plan))?))
        }
    }
}

fn connect(settings: Settings) -> Result<(Bus, String), Error> {
    let group = settings.group.clone();
    Ok((Bus::connect(settings).map_err(|error: BusError| Error::Agents(error.to_string()))?, group))
}

fn plan_of(draft: Draft) -> Result<Plan, Vec<String>> {
    draft.plan().map_err(|found| found.0.iter().map(|problem| problem.told(Naming::Flags)).collect())
}

/// Refuses flags that do not work with agents.
fn refuse_what_stays(args: &Args, problems: &mut Problems) {
    let report = &args.output.report;
    for (flag, given) in [
        ("--verbose", args.scenario.verbose),
        ("--self-test", args.self_test),
        ("--hdr", report.hdr.is_some()),
        ("--gnuplot", report.gnuplot.is_some()),
    ] {
        if given {
            problems.add(flag, "agents do not carry it out: leave it out, or leave out --agents");
        }
    }
    if args.load.watch.as_deref().is_some_and(|watch| watch != "auto") {
        problems.add("--watch", "each agent watches the server if it is on its machine: leave it out");
    }
}

/// Writes the report of the record that `run` makes, and returns both.
fn report(output: &Output, run: impl FnOnce() -> Result<Record, LeadError>) -> Result<(ExitCode, Record), Error> {
    let mut made = Made::of([&output.file, &output.page, &output.percentiles]);
    let reports = Reports::open(output)?;
    let mut record = run()?;
    made.0.clear();
    record.fail_if = output.thresholds.iter().map(|threshold| threshold.judge(&record)).collect();
    record.warnings.extend(output.remarks.iter().cloned());
    reports.write(record.clone(), output)?;
    let mut code = judge(&record, output);
    if tell_lost(&record.agents) {
        code = 1;
    }
    Ok((ExitCode::from(code), record))
}

/// Parses a number of agents, or their names.
fn parse_agents(text: &str) -> Result<Wanted, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(count @ 1..=10_000) => Ok(Wanted::Count(count)),
            _ => Err(format!("`{text}`: expected a number from 1 to 10000, or names with commas")),
        };
    }
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    for (at, name) in names.iter().enumerate() {
        check_name(name)?;
        if names[..at].contains(name) {
            return Err(format!("`{name}` stands there twice"));
        }
    }
    Ok(Wanted::Names(names))
}

/// The live line, and a line for each agent.
struct AgentsLive {
    live: Live,
    agents: String,
}

impl Observer for AgentsLive {
    fn progress(&mut self, progress: &Progress) {
        self.live.progress(progress);
        let first = self.live.line().message();
        self.live.note(&format!("{first}{}", self.agents));
    }

    fn cancelled(&mut self) -> bool {
        self.live.cancelled()
    }
}

impl LeadObserver for AgentsLive {
    fn agents(&mut self, agents: &[(String, PartProgress, bool)]) {
        self.agents.clear();
        for (name, part, lost) in agents {
            let lost = if *lost { "  LOST" } else { "" };
            let _ = write!(
                self.agents,
                "\n  {name}: {} answered  {}  {} connections{lost}",
                units::count(part.done),
                units::plural(part.errors, "error"),
                part.alive
            );
        }
    }

    fn note(&mut self, text: &str) {
        self.live.say(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_a_number_or_names() {
        assert_eq!(parse_agents("4"), Ok(Wanted::Count(4)));
        assert_eq!(parse_agents("a, b-1"), Ok(Wanted::Names(vec!["a".into(), "b-1".into()])));
        for bad in ["0", "99999", "a,a", "a,,b", "a.b", "all", ""] {
            assert!(parse_agents(bad).is_err(), "{bad}");
        }
    }
}
