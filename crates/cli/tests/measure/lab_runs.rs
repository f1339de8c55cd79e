//! Whole experiments: real servers (`oroshi target`) below real keepers (`oroshi keep`), for a few tenths of a second
//! each.

mod rules;

mod journeys;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use oroshi_bench::follow::Stage;
use oroshi_bench::{Draft, Load as Loop, Observer, Progress, Spacing};
use oroshi_lab::plan::{Cell, Command, Figure, Load, Ready, Rules, Server, Stop, Variant};
use oroshi_lab::result::{CellResult, Ended, Run};
use oroshi_lab::{Event, Experiment, ExperimentObserver, LabError, LabResult, Metric, Tools};
use oroshi_stats::compare::Verdict;
use regex_lite::Regex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const OROSHI: &str = env!("CARGO_BIN_EXE_oroshi");
/// In the environment of everything that a test starts: its folder.
const MARK: &str = "OROSHI_TEST_FOLDER";

/// A folder for one test: for output, for what servers leave there, and as the mark of its processes.
struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A server of this command, at `unix:{{socket}}`.
    fn server(&self, name: &str, start: &[&str]) -> Server {
        Server {
            name: name.into(),
            machine: None,
            start: start.iter().map(|&word| word.into()).collect(),
            env: vec![(MARK.into(), self.0.path().display().to_string())],
            folder: None,
            files: Vec::new(),
            setup: Vec::new(),
            teardown: Vec::new(),
            ready: Ready::Answers(vec!["unix:{{socket}}".into()]),
            ready_timeout: Duration::from_secs(30),
            stop: Stop::Term,
            stop_timeout: Duration::from_secs(10),
        }
    }

    /// `oroshi target` with these flags.
    fn target(&self, name: &str, flags: &[&str]) -> Server {
        self.server(name, &[&["{{oroshi}}", "target", "--listen", "unix:{{socket}}"], flags].concat())
    }

    /// The same below a shell, which writes the target's process id into a file of this folder, and ends with 7 after
    /// it.
    fn mortal(&self, name: &str) -> Server {
        let pid = self.path(name);
        let script = format!(
            "{{{{oroshi}}}} target --listen unix:{{{{socket}}}} & echo $! > {}; wait $!; echo last words >&2; exit 7",
            pid.display()
        );
        self.server(name, &["sh", "-c", &script])
    }

    fn run(&self, experiment: Experiment, follow: &mut dyn ExperimentObserver) -> Result<LabResult, LabError> {
        let tools = Tools {
            keeper: vec![OROSHI.into(), "keep".into()],
            oroshi: OROSHI.into(),
            output: self.0.path().to_owned(),
        };
        let result = oroshi_lab::run(experiment, &tools, follow);
        assert_eq!(self.processes(), Vec::<String>::new(), "everything that was started has ended");
        result
    }

    /// Processes that were started by this test and are still there.
    fn processes(&self) -> Vec<String> {
        let mark = format!("{MARK}={}", self.0.path().display());
        let folder = self.0.path().display().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let ours = processes.filter(|process| {
            let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
            let words =
                |text: Vec<u8>| String::from_utf8_lossy(&text).split('\0').map(str::to_owned).collect::<Vec<_>>();
            words(read("environ")).contains(&mark)
                || words(read("cmdline")).iter().any(|word| word.starts_with(&folder))
        });
        ours.map(|process| process.display().to_string()).collect()
    }

    fn log(&self, server: &str) -> String {
        fs::read_to_string(self.path(&format!("01-{server}.log"))).unwrap_or_default()
    }
}

/// Closed loop on four connections, for a tenth of a second.
fn load() -> Draft {
    Draft {
        connections: 4,
        duration: Some(Duration::from_millis(100)),
        warmup: Duration::from_millis(20),
        ..Draft::default()
    }
}

/// So many per second, and connections enough for a machine that stands still for a moment.
fn at_rate(rate: f64) -> Draft {
    Draft { load: Loop::rate(rate, Spacing::Constant, 0), connections: 50, ..load() }
}

fn variant(name: &str, server: usize, draft: Draft) -> Variant {
    Variant {
        name: name.into(),
        server: Some(server),
        urls: vec!["unix:{{socket}}:/".into()],
        load: Load::Bench(Box::new(draft)),
        load_words: "4 connections, 100ms".into(),
        machine: None,
        agents: None,
    }
}

fn program(name: &str, server: usize, script: &str, figures: &[(Metric, &str)], requests: Option<&str>) -> Variant {
    let figure =
        |&(metric, pattern): &(Metric, &str)| Figure { metric, pattern: Regex::new(pattern).unwrap(), scale: 1.0 };
    let command = Command {
        words: vec!["sh".into(), "-c".into(), script.into()],
        env: vec![("URL".into(), "{{url}}".into())],
        figures: figures.iter().map(figure).collect(),
        requests: requests.map(|pattern| Regex::new(pattern).unwrap()),
        burst: None,
        warmup: None,
        timeout: Duration::from_secs(30),
    };
    Variant { load: Load::Command(command), ..variant(name, server, load()) }
}

fn experiment(metrics: &[Metric], servers: Vec<Server>, variants: Vec<Variant>, rules: Rules) -> Experiment {
    Experiment {
        name: "test".into(),
        title: "A test".into(),
        question: "Does it work?".into(),
        source: None,
        rerun: vec!["oroshi".into(), "compare".into()],
        quick: true,
        metrics: metrics.to_vec(),
        score_if_any: false,
        rules,
        server_cpus: None,
        load_cpus: None,
        network: None,
        sweep: None,
        cells: vec![Cell { group: String::new(), point: None, servers, variants, rate_share: None }],
        skipped: Vec::new(),
    }
}

/// Exactly so many blocks, whatever else the machine does.
fn blocks(blocks: usize, per_start: Option<usize>) -> Rules {
    Rules {
        min_blocks: blocks,
        max_blocks: blocks,
        precision: 0.0,
        blocks_per_start: per_start,
        disturbed: 1.0,
        ..Rules::default()
    }
}

/// What a test sees, and does, while an experiment lasts.
#[derive(Default)]
struct Seen {
    runs: usize,
    starts: Vec<String>,
    failures: Vec<String>,
    precisions: Vec<Option<f64>>,
    /// Ends it after so many runs.
    most_runs: Option<usize>,
    /// Kills the process whose id is in this file, in the middle of the first run of this variant in this block.
    kill: Option<(usize, usize, PathBuf)>,
    now: (usize, Option<usize>),
}

impl ExperimentObserver for Seen {
    fn event(&mut self, _: &Experiment, event: Event<'_>) {
        match event {
            Event::Starting { server } => self.starts.push(server.to_owned()),
            Event::Run { variant, block, .. } => self.now = (variant, block),
            Event::Ran { precision, left, .. } => {
                self.runs += 1;
                self.precisions.push(precision);
                assert!(left.0 <= left.1, "{left:?}");
            }
            Event::Failed { variant, why, .. } => self.failures.push(format!("{variant}: {why}")),
            Event::Cell { .. } | Event::Warning(_) => {}
        }
    }

    fn cancelled(&mut self) -> bool {
        self.most_runs.is_some_and(|most| self.runs >= most)
    }

    fn bench(&mut self) -> &mut dyn Observer {
        self
    }
}

impl Observer for Seen {
    fn progress(&mut self, progress: &Progress) {
        let (variant, block) = self.now;
        if progress.stage == Stage::Measuring
            && let Some((_, _, file)) = self.kill.take_if(|kill| (kill.0, Some(kill.1)) == (variant, block))
        {
            kill(&file);
        }
    }

    fn cancelled(&mut self) -> bool {
        ExperimentObserver::cancelled(self)
    }
}

fn kill(file: &Path) {
    let pid = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// The one cell, with what must hold of any.
#[track_caller]
fn cell(result: &LabResult) -> &CellResult {
    let [cell] = &result.cells[..] else { panic!("one cell: {:?}", result.cells.len()) };
    for run in &cell.runs {
        assert!(run.record.as_ref().is_none_or(|record| record.environment.kernel.is_empty()), "said once");
    }
    let places: BTreeSet<_> = cell.runs.iter().map(|run| (run.block, run.place)).collect();
    assert_eq!(places.len(), cell.runs.len(), "no two runs have the same place");
    assert!(cell.runs.windows(2).all(|runs| runs[0].at_s < runs[1].at_s));
    serde_json::from_str::<LabResult>(&serde_json::to_string(result).unwrap()).unwrap();
    cell
}

/// What a run's warnings say of itself, and not of other work that the machine had.
fn of_the_run(run: &Run) -> Vec<&str> {
    run.warnings.iter().map(String::as_str).filter(|text| !text.starts_with("disturbed: ")).collect()
}

fn order(cell: &CellResult, block: usize) -> Vec<usize> {
    cell.runs.iter().filter(|run| run.block == block).map(|run| run.variant).collect()
}

#[test]
fn a_delay_is_found_at_the_same_rate_and_servers_are_started_anew() {
    let bench = Bench::new();
    let servers = vec![bench.target("quick", &["--delay", "2ms"]), bench.target("slow", &["--delay", "20ms"])];
    let variants = vec![variant("quick", 0, at_rate(200.0)), variant("slow", 1, at_rate(200.0))];
    let metrics = [Metric::P50, Metric::Rps, Metric::P99];
    let mut seen = Seen::default();
    let result = bench.run(experiment(&metrics, servers, variants, blocks(6, Some(2))), &mut seen).unwrap();
    let cell = cell(&result);
    assert_eq!((cell.ended, cell.blocks, cell.runs.len(), seen.runs), (Ended::MaxBlocks, 6, 12, 12));
    let p50 = &cell.comparisons[0];
    assert_eq!((p50.metric, p50.base, p50.variant, p50.verdict), (Metric::P50, 0, 1, Verdict::Slower), "{p50:?}");
    assert!(
        p50.words.starts_with("slow answers later than quick: p50 is ")
            && p50.words.contains(&format!("rests on {} blocks", p50.blocks))
    );
    let rps = &cell.comparisons[1];
    assert_eq!((rps.metric, rps.verdict), (Metric::Rps, Verdict::Equivalent), "{rps:?}");
    assert!(cell.variants[1].figures[&Metric::P50].estimate >= 20e6, "{:?}", cell.variants[1].figures);
    assert!(seen.precisions[..4].iter().all(Option::is_none) && seen.precisions[11].is_some(), "{:?}", seen.precisions);
    // ABBA within each pair of blocks.
    let backwards = |block| order(cell, block).into_iter().rev().collect::<Vec<_>>();
    assert_eq!((order(cell, 1), order(cell, 3)), (backwards(0), backwards(2)));
    // Three starts, each for two blocks; every start is told, and every end.
    assert_eq!(cell.runs.iter().map(|run| run.session).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    for server in ["quick", "slow"] {
        assert_eq!(bench.log(server).matches("listening on").count(), 3, "{}", bench.log(server));
        assert_eq!(seen.starts.iter().filter(|name| *name == server).count(), 6);
    }
    // Sixty answers beyond a median are few.
    assert!(result.warnings.iter().any(|text| text.starts_with("p50 of ")), "{:?}", result.warnings);
    // The servers' CPU time was taken.
    assert!(cell.runs.iter().all(|run| run.figures.contains_key(&Metric::Memory)), "{:?}", cell.runs[0].figures);
    assert!(!result.environment.kernel.is_empty() && result.warnings.iter().any(|text| text.contains("share")));
}

#[test]
fn a_server_that_never_stops_printing_fills_no_disk() {
    let bench = Bench::new();
    let script = "echo the first line; yes & {{oroshi}} target --listen unix:{{socket}}";
    let servers = vec![bench.server("chatty", &["sh", "-c", script])];
    let variants = vec![variant("A", 0, load()), variant("A2", 0, load())];
    let result =
        bench.run(experiment(&[Metric::Rps], servers, variants, blocks(3, None)), &mut Seen::default()).unwrap();
    cell(&result);
    let log = bench.log("chatty");
    assert!(log.starts_with("the first line\n"), "{log:.200}");
    let (_, end) = log.split_once(" bytes were left out here").unwrap_or_else(|| panic!("{} bytes", log.len()));
    assert!(end.contains("y\ny\n"), "{end:.200}");
    assert!(log.len() < 200 << 20, "{} bytes", log.len());
}

#[test]
fn variants_of_one_server_share_its_start() {
    let bench = Bench::new();
    let variants = vec![variant("A", 0, load()), variant("A2", 0, load())];
    let rules = Rules { precision: 1e9, ..blocks(3, None) };
    let rules = Rules { max_blocks: 9, ..rules };
    let result =
        bench.run(experiment(&[Metric::Rps], vec![bench.target("one", &[])], variants, rules), &mut Seen::default());
    let result = result.unwrap();
    let cell = cell(&result);
    assert_eq!((cell.ended, cell.blocks), (Ended::Precise, 3));
    assert_eq!(bench.log("one").matches("listening on").count(), 1);
    assert!(cell.runs.iter().all(|run| run.session == 0 && run.figures[&Metric::Rps] > 0.0));
    assert!(cell.variants.iter().all(|variant| variant.start.as_ref().unwrap().contains("target --listen")));
    let program = cell.variants[0].program.as_ref().unwrap();
    let file = fs::metadata(OROSHI).unwrap();
    assert_eq!((Path::new(&program.path), program.bytes), (&*fs::canonicalize(OROSHI).unwrap(), file.len()));
    assert!(cell.variants.iter().all(|variant| variant.load_program.is_none()));
}

#[test]
fn a_server_that_dies_in_a_run_takes_nothing_else_with_it() {
    let bench = Bench::new();
    let servers = vec![bench.target("A", &[]), bench.mortal("B"), bench.target("C", &[])];
    let long = Draft { duration: Some(Duration::from_secs(60)), ..load() };
    let variants = vec![variant("A", 0, load()), variant("B", 1, load()), variant("C", 2, load())];
    let mut experiment = experiment(&[Metric::Rps], servers, variants, blocks(3, None));
    // In the block in which it dies, its run would last a minute: it ends with the server.
    experiment.cells[0].variants[1].load = Load::Bench(Box::new(long));
    let mut seen = Seen { kill: Some((1, 0, bench.path("B"))), ..Seen::default() };
    let result = bench.run(experiment, &mut seen).unwrap();
    let cell = cell(&result);
    let failure = cell.variants[1].failed.as_ref().unwrap();
    assert_eq!((failure.block, failure.why.as_str()), (0, "its server B ended by itself: exit code 7"));
    assert_eq!(failure.output.last().map(String::as_str), Some("last words"));
    assert_eq!(seen.failures, ["B: its server B ended by itself: exit code 7"]);
    assert_eq!((cell.ended, cell.blocks, cell.runs.len()), (Ended::MaxBlocks, 3, 6));
    assert!(cell.variants[0].failed.is_none() && cell.variants[2].failed.is_none());
    let compared = cell.comparisons.iter().find(|c| (c.base, c.variant) == (0, 2)).unwrap();
    assert!(compared.ratio.is_some() && compared.blocks == 3, "{compared:?}");
    assert!(cell.comparisons.iter().all(|c| c.variant != 1 && c.base != 1), "that it failed has been said");
}

#[test]
fn a_variant_that_dies_later_keeps_its_runs() {
    let bench = Bench::new();
    // Its load is a program that kills the server the second time, and waits for its own end.
    let second = format!(
        "if test -e {{{{dir}}}}/once; then kill -9 $(cat {}); sleep 60; fi; touch {{{{dir}}}}/once; echo rps 5",
        bench.path("B").display()
    );
    let rps = [(Metric::Rps, r"rps (\d+)")];
    let variants = vec![
        program("A", 0, "echo rps 7", &rps, None),
        program("B", 1, &second, &rps, None),
        program("C", 0, "echo rps 8", &rps, None),
    ];
    let servers = vec![bench.target("A", &[]), bench.mortal("B")];
    let result =
        bench.run(experiment(&[Metric::Rps], servers, variants, blocks(3, None)), &mut Seen::default()).unwrap();
    let cell = cell(&result);
    let failure = cell.variants[1].failed.as_ref().unwrap();
    assert_eq!((failure.block, failure.why.as_str()), (1, "its server B ended by itself: exit code 7"));
    let runs = |variant| cell.runs.iter().filter(|run| run.variant == variant).count();
    assert_eq!([runs(0), runs(1), runs(2)], [3, 1, 3]);
    let faster = cell.comparisons.iter().find(|c| (c.base, c.variant) == (0, 2)).unwrap();
    assert!((faster.ratio.unwrap().estimate - 8.0 / 7.0).abs() < 1e-9, "{faster:?}");
}

#[test]
fn a_server_that_does_not_start_fails_all_of_its_variants_and_no_others() {
    let bench = Bench::new();
    let mut servers = vec![bench.target("good", &[]), bench.target("bad", &["--delay", "nonsense"])];
    servers[1].teardown = vec![vec!["false".into()]];
    let variants = vec![
        variant("A", 0, load()),
        variant("bad", 1, load()),
        variant("bad too", 1, load()),
        variant("A2", 0, load()),
        Variant { urls: vec!["unix:{{nowhere}}:/".into()], ..variant("lost", 0, load()) },
    ];
    let result =
        bench.run(experiment(&[Metric::Rps], servers, variants, blocks(3, Some(1))), &mut Seen::default()).unwrap();
    let cell = cell(&result);
    for bad in &cell.variants[1..3] {
        let failure = bad.failed.as_ref().unwrap();
        assert!(failure.block == 0 && failure.why.starts_with("its server bad did not start: "), "{failure:?}");
        assert!(failure.output.iter().any(|line| line.contains("nonsense")), "{failure:?}");
    }
    let told = |text: &String| text == "bad: after the server's end: teardown `false`: exit code 1";
    assert!(result.warnings.iter().any(told), "{:?}", result.warnings);
    assert!(cell.variants[4].failed.as_ref().unwrap().why.contains("nowhere"), "{:?}", cell.variants[4].failed);
    assert_eq!((cell.ended, cell.blocks, cell.runs.len()), (Ended::MaxBlocks, 3, 6));
    assert_eq!(bench.log("good").matches("listening on").count(), 3);
}

#[test]
fn with_one_variant_left_of_two_the_cell_ends_and_the_next_begins() {
    let bench = Bench::new();
    let servers = vec![bench.target("good", &[]), bench.server("bad", &["/nonexistent/server", "{{socket}}"])];
    let variants = vec![variant("A", 0, load()), variant("B", 1, load())];
    let mut experiment = experiment(&[Metric::Rps], servers, variants, blocks(3, Some(1)));
    let mut alone = experiment.cells[0].clone();
    alone.variants.truncate(1);
    alone.servers.truncate(1);
    experiment.cells.push(alone);
    let result = bench.run(experiment, &mut Seen::default()).unwrap();
    let [first, second] = &result.cells[..] else { panic!("two cells") };
    assert_eq!((first.ended, first.blocks), (Ended::Failed, 0));
    let why = &first.variants[1].failed.as_ref().unwrap().why;
    assert!(why.contains("/nonexistent/server"), "{why}");
    // One variant alone has nothing to be compared with, and has its figures.
    assert_eq!((second.ended, second.blocks, second.comparisons.len()), (Ended::MaxBlocks, 3, 0));
    assert!(second.variants[0].figures.contains_key(&Metric::Rps) && !result.cut_short);
}

#[test]
fn ctrl_c_leaves_what_there_is_and_no_process() {
    let bench = Bench::new();
    let make = || {
        let variants = vec![variant("A", 0, load()), variant("B", 1, load())];
        experiment(&[Metric::Rps], vec![bench.target("A", &[]), bench.target("B", &[])], variants, blocks(50, Some(2)))
    };
    let result = bench.run(make(), &mut Seen { most_runs: Some(7), ..Seen::default() }).unwrap();
    let ended = cell(&result);
    assert!(result.cut_short);
    assert_eq!((ended.ended, ended.blocks, ended.runs.len()), (Ended::Interrupted, 3, 7));
    assert_eq!(ended.comparisons[0].blocks, 3, "{:?}", ended.comparisons[0]);
    assert!(ended.comparisons[0].ratio.is_some());
    let nothing = bench.run(make(), &mut Seen { most_runs: Some(0), ..Seen::default() });
    assert!(matches!(nothing, Err(LabError::Cancelled)), "{nothing:?}");
}

#[test]
fn a_program_s_figures_are_picked_and_what_is_missing_is_named() {
    let bench = Bench::new();
    let script = "echo \"asked $URL\"; echo 'Requests/sec: 1.5k'; echo 'p99 = 2.5 ms'; echo '10 requests'; \
                  i=0; while test $i -lt 60000; do i=$((i + 1)); done; echo '2,000 requests'";
    let figures = [(Metric::Rps, r"Requests/sec:\s+(\S+)"), (Metric::P99, r"p99 = (.*)")];
    let variants = vec![
        program("A", 0, script, &figures, Some(r"([\d,]+) requests")),
        program("B", 0, script, &figures, Some(r"([\d,]+) requests")),
        program("silent", 0, "echo nothing of use", &figures, None),
        program("failing", 0, "echo no such flag >&2; exit 2", &figures, None),
    ];
    let metrics = [Metric::Rps, Metric::P99];
    let servers = vec![bench.target("one", &[])];
    let result = bench.run(experiment(&metrics, servers, variants, blocks(3, None)), &mut Seen::default()).unwrap();
    let cell = cell(&result);
    assert!(cell.variants[0].load_program.as_ref().unwrap().path.starts_with('/'), "{:?}", cell.variants[0]);
    let run = &cell.runs[0];
    assert_eq!((run.figures[&Metric::Rps], run.figures[&Metric::P99]), (1500.0, 2.5e6));
    let command = run.command.as_ref().unwrap();
    assert_eq!((command.requests, run.record.is_none()), (Some(2000.0), true));
    assert!(command.output.starts_with("asked unix:/") && command.output.ends_with("2,000 requests\n"), "{command:?}");
    assert!(run.figures.contains_key(&Metric::Memory), "the server was watched: {:?}", run.figures);
    // Its own CPU time comes in steps of 10 ms, and a busy loop takes some.
    let used = run.figures.get(&Metric::LoadCpu).copied().unwrap_or_default();
    assert!((used - command.cpu_s * 1e9 / 2000.0).abs() < 1.0, "{used} {command:?}");
    assert!(cell.comparisons.iter().all(|c| (c.base, c.variant) != (0, 1) || c.verdict == Verdict::Equivalent));
    let why = |variant: usize| cell.variants[variant].failed.as_ref().unwrap();
    assert!(why(2).why.contains(r"holds no rps: nothing in it matches /Requests/sec:\s+(\S+)/"), "{:?}", why(2));
    assert_eq!(why(2).output, ["nothing of use"]);
    assert!(why(3).why.ends_with("failed: exit code 2") && why(3).output == ["no such flag"], "{:?}", why(3));
}

#[test]
fn bursts_compare_at_whatever_rate_and_what_they_leave_unanswered_counts() {
    let bench = Bench::new();
    let figures = [(Metric::Mean, r"mean (\S+)")];
    let burst = |name: &str, script: &str| {
        let mut variant = program(name, 0, script, &figures, Some(r"ok (\d+)"));
        let Load::Command(command) = &mut variant.load else { unreachable!() };
        command.burst = Some(1000);
        variant
    };
    let variants = vec![
        burst("quick", "echo ok 1000, mean 101ms"),
        burst("slow", "echo ok 990, mean 202ms"),
        burst("lossy", "echo ok 900, mean 101ms"),
        burst("broken", "echo ok 400, mean 101ms"),
    ];
    let servers = vec![bench.target("one", &[])];
    let experiment = experiment(&[Metric::Mean], servers, variants, blocks(3, None));
    let result = bench.run(experiment, &mut Seen::default()).unwrap();
    let cell = cell(&result);
    let with_quick = |variant| cell.comparisons.iter().find(|c| (c.base, c.variant) == (0, variant)).unwrap();
    let slow = with_quick(1);
    assert!(slow.verdict == Verdict::Slower && (slow.ratio.unwrap().estimate - 2.0).abs() < 1e-9, "{slow:?}");
    assert_eq!(with_quick(2).verdict, Verdict::NotCompared);
    assert!(with_quick(2).words.contains("10 % of the requests to lossy ended in errors"), "{:?}", with_quick(2));
    let warned = "1.0 % of the requests were not answered";
    assert!(cell.runs.iter().any(|run| run.variant == 1 && of_the_run(run) == [warned]), "{:?}", cell.runs[1]);
    let failure = cell.variants[3].failed.as_ref().unwrap();
    assert_eq!(failure.why, "its load `sh`: 600 of its 1,000 requests failed");
    assert!(cell.runs.iter().all(|run| run.command.as_ref().unwrap().burst == Some(1000)));
}

#[test]
fn when_the_first_of_many_fails_the_others_are_compared_and_it_ends_when_they_are_precise() {
    let bench = Bench::new();
    let rps = [(Metric::Rps, r"rps (\d+)")];
    let mut variants: Vec<Variant> =
        ["A", "B", "C", "D"].map(|name| program(name, 0, "echo rps 100", &rps, None)).into();
    variants.insert(0, program("failing", 0, "exit 2", &rps, None));
    let rules = Rules {
        min_blocks: 3,
        max_blocks: 9,
        precision: 0.02,
        blocks_per_start: None,
        disturbed: 1.0,
        ..Rules::default()
    };
    let servers = vec![bench.target("one", &[])];
    let result = bench.run(experiment(&[Metric::Rps], servers, variants, rules), &mut Seen::default()).unwrap();
    let cell = cell(&result);
    assert_eq!((cell.ended, cell.blocks, cell.base()), (Ended::Precise, 3, 1));
    let verdicts: Vec<_> = cell.comparisons.iter().filter(|c| c.base == cell.base()).map(|c| c.verdict).collect();
    assert_eq!(verdicts, [Verdict::Equivalent; 3]);
}

#[test]
fn a_server_that_ends_before_it_is_ready_gets_a_second_place() {
    let bench = Bench::new();
    let places = bench.path("places").display().to_string();
    let script = format!(
        "echo {{{{socket}}}} >>{places}; test $(wc -l <{places}) -gt 1 || exit 9; exec {{{{oroshi}}}} target --listen \
         unix:{{{{socket}}}}"
    );
    let servers = vec![bench.server("shy", &["sh", "-c", &script])];
    let rules = blocks(1, None);
    let result =
        bench.run(experiment(&[Metric::Rps], servers, vec![variant("A", 0, load())], rules), &mut Seen::default());
    let result = result.unwrap();
    assert!(cell(&result).variants[0].failed.is_none() && cell(&result).runs.len() == 1);
    let told = "shy was started twice: the server ended before it was ready: exit code 9";
    assert!(result.warnings.iter().any(|text| text == told), "{:?}", result.warnings);
    let places = fs::read_to_string(places).unwrap();
    let places: BTreeSet<&str> = places.lines().collect();
    assert_eq!(places.len(), 2, "each start has a place of its own");
}

#[test]
fn a_server_is_warm_before_a_load_program_asks_it() {
    let bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let count = bench.path("count");
    let file = count.clone();
    // Ends with the test's process: nobody can tell it that no more callers come.
    thread::spawn(move || {
        let mut answered = 0;
        for caller in listener.incoming() {
            let mut caller = BufReader::new(caller.unwrap());
            let mut line = String::new();
            while caller.read_line(&mut line).is_ok_and(|read| read > 0) {
                if line == "\r\n" {
                    answered += 1;
                    fs::write(&file, answered.to_string()).unwrap();
                    let _ = caller.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                }
                line.clear();
            }
        }
    });
    let rps = [(Metric::Rps, r"answered (\d+)")];
    let warm = |name: &str, url: String| {
        let mut variant =
            program(name, 0, &format!("echo \"answered $(cat {} || echo 7)\"", count.display()), &rps, None);
        let Load::Command(command) = &mut variant.load else { panic!("a program") };
        command.warmup = Some(Box::new(Draft { connections: 1, requests: Some(5), duration: None, ..load() }));
        Variant { server: None, urls: vec![url], ..variant }
    };
    let alone = |variant| experiment(&[Metric::Rps], vec![], vec![variant], blocks(3, None));
    let result = bench.run(alone(warm("warm", url)), &mut Seen::default()).unwrap();
    let answered: Vec<f64> = cell(&result).runs.iter().map(|run| run.figures[&Metric::Rps]).collect();
    assert_eq!(answered, [5.0, 10.0, 15.0]);
    assert!(cell(&result).runs.iter().all(|run| run.record.is_none() && of_the_run(run).is_empty()));
    // The program measures, also where it could not be made.
    let nowhere = format!("unix:{}", bench.path("nobody").display());
    let result = bench.run(alone(warm("cold", nowhere)), &mut Seen::default()).unwrap();
    assert!(cell(&result).variants[0].failed.is_none(), "{:?}", cell(&result).variants[0].failed);
    let told = |text: &String| text.contains("the server was not warm when its load began: ");
    assert!(result.warnings.iter().any(told), "{:?}", result.warnings);
}
