//! Keys at the top of the file, and the sweep: metrics, blocks, values, CPUs.

use std::collections::BTreeSet;

use oroshi_config::{Field, Table};
use oroshi_lab::Metric;
use oroshi_lab::plan::{Rules, Sweep};
use oroshi_lab::template;
use oroshi_net::CpuList;
use oroshi_words::units;

use crate::machine::Machine;
use crate::rules;
use crate::server::timeout;

/// CPUs of the load and of the servers; `None`: not pinned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cpus {
    pub(crate) server: Option<CpuList>,
    pub(crate) load: Option<CpuList>,
}

/// Reads the metrics to compare.
pub(crate) fn metrics(value: &Field<'_>) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for element in value.each() {
        match element.read(str::parse::<Metric>) {
            Some(metric) if metrics.contains(&metric) => element.wrong(format!("`{metric}` is given twice")),
            metric => metrics.extend(metric),
        }
    }
    metrics
}

/// Reads the number of blocks, and the rule for stopping.
pub(crate) fn rules(root: &Table<'_>) -> Rules {
    let usual = Rules::default();
    let share = |key| root.read(key, rules::share);
    let (min_blocks, max_blocks) = root.read("blocks", rules::blocks).unwrap_or((usual.min_blocks, usual.max_blocks));
    let blocks_per_start = root.read("blocks-per-start", rules::blocks_per_start);
    let any_answers = root.get("any-answers").and_then(|value| {
        let switch = value.switch();
        if switch.is_none() {
            value.wrong("expected true or false");
        }
        switch
    });
    Rules {
        smallest_effect: share("smallest-effect").unwrap_or(usual.smallest_effect),
        precision: share("precision").unwrap_or(usual.precision),
        min_blocks,
        max_blocks,
        max_time: root.get("max-time").and_then(|value| timeout(&value)),
        blocks_per_start: blocks_per_start.unwrap_or(usual.blocks_per_start),
        disturbed: root.read("disturbed", rules::disturbed).unwrap_or(usual.disturbed),
        any_answers: any_answers.unwrap_or(usual.any_answers),
        processes: root.texts("processes"),
        seed: root.read("seed", units::parse_count).unwrap_or(usual.seed),
    }
}

/// Reads the sweep.
pub(crate) fn sweep(table: &Table<'_>) -> Option<Sweep> {
    let name = table.required("name", "the name that stands for the value: name = \"connections\"");
    let values = table.get("values").map(|value| value.texts());
    if values.is_none() {
        table.wrong("`values` is missing: expected what is swept over, as in values = [10, 100, 1000]");
    }
    let label = table.text("label");
    table.finish();
    let (name, values) = (name?, values??);
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let taken = template::is_place(&name) || ["dir", "oroshi", "url"].contains(&name.as_str());
    if !plain || taken {
        let why = if taken { "stands for something else already" } else { "is no plain word" };
        table.get("name")?.wrong(format!("`{name}` {why}: expected a name of letters, digits, - and _"));
        return None;
    }
    let twice: BTreeSet<&String> = values.iter().collect();
    if values.is_empty() || twice.len() < values.len() {
        table.get("values")?.wrong("expected at least one value, and each only once");
        return None;
    }
    Some(Sweep { label: label.unwrap_or_else(|| name.clone()), name, values })
}

/// Returns the file's CPUs, or by default two CPUs on different cores, if the machine has such.
pub(crate) fn cpus(root: &Table<'_>, machine: &Machine) -> Cpus {
    let Some(value) = root.get("cpus") else {
        let apart = machine.cpu_pair.map(|(load, server)| (CpuList::one(load), CpuList::one(server)));
        let (load, server) = apart.unzip();
        return Cpus { server, load };
    };
    if !value.is_table() {
        if value.text().is_some_and(|text| text != "any") {
            value.wrong("expected { server = \"1\", load = \"0\" }, or \"any\"");
        }
        return Cpus::default();
    }
    let Some(table) = value.table() else { return Cpus::default() };
    let list = |key| {
        let value = table.get(key)?;
        let text = value.text().filter(|text| *text != "any")?;
        let list = value.read(|_| text.parse::<CpuList>())?;
        let missing = list.iter().find(|cpu| machine.cpus.as_ref().is_some_and(|there| !there.contains(*cpu)));
        if let (Some(cpu), Some(there)) = (missing, &machine.cpus) {
            value.wrong(format!("CPU {cpu} is not available here: expected some of {there}"));
        }
        Some(list)
    };
    let cpus = Cpus { server: list("server"), load: list("load") };
    table.finish();
    cpus
}
