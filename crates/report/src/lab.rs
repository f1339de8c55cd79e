//! The page of an experiment: the verdict first, then its evidence down to every run, and how to repeat it.
//!
//! [`verdict`]: verdicts in words. [`ratios`]: each ratio with its interval. [`curves`]: figures against the swept
//! value. [`figures`]: each variant's own. [`runs`]: every run. [`method`]: rules, subjects, how to repeat it.

mod curves;
mod figures;
mod method;
mod ratios;
mod runs;
mod verdict;

use std::collections::BTreeSet;

use maud::html;
use oroshi_lab::LabResult;
use oroshi_lab::result::CellResult;

use crate::chart::Swatch;
use crate::figure;
use crate::machine;
use crate::page::{self, Page, Section};
use crate::table::distinct;

/// Renders the page.
pub(crate) fn page(result: &LabResult) -> String {
    let view = View::of(result);
    let header = html! {
        h1 { (result.title) }
        @if !result.question.is_empty() { p.lede { (result.question) } }
        @if result.quick { p.badge { "a quick look: short runs, few blocks" } }
        @if result.cut_short {
            p.badge {
                "ended early, after " (figure::time(result.elapsed_s * 1e9)) ": this is what there was until then"
            }
        }
        (verdict::summary(&view))
        (method::left_out(&view))
        (page::warnings(&result.warnings))
    };
    let mut sections = Vec::new();
    if let Some(sweep) = &result.sweep {
        sections.push(Section { id: "curves", title: "Curves", body: curves::section(&view, sweep) });
    }
    sections.extend([
        Section { id: "ratios", title: "Ratios", body: ratios::section(&view) },
        Section { id: "figures", title: "Figures", body: figures::section(&view) },
        Section { id: "runs", title: "Every run", body: runs::section(&view) },
        Section { id: "method", title: "Method", body: method::section(&view) },
        Section { id: "again", title: "Run it again", body: method::again(result) },
        Section {
            id: "environment",
            title: "Environment",
            body: html! { (method::pinning(result)) (machine::environment(&result.environment)) },
        },
    ]);
    Page {
        title: format!("{} – oroshi lab", result.title),
        kind: format!("oroshi lab · {} · {}", result.name, figure::date(result.started_unix_s)),
        header,
        sections,
        footer: html! {
            p {
                "Drawn by \
                 oroshi " (env!("CARGO_PKG_VERSION")) " from a result in " (result.schema) ". It loads nothing \
                 and runs no script. " code { "oroshi lab report RESULT.json --html OUT.html" } " draws it again."
            }
        },
    }
    .render()
}

/// A result, with indexes for all parts of its page.
struct View<'a> {
    result: &'a LabResult,
    /// Names of all variants, in order of occurrence: a name has one colour on the whole page.
    names: Vec<&'a str>,
    /// The groups, in order.
    groups: Vec<&'a str>,
}

impl<'a> View<'a> {
    fn of(result: &'a LabResult) -> Self {
        let variants = result.cells.iter().flat_map(|cell| &cell.variants);
        let names = distinct(variants.map(|variant| variant.name.as_str()));
        let groups = distinct(result.cells.iter().map(|cell| cell.group.as_str()));
        Self { result, names, groups }
    }

    /// Returns the colour of a variant.
    fn series(&self, name: &str) -> usize {
        self.names.iter().position(|known| *known == name).unwrap_or(0)
    }

    /// Returns the cells of a group, in order.
    fn cells(&self, group: &str) -> Vec<&'a CellResult> {
        self.result.cells.iter().filter(|cell| cell.group == group).collect()
    }

    /// Names the position of a cell in the sweep: `connections 100`.
    fn point_name(&self, cell: &CellResult) -> String {
        let at = self.result.sweep.as_ref().zip(cell.point);
        at.and_then(|(sweep, point)| Some(format!("{} {}", sweep.label, sweep.values.get(point)?))).unwrap_or_default()
    }

    /// Returns the name of a cell's variant.
    fn name(cell: &CellResult, variant: usize) -> &str {
        cell.variants.get(variant).map_or("?", |variant| &variant.name)
    }

    /// Returns the colours of the variants in `cells`.
    fn key(&self, cells: &[&CellResult]) -> Vec<(Swatch, String)> {
        let there: BTreeSet<&str> = cells.iter().flat_map(|cell| &cell.variants).map(|v| v.name.as_str()).collect();
        let known = self.names.iter().enumerate().filter(|(_, name)| there.contains(*name));
        known.map(|(series, name)| (Swatch::Mark(series), (*name).to_owned())).collect()
    }
}
