//! A model of random values in Hugging Face's form.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::tensor::DType;
use serde_json::json;
use tinderbox::Deferred;
use tinderbox::checkpoint::tools::{ExportOptions, Exported, export_tensors};
use tinderbox::checkpoint::{Regex, SaveTensor};
use tinderbox::deferred::random::Seed;
use tinderbox_models::decoder::model::LlamaConfig;

use super::flags::Size;

/// The names in the files, by the names in the model: in the order in which they are replaced.
const NAMES: [(&str, &str); 11] = [
    (r"\.attention\.", ".self_attn."),
    (r"\.(query)\.", ".q_proj."),
    (r"\.(key)\.", ".k_proj."),
    (r"\.(value)\.", ".v_proj."),
    (r"\.(output)\.", ".o_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.feed_forward_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.(gate|up|down)\.", ".mlp.${1}_proj."),
    (r"^head\.", "lm_head."),
    (r"^tokens\.", "model.embed_tokens."),
    (r"^(layers|norm)\.", "model.$1."),
];

fn config(size: Size) -> LlamaConfig {
    let small = LlamaConfig {
        hidden: 512,
        layers: 6,
        heads: 8,
        kv_heads: 4,
        head_size: 64,
        feed_forward: 1408,
        vocabulary: 8192,
        context: 2048,
        norm_epsilon: 1e-5,
        rotary_base: 10_000.0,
        is_tied: false,
    };
    match size {
        Size::Small => small,
        Size::OneBillion => LlamaConfig {
            hidden: 2048,
            layers: 22,
            heads: 32,
            kv_heads: 4,
            feed_forward: 5632,
            vocabulary: 32_000,
            ..small
        },
    }
}

/// Writes the model in bf16. Memory: a few parameters.
pub fn make(dir: &Path, size: Size, seed: u64) -> Result<Exported> {
    let config = config(size);
    let of_model = config.clone();
    let model = Deferred::new(move |device| of_model.init(device))?;
    let table = model.parameters();
    let source = Arc::new(model.initializer(Seed::new(seed)));
    let tensors = SaveTensor::of_source(table, source, |_| Some(DType::BF16));
    let mut options = ExportOptions::default().pytorch(table);
    for (ours, theirs) in NAMES {
        options = options.rename(Regex::new(ours)?, theirs);
    }
    let exported = export_tensors(&tensors, dir, &options, &())?;
    let text = json!({
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.feed_forward,
        "max_position_embeddings": config.context,
        "model_type": "llama",
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
        "tie_word_embeddings": config.is_tied,
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocabulary,
    });
    let path = dir.join("config.json");
    std::fs::write(&path, format!("{text:#}\n"))
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(exported)
}
