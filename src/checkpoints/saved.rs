//! The values of each rank: snapshots of them for a save or an export, and the requests of a predicted load.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;
use parking_lot::Mutex;
use tinderbox_checkpoint::tools::{ExportOptions, Exported, export_tensors};
use tinderbox_checkpoint::{
    CheckpointSource, LoadPlan, ModuleTypes, RankSave, Role, SaveError, SaveSize, SaveTensor,
    assign_writers,
};
use tinderbox_deferred::{Deferred, Parameter, ParameterPath, ParameterTable, Request, Source};
use tinderbox_fake::is_host;
use tinderbox_pipeline::{
    Batch, OptimizerSnapshot, Pipeline, PipelineError, Plan, SavedState, Stage, check_model,
};

use super::settings::{of_run, to_saved};
use crate::error::{CheckpointsError, DryRunError};

/// Returns the parameters that each rank holds, for all replicas: the parameters of its stages, and copies of parameters
/// that other stages own.
fn held_by_ranks<'a>(plan: &Plan, table: &'a ParameterTable) -> Vec<Vec<&'a Parameter>> {
    let mut ranks: Vec<Vec<&Parameter>> = vec![Vec::new(); plan.ranks()];
    for stage in &plan.stages {
        let paths = stage.parameters.iter().chain(&stage.copies);
        let paths = paths.collect::<BTreeSet<_>>().into_iter();
        let held = paths.map(|path| table.get(path));
        let held = held.map(|held| held.expect("a plan is checked against its model"));
        ranks[stage.rank.index()].extend(held);
    }
    vec![ranks; plan.replicas()].concat()
}

/// The parameters that a rank writes, each with the other paths of the same parameter.
type Written = BTreeMap<ParameterPath, Vec<String>>;

/// Returns the parameters that each rank writes. Several ranks may hold a parameter: stages that share it, and replicas.
/// Between two steps their values are equal, so only one rank writes it.
fn written_by_ranks<'a>(plan: &Plan, table: &'a ParameterTable) -> Vec<Written> {
    let item = |parameter: &'a Parameter| (&parameter.path, parameter.bytes);
    let held = held_by_ranks(plan, table).into_iter();
    let held = held.map(|held| held.into_iter().map(item).collect());
    let held: Vec<Vec<(&ParameterPath, u64)>> = held.collect();
    let with_tied = |path: &ParameterPath| {
        let tied = table.clones(path).iter().map(ToString::to_string);
        (path.clone(), tied.collect::<Vec<String>>())
    };
    let written = assign_writers(&held).into_iter().zip(&held);
    let written = written.map(|(positions, held)| {
        let paths = positions.into_iter().map(|at| held[at].0);
        paths.map(with_tied).collect()
    });
    written.collect()
}

/// Returns snapshots of the ranks of this process. Copies no values.
pub(super) fn snapshots<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
) -> Result<Vec<RankSnapshot>, PipelineError> {
    let written = written_by_ranks(pipeline.plan(), pipeline.model().parameters());
    let run_scalars = of_run(pipeline);
    pipeline.on_ranks(move |rank, stages| {
        let mut snapshot = RankSnapshot::of(&written[rank.index()], stages);
        // The scalars of the run belong to no rank, so rank 0 saves them.
        if rank.index() == 0 {
            snapshot.save.scalars.extend(run_scalars.iter().cloned());
        }
        snapshot
    })
}

/// The snapshots of the ranks. Each is removed when its rank is written, which frees its values.
pub(super) struct OfRanks(Vec<Mutex<Option<RankSnapshot>>>);

impl OfRanks {
    pub(super) fn new(ranks: Vec<RankSnapshot>) -> Self {
        Self(ranks.into_iter().map(Some).map(Mutex::new).collect())
    }

    /// Removes and returns the contents of a rank. Tensors stay on their devices.
    ///
    /// # Panics
    ///
    /// Panics if the contents of this rank were removed before.
    pub(super) fn of_rank(&self, rank: u32) -> Result<RankSave, SaveError> {
        let snapshot = self.0[rank as usize].lock().take();
        snapshot.expect("a rank is written once").into_save()
    }

    /// Removes and returns the contents of a rank, as [`of_rank`](Self::of_rank) does. Before that, copies the contents of
    /// all ranks from their GPUs to the host: training needs the memory of the GPUs, and must not wait until a slow disk
    /// has written them.
    pub(super) fn off_devices(&self, rank: u32) -> Result<RankSave, SaveError> {
        for snapshot in &self.0 {
            // A rank whose contents were removed has nothing left to copy.
            if let Some(snapshot) = &mut *snapshot.lock()
                && !snapshot.is_on_host
            {
                // The copy replaces the snapshot. A snapshot shares its values with the training, and shared values
                // can't be updated in place.
                *snapshot = RankSnapshot {
                    save: snapshot.clone().into_save()?.on_host()?,
                    optimizers: Vec::new(),
                    is_on_host: true,
                };
            }
        }
        self.of_rank(rank)
    }
}

/// A snapshot of the values that a rank saves.
#[derive(Clone, Default)]
pub(super) struct RankSnapshot {
    save: RankSave,
    /// The state of the optimizers, which is added to `save` when the rank is written.
    optimizers: Vec<OptimizerSnapshot>,
    /// Whether all values are in host memory.
    is_on_host: bool,
}

impl RankSnapshot {
    /// Takes a snapshot of the parameters in `written`, and of the optimizers of the stages.
    fn of(written: &Written, stages: &[Stage]) -> Self {
        let held = stages.iter();
        let held =
            held.flat_map(|stage| stage.parameters().values().chain(stage.copies().values()));
        let tensors = held.filter_map(|(path, value)| {
            let mut tensor = SaveTensor::whole(path.as_str(), Role::Model, value);
            // A parameter that is not listed is written by another rank.
            tensor.tied.clone_from(written.get(path)?);
            Some((path, tensor))
        });
        // A map, because a rank with several stages may hold a parameter and a copy of it.
        let tensors: BTreeMap<&ParameterPath, SaveTensor> = tensors.collect();
        Self {
            save: RankSave {
                tensors: tensors.into_values().collect(),
                ..RankSave::default()
            },
            optimizers: stages.iter().map(Stage::optimizer_snapshot).collect(),
            is_on_host: stages.iter().all(|stage| is_host(stage.device())),
        }
    }

    /// Returns an estimate of the size of the contents. It assumes two tensors of optimizer state for each parameter, as in
    /// Adam, because the actual state is known only after it is copied to the host.
    pub(super) fn size(&self) -> SaveSize {
        let (mut size, mut save) = (SaveSize::default(), self.save.clone());
        for parameter in &self.save.tensors {
            for field in ["moment_1", "moment_2"] {
                save.tensors.push(SaveTensor {
                    name: format!("optimizer.{}.{field}", parameter.name),
                    role: Role::State,
                    ..parameter.clone()
                });
            }
        }
        size.add_rank(&save);
        size
    }

    /// Returns the contents. Copies the state of the optimizers to the host; parameters stay on their devices.
    pub(super) fn into_save(self) -> Result<RankSave, SaveError> {
        let mut save = self.save;
        for optimizer in self.optimizers {
            let state = optimizer.to_host().map_err(Box::new);
            let state = state.map_err(|source| SaveError::Optimizer { source })?;
            add_state(&mut save, state);
        }
        Ok(save)
    }
}

/// Adds the state of an optimizer to the contents of a rank.
pub(super) fn add_state(save: &mut RankSave, state: SavedState) {
    for (name, data) in state.tensors {
        // With replicas, a rank has only some rows of the state of a parameter.
        let part = state.parts.get(&name).cloned();
        let mut tensor = SaveTensor::whole(name, Role::State, data);
        if let Some(part) = part {
            let rows = part.first_row..part.first_row + tensor.shape[0];
            tensor.region = tensor.region.with_range(0, rows);
            tensor.shape = part.shape;
        }
        save.tensors.push(tensor);
    }
    let scalars = state.scalars.into_iter();
    let scalars = scalars.map(|(name, value)| (name, to_saved(value)));
    save.scalars.extend(scalars);
}

/// Writes the current parameters of a pipeline to a new directory, for another library.
/// [`tools::export`](tinderbox_checkpoint::tools::export) does the same with the parameters of a checkpoint. PyTorch's
/// names and layouts depend on the types of the modules. They come from the pipeline's model, unless the options contain
/// types.
///
/// In a [world](crate::World) of several processes, no process has all parameters: save a checkpoint and export it instead.
///
/// Memory: parameters on the CPU are not copied. From another device, one parameter at a time is copied to the host.
///
/// ```
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// use tinderbox::checkpoint::{LoadOptions, Regex};
/// use tinderbox::checkpoint::tools::{ExportLayout, ExportOptions};
/// use tinderbox::{Deferred, Machine, Outputs, Pipeline, Pretrained, Traceable, export_pipeline};
///
/// # let device = Device::flex();
/// # let dir = tempfile::tempdir()?;
/// # let model = Deferred::new(|device: &Device| -> Vec<Linear> {
/// #     (0..2).map(|_| LinearConfig::new(8, 8).init(device)).collect()
/// # })?;
/// # let trace = model.trace_forward(&Tensor::<2>::ones([8, 8], &device), |layers: &Vec<Linear>, x| {
/// #     Outputs::none().with("y", layers.iter().fold(x, |x, layer| layer.forward(x)))
/// # })?;
/// # let plan = trace.plan(&Machine::local(2)?)?;
/// let mut pipeline = Pipeline::builder(&model, &trace, &plan).start()?;
/// let options = ExportOptions {
///     layout: ExportLayout::PyTorch,
///     ..ExportOptions::default()
/// };
/// let options = options.rename(Regex::new("^")?, "layers.");
/// let exported = export_pipeline(&mut pipeline, dir.path(), &options)?;
/// assert_eq!(exported.files, ["model.safetensors"]);
///
/// // The way back: a pipeline with the exported parameters.
/// let options = LoadOptions::default()
///     .rename(Regex::new(r"^layers\.")?, "")
///     .pytorch(model.parameters());
/// let source = Pretrained::open(dir.path())?.source(options)?;
/// let pipeline = Pipeline::builder(&model, &trace, &plan).source(source).start()?;
/// # drop(pipeline);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Returns an error if the pipeline has stopped, if other processes have ranks, or if the export fails as
/// [`tools::export`](tinderbox_checkpoint::tools::export) can fail.
pub fn export_pipeline<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    to: impl AsRef<Path>,
    options: &ExportOptions,
) -> Result<Exported, CheckpointsError> {
    let of_model = || ModuleTypes::of(pipeline.model().parameters());
    let mut options = options.clone();
    options.modules.get_or_insert_with(of_model);
    let all_ranks = written_by_ranks(pipeline.plan(), pipeline.model().parameters()).len();
    let snapshots = snapshots(pipeline)?;
    if snapshots.len() < all_ranks {
        let ranks = snapshots.len();
        return Err(CheckpointsError::InProcesses { ranks, all_ranks });
    }
    let snapshots = snapshots.into_iter();
    let tensors: Vec<SaveTensor> = snapshots.flat_map(|rank| rank.save.tensors).collect();
    let exported = export_tensors(&tensors, to.as_ref(), &options, &());
    exported.map_err(|source| CheckpointsError::Export {
        path: to.as_ref().to_owned(),
        source: Box::new(source),
    })
}

/// Predicts a load of a checkpoint or of pretrained weights: the bytes, files and peak memory of each rank of a plan. Reads
/// no tensor and materializes nothing.
///
/// # Errors
///
/// Returns [`DryRunError::Plan`] if the plan is for another model. Otherwise returns the errors of the load, such as
/// [`SourceError::Mismatch`](tinderbox_deferred::SourceError::Mismatch) with all mismatches. Missing
/// parameters are no mismatch if the options of the source allow them; the prediction omits them.
pub fn dry_run<M: Module>(
    model: &Deferred<M>,
    plan: &Plan,
    source: &CheckpointSource,
) -> Result<LoadPlan, DryRunError> {
    let table = model.parameters();
    check_model(plan, table)?;
    let request = |parameter| Request::of(table, parameter, &Device::flex());
    let held = held_by_ranks(plan, table).into_iter();
    let ranks = held.map(|held| held.into_iter().map(request).collect());
    let ranks: Vec<Vec<Request>> = ranks.collect();
    source.check(table, &ranks.concat())?;
    Ok(source.dry_run(&ranks)?)
}
