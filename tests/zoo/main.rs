//! Models as Burn's users write them: five steps of each, and an evaluation, equal plain Burn's bit for bit.

mod copies;
mod schedules;
mod target;

use tinderbox_models::zoo::{self, check::Check, gan};

/// A test for each model.
macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let mut check = Check::default();
                zoo::visit(stringify!($name), &mut check);
                assert_eq!(check.differences, Vec::<String>::new());
                assert_eq!(check.settings, 16);
            }
        )*

        #[test]
        fn every_model_has_a_test() {
            assert_eq!(zoo::NAMES, [$(stringify!($name)),*]);
        }
    };
}

#[test]
fn gan() {
    assert_eq!(gan::differences(), Vec::<String>::new());
}

#[test]
fn target_network() {
    assert_eq!(target::differences(), Vec::<String>::new());
    assert_eq!(target::begin_equal_and_differ(), [true, false]);
}

tests! {
    mnist
    resnet_18
    mobilenet
    unet
    vision_transformer
    mlp_mixer
    clip
    text_classification
    text_generation
    bert
    llama
    encoder_decoder
    lstm
    gru
    experts
    variants
    lora
    constants
}
