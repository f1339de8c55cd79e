//! `Latency` against naive implementations on sorted vectors.

use oroshi_stats::{Latency, Quantile};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn latency_of(recorded: &[u64], censored: &[u64]) -> Latency {
    let mut latency = Latency::new();
    recorded.iter().for_each(|ns| latency.record(*ns));
    censored.iter().for_each(|ns| latency.record_censored(*ns));
    latency
}

/// All observable figures of a histogram.
#[derive(Debug, PartialEq)]
struct Figures {
    buckets: Vec<(u64, u64)>,
    counts_and_ends: [u64; 6],
    sum: u128,
    stdev: f64,
    quantiles: Vec<Option<Quantile>>,
}

fn figures(latency: &Latency) -> Figures {
    Figures {
        buckets: latency.histogram().iter_recorded().map(|b| (b.value_iterated_to(), b.count_at_value())).collect(),
        counts_and_ends: [
            latency.len(),
            latency.censored(),
            latency.min(),
            latency.max(),
            latency.censored_min(),
            latency.censored_max(),
        ],
        sum: latency.sum(),
        stdev: latency.stdev(),
        quantiles: (0..=20).map(|twentieth| latency.quantile(f64::from(twentieth) / 20.0)).collect(),
    }
}

/// Returns the value of rank `ceil(q * n)`.
fn naive(mut all: Vec<u64>, q: f64) -> u64 {
    all.sort_unstable();
    let rank = ((q - 1e-12) * all.len() as f64).ceil() as usize;
    all[rank.max(1) - 1]
}

/// wrk's `stats_correct`, value by value.
fn naive_backfill(values: &[u64], interval: u64) -> Vec<u64> {
    let mut all = values.to_vec();
    for value in values.iter().filter(|value| **value >= 2 * interval) {
        let mut made_up = value - interval;
        while made_up > interval {
            all.push(made_up);
            made_up -= interval;
        }
    }
    all
}

#[test]
fn an_empty_histogram_says_nothing() {
    let latency = Latency::new();
    assert!(latency.is_empty());
    assert_eq!(latency.quantile(0.5), None);
    assert_eq!((latency.min(), latency.max(), latency.sum()), (0, 0, 0));
    assert_eq!((latency.mean(), latency.stdev(), latency.fraction_within_stdev(1.0)), (0.0, 0.0, 0.0));
}

#[test]
fn one_value_is_every_quantile() {
    let latency = latency_of(&[123_456_789], &[]);
    for q in [-1.0, 0.0, 0.5, 0.9999, 1.0, 7.0] {
        assert_eq!(latency.quantile(q), Some(Quantile::Exact(123_456_789)));
    }
    assert_eq!(latency.quantile(f64::NAN), None);
    assert_eq!(latency.stdev(), 0.0);
}

#[test]
fn a_server_that_never_answers_is_a_bound_at_every_quantile() {
    let latency = latency_of(&[], &[30 * MS, 50 * MS]);
    assert!(!latency.is_empty());
    for (q, ms) in [(0.0, 30), (0.5, 30), (1.0, 50)] {
        assert_eq!(latency.quantile(q), Some(Quantile::AtLeast(ms * MS)));
    }
}

/// Requests due evenly over a second, all unanswered at its end: half of them are only known to take half a second.
/// Bug: the bound was the longest wait, at every quantile.
#[test]
fn a_bound_is_no_greater_than_what_is_known() {
    let latency = latency_of(&[], &(1..=100).map(|hundredth| hundredth * 10 * MS).collect::<Vec<_>>());
    for (q, ms) in [(0.5, 500), (0.99, 990), (0.999, 1000), (1.0, 1000)] {
        let Some(Quantile::AtLeast(bound)) = latency.quantile(q) else { panic!("not a bound") };
        assert!(bound <= ms * MS && bound > ms * MS * 999 / 1000, "{bound} at {q}");
    }
}

#[test]
fn equal_timeouts_are_an_exact_bound() {
    let latency = latency_of(&[MS, 2 * MS], &[2_000 * MS; 98]);
    for q in [0.03, 0.5, 0.99, 1.0] {
        assert_eq!(latency.quantile(q), Some(Quantile::AtLeast(2_000 * MS)));
    }
}

/// Bug: four of five requests were given up after 20 ms, and one response came late; p50 was 20.1 ms and p99 25.1 ms,
/// both exact.
#[test]
fn timeouts_are_not_taken_to_be_like_the_answers() {
    let mut answered = vec![20 * MS; 99];
    answered.push(25 * MS);
    let latency = latency_of(&answered, &[20 * MS + 1; 400]);
    for q in [0.5, 0.9, 0.99] {
        let Some(Quantile::AtLeast(bound)) = latency.quantile(q) else { panic!("not a bound at {q}") };
        assert!(bound <= 20 * MS + 1 && bound > 19 * MS, "{bound} at {q}");
    }
    assert_eq!(latency.quantile(1.0), Some(Quantile::AtLeast(25 * MS)));
    assert_eq!(latency.quantile_range(0.99).unwrap().1, None);
}

/// Given up within the first milliseconds, they may have ended at any later time: below their bounds everything is
/// known.
#[test]
fn what_lies_below_every_bound_is_exact() {
    let latency = latency_of(&[1, 2, 3, 4], &[5; 4]);
    for rank in 1..=4 {
        assert_eq!(latency.quantile(rank as f64 / 8.0), Some(Quantile::Exact(rank)));
    }
    for rank in 5..=8 {
        assert_eq!(latency.quantile(rank as f64 / 8.0), Some(Quantile::AtLeast(5)));
    }
}

#[test]
fn early_bounds_leave_a_range() {
    let latency = latency_of(&[10, 20, 30, 40], &[0; 2]);
    assert_eq!(latency.quantile(0.5), Some(Quantile::AtLeast(10)));
    assert_eq!(latency.quantile_range(0.5), Some((10, Some(30))));
    assert_eq!(latency.quantile_range(1.0), Some((40, None)));
    assert_eq!(latency_of(&[], &[]).quantile_range(0.5), None);
}

#[test]
fn the_longest_of_all_is_not_known_while_one_is_without_an_answer() {
    for (recorded, censored, most) in [([5, 70], 60, 70), ([5, 60], 70, 70)] {
        assert_eq!(latency_of(&recorded, &[censored]).quantile(1.0), Some(Quantile::AtLeast(most)));
    }
    let latency = latency_of(&[5, 70], &[60]);
    assert_eq!((latency.mean(), latency.least_mean()), (37.5, 45.0));
    assert_eq!(Latency::new().least_mean(), 0.0);
}

#[test]
fn quantiles_at_a_rank_are_not_moved_by_rounding() {
    for n in 1..=300 {
        let latency = latency_of(&(1..=n).collect::<Vec<_>>(), &[]);
        for rank in 1..=n {
            assert_eq!(latency.quantile(rank as f64 / n as f64), Some(Quantile::Exact(rank)), "{rank} of {n}");
        }
    }
}

#[test]
fn values_past_the_range_count_as_its_end() {
    let latency = latency_of(&[u64::MAX, 0], &[u64::MAX]);
    assert_eq!((latency.min(), latency.max(), latency.censored_max()), (0, Latency::MAX_NS, Latency::MAX_NS));
    assert_eq!(latency.sum(), u128::from(Latency::MAX_NS));
    assert_eq!(latency.quantile(1.0), Some(Quantile::AtLeast(Latency::MAX_NS)));
}

#[test]
fn the_spread_of_close_values_far_from_zero_is_exact() {
    let far = 3_000_000_000_000;
    let latency = latency_of(&[far - 1, far, far, far + 1], &[]);
    assert!((latency.stdev() - (2.0_f64 / 3.0).sqrt()).abs() < 1e-9);
}

#[test]
fn equal_values_lie_within_no_deviation_at_all() {
    // The mean of the last two is next to the value, not equal to it.
    for (value, times) in
        [(0, 10), (1, 10), (777, 10), (Latency::MAX_NS, 10), (3_599_999_999_989, 2503), (3_141_592_653_589, 2869)]
    {
        let mut latency = Latency::new();
        (0..times).for_each(|_| latency.record(value));
        assert_eq!((latency.stdev(), latency.fraction_within_stdev(1.0)), (0.0, 1.0), "{value}");
    }
}

#[test]
fn a_range_counts_both_ends() {
    let latency = latency_of(&[1, 2, 3, 4], &[2; 9]);
    assert_eq!(latency.fraction_within(2, 3), 0.5);
    assert_eq!(latency.fraction_within(4, u64::MAX), 0.25);
    assert_eq!(latency.fraction_within(3, 2), 0.0);
    assert_eq!(latency.fraction_within_stdev(-1.0), 0.0);
}

/// If no histogram ever resizes, recording cannot allocate.
#[test]
fn recording_never_grows_a_histogram() {
    let mut latency = Latency::new();
    let before = latency.histogram().distinct_values();
    (0..64).for_each(|bit| latency.record(1 << bit));
    assert_eq!(latency.histogram().distinct_values(), before);
}

#[test]
fn bounds_can_be_taken_over_alone() {
    let (mut latency, other) = (latency_of(&[MS], &[2 * MS]), latency_of(&[7 * MS, 9 * MS], &[30 * MS, 50 * MS]));
    latency.merge_censored(&other);
    assert_eq!(figures(&latency), figures(&latency_of(&[MS], &[2 * MS, 30 * MS, 50 * MS])));
    latency.merge_censored(&latency_of(&[MS], &[]));
    assert_eq!(latency.censored(), 3);
}

#[test]
fn clearing_forgets_everything() {
    let mut latency = latency_of(&[5, 6], &[7]);
    latency.clear();
    assert!(latency.is_empty());
    latency.record(9);
    assert_eq!(figures(&latency), figures(&latency_of(&[9], &[])));
}

#[test]
fn backfilling_leaves_out_what_wrk_leaves_out() {
    let latency = latency_of(&[100, 20, 19, 10], &[500]);
    let filled = latency.backfilled(10);
    // From 100: 90, 80, ... 20, but not 10. From 20: nothing, since 10 is not greater than the interval.
    assert_eq!((filled.len(), filled.censored()), (4 + 8, 0));
    assert_eq!(filled.sum(), latency.sum() + (20..=90).step_by(10).sum::<u128>());
    assert_eq!(figures(&latency.backfilled(0)).buckets, figures(&latency).buckets);
}

/// Term by term this would take an hour's worth of nanoseconds.
#[test]
fn backfilling_by_a_tiny_interval_ends() {
    let filled = latency_of(&[Latency::MAX_NS], &[]).backfilled(1);
    assert_eq!(filled.len(), Latency::MAX_NS - 1);
    let uniform = Latency::MAX_NS as f64 / 12_f64.sqrt();
    assert!((filled.stdev() / uniform - 1.0).abs() < 1e-9);
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..100, 0_u64..2048, 0_u64..5_000_000_000, 0..=Latency::MAX_NS]
}

fn values() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(value(), 0..60)
}

proptest! {
    #[test]
    fn without_censoring_quantiles_are_ranks(mut exact in values(), per_mille in 1_usize..=1000) {
        prop_assume!(!exact.is_empty());
        exact.sort_unstable();
        let latency = latency_of(&exact, &[]);
        let rank = (per_mille * exact.len()).div_ceil(1000);
        let (found, naive) = (latency.quantile(per_mille as f64 / 1000.0).unwrap(), exact[rank - 1]);
        prop_assert!(!found.is_bound());
        prop_assert!(latency.histogram().equivalent(found.value(), naive), "{found:?} for {naive}");
        prop_assert!(found.value().abs_diff(naive) as f64 <= naive as f64 / 1000.0);
        prop_assert!((latency.min()..=latency.max()).contains(&found.value()));
    }

    /// For any further duration of the unanswered requests, including zero.
    #[test]
    fn quantiles_hold_whatever_comes_to_light(
        recorded in values(), waits in prop::collection::vec((value(), prop_oneof![Just(0), value()]), 0..60),
    ) {
        prop_assume!(!recorded.is_empty() || !waits.is_empty());
        let censored: Vec<u64> = waits.iter().map(|(seen, _)| *seen).collect();
        let in_the_end = waits.iter().map(|(seen, more)| (seen + more).min(Latency::MAX_NS));
        let truth: Vec<u64> = recorded.iter().copied().chain(in_the_end).collect();
        let latency = latency_of(&recorded, &censored);
        for q in [0.0, 0.1, 0.5, 0.75, 0.9, 0.99, 1.0] {
            let (found, truth) = (latency.quantile(q).unwrap(), naive(truth.clone(), q));
            let (least, most) = latency.quantile_range(q).unwrap();
            prop_assert!(least <= truth && most.is_none_or(|most| truth <= most), "{least} {truth} {most:?} at {q}");
            match found {
                Quantile::Exact(value) => {
                    prop_assert!(latency.histogram().equivalent(value, truth), "{value} for {truth} at {q}");
                }
                Quantile::AtLeast(bound) => prop_assert!(bound <= truth, "{bound} for {truth} at {q}"),
            }
        }
        let mean = truth.iter().map(|value| *value as f64).sum::<f64>() / truth.len() as f64;
        prop_assert!(latency.least_mean() <= mean * (1.0 + 1e-9), "{} for {mean}", latency.least_mean());
    }

    /// A quantile is a bound only where two outcomes differ, and it is the best of them.
    #[test]
    fn no_quantile_says_less_than_is_known(recorded in values(), censored in values(), per_mille in 1_u32..=1000) {
        prop_assume!(!recorded.is_empty() || !censored.is_empty());
        let latency = latency_of(&recorded, &censored);
        let q = f64::from(per_mille) / 1000.0;
        let best = naive([&recorded[..], &censored].concat(), q);
        let worst = naive(recorded.iter().copied().chain(censored.iter().map(|_| u64::MAX)).collect(), q);
        let same = worst != u64::MAX && latency.histogram().equivalent(best, worst);
        let found = latency.quantile(q).unwrap();
        prop_assert_eq!(found.is_bound(), !same, "{:?}: {} to {}", found, best, worst);
        if found.is_bound() {
            prop_assert!(found.value() >= latency.histogram().lowest_equivalent(best), "{:?} for {}", found, best);
        }
        let most = latency.quantile_range(q).unwrap().1;
        prop_assert_eq!(most.is_none(), worst == u64::MAX);
        prop_assert!(most.is_none_or(|most| latency.histogram().equivalent(most, worst)));
    }

    /// To the resolution of the buckets: exact quantiles are the upper end of their bucket, bounds the lower.
    #[test]
    fn a_higher_quantile_is_not_less(recorded in values(), censored in values()) {
        let latency = latency_of(&recorded, &censored);
        let quantiles = (0..=50).filter_map(|part| latency.quantile(f64::from(part) / 50.0));
        let buckets: Vec<_> = quantiles.map(|found| latency.histogram().lowest_equivalent(found.value())).collect();
        prop_assert!(buckets.is_sorted());
    }

    #[test]
    fn moments_are_those_of_the_values(exact in values()) {
        let latency = latency_of(&exact, &[3, 4, 5]);
        let n = exact.len() as f64;
        prop_assert_eq!(latency.sum(), exact.iter().map(|value| u128::from(*value)).sum::<u128>());
        prop_assert_eq!(latency.min(), exact.iter().copied().min().unwrap_or(0));
        prop_assert_eq!(latency.max(), exact.iter().copied().max().unwrap_or(0));
        if exact.len() > 1 {
            let mean = exact.iter().map(|value| *value as f64).sum::<f64>() / n;
            let squares: f64 = exact.iter().map(|value| (*value as f64 - mean).powi(2)).sum();
            let stdev = (squares / (n - 1.0)).sqrt();
            prop_assert!((latency.mean() - mean).abs() <= mean * 1e-12);
            prop_assert!((latency.stdev() - stdev).abs() <= stdev * 1e-9, "{} for {stdev}", latency.stdev());
        }
    }

    #[test]
    fn the_share_within_deviations_is_that_of_the_values(exact in prop::collection::vec(0_u64..2048, 1..60)) {
        let latency = latency_of(&exact, &[]);
        let (mean, stdev) = (latency.mean(), latency.stdev());
        let within = exact.iter().filter(|value| (**value as f64 - mean).abs() <= stdev + mean * 1e-12).count();
        prop_assert_eq!(latency.fraction_within_stdev(1.0), within as f64 / exact.len() as f64);
    }

    #[test]
    fn merging_is_associative_and_commutative(
        a in (values(), values()), b in (values(), values()), c in (values(), values()),
    ) {
        let [a, b, c] = [&a, &b, &c].map(|(recorded, censored)| latency_of(recorded, censored));
        let merged = |parts: [&Latency; 2]| {
            let mut all = parts[0].clone();
            all.merge(parts[1]);
            all
        };
        let left = merged([&merged([&a, &b]), &c]);
        prop_assert_eq!(figures(&left), figures(&merged([&a, &merged([&b, &c])])));
        prop_assert_eq!(figures(&left), figures(&merged([&c, &merged([&b, &a])])));
    }

    #[test]
    fn backfilling_is_wrk_s(exact in prop::collection::vec(0_u64..2048, 0..40), interval in 1_u64..500) {
        let filled = latency_of(&exact, &[]).backfilled(interval);
        prop_assert_eq!(figures(&filled), figures(&latency_of(&naive_backfill(&exact, interval), &[])));
    }

    /// A larger value is spread from the middle of its bucket, unless the exact minimum and maximum narrow it.
    #[test]
    fn backfilling_large_values_is_wrk_s_on_the_buckets(value in 2048_u64..5_000_000_000, part in 1_u64..3_000) {
        let interval = value / part + 1;
        let one = latency_of(&[value], &[]);
        let naive = latency_of(&naive_backfill(&[value], interval), &[]);
        prop_assert_eq!(figures(&one.backfilled(interval)), figures(&naive));
        let (low, high) = (one.histogram().lowest_equivalent(value), one.histogram().highest_equivalent(value));
        let middle = one.histogram().median_equivalent(value);
        let whole = latency_of(&[low, high], &[]).backfilled(interval);
        let made_up = naive_backfill(&[middle, middle], interval).split_off(2);
        prop_assert_eq!(figures(&whole), figures(&latency_of(&[vec![low, high], made_up].concat(), &[])));
    }
}
