use oroshi_bench::{Load, Spacing};

use super::*;
use crate::result::{CommandRun, MachineUse};
use crate::sample::{noise, record, run};

const ALL: [Metric; 4] = [Metric::Rps, Metric::P99, Metric::Cpu, Metric::Memory];

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Blocks in which each variant has its own levels, with 1 % noise.
fn runs(blocks: usize, levels: &[&[(Metric, f64)]]) -> Vec<Run> {
    let mut noise = noise(0.01);
    let each = |block| {
        let of = |(variant, level): (usize, &&[(Metric, f64)])| {
            run(variant, block, &level.iter().map(|&(metric, value)| (metric, value * noise())).collect::<Vec<_>>())
        };
        levels.iter().enumerate().map(of).collect::<Vec<_>>()
    };
    (0..blocks).flat_map(each).collect()
}

fn compared(variants: &[&str], metrics: &[Metric], runs: &[Run]) -> Vec<Comparison> {
    let (names, alive) = (names(variants), vec![true; variants.len()]);
    let asked = ComparisonOptions {
        names: &names,
        alive: &alive,
        metrics,
        smallest_effect: 0.03,
        disturbed: 0.2,
        any_answers: false,
        stopped_at: None,
    };
    comparisons(&asked, runs)
}

fn with_load(mut runs: Vec<Run>, variant: usize, load: &Load, grade: &str) -> Vec<Run> {
    for run in runs.iter_mut().filter(|run| run.variant == variant) {
        run.record = Some(Box::new(record(load, 1000, grade)));
    }
    runs
}

#[test]
fn a_difference_is_found_and_said_for_each_metric() {
    let tcp = [(Metric::Rps, 50_000.0), (Metric::Cpu, 10_000.0), (Metric::Memory, 1e6)];
    let unix = [(Metric::Rps, 76_000.0), (Metric::Cpu, 6_600.0), (Metric::Memory, 2.5e6)];
    let found = compared(&["TCP", "unix"], &[Metric::Rps, Metric::Cpu, Metric::Memory], &runs(10, &[&tcp, &unix]));
    let verdicts: Vec<Verdict> = found.iter().map(|c| c.verdict).collect();
    assert_eq!(verdicts, [Verdict::Faster, Verdict::Faster, Verdict::Slower]);
    assert!(found.iter().all(|c| (c.base, c.variant, c.blocks) == (0, 1, 10) && c.p.is_some_and(|p| p < 0.01)));
    let ratio = found[0].ratio.unwrap();
    assert!(ratio.low < 1.52 && 1.52 < ratio.high && ratio.half_width_share() < 0.02, "{ratio:?}");
    let words: Vec<&str> = found.iter().map(|c| c.words.as_str()).collect();
    assert!(words[0].starts_with("unix is faster than TCP: 1.5"), "{}", words[0]);
    assert!(words[0].contains(" times the requests/s (95 % interval 1.5"), "{}", words[0]);
    assert!(words[1].starts_with("unix needs 34 % less server CPU/request than TCP (95 % interval 3"), "{}", words[1]);
    assert!(
        words[2].starts_with("unix needs 2.") && words[2].contains("times the server memory of TCP"),
        "{}",
        words[2]
    );
    assert!(!words[0].contains("rests on"), "ten blocks are not few: {}", words[0]);
}

#[test]
fn scores_are_compared_whatever_the_answers_were_and_not_on_a_busy_machine() {
    let (unicorn, rhebok) = ([(Metric::Score, 41_789.0)], [(Metric::Score, 43_933.0)]);
    let mut runs = with_load(runs(20, &[&unicorn, &rhebok]), 1, &Load::Closed, "server-bound");
    // A script expects some errors; its checks judge them.
    for record in runs.iter_mut().filter_map(|run| run.record.as_mut()) {
        record.errors = record.requests.started / 2;
    }
    let found = compared(&["Unicorn", "Rhebok"], &[Metric::Score], &runs);
    assert_eq!(found[0].verdict, Verdict::Faster, "{}", found[0].words);
    assert!(found[0].words.starts_with("Rhebok scores higher than Unicorn: 1.0"), "{}", found[0].words);
    assert!(found[0].words.contains(" times the score (95 % interval 1.0"), "{}", found[0].words);
    for run in runs.iter_mut().filter(|run| run.block < 8) {
        run.machine = Some(MachineUse { cpus: 2, others: Some(1.0), stolen: None });
    }
    assert_eq!(compared(&["Unicorn", "Rhebok"], &[Metric::Score], &runs)[0].verdict, Verdict::Disturbed);
}

#[test]
fn a_server_that_is_quick_to_fail_is_not_faster() {
    let levels: [&[(Metric, f64)]; 2] =
        [&[(Metric::Rps, 1000.0), (Metric::Memory, 1e6)], &[(Metric::Rps, 9000.0), (Metric::Memory, 1e6)]];
    let mut runs =
        with_load(with_load(runs(5, &levels), 0, &Load::Closed, "server-bound"), 1, &Load::Closed, "server-bound");
    for (variant, errors, verdict) in
        [(1, 40, Verdict::Faster), (1, 60, Verdict::NotCompared), (0, 60, Verdict::NotCompared)]
    {
        for run in &mut runs {
            run.record.as_mut().unwrap().errors = if run.variant == variant { errors } else { 0 };
        }
        let found = compared(&["slow", "broken"], &[Metric::Rps, Metric::Memory], &runs);
        assert_eq!(found[0].verdict, verdict, "{}", found[0].words);
        assert!(
            verdict != Verdict::NotCompared || found[0].words.contains("6.0 % of the requests to"),
            "{}",
            found[0].words
        );
        assert_ne!(found[1].verdict, Verdict::NotCompared, "memory has nothing to do with it");
    }
}

#[test]
fn a_server_that_answers_otherwise_is_not_faster_unless_that_is_wanted() {
    let levels: [&[(Metric, f64)]; 2] =
        [&[(Metric::Rps, 1000.0), (Metric::Memory, 1e6)], &[(Metric::Rps, 9000.0), (Metric::Memory, 1e6)]];
    let mut runs =
        with_load(with_load(runs(10, &levels), 0, &Load::Closed, "server-bound"), 1, &Load::Closed, "server-bound");
    let metrics = [Metric::Rps, Metric::Memory];
    assert_eq!(compared(&["page", "moved"], &metrics, &runs)[0].verdict, Verdict::Faster);
    for run in runs.iter_mut().filter(|run| run.variant == 1) {
        run.record.as_mut().unwrap().statuses = [(302, 1000)].into();
    }
    let found = compared(&["page", "moved"], &metrics, &runs);
    assert_eq!((found[0].verdict, found[0].ratio), (Verdict::NotCompared, None));
    let words = &found[0].words;
    assert!(words.contains("page answered with status 200, and moved with 302: that is not the same work"), "{words}");
    assert!(words.contains("--any-answers") && words.contains("any-answers = true"), "{words}");
    assert_ne!(found[1].verdict, Verdict::NotCompared, "memory has nothing to do with it");

    let (names, alive) = (names(&["page", "moved"]), [true, true]);
    let asked = ComparisonOptions {
        names: &names,
        alive: &alive,
        metrics: &metrics,
        smallest_effect: 0.03,
        disturbed: 0.2,
        any_answers: true,
        stopped_at: None,
    };
    let found = comparisons(&asked, &runs);
    assert_eq!(found[0].verdict, Verdict::Faster);
    assert!(found[0].words.contains("; page answered with status 200, and moved with 302"), "{}", found[0].words);
}

#[test]
fn equal_variants_are_equivalent_and_few_blocks_are_named() {
    let same = [(Metric::Rps, 50_000.0)];
    let found = compared(&["A", "A2"], &[Metric::Rps], &runs(6, &[&same, &same]));
    assert_eq!(found[0].verdict, Verdict::Equivalent);
    let words = &found[0].words;
    assert!(words.starts_with("no difference that matters between A and A2 in requests/s: A2/A is "), "{words}");
    assert!(words.contains("within 3 %") && words.ends_with("; this rests on 6 blocks"), "{words}");
}

#[test]
fn what_could_go_either_way_is_undecided() {
    let mut noise = noise(0.1);
    let runs: Vec<Run> =
        (0..8).flat_map(|block| [0, 1].map(|v| run(v, block, &[(Metric::Rps, 1000.0 * noise())]))).collect();
    let found = compared(&["A", "B"], &[Metric::Rps], &runs);
    assert_eq!(found[0].verdict, Verdict::Undecided);
    assert!(found[0].words.contains("undecided: requests/s of B is between 0.8"), "{}", found[0].words);
    assert!(found[0].words.contains("more blocks or longer runs narrow it"), "{}", found[0].words);
}

#[test]
fn a_half_done_block_counts_for_those_that_have_both_runs() {
    let level = [(Metric::Rps, 1000.0)];
    let mut runs = runs(5, &[&level, &level, &level]);
    runs.retain(|run| run.variant != 2 || run.block < 3);
    let found = compared(&["A", "B", "C"], &[Metric::Rps], &runs);
    let pairs: Vec<_> = found.iter().map(|c| (c.base, c.variant, c.blocks)).collect();
    assert_eq!(pairs, [(0, 1, 5), (0, 2, 3), (1, 2, 3)]);
}

#[test]
fn with_fewer_than_three_blocks_nothing_is_said() {
    let level = [(Metric::Rps, 1000.0)];
    let found = compared(&["A", "B"], &[Metric::Rps], &runs(2, &[&level, &level]));
    assert_eq!((found[0].verdict, found[0].ratio, found[0].p), (Verdict::NotCompared, None, None));
    assert!(found[0].words.contains("only 2 blocks"), "{}", found[0].words);
    let none = compared(&["A", "B"], &ALL, &[]);
    assert!(none.len() == 4 && none.iter().all(|c| c.verdict == Verdict::NotCompared && c.blocks == 0));
}

#[test]
fn a_figure_that_one_side_lacks_is_named() {
    let (a, b) = ([(Metric::Rps, 1000.0), (Metric::Cpu, 9e3)], [(Metric::Rps, 1000.0)]);
    let mut runs = with_load(runs(4, &[&a, &b]), 1, &Load::Closed, "latency-bound");
    let found = compared(&["A", "B"], &[Metric::Cpu], &runs);
    assert!(found[0].words.ends_with("not compared: no run of B has that figure"), "{}", found[0].words);
    for run in &mut runs {
        if let Some(record) = &mut run.record {
            record.server_unknown = Some("it is elsewhere".into());
        }
    }
    let found = compared(&["A", "B"], &[Metric::Cpu], &runs);
    assert!(found[0].words.contains("the server of B is out of sight (it is elsewhere)"), "{}", found[0].words);
}

#[test]
fn latency_is_compared_only_at_the_same_rate() {
    let (a, b) = ([(Metric::Rps, 54_000.0), (Metric::P99, 2e6)], [(Metric::Rps, 81_000.0), (Metric::P99, 1e6)]);
    let found = compared(&["tcp", "unix"], &[Metric::P99], &runs(10, &[&a, &b]));
    assert_eq!((found[0].verdict, found[0].ratio), (Verdict::NotCompared, None));
    let words = &found[0].words;
    assert!(words.contains("tcp answered 5") && words.contains("unix answered 8"), "{words}");
    assert!(words.contains("--rate 60%") && words.contains("rate = \"60%\""), "{words}");

    let b = [(Metric::Rps, 54_100.0), (Metric::P99, 1e6)];
    let found = compared(&["tcp", "unix"], &[Metric::P99], &runs(10, &[&a, &b]));
    assert_eq!(found[0].verdict, Verdict::Faster);
    assert!(found[0].words.starts_with("unix answers sooner than tcp: p99 is 50 % lower (95 %"), "{}", found[0].words);

    let unknown = [(Metric::P99, 1e6)];
    let found = compared(&["tcp", "unix"], &[Metric::P99], &runs(10, &[&a, &unknown]));
    assert!(found[0].words.contains("the rate of unix is not known"), "{}", found[0].words);
}

/// Each variant's runs as bursts: requests sent, requests answered.
fn in_bursts(mut runs: Vec<Run>, bursts: &[(u64, f64)]) -> Vec<Run> {
    for run in &mut runs {
        let (burst, answered) = bursts[run.variant];
        run.command = Some(CommandRun {
            words: Vec::new(),
            elapsed_s: 1.0,
            cpu_s: 0.1,
            requests: Some(answered),
            burst: Some(burst),
            output: String::new(),
        });
    }
    runs
}

#[test]
fn bursts_of_one_size_compare_at_whatever_rate() {
    let (a, b) = ([(Metric::Rps, 9_000.0), (Metric::Mean, 1e8)], [(Metric::Rps, 2_000.0), (Metric::Mean, 2e8)]);
    let found = |bursts: &[(u64, f64)]| {
        compared(&["epoll", "threads"], &[Metric::Mean], &in_bursts(runs(5, &[&a, &b]), bursts)).remove(0)
    };
    let same = found(&[(1000, 1000.0), (1000, 990.0)]);
    assert_eq!(same.verdict, Verdict::Slower, "{}", same.words);
    let sizes = found(&[(1000, 1000.0), (500, 500.0)]);
    assert_eq!(sizes.verdict, Verdict::NotCompared);
    assert!(sizes.words.contains("epoll sent 1,000 requests at once and threads 500"), "{}", sizes.words);
    let failing = found(&[(1000, 1000.0), (1000, 900.0)]);
    assert_eq!(failing.verdict, Verdict::NotCompared);
    assert!(failing.words.contains("10 % of the requests to threads ended in errors"), "{}", failing.words);
}

#[test]
fn a_timetable_that_both_kept_makes_their_rates_equal_and_nothing_more() {
    let level = [(Metric::Rps, 1000.0)];
    let rate = Load::rate(1000.0, Spacing::Constant, 0);
    let both = |runs| with_load(with_load(runs, 0, &rate, "rate-bound"), 1, &rate, "rate-bound");
    let found = compared(&["A", "B"], &[Metric::Rps], &both(runs(4, &[&level, &level])));
    assert_eq!((found[0].verdict, found[0].ratio, found[0].blocks), (Verdict::Equivalent, None, 4));
    assert!(found[0].words.contains("both kept the timetable of 1,000 requests/s"), "{}", found[0].words);

    let few = [(Metric::Rps, 1050.0), (Metric::P99, 1e6)];
    let more = [(Metric::Rps, 1000.0), (Metric::P99, 2e6)];
    let found = compared(&["A", "B"], &[Metric::P99], &both(runs(6, &[&few, &more])));
    assert_eq!(found[0].verdict, Verdict::Slower, "one timetable is one rate: {}", found[0].words);

    // A side that falls behind is slower.
    let mut late = both(runs(4, &[&level, &[(Metric::Rps, 600.0)]]));
    for record in late.iter_mut().filter(|run| run.variant == 1).filter_map(|run| run.record.as_mut()) {
        record.requests.completed = 600;
    }
    let found = compared(&["A", "B"], &[Metric::Rps], &late);
    assert_eq!(found[0].verdict, Verdict::Slower);

    // Two timetables, or one and none: no finding.
    let other = Load::rate(2000.0, Spacing::Constant, 0);
    for load in [other, Load::Closed] {
        let runs = with_load(both(runs(4, &[&level, &level])), 1, &load, "rate-bound");
        let found = compared(&["A", "B"], &[Metric::Rps], &runs);
        assert_eq!(found[0].verdict, Verdict::NotCompared);
        assert!(found[0].words.contains("A was asked for 1,000/s"), "{}", found[0].words);
    }
}

#[test]
fn a_generator_at_its_limit_weakens_what_is_said_of_the_rate() {
    let (a, b) = ([(Metric::Rps, 1000.0), (Metric::Cpu, 1e3)], [(Metric::Rps, 2000.0), (Metric::Cpu, 5e2)]);
    let graded = |first: &str, second: &str, levels: &[&[(Metric, f64)]]| {
        with_load(with_load(runs(10, levels), 0, &Load::Closed, first), 1, &Load::Closed, second)
    };
    let words = |runs: &[Run]| compared(&["A", "B"], &[Metric::Rps, Metric::Cpu], runs).remove(0).words;
    let end = words(&graded("server-bound", "generator-bound", &[&a, &b]));
    assert!(
        end.ends_with("; the generator was at its limit in 10 of 20 runs: the true difference may be greater"),
        "{end}"
    );
    let found =
        compared(&["A", "B"], &[Metric::Rps, Metric::Cpu], &graded("generator-bound", "generator-bound", &[&a, &b]));
    assert!(!found[1].words.contains("at its limit"), "CPU time per request stands: {}", found[1].words);
}

#[test]
fn a_generator_at_its_limit_gives_no_verdict_for_the_side_that_it_held_back() {
    let (a, b) = ([(Metric::Rps, 1000.0), (Metric::Cpu, 1e3)], [(Metric::Rps, 2000.0), (Metric::Cpu, 5e2)]);
    for (first, second, levels, verdict) in [
        ("server-bound", "generator-bound", [&a, &b], Verdict::Faster),
        ("generator-bound", "server-bound", [&a, &b], Verdict::Disturbed),
        ("server-bound", "generator-bound", [&b, &a], Verdict::Disturbed),
        ("generator-bound", "generator-bound", [&a, &a], Verdict::Disturbed),
        ("server-bound", "generator-bound", [&a, &a], Verdict::Disturbed),
        ("server-bound", "server-bound", [&a, &a], Verdict::Equivalent),
    ] {
        let levels = [&levels[0][..], &levels[1][..]];
        let runs = with_load(with_load(runs(10, &levels), 0, &Load::Closed, first), 1, &Load::Closed, second);
        let found = compared(&["A", "B"], &[Metric::Rps, Metric::Cpu], &runs);
        assert_eq!(found[0].verdict, verdict, "{first}, {second}: {}", found[0].words);
        assert_ne!(found[1].verdict, Verdict::Disturbed, "CPU time per request stands: {}", found[1].words);
        assert!(
            verdict != Verdict::Disturbed
                || found[0].words.contains("the load generator was at its limit in 10 of 10 runs of"),
            "{}",
            found[0].words
        );
        assert!(found[0].ratio.is_some(), "what came out is shown all the same");
    }
    // Few limited runs only weaken the verdict.
    let mut runs =
        with_load(with_load(runs(10, &[&a, &b]), 0, &Load::Closed, "server-bound"), 1, &Load::Closed, "server-bound");
    for run in runs.iter_mut().filter(|run| run.block < 5) {
        run.record = Some(Box::new(record(&Load::Closed, 1000, "generator-bound")));
    }
    assert_eq!(compared(&["A", "B"], &[Metric::Rps], &runs)[0].verdict, Verdict::Faster);
}

/// Two CPU-hungry neighbours made comparisons of a server with itself find differences: each rate was luck, and
/// sometimes a few of them agreed.
#[test]
fn the_same_server_twice_beside_busy_neighbours_is_neither_faster_nor_slower() {
    let mut luck = fastrand::Rng::with_seed(11);
    let (mut without, metrics) = (0, [Metric::Rps, Metric::Cpu]);
    for _ in 0..100 {
        let mut runs = Vec::new();
        for block in 0..5 {
            for variant in 0..2 {
                let rate = if luck.f64() < 0.5 { 1000.0 } else { 600.0 } * (1.0 + 0.05 * luck.f64());
                let figures = [(Metric::Rps, rate), (Metric::Cpu, 1e4 * (1.0 + 0.002 * luck.f64()))];
                let machine = Some(MachineUse { cpus: 2, others: Some(0.9), stolen: Some(0.0) });
                runs.push(Run { machine, ..run(variant, block, &figures) });
            }
        }
        let found = compared(&["A", "A2"], &metrics, &runs);
        assert_eq!(found[0].verdict, Verdict::Disturbed, "{}", found[0].words);
        assert!(
            found[0].words.contains("in 5 of 5 runs of A other processes took more than 10 %"),
            "{}",
            found[0].words
        );
        assert_eq!((found[0].p, found[0].ratio.is_some()), (None, true));
        assert_eq!(found[1].verdict, Verdict::Equivalent, "CPU time per request: {}", found[1].words);
        runs.iter_mut().for_each(|run| run.machine = None);
        let verdict = compared(&["A", "A2"], &metrics, &runs)[0].verdict;
        without += usize::from(matches!(verdict, Verdict::Faster | Verdict::Slower));
    }
    assert!(without > 0, "without a look at the machine some of them are wrong");
}

#[test]
fn few_disturbed_runs_take_no_verdict_away_and_latency_is_as_sensitive_as_a_rate() {
    let level = [(Metric::Rps, 1000.0), (Metric::P99, 1e6), (Metric::Memory, 1e6)];
    let disturbed = |count: usize| {
        let mut runs = runs(10, &[&level, &level]);
        for run in runs.iter_mut().filter(|run| run.variant == 1 && run.block < count) {
            run.machine = Some(MachineUse { cpus: 1, others: None, stolen: Some(0.3) });
        }
        let found = compared(&["A", "B"], &[Metric::Rps, Metric::P99, Metric::Memory], &runs);
        found.into_iter().map(|found| found.verdict).collect::<Vec<_>>()
    };
    assert_eq!(disturbed(2), [Verdict::Equivalent; 3]);
    assert_eq!(disturbed(3), [Verdict::Disturbed, Verdict::Disturbed, Verdict::Equivalent]);
}

#[test]
fn the_primary_metric_is_not_corrected_for_the_others() {
    let level = [(Metric::Rps, 1000.0), (Metric::Cpu, 1000.0), (Metric::Memory, 1000.0)];
    let runs = runs(10, &[&level, &level]);
    let alone = compared(&["A", "B"], &[Metric::Rps], &runs)[0].p.unwrap();
    let among = compared(&["A", "B"], &[Metric::Rps, Metric::Cpu, Metric::Memory], &runs);
    assert_eq!(among[0].p.unwrap(), alone);
    let p_alone = |metric| compared(&["A", "B"], &[metric], &runs)[0].p.unwrap();
    let least = p_alone(Metric::Cpu).min(p_alone(Metric::Memory));
    let corrected = among[1].p.unwrap().min(among[2].p.unwrap());
    assert_eq!(corrected, (2.0 * least).min(1.0), "two secondary questions share one chance of an error");
}

#[test]
fn many_variants_are_compared_with_the_first_alone() {
    assert_eq!(pairs(&[true; 4]).len(), 6);
    assert_eq!(pairs(&[true; 5]), [(0, 1), (0, 2), (0, 3), (0, 4)]);
    assert!(pairs(&[true]).is_empty() && pairs(&[]).is_empty());
}

#[test]
fn of_many_variants_the_first_that_did_not_fail_is_a_base() {
    let alive = [false, true, true, true, true];
    assert_eq!(pairs(&alive), [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]);
    assert_eq!(pairs(&[false; 5]), pairs(&[true; 5]));
    let level = [(Metric::Rps, 1000.0)];
    let mut runs = runs(10, &[&level[..]; 5]);
    runs.retain(|run| run.variant != 0);
    assert!(
        precision(Metric::Rps, &runs, &alive, 0.02).is_some_and(|precision| precision < 0.1),
        "there is a pair to end on"
    );
    let names = names(&["failed", "A", "B", "C", "D"]);
    let metrics = [Metric::Rps];
    let asked = ComparisonOptions {
        names: &names,
        alive: &alive,
        metrics: &metrics,
        smallest_effect: 0.03,
        any_answers: false,
        disturbed: 0.2,
        stopped_at: None,
    };
    let compared = comparisons(&asked, &runs);
    let ratios: Vec<_> = compared.iter().filter(|c| c.ratio.is_some()).map(|c| (c.base, c.variant)).collect();
    assert_eq!(ratios, [(1, 2), (1, 3), (1, 4)]);
}

#[test]
fn precision_is_that_of_the_widest_pair_among_those_alive() {
    let level = [(Metric::Rps, 1000.0)];
    let mut runs = runs(10, &[&level, &level]);
    let mut wild = noise(0.3);
    runs.extend((0..10).map(|block| run(2, block, &[(Metric::Rps, 1000.0 * wild())])));
    let of = |alive: &[bool]| precision(Metric::Rps, &runs, alive, 0.02).unwrap();
    assert!(of(&[true, true, true]) > 0.03 && of(&[true, true, false]) < 0.01);
    assert!(precision(Metric::Rps, &runs[..2], &[true, true], 0.02).is_none());
    assert!(precision(Metric::Cpu, &runs, &[true, true], 0.02).is_none());
    assert!(of(&[true]) < 0.01, "one variant alone: its own figure");
}

#[test]
fn a_variant_s_own_figures_are_those_that_its_runs_have() {
    let level = [(Metric::Rps, 1000.0), (Metric::LoadCpu, 5e3)];
    let found = figures(&runs(5, &[&level]), 0, None);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [Metric::Rps, Metric::LoadCpu]);
    assert!((found[&Metric::Rps].estimate / 1000.0 - 1.0).abs() < 0.01);
    assert!(figures(&runs(2, &[&level]), 0, None).is_empty());
}

#[test]
fn the_figure_that_ended_a_cell_reaches_further_to_make_up_for_it() {
    let level = [(Metric::Rps, 1000.0)];
    let runs = runs(5, &[&level]);
    let width = |stopped| figures(&runs, 0, stopped)[&Metric::Rps].half_width_share();
    let plain = width(None);
    for asked in [plain, 2.3 * plain, 10.0 * plain] {
        let told = precision(Metric::Rps, &runs, &[true], asked);
        assert_eq!(Some(width(Some(asked))), told, "what the cell ended on is what is told");
    }
    assert!(plain < width(Some(2.3 * plain)) && width(Some(2.3 * plain)) < width(Some(plain)));
    assert_eq!(width(Some(10.0 * plain)), plain, "it was narrow from the first: nothing was chosen");
}

#[test]
fn two_that_both_fell_behind_their_timetable_are_not_compared_in_latency() {
    let (a, b) = ([(Metric::Rps, 600.0), (Metric::P99, 2e8)], [(Metric::Rps, 602.0), (Metric::P99, 1e8)]);
    let rate = Load::rate(1000.0, Spacing::Constant, 0);
    let mut runs = with_load(with_load(runs(10, &[&a, &b]), 0, &rate, "server-bound"), 1, &rate, "server-bound");
    for record in runs.iter_mut().filter_map(|run| run.record.as_mut()) {
        record.requests.completed = 600;
    }
    let found = compared(&["A", "B"], &[Metric::P99, Metric::Rps], &runs);
    assert_eq!((found[0].verdict, found[0].ratio), (Verdict::NotCompared, None));
    let words = &found[0].words;
    assert!(words.contains("both were overloaded") && words.contains("lower the rate"), "{words}");
    assert_eq!(found[1].verdict, Verdict::Equivalent, "what each carried can be compared: {}", found[1].words);
    // If one falls behind, the rates do tell.
    for record in runs.iter_mut().filter(|run| run.variant == 1).filter_map(|run| run.record.as_mut()) {
        record.requests.completed = 1000;
    }
    assert!(compared(&["A", "B"], &[Metric::P99], &runs)[0].ratio.is_some());
}
