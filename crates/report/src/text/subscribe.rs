//! The report of a load of subscriptions, for people: the load, deliveries, delays, costs.

use oroshi_bench::push::Record;
use oroshi_bench::watch::ServerUsage;
use oroshi_words::units;

use super::bench::{NAME, Page, SHOWN};
use crate::paint::Paint;
use crate::words::{machine, processes, push as words, quantile};

/// Writes the report, in lines of at most `width` characters.
#[must_use]
pub fn subscribe(record: &Record, paint: Paint, width: usize) -> String {
    let mut page = Page { text: String::new(), paint, width };
    let alarm = words::alarm(record);
    if let Some(alarm) = &alarm {
        page.wrapped(alarm, Paint::red);
    }
    page.wrapped(&words::headline(record), Paint::bold);
    if record.cut_short {
        page.line(&paint.yellow(&format!("ended early, after {}", units::length(record.elapsed_s))));
    }
    page.line("");
    page.row("Subscribed", &words::subscribed(record));
    if let Some(published) = &record.published {
        page.row("Published", &words::posted(published));
    }
    page.row("Delivered", &words::delivered(record));
    if let Some(published) = &record.published_to_one {
        page.row("To one each", &words::to_one(record, published));
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
    page.row("Generator", &words::generator(record));
    page.painted_row("Machine", &machine(&record.environment), Paint::dim);
    page.row("Bottleneck", &format!("{}: {}", record.grade.bottleneck.name(), record.grade.because));
    if let Some(advice) = &record.grade.advice {
        page.painted_row("", advice, Paint::yellow);
    }
    // Omits what the headline has already.
    for warning in record.warnings.iter().filter(|warning| Some(*warning) != alarm.as_ref()) {
        page.painted_row("Warning", warning, Paint::yellow);
    }
    page.text
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

/// Returns the lines about failures; none if there were no failures.
fn faults(page: &mut Page, record: &Record) {
    let faults = words::faults(record);
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
