//! Resolution of directories and URLs on the command line.

use std::ffi::OsStr;
use std::num::ParseIntError;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use tinderbox_checkpoint::store::{BucketError, BucketStore};
use tinderbox_checkpoint::{Checkpoint, ErrorClass, LoadError, Pretrained, Run, SavedTensors};

use crate::outcome::{Missing, Outcome};

/// A checkpoint on the command line.
#[derive(Args, Debug)]
pub(crate) struct Chosen {
    /// Step directory, or run directory for its newest step, or the URL of one in a bucket
    dir: PathBuf,
    /// Use this step of the run instead of the newest
    #[arg(long, value_name = "STEP", value_parser = parse_step)]
    step: Option<u64>,
}

/// Parses a step, which has digits only.
pub(crate) fn parse_step(text: &str) -> Result<u64, ParseIntError> {
    // The standard library accepts a plus sign, which no step has.
    text.replace('+', "x").parse()
}

impl Chosen {
    /// Opens the checkpoint, see [`open`].
    pub(super) fn open(&self) -> anyhow::Result<Checkpoint> {
        open(&self.dir, self.step)
    }

    /// Opens the checkpoint like [`open`](Self::open). Without a step, it is the newest undamaged one of a run; the library
    /// warns about each newer one.
    pub(super) fn look_into(&self) -> anyhow::Result<Checkpoint> {
        match (Place::of(&self.dir)?, self.step) {
            (Place::Run(run, _), None) => {
                let latest = run.latest()?.context("the run no longer has any steps")?;
                Ok(latest.checkpoint)
            }
            (place, step) => place.open(step),
        }
    }
}

/// The file whose presence makes a directory a checkpoint.
const MANIFEST_FILE: &str = "manifest.json";

/// A directory that contains a checkpoint or the checkpoints of a run.
pub(super) enum Place {
    /// A step, or the reason why it can't be opened.
    Step(Box<Result<Checkpoint, LoadError>>),
    /// The directory of a run, with its steps, sorted and not empty.
    Run(Run, Vec<u64>),
}

/// Returns the run in a directory or, for a URL, in a bucket.
pub(super) fn run_at(dir: &Path) -> anyhow::Result<Run> {
    match url_of(dir) {
        Some(url) => {
            let store = BucketStore::from_url(url).map_err(|error| match error {
                BucketError::Feature { place, feature } => anyhow!(
                    "{place} requires the feature `{feature}`, without which this command was built: install it with \
                     `cargo install --path cli --features {feature}`"
                ),
                error => error.into(),
            })?;
            Ok(Run::on(Arc::new(store)))
        }
        None if dir.to_string_lossy().contains("://") => {
            bail!("{} is a URL that is not UTF-8", dir.display())
        }
        None => Ok(Run::local(dir)),
    }
}

/// Returns the argument as a URL if it is one.
pub(super) fn url_of(dir: &Path) -> Option<&str> {
    dir.to_str().filter(|text| text.contains("://"))
}

/// Splits a path or a URL into the run and the name in it.
pub(super) fn split(dir: &Path) -> Option<(&Path, &str)> {
    if let Some(url) = url_of(dir) {
        let (run, name) = url.trim_end_matches('/').rsplit_once('/')?;
        return Some((Path::new(run), name));
    }
    let parent = dir.parent().filter(|run| !run.as_os_str().is_empty());
    let name = dir.file_name()?.to_str()?;
    Some((parent.unwrap_or(Path::new(".")), name))
}

/// Returns the step of a directory name, in the library's form.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    let place = Run::local("run").step_place(step);
    (place.file_name() == Some(OsStr::new(name))).then_some(step)
}

/// Returns whether the last name of a path or a URL is the name of a step.
pub(super) fn has_name_of_step(dir: &Path) -> bool {
    split(dir).is_some_and(|(_, name)| step_of(name).is_some())
}

/// Returns an error if a directory to write to is in the directory of a step, and would be removed with it. For a URL, only
/// [`has_name_of_step`] tells.
pub(super) fn refuse_in_step(to: &Path) -> anyhow::Result<()> {
    let absolute = path::absolute(to)?;
    let existing = absolute.ancestors().find_map(|dir| dir.canonicalize().ok());
    let existing = existing.unwrap_or_default();
    // A directory of another program may have the name of a step.
    let is_step = |dir: &&Path| has_name_of_step(dir) && dir.join(MANIFEST_FILE).exists();
    match existing.ancestors().find(is_step) {
        Some(step) if url_of(to).is_none() => bail!(
            "{} is a step, and what is in it is removed with it: use another place than {}",
            step.display(),
            to.display()
        ),
        _ => Ok(()),
    }
}

/// Returns whether an error means that files are damaged or missing.
pub(super) fn is_lost(error: &LoadError) -> bool {
    matches!(error.class(), ErrorClass::Damaged | ErrorClass::Missing)
}

/// Returns the outcome of a check that has found an error.
pub(super) fn outcome_of(error: LoadError) -> Outcome {
    match is_lost(&error) {
        true => Outcome::NO,
        false => Outcome::of(&error.into()),
    }
}

impl Place {
    /// Resolves a directory or URL.
    pub(super) fn of(dir: &Path) -> anyhow::Result<Self> {
        let Some(place) = Self::find(dir)? else {
            bail!(Missing(format!(
                "{} is neither a checkpoint (it has no {MANIFEST_FILE}) nor a run (it has no directory of a step, such as \
                 step-00000100)",
                run_at(dir)?.place().display()
            )));
        };
        Ok(place)
    }

    /// Resolves a directory or URL; returns `None` if it contains neither a checkpoint nor a run.
    fn find(dir: &Path) -> anyhow::Result<Option<Self>> {
        let step = split(dir).and_then(|(run, name)| Some((run, step_of(name)?)));
        if url_of(dir).is_none() {
            // The path of a link ends without a separator: otherwise it would be the path of the target, which may not exist.
            let is_link = dir.components().as_path().is_symlink();
            if !(step.is_some() && is_link)
                && let Err(error) = fs::metadata(dir)
            {
                if let Some((run, step)) = step
                    && error.kind() == io::ErrorKind::NotFound
                {
                    return Err(unknown_step(&run_at(run)?, step));
                }
                return Err(error).with_context(|| format!("{} can't be read", dir.display()));
            }
            if step.is_none() && dir.join(MANIFEST_FILE).exists() {
                return Ok(Some(Self::Step(Box::new(Checkpoint::open(dir)))));
            }
        }
        if let Some((run, step)) = step {
            let run = run_at(run)?;
            return match run.open(step) {
                // The step does not exist, which is not damage.
                Err(LoadError::NotPublished { exists: false, .. }) => Err(unknown_step(&run, step)),
                opened => Ok(Some(Self::Step(Box::new(opened)))),
            };
        }
        let run = run_at(dir)?;
        let steps = run.steps()?;
        Ok((!steps.is_empty()).then_some(Self::Run(run, steps)))
    }

    /// Returns the checkpoint of a step, or the newest one of a run. It never falls back to an older one.
    fn open(self, step: Option<u64>) -> anyhow::Result<Checkpoint> {
        match (self, step) {
            (Self::Step(opened), step) => {
                let checkpoint = (*opened)?;
                let (dir, found) = (checkpoint.dir().display(), checkpoint.step());
                match step.filter(|step| *step != found) {
                    Some(step) => bail!(
                        "{dir} is the directory of step {found}: use the run directory to choose step {step}"
                    ),
                    None => Ok(checkpoint),
                }
            }
            (Self::Run(run, steps), Some(step)) if steps.contains(&step) => Ok(run.open(step)?),
            (Self::Run(run, _), Some(step)) => Err(unknown_step(&run, step)),
            (Self::Run(run, steps), None) => newest(&run, &steps),
        }
    }
}

/// Returns the error of a step that a run does not have, which names the steps that it has.
pub(super) fn unknown_step(run: &Run, step: u64) -> anyhow::Error {
    /// Number of steps that are named.
    const NAMED: usize = 10;
    let place = run.place().display().to_string();
    let steps = match run.steps() {
        Ok(steps) => steps,
        Err(error) => return error.into(),
    };
    let named = &steps[steps.len().saturating_sub(NAMED)..];
    let list: Vec<String> = named.iter().map(u64::to_string).collect();
    let (list, count) = (list.join(", "), steps.len());
    let existing = match count {
        0 => "it has no steps".to_owned(),
        1 => format!("its only step is {list}"),
        2..=NAMED => format!("its steps are {list}"),
        _ => format!("the newest of its {count} steps are {list}"),
    };
    Missing(format!("{place} has no step {step}: {existing}")).into()
}

/// Returns the newest checkpoint of a run.
fn newest(run: &Run, steps: &[u64]) -> anyhow::Result<Checkpoint> {
    let [older @ .., newest] = steps else {
        bail!("the run no longer has any steps");
    };
    run.open(*newest).with_context(|| {
        let older = older.last().map(|step| run.step_place(*step));
        let older = older.map(|dir| format!("; use {} for the previous step", dir.display()));
        let (place, older) = (run.place(), older.unwrap_or_default());
        let place = place.display();
        format!("the newest step of {place}, {newest}, can't be used{older}")
    })
}

/// Opens the checkpoint of a step directory, or of a run: this step, or the newest one. It never falls back to an older one.
pub(super) fn open(dir: &Path, step: Option<u64>) -> anyhow::Result<Checkpoint> {
    Place::of(dir)?.open(step)
}

/// A checkpoint, or files of another program.
pub(crate) enum Weights {
    Checkpoint(Checkpoint),
    Pretrained(Pretrained),
}

impl AsRef<SavedTensors> for Weights {
    fn as_ref(&self) -> &SavedTensors {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.as_ref(),
            Self::Pretrained(files) => files.as_ref(),
        }
    }
}

/// Opens a checkpoint, of this step of a run or of its newest one, or files of another program.
pub(crate) fn open_weights(from: &Path, step: Option<u64>) -> anyhow::Result<Weights> {
    let place = match url_of(from) {
        Some(_) => Some(Place::of(from)?),
        None if from.exists() && !from.is_dir() => None,
        None => Place::find(from)?,
    };
    match (place, step) {
        (Some(place), step) => place.open(step).map(Weights::Checkpoint),
        (None, None) => Ok(Weights::Pretrained(Pretrained::open(from)?)),
        (None, Some(_)) => bail!("{} is not a run: leave out --step", from.display()),
    }
}
