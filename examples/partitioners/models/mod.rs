//! Models of different architectures, as a Burn author would write them.

mod encoder_decoder;
mod experts;
mod resnet;
mod unet;

pub use encoder_decoder::{EncoderDecoder, EncoderDecoderConfig};
pub use experts::{Experts, ExpertsConfig};
pub use resnet::{ResNet, ResNetConfig};
pub use unet::{UNet, UNetConfig};
