//! The bits that the CPU of this process computes.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use burn::tensor::{DType, Device, Tensor, TensorData};
use derive_more::{From, Into};
use rayon::ThreadPoolBuilder;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// Digests of the results of the CPU for fixed inputs, by class of operation.
///
/// The same program has the same bits in every process on one machine, with any number of ranks and threads. On another
/// kind of CPU, with another C library, or built with other features, some classes of operations round differently: the
/// chapter "How it works" of the book lists them. Two processes with equal digests of a class compute the same bits in
/// all operations of the class that are probed.
///
/// It describes the CPU backend, also in a process with ranks on GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, From, Into)]
#[serde(transparent)]
pub struct NumericFingerprint(BTreeMap<String, String>);

impl NumericFingerprint {
    /// Returns the fingerprint of this process.
    ///
    /// Cost: some ten milliseconds, once per process.
    pub fn of_process() -> &'static Self {
        static OF_PROCESS: OnceLock<NumericFingerprint> = OnceLock::new();
        // In a separate pool: a thread of another pool would run other tasks of that pool while it waits, and these may
        // request the fingerprint too.
        OF_PROCESS.get_or_init(|| {
            let probed = std::thread::spawn(|| {
                let pool = ThreadPoolBuilder::new().num_threads(1).build();
                let pool = pool.expect("a process that runs several threads can start one more");
                let of = |(class, probe): &(&str, Probe)| ((*class).into(), digest(probe()));
                pool.install(|| Self(PROBES.iter().map(of).collect()))
            });
            probed.join().expect("the probes do not panic")
        })
    }

    /// Returns the classes and their digests, by name.
    pub fn classes(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Returns whether it has no class, like a fingerprint that an earlier version saved.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of the classes that both have and that differ.
    pub fn differences<'a>(&'a self, other: &Self) -> Vec<&'a str> {
        let differs = |(class, digest): &(&String, &String)| {
            other.0.get(*class).is_some_and(|other| other != *digest)
        };
        let classes = self.0.iter().filter(differs);
        classes.map(|(class, _)| class.as_str()).collect()
    }
}

fn digest(results: Vec<TensorData>) -> String {
    let bytes: Vec<&[u8]> = results.iter().map(TensorData::as_bytes).collect();
    format!("{:016x}", XxHash3_64::oneshot(&bytes.concat()))
}

/// The computation for a class of operations.
type Probe = fn() -> Vec<TensorData>;

/// The classes. A name is a key in checkpoints: a probe that changes gets another name.
const PROBES: &[(&str, Probe)] = &[
    ("products of at most 512 terms", || {
        let shapes = [[96, 512, 80], [33, 100, 47]];
        shapes.map(|shape| product(shape, DType::F32)).into()
    }),
    // The number of terms in a block depends on the instruction set and on the first cache.
    ("products of more than 512 terms", || {
        products([600, 1100, 2100, 4200], DType::F32)
    }),
    ("products with few results", || {
        // Both operands are contiguous along the terms.
        let transposed = |[m, k, n]: [usize; 3]| {
            let rhs = values([n, k], DType::F32).transpose();
            values([m, k], DType::F32).matmul(rhs).into_data()
        };
        vec![transposed([9, 100, 11]), transposed([16, 1500, 16])]
    }),
    ("products with vectors", || {
        let of = |shape| values(shape, DType::F32);
        let (wide, tall, matrix) = ([1, 700], [700, 1], [700, 700]);
        [
            of(wide).matmul(of(matrix)),
            of(wide).matmul(of(matrix).transpose()),
            of(matrix).matmul(of(tall)),
            of(matrix).transpose().matmul(of(tall)),
        ]
        .map(Tensor::into_data)
        .into()
    }),
    ("products in f64", || {
        products([100, 600, 1100, 2100], DType::F64)
    }),
    ("products in f16 and bf16", || {
        [DType::F16, DType::BF16]
            .map(|dtype| products([100, 600, 1100], dtype))
            .concat()
    }),
    // The number of partial sums depends on the instruction set.
    ("sums", || {
        let x = || values([7, 1001], DType::F32);
        vec![
            x().sum().into_data(),
            x().sum_dim(1).into_data(),
            x().mean().into_data(),
        ]
    }),
    // From the C library, which chooses their code for the CPU.
    ("exp", || function(Tensor::exp, -104.0, 89.0)),
    ("ln", || function(Tensor::log, 1e-30, 1e4)),
    ("ln_1p", || function(Tensor::log1p, -0.999, 50.0)),
    ("tanh", || function(Tensor::tanh, -10.0, 10.0)),
    ("sin and cos", || {
        let sin = function(Tensor::sin, -100.0, 100.0);
        [sin, function(Tensor::cos, -100.0, 100.0)].concat()
    }),
    ("powers", || function(|x| x.powf_scalar(0.3), 1e-3, 1e3)),
    ("functions in f64", || {
        let x = || values([64, 320], DType::F64) * 20.0;
        [x().exp(), x().sin(), (x() + 11.0).powf_scalar(0.3)]
            .map(Tensor::into_data)
            .into()
    }),
    ("erf", || function(Tensor::erf, -6.0, 6.0)),
];

/// Numbers between -0.5 and 0.5, the same on every machine, which use all bits of an f64: sums of products of shorter ones
/// are exact.
fn values(shape: [usize; 2], dtype: DType) -> Tensor<2> {
    let mut state = 1_u64;
    let numbers = (0..shape[0] * shape[1]).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
    });
    let data = TensorData::new(numbers.collect::<Vec<f64>>(), shape);
    Tensor::from_data(data.convert_dtype(dtype), (&Device::flex(), dtype))
}

/// Products with these numbers of terms.
fn products<const N: usize>(terms: [usize; N], dtype: DType) -> Vec<TensorData> {
    terms.map(|terms| product([96, terms, 80], dtype)).into()
}

fn product([m, k, n]: [usize; 3], dtype: DType) -> TensorData {
    let (lhs, rhs) = (values([m, k], dtype), values([k, n], dtype));
    lhs.matmul(rhs).into_data()
}

/// A function of numbers between two, and of inputs for which implementations of `exp` are known to differ.
fn function(function: fn(Tensor<2>) -> Tensor<2>, low: f32, high: f32) -> Vec<TensorData> {
    let telling = [0x4202_422f_u32, 0xc27c_65d9].map(f32::from_bits);
    let telling = Tensor::from_data([telling], &Device::flex());
    let x = (values([16, 128], DType::F32) + 0.5) * (high - low) + low;
    vec![function(x).into_data(), function(telling).into_data()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_always_has_the_same_and_names_what_differs() {
        let own = NumericFingerprint::of_process();
        for threads in [1, 2, 5] {
            let pool = ThreadPoolBuilder::new().num_threads(threads);
            let again = pool.build().unwrap().install(|| {
                let probes = PROBES.iter();
                probes
                    .map(|(class, probe)| ((*class).to_owned(), digest(probe())))
                    .collect::<BTreeMap<_, _>>()
            });
            assert_eq!(&again, own.classes(), "{threads} threads");
        }
        assert_eq!(own.differences(own), Vec::<&str>::new());
        let mut other = own.classes().clone();
        other.insert("sums".into(), "0".into());
        other.insert("a class of a newer version".into(), "0".into());
        other.remove("tanh");
        assert_eq!(own.differences(&other.into()), ["sums"]);
    }

    #[test]
    fn tasks_of_one_pool_may_ask_for_it_at_the_same_time() {
        let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let classes = pool.install(|| {
            use rayon::prelude::*;
            let tasks = (0..8).into_par_iter();
            tasks
                .map(|_| NumericFingerprint::of_process().classes().len())
                .collect::<Vec<_>>()
        });
        assert_eq!(classes, [PROBES.len(); 8]);
    }

    /// Every class has a digest of its own: a probe that is not computed, or that overflows, would not.
    #[test]
    fn classes_compute_finite_numbers() {
        for (class, probe) in PROBES {
            let results = probe();
            let numbers = results.iter().flat_map(|data| data.iter::<f64>());
            let finite = numbers.filter(|number| number.is_finite() && *number != 0.0);
            let all: usize = results.iter().map(|data| data.num_elements()).sum();
            assert!(finite.count() * 10 > all * 9, "{class}");
        }
        let digests: std::collections::BTreeSet<_> = NumericFingerprint::of_process()
            .classes()
            .values()
            .collect();
        assert_eq!(digests.len(), PROBES.len());
    }
}
