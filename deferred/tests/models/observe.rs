//! Events of an observer.

use std::sync::{Arc, Mutex};

use burn::nn::LinearConfig;
use burn::tensor::{DType, Device};
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::{
    Deferred, MaterializeOptions, Observed, Observer, ParameterPath, Request, Rng, Source,
    SourceError, Values, parameter_values,
};
use tinderbox_fake::DynTensor;

/// Records all events.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Log {
    fn begin(&self, parameters: usize, bytes: u64) {
        self.note(format!("{parameters} parameters, {bytes} bytes"));
    }

    fn completed(&self, path: &ParameterPath, bytes: u64) {
        self.note(format!("{path}: {bytes}"));
    }

    fn end(&self) {
        self.note("end".into());
    }
}

const HEARD: [&str; 4] = ["2 parameters, 36 bytes", "weight: 24", "bias: 12", "end"];

#[test]
fn every_source_reports_every_value() {
    let init = |d: &Device| LinearConfig::new(2, 3).init(d);
    let model = Deferred::new(init).unwrap();
    let values: Values = parameter_values(&init(&Device::flex()))
        .into_iter()
        .collect();
    let check = |source: &dyn Source| {
        let log = Log::default();
        let options = MaterializeOptions::on(&Device::flex()).observer(&log);
        model.materialize_parameters(options, source).unwrap();
        assert_eq!(log.take(), HEARD, "{}", source.describe());
    };
    check(&model.initializer(Seed::new(1)));
    check(&model.initializer(Seed::new(1)).with_rng(Rng::Backend));
    check(&values);
}

#[test]
fn bytes_are_the_bytes_of_the_result() {
    let model = Deferred::new(|d: &Device| LinearConfig::new(2, 3).init(d)).unwrap();
    let log = Log::default();
    let options = MaterializeOptions::on(&Device::flex())
        .only(|p| p.path.as_str() == "weight")
        .dtype(|_| Some(DType::BF16))
        .observer(&log);
    model
        .materialize(options, &model.initializer(Seed::new(1)))
        .unwrap();
    assert_eq!(log.take(), ["1 parameters, 12 bytes", "weight: 12", "end"]);
}

#[test]
fn an_observed_source_reports_every_load() {
    let model = Deferred::new(|d: &Device| LinearConfig::new(2, 3).init(d)).unwrap();
    let log = Arc::new(Log::default());
    let source = Observed::new(model.initializer(Seed::new(1)), log.clone());
    let own = Log::default();
    let options = MaterializeOptions::on(&Device::flex()).observer(&own);
    model.materialize(options, &source).unwrap();
    assert_eq!(log.take(), HEARD);
    assert_eq!(own.take(), HEARD);
}

/// Accepts every request, and serves none.
struct Broken;

impl Source for Broken {
    fn load(&self, _: &[Request], _: &dyn Observer) -> Result<Vec<DynTensor>, SourceError> {
        let described = self.describe();
        Err(SourceError::NotConstructed { described })
    }

    fn describe(&self) -> String {
        "a broken source".into()
    }
}

#[test]
fn nothing_ends_that_failed() {
    let model = Deferred::new(|d: &Device| LinearConfig::new(2, 3).init(d)).unwrap();
    let log = Log::default();
    let options = MaterializeOptions::on(&Device::flex()).observer(&log);
    model.materialize_parameters(options, &Broken).unwrap_err();
    assert_eq!(log.take(), ["2 parameters, 36 bytes"]);
}
