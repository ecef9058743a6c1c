//! Calls that are made again and again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tinderbox_link::{Awaited, Thread};

/// A thread that calls a function again and again, until this is dropped.
#[derive(Debug)]
pub(crate) struct Repeat {
    /// Whether the thread is to end.
    is_ended: Arc<Awaited<bool>>,
    thread: Option<Thread>,
}

impl Repeat {
    /// Starts a thread that waits for `pause` before each call.
    pub(crate) fn spawn(
        name: &str,
        pause: Duration,
        mut call: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let is_ended = Arc::<Awaited<bool>>::default();
        let of_thread = is_ended.clone();
        let body = move || {
            let ended = |is_ended: &mut bool| is_ended.then_some(());
            while of_thread.wait_for(pause, ended).is_none() {
                call();
            }
        };
        let thread = Some(Thread::spawn(name, body)?);
        Ok(Self { is_ended, thread })
    }
}

impl Drop for Repeat {
    fn drop(&mut self) {
        self.is_ended.change(|is_ended| *is_ended = true);
        self.thread.take().into_iter().for_each(Thread::join);
    }
}
