//! Ways in which users write a copy of a network in a model, and what a pipeline does with each.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use tinderbox::deferred::independent_copy;
use tinderbox::{Deferred, Machine, Outputs, Pipeline, Traceable};

const WIDTH: usize = 4;

#[derive(Module, Debug)]
struct Net {
    online: Linear,
    others: Vec<Linear>,
    optional: Option<Linear>,
    #[module(skip)]
    hidden: Option<Linear>,
}

impl Net {
    fn new(online: Linear, others: Vec<Linear>) -> Self {
        Self {
            online,
            others,
            optional: None,
            hidden: None,
        }
    }

    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let others = self.others.iter().chain(&self.optional).chain(&self.hidden);
        let y = others.fold(self.online.forward(x.clone()), |y, other| {
            y * 2.0 - other.forward(x.clone())
        });
        (y + 1.0).powi_scalar(2).mean()
    }
}

fn online(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH)
        .with_bias(false)
        .init(device)
}

/// Trains a step: which parameters have changed, or the texts of the error.
fn outcome(init: fn(&Device) -> Net) -> Result<String, String> {
    fn chain(error: &dyn std::error::Error) -> String {
        match error.source() {
            Some(source) => format!("{error}: {}", chain(source)),
            None => error.to_string(),
        }
    }
    let device = Device::flex();
    let model = Deferred::new(init).map_err(|error| chain(&error))?;
    let batch = Tensor::<2>::ones([2, WIDTH], &device);
    let trace = model.trace(&batch, 2, |net: &Net, x| Outputs::loss(net.loss(x)));
    let trace = trace.map_err(|error| chain(&error))?;
    let plan = trace.plan(&Machine::local(2).unwrap()).unwrap();
    let pipeline = Pipeline::builder(&model, &trace, &plan).optimizer(SgdConfig::new());
    let mut pipeline = pipeline.start().map_err(|error| chain(&error))?;
    let paths = model.parameters().iter().map(|p| p.path.to_string());
    let mut values = || -> Vec<(String, Vec<u8>)> {
        let value = |path: String| {
            let value = pipeline.parameter(&path).unwrap().to_data().unwrap();
            (path, value.as_bytes().to_vec())
        };
        let values = paths.clone().map(value).collect();
        pipeline.step(0.1, batch.clone()).unwrap();
        values
    };
    let (before, after) = (values(), values());
    assert!(before.iter().all(|(_, value)| *value == before[0].1));
    let pairs = before.into_iter().zip(after);
    let changed = pairs.filter(|(before, after)| before != after);
    Ok(changed
        .map(|((path, _), _)| path)
        .collect::<Vec<_>>()
        .join(", "))
}

type Init = fn(&Device) -> Net;

#[test]
fn copies_that_train() {
    let cases: [(Init, &str); 5] = [
        (
            |device| {
                let online = online(device);
                let target = independent_copy(&online).no_grad();
                Net::new(online, vec![target])
            },
            "online.weight",
        ),
        (
            |device| {
                let online = online(device);
                let members = (0..2).map(|_| independent_copy(&online)).collect();
                Net::new(online, members)
            },
            "online.weight, others.0.weight, others.1.weight",
        ),
        (
            |device| {
                let online = online(device);
                let optional = Some(independent_copy(&online).freeze());
                Net {
                    optional,
                    ..Net::new(online, Vec::new())
                }
            },
            "online.weight",
        ),
        // A copy of a copy, and of a module with a copy in it.
        (
            |device| {
                let online = online(device);
                let first = independent_copy(&online).no_grad();
                let second = independent_copy(&first);
                let net = Net::new(online, vec![first, second]);
                Net {
                    optional: Some(independent_copy(&net).online),
                    ..net
                }
            },
            "online.weight, optional.weight",
        ),
        (
            |device| {
                let online = online(device);
                // With a value, so that the copy is of the value.
                online.weight.val();
                let target = online.clone().map(&mut WithNewIds).no_grad();
                Net::new(online, vec![target])
            },
            "online.weight",
        ),
    ];
    for (case, (init, expected)) in cases.into_iter().enumerate() {
        assert_eq!(outcome(init).as_deref(), Ok(expected), "case {case}");
    }
}

/// The copy that a user of Burn writes by hand.
struct WithNewIds;

impl ModuleMapper for WithNewIds {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::initialized(ParamId::new(), param.val())
    }
}

/// The texts say how a copy is made.
#[test]
fn copies_that_are_refused() {
    let clones = |second: &str, first: &str| {
        format!(
            "`{second}` is a clone of `{first}`: Burn's optimizers update only one of them, so they would differ; for a \
             copy with values of its own, such as a target network, call `independent_copy` instead of `clone`; to tie \
             them, read one parameter in both places of the forward"
        )
    };
    let frozen = "no parameter gets a gradient from the loss: `others.0.weight` is a clone of `online.weight`, and \
                  `no_grad` on a clone of a parameter that has no value yet freezes both; create a copy with values of \
                  its own, such as a target network, with `independent_copy(&module).no_grad()`";
    let skipped = "the forward initializes a parameter that no visitor of the module sees, in field `hidden.weight`, as \
                   in a field with `#[module(skip)]`: every run would draw another value; make it a field of the module \
                   and freeze it (`no_grad`)";
    // A recording can't leave its device or autodiff.
    let moved = "moved a fake tensor between devices or autodiff contexts";
    let cases: [(Init, String); 7] = [
        (
            |device| {
                let online = online(device);
                let target = online.clone().no_grad();
                Net::new(online, vec![target])
            },
            frozen.to_owned(),
        ),
        // A clone of a parameter with a value is frozen alone.
        (
            |device| {
                let online = online(device);
                online.weight.val();
                let target = online.clone().no_grad();
                Net::new(online, vec![target])
            },
            clones("others.0.weight", "online.weight"),
        ),
        (
            |device| {
                let online = online(device);
                let target = online.clone();
                Net::new(online, vec![target])
            },
            clones("others.0.weight", "online.weight"),
        ),
        (
            |device| {
                let members = vec![online(device); 3];
                Net::new(online(device), members)
            },
            clones("others.1.weight", "others.0.weight"),
        ),
        (
            |device| {
                let online = online(device);
                let hidden = Some(independent_copy(&online).no_grad());
                Net {
                    hidden,
                    ..Net::new(online, Vec::new())
                }
            },
            skipped.to_owned(),
        ),
        (
            |device| {
                let online = online(device);
                let target = online.valid();
                Net::new(online, vec![target])
            },
            moved.to_owned(),
        ),
        (
            |device| {
                let online = online(device);
                let target = online.clone().fork(device).no_grad();
                Net::new(online, vec![target])
            },
            moved.to_owned(),
        ),
    ];
    for (case, (init, expected)) in cases.into_iter().enumerate() {
        let text = outcome(init).unwrap_err();
        assert!(text.contains(&expected), "case {case}: {text}");
    }
}
