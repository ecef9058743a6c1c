//! The page size in which new memory is populated.
//!
//! Huge pages are several times as fast on hardware. On a virtual machine that returns free memory to its host
//! they can be several times as slow: the host allocates each in hundreds of small pages. Neither can be
//! queried, and it changes while a process runs, so it is measured on the memory that is populated anyway.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::system::{self, HUGE_PAGE};

/// Parts of fewer bytes are not populated.
const LEAST: usize = 128 << 10;
/// Bytes that are populated in each page size before one is chosen.
const MEASURED: u64 = 32 << 20;
/// Bytes after which a part is populated in the page size that is not chosen (small, huge), to measure it again. Huge
/// pages are tried less often: they may cost ten times as much.
const TRIED_EVERY: [u64; 2] = [256 << 20, 1 << 30];
/// Number of recent parts whose mean speed counts. A median would hide huge pages that are slow now and then.
const PARTS: usize = 16;

/// The measured speed of one page size.
struct Speed {
    /// Seconds per byte of the recent parts, as a ring.
    last: [f64; PARTS],
    parts: usize,
    bytes: u64,
    /// Bytes populated in the other page size since the last part.
    since: u64,
}

impl Speed {
    const NONE: Self = Self {
        last: [0.0; PARTS],
        parts: 0,
        bytes: 0,
        since: 0,
    };

    fn add(&mut self, bytes: u64, seconds: f64) {
        self.last[self.parts % PARTS] = seconds / bytes as f64;
        self.parts += 1;
        self.bytes += bytes;
        self.since = 0;
    }

    /// Mean seconds per byte; `None` before `MEASURED` bytes.
    fn seconds(&self) -> Option<f64> {
        let last = &self.last[..self.parts.min(PARTS)];
        let mean = last.iter().sum::<f64>() / last.len() as f64;
        (self.bytes >= MEASURED).then_some(mean)
    }
}

/// The speeds of small and of huge pages.
static SPEEDS: Mutex<[Speed; 2]> = Mutex::new([Speed::NONE, Speed::NONE]);

fn speeds() -> MutexGuard<'static, [Speed; 2]> {
    SPEEDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The page sizes as measured in this process so far, and the chosen one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageChoice {
    /// GB/s (10^9 bytes) of one thread in small pages, most often 4 KiB; `None` before 32 MiB.
    pub small_gb_per_s: Option<f64>,
    /// GB/s of one thread in huge pages, most often 2 MiB; `None` before 32 MiB.
    pub huge_gb_per_s: Option<f64>,
    /// Whether huge pages are chosen.
    pub huge: bool,
}

impl PageChoice {
    /// Returns the current choice.
    ///
    /// Small pages are measured first, on 32 MiB, then huge pages. After that the mean of the last 16 parts counts.
    /// One part per GiB measures huge pages again while small ones are chosen; one per 256 MiB the reverse.
    pub fn now() -> Self {
        Self::of(&speeds())
    }

    fn of(speeds: &[Speed; 2]) -> Self {
        let [small, huge] = [speeds[0].seconds(), speeds[1].seconds()];
        let gb_per_s = |seconds: f64| 1e-9 / seconds;
        Self {
            small_gb_per_s: small.map(gb_per_s),
            huge_gb_per_s: huge.map(gb_per_s),
            huge: match (small, huge) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(small), Some(huge)) => huge < small,
            },
        }
    }
}

/// Whether the next part is populated in huge pages.
fn next_is_huge(speeds: &[Speed; 2]) -> bool {
    let huge = PageChoice::of(speeds).huge;
    let other = &speeds[usize::from(!huge)];
    huge != (other.bytes >= MEASURED && other.since >= TRIED_EVERY[usize::from(!huge)])
}

/// Records a populated part.
fn record(speeds: &mut [Speed; 2], huge: bool, bytes: u64, seconds: f64) {
    speeds[usize::from(huge)].add(bytes, seconds);
    speeds[usize::from(!huge)].since += bytes;
}

impl fmt::Display for PageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = |gb_per_s: Option<f64>| match gb_per_s {
            Some(gb_per_s) => format!("{gb_per_s:.2} GB/s"),
            None => "not measured".to_owned(),
        };
        let (small, huge) = (speed(self.small_gb_per_s), speed(self.huge_gb_per_s));
        let chosen = if self.huge { "huge" } else { "small" };
        write!(
            f,
            "new memory, per thread: small pages {small}, huge pages {huge}; {chosen} pages chosen"
        )
    }
}

/// Populates the pages of a part of new memory, in the faster page size.
pub(crate) fn populate(part: &mut [u8], whole: &Range<usize>) {
    if part.len() < LEAST {
        return;
    }
    let huge = next_is_huge(&speeds());
    if huge {
        system::advise_huge_pages_within(part, whole);
    }
    let begun = Instant::now();
    let made = system::populate(part);
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(bytes) = bytes_populated(made, huge, part.len() as u64) {
        record(&mut speeds(), huge, bytes, seconds);
    }
}

/// Bytes that were populated in this page size; `None` where nothing was, or in another size.
fn bytes_populated(pages: u64, huge: bool, part: u64) -> Option<u64> {
    let page = if huge { HUGE_PAGE } else { system::page()? } as u64;
    let bytes = pages.saturating_mul(page);
    // Huge pages may extend beyond both ends of the part.
    let most = part + 2 * page;
    // Few faults: the kernel used huge pages without advice. Many: it has none.
    (bytes >= part / 4 && bytes <= most).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_the_last_parts_counts() {
        let mut speed = Speed::NONE;
        speed.add(MEASURED / 2, 1.0);
        assert_eq!(speed.seconds(), None);
        speed.add(MEASURED / 2, 3.0);
        assert_eq!(speed.seconds(), Some(2.0 / (MEASURED / 2) as f64));
        for _ in 0..PARTS {
            speed.add(10, 5.0);
        }
        assert_eq!(speed.seconds(), Some(0.5));
    }

    #[test]
    fn only_pages_of_the_size_that_was_asked_for_count() {
        let part = 8 << 20;
        assert_eq!(bytes_populated(0, true, part), None);
        assert_eq!(bytes_populated(5, true, part), Some(10 << 20));
        assert_eq!(bytes_populated(2048, true, part), None, "small ones");
        if let Some(page) = system::page() {
            let page = page as u64;
            assert_eq!(bytes_populated(part / page, false, part), Some(part));
            assert_eq!(bytes_populated(5, false, part), None, "huge ones");
        }
    }

    #[test]
    fn what_became_faster_is_chosen() {
        let mut speeds = [Speed::NONE, Speed::NONE];
        // Huge pages are faster at first, slower later, and faster again.
        let mut filled = |parts: usize, huge_seconds: f64| {
            let mut huge_parts = 0;
            for _ in 0..parts {
                let huge = next_is_huge(&speeds);
                huge_parts += usize::from(huge);
                let seconds = if huge { huge_seconds } else { 1.0 };
                record(&mut speeds, huge, MEASURED / 4, seconds);
            }
            huge_parts
        };
        assert_eq!(filled(4, 0.5), 0, "small pages are measured first");
        assert!((950..1000).contains(&filled(1000, 0.5)));
        // As soon as a few took long: 16 times as long as small ones, the third of 16 is enough.
        assert!((2..12).contains(&filled(1000, 16.0)), "tried now and then");
        assert!(filled(4000, 0.5) > 1000, "chosen again");
    }
}
