//! Random sequences of operations on a run, compared with a model: if a checkpoint could be loaded before an
//! operation, one can be loaded after it, also if the operation is interrupted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tinderbox_checkpoint::{
    CheckpointMeta, LoadError, Retention, Run, SaveError, SaveTensor, store::Store,
};
use tinderbox_checkpoint_tests::volatile::{Fault, Volatile};
use tinderbox_checkpoint_tests::{Random, TIMEOUT, load, meta, small_contents};

const SEQUENCES: u64 = 300;
const OPERATIONS: u64 = 24;
/// Number of subsets of unsynced changes that are tried at a power failure.
const PARTS: usize = 8;

/// An operation on a run.
#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Saves a step, and applies retention.
    Save {
        step: u64,
        replace: bool,
        keep: Retention,
    },
    /// Resumes from the newest intact checkpoint; sets newer damaged ones aside.
    Resume,
    Prune(Retention),
    Clean,
}

/// The way an operation ends.
#[derive(Clone, Copy, Debug)]
enum Cut {
    No,
    /// The disk fails from an operation on.
    Disk(u64),
    Power(u64),
}

/// A run and its model.
struct Model {
    store: Volatile,
    /// The contents of each step that was ever saved, by seed.
    saved: BTreeMap<u64, BTreeSet<u64>>,
    /// Each intact step, with its seed.
    whole: BTreeMap<u64, u64>,
    seed: u64,
}

fn run_of(store: &Volatile) -> Run {
    Run::on(Arc::new(store.clone()))
}

/// Returns every intact checkpoint, with the seed of its contents.
fn whole_steps(store: &Volatile, saved: &BTreeMap<u64, BTreeSet<u64>>) -> BTreeMap<u64, u64> {
    let run = run_of(store);
    let steps = run.steps().unwrap().into_iter();
    let whole = steps.filter_map(|step| {
        let checkpoint = run.open(step).ok()?;
        checkpoint.verify().ok()?;
        let contents = load(&checkpoint).expect("every byte is right");
        let seeds = saved.get(&step).into_iter().flatten();
        let seed = seeds
            .copied()
            .find(|seed| contents == small_contents(*seed));
        Some((
            step,
            seed.expect("what is whole is what was saved for the step"),
        ))
    });
    whole.collect()
}

fn save(run: &Run, step: u64, replace: bool, seed: u64) -> Result<(), SaveError> {
    let attempt = run.begin(CheckpointMeta {
        replace,
        ..meta(step, 1)
    })?;
    let contents = small_contents(seed);
    let tensors = contents.0.iter();
    let tensors = tensors
        .map(|((role, name), data)| SaveTensor::whole(name.clone(), *role, data.clone()))
        .collect::<Vec<_>>();
    // One thread, so that the order of operations is deterministic.
    let rank = attempt.handle().threads(1);
    rank.write_rank(0, &tensors, &contents.1, &())?;
    attempt.publish(TIMEOUT).map(drop)
}

fn set_aside_dirs(store: &Volatile) -> BTreeSet<String> {
    run_of(store)
        .set_aside_dirs()
        .unwrap()
        .into_iter()
        .collect()
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            store: Volatile::default(),
            saved: BTreeMap::new(),
            whole: BTreeMap::new(),
            seed: seed << 16,
        }
    }

    /// Damages a file of a checkpoint.
    fn damage(&mut self, random: &mut Random) {
        let steps = run_of(&self.store).steps().unwrap();
        if steps.is_empty() {
            return;
        }
        // Most often the newest, as with a full disk or a power failure.
        let at = match random.next() % 3 {
            0 => random.next() as usize % steps.len(),
            _ => steps.len() - 1,
        };
        let dir = format!("step-{:08}", steps[at]);
        let mut files = self.store.list(&dir).unwrap();
        files.retain(|file| file.name != "attempt.json");
        if files.is_empty() {
            return;
        }
        let name = &files[random.next() as usize % files.len()].name;
        let path = format!("{dir}/{name}");
        let file = self.store.open(&path).unwrap();
        let mut bytes = vec![0; file.bytes() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        self.store.remove_file(&path).unwrap();
        let kind = random.next() % 3;
        if kind > 0 {
            match kind {
                1 if !bytes.is_empty() => {
                    let at = random.next() as usize % bytes.len();
                    bytes[at] ^= 1 << (random.next() % 8);
                }
                _ => bytes.truncate(bytes.len() / 2),
            }
            let mut file = self.store.create(&path).unwrap();
            file.write_all(&bytes).unwrap();
            file.finish().unwrap();
        }
        self.store.sync_dir(&dir).unwrap();
        self.whole.remove(&steps[at]);
    }

    fn act(&mut self, operation: Operation) -> Result<(), String> {
        let run = run_of(&self.store);
        let message_of = |error: &dyn std::error::Error| tinderbox_checkpoint_tests::chain(error);
        match operation {
            Operation::Save {
                step,
                replace,
                keep,
            } => {
                save(&run, step, replace, self.seed).map_err(|error| message_of(&error))?;
                // From here on, the checkpoint is promised to exist.
                self.whole.insert(step, self.seed);
                run.prune_after_save(step, keep)
                    .map_err(|e| message_of(&e))?;
            }
            Operation::Resume => {
                let latest = match run.latest_verified() {
                    Err(LoadError::NoneUsable { .. }) | Ok(None) => return Ok(()),
                    latest => latest.map_err(|error| message_of(&error))?,
                };
                for skipped in latest.expect("looked at above").skipped {
                    run.set_aside(skipped.step)
                        .map_err(|error| message_of(&error))?;
                }
            }
            Operation::Prune(keep) => drop(run.prune(keep).map_err(|error| message_of(&error))?),
            Operation::Clean => drop(run.clean().map_err(|error| message_of(&error))?),
        }
        Ok(())
    }

    /// Runs an operation, completely or not, and compares the store with the model.
    fn check(&mut self, operation: Operation, cut: Cut, random: &mut Random) {
        self.seed += 1;
        // Changes of a failed operation may not be durable.
        let durable = match cut {
            Cut::Power(_) => whole_steps(&self.store.after_power_loss(), &self.saved),
            Cut::No | Cut::Disk(_) => self.whole.clone(),
        };
        let loadable = !self.whole.is_empty() && !durable.is_empty();
        let mut before = self.whole.clone();
        before.retain(|step, seed| durable.get(step) == Some(seed));
        let aside = set_aside_dirs(&self.store);
        if let Operation::Save { step, .. } = operation {
            self.saved.entry(step).or_default().insert(self.seed);
        }
        self.store.set_fault(match cut {
            Cut::No => None,
            Cut::Disk(at) => Some(Fault::From(at)),
            Cut::Power(at) => Some(Fault::PowerLoss(at)),
        });
        let done = self.act(operation);
        let reached = match cut {
            Cut::No => false,
            Cut::Disk(at) | Cut::Power(at) => self.store.operations() >= at,
        };
        self.store.set_fault(None);
        match (cut, reached) {
            (Cut::Power(_), true) => {
                let mut left = self.store.after_power_losses(PARTS, random.next());
                let kept = random.next() as usize % left.len();
                self.store = left.swap_remove(kept);
            }
            // Until the next operation, the system may write unsynced data.
            _ if random.next().is_multiple_of(2) => drop(self.store.sync_dir("")),
            _ => {}
        }
        let what = format!("{operation:?}, {cut:?}: {done:?}, whole before: {before:?}");
        let after = whole_steps(&self.store, &self.saved);
        assert!(!loadable || !after.is_empty(), "the last was lost: {what}");
        if let Operation::Save { step, .. } = operation
            && self.whole.get(&step) == Some(&self.seed)
        {
            assert_eq!(
                after.get(&step),
                Some(&self.seed),
                "a promise is broken: {what}"
            );
        }
        self.check_what_went(operation, &before, &after, &what);
        let left = set_aside_dirs(&self.store);
        assert!(
            left.is_superset(&aside),
            "{aside:?} became {left:?}: {what}"
        );
        assert!(
            reached || done.is_ok() || done.as_ref().is_err_and(|e| e.contains("already exists")),
            "{what}"
        );
        self.whole = after;
        // Cleanup runs eventually.
        if random.next().is_multiple_of(2) {
            run_of(&self.store).clean().unwrap();
            assert_eq!(whole_steps(&self.store, &self.saved), self.whole, "{what}");
        }
    }

    /// An intact checkpoint is removed for two reasons: retention, and a save that replaces it.
    fn check_what_went(
        &self,
        operation: Operation,
        before: &BTreeMap<u64, u64>,
        after: &BTreeMap<u64, u64>,
        what: &str,
    ) {
        for (step, seed) in before {
            if after.get(step) == Some(seed) {
                continue;
            }
            let newer = before.range(step + 1..).count();
            match operation {
                Operation::Save {
                    step: saved,
                    replace: true,
                    ..
                } if saved == *step => assert!(after.contains_key(step), "{what}"),
                Operation::Save { keep, .. } | Operation::Prune(keep) => {
                    let multiple = keep.every.is_some_and(|every| step.is_multiple_of(every));
                    assert!(!multiple, "step {step} is to be kept: {what}");
                    // Damaged ones may count, so that fewer than `last` intact ones are newer.
                    assert!(newer > 0 || !after.is_empty(), "step {step}: {what}");
                }
                Operation::Resume | Operation::Clean => panic!("step {step} went: {what}"),
            }
        }
    }
}

fn retention(random: &mut Random) -> Retention {
    Retention {
        last: 1 + random.next() as usize % 3,
        every: (random.next().is_multiple_of(3)).then_some(4),
    }
}

fn operation(random: &mut Random, newest: u64) -> Operation {
    match random.next() % 10 {
        0..=4 => Operation::Save {
            step: match random.next() % 4 {
                0 => 1 + random.next() % (newest + 1),
                _ => newest + 1,
            },
            replace: false,
            keep: retention(random),
        },
        5 => Operation::Save {
            step: newest.max(1),
            replace: true,
            keep: retention(random),
        },
        6..=7 => Operation::Resume,
        8 => Operation::Prune(retention(random)),
        _ => Operation::Clean,
    }
}

#[test]
fn the_last_loadable_checkpoint_is_never_lost() {
    let (mut losses, mut asides) = (0, 0);
    for seed in 0..SEQUENCES {
        let mut random = Random(seed);
        let mut model = Model::new(seed);
        for _ in 0..OPERATIONS {
            if random.next().is_multiple_of(4) {
                model.damage(&mut random);
            }
            let newest = run_of(&model.store).steps().unwrap().last().copied();
            let mut operation = operation(&mut random, newest.unwrap_or(0));
            if let Operation::Save { step, replace, .. } = &mut operation
                && *replace
            {
                // Only an existing step can be replaced.
                *replace = newest == Some(*step);
            }
            let cut = match random.next() % 4 {
                0 => Cut::Power(1 + random.next() % 70),
                1 => Cut::Disk(1 + random.next() % 70),
                _ => Cut::No,
            };
            println!("sequence {seed}: {operation:?}, {cut:?}");
            model.check(operation, cut, &mut random);
        }
        losses += usize::from(model.whole.is_empty());
        asides += set_aside_dirs(&model.store).len();
        // And the run continues.
        let newest = run_of(&model.store).steps().unwrap().last().copied();
        let keep = Retention {
            last: 1,
            every: None,
        };
        let step = newest.unwrap_or(0) + 1;
        let last = Operation::Save {
            step,
            replace: false,
            keep,
        };
        model.check(last, Cut::No, &mut random);
        assert!(model.whole.contains_key(&step));
    }
    // The sequences cover the intended cases.
    assert!(asides > 50, "{asides} checkpoints were set aside");
    assert!(losses < SEQUENCES as usize / 2, "{losses}");
}
