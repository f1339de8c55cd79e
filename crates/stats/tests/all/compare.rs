//! Comparisons on data with a known ratio: coverage of intervals, and correctness of verdicts.

use crate::noise::normal;
use fastrand::Rng;
use oroshi_stats::compare::{
    Bootstrap, Interval, Pair, Stopping, Value, Verdict, level, ratio, ratio_unpaired, verdict,
};

const TRIALS: usize = 1000;

/// The distribution of runs around 1,000.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// Normal, with this standard deviation as a share.
    Normal(f64),
    /// Normal in the logarithm: skewed.
    LogNormal(f64),
    /// 3 % of normal noise, and every twentieth run slowed by 30 %.
    Stalls,
}

impl Noise {
    fn run(self, rng: &mut Rng) -> f64 {
        1000.0
            * match self {
                Self::Normal(deviation) => 1.0 + deviation * normal(rng),
                Self::LogNormal(deviation) => (deviation * normal(rng)).exp(),
                Self::Stalls => (1.0 + 0.03 * normal(rng)) / if rng.f64() < 0.05 { 1.3 } else { 1.0 },
            }
    }
}

/// Fewer draws than usual, for speed; a different seed per trial, so that no single lucky seed decides.
fn draws(trial: usize) -> Bootstrap {
    Bootstrap { resamples: 400, seed: trial as u64, ..Bootstrap::default() }
}

fn holds(interval: &Interval, truth: f64) -> bool {
    interval.low <= truth && truth <= interval.high
}

/// Returns the per cent of trials whose interval contained `truth`.
fn coverage(truth: f64, seed: u64, mut trial: impl FnMut(usize, &mut Rng) -> Interval) -> f64 {
    let mut rng = Rng::with_seed(seed);
    let held = (0..TRIALS).filter(|&number| holds(&trial(number, &mut rng), truth)).count();
    100.0 * held as f64 / TRIALS as f64
}

fn blocks(count: usize, noise: Noise, truth: f64, rng: &mut Rng) -> Vec<Pair> {
    let block = |session| Pair { session, base: noise.run(rng), variant: truth * noise.run(rng) };
    (0..count).map(block).collect()
}

const NOISES: [Noise; 3] = [Noise::Normal(0.03), Noise::LogNormal(0.1), Noise::Stalls];

#[test]
fn the_interval_of_a_ratio_holds_the_true_one_as_often_as_it_says() {
    for noise in NOISES {
        for count in [10, 20, 40] {
            let covered =
                coverage(1.1, 1, |trial, rng| ratio(&blocks(count, noise, 1.1, rng), &draws(trial)).unwrap().interval);
            assert!((92.0..=98.0).contains(&covered), "{noise:?}, {count} blocks: {covered} %");
        }
    }
}

#[test]
fn restarts_that_shift_everything_are_in_the_interval() {
    for (sessions, each) in [(10, 2), (5, 4), (3, 8)] {
        let covered = coverage(1.0, 2, |trial, rng| {
            let mut pairs = Vec::new();
            for session in 0..sessions {
                let luck = Noise::LogNormal(0.03).run(rng) / 1000.0;
                let block = |pair: Pair| Pair { session, variant: luck * pair.variant, ..pair };
                pairs.extend(blocks(each, Noise::Normal(0.03), 1.0, rng).into_iter().map(block));
            }
            let estimate = ratio(&pairs, &draws(trial)).unwrap();
            assert_eq!((estimate.blocks, estimate.sessions), (sessions * each, sessions));
            estimate.interval
        });
        assert!((92.0..=98.0).contains(&covered), "{sessions} sessions of {each} blocks: {covered} %");
    }
}

/// Blocks of one session must not count as if each had its own.
#[test]
fn blocks_of_one_session_are_not_so_many_measurements() {
    let pair = |session: usize, block: usize| Pair {
        session,
        base: 1000.0,
        variant: 1000.0 + [30.0, -25.0, 5.0][session] + [1.0, -1.0][block % 2],
    };
    let pairs: Vec<Pair> = (0..3).flat_map(|session| (0..8).map(move |block| pair(session, block))).collect();
    let apart: Vec<Pair> = pairs.iter().enumerate().map(|(session, pair)| Pair { session, ..*pair }).collect();
    let width = |pairs: &[Pair]| ratio(pairs, &Bootstrap::default()).unwrap().interval.half_width_share();
    assert!(width(&pairs) > 4.0 * width(&apart), "{} beside {}", width(&pairs), width(&apart));
}

#[test]
fn few_blocks_give_wide_intervals_and_two_give_none() {
    let mut wide = Vec::new();
    for count in [3, 4, 5, 10] {
        let mut widths = 0.0;
        let covered = coverage(0.9, 3, |trial, rng| {
            let interval = ratio(&blocks(count, Noise::Normal(0.03), 0.9, rng), &draws(trial)).unwrap().interval;
            widths += interval.half_width_share();
            interval
        });
        assert!(covered >= 94.0, "{count} blocks: {covered} %");
        wide.push(widths / TRIALS as f64);
    }
    assert!(wide.is_sorted_by(|more, less| *more > 1.3 * *less) && wide[0] > 0.1, "{wide:?}");
    assert_eq!(ratio(&blocks(2, Noise::Normal(0.03), 0.9, &mut Rng::with_seed(4)), &Bootstrap::default()), None);
}

fn values(pairs: &[Pair], figure: impl Fn(&Pair) -> f64) -> Vec<Value> {
    pairs.iter().map(|pair| Value { session: pair.session, value: figure(pair) }).collect()
}

#[test]
fn an_own_figure_and_a_ratio_to_yesterday_are_held_as_often() {
    for count in [10, 20] {
        let covered = coverage(1000.0, 5, |trial, rng| {
            level(&values(&blocks(count, Noise::Normal(0.03), 1.0, rng), |pair| pair.base), &draws(trial)).unwrap()
        });
        assert!((92.0..=98.0).contains(&covered), "median of {count} runs: {covered} %");
        let covered = coverage(1.3, 6, |trial, rng| {
            let (base, variant) = (
                values(&blocks(count, Noise::Normal(0.02), 1.0, rng), |pair| pair.base),
                values(&blocks(count + 5, Noise::Normal(0.05), 1.3, rng), |pair| pair.variant),
            );
            ratio_unpaired(&base, &variant, &draws(trial)).unwrap().interval
        });
        assert!((92.0..=98.0).contains(&covered), "{count} runs beside {} others: {covered} %", count + 5);
    }
}

/// Runs the whole procedure with its usual rules: 10 to 50 blocks, a check after each, stop at 2 %.
fn compare(noise: Noise, truth: f64, trial: usize, rng: &mut Rng) -> (Interval, Verdict) {
    let mut pairs = blocks(9, noise, truth, rng);
    loop {
        let session = pairs.len();
        pairs.extend(blocks(1, noise, truth, rng).into_iter().map(|pair| Pair { session, ..pair }));
        let options = Bootstrap { resamples: 200, stopping: Stopping::AtPrecision(0.02), ..draws(trial) };
        let mut estimate = ratio(&pairs, &options).unwrap();
        let precise = estimate.interval.half_width_share() <= 0.02;
        if !precise && pairs.len() < 50 {
            continue;
        }
        if !precise {
            estimate = ratio(&pairs, &Bootstrap { stopping: Stopping::Fixed, ..options }).unwrap();
        }
        return (estimate.interval, verdict(&estimate.interval, estimate.p, 0.03, true, 0.95));
    }
}

/// Returns the verdicts of the trials, and the per cent of intervals that contained the truth.
fn verdicts(noise: Noise, truth: f64, trials: usize) -> (Vec<Verdict>, f64) {
    let mut rng = Rng::with_seed(7);
    let (intervals, verdicts): (Vec<_>, Vec<_>) =
        (0..trials).map(|trial| compare(noise, truth, trial, &mut rng)).unzip();
    let held = intervals.iter().filter(|interval| holds(interval, truth)).count();
    (verdicts, 100.0 * held as f64 / trials as f64)
}

fn count(verdicts: &[Verdict], wanted: &[Verdict]) -> usize {
    verdicts.iter().filter(|verdict| wanted.contains(verdict)).count()
}

#[test]
fn a_server_against_itself_is_neither_faster_nor_slower() {
    let (verdicts, covered) = verdicts(Noise::Normal(0.03), 1.0, TRIALS);
    let harmless = [Verdict::Equivalent, Verdict::Undecided];
    assert!(count(&verdicts[..100], &harmless) >= 95, "{verdicts:?}");
    assert!(count(&verdicts, &harmless) >= 950, "{} of {TRIALS}", count(&verdicts, &harmless));
    assert!(count(&verdicts, &[Verdict::Equivalent]) >= 700, "most are found equivalent, not only left undecided");
    assert!((92.0..=98.0).contains(&covered), "{covered} %");
}

#[test]
fn other_noise_makes_no_more_false_alarms() {
    for noise in [Noise::Normal(0.01), Noise::Normal(0.02), Noise::Stalls] {
        let harmless = count(&verdicts(noise, 1.0, 200).0, &[Verdict::Equivalent, Verdict::Undecided]);
        assert!(harmless >= 190, "{noise:?}: {harmless} of 200");
    }
}

#[test]
fn five_per_cent_are_found_under_three_per_cent_of_noise() {
    let (verdicts, covered) = verdicts(Noise::Normal(0.03), 1.05, TRIALS);
    assert!(count(&verdicts[..100], &[Verdict::Faster]) >= 90, "{verdicts:?}");
    assert!(count(&verdicts, &[Verdict::Faster]) >= 950, "{} of {TRIALS}", count(&verdicts, &[Verdict::Faster]));
    assert_eq!(count(&verdicts, &[Verdict::Slower]), 0);
    assert!((92.0..=98.0).contains(&covered), "{covered} %");
}
