use std::collections::BTreeMap;

use oroshi_bench::environment::{Cpu, Environment};
use oroshi_bench::{Load, Spacing};

use super::*;
use crate::analysis::CONFIDENCE;
use crate::network::{LinkQuality, Network, NetworkRecord};
use crate::result::{MetricRecord, Program, SCHEMA, SweepRecord};
use crate::sample::{cell, noise, record, run};

#[test]
fn a_result_from_before_machines_were_looked_at_is_read() {
    let mut json = serde_json::to_value(result(vec![at(&[("unix", 1000.0)])])).unwrap();
    for (place, field) in
        [("/rules", "disturbed"), ("/rules", "processes"), ("/cells/0", "repeated"), ("/cells/0/runs/0", "machine")]
    {
        assert!(json.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(field).is_some(), "{place}/{field}");
    }
    json["schema"] = "oroshi-lab/1.1".into();
    let old: LabResult = serde_json::from_value(json).unwrap();
    assert_eq!((old.rules.disturbed, old.cells[0].repeated, old.cells[0].runs[0].machine), (1.0, 0, None));
}

fn result(cells: Vec<CellResult>) -> LabResult {
    let metric = |metric: Metric| MetricRecord {
        metric,
        label: metric.label().into(),
        unit: metric.unit(),
        better: metric.better(),
    };
    LabResult {
        schema: SCHEMA.into(),
        name: "sample".into(),
        title: String::new(),
        question: String::new(),
        started_unix_s: 1.7e9 + 7200.0,
        elapsed_s: 60.0,
        cut_short: false,
        quick: false,
        rerun: Vec::new(),
        source: None,
        metrics: [Metric::Rps, Metric::P99].map(metric).to_vec(),
        rules: RulesRecord {
            smallest_effect: 0.03,
            precision: 0.02,
            min_blocks: 5,
            max_blocks: 5,
            max_time_s: None,
            blocks_per_start: Some(1),
            disturbed: 0.2,
            any_answers: false,
            processes: Vec::new(),
            seed: 1,
            confidence: CONFIDENCE,
        },
        sweep: None,
        server_cpus: None,
        load_cpus: None,
        network: None,
        environment: machine("6.1", "A Fast One"),
        warnings: Vec::new(),
        skipped: Vec::new(),
        cells,
    }
}

fn machine(kernel: &str, model: &str) -> Environment {
    let cpu = Cpu { model: Some(model.into()), online: Some(2), ..Cpu::default() };
    Environment { kernel: kernel.into(), cpu, memory_bytes: Some(1 << 32), ..Environment::default() }
}

/// Five runs of each variant at these rates.
fn at(rates: &[(&str, f64)]) -> CellResult {
    let mut noise = noise(0.01);
    let mut runs = Vec::new();
    for block in 0..5 {
        for (variant, (_, rate)) in rates.iter().enumerate() {
            runs.push(run(variant, block, &[(Metric::Rps, rate * noise()), (Metric::P99, 1e6 * noise())]));
        }
    }
    cell(&rates.iter().map(|(name, _)| *name).collect::<Vec<_>>(), runs)
}

#[test]
fn variants_are_found_by_name_and_never_without_caveats() {
    let mut saved = result(vec![at(&[("unix", 2000.0), ("tcp", 1000.0)])]);
    saved.started_unix_s -= 3600.0;
    let today = result(vec![at(&[("tcp", 1500.0), ("new", 1.0), ("unix", 2000.0)])]);
    let found = against(&SavedResult::Lab(saved), &today);
    let rows: Vec<_> = found.comparisons.iter().map(|row| (row.variant.as_str(), row.metric, row.verdict)).collect();
    assert_eq!(
        rows,
        [
            ("tcp", Metric::Rps, Verdict::Faster),
            ("unix", Metric::Rps, Verdict::Equivalent),
            ("tcp", Metric::P99, Verdict::NotCompared),
            ("unix", Metric::P99, Verdict::Equivalent),
        ]
    );
    let words = &found.comparisons[0].words;
    assert!(words.starts_with("tcp is faster than tcp as saved: 1.5"), "{words}");
    assert!(words.ends_with("rests on 5 runs") && found.comparisons[0].p.unwrap() < 0.05, "{words}");
    assert!(found.caveats[0].contains("made 60.0m ago and did not take turns"), "{:?}", found.caveats);
    assert_eq!(found.caveats[1..], ["new has nothing saved to be compared with"], "{:?}", found.caveats);
}

#[test]
fn another_machine_is_said_first_and_loudly() {
    let mut saved = result(vec![at(&[("unix", 2000.0)])]);
    saved.environment = machine("5.4", "A Slow One");
    let today = result(vec![at(&[("unix", 2000.0)])]);
    let found = against(&SavedResult::Lab(saved.clone()), &today);
    assert!(
        found.caveats[0].starts_with("ANOTHER MACHINE: CPU (A Slow One then, A Fast One today)"),
        "{:?}",
        found.caveats
    );
    assert!(
        found.caveats.iter().any(|text| text == "not the same kernel (5.4 then, 6.1 today)"),
        "{:?}",
        found.caveats
    );

    // Another kernel leaves slightly less of the same memory.
    saved.environment = machine("6.1", "A Fast One");
    saved.environment.memory_bytes = Some((1 << 32) - (1 << 24));
    (saved.load_cpus, saved.quick, saved.cut_short) = (Some("0".into()), true, true);
    let network = Network::new(vec!["a".into(), "b".into()], LinkQuality::default());
    saved.network = Some(NetworkRecord::from(&network));
    saved.cells[0].variants[0].load = "20 connections, 1s".into();
    let found = against(&SavedResult::Lab(saved), &today);
    let said = |text: &str| assert!(found.caveats.iter().any(|caveat| caveat == text), "{text}: {:?}", found.caveats);
    assert!(!found.caveats[0].contains("MACHINE"), "{:?}", found.caveats);
    said("not the same CPUs of the load (0 then, any today)");
    let machines = NetworkRecord::from(&network).words();
    said(&format!("not the same machines ({machines} then, one today)"));
    said("not the same length (a fast look then, full length today)");
    said("the saved result was ended before its time");
    said("unix: not the same load (20 connections, 1s then, 10 connections, 1s today)");
}

#[test]
fn cells_are_told_by_group_and_by_value_of_the_sweep() {
    let sweep = |values: &[&str]| {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        Some(SweepRecord { name: "connections".into(), label: "connections".into(), values })
    };
    let place = |point, rate| CellResult { group: "puma".into(), point: Some(point), ..at(&[("unix", rate)]) };
    let mut saved = result(vec![place(0, 1000.0), place(1, 2000.0)]);
    saved.sweep = sweep(&["10", "100"]);
    let mut today = result(vec![place(0, 2000.0), place(1, 7.0)]);
    today.sweep = sweep(&["100", "1000"]);
    let found = against(&SavedResult::Lab(saved), &today);
    let rows: Vec<_> = found.comparisons.iter().map(|row| (row.variant.as_str(), row.verdict)).collect();
    assert_eq!(rows[0], ("puma / unix / 100", Verdict::Equivalent));
    assert!(found.caveats.iter().any(|text| text == "puma / unix / 1000 has nothing saved to be compared with"));
}

#[test]
fn single_saved_runs_give_no_interval_below_three() {
    let today = result(vec![at(&[("unix", 1000.0)])]);
    let saved = |count| SavedResult::Bench(vec![record(&Load::Closed, 2000, "server-bound"); count]);
    let one = against(&saved(1), &today);
    assert_eq!((one.comparisons[0].verdict, one.comparisons[0].ratio), (Verdict::NotCompared, None));
    let words = &one.comparisons[0].words;
    assert!(words.contains("it was 2,000/s and is ") && words.contains("there is only 1 saved run,"), "{words}");
    assert!(one.comparisons[1].words.contains("no run of unix as saved has that figure"), "{one:?}");
    let three = against(&saved(3), &today);
    assert_eq!(three.comparisons[0].verdict, Verdict::Slower);
    let caveats = three.caveats.join("\n");
    assert!(caveats.contains("the saved 3 runs are from `oroshi bench`"), "{caveats}");
    assert!(
        caveats.contains("not the same load (10 connections, 1 in flight on each, closed loop, 1s then"),
        "{caveats}"
    );
}

#[test]
fn a_given_rate_is_no_finding_in_time_either() {
    let rate = Load::rate(1000.0, Spacing::Constant, 0);
    let mut today = result(vec![at(&[("unix", 1000.0)])]);
    for run in &mut today.cells[0].runs {
        run.record = Some(Box::new(record(&rate, 1000, "rate-bound")));
    }
    let kept = against(&SavedResult::Bench(vec![record(&rate, 1000, "rate-bound"); 3]), &today);
    assert_eq!(kept.comparisons[0].verdict, Verdict::Equivalent);
    assert!(kept.comparisons[0].words.contains("both kept the timetable"), "{kept:?}");
    let closed = against(&SavedResult::Bench(vec![record(&Load::Closed, 1000, "server-bound"); 3]), &today);
    assert_eq!(closed.comparisons[0].verdict, Verdict::NotCompared);
}

#[test]
fn it_can_be_written_as_json() {
    let today = result(vec![at(&[("unix", 1000.0)])]);
    let json = serde_json::to_value(against(&SavedResult::Lab(today.clone()), &today)).unwrap();
    let keys: Vec<_> = json["comparisons"][0].as_object().unwrap().keys().cloned().collect();
    assert_eq!(BTreeMap::from_iter(keys.into_iter().map(|key| (key, ()))).len(), 6);
    assert_eq!(json["comparisons"][0]["verdict"], "equivalent");
}

#[test]
fn plans_are_compared_for_the_cells_that_are_the_same() {
    let place = |group: &str, load: &str| {
        let mut cell = CellResult { group: group.into(), ..at(&[("unix", 1000.0)]) };
        cell.variants[0].load = load.into();
        cell
    };
    let saved = result(vec![place("puma", "10 connections"), place("nginx", "500 connections")]);
    let today = result(vec![place("nginx", "500 connections"), place("puma", "10 connections")]);
    let found = against(&SavedResult::Lab(saved), &today);
    assert!(!found.caveats.iter().any(|text| text.contains("load")), "{:?}", found.caveats);
}

#[test]
fn another_file_of_the_program_is_a_caveat() {
    let program = |path: &str, bytes, modified_unix_s| Some(Program { path: path.into(), bytes, modified_unix_s });
    let with = |server: Option<Program>, load: Option<Program>| {
        let mut result = result(vec![at(&[("unix", 1000.0)])]);
        (result.cells[0].variants[0].program, result.cells[0].variants[0].load_program) = (server, load);
        result
    };
    let said = |then: LabResult, today: LabResult| against(&SavedResult::Lab(then), &today).caveats.split_off(1);
    let same = || with(program("/bin/nginx", 1_000_000, 1.5e9), program("/bin/wrk", 5000, 1.4e9));
    assert_eq!(said(same(), same()), Vec::<String>::new());
    assert_eq!(said(with(None, None), same()), Vec::<String>::new(), "what is not known does not differ");
    let newer = with(program("/bin/nginx", 1_000_001, 1.6e9), program("/bin/wrk", 5000, 1.6e9));
    assert_eq!(
        said(same(), newer),
        [
            "unix: /bin/nginx is another file than then (1,000,000 bytes then, 1,000,001 today)",
            "unix: /bin/wrk is another file than then (it was written anew since, and has 5,000 bytes as then)",
        ]
    );
    let elsewhere = with(program("/opt/nginx", 1_000_000, 1.5e9), None);
    assert_eq!(said(same(), elsewhere), ["unix: not the same program (/bin/nginx then, /opt/nginx today)"]);
}

#[test]
fn a_variant_that_was_run_until_it_was_precise_reaches_further() {
    let width = |ended: Ended| {
        let alone = || result(vec![CellResult { ended, ..at(&[("unix", 1000.0)]) }]);
        against(&SavedResult::Lab(alone()), &alone()).comparisons[0].ratio.unwrap().half_width_share()
    };
    assert!(width(Ended::Precise) > width(Ended::MaxBlocks));
}
