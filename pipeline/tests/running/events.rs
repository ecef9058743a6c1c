//! The events that the driver of a pipeline reports, as lines of text.

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

thread_local! {
    /// The events of this thread, one per line.
    static EVENTS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Collects the events of all threads, separately: a subscriber of a single thread misses events that
/// another thread reports first.
struct Events;

/// Starts to collect.
pub fn collect() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Events).unwrap();
        tracing::callsite::rebuild_interest_cache();
    });
    take();
}

/// Returns the events of this thread since the last call.
pub fn take() -> String {
    EVENTS.take()
}

impl Visit for Events {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        EVENTS.with_borrow_mut(|text| write!(text, "{field}: {value:?}; ").unwrap());
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        let is_of_runtime = metadata
            .target()
            .starts_with("tinderbox_pipeline::runtime::");
        let module = metadata.target().rsplit("::").next();
        is_of_runtime && matches!(module, Some("programs" | "parameters" | "training"))
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Self);
        EVENTS.with_borrow_mut(|text| text.push('\n'));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
