//! Models as Burn's users write them: five steps of each, and an evaluation, equal plain Burn's bit for bit.

mod check;
mod copies;
mod gan;
mod models;
mod schedules;
mod target;

#[path = "../../examples/partitioners/models/encoder_decoder.rs"]
mod encoder_decoder;

#[path = "../../examples/partitioners/models/experts.rs"]
mod experts;

#[path = "../../examples/minilm/model.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod minilm;

#[path = "../../pipeline/tests/support/split.rs"]
#[allow(dead_code, reason = "the pipeline's own tests use all of it")]
mod split;

/// A test for each model.
macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let mut check = check::Check::default();
                models::visit(stringify!($name), &mut check);
                assert_eq!(check.differences, Vec::<String>::new());
                assert_eq!(check.settings, 16);
            }
        )*

        #[test]
        fn every_model_has_a_test() {
            assert_eq!(models::NAMES, [$(stringify!($name)),*]);
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
