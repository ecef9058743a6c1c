//! Export of a pipeline's parameters without a checkpoint.

use std::path::Path;

use burn::module::Module;
use tinderbox_checkpoint::tools::{ExportOptions, Exported, export_tensors};
use tinderbox_checkpoint::{ModuleTypes, SaveTensor};
use tinderbox_pipeline::{Batch, Pipeline};

use super::saved::snapshots;
use crate::CheckpointsError;

/// Writes the current parameters of a pipeline to files of another library in a new directory, as
/// [`tools::export`](tinderbox_checkpoint::tools::export) does with the parameters of a checkpoint. The types of the modules
/// are from the pipeline's model, unless the options contain others.
///
/// Memory: on the CPU no copy of the parameters; a host copy of one parameter that is on another device.
///
/// ```
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::tensor::{Device, Tensor};
/// use tinderbox::tools::{ExportLayout, ExportOptions};
/// use tinderbox::{
///     Deferred, LoadOptions, Machine, Outputs, Pipeline, Plan, Pretrained, Regex, Traceable,
///     export_pipeline,
/// };
///
/// # let device = Device::flex();
/// # let dir = tempfile::tempdir()?;
/// # let model = Deferred::new(|device: &Device| -> Vec<Linear> {
/// #     (0..2).map(|_| LinearConfig::new(8, 8).init(device)).collect()
/// # })?;
/// # let trace = model.trace_forward(&Tensor::<2>::ones([8, 8], &device), |layers: &Vec<Linear>, x| {
/// #     Outputs::none().with("y", layers.iter().fold(x, |x, layer| layer.forward(x)))
/// # })?;
/// # let plan = Plan::auto(&trace, &Machine::local(2)?)?;
/// let mut pipeline = Pipeline::new(&model, &trace, &plan).start()?;
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
/// let pipeline = Pipeline::new(&model, &trace, &plan).source(source).start()?;
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
    let options = ExportOptions {
        modules: Some(options.modules.clone().unwrap_or_else(of_model)),
        ..options.clone()
    };
    let ranks = snapshots(pipeline)?.into_iter();
    let tensors: Vec<SaveTensor> = ranks.flat_map(|rank| rank.tensors).collect();
    let exported = export_tensors(&tensors, to.as_ref(), &options, &());
    exported.map_err(|source| CheckpointsError::Export {
        path: to.as_ref().to_owned(),
        source: Box::new(source),
    })
}
