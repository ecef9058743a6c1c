//! Optimizers of groups of parameters, averages, changes of gradients, and freezing between steps, compared with
//! plain Burn.

use std::collections::BTreeMap;

use burn::module::{Module, ParamGroup};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::grad_clipping::{GradientClipping, GradientClippingConfig};
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, activation::gelu};
use tinderbox_deferred::{Values, parameter_values};
use tinderbox_pipeline::{
    AnyPrecisionAdamW, Clipping, Machine, Pipeline, PipelineBuilder, PipelineError, SavedState,
    StateError,
};
use tinderbox_pipeline_tests::{
    Case, LR, Run, SAMPLES, SEED, continue_run, floats, full_text, parameters, plain, squared,
};

use crate::events;

const WIDTH: usize = 4;
const STEPS: u64 = 5;
const MICRO_BATCHES: usize = 3;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    norm: LayerNorm,
}

type Batch = (Tensor<2>, Tensor<2>);

/// The weight of the first layer is read again at the end, so that two stages hold it.
const CASE: Case<Net, Batch> = Case {
    init: |device| Net {
        layers: (0..3)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        norm: LayerNormConfig::new(WIDTH).init(device),
    },
    forward: |net, (x, y)| {
        let x = net.layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        let x = net.norm.forward(x).matmul(net.layers[0].weight.val());
        (squared(x.clone(), y), Some(x))
    },
    batch: |n, device| {
        let shape = [SAMPLES, WIDTH];
        (floats(shape, n, device), floats(shape, n + 1000, device))
    },
};

fn builder(stages: usize) -> PipelineBuilder<Net, Batch> {
    builder_in(stages, MICRO_BATCHES)
}

fn builder_in(stages: usize, micro_batches: usize) -> PipelineBuilder<Net, Batch> {
    let model = CASE.model();
    let trace = CASE.trace(&model, micro_batches);
    let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan).seed(SEED)
}

fn adamw(decay: f32) -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(decay)
}

fn batch(number: u64) -> Batch {
    (CASE.batch)(number, &Device::flex())
}

/// Trains some steps; returns the bits of the parameters.
fn trained(pipeline: &mut Pipeline<Net, Batch>, steps: std::ops::Range<u64>) -> Bits {
    continue_run(pipeline, CASE, steps, &mut Run::default());
    parameters(&pipeline.gather(&Device::flex()).unwrap())
}

type Bits = BTreeMap<String, Vec<u8>>;

/// The state of the optimizers, as a checkpoint has it.
fn saved(pipeline: &mut Pipeline<Net, Batch>) -> (Values, SavedState) {
    let module = pipeline.gather(&Device::flex()).unwrap();
    let parts = pipeline.on_ranks(|_, stages| {
        let states = stages
            .iter()
            .map(|stage| stage.optimizer_snapshot().to_host());
        states.collect::<Result<Vec<_>, _>>().unwrap()
    });
    let mut state = SavedState::default();
    for part in parts.unwrap().into_iter().flatten() {
        state.tensors.extend(part.tensors);
        state.scalars.extend(part.scalars);
    }
    (parameter_values(&module).into_iter().collect(), state)
}

/// The last group that contains a parameter counts, with its own clipping, as in Burn's `ModuleOptimizer`; also after
/// a resume with another number of stages.
#[test]
fn groups_of_optimizers_are_those_of_burn() {
    let clip = || GradientClippingConfig::Norm(0.05);
    let vectors = || ParamGroup::from_regex("bias$|gamma$|beta$").unwrap();
    let first = || ParamGroup::from_predicate("layers.0");
    let of_burn = adamw(0.3)
        .init()
        .with_group(vectors(), adamw(0.0).build(), None)
        .with_group(
            first(),
            SgdConfig::new().build(),
            Some(GradientClipping::Norm(0.05)),
        );
    let expected = plain(CASE, of_burn, MICRO_BATCHES, STEPS).parameters;
    let with_groups = |stages| {
        builder(stages)
            .optimizer(adamw(0.3))
            .optimizer_group(
                CASE.model().parameters().group(|p| p.shape.len() < 2),
                adamw(0.0),
            )
            .optimizer_group(
                first(),
                SgdConfig::new().with_gradient_clipping(Some(clip())),
            )
            .start()
            .unwrap()
    };
    for stages in 1..=4 {
        let found = trained(&mut with_groups(stages), 0..STEPS);
        assert!(found == expected, "{stages} stages");
    }
    let mut begun = with_groups(3);
    trained(&mut begun, 0..2);
    let (values, state) = saved(&mut begun);
    let mut resumed = with_groups(2);
    resumed.restore(values, state).unwrap();
    resumed.resume_at(2);
    assert!(trained(&mut resumed, 2..STEPS) == expected);
}

/// A group of ids of the model's own module.
fn ids_of_norm() -> ParamGroup {
    ParamGroup::ids_from_module(CASE.model().module().norm.clone())
}

/// A group of rates that matches nothing has no effect, which is reported once, after some steps with rates above 0. A
/// number has no groups.
#[test]
fn groups_of_rates_that_match_nothing_are_reported() {
    let report = |groups: &[(ParamGroup, f64)], base: &[f64]| {
        let mut pipeline = builder(1).optimizer(adamw(0.0)).start().unwrap();
        events::collect();
        let mut first = None;
        for (step, base) in (1..).zip(base) {
            let rates = groups.iter().cloned();
            let rates = rates.fold(ModuleLrScheduler::new(*base), |rates, (group, rate)| {
                rates.with_group(group, rate)
            });
            pipeline.step({ rates }.step(), batch(step)).unwrap();
            let text = events::take();
            if text.contains("learning rate") {
                assert_eq!(first, None);
                first = Some((step, text));
            }
        }
        first
    };
    let typo = (ParamGroup::from_predicate("layers.7"), 0.5);
    let (step, text) = report(std::slice::from_ref(&typo), &[LR; 6]).unwrap();
    assert_eq!(step, 3);
    for part in [
        "all parameters have the base learning rate",
        "base: 0.01; ",
        "steps: 3; ",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let of_ids = (ids_of_norm(), 0.5);
    assert!(report(&[of_ids], &[LR; 3]).is_some());
    let warm_up = [0.0, 0.0, LR, LR, LR];
    assert_eq!(report(&[typo], &warm_up).unwrap().0, 5);
    let matches = (ParamGroup::from_predicate("layers.1"), 0.5);
    assert_eq!(report(&[matches], &[LR; 6]), None);
    let mut pipeline = builder(1).optimizer(adamw(0.0)).start().unwrap();
    for step in 0..6 {
        pipeline.step(LR, batch(step)).unwrap();
    }
    assert!(!events::take().contains("learning rate"));
}

/// A parameter whose optimizer had no state begins without it under one that keeps a state, which is reported if
/// others have a state.
#[test]
fn parameters_without_a_saved_state_are_reported() {
    let first = || ParamGroup::from_predicate("layers.0");
    let with_sgd = || {
        let builder = builder(2).optimizer(adamw(0.1));
        builder.optimizer_group(first(), SgdConfig::new())
    };
    let all_adamw = || builder(3).optimizer(adamw(0.1));
    let restored = |builder: PipelineBuilder<Net, Batch>, steps, freezes: bool| {
        let mut begun = with_sgd().start().unwrap();
        trained(&mut begun, 0..steps);
        let (values, state) = saved(&mut begun);
        let mut resumed = builder.start().unwrap();
        if freezes {
            resumed.freeze(&first()).unwrap();
        }
        events::collect();
        resumed.restore(values, state).unwrap();
        events::take()
    };
    let text = restored(all_adamw(), 2, false);
    for part in [
        "the saved state has no state of the optimizer for parameters that are updated",
        "count: 2; ",
        r#"first: ["layers.0.weight", "layers.0.bias"]; "#,
    ] {
        assert!(text.contains(part), "{text}");
    }
    // The same optimizers; before the first step; while they are frozen; an optimizer without a state for all.
    assert_eq!(restored(with_sgd(), 2, false), "");
    assert_eq!(restored(all_adamw(), 0, false), "");
    assert_eq!(restored(all_adamw(), 2, true), "");
}

#[test]
fn groups_that_are_refused() {
    let refused = |builder: PipelineBuilder<Net, Batch>| {
        let error: PipelineError = builder.start().unwrap_err();
        full_text(&error)
    };
    let sgd = SgdConfig::new;
    let none = ParamGroup::from_predicate("layers.7");
    let typo = builder(1)
        .optimizer(sgd())
        .optimizer_group(ParamGroup::all(), sgd());
    insta::assert_snapshot!(refused(typo.optimizer_group(none, sgd())), @"optimizer group 2 contains no parameter that trains: groups match the paths of parameters, not ids");
    let ids = CASE.model().parameters().group(|p| p.owner() == "Conv2d");
    insta::assert_snapshot!(refused(builder(1).optimizer(sgd()).optimizer_group(ids, sgd())), @"optimizer group 1 contains no parameter that trains: groups match the paths of parameters, not ids");
    let of_ids = || ParamGroup::from_predicate("layers").exclude(ids_of_norm());
    let excluded = builder(1)
        .optimizer(sgd())
        .optimizer_group(ParamGroup::all(), sgd());
    insta::assert_snapshot!(refused(excluded.optimizer_group(of_ids(), sgd())), @"optimizer group 2 has ids of parameters, which are others in each construction of the model, so they match nothing: match paths, for example with `ParamGroup::from_predicate` or `ParameterTable::group`");
    let fused = ParamGroup::from_predicate("bias").fuse(&ids_of_norm());
    let mut pipeline = builder(1).optimizer(sgd()).start().unwrap();
    let frozen = pipeline.freeze(&fused).unwrap_err();
    insta::assert_snapshot!(full_text(&frozen), @"the group has ids of parameters, which are others in each construction of the model, so they match nothing: match paths, for example with `ParamGroup::from_predicate` or `ParameterTable::group`");
    insta::assert_snapshot!(refused(builder(1).optimizer_group(ParamGroup::all(), sgd())), @"the pipeline has no optimizer: call `.optimizer(...)` before `.start()` to train");
    let clipping = sgd().with_gradient_clipping(Some(GradientClippingConfig::Value(1.0)));
    let twice = builder(1)
        .optimizer(sgd())
        .optimizer_group(ParamGroup::all(), clipping);
    insta::assert_snapshot!(refused(twice.clip(Clipping::GlobalNorm(1.0))), @"both the optimizer's configuration and `clip` clip gradients: use one of them");
    insta::assert_snapshot!(refused(builder(1).optimizer(sgd()).average(1.0)), @"an average can't have the decay 1: it must be at least 0 and less than 1, such as 0.999");
}

const DECAY: f64 = 0.7;

/// The averages after some steps of plain Burn, computed on the host.
fn averages(steps: u64) -> BTreeMap<String, Vec<f32>> {
    let after = |steps| {
        let run = plain(CASE, adamw(0.1).init(), MICRO_BATCHES, steps).parameters;
        let floats = |bytes: Vec<u8>| -> Vec<f32> {
            let floats = bytes.chunks_exact(4);
            floats
                .map(|f| f32::from_le_bytes(f.try_into().unwrap()))
                .collect()
        };
        let run = run.into_iter();
        run.map(|(path, bytes)| (path, floats(bytes)))
            .collect::<BTreeMap<_, _>>()
    };
    let mut averages = after(0);
    for step in 1..=steps {
        for (path, values) in after(step) {
            let average = averages.get_mut(&path).unwrap();
            for (average, value) in average.iter_mut().zip(values) {
                *average = *average * DECAY as f32 + value * (1.0 - DECAY) as f32;
            }
        }
    }
    averages
}

fn bits(averages: &BTreeMap<String, Vec<f32>>) -> Bits {
    let averages = averages.iter().map(|(path, average)| {
        let bytes = average.iter().flat_map(|value| value.to_le_bytes());
        (path.clone(), bytes.collect())
    });
    averages.collect()
}

/// Averages equal the averages of plain Burn's parameters, evaluated and gathered by all stages, resumed with other
/// numbers of stages, and training is not changed by them.
#[test]
fn averages_of_the_parameters() {
    let averaging = |stages| {
        builder(stages)
            .optimizer(adamw(0.1))
            .average(DECAY)
            .start()
            .unwrap()
    };
    let gathered = |pipeline: &mut Pipeline<Net, Batch>| {
        let module = pipeline.with_averages(|averaged| averaged.gather(&Device::flex()));
        module.unwrap().unwrap()
    };
    let expected = averages(STEPS);
    let plain_net = plain(CASE, adamw(0.1).init(), MICRO_BATCHES, STEPS);
    for stages in 1..=4 {
        let mut pipeline = averaging(stages);
        let begun = gathered(&mut pipeline);
        assert!(
            parameters(&begun) == bits(&averages(0)),
            "before the first step"
        );
        trained(&mut pipeline, 0..2);
        assert!(parameters(&gathered(&mut pipeline)) == bits(&averages(2)));
        let (values, state) = saved(&mut pipeline);
        let mut resumed = averaging(5 - stages);
        resumed.restore(values, state).unwrap();
        resumed.resume_at(2);
        for pipeline in [&mut pipeline, &mut resumed] {
            assert!(
                trained(pipeline, 2..STEPS) == plain_net.parameters,
                "{stages} stages"
            );
            let module = gathered(pipeline);
            assert!(parameters(&module) == bits(&expected), "{stages} stages");
            // The copies of a shared parameter are exchanged too.
            let evaluated = pipeline.with_averages(|averaged| averaged.evaluate(batch(9)));
            let micro_batches =
                tinderbox_pipeline_tests::split(&batch(9), MICRO_BATCHES).into_iter();
            let losses = micro_batches.map(|(batch, _)| (CASE.forward)(&module, batch).0);
            let losses: Vec<f64> = losses
                .map(|loss| loss.into_scalar::<f32>().into())
                .collect();
            assert_eq!(evaluated.unwrap().unwrap().micro_batch_losses, losses);
            // Nothing has changed.
            let evaluated = pipeline.evaluate(batch(STEPS)).unwrap();
            let last = plain_net.losses.last().unwrap();
            assert_eq!(evaluated.micro_batch_losses, *last);
        }
    }
}

/// The average of a frozen parameter follows its constant value.
#[test]
fn averages_of_frozen_parameters_advance() {
    let builder = builder(2).optimizer(adamw(0.1)).average(DECAY);
    let mut pipeline = builder.start().unwrap();
    let floats = |module: &Net| -> BTreeMap<String, Vec<f32>> {
        let values = parameter_values(module).into_iter();
        let values = values.map(|(path, value)| {
            let data = value.to_data().unwrap();
            (path.to_string(), data.iter::<f32>().collect())
        });
        values.collect()
    };
    let host = Device::flex();
    let mut expected = floats(&pipeline.gather(&host).unwrap());
    for step in 0..STEPS {
        if step == 2 {
            let group = ParamGroup::from_predicate("layers.1");
            pipeline.freeze(&group).unwrap();
        }
        pipeline.step(LR, batch(step)).unwrap();
        for (path, values) in floats(&pipeline.gather(&host).unwrap()) {
            let averages = expected.get_mut(&path).unwrap().iter_mut();
            for (average, value) in averages.zip(values) {
                *average = *average * DECAY as f32 + value * (1.0 - DECAY) as f32;
            }
        }
    }
    let found = pipeline.with_averages(|averaged| averaged.gather(&host));
    assert!(floats(&found.unwrap().unwrap()) == expected);
}

/// The parameters are in their place again after a panic, and can't be set meanwhile.
#[test]
fn a_panic_with_averages_changes_nothing() {
    let builder = || builder(2).optimizer(adamw(0.1)).average(DECAY);
    let [mut pipeline, mut undisturbed] = [(); 2].map(|()| builder().start().unwrap());
    for pipeline in [&mut pipeline, &mut undisturbed] {
        pipeline.step(LR, batch(0)).unwrap();
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pipeline.with_averages(|averaged| -> () {
            let bias = averaged.parameter("layers.0.bias").unwrap();
            let set = averaged.set_parameters([("layers.0.bias", bias)]);
            panic!("{}", set.unwrap_err());
        })
    }));
    let text = panicked.unwrap_err().downcast::<String>().unwrap();
    insta::assert_snapshot!(text, @"the parameters are exchanged for their averages: train, set and restore parameters outside of `with_averages`");
    let [found, expected] = [&mut pipeline, &mut undisturbed].map(|p| trained(p, 1..3));
    assert!(found == expected);
}

/// A state of an optimizer without one is no state of another.
#[test]
fn averages_of_another_optimizer_are_refused() {
    let mut first = builder(1)
        .optimizer(SgdConfig::new())
        .average(DECAY)
        .start()
        .unwrap();
    trained(&mut first, 0..1);
    let (values, state) = saved(&mut first);
    let mut other = builder(1)
        .optimizer(adamw(0.1))
        .average(DECAY)
        .start()
        .unwrap();
    assert!(matches!(
        other.restore(values, state),
        Err(PipelineError::State(StateError::Restore { .. }))
    ));
}

#[test]
fn averages_that_are_refused() {
    let mut pipeline = builder(2)
        .optimizer(adamw(0.1))
        .average(DECAY)
        .start()
        .unwrap();
    let trained = pipeline.with_averages(|averaged| averaged.step(LR, batch(0)));
    insta::assert_snapshot!(trained.unwrap().unwrap_err(), @"the parameters are exchanged for their averages: train, set and restore parameters outside of `with_averages`");
    let nested = pipeline.with_averages(|averaged| averaged.with_averages(|_| ()));
    assert!(matches!(
        nested.unwrap(),
        Err(PipelineError::State(StateError::Averaged))
    ));
    pipeline.step(LR, batch(0)).unwrap();
    // What is saved meanwhile can't be mistaken for a state to resume from.
    let (_, state) = pipeline.with_averages(saved).unwrap();
    assert!(state.tensors.is_empty() && state.scalars.is_empty());
    let restored = pipeline.with_averages(|averaged| averaged.restore(Values::default(), state));
    assert!(matches!(
        restored.unwrap(),
        Err(PipelineError::State(StateError::Averaged))
    ));
    pipeline.step(LR, batch(1)).unwrap();
    let mut without = builder(2).optimizer(adamw(0.1)).start().unwrap();
    insta::assert_snapshot!(without.with_averages(|_| ()).unwrap_err(), @"the pipeline keeps no averages: call `.average(0.999)` before `.start()`");
    let (values, state) = saved(&mut pipeline);
    let error = without.restore(values, state).unwrap_err();
    insta::assert_snapshot!(full_text(&error), @r#"
    the saved state of rank 0 could not be restored; nothing was changed
    the optimizer state of `layers.0.weight` is incomplete or of another optimizer: the saved fields are ["optimizer.layers.0.weight.average", "optimizer.layers.0.weight.of_optimizer.momentum.moment_1", "optimizer.layers.0.weight.of_optimizer.momentum.moment_2", "optimizer.layers.0.weight.of_optimizer.momentum.time"]
    "#);
}

/// Trains in plain Burn without micro-batches; `change` gets the gradients of each step.
fn plain_with(
    mut optimizer: ModuleOptimizer,
    change: impl Fn(u64, &Net, &mut GradientsParams),
) -> Bits {
    let device = Device::flex().autodiff();
    let model = CASE.model();
    let mut net = model
        .materialize(&device, &model.initializer(SEED.into()))
        .unwrap();
    for step in 0..STEPS {
        let (loss, _) = (CASE.forward)(&net, (CASE.batch)(step, &device));
        let mut gradients = GradientsParams::from_grads(loss.backward(), &net);
        change(step, &net, &mut gradients);
        net = optimizer.step(LR, net, gradients);
    }
    parameters(&net)
}

/// A function changes the gradients of weights, after they were clipped.
#[test]
fn gradients_are_changed_before_the_update() {
    let halved = |weight: Tensor<2>| weight * 0.5;
    let expected = plain_with(adamw(0.1).init(), |_, net, gradients| {
        for layer in &net.layers {
            let id = layer.weight.id;
            let clipped = GradientClipping::Value(1e-2);
            let gradient = clipped.clip_gradient(gradients.remove::<2>(id).unwrap());
            gradients.register(id, halved(gradient));
            let id = layer.bias.as_ref().unwrap().id;
            let gradient = clipped.clip_gradient(gradients.remove::<1>(id).unwrap());
            gradients.register(id, gradient);
        }
        for id in [net.norm.gamma.id, net.norm.beta.as_ref().unwrap().id] {
            let clipped = GradientClipping::Value(1e-2);
            let gradient = clipped.clip_gradient(gradients.remove::<1>(id).unwrap());
            gradients.register(id, gradient);
        }
    });
    for stages in 1..=3 {
        let mut pipeline = builder_in(stages, 1)
            .optimizer(adamw(0.1))
            .clip(Clipping::Each(GradientClippingConfig::Value(1e-2)))
            .on_gradients(
                move |path, gradient| match path.as_str().ends_with("weight") {
                    true => halved(gradient.typed().unwrap()).into(),
                    false => gradient,
                },
            )
            .start()
            .unwrap();
        assert!(
            trained(&mut pipeline, 0..STEPS) == expected,
            "{stages} stages"
        );
    }
    let mut pipeline = builder(2)
        .optimizer(adamw(0.1))
        .on_gradients(|path, gradient| match path.as_str() {
            "norm.gamma" => Tensor::<1>::zeros([1], &Device::flex()).into(),
            _ => gradient,
        })
        .start()
        .unwrap();
    let error = pipeline.step(LR, batch(0)).unwrap_err();
    let text = full_text(&error);
    insta::assert_snapshot!(text.lines().last().unwrap(), @"`on_gradients` returned f32[1] for the gradient of `norm.gamma`, which is f32[4]: keep shape and dtype");
}

/// A group is frozen for two steps, with its optimizer's state, and neither its gradients nor their norm count.
#[test]
fn a_group_is_frozen_between_steps() {
    let frozen = |step: u64| (1..3).contains(&step);
    let expected = plain_with(adamw(0.1).init(), |step, net, gradients| {
        if frozen(step) {
            gradients.remove::<2>(net.layers[0].weight.id).unwrap();
            let bias = net.layers[0].bias.as_ref().unwrap();
            gradients.remove::<1>(bias.id).unwrap();
        }
    });
    let group = ParamGroup::from_predicate("layers.0");
    for stages in 1..=3 {
        let pipeline = builder_in(stages, 1).optimizer(adamw(0.1));
        let mut pipeline = pipeline.keep_gradients().start().unwrap();
        for step in 0..STEPS {
            match step {
                1 => pipeline.freeze(&group).unwrap(),
                3 => pipeline.unfreeze(&group).unwrap(),
                _ => {}
            }
            let norm = pipeline
                .step(LR, batch(step))
                .unwrap()
                .gradient_norm
                .unwrap();
            let kept = pipeline.on_ranks(|_, stages| {
                let gradients = stages.iter().flat_map(|stage| stage.gradients());
                let squares = gradients.map(|(path, gradient)| {
                    let data = gradient.to_data().unwrap();
                    let square: f64 = data.iter::<f64>().map(|value| value * value).sum();
                    (path.to_string(), square)
                });
                squares.collect::<Vec<_>>()
            });
            let kept: BTreeMap<String, f64> = kept.unwrap().into_iter().flatten().collect();
            assert_eq!(kept.contains_key("layers.0.weight"), !frozen(step));
            let sum: f64 = kept.values().sum();
            assert!((norm - sum.sqrt()).abs() <= 1e-6 * norm, "{norm} {sum}");
        }
        let found = parameters(&pipeline.gather(&Device::flex()).unwrap());
        assert!(found == expected, "{stages} stages");
        let unknown = pipeline
            .freeze(&ParamGroup::from_path("layers.0"))
            .unwrap_err();
        insta::allow_duplicates! {
            insta::assert_snapshot!(unknown, @"the group contains no parameter: groups match the paths of parameters, not ids");
        }
    }
}

/// What does not train when it is traced has no gradient.
#[test]
fn what_was_not_traced_does_not_train() {
    let init = |device: &Device| {
        let mut net = (CASE.init)(device);
        net.layers[1] = net.layers.remove(1).no_grad();
        net.layers
            .push(LinearConfig::new(WIDTH, WIDTH).init(device));
        net
    };
    let case = Case { init, ..CASE };
    let model = case.model();
    let trace = case.trace(&model, 1);
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan).optimizer(adamw(0.1));
    let mut pipeline = builder.start().unwrap();
    pipeline.unfreeze(&ParamGroup::all()).unwrap();
    let group = ParamGroup::from_predicate("layers.1");
    insta::assert_snapshot!(pipeline.unfreeze(&group).unwrap_err(), @"there is no gradient of `layers.1.weight`, because it did not train when the model was traced, or is a running state: trace a model in which it trains, and freeze it after the start");
}

/// The optimizer whose state may have 16 bits has the bits of Burn's AdamW if it has 32, and is resumed exactly.
#[test]
fn any_precision_adamw_is_adamw() {
    use tinderbox_pipeline::MomentDType::{Bf16, Full};
    let optimizer = AnyPrecisionAdamW::new()
        .weight_decay(0.1)
        .moments(Full, Full);
    let expected = plain(CASE, adamw(0.1).init(), MICRO_BATCHES, STEPS).parameters;
    let small = AnyPrecisionAdamW::new()
        .weight_decay(0.1)
        .moments(Bf16, Full);
    let small = small.kahan_summation(true);
    let of_small = plain(CASE, small.into(), MICRO_BATCHES, STEPS).parameters;
    for (optimizer, expected) in [(optimizer, &expected), (small, &of_small)] {
        for stages in 1..=3 {
            let start = |stages| builder(stages).custom_optimizer(optimizer).start().unwrap();
            let mut pipeline = start(stages);
            trained(&mut pipeline, 0..2);
            let (values, state) = saved(&mut pipeline);
            let mut resumed = start(4 - stages);
            resumed.restore(values, state).unwrap();
            resumed.resume_at(2);
            for pipeline in [&mut pipeline, &mut resumed] {
                assert!(trained(pipeline, 2..STEPS) == *expected, "{stages} stages");
            }
        }
    }
    assert!(expected != of_small);
}
