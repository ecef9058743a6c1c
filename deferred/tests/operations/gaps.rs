//! The operations of `burn_ir` that no row runs.

/// An operation that no row runs.
pub(crate) struct Gap {
    pub(crate) key: &'static str,
    pub(crate) reason: &'static str,
}

const fn gap(key: &'static str, reason: &'static str) -> Gap {
    Gap { key, reason }
}

const NUMBERS: &str = "Burn supports it for numbers only; refused";
const COLLECTIVE: &str = "a recording has one device; refused";
const QUANTIZED: &str = "a recording device has no quantized tensors; refused";

pub(crate) const GAPS: &[Gap] = &[
    gap("BaseBool.ScatterNd", NUMBERS),
    gap("BaseBool.GatherNd", NUMBERS),
    gap("BaseBool.Cast", NUMBERS),
    gap(
        "NumericFloat.IntRandom",
        "its result is an int tensor; refused",
    ),
    gap("Float.Quantize", QUANTIZED),
    gap("Float.Dequantize", QUANTIZED),
    gap(
        "Module.CtcLossBackward",
        "no supported backend implements it; refused",
    ),
    gap("Distributed.AllReduce", COLLECTIVE),
    gap("Distributed.SyncCollective", COLLECTIVE),
    gap("Custom", "only its author's backend implements it; refused"),
    gap("Init", "a graph keeps the data as a constant instead"),
    gap("Drop", "never recorded; programs add their own"),
];
