//! Memory for materializing one stage, measured in a child process under a limit.

use std::process::{Command, Stdio};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Device, Tensor};
use tinderbox::deferred::random::Seed;
use tinderbox::deferred::{MaterializeOptions, MemoryCheck};
use tinderbox::error::MaterializeError;
use tinderbox::{Deferred, Machine, Outputs, Pipeline, Planner, Traceable};

/// Layers of 16 MiB.
const WIDTH: usize = 2048;
const TENSOR: u64 = (WIDTH * WIDTH * 4) as u64;
/// Layers of the stage: 512 MiB.
const STAGE: usize = 32;
pub const MIB: u64 = 1 << 20;
/// Allowed in addition to the stage and one tensor.
const SPARE: u64 = 64 * MIB;
/// Set in the child process: the memory limit in bytes.
const LIMIT: &str = "TINDERBOX_TEST_LIMIT";

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

fn tower(layers: usize) -> Deferred<Tower> {
    let linear = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
    Deferred::new(move |device: &Device| Tower {
        layers: (0..layers).map(|_| linear.clone().init(device)).collect(),
    })
    .unwrap()
}

/// Returns a line of the process's status, in bytes.
pub fn status(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line
        .unwrap()
        .trim_start_matches(':')
        .split_whitespace()
        .next();
    kib.unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs one test of this program again, with its address space limited to `limit` bytes.
fn limited(test: &str, limit: u64) -> std::process::Output {
    let program = std::env::current_exe().unwrap();
    Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -v {} && exec \"$0\" \"$@\"", limit / 1024))
        .arg(program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(LIMIT, limit.to_string())
        // The C library reserves 64 MiB of addresses for each thread that allocates.
        .env("MALLOC_ARENA_MAX", "1")
        .env("RAYON_NUM_THREADS", "2")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs `test` again in a process whose limit allows the stage, one tensor and a little more, and calls `run`
/// there with the limit.
pub fn under_limit(test: &str, stage_bytes: u64, run: impl FnOnce(u64)) {
    if let Ok(limit) = std::env::var(LIMIT) {
        return run(limit.parse().unwrap());
    }
    // The addresses of a process of this program before it does anything, and the allowed increase.
    let limit = status("VmSize") + stage_bytes + TENSOR + SPARE;
    let output = limited(test, limit);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
}

/// Materializes a stage in the middle of a tower, and compares the memory of the process with the stage's
/// bytes.
fn light(model: &Deferred<Tower>, dtype: DType, stage_bytes: u64) {
    let before = status("VmRSS");
    let first = model.parameters().len() / 2;
    let stage = first..first + STAGE;
    let selected = |path: &str| {
        let mut layers = stage.clone();
        layers.any(|layer| path == format!("layers.{layer}.weight"))
    };
    let options = MaterializeOptions::on(&Device::flex())
        .only(|p| selected(p.path.as_str()))
        .dtype(|_| Some(dtype));
    let initializer = model.initializer(Seed::new(3));
    let part = model.materialize_parameters(options, &initializer);
    assert_eq!(part.unwrap().bytes(), stage_bytes);
    let taken = status("VmHWM") - before;
    assert!(
        taken >= stage_bytes,
        "{taken} bytes: the stage is not there"
    );
    assert!(
        taken <= stage_bytes + TENSOR + SPARE,
        "{} MiB for a stage of {} MiB",
        taken / MIB,
        stage_bytes / MIB
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_stage_is_lit_where_the_whole_does_not_fit() {
    let stage_bytes = STAGE as u64 * TENSOR;
    let test = "memory::a_stage_is_lit_where_the_whole_does_not_fit";
    under_limit(test, stage_bytes, |limit| {
        let model = tower((8 * limit).div_ceil(TENSOR) as usize);
        assert!(model.parameters().bytes() >= 8 * limit);
        // The whole model is rejected before anything is materialized, with the missing amount in the error.
        let initializer = model.initializer(Seed::new(3));
        let whole = model.materialize_parameters(&Device::flex(), &initializer);
        let Err(MaterializeError::Memory { needed_bytes, .. }) = whole else {
            panic!("the whole is not refused");
        };
        assert_eq!(needed_bytes, model.parameters().bytes());
        light(&model, DType::F32, stage_bytes);
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_stage_in_bf16_takes_half_and_one_tensor() {
    let stage_bytes = STAGE as u64 * TENSOR / 2;
    let test = "memory::a_stage_in_bf16_takes_half_and_one_tensor";
    under_limit(test, stage_bytes, |limit| {
        // Twice as many elements fit.
        let model = tower((16 * limit).div_ceil(TENSOR) as usize);
        light(&model, DType::BF16, stage_bytes);
    });
}

#[test]
fn memory_that_will_not_suffice_is_refused_before_anything_is_made() {
    // 1 TiB: more than the machine has.
    let model = tower(1 << 16);
    let initializer = model.initializer(Seed::new(3));
    let error = model
        .materialize(&Device::flex(), &initializer)
        .map(drop)
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("65536 parameter(s) need 1.00 TiB on flex, and "),
        "{text}"
    );
    let options = MaterializeOptions::on(&Device::flex())
        .only(|p| p.path.as_str() == "layers.7.weight")
        .memory_check(MemoryCheck::Bytes(TENSOR - 1));
    let part = model.materialize_parameters(options, &initializer);
    assert_eq!(
        part.map(drop).unwrap_err().to_string(),
        "1 parameter(s) need 16777216 B on flex, and 16777215 B are available: select fewer, choose a \
         smaller dtype, or spread them over more ranks"
    );
}

/// Two replicas in one process hold two copies of parameters and gradients, and the state of the optimizer once.
#[test]
#[cfg(target_os = "linux")]
fn replicas_hold_the_state_of_the_optimizer_once() {
    const LAYERS: usize = 4;
    let parameters = LAYERS as u64 * TENSOR;
    // Of each replica: parameters, the gradients of a micro-batch, their sum.
    let of_replicas = 2 * 3 * parameters;
    // Three moments and an average. Twice as much would exceed the limit by far.
    let state = 4 * parameters;
    let test = "memory::replicas_hold_the_state_of_the_optimizer_once";
    under_limit(test, of_replicas + state, |_| {
        let model = tower(LAYERS);
        let batch = Tensor::<2>::ones([2, WIDTH], &Device::flex());
        let trace = model.trace(&batch, 2, |net: &Tower, x| {
            let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
            Outputs::loss(y.powf_scalar(2.0).mean())
        });
        let trace = trace.unwrap();
        let machine = Machine::local(2).unwrap();
        let planner = Planner::new(&trace, &machine).cuts(&[]).replicas(2);
        let plan = planner.plan().unwrap();
        let mut pipeline = Pipeline::builder(&model, &trace, &plan)
            .optimizer(AdamWConfig::new().with_amsgrad(true))
            .average(0.9)
            .threads_per_rank(1)
            .start()
            .unwrap();
        for _ in 0..3 {
            assert!(pipeline.step(1e-4, batch.clone()).unwrap().loss.is_finite());
        }
        let bytes = pipeline.on_ranks(|_, stages| {
            let state = stages[0].optimizer_snapshot().to_host().unwrap();
            let tensors = state.tensors.iter();
            tensors.map(|(_, data)| data.as_bytes().len() as u64).max()
        });
        assert_eq!(bytes.unwrap(), [Some(TENSOR); 2]);
    });
}
