//! The limits of a comparison with the past, and the known differences.

use std::collections::BTreeSet;

use oroshi_bench::environment::Environment;
use oroshi_bench::record::PlanRecord;
use oroshi_bench::{Load, Protocol, Record};
use oroshi_words::units;

use super::{SavedResult, same_cell};
use crate::network::NetworkRecord;
use crate::result::{LabResult, Program, VariantResult};

/// Returns all caveats, the gravest first.
pub(super) fn of(saved: &SavedResult, today: &LabResult) -> Vec<String> {
    let (then, old) = match saved {
        SavedResult::Lab(saved) => (Some(saved.started_unix_s), Some(&saved.environment)),
        SavedResult::Bench(records) => {
            (records.first().map(|record| record.started_unix_s), records.first().map(|record| &record.environment))
        }
    };
    let mut caveats: Vec<String> = old.and_then(|old| other_machine(old, &today.environment)).into_iter().collect();
    let ago = then.map(|then| today.started_unix_s - then).filter(|ago| *ago > 0.0);
    let ago = ago.map_or_else(|| "at another time".to_owned(), |ago| format!("{} ago", units::time(ago * 1e9)));
    caveats.push(format!(
        "the saved runs were made {ago} and did not take turns with today's: whatever else changed since counts as a \
         difference"
    ));
    caveats.extend(old.map(|old| settings(old, &today.environment)).unwrap_or_default());
    match saved {
        SavedResult::Lab(saved) => caveats.extend(plans(saved, today)),
        SavedResult::Bench(records) => {
            caveats.push(format!(
                "the saved {} {}: how far single runs lie apart from one start of the server to the next is hardly \
                 known",
                if records.len() == 1 { "run is".to_owned() } else { format!("{} runs are", records.len()) },
                "from `oroshi bench`"
            ));
            caveats.extend(loads(records, today));
        }
    }
    caveats
}

/// Says why this is another machine, if it is.
fn other_machine(old: &Environment, new: &Environment) -> Option<String> {
    // Kernels leave slightly different amounts of the same memory.
    let [old_memory, new_memory] = [old, new].map(|environment| environment.memory_bytes.unwrap_or_default() as f64);
    let same_memory = old_memory.max(new_memory) <= 1.05 * old_memory.min(new_memory);
    let memory = |bytes: f64| units::bytes(if same_memory { old_memory } else { bytes });
    let cpus = |environment: &Environment| environment.cpu.online.map(|cpus| cpus.to_string());
    let differences = [
        differs("architecture", Some(&old.architecture), Some(&new.architecture)),
        differs("CPU", old.cpu.model.as_ref(), new.cpu.model.as_ref()),
        differs("number of CPUs", cpus(old).as_ref(), cpus(new).as_ref()),
        differs("memory", Some(&memory(old_memory)), Some(&memory(new_memory))),
        differs("virtual machine", old.virtual_machine.as_ref(), new.virtual_machine.as_ref()),
    ];
    let differences: Vec<String> = differences.into_iter().flatten().collect();
    (!differences.is_empty()).then(|| {
        format!(
            "ANOTHER MACHINE: {}. The ratios compare machines as much as set-ups, and prove nothing of the latter",
            differences.join("; ")
        )
    })
}

/// Lists differences of settings on one machine.
fn settings(old: &Environment, new: &Environment) -> Vec<String> {
    let cgroup = |environment: &Environment| environment.cgroup.cpus.map(units::number);
    let turbo = |environment: &Environment| environment.cpu.turbo.map(|on| if on { "on" } else { "off" }.to_owned());
    let differences = [
        differs("kernel", Some(&old.kernel), Some(&new.kernel)),
        differs("oroshi", Some(&old.oroshi), Some(&new.oroshi)),
        differs("CPU frequency governor", old.cpu.governor.as_ref(), new.cpu.governor.as_ref()),
        differs("turbo", turbo(old).as_ref(), turbo(new).as_ref()),
        differs("CPUs allowed to oroshi", old.cpu.affinity.as_ref(), new.cpu.affinity.as_ref()),
        differs("control group's CPUs", cgroup(old).as_ref(), cgroup(new).as_ref()),
    ];
    differences.into_iter().flatten().map(|difference| format!("not the same {difference}")).collect()
}

/// `kernel (6.1 then, 6.2 today)`; `None` when they are the same, or neither is known.
fn differs(what: &str, old: Option<&String>, new: Option<&String>) -> Option<String> {
    let shown = |value: Option<&String>| value.filter(|v| !v.is_empty()).map_or("unknown", String::as_str).to_owned();
    let (old, new) = (shown(old), shown(new));
    (old != new).then(|| format!("{what} ({old} then, {new} today)"))
}

/// Lists differences between the plans of two experiments.
fn plans(saved: &LabResult, today: &LabResult) -> Vec<String> {
    let mut caveats = Vec::new();
    let cpus = |list: &Option<String>| list.clone().unwrap_or_else(|| "any".to_owned());
    let quick = |result: &LabResult| if result.quick { "a fast look" } else { "full length" }.to_owned();
    let machines = |result: &LabResult| result.network.as_ref().map_or_else(|| "one".to_owned(), NetworkRecord::words);
    let rules = |result: &LabResult| match result.rules.blocks_per_start {
        Some(blocks) => units::plural(blocks as u64, "block"),
        None => "never".to_owned(),
    };
    let pairs = [
        ("CPUs of the servers", cpus(&saved.server_cpus), cpus(&today.server_cpus)),
        ("CPUs of the load", cpus(&saved.load_cpus), cpus(&today.load_cpus)),
        ("machines", machines(saved), machines(today)),
        ("length", quick(saved), quick(today)),
        ("blocks until servers are restarted", rules(saved), rules(today)),
    ];
    let difference = |(what, old, new): &(&str, String, String)| differs(what, Some(old), Some(new));
    caveats.extend(pairs.iter().filter_map(difference).map(|difference| format!("not the same {difference}")));
    if saved.cut_short {
        caveats.push("the saved result was ended before its time".to_owned());
    }
    let mut seen = BTreeSet::new();
    let cells = today.cells.iter().filter_map(|new| Some((new, same_cell(saved, today, new)?)));
    let both = cells.flat_map(|(new, old)| {
        new.variants.iter().filter_map(|new| Some((new, old.variants.iter().find(|old| old.name == new.name)?)))
    });
    for (new, old) in both {
        let start = |variant: &VariantResult| variant.start.clone().unwrap_or_default();
        let differences = [
            differs("load", Some(&old.load), Some(&new.load)),
            differs("start command", Some(&start(old)), Some(&start(new))),
            differs("URLs", Some(&old.urls.join(" ")), Some(&new.urls.join(" "))),
        ];
        let programs = [(&old.program, &new.program), (&old.load_program, &new.load_program)];
        let programs = programs.into_iter().filter_map(|(old, new)| other_program(old.as_ref()?, new.as_ref()?));
        let differences = differences.into_iter().flatten().map(|difference| format!("not the same {difference}"));
        for difference in differences.chain(programs) {
            let text = format!("{}: {difference}", new.name);
            if seen.insert(text.clone()) {
                caveats.push(text);
            }
        }
    }
    caveats
}

/// Says how a program's file differs from the saved one.
fn other_program(old: &Program, new: &Program) -> Option<String> {
    if old == new {
        return None;
    }
    if old.path != new.path {
        return differs("program", Some(&old.path), Some(&new.path)).map(|text| format!("not the same {text}"));
    }
    let [then, today] = [old.bytes, new.bytes].map(units::count);
    let how = if old.bytes == new.bytes {
        format!("it was written anew since, and has {today} bytes as then")
    } else {
        format!("{then} bytes then, {today} today")
    };
    Some(format!("{} is another file than then ({how})", new.path))
}

/// Lists differences between the loads of single runs and today's.
fn loads(records: &[Record], today: &LabResult) -> Vec<String> {
    let old: BTreeSet<String> = records.iter().map(|record| described(&record.plan)).collect();
    let runs = today.cells.iter().flat_map(|cell| &cell.runs);
    let new: BTreeSet<String> = runs.filter_map(|run| Some(described(&run.record.as_ref()?.plan))).collect();
    let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join("; ");
    differs("load", Some(&list(&old)), Some(&list(&new)))
        .map(|text| format!("not the same {text}"))
        .into_iter()
        .collect()
}

fn described(plan: &PlanRecord) -> String {
    let pace = match &plan.load {
        Load::Closed => "closed loop".to_owned(),
        Load::Open { stages, .. } => {
            let rates: Vec<String> = stages.iter().map(|stage| units::number(stage.rate)).collect();
            format!("{}/s", rates.join(", "))
        }
    };
    let length = plan.duration_s.map(units::length).or(plan.requests.map(|n| units::plural(n, "request")));
    let each = plan.requests_per_connection.map(|n| format!(" of {}", units::plural(n, "request")));
    let protocol = if plan.protocol == Protocol::Http2 { " of HTTP/2" } else { "" };
    let gathered =
        if plan.gather_s > 0.0 { format!(", gathering for {}", units::length(plan.gather_s)) } else { String::new() };
    format!(
        "{}{protocol}{}, {} in flight on each{gathered}, {pace}, {}",
        units::plural(plan.connections as u64, "connection"),
        each.unwrap_or_default(),
        plan.pipeline.max(plan.streams),
        length.unwrap_or_default()
    )
}
