//! Keys at the top of the file, and the sweep: what is compared, how often, over which values, on which CPUs.

use std::collections::BTreeSet;

use oroshi_lab::Metric;
use oroshi_lab::plan::{Rules, Sweep};
use oroshi_lab::template;
use oroshi_net::CpuList;
use oroshi_words::units;

use super::document::{Table, Value};
use super::machine::Machine;
use super::server::timeout;
use crate::child::only;
use crate::rules;

/// CPUs for either side; `None`: wherever the kernel puts it.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpus {
    pub(super) server: Option<CpuList>,
    pub(super) load: Option<CpuList>,
}

/// What is compared.
pub(super) fn metrics(value: &Value<'_, '_>) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let elements = if value.is_array() { value.elements().unwrap_or_default() } else { vec![value.clone()] };
    for element in elements {
        match element.read(str::parse::<Metric>) {
            Some(metric) if metrics.contains(&metric) => element.wrong(format!("`{metric}` stands here twice")),
            metric => metrics.extend(metric),
        }
    }
    metrics
}

/// How often, and when it is enough.
pub(super) fn rules(root: &Table<'_, '_>) -> Rules {
    let usual = Rules::default();
    let share = |key| root.get(key).and_then(|value| value.read(rules::share));
    let (min_blocks, max_blocks) =
        root.get("blocks").and_then(|value| value.read(rules::blocks)).unwrap_or((usual.min_blocks, usual.max_blocks));
    let blocks_per_start = root.get("blocks-per-start").and_then(|value| value.read(rules::blocks_per_start));
    let any_answers = root.get("any-answers").and_then(|value| {
        let switch = value.switch();
        if switch.is_none() {
            value.wrong("expected true or false");
        }
        switch
    });
    let processes = root.get("processes").and_then(|value| value.texts()).unwrap_or_default();
    Rules {
        smallest_effect: share("smallest-effect").unwrap_or(usual.smallest_effect),
        precision: share("precision").unwrap_or(usual.precision),
        min_blocks,
        max_blocks,
        max_time: root.get("max-time").and_then(|value| timeout(&value)),
        blocks_per_start: blocks_per_start.unwrap_or(usual.blocks_per_start),
        disturbed: root.get("disturbed").and_then(|value| value.read(rules::disturbed)).unwrap_or(usual.disturbed),
        any_answers: any_answers.unwrap_or(usual.any_answers),
        processes,
        seed: root.get("seed").and_then(|value| value.read(units::parse_count)).unwrap_or(usual.seed),
    }
}

/// What is swept over.
pub(super) fn sweep(table: &Table<'_, '_>) -> Option<Sweep> {
    let name = table.required("name", "the name that stands for the value: name = \"connections\"");
    let values = table.get("values").map(|value| value.texts());
    if values.is_none() {
        table.wrong("`values` is missing: expected what is swept over, as in values = [10, 100, 1000]");
    }
    let label = table.get("label").and_then(|value| value.text());
    table.finish(|_| None);
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

/// Two CPUs on different cores where there are such, unless the file says otherwise.
pub(super) fn cpus(root: &Table<'_, '_>, machine: &Machine) -> Cpus {
    let Some(value) = root.get("cpus") else {
        let apart = machine.apart;
        return Cpus { load: apart.and_then(|cpus| only(cpus.0)), server: apart.and_then(|cpus| only(cpus.1)) };
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
        let text = value.text().filter(|text| text != "any")?;
        let list = value.read(|_| text.parse::<CpuList>())?;
        let missing = list.iter().find(|cpu| machine.cpus.as_ref().is_some_and(|there| !there.contains(*cpu)));
        if let (Some(cpu), Some(there)) = (missing, &machine.cpus) {
            value.wrong(format!("CPU {cpu} is not available here: expected some of {there}"));
        }
        Some(list)
    };
    let cpus = Cpus { server: list("server"), load: list("load") };
    table.finish(|_| None);
    cpus
}
