//! Loaded values equal the saved ones, for any dtype, shape and number of ranks.

use std::collections::BTreeMap;

use burn::tensor::{BoolStore, DType, Device, TensorData};
use proptest::prelude::*;
use tinderbox_checkpoint::{
    Checkpoint, CheckpointMeta, Role, Run, SaveTensor, Scalar, StoredDType,
};
use tinderbox_checkpoint_tests::{
    Contents, Random, TIMEOUT, load, meta, names, save, small_contents,
};
use tinderbox_deferred::{ParameterPath, Request, Source};
use tinderbox_fake::Region;

#[test]
fn every_dtype_and_shape() {
    let mut random = Random(1);
    let mut contents = Contents::default();
    let shapes: [&[usize]; 6] = [&[], &[0], &[3, 0, 2], &[1], &[65], &[2, 3, 4]];
    use StoredDType as D;
    let dtypes = [
        D::Bool,
        D::U8,
        D::I8,
        D::U16,
        D::I16,
        D::F16,
        D::BF16,
        D::U32,
        D::I32,
        D::F32,
        D::U64,
        D::I64,
        D::F64,
    ];
    for dtype in dtypes {
        for shape in shapes {
            let name = format!("{dtype}{shape:?}");
            let data = random.data(shape, dtype.burn());
            contents.0.insert((Role::Model, name.clone()), data.clone());
            contents.0.insert((Role::State, name), data);
        }
    }
    contents.1 = BTreeMap::from([
        ("int".to_owned(), Scalar::Int(-1)),
        ("uint".to_owned(), Scalar::Uint(u64::MAX)),
        (
            "nan".to_owned(),
            Scalar::Float(f64::from_bits(0xfff8_dead_beef_0001)),
        ),
        ("bool".to_owned(), Scalar::Bool(false)),
    ]);
    let run = tempfile::tempdir().unwrap();
    let dir = save(run.path(), meta(3, 1), &contents);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(load(&checkpoint).unwrap(), contents);
    let manifest = checkpoint.manifest();
    assert_eq!(
        (manifest.step, manifest.seed, manifest.data_position),
        (3, u64::MAX, 7)
    );
    assert_eq!(manifest.metadata()["plan"], "abc");
    // Only the files of a checkpoint: no marker, no part, no temporary file.
    assert_eq!(
        names(&dir),
        [
            "manifest.json",
            "model-rank-00000.safetensors",
            "model.safetensors.index.json",
            "state-rank-00000.safetensors"
        ]
    );
}

#[test]
fn the_safetensors_crate_reads_our_files() {
    let run = tempfile::tempdir().unwrap();
    let contents = small_contents(2);
    let dir = save(run.path(), meta(1, 1), &contents);
    for role in [Role::Model, Role::State] {
        let file = dir.join(format!("{role}-rank-00000.safetensors"));
        let bytes = std::fs::read(file).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ours: Vec<_> = contents.0.iter().filter(|((r, _), _)| *r == role).collect();
        assert_eq!(theirs.len(), ours.len());
        for ((_, name), data) in ours {
            let view = theirs.tensor(name).unwrap();
            assert_eq!(view.data(), data.as_bytes(), "{name}");
            assert_eq!(view.shape(), &data.shape()[..], "{name}");
        }
    }
    let index = std::fs::read(dir.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(
        index,
        serde_json::json!({
            "metadata": {"total_size": 5 * 7 * 4 + 3 * 2 + 9},
            "weight_map": {
                "embed.weight": "model-rank-00000.safetensors",
                "mask": "model-rank-00000.safetensors",
                "norm.gamma": "model-rank-00000.safetensors",
            },
        })
    );
}

#[test]
fn truth_values_load_in_every_form_of_burn() {
    let run = tempfile::tempdir().unwrap();
    let data = TensorData::from_bytes_vec(
        [1u32, 0, 1]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect(),
        [3],
        DType::Bool(BoolStore::U32),
    );
    let mut contents = Contents::default();
    contents.0.insert((Role::Model, "m".into()), data);
    let checkpoint = Checkpoint::open(save(run.path(), meta(1, 1), &contents)).unwrap();
    for store in [BoolStore::Native, BoolStore::U8] {
        let values = checkpoint
            .load(&[request("m", &[3], &[1], &[2], DType::Bool(store))], &())
            .unwrap();
        let data = values[0].to_data().unwrap();
        assert_eq!(data.as_bytes(), [0, 1]);
    }
}

fn request(name: &str, shape: &[u64], offset: &[u64], size: &[u64], dtype: DType) -> Request {
    Request {
        path: ParameterPath::new(name),
        clones: Vec::new(),
        shape: shape.to_vec(),
        region: Region::new(offset.to_vec(), size.to_vec()).unwrap(),
        dtype,
        device: Device::flex(),
    }
}

#[test]
fn a_source_gives_regions_in_the_order_of_the_requests() {
    let run = tempfile::tempdir().unwrap();
    let mut contents = Contents::default();
    let data = TensorData::new((0..12).map(|i| i as f32).collect(), [3, 4]);
    contents.0.insert((Role::Model, "w".into()), data);
    contents.0.insert(
        (Role::Model, "b".into()),
        TensorData::new(vec![5i64], [0usize; 0]),
    );
    let checkpoint = Checkpoint::open(save(run.path(), meta(1, 1), &contents)).unwrap();
    let values = checkpoint
        .load(
            &[
                request("w", &[3, 4], &[1, 1], &[2, 2], DType::F32),
                request("b", &[], &[], &[], DType::I64),
            ],
            &(),
        )
        .unwrap();
    assert_eq!(
        values[0].to_data().unwrap(),
        TensorData::new(vec![5.0f32, 6.0, 9.0, 10.0], [2, 2])
    );
    assert_eq!(
        values[1].to_data().unwrap(),
        TensorData::new(vec![5i64], [0usize; 0])
    );
}

/// Cuts a box at random until there are enough pieces.
fn pieces(random: &mut Random, shape: &[u64], count: usize) -> Vec<Region> {
    let mut pieces = vec![Region::whole(shape).unwrap()];
    for _ in 0..count {
        let i = random.next() as usize % pieces.len();
        let d = random.next() as usize % shape.len();
        let (offset, size) = (pieces[i].offset().to_vec(), pieces[i].size().to_vec());
        if size[d] < 2 {
            continue;
        }
        let at = 1 + random.next() % (size[d] - 1);
        let (mut low, mut high, mut second) = (size.clone(), size.clone(), offset.clone());
        low[d] = at;
        high[d] -= at;
        second[d] += at;
        pieces[i] = Region::new(offset, low).unwrap();
        pieces.push(Region::new(second, high).unwrap());
    }
    pieces
}

/// Returns the bytes of a region, element by element, as a simple reference.
fn slice(data: &TensorData, shape: &[u64], region: &Region) -> TensorData {
    let element = data.dtype().size();
    let mut bytes = Vec::new();
    for i in 0..region.num_elements() {
        let (mut rest, mut at, mut stride) = (i, 0, 1);
        for d in (0..shape.len()).rev() {
            at += (region.offset()[d] + rest % region.size()[d]) * stride;
            rest /= region.size()[d];
            stride *= shape[d];
        }
        let at = at as usize * element;
        bytes.extend(&data.as_bytes()[at..at + element]);
    }
    let size: Vec<usize> = region.size().iter().map(|d| *d as usize).collect();
    TensorData::from_bytes_vec(bytes, size, data.dtype())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// For example, a learning rate of a run.
    #[test]
    fn numbers_in_metadata_keep_every_bit(bits in prop::collection::vec(any::<u64>(), 200)) {
        let floats = bits.iter().map(|bits| f64::from_bits(*bits)).filter(|float| float.is_finite());
        let floats: Vec<f64> = floats.chain([0.1, 5e-324, -0.0, f64::MAX]).collect();
        let metadata = serde_json::json!({"floats": floats, "ints": bits});
        let meta = CheckpointMeta { metadata: metadata.clone(), ..meta(1, 1) };
        let run = tempfile::tempdir().unwrap();
        let dir = save(run.path(), meta, &Contents::default());
        let checkpoint = Checkpoint::open(dir).unwrap();
        prop_assert_eq!(checkpoint.manifest().metadata(), metadata);
    }

    /// Three ranks save random boxes on three threads; other random boxes are read.
    #[test]
    fn any_chunking_reads_as_any_other(
        seed in any::<u64>(),
        shape in prop::collection::vec(1u64..12, 1..4),
        cuts in 0usize..8,
    ) {
        let mut random = Random(seed);
        let run = tempfile::tempdir().unwrap();
        let dims: Vec<usize> = shape.iter().map(|d| *d as usize).collect();
        let whole = random.data(&dims, DType::F32);
        let mut ranks: [Vec<SaveTensor>; 3] = Default::default();
        for role in [Role::Model, Role::State] {
            for region in pieces(&mut random, &shape, cuts) {
                ranks[random.next() as usize % 3].push(SaveTensor {
                    name: "w".to_owned(),
                    role,
                    shape: shape.clone(),
                    tied: Vec::new(),
                    data: slice(&whole, &shape, &region).into(),
                    region,
                });
            }
        }
        let attempt = Run::local(run.path()).begin(meta(1, 3)).unwrap();
        std::thread::scope(|scope| {
            for (rank, tensors) in ranks.iter().enumerate() {
                let handle = attempt.handle();
                scope.spawn(move || handle.write_rank(rank as u32, tensors, &BTreeMap::new(), &()).unwrap());
            }
        });
        let checkpoint = Checkpoint::open(attempt.publish(TIMEOUT).unwrap()).unwrap();
        checkpoint.verify().unwrap();
        let chunks = checkpoint.tensor(Role::Model, "w").unwrap().chunks.len();
        prop_assert_eq!(checkpoint.manifest().index.is_some(), chunks == 1);
        for wanted in pieces(&mut random, &shape, 6) {
            let expected = slice(&whole, &shape, &wanted);
            for role in [Role::Model, Role::State] {
                let tensor = checkpoint.tensor(role, "w").unwrap();
                prop_assert_eq!(&checkpoint.read(tensor, &wanted).unwrap(), &expected);
            }
        }
        prop_assert_eq!(checkpoint.state(&["w"], &()).unwrap(), [whole]);
    }
}
