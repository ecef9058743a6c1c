//! How soon a run continues after the loss of a rank, and what it costs to be able to.

use std::time::{Duration, Instant};

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use tinderbox::{Deferred, Machine, Outputs, Pipeline, Recovery, Traceable};
use tinderbox_benches::figures::median;
use tinderbox_benches::processes::{Control, Engine, Processes, world};

use crate::BENCH;

/// The variable with a [`Setting`], as words.
const SETTING: &str = "TINDERBOX_BENCH_SETTING";

/// Layers of a square weight each, trained by AdamW, as a pipeline of one process per stage.
#[derive(Clone, Copy)]
struct Setting {
    layers: usize,
    width: usize,
    samples: usize,
    micro_batches: usize,
    recovers: bool,
}

/// 1.03 GiB of parameters and optimizer state.
const LARGE: Setting = Setting {
    layers: 22,
    width: 2048,
    samples: 8,
    micro_batches: 4,
    recovers: true,
};

/// A batch that is large beside the parameters, as the batches of language models are.
const STEADY: Setting = Setting {
    layers: 8,
    width: 512,
    samples: 4096,
    micro_batches: 8,
    recovers: false,
};

/// The same with few samples.
const SMALL: Setting = Setting {
    samples: 256,
    ..STEADY
};

impl Setting {
    fn words(self) -> String {
        let numbers = [self.layers, self.width, self.samples, self.micro_batches];
        let words = numbers.map(|number| number.to_string()).join(" ");
        format!("{words} {}", usize::from(self.recovers))
    }

    fn read(words: &str) -> Self {
        let numbers = words.split(' ').map(|word| word.parse().expect("a number"));
        let numbers: Vec<usize> = numbers.collect();
        Self {
            layers: numbers[0],
            width: numbers[1],
            samples: numbers[2],
            micro_batches: numbers[3],
            recovers: numbers[4] > 0,
        }
    }

    /// Bytes of parameters and of the two moments of Adam.
    fn state_bytes(self) -> usize {
        3 * 4 * self.layers * self.width * (self.width + 1)
    }

    fn start(self, size: usize) -> Processes {
        let env = [(SETTING, self.words())];
        let mut processes = Processes::start_with("recovery", size, Engine::Grpc, &env);
        // Programs are loaded and memory is allocated in the first steps.
        for _ in 0..2 {
            step(&mut processes);
        }
        processes
    }
}

/// A rank: makes a step whenever it is asked to, and says how many seconds it took.
pub fn rank() {
    let setting = Setting::read(&std::env::var(SETTING).expect("it is set"));
    let world = world();
    let control = Control::connect(&world);
    let Setting { layers, width, .. } = setting;
    let model = Deferred::new(move |device: &Device| -> Vec<Linear> {
        let layer = |_| LinearConfig::new(width, width).init(device);
        (0..layers).map(layer).collect()
    });
    let model = model.expect("it is recorded");
    let batch = Tensor::<2>::ones([setting.samples, width], &Device::flex());
    let trace = model.trace(&batch, setting.micro_batches, |layers: &Vec<Linear>, x| {
        let y = layers.iter().fold(x, |x, layer| gelu(layer.forward(x)));
        Outputs::loss(y.powi_scalar(2).mean())
    });
    let trace = trace.expect("it is traced");
    let machine = Machine::local(world.size()).expect("there are ranks");
    let plan = trace.plan(&machine).expect("there are enough layers");
    let mut builder = Pipeline::builder(&model, &trace, &plan)
        .optimizer(AdamWConfig::new())
        .threads_per_rank(1)
        .world(&world);
    if setting.recovers {
        builder = builder.recovery(Recovery::default());
    }
    let mut pipeline = builder.start().expect("it starts");
    for _ in control.lines() {
        let began = Instant::now();
        let output = pipeline.step(1e-4, batch.clone()).expect("it trains");
        control.say(began.elapsed().as_secs_f64());
        for recovered in output.recovered.iter().filter(|_| world.is_first()) {
            eprintln!("{recovered}");
        }
    }
}

/// The seconds of a step of all ranks.
fn step(processes: &mut Processes) -> f64 {
    processes.say("step");
    processes.numbers().into_iter().fold(0.0, f64::max)
}

/// The seconds of some steps of all ranks, one after the other, so that a snapshot is sent while the next step runs. The last one
/// is sent before others are measured.
fn steps(processes: &mut Processes) -> f64 {
    const STEPS: usize = 5;
    let seconds = (0..STEPS).map(|_| step(processes)).sum();
    std::thread::sleep(Duration::from_millis(300));
    seconds
}

/// Prints the seconds from SIGKILL of one of three ranks until the others have completed the step that they were in, and how
/// much longer a step is that can be recovered from.
pub fn figures() {
    let gib = LARGE.state_bytes() as f64 / f64::from(1 << 30);
    println!("three processes with {gib:.2} GiB of parameters and state of AdamW");
    let times: Vec<(f64, f64)> = (0..BENCH.turns().min(6)).filter_map(recovery).collect();
    println!("{} kills in the middle of a step", times.len());
    let (recovered, undisturbed): (Vec<f64>, Vec<f64>) = times.into_iter().unzip();
    BENCH.figure("recovery_s", median(recovered), "s");
    BENCH.figure("recovery_step_s", median(undisturbed), "s");
    for (name, setting) in [
        ("snapshot_slowdown", STEADY),
        ("snapshot_slowdown_small", SMALL),
    ] {
        println!(
            "{name}: two processes, {} samples a step, {:.1} MB of state",
            setting.samples,
            setting.state_bytes() as f64 / 1e6
        );
        let with = Setting {
            recovers: true,
            ..setting
        };
        let (mut with, mut without) = (with.start(2), setting.start(2));
        let ratio = |_| steps(&mut with) / steps(&mut without);
        BENCH.figure(
            name,
            median((0..BENCH.turns()).map(ratio).collect()),
            "ratio",
        );
    }
}

/// Kills a rank late in a step, and returns the seconds until the others have completed it, and the seconds of an undisturbed
/// step; nothing if the step was over by then.
fn recovery(turn: usize) -> Option<(f64, f64)> {
    let mut processes = LARGE.start(3);
    let undisturbed: Vec<f64> = (0..3).map(|_| step(&mut processes)).collect();
    let shortest = undisturbed.iter().copied().fold(f64::MAX, f64::min);
    let killed = turn % 3;
    processes.say("step");
    let asked = Instant::now();
    std::thread::sleep(Duration::from_secs_f64(shortest * 0.7));
    let began = Instant::now();
    processes.kill(killed);
    let left = (0..3).filter(|rank| *rank != killed);
    let of_step = left.map(|rank| processes.number(rank)).fold(0.0, f64::max);
    let is_late = of_step > (began - asked).as_secs_f64();
    is_late.then(|| (began.elapsed().as_secs_f64(), median(undisturbed)))
}
