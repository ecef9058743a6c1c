//! Weights in Hugging Face's names and layouts for Llama.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tinderbox::Pretrained;
use tinderbox::checkpoint::{CheckpointSource, LoadOptions, Regex};
use tinderbox::deferred::ParameterTable;

use super::model::LlamaConfig;

/// The file `config.json` of a model.
#[derive(Deserialize, Debug)]
struct ConfigFile {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    #[serde(default = "default_base")]
    rope_theta: f64,
    rope_scaling: Option<serde_json::Value>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "default_activation")]
    hidden_act: String,
}

fn default_base() -> f64 {
    10_000.0
}

fn default_activation() -> String {
    "silu".into()
}

/// Reads the sizes of a model from its `config.json`, with caches of `context` places.
pub fn config(dir: &Path, context: usize) -> Result<LlamaConfig> {
    let path = dir.join("config.json");
    let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let file: ConfigFile =
        serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
    let other = [
        (file.rope_scaling.is_some(), "`rope_scaling`"),
        (file.attention_bias, "`attention_bias`"),
        (file.mlp_bias, "`mlp_bias`"),
        (file.hidden_act != "silu", "a `hidden_act` other than silu"),
    ];
    if let Some((_, what)) = other.into_iter().find(|(is_used, _)| *is_used) {
        bail!("{}: this example does not support {what}", path.display());
    }
    let (heads, longest) = (file.num_attention_heads, file.max_position_embeddings);
    let kv_heads = file.num_key_value_heads.unwrap_or(heads);
    ensure!(
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        "{}: {heads} heads can't be divided into {kv_heads} groups",
        path.display()
    );
    ensure!(
        context <= longest,
        "prompt and length are {context} tokens, and the model has at most {longest}: use a lower --length"
    );
    Ok(LlamaConfig {
        hidden: file.hidden_size,
        layers: file.num_hidden_layers,
        heads,
        kv_heads,
        head_size: file.head_dim.unwrap_or(file.hidden_size / heads),
        feed_forward: file.intermediate_size,
        vocabulary: file.vocab_size,
        context,
        norm_epsilon: file.rms_norm_eps,
        rotary_base: file.rope_theta,
        is_tied: file.tie_word_embeddings,
    })
}

/// The module of each name.
const NAMES: [(&str, &str); 12] = [
    (r"^model\.", ""),
    (r"^embed_tokens\.", "tokens."),
    (r"^lm_head\.", "head."),
    (r"\.self_attn\.", ".attention."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.o_proj\.", ".output."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".feed_forward_norm."),
    (r"\.mlp\.", ".feed_forward."),
    (r"\.(gate|up|down)_proj\.", ".$1."),
];

/// Returns the weights of a directory as a source of the model's parameters, cast to its dtype.
pub fn source(
    dir: &Path,
    config: &LlamaConfig,
    model: &ParameterTable,
) -> Result<CheckpointSource> {
    let weights = Pretrained::open(dir)?;
    let mut options = LoadOptions::default().cast();
    for (theirs, ours) in NAMES {
        options = options.rename(Regex::new(theirs)?, ours);
    }
    options = options.pytorch(model);
    // Some files have a table of the rotary encoding, or a second copy of the head.
    let is_extra = |name: &str| {
        name.ends_with("rotary_emb.inv_freq") || (config.is_tied && name == "lm_head.weight")
    };
    if weights.tensors().any(|tensor| is_extra(&tensor.name)) {
        options = options.allow_extra();
    }
    Ok(weights.source(options)?)
}
