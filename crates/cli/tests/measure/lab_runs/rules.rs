//! What the whole experiment needs: figures, rates, sound rules.

use super::*;

#[test]
fn variants_without_the_figure_that_is_compared_first_are_given_up() {
    let bench = Bench::new();
    let rps = [(Metric::Rps, r"rps (\d+)")];
    let unseen = |name: &str| Variant {
        server: None,
        urls: vec!["http://192.0.2.1/".into()],
        ..program(name, 0, "echo rps 5", &rps, None)
    };
    let metrics = [Metric::Cpu, Metric::Rps];
    let experiment = experiment(&metrics, vec![], vec![unseen("A"), unseen("B")], blocks(50, None));
    let result = bench.run(experiment, &mut Seen::default()).unwrap();
    let cell = cell(&result);
    assert_eq!((cell.ended, cell.blocks, cell.runs.len()), (Ended::Failed, 3, 6));
    for variant in &cell.variants {
        let why = &variant.failed.as_ref().unwrap().why;
        assert!(why.starts_with("server CPU/request is compared first, and after 3 blocks no run of "), "{why}");
    }
    let rps = cell.comparisons.iter().find(|c| c.metric == Metric::Rps).unwrap();
    assert_eq!(rps.verdict, Verdict::Equivalent, "what there is stands");
}

#[test]
fn the_rate_is_a_share_of_what_the_slowest_can() {
    let bench = Bench::new();
    let servers = vec![bench.target("quick", &["--delay", "2ms"]), bench.target("slow", &["--delay", "5ms"])];
    let variants = vec![variant("quick", 0, load()), variant("slow", 1, load())];
    let mut experiment = experiment(&[Metric::P50], servers, variants, blocks(3, None));
    experiment.cells[0].rate_share = Some(0.5);
    let result = bench.run(experiment, &mut Seen::default()).unwrap();
    let cell = cell(&result);
    // Four connections that wait 5 ms for each answer: 800/s at the very most.
    let rate = cell.rate.unwrap();
    assert!(rate > 0.0 && rate <= 400.0 * 1.2, "{rate}");
    assert_eq!(cell.runs.len(), 6, "the runs that found it are not among them");
    for run in &cell.runs {
        let load = &run.record.as_ref().unwrap().plan.load;
        assert_eq!(*load, Loop::rate(rate, Spacing::Constant, 0));
    }
}

#[test]
fn what_makes_the_whole_impossible_is_an_error() {
    let bench = Bench::new();
    let nothing = bench.run(experiment(&[Metric::Rps], vec![], vec![], blocks(3, None)), &mut Seen::default());
    assert!(matches!(nothing, Err(LabError::Empty)), "{nothing:?}");
    let tools = Tools { keeper: Vec::new(), oroshi: OROSHI.into(), output: bench.path("no such folder") };
    let one = experiment(&[Metric::Rps], vec![bench.target("A", &[])], vec![variant("A", 0, load())], blocks(3, None));
    let error = oroshi_lab::run(one, &tools, &mut Seen::default()).unwrap_err().to_string();
    assert!(error.contains("no such folder"), "{error}");
}
