//! The output of `oroshi lab check` and `oroshi lab list`.

use std::time::Duration;

use oroshi_lab::network::{Network, NetworkRecord};
use oroshi_lab::plan::{Cell, Experiment, Ready, Variant};
use oroshi_net::CpuList;
use oroshi_report::paint::Paint;
use oroshi_report::table::wrap;
use oroshi_words::units::{self, plural};

use crate::experiment::{ExperimentError, ParsedExperiment};
use crate::find::Found;
use crate::server::shown;

/// The maximum of a line's width, except for unbreakable ones.
const WIDTH: usize = 100;
/// The width of the names on the left.
const NAME: usize = 10;

/// Describes an experiment. `untried`: required commands that were not run.
#[must_use]
pub fn check(file: &str, reading: &ParsedExperiment, untried: &[String], paint: Paint) -> String {
    let experiment = &reading.experiment;
    let mut text = paint.bold(&experiment.title) + "\n";
    if !experiment.question.is_empty() {
        text += &(wrap(&experiment.question, WIDTH).join("\n") + "\n");
    }
    text.push('\n');
    text += &row("File", file);
    text += &row("Compares", &compares(experiment));
    text += &row("Rules", &rules(experiment));
    text += &row("CPUs", &cpus(experiment));
    if let Some(network) = &experiment.network {
        text += &row("Network", &NetworkRecord::from(network).words());
    }
    text += &row("Takes", &takes(reading));
    for command in untried {
        text += &row("Requires", &format!("`{command}`, which would be tried: what needs it is skipped if it fails"));
    }
    let sweep = experiment.sweep.as_ref();
    // The points of a group differ little: list all names, and describe the first point.
    let mut shown: Vec<&str> = Vec::new();
    for cell in &experiment.cells {
        if shown.contains(&cell.group.as_str()) {
            continue;
        }
        shown.push(&cell.group);
        let name = experiment.cell_name(cell);
        text.push('\n');
        if !name.is_empty() {
            text += &(paint.bold(&name) + "\n");
        }
        text += &members(cell, experiment.network.as_ref());
        let others: Vec<&str> = experiment
            .cells
            .iter()
            .filter(|c| c.group == cell.group)
            .filter_map(|c| {
                sweep.filter(|_| c.point != cell.point).and_then(|sweep| sweep.values.get(c.point?)).map(String::as_str)
            })
            .collect();
        if let (Some(sweep), false) = (sweep, others.is_empty()) {
            text += &(paint.dim(&format!("  and the same with {} {}", sweep.label, others.join(", "))) + "\n");
        }
    }
    if !experiment.skipped.is_empty() {
        text.push('\n');
    }
    for skipped in &experiment.skipped {
        text += &paint.yellow(&row("Skipped", &format!("{}: {}", skipped.name, skipped.why)));
    }
    if experiment.cells.is_empty() {
        text += &(paint.yellow("Nothing is left to run.") + "\n");
    }
    text
}

/// Lists experiments, each with its title, or the number of its mistakes.
#[must_use]
pub fn list(entries: impl Iterator<Item = (Found, Result<ParsedExperiment, ExperimentError>)>, paint: Paint) -> String {
    let mut rows = Vec::new();
    for (found, reading) in entries {
        let place = found.path.as_ref().map_or_else(|| "built in".into(), |path| path.display().to_string());
        let about = match reading {
            Ok(ParsedExperiment { experiment, .. }) if experiment.cells.is_empty() => {
                paint.yellow(&format!("{} (nothing of it is installed)", experiment.title))
            }
            Ok(ParsedExperiment { experiment, .. }) => experiment.title,
            Err(ExperimentError::File(mistakes)) => paint.red(&format!(
                "{}: `oroshi lab check {}`",
                plural(mistakes.len() as u64, "mistake"),
                found.asked()
            )),
            Err(ExperimentError::Only(problem)) => paint.red(&problem),
        };
        rows.push(vec![found.name, place, about]);
    }
    if rows.is_empty() {
        return "There is no experiment here: a file's name ends in .toml.\n".into();
    }
    aligned(&rows) + "\nRun one:  oroshi lab run NAME --quick\n"
}

/// Aligns columns of words, two spaces apart.
fn aligned(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn row(name: &str, text: &str) -> String {
    let lines = wrap(text, WIDTH - NAME);
    let line = |(i, line): (usize, &String)| format!("{:<NAME$}{line}\n", if i == 0 { name } else { "" });
    lines.iter().enumerate().map(line).collect()
}

fn compares(experiment: &Experiment) -> String {
    let variants: usize = experiment.cells.iter().map(|cell| cell.variants.len()).sum();
    let comparisons = plural(experiment.cells.len() as u64, "comparison");
    let names: Vec<&str> = experiment.metrics.iter().map(|metric| metric.name()).collect();
    let by = names.split_first().map(|(primary, rest)| {
        let rest = if rest.is_empty() { String::new() } else { format!(", then {}", rest.join(", ")) };
        format!("by {primary}{rest}")
    });
    format!("{} in {comparisons}, {}", plural(variants as u64, "set-up"), by.unwrap_or_default())
}

fn rules(experiment: &Experiment) -> String {
    let rules = &experiment.rules;
    let blocks = match (rules.min_blocks, rules.max_blocks) {
        (least, most) if least == most => format!("{} each", plural(least as u64, "block")),
        (least, most) => format!(
            "{least} to {most} blocks each, until the ratios of {} are known to ±{}",
            experiment.metrics.first().map_or("", |metric| metric.name()),
            units::percent(rules.precision)
        ),
    };
    let mut parts = vec![blocks];
    parts.extend(rules.max_time.map(|time| format!("at most {} in all", units::length(time.as_secs_f64()))));
    parts.push(format!("differences under {} do not matter", units::percent(rules.smallest_effect)));
    parts.push(match rules.blocks_per_start {
        None => "servers are started once".into(),
        Some(1) => "servers are started anew for each block".into(),
        Some(n) => format!("servers are started anew every {n} blocks"),
    });
    parts.push(match rules.disturbed {
        limit if limit >= 1.0 => "verdicts whatever else the machine does".into(),
        limit => format!(
            "no verdict on rates and latencies where others took the CPUs in more than {} of one side's runs",
            units::percent(limit)
        ),
    });
    if rules.any_answers {
        parts.push("set-ups are compared whatever they answer".into());
    }
    if !rules.processes.is_empty() {
        parts.push(format!("{} belong to the servers", rules.processes.join(", ")));
    }
    parts.push(format!("seed {}", rules.seed));
    parts.join("; ")
}

fn cpus(experiment: &Experiment) -> String {
    let place =
        |cpus: &Option<CpuList>| cpus.as_ref().map_or_else(|| "anywhere".to_owned(), |cpus| format!("on CPU {cpus}"));
    format!("servers {}, load {}", place(&experiment.server_cpus), place(&experiment.load_cpus))
}

/// Returns the duration of the runs alone: the time for starting and ending servers is unknown.
fn takes(reading: &ParsedExperiment) -> String {
    let rules = &reading.experiment.rules;
    let block: Duration = reading.blocks.iter().sum();
    let time = |blocks: usize| block.as_secs_f64() * blocks as f64 * 1e9;
    let limit = rules.max_time.map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e9);
    let (least, most) = (time(rules.min_blocks), time(rules.max_blocks));
    if least >= limit {
        return format!(
            "{} or a little more: its time is over before {} blocks are",
            units::time(limit),
            rules.min_blocks
        );
    }
    let most = most.min(limit);
    let range = if most - least < 1e9 {
        units::time(least)
    } else {
        format!("{} to {}", units::time(least), units::time(most))
    };
    format!("{range}, and the starts of servers")
}

/// Describes the variants with their URLs and loads, and the servers behind them.
fn members(cell: &Cell, network: Option<&Network>) -> String {
    let one_load = cell.variants.iter().all(|variant| variant.load_words == cell.variants[0].load_words);
    let rows = cell.variants.iter().map(|variant| {
        let mut row = vec![format!("  {}", variant.name), target(variant, cell)];
        if !one_load {
            row.push(variant.load_words.clone());
        }
        row
    });
    let mut text = aligned(&rows.collect::<Vec<_>>());
    if one_load && let Some(first) = cell.variants.first() {
        text += &format!("  load: {}\n", first.load_words);
    }
    for server in &cell.servers {
        let ready = match &server.ready {
            Ready::Answers(urls) => format!("ready when {} answers", urls.join(" and ")),
            Ready::Line(pattern) => format!("ready when it writes {pattern}"),
        };
        let machine = network.zip(server.machine).map(|(network, index)| format!(" on {}", network.machines[index]));
        let name = server.name.clone() + &machine.unwrap_or_default();
        text += &format!("  server {name}: {}; {ready}\n", shown(&server.start));
    }
    text
}

fn target(variant: &Variant, cell: &Cell) -> String {
    let urls = variant.urls.join(" ");
    match variant.server.and_then(|index| cell.servers.get(index)) {
        Some(server) => format!("{urls} of {}", server.name),
        None => format!("{urls}, which runs already"),
    }
}
