//! One run: our own load, or a program's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use oroshi_bench::follow::Stage as BenchStage;
use oroshi_bench::record::AgentState;
use oroshi_bench::watch::{Clocks, ServerUsage, Watch};
use oroshi_bench::{Draft, Failure, Load as Loop, Observer, Progress, Record, RunError, Spacing, Watching};
use oroshi_net::Endpoint;
use oroshi_words::with_causes;

use super::launcher::Launcher;
use super::servers::{LINES, Stopped, gone};
use super::{lengths, pick, verify};
use crate::doubts::megahertz;
use crate::follow::ExperimentObserver;
use crate::metric::Metric;
use crate::plan::{AgentsError, Command, Load, Script, Server, Subscribe, Variant};
use crate::program;
use crate::result::{CommandRun, Lengthened, MachineUse, Program};
use crate::serving::{self, Running};
use crate::template::{Values, fill};

/// How often to sample a server while a load program runs.
const SAMPLE: Duration = Duration::from_secs(1);

/// The run to make.
pub(super) struct RunSpec<'a> {
    pub(super) variant: &'a Variant,
    /// The file that a load program writes to.
    pub(super) output: PathBuf,
    /// The server and its plan, unless it is external.
    pub(super) server: Option<(&'a mut Running, &'a Server)>,
    /// The chosen rate, which replaces the load's.
    pub(super) rate: Option<f64>,
    /// The chosen lengths, for loads without their own.
    pub(super) lengths: Option<&'a Lengthened>,
    /// Only measures the response time.
    pub(super) probe: bool,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) figures: BTreeMap<Metric, f64>,
    pub(super) warnings: Vec<String>,
    pub(super) shift: Option<String>,
    pub(super) record: Option<Box<Record>>,
    pub(super) command: Option<CommandRun>,
    /// The file of the load program.
    pub(super) program: Option<Program>,
    /// The CPUs' clock just before the measured part, MHz.
    pub(super) clock: Option<f64>,
    /// Names of an external server's processes, if they were found.
    pub(super) servers: Option<Vec<String>>,
    /// Other work of the machine.
    pub(super) machine: Option<MachineUse>,
    /// Agents that did not finish. The run has no figures then.
    pub(super) unfinished_agents: usize,
}

/// Makes one run, on the machine of its load.
pub(super) fn measure(
    spec: RunSpec<'_>,
    launcher: &Launcher<'_>,
    follow: &mut dyn ExperimentObserver,
) -> Result<Measured, Stopped> {
    let variant = spec.variant;
    launcher.on(variant.machine, || match &variant.load {
        Load::Bench(draft) => bench((**draft).clone(), spec, launcher, follow),
        Load::Script(draft, script) => journeys((**draft).clone(), &**script, spec, launcher, follow),
        Load::Subscribe(load) => subscribe(load, spec, launcher, follow),
        Load::Command(command) => program(command, spec, launcher, follow),
    })?
}

fn bench(
    mut draft: Draft,
    spec: RunSpec<'_>,
    launcher: &Launcher<'_>,
    follow: &mut dyn ExperimentObserver,
) -> Result<Measured, Stopped> {
    let RunSpec { variant, server, rate, lengths, probe, .. } = spec;
    if let Some(found) = lengths {
        lengths::apply(&mut draft, found);
    }
    if probe {
        draft = lengths::probe(draft);
    }
    aim(&mut draft, variant, server.as_ref(), launcher)?;
    if let (Watching::Auto, Some((running, _))) = (draft.watch, &server) {
        draft.watch = Watching::Pid(running.pid());
    }
    if let Some(rate) = rate {
        draft.load = match draft.load {
            Loop::Open { spacing, seed, .. } => Loop::rate(rate, spacing, seed),
            Loop::Closed => Loop::rate(rate, Spacing::Constant, 0),
        };
    }
    requests(draft, variant, server, follow)
}

/// Carries out a load of requests: here, or on agents.
fn requests(
    draft: Draft,
    variant: &Variant,
    server: Option<(&mut Running, &Server)>,
    follow: &mut dyn ExperimentObserver,
) -> Result<Measured, Stopped> {
    if let Some(agents) = &variant.agents {
        return own(follow, server, None, |watcher| Ok(agents.run(draft, watcher)?));
    }
    let plan = draft.plan().map_err(|problems| Stopped::failed(with_causes(&problems)))?;
    let forecast = oroshi_bench::ports::forecast(&plan);
    own(follow, server, forecast, |watcher| Ok(oroshi_bench::run(plan, watcher)?))
}

/// Measures journeys. Their length and warm-up are the script's or the user's.
fn journeys(
    mut draft: Draft,
    script: &dyn Script,
    spec: RunSpec<'_>,
    launcher: &Launcher<'_>,
    follow: &mut dyn ExperimentObserver,
) -> Result<Measured, Stopped> {
    let RunSpec { variant, server, .. } = spec;
    aim(&mut draft, variant, server.as_ref(), launcher)?;
    if let (Watching::Auto, Some((running, _))) = (draft.watch, &server) {
        draft.watch = Watching::Pid(running.pid());
    }
    script.prepare(&mut draft).map_err(|error| Stopped::failed(with_causes(&error)))?;
    let mut measured = requests(draft, variant, server, follow)?;
    // A histogram of each step in each run would be most of the result.
    if let Some(scenario) = measured.record.as_mut().and_then(|record| record.scenario.as_mut()) {
        (scenario.steps, scenario.timers, scenario.flows) = (Vec::new(), Vec::new(), Vec::new());
    }
    Ok(measured)
}

/// Measures subscriptions, with deliveries as requests.
fn subscribe(
    load: &Subscribe,
    spec: RunSpec<'_>,
    launcher: &Launcher<'_>,
    follow: &mut dyn ExperimentObserver,
) -> Result<Measured, Stopped> {
    let RunSpec { variant, server, .. } = spec;
    let mut draft = load.draft.clone();
    aim(&mut draft.base, variant, server.as_ref(), launcher)?;
    let values = server.as_ref().map_or(launcher.values(), |(running, _)| running.values());
    if let (Some(publish), Some(url)) = (&mut draft.publish, &load.publish) {
        publish.url = endpoint(url, values)?;
    }
    if let (Some(publish), Some(url)) = (&mut draft.publish_to, &load.publish_to) {
        publish.url = endpoint(url, values)?;
    }
    if let (Watching::Auto, Some((running, _))) = (draft.base.watch, &server) {
        draft.base.watch = Watching::Pid(running.pid());
    }
    if let Some(agents) = &variant.agents {
        return own(follow, server, None, |watcher| Ok(agents.subscribe(draft, watcher)?.as_requests()));
    }
    let plan = draft.plan().map_err(|problems| {
        let each: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Stopped::failed(each.join("; "))
    })?;
    own(follow, server, None, |watcher| Ok(oroshi_bench::push::run(plan, watcher)?.as_requests()))
}

/// Why a load of ours has no record.
enum NoRecord {
    Cancelled,
    Failed(String),
}

impl From<RunError> for NoRecord {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Cancelled => Self::Cancelled,
            error => Self::Failed(with_causes(&error)),
        }
    }
}

impl From<AgentsError> for NoRecord {
    fn from(error: AgentsError) -> Self {
        match error {
            AgentsError::Cancelled => Self::Cancelled,
            AgentsError::Failed(why) => Self::Failed(why),
        }
    }
}

/// A load of ours.
fn own(
    follow: &mut dyn ExperimentObserver,
    mut server: Option<(&mut Running, &Server)>,
    forecast: Option<String>,
    run: impl FnOnce(&mut Watcher<'_>) -> Result<Record, NoRecord>,
) -> Result<Measured, Stopped> {
    let mut watcher = Watcher {
        inner: follow.bench(),
        server: server.as_mut().map(|(running, _)| &mut **running),
        clock: None,
        warm_up: false,
    };
    let ran = run(&mut watcher);
    let clock = watcher.clock.or_else(megahertz);
    // A server that is gone is the reason, whatever else came of it.
    if let Some((running, server)) = &mut server
        && let Some(gone) = gone(running, server)
    {
        return Err(gone);
    }
    let mut record = match ran {
        Ok(record) if record.cut_short && follow.cancelled() => return Err(Stopped::Cancelled),
        Ok(record) => record,
        Err(NoRecord::Cancelled) => return Err(Stopped::Cancelled),
        Err(NoRecord::Failed(why)) => {
            return Err(failed(format!("the run could not begin: {why}"), server.as_ref()));
        }
    };
    // A part of its requests is missing, and how they ended is not the server's doing.
    let unfinished_agents = record.agents.iter().filter(|agent| agent.state != AgentState::Done).count();
    let is_whole = unfinished_agents == 0;
    if let Some(why) = verify::failure(&record).filter(|_| is_whole) {
        return Err(failed(why, server.as_ref()));
    }
    // That ports might run out is of no interest once it is known that they did not.
    if !record.failures.contains_key(&Failure::PortsExhausted) {
        record.warnings.retain(|warning| Some(warning) != forecast.as_ref());
    }
    // Our own server's processes are known by descent.
    let servers = match &server {
        Some(_) => Some(Vec::new()),
        None => {
            record.server.as_ref().map(|usage| usage.processes.iter().map(|process| process.name.clone()).collect())
        }
    };
    record.environment = oroshi_bench::environment::Environment::default();
    let figure = |metric: Metric| Some((metric, metric.of(&record).filter(|_| is_whole)?));
    Ok(Measured {
        figures: Metric::ALL.into_iter().filter_map(figure).collect(),
        warnings: verify::warnings(&record),
        shift: verify::shift(&record).filter(|_| is_whole),
        unfinished_agents,
        record: Some(Box::new(record)),
        clock,
        servers,
        ..Measured::default()
    })
}

/// Gives a load its URLs and CPUs.
fn aim(
    draft: &mut Draft,
    variant: &Variant,
    server: Option<&(&mut Running, &Server)>,
    launcher: &Launcher<'_>,
) -> Result<(), Stopped> {
    let values = server.map_or(launcher.values(), |(running, _)| running.values());
    draft.urls = variant.urls.iter().map(|url| endpoint(url, values)).collect::<Result<_, _>>()?;
    if let Some(cpus) = launcher.load_cpus() {
        draft.cpus = Some(cpus.clone());
    }
    Ok(())
}

/// Runs our own load before a program's, and discards its figures. If it fails, or nothing is answered, that is only a
/// warning, because the program measures.
fn warm_up(
    draft: &Draft,
    variant: &Variant,
    mut server: Option<&mut (&mut Running, &Server)>,
    launcher: &Launcher<'_>,
    follow: &mut dyn ExperimentObserver,
) -> Result<Vec<String>, Stopped> {
    let mut draft = Draft { warmup: Duration::ZERO, watch: Watching::None, ..draft.clone() };
    let aimed = aim(&mut draft, variant, server.as_deref(), launcher);
    let ran = match aimed.and_then(|()| draft.plan().map_err(|problems| Stopped::failed(with_causes(&problems)))) {
        Ok(plan) => {
            let server = server.as_mut().map(|(running, _)| &mut **running);
            let mut watcher = Watcher { inner: follow.bench(), server, clock: None, warm_up: true };
            oroshi_bench::run(plan, &mut watcher).map_err(|error| with_causes(&error))
        }
        Err(Stopped::Failed { why, .. }) => Err(why),
        Err(Stopped::Cancelled) => return Err(Stopped::Cancelled),
    };
    if let Some((running, server)) = &mut server
        && let Some(gone) = gone(running, server)
    {
        return Err(gone);
    }
    if follow.cancelled() {
        return Err(Stopped::Cancelled);
    }
    let why = ran.map_or_else(Some, |record| verify::failure(&record));
    Ok(why.map(|why| format!("the server was not warm when its load began: {why}")).into_iter().collect())
}

fn program(
    command: &Command,
    spec: RunSpec<'_>,
    launcher: &Launcher<'_>,
    follow: &mut dyn ExperimentObserver,
) -> Result<Measured, Stopped> {
    let RunSpec { variant, output, mut server, .. } = spec;
    let mut warnings = match &command.warmup {
        Some(draft) => warm_up(draft, variant, server.as_mut(), launcher, follow)?,
        None => Vec::new(),
    };
    let mut values = server.as_ref().map_or(launcher.values(), |(running, _)| running.values()).clone();
    if let Some(url) = variant.urls.first() {
        values.set("url", filled(url, &values)?);
    }
    let words = command.words.iter().map(|word| filled(word, &values)).collect::<Result<Vec<_>, _>>()?;
    let env = command.env.iter().map(|(name, value)| Ok((name.clone(), filled(value, &values)?)));
    let env = env.collect::<Result<Vec<_>, Stopped>>()?;
    // As in a shell, paths in the command are relative to our folder.
    let folder = std::env::current_dir().unwrap_or_else(|_| launcher.output().to_owned());
    let mut watch = server.as_ref().and_then(|(running, _)| Watch::for_pid(running.pid()).ok());
    let begun = Instant::now();
    let mut sampled = begun;
    if let Some(watch) = &mut watch {
        watch.begin();
    }
    let mut ended = || {
        if let Some(watch) = watch.as_mut().filter(|_| sampled.elapsed() >= SAMPLE) {
            sampled = Instant::now();
            watch.sample(begun.elapsed());
        }
        follow.cancelled() || server.as_mut().is_some_and(|(running, _)| running.ended().is_some())
    };
    let ran = serving::run_to_end(&words, &env, &folder, &launcher.for_load(&output), command.timeout, &mut ended);
    let usage = watch.and_then(|mut watch| watch.finish(begun.elapsed(), &Clocks::default()));
    if let Some((running, server)) = &mut server
        && let Some(gone) = gone(running, server)
    {
        return Err(gone);
    }
    let finished = match ran {
        Ok(finished) => finished,
        Err(serving::RunError::Cancelled) => return Err(Stopped::Cancelled),
        Err(error) => {
            let output = match &error {
                serving::RunError::Timeout { output, .. } => output.clone(),
                _ => Vec::new(),
            };
            return Err(Stopped::Failed { why: format!("its load: {}", with_causes(&error)), output });
        }
    };
    let lines = || last_lines(&finished.output);
    if finished.code != Some(0) {
        let why = format!("its load `{}` failed: {}", shell_words::join(&words), finished.how);
        return Err(Stopped::Failed { why, output: lines() });
    }
    let picked = pick::pick(command, &finished.output)
        .map_err(|why| Stopped::Failed { why: format!("its load `{}`: {why}", words[0]), output: lines() })?;
    let burst = command.burst.zip(picked.requests);
    warnings.extend(burst.and_then(|(burst, answered)| verify::burst_warning(burst, answered)));
    let rate = picked.figures.get(&Metric::Rps);
    let requests = picked.requests.or(rate.map(|rate| rate * finished.elapsed_s));
    let mut figures = picked.figures;
    for (metric, value) in used(usage.as_ref(), finished.cpu_s, requests) {
        // The program's own figures win.
        figures.entry(metric).or_insert(value);
    }
    let clock = megahertz();
    Ok(Measured {
        figures,
        warnings,
        clock,
        program: words.first().and_then(|word| program::find(word, &env, &folder)),
        servers: server.is_some().then(Vec::new),
        command: Some(CommandRun {
            words,
            elapsed_s: finished.elapsed_s,
            cpu_s: finished.cpu_s,
            requests: picked.requests,
            burst: command.burst,
            output: finished.output,
        }),
        ..Measured::default()
    })
}

/// Returns CPU time per request of both sides, and the server's memory.
fn used(usage: Option<&ServerUsage>, load_cpu_s: f64, requests: Option<f64>) -> Vec<(Metric, f64)> {
    let each = |cpu_s: f64| requests.filter(|requests| *requests > 0.0).map(|requests| cpu_s * 1e9 / requests);
    let figures = [
        (Metric::Cpu, usage.and_then(|usage| each(usage.cpu_seconds))),
        (Metric::LoadCpu, each(load_cpu_s)),
        (Metric::Memory, usage.map(|usage| usage.rss_peak_bytes as f64)),
    ];
    figures
        .into_iter()
        .filter_map(|(metric, value)| Some((metric, value.filter(|v| v.is_finite() && *v > 0.0)?)))
        .collect()
}

/// Observes a run, and ends it when the server is gone.
struct Watcher<'a> {
    inner: &'a mut dyn Observer,
    server: Option<&'a mut Running>,
    clock: Option<f64>,
    /// The whole load is a warm-up.
    warm_up: bool,
}

impl Observer for Watcher<'_> {
    fn progress(&mut self, progress: &Progress) {
        if self.warm_up {
            return self.inner.progress(&Progress { stage: BenchStage::WarmUp, ..progress.clone() });
        }
        // The CPUs are busy by now, and the measured part has not begun.
        if progress.stage == BenchStage::WarmUp {
            self.clock = megahertz();
        }
        self.inner.progress(progress);
    }

    fn cancelled(&mut self) -> bool {
        self.inner.cancelled() || self.server.as_mut().is_some_and(|server| server.ended().is_some())
    }
}

fn failed(why: String, server: Option<&(&mut Running, &Server)>) -> Stopped {
    Stopped::Failed { why, output: server.map(|(running, _)| running.last_lines(LINES)).unwrap_or_default() }
}

fn last_lines(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|&line| line.to_owned()).collect()
}

fn filled(text: &str, values: &Values) -> Result<String, Stopped> {
    fill(text, values).map_err(|error| Stopped::failed(with_causes(&error)))
}

fn endpoint(url: &str, values: &Values) -> Result<Endpoint, Stopped> {
    let url = filled(url, values)?;
    url.parse().map_err(|error| Stopped::failed(format!("`{url}`: {}", with_causes(&error))))
}
