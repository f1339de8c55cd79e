//! A run of subscriptions in words, for the terminal and for the page.

use std::collections::BTreeMap;

use oroshi_bench::push::Record;
use oroshi_bench::push::record::{PublishCounts, PublishRecord};
use oroshi_bench::record::ClockRecord;
use oroshi_bench::{Bottleneck, Failure};
use oroshi_words::units;

use super::rhythm;

/// Formats `10s, 1,000 subscriptions (ws) on 2 threads to http://127.0.0.1:80/sub, 4 publishers in a closed loop,
/// ...`.
#[must_use]
pub fn headline(record: &Record) -> String {
    let plan = &record.plan;
    let place = |scheme: &str, address: &str, target: &str| match address.starts_with("unix:") {
        true => format!("{address}:{target}"),
        false => format!("{scheme}://{address}{target}"),
    };
    let mut parts = vec![
        units::length(plan.duration_s.unwrap_or(record.elapsed_s)),
        format!(
            "{} ({}) on {} to {}",
            units::plural(plan.connections as u64, "subscription"),
            plan.mode.name(),
            units::plural(plan.threads as u64, "thread"),
            place(&plan.scheme, &plan.address, &plan.target)
        ),
    ];
    let publishing = |publish: &PublishRecord| {
        let publishers = units::plural(publish.publishers as u64, "publisher");
        format!("{publishers} in {}, {} at {}", with_article(&rhythm(&publish.load)), publish.request, publish.address)
    };
    parts.extend(plan.publish.as_ref().map(publishing));
    parts.extend(plan.publish_to.as_ref().map(publishing));
    parts.join(", ")
}

/// Returns a warning for the top: that the figures are misleading.
#[must_use]
pub fn alarm(record: &Record) -> Option<String> {
    let subscriptions = &record.subscriptions;
    if subscriptions.opened == 0 {
        let came = came(record).map(|came| format!(": {came}")).unwrap_or_default();
        return Some(format!("NO SUBSCRIPTION: not one was opened{came}"));
    }
    if subscriptions.lost() > 0 {
        return Some(format!("SUBSCRIPTIONS ENDED: {}", ended(record)));
    }
    (record.grade.bottleneck == Bottleneck::GeneratorBound)
        .then(|| "GENERATOR-BOUND: these figures say more about the load generator than about the server".into())
}

/// Describes the subscriptions that ended before the run: number, reasons, consequences.
#[must_use]
pub fn ended(record: &Record) -> String {
    let subscriptions = &record.subscriptions;
    let each = subscriptions.ended.iter().map(|(end, n)| format!("{} x {end}", units::count(*n)));
    let lost = match record.deliveries.lost_on_ended {
        0 => String::new(),
        n => format!("; {} messages did not come on them", units::count(n)),
    };
    format!(
        "{} of {} subscriptions ended before the run did ({}){lost}",
        units::count(subscriptions.lost()),
        units::count(subscriptions.opened),
        each.collect::<Vec<_>>().join(", ")
    )
}

/// Returns the response to the most frequent failure of subscriptions, if it has one.
#[must_use]
pub fn came(record: &Record) -> Option<&str> {
    let subscriptions = &record.subscriptions;
    let most = subscriptions.came.iter().max_by_key(|(failure, _)| subscriptions.failures.get(failure))?;
    Some(most.1)
}

/// Describes the number of opened subscriptions, and the time for it.
#[must_use]
pub fn subscribed(record: &Record) -> String {
    let subscriptions = &record.subscriptions;
    let all = record.plan.connections as u64;
    let time = units::length(subscriptions.opening_s);
    if subscriptions.opened == all {
        format!("all {} in {time}", units::count(all))
    } else {
        format!("{} of {} in {time}", units::count(subscriptions.opened), units::count(all))
    }
}

/// Describes the outcomes of published messages.
#[must_use]
pub fn posted(posted: &PublishCounts) -> String {
    let mut parts = vec![format!("{} confirmed ({}/s)", units::count(posted.confirmed), units::number(posted.per_s))];
    if posted.failed > 0 {
        parts.push(format!("{} failed{}", units::count(posted.failed), reasons(&posted.failures)));
    }
    if posted.statuses.len() > 1 {
        let each = posted.statuses.iter().map(|(status, n)| format!("{} x {status}", units::count(*n)));
        parts.push(format!("statuses {}", each.collect::<Vec<_>>().join(", ")));
    }
    if posted.unsent > 0 {
        parts.push(format!("{} never sent, as every publisher was busy", units::count(posted.unsent)));
    }
    parts.join(", ")
}

/// Describes the number of delivered messages.
#[must_use]
pub fn delivered(record: &Record) -> String {
    let deliveries = &record.deliveries;
    let rate = units::number(deliveries.per_s);
    let mut parts = vec![match deliveries.expected {
        Some(expected) if expected == deliveries.delivered => format!("all {} ({rate}/s)", units::count(expected)),
        Some(expected) => {
            format!("{} of {} ({rate}/s)", units::count(deliveries.delivered), units::count(expected))
        }
        None => format!("{} ({rate}/s)", units::count(deliveries.delivered)),
    }];
    if deliveries.unstamped > 0 {
        parts.push(format!("{} without a stamp beside them", units::count(deliveries.unstamped)));
    }
    parts.push(units::bytes(deliveries.bytes as f64));
    parts.join(", ")
}

/// Describes the same for messages to a single session.
#[must_use]
pub fn to_one(record: &Record, published: &PublishCounts) -> String {
    let Some(deliveries) = &record.deliveries_to_one else { return posted(published) };
    let mut text = format!("{}; {} delivered", posted(published), units::count(deliveries.delivered));
    let faults =
        [(deliveries.lost, "lost"), (deliveries.duplicated, "twice"), (deliveries.misdirected, "to somebody else")];
    for (count, what) in faults.into_iter().filter(|fault| fault.0 > 0) {
        text += &format!(", {} {what}", units::count(count));
    }
    text
}

/// Returns the faults, each with its name, count and description; empty without faults.
#[must_use]
pub fn faults(record: &Record) -> Vec<(&'static str, u64, String)> {
    let deliveries = &record.deliveries;
    let mut faults = Vec::new();
    if deliveries.lost > 0 {
        let ended = match deliveries.lost_on_ended {
            0 => String::new(),
            n => format!(", {} of them on subscriptions that had ended", units::count(n)),
        };
        faults.push(("lost", deliveries.lost, format!("never came{ended}")));
    }
    if deliveries.duplicated > 0 {
        faults.push(("duplicated", deliveries.duplicated, "came once more".into()));
    }
    if deliveries.reordered > 0 {
        faults.push(("reordered", deliveries.reordered, "came after one that was sent later".into()));
    }
    if deliveries.foreign > 0 {
        faults.push(("foreign", deliveries.foreign, "were of another run".into()));
    }
    let failures = &record.subscriptions.failures;
    if !failures.is_empty() {
        let statuses: Vec<String> = record.subscriptions.statuses.keys().map(ToString::to_string).collect();
        let statuses = if statuses.is_empty() { String::new() } else { format!(" (with {})", statuses.join(", ")) };
        let text = format!("subscriptions were not opened{}{statuses}", reasons(failures));
        faults.push(("failed", record.subscriptions.failed(), text));
    }
    if !record.subscriptions.ended.is_empty() {
        let each = record.subscriptions.ended.iter().map(|(end, n)| format!("{} x {end}", units::count(*n)));
        let text = format!("subscriptions ended: {}", each.collect::<Vec<_>>().join(", "));
        faults.push(("ended", record.subscriptions.lost(), text));
    }
    faults
}

/// Returns the clocks with values, by their names in reports.
#[must_use]
pub fn clocks(record: &Record) -> Vec<(&'static str, &ClockRecord)> {
    let mut clocks = vec![("delivery", &record.deliveries.delay)];
    clocks.extend(record.deliveries_to_one.as_ref().map(|deliveries| ("to one", &deliveries.delay)));
    clocks.extend(record.published.as_ref().map(|posted| ("publish", &posted.response)));
    clocks.push(("subscribe", &record.subscriptions.opening));
    clocks.retain(|(_, clock)| clock.summary.count > 0);
    clocks
}

/// Describes the load generator's cost.
#[must_use]
pub fn generator(record: &Record) -> String {
    let generator = &record.generator;
    let each = generator.cpu_us_per_delivery.map(|us| format!("{} CPU per delivery, ", units::time(us * 1e3)));
    let threads: Vec<String> = generator.thread_cpu.iter().map(|share| units::percent(*share)).collect();
    format!(
        "{}{} {} of a core, the publishers' {}",
        each.unwrap_or_default(),
        if threads.len() == 1 { "its thread used" } else { "its threads used" },
        threads.join(", "),
        units::percent(generator.publisher_cpu)
    )
}

/// Formats the end of a sentence: `: 40 x status, 2 x timeout`, or nothing.
#[must_use]
pub fn reasons(failures: &BTreeMap<Failure, u64>) -> String {
    let each: Vec<String> = failures.iter().map(|(failure, n)| format!("{} x {failure}", units::count(*n))).collect();
    if each.is_empty() { String::new() } else { format!(": {}", each.join(", ")) }
}

/// Formats `a closed loop`, `an open loop at 500/s`.
#[must_use]
pub fn with_article(rhythm: &str) -> String {
    let article = if rhythm.starts_with('o') { "an" } else { "a" };
    format!("{article} {rhythm}")
}
