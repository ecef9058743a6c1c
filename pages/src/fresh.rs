//! Vectors of zeros.

use bytemuck::Zeroable;

use crate::advise::advise_large_pages;

/// A vector of zeros in memory that has not been touched: whoever writes to a page first has it made,
/// so threads that fill it share that work too.
///
/// Asks the system for large pages where they can pay, from a few MiB on.
///
/// Costs no time in proportion to its length when the memory is new to the process; memory that the
/// allocator uses again (glibc keeps blocks of up to 32 MiB) is cleared first.
///
/// # Panics
///
/// When there is not enough memory.
pub fn zeroed<T: Zeroable>(length: usize) -> Vec<T> {
    let mut memory = bytemuck::zeroed_vec(length);
    advise_large_pages(&mut memory);
    memory
}

/// As [`zeroed`]; `None` when there is not enough memory.
pub fn try_zeroed<T: Zeroable>(length: usize) -> Option<Vec<T>> {
    let mut memory = bytemuck::try_zeroed_vec(length).ok()?;
    advise_large_pages(&mut memory);
    Some(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_vectors_are_zero_and_can_be_written() {
        for length in [0, 1, 1000, (4 << 20) + 3] {
            let mut values: Vec<u64> = zeroed(length);
            assert_eq!(values.len(), length);
            assert!(values.iter().all(|value| *value == 0));
            values.fill(7);
            values.push(8);
            assert_eq!(values.iter().sum::<u64>(), 7 * length as u64 + 8);
        }
    }

    #[test]
    fn too_much_is_refused() {
        assert_eq!(try_zeroed(3), Some(vec![0_u16; 3]));
        assert_eq!(try_zeroed::<u64>(usize::MAX / 8), None);
        assert_eq!(try_zeroed::<u64>(usize::MAX / 2), None);
        assert_eq!(try_zeroed::<u8>(1 << 62), None);
    }
}
