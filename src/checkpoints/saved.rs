//! The values of each rank: to save, to export, and to predict a load.

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

/// Returns the parameters that each rank of each replica holds: its own, and copies of shared parameters.
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

/// The parameters that a rank writes, each with its other paths.
type Writes = BTreeMap<ParameterPath, Vec<String>>;

/// Returns the parameters that each rank writes. Copies of a shared parameter, and copies in replicas, are equal between two
/// steps, so one of them is written.
fn writes<'a>(plan: &Plan, table: &'a ParameterTable) -> Vec<Writes> {
    let item = |parameter: &'a Parameter| (&parameter.path, parameter.bytes);
    let held = held_by_ranks(plan, table).into_iter();
    let held = held.map(|held| held.into_iter().map(item).collect());
    let held: Vec<Vec<(&ParameterPath, u64)>> = held.collect();
    let with_tied = |path: &ParameterPath| {
        let tied = table.clones(path).iter().map(ToString::to_string);
        (path.clone(), tied.collect::<Vec<String>>())
    };
    let writes = assign_writers(&held).into_iter().zip(&held);
    let writes = writes.map(|(positions, held)| {
        let paths = positions.into_iter().map(|at| held[at].0);
        paths.map(with_tied).collect()
    });
    writes.collect()
}

/// Returns snapshots of the ranks of this process.
pub(super) fn snapshots<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
) -> Result<Vec<RankSnapshot>, PipelineError> {
    let writes = writes(pipeline.plan(), pipeline.model().parameters());
    let of_run = of_run(pipeline);
    pipeline.on_ranks(move |rank, stages| {
        let mut snapshot = RankSnapshot::of(&writes[rank.index()], stages);
        // The first rank saves the scalars that belong to no rank.
        if rank.index() == 0 {
            snapshot.save.scalars.extend(of_run.iter().cloned());
        }
        snapshot
    })
}

/// The snapshots of the ranks, each until it is written.
pub(super) struct OfRanks(Vec<Mutex<Option<RankSnapshot>>>);

impl OfRanks {
    pub(super) fn new(ranks: Vec<RankSnapshot>) -> Self {
        Self(ranks.into_iter().map(Some).map(Mutex::new).collect())
    }

    /// Returns the contents of a rank, each tensor in its current location.
    ///
    /// # Panics
    ///
    /// Panics if they were returned before.
    pub(super) fn of_rank(&self, rank: u32) -> Result<RankSave, SaveError> {
        let snapshot = self.0[rank as usize].lock().take();
        snapshot.expect("a rank is written once").into_save()
    }

    /// Returns the contents of a rank, as [`of_rank`](Self::of_rank) does. Before that, copies the contents of all ranks on
    /// GPUs to the host: training needs that memory, and a disk is slow.
    pub(super) fn off_devices(&self, rank: u32) -> Result<RankSave, SaveError> {
        for snapshot in &self.0 {
            // Ranks that were written have nothing left to copy.
            if let Some(snapshot) = &mut *snapshot.lock()
                && !snapshot.is_on_host
            {
                // The snapshot is dropped after the copy, because it prevents in-place operations on its
                // values.
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
    /// The optimizers, whose state is added when the rank is written.
    optimizers: Vec<OptimizerSnapshot>,
    /// Whether all values are in host memory.
    is_on_host: bool,
}

impl RankSnapshot {
    fn of(writes: &Writes, stages: &[Stage]) -> Self {
        let held = stages.iter();
        let held = held.flat_map(|of| of.parameters().values().chain(of.copies().values()));
        // A rank with several stages may hold a parameter and its copy.
        let tensors = held.filter_map(|(path, value)| {
            let mut tensor = SaveTensor::whole(path.as_str(), Role::Model, value);
            tensor.tied.clone_from(writes.get(path)?);
            Some((path, tensor))
        });
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

    /// Returns the size of the contents. It assumes two tensors of optimizer state for each parameter, as in Adam: the actual
    /// state is known only after it is copied to the host.
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

    /// Returns the contents, with the optimizer's state on the host.
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

/// Writes the current parameters of a pipeline to files of another library in a new directory, as
/// [`tools::export`](tinderbox_checkpoint::tools::export) does with the parameters of a checkpoint. The types of the modules
/// come from the pipeline's model, unless the options contain types.
///
/// Memory: no copy of parameters on the CPU; a host copy of one parameter at a time on another device.
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
/// // The way back.
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
/// Returns an error if the pipeline has stopped, or the export fails, see
/// [`tools::export`](tinderbox_checkpoint::tools::export).
pub fn export_pipeline<M: Module + Sync + 'static, B: Batch>(
    pipeline: &mut Pipeline<M, B>,
    to: impl AsRef<Path>,
    options: &ExportOptions,
) -> Result<Exported, CheckpointsError> {
    let of_model = || ModuleTypes::of(pipeline.model().parameters());
    let mut options = options.clone();
    options.modules.get_or_insert_with(of_model);
    let ranks = snapshots(pipeline)?.into_iter();
    let tensors: Vec<SaveTensor> = ranks.flat_map(|rank| rank.save.tensors).collect();
    let exported = export_tensors(&tensors, to.as_ref(), &options, &());
    exported.map_err(|source| CheckpointsError::Export {
        path: to.as_ref().to_owned(),
        source: Box::new(source),
    })
}

/// Predicts the load of a checkpoint or pretrained weights: bytes, files and peak memory of each rank of a plan. Reads no
/// tensor and materializes nothing.
///
/// # Errors
///
/// Returns [`DryRunError::Plan`] if the plan is for another model. Otherwise returns the errors of the load, such as
/// [`SourceError::Mismatch`](tinderbox_deferred::SourceError::Mismatch) with all mismatches. Parameters that
/// may be missing are omitted.
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
