//! Whether the servers were there to the end of a run: each is judged by itself.

use std::time::Duration;

use crate::record::Gone;

/// A silence that is shorter than this is none.
const LEAST_SILENCE: Duration = Duration::from_secs(1);
/// A silence is one only if it is this many times as long as the slowest answer before it.
const TIMES_THE_SLOWEST: u32 = 3;
/// A silence to the end that is too short to be one is worth a word from this length on, and from this share of the run.
const DOUBTFUL_SILENCE: Duration = Duration::from_millis(100);
const DOUBTFUL_SHARE: u32 = 10;

/// What one core knows of one server at the end. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The core's connections to it, and those that were up at the end, or when nothing was left to send on them.
    pub(crate) connections: usize,
    pub(crate) alive: usize,
    /// Attempts to connect that failed since the last one that did not.
    pub(crate) refused_last: u64,
    /// Requests set about since the last answer that timed out, or had none when the run ended.
    pub(crate) unanswered: u64,
    /// When the last answer came, on the monotonic clock; 0: none did.
    pub(crate) last_answer: u64,
    /// Answers of the measured part, and the slowest one's service time.
    pub(crate) answered: u64,
    pub(crate) slowest: u64,
    /// The core ended early, as it heard nothing for too long.
    pub(crate) gave_up: bool,
}

/// A run whose servers are judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// When the measured part began and ended, nanoseconds of the monotonic clock.
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) timeout: Duration,
    /// Each request has a connection of its own: how many are up then says nothing.
    pub(crate) connects_per_request: bool,
    /// Requests that were due and never sent. With several servers it is not known for which.
    pub(crate) unsent: u64,
}

/// How a server ended the run, over all cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    /// Its address.
    pub(crate) name: String,
    connections: usize,
    alive: usize,
    refused_last: u64,
    /// Every core with connections to it has had some of these.
    refused_everywhere: bool,
    gave_up: bool,
    unanswered: u64,
    answered: u64,
    slowest: Duration,
    /// From the last answer, or the beginning, to the end.
    silence: Duration,
}

impl Ending {
    pub(crate) fn of<'p>(name: String, places: impl Iterator<Item = &'p Place>, span: &Span) -> Self {
        let mut all = Self { name, refused_everywhere: true, ..Self::default() };
        let (mut last_answer, mut slowest) = (span.from, 0);
        for place in places.filter(|place| place.connections > 0) {
            all.connections += place.connections;
            all.alive += place.alive;
            all.refused_last += place.refused_last;
            all.refused_everywhere &= place.refused_last > 0;
            all.gave_up |= place.gave_up;
            all.unanswered += place.unanswered;
            all.answered += place.answered;
            last_answer = last_answer.max(place.last_answer);
            slowest = slowest.max(place.slowest);
        }
        all.silence = Duration::from_nanos(span.until.saturating_sub(last_answer));
        all.slowest = Duration::from_nanos(slowest);
        all
    }

    /// Attempts to connect that failed since the last one that did not.
    pub(crate) fn refused_last(&self) -> u64 {
        self.refused_last
    }

    /// What tells that the server had gone.
    fn why_gone(&self, span: &Span) -> Option<String> {
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
            // One that fails now and then is no end: so many in turn are.
            if self.refused_last > 0 && self.refused_everywhere && self.refused_last >= self.connections as u64 {
                return Some(last);
            }
        } else if self.alive == 0 && self.refused_last > 0 {
            return Some(format!("no connection was up at the end, and {last}"));
        }
        // One that has not answered yet may take as long as the timeout allows.
        let most = self.answered > 0 && self.silence * 2 > span.length();
        let long = most || self.silence >= span.timeout;
        let is_silent = self.unanswered > 0 && long && self.silence >= LEAST_SILENCE && self.outlasts_the_slowest();
        is_silent.then(|| "the server answered nothing any more, though requests were waiting".into())
    }

    /// What is doubtful of a server that answered nothing at the end of a run too short to judge it.
    fn doubt(&self, whose: &str, span: &Span) -> Option<String> {
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

impl Span {
    fn length(&self) -> Duration {
        Duration::from_nanos(self.until.saturating_sub(self.from))
    }
}

/// Brings together what is known of each server: `places` has a list for each core, in the order of `names`.
pub(crate) fn endings(names: Vec<String>, places: &[&[Place]], span: &Span) -> Vec<Ending> {
    let several = names.len() > 1;
    let ending = |(index, name): (usize, String)| {
        let mut ending = Ending::of(name, places.iter().filter_map(|places| places.get(index)), span);
        if !several {
            ending.unanswered += span.unsent;
        }
        ending
    };
    names.into_iter().enumerate().map(ending).collect()
}

/// How servers had gone when the run ended; `None` if all were there, or none ever was.
pub(crate) fn gone(servers: &[Ending], span: &Span) -> Option<Gone> {
    if servers.iter().all(|server| server.answered == 0) {
        // The report says that nothing was answered.
        return None;
    }
    let gone: Vec<(&Ending, String)> =
        servers.iter().filter_map(|server| Some((server, server.why_gone(span)?))).collect();
    let (first, how) = gone.first()?;
    let last = match first.answered {
        0 => "it answered nothing in the whole run".to_owned(),
        _ => format!("the last answer came {} before the end", seconds(first.silence)),
    };
    let several = servers.len() > 1;
    Some(Gone {
        silent_s: first.silence.as_secs_f64(),
        failed_attempts: first.refused_last,
        why: format!("{how}; {last}"),
        servers: gone.iter().filter(|_| several).map(|(server, _)| server.name.clone()).collect(),
    })
}

/// What is doubtful of servers that answered nothing at the end, where the run was too short to judge them.
pub(crate) fn doubts(servers: &[Ending], span: &Span) -> Vec<String> {
    let several = servers.len() > 1;
    let whose = |server: &Ending| if several { server.name.clone() } else { "the server".to_owned() };
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
    fn span() -> Span {
        Span { from: SECOND, until: 11 * SECOND, timeout: Duration::from_secs(2), ..Span::default() }
    }

    /// Ten connections that are up, each with a request; the last answer came at the very end.
    fn place() -> Place {
        Place {
            connections: 10,
            alive: 10,
            unanswered: 10,
            last_answer: 11 * SECOND,
            answered: 100,
            slowest: 5_000_000,
            ..Place::default()
        }
    }

    /// A place that has been silent for so many milliseconds.
    fn silent(ms: u64) -> Place {
        Place { last_answer: 11 * SECOND - ms * 1_000_000, ..place() }
    }

    fn judge(servers: &[&[Place]], span: Span) -> Option<Gone> {
        let cores = servers.first().map_or(0, |places| places.len());
        let names = (0..servers.len()).map(|index| format!("server-{index}")).collect();
        let of = |core| servers.iter().map(|places| places[core]).collect::<Vec<_>>();
        let places: Vec<Vec<Place>> = (0..cores).map(of).collect();
        let places: Vec<&[Place]> = places.iter().map(Vec::as_slice).collect();
        gone(&endings(names, &places, &span), &span)
    }

    fn why(place: Place) -> Option<String> {
        judge(&[&[place]], span()).map(|gone| gone.why)
    }

    #[test]
    fn a_server_without_a_connection_that_takes_none_has_gone() {
        assert_eq!(why(place()), None);
        let dead = Place { alive: 0, refused_last: 1, ..silent(20) };
        let said = why(dead).unwrap();
        assert!(said.contains("no connection was up") && said.contains("20 ms before"), "{said}");
        // Those that are being made again at that moment are no sign.
        assert_eq!(why(Place { alive: 0, ..place() }), None);
        assert_eq!(why(Place { alive: 1, refused_last: 50, ..place() }), None, "one is still served");
        assert_eq!(why(Place { answered: 0, ..dead }), None, "it was never there");
        // The connections of a core that was done before count as up.
        let given_up = Place { alive: 2, gave_up: true, refused_last: 46, ..place() };
        assert!(why(given_up).unwrap().starts_with("no connection could be made any more"));
        // Where no port was left it is not the server that kept connections from being made.
        assert_eq!(why(Place { gave_up: true, alive: 0, unanswered: 0, ..place() }), None);
        let hung = Place { gave_up: true, ..place() };
        assert!(why(hung).unwrap().contains("answered nothing any more, so the run was given up"));
    }

    #[test]
    fn with_a_connection_per_request_the_last_attempts_tell() {
        let span = Span { connects_per_request: true, ..span() };
        let of = |places: &[Place]| judge(&[places], span).map(|gone| gone.why);
        let each = |refused_last| Place { connections: 5, alive: 0, refused_last, ..place() };
        assert_eq!(of(&[each(4), each(5)]), None);
        assert!(of(&[each(4), each(6)]).unwrap().starts_with("the last 10 attempts to connect failed"));
        assert_eq!(of(&[each(10), each(0)]), None, "another core is served");
        let none = Place { connections: 0, refused_last: 0, ..Place::default() };
        assert!(of(&[each(5), none]).is_some(), "that core has no connection to it");
    }

    #[test]
    fn a_silence_to_the_end_is_told_and_a_slow_answer_is_not() {
        assert!(why(silent(4000)).unwrap().contains("answered nothing any more"));
        assert_eq!(why(Place { unanswered: 0, ..silent(4000) }), None);
        assert_eq!(why(Place { slowest: 2 * SECOND, ..silent(4000) }), None);
        let of = |place, timeout| judge(&[&[place]], Span { timeout, ..span() });
        assert_eq!(of(silent(4000), Duration::from_secs(30)), None);
        assert_eq!(of(silent(900), Duration::from_millis(20)), None);
        // More than half of the run is silence, however long the timeout.
        assert!(of(silent(6000), Duration::from_secs(30)).is_some());
        // What could not even be sent waits too.
        let unsent = Span { unsent: 5, ..span() };
        assert!(judge(&[&[Place { unanswered: 0, ..silent(4000) }]], unsent).is_some());
    }

    #[test]
    fn each_of_several_servers_is_judged_by_itself() {
        let two = |other: Place| judge(&[&[place()], &[other]], span());
        assert_eq!(two(place()), None);
        let gone = two(silent(4000)).unwrap();
        assert_eq!(gone.servers, ["server-1"]);
        assert!(gone.words().starts_with("server-1 was not there any more when the run ended: "), "{}", gone.words());
        assert!(two(Place { alive: 0, refused_last: 1, ..silent(20) }).is_some());
        // One that never answered is told here, as others did.
        let never = two(Place { answered: 0, last_answer: 0, ..place() }).unwrap();
        assert!(never.why.ends_with("it answered nothing in the whole run"), "{never:?}");
        let both = judge(&[&[silent(4000)], &[silent(5000)]], span()).unwrap();
        assert!(both.words().starts_with("server-0 and server-1 were not there any more"), "{}", both.words());
        assert_eq!((both.servers.len(), both.silent_s), (2, 4.0));
        let slow = Place { answered: 0, last_answer: 0, ..place() };
        let patient = Span { timeout: Duration::from_secs(30), ..span() };
        assert_eq!(judge(&[&[place()], &[slow]], patient), None, "its answers may take longer than the run");
    }

    fn doubt(place: Place, span: Span) -> Vec<String> {
        doubts(&endings(vec!["server".into()], &[&[place]], &span), &span)
    }

    #[test]
    fn a_run_too_short_for_its_timeout_says_what_it_cannot_tell() {
        let short = Span { until: 2 * SECOND, ..span() };
        let nothing = Place { answered: 0, last_answer: 0, ..place() };
        let [said] = &doubt(nothing, short)[..] else { panic!("one doubt") };
        assert!(said.contains("the run ended after 1.0 s, before --timeout (2.0 s) could end a request"), "{said}");
        assert_eq!(doubt(nothing, span()), [""; 0], "the timeouts tell");
        assert_eq!(doubt(Place { unanswered: 0, ..nothing }, short), [""; 0]);

        let frozen = |ms: u64| Place { last_answer: 2 * SECOND - ms * 1_000_000, ..place() };
        let [said] = &doubt(frozen(600), short)[..] else { panic!("one doubt") };
        assert!(said.contains("nothing in the last 600 ms of 1.0 s, though 10 requests were waiting"), "{said}");
        assert_eq!(doubt(frozen(99), short), [""; 0]);
        assert_eq!(doubt(Place { slowest: SECOND / 4, ..frozen(600) }, short), [""; 0], "answers take that long");
        assert_eq!(doubt(silent(900), span()), [""; 0], "less than a tenth of the run");
        assert_eq!(doubt(silent(4000), span()), [""; 0], "the server has gone, which says it all");
    }
}
