//! A progress bar.

use indicatif::{ProgressBar, ProgressStyle};
use tinderbox_checkpoint::Progress;

/// A bar over bytes, on the error output; hidden where that is no terminal, and gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar for work that is about to begin.
    pub(crate) fn new(work: &'static str) -> Self {
        // A bar without a length would not take more either.
        let bar = ProgressBar::new(0).with_message(work);
        let style = "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
        let style = ProgressStyle::with_template(style);
        bar.set_style(style.expect("the template is well-formed"));
        Self(bar)
    }
}

impl Progress for Bar {
    fn begin(&self, bytes: u64) {
        self.0.inc_length(bytes);
    }

    fn done(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
