//! Events that the library emits. A program of its own: a subscriber is global.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use tinderbox_deferred::{Deferred, random::Seed};

/// The library's events, as text.
#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Module, Debug)]
struct Hidden {
    seen: Linear,
    #[module(skip)]
    unseen: Option<Linear>,
}

#[test]
fn a_span_has_the_source_and_an_event_the_time() {
    let text = Text::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let model = Deferred::new(|d: &Device| LinearConfig::new(2, 3).init(d)).unwrap();
    model
        .materialize(&Device::flex(), &model.initializer(Seed::new(1)))
        .unwrap();
    let read = || String::from_utf8(std::mem::take(&mut *text.0.lock().unwrap())).unwrap();
    let text = read();
    for part in [
        "materialize{parameters=2 bytes=36 source=\"initializer with seed 1\"}",
        "materialized parameters=2 bytes=36 seconds=",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("WARN"), "{text}");
    // A parameter that visitors do not reach is reported.
    let model = Deferred::new(|d: &Device| Hidden {
        seen: LinearConfig::new(2, 3).init(d),
        unseen: Some(LinearConfig::new(2, 3).init(d)),
    });
    let model = model.unwrap();
    model
        .materialize(&Device::flex(), &model.initializer(Seed::new(1)))
        .unwrap();
    let text = read();
    for part in ["WARN", "parameters=[\"unseen.weight\", \"unseen.bias\"]"] {
        assert!(text.contains(part), "{text}");
    }
}
