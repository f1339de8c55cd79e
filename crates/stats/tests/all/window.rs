//! The rate of simulated connections with known rates: exact for constant times, unbiased for others, with the stated
//! error if the window opens with the first requests.

use fastrand::Rng;
use oroshi_stats::{Throughput, WindowCount};
use proptest::prelude::*;

/// A second, nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// One connection that sends requests one after the other from `start` on, seen through a window that opens at
/// `from`.
fn connection(start: u64, from: u64, until: u64, mut time: impl FnMut() -> u64) -> WindowCount {
    let mut window = WindowCount::from(from);
    window.close(until);
    let mut began = start;
    while began < until {
        let ended = began + time();
        window.answered(began, ended);
        began = ended;
    }
    window
}

/// Draws a service time; the mean is 100 ms.
fn time(shape: &str, rng: &mut Rng) -> u64 {
    let mean = 1e8;
    (match shape {
        "constant" => mean,
        "uniform" => 2.0 * mean * rng.f64(),
        "exponential" => -(1.0 - rng.f64()).ln() * mean,
        "bimodal" if rng.u8(..10) == 0 => 5.5 * mean,
        "bimodal" => 0.5 * mean,
        other => panic!("{other}"),
    }) as u64
}

/// The shapes, each with the square of its coefficient of variation.
const SHAPES: [(&str, f64); 4] = [("constant", 0.0), ("uniform", 1.0 / 3.0), ("exponential", 1.0), ("bimodal", 2.25)];

proptest! {
    #[test]
    fn of_constant_times_the_rate_is_exact_wherever_the_window_lies(
        delay in 1_000u64..2_000_000_000,
        phases in prop::collection::vec(0.0..1.0f64, 1..20),
        from in 0u64..3_000_000_000,
        length in 1_000_000u64..3_000_000_000,
    ) {
        prop_assume!(length / delay < 5_000);
        // Each begins at a different moment before the window.
        let windows: Vec<WindowCount> = phases.iter().map(|phase| {
            let from = from + 2 * SECOND;
            connection(from - (phase * delay as f64) as u64, from, from + length, || delay)
        }).collect();
        let truth = phases.len() as f64 / (delay as f64 / SECOND as f64);
        let found = Throughput::of(&windows).per_second;
        prop_assert!((found / truth - 1.0).abs() < 1e-9, "{found} instead of {truth}");
    }

    /// Consecutive requests: each moment of the window belongs to one of them, so none is counted twice or omitted.
    #[test]
    fn windows_one_after_the_other_hold_what_one_window_holds(
        times in prop::collection::vec(1u64..1_000_000, 1..50),
        cut in 0.0..1.0f64,
    ) {
        let end: u64 = times.iter().sum();
        let cut = (cut * end as f64) as u64;
        let of = |from, until| {
            let mut left = times.iter();
            connection(0, from, until, || *left.next().unwrap()).requests()
        };
        prop_assert!((of(0, cut) + of(cut, end) - times.len() as f64).abs() < 1e-9);
    }
}

/// Returns the mean error of the windows' counts over many connections, in requests, and its standard error.
fn excess(shape: &str, warm_up: u64, length: u64) -> (f64, f64) {
    let mut rng = Rng::with_seed(11);
    let connections = 40_000;
    let truth = length as f64 / 1e8;
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..connections {
        // Out of step, as after a warm-up in which they began one after the other.
        let start = if warm_up > 0 { rng.u64(..SECOND / 10) } else { 0 };
        let off = connection(start, warm_up, warm_up + length, || time(shape, &mut rng)).requests() - truth;
        sum += off;
        squares += off * off;
    }
    let mean = sum / f64::from(connections);
    (mean, (squares / f64::from(connections) / f64::from(connections)).sqrt())
}

#[test]
fn after_a_warm_up_the_rate_is_unbiased_for_every_distribution() {
    for (shape, _) in SHAPES {
        // Short windows too: from half a request on.
        for length in [SECOND / 20, SECOND / 3, SECOND] {
            let (mean, error) = excess(shape, 3 * SECOND, length);
            assert!(
                mean.abs() <= 4.0 * error + 1e-6,
                "{shape}, {length} ns: off by {mean} ± {error} requests per connection"
            );
        }
    }
}

#[test]
fn without_a_warm_up_it_is_off_by_half_the_square_of_the_coefficient_of_variation() {
    for (shape, squared) in SHAPES {
        let (mean, error) = excess(shape, 0, 3 * SECOND);
        assert!(
            (mean - squared / 2.0).abs() <= 4.0 * error + 1e-6,
            "{shape}: off by {mean} ± {error} instead of {}",
            squared / 2.0
        );
    }
}

/// The count of whole responses for the same data: the reason why we do not use it.
#[test]
fn whole_answers_depend_on_the_edges() {
    let whole = |delay: u64| (SECOND + SECOND / 4) / delay - SECOND / 4 / delay;
    assert_eq!([whole(96_000_000), whole(103_000_000)], [11, 10]);
    let shares = |delay: u64| connection(0, SECOND / 4, SECOND + SECOND / 4, || delay).requests();
    assert!((shares(103_000_000) / shares(96_000_000) - 96.0 / 103.0).abs() < 1e-9);
}
