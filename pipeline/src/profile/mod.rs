//! Measures the time and memory of each block of a model on a device, alone.

mod blocks;
mod report;
mod run;
mod times;
mod together;

use std::fmt;
use std::path::PathBuf;

use burn::tensor::Device;
use tinderbox_fake::DeviceLabel;
use tinderbox_planner::Rates;

pub use report::{BlockProfile, PROFILE_VERSION, Profile, Spread};
pub(crate) use together::together;

use crate::ProfileError;
use crate::batch::Batch;
use crate::plan::Planning;
use crate::trace::Trace;

/// How blocks are measured, with defaults.
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
/// let example = Tensor::<2>::zeros([2, 8], &Device::flex());
/// let trace = model.trace(&example, |net: &Net, x| {
///     let y = net.layers.iter().fold(x, |x, layer| layer.forward(x));
///     Outputs::loss(y.mean())
/// })?;
/// let profile = Profiler::new(&trace).depth(2).repetitions(3).measure()?;
/// assert_eq!(profile.blocks.len(), 4);
/// assert!(profile.to_string().contains("layers.3"));
/// let plan = Planner::new(&trace, &Machine::local(2)?).times(profile.times(&trace)?).plan()?;
/// assert_eq!(plan.stages().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Profiler<'a, B> {
    trace: &'a Trace<B>,
    device: Device,
    /// The settings, without a measurement.
    profile: Profile,
    cache: Option<PathBuf>,
    progress: Option<Box<Progress<'a>>>,
}

/// Is called before every block is measured: how many are done, how many there are, its name.
type Progress<'a> = dyn Fn(usize, usize, &str) + 'a;

impl<'a, B: Batch> Profiler<'a, B> {
    /// On the CPU, on one thread, by blocks two levels deep, seven repetitions after two to warm up.
    pub fn new(trace: &'a Trace<B>) -> Self {
        Self {
            trace,
            device: Device::flex(),
            profile: Profile::unmeasured(),
            cache: None,
            progress: None,
        }
    }

    /// The device that is measured.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Self {
        self.device = device.clone().without_autodiff();
        self
    }

    /// How deep in the module tree a block is: 1 takes a field of the model whole, 2 an element of its
    /// lists, such as `blocks.3`. At least 1.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.profile.depth = depth.max(1);
        self
    }

    /// Types of modules that are never divided, however deep the blocks are, such as `Linear`.
    #[must_use]
    pub fn basic_blocks<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        self.profile.basic_blocks = types.into_iter().map(Into::into).collect();
        self
    }

    /// Runs before those that count.
    #[must_use]
    pub fn warm_up(mut self, runs: usize) -> Self {
        self.profile.warm_up = runs;
        self
    }

    /// Runs that count, at least one. Their median is reported, without those that are further from the
    /// middle half than one and a half times its width (Tukey 1977).
    #[must_use]
    pub fn repetitions(mut self, runs: usize) -> Self {
        self.profile.repetitions = runs.max(1);
        self
    }

    /// How many ranks run at the same time: as many threads run each block at once, since ranks on one
    /// machine share its memory and caches. One by default.
    #[must_use]
    pub fn beside(mut self, ranks: usize) -> Self {
        self.profile.beside = ranks.max(1);
        self
    }

    /// CPU threads of each rank.
    #[must_use]
    pub fn threads_per_rank(mut self, threads: usize) -> Self {
        self.profile.threads = threads.max(1);
        self
    }

    /// A directory that keeps profiles by graph, device and settings: what is there is not measured again.
    #[must_use]
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cache = Some(directory.into());
        self
    }

    /// Calls `progress` before every block is measured: how many are done, how many there are, its name.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(usize, usize, &str) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Measures. Each block gets values of its own, and no more memory than it needs is allocated at a time.
    ///
    /// # Errors
    ///
    /// When the graph can't be cut into blocks, a program fails on the device, or the cache can't be
    /// written.
    pub fn measure(self) -> Result<Profile, ProfileError> {
        // The same allocator settings as in a pipeline.
        tinderbox_pages::keep_freed_blocks();
        let planning = Planning::new(self.trace, &Rates::default(), None)?;
        let mut profile = Profile {
            graph: planning.graph_digest(),
            device: DeviceLabel::of(&self.device).to_string(),
            ..self.profile
        };
        let cached = self.cache.as_ref().map(|dir| dir.join(profile.file_name()));
        // A file that is torn or of another version is written anew.
        let known = cached.as_ref().and_then(|path| Profile::load(path).ok());
        if let Some(known) = known.filter(|known| known.is_like(&profile)) {
            return Ok(known);
        }
        let blocks = blocks::of_chain(&planning, profile.depth, &profile.basic_blocks);
        let partition = blocks::partition(&planning, &blocks);
        let divided = planning.divide(&partition)?;
        let runner = run::Runner {
            joint: &planning.joint,
            device: &self.device,
            profile: &profile,
        };
        let count = blocks.len();
        let blocks = blocks.into_iter().zip(&divided.programs).enumerate();
        let measured = blocks.map(|(index, (block, programs))| {
            if let Some(progress) = &self.progress {
                progress(index, count, &block.name);
            }
            let times = runner.measure(programs)?;
            Ok(blocks::report(&planning, index, block, programs, times))
        });
        profile.blocks = measured.collect::<Result<_, ProfileError>>()?;
        if let Some(path) = cached {
            profile.save(&path)?;
        }
        Ok(profile)
    }
}

impl<B> fmt::Debug for Profiler<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profiler")
            .field("device", &self.device)
            .field("depth", &self.profile.depth)
            .field("repetitions", &self.profile.repetitions)
            .finish_non_exhaustive()
    }
}
