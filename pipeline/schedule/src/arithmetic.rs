//! Saturating arithmetic of times and bytes.

/// Adds to a sum.
pub const fn add(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}

/// Returns the sum of some numbers.
pub fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

/// Returns a number, or the largest one of 64 bits if it is larger.
#[inline]
pub fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Returns a number times `by`, divided by `per`, rounded down. `per` is not zero.
#[inline]
pub fn scaled(number: u64, by: u64, per: u64) -> u64 {
    narrow(u128::from(number) * u128::from(by) / u128::from(per))
}
