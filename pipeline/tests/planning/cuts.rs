//! Manual cuts: nested, of mixed depths, at marks, and the values between stages.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, softmax};
use burn::tensor::{Device, Int, Tensor};
use tinderbox_deferred::Deferred;
use tinderbox_fake::mark;
use tinderbox_pipeline::planner::PlanStage;
use tinderbox_pipeline::{Cut, Machine, Outputs, Plan, PlanError, Planner, Trace, Traceable};
use tinderbox_pipeline_tests::{floats, full_text, tokens};

use crate::models::{mlp, unet_trace};

const WIDTH: usize = 4;
const WORDS: usize = 11;

/// 24 layers of an encoder and 24 of a decoder that attends to it; the embedding of both is the head too.
#[derive(Module, Debug)]
struct Translator {
    embedding: Embedding,
    encoder: Vec<Linear>,
    encoder_norm: LayerNorm,
    decoder: Vec<Decoder>,
}

#[derive(Module, Debug)]
struct Decoder {
    mix: Linear,
    value: Linear,
}

type Text = Tensor<2, Int>;

/// Micro-batches of two texts.
fn translator(micro_batches: usize) -> Trace<(Text, Text)> {
    let init = |device: &Device| {
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
        Translator {
            embedding: EmbeddingConfig::new(WORDS, WIDTH).init(device),
            encoder: (0..24).map(|_| linear()).collect(),
            encoder_norm: LayerNormConfig::new(WIDTH).init(device),
            decoder: (0..24)
                .map(|_| Decoder {
                    mix: linear(),
                    value: linear(),
                })
                .collect(),
        }
    };
    let forward = |net: &Translator, (source, target): (Text, Text)| {
        let memory = net.embedding.forward(source);
        let layers = net.encoder.iter();
        let memory = layers.fold(memory, |x, layer| gelu(layer.forward(x)));
        let memory = net.encoder_norm.forward(memory);
        let mut x = net.embedding.forward(target);
        for layer in &net.decoder {
            let query = layer.mix.forward(x.clone());
            let scores = softmax(query.matmul(memory.clone().swap_dims(1, 2)), 2);
            x = x + scores.matmul(layer.value.forward(memory.clone()));
        }
        let head = net.embedding.weight.val().transpose().unsqueeze::<3>();
        Outputs::loss(x.matmul(head).powf_scalar(2.0).mean())
    };
    let words = |number| tokens([2 * micro_batches, 3], WORDS, number, &Device::flex());
    let model = Deferred::new(init).unwrap();
    let traced = model.trace(&(words(0), words(1)), micro_batches, forward);
    traced.unwrap()
}

/// The first module of each stage and its last.
fn ends(plan: &Plan) -> Vec<String> {
    let ends = |stage: &PlanStage| {
        let first = stage.modules.first().map_or("", String::as_str);
        let last = stage.modules.last().map_or("", String::as_str);
        format!("{first} to {last}")
    };
    plan.stages.iter().map(ends).collect()
}

/// Cuts of an encoder-decoder from the documentation of Slapo.
#[test]
fn in_an_encoder_at_its_end_and_in_a_decoder() {
    let trace = translator(4);
    let cuts = [
        Cut::after("encoder.11"),
        Cut::after("encoder_norm"),
        Cut::after("decoder.11"),
    ];
    let four = trace.plan_at(&cuts).unwrap();
    assert_eq!(
        ends(&four),
        [
            "embedding to encoder.11",
            "encoder.12 to encoder_norm",
            "decoder.0.mix to decoder.11.value",
            "decoder.12.mix to decoder.23.value",
        ]
    );
    let [first, _, last] = cuts;
    let three = trace.plan_at(&[first, last]).unwrap();
    assert_eq!(
        ends(&three),
        [
            "embedding to encoder.11",
            "encoder.12 to decoder.11.value",
            "decoder.12.mix to decoder.23.value",
        ]
    );

    // The encoder's output goes from its end directly to both stages of the decoder.
    let names = |values: &[tinderbox_pipeline::planner::PlanValue]| -> Vec<String> {
        let one = |value: &tinderbox_pipeline::planner::PlanValue| {
            format!("{} {} to {}", value.made_by, value.from, value.to)
        };
        values.iter().map(one).collect()
    };
    let memory = "NumericFloat.Add in encoder_norm 1 to 3";
    let stages = &four.stages;
    assert!(names(&stages[1].live_out).contains(&memory.to_owned()));
    for stage in [2, 3] {
        assert!(names(&stages[stage].live_in).contains(&memory.to_owned()));
    }
    assert!(stages.iter().all(|stage| stage.bypassing.is_empty()));
    let hidden = "Activation.Gelu in encoder.11 0 to 1";
    assert_eq!(names(&stages[0].live_out), [hidden]);
    assert_eq!(names(&stages[1].live_in), [hidden]);

    // The embedding is read by the encoder, the decoder and the head.
    let [tie] = &four.ties[..] else {
        panic!("{:?}", four.ties);
    };
    assert_eq!(tie.path.as_str(), "embedding.weight");
    assert_eq!(tie.owner.index(), 0);
    let copies: Vec<usize> = tie.copies.iter().map(|stage| stage.index()).collect();
    assert_eq!(copies, [2, 3]);
    assert_eq!(stages[3].copies, std::slice::from_ref(&tie.path));
}

/// A cut before one layer of the encoder and after a part of another layer of the decoder.
#[test]
fn of_mixed_depths() {
    let trace = translator(4);
    let cuts = [
        Cut::before("encoder.3"),
        Cut::after("decoder.5.mix"),
        Cut::before("decoder.7"),
    ];
    let plan = trace.plan_at(&cuts).unwrap();
    assert_eq!(
        ends(&plan),
        [
            "embedding to encoder.2",
            "encoder.3 to decoder.5.mix",
            "decoder.5.value to decoder.6.value",
            "decoder.7.mix to decoder.23.value",
        ]
    );
    // A whole list is a module too.
    let plan = trace.plan_at(&[Cut::before("decoder")]).unwrap();
    assert_eq!(plan.stages[1].modules[0], "decoder.0.mix");
}

#[test]
fn skips_pass_the_stages_between() {
    let names = ["down.1", "down.2", "up.0", "up.1", "up.2"];
    let plan = unet_trace().plan_at(&names.map(Cut::before)).unwrap();
    let passing = |stage: &PlanStage| -> Vec<(usize, usize)> {
        let ends = stage.bypassing.iter();
        ends.map(|value| (value.from.index(), value.to.index()))
            .collect()
    };
    let found: Vec<_> = plan.stages.iter().map(passing).collect();
    assert_eq!(
        found,
        [
            vec![],
            // The next level reads the sent value too.
            vec![],
            vec![(0, 5)],
            vec![(0, 5), (1, 4)],
            vec![(0, 5)],
            vec![]
        ]
    );
}

/// The author's marks, in a forward that also runs without a trace.
#[test]
fn at_marks() {
    let forward = |net: &crate::models::Mlp, x: Tensor<2>| {
        let x = mark(x);
        let x = mark(gelu(net.layers[0].forward(x)));
        let x = net.layers[1].forward(x);
        let x = mark(net.layers[2].forward(gelu(x)));
        Outputs::loss(net.layers[3].forward(x).mean())
    };
    let model = mlp(4, 8);
    let example = floats([4, 8], 0, &Device::flex());
    let trace = model.trace(&example, 1, forward).unwrap();
    let error = trace.plan_at_marks().unwrap_err();
    assert!(matches!(error, PlanError::IdleMark { mark: 0 }));
    assert_eq!(
        full_text(&error),
        "mark 0 is on a value that depends on no parameter: there is no operation before it that a \
         stage could run"
    );
    let plan = trace.plan_at(&[Cut::mark(1), Cut::mark(2)]).unwrap();
    let stages = plan.stages.iter();
    let last = stages.map(|stage| stage.live_out.first().map(|value| value.made_by.as_str()));
    // After the activation, not before it.
    assert_eq!(
        last.collect::<Vec<_>>(),
        [
            Some("Activation.Gelu in layers.0"),
            Some("NumericFloat.Add in layers.2"),
            None
        ]
    );
    assert_eq!(plan.stages[1].modules, ["layers.1", "layers.2"]);
    // Marks combined with modules, and a forward without marks.
    let mixed = trace
        .plan_at(&[Cut::mark(1), Cut::before("layers.3")])
        .unwrap();
    assert_eq!(mixed.stages.len(), 3);
    let unmarked = model.trace(&example, 1, crate::models::forward).unwrap();
    assert_eq!(unmarked.plan_at_marks().unwrap().stages.len(), 1);
}

/// The prediction of a plan from the programs of its stages equals that from the partitioners' work,
/// within one percent.
#[test]
fn the_work_and_the_plan_predict_the_same() {
    for ranks in [2, 4, 7] {
        let trace = translator(ranks);
        let machine = Machine::local(ranks).unwrap();
        let plan = Planner::new(&trace, &machine).plan().unwrap();
        // `chain: 1.27 ms per step, …`
        let reason = &plan.choice.reasons[0];
        let mut words = reason.split(' ').skip(1);
        let number: f64 = words.next().unwrap().parse().unwrap();
        let unit = match words.next() {
            Some("µs") => 1e3,
            Some("ms") => 1e6,
            other => panic!("{other:?} in {reason}"),
        };
        let ratio = plan.prediction.step_ns as f64 / (number * unit);
        println!("{ranks} ranks: {reason}, {ratio}");
        assert!(
            (ratio - 1.0).abs() < 0.01,
            "{ranks} ranks: {reason}, {ratio}"
        );
    }
}
