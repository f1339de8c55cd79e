//! One quantile of a latency distribution, or its lower bound.

/// A quantile in nanoseconds: exact, or a lower bound if unanswered requests may raise it.
///
/// The order is by value; an exact quantile comes before a bound of the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quantile {
    /// The quantile is this value, to the resolution of its histogram, for any latency of the unanswered requests.
    Exact(u64),
    /// The quantile is this value or greater: it depends on unanswered requests. Reports print it as `>= x`.
    AtLeast(u64),
}

impl Quantile {
    /// The value in nanoseconds; for a bound, the bound.
    pub fn value(self) -> u64 {
        match self {
            Self::Exact(value) | Self::AtLeast(value) => value,
        }
    }

    /// Whether the true quantile may be greater than [`value`](Self::value).
    pub fn is_bound(self) -> bool {
        matches!(self, Self::AtLeast(_))
    }

    fn key(self) -> (u64, bool) {
        (self.value(), self.is_bound())
    }
}

impl Ord for Quantile {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Quantile {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::Quantile::{AtLeast, Exact};

    #[test]
    fn order_is_by_value_and_then_by_certainty() {
        let mut all = [AtLeast(7), Exact(9), Exact(7), AtLeast(3)];
        all.sort();
        assert_eq!(all, [AtLeast(3), Exact(7), AtLeast(7), Exact(9)]);
    }

    #[test]
    fn a_bound_says_so() {
        assert_eq!((AtLeast(5).value(), AtLeast(5).is_bound()), (5, true));
        assert_eq!((Exact(5).value(), Exact(5).is_bound()), (5, false));
    }
}
