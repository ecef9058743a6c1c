//! A profile as a table and JSON.

use std::path::Path;
use std::time::Duration;
use std::{fmt, fs, io, iter};

use serde::{Deserialize, Serialize};
use tinderbox_planner::{files, table};

use crate::ProfileError;

/// Version of the profile file that this build writes and reads.
pub const PROFILE_VERSION: u32 = 1;

/// The median of several times, and their spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// The median in nanoseconds.
    pub median_ns: u64,
    /// The width of the middle half of the runs, in nanoseconds.
    pub spread_ns: u64,
    /// The number of runs without outliers.
    pub runs: usize,
}

impl Spread {
    /// Computes the spread of runs without outliers: runs that are further from the middle half than one
    /// and a half times its width (Tukey 1977).
    pub(super) fn of(runs: impl Iterator<Item = Duration>) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut runs: Vec<u64> = runs.map(nanoseconds).collect();
        runs.sort_unstable();
        let quarter = |runs: &[u64], of: usize| runs.get(runs.len() * of / 4).copied();
        let (Some(first), Some(third)) = (quarter(&runs, 1), quarter(&runs, 3)) else {
            return Self::default();
        };
        let reach = (third - first) / 2 * 3;
        runs.retain(|run| *run >= first.saturating_sub(reach) && *run <= third + reach);
        Self {
            median_ns: runs[runs.len() / 2],
            spread_ns: third - first,
            runs: runs.len(),
        }
    }
}

/// The time and memory of one block per micro-batch. Times are measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockProfile {
    /// The path of the module.
    pub name: String,
    /// The positions of its forward operations, `[from, to)`.
    pub operations: (usize, usize),
    /// The time of `F`.
    pub forward: Spread,
    /// The time of `B`.
    pub backward: Spread,
    /// The time of `I`.
    pub input_gradient: Spread,
    /// The time of `W`.
    pub weight_gradient: Spread,
    /// The bytes of its values.
    #[serde(flatten)]
    pub sizes: BlockSizes,
}

/// The bytes of the values of one block per micro-batch, counted along the program, without the workspace of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSizes {
    /// The peak bytes during `F`, parameters and inputs included.
    pub forward_peak_bytes: u64,
    /// The peak bytes during `B`.
    pub backward_peak_bytes: u64,
    /// Bytes that are kept between `F` and the backward.
    pub saved_bytes: u64,
    /// Bytes that are kept between `I` and `W`.
    pub saved_for_weight_bytes: u64,
    /// Bytes of its trainable parameters.
    pub parameter_bytes: u64,
    /// Bytes of its other parameters.
    pub buffer_bytes: u64,
    /// Bytes of values from earlier blocks.
    pub input_bytes: u64,
    /// Bytes of values for later blocks.
    pub output_bytes: u64,
}

/// The time and memory of every block of a model on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// [`PROFILE_VERSION`].
    pub version: u32,
    /// The digest of the program that was measured.
    pub graph: String,
    /// The device.
    pub device: String,
    /// The depth of blocks in the module tree.
    pub depth: usize,
    /// Types of modules that are not divided.
    pub basic_blocks: Vec<String>,
    /// CPU threads of each rank.
    pub threads: usize,
    /// Ranks that ran at the same time.
    pub beside: usize,
    /// The number of warm-up runs.
    pub warm_up: usize,
    /// The number of measured runs of each thread.
    pub repetitions: usize,
    /// Whether the parameters were in no cache of a core, as in a streamed model that has just read them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub streamed: bool,
    /// The blocks in the order of the forward.
    pub blocks: Vec<BlockProfile>,
}

impl Profile {
    /// The settings of [`Profiler::new`](super::Profiler::new), without measurements.
    pub(super) fn unmeasured() -> Self {
        Self {
            version: PROFILE_VERSION,
            graph: String::new(),
            device: String::new(),
            depth: 2,
            basic_blocks: Vec::new(),
            threads: 1,
            beside: 1,
            warm_up: 2,
            repetitions: 7,
            streamed: false,
            blocks: Vec::new(),
        }
    }

    /// Whether an unmeasured profile is of the same program, device and settings.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let unmeasured = Self {
            blocks: Vec::new(),
            ..self.clone()
        };
        unmeasured == *other
    }

    /// The name of its file in a cache.
    pub(super) fn file_name(&self) -> String {
        let is_other = |c: char| !c.is_ascii_alphanumeric();
        let device = self.device.replace(is_other, "-");
        let basic = self.basic_blocks.join("-");
        let kind = if self.streamed { "-streamed" } else { "" };
        format!(
            "{}-{device}-d{}-{basic}-t{}x{}-r{}{kind}.json",
            self.graph, self.depth, self.threads, self.beside, self.repetitions
        )
    }

    /// Writes the profile as JSON.
    ///
    /// # Errors
    ///
    /// When the file or its directory can't be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), ProfileError> {
        let path = path.as_ref();
        let failed = unusable(path, "written");
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(&failed)?;
        }
        fs::write(path, self.to_json()).map_err(failed)
    }

    /// Reads a profile from a file.
    ///
    /// # Errors
    ///
    /// When the file can't be read or is not a profile of this version.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ProfileError> {
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(unusable(path, "read"))?;
        let text = files::without_mark(&text);
        let found = files::version(text).map_err(ProfileError::Json)?;
        let expected = PROFILE_VERSION;
        if expected != found {
            return Err(ProfileError::Version { expected, found });
        }
        serde_json::from_str(text).map_err(ProfileError::Json)
    }

    /// Returns the profile as JSON.
    pub fn to_json(&self) -> String {
        files::json(self)
    }
}

impl BlockProfile {
    /// Its times, in the order of [`Compute::ALL`](crate::schedule::Compute::ALL).
    pub(super) const fn times(&self) -> [Spread; 4] {
        [
            self.forward,
            self.backward,
            self.input_gradient,
            self.weight_gradient,
        ]
    }
}

fn unusable(path: &Path, action: &'static str) -> impl Fn(io::Error) -> ProfileError {
    move |source| ProfileError::Io {
        path: path.to_owned(),
        action,
        source,
    }
}

fn milliseconds(spread: Spread) -> String {
    let (median, half) = (spread.median_ns as f64 / 1e6, spread.spread_ns as f64 / 2e6);
    format!("{median:.3} ± {half:.3}")
}

fn mib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / (1 << 20) as f64)
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = "block|F ms|B ms|I ms|W ms|saved|peak F|peak B|parameters|in|out";
        let rows = self.blocks.iter().map(|block| {
            let name = match block.name.is_empty() {
                true => "(root)",
                false => &block.name,
            };
            let sizes = &block.sizes;
            let bytes = [
                sizes.saved_bytes,
                sizes.forward_peak_bytes,
                sizes.backward_peak_bytes,
                sizes.parameter_bytes + sizes.buffer_bytes,
                sizes.input_bytes,
                sizes.output_bytes,
            ];
            let numbers = block.times().map(milliseconds).into_iter();
            let row = iter::once(name.to_owned()).chain(numbers);
            row.chain(bytes.map(mib))
        });
        let table = table(header.split('|'), rows, |at| at > 0);
        writeln!(
            f,
            "{} on {} thread(s), {} rank(s) at once; medians of {} run(s) a rank, ± half of the middle \
             half's width; sizes in MiB",
            self.device, self.threads, self.beside, self.repetitions
        )?;
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_do_not_count() {
        let runs = |times: &[u64]| Spread::of(times.iter().map(|ns| Duration::from_nanos(*ns)));
        let found = runs(&[100, 104, 98, 101, 5000, 99, 103]);
        assert_eq!((found.median_ns, found.spread_ns, found.runs), (101, 5, 6));
        assert_eq!(runs(&[7]).median_ns, 7);
        assert_eq!(runs(&[]), Spread::default());
    }
}
