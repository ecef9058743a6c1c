//! Every structure of tensors trains and evaluates as in plain Burn, with uneven micro-batches too.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Bool, Device, Int, Tensor};
use tinderbox_pipeline::{Along, Batch, Machine, Outputs, Pipeline, Traceable, Whole, split_batch};

use tinderbox_deferred::Deferred;
use tinderbox_pipeline_tests::{
    Case, SAMPLES, Split, floats, full_text, pipelined, plain, settings, squared, tokens,
};

const WIDTH: usize = 6;
const STEPS: u64 = 3;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    tokens: Embedding,
}

fn init(device: &Device) -> Net {
    Net {
        layers: (0..4)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        tokens: EmbeddingConfig::new(5, WIDTH).init(device),
    }
}

impl Net {
    fn run(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers
            .iter()
            .fold(x, |x, layer| gelu(layer.forward(x)))
    }
}

fn x(number: u64, device: &Device) -> Tensor<2> {
    floats([SAMPLES, WIDTH], number, device)
}

fn check<B: Batch + Split>(
    forward: fn(&Net, B) -> (Tensor<1>, Option<Tensor<2>>),
    batch: fn(u64, &Device) -> B,
) {
    let case = Case {
        init,
        forward,
        batch,
    };
    for count in [1, 3] {
        let expected = plain(case, AdamWConfig::new().init(), count, STEPS);
        for setting in settings([1, 3], count) {
            let found = pipelined(case, AdamWConfig::new().build(), setting, STEPS);
            found.assert_same(&expected, &format!("{setting:?}"));
        }
    }
}

fn of(x: Tensor<2>) -> (Tensor<1>, Option<Tensor<2>>) {
    (x.clone().powf_scalar(2.0).mean(), Some(x))
}

#[test]
fn a_tensor() {
    check(|net, x| of(net.run(x)), x);
}

/// An absent part and an empty one have the same tensors, but are different batches.
#[test]
fn parts_without_tensors_choose_the_program() {
    check(
        |net, (x, part): (Tensor<2>, Option<Vec<Tensor<2>>>)| {
            let found = net.run(x);
            let scale = if part.is_some() { 3.0 } else { 1.0 };
            (found.clone().powf_scalar(2.0).mean() * scale, Some(found))
        },
        |n, device| (x(n, device), n.is_multiple_of(2).then(Vec::new)),
    );
}

#[test]
fn a_tuple_with_a_nested_one() {
    check(
        |net, (x, (y, z))| {
            let found = net.run(x + z);
            (squared(found.clone(), y), Some(found))
        },
        |n, device| (x(n, device), (x(n + 50, device), x(n + 90, device))),
    );
}

#[test]
fn an_option_with_a_value() {
    check(
        |net, (x, bias): (Tensor<2>, Option<Tensor<2>>)| of(net.run(x) + bias.unwrap()),
        |n, device| (x(n, device), Some(x(n + 50, device))),
    );
}

#[test]
fn an_option_without_a_value() {
    check(
        |net, (bias, x): (Option<Tensor<2>>, Tensor<2>)| {
            assert!(bias.is_none());
            of(net.run(x))
        },
        |n, device| (None, x(n, device)),
    );
}

#[test]
fn a_list() {
    check(
        |net, list: Vec<Tensor<2>>| {
            let parts = list.into_iter().map(|x| net.run(x));
            of(parts.reduce(|a, b| a * b).unwrap())
        },
        |n, device| (0..3).map(|k| x(n + 50 * k, device)).collect(),
    );
}

#[test]
fn an_array_of_tuples() {
    check(
        |net, [(a, b), (c, d)]: [(Tensor<2>, Tensor<2>); 2]| {
            of(net.run(a - d.clone()) * net.run(b * c) + d)
        },
        |n, device| {
            [
                (x(n, device), x(n + 50, device)),
                (x(n + 90, device), x(n, device)),
            ]
        },
    );
}

#[derive(Clone, Batch)]
#[batch(crate = tinderbox_pipeline)]
struct Sentences {
    ids: Tensor<2, Int>,
    mask: Option<Tensor<2, Bool>>,
    #[batch(whole)]
    bias: Tensor<2>,
}

impl Split for Sentences {
    fn samples(&self) -> Option<usize> {
        self.ids.samples()
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        Self {
            ids: self.ids.rows(start, count),
            mask: self.mask.rows(start, count),
            bias: self.bias.clone(),
        }
    }
}

#[test]
fn a_struct_of_ids_a_mask_and_a_part_that_belongs_to_all() {
    check(
        |net, batch: Sentences| {
            let embedded: Tensor<3> = net.tokens.forward(batch.ids);
            let mask = batch
                .mask
                .unwrap()
                .unsqueeze_dim::<3>(2)
                .expand(embedded.dims());
            let pooled: Tensor<2> = embedded.mask_fill(mask, 0.0).sum_dim(1).squeeze_dim(1);
            of(net.run(pooled + batch.bias))
        },
        |n, device| Sentences {
            ids: tokens([SAMPLES, 4], 5, n, device),
            mask: Some(floats([SAMPLES, 4], n + 50, device).greater_elem(0.0)),
            bias: floats([1, WIDTH], n + 90, device),
        },
    );
}

#[derive(Clone, Debug)]
enum Scale {
    Once,
    By(f32),
}

#[derive(Clone, Batch)]
#[batch(crate = tinderbox_pipeline)]
struct Series<T> {
    #[batch(along = 1)]
    steps: T,
    target: Tensor<2>,
    #[batch(constant)]
    scale: Scale,
    #[batch(skip)]
    names: Vec<String>,
}

fn series(number: u64, device: &Device) -> Series<Tensor<3>> {
    Series {
        steps: floats([3, SAMPLES, WIDTH], number, device),
        target: x(number + 1000, device),
        scale: match number % 2 {
            0 => Scale::Once,
            _ => Scale::By(0.5 * number as f32),
        },
        names: (0..SAMPLES).map(|sample| sample.to_string()).collect(),
    }
}

impl Split for Series<Tensor<3>> {
    fn samples(&self) -> Option<usize> {
        self.target.samples()
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        Self {
            steps: self.steps.clone().narrow(1, start, count),
            target: self.target.rows(start, count),
            ..self.clone()
        }
    }
}

/// The forward depends on a constant, and not on a skipped field.
#[test]
fn a_struct_with_fields_that_are_no_tensors() {
    check(
        |net: &Net, batch: Series<Tensor<3>>| {
            let last = batch.steps.narrow(0, 2, 1).flatten::<2>(0, 1);
            let state = match batch.scale {
                Scale::Once => net.run(last),
                Scale::By(factor) => net.run(last) * factor,
            };
            (squared(state.clone(), batch.target), Some(state))
        },
        series,
    );
}

#[derive(Clone, Batch)]
#[batch(crate = tinderbox_pipeline)]
struct Both<A, S, const N: usize>(A, #[batch(whole)] [Tensor<2>; N], #[batch(skip)] Option<S>)
where
    A: Clone;

impl<const N: usize> Split for Both<Tensor<2>, String, N> {
    fn samples(&self) -> Option<usize> {
        self.0.samples()
    }

    fn rows(&self, start: usize, count: usize) -> Self {
        Self(self.0.rows(start, count), self.1.clone(), None)
    }
}

#[test]
fn a_struct_without_names_that_is_generic() {
    check(
        |net: &Net, Both(x, [bias, factor], _): Both<Tensor<2>, String, 2>| {
            of((net.run(x) + bias) * factor)
        },
        |n, device| {
            let whole = |n| floats([1, WIDTH], n, device);
            Both(
                x(n, device),
                [whole(n + 70), whole(n + 90)],
                Some(n.to_string()),
            )
        },
    );
}

#[test]
fn a_forward_that_depends_on_a_skipped_field_is_refused() {
    let model = Deferred::new(init).unwrap();
    let refused = |forward: fn(&Net, &Series<Tensor<3>>) -> Tensor<2>| {
        let forward = move |net: &Net, batch: Series<Tensor<3>>| {
            let x = batch.steps.clone().narrow(0, 2, 1).flatten::<2>(0, 1);
            Outputs::loss(squared(net.run(x) * forward(net, &batch), batch.target))
        };
        let error = model.trace(&series(1, &Device::flex()), 1, forward);
        full_text(&error.unwrap_err())
    };
    insta::assert_snapshot!(
        refused(|_, batch| batch.target.clone() * batch.names.len() as f32),
        @r#"
    the forward depends on a field of the batch with `#[batch(skip)]`: recorded with the field's default value, it differs; mark a field that the forward reads as `#[batch(constant)]`
    two recordings of the same forward differ: in the forward, operation 30 was NumericFloat.MulScalar(Float(8.0)) -> f32[8, 6] and is now NumericFloat.MulScalar(Float(0.0)) -> f32[8, 6]; a forward must depend only on the model and the batch, so draw random values with `Tensor::random`, and pass values that change with the step in the batch
    "#
    );
    // Without names it panics.
    let panics = refused(|_, batch| {
        let first: f32 = batch.names[1].parse().unwrap();
        batch.target.clone() * first
    });
    let first_line = panics.lines().next().unwrap();
    insta::assert_snapshot!(first_line, @"the forward depends on a field of the batch with `#[batch(skip)]`: recorded with the field's default value, it differs; mark a field that the forward reads as `#[batch(constant)]`");
}

/// The example has the default of the field.
#[test]
fn a_skipped_field_is_compared_in_the_first_batch_too() {
    let model = Deferred::new(init).unwrap();
    let forward = |net: &Net, batch: Series<Tensor<3>>| {
        let x = batch.steps.narrow(0, 2, 1).flatten::<2>(0, 1);
        Outputs::loss(squared(
            net.run(x) * (1.0 + batch.names.len() as f32),
            batch.target,
        ))
    };
    let example = Series {
        names: Vec::new(),
        ..series(1, &Device::flex())
    };
    let trace = model.trace(&example, 1, forward).unwrap();
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan).optimizer(AdamWConfig::new());
    let mut pipeline = builder.start().unwrap();
    let error = pipeline.step(1e-3, series(1, &Device::flex())).unwrap_err();
    let text = full_text(&error);
    assert!(text.contains("#[batch(skip)]"), "{text}");
}

#[test]
fn what_belongs_to_all_samples_does_so_in_every_part() {
    let steps = floats([3, SAMPLES, WIDTH], 1, &Device::flex());
    let batch = (x(0, &Device::flex()), Whole(Along::<1, _>(steps)));
    for (part, _) in split_batch(&batch, 2).unwrap() {
        assert_eq!(part.1.0.0.dims(), [3, SAMPLES, WIDTH]);
    }
}

/// Sequences whose first dimension is time: the samples are the second.
#[test]
fn samples_along_another_dimension() {
    type Sequences = (Along<1, Tensor<3>>, Tensor<2>);
    let sequences = |number: u64, device: &Device| -> Sequences {
        let steps = floats([3, SAMPLES, WIDTH], number, device);
        (Along(steps), x(number + 1000, device))
    };
    check(
        |net: &Net, (steps, y): Sequences| {
            let [length, samples, _] = steps.0.dims();
            let mut state = Tensor::<2>::zeros([samples, WIDTH], &steps.0.device());
            for step in 0..length {
                let input = steps.0.clone().narrow(0, step, 1).flatten::<2>(0, 1);
                state = net.run(state + input);
            }
            (squared(state.clone(), y), Some(state))
        },
        sequences,
    );
    let device = Device::flex();
    let mismatch = (Along::<1, _>(x(0, &device)), x(0, &device));
    insta::assert_snapshot!(split_batch(&mismatch, 2).unwrap_err(), @"tensor `0` of the batch has 6 samples and `1` has 8: wrap a tensor that belongs to all samples in `Whole`, and one whose samples are not the first dimension in `Along`");
}
