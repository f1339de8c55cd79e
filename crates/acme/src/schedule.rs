//! When a certificate is renewed, and when a failed attempt is repeated. Times are seconds since 1970; `chance` is a
//! random number from 0 to 1.

use std::time::Duration;

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// How often renewal information is asked for, whatever the authority says (RFC 9773, section 4.3.2, has 6 hours as the
/// usual time).
const LOOKS: (i64, i64) = (HOUR, DAY);

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) begin: i64,
    pub(crate) end: i64,
}

/// The times at which the authority wants a renewal (RFC 9773, section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) begin: i64,
    pub(crate) end: i64,
}

/// Returns when to renew without advice: when a third of the lifetime is left, and up to a thirtieth of it earlier, so
/// that certificates issued together are not renewed together.
pub(crate) fn renewal(validity: Validity, chance: f64) -> i64 {
    let life = (validity.end - validity.begin).max(0);
    validity.end - life / 3 - (life as f64 / 30.0 * chance) as i64
}

/// Returns when to renew by the authority's advice: a random time in its window. A window that is none, or that begins
/// after the end of the validity, is no advice.
pub(crate) fn advised(validity: Validity, window: Window, now: i64, chance: f64) -> Option<i64> {
    if window.end <= window.begin || window.begin >= validity.end {
        return None;
    }
    let length = (window.end - window.begin) as f64;
    // The window may end after the validity; the last tenth of the lifetime is for attempts that fail.
    let latest = validity.end - (validity.end - validity.begin).max(0) / 10;
    Some((window.begin + (length * chance) as i64).min(latest.max(window.begin)).max(now))
}

/// Returns when to look at a valid certificate again: at its renewal, and before that to ask for advice. `again`: when
/// the authority wants to be asked; `None`: it gives no advice.
pub(crate) fn next_look(renew_at: i64, now: i64, again: Option<Duration>) -> i64 {
    match again {
        None => renew_at,
        Some(again) => renew_at.min(now.saturating_add(seconds(again).clamp(LOOKS.0, LOOKS.1))),
    }
}

/// Returns how long a name waits after so many failures in a row: five minutes, doubled with each, a day at most:
/// the best known authority lets a name fail five times an hour. A name
/// with a certificate waits a tenth of the certificate's lifetime at most, so that short-lived ones get enough
/// attempts. `wanted`: the time that the authority asks for.
pub(crate) fn back_off(failures: i64, life: Option<i64>, wanted: Option<Duration>, chance: f64) -> i64 {
    let most = life.map_or(DAY, |life| (life / 10).clamp(HOUR, DAY));
    doubled(5 * MINUTE, failures, most, wanted, chance)
}

/// Returns how long this machine leaves the authority alone after so many failures in a row that were not the fault of
/// a name: ten seconds, doubled with each, an hour at most.
pub(crate) fn pause(failures: i64, wanted: Option<Duration>, chance: f64) -> i64 {
    doubled(10, failures, HOUR, wanted, chance)
}

/// Half of the wait is by chance, so that machines that failed together do not try together.
fn doubled(first: i64, failures: i64, most: i64, wanted: Option<Duration>, chance: f64) -> i64 {
    let exponent = u32::try_from((failures - 1).clamp(0, 30)).unwrap_or_default();
    let wait = first.saturating_mul(1 << exponent).min(most) as f64;
    let wait = (wait * (0.5 + chance / 2.0)) as i64;
    wait.max(1).max(wanted.map_or(0, |wanted| seconds(wanted).min(DAY)))
}

pub(crate) fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn lasting(days: i64) -> Validity {
        Validity { begin: NOW, end: NOW + days * DAY }
    }

    #[test]
    fn a_third_of_the_lifetime_is_left_at_the_renewal() {
        assert_eq!(renewal(lasting(90), 0.0), NOW + 60 * DAY);
        assert_eq!(renewal(lasting(90), 1.0), NOW + 57 * DAY, "three days earlier at most");
        assert_eq!(renewal(lasting(6), 0.0), NOW + 4 * DAY);
        assert_eq!(renewal(lasting(6), 0.5), NOW + 4 * DAY - DAY / 10);
        let odd = Validity { begin: NOW, end: NOW - DAY };
        assert_eq!(renewal(odd, 1.0), NOW - DAY, "a certificate that ends before it begins");
    }

    #[test]
    fn advice_is_followed_where_it_makes_sense() {
        let window = Window { begin: NOW + 50 * DAY, end: NOW + 52 * DAY };
        assert_eq!(advised(lasting(90), window, NOW, 0.0), Some(NOW + 50 * DAY));
        assert_eq!(advised(lasting(90), window, NOW, 0.5), Some(NOW + 51 * DAY));
        let past = Window { begin: NOW - 2 * DAY, end: NOW - DAY };
        assert_eq!(advised(lasting(90), past, NOW, 0.7), Some(NOW), "at once, for example before a revocation");
        for bad in [
            Window { begin: NOW + DAY, end: NOW + DAY },
            Window { begin: NOW + 2 * DAY, end: NOW + DAY },
            Window { begin: NOW + 90 * DAY, end: NOW + 91 * DAY },
        ] {
            assert_eq!(advised(lasting(90), bad, NOW, 0.5), None, "{bad:?}");
        }
        let late = Window { begin: NOW + 60 * DAY, end: NOW + 100 * DAY };
        assert_eq!(advised(lasting(90), late, NOW, 1.0), Some(NOW + 81 * DAY));
    }

    #[test]
    fn advice_is_asked_for_hourly_to_daily() {
        let renew_at = NOW + 60 * DAY;
        assert_eq!(next_look(renew_at, NOW, None), renew_at);
        assert_eq!(next_look(renew_at, NOW, Some(Duration::from_secs(6 * 3600))), NOW + 6 * HOUR);
        assert_eq!(next_look(renew_at, NOW, Some(Duration::ZERO)), NOW + HOUR);
        assert_eq!(next_look(renew_at, NOW, Some(Duration::MAX)), NOW + DAY);
        assert_eq!(next_look(NOW + 5, NOW, Some(Duration::MAX)), NOW + 5);
    }

    #[test]
    fn waits_double_up_to_their_bounds() {
        let waits: Vec<i64> = (1..=4).map(|failures| back_off(failures, None, None, 1.0)).collect();
        assert_eq!(waits, [300, 600, 1200, 2400]);
        assert_eq!(back_off(3, None, None, 0.0), 600, "half by chance");
        assert_eq!(back_off(i64::MAX, None, None, 1.0), DAY);
        assert_eq!(back_off(100, Some(6 * DAY), None, 1.0), 6 * DAY / 10, "a certificate of 6 days");
        assert_eq!(back_off(100, Some(0), None, 1.0), HOUR);
        assert_eq!(back_off(1, None, Some(Duration::from_secs(7200)), 0.0), 7200, "the authority asks for more");
        assert_eq!(back_off(1, None, Some(Duration::MAX), 0.0), DAY);
        assert_eq!([1, 2, 9, 10, 1000].map(|failures| pause(failures, None, 1.0)), [10, 20, 2560, HOUR, HOUR]);
        // A day without the authority costs each machine about 30 attempts.
        let (mut at, mut failures) = (0, 0);
        while at < DAY {
            failures += 1;
            at += pause(failures, None, 1.0);
        }
        assert!((25..40).contains(&failures), "{failures}");
    }
}
