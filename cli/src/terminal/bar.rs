//! A progress bar.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tinderbox_deferred::Observer;

/// Bytes, their rate and an estimate of the time left.
const STYLE: &str =
    "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";

/// A progress bar over bytes on standard error; hidden without a terminal, and cleared on drop.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Creates a bar for an operation.
    pub(super) fn new(work: &'static str, hidden: bool) -> Self {
        // The template divides by the length, which is not known yet.
        let bar = ProgressBar::new(0).with_message(work);
        let style = ProgressStyle::with_template(STYLE);
        bar.set_style(style.expect("the template is well-formed"));
        if hidden {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self(bar)
    }
}

impl Observer for Bar {
    fn begin(&self, _: usize, bytes: u64) {
        self.0.inc_length(bytes);
    }

    fn advanced(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
