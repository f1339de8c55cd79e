//! Subjects and rules of the comparison, omissions, and how to repeat it.

use maud::{Markup, html};
use oroshi_lab::LabResult;
use oroshi_lab::network::NetworkRecord;
use oroshi_lab::result::{CellResult, Ended, VariantResult};
use oroshi_words::units;

use super::View;
use crate::chart::scale::ends;
use crate::figure;
use crate::page::{command, facts, folded};

/// Renders omitted variants and those given up: early on the page, because they are missing everywhere below.
pub(super) fn left_out(view: &View<'_>) -> Markup {
    let failed: Vec<(&CellResult, &VariantResult)> = view
        .result
        .cells
        .iter()
        .flat_map(|cell| {
            cell.variants.iter().filter(|variant| variant.failed.is_some()).map(move |variant| (cell, variant))
        })
        .collect();
    html! {
        @if !view.result.skipped.is_empty() {
            ul.skipped {
                @for skipped in &view.result.skipped {
                    li { strong { (skipped.name) } " was left out: " (skipped.why) }
                }
            }
        }
        @for (cell, variant) in failed {
            @if let Some(failure) = &variant.failed {
                @let name = view.result.cell_name(cell);
                div.failure {
                    p {
                        strong { @if !name.is_empty() { (name) ": " } (variant.name) }
                        " failed in block " (failure.block + 1) ": " (failure.why)
                    }
                    @if !failure.output.is_empty() {
                        pre { @for line in &failure.output { (line) "\n" } }
                    }
                }
            }
        }
    }
}

/// Renders the rules, and the subjects.
pub(super) fn section(view: &View<'_>) -> Markup {
    let result = view.result;
    let rules = &result.rules;
    let percent = figure::percent;
    let cells = result.cells.len();
    let blocks = match ends(result.cells.iter().map(|cell| cell.blocks)) {
        None => "none".to_owned(),
        Some((low, high)) if low == high => low.to_string(),
        Some((low, high)) => format!("{low} to {high}"),
    };
    let ours = result.cells.iter().flat_map(|cell| &cell.variants).any(|variant| variant.start.is_some());
    let repeated: usize = result.cells.iter().map(|cell| cell.repeated).sum();
    let runs: usize = result.cells.iter().map(|cell| cell.runs.len()).sum();
    let starts = match rules.blocks_per_start {
        None => "once, before the first block".to_owned(),
        Some(1) => "before each block".to_owned(),
        Some(n) => format!("anew every {n} blocks"),
    };
    html! {
        p {
            "Variants take turns, block by block, in an order drawn by the seed. What is compared is the ratio \
             within a block; the interval is a bootstrap over the blocks. The rules were fixed before the first run."
        }
        (facts([
            ("Enough when", Some(format!(
                "the interval of each ratio of {} reaches no further than ±{}; {} to {} blocks{}",
                result.metrics.first().map_or("the primary metric", |metric| &metric.label),
                percent(rules.precision),
                rules.min_blocks,
                rules.max_blocks,
                rules
                    .max_time_s
                    .map(|seconds| format!(", at most {} in all", figure::time(seconds * 1e9)))
                    .unwrap_or_default(),
            ))),
            ("A difference matters from", Some(percent(rules.smallest_effect))),
            (
                "Confidence",
                Some(percent(rules.confidence) + "; p values are corrected for the number of questions (Holm)"),
            ),
            ("Servers were started", ours.then_some(starts)),
            (
                "No verdict on rates and latencies",
                (rules.disturbed < 1.0).then(|| {
                    let share = percent(rules.disturbed);
                    format!("where others took the CPUs in more than {share} of one side’s runs")
                }),
            ),
            ("Answers of different kinds", rules.any_answers.then(|| "compared all the same".to_owned())),
            ("Processes that belong to the servers", (!rules.processes.is_empty()).then(|| rules.processes.join(", "))),
            ("Blocks made anew, as the machine was disturbed", (repeated > 0).then(|| units::count(repeated as u64))),
            ("Seed of the order", Some(rules.seed.to_string())),
            ("Blocks", Some(if cells > 1 { format!("{blocks} in each of {cells} comparisons") } else { blocks })),
            ("Runs", Some(units::count(runs as u64))),
            ("It took", Some(figure::time(result.elapsed_s * 1e9))),
        ]))
        h3 { "What was compared" }
        @for group in &view.groups {
            @if view.groups.len() > 1 { h4 { (group) } }
            (subjects(&view.cells(group)))
        }
        h3 { "How each comparison ended" }
        ul {
            @for cell in &result.cells {
                @let name = view.result.cell_name(cell);
                li {
                    @if !name.is_empty() { (name) ": " }
                    (units::plural(cell.blocks as u64, "block")) ", " (ended(cell.ended))
                    @if let Some(rate) = cell.rate { ", at " (units::number(rate)) " requests/s" }
                }
            }
        }
    }
}

/// Renders each variant of a group once, with its loads at the points of the sweep.
fn subjects(cells: &[&CellResult]) -> Markup {
    let mut seen: Vec<(&VariantResult, Vec<&str>)> = Vec::new();
    for variant in cells.iter().flat_map(|cell| &cell.variants) {
        match seen.iter_mut().find(|(known, _)| known.name == variant.name && known.start == variant.start) {
            Some((_, loads)) if loads.contains(&variant.load.as_str()) => {}
            Some((_, loads)) => loads.push(&variant.load),
            None => seen.push((variant, vec![&variant.load])),
        }
    }
    html! {
        @for (variant, loads) in &seen {
            h4 { (variant.name) }
            (facts([
                ("URL", Some(variant.urls.join(" ")).filter(|urls| !urls.is_empty())),
                ("Server", variant.start.clone()),
                ("Load", Some(loads.join(" · ")).filter(|load| !load.is_empty())),
            ]))
        }
    }
}

/// Renders the command and the file for a repetition.
pub(super) fn again(result: &LabResult) -> Markup {
    html! {
        (command(&result.rerun))
        @if let Some(source) = &result.source {
            p.small { "The file, without what may be secret in it:" }
            (folded(&format!("{}.toml", result.name), &html! { pre { code { (source) } } }))
        }
    }
}

/// Renders the machines, and the assignment of CPUs.
pub(super) fn pinning(result: &LabResult) -> Markup {
    let pinned = |cpus: &Option<String>| Some(cpus.clone().unwrap_or_else(|| "wherever the kernel put them".into()));
    facts([
        ("Network", result.network.as_ref().map(NetworkRecord::words)),
        ("CPUs of the servers", pinned(&result.server_cpus)),
        ("CPUs of the load", pinned(&result.load_cpus)),
    ])
}

fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Precise => "as precise as was asked",
        Ended::MaxBlocks => "as many as were allowed",
        Ended::MaxTime => "its time was over",
        Ended::Failed => "fewer than two variants were left",
        Ended::Interrupted => "ended early",
    }
}
