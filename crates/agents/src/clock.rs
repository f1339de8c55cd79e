//! The offset of another machine's monotonic clock, by rounds of question and reply.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Which monotonic clock a process reads: a digest of what [`oroshi_net::clock::name`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockId([u8; 16]);

impl ClockId {
    /// The clock with this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }

    /// The clock of this process; `None` if it cannot be told apart from others.
    #[must_use]
    pub fn own() -> Option<Self> {
        oroshi_net::clock::name().map(|name| Self::new(&name))
    }
}

/// What is known of another clock. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    best: Option<(i128, u64)>,
    rounds: u32,
    /// Both sides name the same clock.
    same: bool,
}

impl Offset {
    /// An offset of which no round is known. `same`: both sides name the same clock.
    ///
    /// A name alone is no proof, because copies of a virtual machine share it. The offset is 0, and exact, if the
    /// rounds do not contradict that.
    #[must_use]
    pub fn new(same: bool) -> Self {
        Self { same, ..Self::default() }
    }

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

    /// How far the offset may be off: half of the least round trip, rounded up; 0 if both sides read one clock. `None`
    /// before the first round.
    #[must_use]
    pub fn bound(&self) -> Option<u64> {
        self.known().map(|(_, bound)| bound)
    }

    /// What the other clock shows at `ours`.
    #[must_use]
    pub fn theirs(&self, ours: u64) -> Option<u64> {
        self.known().and_then(|(offset, _)| u64::try_from(i128::from(ours) + offset).ok())
    }

    /// The offset, and how far it may be off.
    fn known(&self) -> Option<(i128, u64)> {
        let (offset, trip) = self.best?;
        let bound = trip.div_ceil(2);
        let is_one_clock = self.same && offset.unsigned_abs() <= u128::from(bound);
        Some(if is_one_clock { (0, 0) } else { (offset, bound) })
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
    #[test]
    fn one_clock_has_no_offset_unless_the_rounds_contradict_its_name() {
        let mut one = Offset::new(true);
        assert_eq!((one.bound(), one.theirs(5)), (None, None));
        one.round(1_000_000, 1_090_000, 1_100_000);
        assert_eq!((one.bound(), one.theirs(7_000_000)), (Some(0), Some(7_000_000)));
        // A copy of a virtual machine, which has the name too.
        let mut copy = Offset::new(true);
        copy.round(1_000_000, 9_050_000, 1_100_000);
        assert_eq!((copy.bound(), copy.theirs(7_000_000)), (Some(50_000), Some(15_000_000)));
        let mut other = Offset::new(false);
        other.round(1_000_000, 1_090_000, 1_100_000);
        assert_eq!((other.bound(), other.theirs(7_000_000)), (Some(50_000), Some(7_040_000)));
        assert_ne!(ClockId::new("a boot"), ClockId::new("another boot"));
        assert_eq!(ClockId::own(), ClockId::own());
    }
}
