//! Whether the server was there to the end of a run.

use std::time::Duration;

use crate::record::Gone;

/// A silence that is shorter than this is none.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// A silence is one only if it is this many times as long as the slowest answer before it.
const TIMES_THE_SLOWEST: u32 = 3;

/// How a run ended, over all cores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ending {
    /// Connections of the plan, and those that were up at the end, or when nothing was left to send on them.
    pub(crate) connections: usize,
    pub(crate) alive: usize,
    /// Each request has a connection of its own: how many are up then says nothing.
    pub(crate) connects_per_request: bool,
    /// Attempts to connect that failed since the last one that did not.
    pub(crate) refused_last: u64,
    /// Every core has had some of these.
    pub(crate) refused_everywhere: bool,
    /// A core ended early, as none of its connections could be made any more for twice the timeout. Those of other cores, which had sent all
    /// that was theirs, may still count as up.
    pub(crate) gave_up: bool,
    /// Requests that had no answer when the run ended, or were never sent.
    pub(crate) waiting: u64,
    /// From the last answer, or the beginning, to the end.
    pub(crate) silence: Duration,
    pub(crate) elapsed: Duration,
    pub(crate) timeout: Duration,
    /// The slowest answer.
    pub(crate) slowest: Duration,
    pub(crate) answered: u64,
}

/// How the server had gone when the run ended; `None` if it was there, or never was.
pub(crate) fn gone(e: &Ending) -> Option<Gone> {
    if e.answered == 0 {
        // The report says that nothing was answered.
        return None;
    }
    let gone = |how: &str| {
        let why = format!("{how}; the last answer came {} before the end", seconds(e.silence));
        Some(Gone { silent_s: e.silence.as_secs_f64(), failed_attempts: e.refused_last, why })
    };
    let last = |n: u64| match n {
        1 => "the last attempt to connect failed".to_owned(),
        n => format!("the last {n} attempts to connect failed"),
    };
    if e.gave_up {
        return gone("no connection could be made any more, so the run was given up");
    }
    if e.connects_per_request {
        // One that fails now and then is no end: so many in turn are.
        if e.refused_everywhere && e.refused_last >= e.connections as u64 {
            return gone(&last(e.refused_last));
        }
    } else if e.alive == 0 && e.refused_last > 0 {
        return gone(&format!("no connection was up at the end, and {}", last(e.refused_last)));
    }
    let long = e.silence >= e.timeout || e.silence * 2 > e.elapsed;
    let silent = e.silence >= LEAST_SILENCE && e.silence > e.slowest * TIMES_THE_SLOWEST;
    if e.waiting > 0 && long && silent {
        return gone("the server answered nothing any more, though requests were waiting");
    }
    None
}

fn seconds(length: Duration) -> String {
    if length < Duration::from_secs(1) {
        format!("{} ms", length.as_millis())
    } else {
        format!("{:.1} s", length.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Ending {
        Ending {
            connections: 10,
            alive: 10,
            refused_everywhere: true,
            waiting: 10,
            elapsed: Duration::from_secs(10),
            timeout: Duration::from_secs(2),
            slowest: Duration::from_millis(5),
            answered: 100,
            ..Ending::default()
        }
    }

    #[test]
    fn a_server_without_a_connection_that_takes_none_has_gone() {
        assert_eq!(gone(&kept()), None);
        let dead = Ending { alive: 0, refused_last: 1, silence: Duration::from_millis(20), ..kept() };
        let why = gone(&dead).unwrap().why;
        assert!(why.contains("no connection was up") && why.contains("20 ms before"), "{why}");
        // Those that are being made again at that moment are no sign.
        assert_eq!(gone(&Ending { alive: 0, ..kept() }), None);
        assert_eq!(gone(&Ending { alive: 1, refused_last: 50, ..kept() }), None, "one is still served");
        assert_eq!(gone(&Ending { answered: 0, ..dead }), None, "it was never there");
        // The connections of a thread that was done before count as up.
        let given_up = Ending { alive: 2, gave_up: true, refused_last: 46, ..kept() };
        assert!(gone(&given_up).unwrap().why.starts_with("no connection could be made any more"));
    }

    #[test]
    fn with_a_connection_per_request_the_last_attempts_tell() {
        let each = Ending { connects_per_request: true, alive: 0, refused_last: 9, ..kept() };
        assert_eq!(gone(&each), None);
        let all = Ending { refused_last: 10, ..each };
        assert!(gone(&all).unwrap().why.starts_with("the last 10 attempts to connect failed"));
        assert_eq!(gone(&Ending { refused_everywhere: false, ..all }), None, "another thread is served");
    }

    #[test]
    fn a_silence_to_the_end_is_told_and_a_slow_answer_is_not() {
        let silent = Ending { silence: Duration::from_secs(4), ..kept() };
        assert!(gone(&silent).unwrap().why.contains("answered nothing any more"));
        for other in [
            Ending { waiting: 0, ..silent },
            Ending { slowest: Duration::from_secs(2), ..silent },
            Ending { timeout: Duration::from_secs(30), ..silent },
            Ending { silence: Duration::from_millis(900), timeout: Duration::from_millis(20), ..silent },
        ] {
            assert_eq!(gone(&other), None, "{other:?}");
        }
        // More than half of the run is silence, however long the timeout.
        assert!(
            gone(&Ending { silence: Duration::from_secs(6), timeout: Duration::from_secs(30), ..silent }).is_some()
        );
    }
}
