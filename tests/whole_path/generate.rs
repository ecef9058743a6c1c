//! The loop that generates texts, and the example `generate`: weights in Hugging Face's form, compared with the definition of the
//! model, and generation in stages and streamed, compared with a loop in plain Burn bit for bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use tinderbox::deferred::random::Seed;
use tinderbox::error::{GenerateError, OutputError};
use tinderbox::generate::{CarriedDecoder, Decoder, EvaluateCarried, TextEnd};
use tinderbox::world::with_causes;
use tinderbox::{
    Deferred, Generate, Machine, MemoryBudget, Outputs, Pipeline, Sampler, Streamed, Trace,
    Traceable,
};
use tinderbox_models::decoder::decode::Plain;
use tinderbox_models::decoder::model::{Cache, Llama, LlamaConfig, Step};
use tinderbox_models::decoder::weights;

use crate::command_line::example;

const CONTEXT: usize = 12;
const SEED: u64 = 5;
const PROMPT: [i32; 5] = [3, 1, 4, 1, 5];

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
    let initializer = model.initializer(Seed::new(SEED));
    let plain = model.materialize(&device, &initializer).unwrap();
    let prompt = PROMPT;
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
        let plan = trace.plan(&Machine::local(stages).unwrap()).unwrap();
        let builder = Pipeline::builder(&model, &trace, &plan);
        let mut pipeline = builder.seed(SEED).start().unwrap();
        let mut decoder = CarriedDecoder::new(&mut pipeline, config.steps());
        let mut done = 0;
        for (step, expected) in expected.iter().enumerate() {
            let end = prompt.len() + step;
            let scores = decoder.scores(&tokens[..end], done).unwrap();
            assert!(
                scores.try_to_vec::<f32>().unwrap() == *expected,
                "step {step}, {stages} stages"
            );
            done = end;
        }
        let greedy = Generate::new(expected.len());
        check(&greedy, &mut pipeline, &config, continued);
        drawn(&mut pipeline, &config, &plain);
    }
    let budget = MemoryBudget::Values(64 << 10);
    let plan = trace.plan_streamed(budget).unwrap();
    let builder = Streamed::builder(&model, &trace, &plan).memory_limit(budget);
    let mut streamed = builder.seed(SEED).start().unwrap();
    check(
        &Generate::new(expected.len()),
        &mut streamed,
        &config,
        continued,
    );
    drawn(&mut streamed, &config, &plain);
}

/// The generated tokens are the expected ones, up to a stop token, and each was reported.
fn check(
    generate: &Generate,
    model: &mut impl EvaluateCarried<Step>,
    config: &LlamaConfig,
    expected: &[i32],
) {
    let run = |model: &mut _, generate: &Generate| {
        let mut seen = Vec::new();
        let found = generate.run(model, &PROMPT, config.steps(), |token| seen.push(token));
        let found = found.unwrap();
        assert_eq!(seen, found.tokens);
        found
    };
    let found = run(model, generate);
    assert_eq!((&*found.tokens, found.end), (expected, TextEnd::MaxTokens));
    let last = expected[expected.len() - 1];
    let first = expected.iter().position(|token| *token == last).unwrap();
    let found = run(model, &generate.clone().stop_at([last, -1]));
    assert_eq!(found.tokens, expected[..first]);
    assert_eq!(found.end, TextEnd::StopToken(last));
}

/// Drawn tokens depend on the scores and the seed.
fn drawn(model: &mut impl EvaluateCarried<Step>, config: &LlamaConfig, plain: &Llama) {
    let of_seed = |seed| {
        let sampler = Sampler::new(seed).temperature(1.5).top_k(20).top_p(0.9);
        Generate::new(CONTEXT - PROMPT.len()).sampler(sampler)
    };
    let found = of_seed(7).run(model, &PROMPT, config.steps(), |_| ());
    let found = found.unwrap().tokens;
    let of_plain = |seed| {
        let mut plain = Plain::new(plain, config, &Device::flex());
        let generated = of_seed(seed).run_with(&mut plain, &PROMPT, |_| ());
        generated.unwrap().tokens
    };
    assert_eq!(found, of_plain(7));
    assert_ne!(found, of_plain(8));
}

/// A model without caches reads the whole text for each token; what the loop can't use is refused.
#[test]
fn a_closure_is_a_decoder() {
    let scores = |text: &[i32], _: usize| -> Result<TensorData, String> {
        // The next number, and nothing after 9.
        let last = *text.last().ok_or("no text")?;
        let scores = (0..12).map(|token| match token == last + 1 {
            true => 1.0_f32,
            false => 0.0,
        });
        match last {
            9 => Err("the end".to_owned()),
            _ => Ok(TensorData::new(scores.collect::<Vec<_>>(), [1, 12])),
        }
    };
    let generated = Generate::new(4).run_with(&mut { scores }, &[2, 3], |_| ());
    assert_eq!(generated.unwrap().tokens, [4, 5, 6, 7]);
    let nothing = Generate::new(0).run_with(&mut { scores }, &[2, 3], |_| ());
    assert!(nothing.unwrap().tokens.is_empty());
    let failed = |generate: Generate, prompt: &[i32]| {
        let error = generate.run_with(&mut { scores }, prompt, |_| ());
        with_causes(&error.unwrap_err())
    };
    let wrong = Sampler::new(0).top_p(0.0);
    for (generate, prompt, expected) in [
        (Generate::new(9), &[8][..], "the decoder failed: the end"),
        (
            Generate::new(1),
            &[],
            "the prompt is empty: the first token needs at least one before it",
        ),
        (
            Generate::new(1).sampler(wrong),
            &[8],
            "`top_p` of the sampler is 0: expected a number above 0 and at most 1",
        ),
    ] {
        assert_eq!(failed(generate, prompt), expected);
    }
}

/// A model whose outputs are not the scores of one text is refused by name.
#[test]
fn other_outputs_are_refused() {
    let config = small(false);
    let (model, trace) = traced(&config);
    let plan = trace.plan(&Machine::local(1).unwrap()).unwrap();
    let builder = Pipeline::builder(&model, &trace, &plan);
    let mut pipeline = builder.seed(SEED).start().unwrap();
    let logits = Generate::new(1).output("logits");
    let error = logits.run(&mut pipeline, &PROMPT, config.steps(), |_| ());
    let error = error.unwrap_err();
    assert!(
        matches!(&error, GenerateError::Output(OutputError::Unknown { name, .. }) if name == "logits"),
        "{error}"
    );
    let two = |tokens: &[i32], place: usize| {
        let mut step = Step::new(
            tokens,
            place,
            config.caches(2, &Device::flex()),
            &Device::flex(),
        );
        step.tokens = step.tokens.repeat_dim(0, 2);
        step
    };
    let error = Generate::new(1).run(&mut pipeline, &PROMPT, two, |_| ());
    let error = error.unwrap_err();
    assert!(
        matches!(&error, GenerateError::Shape { shape } if shape[0] == 2),
        "{error}"
    );
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
        let plan = trace.plan(&Machine::local(3).unwrap()).unwrap();
        let builder = Pipeline::builder(&model, &trace, &plan);
        let mut pipeline = builder.source(source).start().unwrap();
        let mut decoder = CarriedDecoder::new(&mut pipeline, config.steps());
        let tokens = [3, 1, 4, 1, 5, 9, 2, 6, 22];
        let definition = Definition {
            saved: &saved,
            config: &config,
        };
        let mut worst = 0.0_f64;
        for (start, end) in [(0, 4), (4, 5), (5, 8), (8, 9)] {
            let scores = decoder.scores(&tokens[..end], start).unwrap();
            let scores = scores.try_to_vec::<f32>().unwrap();
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
