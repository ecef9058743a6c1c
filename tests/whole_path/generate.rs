//! The example `generate`: weights in Hugging Face's form, compared with the definition of the model, generation in
//! stages, compared with plain Burn bit for bit, and the choice of tokens.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use tinderbox::random::Seed;
use tinderbox::{Deferred, Machine, Outputs, Pipeline, Plan, Trace, Traceable};

use crate::command_line::example;
use crate::llama::decode::{Decoder, Plain, Staged, generate};
use crate::llama::model::{Cache, Llama, LlamaConfig, Step};
use crate::llama::sample::{Sampler, most_likely, probabilities};
use crate::llama::weights;

const CONTEXT: usize = 12;
const SEED: u64 = 5;

pub fn small(is_tied: bool) -> LlamaConfig {
    LlamaConfig {
        hidden: 16,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_size: 6,
        feed_forward: 20,
        vocabulary: 23,
        context: CONTEXT,
        norm_epsilon: 1e-3,
        rotary_base: 100.0,
        is_tied,
    }
}

pub fn traced(config: &LlamaConfig) -> (Deferred<Llama>, Trace<Step>) {
    let of_model = config.clone();
    let model = Deferred::new(move |device: &Device| of_model.init(device)).unwrap();
    let device = Device::flex();
    let example = Step::new(&[0], 0, config.caches(1, &device), &device);
    let forward = |llama: &Llama, step: Step| {
        let (scores, caches) = llama.forward(step);
        Outputs::none().with("scores", scores).carry(caches)
    };
    let trace = model.trace_forward(&example, forward).unwrap();
    (model, trace)
}

fn scores_of(scores: Tensor<2>) -> Vec<f32> {
    scores.into_data().try_to_vec().unwrap()
}

/// The prompt and all generated tokens, and the scores of each step, are the same as in a loop in plain Burn.
#[test]
fn stages_generate_what_plain_burn_does() {
    let config = small(false);
    let (model, trace) = traced(&config);
    let device = Device::flex();
    let replay = model.replay(Seed::new(SEED));
    let plain = model.materialize(&device, &replay).unwrap();
    let prompt = [3, 1, 4, 1, 5];
    let mut caches: Vec<Cache> = config.caches(1, &device);
    let (mut expected, mut tokens) = (Vec::new(), prompt.to_vec());
    let mut done = 0;
    while tokens.len() <= CONTEXT {
        let step = Step::new(&tokens[done..], done, caches, &device);
        done = tokens.len();
        let (scores, new) = plain.forward(step);
        caches = new;
        let scores = scores_of(scores);
        let mut best = 0;
        for (token, score) in scores.iter().enumerate() {
            if *score > scores[best] {
                best = token;
            }
        }
        tokens.push(best as i32);
        expected.push(scores);
    }
    let continued = &tokens[prompt.len()..];
    assert!(continued.iter().any(|token| *token != continued[0]));
    for stages in 1..=4 {
        let plan = Plan::auto(&trace, &Machine::local(stages).unwrap()).unwrap();
        let builder = Pipeline::new(&model, &trace, &plan).micro_batches(1);
        let mut pipeline = builder.seed(SEED).start().unwrap();
        let mut staged = Staged::new(&mut pipeline, &config);
        let mut place = 0;
        for (step, expected) in expected.iter().enumerate() {
            let end = prompt.len() + step;
            let scores = staged.scores(&tokens[place..end], place).unwrap();
            assert!(
                scores_of(scores) == *expected,
                "step {step}, {stages} stages"
            );
            place = end;
        }
        let mut seen = Vec::new();
        let mut staged = Staged::new(&mut pipeline, &config);
        let greedy = Sampler::new(0.0, 1.0, 0);
        let found = generate(&mut staged, &prompt, expected.len(), greedy, |t| {
            seen.push(t)
        });
        assert_eq!(found.unwrap().tokens, continued);
        assert_eq!(seen, continued);

        // Drawn tokens depend on the scores and the seed.
        let drawn = |decoder: &mut dyn Decoder, seed| {
            let sampler = Sampler::new(1.5, 0.9, seed);
            let length = CONTEXT - prompt.len();
            generate(decoder, &prompt, length, sampler, |_| ())
                .unwrap()
                .tokens
        };
        let found = drawn(&mut Staged::new(&mut pipeline, &config), 7);
        assert_eq!(found, drawn(&mut Plain::new(&plain, &config, &device), 7));
        assert_ne!(found, drawn(&mut Plain::new(&plain, &config, &device), 8));
    }
}

/// A matrix in PyTorch's layout, `[out, in]`, by rows.
type Matrix = Vec<Vec<f64>>;
type Saved = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Weights by the names in a file of Hugging Face's `LlamaForCausalLM`.
fn saved(config: &LlamaConfig) -> Saved {
    let (hidden, inner) = (config.hidden, config.feed_forward);
    let (query, key) = (
        config.heads * config.head_size,
        config.kv_heads * config.head_size,
    );
    let mut shapes = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![config.vocabulary, hidden],
        ),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !config.is_tied {
        shapes.push(("lm_head.weight".to_owned(), vec![config.vocabulary, hidden]));
    }
    for layer in 0..config.layers {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![query, hidden]),
            ("self_attn.k_proj", vec![key, hidden]),
            ("self_attn.v_proj", vec![key, hidden]),
            ("self_attn.o_proj", vec![hidden, query]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let values = shapes.into_iter().map(|(name, shape)| {
        let count = shape.iter().product();
        (name, (shape, (0..count).map(|_| next()).collect()))
    });
    values.collect()
}

fn write(dir: &Path, saved: &Saved, config: &LlamaConfig, changed: &[(&str, serde_json::Value)]) {
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let data: Vec<(&String, &Vec<usize>, Vec<u8>)> = saved
        .iter()
        .map(|(name, (shape, values))| (name, shape, bytes(values)))
        .collect();
    let views = data.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, (*shape).clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
    let mut file = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.feed_forward,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": CONTEXT + 4,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
        "rope_scaling": null,
        "tie_word_embeddings": config.is_tied,
    });
    for (name, value) in changed {
        file[*name] = value.clone();
    }
    fs::write(dir.join("config.json"), file.to_string()).unwrap();
}

/// The scores after a text as `LlamaForCausalLM` defines them, in f64, without caches.
struct Definition<'a> {
    saved: &'a Saved,
    config: &'a LlamaConfig,
}

impl Definition<'_> {
    fn matrix(&self, name: &str) -> Matrix {
        let (shape, values) = &self.saved[&format!("{name}.weight")];
        let rows = values.chunks(*shape.last().unwrap());
        rows.map(|row| row.iter().map(|v| f64::from(*v)).collect())
            .collect()
    }

    fn apply(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.matrix(name);
        let dot = |row: &Vec<f64>| row.iter().zip(x).map(|(a, b)| a * b).sum();
        rows.iter().map(dot).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + self.config.norm_epsilon).sqrt();
        let weight = &self.matrix(name)[0];
        x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
    }

    /// `x * cos + rotate_half(x) * sin` of each head.
    fn rotated(&self, x: &[f64], place: usize) -> Vec<Vec<f64>> {
        let size = self.config.head_size;
        let heads = x.chunks(size).map(|head| {
            let element = |i: usize| {
                let pair = i % (size / 2);
                let exponent = 2.0 * pair as f64 / size as f64;
                let angle = place as f64 / self.config.rotary_base.powf(exponent);
                let half = match i < size / 2 {
                    true => -head[i + size / 2],
                    false => head[i - size / 2],
                };
                head[i] * angle.cos() + half * angle.sin()
            };
            (0..size).map(element).collect()
        });
        heads.collect()
    }

    fn scores(&self, tokens: &[i32]) -> Vec<f64> {
        let embedding = self.matrix("model.embed_tokens");
        let rows = tokens
            .iter()
            .map(|token| embedding[*token as usize].clone());
        let mut xs: Vec<Vec<f64>> = rows.collect();
        for layer in 0..self.config.layers {
            let name = |of: &str| format!("model.layers.{layer}.{of}");
            let normed: Vec<Vec<f64>> = xs
                .iter()
                .map(|x| self.norm(&name("input_layernorm"), x))
                .collect();
            let heads = |of: &str, place: usize| {
                self.rotated(&self.apply(&name(of), &normed[place]), place)
            };
            let keys: Vec<_> = (0..xs.len())
                .map(|at| heads("self_attn.k_proj", at))
                .collect();
            let values: Vec<Vec<f64>> = normed
                .iter()
                .map(|x| self.apply(&name("self_attn.v_proj"), x))
                .collect();
            for at in 0..xs.len() {
                let queries = heads("self_attn.q_proj", at);
                let mixed = queries
                    .iter()
                    .enumerate()
                    .flat_map(|(head, query)| self.attend(query, head, &keys[..=at], &values));
                let mixed: Vec<f64> = mixed.collect();
                let out = self.apply(&name("self_attn.o_proj"), &mixed);
                add(&mut xs[at], &out);
                let normed = self.norm(&name("post_attention_layernorm"), &xs[at]);
                let gate = self.apply(&name("mlp.gate_proj"), &normed);
                let up = self.apply(&name("mlp.up_proj"), &normed);
                let silu = |v: &f64| v / (1.0 + (-v).exp());
                let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| silu(g) * u).collect();
                let out = self.apply(&name("mlp.down_proj"), &inner);
                add(&mut xs[at], &out);
            }
        }
        let last = self.norm("model.norm", xs.last().unwrap());
        match self.config.is_tied {
            true => self.apply("model.embed_tokens", &last),
            false => self.apply("lm_head", &last),
        }
    }

    fn attend(
        &self,
        query: &[f64],
        head: usize,
        keys: &[Vec<Vec<f64>>],
        values: &[Vec<f64>],
    ) -> Vec<f64> {
        let (size, group) = (
            self.config.head_size,
            self.config.heads / self.config.kv_heads,
        );
        let of = head / group;
        let score = |key: &Vec<Vec<f64>>| -> f64 {
            let dot: f64 = query.iter().zip(&key[of]).map(|(q, k)| q * k).sum();
            (dot / (size as f64).sqrt()).exp()
        };
        let weights: Vec<f64> = keys.iter().map(score).collect();
        let total: f64 = weights.iter().sum();
        let element = |i: usize| {
            let parts = weights
                .iter()
                .zip(values)
                .map(|(w, value)| w * value[of * size + i]);
            parts.sum::<f64>() / total
        };
        (0..size).map(element).collect()
    }
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Names and layouts of the file, the rotary encoding, the groups of heads and the caches are the same as in the definition.
#[test]
fn weights_of_hugging_face_give_the_scores_of_their_definition() {
    for is_tied in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = small(is_tied);
        let mut saved = saved(&config);
        write(dir.path(), &saved, &config, &[]);
        assert_eq!(weights::config(dir.path(), CONTEXT).unwrap(), config);
        let (model, trace) = traced(&config);
        let source = weights::source(dir.path(), &config, model.parameters()).unwrap();
        let plan = Plan::auto(&trace, &Machine::local(3).unwrap()).unwrap();
        let builder = Pipeline::new(&model, &trace, &plan).micro_batches(1);
        let mut pipeline = builder.source(source).start().unwrap();
        let mut staged = Staged::new(&mut pipeline, &config);
        let tokens = [3, 1, 4, 1, 5, 9, 2, 6, 22];
        let definition = Definition {
            saved: &saved,
            config: &config,
        };
        let mut worst = 0.0_f64;
        for (start, end) in [(0, 4), (4, 5), (5, 8), (8, 9)] {
            let scores = scores_of(staged.scores(&tokens[start..end], start).unwrap());
            let expected = definition.scores(&tokens[..end]);
            for (found, expected) in scores.iter().zip(&expected) {
                worst = worst.max((f64::from(*found) - expected).abs());
            }
        }
        // Scores are between 10 and 100; f32 has seven digits.
        assert!(worst < 1e-3, "{worst}");

        // A load is exact, but for a table that some files have.
        let inverse = "model.layers.0.self_attn.rotary_emb.inv_freq";
        saved.insert(inverse.into(), (vec![3], vec![1.0; 3]));
        write(dir.path(), &saved, &config, &[]);
        let source = weights::source(dir.path(), &config, model.parameters()).unwrap();
        let plain: Llama = model.materialize(&Device::flex(), &source).unwrap();
        assert_eq!(
            plain.num_params(),
            saved.values().map(|v| v.1.len()).sum::<usize>() - 3
        );
        saved.remove(inverse);
        saved.remove("model.layers.2.mlp.up_proj.weight");
        write(dir.path(), &saved, &config, &[]);
        let source = weights::source(dir.path(), &config, model.parameters()).unwrap();
        let error = model.materialize(&Device::flex(), &source).unwrap_err();
        let error = format!("{:#}", anyhow::Error::from(error));
        assert!(error.contains("layers.2.feed_forward.up.weight"), "{error}");
    }
}

#[test]
fn what_the_example_does_not_support_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(false);
    let refused = |name: &str, value: serde_json::Value| {
        write(dir.path(), &saved(&config), &config, &[(name, value)]);
        let error = weights::config(dir.path(), CONTEXT).unwrap_err();
        let text = format!("{error:#}");
        text.replace(&*dir.path().to_string_lossy(), "DIR")
    };
    for (name, value, expected) in [
        (
            "rope_scaling",
            serde_json::json!({"type": "linear"}),
            "DIR/config.json: this example does not support `rope_scaling`",
        ),
        (
            "num_key_value_heads",
            3.into(),
            "DIR/config.json: 4 heads can't be divided into 3 groups",
        ),
        (
            "max_position_embeddings",
            8.into(),
            "prompt and length are 12 tokens, and the model has at most 8: use a lower --length",
        ),
        (
            "hidden_act",
            "gelu".into(),
            "DIR/config.json: this example does not support a `hidden_act` other than silu",
        ),
    ] {
        assert_eq!(refused(name, value), expected);
    }
}

const SCORES: [f32; 6] = [1.0, -0.5, 2.0, 0.3, 1.9, -3.0];

/// The definition of a softmax, in f64.
fn defined(temperature: f64) -> Vec<f64> {
    let weights = SCORES.map(|score| (f64::from(score) / temperature).exp());
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// The smallest set of tokens with a probability of at least `p`, of those the most likely, found among all sets.
fn smallest(probabilities: &[f64], p: f64) -> Vec<usize> {
    let of = |set: u32| (0..SCORES.len()).filter(move |token| set & (1 << token) != 0);
    let sum = |set: u32| of(set).map(|token| probabilities[token]).sum::<f64>();
    let sets = (1..1_u32 << SCORES.len()).filter(|set| sum(*set) >= p);
    let best = sets.min_by(|a, b| {
        let sizes = a.count_ones().cmp(&b.count_ones());
        sizes.then(sum(*b).total_cmp(&sum(*a)))
    });
    of(best.unwrap_or((1 << SCORES.len()) - 1)).collect()
}

#[test]
fn the_fewest_tokens_that_reach_a_probability_are_kept() {
    for temperature in [0.3, 1.0, 2.5] {
        let expected = defined(temperature);
        let found = probabilities(&SCORES, temperature as f32);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6);
        }
        for percent in (1..=100).step_by(3) {
            let p = f64::from(percent) / 100.0;
            let mut kept = most_likely(&found, p as f32);
            kept.sort_unstable();
            assert_eq!(
                kept,
                smallest(&expected, p),
                "{p} at temperature {temperature}"
            );
        }
    }
}

#[test]
fn tokens_are_drawn_with_their_probabilities() {
    const DRAWS: usize = 40_000;
    for (temperature, top_p) in [(1.0, 1.0), (0.6, 0.9), (2.0, 0.7), (1.0, 0.01)] {
        let whole = defined(f64::from(temperature));
        let kept = smallest(&whole, f64::from(top_p));
        let total: f64 = kept.iter().map(|token| whole[*token]).sum();
        let mut sampler = Sampler::new(temperature, top_p, 3);
        let mut counts = [0; SCORES.len()];
        for _ in 0..DRAWS {
            counts[sampler.choose(&SCORES)] += 1;
        }
        for (token, count) in counts.into_iter().enumerate() {
            let p = match kept.contains(&token) {
                true => whole[token] / total,
                false => 0.0,
            };
            let deviation = (p * (1.0 - p) * DRAWS as f64).sqrt();
            let apart = (f64::from(count) - p * DRAWS as f64).abs();
            assert!(
                apart <= 4.5 * deviation,
                "token {token} of {temperature}, {top_p}: {count}"
            );
        }
    }
    assert_eq!(Sampler::new(0.0, 1.0, 0).choose(&SCORES), 2);
    assert_eq!(
        Sampler::new(0.0, 1.0, 0).choose(&[1.0, 3.0, 3.0]),
        1,
        "the first of equals"
    );
}

#[test]
fn the_command_generates_and_compares() {
    let run = |arguments: &[&str]| {
        let output = example("generate", arguments);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, printed, errors) = run(&["--length", "12", "--stages", "3", "--compare"]);
    assert_eq!(code, Some(0), "{errors}");
    assert!(printed.contains("all 12 tokens are equal"), "{printed}");
    let dir = tempfile::tempdir().unwrap();
    let config = small(false);
    write(dir.path(), &saved(&config), &config, &[]);
    let of_weights = [
        "--weights",
        &*dir.path().to_string_lossy(),
        "--tokens",
        "3,1,4",
    ];
    let drawn = [
        "--length",
        "9",
        "--temperature",
        "0.8",
        "--top-p",
        "0.9",
        "--compare",
    ];
    let (code, printed, errors) = run(&[&of_weights[..], &drawn].concat());
    assert_eq!(code, Some(0), "{errors}");
    assert!(printed.contains("all 9 tokens are equal"), "{printed}");
    for (arguments, expected) in [
        (
            vec!["--top-p", "1.5"],
            "error: invalid value '1.5' for '--top-p <P>': it must be a number above 0 and at most 1 (see --help)\n",
        ),
        (
            vec!["--prompt", ""],
            "error: the prompt is empty: it must have at least one byte (see --help)\n",
        ),
        (
            vec!["--tokens", "256"],
            "error: token 256 is not below 256, the number of tokens of the model (see --help)\n",
        ),
    ] {
        let (code, _, errors) = run(&arguments);
        assert_eq!((code, &*errors), (Some(2), expected));
    }
    let (code, printed, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(printed.contains("--temperature <T>"), "{printed}");
}
