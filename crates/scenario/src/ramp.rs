//! The number of users over time.

use std::time::Duration;

use oroshi_words::units;

/// The most users of a run.
pub(crate) const MAX_USERS: u64 = 1_000_000;

/// The most stages of a ramp.
pub(crate) const MAX_STAGES: usize = 1000;

/// The longest ramp: ten years, as the longest time of a flag.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A stretch of time over which the number of users moves in a straight line to `users`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Its length. With 0 the number jumps.
    pub(crate) duration: Duration,
    /// The number at its end.
    pub(crate) users: u64,
}

/// The number of users at each time of a run, as a pure function.
///
/// Between whole numbers it is the nearest one; after the last stage it stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// In order, without empty ones, except the last, which has no end.
    pieces: Vec<Piece>,
}

/// A straight piece. Times are nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    from: u64,
    /// 0: without end.
    duration: u64,
    start: u64,
    end: u64,
}

impl Ramp {
    /// Creates a ramp that begins with `start` users.
    ///
    /// # Errors
    /// A message for the user: there are no stages, or a limit is exceeded.
    pub(crate) fn new(start: u64, stages: &[Stage]) -> Result<Self, String> {
        if stages.is_empty() {
            return Err("the ramp has no stages: expected at least one".to_owned());
        }
        if stages.len() > MAX_STAGES {
            return Err(format!("the ramp has {} stages: expected at most {MAX_STAGES}", stages.len()));
        }
        if let Some(users) = stages.iter().map(|stage| stage.users).chain([start]).find(|users| *users > MAX_USERS) {
            let most = units::count(MAX_USERS);
            return Err(format!("the ramp has {} users: expected at most {most}", units::count(users)));
        }
        let total = stages.iter().try_fold(Duration::ZERO, |sum, stage| sum.checked_add(stage.duration));
        if total.is_none_or(|total| total > LONGEST) {
            return Err("the ramp takes more than ten years: expected shorter stages".to_owned());
        }
        let (mut from, mut users, mut pieces) = (0, start, Vec::with_capacity(stages.len() + 1));
        for stage in stages {
            let duration = stage.duration.as_nanos() as u64;
            if duration > 0 {
                pieces.push(Piece { from, duration, start: users, end: stage.users });
            }
            from += duration;
            users = stage.users;
        }
        pieces.push(Piece { from, duration: 0, start: users, end: users });
        Ok(Self { pieces })
    }

    /// Always so many users.
    pub(crate) fn constant(users: u64) -> Self {
        Ramp { pieces: vec![Piece { from: 0, duration: 0, start: users, end: users }] }
    }

    /// Parses the stages of a flag: `30s:100,1m:100`. It begins with 0 users.
    ///
    /// # Errors
    /// A message for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        let stages = units::parse_stages(text, "USERS", "30s:100,1m:100", units::parse_count)?;
        let stages: Vec<Stage> = stages.into_iter().map(|(duration, users)| Stage { duration, users }).collect();
        Self::new(0, &stages)
    }

    /// Returns the length of all stages.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_nanos(self.pieces.last().map_or(0, |last| last.from))
    }

    /// Returns the largest number of users.
    pub(crate) fn most(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.start.max(piece.end)).max().unwrap_or(0)
    }

    /// Returns the number of users at a time since the start.
    pub(crate) fn users_at(&self, elapsed: Duration) -> u64 {
        let elapsed = nanoseconds(elapsed);
        self.pieces[self.piece_at(elapsed)].users_at(elapsed)
    }

    /// Returns the first time after `elapsed` at which the number of users is another one; `None` if it stays.
    pub(crate) fn next_change(&self, elapsed: Duration) -> Option<Duration> {
        let elapsed = nanoseconds(elapsed);
        let at = self.piece_at(elapsed);
        let users = self.pieces[at].users_at(elapsed);
        let within = self.pieces[at].next_change(elapsed);
        let later = || {
            self.pieces[at + 1..].iter().find_map(|piece| {
                if piece.users_at(piece.from) == users { piece.next_change(piece.from) } else { Some(piece.from) }
            })
        };
        within.or_else(later).map(Duration::from_nanos)
    }

    /// Returns the last piece that has begun.
    fn piece_at(&self, elapsed: u64) -> usize {
        self.pieces.partition_point(|piece| piece.from <= elapsed).saturating_sub(1)
    }
}

impl Piece {
    /// Returns the number at a time within the piece: the nearest whole number, and of two the larger one.
    fn users_at(&self, elapsed: u64) -> u64 {
        if self.duration == 0 {
            return self.start;
        }
        let (length, into) = (i128::from(self.duration), i128::from(elapsed - self.from));
        // The number times twice the length, so that all is exact.
        let doubled = 2 * (i128::from(self.start) * length + self.slope() * into) + length;
        (doubled / (2 * length)) as u64
    }

    /// Returns the first time within the piece, after `elapsed`, at which the number is another one.
    fn next_change(&self, elapsed: u64) -> Option<u64> {
        let (length, start, slope) = (i128::from(self.duration), i128::from(self.start), self.slope());
        let users = i128::from(self.users_at(elapsed));
        // Solves `users_at` for the time: where it reaches the next number, or leaves this one downwards.
        let into = match slope {
            0 => return None,
            1.. => {
                let missing = 2 * length * (users + 1) - length - 2 * start * length;
                (missing + 2 * slope - 1) / (2 * slope)
            }
            _ => (2 * start * length + length - 2 * length * users) / (-2 * slope) + 1,
        };
        // The end belongs to the next piece.
        (into < length).then(|| self.from + into as u64)
    }

    /// Returns the change over the whole piece.
    fn slope(&self) -> i128 {
        i128::from(self.end) - i128::from(self.start)
    }
}

/// Returns a thread's part of `users`. The parts of all threads add up to `users`.
///
/// User 1 belongs to thread 0, user 2 to thread 1, and so on in turn: one user more or less changes one thread's part.
pub(crate) fn share(users: u64, thread: usize, threads: usize) -> u64 {
    let (thread, threads) = (thread as u64, threads.max(1) as u64);
    users / threads + u64::from(thread < users % threads)
}

/// Returns the number, from 1, of a thread's `nth` user, from 0: the number in turn that [`share`] gives it.
pub(crate) fn user(nth: u64, thread: usize, threads: usize) -> u64 {
    nth * threads as u64 + thread as u64 + 1
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn ramp(start: u64, stages: &[(u64, u64)]) -> Ramp {
        let stages: Vec<Stage> = stages.iter().map(|&(time, users)| Stage { duration: ms(time), users }).collect();
        Ramp::new(start, &stages).unwrap()
    }

    #[test]
    fn users_come_and_go_in_straight_lines() {
        let ramp = ramp(0, &[(30_000, 100), (60_000, 100), (10_000, 0)]);
        for (at, users) in [
            (0, 0),
            (149, 0),
            (150, 1),
            (449, 1),
            (450, 2),
            (15_000, 50),
            (29_849, 99),
            (29_850, 100),
            (30_000, 100),
            (90_050, 100),
            (90_051, 99),
            (95_000, 50),
            (99_949, 1),
            (99_951, 0),
            (100_000, 0),
            (1_000_000_000, 0),
        ] {
            assert_eq!(ramp.users_at(ms(at)), users, "{at}");
        }
        assert_eq!((ramp.length(), ramp.most()), (ms(100_000), 100));
        assert_eq!(ramp.next_change(ms(0)), Some(ms(150)));
        assert_eq!(ramp.next_change(ms(150)), Some(ms(450)));
        assert_eq!(ramp.next_change(ms(29_850)), Some(ms(90_050) + Duration::from_nanos(1)));
        assert_eq!(ramp.next_change(ms(100_000)), None);
        assert_eq!(ramp.next_change(Duration::MAX), None);
    }

    #[test]
    fn a_stage_of_no_length_is_a_jump() {
        let ramp = ramp(0, &[(0, 10), (1000, 10), (0, 50), (0, 20), (1000, 20), (0, 0)]);
        let all = [0, 999, 1000, 1999, 2000].map(|at| ramp.users_at(ms(at)));
        assert_eq!(all, [10, 10, 20, 20, 0]);
        assert_eq!(ramp.next_change(ms(0)), Some(ms(1000)));
        assert_eq!(ramp.next_change(ms(1000)), Some(ms(2000)));
        assert_eq!(ramp.next_change(ms(2000)), None);
        // The largest number of all times: nobody sees the 50.
        assert_eq!(ramp.most(), 20);
    }

    #[test]
    fn it_begins_where_it_is_told_to() {
        let ramp = ramp(20, &[(1000, 40)]);
        assert_eq!([0, 500, 1000].map(|at| ramp.users_at(ms(at))), [20, 30, 40]);
    }

    #[test]
    fn flags_have_stages_with_users() {
        let stage = |s, users| Stage { duration: Duration::from_secs(s), users };
        assert_eq!(Ramp::parse("30s:100,1m:1k"), Ramp::new(0, &[stage(30, 100), stage(60, 1000)]));
        let wrong = |text| Ramp::parse(text).unwrap_err();
        assert_eq!(wrong("30s"), "`30s` is no stage: expected TIME:USERS, as in 30s:100,1m:100");
        assert!(wrong("").contains("`` is no stage"));
        assert!(wrong("soon:1").contains("`soon` is no time"));
        assert!(wrong("1s:1.5").contains("`1.5` is no whole number"));
        assert_eq!(wrong("1s:2M"), "the ramp has 2,000,000 users: expected at most 1,000,000");
        assert_eq!(wrong("80000h:1,80000h:1"), "the ramp takes more than ten years: expected shorter stages");
        assert_eq!(wrong(&vec!["1s:1"; 1001].join(",")), "the ramp has 1001 stages: expected at most 1000");
        assert!(Ramp::new(0, &[]).unwrap_err().contains("expected at least one"));
        assert!(Ramp::new(MAX_USERS + 1, &[stage(1, 1)]).unwrap_err().contains("1,000,001 users"));
        Ramp::parse(&vec!["80h:1M"; 1000].join(",")).unwrap();
    }

    #[test]
    fn the_largest_numbers_stay_exact() {
        let ramp = Ramp::new(0, &[Stage { duration: LONGEST, users: MAX_USERS }]).unwrap();
        assert_eq!(ramp.users_at(LONGEST / 2), MAX_USERS / 2);
        let before = LONGEST - Duration::from_nanos(1);
        assert_eq!((ramp.users_at(before), ramp.next_change(before)), (MAX_USERS, None));
    }

    proptest! {
        #[test]
        fn the_next_change_is_the_first_one(
            start in 0u64..30,
            stages in prop::collection::vec((0u64..60, 0u64..30), 1..6),
        ) {
            // In nanoseconds, so that every time can be looked at.
            let stages: Vec<Stage> = stages
                .into_iter()
                .map(|(time, users)| Stage { duration: Duration::from_nanos(time), users })
                .collect();
            let ramp = Ramp::new(start, &stages).unwrap();
            let end = ramp.length().as_nanos() as u64 + 2;
            let users: Vec<u64> = (0..=end).map(|at| ramp.users_at(Duration::from_nanos(at))).collect();
            for at in 0..=end {
                let now = users[at as usize];
                let change = (at + 1..=end).find(|later| users[*later as usize] != now);
                prop_assert_eq!(ramp.next_change(Duration::from_nanos(at)), change.map(Duration::from_nanos));
                prop_assert!(now <= ramp.most());
            }
            prop_assert_eq!(users[end as usize], stages.last().unwrap().users);
        }

        #[test]
        fn threads_have_all_users_once(users in 0u64..1000, threads in 1usize..20) {
            let parts: Vec<u64> = (0..threads).map(|thread| share(users, thread, threads)).collect();
            prop_assert_eq!(parts.iter().sum::<u64>(), users);
            let mut all: Vec<u64> = (0..threads)
                .flat_map(|thread| (0..parts[thread]).map(move |nth| user(nth, thread, threads)))
                .collect();
            all.sort_unstable();
            prop_assert_eq!(all, (1..=users).collect::<Vec<u64>>());
            // One more changes one part, by one.
            let more: Vec<u64> = (0..threads).map(|thread| share(users + 1, thread, threads)).collect();
            prop_assert_eq!(parts.iter().zip(&more).filter(|(part, more)| part != more).count(), 1);
        }
    }
}
