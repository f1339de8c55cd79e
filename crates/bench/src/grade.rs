//! The bottleneck of a run: the server, the generator, the machine, the ports, or none of them.

use serde::{Deserialize, Serialize};

use crate::machine::MachineRecord;
use crate::watch::ServerUsage;

/// A thread of ours this busy adds to what it measures (other tools warn at 80 to 90 %). A server whose busiest thread,
/// or all of whose allowed CPUs, are this busy has no more to give.
const BUSY: f64 = 0.85;
/// From this share of failed requests, missing ports shaped the run.
const PORTS_SHARE: f64 = 0.001;
/// From this share of failed requests, or of ended subscriptions, the failures are the result, and not the pace.
pub(crate) const FAILED_SHARE: f64 = 0.1;
/// From this share of responses with an error (a status, a check), the errors are the result.
const WRONG_SHARE: f64 = 0.5;
/// An open loop that achieved this share of its timetable kept it.
pub(crate) const ON_SCHEDULE: f64 = 0.99;
/// The machine has no CPU left when this share of all CPUs is used.
const MACHINE_BUSY: f64 = 0.9;
/// A shorter run has no grade, seconds: CPU time comes in slices, and its beginning and end weigh too much.
pub(crate) const LEAST_SECONDS: f64 = 0.1;
/// So many times the connections that a rate needs on average suffice for it, unless responses stop.
const SUFFICE: f64 = 2.0;
/// With more connections than this, the grade does not advise to add more.
const MANY_CONNECTIONS: usize = 1000;

/// The bottleneck of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// The server had no CPU left: the run measured its limit.
    ServerBound,
    /// The generator had no CPU left: the figures say little about the server.
    GeneratorBound,
    /// Local ports ran out.
    PortBound,
    /// Neither side was busy: so many connections with such response times send no more (Little's law).
    LatencyBound,
    /// The load kept its timetable: the rate is the one asked for.
    RateBound,
    /// All CPUs were busy, and neither side was at its own limit: other processes took CPU time, or both sides shared
    /// too few CPUs.
    MachineBound,
    /// The server had gone when the run ended: the figures are of the time before.
    ServerGone,
    /// The run was too short, or had too many failures.
    NotGraded,
}

impl Bottleneck {
    /// The name in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ServerBound => "server-bound",
            Self::GeneratorBound => "generator-bound",
            Self::PortBound => "port-bound",
            Self::LatencyBound => "latency-bound",
            Self::RateBound => "rate-bound",
            Self::MachineBound => "machine-bound",
            Self::ServerGone => "server-gone",
            Self::NotGraded => "not-graded",
        }
    }
}

/// The bottleneck of a run, with the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grade {
    /// The bottleneck of a run.
    pub bottleneck: Bottleneck,
    /// The evidence and its limits, in one sentence.
    pub because: String,
    /// The advice, if there is any.
    pub advice: Option<String>,
}

impl Grade {
    pub(crate) fn new(bottleneck: Bottleneck, because: String, advice: Option<&str>) -> Self {
        Self { bottleneck, because, advice: advice.map(Into::into) }
    }
}

/// How busy the two sides and the machine were.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Utilisation {
    /// CPU share of the busiest of our threads, of one core.
    pub(crate) generator: f64,
    pub(crate) server: Option<ServerEvidence>,
    /// Share of all CPUs' time that was used, by anybody.
    pub(crate) machine: Option<f64>,
}

impl Utilisation {
    pub(crate) fn of(generator: f64, server: Option<&ServerUsage>, machine: Option<&MachineRecord>) -> Self {
        let evidence = |usage: &ServerUsage| ServerEvidence {
            busiest_thread: usage.busiest_thread,
            of_allowed: usage.of_allowed_cpus,
        };
        Self { generator, server: server.map(evidence), machine: machine.and_then(|machine| machine.busy_share) }
    }

    pub(crate) fn is_generator_busy(&self) -> bool {
        self.generator >= BUSY
    }

    pub(crate) fn is_server_busy(&self) -> bool {
        self.server.is_some_and(|server| server.busiest_thread >= BUSY || server.of_allowed >= BUSY)
    }

    /// The machine's share of used CPU time, where it had no CPU left.
    pub(crate) fn busy_machine(&self) -> Option<f64> {
        self.machine.filter(|busy| *busy >= MACHINE_BUSY)
    }
}

/// The evidence for a grade.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Length of the measured part, seconds.
    pub(crate) elapsed_s: f64,
    /// How the server had gone, in words.
    pub(crate) gone: Option<String>,
    pub(crate) sides: Utilisation,
    /// CPUs' worth of time that neither the server nor oroshi used.
    pub(crate) others_cpus: f64,
    /// Responses that are errors, by their status or a check.
    pub(crate) wrong: u64,
    pub(crate) started: u64,
    pub(crate) failed: u64,
    pub(crate) completed: u64,
    pub(crate) ports_exhausted: u64,
    /// Open loop: the share of due requests that got a response.
    pub(crate) achieved: Option<f64>,
    /// Open loop: requests that were due and never sent.
    pub(crate) unsent: u64,
    /// A server was silent at the end, though requests were waiting.
    pub(crate) stalled: bool,
    /// Connections that suffice for the due requests, at the mean response time.
    pub(crate) needed: Option<f64>,
    /// Requests that may be in progress at once: connections, or streams of all of them.
    pub(crate) lanes: usize,
    /// The load speaks HTTP/2.
    pub(crate) http2: bool,
    /// The load is users with journeys, not connections.
    pub(crate) journeys: bool,
}

/// How busy the server was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerEvidence {
    /// Busiest thread, share of one core.
    pub(crate) busiest_thread: f64,
    /// All processes, share of all CPUs they may use.
    pub(crate) of_allowed: f64,
}

/// Says what limited a run.
pub(crate) fn grade(e: &Evidence) -> Grade {
    let sides = SidesInWords::of(&e.sides);
    not_measured(e)
        .or_else(|| generator_limit(e, &sides))
        .or_else(|| other_limit(e, &sides))
        .unwrap_or_else(|| latency_limit(e, &sides))
}

/// How busy the two sides were, in words.
struct SidesInWords {
    ours: String,
    theirs: String,
}

impl SidesInWords {
    fn of(sides: &Utilisation) -> Self {
        let theirs = match sides.server {
            Some(s) => format!(
                "the server's busiest thread {} of one, and {} of the CPUs it may use",
                percent(s.busiest_thread),
                percent(s.of_allowed)
            ),
            None => "the server's CPU time is not known".to_owned(),
        };
        Self { ours: format!("the generator's busiest thread used {} of a core", percent(sides.generator)), theirs }
    }
}

/// The grade of a run whose figures say little of either side's speed.
fn not_measured(e: &Evidence) -> Option<Grade> {
    if let Some(why) = &e.gone {
        return Some(Grade::new(
            Bottleneck::ServerGone,
            format!("{why}; {} requests were answered before", e.completed),
            Some("find out why it ended (its log, dmesg), and measure again: these figures are of the time before"),
        ));
    }
    if e.ports_exhausted > 0 && e.ports_exhausted as f64 >= PORTS_SHARE * e.started as f64 {
        return Some(Grade::new(
            Bottleneck::PortBound,
            format!("{} attempts to connect found no free local port", e.ports_exhausted),
            Some("keep connections, spread over --source addresses, or measure over a unix socket"),
        ));
    }
    if e.started == 0 || e.completed == 0 {
        let advice = (e.failed > 0).then_some("look at the failures first");
        return Some(Grade::new(Bottleneck::NotGraded, "nothing was answered".to_owned(), advice));
    }
    if e.elapsed_s < LEAST_SECONDS {
        return Some(Grade::new(
            Bottleneck::NotGraded,
            format!("{:.0} ms are too short to tell who set the pace", e.elapsed_s * 1e3),
            Some("measure for a second at least (-d, or more requests)"),
        ));
    }
    None
}

/// The grade of a run in which the generator was busy.
fn generator_limit(e: &Evidence, SidesInWords { ours, theirs }: &SidesInWords) -> Option<Grade> {
    let sides = &e.sides;
    let server_busy = sides.is_server_busy();
    let server_first = server_busy && sides.server.is_some_and(|s| s.busiest_thread > sides.generator);
    if sides.is_generator_busy() {
        if server_first {
            let advice =
                "the generator was close to its own limit: with more threads (-t) on free CPUs the figures may change";
            return Some(Grade::new(Bottleneck::ServerBound, format!("{theirs}; {ours}"), Some(advice)));
        }
        let advice = if server_busy {
            "both sides were at their limit: give each CPUs of its own (--cpus), or more threads (-t)"
        } else {
            "the server could do more than this shows: use more threads (-t) on free CPUs, or a second machine"
        };
        return Some(Grade::new(Bottleneck::GeneratorBound, format!("{ours}, {theirs}"), Some(advice)));
    }
    None
}

/// The grade of a run that a timetable, the server, failures or the machine limited.
fn other_limit(e: &Evidence, SidesInWords { ours, theirs }: &SidesInWords) -> Option<Grade> {
    let wrong = if e.wrong > 0 { format!(" ({} of them with an error)", e.wrong) } else { String::new() };
    match e.achieved {
        Some(achieved) if achieved >= ON_SCHEDULE => {
            return Some(Grade::new(
                Bottleneck::RateBound,
                format!(
                    "{} of {} requests that were due were answered{wrong}; {ours}, {theirs}",
                    e.completed, e.started
                ),
                None,
            ));
        }
        _ => {}
    }
    if e.sides.is_server_busy() {
        return Some(Grade::new(Bottleneck::ServerBound, format!("{theirs}; {ours}"), None));
    }
    if e.failed as f64 > FAILED_SHARE * e.started as f64 || e.wrong as f64 > WRONG_SHARE * e.completed as f64 {
        let (failed, started) = (e.failed, e.started);
        return Some(Grade::new(
            Bottleneck::NotGraded,
            format!("of {started} requests {failed} failed and {} were answered{wrong}; {ours}, {theirs}", e.completed),
            Some("look at the failures first: what was answered says little while so much is not"),
        ));
    }
    if let Some(busy) = e.sides.busy_machine() {
        let others = format!("other processes used {:.1} CPUs", e.others_cpus);
        return Some(Grade::new(
            Bottleneck::MachineBound,
            format!("{} of all CPUs' time was used; {ours}, {theirs}; {others}", percent(busy)),
            Some("more connections change nothing: free CPUs, or give each side CPUs of its own (--cpus)"),
        ));
    }
    if e.achieved.is_some() && e.unsent == 0 {
        return Some(Grade::new(
            Bottleneck::RateBound,
            format!(
                "all of {} requests that were due were sent, and {} were answered{wrong}; {ours}, {theirs}",
                e.started, e.completed
            ),
            Some(
                "look at the requests without an answer: the server failed them or stalled, and more connections would \
                 not change that",
            ),
        ));
    }
    None
}

/// The grade of a run in which neither side was busy.
fn latency_limit(e: &Evidence, SidesInWords { ours, theirs }: &SidesInWords) -> Grade {
    let many = e.lanes >= MANY_CONNECTIONS;
    let sufficed = e.needed.is_some_and(|needed| e.lanes as f64 >= SUFFICE * needed);
    let advice = match (e.sides.server, e.achieved) {
        (_, Some(_)) if e.stalled || sufficed => Some(
            "the timetable was not kept although there were connections enough for it at the mean answer time: the \
             server stalled for a time; find out what it waited for",
        ),
        (_, None) if e.stalled => {
            Some("the server answered nothing at the end: find out what it waited for, and measure again")
        }
        (None, _) => Some(
            "look at the server's CPU (or name its process with --watch): if it is busy, this is the server's limit",
        ),
        (Some(_), _) if e.journeys => {
            Some("use more users (--users) to find the server's limit; pauses of the script are no work for it")
        }
        (Some(_), _) if many => Some(
            "more connections are not what is missing: look for what the answers wait for, or use --rate to see the \
             latency at a given load",
        ),
        (Some(_), Some(_)) if e.http2 => Some(
            "the timetable was not kept although neither side was busy: use more connections (-c) or streams (--streams)",
        ),
        (Some(_), None) if e.http2 => Some(
            "use more connections (-c) or streams (--streams) to find the server's limit, or --rate to see its latency \
             at a given load",
        ),
        (Some(_), Some(_)) => {
            Some("the timetable was not kept although neither side was busy: use more connections (-c)")
        }
        (Some(_), None) => {
            Some("use more connections (-c) to find the server's limit, or --rate to see its latency at a given load")
        }
    };
    let who = match e.journeys {
        true => "users paused or",
        false if e.http2 => "streams",
        false => "connections",
    };
    let because = format!("{} {who} waited for answers; {ours}, {theirs}", e.lanes);
    Grade::new(Bottleneck::LatencyBound, because, advice)
}

/// A share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(e: Evidence) -> Bottleneck {
        grade(&Evidence { started: 1000, completed: 1000, lanes: 10, elapsed_s: 1.0, ..e }).bottleneck
    }

    fn sides(generator: f64, busiest_thread: Option<f64>) -> Utilisation {
        let server = |busiest_thread| ServerEvidence { busiest_thread, of_allowed: busiest_thread / 2.0 };
        Utilisation { generator, server: busiest_thread.map(server), machine: None }
    }

    #[test]
    fn the_busier_side_is_named_and_a_busy_generator_is_never_passed_over() {
        assert_eq!(of(Evidence { sides: sides(0.6, Some(0.99)), ..Evidence::default() }), Bottleneck::ServerBound);
        assert_eq!(of(Evidence { sides: sides(0.97, Some(0.5)), ..Evidence::default() }), Bottleneck::GeneratorBound);
        assert_eq!(of(Evidence { sides: sides(0.99, Some(0.97)), ..Evidence::default() }), Bottleneck::GeneratorBound);
        let close =
            Evidence { sides: sides(0.9, Some(0.99)), started: 1, completed: 1, elapsed_s: 1.0, ..Evidence::default() };
        assert_eq!(grade(&close).bottleneck, Bottleneck::ServerBound);
        assert!(grade(&close).advice.is_some(), "a generator that is nearly at its limit is not passed over");
        assert_eq!(of(Evidence { sides: sides(0.97, Some(0.5)), ..Evidence::default() }), Bottleneck::GeneratorBound);
        assert_eq!(
            of(Evidence { sides: sides(0.97, None), achieved: Some(1.0), ..Evidence::default() }),
            Bottleneck::GeneratorBound
        );
        assert_eq!(of(Evidence { sides: sides(0.05, Some(0.05)), ..Evidence::default() }), Bottleneck::LatencyBound);
    }

    #[test]
    fn a_server_that_cannot_be_seen_is_not_declared_innocent() {
        let unseen = grade(&Evidence {
            sides: sides(0.3, None),
            started: 9,
            completed: 9,
            lanes: 10,
            elapsed_s: 1.0,
            ..Evidence::default()
        });
        assert_eq!(unseen.bottleneck, Bottleneck::LatencyBound);
        assert!(unseen.because.contains("not known") && unseen.advice.unwrap().contains("--watch"));
    }

    #[test]
    fn a_kept_timetable_is_bound_by_its_rate_and_a_missed_one_is_not() {
        assert_eq!(
            of(Evidence { sides: sides(0.3, Some(0.99)), achieved: Some(0.999), ..Evidence::default() }),
            Bottleneck::RateBound
        );
        assert_eq!(
            of(Evidence { sides: sides(0.3, Some(0.99)), achieved: Some(0.5), ..Evidence::default() }),
            Bottleneck::ServerBound
        );
    }

    #[test]
    fn failures_come_before_advice_on_connections() {
        let hung = grade(&Evidence {
            started: 100,
            failed: 50,
            completed: 50,
            sides: sides(0.0, Some(0.01)),
            elapsed_s: 1.0,
            ..Evidence::default()
        });
        assert_eq!(hung.bottleneck, Bottleneck::NotGraded);
        assert!(hung.because.starts_with("of 100 requests 50 failed") && hung.advice.unwrap().contains("failures"));
    }

    #[test]
    fn a_few_missing_ports_do_not_make_the_run_about_ports() {
        assert_eq!(of(Evidence { ports_exhausted: 1, ..Evidence::default() }), Bottleneck::PortBound, "1 of 1,000");
        let few = Evidence {
            ports_exhausted: 1,
            started: 1_000_000,
            completed: 999_999,
            elapsed_s: 1.0,
            ..Evidence::default()
        };
        assert_eq!(grade(&few).bottleneck, Bottleneck::LatencyBound);
    }

    fn advice(e: Evidence) -> (Bottleneck, String) {
        let Grade { bottleneck, advice, .. } = grade(&Evidence {
            sides: Utilisation { machine: e.sides.machine, ..sides(0.3, Some(0.3)) },
            elapsed_s: 1.0,
            ..e
        });
        (bottleneck, advice.unwrap_or_default())
    }

    #[test]
    fn more_connections_are_advised_only_where_they_could_help() {
        let ten = Evidence { started: 1000, completed: 1000, lanes: 10, ..Evidence::default() };
        let (_, users) = advice(Evidence { journeys: true, ..ten.clone() });
        assert!(users.contains("--users") && !users.contains("connections"), "{users}");
        let (bottleneck, text) = advice(ten.clone());
        assert!(bottleneck == Bottleneck::LatencyBound && text.contains("more connections (-c)"), "{text}");
        for (e, expected) in [
            // Somebody uses the CPUs.
            (
                Evidence {
                    sides: Utilisation { machine: Some(0.97), ..Utilisation::default() },
                    others_cpus: 1.2,
                    ..ten.clone()
                },
                Bottleneck::MachineBound,
            ),
            (Evidence { lanes: 15_000, ..ten.clone() }, Bottleneck::LatencyBound),
            (Evidence { lanes: 15_000, unsent: 9, achieved: Some(0.5), ..ten.clone() }, Bottleneck::LatencyBound),
            (Evidence { completed: 1, failed: 999, ..ten.clone() }, Bottleneck::NotGraded),
            (Evidence { wrong: 900, ..ten.clone() }, Bottleneck::NotGraded),
            (Evidence { completed: 0, failed: 1000, ..ten.clone() }, Bottleneck::NotGraded),
            // All was sent, and some of it timed out.
            (Evidence { completed: 950, failed: 50, achieved: Some(0.95), ..ten.clone() }, Bottleneck::RateBound),
            // What was not sent found all connections stuck.
            (
                Evidence { completed: 500, unsent: 496, achieved: Some(0.5), stalled: true, ..ten.clone() },
                Bottleneck::LatencyBound,
            ),
            (
                Evidence { completed: 900, unsent: 100, achieved: Some(0.9), needed: Some(5.0), ..ten.clone() },
                Bottleneck::LatencyBound,
            ),
            (Evidence { stalled: true, ..ten.clone() }, Bottleneck::LatencyBound),
        ] {
            let (bottleneck, text) = advice(e);
            assert!(bottleneck == expected && !text.contains("use more connections"), "{bottleneck:?}: {text}");
        }
        let short_of = Evidence { completed: 900, unsent: 100, achieved: Some(0.9), needed: Some(9.5), ..ten.clone() };
        assert!(advice(short_of).1.contains("use more connections"));
        // Five requests in 2 ms.
        let short = grade(&Evidence { started: 5, completed: 5, sides: sides(0.97, None), elapsed_s: 0.002, ..ten });
        assert!(short.bottleneck == Bottleneck::NotGraded && short.because.contains("too short"), "{short:?}");
    }

    #[test]
    fn a_server_that_has_gone_is_told_before_all_else() {
        let e =
            Evidence { gone: Some("it left".into()), completed: 5, sides: sides(0.99, None), ..Evidence::default() };
        let grade = grade(&e);
        assert!(grade.bottleneck == Bottleneck::ServerGone && grade.because.starts_with("it left; 5 requests"));
    }

    #[test]
    fn a_kept_timetable_says_how_much_of_it_and_what_was_wrong() {
        let e = Evidence {
            started: 1000,
            completed: 997,
            failed: 3,
            wrong: 12,
            achieved: Some(0.997),
            elapsed_s: 1.0,
            ..Evidence::default()
        };
        let told = grade(&e);
        assert!(
            told.because.starts_with("997 of 1000 requests that were due were answered (12 of them with an error)"),
            "{told:?}"
        );
    }
}
