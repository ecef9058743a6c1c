//! The step after a checkpoint, run again alone.

use std::collections::BTreeMap;

use burn::optim::SgdConfig;
use burn::tensor::Device;
use tinderbox::checkpoint::replay_step;
use tinderbox::error::CheckpointsError;
use tinderbox::pipeline::PipelineBuilder;
use tinderbox::{
    Checkpoint, Checkpoints, Deferred, DynTensor, LossScale, Machine, MixedPrecision, Pipeline,
    Trace, Traceable,
};

use crate::models::{Case, Tied, deferred, trace};
use crate::plain::{LR, SEED};

const CASE: Tied = Tied;
const MICRO_BATCHES: usize = 4;

type Builder = PipelineBuilder<<Tied as Case>::Model, <Tied as Case>::Batch>;

fn builder(stages: usize) -> Builder {
    let model = deferred(&CASE);
    builder_of(&model, &trace(&CASE, &model, MICRO_BATCHES), stages)
}

fn builder_of(
    model: &Deferred<<Tied as Case>::Model>,
    trace: &Trace<<Tied as Case>::Batch>,
    stages: usize,
) -> Builder {
    let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
    Pipeline::builder(model, trace, &plan)
        .average(0.5)
        .loss_scale(LossScale::dynamic().growing_after(1))
}

fn newest(saves: &Checkpoints) -> Checkpoint {
    saves.latest().unwrap().unwrap()
}

/// Step, parameters and loss scale are the checkpoint's. The gradients of all micro-batches are the step's, times the loss
/// scale.
#[test]
fn a_step_is_replayed_from_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let saves = Checkpoints::open(dir.path().join("run")).unwrap();
    let averaged = Checkpoints::open(dir.path().join("averaged")).unwrap();
    let batch = |step| CASE.batch(step, &Device::flex());
    let builder_of_run = builder(3).seed(SEED).optimizer(SgdConfig::new());
    let mut pipeline = builder_of_run.keep_gradients().start().unwrap();
    for step in 0..2 {
        pipeline.step(LR, batch(step)).unwrap();
    }
    let scale = pipeline.loss_scale().unwrap().factor();
    assert_ne!(scale, LossScale::dynamic().factor());
    saves.save(&mut pipeline, 0).unwrap();
    let saved = pipeline.with_averages(|pipeline| averaged.save(pipeline, 0));
    saved.unwrap().unwrap();
    let expected = pipeline.step(LR, batch(2)).unwrap();
    let gradients = pipeline.on_ranks(|_, stages| {
        let gradients = stages.iter().flat_map(|stage| stage.gradients());
        let pairs = gradients.map(|(path, value)| (path.to_string(), value.clone()));
        pairs.collect::<Vec<_>>()
    });
    let gradients: BTreeMap<String, DynTensor> = gradients.unwrap().into_iter().flatten().collect();

    let mut sums: BTreeMap<String, DynTensor> = BTreeMap::new();
    let of_run = || builder(2).seed(SEED);
    for program in replay_step(newest(&saves), of_run(), batch(2)).unwrap() {
        let program = program.unwrap();
        let micro_batch = program.digest.micro_batch.index();
        for (name, value) in program.outputs {
            if name == "loss" {
                let loss = value.to_data().unwrap().iter::<f64>().next();
                assert_eq!(loss, Some(expected.micro_batch_losses[micro_batch]));
            }
            if let Some(path) = name.strip_prefix("gradient of `") {
                let path = path.trim_end_matches('`').to_owned();
                let sum = match sums.remove(&path) {
                    Some(sum) => sum + value,
                    None => value,
                };
                sums.insert(path, sum);
            }
        }
    }
    assert!(gradients.len() > 2 && sums.keys().eq(gradients.keys()));
    for (path, sum) in sums {
        let numbers =
            |value: &DynTensor| value.to_data().unwrap().iter::<f64>().collect::<Vec<_>>();
        // The scale is a power of two.
        let unscaled: Vec<f64> = numbers(&sum).iter().map(|one| one / scale).collect();
        assert_eq!(unscaled, numbers(&gradients[&path]), "{path}");
    }

    let refused = |saves: &Checkpoints, builder| {
        let replay = replay_step(newest(saves), builder, batch(2));
        replay.unwrap_err()
    };
    let found = refused(&averaged, of_run());
    assert!(
        matches!(found, CheckpointsError::Averaged { .. }),
        "{found}"
    );
    let found = refused(&saves, builder(2));
    assert!(matches!(found, CheckpointsError::Seed { .. }), "{found}");
    let model = deferred(&CASE);
    let bf16 = MixedPrecision::bf16(&model).trace(&batch(0), MICRO_BATCHES, |model, batch| {
        CASE.forward(model, batch)
    });
    let found = refused(&saves, builder_of(&model, &bf16.unwrap(), 2).seed(SEED));
    insta::assert_snapshot!(found, @"the precision of the run is `the parameters' own`, and the replay has `bf16 in the forward`, which gives other values: trace the model with the precision of the run");
    let of_two = builder_of(&model, &trace(&CASE, &model, 2), 2).seed(SEED);
    let found = refused(&saves, of_two).to_string();
    assert!(
        found.ends_with("trace the model with 4 micro-batches"),
        "{found}"
    );
}
