//! Lengths of runs that the user did not set: long enough for slow servers.
//!
//! A run is one observation. A rate over a fraction of a round of answers reflects the moment more than the server. So
//! before the first block each variant under a closed loop gets some requests, and the slowest one's mean response time
//! decides for all: a run holds [`ROUNDS`] of them, its warm-up [`WARM_ROUNDS`]. Lengths that the user set stay.
//!
//! Connections begin together, and pause after their first response to get out of step. A connection whose first
//! response outlasts the warm-up stays in step with others of its kind, and the edges of the measured part always cut
//! their requests at the same place. Servers of which one answer in ten took eleven times as long as the others thus
//! showed CPU times per request that were 0.4 % off, in every block. So the warm-up holds [`WARM_ROUNDS`] of the
//! longest responses too, if the time for all runs allows, and at most [`ROUNDS`] of the mean ones.

use std::time::Duration;

use oroshi_bench::{Draft, Load, Record};
use oroshi_words::units;

use crate::plan::Rules;
use crate::result::Lengthened;

/// Minimum number of response times in the measured part of a run, and in its warm-up.
const ROUNDS: u32 = 10;
const WARM_ROUNDS: u32 = 2;
/// A run with fewer rounds than this gets a warning.
const FEW_ROUNDS: f64 = 5.0;
/// Lengths are multiples of this.
const STEP: Duration = Duration::from_millis(50);
/// Requests per connection (or stream, or place in its pipeline) that measure the response time, and their time limit.
const PROBES: u64 = 2;
const LONGEST_PROBE: Duration = Duration::from_secs(10);

/// Response times of the slowest variant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseTimes {
    /// The greatest mean of a variant.
    pub(crate) mean: Duration,
    /// The longest response of any variant.
    pub(crate) longest: Duration,
}

/// Whether some length of a load remains to be chosen.
pub(super) fn are_free(draft: &Draft) -> bool {
    draft.load == Load::Closed && (draft.free_duration || draft.free_warmup)
}

/// Returns the load that measures the response time.
pub(super) fn probe(draft: Draft) -> Draft {
    let requests = PROBES * draft.lanes() as u64;
    Draft { requests: Some(requests), duration: Some(LONGEST_PROBE), ..draft }
}

/// Returns the lengths for these probes: `variants` alternate in this one of `cells` cells. `None` if the usual lengths
/// are long enough.
pub(crate) fn lengthened(
    drafts: &[&Draft],
    slowest: ResponseTimes,
    rules: &Rules,
    variants: usize,
    cells: usize,
) -> Option<Lengthened> {
    let usual = drafts.iter().filter(|draft| draft.free_duration).filter_map(|draft| draft.duration).min();
    let usual_warmup = drafts.iter().filter(|draft| draft.free_warmup).map(|draft| draft.warmup).min();
    let mut duration = usual.map(|usual| usual.max(up(slowest.mean * ROUNDS)));
    let mut warmup = usual_warmup.map(|usual| usual.max(up(slowest.mean * WARM_ROUNDS)));
    let mut spare = Duration::MAX;
    if let Some(time) = rules.max_time {
        // The minimum number of blocks must fit into the time.
        let runs = (cells.max(1) * variants.max(1) * rules.min_blocks.max(1)) as f64;
        let each = time.div_f64(runs);
        let wanted = duration.unwrap_or_default() + warmup.unwrap_or_default();
        if wanted > each {
            let share = each.as_secs_f64() / wanted.as_secs_f64();
            let shorter = |length: Duration, usual: Duration| usual.max(down(length.mul_f64(share)));
            duration = duration.zip(usual).map(|(length, usual)| shorter(length, usual));
            warmup = warmup.zip(usual_warmup).map(|(length, usual)| shorter(length, usual));
        }
        spare = down(each.saturating_sub(duration.unwrap_or_default() + warmup.unwrap_or_default()));
    }
    let out_of_step = up(slowest.longest * WARM_ROUNDS).min(up(slowest.mean * ROUNDS));
    warmup = warmup.map(|warmup| warmup.max(out_of_step.min(warmup.saturating_add(spare))));
    let changed = duration != usual || warmup != usual_warmup;
    changed.then(|| Lengthened {
        duration_s: duration.map(|duration| duration.as_secs_f64()),
        warmup_s: warmup.map(|warmup| warmup.as_secs_f64()),
        response_ns: slowest.mean.as_nanos() as f64,
    })
}

/// Sets the chosen lengths where the load has none.
pub(crate) fn apply(draft: &mut Draft, lengths: &Lengthened) {
    if let Some(duration) = lengths.duration_s.filter(|_| draft.free_duration) {
        draft.duration = Some(Duration::from_secs_f64(duration));
    }
    if let Some(warmup) = lengths.warmup_s.filter(|_| draft.free_warmup) {
        draft.warmup = Duration::from_secs_f64(warmup);
    }
}

/// Says which lengths were chosen, to follow the load's description; empty if the load has its own.
pub(super) fn in_words(draft: &Draft, lengths: &Lengthened) -> String {
    let length = |seconds: f64| units::length(seconds);
    let duration = lengths.duration_s.filter(|_| draft.free_duration).map(length);
    let warmup = lengths.warmup_s.filter(|_| draft.free_warmup).map(length);
    let what = match (duration, warmup) {
        (Some(duration), Some(warmup)) => format!("{duration} after {warmup} of warm-up"),
        (Some(duration), None) => duration,
        (None, Some(warmup)) => format!("a warm-up of {warmup}"),
        (None, None) => return String::new(),
    };
    format!("; lengthened to {what}, as an answer takes {}", units::time(lengths.response_ns))
}

/// Warns if a run of a closed loop is too short for its server.
pub(super) fn too_few_rounds(record: &Record) -> Option<String> {
    let plan = &record.plan;
    let lanes = plan.lanes() as f64;
    let rounds = record.requests_done() / lanes;
    // Users of a scenario also think; its length is the script's.
    let asked = plan.load == Load::Closed && plan.requests.is_none() && !record.cut_short && record.scenario.is_none();
    (asked && rounds > 0.0 && rounds < FEW_ROUNDS).then(|| {
        let longer = record.elapsed_s / rounds * f64::from(ROUNDS);
        format!(
            "runs hold {rounds:.1} requests per connection: that says little of a server whose answers do not all take \
             the same time; give runs of {} \
             (-d), which hold ten",
            units::length((longer * 10.0).ceil() / 10.0)
        )
    })
}

fn up(length: Duration) -> Duration {
    STEP * u32::try_from(length.as_nanos().div_ceil(STEP.as_nanos())).unwrap_or(u32::MAX)
}

fn down(length: Duration) -> Duration {
    STEP * u32::try_from(length.as_nanos() / STEP.as_nanos()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::record;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn free() -> Draft {
        let (duration, warmup) = (Some(MS(1000)), MS(250));
        Draft { duration, warmup, free_duration: true, free_warmup: true, ..Draft::default() }
    }

    fn times(mean: u64, longest: u64) -> ResponseTimes {
        ResponseTimes { mean: MS(mean), longest: MS(longest) }
    }

    fn found(draft: &Draft, slowest: u64, max_time: Option<u64>) -> Option<(Option<f64>, Option<f64>)> {
        unlike(draft, times(slowest, slowest), max_time)
    }

    fn unlike(draft: &Draft, slowest: ResponseTimes, max_time: Option<u64>) -> Option<(Option<f64>, Option<f64>)> {
        let rules = Rules { max_time: max_time.map(Duration::from_secs), ..Rules::default() };
        let lengths = lengthened(&[draft, draft], slowest, &rules, 2, 1)?;
        Some((lengths.duration_s, lengths.warmup_s))
    }

    /// The CPU time per request of such servers was once off by 0.4 % in all blocks alike.
    #[test]
    fn a_warm_up_outlasts_two_of_the_longest_responses() {
        let of = |mean, longest, max_time| unlike(&free(), times(mean, longest), max_time);
        assert_eq!(of(100, 450, None), Some((Some(1.0), Some(0.9))));
        assert_eq!(of(100, 550, None), Some((Some(1.0), Some(1.0))), "no longer than ten mean ones");
        assert_eq!(of(500, 2000, None), Some((Some(5.0), Some(4.0))));
        assert_eq!(of(1, 900, None), None, "one slow answer of a fast server is no reason");
        // Twenty runs at least: each has 2.5 seconds, so the warm-up has 1.5; or 1 second, less than is usual.
        assert_eq!(of(100, 450, Some(50)), Some((Some(1.0), Some(0.9))));
        assert_eq!(of(100, 450, Some(36)), Some((Some(1.0), Some(0.8))));
        assert_eq!(of(100, 450, Some(20)), None);
        let draft = Draft { free_warmup: false, ..free() };
        assert_eq!(unlike(&draft, times(100, 450), None), None);
    }

    #[test]
    fn slow_servers_get_longer_runs_and_fast_ones_the_usual() {
        assert_eq!((found(&free(), 1, None), found(&free(), 100, None)), (None, None));
        assert_eq!(found(&free(), 103, None), Some((Some(1.05), Some(0.25))));
        assert_eq!(found(&free(), 500, None), Some((Some(5.0), Some(1.0))));
    }

    #[test]
    fn what_was_asked_for_stays() {
        let draft = Draft { free_duration: false, ..free() };
        assert_eq!(found(&draft, 500, None), Some((None, Some(1.0))));
        let mut both = draft.clone();
        apply(&mut both, &lengthened(&[&draft], times(500, 500), &Rules::default(), 2, 1).unwrap());
        assert_eq!((both.duration, both.warmup), (Some(MS(1000)), MS(1000)));
        let neither = Draft { free_warmup: false, ..draft };
        assert!(!are_free(&neither) && found(&neither, 500, None).is_none());
    }

    #[test]
    fn the_time_for_all_of_it_is_heeded_but_no_run_is_shorter_than_usual() {
        // Twenty runs at least: each has three seconds of a minute.
        let (duration, warmup) = found(&free(), 500, Some(60)).unwrap();
        assert_eq!((duration, warmup), (Some(2.5), Some(0.5)));
        assert_eq!(found(&free(), 500, Some(5)), None);
        assert_eq!(found(&free(), 500, Some(600)), Some((Some(5.0), Some(1.0))));
    }

    #[test]
    fn a_run_with_few_rounds_is_told_of() {
        let mut slow = record(&Load::Closed, 29, "latency-bound");
        let text = too_few_rounds(&slow).unwrap();
        assert!(text.contains("2.9 requests per connection") && text.contains("runs of 3.5s"), "{text}");
        slow.plan.requests = Some(29);
        assert_eq!(too_few_rounds(&slow), None);
        assert_eq!(too_few_rounds(&record(&Load::Closed, 60, "latency-bound")), None);
    }

    #[test]
    fn words_say_what_was_made_of_it() {
        let lengths = lengthened(&[&free()], times(500, 500), &Rules::default(), 2, 1).unwrap();
        assert_eq!(in_words(&free(), &lengths), "; lengthened to 5s after 1s of warm-up, as an answer takes 500ms");
        assert_eq!(in_words(&Draft::default(), &lengths), "");
    }
}
