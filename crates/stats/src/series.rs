//! Time series that never outgrow their capacity.

/// The content of a [`Series`] for one interval: a count, a sketch, or a struct of these.
pub trait Point: Default {
    /// Adds the values of `other`. The order must not matter: neighbours in time and threads are combined alike.
    fn absorb(&mut self, other: &Self);
}

impl Point for u64 {
    fn absorb(&mut self, other: &Self) {
        *self += other;
    }
}

/// At most `capacity` points of equal width.
///
/// When time passes the last point, neighbours are merged in pairs and the width doubles. A run of any length thus
/// keeps between half the capacity and all of it. Time is an argument: nanoseconds since the caller's start.
#[derive(Clone, Debug)]
pub struct Series<P> {
    points: Vec<P>,
    capacity: usize,
    width_ns: u64,
    first_width_ns: u64,
}

impl<P: Point> Series<P> {
    /// Makes a series whose points are `width_ns` wide (at least 1) until `capacity` of them are full.
    ///
    /// The capacity is made even and at least 2. The memory is allocated and touched now: no later call allocates
    /// (unless `P` does), and a long run uses no more of it than a short one.
    pub fn new(width_ns: u64, capacity: usize) -> Self {
        let capacity = capacity.max(2).next_multiple_of(2);
        let width_ns = width_ns.max(1);
        let mut points = Vec::with_capacity(capacity);
        points.resize_with(capacity, P::default);
        points.clear();
        Self { points, capacity, width_ns, first_width_ns: width_ns }
    }

    /// Returns the point that covers `offset_ns` after the start. Skipped intervals hold `P::default()`.
    #[inline]
    pub fn at(&mut self, offset_ns: u64) -> &mut P {
        let index = offset_ns / self.width_ns;
        if index < self.points.len() as u64 { &mut self.points[index as usize] } else { self.extend_to(offset_ns) }
    }

    /// The points from the start on; point n covers `width_ns` from `n * width_ns`.
    pub fn points(&self) -> &[P] {
        &self.points
    }

    /// The present width of a point, in nanoseconds.
    pub fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// The points with the offset at which each begins, in nanoseconds.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &P)> {
        self.points.iter().enumerate().map(|(index, point)| (index as u64 * self.width_ns, point))
    }

    /// Adds another series with the same start, such as another thread's. The finer of the two is coarsened first.
    ///
    /// # Errors
    ///
    /// [`SeriesMismatch`] when the two were made with different widths; nothing is added then.
    pub fn merge(&mut self, other: &Self) -> Result<(), SeriesMismatch> {
        if self.first_width_ns != other.first_width_ns {
            return Err(SeriesMismatch { ours_ns: self.first_width_ns, theirs_ns: other.first_width_ns });
        }
        for (offset_ns, point) in other.iter() {
            self.at(offset_ns).absorb(point);
        }
        while self.width_ns < other.width_ns {
            self.halve();
        }
        Ok(())
    }

    #[cold]
    fn extend_to(&mut self, offset_ns: u64) -> &mut P {
        while offset_ns / self.width_ns >= self.capacity as u64 {
            self.halve();
        }
        let index = (offset_ns / self.width_ns) as usize;
        while self.points.len() <= index {
            self.points.push(P::default());
        }
        &mut self.points[index]
    }

    /// Merges each pair of neighbours in place.
    fn halve(&mut self) {
        let pairs = self.points.len().div_ceil(2);
        for pair in 0..pairs {
            let mut merged = std::mem::take(&mut self.points[2 * pair]);
            if let Some(second) = self.points.get(2 * pair + 1) {
                merged.absorb(second);
            }
            self.points[pair] = merged;
        }
        self.points.truncate(pairs);
        self.width_ns = self.width_ns.saturating_mul(2);
    }
}

/// The two series have different widths and cannot be merged: make them with the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a series that began with points of {ours_ns} ns cannot take in one that began with {theirs_ns} ns")]
pub struct SeriesMismatch {
    /// The initial width of the receiving series.
    pub ours_ns: u64,
    /// The initial width of the added series.
    pub theirs_ns: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_series_doubles_its_width() {
        let mut series = Series::<u64>::new(10, 4);
        (0..4).for_each(|n| *series.at(n * 10) += n + 1);
        assert_eq!((series.width_ns(), series.points()), (10, [1, 2, 3, 4].as_slice()));
        *series.at(40) += 5;
        assert_eq!((series.width_ns(), series.points()), (20, [3, 7, 5].as_slice()));
        *series.at(81) += 6;
        assert_eq!((series.width_ns(), series.points()), (40, [10, 5, 6].as_slice()));
    }

    #[test]
    fn a_silence_is_filled_with_empty_points() {
        let mut series = Series::<u64>::new(1, 8);
        *series.at(5) += 1;
        assert_eq!(series.points(), [0, 0, 0, 0, 0, 1]);
        assert_eq!(series.iter().last(), Some((5, &1)));
    }

    #[test]
    fn the_end_of_time_fits() {
        let mut series = Series::<u64>::new(1, 3);
        *series.at(0) += 1;
        *series.at(u64::MAX) += 1;
        assert!(series.points().len() <= 4);
        assert_eq!(series.points().iter().sum::<u64>(), 2);
    }

    #[test]
    fn different_widths_do_not_merge() {
        let mut series = Series::<u64>::new(10, 4);
        let refused = series.merge(&Series::new(15, 4)).unwrap_err();
        assert_eq!(refused, SeriesMismatch { ours_ns: 10, theirs_ns: 15 });
    }

    proptest! {
        /// In any order of arrival, and after any number of doublings, each point is the sum of its events.
        #[test]
        fn points_are_the_sums_of_their_events(
            events in prop::collection::vec((0_u64..5_000, 1_u64..5), 1..100),
            others in prop::collection::vec((0_u64..5_000, 1_u64..5), 0..100),
            capacity in 1_usize..20,
            their_capacity in 1_usize..20,
        ) {
            let (mut ours, mut theirs) = (Series::<u64>::new(7, capacity), Series::<u64>::new(7, their_capacity));
            events.iter().for_each(|(at, n)| *ours.at(*at) += n);
            others.iter().for_each(|(at, n)| *theirs.at(*at) += n);
            ours.merge(&theirs).unwrap();
            prop_assert!(ours.points().len() <= capacity.max(2).next_multiple_of(2));
            let width = ours.width_ns();
            for (start, sum) in ours.iter() {
                let naive: u64 =
                    events.iter().chain(&others).filter(|(at, _)| at / width == start / width).map(|(_, n)| n).sum();
                prop_assert_eq!(*sum, naive);
            }
            let all: u64 = events.iter().chain(&others).map(|(_, n)| n).sum();
            prop_assert_eq!(ours.points().iter().sum::<u64>(), all);
        }
    }
}
