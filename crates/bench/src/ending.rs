//! Whether each server was there to the end of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::LostServers;

/// A shorter silence is no sign that a server has gone.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// A silence counts only if it is this many times as long as the slowest response before it.
const TIMES_THE_SLOWEST: u32 = 3;
/// A silence to the end that is too short to count is worth a warning from this length, and this share of the run.
const DOUBTFUL_SILENCE: Duration = Duration::from_millis(100);
const DOUBTFUL_SHARE: u32 = 10;

/// One core's facts about one server at the end of a run. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerState {
    /// The core's connections to it, and those that were up at the end, or when nothing was left to send on them.
    pub(crate) connections: usize,
    pub(crate) alive: usize,
    /// Failed attempts to connect since the last success.
    pub(crate) refused_last: u64,
    /// Requests begun since the last response that timed out, or had no response when the run ended.
    pub(crate) unanswered: u64,
    /// When the last response came, on the monotonic clock; 0: none did.
    pub(crate) last_response: u64,
    /// Responses of the measured part, and the longest service time.
    pub(crate) answered: u64,
    pub(crate) slowest: u64,
    /// The core ended early, because no server was heard of for too long.
    pub(crate) gave_up: bool,
}

/// The facts of a run by which its servers are judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunFacts {
    /// When the measured part began and ended, nanoseconds of the monotonic clock.
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) timeout: Duration,
    /// Each request has its own connection: the number of open ones then means nothing.
    pub(crate) connects_per_request: bool,
    /// Requests that were due and never sent. It is not known for which of several servers.
    pub(crate) unsent: u64,
}

/// How a server ended the run, over all cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerEnding {
    /// Its address.
    pub(crate) name: String,
    connections: usize,
    alive: usize,
    refused_last: u64,
    /// Every core with connections to it had refused ones at the end.
    refused_everywhere: bool,
    gave_up: bool,
    unanswered: u64,
    answered: u64,
    slowest: Duration,
    /// From the last response, or the beginning, to the end.
    silence: Duration,
}

impl ServerEnding {
    pub(crate) fn of<'p>(name: String, states: impl Iterator<Item = &'p ServerState>, span: &RunFacts) -> Self {
        let mut all = Self { name, refused_everywhere: true, ..Self::default() };
        let (mut last_response, mut slowest) = (span.from, 0);
        for state in states.filter(|state| state.connections > 0) {
            all.connections += state.connections;
            all.alive += state.alive;
            all.refused_last += state.refused_last;
            all.refused_everywhere &= state.refused_last > 0;
            all.gave_up |= state.gave_up;
            all.unanswered += state.unanswered;
            all.answered += state.answered;
            last_response = last_response.max(state.last_response);
            slowest = slowest.max(state.slowest);
        }
        all.silence = Duration::from_nanos(span.until.saturating_sub(last_response));
        all.slowest = Duration::from_nanos(slowest);
        all
    }

    /// Failed attempts to connect since the last success.
    pub(crate) fn refused_last(&self) -> u64 {
        self.refused_last
    }

    /// The evidence that the server had gone.
    fn why_gone(&self, span: &RunFacts) -> Option<String> {
        let last = match self.refused_last {
            1 => "the last attempt to connect failed".to_owned(),
            n => format!("the last {n} attempts to connect failed"),
        };
        if self.gave_up && self.refused_last > 0 {
            return Some("no connection could be made any more, so the run was given up".into());
        }
        if self.gave_up && self.unanswered > 0 {
            return Some("the server answered nothing any more, so the run was given up".into());
        }
        if span.connects_per_request {
            // A connect fails now and then; so many in a row mean the end.
            if self.refused_last > 0 && self.refused_everywhere && self.refused_last >= self.connections as u64 {
                return Some(last);
            }
        } else if self.alive == 0 && self.refused_last > 0 {
            return Some(format!("no connection was up at the end, and {last}"));
        }
        // A server that has not responded yet may take as long as the timeout allows.
        let most = self.answered > 0 && self.silence * 2 > span.length();
        let long = most || self.silence >= span.timeout;
        let is_silent = self.unanswered > 0 && long && self.silence >= LEAST_SILENCE && self.outlasts_the_slowest();
        is_silent.then(|| "the server answered nothing any more, though requests were waiting".into())
    }

    /// The doubt about a server that was silent at the end of a run too short to judge it.
    fn doubt(&self, whose: &str, span: &RunFacts) -> Option<String> {
        if self.unanswered == 0 || self.why_gone(span).is_some() {
            return None;
        }
        let (length, timeout) = (seconds(span.length()), seconds(span.timeout));
        let advice = "a longer run (-d) or a shorter --timeout tells a server that is slow from one that hangs";
        if self.answered == 0 {
            return (span.length() < span.timeout).then(|| {
                format!(
                    "{whose} answered nothing: the run ended after {length}, before --timeout ({timeout}) could end a \
                     request; {advice}"
                )
            });
        }
        let worth_a_word = self.silence >= DOUBTFUL_SILENCE && self.silence * DOUBTFUL_SHARE >= span.length();
        (worth_a_word && self.outlasts_the_slowest()).then(|| {
            let waiting = match self.unanswered {
                1 => "a request was".to_owned(),
                n => format!("{n} requests were"),
            };
            format!(
                "{whose} answered nothing in the last {} of {length}, though {waiting} waiting, and the slowest answer \
                 before took {}: {advice}",
                seconds(self.silence),
                seconds(self.slowest)
            )
        })
    }

    fn outlasts_the_slowest(&self) -> bool {
        self.silence > self.slowest * TIMES_THE_SLOWEST
    }
}

impl RunFacts {
    fn length(&self) -> Duration {
        Duration::from_nanos(self.until.saturating_sub(self.from))
    }
}

/// Adds up the states of each server over all cores. `states` has a list per core, in the order of `names`.
pub(crate) fn endings(names: Vec<String>, states: &[&[ServerState]], span: &RunFacts) -> Vec<ServerEnding> {
    let several = names.len() > 1;
    let ending = |(index, name): (usize, String)| {
        let mut ending = ServerEnding::of(name, states.iter().filter_map(|states| states.get(index)), span);
        if !several {
            ending.unanswered += span.unsent;
        }
        ending
    };
    names.into_iter().enumerate().map(ending).collect()
}

/// Says which servers had gone when the run ended; `None` if all were there, or none ever was.
pub(crate) fn gone(servers: &[ServerEnding], span: &RunFacts) -> Option<LostServers> {
    if servers.iter().all(|server| server.answered == 0) {
        // The report says so by itself: it has no responses.
        return None;
    }
    let gone: Vec<(&ServerEnding, String)> =
        servers.iter().filter_map(|server| Some((server, server.why_gone(span)?))).collect();
    let (first, how) = gone.first()?;
    let last = match first.answered {
        0 => "it answered nothing in the whole run".to_owned(),
        _ => format!("the last answer came {} before the end", seconds(first.silence)),
    };
    let several = servers.len() > 1;
    Some(LostServers {
        silent_s: first.silence.as_secs_f64(),
        failed_attempts: first.refused_last,
        why: format!("{how}; {last}"),
        servers: gone.iter().filter(|_| several).map(|(server, _)| server.name.clone()).collect(),
    })
}

/// The doubts about servers that were silent at the end of a run too short to judge them.
pub(crate) fn doubts(servers: &[ServerEnding], span: &RunFacts) -> Vec<String> {
    let several = servers.len() > 1;
    let whose = |server: &ServerEnding| if several { server.name.clone() } else { "the server".to_owned() };
    servers.iter().filter_map(|server| server.doubt(&whose(server), span)).collect()
}

pub(crate) fn seconds(length: Duration) -> String {
    if length < Duration::from_secs(1) {
        format!("{} ms", length.as_millis())
    } else {
        format!("{:.1} s", length.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Ten seconds of kept connections.
    fn span() -> RunFacts {
        RunFacts { from: SECOND, until: 11 * SECOND, timeout: Duration::from_secs(2), ..RunFacts::default() }
    }

    /// Ten connections that are up, each with a request; the last response came at the very end.
    fn state() -> ServerState {
        ServerState {
            connections: 10,
            alive: 10,
            unanswered: 10,
            last_response: 11 * SECOND,
            answered: 100,
            slowest: 5_000_000,
            ..ServerState::default()
        }
    }

    /// A server that has been silent for so many milliseconds.
    fn silent(ms: u64) -> ServerState {
        ServerState { last_response: 11 * SECOND - ms * 1_000_000, ..state() }
    }

    fn judge(servers: &[&[ServerState]], span: RunFacts) -> Option<LostServers> {
        let cores = servers.first().map_or(0, |states| states.len());
        let names = (0..servers.len()).map(|index| format!("server-{index}")).collect();
        let of = |core| servers.iter().map(|states| states[core]).collect::<Vec<_>>();
        let states: Vec<Vec<ServerState>> = (0..cores).map(of).collect();
        let states: Vec<&[ServerState]> = states.iter().map(Vec::as_slice).collect();
        gone(&endings(names, &states, &span), &span)
    }

    fn why(state: ServerState) -> Option<String> {
        judge(&[&[state]], span()).map(|gone| gone.why)
    }

    #[test]
    fn a_server_without_a_connection_that_takes_none_has_gone() {
        assert_eq!(why(state()), None);
        let dead = ServerState { alive: 0, refused_last: 1, ..silent(20) };
        let said = why(dead).unwrap();
        assert!(said.contains("no connection was up") && said.contains("20 ms before"), "{said}");
        // Those that are being made again at that moment are no sign.
        assert_eq!(why(ServerState { alive: 0, ..state() }), None);
        assert_eq!(why(ServerState { alive: 1, refused_last: 50, ..state() }), None, "one is still served");
        assert_eq!(why(ServerState { answered: 0, ..dead }), None, "it was never there");
        // The connections of a core that was done before count as up.
        let given_up = ServerState { alive: 2, gave_up: true, refused_last: 46, ..state() };
        assert!(why(given_up).unwrap().starts_with("no connection could be made any more"));
        // Where no port was left it is not the server that kept connections from being made.
        assert_eq!(why(ServerState { gave_up: true, alive: 0, unanswered: 0, ..state() }), None);
        let hung = ServerState { gave_up: true, ..state() };
        assert!(why(hung).unwrap().contains("answered nothing any more, so the run was given up"));
    }

    #[test]
    fn with_a_connection_per_request_the_last_attempts_tell() {
        let span = RunFacts { connects_per_request: true, ..span() };
        let of = |states: &[ServerState]| judge(&[states], span).map(|gone| gone.why);
        let each = |refused_last| ServerState { connections: 5, alive: 0, refused_last, ..state() };
        assert_eq!(of(&[each(4), each(5)]), None);
        assert!(of(&[each(4), each(6)]).unwrap().starts_with("the last 10 attempts to connect failed"));
        assert_eq!(of(&[each(10), each(0)]), None, "another core is served");
        let none = ServerState { connections: 0, refused_last: 0, ..ServerState::default() };
        assert!(of(&[each(5), none]).is_some(), "that core has no connection to it");
    }

    #[test]
    fn a_silence_to_the_end_is_told_and_a_slow_answer_is_not() {
        assert!(why(silent(4000)).unwrap().contains("answered nothing any more"));
        assert_eq!(why(ServerState { unanswered: 0, ..silent(4000) }), None);
        assert_eq!(why(ServerState { slowest: 2 * SECOND, ..silent(4000) }), None);
        let of = |state, timeout| judge(&[&[state]], RunFacts { timeout, ..span() });
        assert_eq!(of(silent(4000), Duration::from_secs(30)), None);
        assert_eq!(of(silent(900), Duration::from_millis(20)), None);
        // More than half of the run is silence, however long the timeout.
        assert!(of(silent(6000), Duration::from_secs(30)).is_some());
        // Requests that could not even be sent wait too.
        let unsent = RunFacts { unsent: 5, ..span() };
        assert!(judge(&[&[ServerState { unanswered: 0, ..silent(4000) }]], unsent).is_some());
    }

    #[test]
    fn each_of_several_servers_is_judged_by_itself() {
        let two = |other: ServerState| judge(&[&[state()], &[other]], span());
        assert_eq!(two(state()), None);
        let gone = two(silent(4000)).unwrap();
        assert_eq!(gone.servers, ["server-1"]);
        assert!(gone.words().starts_with("server-1 was not there any more when the run ended: "), "{}", gone.words());
        assert!(two(ServerState { alive: 0, refused_last: 1, ..silent(20) }).is_some());
        // One that never answered is told here, as others did.
        let never = two(ServerState { answered: 0, last_response: 0, ..state() }).unwrap();
        assert!(never.why.ends_with("it answered nothing in the whole run"), "{never:?}");
        let both = judge(&[&[silent(4000)], &[silent(5000)]], span()).unwrap();
        assert!(both.words().starts_with("server-0 and server-1 were not there any more"), "{}", both.words());
        assert_eq!((both.servers.len(), both.silent_s), (2, 4.0));
        let slow = ServerState { answered: 0, last_response: 0, ..state() };
        let patient = RunFacts { timeout: Duration::from_secs(30), ..span() };
        assert_eq!(judge(&[&[state()], &[slow]], patient), None, "its answers may take longer than the run");
    }

    fn doubt(state: ServerState, span: RunFacts) -> Vec<String> {
        doubts(&endings(vec!["server".into()], &[&[state]], &span), &span)
    }

    #[test]
    fn a_run_too_short_for_its_timeout_says_what_it_cannot_tell() {
        let short = RunFacts { until: 2 * SECOND, ..span() };
        let nothing = ServerState { answered: 0, last_response: 0, ..state() };
        let [said] = &doubt(nothing, short)[..] else { panic!("one doubt") };
        assert!(said.contains("the run ended after 1.0 s, before --timeout (2.0 s) could end a request"), "{said}");
        assert_eq!(doubt(nothing, span()), [""; 0], "the timeouts tell");
        assert_eq!(doubt(ServerState { unanswered: 0, ..nothing }, short), [""; 0]);

        let frozen = |ms: u64| ServerState { last_response: 2 * SECOND - ms * 1_000_000, ..state() };
        let [said] = &doubt(frozen(600), short)[..] else { panic!("one doubt") };
        assert!(said.contains("nothing in the last 600 ms of 1.0 s, though 10 requests were waiting"), "{said}");
        assert_eq!(doubt(frozen(99), short), [""; 0]);
        assert_eq!(doubt(ServerState { slowest: SECOND / 4, ..frozen(600) }, short), [""; 0], "answers take that long");
        assert_eq!(doubt(silent(900), span()), [""; 0], "less than a tenth of the run");
        assert_eq!(doubt(silent(4000), span()), [""; 0], "the server has gone, which says it all");
    }
}
