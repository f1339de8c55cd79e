//! Which rows of a set are leased.

/// Free and leased rows. Each call takes constant time.
#[derive(Debug)]
pub(super) struct Leases {
    /// In no order.
    free: Vec<u32>,
    /// One bit per row.
    leased: Vec<u64>,
}

impl Leases {
    /// All rows are free.
    pub(super) fn new(rows: u32) -> Self {
        Self { free: (0..rows).collect(), leased: vec![0; rows.div_ceil(u64::BITS) as usize] }
    }

    /// Leases a free row. Each is equally likely if `choice` is a random number of 64 bits.
    pub(super) fn take(&mut self, choice: u64) -> Option<u32> {
        // The high half of the product is below the length.
        let at = (u128::from(choice) * self.free.len() as u128) >> u64::BITS;
        if self.free.is_empty() {
            return None;
        }
        let row = self.free.swap_remove(at as usize);
        let (word, bit) = place(row);
        self.leased[word] |= bit;
        Some(row)
    }

    /// Makes a row free again. Returns false if it is not leased.
    pub(super) fn give_back(&mut self, row: u32) -> bool {
        let (word, bit) = place(row);
        let Some(leased) = self.leased.get_mut(word).filter(|word| **word & bit != 0) else { return false };
        *leased &= !bit;
        self.free.push(row);
        true
    }
}

fn place(row: u32) -> (usize, u64) {
    ((row / u64::BITS) as usize, 1 << (row % u64::BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_free_row_is_equally_likely() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            let mut leases = Leases::new(10);
            leases.take(random.u64(..));
            counts[leases.take(random.u64(..)).unwrap() as usize] += 1;
        }
        // Five standard deviations of a binomial count.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 475), "{counts:?}");
    }

    proptest! {
        #[test]
        fn a_row_is_leased_once_at_a_time(
            rows in 0u32..200,
            steps in prop::collection::vec((any::<bool>(), any::<u64>()), 0..600),
        ) {
            let mut leases = Leases::new(rows);
            let mut held = BTreeSet::new();
            for (takes, number) in steps {
                if takes {
                    match leases.take(number) {
                        Some(row) => prop_assert!(row < rows && held.insert(row)),
                        None => prop_assert_eq!(held.len(), rows as usize),
                    }
                } else {
                    let row = (number % 300) as u32;
                    prop_assert_eq!(leases.give_back(row), held.remove(&row));
                }
            }
            prop_assert_eq!(leases.free.len() + held.len(), rows as usize);
        }
    }
}
