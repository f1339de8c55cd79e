//! Entries beside those that a history has: the same result again, or the same with another commit, date or name.

use crate::entry::{Entry, Subject, Unit};
use crate::series::short;

/// What a history's entry means for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// They are of different results.
    New,
    /// They are of one result, and say the same.
    Same,
    /// They are of one result, and say different things of it: in these words.
    Different(String),
}

/// Compares an entry with one of the history. One result must not count twice, so entries of one result are either the
/// same or a mistake.
#[must_use]
pub fn known(new: &Entry, held: &Entry) -> Known {
    if new.source != held.source {
        return Known::New;
    }
    let (commit, other) = (&held.commit, &new.commit);
    if !commit.is_same(other) {
        return Known::Different(format!("of the commit {} instead of {}", short(commit), short(other)));
    }
    if commit.unix_s.total_cmp(&other.unix_s).is_ne() {
        let [held, new] = [commit.unix_s, other.unix_s];
        return Known::Different(format!("with the date {held} instead of {new}, in seconds since 1970"));
    }
    let names = |entry: &Entry| entry.subjects.iter().map(|subject| subject.name.clone()).collect::<Vec<_>>();
    let (held_names, new_names) = (names(held), names(new));
    if held_names != new_names {
        let [held, new] = [held_names, new_names].map(|names| names.join(", "));
        return Known::Different(format!("with the name `{held}` instead of `{new}`"));
    }
    let pairs = held.subjects.iter().zip(&new.subjects);
    let different = pairs.filter_map(|(held, new)| figures(held, new)).next();
    different.map_or(Known::Same, Known::Different)
}

/// Says in which figure two subjects of one result differ. A later version of oroshi may take more figures from a
/// result; of a row of CSV all figures are known.
fn figures(held: &Subject, new: &Subject) -> Option<String> {
    let is_row = |subject: &Subject| subject.figures.values().any(|figure| figure.unit == Unit::Plain);
    let mut names = held.figures.keys().chain(new.figures.keys());
    names.find_map(|metric| match (held.figures.get(metric), new.figures.get(metric)) {
        (Some(old), Some(figure)) if old.higher_is_better != figure.higher_is_better => {
            let word = if old.higher_is_better { "higher" } else { "lower" };
            Some(format!("with another direction of {metric}: {word} is better"))
        }
        (Some(old), Some(figure)) if old.value.total_cmp(&figure.value).is_ne() => {
            Some(format!("with {metric} {} instead of {}", old.value, figure.value))
        }
        (Some(_), Some(_)) => None,
        (Some(_), None) if is_row(held) => Some(format!("with the figure {metric}")),
        (None, Some(_)) if is_row(new) => Some(format!("without the figure {metric}")),
        _ => None,
    })
}
