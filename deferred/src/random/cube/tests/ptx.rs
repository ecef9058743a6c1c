//! Compiling the kernels for GPUs without a GPU keeps their arithmetic.

use std::sync::Arc;

use cubecl::ir::features::Features;
use cubecl::ir::nvidia::SmArch;
use cubecl::ir::{DeviceIdentity, HardwareProperties, MemoryDeviceProperties};
use cubecl::prelude::*;
use cubecl::{Compiler, CubeKernel};
use cubecl_llvm::nvptx::ptx_version::PtxVersion;
use cubecl_llvm::{LlvmTarget, PlironArtifact, PlironCompiler, PlironOptions};

use crate::random::cube::launch::offline;

pub(in crate::random::cube) fn device() -> Arc<DeviceProperties> {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 32,
        max_shared_memory_size: 65536,
        max_cube_count: (u32::MAX, u16::MAX as u32, u16::MAX as u32),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 1024),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    Arc::new(DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, 256),
        hardware,
        cubecl::profile::TimingMethod::Device,
        DeviceIdentity {
            name: "offline".into(),
            fingerprint: "offline".into(),
            physical: None,
        },
    ))
}

/// Returns the PTX of a kernel for a generation of GPUs and the CUDA release of a driver, with the scalars that CubeCL
/// has then.
fn ptx(kernel: &dyn CubeKernel, arch: u32, driver: i32) -> String {
    let mut compiler = PlironCompiler {
        target: LlvmTarget::Nvptx,
    };
    let options = PlironOptions {
        sm_arch: Some(SmArch::new(arch, false)),
        ptx_version: PtxVersion::for_driver(driver),
        grid_constants: true,
        ..Default::default()
    };
    let compiled = compiler.compile(kernel.define(), &options);
    let PlironArtifact::NvptxCode(module) = compiled.expect("it compiles") else {
        panic!("the target is NVPTX");
    };
    let text = module.ptx.iter().take_while(|c| **c != 0);
    text.map(|c| *c as u8 as char).collect()
}

/// Returns whether all multiplications have an explicit rounding mode or are explicitly fused, which is unambiguous.
fn is_exact(ptx: &str) -> bool {
    let vague = ["mul.f32", "mul.f64", "approx", "full", "ftz"];
    !vague.iter().any(|word| ptx.contains(word))
}

#[test]
fn every_kernel_compiles_for_gpus_and_stays_exact() {
    for (arch, driver) in [(80, 12000), (90, 12000), (90, 12080), (90, 13000)] {
        let kernels = offline::kernels();
        assert_eq!(kernels.len(), 32, "every kernel with every kind of values");
        for (name, kernel) in kernels {
            let ptx = ptx(&*kernel, arch, driver);
            assert!(ptx.contains(&format!(".target sm_{arch}")), "{name}");
            assert!(is_exact(&ptx), "{name} for sm_{arch}, {driver}:\n{ptx}");
            // Uniform values are multiplied, rounded, and added: never fused.
            if name.contains("Uniform") {
                let is_separate = ptx.contains("mul.rn.f") && !ptx.contains("fma");
                assert!(is_separate, "{name}:\n{ptx}");
            }
        }
    }
}

/// A product that is added in the source may be fused, which `exact` prevents.
#[cube(launch)]
fn careless(out: &mut [f32], a: f32, b: f32, c: f32) {
    out[ABSOLUTE_POS] = a * b + c;
}

#[test]
fn without_care_the_compiler_does_fuse() {
    let dim = *CubeDim::new_1d(32);
    let settings = KernelSettings::new(dim, ExecutionMode::Checked, AddressType::U32);
    let out = BufferCompilationArg { inplace: None };
    let target = Arc::new(TargetProperties::default());
    let kernel = careless::Careless::new(settings, device(), target, out, (), (), ());
    let ptx = ptx(&kernel, 90, 12080);
    assert!(ptx.contains("fma.rn.f32"), "{ptx}");
}
