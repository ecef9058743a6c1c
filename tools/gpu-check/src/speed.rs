//! Compares the throughput of random generation with the limits of the device's memory and arithmetic.

use std::collections::BTreeMap;

use anyhow::Result;
use burn::tensor::{DType, Distribution, Shape, Tensor};
use tinderbox::DynTensor;
use tinderbox::deferred::random::{Domain, Seed, Stream, generate_on_device, words_only};
use tinderbox::fake::Region;

use crate::bench::{Bench, Runtime, median, timed};
use crate::report::Part;

const TURNS: usize = 7;
/// A block of four words produces four values of 32 bits.
const BLOCKS_PER_UNIT: u32 = 64;

pub fn run(bench: &Bench, part: &mut Part) -> Result<()> {
    type Work<'a> = &'a dyn Fn() -> Result<Option<DynTensor>>;
    let (device, elements) = (&bench.device, bench.size.speed_elements);
    let bytes = elements as f64 * 4.0;
    let shape = Shape::from([elements]);
    let region = Region::of_shape(&[elements]);
    let stream = Stream::new(Seed::new(3), Domain::Init, "weight", 0);
    let random = |distribution, dtype| {
        let made = generate_on_device(device, &stream, distribution, &shape, &region, dtype);
        Ok(Some(made?))
    };
    let uniform = Distribution::Uniform(-1.0, 1.0);
    let normal = Distribution::Normal(0.0, 1.0);
    let source = Tensor::<1>::ones([elements], device);
    let units = elements / 4 / BLOCKS_PER_UNIT as usize;
    let fill = || Ok(Some(Tensor::<1>::full([elements], 1.5, device).into()));
    let copy = || Ok(Some(source.clone().mul_scalar(1.5).into()));
    let integers = || Ok(words_only(device, units, BLOCKS_PER_UNIT));
    let works: [(&str, f64, Work<'_>); 6] = [
        ("fill", bytes, &fill),
        ("copy", bytes, &copy),
        ("integer_limit", bytes, &integers),
        ("uniform_f32", bytes, &|| random(uniform, DType::F32)),
        ("normal_f32", bytes, &|| random(normal, DType::F32)),
        ("normal_bf16", bytes / 2.0, &|| random(normal, DType::BF16)),
    ];
    // Alternating, so that clock changes of the device affect all equally; the first round compiles.
    let mut seconds = vec![Vec::new(); works.len()];
    for turn in 0..=TURNS {
        for (times, (_, _, work)) in seconds.iter_mut().zip(&works) {
            device.sync()?;
            let (made, took) = timed(|| {
                let made = work()?;
                device.sync()?;
                Ok(made)
            })?;
            match (made, turn) {
                (None, _) => {}
                // A kernel that did not run takes no time: a read returns its error.
                (Some(made), 0) => drop(made.slice(&Region::new(vec![0], vec![16])?).to_data()?),
                (Some(_), _) => times.push(took),
            }
        }
    }
    let mut speeds = BTreeMap::new();
    for (times, (name, bytes, _)) in seconds.into_iter().zip(works) {
        if let Some(median) = median(times) {
            let speed = bytes / median / 1e9;
            speeds.insert(name, speed);
            part.figure(format!("speed.{name}"), speed, "GB/s");
        }
    }
    compare(bench, part, &speeds);
    part.note(
        "GB/s are bytes of the generated tensor; the copy computes a tensor times 1.5, so it also reads each byte. The integer \
         limit runs the generator and writes one word in 256. Medians of 7 rounds.",
    );
    Ok(())
}

/// Compares the speeds with the lower of the limits of memory and arithmetic.
fn compare(bench: &Bench, part: &mut Part, speeds: &BTreeMap<&str, f64>) {
    if let (Some(fill), Some(integer)) = (speeds.get("fill"), speeds.get("integer_limit")) {
        let limit = fill.min(*integer);
        for (name, least) in [("uniform_f32", 0.8), ("normal_f32", 0.5)] {
            let share = speeds.get(name).copied().unwrap_or(0.0) / limit;
            part.figure(format!("speed.{name}_share_of_limit"), share, "ratio");
            // Only figures of a GPU are compared with bounds.
            if bench.flags.runtime == Runtime::Cuda {
                let asked =
                    format!("{name} at {least} to 1.3 of the lower of fill and integer limit");
                let found = format!("{share:.2} of {limit:.0} GB/s");
                // A rate far above a limit indicates a measurement error.
                part.check(asked, found, (least..1.3).contains(&share));
            }
        }
    }
}
