//! The page of a run of subscriptions: deliveries and their delays first, then completeness and costs.

use maud::{Markup, html};
use oroshi_bench::push::Record;
use oroshi_bench::watch::ServerUsage;
use oroshi_words::units;

use crate::bench::{conditions, footer, grade, latency, sides, tile};
use crate::figure::{self, Unit};
use crate::machine;
use crate::page::{self, Page, Section, cell, facts, table};
use crate::words::{self, push};

/// Renders the page.
pub(crate) fn page(record: &Record) -> String {
    let header = html! {
        h1.where { (record.plan.mode.name()) " " (record.plan.address) (record.plan.target) }
        p.lede { (push::headline(record)) }
        @if record.cut_short { p.badge { "ended early, after " (Unit::Seconds.text(record.elapsed_s)) } }
        @if let Some(alarm) = push::alarm(record) { p.grade.bad { strong { (alarm) } } }
        (tiles(record))
        (grade(&record.grade))
        (conditions(&record.fail_if))
        (page::warnings(&record.warnings))
    };
    Page {
        title: format!("{} deliveries/s – {}", units::number(record.deliveries.per_s), record.plan.address),
        kind: format!("oroshi bench · {}", figure::date(record.started_unix_s)),
        header,
        sections: vec![
            Section { id: "latency", title: "Delay", body: delays(record) },
            Section { id: "outcome", title: "Messages", body: messages(record) },
            Section { id: "server", title: "Server and generator", body: both_sides(record) },
            Section { id: "environment", title: "Environment", body: machine::origin(&record.environment) },
        ],
        footer: footer(),
    }
    .render()
}

fn tiles(record: &Record) -> Markup {
    let (deliveries, delay) = (&record.deliveries, &record.deliveries.delay.summary);
    let lost = match (deliveries.lost, deliveries.expected) {
        (0, _) => "every message came that was due".to_owned(),
        (lost, Some(expected)) => format!("{} of {}", figure::share(lost, expected), units::count(expected)),
        (_, None) => "of those that were due".to_owned(),
    };
    let cpu = record.server_cpu_us_per_delivery().map_or_else(|| "–".into(), |us| figure::time(us * 1e3));
    html! {
        dl.tiles {
            (tile("deliveries/s", units::number(deliveries.per_s), push::subscribed(record)))
            (tile("p50", figure::percentile_value(delay.p50), "from publishing to delivery".into()))
            (tile("p99", figure::percentile_value(delay.p99), "from publishing to delivery".into()))
            (tile("server CPU", cpu, record.server.as_ref().map_or("not known", |_| "per delivery").to_owned()))
            (tile("lost", units::count(deliveries.lost), lost))
        }
    }
}

fn delays(record: &Record) -> Markup {
    let clocks = push::clocks(record);
    let curves: Vec<_> = clocks.iter().map(|(name, clock)| ((*name).to_owned(), *clock)).collect();
    let note = html! {
        "Of a hundred messages 99 came at most as late as the curve shows at 99. Delivery begins when a message is \
         published and ends when a subscriber has read it; publish is how long the hub took to answer; subscribe how \
         long it took to open a subscription."
    };
    html! {
        (latency::percentiles("Percentiles", &note, &curves))
        @if !clocks.is_empty() { (latency::clocks_table(&clocks)) }
    }
}

fn messages(record: &Record) -> Markup {
    let faults = push::faults(record);
    html! {
        (facts([
            ("Subscribed", Some(push::subscribed(record))),
            ("Published", record.published.as_ref().map(push::posted)),
            ("Delivered", Some(push::delivered(record))),
            ("To one each", record.published_to_one.as_ref().map(|posted| push::to_one(record, posted))),
        ]))
        @if faults.is_empty() {
            p.none { "Faults: none." }
        } @else {
            h3 { "Faults" }
            @let words = |text| html! { span.words { (text) } };
            @let rows = faults.iter().map(|(name, n, text)| [cell(name), cell(units::count(*n)), words(text)]);
            (table("Faults by name", &["name", "count", "what happened"], rows.collect::<Vec<_>>()))
        }
    }
}

fn both_sides(record: &Record) -> Markup {
    let server = record.server.as_ref().map(|server| server_side(server, record));
    sides::both(server, record.server_unknown.as_deref(), &html! { p { (push::generator(record)) "." } })
}

fn server_side(server: &ServerUsage, record: &Record) -> Markup {
    let bytes = |n: u64| Unit::Bytes.text(n as f64);
    let each = record.idle.as_ref().map(|idle| {
        let memory = Unit::Bytes.text(idle.rss_bytes_per_subscription.max(0.0));
        format!("{memory} and {} of CPU time", figure::time(idle.cpu_us_per_subscription * 1e3))
    });
    facts([
        ("CPU per delivery", record.server_cpu_us_per_delivery().map(|us| figure::time(us * 1e3))),
        ("CPUs used", Some(sides::cpus_used(server, record.elapsed_s))),
        ("Busiest thread", Some(sides::of_a_cpu(server.busiest_thread))),
        (
            "Memory",
            Some(format!("{} at the end, at most {}", bytes(server.rss_end_bytes), bytes(server.rss_peak_bytes))),
        ),
        ("Each subscription added", each),
        ("Processes", Some(words::processes(server))),
    ])
}
