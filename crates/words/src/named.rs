//! Tables of values and their names.

/// Returns the values of a table, in its order.
pub const fn values<T: Copy, const N: usize>(table: &[(T, &'static str); N]) -> [T; N] {
    let mut values = [table[0].0; N];
    let mut place = 0;
    while place < N {
        values[place] = table[place].0;
        place += 1;
    }
    values
}
