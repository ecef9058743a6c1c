//! Tests across crates: from a Burn model to a trained, saved and restored one, compared with plain Burn.

mod averages;
mod branches;
mod burnpack;
mod command_line;
mod damage;
mod dropout;
mod exports;
mod failure;
mod generate;
mod initialization;
mod layers;
mod lengths;
#[cfg(target_os = "linux")]
mod links;
mod many_parameters;
mod memory;
mod models;
mod parity;
mod partitioners;
mod plain;
mod pretrained;
mod pytorch;
mod random_models;
mod replays;
mod replicas;
mod resume;
mod settings;
mod streamed;
mod streamed_activations;
mod streamed_host;
mod streamed_rows;
mod streamed_training;
mod summary_example;
mod ties;
mod uncut;
mod verify;
mod working_dir;
mod world;

#[path = "../../examples/train_lm/model.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod gpt;

#[path = "../../examples/generate"]
#[allow(dead_code, reason = "the example uses all of it")]
mod llama {
    pub mod decode;
    pub mod model;
    pub mod sample;
    pub mod weights;
}

#[path = "../../pipeline/tests/support/split.rs"]
#[allow(dead_code, reason = "the pipeline's own tests use all of it")]
mod split;

#[path = "../../examples/partitioners/models/mod.rs"]
mod zoo;
