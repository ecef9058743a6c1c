//! The contract of a source, checked on this crate's own and on sources that break it.

use std::sync::Arc;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use tinderbox_deferred::random::Seed;
use tinderbox_deferred::testing::check_source;
use tinderbox_deferred::{
    Deferred, Observed, Observer, Request, Rng, Source, SourceError, Values, parameter_values,
};
use tinderbox_fake::DynTensor;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    second: Linear,
}

fn model() -> Deferred<Net> {
    let model = Deferred::new(|device| Net {
        first: LinearConfig::new(5, 7).init(device),
        second: LinearConfig::new(7, 2).with_bias(false).init(device),
    });
    model.unwrap()
}

#[test]
fn sources_keep_their_contract() {
    let (model, device) = (model(), Device::flex());
    let initializer = model.initializer(Seed::new(3));
    let net = model.materialize(&device, &initializer).unwrap();
    let values: Values = parameter_values(&net).into_iter().collect();
    let first = parameter_values(&net).into_iter().take(1);
    let first: Values = first.collect();
    let sources: [&dyn Source; 7] = [
        &initializer,
        &model.initializer(Seed::new(3)).with_rng(Rng::Backend),
        &values,
        &first.clone().or_else(initializer.clone()),
        &first.or_else_in(&["first", "second"], initializer.clone()),
        &(&values).constructed_by(initializer.clone()),
        &Observed::new(initializer.clone(), Arc::new(())),
    ];
    for source in sources {
        check_source(source, model.parameters(), &device).unwrap();
    }
}

/// With a fallback for some modules, a parameter that is missing elsewhere is still an error.
#[test]
fn a_fallback_may_be_for_some_modules_only() {
    let (model, device) = (model(), Device::flex());
    let initializer = model.initializer(Seed::new(3));
    let net = model.materialize(&device, &initializer).unwrap();
    let all = parameter_values(&net);
    let of_first = all
        .into_iter()
        .filter(|(path, _)| path.as_str() == "first.weight");
    let first: Values = of_first.collect();
    let missing = |modules: &[&str]| {
        let source = first.clone().or_else_in(modules, initializer.clone());
        let error = model.materialize(&device, &source).map(drop).unwrap_err();
        std::error::Error::source(&error).unwrap().to_string()
    };
    let of_second = missing(&["first"]);
    assert!(of_second.contains("missing: second.weight"), "{of_second}");
    assert!(!of_second.contains("first.bias"), "{of_second}");
    // A name is not a prefix of letters.
    let of_bias = missing(&["second", "fir"]);
    assert!(of_bias.contains("missing: first.bias"), "{of_bias}");
    assert!(!of_bias.contains("second"), "{of_bias}");
    let source = first.or_else_in(&["first.bias", "second"], initializer.clone());
    let found = model.materialize(&device, &source).unwrap();
    let data = |net: &Net| net.second.weight.val().into_data();
    assert_eq!(data(&found), data(&net));
}

/// The values of a source, changed.
struct Broken<F>(Values, F);

impl<F> Source for Broken<F>
where
    F: Fn(&[Request], Vec<DynTensor>) -> Vec<DynTensor> + Send + Sync,
{
    fn load(
        &self,
        requests: &[Request],
        observer: &dyn Observer,
    ) -> Result<Vec<DynTensor>, SourceError> {
        Ok((self.1)(requests, self.0.load(requests, observer)?))
    }

    fn describe(&self) -> String {
        "a broken source".to_owned()
    }
}

#[test]
fn a_source_that_breaks_its_contract_is_found_out() {
    let (model, device) = (model(), Device::flex());
    let net = model.materialize(&device, &model.initializer(Seed::new(3)));
    let values: Values = parameter_values(&net.unwrap()).into_iter().collect();
    let check = |change: fn(&[Request], Vec<DynTensor>) -> Vec<DynTensor>, expected: &str| {
        let source = Broken(values.clone(), change);
        let violation = check_source(&source, model.parameters(), &device).unwrap_err();
        assert_eq!(violation.promise, expected);
    };
    let missing = |_: &[Request], mut values: Vec<DynTensor>| {
        values.pop();
        values
    };
    check(missing, "requests for its values are served");
    let of_order = |requests: &[Request], mut values: Vec<DynTensor>| {
        if let [first, ..] = requests {
            let zeros = DynTensor::zeros(values[0].shape(), first.dtype, &first.device);
            values[0] = zeros;
        }
        values
    };
    check(
        of_order,
        "values do not depend on the order of the requests",
    );
    let of_parts = |requests: &[Request], mut values: Vec<DynTensor>| {
        for (request, value) in requests.iter().zip(&mut values) {
            if !request.region.is_whole(&request.shape) {
                *value = DynTensor::zeros(value.shape(), request.dtype, &request.device);
            }
        }
        values
    };
    check(of_parts, "a part has the elements of the whole");
}
