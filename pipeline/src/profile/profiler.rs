//! The settings of a measurement.

use std::path::PathBuf;

use burn::tensor::Device;
use tinderbox_fake::DeviceLabel;
use tinderbox_planner::Rates;

use super::{Profile, blocks, run};
use crate::plan::{Planning, graph_digest};
use crate::{Batch, ProfileError, Trace};

/// Measures the blocks of a model; all settings have defaults.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use tinderbox_deferred::Deferred;
/// use tinderbox_pipeline::{Machine, Outputs, Planner, Profiler, Traceable};
///
/// #[derive(Module, Debug)]
/// struct Net {
///     layers: Vec<Linear>,
/// }
///
/// let model = Deferred::new(|device| Net {
///     layers: (0..4).map(|_| LinearConfig::new(8, 8).init(device)).collect(),
/// })?;
/// let batch = Tensor::<2>::zeros([8, 8], &Device::flex());
/// let trace = model.trace(&batch, 4, |net: &Net, x| {
///     let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
///     Outputs::loss(y.mean())
/// })?;
/// let profile = Profiler::new(&trace).depth(2).repetitions(3).measure()?;
/// assert_eq!(profile.blocks.len(), 4);
/// assert!(profile.to_string().contains("layers.3"));
/// let plan = Planner::new(&trace, &Machine::local(2)?).times(profile.times(&trace)?).plan()?;
/// assert_eq!(plan.stages.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(derive_more::Debug)]
#[debug(
    "Profiler {{ device: {device:?}, depth: {}, repetitions: {}, .. }}",
    profile.depth, profile.repetitions
)]
#[must_use]
pub struct Profiler<'a, B> {
    trace: &'a Trace<B>,
    device: Device,
    /// The settings, without measurements.
    profile: Profile,
    cache: Option<PathBuf>,
    progress: Option<Box<Progress<'a>>>,
}

/// A callback before every block: the number of blocks done, their total number, the name of the block.
type Progress<'a> = dyn Fn(usize, usize, &str) + 'a;

impl<'a, B: Batch> Profiler<'a, B> {
    /// Creates a profiler for the CPU: one thread, blocks two levels deep, seven repetitions after two
    /// warm-up runs.
    pub fn new(trace: &'a Trace<B>) -> Self {
        Self {
            trace,
            device: Device::flex(),
            profile: Profile::unmeasured(),
            cache: None,
            progress: None,
        }
    }

    /// Sets the device that is measured.
    pub fn device(mut self, device: &Device) -> Self {
        self.device = device.clone().without_autodiff();
        self
    }

    /// Sets the depth of blocks in the module tree, at least 1: 1 makes every field of the model a
    /// block, 2 every element of its lists, such as `blocks.3`.
    pub fn depth(mut self, depth: usize) -> Self {
        self.profile.depth = depth.max(1);
        self
    }

    /// Sets types of modules that are never divided, whatever the depth, such as `Linear`.
    pub fn basic_blocks<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.profile.basic_blocks = types.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the number of warm-up runs.
    pub fn warm_up(mut self, runs: usize) -> Self {
        self.profile.warm_up = runs;
        self
    }

    /// Sets the number of measured runs, at least one. The profile has their median without outliers: runs that
    /// are further from the middle half than one and a half times its width (Tukey 1977).
    pub fn repetitions(mut self, runs: usize) -> Self {
        self.profile.repetitions = runs.max(1);
        self
    }

    /// Sets the number of ranks that run at the same time. This number of threads runs each block at once, because ranks on
    /// one machine share its memory and caches. The blocks run one after the other, so the effect of other stages on the
    /// caches is not measured. Default: 1.
    pub fn beside(mut self, ranks: usize) -> Self {
        self.profile.beside = ranks.max(1);
        self
    }

    /// Sets the number of CPU threads of each rank.
    pub fn threads_per_rank(mut self, threads: usize) -> Self {
        self.profile.threads = threads.max(1);
        self
    }

    /// Measures blocks as a streamed model runs them, with parameters that were just read and are in no cache of a core. Each
    /// run uses another copy of the parameters. The copies have 128 MiB together; there are at most 64.
    pub fn streamed(mut self) -> Self {
        self.profile.streamed = true;
        self
    }

    /// Sets a directory that caches profiles by graph, device and settings.
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache = Some(directory.into());
        self
    }

    /// Calls `progress` before every block with the number of blocks done, their total number and the
    /// block's name.
    pub fn progress(mut self, progress: impl Fn(usize, usize, &str) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Measures the blocks. The inputs of each block are generated, and memory is allocated for one
    /// block at a time.
    ///
    /// # Errors
    ///
    /// When the graph can't be cut into blocks, a program fails on the device, or the cache can't be
    /// written.
    pub fn measure(self) -> Result<Profile, ProfileError> {
        // The same allocator settings as in a pipeline.
        tinderbox_memory::keep_freed_blocks();
        let planning = Planning::new(self.trace, None, &Rates::default(), None)?;
        let mut profile = Profile {
            graph: graph_digest(&planning.joint),
            device: DeviceLabel::of(&self.device).to_string(),
            ..self.profile
        };
        let cached = self.cache.as_ref().map(|dir| dir.join(profile.file_name()));
        // A file that is damaged or of another version is overwritten.
        let known = cached.as_ref().and_then(|path| Profile::load(path).ok());
        if let Some(known) = known.filter(|known| known.is_like(&profile)) {
            return Ok(known);
        }
        let (blocks, programs) = blocks::divide(&planning, &profile)?;
        let count = blocks.len();
        let blocks = blocks.into_iter().zip(&programs).enumerate();
        let measured = blocks.map(|(index, (block, programs))| {
            if let Some(progress) = &self.progress {
                progress(index, count, &block.name);
            }
            let joint = &planning.joint;
            let times = run::measure(joint, &self.device, &profile, programs)?;
            Ok(blocks::report(joint, index, block, programs, times))
        });
        profile.blocks = measured.collect::<Result<_, ProfileError>>()?;
        if let Some(path) = cached {
            profile.save(&path)?;
        }
        Ok(profile)
    }
}
