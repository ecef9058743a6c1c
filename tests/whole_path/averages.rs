//! Averages of the parameters, and an optimizer's state in 16 bits, in checkpoints.

use burn::optim::SgdConfig;
use burn::tensor::Device;
use tinderbox::deferred::parameter_values;
use tinderbox::error::CheckpointsError;
use tinderbox::pipeline::{AnyPrecisionAdamW, MomentDType, PipelineBuilder};
use tinderbox::{Checkpoints, LossScale, Machine, Pipeline};

use crate::models::{Case, Tied, deferred, trace};
use crate::plain::{LR, SEED};

const CASE: Tied = Tied;

type Trained = Pipeline<<Tied as Case>::Model, <Tied as Case>::Batch>;

fn builder(stages: usize) -> PipelineBuilder<<Tied as Case>::Model, <Tied as Case>::Batch> {
    let model = deferred(&CASE);
    let trace = trace(&CASE, &model, 4);
    let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
    Pipeline::builder(&model, &trace, &plan).seed(SEED)
}

/// A pipeline that has trained three steps and was saved, and one of another number of stages that resumes it.
fn trained_and_resumed(start: impl Fn(usize) -> Trained, run: &Checkpoints) -> [Trained; 2] {
    let mut pipeline = start(3);
    for step in 0..3 {
        let batch = CASE.batch(step, &Device::flex());
        pipeline.step(LR, batch).unwrap();
    }
    run.save(&mut pipeline, 0).unwrap();
    let mut resumed = start(2);
    run.resume(&mut resumed).unwrap().unwrap();
    [pipeline, resumed]
}

/// Saved, resumed with another number of stages, and saved as a model of its own, from which no training resumes.
#[test]
fn averages_are_saved_and_resumed() {
    let batch = |step| CASE.batch(step, &Device::flex());
    // With a scale, a checkpoint may have no state of the optimizer.
    for scale in [None, Some(LossScale::fixed(8.0))] {
        let start = |stages| {
            let builder = builder(stages).optimizer(SgdConfig::new()).average(0.8);
            match scale {
                Some(scale) => builder.loss_scale(scale).start().unwrap(),
                None => builder.start().unwrap(),
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let run = Checkpoints::open(dir.path().join("run")).unwrap();
        let averaged = Checkpoints::open(dir.path().join("averaged")).unwrap();
        let [mut pipeline, mut resumed] = trained_and_resumed(start, &run);
        for pipeline in [&mut pipeline, &mut resumed] {
            pipeline.step(LR, batch(3)).unwrap();
        }
        let losses = [&mut pipeline, &mut resumed].map(|pipeline| {
            let evaluated = pipeline.with_averages(|averaged| averaged.evaluate(batch(4)));
            evaluated.unwrap().unwrap().micro_batch_losses
        });
        assert_eq!(losses[0], losses[1]);
        let saved = pipeline.with_averages(|pipeline| averaged.save(pipeline, 0));
        saved.unwrap().unwrap();

        let refused = averaged.resume(&mut start(1)).unwrap_err();
        assert!(
            matches!(refused, CheckpointsError::Averaged { .. }),
            "{refused}"
        );
        let mut evaluation = builder(1).start().unwrap();
        averaged.resume(&mut evaluation).unwrap().unwrap();
        let found = evaluation.evaluate(batch(4)).unwrap().micro_batch_losses;
        assert_eq!(found, losses[0]);
    }
}

/// The moments, and what the summation compensates.
#[test]
fn a_state_in_16_bits_is_saved_and_resumed() {
    let batch = |step| CASE.batch(step, &Device::flex());
    let start = |stages| {
        let optimizer = AnyPrecisionAdamW::new()
            .moments(MomentDType::Bf16, MomentDType::Bf16)
            .kahan_summation(true);
        let builder = builder(stages).custom_optimizer(optimizer);
        builder.start().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let run = Checkpoints::open(dir.path()).unwrap();
    let trained = trained_and_resumed(start, &run).map(|mut pipeline| {
        let losses = [3, 4].map(|step| pipeline.step(LR, batch(step)).unwrap().loss);
        let module = pipeline.gather(&Device::flex()).unwrap();
        let values = parameter_values(&module).into_iter();
        let values = values.map(|(path, value)| (path, value.to_data().unwrap()));
        (losses, values.collect::<Vec<_>>())
    });
    assert_eq!(trained[0], trained[1]);
}
