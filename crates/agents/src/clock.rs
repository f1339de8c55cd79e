//! The offset of another machine's monotonic clock, by rounds of question and reply.

/// What is known of another clock. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    best: Option<(i128, u64)>,
    rounds: u32,
}

impl Offset {
    /// Takes a round: when the question left, what the other clock showed, and when the reply came.
    ///
    /// The other clock was read at some moment between the two, so its offset is known to half of the round trip. The
    /// round with the least round trip counts.
    pub fn round(&mut self, asked: u64, theirs: u64, replied: u64) {
        let Some(trip) = replied.checked_sub(asked) else { return };
        self.rounds += 1;
        if self.best.is_none_or(|(_, least)| trip < least) {
            self.best = Some((i128::from(theirs) - i128::from(asked + trip / 2), trip));
        }
    }

    /// How many rounds there were.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// How far the offset may be off: half of the least round trip, rounded up. `None` before the first round.
    #[must_use]
    pub fn bound(&self) -> Option<u64> {
        self.best.map(|(_, trip)| trip.div_ceil(2))
    }

    /// What the other clock shows at `ours`.
    #[must_use]
    pub fn theirs(&self, ours: u64) -> Option<u64> {
        self.best.and_then(|(offset, _)| u64::try_from(i128::from(ours) + offset).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_offset_is_within_the_bound() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..500 {
            let true_offset = random.i64(-1_000_000_000_000..1_000_000_000_000);
            let mut offset = Offset::default();
            let mut now = 2_000_000_000_000_u64;
            for _ in 0..20 {
                let (there, back) = (random.u64(10_000..3_000_000), random.u64(10_000..3_000_000));
                offset.round(now, (now + there).saturating_add_signed(true_offset), now + there + back);
                now += 10_000_000;
            }
            let error = offset.theirs(now).unwrap().abs_diff(now.saturating_add_signed(true_offset));
            assert!(error <= offset.bound().unwrap(), "{error} ns off, bound {:?}", offset.bound());
        }
        assert_eq!(Offset::default().theirs(5), None);
    }
}
