//! Activations.

use burn::nn::activation::{
    Activation, ActivationConfig, Celu, CeluConfig, Elu, EluConfig, GLU, Gelu, HardShrink,
    HardShrinkConfig, HardSigmoid, HardSigmoidConfig, HardSwish, Hardtanh, HardtanhConfig,
    LeakyRelu, LeakyReluConfig, LogSigmoid, Mish, PRelu, PReluConfig, RRelu, RReluConfig, Relu,
    Relu6, Selu, Shrink, ShrinkConfig, SiLU, Sigmoid, SoftShrink, SoftShrinkConfig, Softplus,
    SoftplusConfig, Softsign, SwiGlu, SwiGluConfig, Tanh, Tanhshrink, Threshold, ThresholdConfig,
    ThresholdedRelu, ThresholdedReluConfig,
};

use super::{Family, family};
use crate::inputs::{between, floats};
use crate::row::{Outcome, Tracing, row};

pub fn rows() -> Family {
    let mut rows = elementwise();
    rows.extend(others());
    rows.extend(variants());
    rows
}

/// Activations without parameters, each with inputs on both sides of its bends.
fn elementwise() -> Family {
    macro_rules! elementwise {
        ($($case:literal: $module:ty = $init:expr),* $(,)?) => {
            family![$(row(
                $case,
                |_| $init,
                |device| between([-8.0, 8.0], [3, 16], 1, device),
                |activation: &$module, x| Outcome::of(activation.forward(x)),
            )),*]
        };
    }
    elementwise![
        "": Celu = CeluConfig::new().with_alpha(1.5).init(),
        "": Elu = EluConfig::new().with_alpha(0.7).init(),
        "": Gelu = Gelu::new(),
        "approximate": Gelu = Gelu::new_approximate(),
        "": HardShrink = HardShrinkConfig::new().init(),
        "": HardSigmoid = HardSigmoidConfig::new().init(),
        "": HardSwish = HardSwish::new(),
        "": Hardtanh = HardtanhConfig::new().with_max_val(2.0).init(),
        "": LeakyRelu = LeakyReluConfig::new().with_negative_slope(0.1).init(),
        "": LogSigmoid = LogSigmoid::new(),
        "": Mish = Mish::new(),
        "": Relu = Relu::new(),
        "": Relu6 = Relu6::new(),
        "": Selu = Selu::new(),
        "": Shrink = ShrinkConfig::new().with_bias(0.3).init(),
        "": Sigmoid = Sigmoid::new(),
        "": SiLU = SiLU::new(),
        "": SoftShrink = SoftShrinkConfig::new().init(),
        "": Softplus = SoftplusConfig::new().with_threshold(3.0).init(),
        "": Softsign = Softsign::new(),
        "": Tanh = Tanh::new(),
        "": Tanhshrink = Tanhshrink::new(),
        "": Threshold = ThresholdConfig::new(0.5, -1.0).init(),
        "": ThresholdedRelu = ThresholdedReluConfig::new().init(),
    ]
}

fn others() -> Family {
    family![
        row(
            "",
            |_| GLU::new(1),
            |device| floats([3, 6, 2], 2, device),
            |glu: &GLU, x| Outcome::of(glu.forward(x)),
        ),
        row(
            "",
            |device| PReluConfig::new().init(device),
            |device| floats([3, 6], 3, device),
            |activation: &PRelu, x| Outcome::of(activation.forward(x)),
        ),
        row(
            "a slope for each channel",
            |device| PReluConfig::new().with_num_parameters(4).init(device),
            |device| floats([3, 4, 5], 4, device),
            |activation: &PRelu, x| Outcome::of(activation.forward(x)),
        ),
        row(
            "",
            |_| RReluConfig::new().init(),
            |device| floats([3, 6], 5, device),
            |activation: &RRelu, x| Outcome::of(activation.forward(x)),
        )
        .tracing(Tracing::DrawsInTraining),
        row(
            "",
            |device| SwiGluConfig::new(5, 4).with_bias(true).init(device),
            |device| floats([3, 5], 6, device),
            |activation: &SwiGlu, x| Outcome::of(activation.forward(x)),
        ),
    ]
}

/// Every variant of the wrapper.
fn variants() -> Family {
    macro_rules! variant {
        ($($case:literal: $config:expr),* $(,)?) => {
            family![$(row(
                $case,
                |device| $config.init(device),
                |device| floats([4, 5], 7, device),
                |activation: &Activation, x| Outcome::of(activation.forward(x)),
            )),*]
        };
    }
    variant![
        "Identity": ActivationConfig::Identity,
        "Gelu": ActivationConfig::Gelu,
        "Gelu, approximate": ActivationConfig::GeluApproximate,
        "PRelu": ActivationConfig::PRelu(PReluConfig::new()),
        "Relu": ActivationConfig::Relu,
        "LeakyRelu": ActivationConfig::LeakyRelu(LeakyReluConfig::new()),
        "SwiGlu": ActivationConfig::SwiGlu(SwiGluConfig::new(5, 3)),
        "Selu": ActivationConfig::Selu,
        "Sigmoid": ActivationConfig::Sigmoid,
        "Tanh": ActivationConfig::Tanh,
        "HardSigmoid": ActivationConfig::HardSigmoid(HardSigmoidConfig::new()),
        "HardSwish": ActivationConfig::HardSwish,
        "Softplus": ActivationConfig::Softplus(SoftplusConfig::new()),
        "Softsign": ActivationConfig::Softsign,
        "Elu": ActivationConfig::Elu(EluConfig::new()),
        "Celu": ActivationConfig::Celu(CeluConfig::new()),
        "ThresholdedRelu": ActivationConfig::ThresholdedRelu(ThresholdedReluConfig::new()),
        "HardShrink": ActivationConfig::HardShrink(HardShrinkConfig::new()),
        "SoftShrink": ActivationConfig::SoftShrink(SoftShrinkConfig::new()),
        "Shrink": ActivationConfig::Shrink(ShrinkConfig::new()),
    ]
}
