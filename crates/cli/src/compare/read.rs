//! Turns flags into an experiment with one cell; reports every mistake at once.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ArgMatches;
use oroshi_bench::plan::Problem;
use oroshi_bench::{Draft, Load as Rhythm, Part, Spacing};
use oroshi_experiment::rules;
use oroshi_experiment::words::{load_words, script_words};
use oroshi_lab::plan::{Cell, Load, Rules, Script, Server, Variant};
use oroshi_lab::template::Values;
use oroshi_lab::{Experiment, Metric};
use oroshi_net::{CpuList, Endpoint};
use oroshi_words::Naming;
use oroshi_words::units;

use super::against::Trees;
use super::args::{AgainstArgs, Args, OutputArgs, RuleArgs};
use super::variants::{self, Typed};
use crate::agents_load::{self, Found};
use crate::formats::{Also, Format};
use crate::problems::Problems;
use crate::script_load::{Loader, ReadLoad};
use crate::verdicts::Condition;

/// The rate for comparing latency, as a share of the slowest set-up's capacity.
const RATE_SHARE: f64 = 0.6;

/// The destination of the report, and the other uses of the result.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub(super) format: Format,
    pub(super) file: Option<PathBuf>,
    pub(super) html: Option<PathBuf>,
    pub(super) baseline: Option<PathBuf>,
    pub(super) fail_if: Vec<Condition>,
    /// Reports beside the main one.
    pub(super) also: Vec<Also>,
    /// The trees to make before the start.
    pub(super) trees: Option<Trees>,
    /// A note to print before the start.
    pub(super) note: Option<String>,
}

impl Args {
    /// Reads all flags. `oroshi` is this program, for commands that name it. `matches` are the flags as they were
    /// parsed.
    ///
    /// # Errors
    /// All mistakes.
    pub(super) fn read(
        self,
        oroshi: &str,
        rerun: Vec<String>,
        loader: Loader,
        matches: &ArgMatches,
    ) -> Result<(Experiment, Output), Vec<String>> {
        let mut problems = Vec::new();
        let Self { variants, load, scenario, agents, rules: flags, against, output } = self;
        let (typed, wrong) = variants::parse(&variants);
        problems.extend(wrong);
        let count = variants.iter().filter(|word| !word.starts_with('@')).count();
        let (typed, trees) = with_trees(typed, count, variants::is_named(&variants), &against, &mut problems);
        // A single set-up is measured for a later comparison, or compared with an earlier one.
        let also: Vec<Also> =
            output.also.iter().filter_map(|text| one("--also", Some(text), str::parse, &mut problems)).collect();
        let is_kept = (output.output.is_some() && output.format == Format::Json)
            || also.iter().any(|also| also.format == Format::Json);
        let least = if output.baseline.is_some() || is_kept || against.against.is_some() { 1 } else { 2 };
        if count < least {
            problems.push(match least {
                1 => "nothing to measure: expected a URL, as in http://localhost:8080/".into(),
                _ => "a comparison needs two: expected A and B, as in http://localhost:8080/ unix:/run/app.sock; \
                      or one, and a saved result with --baseline; or one, to be saved with --format json -o FILE"
                    .into(),
            });
        }
        problems.extend(variants::collisions(&typed));

        let warmup = load.warmup.is_some();
        let ReadLoad { draft, share, script, problems: wrong } = scenario.read(load, Naming::Flags, loader);
        problems.extend(wrong.lines());
        let mut wrong = Problems::of_flags();
        let agents = agents_load::read(&agents, matches, &mut wrong);
        problems.extend(wrong.lines());
        // How many users share themselves among agents, the script may say.
        let part = agents.as_ref().filter(|_| script.is_none()).map(|agents| Part { index: 0, of: agents.count });
        let draft = Draft { part, ..draft };
        // The length of a script's run is the script's or the user's.
        let draft = if script.is_some() { draft } else { rules::timed(draft, warmup) };
        let open = share.is_some() || draft.load != Rhythm::Closed;
        let score_if_any = script.is_some() && flags.primary.is_none() && flags.metrics.is_empty();
        let metrics = metrics(&flags, open, script.is_some(), &mut problems);
        // Latencies at different rates are not comparable.
        let at_one_rate = metrics.first().filter(|metric| metric.is_latency() && !open && script.is_none());
        let chosen = at_one_rate.map(|_| RATE_SHARE);
        let note = chosen.map(|share| {
            format!(
                "{} is compared at the same rate for all: {} of what the slowest can do, which is found first \
                 (--rate sets another)",
                metrics[0],
                units::percent(share)
            )
        });
        let share = share.or(chosen);

        let server_cpus = one("--server-cpus", flags.server_cpus.as_deref(), str::parse::<CpuList>, &mut problems);
        let values = known(oroshi, server_cpus.as_ref(), draft.cpus.as_ref());
        check(&typed, &values, &draft, share, &mut problems);
        if typed.iter().all(|variant| variant.start.is_none()) {
            let unused = [
                ("--server-cpus", flags.server_cpus.is_some()),
                ("--blocks-per-start", flags.blocks_per_start.is_some()),
                ("--ready-timeout", flags.ready_timeout.is_some()),
            ];
            let unused = unused.iter().filter(|flag| flag.1).map(|flag| flag.0);
            problems.extend(unused.map(|flag| {
                format!(
                    "{flag}: it is about servers that are started here, and there is no command among what is compared"
                )
            }));
        }
        let ready_timeout = one("--ready-timeout", flags.ready_timeout.as_deref(), time_above_zero, &mut problems);
        let read_rules = read_rules(&flags, &mut problems);
        let OutputArgs { baseline, fail_if, format, output: file, report: html, also: _ } = output;
        let fail_if: Vec<Condition> =
            fail_if.iter().filter_map(|text| one("--fail-if", Some(text), str::parse, &mut problems)).collect();
        if !problems.is_empty() {
            let mut seen = BTreeSet::new();
            problems.retain(|problem| seen.insert(problem.clone()));
            return Err(problems);
        }
        let load_cpus = draft.cpus.clone();
        let title = title(&typed);
        let cell = cell(typed, (&draft, scenario.users.is_some()), script.as_ref(), share, ready_timeout);
        let experiment = Experiment {
            name: "compare".into(),
            title,
            rerun,
            metrics,
            score_if_any,
            rules: read_rules,
            server_cpus,
            load_cpus,
            cells: vec![on_agents(cell, agents)],
            ..Experiment::default()
        };
        Ok((experiment, Output { format, file, html, baseline, fail_if, also, trees, note }))
    }
}

/// With `--against`, puts the earlier tree's set-up before the only one. `count`: the set-ups that were typed.
fn with_trees(
    typed: Vec<Typed>,
    count: usize,
    is_named: bool,
    flags: &AgainstArgs,
    problems: &mut Vec<String>,
) -> (Vec<Typed>, Option<Trees>) {
    let Some(reference) = &flags.against else { return (typed, None) };
    let [only] = typed.as_slice() else {
        if count > 1 {
            problems.push(format!("--against: {count} set-ups are compared: expected one, a command"));
        }
        return (typed, None);
    };
    if only.start.is_none() {
        problems.push(format!(
            "--against: {} is a URL: expected a command that starts the server, as in './app --port {{{{port}}}}' \
             @http://127.0.0.1:{{{{port}}}}/",
            only.urls.join(" ")
        ));
        return (typed, None);
    }
    match Trees::find(reference, flags.build.as_deref()) {
        Ok(trees) => (trees.set_ups(only.clone(), reference, is_named).into(), Some(trees)),
        Err(found) => {
            problems.extend(found);
            (typed, None)
        }
    }
}

fn one<T, E: ToString>(
    flag: &str,
    text: Option<&str>,
    read: impl Fn(&str) -> Result<T, E>,
    problems: &mut Vec<String>,
) -> Option<T> {
    read(text?).map_err(|error| problems.push(format!("{flag}: {}", error.to_string()))).ok()
}

fn time_above_zero(text: &str) -> Result<Duration, String> {
    match units::parse_time(text)? {
        Duration::ZERO => Err(format!("`{text}` is 0: expected a time such as 10s")),
        time => Ok(time),
    }
}

/// Reads the metrics, the primary one first.
fn metrics(rules: &RuleArgs, open: bool, script: bool, problems: &mut Vec<String>) -> Vec<Metric> {
    let given: Vec<Metric> =
        rules.metrics.iter().filter_map(|text| one("--metrics", Some(text), str::parse, problems)).collect();
    let primary: Option<Metric> = one("--primary", rules.primary.as_deref(), str::parse, problems);
    let mut usual = match open || primary.is_some_and(Metric::is_latency) {
        true => vec![Metric::P99, Metric::P50, Metric::Cpu, Metric::Rps],
        false => vec![Metric::Rps, Metric::P50, Metric::P99, Metric::Cpu],
    };
    if script {
        usual.insert(0, Metric::Score);
    }
    let rest = if given.is_empty() { usual } else { given };
    let mut metrics: Vec<Metric> = Vec::new();
    for metric in primary.into_iter().chain(rest) {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    metrics
}

fn read_rules(typed: &RuleArgs, problems: &mut Vec<String>) -> Rules {
    let usual = Rules::default();
    let (min_blocks, max_blocks) = one("--blocks", typed.blocks.as_deref(), rules::blocks, problems)
        .unwrap_or((usual.min_blocks, usual.max_blocks));
    Rules {
        smallest_effect: one("--smallest-effect", typed.smallest_effect.as_deref(), rules::share, problems)
            .unwrap_or(usual.smallest_effect),
        precision: one("--precision", typed.precision.as_deref(), rules::share, problems).unwrap_or(usual.precision),
        min_blocks,
        max_blocks,
        max_time: one("--max-time", typed.max_time.as_deref(), time_above_zero, problems),
        blocks_per_start: one(
            "--blocks-per-start",
            typed.blocks_per_start.as_deref(),
            rules::blocks_per_start,
            problems,
        )
        .unwrap_or(usual.blocks_per_start),
        disturbed: one("--disturbed", typed.disturbed.as_deref(), rules::disturbed, problems)
            .unwrap_or(usual.disturbed),
        any_answers: typed.any_answers,
        processes: typed.processes.clone(),
        seed: one("--order-seed", typed.order_seed.as_deref(), units::parse_count, problems).unwrap_or(usual.seed),
    }
}

/// Returns the placeholders that have the same value everywhere.
fn known(oroshi: &str, server_cpus: Option<&CpuList>, load_cpus: Option<&CpuList>) -> Values {
    let mut values = Values::default();
    values.set("oroshi", oroshi);
    for (name, cpus) in [("cpus.server", server_cpus), ("cpus.load", load_cpus)] {
        if let Some(cpus) = cpus {
            values.set(name, cpus.to_string());
        }
    }
    values
}

/// Checks that each variant's texts can be filled in, and that the load is valid for it.
fn check(typed: &[Typed], values: &Values, draft: &Draft, share: Option<f64>, problems: &mut Vec<String>) {
    let mut wrong = |urls: Vec<Endpoint>| {
        let mut draft = Draft { urls, ..draft.clone() };
        if share.is_some() {
            // It becomes an open loop with a rate that is not known yet.
            draft.load = Rhythm::rate(1.0, Spacing::Constant, 0);
        }
        let found = draft.plan().err().map(|found| found.0).unwrap_or_default();
        // A URL that does not parse has been reported already.
        let new = found.iter().filter(|problem| !matches!(problem, Problem::NoUrl));
        problems.extend(new.map(|problem| problem.told(Naming::Flags)));
    };
    let mut texts = Vec::new();
    for variant in typed {
        match variants::check(variant, values) {
            Ok(urls) => wrong(urls),
            Err(found) => texts.extend(found),
        }
    }
    if typed.is_empty() {
        wrong(Vec::new());
    }
    problems.extend(texts);
}

/// `Which is faster: old or new?`
fn title(typed: &[Typed]) -> String {
    let names: Vec<&str> = typed.iter().map(|variant| variant.name.as_str()).collect();
    match names.as_slice() {
        [only] => format!("How fast is {only}?"),
        [first @ .., last] => format!("Which is faster: {} or {last}?", first.join(", ")),
        [] => String::new(),
    }
}

/// Makes the cell. `draft` is the load, and whether its number of users was given.
fn cell(
    typed: Vec<Typed>,
    (draft, users): (&Draft, bool),
    script: Option<&Arc<dyn Script>>,
    share: Option<f64>,
    ready_timeout: Option<Duration>,
) -> Cell {
    let mut servers = Vec::new();
    let mut variants = Vec::new();
    // Commands run in the folder where they were typed.
    let folder = std::env::current_dir().ok();
    for Typed { name, start, urls, folder: own } in typed {
        let server = start.map(|start| {
            let folder = own.or_else(|| folder.clone());
            let mut server = Server { folder, ..Server::new(&name, start, urls.clone()) };
            server.ready_timeout = ready_timeout.unwrap_or(server.ready_timeout);
            servers.push(server);
            servers.len() - 1
        });
        let draft = Box::new(draft.clone());
        let (load_words, load) = match script {
            Some(script) => (script_words(&draft, &script.name(), users), Load::Script(draft, Arc::clone(script))),
            None => (load_words(&draft, share), Load::Bench(draft)),
        };
        variants.push(Variant { name, server, urls, load, load_words, machine: None, agents: None });
    }
    Cell { servers, variants, rate_share: share, ..Cell::default() }
}

/// Lets agents carry out the loads, if there are some.
fn on_agents(mut cell: Cell, agents: Option<Found>) -> Cell {
    if let Some(Found { load, words, .. }) = agents {
        for variant in &mut cell.variants {
            variant.agents = Some(Arc::clone(&load));
            variant.load_words += &words;
        }
    }
    cell
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;
    use crate::script_load::fake;

    fn try_read(line: &[&str]) -> Result<(Experiment, Output), Vec<String>> {
        let words = std::iter::once("compare").chain(line.iter().copied());
        let matches = Args::augment_args(Command::new("compare")).try_get_matches_from(words);
        let matches = matches.unwrap_or_else(|e| panic!("{line:?}: {e}"));
        Args::from_arg_matches(&matches).unwrap().read("/bin/oroshi", Vec::new(), fake::load, &matches)
    }

    #[track_caller]
    fn read(line: &str) -> (Experiment, Output) {
        let line = [&line.split_whitespace().collect::<Vec<_>>()[..], &["http://h/", "http://i/"]].concat();
        try_read(&line).unwrap_or_else(|problems| panic!("{line:?}: {problems:?}"))
    }

    fn draft(experiment: &Experiment) -> &Draft {
        match &experiment.cells[0].variants[0].load {
            Load::Bench(draft) => draft,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_run_is_short_unless_said_otherwise() {
        let length = |line: &str| {
            let (experiment, _) = read(line);
            let draft = draft(&experiment);
            (draft.duration.unwrap().as_millis(), draft.warmup.as_millis())
        };
        assert_eq!((length(""), length("-d 2 -w 0")), ((1000, 250), (2000, 0)));
        assert_eq!((length("-n 100"), length("--stages 1s:10,2s:20")), ((60_000, 250), (3000, 250)));
        assert_eq!(draft(&read("-c 7").0).connections, 7);
    }

    #[test]
    fn rates_decide_what_is_primary_and_what_is_primary_decides_the_rate() {
        let primary = |line: &str| {
            let (experiment, output) = read(line);
            (experiment.metrics[0], experiment.cells[0].rate_share, output.note.is_some())
        };
        assert_eq!(primary(""), (Metric::Rps, None, false));
        assert_eq!(primary("--primary cpu"), (Metric::Cpu, None, false));
        assert_eq!(primary("-R 1k"), (Metric::P99, None, false));
        assert_eq!(primary("-R 30%"), (Metric::P99, Some(0.3), false));
        assert_eq!(primary("--primary p50"), (Metric::P50, Some(0.6), true));
        assert_eq!(primary("--primary p50 -R 1k"), (Metric::P50, None, false));
        assert_eq!(primary("--metrics memory,mean"), (Metric::Memory, None, false));
        assert_eq!(primary("--metrics mean,memory"), (Metric::Mean, Some(0.6), true));
        let (experiment, _) = read("--metrics rps,p99.9 --primary cpu");
        assert_eq!(experiment.metrics, [Metric::Cpu, Metric::Rps, Metric::P99_9]);
        let words = &read("--primary p99").0.cells[0].variants[1].load_words;
        assert!(words.contains("60 %"), "{words}");
    }

    #[test]
    fn a_script_is_compared_by_its_score_and_its_length_is_its_own() {
        let (experiment, output) = read("-s shop.lua --users 20");
        let variant = &experiment.cells[0].variants[1];
        let Load::Script(draft, script) = &variant.load else { panic!("{variant:?}") };
        assert_eq!(
            (draft.connections, draft.duration, draft.free_duration, draft.free_warmup),
            (20, None, false, false)
        );
        assert_eq!((script.name(), &*variant.load_words), ("shop.lua users".into(), "shop.lua users, 20 users"));
        assert_eq!(
            (experiment.metrics[..2].to_vec(), experiment.score_if_any),
            (vec![Metric::Score, Metric::Rps], true)
        );
        assert!(output.note.is_none() && experiment.cells[0].rate_share.is_none());
        let (experiment, _) = read("--script shop.lua -d 30s -w 1s -R 50 --primary p99");
        assert_eq!((experiment.metrics[0], experiment.score_if_any), (Metric::P99, false));
        assert!(experiment.metrics.contains(&Metric::Score) && experiment.cells[0].rate_share.is_none());
        let words = &experiment.cells[0].variants[0].load_words;
        assert!(words.ends_with("journeys by timetable at 50.0/s, 30s after 1s of warm-up"), "{words}");
        let wrong = |line: &[&str]| try_read(&[line, &["http://h/", "http://i/"]].concat()).unwrap_err().join("\n");
        for (flag, line) in [
            ("--rate", &["-s", "x.lua", "-R", "60%"][..]),
            ("--pipeline", &["-s", "x.lua", "--pipeline", "2"]),
            ("--users", &["-s", "x.lua", "--users", "many"]),
        ] {
            assert!(wrong(line).starts_with(flag), "{}", wrong(line));
        }
    }

    #[test]
    fn rules_are_read() {
        let (experiment, output) = read(
            "--smallest-effect 5% --precision 1% --blocks 5-9 --max-time 1m --disturbed 50% --any-answers --processes \
             mariadbd,dockerd --order-seed 7 --fail-if slower,undecided --fail-if faster --cpus 0 -o x.json --format \
             json --report y.html --baseline z.json",
        );
        let expected = Rules {
            smallest_effect: 0.05,
            precision: 0.01,
            min_blocks: 5,
            max_blocks: 9,
            max_time: Some(Duration::from_secs(60)),
            blocks_per_start: Some(1),
            disturbed: 0.5,
            any_answers: true,
            processes: vec!["mariadbd".into(), "dockerd".into()],
            seed: 7,
        };
        assert_eq!(experiment.rules, expected);
        assert_eq!(output.fail_if, [Condition::Slower, Condition::Undecided, Condition::Faster]);
        assert_eq!((output.format, output.file), (Format::Json, Some("x.json".into())));
        assert_eq!((output.html, output.baseline), (Some("y.html".into()), Some("z.json".into())));
        assert_eq!(experiment.load_cpus.map(|cpus| cpus.to_string()).as_deref(), Some("0"));
        assert_eq!(read("").0.rules, Rules::default());
    }

    #[test]
    fn commands_become_servers() {
        let line = [
            "--server-cpus",
            "0",
            "--blocks-per-start",
            "all",
            "--ready-timeout",
            "3s",
            "old={{oroshi}} target --cpus {{cpus.server}} --listen {{port}}",
            "@http://127.0.0.1:{{port}}/",
            "now=http://h/",
        ];
        let (experiment, _) = try_read(&line).unwrap();
        assert_eq!(experiment.title, "Which is faster: old or now?");
        let cell = &experiment.cells[0];
        assert_eq!((cell.variants[0].server, cell.variants[1].server), (Some(0), None));
        let server = &cell.servers[0];
        assert_eq!(server.start.last().map(String::as_str), Some("{{port}}"));
        assert!(
            matches!(&server.ready, oroshi_lab::plan::Ready::Answers(urls) if *urls == ["http://127.0.0.1:{{port}}/"])
        );
        assert_eq!((server.ready_timeout, experiment.rules.blocks_per_start), (Duration::from_secs(3), None));
        assert!(server.folder.is_some(), "where the command was typed");
    }

    #[test]
    fn every_mistake_is_found_at_once() {
        let problems = try_read(&[
            "-c0",
            "-d",
            "x",
            "--primary",
            "p98",
            "--metrics",
            "rps,rsp",
            "--smallest-effect",
            "3",
            "--precision",
            "0%",
            "--blocks",
            "2",
            "--max-time",
            "0",
            "--order-seed",
            "a",
            "--server-cpus",
            "b",
            "--blocks-per-start",
            "0",
            "--ready-timeout",
            "0s",
            "--fail-if",
            "slow",
            "a=http://h:{{port}}/",
            "b=app {{prot}}",
            "@http://h:{{port}}/",
        ])
        .unwrap_err();
        for expected in [
            "--duration: ",
            "--primary: ",
            "--metrics: ",
            "--smallest-effect: ",
            "--precision: ",
            "--blocks: ",
            "--max-time: ",
            "--order-seed: ",
            "--server-cpus: ",
            "--blocks-per-start: ",
            "--ready-timeout: ",
            "--fail-if: ",
            "a: ",
            "b: ",
        ] {
            assert!(problems.iter().any(|p| p.starts_with(expected)), "{expected} in {problems:#?}");
        }
        let problems = try_read(&["-c0", "--server-cpus", "0", "http://h/"]).unwrap_err();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("needs two") && problems[1].contains("connections is 0"), "{problems:?}");
        assert!(try_read(&["--baseline", "x.json", "http://h/"]).is_ok());
        assert!(try_read(&["--baseline", "x.json"]).unwrap_err()[0].contains("nothing to measure"));
        assert!(try_read(&["--pipeline", "2", "--primary", "p99", "http://h/", "http://i/"]).is_err());
    }
}
