//! Splitting a number by weights.

/// Splits `total` by `weights`, without loss.
///
/// Shares are by largest remainder: each differs from the exact one by less than one. Then empty shares take one from
/// the largest, if there is enough for all.
pub(crate) fn shares(total: usize, weights: &[usize]) -> Vec<usize> {
    let sum: usize = weights.iter().sum::<usize>().max(1);
    let mut shares: Vec<usize> = weights.iter().map(|weight| total * weight / sum).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|&i| std::cmp::Reverse(total * weights[i] % sum));
    let left = total - shares.iter().sum::<usize>();
    for &i in by_remainder.iter().cycle().take(left) {
        shares[i] += 1;
    }
    if total >= weights.len() {
        while let Some(empty) = shares.iter().position(|&share| share == 0) {
            let largest = (0..shares.len()).max_by_key(|&i| shares[i]).unwrap_or(empty);
            shares[largest] -= 1;
            shares[empty] += 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_is_lost_in_the_split() {
        assert_eq!(shares(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(shares(3, &[2, 1]), [2, 1]);
        assert_eq!(shares(3, &[1, 100, 1]), [1, 1, 1]);
        assert_eq!(shares(0, &[1, 2]), [0, 0]);
        assert_eq!(shares(2, &[1, 1, 1]).iter().sum::<usize>(), 2);
        for total in 3..200 {
            let split = shares(total, &[5, 1, 3]);
            assert_eq!(split.iter().sum::<usize>(), total);
            assert!(split.iter().all(|&s| s > 0));
        }
    }
}
