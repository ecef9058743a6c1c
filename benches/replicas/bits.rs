//! The settings whose steps have the bits of one rank.

use std::hash::{DefaultHasher, Hasher};

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor, TensorData};
use tinderbox::{
    Clipping, Deferred, GradientSum, Outputs, Pipeline, Planner, ScheduleKind, Traceable, World,
    deferred::parameter_values,
};
use tinderbox_benches::cases::machine;
use tinderbox_benches::processes::{Control, Engine, Processes, world};

use crate::BENCH;

const STEPS: u64 = 20;
const MICRO_BATCHES: usize = 8;
const SAMPLES: usize = 16;
const WIDTH: usize = 24;

/// Replicas, ranks of each, and the variable with them and the schedule.
const SETTING: &str = "TINDERBOX_BENCH_SETTING";

const KINDS: [ScheduleKind; 5] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH1,
    ScheduleKind::ZbH2,
    ScheduleKind::Zbv,
];

/// The first layer is read again at the end.
#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    dropout: Dropout,
}

type Batch = (Tensor<2>, Tensor<2>);

fn batch(step: u64) -> Batch {
    let values = |first: u64| {
        let values = (0..SAMPLES * WIDTH).map(|k| ((k as u64 + first) as f32 * 0.7).sin());
        let data = TensorData::new(values.collect::<Vec<f32>>(), [SAMPLES, WIDTH]);
        Tensor::<2>::from_data(data, &Device::flex())
    };
    let (x, y) = (values(step * 131), values(step * 131 + 77));
    // The last batch of an epoch is smaller.
    let samples = if step % 7 == 6 { 11 } else { SAMPLES };
    (x.narrow(0, 0, samples), y.narrow(0, 0, samples))
}

/// A digest of the losses and norms of all steps, and of the parameters at the end.
fn run(replicas: usize, ranks: usize, kind: ScheduleKind, world: &World) -> u64 {
    let model = Deferred::new(|device| Net {
        layers: (0..8)
            .map(|_| LinearConfig::new(WIDTH, WIDTH).init(device))
            .collect(),
        dropout: DropoutConfig::new(0.1).init(),
    })
    .expect("it is recorded");
    let trace = model
        .trace(&batch(0), MICRO_BATCHES, |net: &Net, (x, y): Batch| {
            let layers = net.layers.iter();
            let x = layers.fold(x, |x, layer| net.dropout.forward(gelu(layer.forward(x))));
            let x = x.matmul(net.layers[0].weight.val());
            Outputs::loss((x - y).powi_scalar(2).mean())
        })
        .expect("it is traced");
    let planner = Planner::new(&trace, &machine(kind, replicas * ranks)).replicas(replicas);
    let plan = planner.plan().expect("there are enough layers");
    let mut pipeline = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .clip(Clipping::GlobalNorm(0.1))
        .gradient_sum(GradientSum::Tree(8))
        .schedule(kind)
        .threads_per_rank(1)
        .world(world)
        .start()
        .expect("it starts");
    let mut bytes = Vec::new();
    for step in 0..STEPS {
        let output = pipeline.step(1e-2, batch(step)).expect("it trains");
        let numbers = output
            .micro_batch_losses
            .iter()
            .chain(&output.gradient_norm);
        numbers.for_each(|number| bytes.extend(number.to_bits().to_le_bytes()));
    }
    let module = pipeline.gather(&Device::flex()).expect("it is gathered");
    for (path, value) in parameter_values(&module) {
        bytes.extend(path.to_string().into_bytes());
        bytes.extend(value.to_data().expect("it is real").as_bytes());
    }
    let mut digest = DefaultHasher::new();
    digest.write(&bytes);
    digest.finish()
}

/// A rank: runs the setting, and says the two halves of the digest.
pub fn rank() {
    let world = world();
    let control = Control::connect(&world);
    let setting = std::env::var(SETTING).expect("it is set");
    let words: Vec<&str> = setting.split(' ').collect();
    let number = |word: &str| word.parse().expect("a number");
    let kind = words[2].parse().expect("a schedule");
    let digest = run(number(words[0]), number(words[1]), kind, &world);
    for _ in control.lines() {
        control.say((digest >> 32) as f64);
        control.say((digest & 0xffff_ffff) as f64);
    }
}

/// Prints the share of settings, over threads and processes, that have the bits of one rank.
pub fn figures() {
    let expected = run(1, 1, ScheduleKind::GPipe, &World::alone());
    let engines = Engine::all();
    let (mut same, mut all) = (0, 0);
    let mut count = |setting: &str, engine: &str, found: bool| {
        all += 1;
        same += usize::from(found);
        if !found {
            println!("other bits: {setting} over {engine}");
        }
    };
    for replicas in [1, 2, 4, 8] {
        for ranks in [1, 2, 3] {
            for kind in KINDS {
                let setting = format!("{replicas} {ranks} {kind}");
                let found = run(replicas, ranks, kind, &World::alone());
                count(&setting, "threads", found == expected);
                let size = replicas * ranks;
                for engine in engines.iter().filter(|_| size > 1 && size <= 4) {
                    // Every process is started with the environment of this one.
                    let env = [(SETTING, setting.clone())];
                    let mut processes = Processes::start_with("bits", size, *engine, &env);
                    processes.say("digest");
                    let halves = [processes.numbers(), processes.numbers()];
                    let found = halves[0].iter().zip(&halves[1]);
                    let mut found = found.map(|(high, low)| ((*high as u64) << 32) | *low as u64);
                    count(
                        &setting,
                        engine.suffix(),
                        found.all(|found| found == expected),
                    );
                }
            }
        }
    }
    println!("{same} of {all} settings have the bits of one rank after {STEPS} steps");
    BENCH.figure("bits", same as f64 / all as f64, "ratio");
}
