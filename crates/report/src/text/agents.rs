//! The part of a report on load machines: each one's counts and costs, their clocks, and the skew of the start.

use oroshi_bench::record::{AgentRecord, AgentState};
use oroshi_words::units;

use super::bench::Page;
use crate::paint::Paint;
use crate::words;

/// Adds a line on all agents, and a row for each.
pub(super) fn add(page: &mut Page, agents: &[AgentRecord]) {
    if agents.is_empty() {
        return;
    }
    let time = |ns: u64| units::time(ns as f64);
    let lost = agents.iter().any(|agent| agent.state == AgentState::Lost);
    page.painted_row("Agents", &words::agents(agents), if lost { Paint::red } else { |_, text| text.to_owned() });
    let head = ["  agent", "state", "for", "answered", "errors", "p99", "late p99", "busiest thread"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(agents.iter().map(|agent| {
        let quantile = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), time);
        let busiest = agent.thread_cpu.iter().copied().fold(0.0, f64::max);
        vec![
            format!("  {}", agent.name),
            agent.state.name().to_owned(),
            format!("{:.1} s", agent.elapsed_s),
            units::count(agent.completed),
            units::count(agent.errors),
            quantile(agent.p99_ns),
            quantile(agent.lateness_p99_ns),
            format!("{:.0} %", busiest * 100.0),
        ]
    }));
    page.table(&rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_agent_has_a_row_and_a_lost_one_is_said() {
        let agent = |name: &str, state| AgentRecord {
            name: name.to_owned(),
            state,
            elapsed_s: 12.34,
            started: 1000,
            completed: 999,
            failed: 1,
            unsent: 0,
            errors: 1,
            thread_cpu: vec![0.1, 0.52],
            p99_ns: Some(1_500_000),
            lateness_p99_ns: None,
            clock_bound_ns: Some(200_000),
            start_late_ns: Some(60_000),
            start_queued_ns: Some(45_000),
        };
        let mut page = Page { text: String::new(), paint: Paint::PLAIN, width: 110 };
        add(&mut page, &[agent("a", AgentState::Done), agent("b", AgentState::Lost)]);
        let words = page.text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("2, 1 of them lost; all began within 60.0us of the agreed moment"), "{}", page.text);
        assert!(words.contains("(the last one waited 45.0us of it for a CPU)"), "{}", page.text);
        assert!(
            page.text.contains("±200us") && page.text.contains("12.3 s") && page.text.contains("52 %"),
            "{}",
            page.text
        );
        let mut near = Page { text: String::new(), paint: Paint::PLAIN, width: 110 };
        add(&mut near, &[AgentRecord { clock_bound_ns: Some(0), ..agent("a", AgentState::Done) }]);
        let words = near.text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("for a CPU); all read one clock"), "{}", near.text);
        let mut none = Page { text: String::new(), paint: Paint::PLAIN, width: 110 };
        add(&mut none, &[]);
        assert_eq!(none.text, "");
    }
}
