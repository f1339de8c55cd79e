//! Finds the known name for a mistyped one.

/// Returns the candidate with the fewest changed, missing, added or swapped characters; `None` when none is near.
pub fn nearest<'c>(typed: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let found = candidates.into_iter().map(|name| (distance(typed, name), name)).min_by_key(|(d, _)| *d)?;
    // With half of the letters wrong, it is another word.
    (found.0 * 2 <= typed.chars().count().max(2)).then_some(found.1)
}

/// Optimal string alignment distance, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (a, b) = (lower(a), lower(b));
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_counted_once_each() {
        for (a, b, n) in
            [("", "abc", 3), ("rps", "rps", 0), ("rsp", "rps", 1), ("error", "errors", 1), ("P99", "p99", 0)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (n, n), "{a} {b}");
        }
    }

    #[test]
    fn what_is_near_is_named_and_what_is_far_is_not() {
        let names = ["rps", "errors", "timeout", "p99"];
        assert_eq!(nearest("timeouts", names), Some("timeout"));
        assert_eq!(nearest("erorrs", names), Some("errors"));
        assert_eq!(nearest("xyzzy", names), None);
        assert_eq!(nearest("x", []), None);
    }
}
