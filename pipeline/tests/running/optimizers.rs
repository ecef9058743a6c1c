//! Optimizer state is saved and restored so that training continues with the same bits, on another
//! number of stages.

use burn::module::Module;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::optim::{
    AdamConfig, AdamWConfig, ModuleOptimizer, MuonConfig, Optimizer, RmsPropConfig, SgdConfig,
    momentum::MomentumConfig,
};
use burn::tensor::{DType, Device, Tensor, activation::gelu};
use tinderbox_deferred::{Deferred, ParameterPath, Values, parameter_values};
use tinderbox_fake::DynTensor;
use tinderbox_pipeline::{Outputs, Pipeline, PipelineBuilder, SavedState, ScheduleKind, Traceable};
use tinderbox_pipeline_tests::{
    Case, Run, SAMPLES, Setting, continue_run, floats, full_text, parameters, plain, squared,
};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

type Batch = (Tensor<2>, Tensor<2>);

const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(4, 4).init(device))
            .collect(),
    },
    forward: |net, (x, y)| {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        (squared(x, y), None)
    },
    batch: |n, device| {
        let shape = [SAMPLES, 4];
        (floats(shape, n, device), floats(shape, n + 1000, device))
    },
};

fn setting(stages: usize) -> Setting {
    Setting {
        stages,
        schedule: ScheduleKind::OneFOneB,
        micro_batches: 3,
    }
}

type Net4 = Pipeline<Net, Batch>;

/// The contents of a checkpoint.
fn save(pipeline: &mut Net4) -> (Vec<(ParameterPath, DynTensor)>, SavedState) {
    let module = pipeline.gather(&Device::flex()).unwrap();
    let mut state = SavedState::default();
    let parts = pipeline
        .on_ranks(|_, stages| {
            stages
                .iter()
                .map(|s| s.optimizer_snapshot().to_host().unwrap())
                .collect::<Vec<_>>()
        })
        .unwrap();
    for part in parts.into_iter().flatten() {
        state.tensors.extend(part.tensors);
        state.scalars.extend(part.scalars);
    }
    (parameter_values(&module), state)
}

/// Restores on every rank; returns the text of an error.
fn restore(
    pipeline: &mut Net4,
    values: &[(ParameterPath, DynTensor)],
    state: &SavedState,
) -> Option<String> {
    let values: Values = values.iter().cloned().collect();
    let restored = pipeline.restore(values, state.clone());
    restored.err().map(|error| full_text(&error))
}

fn check<O: Optimizer + Clone>(optimizer: O, of_burn: ModuleOptimizer, is_stateful: bool) {
    let expected = plain(CASE, of_burn, 3, 6);
    let mut first = CASE.start(setting(3), optimizer.clone());
    let mut run = Run::default();
    continue_run(&mut first, CASE, 0..3, &mut run);
    let (values, state) = save(&mut first);
    assert_eq!(!state.tensors.is_empty(), is_stateful);
    drop(first);
    for stages in [1, 2, 4] {
        let mut next = CASE.start(setting(stages), optimizer.clone());
        assert_eq!(restore(&mut next, &values, &state), None);
        next.resume_at(3);
        let mut rest = Run::default();
        continue_run(&mut next, CASE, 3..6, &mut rest);
        assert_eq!(next.steps(), 6);
        let losses: Vec<_> = run.losses.iter().chain(&rest.losses).cloned().collect();
        assert_eq!(losses, expected.losses[..6], "{stages} stages");
        let found = parameters(&next.gather(&Device::flex()).unwrap());
        assert!(found == expected.parameters, "{stages} stages");
    }
}

fn momentum(nesterov: bool) -> SgdConfig {
    let momentum = MomentumConfig::new()
        .with_momentum(0.8)
        .with_nesterov(nesterov);
    SgdConfig::new().with_momentum(Some(momentum))
}

#[test]
fn adam_w_with_and_without_amsgrad() {
    for amsgrad in [false, true] {
        let config = AdamWConfig::new()
            .with_amsgrad(amsgrad)
            .with_weight_decay(0.1);
        check(config.build(), config.init(), true);
    }
}

#[test]
fn adam() {
    let config = AdamConfig::new().with_beta_2(0.9);
    check(config.build(), config.init(), true);
}

#[test]
fn rms_prop_centered() {
    let config = RmsPropConfig::new().with_centered(true);
    check(config.build(), config.init(), true);
}

#[test]
fn stochastic_gradient_descent() {
    check(SgdConfig::new().build(), SgdConfig::new().init(), false);
    for nesterov in [false, true] {
        check(momentum(nesterov).build(), momentum(nesterov).init(), true);
    }
}

/// A state that does not fit is refused by name, and the pipeline continues to train unchanged.
#[test]
fn the_state_of_another_optimizer_is_refused() {
    let mut adam = CASE.start(setting(2), AdamWConfig::new().build());
    continue_run(&mut adam, CASE, 0..1, &mut Run::default());
    let (values, of_adam) = save(&mut adam);
    let refused = |error: Option<String>, path: &str| {
        let error = error.expect("the state is of another optimizer");
        let expected = format!(
            "could not be restored; nothing was changed\n\
             the optimizer state of `{path}` is incomplete or of another optimizer: the saved fields are [\""
        );
        assert!(error.contains(&expected), "{error}");
    };

    for build in [SgdConfig::new().build(), momentum(false).build()] {
        let mut other = CASE.start(setting(2), build);
        let before = parameters(&other.gather(&Device::flex()).unwrap());
        refused(restore(&mut other, &values, &of_adam), "layers.0.weight");
        assert!(parameters(&other.gather(&Device::flex()).unwrap()) == before);
        continue_run(&mut other, CASE, 0..1, &mut Run::default());
    }

    let mut without_max = of_adam.clone();
    let removed = without_max.tensors.pop().expect("Adam has moments").0;
    refused(
        restore(&mut adam, &values, &without_max),
        removed
            .split(".")
            .skip(1)
            .take(3)
            .collect::<Vec<_>>()
            .join(".")
            .as_str(),
    );
    let before = parameters(&adam.gather(&Device::flex()).unwrap());
    let missing = restore(&mut adam, &values[1..], &of_adam).expect("a parameter is missing");
    assert!(missing.contains("nothing was changed"), "{missing}");
    assert!(missing.contains("missing: "), "{missing}");
    assert!(parameters(&adam.gather(&Device::flex()).unwrap()) == before);
    assert_eq!(restore(&mut adam, &values, &of_adam), None);
}

/// Burn reads states in the default float dtype of the device: an f64 state would be rounded to f32
/// silently.
#[test]
fn a_state_that_burn_would_round_is_refused() {
    let mut adam = CASE.start(setting(2), AdamWConfig::new().build());
    continue_run(&mut adam, CASE, 0..1, &mut Run::default());
    let (values, mut state) = save(&mut adam);
    let (name, data) = state.tensors.pop().expect("Adam has moments");
    let wide = data.convert_dtype(DType::F64);
    state.tensors.push((name.clone(), wide));
    let error = restore(&mut adam, &values, &state).expect("the state is rounded");
    let expected = format!("the optimizer state `{name}` was saved as f64, but Burn reads");
    assert!(error.contains(&expected), "{error}");
    continue_run(&mut adam, CASE, 1..2, &mut Run::default());
}

/// More dimensions than Burn's optimizers support are refused before parameters are materialized.
#[test]
fn a_parameter_of_nine_dimensions_is_named() {
    #[derive(Module, Debug)]
    struct Wide {
        grid: burn::module::Param<Tensor<9>>,
        layer: Linear,
    }
    let model = Deferred::new(|device| Wide {
        grid: Initializer::Ones.init([1, 1, 1, 1, 1, 1, 1, 2, 2], device),
        layer: LinearConfig::new(4, 4).init(device),
    });
    let model = model.unwrap();
    let trace = model.trace(
        &floats([2, 4], 0, &Device::flex()),
        1,
        |net: &Wide, x: Tensor<2>| {
            Outputs::loss((net.layer.forward(x).mean() + net.grid.val().mean()).square())
        },
    );
    let trace = trace.unwrap();
    let plan = trace.plan_at(&[]).unwrap();
    let started = Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new());
    assert_eq!(
        full_text(&started.start().unwrap_err()),
        "parameter `grid` has 9 dimensions, but Burn's optimizers support 1 to 8: store it with fewer, and reshape it in \
         the forward"
    );
}

/// The fields that a checkpoint of such an optimizer must have.
#[test]
fn whether_an_optimizer_keeps_a_state_is_known() {
    let model = Deferred::new(|device| Net {
        layers: vec![LinearConfig::new(4, 4).with_bias(false).init(device)],
    });
    let model = model.unwrap();
    let (x, _) = (CASE.batch)(0, &Device::flex());
    let forward = |net: &Net, x| Outputs::loss(net.layers[0].forward(x).mean());
    let trace = model.trace(&x, 1, forward).unwrap();
    let plan = trace.plan_at(&[]).unwrap();
    let keeps =
        |config: &dyn Fn(PipelineBuilder<Net, Tensor<2>>) -> PipelineBuilder<Net, Tensor<2>>| {
            let builder = config(Pipeline::builder(&model, &trace, &plan));
            builder.start().unwrap().keeps_optimizer_state()
        };
    assert!(!keeps(&|builder| builder));
    assert!(!keeps(&|builder| builder.optimizer(SgdConfig::new())));
    let momentum = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    assert!(keeps(&|builder| builder.optimizer(momentum.clone())));
    assert!(keeps(&|builder| builder.optimizer(AdamWConfig::new())));
    // It supports only matrices.
    assert!(keeps(&|builder| builder.optimizer(MuonConfig::new())));
}
