//! Independent copies of a module.

use std::collections::{BTreeSet, HashMap};

use burn::module::{Flag, Module, Param, ParamId};

use super::map::{Changed, change};
use super::param::BoxedParam;
use super::visit::ids;

/// Returns a copy of a module with separate parameters: the same values bit for bit, with new ids, so that
/// training one of the two does not change the other. For target networks, teachers and ensembles, in the closure of a
/// [`Deferred`](crate::Deferred) model as well as in plain Burn.
///
/// A clone (`Module::clone`) shares its ids with the original, and Burn's gradients and optimizers are keyed by the id.
/// `no_grad` on a clone also freezes the original if their parameters have no value yet, as in a new `Linear`.
///
/// Running states, such as the statistics of batch norm, are copied with the updates that they have, and advance
/// separately. Clones within the module are clones within the copy. Both train as the original does: call `no_grad` on
/// the copy to freeze it. Values that no visitor sees, as in a field with `#[module(skip)]`, are cloned.
///
/// A parameter without a value gets it from the original at its first use. In plain Burn the copy needs memory once one
/// of the two changes; in a deferred model it is a parameter with its own path, which is materialized, saved and loaded
/// independently.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use tinderbox_deferred::{Deferred, independent_copy, random::Seed};
///
/// #[derive(Module, Debug)]
/// struct Dqn {
///     online: Linear,
///     target: Linear,
/// }
///
/// let model = Deferred::new(|device: &Device| {
///     let online = LinearConfig::new(4, 2).init(device);
///     let target = independent_copy(&online).no_grad();
///     Dqn { online, target }
/// })?;
/// let dqn: Dqn = model.materialize(&Device::flex(), &model.initializer(Seed::new(1)))?;
/// assert_ne!(dqn.target.weight.id, dqn.online.weight.id);
/// assert_eq!(dqn.target.weight.val().into_data(), dqn.online.weight.val().into_data());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn independent_copy<M: Module>(module: &M) -> M {
    // By the id of the original, so that clones share the new one.
    let mut new_ids: HashMap<ParamId, ParamId> = HashMap::new();
    let copy = change(module.clone(), &mut |_, changed| match changed {
        Changed::Tensor(param) => param.renew(*new_ids.entry(param.id()).or_default()),
        Changed::Flag(flag) => flag.id = *new_ids.entry(flag.id).or_default(),
    });
    let originals: BTreeSet<ParamId> = ids(module).into_iter().collect();
    let mut states: BTreeSet<ParamId> = ids(&copy).into_iter().collect();
    // A running state keeps its id, and its clones share the value.
    states.retain(|id| originals.contains(id));
    match states.is_empty() {
        true => copy,
        false => with_own_states(copy, &states),
    }
}

/// Separates the running states with some ids from the states of the original. Only a change between training and
/// validation separates them. It would initialize parameters and set flags, so these are replaced during the change.
fn with_own_states<M: Module>(copy: M, states: &BTreeSet<ParamId>) -> M {
    // Whether running states are on a device with gradients.
    let mut is_training = false;
    // The `Param` of each parameter and flag, except the states.
    let mut kept: Vec<BoxedParam> = Vec::new();
    let copy = change(copy, &mut |_, changed| match changed {
        Changed::Tensor(state) if states.contains(&state.id()) => {
            is_training |= state.device().is_autodiff();
        }
        Changed::Tensor(param) => kept.push(param.take()),
        Changed::Flag(flag) => kept.push(Box::new(flag.clone())),
    });
    let copy = match is_training {
        true => copy.train(),
        false => copy.valid(),
    };
    let mut kept = kept.into_iter();
    let mut next = || kept.next().expect("as many are visited each time");
    change(copy, &mut |_, changed| match changed {
        Changed::Tensor(state) if states.contains(&state.id()) => state.copy_value(),
        Changed::Tensor(param) => param.put_back(next()),
        Changed::Flag(flag) => {
            let kept = next().downcast::<Param<Flag>>();
            *flag = *kept.expect("a module visits the same flags each time");
        }
    })
}

#[cfg(test)]
mod tests {
    use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
    use burn::optim::{GradientsParams, SgdConfig};
    use burn::tensor::{Device, Int, Tensor};
    use tinderbox_fake::DynTensor;

    use super::*;
    use crate::parameter_values;

    #[derive(Module, Debug)]
    struct Net {
        first: Linear,
        tied: Linear,
        norm: BatchNorm,
        dropout: Dropout,
        rows: Param<Tensor<1, Int>>,
    }

    impl Net {
        fn new(device: &Device) -> Self {
            let first = LinearConfig::new(3, 3).init(device);
            Self {
                tied: first.clone(),
                first,
                norm: BatchNormConfig::new(3).init(device),
                dropout: DropoutConfig::new(0.5).init(),
                rows: Param::initialized(ParamId::new(), Tensor::from_ints([1, 0, 2], device)),
            }
        }

        fn forward(&self, x: Tensor<2>) -> Tensor<2> {
            self.norm
                .forward(self.first.forward(x).select(1, self.rows.val()))
        }
    }

    fn bits(module: &impl Module) -> Vec<Vec<u8>> {
        let values = parameter_values(module).into_iter();
        let bytes = |value: DynTensor| value.to_data().unwrap().as_bytes().to_vec();
        values.map(|(_, value)| bytes(value)).collect()
    }

    /// A step of the original: its weights and statistics change.
    fn trained(net: Net, device: &Device) -> Net {
        let loss = net.forward(Tensor::ones([2, 3], device) * 0.5);
        let loss = (loss + Tensor::from_floats([[1.0, 2.0, 3.0]], device))
            .powi_scalar(2)
            .sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &net);
        SgdConfig::new().init().step(0.1, net, gradients)
    }

    #[test]
    fn a_copy_has_the_values_and_nothing_else_of_the_original() {
        let device = Device::flex().autodiff();
        for is_initialized in [false, true] {
            let net = Net::new(&device);
            if is_initialized {
                bits(&net);
            }
            let copy = independent_copy(&net);
            assert_eq!(copy.first.weight.is_initialized(), is_initialized);
            assert_eq!(net.first.weight.is_initialized(), is_initialized);
            let frozen = independent_copy(&net).no_grad();
            let before = bits(&net);
            assert_eq!(bits(&copy), before);
            assert_eq!(bits(&frozen), before);
            for trains in [&net, &copy] {
                assert!(trains.first.weight.is_require_grad());
                assert!(trains.dropout.training.is_enabled());
            }
            assert!(!frozen.first.weight.is_require_grad());
            // Only running states keep their ids, which no optimizer uses.
            let (of_net, of_copy) = (ids(&net), ids(&copy));
            let same = of_net.iter().zip(&of_copy).map(|(a, b)| a == b);
            let expected = [false, false, false, false, false, false, true, true, false];
            assert_eq!(same.collect::<Vec<_>>(), expected);
            assert_ne!(copy.dropout.training.id, net.dropout.training.id);
            // Clones within the module are clones within the copy.
            assert_eq!(copy.tied.weight.id, copy.first.weight.id);
            let net = trained(net, &device);
            assert_ne!(bits(&net.valid()), before);
            for copy in [copy, frozen] {
                assert_eq!(bits(&copy.valid()), before);
            }
        }
    }

    /// A loss that reads both has a gradient of its own for each.
    #[test]
    fn gradients_of_copies_are_separate() {
        let device = Device::flex().autodiff();
        let net: Linear = LinearConfig::new(1, 1).with_bias(false).init(&device);
        let copy = independent_copy(&net);
        let gradients = (net.weight.val() * 3.0 + copy.weight.val() * 5.0).backward();
        for (param, expected) in [(&net.weight, 3.0), (&copy.weight, 5.0)] {
            let gradient = param.val().grad(&gradients).unwrap();
            assert_eq!(gradient.into_scalar::<f32>(), expected);
        }
    }

    /// The updates that batch norm has left for its next use are copied.
    #[test]
    fn pending_updates_of_running_states_are_copied() {
        let device = Device::flex().autodiff();
        let net = Net::new(&device);
        net.forward(Tensor::ones([2, 3], &device));
        let copy = independent_copy(&net);
        let expected = bits(&net.valid());
        assert_ne!(expected, bits(&Net::new(&device).valid()));
        assert_eq!(bits(&copy.valid()), expected);
        // On a plain device, too.
        assert_eq!(bits(&independent_copy(&net.valid())), expected);
        assert!(!independent_copy(&net.valid()).dropout.training.is_enabled());
        assert!(copy.dropout.training.is_enabled());
    }
}
