//! The report of a load of subscriptions, for people: the load, deliveries, delays, costs.

use oroshi_bench::push::Record;
use oroshi_bench::watch::ServerUsage;
use oroshi_words::units;

use super::agents;
use super::bench::{Page, memory};
use crate::paint::Paint;
use crate::words::{processes, push as words};

/// Writes the report, in lines of at most `width` characters.
#[must_use]
pub fn subscribe(record: &Record, paint: Paint, width: usize) -> String {
    let alarm = words::alarm(record);
    let ended_early = record.cut_short.then_some(record.elapsed_s);
    let mut page = Page::begin(alarm.as_deref(), &words::headline(record), ended_early, paint, width);
    page.line("");
    page.row("Subscribed", &words::subscribed(record));
    if let Some(published) = &record.published {
        page.row("Published", &words::posted(published));
    }
    page.row("Delivered", &words::delivered(record));
    if let Some(published) = &record.published_to_one {
        page.row("To one each", &words::to_one(record, published));
    }
    page.clocks("Delay", &words::clocks(record));
    faults(&mut page, record);
    let server = record.server.as_ref().map(|server| server_rows(server, record));
    page.sides(server, record.server_unknown.as_deref(), &words::generator(record), &record.environment);
    page.verdict(&record.grade);
    // Omits what the headline has already.
    agents::add(&mut page, &record.agents);
    for warning in record.warnings.iter().filter(|warning| Some(*warning) != alarm.as_ref()) {
        page.painted_row("Warning", warning, Paint::yellow);
    }
    page.text
}

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

fn server_rows(server: &ServerUsage, record: &Record) -> [String; 2] {
    let per_delivery = match record.server_cpu_us_per_delivery() {
        Some(us) => format!("{} CPU per delivery, ", units::time(us * 1e3)),
        None => String::new(),
    };
    let cores = units::number(server.cpu_seconds / record.elapsed_s.max(1e-9));
    let busiest = units::percent(server.busiest_thread);
    let first = format!("{per_delivery}{cores} cores used, busiest thread {busiest}, {}", processes(server));
    let mut second = memory(server);
    if let Some(idle) = &record.idle {
        second.push_str(&format!(
            "; for each subscription {} more and {} CPU",
            units::bytes(idle.rss_bytes_per_subscription.max(0.0)),
            units::time(idle.cpu_us_per_subscription * 1e3)
        ));
    }
    [first, second]
}
