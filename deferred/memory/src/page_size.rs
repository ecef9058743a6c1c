//! The page size in which new memory is populated.
//!
//! Huge pages are several times as fast on hardware. On a virtual machine that returns free memory to its host
//! some of them are ten times as slow, because the host allocates each as hundreds of small pages. Which ones can't be
//! queried, so the speed is measured while memory is populated, and one slow part is enough to stop using huge pages.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;

use crate::system::{self, HUGE_PAGE, Populated};

/// Parts of fewer bytes are not populated.
const LEAST: usize = 128 << 10;
/// Bytes that are populated in small pages before the first part in huge pages.
const MEASURED: u64 = 32 << 20;
/// Bytes after which a part is populated in the page size that is not chosen (small, huge), to measure it again. Huge
/// pages are measured less often, because they may cost ten times more.
const TRIED_EVERY: [u64; 2] = [256 << 20, 1 << 30];
/// Number of recent parts that are averaged.
const PARTS: usize = 16;

/// The measured speed of one page size.
struct Speed {
    /// Seconds per byte of the recent parts.
    recent: VecDeque<f64>,
    /// Bytes populated in the other page size since the last part.
    since: u64,
}

impl Speed {
    const NONE: Self = Self {
        recent: VecDeque::new(),
        since: 0,
    };

    fn add(&mut self, bytes: u64, seconds: f64) {
        if self.recent.len() == PARTS {
            self.recent.pop_front();
        }
        self.recent.push_back(seconds / bytes as f64);
        self.since = 0;
    }

    /// Mean seconds per byte of the recent parts.
    fn mean(&self) -> Option<f64> {
        let parts = self.recent.len();
        (parts > 0).then(|| self.recent.iter().sum::<f64>() / parts as f64)
    }

    /// Seconds per byte of the slowest recent part.
    fn slowest(&self) -> Option<f64> {
        self.recent.iter().copied().reduce(f64::max)
    }
}

/// The speeds of small and of huge pages.
static SPEEDS: Mutex<[Speed; 2]> = Mutex::new([Speed::NONE, Speed::NONE]);

/// The page sizes as measured in this process so far, and the chosen one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageChoice {
    /// Mean GB/s (10^9 bytes) of one thread in small pages, most often 4 KiB, in the last 16 parts; `None` before the
    /// first.
    pub small_gb_per_s: Option<f64>,
    /// GB/s of one thread in huge pages, most often 2 MiB, in the slowest of the last 16 parts; `None` before the
    /// first.
    pub huge_gb_per_s: Option<f64>,
    /// Whether huge pages are chosen.
    pub huge: bool,
}

impl PageChoice {
    /// Returns the current choice.
    ///
    /// Small pages are measured first, on 32 MiB, then one part in huge pages. Huge pages are chosen while the slowest
    /// of their last 16 parts was faster than small pages are on average. While small pages are chosen, one part per GiB
    /// measures huge pages; while huge pages are chosen, one part per 256 MiB measures small pages.
    pub fn now() -> Self {
        Self::of(&SPEEDS.lock())
    }

    fn of([small, huge]: &[Speed; 2]) -> Self {
        let gb_per_s = |seconds: f64| 1e-9 / seconds;
        Self {
            small_gb_per_s: small.mean().map(gb_per_s),
            huge_gb_per_s: huge.slowest().map(gb_per_s),
            huge: (huge.slowest().zip(small.mean())).is_some_and(|(huge, small)| huge < small),
        }
    }
}

/// Decides whether the next part is populated in huge pages.
fn next_is_huge(speeds: &mut [Speed; 2]) -> bool {
    let huge = PageChoice::of(speeds).huge;
    let other = &mut speeds[usize::from(!huge)];
    let tried_after = match other.recent.is_empty() {
        true => MEASURED,
        false => TRIED_EVERY[usize::from(!huge)],
    };
    let other_is_due = other.since >= tried_after;
    if other_is_due {
        // Only one thread measures at a time.
        other.since = 0;
    }
    huge != other_is_due
}

/// Records a populated part.
fn record(speeds: &mut [Speed; 2], huge: bool, bytes: u64, seconds: f64) {
    speeds[usize::from(huge)].add(bytes, seconds);
    speeds[usize::from(!huge)].since += bytes;
}

/// Populates the pages of a part of new memory, in the faster page size.
pub(crate) fn populate(part: &mut [u8], whole: &Range<usize>) {
    if part.len() < LEAST {
        return;
    }
    let huge = next_is_huge(&mut SPEEDS.lock());
    if huge {
        system::advise_huge_pages_within(part, whole);
    }
    let Populated { faults, seconds } = system::populate(part);
    let Some(page) = system::page() else { return };
    if let Some(bytes) = bytes_populated(faults, page as u64, huge, part.len() as u64) {
        record(&mut SPEEDS.lock(), huge, bytes, seconds);
    }
}

/// Returns the bytes that `faults` populated in a part of `part` bytes, with or without advice to use huge pages.
/// `None` if they are not a measurement of that page size.
fn bytes_populated(faults: u64, page: u64, huge: bool, part: u64) -> Option<u64> {
    const HUGE: u64 = HUGE_PAGE as u64;
    let in_small = faults * page;
    if !huge {
        // Few faults: the kernel used larger pages without advice, or a huge page of the previous part extends into
        // this.
        return (in_small >= part / 2).then_some(in_small);
    }
    // Small pages are at the ends of the memory, or everywhere if the kernel had no huge ones.
    let rest = part.saturating_sub(in_small);
    let has_whole_huge_page = part >= 2 * HUGE;
    if faults == 0 || (rest < part / 2 && !has_whole_huge_page) {
        return None;
    }
    let at_least = u64::from(!has_whole_huge_page);
    let huge_pages = ((rest + HUGE / 2) / HUGE).clamp(at_least, faults);
    Some(huge_pages * HUGE + (faults - huge_pages) * page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parts_count() {
        let mut speed = Speed::NONE;
        assert_eq!((speed.mean(), speed.slowest()), (None, None));
        speed.add(4, 1.0);
        speed.add(4, 3.0);
        assert_eq!((speed.mean(), speed.slowest()), (Some(0.5), Some(0.75)));
        for _ in 0..PARTS {
            speed.add(10, 5.0);
        }
        assert_eq!((speed.mean(), speed.slowest()), (Some(0.5), Some(0.5)));
    }

    #[test]
    fn bytes_are_counted_by_faults() {
        const MIB: u64 = 1 << 20;
        const PAGE: u64 = 4 << 10;
        let huge = |faults, part| bytes_populated(faults, PAGE, true, part);
        assert_eq!(huge(0, 8 * MIB), None, "populated with the previous part");
        assert_eq!(huge(4, 8 * MIB), Some(8 * MIB));
        assert_eq!(
            huge(2048, 8 * MIB),
            Some(8 * MIB),
            "only small pages were available"
        );
        // Three in the middle, and small pages at both ends.
        assert_eq!(huge(3 + 480, 8 * MIB), Some(6 * MIB + 480 * PAGE));
        // A part that is smaller than a huge page: at its end, around it, or before the first.
        assert_eq!(huge(1 + 7, MIB / 4), Some(2 * MIB + 7 * PAGE));
        assert_eq!(huge(1, MIB / 4), Some(2 * MIB));
        assert_eq!(huge(58, MIB / 4), None);
        assert_eq!(huge(64, MIB / 4), None);
        let small = |faults| bytes_populated(faults, PAGE, false, 8 * MIB);
        assert_eq!(small(0), None);
        assert_eq!(small(2048), Some(8 * MIB));
        assert_eq!(small(1800), Some(1800 * PAGE), "some pages existed before");
        assert_eq!(small(5), None, "huge");
    }

    #[test]
    fn huge_pages_are_chosen_while_none_is_slow() {
        let mut speeds = [Speed::NONE, Speed::NONE];
        let mut filled = |parts: usize, huge_seconds: f64| {
            let mut huge_parts = 0;
            for _ in 0..parts {
                let huge = next_is_huge(&mut speeds);
                huge_parts += usize::from(huge);
                let seconds = if huge { huge_seconds } else { 1.0 };
                record(&mut speeds, huge, MEASURED / 4, seconds);
            }
            huge_parts
        };
        assert_eq!(filled(4, 0.5), 0, "small pages are measured first");
        assert!((950..1000).contains(&filled(1000, 0.5)));
        // One slow part is enough; then one part per GiB measures again.
        assert_eq!(filled(1 + 129 * 3, 16.0), 4);
        // 16 fast parts.
        assert_eq!(filled(129 * 16, 0.5), 16);
        assert!(filled(1000, 0.5) > 800);
    }

    #[test]
    fn one_thread_tries_at_a_time() {
        let mut speeds = [Speed::NONE, Speed::NONE];
        record(&mut speeds, false, MEASURED, 1.0);
        assert!(next_is_huge(&mut speeds));
        assert!(!next_is_huge(&mut speeds), "while a part is populated");
        record(&mut speeds, true, MEASURED / 16, 1.0);
        assert!(!next_is_huge(&mut speeds), "slower");
    }
}
