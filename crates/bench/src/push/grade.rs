//! Who was the bottleneck of a run: the hub, the generator, the machine, the timetable, or nobody.

use super::record::Record;
use crate::grade::{Bottleneck, FAILED_SHARE, Grade, LEAST_SECONDS, ON_SCHEDULE, Utilisation, percent};
use crate::plan::Load;

/// Who set the pace.
pub(crate) fn grade(record: &Record) -> Grade {
    let sides = Utilisation::of(record.generator.busiest(), record.server.as_ref(), record.machine.as_ref());
    let ours = sides.generator;
    let theirs = sides.server.map(|server| server.busiest_thread);
    let because = match theirs {
        Some(theirs) => {
            format!("the server's busiest thread used {} of a core, the generator's {}", percent(theirs), percent(ours))
        }
        None => format!("the generator's busiest thread used {} of a core, the server's is not known", percent(ours)),
    };
    let not_graded = |because, advice| Grade::new(Bottleneck::NotGraded, because, Some(advice));
    let (opened, ended) = (record.subscriptions.opened, record.subscriptions.lost());
    if opened == 0 {
        let advice = "look at what came back: is this the hub's path, and does it speak this --mode?";
        return not_graded("no subscription was opened".into(), advice);
    }
    if ended > 0 && ended as f64 >= FAILED_SHARE * opened as f64 {
        let because = format!("{ended} of {opened} subscriptions ended before the run did; {because}");
        return not_graded(because, "find out first why they ended (the hub's log, its limits for slow readers)");
    }
    if record.published.is_some() && record.deliveries.delivered == 0 {
        let advice = "look at the answers to the posts: does this URL publish to whom the subscriptions listen?";
        return not_graded("not one message came".into(), advice);
    }
    if record.elapsed_s < LEAST_SECONDS {
        let because = format!("{:.0} ms are too short to tell who set the pace", record.elapsed_s * 1e3);
        return not_graded(because, "measure for a second at least (-d, or more messages)");
    }
    let open = record.plan.publish.as_ref().is_some_and(|publish| publish.load != Load::Closed);
    let kept =
        record.published.as_ref().is_some_and(|posted| posted.confirmed as f64 >= ON_SCHEDULE * posted.due as f64);
    let server_busy = sides.is_server_busy();
    let (bottleneck, advice) = if sides.is_generator_busy() && theirs.is_none_or(|theirs| theirs < ours) {
        (
            Bottleneck::GeneratorBound,
            Some("messages may have waited to be read: use more threads (-t) on free CPUs, or fewer connections"),
        )
    } else if open && kept {
        let late = server_busy.then_some("the server had little left to give: its delay grows fast from here");
        (Bottleneck::RateBound, late)
    } else if server_busy {
        (Bottleneck::ServerBound, None)
    } else if record.deliveries.lost > 0 || ended > 0 {
        (Bottleneck::LatencyBound, Some("look first at the messages that were lost, and the subscriptions that ended"))
    } else if sides.busy_machine().is_some() && record.plan.publish.is_some() {
        (
            Bottleneck::MachineBound,
            Some(
                "all CPUs were busy, so more --publishers change nothing: free CPUs, or give each side its own \
                 (--cpus)",
            ),
        )
    } else if open {
        (
            Bottleneck::LatencyBound,
            Some("the timetable was not kept although neither side was busy: use more --publishers"),
        )
    } else if record.plan.publish.is_some() {
        (
            Bottleneck::LatencyBound,
            Some("use more --publishers to find the server's limit, or --rate to see its delay at a given load"),
        )
    } else {
        (Bottleneck::LatencyBound, None)
    };
    Grade::new(bottleneck, because, advice)
}
