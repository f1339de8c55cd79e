//! The environment of a measurement.

use maud::{Markup, html};
use oroshi_bench::environment::Environment;
use oroshi_words::units;

use crate::figure::Unit;
use crate::page::{self, facts};
use crate::words;

/// Draws the command of a run and its machine.
pub(crate) fn origin(environment: &Environment) -> Markup {
    html! {
        @if !environment.command.is_empty() {
            p { "The command, as it was typed (what may be secret is " code { "***" } "):" }
            (page::command(&environment.command))
        }
        @if environment.kernel.is_empty() {
            p { "The machine is not known." }
        } @else {
            (self::environment(environment))
        }
    }
}

/// Renders the machine, as far as known.
pub(crate) fn environment(e: &Environment) -> Markup {
    let bytes = |n: Option<u64>| n.map(|n| Unit::Bytes.text(n as f64));
    let yes_no = |yes: Option<bool>| yes.map(|yes| if yes { "on".to_owned() } else { "off".to_owned() });
    let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let limit = |n: Option<u64>| n.map_or_else(|| "no limit".to_owned(), units::count);
    let group = match (e.cgroup.cpus, bytes(e.cgroup.memory_bytes)) {
        (None, None) => None,
        (cpus, memory) => {
            let cpus = cpus.map(|cpus| format!("{} CPUs", units::number(cpus)));
            Some(cpus.into_iter().chain(memory).collect::<Vec<_>>().join(", "))
        }
    };
    let ports = e.sysctl.ip_local_port_range.map(|(first, last)| format!("{first} to {last}"));
    facts([
        ("Machine", filled(&words::machine(e))),
        ("Architecture", filled(&e.architecture)),
        ("CPUs that this process may use", e.cpu.affinity.clone()),
        ("Frequency governor", e.cpu.governor.clone()),
        ("Turbo", yes_no(e.cpu.turbo)),
        ("Two threads per core", yes_no(e.cpu.smt)),
        ("Memory", bytes(e.memory_bytes)),
        ("Limits by control group", group),
        ("Clock source", e.clocksource.clone()),
        ("Local ports", ports),
        ("TIME_WAIT reuse (tcp_tw_reuse)", e.sysctl.tcp_tw_reuse.map(|n| n.to_string())),
        ("Longest backlog (somaxconn)", e.sysctl.somaxconn.map(units::count)),
        ("Half-open connections (tcp_max_syn_backlog)", e.sysctl.tcp_max_syn_backlog.map(units::count)),
        (
            "Open files",
            (!e.kernel.is_empty()).then(|| format!("{}, of {}", limit(e.descriptors.soft), limit(e.descriptors.hard))),
        ),
        ("Load average before", e.load_average.map(|load| load.map(|n| format!("{n:.2}")).join(", "))),
        ("oroshi", filled(&e.oroshi)),
    ])
}
