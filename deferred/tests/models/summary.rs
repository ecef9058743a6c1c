//! The summary of a model: its totals, its table at several widths, its JSON.

use burn::module::{Module, Param, ParamId};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm,
    RmsNormConfig,
};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};
use serde_json::json;
use tinderbox_deferred::{Deferred, Entry, ModuleSummary, ParameterTable};

#[derive(Module, Debug)]
struct Perceptron {
    first: Linear,
    second: Linear,
}

fn perceptron() -> ParameterTable {
    table(|device| Perceptron {
        first: LinearConfig::new(784, 512).init(device),
        second: LinearConfig::new(512, 10).init(device),
    })
}

#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

#[derive(Module, Debug)]
struct DecoderLayer {
    attention_norm: RmsNorm,
    attention: Attention,
    feed_forward_norm: RmsNorm,
    feed_forward: (Linear, Linear, Linear),
}

#[derive(Module, Debug)]
struct Llama {
    tokens: Embedding,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    head: Linear,
}

fn llama() -> ParameterTable {
    table(|device| {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let norm = || RmsNormConfig::new(8192).init(device);
        let layer = || DecoderLayer {
            attention_norm: norm(),
            attention: Attention {
                query: linear(8192, 8192),
                key: linear(8192, 1024),
                value: linear(8192, 1024),
                output: linear(8192, 8192),
            },
            feed_forward_norm: norm(),
            feed_forward: (
                linear(8192, 28672),
                linear(8192, 28672),
                linear(28672, 8192),
            ),
        };
        Llama {
            tokens: EmbeddingConfig::new(128_256, 8192).init(device),
            layers: (0..80).map(|_| layer()).collect(),
            norm: norm(),
            head: linear(8192, 128_256),
        }
    })
}

#[derive(Module, Debug)]
struct Mixture {
    experts: Vec<Linear>,
    shared_projection_of_all_experts: Linear,
    batch_norm: BatchNorm,
    positions: Param<Tensor<1, Int>>,
    mask: Param<Tensor<2, Bool>>,
    scale: Param<Tensor<1>>,
    scale_again: Param<Tensor<1>>,
}

/// Experts that share their bias, one of another size, frozen ones, and each kind of parameter.
fn mixture() -> ParameterTable {
    table(|device| {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let first = linear(16, 16);
        let mut experts: Vec<Linear> = (0..6).map(|_| linear(16, 16)).collect();
        for expert in &mut experts[1..4] {
            expert.bias = first.bias.clone();
        }
        experts[0].bias = first.bias;
        experts[5] = linear(16, 32).no_grad();
        let scale = Param::uninitialized(
            ParamId::new(),
            |device, trainable| {
                Tensor::random([3], Distribution::Default, device).set_require_grad(trainable)
            },
            device.clone(),
            true,
            [3].into(),
        );
        Mixture {
            experts,
            shared_projection_of_all_experts: linear(16, 1),
            batch_norm: BatchNormConfig::new(4).init(device),
            positions: Param::initialized(ParamId::new(), Tensor::arange(0..64, device)),
            mask: Param::initialized(ParamId::new(), Tensor::from_bool([[true, false]], device)),
            scale_again: scale.clone(),
            scale,
        }
    })
}

fn table<M: Module>(init: impl Fn(&Device) -> M + Send + Sync + 'static) -> ParameterTable {
    ParameterTable::clone(Deferred::new(init).unwrap().parameters())
}

fn models() -> [(&'static str, ParameterTable); 3] {
    [
        ("perceptron", perceptron()),
        ("llama", llama()),
        ("mixture", mixture()),
    ]
}

#[test]
fn tables_at_three_widths() {
    for (name, table) in models() {
        for width in [40, 80, 120] {
            insta::assert_snapshot!(format!("{name}_{width}"), format!("{table:width$}"));
        }
    }
    insta::assert_snapshot!("mixture_full", format!("{:#120}", mixture()));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for (name, table) in models() {
        let summary = table.summary();
        for width in 24..=160 {
            for text in [format!("{summary:width$}"), format!("{summary:#width$}")] {
                for line in text.lines() {
                    assert!(line.chars().count() <= width, "{name} at {width}: {line}");
                    assert_eq!(line, line.trim_end(), "{name} at {width}");
                }
            }
        }
    }
}

#[test]
fn every_form_prints_the_same_table() {
    let table = mixture();
    let summary = table.summary();
    let deferred = Deferred::new(|device| LinearConfig::new(2, 3).init(device)).unwrap();
    assert_eq!(format!("{table:72}"), format!("{summary:72}"));
    assert_eq!(format!("{table:#72}"), format!("{summary:#72}"));
    let summary = deferred.parameters().summary();
    assert_eq!(format!("{deferred:72}"), format!("{summary:72}"));
}

#[test]
fn the_full_form_lists_every_parameter() {
    let llama = llama();
    let rows = |text: String| text.lines().filter(|line| line.contains(" f32 ")).count();
    assert_eq!(rows(format!("{llama:#120}")), llama.len());
    // The embedding, one layer in which two of nine are alike, the norm and the head.
    assert_eq!(rows(format!("{llama:120}")), 1 + 8 + 2);
}

/// The totals of a module are the totals of the parameters under its path, counted by hand.
#[test]
fn totals_are_sums() {
    fn check(module: &ModuleSummary, table: &ParameterTable) {
        let of = |select: &dyn Fn(&&tinderbox_deferred::Parameter) -> bool| {
            let mut sums = (0, 0, 0);
            let inside = table.distinct().filter(|p| p.path.is_under(&module.path));
            for parameter in inside.filter(select) {
                let elements: u64 = parameter.shape.iter().product();
                let bytes = elements * parameter.dtype.size() as u64;
                sums = (sums.0 + 1, sums.1 + elements, sums.2 + bytes);
            }
            sums
        };
        let totals = &module.totals;
        let all = (totals.parameters, totals.elements, totals.bytes);
        assert_eq!(all, of(&|_| true), "{}", module.path);
        let (_, elements, bytes) = of(&|p| p.trainable);
        assert_eq!(
            (totals.trainable_elements, totals.trainable_bytes),
            (elements, bytes)
        );
        for entry in &module.entries {
            if let Entry::Module(inner) = entry {
                check(inner, table);
            }
        }
    }
    for (name, table) in models() {
        let summary = table.summary();
        check(&summary.model, &table);
        let totals = summary.model.totals;
        assert_eq!(totals.bytes, table.bytes(), "{name}");
        assert_eq!(totals.elements, table.elements(), "{name}");
        assert_eq!(totals.eager_bytes, table.eager_bytes(), "{name}");
        assert_eq!(
            totals.parameters + totals.clones,
            table.len() as u64,
            "{name}"
        );
    }
}

#[test]
fn the_json_form_is_the_tree() {
    let summary = serde_json::to_value(perceptron().summary()).unwrap();
    let elements = 784 * 512 + 512;
    assert_eq!(summary["type"], "Perceptron");
    assert_eq!(summary["totals"]["parameters"], 4);
    let first = &summary["entries"][0];
    assert_eq!(first["path"], "first");
    assert_eq!(first["type"], "Linear");
    assert_eq!(first["totals"]["elements"], elements);
    assert_eq!(first["totals"]["bytes"], 4 * elements);
    let weight = &first["entries"][0];
    assert_eq!(weight["path"], "first.weight");
    assert_eq!(weight["modules"], "Perceptron.Linear");
    assert_eq!(weight["shape"], json!([784, 512]));
    assert_eq!(weight["dtype"], "f32");
    assert_eq!(weight["kind"], "float");
    assert_eq!(weight["origin"], "lazy");
}

#[test]
fn layers_that_differ_are_not_joined() {
    let layers = |change: fn(usize) -> LinearConfig| {
        let table = table(move |device| {
            let linears = (0..4).map(|index| change(index).init(device));
            linears.collect::<Vec<_>>()
        });
        let text = format!("{table:100}");
        let joined = text.lines().filter_map(|line| line.split_once(", each"));
        joined
            .map(|(name, _)| name.trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(layers(|_| LinearConfig::new(2, 2)), ["0 .. 3"]);
    assert_eq!(layers(|index| LinearConfig::new(2, 2 + index)), [""; 0]);
    assert_eq!(
        layers(|index| LinearConfig::new(2, 2).with_bias(index > 0)),
        ["1 .. 3"]
    );
    assert_eq!(
        layers(|index| LinearConfig::new(2, 2 + index / 2)),
        ["0 .. 1", "2 .. 3"]
    );
}

#[test]
fn a_model_without_parameters_has_a_table_of_totals() {
    let none = table(|_| None::<Linear>);
    insta::assert_snapshot!(format!("{none:60}"));
}

#[test]
fn a_model_that_is_one_parameter() {
    let one =
        table(|device| Param::initialized(ParamId::new(), Tensor::<2>::zeros([2, 2], device)));
    let summary = one.summary();
    assert_eq!(summary.model.totals.elements, 4);
    assert_eq!(summary.model.entries.len(), 1);
    assert_eq!(format!("{summary:80}").lines().count(), 10);
}
