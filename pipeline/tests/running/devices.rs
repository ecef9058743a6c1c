//! The devices of ranks.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use tinderbox_pipeline::{Machine, Pipeline, PipelineBuilder};
use tinderbox_pipeline_tests::{Case, LR, SAMPLES, floats, full_text, squared};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

const CASE: Case<Net, Tensor<2>> = Case {
    init: |device| Net {
        layers: (0..3)
            .map(|_| LinearConfig::new(4, 4).init(device))
            .collect(),
    },
    forward: |net, x| {
        let y = net.layers.iter();
        let y = y.fold(x.clone(), |y, layer| layer.forward(y));
        (squared(x, y), None)
    },
    batch: |n, device| floats([SAMPLES, 4], n, device),
};

fn builder(ranks: usize) -> PipelineBuilder<Net, Tensor<2>> {
    let model = CASE.model();
    let trace = CASE.trace(&model, ranks);
    let plan = trace.plan(&Machine::local(ranks).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new())
}

/// An autodiff device is replaced by its inner device: there is no autodiff at run time.
#[test]
fn more_ranks_than_devices_share_them() {
    let devices = [Device::flex(), Device::flex().autodiff()];
    let mut pipeline = builder(3).devices(&devices).start().unwrap();
    let batch = (CASE.batch)(0, &devices[1]);
    pipeline.step(LR, batch).unwrap();
    let held = pipeline.on_ranks(|_, stages| {
        let values = stages[0].parameters().values();
        values.map(|(_, value)| value.device()).collect::<Vec<_>>()
    });
    let held: Vec<Device> = held.unwrap().into_iter().flatten().collect();
    assert_eq!(held, vec![Device::flex(); 6]);
}

#[test]
fn no_device_and_no_real_device_are_refused() {
    let error = builder(2).devices(&[]).start().unwrap_err();
    assert_eq!(
        full_text(&error),
        "the list of devices is empty: leave it out for the CPU"
    );
    let error = builder(2).device(&Device::capture()).start().unwrap_err();
    assert!(
        full_text(&error).starts_with("programs can't run on a recording device (capture): this"),
        "{}",
        full_text(&error)
    );
}
