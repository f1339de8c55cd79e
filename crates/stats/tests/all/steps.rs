//! Steps over commits, in series whose truth is known.

use crate::noise::normal;
use fastrand::Rng;
use oroshi_stats::steps::{Noise, Scatter, change, noise, steps};

/// Figures around 100 with autocorrelated noise of this share, multiplied by each factor from its place on.
fn series(points: usize, spread: f64, autocorrelation: f64, factors: &[(usize, f64)], rng: &mut Rng) -> Vec<f64> {
    let mut last = normal(rng);
    let mut point = |index: usize| {
        last = autocorrelation * last + (1.0 - autocorrelation * autocorrelation).sqrt() * normal(rng);
        let level: f64 = factors.iter().filter(|(at, _)| index >= *at).map(|(_, factor)| factor).product();
        100.0 * level * (spread * last).exp()
    };
    (0..points).map(&mut point).collect()
}

fn at(points: &[f64], noise: Option<&Noise>) -> Vec<usize> {
    steps(points, &vec![true; points.len()], noise, 0.0).iter().map(|step| step.at).collect()
}

const QUIET: Noise = Noise { spread: 0.01, freedom: 60, autocorrelation: 0.0 };

#[test]
fn a_level_series_has_no_step() {
    for (points, trials) in [(4, 400), (6, 400), (10, 400), (20, 300), (50, 200), (150, 40)] {
        for (autocorrelation, known) in [(0.0, None), (0.5, None), (0.0, Some(&QUIET))] {
            let mut rng = Rng::with_seed(1);
            let alarms = (0..trials)
                .filter(|_| !at(&series(points, 0.01, autocorrelation, &[], &mut rng), known).is_empty())
                .count();
            let share = 100.0 * alarms as f64 / trials as f64;
            assert!(share <= 3.0, "{points} points, autocorrelation {autocorrelation}, {known:?}: {share} %");
        }
    }
}

#[test]
fn a_planted_step_is_found_where_it_is() {
    let found = |known: Option<&Noise>| {
        let mut rng = Rng::with_seed(2);
        let planted = (0..100).filter(|_| {
            let points = series(30, 0.01, 0.0, &[(20, 1.03)], &mut rng);
            matches!(at(&points, known)[..], [at] if at.abs_diff(20) <= 1)
        });
        planted.count()
    };
    let (known, unknown) = (found(Some(&QUIET)), found(None));
    assert!(known >= 92 && unknown >= 60, "{known} with the machine's noise, {unknown} without");
}

#[test]
fn a_known_machine_needs_few_points() {
    let found = |known: Option<&Noise>| {
        let mut rng = Rng::with_seed(3);
        let planted = (0..100).filter(|_| {
            let points = series(8, 0.01, 0.0, &[(6, 1.05)], &mut rng);
            matches!(at(&points, known)[..], [6])
        });
        planted.count()
    };
    let (known, unknown) = (found(Some(&QUIET)), found(None));
    assert!(known >= 90 && unknown < known / 2, "{known} with the machine's noise, {unknown} without");
}

#[test]
fn several_steps_and_a_dip_are_found() {
    let mut rng = Rng::with_seed(4);
    let points = series(80, 0.01, 0.0, &[(15, 1.05), (40, 0.92), (44, 1.0 / 0.92), (60, 0.95)], &mut rng);
    let found = steps(&points, &[true; 80], None, 0.0);
    let places: Vec<usize> = found.iter().map(|step| step.at).collect();
    assert_eq!(places, [15, 40, 44, 60]);
    for (step, truth) in found.iter().zip([1.05, 0.92, 1.0 / 0.92, 0.95]) {
        assert!((step.ratio.estimate / truth - 1.0).abs() < 0.02, "{step:?} instead of {truth}");
        assert!(step.ratio.low < step.ratio.estimate && step.ratio.estimate < step.ratio.high, "{step:?}");
        assert!(step.p > 0.0 && step.p < 0.01, "{step:?}");
    }
}

#[test]
fn the_interval_of_a_step_contains_the_truth() {
    for (known, autocorrelation) in [(None, 0.0), (Some(&QUIET), 0.0)] {
        let mut rng = Rng::with_seed(5);
        let (mut found, mut right) = (0, 0);
        for _ in 0..200 {
            let points = series(24, 0.01, autocorrelation, &[(12, 1.06)], &mut rng);
            if let [step] = steps(&points, &[true; 24], known, 0.0)[..] {
                found += 1;
                right += usize::from(step.ratio.low <= 1.06 && 1.06 <= step.ratio.high);
            }
        }
        let share = 100.0 * f64::from(right as u32) / f64::from(found);
        assert!(found >= 190 && share >= 91.0, "{known:?}: {right} of {found}");
    }
}

#[test]
fn a_step_begins_with_a_commit_and_is_large_enough() {
    let mut rng = Rng::with_seed(6);
    let points = series(30, 0.005, 0.0, &[(16, 1.1)], &mut rng);
    // Three measurements of each commit.
    let may_begin: Vec<bool> = (0..30).map(|index| usize::is_multiple_of(index, 3)).collect();
    let found = steps(&points, &may_begin, None, 0.0);
    assert!(matches!(found[..], [step] if [15, 18].contains(&step.at)), "{found:?}");
    assert!(steps(&points, &[true; 30], None, 0.2).is_empty());
    assert_eq!(at(&points, None), [16]);
}

#[test]
fn a_lone_outlier_is_no_step() {
    let mut rng = Rng::with_seed(7);
    let mut points = series(40, 0.01, 0.0, &[], &mut rng);
    points[20] *= 1.5;
    assert_eq!(at(&points, None), Vec::<usize>::new());
    assert_eq!(at(&points, Some(&QUIET)), Vec::<usize>::new());
}

#[test]
fn the_noise_of_a_machine_leaves_its_steps_out() {
    let mut rng = Rng::with_seed(8);
    let all: Vec<Vec<f64>> = (0..6).map(|_| series(40, 0.02, 0.4, &[(20, 1.5)], &mut rng)).collect();
    let found: Vec<_> = all.iter().map(|points| steps(points, &[true; 40], None, 0.0)).collect();
    let known = noise(all.iter().zip(&found).map(|(points, steps)| (points.as_slice(), steps.as_slice()))).unwrap();
    assert!((0.016..0.024).contains(&known.spread), "{known:?}");
    assert!((0.3..0.75).contains(&known.autocorrelation), "{known:?}");
    assert_eq!(known.freedom, 6 * 38);
    assert_eq!(noise([]), None);
    assert_eq!(noise([(&[1.0, 2.0][..], &[][..])]), None);
}

#[test]
fn one_new_measurement_is_judged_by_the_machine() {
    let before = [100.0, 101.0, 99.5];
    let alone = change(&before, &[104.0], None).unwrap();
    let known = change(&before, &[104.0], Some(&QUIET)).unwrap();
    assert!(alone.ratio.high - alone.ratio.low > known.ratio.high - known.ratio.low);
    assert!(known.ratio.low > 1.0 && known.p < 0.01, "{known:?}");
    assert_eq!(change(&[100.0], &[104.0], None), None, "nobody knows how they scatter");
    assert!(change(&[100.0], &[104.0], Some(&QUIET)).is_some());
    assert_eq!(change(&before, &[], Some(&QUIET)), None);
    assert_eq!(change(&before, &[f64::NAN], Some(&QUIET)), None);
    assert_eq!(change(&before, &[-1.0], Some(&QUIET)), None);
}

#[test]
fn a_single_change_has_the_false_alarms_of_its_p_value() {
    let mut rng = Rng::with_seed(9);
    let alarms = (0..2000)
        .filter(|_| {
            let points = series(11, 0.01, 0.0, &[], &mut rng);
            change(&points[..10], &points[10..], Some(&QUIET)).unwrap().p < 0.05
        })
        .count();
    assert!((60..=140).contains(&alarms), "{alarms} of 2000");
}

/// Several measurements of one commit, or of the commits since a release: measurements of one hour vary together.
#[test]
fn several_new_measurements_that_vary_together_invent_no_change() {
    for (autocorrelation, before) in [(0.7, 30), (0.5, 30), (0.7, 12)] {
        let mut rng = Rng::with_seed(10);
        let (mut invented, mut found) = (0, 0);
        for _ in 0..400 {
            let points = series(before + 5, 0.01, autocorrelation, &[], &mut rng);
            invented += usize::from(change(&points[..before], &points[before..], None).unwrap().p < 0.05);
            let worse = series(before + 5, 0.01, autocorrelation, &[(before, 1.2)], &mut rng);
            found += usize::from(change(&worse[..before], &worse[before..], None).unwrap().p < 0.05);
        }
        let case = format!("autocorrelation {autocorrelation}, {before} before");
        assert!(invented <= 24 && found >= 360, "{case}: {invented} of 400 invented, {found} of 400 found");
    }
}

#[test]
fn the_ends_of_an_interval_are_numbers() {
    let wild = change(&[1e-30, 1e30], &[1e30, 1e-30], None).unwrap();
    let ends = [wild.ratio.low, wild.ratio.high];
    assert!(ends.iter().all(|end| end.is_finite() && *end > 0.0), "{wild:?}");
}

#[test]
fn sums_of_scatter_give_the_noise_of_all() {
    let mut rng = Rng::with_seed(11);
    let all: Vec<Vec<f64>> = (0..3).map(|_| series(20, 0.02, 0.4, &[], &mut rng)).collect();
    let sum = all.iter().map(|points| Scatter::of(points, &[])).fold(Scatter::default(), |sum, one| sum + one);
    assert_eq!(sum.noise(), noise(all.iter().map(|points| (points.as_slice(), &[][..]))));
    assert_eq!((Scatter::default().noise(), Scatter::of(&[1.0, -1.0], &[])), (None, Scatter::default()));
}

#[test]
fn exact_and_senseless_figures_are_no_trouble() {
    assert!(at(&[5.0; 30], None).is_empty());
    let mut points = [5.0; 30];
    points[20..].fill(6.0);
    assert_eq!(at(&points, None), [20]);
    for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        points[3] = odd;
        assert!(at(&points, None).is_empty());
    }
    assert!(steps(&[], &[], None, 0.0).is_empty());
    assert!(steps(&[1.0; 10], &[true; 3], None, 0.0).is_empty(), "as many marks as points");
    let long: Vec<f64> = (0..450).map(|index| if index < 430 { 1.0 } else { 2.0 }).collect();
    assert_eq!(at(&long, None), [430]);
}
