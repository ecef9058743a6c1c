//! Checks that devices have the memory for the parameters of their ranks, before any rank materializes them.

use std::collections::BTreeMap;

use burn::tensor::Device;
use tinderbox_deferred::too_few_bytes;
use tinderbox_fake::DeviceLabel;

use super::settings::Settings;
use crate::cut::Layout;
use crate::schedule::RankIndex;
use crate::{JointGraph, StartError};

/// Fails if the ranks of a device do not fit in its memory. Each rank is also checked when it materializes
/// its parameters, but ranks that share a device share its memory.
///
/// The check counts parameters, copies of parameters of other stages, copies in the dtype of the forward,
/// and in training, a gradient for each trainable parameter. It does not count activations
/// and optimizer state, since a plan's figures for them are upper bounds.
///
/// With `only`, the other ranks are in other processes, which check their own.
pub(crate) fn check_capacity(
    layout: &Layout,
    joint: &JointGraph,
    devices: &[Device],
    only: Option<RankIndex>,
    settings: &Settings,
) -> Result<(), StartError> {
    let needed = needed(layout, joint, devices, only, settings.optimizers.is_some());
    for (device, (ranks, needed_bytes)) in needed {
        let device = &devices[device];
        if let Some(available_bytes) = too_few_bytes(settings.memory_check, device, needed_bytes) {
            return Err(StartError::Memory {
                device: DeviceLabel::of(device),
                ranks,
                needed_bytes,
                available_bytes,
            });
        }
    }
    Ok(())
}

/// The device of a rank: they are assigned round-robin.
pub(crate) fn device_of(rank: RankIndex, devices: &[Device]) -> &Device {
    &devices[rank.index() % devices.len()]
}

/// The ranks of each device, by its first index, and the bytes that they need.
fn needed(
    layout: &Layout,
    joint: &JointGraph,
    devices: &[Device],
    only: Option<RankIndex>,
    trains: bool,
) -> BTreeMap<usize, (Vec<RankIndex>, u64)> {
    let mut needed: BTreeMap<usize, (Vec<RankIndex>, u64)> = BTreeMap::new();
    let stages = (0..layout.replicas).flat_map(|replica| {
        let stages = layout.stages();
        stages.map(move |stage| (stage, layout.rank_in(replica, stage)))
    });
    for (stage, rank) in stages.filter(|(_, rank)| only.is_none_or(|only| only == *rank)) {
        let device = device_of(rank, devices);
        let first = devices.iter().position(|known| known == device);
        let (ranks, bytes) = needed.entry(first.unwrap_or(0)).or_default();
        if !ranks.contains(&rank) {
            ranks.push(rank);
        }
        let held = layout.held_bytes(joint, stage, 0);
        *bytes += held.parameters + if trains { held.gradients } else { 0 };
    }
    needed
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Tensor;
    use tinderbox_deferred::Deferred;

    use super::*;
    use crate::plan::layout;
    use crate::{Cut, MixedPrecision, Outputs, Trace, Traceable};

    #[derive(Module, Debug)]
    struct Net {
        layers: Vec<Linear>,
    }

    #[test]
    fn ranks_of_one_device_are_added() {
        let model = Deferred::new(|device| Net {
            layers: (0..3)
                .map(|_| LinearConfig::new(8, 8).with_bias(false).init(device))
                .collect(),
        });
        let model = model.unwrap();
        let example = Tensor::<2>::zeros([2, 8], &Device::flex());
        let forward = |net: &Net, x: Tensor<2>| {
            let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
            Outputs::loss(y.mean())
        };
        let cuts = [Cut::before("layers.1"), Cut::before("layers.2")];
        let needed = |trace: &Trace<Tensor<2>>, devices: &[Device], trains| {
            let plan = trace.plan_at(&cuts).unwrap();
            let layout = layout(&plan, trace.parameters()).unwrap();
            let traced = trace.example_program().unwrap();
            needed(&layout, &traced, devices, None, trains)
        };
        // One layer is 256 bytes, and so is its gradient.
        let rank = RankIndex::new;
        let trace = model.trace(&example, 1, forward).unwrap();
        let of = |devices: &[Device], trains| needed(&trace, devices, trains);
        let flex = Device::flex();
        let all = vec![rank(0), rank(1), rank(2)];
        assert_eq!(
            of(std::slice::from_ref(&flex), true),
            [(0, (all.clone(), 1536))].into()
        );
        assert_eq!(
            of(&[flex.clone(), flex.clone()], false),
            [(0, (all, 768))].into()
        );
        let two = [flex, Device::capture()];
        let expected = [
            (0, (vec![rank(0), rank(2)], 1024)),
            (1, (vec![rank(1)], 512)),
        ];
        assert_eq!(of(&two, true), expected.into());
        assert_eq!(device_of(rank(2), &two), &two[0]);
        assert_eq!(device_of(rank(3), &two), &two[1]);
        // In 16 bits each layer has a copy of 128 bytes.
        let mixed = MixedPrecision::bf16(&model)
            .trace(&example, 1, forward)
            .unwrap();
        let expected = [
            (0, (vec![rank(0), rank(2)], 768)),
            (1, (vec![rank(1)], 384)),
        ];
        assert_eq!(needed(&mixed, &two, false), expected.into());
    }

    #[test]
    fn the_error_suggests_a_fix() {
        let error = StartError::Memory {
            device: DeviceLabel::flex(),
            ranks: vec![RankIndex::new(0), RankIndex::new(2)],
            needed_bytes: 3 << 30,
            available_bytes: 2 << 30,
        };
        assert_eq!(
            error.to_string(),
            "ranks 0, 2 need 3.00 GiB on flex for parameters and gradients alone, but 2.00 GiB are available: distribute the \
             ranks over more devices, or start without this check (`memory_check(MemoryCheck::Off)`)"
        );
    }
}
