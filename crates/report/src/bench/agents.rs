//! The load machines of a run: counts and costs of each, their clocks, and the skew of the start.

use maud::{Markup, html};
use oroshi_bench::record::{AgentRecord, AgentState};
use oroshi_words::units;

use crate::figure;
use crate::page::{cell, table};
use crate::words;

/// Renders a row for each agent, below a sentence on all of them.
pub(super) fn table_of(agents: &[AgentRecord]) -> Markup {
    let head = ["agent", "state", "for", "requests", "failed", "p99", "late p99", "CPU", "began", "queued", "clock"];
    let time = |ns: Option<u64>| ns.map_or_else(|| "–".to_owned(), |ns| figure::time(ns as f64));
    let row = |agent: &AgentRecord| {
        let state = match agent.state {
            AgentState::Lost => html! { strong { (agent.state.name()) } },
            state => cell(state.name()),
        };
        [
            cell(&agent.name),
            state,
            cell(format!("{:.1} s", agent.elapsed_s)),
            cell(units::count(agent.completed)),
            cell(units::count(agent.failed)),
            cell(time(agent.p99_ns)),
            cell(time(agent.lateness_p99_ns)),
            cell(figure::percent(agent.thread_cpu.iter().sum())),
            cell(agent.start_late_ns.map_or_else(|| "–".to_owned(), |ns| format!("+{}", figure::time(ns as f64)))),
            cell(time(agent.start_queued_ns)),
            cell(agent.clock_bound_ns.map_or_else(|| "–".to_owned(), |ns| format!("±{}", figure::time(ns as f64)))),
        ]
    };
    html! {
        p { (words::agents(agents)) "." }
        (table("Each agent", &head, agents.iter().map(row)))
        p.small {
            "Requests with a whole response, and failed ones. CPU is that of its threads: 100 % is one core. An agent "
            "began so long after the agreed moment, by its own clock, which is known to so much; it was queued for a CPU "
            "for so long of that."
        }
    }
}
