//! `oroshi bench --agents`: the load of other machines as one.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use oroshi_agents::bus::{Bus, BusError, Settings, check_name};
use oroshi_agents::clock::ClockId;
use oroshi_agents::collect::collect;
use oroshi_agents::coordinator::{Coordinator, OnLoss, Wanted};
use oroshi_agents::lead::{LeadError, LeadObserver, lead};
use oroshi_agents::nkey::{Public, Seed};
use oroshi_agents::parcel::Packed;
use oroshi_agents::wire::{Job, Key, random};
use oroshi_bench::part::{PartProgress, Parts};
use oroshi_bench::record::{AgentRecord, AgentState};
use oroshi_bench::{Course, Draft, Observer, Part, Plan, Progress, Record, Watching, Whole, push};
use oroshi_net::monotonic_ns;
use oroshi_scenario::PartOptions;
use oroshi_words::{Naming, Secret, units};

use super::args::{AgentsArgs, Args, CollectArgs};
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

/// How long agents may prepare beyond the opening of their connections.
const PREPARING: Duration = Duration::from_secs(20);
/// The default group.
pub(crate) const GROUP: &str = "default";

/// Whether the flags are about agents.
pub(super) fn is_asked_for(args: &Args) -> bool {
    args.agents != AgentsArgs::default() || args.collect != CollectArgs::default()
}

/// Agents that a run wants, and how it goes with them.
#[derive(Clone, Debug)]
pub(crate) struct Agents {
    meeting: Meeting,
    pub(crate) wanted: Wanted,
    on_loss: OnLoss,
}

impl Agents {
    /// Reads the flags; `None` after a mistake.
    pub(crate) fn read(args: &AgentsArgs, problems: &mut Problems) -> Option<Self> {
        let keys = (args.key_file.as_deref(), args.accept.as_deref());
        let meeting = meeting(args.nats.as_deref(), args.group.as_deref(), keys, problems);
        let names = (!args.agents.is_empty()).then(|| args.agents.join(","));
        if names.is_none() {
            problems.add("--nats", "it is about agents: name them, or leave it out");
        }
        let wanted = problems.one("--agents", names.as_deref(), parse_agents);
        let on_loss = problems.one("--on-agent-loss", args.on_agent_loss.as_deref(), |text| match text {
            "abort" => Ok(OnLoss::Abort),
            "continue" => Ok(OnLoss::Continue),
            _ => Err(format!("`{text}`: expected abort or continue")),
        });
        Some(Self { meeting: meeting?, wanted: wanted?, on_loss: on_loss.unwrap_or_default() })
    }

    /// Connects to NATS.
    ///
    /// # Errors
    /// No server can be reached.
    pub(crate) fn connect(&self) -> Result<Bus, BusError> {
        Bus::connect(self.meeting.settings.clone())
    }

    /// Leads a run from its beginning to its end. `opening`: how long connections may take to open.
    ///
    /// # Errors
    /// There is no record.
    pub(crate) fn lead<W: Parts>(
        &self,
        bus: &Bus,
        run: u64,
        job: Job,
        whole: W,
        opening: Duration,
        observer: &mut dyn LeadObserver,
    ) -> Result<W::Record, LeadError> {
        let preparing = (opening + PREPARING).as_nanos() as u64;
        let job = Packed::new(job)?;
        let coordinator = Coordinator::new(run, self.wanted.clone(), job, self.on_loss, preparing, monotonic_ns());
        let coordinator = coordinator.with_clock(ClockId::own());
        lead(bus, &self.meeting.key, &self.meeting.settings.group, coordinator, whole, observer)
    }
}

/// What the flags say about the agents.
#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    pub(crate) settings: Settings,
    pub(crate) key: Key,
}

/// Reads where and how coordinator and agents meet. `keys`: the file with the key, and the nkeys to accept.
pub(crate) fn meeting(
    nats: Option<&str>,
    group: Option<&str>,
    keys: (Option<&Path>, Option<&str>),
    problems: &mut Problems,
) -> Option<Meeting> {
    let nats = problems.one("--nats", nats, |text| match text.strip_prefix('@') {
        Some(file) => fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}")),
        None => Ok(text.to_owned()),
    });
    let nats = nats.map(|text| Secret::new(text.trim()));
    let group = problems.one("--group", group.or(Some(GROUP)), |text| check_name(text).map(|()| text.to_owned()));
    let bytes = keys.0.and_then(|file| problems.read("--key-file", file));
    let key = bytes.and_then(|bytes| read_key(&bytes, keys.1, problems));
    Some(Meeting { settings: Settings { nats: nats?, group: group?, agent: None }, key: key? })
}

/// Reads a shared key, or the seed of an nkey with the public keys to accept.
fn read_key(bytes: &[u8], accept: Option<&str>, problems: &mut Problems) -> Option<Key> {
    let text = std::str::from_utf8(bytes).unwrap_or_default().trim();
    if !Seed::is_meant(text) {
        if accept.is_some() {
            problems.add("--accept", "it is for nkeys, and --key-file has a shared key: leave one of the two out");
        }
        let wrong = |error| format!("{error}: make one with `openssl rand -hex 32`");
        return Key::new(bytes).map_err(|error| problems.add("--key-file", wrong(error))).ok();
    }
    let seed = Seed::parse(text).map_err(|error| problems.add("--key-file", error.to_string())).ok();
    let accepted = problems.one("--accept", accept, |accept| {
        let text = match accept.strip_prefix('@') {
            Some(file) => fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"))?,
            None => accept.to_owned(),
        };
        let keys = text.split([',', '\n']).map(str::trim).filter(|key| !key.is_empty());
        let keys: Vec<Public> = keys.map(Public::parse).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        if keys.is_empty() { Err("it names no key".to_owned()) } else { Ok(keys) }
    });
    if accept.is_none() {
        problems.add("--key-file", "it is the seed of an nkey: say with --accept whose messages count");
    }
    Some(Key::nkeys(seed?, accepted?))
}

/// Runs the load on agents, or collects a run from them.
///
/// # Errors
/// The flags are wrong, the agents could not begin, or there is no result.
pub(super) fn run(args: Args) -> Result<ExitCode, Error> {
    let mut problems = Problems::of_flags();
    refuse_what_stays(&args, &mut problems);
    if let Some(run) = args.collect.collect.clone() {
        return collected(&run, args, problems);
    }
    let agents = Agents::read(&args.agents, &mut problems);
    let mut lines = problems.lines();
    if args.subscribe.is_asked_for() {
        let Some(agents) = agents.filter(|_| lines.is_empty()) else { return Err(Error::Usage(lines)) };
        return subscriptions(args, &agents);
    }
    let load = if scenario::is_asked_for(&args) && lines.is_empty() {
        let Scenarios { draft, output, teller } = scenario::read(args, PartOptions::default())?;
        RequestLoad { draft, output, script: None, teller: Some(teller) }
    } else {
        let (draft, script, output, found) = args.read();
        lines.extend(found);
        RequestLoad { draft, output, script, teller: None }
    };
    let Some(agents) = agents.filter(|_| lines.is_empty()) else { return Err(Error::Usage(lines)) };
    load.run(&agents)
}

/// A load of requests for agents, as the flags say it.
struct RequestLoad {
    draft: Draft,
    output: Output,
    /// A wrk script.
    script: Option<Scripted>,
    /// Tells the output of a script of scenarios.
    teller: Option<Teller>,
}

impl RequestLoad {
    fn run(self, agents: &Agents) -> Result<ExitCode, Error> {
        let Self { draft, output, script, teller } = self;
        let part = Part { index: 0, of: agents.wanted.count() };
        let mut plan = plan_of(Draft { part: Some(part), ..draft }).map_err(Error::Usage)?;
        let mut job = travel::pack(std::env::args().skip(1)).map_err(Error::Usage)?;
        job.threads = plan.threads;
        let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
        let script = script.map(|script| script.lead(&mut plan, &shutdown)).transpose()?;
        let bus = agents.connect().map_err(|error| Error::Agents(error.to_string()))?;
        let live = Live::new(shutdown.clone(), plan.connections, plan.requests, None);
        let mut live = AgentsLive(if output.tui { live.with_tui(&output.title) } else { live });
        let display = live.0.display();
        if let Some(teller) = teller {
            teller.begin(display.clone(), shutdown);
        }
        if let Some(journeys) = &plan.journeys {
            travel::pack_journeys(&mut job, &**journeys)?;
        }
        let run = random();
        live.0.say(&told(run));
        let opening = plan.timeout;
        let (code, record) = report(&output, || {
            let record = agents.lead(&bus, run, job, Whole::new(plan), opening, &mut live);
            display.clear();
            record
        })?;
        match script {
            Some(script) if script.has_done() && script.has_setup() => {
                say(
                    "note: the script's done() was not called: it may ask for values of threads, which are on the agents",
                );
            }
            Some(script) => script.done(&record)?,
            None => {}
        }
        Ok(code)
    }
}

/// Says how a run can be reported without this command.
fn told(run: u64) -> String {
    format!("run {run:x}: if this command is killed, `oroshi bench --collect {run:x}` reports it")
}

/// Runs a load on a hub.
fn subscriptions(args: Args, agents: &Agents) -> Result<ExitCode, Error> {
    let share = Share { part: Some(Part { index: 0, of: agents.wanted.count() }), permitted: None };
    let (plan, output) = subscribe::read(args, share).map_err(Error::Usage)?;
    let mut job = travel::pack(std::env::args().skip(1)).map_err(Error::Usage)?;
    job.threads = plan.connect.threads;
    let run = random();
    travel::pack_stamps(&mut job, run);
    let shutdown = interrupt::shutdown().map_err(Error::Signals)?;
    let live = Live::new(shutdown, plan.connect.connections, None, None);
    let mut live = AgentsLive(live);
    let display = live.0.display();
    let bus = agents.connect().map_err(|error| Error::Agents(error.to_string()))?;
    live.0.say(&told(run));
    let opening = opening(&plan);
    report_subscriptions(&output, || {
        let record = agents.lead(&bus, run, job, push::Whole::new(plan), opening, &mut live);
        display.clear();
        Ok(record?)
    })
}

/// Returns how long the subscriptions may take to open: at a rate, or many at a time, until each was tried.
pub(crate) fn opening(plan: &push::Plan) -> Duration {
    let at_rate = |rate: f64| Duration::from_secs_f64((plan.connect.connections as f64 / rate).min(86_400.0));
    plan.connect.timeout * 2 + plan.connect_rate.map_or(Duration::ZERO, at_rate)
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

/// Reports a run whose coordinator has ended.
fn collected(run: &str, args: Args, mut problems: Problems) -> Result<ExitCode, Error> {
    let run = problems.one("--collect", Some(run), |text| {
        u64::from_str_radix(text, 16).map_err(|_| format!("`{text}`: expected a run as `bench --agents` names it"))
    });
    let flags = &args.agents;
    let keys = (flags.key_file.as_deref(), flags.accept.as_deref());
    let meeting = meeting(flags.nats.as_deref(), flags.group.as_deref(), keys, &mut problems);
    let lines = problems.lines();
    let (Some(run), Some(meeting), true) = (run, meeting, lines.is_empty()) else { return Err(Error::Usage(lines)) };
    let Meeting { settings, key } = meeting;
    let group = settings.group.clone();
    let bus = Bus::connect(settings).map_err(|error| Error::Agents(error.to_string()))?;
    let kept = collect(&bus, &key, &group, run)?;
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
            report(&output, || kept.add_up(Whole::new(plan))).map(|(code, _)| code)
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

/// The live view, and a line for each agent.
struct AgentsLive(Live);

impl Observer for AgentsLive {
    fn progress(&mut self, progress: &Progress) {
        self.0.progress(progress);
    }

    fn course(&mut self, course: &Course<'_>) {
        self.0.course(course);
    }

    fn cancelled(&mut self) -> bool {
        self.0.cancelled()
    }
}

impl LeadObserver for AgentsLive {
    fn agents(&mut self, agents: &[(String, PartProgress, bool)]) {
        let line = |(name, part, lost): &(String, PartProgress, bool)| {
            format!(
                "  {name}: {} answered  {}  {}{}",
                units::count(part.done),
                units::plural(part.errors, "error"),
                units::plural(part.alive as u64, "connection"),
                if *lost { "  LOST" } else { "" },
            )
        };
        self.0.agents(agents.iter().map(line).collect());
    }

    fn note(&mut self, text: &str) {
        self.0.say(text);
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
