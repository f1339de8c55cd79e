//! Who was the bottleneck: the server, the generator, the ports, or nobody.

use serde::{Deserialize, Serialize};

/// A thread this busy adds to what it measures, whatever the server does: others warn at 80 to 90 %.
const GENERATOR_BUSY: f64 = 0.85;
/// A server whose busiest process, or all of whose allowed CPUs, are this busy has no more to give.
const SERVER_BUSY: f64 = 0.85;
/// Share of failed requests from which running out of ports is what shaped the run.
const PORTS_SHARE: f64 = 0.001;
/// Share of failed requests from which the failures are the result, and not the pace.
const FAILED_SHARE: f64 = 0.1;
/// An open loop that achieved this share of its timetable kept it.
const ON_SCHEDULE: f64 = 0.99;

/// What set the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// The server had no CPU left to give: its limit is what was measured.
    ServerBound,
    /// This tool had none left: the figures say little about the server.
    GeneratorBound,
    /// Local ports ran out.
    PortBound,
    /// Neither was busy: with so many connections and such answer times there was no more to send (Little's law).
    LatencyBound,
    /// The open loop's timetable was kept: the load was what was asked for.
    RateBound,
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
        }
    }
}

/// The verdict, with what it rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grade {
    /// What set the pace.
    pub bottleneck: Bottleneck,
    /// The evidence, and what it cannot show, in one sentence.
    pub because: String,
    /// What to do about it, where something is to be done.
    pub advice: Option<String>,
}

/// What the verdict is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    /// CPU share of the busiest of our threads, of one core.
    pub(crate) generator_busiest: f64,
    pub(crate) server: Option<ServerEvidence>,
    pub(crate) started: u64,
    pub(crate) failed: u64,
    pub(crate) completed: u64,
    pub(crate) ports_exhausted: u64,
    /// Open loop: what was answered, as a share of what was due.
    pub(crate) achieved: Option<f64>,
    pub(crate) connections: usize,
}

/// How busy the server was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerEvidence {
    /// Busiest thread, share of one core.
    pub(crate) busiest_thread: f64,
    /// All processes, share of all CPUs they may use.
    pub(crate) of_allowed: f64,
}

pub(crate) fn grade(e: &Evidence) -> Grade {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let ours = format!("the generator's busiest thread used {} of a core", percent(e.generator_busiest));
    let server_busy = e.server.is_some_and(|s| s.busiest_thread >= SERVER_BUSY || s.of_allowed >= SERVER_BUSY);
    let theirs = match e.server {
        Some(s) => format!(
            "the server's busiest thread {} of one, and {} of the CPUs it may use",
            percent(s.busiest_thread),
            percent(s.of_allowed)
        ),
        None => "the server's CPU time is not known".to_owned(),
    };
    let verdict = |bottleneck, because: String, advice: Option<&str>| Grade {
        bottleneck,
        because,
        advice: advice.map(Into::into),
    };
    if e.ports_exhausted > 0 && e.ports_exhausted as f64 >= PORTS_SHARE * e.started as f64 {
        return verdict(
            Bottleneck::PortBound,
            format!("{} attempts to connect found no free local port", e.ports_exhausted),
            Some("keep connections, spread over --source addresses, or measure over a unix socket"),
        );
    }
    let server_first = server_busy && e.server.is_some_and(|s| s.busiest_thread > e.generator_busiest);
    if e.generator_busiest >= GENERATOR_BUSY {
        if server_first {
            let advice =
                "the generator was close to its own limit: with more threads (-t) on free CPUs the figures may change";
            return verdict(Bottleneck::ServerBound, format!("{theirs}; {ours}"), Some(advice));
        }
        let advice = if server_busy {
            "both sides were at their limit: give each CPUs of its own (--cpus), or more threads (-t)"
        } else {
            "the server could do more than this shows: use more threads (-t) on free CPUs, or a second machine"
        };
        return verdict(Bottleneck::GeneratorBound, format!("{ours}, {theirs}"), Some(advice));
    }
    match e.achieved {
        Some(achieved) if achieved >= ON_SCHEDULE => {
            return verdict(
                Bottleneck::RateBound,
                format!("{} of what was due was answered; {ours}, {theirs}", percent(achieved)),
                None,
            );
        }
        _ => {}
    }
    if server_busy {
        return verdict(Bottleneck::ServerBound, format!("{theirs}; {ours}"), None);
    }
    if e.started == 0 {
        return verdict(Bottleneck::LatencyBound, format!("nothing was measured; {ours}, {theirs}"), None);
    }
    if e.failed as f64 > FAILED_SHARE * e.started as f64 || e.completed == 0 {
        let (failed, started) = (e.failed, e.started);
        return verdict(
            Bottleneck::LatencyBound,
            format!("of {started} requests {failed} failed and {} were answered; {ours}, {theirs}", e.completed),
            Some("look at the failures first: what was answered says little while so much is not"),
        );
    }
    let advice = match (e.server, e.achieved) {
        (None, _) => Some(
            "look at the server's CPU (or name its process with --watch): if it is busy, this is the server's limit",
        ),
        (Some(_), Some(_)) => {
            Some("the timetable was not kept although neither side was busy: use more connections (-c)")
        }
        (Some(_), None) => {
            Some("use more connections (-c) to find the server's limit, or --rate to see its latency at a given load")
        }
    };
    verdict(
        Bottleneck::LatencyBound,
        format!("{} connections waited for answers; {ours}, {theirs}", e.connections),
        advice,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(e: Evidence) -> Bottleneck {
        grade(&Evidence { started: 1000, completed: 1000, connections: 10, ..e }).bottleneck
    }

    fn server(busiest_thread: f64) -> Option<ServerEvidence> {
        Some(ServerEvidence { busiest_thread, of_allowed: busiest_thread / 2.0 })
    }

    #[test]
    fn the_busier_side_is_named_and_a_busy_generator_is_never_passed_over() {
        assert_eq!(
            of(Evidence { generator_busiest: 0.6, server: server(0.99), ..Evidence::default() }),
            Bottleneck::ServerBound
        );
        assert_eq!(
            of(Evidence { generator_busiest: 0.97, server: server(0.5), ..Evidence::default() }),
            Bottleneck::GeneratorBound
        );
        assert_eq!(
            of(Evidence { generator_busiest: 0.99, server: server(0.97), ..Evidence::default() }),
            Bottleneck::GeneratorBound
        );
        let close =
            Evidence { generator_busiest: 0.9, server: server(0.99), started: 1, completed: 1, ..Evidence::default() };
        assert_eq!(grade(&close).bottleneck, Bottleneck::ServerBound);
        assert!(grade(&close).advice.is_some(), "a generator that is nearly at its limit is not passed over");
        assert_eq!(
            of(Evidence { generator_busiest: 0.97, server: server(0.5), ..Evidence::default() }),
            Bottleneck::GeneratorBound
        );
        assert_eq!(
            of(Evidence { generator_busiest: 0.97, achieved: Some(1.0), ..Evidence::default() }),
            Bottleneck::GeneratorBound
        );
        assert_eq!(
            of(Evidence { generator_busiest: 0.05, server: server(0.05), ..Evidence::default() }),
            Bottleneck::LatencyBound
        );
    }

    #[test]
    fn a_server_that_cannot_be_seen_is_not_declared_innocent() {
        let unseen = grade(&Evidence {
            generator_busiest: 0.3,
            started: 9,
            completed: 9,
            connections: 10,
            ..Evidence::default()
        });
        assert_eq!(unseen.bottleneck, Bottleneck::LatencyBound);
        assert!(unseen.because.contains("not known") && unseen.advice.unwrap().contains("--watch"));
    }

    #[test]
    fn a_kept_timetable_is_bound_by_its_rate_and_a_missed_one_is_not() {
        assert_eq!(
            of(Evidence { generator_busiest: 0.3, server: server(0.99), achieved: Some(0.999), ..Evidence::default() }),
            Bottleneck::RateBound
        );
        assert_eq!(
            of(Evidence { generator_busiest: 0.3, server: server(0.99), achieved: Some(0.5), ..Evidence::default() }),
            Bottleneck::ServerBound
        );
    }

    #[test]
    fn failures_come_before_advice_on_connections() {
        let hung =
            grade(&Evidence { started: 100, failed: 50, completed: 50, server: server(0.01), ..Evidence::default() });
        assert!(hung.because.starts_with("of 100 requests 50 failed") && hung.advice.unwrap().contains("failures"));
    }

    #[test]
    fn a_few_missing_ports_do_not_make_the_run_about_ports() {
        assert_eq!(
            of(Evidence { ports_exhausted: 1, started: 1_000_000, ..Evidence::default() }),
            Bottleneck::PortBound,
            "1 of 1,000"
        );
        let few = Evidence { ports_exhausted: 1, started: 1_000_000, completed: 999_999, ..Evidence::default() };
        assert_eq!(grade(&few).bottleneck, Bottleneck::LatencyBound);
    }
}
