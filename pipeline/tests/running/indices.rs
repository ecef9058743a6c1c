//! Indices that are out of range.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use tinderbox_deferred::Deferred;
use tinderbox_pipeline::{
    Cut, Outputs, Pipeline, PipelineBuilder, PipelineError, StepError, Traceable,
};
use tinderbox_pipeline_tests::{LR, full_text};

const WORDS: usize = 7;
const CLASSES: usize = 5;

#[derive(Module, Debug)]
struct Net {
    tokens: Embedding,
    head: Linear,
}

type Batch = (Tensor<2, Int>, Tensor<1, Int>);

fn logits(net: &Net, tokens: Tensor<2, Int>) -> Tensor<2> {
    let words = net.tokens.forward(tokens);
    net.head.forward(words.mean_dim(1).squeeze_dim(1))
}

fn cross_entropy(net: &Net, (tokens, labels): Batch) -> Outputs {
    let logits = logits(net, tokens);
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    Outputs::loss(loss.forward(logits, labels))
}

fn gathered(net: &Net, (tokens, labels): Batch) -> Outputs {
    let logits = logits(net, tokens);
    Outputs::loss(logits.gather(1, labels.unsqueeze_dim(1)).mean())
}

fn selected(net: &Net, (tokens, labels): Batch) -> Outputs {
    let logits = logits(net, tokens);
    Outputs::loss(logits.select(1, labels % 4 + 2).mean())
}

fn ints<const D: usize>(values: &[i32], shape: [usize; D]) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
}

/// Four samples of two tokens, the last ones as given.
fn batch(token: i32, label: i32) -> Batch {
    let tokens = ints(&[0, 1, 2, 3, 4, 5, 6, token], [4, 2]);
    (tokens, ints(&[0, 4, 1, label], [4]))
}

fn builder(forward: fn(&Net, Batch) -> Outputs) -> PipelineBuilder<Net, Batch> {
    let model = Deferred::new(|device| Net {
        tokens: EmbeddingConfig::new(WORDS, 3).init(device),
        head: LinearConfig::new(3, CLASSES).init(device),
    })
    .unwrap();
    let trace = model.trace(&batch(0, 0), 2, forward).unwrap();
    let plan = trace.plan_at(&[Cut::before("head")]).unwrap();
    Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new())
}

/// The error of a step in which Burn would panic without the check.
fn refused(forward: fn(&Net, Batch) -> Outputs, batch: Batch) -> String {
    let mut unchecked = builder(forward).check_indices(false).start().unwrap();
    let panicked = full_text(&unchecked.step(LR, batch.clone()).unwrap_err());
    assert!(panicked.contains("\npanicked: "), "{panicked}");
    let mut pipeline = builder(forward).check_indices(true).start().unwrap();
    full_text(&pipeline.step(LR, batch).unwrap_err())
}

#[test]
fn an_index_out_of_range_is_named() {
    insta::assert_snapshot!(refused(cross_entropy, batch(7, 0)), @r#"
    micro-batch 1 of the batch can't be used, and nothing was run
    an index is out of range in `tokens`; it comes from the batch's tensor `0`: check the data and the sizes with which the model was constructed
    Module.Embedding was given the index 7 at [1, 1]: only 0 to 6 are allowed
    "#);
    insta::assert_snapshot!(refused(cross_entropy, batch(-1, 0)), @r#"
    micro-batch 1 of the batch can't be used, and nothing was run
    an index is out of range in `tokens`; it comes from the batch's tensor `0`: check the data and the sizes with which the model was constructed
    Module.Embedding was given the index -1 at [1, 1]: only 0 to 6 are allowed
    "#);
    insta::assert_snapshot!(refused(cross_entropy, batch(0, 5)), @r#"
    micro-batch 1 of the batch can't be used, and nothing was run
    an index is out of range in or after `head`; it comes from the batch's tensor `1`: check the data and the sizes with which the model was constructed
    BaseFloat.Gather was given the index 5 at [1]: only 0 to 4 are allowed
    "#);
    insta::assert_snapshot!(refused(gathered, batch(0, -100)), @r#"
    micro-batch 1 of the batch can't be used, and nothing was run
    an index is out of range in or after `head`; it comes from the batch's tensor `1`: check the data and the sizes with which the model was constructed
    BaseFloat.Gather was given the index -100 at [1]: only 0 to 4 are allowed
    "#);
    insta::assert_snapshot!(refused(selected, batch(0, 7)), @r#"
    rank 1, stage 1, micro-batch 1, action 1F1 failed
    an index is out of range in or after `head`: check the data and the sizes with which the model was constructed
    BaseFloat.Select was given the index 5 at [1]: only 0 to 4 are allowed
    "#);
}

/// A wrong label fails its batch, and not the run.
#[test]
fn a_pipeline_continues_after_an_invalid_batch_index() {
    let forwards = [cross_entropy as fn(&Net, Batch) -> Outputs, gathered];
    for forward in forwards {
        let start = || builder(forward).check_indices(true).start().unwrap();
        let (mut found, mut expected) = (start(), start());
        for wrong in [batch(7, 0), batch(0, 5)] {
            let error = found.step(LR, wrong.clone()).unwrap_err();
            assert!(
                matches!(error, PipelineError::Step(StepError::MicroBatch { .. })),
                "{error}"
            );
            found.evaluate(wrong).unwrap_err();
        }
        let loss =
            |pipeline: &mut Pipeline<Net, Batch>| pipeline.step(LR, batch(6, 4)).unwrap().loss;
        assert_eq!(loss(&mut found), loss(&mut expected));
        assert_eq!(found.steps(), 1);
    }
}

/// Elements that are not read may have any value.
#[test]
fn indices_that_are_not_read_are_not_checked() {
    let forward =
        |net: &Net, (tokens, labels): Batch| cross_entropy(net, (tokens.narrow(1, 0, 1), labels));
    let mut pipeline = builder(forward).check_indices(true).start().unwrap();
    // The invalid token is the second of its sample.
    pipeline.step(LR, batch(WORDS as i32, 0)).unwrap();
}

#[test]
fn indices_in_range_are_accepted() {
    for forward in [cross_entropy, gathered] {
        let loss = |check| {
            let mut pipeline = builder(forward).check_indices(check).start().unwrap();
            pipeline.step(LR, batch(6, 4)).unwrap().loss
        };
        assert_eq!(loss(true), loss(false));
        assert!(loss(true).is_finite());
    }
}
