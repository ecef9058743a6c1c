//! Every kernel with every kind of values, compiled without a device.

use std::sync::Arc;

use cubecl::CubeKernel;

use super::super::philox::DrawCompilationArg;
use super::super::tests::ptx::device;
use super::super::values::{ParametersCompilationArg, Storage};
use super::*;

fn args() -> ArgsCompilationArg {
    ArgsCompilationArg {
        places: PlacesCompilationArg {
            first: (),
            length: (),
            axes: [AxisCompilationArg {
                size: (),
                stride: (),
            }]
            .into_iter()
            .collect(),
        },
        draw: DrawCompilationArg {
            key_0: (),
            key_1: (),
            step: (),
            micro_batch: (),
        },
        parameters: ParametersCompilationArg {
            a: (),
            b: (),
            c: (),
            d: (),
        },
    }
}

const NARROW: [Values; 10] = [
    Values::Uniform(Storage::F32),
    Values::Uniform(Storage::Bf16),
    Values::Uniform(Storage::F16),
    Values::Normal(Storage::F32),
    Values::Normal(Storage::Bf16),
    Values::Normal(Storage::F16),
    Values::Bernoulli,
    Values::Range,
    Values::CutNormal { signed: true },
    Values::CutNormal { signed: false },
];
const WIDE: [Values; 6] = [
    Values::Uniform(Storage::F64),
    Values::Normal(Storage::F64),
    Values::Bernoulli,
    Values::Range,
    Values::CutNormal { signed: true },
    Values::CutNormal { signed: false },
];

/// The common beginning of all kernels.
macro_rules! kernel {
    ($kernel:path, $($rest:expr),*) => {
        Box::new(<$kernel>::new(
            KernelSettings::new(*CubeDim::new_1d(256), ExecutionMode::Checked, AddressType::U32),
            device(),
            Arc::new(TargetProperties::default()),
            BufferCompilationArg { inplace: None },
            args(),
            $($rest),*
        ))
    };
}

pub(in crate::random::cube) fn kernels() -> Vec<(String, Box<dyn CubeKernel>)> {
    let unit = ElemType::UInt(UIntKind::U32);
    let mut kernels: Vec<(String, Box<dyn CubeKernel>)> = Vec::new();
    for values in NARROW {
        let blocks = kernel!(narrow_blocks::NarrowBlocks, 4, values, unit);
        let elements = kernel!(narrow_elements::NarrowElements, values, unit);
        kernels.push((format!("blocks of {values:?}"), blocks));
        kernels.push((format!("elements of {values:?}"), elements));
    }
    for values in WIDE {
        let blocks = kernel!(wide_blocks::WideBlocks, 2, values);
        let elements = kernel!(wide_elements::WideElements, values);
        kernels.push((format!("wide blocks of {values:?}"), blocks));
        kernels.push((format!("wide elements of {values:?}"), elements));
    }
    kernels
}
