//! A load as words that travel to agents, and back: the same reader on both sides finds the same mistakes.
//!
//! Only flags of the load travel. Names of files become numbers, and the files travel beside the words. An agent takes
//! no other file, so a plan cannot make it read one of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, ArgMatches, Args as _, Command, Parser};
use oroshi_agents::wire::Job;
use oroshi_bench::{Draft, Journeys, Load, Part, Spacing, push};
use oroshi_net::Permitted;
use oroshi_scenario::PartOptions;

use super::Error;
use super::args::{Args, LoadArgs};
use super::scenario;
use super::script::Scripted;
use super::subscribe::{self, Share, SubscribeArgs};
use crate::interrupt::Temporary;

/// Flags whose values are files.
const FILES: [&str; 6] = ["body_file", "urls", "cacert", "cert", "key", "script"];
/// Flags of the load that are not about its requests.
const OTHERS: [&str; 6] = ["urls", "script", "script_limit", "users", "ramp", "iterations"];
/// The bytes that a job has for a load on a hub: the number in the stamps of the run.
const RUN_BYTES: usize = 4;
/// Flags of the load that are about the coordinator's machine.
const STAYS: [&str; 1] = ["watch"];
/// The word before the arguments of a wrk script.
const ARGUMENTS: &str = "--";
/// The most threads of a part.
const THREADS: usize = 64;
/// The most parts of a run.
const PARTS: usize = 10_000;

#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// The flags that travel.
fn travellers() -> Vec<Arg> {
    let load = LoadArgs::augment_args(Command::new("load"));
    let bench = Args::augment_args(Command::new("bench"));
    let others = bench.get_arguments().filter(|flag| OTHERS.contains(&flag.get_id().as_str())).cloned();
    let load = load.get_arguments().filter(|flag| !STAYS.contains(&flag.get_id().as_str())).cloned();
    let subscribe = SubscribeArgs::augment_args(Command::new("subscribe"));
    let subscribe = subscribe.get_arguments().cloned().collect::<Vec<_>>();
    load.chain(others).chain(subscribe).filter(|flag| flag.get_long().is_some()).collect()
}

/// A job as an agent has read it.
pub(crate) struct Unpacked {
    pub(crate) load: UnpackedLoad,
    /// The job's files: needed as long as the draft or its plan.
    pub(crate) folder: Temporary,
}

/// The load of a job's part.
pub(crate) enum UnpackedLoad {
    /// Requests, perhaps of a wrk script that is to be loaded into the plan.
    Requests(Box<Draft>, Option<Box<Scripted>>),
    /// Subscriptions.
    Subscriptions(Box<push::Plan>),
}

/// Makes a job of the words of a command line that the parser has accepted. `words`: those after the program's name.
///
/// # Errors
/// A file cannot be read.
pub(super) fn pack(words: impl IntoIterator<Item = String>) -> Result<Job, Vec<String>> {
    let matches = Args::augment_args(Command::new("bench")).try_get_matches_from(words);
    let matches = matches.map_err(|error| vec![error.to_string()])?;
    let mut job = pack_flags(&matches)?;
    job.words.extend(values(&matches, "url"));
    let arguments = values(&matches, "script_args");
    if !arguments.is_empty() {
        job.words.push(ARGUMENTS.to_owned());
        job.words.extend(arguments);
    }
    Ok(job)
}

/// Makes a job of the flags of a load, without a URL. `matches` may be those of another command that has these flags.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn pack_flags(matches: &ArgMatches) -> Result<Job, Vec<String>> {
    let mut job = Job::default();
    let mut mistakes = Vec::new();
    for flag in travellers() {
        let (id, long) = (flag.get_id().as_str(), flag.get_long().unwrap_or_default());
        // An experiment has no file with URLs.
        if matches.try_contains_id(id).is_err() {
            continue;
        }
        if !flag.get_action().takes_values() {
            if matches.get_flag(id) {
                job.words.push(format!("--{long}"));
            }
            continue;
        }
        for value in values(matches, id) {
            let value = match FILES.contains(&id).then(|| fs::read(&value)) {
                None => value,
                Some(Ok(content)) => {
                    let name = Path::new(&value).file_name().map(|name| name.to_string_lossy().into_owned());
                    job.files.push((name.unwrap_or_default(), content));
                    (job.files.len() - 1).to_string()
                }
                Some(Err(error)) => {
                    mistakes.push(format!("--{long}: {value} cannot be read: {error}"));
                    continue;
                }
            };
            job.words.push(format!("--{long}={value}"));
        }
    }
    if mistakes.is_empty() { Ok(job) } else { Err(mistakes) }
}

/// Returns the job of one run of an experiment: with the URLs, the rate and the lengths of `draft`.
pub(crate) fn with_run(job: &Job, draft: &Draft) -> Job {
    let steady = match &draft.load {
        Load::Closed => Some(Vec::new()),
        Load::Open { stages, spacing, seed } => match &stages[..] {
            [stage] if stage.duration.is_zero() => Some(match spacing {
                Spacing::Constant => vec![format!("--rate={}", stage.rate)],
                Spacing::Poisson => {
                    vec![format!("--rate={}", stage.rate), "--arrivals=poisson".to_owned(), format!("--seed={seed}")]
                }
            }),
            // The rate changes as the flags say.
            _ => None,
        },
    };
    let replaced: &[&str] = match steady {
        Some(_) => &["duration", "warmup", "requests", "rate", "stages", "arrivals", "seed"],
        None => &["duration", "warmup", "requests"],
    };
    let stays = |word: &&String| {
        let flag = word.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or_default());
        flag.is_some_and(|flag| !replaced.contains(&flag))
    };
    let mut words: Vec<String> = job.words.iter().filter(stays).cloned().collect();
    words.extend(steady.into_iter().flatten());
    words.extend(draft.duration.map(|duration| format!("--duration={}ns", duration.as_nanos())));
    words.push(format!("--warmup={}ns", draft.warmup.as_nanos()));
    words.extend(draft.requests.map(|requests| format!("--requests={requests}")));
    words.extend(draft.urls.iter().map(ToString::to_string));
    Job { words, ..job.clone() }
}

/// As [`with_run`], of a script: its lengths and rate are the flags' or the script's own.
pub(crate) fn with_journeys(job: &Job, draft: &Draft) -> Job {
    // In an experiment connections are another word for users.
    let word = |word: &String| match word.strip_prefix("--connections=") {
        Some(users) => format!("--users={users}"),
        None => word.clone(),
    };
    let flags = job.words.iter().filter(|word| word.starts_with("--")).map(word);
    let words = flags.chain(draft.urls.iter().map(ToString::to_string)).collect();
    Job { words, ..job.clone() }
}

/// As [`with_run`], of subscriptions: also with the URLs to publish at.
pub(crate) fn with_subscriptions(job: &Job, draft: &push::Draft) -> Job {
    let mut job = with_run(job, &draft.base);
    job.words.retain(|word| !word.starts_with("--publish=") && !word.starts_with("--publish-to="));
    job.words.extend(draft.publish.iter().map(|publish| format!("--publish={}", publish.url)));
    job.words.extend(draft.publish_to.iter().map(|publish| format!("--publish-to={}", publish.url)));
    job
}

/// Adds the number in the stamps of a run on a hub to its job.
pub(crate) fn pack_stamps(job: &mut Job, run: u64) {
    job.start = Some((run as u32).to_be_bytes().to_vec());
}

/// Adds to the job what agents need for journeys: the files beside the script, and what comes before the load leaves.
///
/// # Errors
/// A file cannot be read, or the script failed.
pub(crate) fn pack_journeys(job: &mut Job, journeys: &dyn Journeys) -> Result<(), Error> {
    pack_beside(job, journeys.files()).map_err(Error::Usage)?;
    job.start = Some(journeys.lead().map_err(Error::Scenario)?);
    Ok(())
}

fn values(matches: &ArgMatches, id: &str) -> Vec<String> {
    let given = matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
    let raw = matches.get_raw(id).filter(|_| given).into_iter().flatten();
    raw.map(|value| value.to_string_lossy().into_owned()).collect()
}

/// Adds the files beside the job's script: the path that the script has, and where each is.
///
/// # Errors
/// A file cannot be read.
fn pack_beside(job: &mut Job, files: Vec<(String, PathBuf)>) -> Result<(), Vec<String>> {
    let mut mistakes = Vec::new();
    for (name, path) in files {
        match fs::read(&path) {
            Ok(content) => {
                job.beside.push((name.clone(), job.files.len()));
                job.files.push((name, content));
            }
            Err(error) => mistakes.push(format!("{} cannot be read: {error}", path.display())),
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// Reads a job into the draft of its part. `leads`: the coordinator reads it, to put the parts of a run together.
///
/// # Errors
/// All mistakes; also words that do not travel, such as names of this machine's files.
pub(crate) fn unpack(job: &Job, permitted: Option<Arc<Permitted>>, leads: bool) -> Result<Unpacked, Vec<String>> {
    let wrong = |what: &str| Err(vec![format!("the plan is not one of oroshi: {what}")]);
    if job.of == 0 || job.of > PARTS || job.index >= job.of || job.threads == 0 || job.threads > THREADS {
        return wrong("its part or threads");
    }
    let folder = Temporary::folder("agent").map_err(|(path, error)| vec![format!("{}: {error}", path.display())])?;
    let flags = travellers();
    let mut words = Vec::new();
    let flags_end = job.words.iter().position(|word| word == ARGUMENTS).unwrap_or(job.words.len());
    let (all, arguments) = job.words.split_at(flags_end);
    for word in all {
        let Some(flag) = word.strip_prefix("--") else {
            if word.starts_with('-') {
                return wrong("a flag");
            }
            words.push(word.clone());
            continue;
        };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        let Some(known) = flags.iter().find(|known| known.get_long() == Some(name)) else {
            return Err(vec![format!(
                "--{name}: an agent does not take it; use the same version of oroshi everywhere"
            )]);
        };
        if !FILES.contains(&known.get_id().as_str()) {
            words.push(word.clone());
            continue;
        }
        let number = value.and_then(|value| value.parse::<usize>().ok());
        let Some((number, (file, content))) = number.and_then(|number| Some((number, job.files.get(number)?))) else {
            return wrong("the name of a file");
        };
        words.push(format!("--{name}={}", written(&folder, number, file, content)?.display()));
    }
    let mut beside = BTreeMap::new();
    for (name, number) in &job.beside {
        let Some((file, content)) = job.files.get(*number) else { return wrong("the name of a file") };
        beside.insert(name.clone(), written(&folder, *number, file, content)?);
    }
    words.extend_from_slice(arguments);
    let line = Line::try_parse_from(words).map_err(|error| vec![error.to_string()])?;
    let part = Part { index: job.index, of: job.of };
    let mut args = line.args;
    args.load.threads = Some(job.threads.to_string());
    if args.subscribe.is_asked_for() {
        let share = Share { part: Some(part), permitted };
        let (mut plan, _) = subscribe::read(args, share)?;
        let run: Option<[u8; RUN_BYTES]> = job.start.as_deref().and_then(|start| start.try_into().ok());
        let Some(run) = run else { return wrong("the number of the run") };
        plan.run = Some(u32::from_be_bytes(run));
        return Ok(Unpacked { load: UnpackedLoad::Subscriptions(Box::new(plan)), folder });
    }
    let (draft, script) = if scenario::is_asked_for(&args) {
        let part = PartOptions {
            part: (!leads).then_some(part),
            start: Some(job.start.clone().unwrap_or_default()),
            files: Some(beside),
            permitted: permitted.clone(),
        };
        (scenario::unpack(args, part)?, None)
    } else {
        let (draft, script, _, problems) = args.read();
        if !problems.is_empty() {
            return Err(problems);
        }
        (draft, script)
    };
    let draft = Draft { part: Some(part), threads: Some(job.threads), permitted, ..draft };
    Ok(Unpacked { load: UnpackedLoad::Requests(Box::new(draft), script.map(Box::new)), folder })
}

/// Writes a file of a job.
fn written(folder: &Temporary, number: usize, name: &str, content: &[u8]) -> Result<PathBuf, Vec<String>> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().filter(|c| is_plain(*c)).take(100).collect();
    let path = folder.path().join(format!("{number}-{name}"));
    fs::write(&path, content).map_err(|error| vec![format!("{}: {error}", path.display())])?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oroshi_bench::Stage;

    use super::*;

    fn packed(line: &[&str]) -> Job {
        let words = std::iter::once("bench").chain(line.iter().copied()).map(str::to_owned);
        Job { of: 2, threads: 1, ..pack(words).unwrap() }
    }

    #[test]
    fn a_load_travels_with_its_files_and_without_the_rest() {
        let body = tempfile::NamedTempFile::new().unwrap();
        fs::write(body.path(), "content").unwrap();
        let file = body.path().to_str().unwrap();
        let job = packed(&[
            "-c5",
            "-R2k",
            "--close",
            "-H",
            "A: b c",
            "--body-file",
            file,
            "-o",
            "report",
            "--fail-if",
            "p99>1s",
            "--watch",
            "12",
            "-L",
            "http://127.0.0.1:1/x",
            "--agents",
            "2",
            "--nats",
            "nats://h",
            "--key-file",
            "k",
        ]);
        assert_eq!(
            job.words,
            ["--connections=5", "--rate=2k", "--close", "--header=A: b c", "--body-file=0", "http://127.0.0.1:1/x"]
        );
        let Unpacked { load, folder } = unpack(&job, None, false).unwrap();
        let UnpackedLoad::Requests(draft, None) = load else { panic!("no load of requests") };
        assert_eq!(
            (draft.connections, &draft.body[..], draft.part),
            (5, &b"content"[..], Some(Part { index: 0, of: 2 }))
        );
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn a_run_of_an_experiment_has_its_own_urls_rate_and_lengths_on_the_agents_too() {
        let url = |text: &str| vec![text.parse::<oroshi_net::Endpoint>().unwrap()];
        let ms = Duration::from_millis;
        let stage = |seconds, rate| Stage { duration: Duration::from_secs(seconds), rate };
        let constant = |stages| Load::Open { stages, spacing: Spacing::Constant, seed: 0 };
        for (line, load, requests) in [
            (&["-c5", "-d9s", "-H", "A: b"][..], Load::Closed, None),
            (&["-c5", "-R", "60%"], Load::rate(48_765.4, Spacing::Constant, 0), None),
            (&["-c5", "-R", "60%"], Load::Closed, Some(20)),
            (
                &["-c5", "-R", "2k", "--arrivals", "poisson", "--seed", "7", "-w1s"],
                Load::rate(2000.0, Spacing::Poisson, 7),
                None,
            ),
            (&["-c5", "--stages", "1s:10,2s:20", "-n", "9"], constant(vec![stage(1, 10.0), stage(2, 20.0)]), None),
        ] {
            let wanted = Draft {
                urls: url("unix:/tmp/a b:/path?q=1"),
                load,
                requests,
                duration: Some(ms(1050)),
                warmup: Duration::from_nanos(123_456_789),
                ..Draft::default()
            };
            let Unpacked { load, folder: _folder } = unpack(&with_run(&packed(line), &wanted), None, false).unwrap();
            let UnpackedLoad::Requests(got, None) = load else { panic!("no load of requests") };
            assert_eq!((&got.urls, &got.load, got.requests), (&wanted.urls, &wanted.load, wanted.requests), "{line:?}");
            assert_eq!((got.duration, got.warmup, got.connections), (wanted.duration, wanted.warmup, 5), "{line:?}");
            assert_eq!(got.headers.len(), usize::from(line.contains(&"-H")));
        }
    }

    #[test]
    fn a_plan_cannot_name_files_of_the_agent_or_flags_that_do_not_travel() {
        for words in [
            &["--body-file=/etc/passwd", "http://h/"][..],
            &["--urls=7"],
            &["--output=/tmp/x", "http://h/"],
            &["--script=0", "http://h/"],
            &["-o", "x"],
            &["--agents=2"],
            &["--watch=1"],
        ] {
            let words = words.iter().map(|&word| word.to_owned()).collect();
            assert!(unpack(&Job { words, of: 1, threads: 1, ..Job::default() }, None, false).is_err());
        }
        let job = packed(&["http://h/"]);
        for wrong in [Job { index: 2, ..job.clone() }, Job { threads: 1000, ..job.clone() }, Job { of: 0, ..job }] {
            assert!(unpack(&wrong, None, false).is_err());
        }
    }

    #[test]
    fn every_flag_of_a_load_travels_or_is_known_to_stay() {
        let load = LoadArgs::augment_args(Command::new("load"));
        let all: Vec<_> = load.get_arguments().map(|flag| flag.get_id().to_string()).collect();
        let travel: Vec<_> = travellers().iter().map(|flag| flag.get_id().to_string()).collect();
        assert!(all.iter().all(|id| travel.contains(id) || STAYS.contains(&id.as_str())), "{all:?}");
        assert!(FILES.iter().all(|id| travel.iter().any(|flag| flag == id)));
    }
}
