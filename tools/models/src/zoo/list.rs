//! All models of the zoo by their names.

use super::entry::Visit;
use super::{images, other, patches, recurrent, texts};

macro_rules! zoo {
    ($($name:ident: $entry:expr,)*) => {
        /// The names of all models.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Visits the model of a name.
        pub fn visit(name: &str, visitor: &mut impl Visit) {
            match name {
                $(stringify!($name) => visitor.visit($entry),)*
                _ => panic!("no model has the name {name}"),
            }
        }
    };
}

zoo! {
    mnist: images::MNIST,
    resnet_18: images::RESNET_18,
    mobilenet: images::MOBILENET,
    unet: images::UNET,
    vision_transformer: patches::VISION_TRANSFORMER,
    mlp_mixer: patches::MLP_MIXER,
    clip: patches::CLIP,
    text_classification: texts::CLASSIFICATION,
    text_generation: texts::GENERATION,
    bert: texts::BERT,
    llama: texts::LLAMA,
    encoder_decoder: texts::ENCODER_DECODER,
    lstm: recurrent::LSTM,
    gru: recurrent::GRU,
    experts: other::EXPERTS,
    variants: other::VARIANTS,
    lora: other::LORA,
    constants: other::CONSTANTS,
}
