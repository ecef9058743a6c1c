//! `model estimate`: the memory that a model needs, from the sizes of its parameters or from a plan.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{self, Write};

use anyhow::{Context, ensure};
use burn::tensor::DType;
use serde::Serialize;
use tinderbox_checkpoint::Role;
use tinderbox_deferred::human_bytes;
use tinderbox_ids::text::count_text;
use tinderbox_planner::{Plan, UPDATE_VALUES};

use super::flags::EstimateFlags;
use super::given::{self, Kind};
use super::planned::{Planned, show_streamed};
use crate::ckpt::Weights;
use crate::outcome::Outcome;
use crate::plan;
use crate::terminal::{Output, show_table, visible};

/// Prints the estimate.
pub(crate) fn estimate(flags: &EstimateFlags, out: &mut Output) -> anyhow::Result<Outcome> {
    match Source::open(flags)? {
        Source::Plan(plan) => {
            ensure!(
                flags.dtype.is_none() && !flags.mixed && flags.ranks.is_none(),
                "a plan has its own dtypes and ranks: leave out --dtype, --mixed and --ranks"
            );
            let planned = Planned::of(*plan, flags)?;
            out.answer(&planned, |out| planned.show(out))
        }
        Source::Parameters(parameters, has_plan) => {
            ensure!(
                !flags.need_plan(),
                "a step and a pass are predicted from a plan: leave out --schedule, --micro-batches and --stream, or use a plan \
                 file or a run whose checkpoints have a plan"
            );
            let estimate = Estimate::of(&parameters, flags.ranks.unwrap_or(1));
            out.answer(&estimate, |out| estimate.show(flags, has_plan, out))
        }
    }
}

/// The source of an estimate.
enum Source {
    Plan(Box<Plan>),
    /// Parameters, and whether a plan was saved with them.
    Parameters(Vec<Parameter>, bool),
}

/// A parameter, and the bytes that training holds for it.
struct Parameter {
    name: String,
    elements: u64,
    dtype: DType,
    bytes: HeldBytes,
}

impl Source {
    fn open(flags: &EstimateFlags) -> anyhow::Result<Self> {
        let from = &*flags.from;
        if from.is_file() {
            ensure!(
                flags.step.is_none(),
                "{} is not a run: leave out --step",
                from.display()
            );
            match Kind::of(from)? {
                Kind::Json => return Ok(Self::Plan(Box::new(plan::load(from, None)?))),
                Kind::Recorded => {
                    let model = given::recorded_model(from)?;
                    let parameters = model.parameters().distinct().map(|one| {
                        let name = one.path.to_string();
                        flags.parameter(name, one.elements(), one.dtype, one.trainable)
                    });
                    return Ok(Self::Parameters(parameters.collect(), false));
                }
                Kind::Weights | Kind::Foreign(_) | Kind::Unknown => {}
            }
        }
        let weights = given::weights(from, flags.step)?;
        let mut has_plan = false;
        if let Weights::Checkpoint(checkpoint) = &weights {
            if flags.need_plan() {
                let plan = plan::load(from, flags.step);
                let plan = plan.context("a step and a pass are predicted from a plan")?;
                return Ok(Self::Plan(Box::new(plan)));
            }
            has_plan = checkpoint.manifest().has_plan();
        }
        let parameters = weights.as_ref().tensors(Role::Model).map(|tensor| {
            let (elements, dtype) = (tensor.shape.iter().product(), tensor.dtype.burn());
            // Files do not contain which parameters are trainable.
            flags.parameter(tensor.name.clone(), elements, dtype, dtype.is_float())
        });
        Ok(Self::Parameters(parameters.collect(), has_plan))
    }
}

/// The bytes that training holds all the time.
#[derive(Clone, Copy, Default, Serialize)]
struct HeldBytes {
    parameters: u64,
    /// The master weights of mixed precision.
    #[serde(skip_serializing_if = "is_zero")]
    masters: u64,
    gradients: u64,
    optimizer: u64,
}

/// Returns whether there are no bytes: the answer leaves them out.
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl HeldBytes {
    fn plus(self, other: Self) -> Self {
        Self {
            parameters: self.parameters.saturating_add(other.parameters),
            masters: self.masters.saturating_add(other.masters),
            gradients: self.gradients.saturating_add(other.gradients),
            optimizer: self.optimizer.saturating_add(other.optimizer),
        }
    }

    /// Returns the sum of all.
    fn resident(self) -> u64 {
        let values = self.parameters.saturating_add(self.masters);
        let trained = self.gradients.saturating_add(self.optimizer);
        values.saturating_add(trained)
    }
}

/// The estimate from sizes.
#[derive(Serialize)]
struct Estimate {
    tensors: usize,
    parameters: u64,
    /// The dtypes of the parameters, sorted.
    dtypes: BTreeSet<&'static str>,
    ranks: u32,
    /// The bytes of the whole model.
    all: HeldBytes,
    /// The bytes of the rank with the most bytes.
    largest_rank: HeldBytes,
    inference_bytes: u64,
    /// The bytes of the rank with the most parameters.
    largest_rank_inference_bytes: u64,
    /// The temporary bytes of an optimizer, for the largest parameter that it updates.
    update_bytes: u64,
    training_bytes: u64,
    largest_parameter: String,
    /// The bytes of the largest parameter, which are the least memory for values of a streamed model.
    streamed_bytes: u64,
}

impl Estimate {
    fn of(parameters: &[Parameter], ranks: u32) -> Self {
        let mut sizes: Vec<HeldBytes> = parameters.iter().map(|one| one.bytes).collect();
        let all = (sizes.iter().copied()).fold(HeldBytes::default(), HeldBytes::plus);
        let updated = sizes.iter().map(|bytes| bytes.gradients).max();
        let update_bytes = updated.unwrap_or(0).saturating_mul(UPDATE_VALUES);
        // The largest first, each to the rank with the fewest bytes.
        sizes.sort_by_key(|bytes| Reverse(bytes.resident()));
        let mut loads = vec![HeldBytes::default(); ranks as usize];
        for bytes in sizes {
            let least = loads.iter_mut().min_by_key(|load| load.resident());
            let least = least.expect("there is a rank");
            *least = least.plus(bytes);
        }
        let most = loads.iter().map(|load| load.parameters).max();
        let largest_rank = loads.iter().max_by_key(|load| load.resident()).copied();
        let largest = parameters.iter().max_by_key(|one| one.bytes.parameters);
        Self {
            tensors: parameters.len(),
            parameters: parameters.iter().map(|parameter| parameter.elements).sum(),
            dtypes: parameters.iter().map(|one| one.dtype.name()).collect(),
            ranks,
            inference_bytes: all.parameters,
            largest_rank_inference_bytes: most.unwrap_or(0),
            update_bytes,
            training_bytes: all.resident().saturating_add(update_bytes),
            all,
            largest_rank: largest_rank.unwrap_or_default(),
            largest_parameter: largest.map(|one| one.name.clone()).unwrap_or_default(),
            streamed_bytes: largest.map_or(0, |one| one.bytes.parameters),
        }
    }

    fn show(&self, flags: &EstimateFlags, has_plan: bool, out: &mut Output) -> io::Result<()> {
        let parameters = count_text(self.parameters as usize, "parameter");
        let tensors = count_text(self.tensors, "tensor");
        let dtypes: Vec<&str> = self.dtypes.iter().copied().collect();
        let (dtypes, ranks) = (dtypes.join(", "), count_text(self.ranks as usize, "rank"));
        out.sentence(&format!("{parameters} in {tensors} ({dtypes}), on {ranks}"))?;
        self.show_bytes(flags, out)?;
        let largest = visible(&self.largest_parameter);
        let part = format!("the largest parameter, {largest}");
        show_streamed(self.streamed_bytes, &part, out)?;
        let dtype = match flags.mixed {
            true => "are in f32, as the master weights",
            false => "have the dtype of the parameters",
        };
        writeln!(out, "gradients and the optimizer's state {dtype}")?;
        let plan = match has_plan {
            true => "the saved plan has them (add --micro-batches M)",
            false => "a plan has them (model estimate plan.json)",
        };
        writeln!(out, "activations are not counted: {plan}")
    }

    /// Prints the parts of the memory, each with its meaning.
    fn show_bytes(&self, flags: &EstimateFlags, out: &mut Output) -> io::Result<()> {
        let (all, largest, update) = (self.all, self.largest_rank, self.update_bytes);
        let trained = largest.resident().saturating_add(update);
        let training = [self.training_bytes, trained];
        let inference = [self.inference_bytes, self.largest_rank_inference_bytes];
        let (name, states) = flags.optimizer.unwrap_or_default().form();
        let optimizer = match states {
            0 => format!("{name}: no state"),
            _ => format!("{name}: {} for each", count_text(states as usize, "value")),
        };
        let updated = "while the largest parameter is updated";
        let rows = [
            ("parameters", [all.parameters, largest.parameters], ""),
            ("masters", [all.masters, largest.masters], "master weights"),
            ("gradients", [all.gradients, largest.gradients], ""),
            ("optimizer", [all.optimizer, largest.optimizer], &*optimizer),
            ("update", [update; 2], updated),
            ("training", training, "the sum of the above"),
            ("inference", inference, "the parameters alone"),
        ];
        let (header, numbers) = match self.ranks {
            1 => (vec!["", "bytes", ""], 1),
            _ => (vec!["", "all ranks", "largest rank", ""], 2),
        };
        let rows = rows.into_iter();
        let rows = rows.filter(|row| flags.mixed || row.0 != "masters");
        let rows = rows.map(|(name, bytes, meaning)| {
            let (name, bytes) = ([name.to_owned()], bytes.map(human_bytes));
            [&name[..], &bytes[..numbers], &[meaning.to_owned()]].concat()
        });
        show_table(&header, &[1, 2][..numbers], rows, out)
    }
}

impl EstimateFlags {
    /// Returns a parameter in the requested dtype, with the bytes that training holds for it.
    fn parameter(&self, name: String, elements: u64, dtype: DType, trainable: bool) -> Parameter {
        let is_mixed = self.mixed && dtype.is_float();
        let cast = match self.dtype {
            _ if is_mixed => DType::BF16,
            Some(cast) if dtype.is_float() => cast,
            _ => dtype,
        };
        let bytes = |dtype: DType| elements.saturating_mul(dtype.size() as u64);
        let updated = bytes(if is_mixed { DType::F32 } else { cast });
        let trained = if trainable { updated } else { 0 };
        let (_, states) = self.optimizer.unwrap_or_default().form();
        Parameter {
            name,
            elements,
            dtype: cast,
            bytes: HeldBytes {
                parameters: bytes(cast),
                masters: if is_mixed { updated } else { 0 },
                gradients: trained,
                optimizer: trained.saturating_mul(states),
            },
        }
    }
}
