//! The order of runs within a block.
//!
//! Blocks come in pairs: the first has a random order, the second its reverse (A B C, then C B A). A linear drift over
//! the pair, such as a CPU that warms up, then affects every variant equally; a periodic disturbance meets another
//! order in each pair.

use fastrand::Rng;

/// Returns the order of `variants` variants in a block (from 0) of a cell (from 0), as indices. Equal arguments give
/// the same order, so giving a variant up changes nothing for the others.
#[must_use]
pub fn order(variants: usize, cell: usize, block: usize, seed: u64) -> Vec<usize> {
    let pair = (block / 2) as u64;
    // Each pair derives a seed from the cell's. Mixing makes neighbouring seeds unrelated.
    let mut mixed = Rng::with_seed(seed ^ (cell as u64).rotate_left(32));
    let mut random = Rng::with_seed(mixed.u64(..).wrapping_add(pair));
    let mut order: Vec<usize> = (0..variants).collect();
    random.shuffle(&mut order);
    if !block.is_multiple_of(2) {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn every_block_has_every_variant_once_and_odd_blocks_go_backwards() {
        for (variants, cell, block) in [(1, 0, 0), (2, 0, 4), (3, 2, 6), (7, 1, 10)] {
            let even = order(variants, cell, block, 1);
            assert_eq!(BTreeSet::from_iter(even.clone()), (0..variants).collect());
            let mut odd = order(variants, cell, block + 1, 1);
            odd.reverse();
            assert_eq!(even, odd);
            assert_eq!(order(variants, cell, block, 1), even, "the same every time");
        }
    }

    #[test]
    fn a_straight_drift_weighs_on_all_alike() {
        // Each run's position, summed over a pair of blocks.
        let mut sums = BTreeMap::<usize, usize>::new();
        for block in 4..6 {
            for (place, variant) in order(5, 0, block, 9).into_iter().enumerate() {
                *sums.entry(variant).or_default() += block * 5 + place;
            }
        }
        assert_eq!(BTreeSet::from_iter(sums.into_values()).len(), 1);
    }

    #[test]
    fn first_places_are_spread_and_depend_on_seed_and_cell() {
        let firsts = |cell, seed| (0..400).map(|pair| order(2, cell, 2 * pair, seed)[0]).collect::<Vec<_>>();
        for (cell, seed) in [(0, 1), (1, 1), (0, 2)] {
            let ones = firsts(cell, seed).iter().sum::<usize>();
            assert!((150..=250).contains(&ones), "{ones} of 400");
        }
        assert_ne!(firsts(0, 1), firsts(1, 1));
        assert_ne!(firsts(0, 1), firsts(0, 2));
    }

    #[test]
    fn all_orders_of_three_come_up() {
        let seen: BTreeSet<Vec<usize>> = (0..100).map(|pair| order(3, 0, 2 * pair, 1)).collect();
        assert_eq!(seen.len(), 6);
    }
}
