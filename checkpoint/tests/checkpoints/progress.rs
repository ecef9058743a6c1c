//! Long saves that make progress, stalled saves, and progress reports of loads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use burn::tensor::{DType, Device, TensorData};
use tinderbox_checkpoint::{
    CheckpointMeta, LoadOptions, RankSave, Regex, Role, Run, SaveError, SaveTensor,
};
use tinderbox_checkpoint_tests::{Random, TIMEOUT, meta};
use tinderbox_deferred::{Observer, ParameterPath, Request, Source};
use tinderbox_fake::Region;

/// Number of blocks of 64 bytes in the tensor of [`rank`].
const BLOCKS: u32 = 12;

/// Returns one tensor, which is written in blocks.
fn rank() -> RankSave {
    let data = Random(3).data(&[16 * BLOCKS as usize], DType::F32);
    RankSave {
        tensors: vec![SaveTensor::whole("w", Role::Model, data)],
        scalars: BTreeMap::new(),
    }
}

/// Blocks after each block until it is released.
struct Held(Mutex<Receiver<()>>);

impl Observer for Held {
    fn advanced(&self, _: u64) {
        let _ = self.0.lock().unwrap().recv();
    }
}

fn held() -> (Sender<()>, Arc<Held>) {
    let (release, held) = channel();
    (release, Arc::new(Held(Mutex::new(held))))
}

/// Sleeps after each block.
struct Slow(Duration, Mutex<Receiver<()>>);

impl Observer for Slow {
    fn advanced(&self, _: u64) {
        let never = self.1.lock().unwrap().recv_timeout(self.0);
        assert!(never.is_err());
    }
}

#[test]
fn a_save_has_no_time_limit_while_it_writes() {
    const PATIENCE: Duration = Duration::from_millis(400);
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    let (_never, time) = channel();
    let slow = Arc::new(Slow(PATIENCE / 4, Mutex::new(time)));
    let attempt = run.begin(meta(1, 1)).unwrap();
    let begun = Instant::now();
    let saving = attempt.save_in_background(|_| Ok(rank()), slow).unwrap();
    let saved = saving.timeout(PATIENCE).wait().unwrap();
    assert!(begun.elapsed() >= 3 * PATIENCE);
    assert_eq!(saved, run.step_place(1));
}

#[test]
fn a_save_that_stalls_is_named_with_how_far_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    let (release, held) = held();
    let attempt = run.begin(meta(7, 1)).unwrap();
    let saving = attempt.save_in_background(|_| Ok(rank()), held).unwrap();
    release.send(()).unwrap();
    release.send(()).unwrap();
    let error = saving.timeout(Duration::from_millis(100)).wait();
    let error = error.unwrap_err();
    assert!(matches!(error, SaveError::Stalled { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "the save of step 7 has written nothing for 100 ms, after 192 of the 768 bytes that it has begun: check the \
         store; if it recovers, the step may still be published"
    );
    assert!(run.latest().unwrap().is_none());
    // It continues when the store does.
    drop(release);
    let waited = Instant::now();
    while run.latest().unwrap().is_none() {
        assert!(waited.elapsed() < TIMEOUT);
        std::thread::yield_now();
    }
}

/// Ranks in other processes: their files show the coordinator that they make progress.
#[test]
fn a_coordinator_waits_as_long_as_ranks_write() {
    const PATIENCE: Duration = Duration::from_millis(400);
    const FILES: usize = 6;
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    let attempt = run
        .begin(CheckpointMeta {
            // A file for each tensor.
            file_bytes: 1,
            ..meta(1, 2)
        })
        .unwrap();
    let data = Random(3).data(&[16], DType::F32);
    let tensor = |at| SaveTensor::whole(format!("w{at}"), Role::Model, data.clone());
    let tensors: Vec<SaveTensor> = (0..FILES).map(tensor).collect();
    let (_never, time) = channel();
    let slow = Slow(PATIENCE / 2, Mutex::new(time));
    let (first, second) = (attempt.handle(), attempt.handle().threads(1));
    first.write_rank(0, &[], &BTreeMap::new(), &()).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let coordinator = scope.spawn(|| attempt.publish(PATIENCE));
        let none = BTreeMap::new();
        second.write_rank(1, &tensors, &none, &slow).unwrap();
        coordinator.join().unwrap().unwrap();
    });
    assert!(begun.elapsed() >= FILES as u32 * PATIENCE / 2);
}

/// Sums the reported bytes.
#[derive(Default)]
struct Reported(Mutex<(u64, usize, u64)>);

impl Observer for Reported {
    fn advanced(&self, bytes: u64) {
        let mut sums = self.0.lock().unwrap();
        sums.0 += bytes;
        sums.1 += 1;
    }

    fn completed(&self, _: &ParameterPath, bytes: u64) {
        self.0.lock().unwrap().2 += bytes;
    }
}

/// One value of 18 MiB, contiguous, strided and transposed: it is reported in pieces that sum to its size.
#[test]
fn a_load_reports_bytes_within_a_value() {
    const SHAPE: [u64; 2] = [2304, 2048];
    let dir = tempfile::tempdir().unwrap();
    let run = Run::local(dir.path());
    let attempt = run.begin(CheckpointMeta::new(1, 2)).unwrap();
    let half = [SHAPE[0] / 2, SHAPE[1]];
    let zeros = TensorData::zeros::<f32, _>(half.map(|size| size as usize));
    let of_rank = |rank: u32| {
        let mut half_of = SaveTensor::whole("w", Role::Model, zeros.clone());
        half_of.shape = SHAPE.to_vec();
        half_of.region = Region::new(vec![u64::from(rank) * half[0], 0], half.to_vec()).unwrap();
        let tensors = vec![half_of];
        Ok(RankSave {
            tensors,
            scalars: BTreeMap::new(),
        })
    };
    attempt.save_all(of_rank, &()).unwrap();
    let checkpoint = run.open(1).unwrap();
    let whole = Region::whole(&SHAPE).unwrap();
    let columns = Region::new(vec![0, 1], vec![SHAPE[0], SHAPE[1] - 1]).unwrap();
    let turned = Region::whole(&[SHAPE[1], SHAPE[0]]).unwrap();
    let transposes = LoadOptions::default().transpose(Regex::new("w").unwrap());
    for (options, region, pieces) in [
        (LoadOptions::default(), whole, 4),
        (LoadOptions::default(), columns, 2),
        // Blocks of 1 MiB, nine of each half.
        (transposes, turned, 18),
    ] {
        let transposed = region.size()[0] == SHAPE[1];
        let request = Request {
            path: ParameterPath::new("w"),
            clones: Vec::new(),
            shape: match transposed {
                true => vec![SHAPE[1], SHAPE[0]],
                false => SHAPE.to_vec(),
            },
            region,
            dtype: DType::F32,
            device: Device::flex(),
        };
        let reported = Reported::default();
        let source = checkpoint.source(options).unwrap();
        source
            .load(std::slice::from_ref(&request), &reported)
            .unwrap();
        let (advanced, reports, made) = reported.0.into_inner().unwrap();
        assert_eq!((advanced, made), (request.bytes(), request.bytes()));
        assert_eq!(reports, pieces, "{:?}", request.region);
    }
}
