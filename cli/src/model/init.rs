//! `model init`: saves the initial parameters of a recorded model.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use tinderbox_checkpoint::{CheckpointMeta, ModuleTypes, SaveTensor, tools::save_tensors};
use tinderbox_deferred::{RecordedModel, random::Seed};

use super::flags::{FloatType, SaveFlags};
use crate::{outcome::Outcome, terminal::Output};

/// Arguments of `init`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The file of a recorded model, which `Deferred::recorded_model` makes
    #[arg(value_name = "FILE")]
    model: PathBuf,
    /// The seed: the same seed is the same model, whatever the ranks
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    save: SaveFlags,
}

/// Computes and saves the parameters.
pub(crate) fn run(flags: &Flags, out: &mut Output) -> anyhow::Result<Outcome> {
    let model = RecordedModel::load(&flags.model)?;
    let table = model.parameters();
    let source = Arc::new(model.replay(Seed::new(flags.seed)));
    let dtype = flags.save.dtype.map(FloatType::burn);
    let tensors = SaveTensor::of_source(table, source, |parameter| {
        dtype.filter(|_| parameter.dtype.is_float())
    });
    let meta = CheckpointMeta {
        seed: flags.seed,
        modules: ModuleTypes::of(table),
        ..flags.save.meta(0)
    };
    let (to, options) = (flags.save.saved.run()?, flags.save.options());
    let dir = save_tensors(&tensors, &to, meta, &options, &out.bar("init"))?;
    flags.save.saved.print(&dir, out)
}
