//! The report of a load of subscriptions, for people: what was done, whether everything came, how long it took, what it cost.

use std::collections::BTreeMap;

use oroshi_bench::subscribe::Record;
use oroshi_bench::subscribe::record::{PostedRecord, PublishRecord};
use oroshi_bench::watch::ServerUsage;
use oroshi_bench::{Bottleneck, Failure};
use oroshi_report::words::{machine, processes, quantile, rhythm};
use oroshi_words::units;

use super::with_article;
use crate::bench::text::{NAME, Page, SHOWN};
use crate::paint::Paint;

/// Writes the report, in lines of at most `width` characters.
pub(super) fn report(record: &Record, paint: Paint, width: usize) -> String {
    let mut page = Page { text: String::new(), paint, width };
    let alarm = alarm(record);
    if let Some(alarm) = &alarm {
        page.wrapped(alarm, Paint::red);
    }
    page.wrapped(&headline(record), Paint::bold);
    if record.cut_short {
        page.line(&paint.yellow(&format!("ended early, after {}", units::length(record.elapsed_s))));
    }
    page.line("");
    page.row("Subscribed", &subscribed(record));
    if let Some(published) = &record.published {
        page.row("Published", &posted(published));
    }
    page.row("Delivered", &delivered(record));
    if let Some(published) = &record.published_to_one {
        page.row("To one each", &to_one(record, published));
    }
    delays(&mut page, record);
    faults(&mut page, record);
    match &record.server {
        Some(server) => server_rows(server, record).iter().for_each(|(name, text)| page.row(name, text)),
        None => {
            let why = record.server_unknown.as_deref().unwrap_or("not found");
            page.painted_row("Server", &format!("not known: {why}"), Paint::dim);
        }
    }
    page.row("Generator", &generator(record));
    page.painted_row("Machine", &machine(&record.environment), Paint::dim);
    page.row("Bottleneck", &format!("{}: {}", record.grade.bottleneck.name(), record.grade.because));
    if let Some(advice) = &record.grade.advice {
        page.painted_row("", advice, Paint::yellow);
    }
    // What stands on top already is not said again.
    for warning in record.warnings.iter().filter(|warning| Some(*warning) != alarm.as_ref()) {
        page.painted_row("Warning", warning, Paint::yellow);
    }
    page.text
}

/// What stands above everything else: that the figures are not what they seem.
pub(super) fn alarm(record: &Record) -> Option<String> {
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

/// How many subscriptions ended before the run did, how, and what came of it.
pub(super) fn ended(record: &Record) -> String {
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

/// What came back in place of a subscription, of the most frequent failure that has an answer.
pub(super) fn came(record: &Record) -> Option<&str> {
    let subscriptions = &record.subscriptions;
    let most = subscriptions.came.iter().max_by_key(|(failure, _)| subscriptions.failures.get(failure))?;
    Some(most.1)
}

/// The end of a sentence: `: 40 x status, 2 x timeout`, or nothing.
pub(super) fn reasons(failures: &BTreeMap<Failure, u64>) -> String {
    let each: Vec<String> = failures.iter().map(|(failure, n)| format!("{} x {failure}", units::count(*n))).collect();
    if each.is_empty() { String::new() } else { format!(": {}", each.join(", ")) }
}

fn headline(record: &Record) -> String {
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

fn subscribed(record: &Record) -> String {
    let subscriptions = &record.subscriptions;
    let all = record.plan.connections as u64;
    let time = units::length(subscriptions.opening_s);
    if subscriptions.opened == all {
        format!("all {} in {time}", units::count(all))
    } else {
        format!("{} of {} in {time}", units::count(subscriptions.opened), units::count(all))
    }
}

fn posted(posted: &PostedRecord) -> String {
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

fn delivered(record: &Record) -> String {
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

fn to_one(record: &Record, published: &PostedRecord) -> String {
    let Some(deliveries) = &record.deliveries_to_one else { return posted(published) };
    let mut text = format!("{}; {} delivered", posted(published), units::count(deliveries.delivered));
    let faults =
        [(deliveries.lost, "lost"), (deliveries.duplicated, "twice"), (deliveries.misdirected, "to somebody else")];
    for (count, what) in faults.into_iter().filter(|fault| fault.0 > 0) {
        text += &format!(", {} {what}", units::count(count));
    }
    text
}

fn delays(page: &mut Page, record: &Record) {
    let mut clocks = vec![("delivery", &record.deliveries.delay)];
    clocks.extend(record.deliveries_to_one.as_ref().map(|deliveries| ("to one", &deliveries.delay)));
    clocks.extend(record.published.as_ref().map(|posted| ("publish", &posted.response)));
    clocks.push(("subscribe", &record.subscriptions.opening));
    let head = std::iter::once("Delay").chain(SHOWN.map(|(name, _)| name)).chain(["max"]);
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for (name, clock) in clocks.into_iter().filter(|(_, clock)| clock.summary.count > 0) {
        let figures = SHOWN.iter().map(|(_, q)| quantile(clock, *q)).chain([quantile(clock, 1.0)]);
        rows.push(std::iter::once(format!("  {name:<width$}", width = NAME - 2)).chain(figures).collect());
    }
    if rows.len() == 1 {
        return;
    }
    page.table(&rows);
}

/// What did not go as it should; nothing where all did.
fn faults(page: &mut Page, record: &Record) {
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
    if faults.is_empty() {
        return;
    }
    page.line(&page.paint.red("Faults"));
    for (name, count, text) in faults {
        page.counted(name, count, &text);
    }
    for came in record.subscriptions.came.values() {
        page.painted_row("", came, Paint::yellow);
    }
}

fn server_rows(server: &ServerUsage, record: &Record) -> Vec<(&'static str, String)> {
    let per_delivery = match record.server_cpu_us_per_delivery() {
        Some(us) => format!("{} CPU per delivery, ", units::time(us * 1e3)),
        None => String::new(),
    };
    let cores = units::number(server.cpu_seconds / record.elapsed_s.max(1e-9));
    let busiest = units::percent(server.busiest_thread);
    let first = format!("{per_delivery}{cores} cores used, busiest thread {busiest}, {}", processes(server));
    let mut second = format!("{} memory", units::bytes(server.rss_end_bytes as f64));
    if server.rss_peak_bytes as f64 > server.rss_end_bytes as f64 * 1.05 {
        second.push_str(&format!(" (peak {})", units::bytes(server.rss_peak_bytes as f64)));
    }
    if let Some(idle) = &record.idle {
        second.push_str(&format!(
            "; for each subscription {} more and {} CPU",
            units::bytes(idle.rss_bytes_per_subscription.max(0.0)),
            units::time(idle.cpu_us_per_subscription * 1e3)
        ));
    }
    vec![("Server", first), ("", second)]
}

fn generator(record: &Record) -> String {
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
