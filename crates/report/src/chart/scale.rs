//! Maps values to positions from 0 to 1, and chooses an axis' labels.

/// A scale. Values outside map to the nearer end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Equal steps for equal differences.
    Linear {
        /// Left or lower end.
        low: f64,
        /// Right or upper end; greater than `low`.
        high: f64,
    },
    /// Equal steps for equal factors.
    Log {
        /// Left or lower end; positive.
        low: f64,
        /// Right or upper end; greater than `low`.
        high: f64,
    },
    /// Quantiles by their distance from 1: 0.9, 0.99, 0.999 are equally spaced.
    Nines {
        /// Number of nines: 3 ends at 0.999.
        nines: f64,
    },
    /// Separate items, counted from 0.
    Categories {
        /// Number of items.
        count: usize,
    },
}

impl Scale {
    /// Makes a scale from zero to a round number, at least the greatest of `values`.
    pub(crate) fn from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let most = finite(values).fold(0.0, f64::max);
        if most <= 0.0 {
            return Self::Linear { low: 0.0, high: 1.0 };
        }
        let step = step_of(most, 5);
        Self::Linear { low: 0.0, high: (most / step - 1e-9).ceil() * step }
    }

    /// Makes the same for bytes, where 1,024 is round instead of 1,000.
    pub(crate) fn bytes_from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let most = finite(values).fold(1.0, f64::max);
        let step = step_of_bytes(most, 5);
        Self::Linear { low: 0.0, high: (most / step - 1e-9).ceil() * step }
    }

    /// Makes a linear scale that shows `values` as large as possible, perhaps without zero.
    pub(crate) fn close_to(values: impl IntoIterator<Item = f64>) -> Self {
        let Some((low, high)) = ends(finite(values)) else {
            return Self::Linear { low: 0.0, high: 1.0 };
        };
        let margin = if high > low { (high - low) * 0.1 } else { low.abs().max(1.0) * 0.05 };
        // Values of one sign stay on their side of zero.
        let low = if low >= 0.0 { (low - margin).max(0.0) } else { low - margin };
        Self::Linear { low, high: high + margin }
    }

    /// Makes a logarithmic scale for the positive `values`, over at least a factor of two.
    pub(crate) fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let positive = finite(values).filter(|value| *value > 0.0).map(|value| value.max(1.0 / FARTHEST));
        let Some((low, high)) = ends(positive) else { return Self::Log { low: 1.0, high: 10.0 } };
        let margin = (high / low).powf(0.04).max((2.0 * low / high).sqrt()).max(1.03);
        Self::Log { low: low / margin, high: high * margin }
    }

    /// Returns the position of a value, 0 to 1.
    pub(crate) fn at(self, value: f64) -> f64 {
        let place = match self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } if value > 0.0 => (value / low).ln() / (high / low).ln(),
            Self::Log { .. } => 0.0,
            Self::Nines { nines } if value < 1.0 => -(1.0 - value).log10() / nines,
            Self::Nines { .. } => 1.0,
            Self::Categories { count } => (value + 0.5) / count.max(1) as f64,
        };
        if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
    }

    /// Returns round numbers of bytes for labels.
    pub(crate) fn byte_ticks(self, most: usize) -> Vec<f64> {
        match self {
            Self::Linear { low, high } => multiples(low, high, step_of_bytes(high - low, most)),
            _ => self.ticks(most),
        }
    }

    /// Returns round values for labels, about `most` of them, in order.
    pub(crate) fn ticks(self, most: usize) -> Vec<f64> {
        match self {
            Self::Linear { low, high } => multiples(low, high, step_of(high - low, most)),
            Self::Log { low, high } => log_ticks(low, high, most),
            Self::Nines { nines } => nine_ticks(nines),
            Self::Categories { count } => {
                let every = count.div_ceil(most.max(1)).max(1);
                (0..count).step_by(every).map(|place| place as f64).collect()
            }
        }
    }
}

/// Ignored ends: beyond any measured value, from intervals without information.
const FARTHEST: f64 = 1e18;

fn finite(values: impl IntoIterator<Item = f64>) -> impl Iterator<Item = f64> {
    values.into_iter().filter(|value| value.is_finite()).map(|value| value.clamp(-FARTHEST, FARTHEST))
}

/// Returns the least and the greatest value.
pub(crate) fn ends<T: PartialOrd + Copy>(values: impl IntoIterator<Item = T>) -> Option<(T, T)> {
    values.into_iter().fold(None, |ends, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((if value < low { value } else { low }, if value > high { value } else { high }))
    })
}

/// Returns the least of 1, 2 and 5 times a power of ten that cuts `span` into at most `most` parts.
fn step_of(span: f64, most: usize) -> f64 {
    let rough = span / most.max(1) as f64;
    if !(rough.is_finite() && rough > 0.0) {
        return 1.0;
    }
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough * (1.0 - 1e-9));
    step.unwrap_or(10.0) * power
}

/// Returns the same in the unit of the span: 5 MiB, not 5,000,000 bytes.
fn step_of_bytes(span: f64, most: usize) -> f64 {
    let mut unit = 1.0;
    while span / unit >= 1024.0 {
        unit *= 1024.0;
    }
    step_of(span / unit, most).max(if unit > 1.0 { 0.0 } else { 1.0 }) * unit
}

fn multiples(low: f64, high: f64, step: f64) -> Vec<f64> {
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    // A quotient where that is exact: 3 * 0.1 is not 0.3.
    let value = |n: i64| if step < 1.0 { n as f64 / (1.0 / step).round() } else { n as f64 * step };
    (first..=last.min(first.saturating_add(100))).map(value).collect()
}

fn log_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let decades = (high / low).log10();
    // Such a small range contains at most one power of ten.
    if decades < 0.8 {
        return multiples(low, high, step_of(high - low, most));
    }
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let factors: &[f64] = match decades / most.max(1) as f64 {
        each if each < 0.26 => &[1.0, 2.0, 5.0],
        each if each < 0.5 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let every = ((decades / most.max(1) as f64).ceil() as i32).max(1);
    let inside = |value: &f64| *value >= low * (1.0 - 1e-9) && *value <= high * (1.0 + 1e-9);
    let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
    powers.flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power))).filter(inside).collect()
}

fn nine_ticks(nines: f64) -> Vec<f64> {
    let whole = (nines + 1e-9).floor().max(0.0) as i32;
    let middle = if nines < 6.0 { Some(0.5) } else { None };
    let after = (1..=whole).map(|n| 1.0 - 10_f64.powi(-n));
    std::iter::once(0.0).chain(middle).chain(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_its_place_and_never_leaves_the_scale() {
        let linear = Scale::Linear { low: 10.0, high: 20.0 };
        assert_eq!([linear.at(10.0), linear.at(15.0), linear.at(99.0), linear.at(-1.0)], [0.0, 0.5, 1.0, 0.0]);
        let log = Scale::Log { low: 1.0, high: 100.0 };
        assert!((log.at(10.0) - 0.5).abs() < 1e-12);
        assert_eq!([log.at(0.0), log.at(-3.0), log.at(f64::NAN), log.at(f64::INFINITY)], [0.0, 0.0, 0.0, 1.0]);
        let places = Scale::Categories { count: 4 };
        assert_eq!([places.at(0.0), places.at(3.0)], [0.125, 0.875]);
    }

    #[test]
    fn nines_lie_equally_far_from_each_other() {
        let nines = Scale::Nines { nines: 4.0 };
        for (q, place) in [(0.0, 0.0), (0.9, 0.25), (0.99, 0.5), (0.999, 0.75), (0.9999, 1.0), (1.0, 1.0)] {
            assert!((nines.at(q) - place).abs() < 1e-9, "{q}");
        }
        let ticks: Vec<String> = nines.ticks(9).into_iter().map(crate::figure::percentile).collect();
        assert_eq!(ticks, ["0", "50", "90", "99", "99.9", "99.99"]);
        let ticks = Scale::Nines { nines: 6.2 }.ticks(9);
        assert_eq!((ticks.len(), crate::figure::percentile(*ticks.last().unwrap())), (7, "99.9999".into()));
    }

    #[test]
    fn linear_ticks_are_round() {
        let ticks = |low, high, most| Scale::Linear { low, high }.ticks(most);
        assert_eq!(ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.0, 0.3, 3), [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(ticks(-5.0, 5.0, 2), [-5.0, 0.0, 5.0]);
        assert_eq!(ticks(97.0, 103.0, 4), [98.0, 100.0, 102.0]);
        let mib = |n: f64| n * 1024.0 * 1024.0;
        let bytes = Scale::bytes_from_zero([mib(13.7)]);
        assert_eq!(bytes, Scale::Linear { low: 0.0, high: mib(15.0) });
        assert_eq!(bytes.byte_ticks(3), [0.0, mib(5.0), mib(10.0), mib(15.0)]);
    }

    #[test]
    fn log_ticks_fit_the_room_and_narrow_ranges_have_some_too() {
        let ticks = |low, high, most| Scale::Log { low, high }.ticks(most);
        assert_eq!(ticks(1.0, 1000.0, 5), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(ticks(1.0, 10.0, 6), [1.0, 2.0, 5.0, 10.0]);
        assert!(ticks(1.0, 1e12, 5).len() <= 6);
        for (low, high) in [(540.0, 561.0), (1.1, 1.9), (3.0, 18.0), (0.02, 0.3), (9.0, 2000.0)] {
            let ticks = ticks(low, high, 5);
            assert!((2..=8).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (low * 0.999..high * 1.001).contains(tick)), "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn scales_hold_their_values_whatever_they_are() {
        for values in [
            &[][..],
            &[0.0],
            &[5.0],
            &[5.0, 5.0],
            &[f64::NAN],
            &[f64::INFINITY, 2.0],
            &[1e-9, 1e15],
            &[f64::MIN_POSITIVE, 1.0, f64::MAX],
        ] {
            for scale in
                [Scale::from_zero(values.to_vec()), Scale::close_to(values.to_vec()), Scale::log(values.to_vec())]
            {
                let (Scale::Linear { low, high } | Scale::Log { low, high }) = scale else { panic!("{scale:?}") };
                assert!(low.is_finite() && high.is_finite() && low < high, "{values:?}: {scale:?}");
                assert!(!scale.ticks(5).is_empty(), "{values:?}: {scale:?}");
            }
        }
        assert_eq!(Scale::from_zero([93.0]), Scale::Linear { low: 0.0, high: 100.0 });
        assert_eq!(Scale::from_zero([100.0]), Scale::Linear { low: 0.0, high: 100.0 });
        let (Scale::Linear { low, high } | Scale::Log { low, high }) = Scale::log([100.0, 100.0]) else { panic!() };
        assert!(high / low >= 2.0 - 1e-9, "what hardly changes is not blown up: {low} to {high}");
    }

    #[test]
    fn categories_are_named_as_long_as_there_is_room() {
        assert_eq!(Scale::Categories { count: 3 }.ticks(6), [0.0, 1.0, 2.0]);
        assert_eq!(Scale::Categories { count: 12 }.ticks(6).len(), 6);
        assert!(Scale::Categories { count: 0 }.ticks(6).is_empty());
    }
}
