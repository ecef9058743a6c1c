//! Which pages fresh memory is filled in.
//!
//! Large pages are several times as fast where a system clears them by itself. On a virtual machine that
//! gives free memory back to its host they are several times as slow: the host makes each as hundreds of
//! small ones. Which it is can't be asked, and changes while a process runs, so it is measured on the memory
//! that is filled anyway.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::system::{self, LARGE_PAGE};

/// Less than this is left to the system.
const LEAST: usize = 128 << 10;
/// So many bytes are filled in pages of each size before one is chosen.
const MEASURED: u64 = 32 << 20;
/// Whenever so much was filled in pages of the chosen size, a part is filled in small or large ones, to learn whether they
/// are faster by now. Large ones may cost ten times as much, small ones hardly more than twice.
const TRIED_EVERY: [u64; 2] = [256 << 20, 1 << 30];
/// The mean of so many parts that were filled last counts. Large pages may be many times slower now and then, which a
/// median would not see.
const PARTS: usize = 16;

/// What filling memory in pages of one size took.
struct Speed {
    /// Seconds per byte of the parts that were filled last.
    last: [f64; PARTS],
    parts: usize,
    bytes: u64,
    /// Bytes that were filled in pages of the other size since the last part.
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

    /// Seconds per byte; `None` before enough was filled.
    fn seconds(&self) -> Option<f64> {
        let last = &self.last[..self.parts.min(PARTS)];
        let mean = last.iter().sum::<f64>() / last.len() as f64;
        (self.bytes >= MEASURED).then_some(mean)
    }
}

/// The speeds of small and of large pages.
static SPEEDS: Mutex<[Speed; 2]> = Mutex::new([Speed::NONE, Speed::NONE]);

fn speeds() -> MutexGuard<'static, [Speed; 2]> {
    SPEEDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was measured of fresh memory in this process so far, and which pages it is filled in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageChoice {
    /// GB/s (10^9 bytes) of one thread in small pages, 4 KiB most often; `None` before enough was filled.
    pub small_gb_per_s: Option<f64>,
    /// GB/s of one thread in large pages, 2 MiB most often.
    pub large_gb_per_s: Option<f64>,
    /// Whether large pages are asked for from now on.
    pub large: bool,
}

impl PageChoice {
    /// What is chosen now.
    ///
    /// Small pages are measured first, on 32 MiB, then large ones. From then on the parts that were filled last
    /// count, and a part in each GiB is filled in large pages where small ones are chosen, in each 256 MiB the other way
    /// round.
    pub fn now() -> Self {
        Self::of(&speeds())
    }

    fn of(speeds: &[Speed; 2]) -> Self {
        let [small, large] = [speeds[0].seconds(), speeds[1].seconds()];
        let gb_per_s = |seconds: f64| 1e-9 / seconds;
        Self {
            small_gb_per_s: small.map(gb_per_s),
            large_gb_per_s: large.map(gb_per_s),
            large: match (small, large) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(small), Some(large)) => large < small,
            },
        }
    }
}

/// Whether the next part is filled in large pages.
fn next_is_large(speeds: &[Speed; 2]) -> bool {
    let large = PageChoice::of(speeds).large;
    let other = &speeds[usize::from(!large)];
    large != (other.bytes >= MEASURED && other.since >= TRIED_EVERY[usize::from(!large)])
}

/// A part was filled.
fn record(speeds: &mut [Speed; 2], large: bool, bytes: u64, seconds: f64) {
    speeds[usize::from(large)].add(bytes, seconds);
    speeds[usize::from(!large)].since += bytes;
}

impl fmt::Display for PageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = |gb_per_s: Option<f64>| match gb_per_s {
            Some(gb_per_s) => format!("{gb_per_s:.2} GB/s"),
            None => "not measured".to_owned(),
        };
        let (small, large) = (speed(self.small_gb_per_s), speed(self.large_gb_per_s));
        let chosen = if self.large { "large" } else { "small" };
        write!(
            f,
            "fresh memory, per thread: small pages {small}, large pages {large}; {chosen} pages chosen"
        )
    }
}

/// Has the pages of a part of fresh memory made on this thread, in the size that was faster so far.
pub(crate) fn make_pages(part: &mut [u8], whole: &Range<usize>) {
    if part.len() < LEAST {
        return;
    }
    let large = next_is_large(&speeds());
    if large {
        system::advise_large_pages(part, whole);
    }
    let begun = Instant::now();
    let made = system::make_pages(part);
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(bytes) = bytes_made(made, large, part.len() as u64) {
        record(&mut speeds(), large, bytes, seconds);
    }
}

/// Bytes that were made in pages of this size; `None` where there were none to make, or they had another size.
fn bytes_made(pages: u64, large: bool, part: u64) -> Option<u64> {
    let page = if large { LARGE_PAGE } else { system::page()? } as u64;
    let bytes = pages.saturating_mul(page);
    // Large pages may reach beyond both ends of the part.
    let most = part + 2 * page;
    // Where the system makes large pages unasked, there are few; where it has no large ones, many.
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
        assert_eq!(bytes_made(0, true, part), None);
        assert_eq!(bytes_made(5, true, part), Some(10 << 20));
        assert_eq!(bytes_made(2048, true, part), None, "small ones");
        if let Some(page) = system::page() {
            let page = page as u64;
            assert_eq!(bytes_made(part / page, false, part), Some(part));
            assert_eq!(bytes_made(5, false, part), None, "large ones");
        }
    }

    #[test]
    fn what_became_faster_is_chosen() {
        let mut speeds = [Speed::NONE, Speed::NONE];
        // Large pages are faster at first, slower later, and faster again.
        let mut filled = |parts: usize, large_seconds: f64| {
            let mut large_parts = 0;
            for _ in 0..parts {
                let large = next_is_large(&speeds);
                large_parts += usize::from(large);
                let seconds = if large { large_seconds } else { 1.0 };
                record(&mut speeds, large, MEASURED / 4, seconds);
            }
            large_parts
        };
        assert_eq!(filled(4, 0.5), 0, "small pages are measured first");
        assert!((950..1000).contains(&filled(1000, 0.5)));
        // As soon as a few took long: 16 times as long as small ones, the third of 16 is enough.
        assert!((2..12).contains(&filled(1000, 16.0)), "tried now and then");
        assert!(filled(4000, 0.5) > 1000, "chosen again");
    }
}
