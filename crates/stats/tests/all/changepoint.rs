//! Changes of level in series whose truth is known.

use crate::noise::normal;
use fastrand::Rng;
use oroshi_stats::changepoint::shift;

/// Points around 1,000 with 3 % of autocorrelated noise; higher by `step` from `at` on.
fn series(points: usize, autocorrelation: f64, at: usize, step: f64, rng: &mut Rng) -> Vec<f64> {
    let mut noise = normal(rng);
    let mut point = |index: usize| {
        noise = autocorrelation * noise + (1.0 - autocorrelation * autocorrelation).sqrt() * normal(rng);
        (1000.0 + 30.0 * noise) * if index >= at { 1.0 + step } else { 1.0 }
    };
    (0..points).map(&mut point).collect()
}

/// Returns the per cent of series with a detected shift.
fn found(trials: usize, mut series: impl FnMut(&mut Rng) -> Vec<f64>, least_change: f64) -> f64 {
    let mut rng = Rng::with_seed(1);
    let found = (0..trials).filter(|_| shift(&series(&mut rng), least_change).is_some()).count();
    100.0 * found as f64 / trials as f64
}

#[test]
fn a_stationary_series_has_no_shift() {
    for (points, trials) in [(8, 1000), (15, 1000), (30, 1000), (50, 1000), (200, 500), (600, 200)] {
        for autocorrelation in [0.0, 0.5] {
            let alarms = found(trials, |rng| series(points, autocorrelation, points, 0.0, rng), 0.0);
            assert!(alarms <= 2.0, "{points} points, autocorrelation {autocorrelation}: {alarms} %");
        }
    }
}

#[test]
fn ten_per_cent_are_found_under_three_per_cent_of_noise() {
    for (points, at, step) in [(30, 15, -0.1), (30, 15, 0.1), (30, 10, -0.1), (50, 10, 0.1), (100, 10, -0.1)] {
        let power = found(300, |rng| series(points, 0.0, at, step, rng), 0.03);
        assert!(power >= 90.0, "{points} points, {step} at {at}: {power} %");
    }
    let power = found(300, |rng| series(100, 0.5, 40, -0.1, rng), 0.03);
    assert!(power >= 90.0, "100 points, autocorrelation 0.5: {power} %");
}

#[test]
fn it_says_where_and_how_far() {
    let points = series(60, 0.0, 20, 0.25, &mut Rng::with_seed(2));
    let found = shift(&points, 0.05).unwrap();
    assert_eq!(found.at, 20);
    assert!((980.0..1020.0).contains(&found.before) && (1225.0..1275.0).contains(&found.after), "{found:?}");
    assert!(found.p > 0.0 && found.p < 0.01, "{found:?}");

    let mirrored: Vec<f64> = points.iter().rev().map(|point| point * 1e6).collect();
    let back = shift(&mirrored, 0.05).unwrap();
    assert_eq!((back.at, back.p), (40, found.p));
    assert!((back.before / found.after - 1e6).abs() < 1.0 && (back.after / found.before - 1e6).abs() < 1.0, "{back:?}");
}

#[test]
fn a_change_that_does_not_matter_is_none() {
    let points = series(100, 0.0, 50, 0.06, &mut Rng::with_seed(3));
    assert!(shift(&points, 0.03).is_some());
    assert_eq!(shift(&points, 0.1), None);
}

#[test]
fn a_stall_is_no_shift_and_hides_none() {
    let mut points = series(60, 0.0, 60, 0.0, &mut Rng::with_seed(4));
    (points[20], points[21], points[45]) = (0.0, 350.0, 100.0);
    assert_eq!(shift(&points, 0.03), None);
    points[40..].iter_mut().for_each(|point| *point *= 0.85);
    assert!(shift(&points, 0.03).unwrap().at.abs_diff(40) <= 1);
}

#[test]
fn exact_numbers_are_compared_too() {
    assert_eq!(shift(&[500.0; 40], 0.0), None);
    assert_eq!(shift(&[0.1; 40], 0.0), None);
    let mut points = [500.0; 40];
    points[30..].fill(400.0);
    assert_eq!(shift(&points, 0.1).map(|shift| (shift.at, shift.before, shift.after)), Some((30, 500.0, 400.0)));
    points[..30].fill(0.0);
    assert_eq!(shift(&points, 0.1).map(|shift| (shift.at, shift.before, shift.after)), Some((30, 0.0, 400.0)));
}

#[test]
fn what_is_no_series_has_no_shift() {
    let clear =
        |points: usize| -> Vec<f64> { (0..points).map(|index| if 2 * index < points { 1.0 } else { 9.0 }).collect() };
    assert_eq!(shift(&[], 0.0), None);
    assert_eq!(shift(&clear(7), 0.0), None);
    assert!(shift(&clear(8), 0.0).is_some());
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let mut points = clear(30);
        points[4] = odd;
        assert_eq!(shift(&points, 0.0), None);
    }
    let huge: Vec<f64> = clear(30).iter().map(|point| point * 1e307).collect();
    assert_eq!(shift(&huge, f64::NAN), None);
}
