//! Resolution of directories and URLs on the command line.

use std::{ffi::OsStr, fs, path::Path, sync::Arc};

use anyhow::{Context, bail};
use tinderbox_checkpoint::store::BucketStore;
use tinderbox_checkpoint::{Checkpoint, ErrorClass, LoadError, Pretrained, Run, SavedTensors};

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
        Some(url) => Ok(Run::on(Arc::new(BucketStore::from_url(url)?))),
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
pub(super) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    let place = Run::local("run").step_place(step);
    (place.file_name() == Some(OsStr::new(name))).then_some(step)
}

/// Returns whether an error means that files are damaged or missing.
pub(super) fn is_lost(error: &LoadError) -> bool {
    matches!(error.class(), ErrorClass::Damaged | ErrorClass::Missing)
}

impl Place {
    /// Resolves a directory or URL.
    pub(super) fn of(dir: &Path) -> anyhow::Result<Self> {
        let Some(place) = Self::find(dir)? else {
            bail!(
                "{} is neither a checkpoint (it has no {MANIFEST_FILE}) nor a run (it has no directory of a step, such as \
                 step-00000100)",
                run_at(dir)?.place().display()
            );
        };
        Ok(place)
    }

    /// Resolves a directory or URL; returns `None` if it contains neither a checkpoint nor a run.
    fn find(dir: &Path) -> anyhow::Result<Option<Self>> {
        let step = split(dir).and_then(|(run, name)| Some((run, step_of(name)?)));
        if url_of(dir).is_none() {
            // The path of a link ends without a separator: otherwise it would be the path of the target, which may not exist.
            let is_link = dir.components().as_path().is_symlink();
            if !(step.is_some() && is_link) {
                fs::metadata(dir).with_context(|| format!("{} can't be read", dir.display()))?;
            }
            if step.is_some() || dir.join(MANIFEST_FILE).exists() {
                return Ok(Some(Self::Step(Box::new(Checkpoint::open(dir)))));
            }
        } else if let Some((run, step)) = step {
            return match run_at(run)?.open(step) {
                // The step does not exist, which is not damage.
                Err(error @ LoadError::NotPublished { .. }) => Err(error.into()),
                opened => Ok(Some(Self::Step(Box::new(opened)))),
            };
        }
        let run = run_at(dir)?;
        let steps = run.steps()?;
        Ok((!steps.is_empty()).then_some(Self::Run(run, steps)))
    }

    /// Returns the checkpoint of a step, or the newest undamaged one; the library warns about each newer one.
    pub(super) fn look_into(self, step: Option<u64>) -> anyhow::Result<Checkpoint> {
        match (self, step) {
            (Self::Run(run, _), Some(step)) => Ok(run.open(step)?),
            (Self::Run(run, _), None) => {
                let latest = run.latest()?.context("the run no longer has any steps")?;
                Ok(latest.checkpoint)
            }
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
        }
    }

    /// Returns the checkpoint of a step, or the newest one of a run. It never falls back to an older one.
    fn newest(self) -> anyhow::Result<Checkpoint> {
        let (run, steps) = match self {
            Self::Step(opened) => return Ok((*opened)?),
            Self::Run(run, steps) => (run, steps),
        };
        let [older @ .., newest] = &steps[..] else {
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
}

/// Opens the checkpoint of a step directory, or the newest one of a run. It never falls back to an older one.
pub(super) fn open(dir: &Path) -> anyhow::Result<Checkpoint> {
    Place::of(dir)?.newest()
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

/// Opens a checkpoint, or files of another program.
pub(crate) fn open_weights(from: &Path) -> anyhow::Result<Weights> {
    let place = match url_of(from) {
        Some(_) => Some(Place::of(from)?),
        None if from.exists() && !from.is_dir() => None,
        None => Place::find(from)?,
    };
    match place {
        Some(place) => place.newest().map(Weights::Checkpoint),
        None => Ok(Weights::Pretrained(Pretrained::open(from)?)),
    }
}
