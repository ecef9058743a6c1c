//! Recordings: accepted and rejected code, and determinism.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::{Bool, DType, Device, Distribution, Int, Tensor, TensorData};
use burn_autodiff::Autodiff;
use burn_backend::AutodiffBackend;
use burn_capture::CaptureBackend;
use tinderbox_fake::{
    DeviceLabel, DynTensor, Graph, Mode, RecordError, RecordOptions, Recording, TensorKind,
    TensorMeta, is_fake, record,
};

fn training() -> RecordOptions {
    RecordOptions::default().in_mode(Mode::Training)
}

fn names(recording: &Recording) -> Vec<String> {
    let nodes = recording.graph().nodes();
    nodes.iter().map(|node| node.name()).collect()
}

/// The error of recording `run`, in both modes or in the given one.
fn check_error(modes: &[Mode], expected: &str, run: impl Fn(&Device)) {
    for mode in modes {
        let options = RecordOptions::default().in_mode(*mode);
        let error = record(&options, &run).map(drop).unwrap_err();
        let origin = error.origin().to_string();
        assert_eq!(
            error.to_string().replacen(&origin, "", 1),
            expected,
            "{mode:?}{origin}"
        );
        // The next recording, on the same device, is not affected.
        let (_, recording) = record(&options, |d| Tensor::<1>::zeros([1], d).exp()).unwrap();
        assert_eq!(names(&recording), ["BaseFloat.Zeros", "Float.Exp"]);
    }
}

const BOTH: [Mode; 2] = [Mode::Inference, Mode::Training];

#[test]
fn reading_data_is_an_error() {
    let expected = |instead: &str| {
        format!(
            "the recorded code read the data of a fake tensor; a fake tensor has a shape and no data: {instead}"
        )
    };
    let tensor =
        expected("keep the value as a tensor, and return it as a named output to inspect it");
    let reads: [fn(&Device); 6] = [
        |d| drop(Tensor::<1>::zeros([1], d).into_data()),
        |d| drop(Tensor::<1>::zeros([1], d).to_data()),
        |d| {
            Tensor::<1>::zeros([1], d).into_scalar::<f32>();
        },
        |d| {
            Tensor::<1, Int>::zeros([1], d).into_scalar::<i32>();
        },
        |d| drop(Tensor::<1, Bool>::zeros([1], d).into_data()),
        |d| {
            let (fake, _) =
                record(&RecordOptions::default(), |d| Tensor::<1>::zeros([1], d)).unwrap();
            let _ = d;
            drop(fake.into_data());
        },
    ];
    for read in reads {
        check_error(&BOTH, &tensor, read);
    }
    let one_hot =
        expected("write ones into zeros with `scatter`, or compare with `arange` by `equal`");
    check_error(&BOTH, &one_hot, |d| {
        drop(Tensor::<1, Int>::zeros([3], d).one_hot::<2>(4));
    });
    check_error(&BOTH, &one_hot, |d| {
        drop(Tensor::<1, Int>::zeros([3], d).one_hot_fill::<2>(4, 1.0, 0.0, -1));
    });
    let mask = expected(
        "the shape of its result depends on data; use a mask, as with `mask_where` or a product",
    );
    check_error(&BOTH, &mask, |d| {
        drop(Tensor::<1, Bool>::zeros([3], d).nonzero());
    });
    check_error(&BOTH, &mask, |d| {
        drop(Tensor::<1, Bool>::zeros([3], d).argwhere());
    });
}

/// Burn's outermost operation, and the line that calls it.
#[test]
fn errors_have_an_origin() {
    let check = |operation: Option<&str>, line: u32, run: &dyn Fn(&Device)| {
        let error = record(&training(), run).map(drop).unwrap_err();
        let origin = error.origin();
        // Debug information of lines only has no types, so the module replaces the type.
        let found = origin.operation().map(str::to_lowercase);
        assert_eq!(found, operation.map(str::to_lowercase), "{error}");
        let place = origin.place().unwrap();
        let expected = format!("tests/record.rs:{line}:");
        assert!(place.starts_with(&expected), "{place} is not {expected}");
        assert!(error.to_string().contains(place), "{error}");
    };
    check(Some("Tensor::one_hot"), line!() + 1, &|d| {
        drop(Tensor::<1, Int>::zeros([3], d).one_hot::<2>(4));
    });
    check(Some("Tensor::into_scalar"), line!() + 1, &|d| {
        Tensor::<1>::zeros([1], d).into_scalar::<f32>();
    });
    // `inner` calls nothing but this, so it may be compiled into its caller, and is then not named.
    check(Some("Tensor::without_autodiff"), line!() + 1, &|d| {
        drop(Tensor::<1>::zeros([1], d).without_autodiff());
    });
    check(Some("Tensor::add"), line!() + 1, &|d| {
        drop(Tensor::<1>::zeros([1], d) + Tensor::zeros([1], &Device::flex()));
    });
    // An operation inside a module is attributed to the module.
    check(Some("Linear::forward"), line!() + 2, &|d| {
        let linear = LinearConfig::new(2, 3).init(d);
        drop(linear.forward(Tensor::<2>::zeros([1, 5], d)));
    });
    check(None, line!(), &|_| panic!("boom"));
    check(None, line!() + 1, &|_| {
        let _ = "x".parse::<u8>().unwrap();
    });
}

/// The output of a process that panics in the given way.
fn printed(kind: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "panics_of_others_are_printed", "--nocapture"])
        .env("TINDERBOX_TEST_PANIC", kind)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A panic that becomes an error is not printed. One of another thread, one outside of recordings, and all but the last
/// that the recorded code catches are printed.
#[test]
fn panics_of_others_are_printed() {
    let quiet = |run: &dyn Fn()| catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    let options = RecordOptions::default();
    match std::env::var("TINDERBOX_TEST_PANIC").as_deref() {
        Ok("recorded") => {
            let error = record(&options, |_| panic!("text of it")).map(|((), _)| ());
            assert!(error.unwrap_err().to_string().ends_with(": text of it"));
            // A nested recording, and one after it.
            let inner = || record(&options, |_| panic!("text of it")).map(|((), _)| ());
            let (error, _) = record(&options, |_| inner().unwrap_err()).unwrap();
            assert!(error.origin().place().is_some());
        }
        Ok("thread") => {
            record(&options, |_| {
                let thread = std::thread::spawn(|| panic!("text of it"));
                assert!(thread.join().is_err());
            })
            .unwrap();
        }
        Ok("after") => {
            record(&options, |_| ()).unwrap();
            drop(quiet(&|| panic!("text of it")));
        }
        Ok("later hook") => {
            record(&options, |_| ()).unwrap();
            std::panic::set_hook(Box::new(|info| eprintln!("my hook: {info}")));
            let error = record(&options, |_| panic!("text of it")).map(|((), _)| ());
            let error = error.unwrap_err();
            assert_eq!(error.to_string(), "the recorded code panicked: text of it");
            assert_eq!(error.origin().place(), None);
        }
        Ok("caught") => {
            let (_, recording) = record(&options, |d| {
                drop(quiet(&|| panic!("the first")));
                drop(quiet(&|| panic!("text of it")));
                Tensor::<1>::zeros([1], d)
            })
            .unwrap();
            assert_eq!(names(&recording), ["BaseFloat.Zeros"]);
        }
        _ => {
            for (kind, expected) in [
                ("recorded", false),
                ("thread", true),
                ("after", true),
                ("later hook", true),
                ("caught", true),
            ] {
                let text = printed(kind);
                assert_eq!(text.contains("text of it"), expected, "{kind}: {text}");
            }
        }
    }
}

#[test]
fn moving_a_fake_tensor_is_an_error() {
    let check = |mode, said: &str, run: fn(&Device)| {
        let expected = format!(
            "the recorded code moved a fake tensor between devices or autodiff contexts ({said}); \
             `to_device`, `inner` and `from_inner` of float tensors can't be recorded: leave them out, and create tensors on the device \
             of their input"
        );
        check_error(&[mode], &expected, run);
    };
    let between = "Cannot move this autodiff tensor between the requested backends.";
    let enabled = "Cannot move a tensor to a capture device with autodiff enabled; remove autodiff \
        with without_autodiff() before the transfer.";
    let away: fn(&Device) = |d| drop(Tensor::<1>::zeros([1], d).to_device(&Device::flex()));
    check(
        Mode::Inference,
        "Cannot move a tensor from a capture device",
        away,
    );
    check(Mode::Training, between, away);
    check(Mode::Training, enabled, |d| {
        drop(Tensor::<1>::zeros([1], d).to_device(d));
    });
    check(
        Mode::Training,
        "Capture tensors do not support autodiff",
        |d| {
            drop(Tensor::<1>::zeros([1], d).inner());
        },
    );
}

#[test]
fn tensors_of_others_are_an_error() {
    let check = |said: &str, run: &dyn Fn(&Device)| {
        let expected = format!(
            "the recorded code used a tensor that does not belong to this recording ({said}): create it inside, \
             on the device of the closure or of another tensor, or pass its data"
        );
        check_error(&BOTH, &expected, run);
    };
    let zeros = |d: &Device| Tensor::<1>::zeros([1], d);
    let devices = "The provided tensors are not on the same device";
    check(devices, &|d| drop(zeros(d) + zeros(&Device::flex())));
    check(devices, &|d| drop(zeros(&Device::flex()) + zeros(d)));
    // Burn does not distinguish a closed recording from the current one on the same device.
    let like = |d: &Device| match d.is_autodiff() {
        true => training(),
        false => RecordOptions::default(),
    };
    let closed = |d: &Device| record(&like(d), zeros).unwrap().0;
    check("capture scope is already complete", &|d| {
        drop(closed(d).exp());
    });
    check(devices, &|d| drop(zeros(d) + closed(d)));
    check(devices, &|d| drop(closed(d) + zeros(d)));
    // The tensor of an outer recording in an inner one.
    check(devices, &|d| {
        let outer = zeros(d);
        let inner = record(&like(d), |e| zeros(e) + outer).map(drop);
        let RecordError::Foreign { message, .. } = inner.unwrap_err() else {
            panic!("the inner recording uses a tensor of the outer one");
        };
        panic!("{message}");
    });
}

#[test]
fn a_tensor_of_an_earlier_recording_on_the_same_device_is_an_error() {
    // A claim that no other test uses, so that both recordings get the same device.
    let options = RecordOptions::default().claiming("cuda:90".parse().unwrap());
    let (x, first) = record(&options, |d| Tensor::<1>::zeros([2], d)).unwrap();
    for (said, own_first) in [
        ("an operation reads an undeclared input", true),
        ("capture scope is already complete", false),
    ] {
        let x = x.clone();
        let error = record(&options, |d| {
            let own = Tensor::<1>::ones([2], d);
            assert_eq!(own.device(), x.device());
            if own_first { own + x } else { x + own }
        })
        .map(drop)
        .unwrap_err();
        let origin = error.origin().to_string();
        assert_eq!(
            error.to_string().replacen(&origin, "", 1),
            format!(
                "the recorded code used a tensor that does not belong to this recording ({said}): create it \
                 inside, on the device of the closure or of another tensor, or pass its data"
            )
        );
    }
    let id = DynTensor::from(x.clone()).captured_id().unwrap();
    assert!(first.value_of(id).is_some());
    let (y, second) = record(&options, |d| Tensor::<1>::zeros([2], d)).unwrap();
    assert_eq!(second.value_of(id), None);
    let id = DynTensor::from(y).captured_id().unwrap();
    assert_eq!(first.value_of(id), None);
}

#[test]
fn panics_of_the_recorded_code_keep_their_text() {
    let panicked = |text| format!("the recorded code panicked: {text}");
    check_error(&BOTH, &panicked("boom"), |_| panic!("boom"));
    check_error(&BOTH, &panicked("boom 7"), |_| panic!("boom {}", 7));
    check_error(&BOTH, &panicked("a panic without a message"), |_| {
        std::panic::panic_any(7)
    });
    // Words that Burn's own messages have too.
    let text = "the autodiff context of to_device must run inside";
    check_error(&BOTH, &panicked(text), |_| panic!("{text}"));
}

#[test]
fn a_fake_tensor_after_its_recording_has_a_shape_and_no_use() {
    for options in [RecordOptions::default(), training()] {
        let (x, _) = record(&options, |d| Tensor::<2>::zeros([2, 3], d)).unwrap();
        assert_eq!((x.dims(), x.dtype()), ([2, 3], DType::F32));
        assert!(catch_unwind(AssertUnwindSafe(|| x.clone().exp())).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| x.clone().into_data())).is_err());
        let fake = DynTensor::from(x);
        let expected = "tensor(..., size=[2, 3], dtype=f32, device=flex, fake=true) has no data: materialize \
             it first";
        assert_eq!(fake.to_data().unwrap_err().to_string(), expected);
        let moved = fake.to_device(&Device::flex()).map(drop);
        assert_eq!(moved.unwrap_err().to_string(), expected);
    }
}

#[test]
fn devices_are_used_again() {
    // More recordings than Burn has ids for capture devices.
    for round in 0..70_000 {
        let result = record(&RecordOptions::default(), |device| {
            let x = Tensor::<1>::zeros([1], device);
            assert!(round % 2 == 0, "quiet");
            x
        });
        assert_eq!(result.is_ok(), round % 2 == 0, "round {round}");
    }
}

/// A dropout is one operation in inference and draws a mask in training.
#[test]
fn the_mode_of_the_device_is_recorded() {
    let count = |options: &RecordOptions| {
        let (autodiff, recording) = record(options, |device| {
            let x = Tensor::<2>::zeros([4, 4], device);
            let _ = DropoutConfig::new(0.5).init().forward(x);
            device.is_autodiff()
        })
        .unwrap();
        let randoms = names(&recording).into_iter();
        (autodiff, randoms.filter(|n| n == "Float.Random").count())
    };
    assert_eq!(count(&RecordOptions::default()), (false, 0));
    assert_eq!(count(&training()), (true, 1));
    assert_eq!(count(&RecordOptions::like(&Device::flex())), (false, 0));
    let autodiff = Device::flex().autodiff();
    assert_eq!(count(&RecordOptions::like(&autodiff)), (true, 1));
}

#[test]
fn the_options_set_the_default_dtypes() {
    let (dtypes, _) = record(&RecordOptions::like(&Device::flex()), |d| {
        let x = Tensor::<1>::zeros([1], d);
        [
            x.dtype(),
            Tensor::<1, Int>::zeros([1], d).dtype(),
            x.equal_elem(0).dtype(),
        ]
    })
    .unwrap();
    let flex = Device::flex();
    let x = Tensor::<1>::zeros([1], &flex);
    let ints = Tensor::<1, Int>::zeros([1], &flex).dtype();
    assert_eq!(dtypes, [x.dtype(), ints, x.equal_elem(0).dtype()]);
}

#[test]
fn metadata_print_the_claimed_device() {
    let check = |claim: &str, mode: Mode| {
        let options = RecordOptions::default().in_mode(mode);
        let options = options.claiming(claim.parse().unwrap());
        let text =
            |dtype| format!("tensor(..., size=[10], dtype={dtype}, device={claim}, fake=true)");
        let (x, _) = record(&options, |device| {
            let x = Tensor::<1>::zeros([10], device);
            assert_eq!(TensorMeta::of(&x).to_string(), text("f32"));
            x
        })
        .unwrap();
        assert!(is_fake(&x));
        assert_eq!(TensorMeta::of(&x).to_string(), text("f32"));
        assert_eq!(TensorMeta::of(&x).bytes(), 40);
        let ((i, b), _) = record(&options, |d| {
            (
                Tensor::<1, Int>::zeros([10], d),
                Tensor::<1, Bool>::zeros([10], d),
            )
        })
        .unwrap();
        assert_eq!(TensorMeta::of(&i).to_string(), text("i32"));
        assert_eq!(TensorMeta::of(&b).to_string(), text("bool"));
        // Another claim uses another device; this one keeps its own.
        let other = RecordOptions::default().claiming("rocm:3".parse().unwrap());
        let (y, _) = record(&other, |d| Tensor::<1>::zeros([10], d)).unwrap();
        assert_eq!(TensorMeta::of(&y).device.as_str(), "rocm:3");
        assert_eq!(TensorMeta::of(&x).to_string(), text("f32"));
    };
    check("cuda:7", Mode::Inference);
    check("cuda:7", Mode::Training);
    let real = Tensor::<2>::zeros([1, 2], &Device::flex());
    assert_eq!(
        TensorMeta::of(&real).to_string(),
        "tensor(..., size=[1, 2], dtype=f32, device=flex, fake=false)"
    );
    assert!(!is_fake(&real));
}

#[test]
fn labels() {
    for (label, good) in [
        ("flex", true),
        ("cuda:0", true),
        ("cuda:65535", true),
        ("cuda:65536", false),
        ("cuda:", false),
        ("cuda:-1", false),
        ("cuda:+7", false),
        ("cuda:07", false),
        (":1", false),
        ("", false),
        ("Cuda:1", false),
        ("cuda:1:2", false),
    ] {
        let parsed = label.parse::<DeviceLabel>();
        assert_eq!(parsed.is_ok(), good, "{label}");
        match parsed {
            Ok(parsed) => assert_eq!(parsed.to_string(), label),
            Err(error) => assert_eq!(
                error.to_string(),
                format!(
                    "`{label}` is not a device label: write a backend and an index, like `cuda:7`, or \
                     `flex`"
                )
            ),
        }
    }
}

#[test]
fn dyn_tensors_convert_and_say_when_they_can_not() {
    let device = Device::flex();
    for (data, kind) in [
        (TensorData::from([[1.5f32, -2.0]]), TensorKind::Float),
        (TensorData::from([[1i32, -2]]), TensorKind::Int),
        (TensorData::from([[true, false]]), TensorKind::Bool),
    ] {
        for target in [device.clone(), device.clone().autodiff()] {
            let tensor = DynTensor::from_data(data.clone(), &device);
            let tensor = tensor.to_device(&target).unwrap();
            assert_eq!(tensor.kind(), kind);
            assert_eq!(tensor.device().is_autodiff(), target.is_autodiff());
            assert_eq!(tensor.to_data().unwrap(), data);
            assert_eq!(tensor.captured_id(), None);
            let back = tensor.clone().to_device(&device).unwrap();
            assert!(!back.device().is_autodiff());
            let plain = tensor.without_autodiff();
            assert!(!plain.device().is_autodiff());
            assert_eq!(plain.to_data().unwrap(), data);
        }
    }
    let ints = || DynTensor::from_data(TensorData::from([[1i32, -2]]), &device);
    let text =
        "tensor(..., size=[1, 2], dtype=i32, device=flex, fake=false) is not a tensor of rank";
    let error = ints()
        .typed::<2, burn::tensor::Float>()
        .map(drop)
        .unwrap_err();
    assert_eq!(error.to_string(), format!("{text} 2 and kind Float"));
    let error = ints().typed::<1, Int>().map(drop).unwrap_err();
    assert_eq!(error.to_string(), format!("{text} 1 and kind Int"));
    ints().typed::<2, Int>().unwrap();
    assert_eq!(ints().cast_float(DType::F16).dtype(), DType::I32);
    let half = DynTensor::zeros([3].into(), DType::F32, &device).cast_float(DType::F16);
    assert_eq!((half.dtype(), half.bytes()), (DType::F16, 6));
}

#[test]
fn recordings_may_be_nested() {
    let ((inner, x), outer) = record(&RecordOptions::default(), |outer| {
        let x = Tensor::<1>::zeros([2], outer);
        let ((), inner) = record(&training(), |inner| {
            assert_ne!(inner.clone().without_autodiff(), *outer);
            drop(Tensor::<1>::ones([3], inner).exp());
            // The outer device continues to record meanwhile.
            drop(x.clone().log());
        })
        .unwrap();
        (inner, x.sqrt())
    })
    .unwrap();
    assert_eq!(names(&inner), ["BaseFloat.Ones", "Float.Exp"]);
    assert_eq!(
        names(&outer),
        ["BaseFloat.Zeros", "Float.Log", "Float.Sqrt"]
    );
    assert!(is_fake(&x));
}

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    norm: LayerNorm,
    dropout: Dropout,
    second: Linear,
    scale: Param<Tensor<1>>,
}

impl Model {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(8, 16).init(device),
            norm: LayerNormConfig::new(16).init(device),
            dropout: DropoutConfig::new(0.1).init(),
            second: LinearConfig::new(16, 4).init(device),
            scale: Param::from_tensor(Tensor::from_floats([1.0, f32::INFINITY, -0.0, 2.5], device)),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.norm.forward(gelu(self.first.forward(x)));
        let x = self.second.forward(self.dropout.forward(x));
        softmax(relu(x) * self.scale.val().unsqueeze(), 1)
    }
}

/// Initialization, forward, loss, and the backward pass of Burn.
fn joint() -> Graph {
    type Tracked = Autodiff<CaptureBackend>;
    let (gradient, recording) = record(&training(), |device| {
        let model = Model::new(device);
        let x = Tensor::random([5, 8], Distribution::Default, device);
        let loss = model.forward(x).powf_scalar(2.0).mean();
        let loss = loss.try_into_primitive::<Tracked>().unwrap();
        let gradients = Tracked::backward(loss);
        let weight = model.first.weight.val().try_into_primitive::<Tracked>();
        Tracked::grad(&weight.unwrap(), &gradients).unwrap().id()
    })
    .unwrap();
    let gradient = recording.value_of(gradient).unwrap();
    assert_eq!(*recording.graph().value(gradient).shape, [8, 16]);
    recording.into_graph()
}

fn bytes(graph: &Graph) -> Vec<u8> {
    tinderbox_fake::seal("a graph", 1, graph)
}

#[test]
fn one_model_is_one_graph_on_every_thread() {
    let expected = bytes(&joint());
    assert!(joint().nodes().len() > 50, "{}", joint());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..8 {
                    assert!(bytes(&joint()) == expected);
                }
            });
        }
    });
    let other = record(&training(), |d| drop(Model::new(d))).unwrap().1;
    assert_ne!(bytes(other.graph()), expected);
}

#[test]
fn one_model_is_one_graph_in_two_processes() {
    const CHILD: &str = "TINDERBOX_TEST_CHILD";
    let own = twox_hash::XxHash3_128::oneshot(&bytes(&joint()));
    let line = format!("graph digest {own:032x}");
    if std::env::var_os(CHILD).is_some() {
        println!("{line}");
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "one_model_is_one_graph_in_two_processes",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let output = String::from_utf8(child.stdout).unwrap();
    assert!(output.contains(&line), "{line} is not in {output}");
}

#[test]
fn uses_and_slices() {
    let (ids, recording) = record(&RecordOptions::default(), |d| {
        let a = Tensor::<1>::from_floats([1.0, 2.0], d);
        let b = a.clone() * a.clone();
        let (max, index) = b.clone().max_dim_with_indices(0);
        let c = max.clone() + b.clone();
        let [a, b, max, c] = [a, b, max, c].map(|t| DynTensor::from(t).captured_id().unwrap());
        [a, b, max, c, DynTensor::from(index).captured_id().unwrap()]
    })
    .unwrap();
    let graph = recording.graph();
    let [a, b, max, c, index] = ids.map(|id| recording.value_of(id).unwrap());
    assert_eq!(graph.to_string().lines().count(), graph.nodes().len());
    let producer = |v| graph.value(v).producer.unwrap();
    assert!(graph.is_constant(a) && graph.constant(a).is_some());
    assert!(!graph.is_constant(b) && graph.constant(b).is_none());
    // A value read twice by one operation has one user.
    assert_eq!(graph.node(producer(b)).inputs(), [a, a]);
    assert_eq!(graph.users(a), [producer(b)]);
    assert_eq!(graph.users(b), [producer(max), producer(c)]);
    assert_eq!(graph.users(c), []);
    assert_eq!(producer(max), producer(index));
    for (targets, given, nodes, leaves) in [
        (
            vec![c],
            vec![],
            vec![producer(b), producer(max), producer(c)],
            vec![a],
        ),
        (vec![c], vec![b], vec![producer(max), producer(c)], vec![b]),
        (vec![c], vec![b, max], vec![producer(c)], vec![b, max]),
        (
            vec![max, index],
            vec![index, b],
            vec![producer(max)],
            vec![b, index],
        ),
        (vec![c, a], vec![c], vec![], vec![a, c]),
        (vec![], vec![], vec![], vec![]),
    ] {
        let slice = graph.backward_slice(targets.clone(), |v| given.contains(&v));
        assert_eq!(
            (slice.nodes, slice.leaves),
            (nodes, leaves),
            "{targets:?} given {given:?}"
        );
    }
}

/// Names of operations, which occur in plans and error messages.
#[test]
fn operations_have_names() {
    let check = |expected: &str, run: fn(&Device)| {
        let ((), recording) = record(&RecordOptions::default(), run).unwrap();
        assert_eq!(names(&recording).last().unwrap(), expected);
    };
    check("Float.Floor", |d| drop(Tensor::<1>::zeros([2], d).floor()));
    check("BaseFloat.Flip", |d| {
        drop(Tensor::<1>::zeros([2], d).flip([0]))
    });
    check("NumericFloat.Full", |d| {
        drop(Tensor::<1>::full([2], 3.0, d))
    });
    check("NumericInt.Full", |d| {
        drop(Tensor::<1, Int>::full([2], 3, d))
    });
    check("BaseFloat.Cast", |d| {
        drop(Tensor::<1>::zeros([2], d).cast(DType::BF16))
    });
    check("BaseFloat.Unfold", |d| {
        drop(Tensor::<1>::zeros([2], d).unfold::<2, _>(0, 1, 1))
    });
    check("Bool.Not", |d| {
        drop(Tensor::<1, Bool>::zeros([2], d).bool_not())
    });
    check("Bool.IntoInt", |d| {
        drop(Tensor::<1, Bool>::zeros([2], d).int())
    });
    check("Activation.Relu", |d| {
        drop(relu(Tensor::<1>::zeros([2], d)))
    });
    check("NumericInt.IntRandom", |d| {
        drop(Tensor::<1, Int>::random(
            [2],
            Distribution::Uniform(0.0, 9.0),
            d,
        ));
    });
}
