//! Tests of `tinderbox model` as a process.

use std::{fs, path::Path};

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, TensorData};
use tinderbox_checkpoint::{Checkpoint, Role, Run, StoredDType, encode_header};
use tinderbox_deferred::{Deferred, ParameterPath, parameter_values, random::Seed};

use crate::support::{Sample, check_contains, ckpt, floats, names, run, text};

/// Runs `tinderbox model` with these arguments.
fn model(arguments: &[&str]) -> crate::support::Ran {
    run(&[&["model"], arguments].concat())
}

#[derive(Module, Debug)]
struct Net {
    embedding: Embedding,
    layers: Vec<Linear>,
}

fn net() -> Deferred<Net> {
    let net = Deferred::new(|device: &Device| Net {
        embedding: EmbeddingConfig::new(50, 8).init(device),
        layers: (0..3)
            .map(|_| LinearConfig::new(8, 8).init(device))
            .collect(),
    });
    net.unwrap()
}

/// Writes the file of a recorded model.
pub fn record(file: &Path) {
    net().recorded_model().save(file).unwrap();
}

/// Returns all parameters of a checkpoint.
fn parameters(dir: &Path) -> Vec<(String, TensorData)> {
    let checkpoint = Run::local(dir).open(0).unwrap();
    let tensors = checkpoint.tensors(Role::Model);
    let read = tensors.map(|tensor| {
        let region = tinderbox_fake::Region::whole(&tensor.shape).unwrap();
        (
            tensor.name.clone(),
            checkpoint.read(tensor, &region).unwrap(),
        )
    });
    read.collect()
}

#[test]
fn a_recorded_model_is_initialized_as_by_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net.model");
    let net = net();
    net.recorded_model().save(&file).unwrap();
    let device = Device::flex();
    let made = net
        .materialize(&device, &net.initializer(Seed::new(7)))
        .unwrap();
    let values = parameter_values(&made).into_iter();
    let mut values: Vec<(String, TensorData)> = values
        .map(|(path, value): (ParameterPath, _)| (path.to_string(), value.to_data().unwrap()))
        .collect();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, flags) in [
        ("one", &[][..]),
        ("whole", &["--ranks", "3"]),
        ("rows", &["--ranks", "3", "--rows", "--memory", "1GiB"]),
    ] {
        let to = dir.path().join(name);
        let arguments = ["init", text(&file), "--seed", "7", "--to", text(&to)];
        let out = model(&[&arguments[..], flags].concat()).ends(0);
        let written = format!("{}: 7 tensors in ", to.join("step-00000000").display());
        assert!(
            out.starts_with(&written) && out.ends_with(", 2.41 KiB\n"),
            "{out}"
        );
        assert_eq!(parameters(&to), values, "{name}");
        ckpt(&["verify", text(&to)]).ends(0);
        let opened = Run::local(&to).open(0).unwrap();
        assert_eq!(opened.manifest().seed, 7);
        assert_eq!(opened.manifest().modules().get("layers.1"), Some("Linear"));
    }
    // Rounded once, as Burn does.
    let to = dir.path().join("halves");
    let flags = ["--seed", "7", "--dtype", "bf16", "--to", text(&to)];
    model(&[&["init", text(&file)][..], &flags].concat()).ends(0);
    let cast = values.into_iter();
    let cast: Vec<_> = cast
        .map(|(name, data)| (name, data.convert_dtype(DType::BF16)))
        .collect();
    assert_eq!(parameters(&to), cast);

    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let error = model(&["init", text(&file), "--to", text(&to)]).fails(1);
    check_contains(&error, &["damaged"]);
    let absent = dir.path().join("absent");
    let error = model(&["init", text(&absent), "--to", text(&to)]).fails(3);
    check_contains(&error, &["absent", "No such file"]);
}

#[test]
fn conversion_casts_and_renames() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    Sample::new().save(&from, 0);
    let to = dir.path().join("to");
    let flags = [
        "--dtype",
        "f16",
        "--rename",
        "^(embed|norm)=model.$1",
        "--ranks",
        "2",
        "--rows",
    ];
    let arguments = ["convert", text(&from), "--to", text(&to)];
    model(&[&arguments[..], &flags].concat()).ends(0);
    ckpt(&["verify", text(&to)]).ends(0);
    let expected = parameters(&from)
        .into_iter()
        .map(|(name, data)| match &*name {
            // Only floats are cast.
            "mask" => (name, data),
            _ => (format!("model.{name}"), data.convert_dtype(DType::F16)),
        });
    let mut expected: Vec<_> = expected.collect();
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(parameters(&to), expected);
    let opened = Run::local(&to).open(0).unwrap();
    assert_eq!(opened.manifest().seed, u64::MAX);
    assert_eq!(opened.manifest().world_size, 2);
    // The parameters alone, with their tied names.
    assert_eq!(opened.tensors(Role::State).count(), 0);
    let tied = &opened
        .tensor(Role::Model, "model.embed.weight")
        .unwrap()
        .tied;
    assert_eq!(*tied, ["head.weight"]);

    let other = dir.path().join("other");
    let arguments = [
        "convert",
        text(&from),
        "--to",
        text(&other),
        "--rename",
        "^.*$=x",
    ];
    check_contains(
        &model(&arguments).fails(2),
        &["would both be written as `x`"],
    );
    let little = [
        "convert",
        text(&from),
        "--to",
        text(&other),
        "--memory",
        "1MiB",
    ];
    check_contains(
        &model(&little).fails(2),
        &[
            "--memory is too low: 1.00 MiB are allowed, and at least",
            "are needed",
        ],
    );
    let size = [
        "convert",
        text(&from),
        "--to",
        text(&other),
        "--memory",
        "lots",
    ];
    check_contains(&model(&size).fails(2), &["`lots` is not a size"]);
    assert!(!other.exists());
    let nothing = dir.path().join("nothing");
    let error = model(&["convert", text(&nothing), "--to", text(&other)]).fails(3);
    check_contains(&error, &["No such file"]);
}

#[test]
fn memory_is_estimated_from_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net.model");
    net().recorded_model().save(&file).unwrap();
    // 400 values of the embedding and 3 times 72.
    let out = model(&["estimate", text(&file)]).ends(0);
    let rows = [
        "616 parameters in 7 tensors (f32), on 1 rank",
        "parameters   2.41 KiB",
        "gradients    2.41 KiB",
        "optimizer    4.81 KiB   adam: 2 values for each",
        "inference    2.41 KiB   the parameters alone",
        // Six values of the embedding.
        "update       9.38 KiB   while the largest parameter is updated",
        "training     19.0 KiB   the sum of the above",
        "at least 1.56 KiB for values: the largest parameter, embedding.weight",
        "gradients and the optimizer's state have the dtype of the parameters",
    ];
    check_contains(&out, &rows);
    let flags = [
        "--dtype",
        "bf16",
        "--optimizer",
        "momentum",
        "--ranks",
        "2",
        "--json",
    ];
    let json = model(&[&["estimate", text(&file)][..], &flags].concat()).json(0);
    let expected = serde_json::json!({
        "schema": 1, "tensors": 7, "parameters": 616, "dtypes": ["bf16"], "ranks": 2,
        "all": {"parameters": 1232, "gradients": 1232, "optimizer": 1232},
        "largest_rank": {"parameters": 800, "gradients": 800, "optimizer": 800},
        "inference_bytes": 1232, "largest_rank_inference_bytes": 800,
        "update_bytes": 4800, "training_bytes": 8496,
        "largest_parameter": "embedding.weight", "streamed_bytes": 800,
    });
    assert_eq!(json, expected);

    let run = dir.path().join("run");
    model(&["init", text(&file), "--to", text(&run)]).ends(0);
    let of_run = model(&["estimate", text(&run)]).ends(0);
    check_contains(&of_run, &rows);
    let plain = dir.path().join("plain");
    ckpt(&["export", text(&run), "--to", text(&plain)]).ends(0);
    check_contains(&model(&["estimate", text(&plain)]).ends(0), &rows);
    // A file whose length of the header begins with the byte of `{`.
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let header = format!("{header:<length$}", length = usize::from(b'{'));
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), &[0; 4]].concat();
    let of_brace = dir.path().join("brace.safetensors");
    fs::write(&of_brace, file).unwrap();
    let out = model(&["estimate", text(&of_brace)]).ends(0);
    check_contains(&out, &["1 parameter in 1 tensor (f32), on 1 rank"]);
}

#[test]
fn a_pass_is_predicted_from_a_plan() {
    let plan = crate::plan::golden();
    let out = model(&["estimate", text(&plan), "--stream", "1TiB"]).ends(0);
    check_contains(
        &out,
        &[
            "a pass reads 0 B; 145 MiB of parameters remain in memory",
            "was not measured (calibrate --disk)",
        ],
    );
    // The name of the flag before.
    let before = model(&["estimate", text(&plan), "--memory", "1TiB"]);
    assert_eq!(before.ends(0), out);
    let error = model(&["estimate", text(&plan), "--stream", "1B"]).fails(2);
    check_contains(&error, &["for values, and --stream is 1 B: raise it"]);
    let mut file: serde_json::Value = serde_json::from_slice(&fs::read(plan).unwrap()).unwrap();
    file["machine"]["disk"] =
        serde_json::json!({"bytes_per_s": 2_000_000_000_u64, "busy_permille": 100});
    let dir = tempfile::tempdir().unwrap();
    let measured = dir.path().join("plan.json");
    fs::write(&measured, file.to_string()).unwrap();
    let out = model(&["estimate", text(&measured), "--stream", "1TiB"]).ends(0);
    check_contains(&out, &["of reading at 2.00 GB/s"]);
    let json = model(&["estimate", text(&measured), "--stream", "1TiB", "--json"]).json(0);
    assert_eq!(json["streamed"]["read_bytes"], 0);
}

#[test]
fn another_step_of_a_plan_is_estimated() {
    let plan = crate::plan::golden();
    let ranks = |flags: &[&str]| -> Vec<serde_json::Value> {
        let json = model(&[&["estimate", text(&plan), "--json"], flags].concat()).json(0);
        json["ranks"].as_array().unwrap().clone()
    };
    let (planned, none, more) = (
        ranks(&[]),
        ranks(&["--optimizer", "sgd"]),
        ranks(&["--schedule", "gpipe", "--micro-batches", "16"]),
    );
    for ((planned, none), more) in planned.iter().zip(none).zip(more) {
        assert_eq!(none["optimizer"], 0);
        for part in ["parameters", "gradients", "activations", "transient"] {
            assert_eq!(none[part], planned[part]);
        }
        // All micro-batches are in flight on every rank.
        assert!(more["activations"].as_u64() >= planned["activations"].as_u64());
        assert_eq!(more["optimizer"], planned["optimizer"]);
    }
    // A pass runs the micro-batches that were asked for.
    let computed = |count: &str| {
        let flags = ["--stream", "1TiB", "--micro-batches", count, "--json"];
        let json = model(&[&["estimate", text(&plan)][..], &flags].concat()).json(0);
        json["streamed"]["compute_ns"].as_u64()
    };
    assert_eq!(computed("16"), computed("8").map(|time| 2 * time));
    let same = [
        "--schedule",
        "zb-h1",
        "--micro-batches",
        "8",
        "--optimizer",
        "adam",
    ];
    assert_eq!(ranks(&same), planned);
    let error = model(&["estimate", text(&plan), "--schedule", "zbv"]).fails(2);
    check_contains(&error, &["does not run", "as the plan places them"]);
    let error = model(&["estimate", text(&plan), "--ranks", "2"]).fails(2);
    check_contains(&error, &["leave out --dtype, --mixed and --ranks"]);
}

/// A checkpoint has the plan of its run.
#[test]
fn a_run_is_estimated_by_its_plan() {
    let dir = tempfile::tempdir().unwrap();
    let (run, golden) = (dir.path().join("run"), crate::plan::golden());
    let mut sample = Sample::new();
    sample.plan = Some(serde_json::from_slice(&fs::read(&golden).unwrap()).unwrap());
    sample.save(&run, 1);
    // The last one has a plan of no version.
    Sample::new().save(&run, 2);
    let flags = ["--micro-batches", "16", "--json"];
    let estimate =
        |from: &Path, flags: &[&str]| model(&[&["estimate", text(from)], flags].concat());
    let json = estimate(&run, &[&flags[..], &["--step", "1"]].concat()).json(0);
    assert_eq!(json, estimate(&golden, &flags).json(0));
    let error = estimate(&run, &flags).fails(2);
    check_contains(
        &error,
        &[
            "are predicted from a plan: ",
            "expected a plan, found no JSON object",
        ],
    );
    let out = estimate(&run, &["--step", "1"]).ends(0);
    check_contains(&out, &["the saved plan has them (add --micro-batches M)"]);
    sample.plan = None;
    sample.save(&run, 3);
    let error = estimate(&run, &flags).fails(1);
    check_contains(
        &error,
        &[
            "are predicted from a plan: ",
            "step-00000003 was saved without a plan",
        ],
    );
    let error = estimate(&golden, &["--step", "1"]).fails(2);
    check_contains(&error, &["is not a run: leave out --step"]);
    let error = estimate(&run, &["--step", "4"]).fails(3);
    check_contains(&error, &["has no step 4: its steps are 1, 2, 3"]);
}

/// Master weights, gradients and two moments of 4 bytes each, and parameters of 2 bytes.
#[test]
fn mixed_precision_is_estimated() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net.model");
    record(&file);
    let flags = ["estimate", text(&file), "--optimizer", "adamw", "--mixed"];
    let out = model(&flags).ends(0);
    insta::assert_snapshot!(out, @"
    616 parameters in 7 tensors (bf16), on 1 rank
    ────────────────────────────────────────────────────────────────
                     bytes
    ════════════════════════════════════════════════════════════════
     parameters   1.20 KiB
     masters      2.41 KiB   master weights
     gradients    2.41 KiB
     optimizer    4.81 KiB   adamw: 2 values for each
     update       9.38 KiB   while the largest parameter is updated
     training     20.2 KiB   the sum of the above
     inference    1.20 KiB   the parameters alone
    ────────────────────────────────────────────────────────────────
    streamed from a disk, an evaluation needs at least 800 B for values: the largest parameter, embedding.weight
    gradients and the optimizer's state are in f32, as the master weights
    activations are not counted: a plan has them (model estimate plan.json)
    ");
    let json = model(&[&flags[..], &["--json"]].concat()).json(0);
    let bytes = |per_value: u64| 616 * per_value;
    let expected = serde_json::json!({
        "parameters": bytes(2), "masters": bytes(4), "gradients": bytes(4), "optimizer": bytes(8),
    });
    assert_eq!(json["all"], expected);
    let error = model(&[&flags[..], &["--dtype", "f16"]].concat()).fails(2);
    check_contains(&error, &["cannot be used with"]);
}

/// The commonest wrong inputs.
#[test]
fn other_inputs_are_named_as_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("config.json"), r#"{"model_type": "gpt2"}"#).unwrap();
    fs::write(at("pytorch_model.bin"), b"PK\x03\x04\0\0\x08\x08data.pkl").unwrap();
    fs::write(at("old.pt"), b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.").unwrap();
    fs::write(at("llama.gguf"), b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0").unwrap();
    fs::write(at("notes.txt"), "to do").unwrap();
    record(&at("net.model"));
    let to = at("to");
    for (name, code, expected) in [
        (
            "config.json",
            2,
            "found the configuration of a model: the commands of `tinderbox model` read the directory that contains it",
        ),
        (
            "pytorch_model.bin",
            2,
            "is a pickled file of PyTorch, and only safetensors",
        ),
        ("old.pt", 2, "old.pt is a pickled file of PyTorch"),
        (
            "llama.gguf",
            2,
            "is a GGUF file: expected a safetensors or burnpack file",
        ),
        (
            "notes.txt",
            2,
            "notes.txt is not a safetensors or burnpack file",
        ),
        // The directory of a model without safetensors.
        ("", 2, "llama.gguf is a GGUF file"),
        ("absent", 3, "No such file"),
    ] {
        let from = at(name);
        let convert = model(&["convert", text(&from), "--to", text(&to)]);
        check_contains(&convert.fails(code), &[expected]);
        let estimate = model(&["estimate", text(&from)]);
        check_contains(&estimate.fails(code), &[expected]);
        model(&["init", text(&from), "--to", text(&to)]).fails(code);
    }
    let error = model(&["convert", text(&at("net.model")), "--to", text(&to)]).fails(2);
    check_contains(&error, &["has no values: `tinderbox model init` computes"]);
    let weights = at("a.safetensors");
    fs::write(&weights, plain("w", StoredDType::F32, &[0; 4])).unwrap();
    let error = model(&["init", text(&weights), "--to", text(&to)]).fails(2);
    check_contains(
        &error,
        &["has values, which `tinderbox model convert` saves"],
    );
    for hub in [
        "meta-llama/Llama-3",
        "https://huggingface.co/meta-llama/Llama-3",
    ] {
        let advice = "`hf download meta-llama/Llama-3 --local-dir Llama-3`, then use Llama-3";
        check_contains(&model(&["estimate", hub]).fails(3), &[advice]);
        let convert = model(&["convert", hub, "--to", text(&to)]);
        check_contains(
            &convert.fails(3),
            &["does not exist; a model of the", advice],
        );
    }
    assert!(!to.exists());
}

/// A dtype has one form, in which it may also be given in capitals.
#[test]
fn dtypes_may_have_capitals() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    Sample::new().save(&run, 0);
    let out = model(&["estimate", text(&run), "--dtype", "BF16"]).ends(0);
    check_contains(&out, &["in 3 tensors (bf16, bool), on 1 rank"]);
    let error = model(&["estimate", text(&run), "--dtype", "i8"]).fails(2);
    check_contains(&error, &["[possible values: f64, f32, f16, bf16]"]);
}

/// A conversion that would lose values, or do nothing, is refused.
#[test]
fn conversion_refuses_to_lose_values() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    Sample::new().save(&run, 0);
    let convert = |from: &Path, to: &Path, flags: &[&str]| {
        model(&[&["convert", text(from), "--to", text(to)], flags].concat())
    };
    let other = dir.path().join("other");
    for (rename, expected) in [
        ("^(em)bed=$1_new", "written `${1}_new`"),
        ("^(em)bed=$2", "has no group `2`"),
        ("^(em)bed=${first}", "has no group `first`"),
        ("^layr=x", "the pattern `^layr` matches no tensor"),
    ] {
        let error = convert(&run, &other, &["--rename", rename]).fails(2);
        check_contains(&error, &[expected]);
    }
    let named = ["--rename", "^(?<first>em)bed=${first}$$1"];
    convert(&run, &other, &named).ends(0);
    let names = parameters(&other).into_iter().map(|(name, _)| name);
    let names: Vec<String> = names.collect();
    assert!(names.contains(&"em$1.weight".to_owned()), "{names:?}");

    // The optimizer's state would be gone.
    let error = convert(&run, &run, &["--replace"]).fails(2);
    check_contains(&error, &["has a state of the optimizer"]);
    convert(&run, &run, &["--as-step", "1"]).ends(0);
    // So would the state of another step, for parameters from any source.
    let error = convert(&other, &run, &["--as-step", "0", "--replace"]).fails(2);
    check_contains(&error, &["has a state of the optimizer"]);
    convert(&other, &run, &["--as-step", "1", "--replace"]).ends(0);

    let large = dir.path().join("large.safetensors");
    let values: Vec<u8> = [1.0_f32, 1e6]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    fs::write(&large, plain("w", StoredDType::F32, &values)).unwrap();
    let halves = dir.path().join("halves");
    let error = convert(&large, &halves, &["--dtype", "f16"]).fails(2);
    check_contains(&error, &["tensor `w`", "1e6", "out of the range"]);
    assert!(!halves.exists() || self::names(&halves).is_empty());
    convert(&large, &halves, &["--dtype", "bf16"]).ends(0);
}

/// `--step` is the step that is read, as in all commands.
#[test]
fn a_step_of_a_run_is_converted() {
    let dir = tempfile::tempdir().unwrap();
    let [run, to] = ["run", "to"].map(|name| dir.path().join(name));
    let older = Sample::parameters().save(&run, 5);
    let mut sample = Sample::parameters();
    sample.tensors[0].data = floats(24, 2.0).into();
    let newer = sample.save(&run, 10);
    let convert = |from: &Path, flags: &[&str]| {
        model(&[&["convert", text(from), "--to", text(&to)], flags].concat())
    };
    for (from, flags, expected, saved) in [
        (&run, &["--step", "5"][..], &older, "step-00000005"),
        (&run, &[], &newer, "step-00000010"),
        (&older, &["--as-step", "1"], &older, "step-00000001"),
        (
            &run,
            &["--step", "5", "--as-step", "2"],
            &older,
            "step-00000002",
        ),
    ] {
        convert(from, flags).ends(0);
        let saved = to.join(saved);
        ckpt(&["diff", text(expected), text(&saved)]).ends(0);
    }
    let error = convert(&run, &["--step", "1"]).fails(3);
    check_contains(&error, &["has no step 1: its steps are 5, 10"]);
    let error = convert(&older, &["--step", "10"]).fails(2);
    check_contains(
        &error,
        &["is the directory of step 5: use the run directory"],
    );
    let file = dir.path().join("w.safetensors");
    fs::write(&file, plain("w", StoredDType::F32, &[0; 4])).unwrap();
    let error = convert(&file, &["--step", "5"]).fails(2);
    check_contains(&error, &["is not a run: leave out --step"]);
}

#[test]
fn conversion_reads_exported_files() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::parameters().save(&dir.path().join("run"), 5);
    for (bytes, ranks) in [("1000", "1"), ("1", "2"), ("100", "5")] {
        let [plain, run] = ["plain", "back"].map(|name| dir.path().join(format!("{name}-{bytes}")));
        let arguments = [
            "export",
            text(&step),
            "--to",
            text(&plain),
            "--max-file-bytes",
            bytes,
        ];
        ckpt(&arguments).ends(0);
        let flags = ["--to", text(&run), "--as-step", "9", "--ranks", ranks];
        let out = model(&[&["convert", text(&plain)][..], &flags].concat()).ends(0);
        let back = run.join("step-00000009");
        let written = format!("{}: 3 tensors in ", back.display());
        assert!(
            out.starts_with(&written) && out.ends_with(", 111 B\n"),
            "{out}"
        );
        ckpt(&["verify", text(&back)]).ends(0);
        ckpt(&["diff", text(&step), text(&back)]).ends(0);
        let manifest = Checkpoint::open(&back).unwrap().manifest().clone();
        assert_eq!(manifest.world_size.to_string(), ranks);
    }
    // A single file, and the step of another conversion.
    let file = dir.path().join("plain-1000/model.safetensors");
    let run = dir.path().join("back-1");
    let arguments = ["convert", text(&file), "--to", text(&run), "--as-step", "9"];
    check_contains(&model(&arguments).fails(2), &["already exists"]);
    model(&[&arguments[..], &["--replace"]].concat()).ends(0);
    ckpt(&["diff", text(&step), text(&run)]).ends(0);
}

/// Returns a plain file with one tensor.
pub fn plain(name: &str, dtype: StoredDType, data: &[u8]) -> Vec<u8> {
    let shape = [data.len() as u64 / dtype.size_bytes()];
    let mut bytes = encode_header(&[], &[(name, dtype, &shape)]).unwrap();
    bytes.extend(data);
    bytes
}

#[test]
fn conversion_refuses_damaged_files() {
    let weight = plain("w", StoredDType::F32, &[0; 8]);
    let index = |map: &str| format!(r#"{{"weight_map":{map}}}"#).into_bytes();
    let check = |files: &[(&str, &[u8])], code: i32, expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        for (name, bytes) in files {
            fs::write(from.join(name), bytes).unwrap();
        }
        let ran = model(&["convert", text(&from), "--to", text(&to)]);
        let error = ran.fails(code);
        check_contains(&error, &[expected]);
        assert!(!to.exists() || names(&to).is_empty(), "{error}");
    };
    let (model, listed) = ("model.safetensors", "model.safetensors.index.json");
    check(&[], 3, "has neither model.safetensors nor");
    check(&[(model, &weight[..weight.len() - 1])], 1, "the file holds");
    check(
        &[(model, &[&weight[..], b"x"].concat())],
        1,
        "the file holds",
    );
    check(&[(model, b"short")], 1, "extends past the end");
    let truth = plain("mask", StoredDType::Bool, &[0, 2]);
    check(&[(model, &truth)], 1, "neither 0 nor 1");
    let empty = encode_header(&[], &[]).unwrap();
    check(&[(model, &empty)], 2, "contains no parameters");
    for name in ["../from/a", "/etc/passwd", "b/a", ".."] {
        let index = index(&format!(r#"{{"w":"{name}"}}"#));
        check(
            &[("a", &weight), (listed, &index)],
            2,
            "which is not a plain file name",
        );
    }
    let twice = index(r#"{"w":"a","w":"b"}"#);
    check(&[("a", &weight), (listed, &twice)], 1, "duplicate key `w`");
    let missing = index(r#"{"w":"a","v":"a"}"#);
    check(
        &[("a", &weight), (listed, &missing)],
        1,
        r#"missing from the listed file: ["v"]"#,
    );
    // The same tensor in two files.
    let other = index(r#"{"w":"a","v":"b"}"#);
    let files: [(&str, &[u8]); 3] = [("a", &weight), ("b", &weight), (listed, &other)];
    check(&files, 1, r#"in two files: ["w"]"#);
    let gone = index(r#"{"w":"c"}"#);
    check(&[(listed, &gone)], 1, "does not exist");
    let one = index(r#"{"w":"a"}"#);
    let files: [(&str, &[u8]); 3] = [("a", &weight), (model, &weight), (listed, &one)];
    check(&files, 2, "that its index does not list");
}

/// A model in many files, in a process that may open few of them.
#[cfg(unix)]
#[test]
fn many_files_need_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let mut map = serde_json::Map::new();
    for file in 0..300 {
        let (tensor, name) = (format!("w{file}"), format!("{file}.safetensors"));
        let bytes = plain(&tensor, StoredDType::U8, &[file as u8; 10]);
        fs::write(dir.path().join(&name), bytes).unwrap();
        map.insert(tensor, name.into());
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let limited = |arguments: &[&str]| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", r#"ulimit -n 64; exec "$@""#, "sh"]);
        shell.arg(env!("CARGO_BIN_EXE_tinderbox")).args(arguments);
        let ran = shell.output().unwrap();
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{error}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let (from, to) = (dir.path(), dir.path().join("run"));
    let estimated = limited(&["model", "estimate", text(from)]);
    check_contains(&estimated, &["3000 parameters in 300 tensors"]);
    limited(&["model", "convert", text(from), "--to", text(&to)]);
    limited(&["ckpt", "verify", text(&to)]);
    let saved = Run::local(&to).open(0).unwrap();
    let tensor = saved.tensor(Role::Model, "w299").unwrap();
    let read = saved.read(tensor, &tensor.chunks[0].region).unwrap();
    assert_eq!(read.as_bytes(), [43; 10]);
}

/// Some editors write the mark before a text.
#[test]
fn a_plan_may_have_a_byte_order_mark() {
    let dir = tempfile::tempdir().unwrap();
    let plan = crate::plan::golden();
    let expected = model(&["estimate", text(&plan)]).ends(0);
    let marked = dir.path().join("marked.json");
    let json = fs::read_to_string(&plan).unwrap();
    fs::write(&marked, format!("\u{feff}{json}")).unwrap();
    assert_eq!(model(&["estimate", text(&marked)]).ends(0), expected);
}
