//! Merges the warnings of single runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::result::{CellResult, Run};

/// Returns the warnings of all runs, merging those that differ only in numbers: `in 7 of 40 runs: ...`.
#[must_use]
pub fn summed(cells: &[CellResult]) -> Vec<String> {
    let runs: Vec<(&str, &Run)> = cells
        .iter()
        .flat_map(|cell| cell.runs.iter().filter_map(|run| Some((cell.variants.get(run.variant)?.name.as_str(), run))))
        .collect();
    let variants: BTreeSet<&str> = runs.iter().map(|(name, _)| *name).collect();
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut places = BTreeMap::<String, usize>::new();
    for (name, run) in &runs {
        // A run counts once, even with several such warnings.
        let mut counted = BTreeSet::new();
        for warning in &run.warnings {
            let place = *places.entry(shape(warning)).or_insert(groups.len());
            if place == groups.len() {
                groups.push(Group { example: warning, alike: true, runs: 0, variants: BTreeSet::new() });
            }
            let group = &mut groups[place];
            group.alike &= group.example == warning;
            group.runs += usize::from(counted.insert(place));
            group.variants.insert(*name);
        }
    }
    let shifted = runs.iter().filter(|(_, run)| run.shift.is_some()).count();
    let shifts = (shifted > 0).then(|| {
        let example = runs.iter().find_map(|(_, run)| run.shift.as_deref()).unwrap_or_default();
        format!(
            "{} not steady, such as: {example}; a longer warm-up, or longer runs, may help",
            if shifted == 1 {
                format!("1 of {} runs was", runs.len())
            } else {
                format!("{shifted} of {} runs were", runs.len())
            }
        )
    });
    groups.iter().map(|group| group.words(&runs, variants.len())).chain(shifts).collect()
}

/// Warnings of one kind.
struct Group<'a> {
    example: &'a str,
    /// All have the same numbers as the example.
    alike: bool,
    runs: usize,
    variants: BTreeSet<&'a str>,
}

impl Group<'_> {
    fn words(&self, runs: &[(&str, &Run)], variants: usize) -> String {
        let such = if self.alike { "" } else { ", such as" };
        let (of, whose) = match self.variants.iter().next() {
            Some(name) if self.variants.len() == 1 && variants > 1 => {
                (runs.iter().filter(|(other, _)| other == name).count(), format!(" of {name}"))
            }
            _ => (runs.len(), String::new()),
        };
        let count = if self.runs == of && of > 1 { format!("all {of}") } else { format!("{} of {of}", self.runs) };
        format!("in {count} runs{whose}{such}: {}", self.example)
    }
}

/// Returns a warning without its numbers, which is the same for all runs.
pub(crate) fn shape(warning: &str) -> String {
    let mut shape = String::with_capacity(warning.len());
    for letter in warning.chars() {
        match letter {
            '0'..='9' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            // 12.5 and 1,234 are one number each.
            '.' | ',' if shape.ends_with('#') => {}
            letter => shape.push(letter),
        }
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{cell, run};

    fn said(warnings: &[(usize, &str)], shift: Option<&str>) -> Vec<String> {
        let runs = warnings.iter().enumerate().map(|(block, (variant, text))| {
            let mut run = run(*variant, block, &[]);
            run.warnings = if text.is_empty() { Vec::new() } else { vec![(*text).to_owned()] };
            run.shift = shift.filter(|_| block == 0).map(str::to_owned);
            run
        });
        summed(&[cell(&["tcp", "unix"], runs.collect())])
    }

    #[test]
    fn warnings_that_differ_in_numbers_are_one() {
        let alike = said(&[(0, "no port"), (1, "no port"), (0, ""), (1, "")], None);
        assert_eq!(alike, ["in 2 of 4 runs: no port"]);
        let numbers = said(&[(0, "used 0.4 of 2 CPUs"), (1, "used 1.25 of 2 CPUs")], None);
        assert_eq!(numbers, ["in all 2 runs, such as: used 0.4 of 2 CPUs"]);
        assert_eq!(shape("1,234 of 12.5 s."), shape("7 of 3 s."));
    }

    #[test]
    fn what_concerns_one_variant_names_it() {
        assert_eq!(said(&[(0, "slow"), (1, ""), (0, "")], None), ["in 1 of 2 runs of tcp: slow"]);
    }

    #[test]
    fn runs_that_were_not_steady_are_counted() {
        let said = said(&[(0, ""), (1, "")], Some("throughput fell"));
        assert_eq!(
            said,
            ["1 of 2 runs was not steady, such as: throughput fell; a longer warm-up, or longer runs, may help"]
        );
    }
}
