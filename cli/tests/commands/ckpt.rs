//! Tests of `tinderbox ckpt` as a process, on checkpoints saved by the library.

use std::{collections::BTreeMap, fs, path::Path};

use crate::support::{
    Sample, TIMEOUT, check_contains, ckpt, flip, floats, names, ranks_of, run, run_in, text,
};
use burn::tensor::TensorData;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tinderbox_checkpoint::{Checkpoint, CheckpointMeta, Digest, Role, Run, SaveTensor, Scalar};
use tinderbox_deferred::human_bytes;

#[test]
fn inspect_shows_the_contents_of_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::new().save(dir.path(), 5);
    Sample::parameters().save(dir.path(), 12);
    let of_step = ckpt(&["inspect", text(&step)]).ends(0);
    check_contains(
        &of_step,
        &[
            "step           5\n",
            "seed           18446744073709551615\n",
            "data position  7\n",
            "world size     2\n",
            "files          3, ",
            "parameters     36 in 3 tensors, 111 B\n",
            "optimizer      1 tensor, 96 B, and 2 scalars\n",
            "metadata       {\"model\":\"small\"}\n",
            "learning rate  not saved\n",
            "numerics       not saved\n",
            "optimizer.embed.weight.moment_1",
            "[6, 4]",
            "bf16",
            "tied: embed.weight = head.weight\n",
        ],
    );
    let of_run = ckpt(&["inspect", text(dir.path()), "--step", "5"]).ends(0);
    assert_eq!(of_run, of_step);

    let newest = ckpt(&["inspect", text(dir.path()), "--json"]).json(0);
    assert_eq!(newest["step"], 12);
    let found = ckpt(&["inspect", text(&step), "--json"]).json(0);
    assert_eq!(found["seed"], u64::MAX);
    assert_eq!(found["metadata"], json!({"model": "small"}));
    let expected = json!({
        "name": "embed.weight", "tied": ["head.weight"], "role": "model", "dtype": "F32",
        "shape": [6, 4], "chunks": 1, "ranks": [0], "bytes": 96,
    });
    assert_eq!(found["tensors"][0], expected);
    let sizes = names(&step)
        .into_iter()
        .filter(|name| name.ends_with(".safetensors"));
    let sizes = sizes.map(|name| fs::metadata(step.join(name)).unwrap().len());
    assert_eq!(found["total_bytes"], sizes.sum::<u64>());
}

/// Equal layers are one row, as in the table of a model; no name is shortened, on a terminal of any width.
#[test]
fn inspect_groups_equal_layers() {
    let dir = tempfile::tempdir().unwrap();
    let mut sample = Sample::new();
    sample.tensors.clear();
    let mut modules = vec![("embed".to_owned(), "Embedding".to_owned())];
    for layer in 0..12 {
        for (module, of, leaf, elements) in [
            ("attention.query", "Linear", "weight", 16),
            ("norm", "LayerNorm", "gamma", 4),
        ] {
            let module = format!("blocks.{layer}.{module}");
            let (name, values) = (format!("{module}.{leaf}"), floats(elements, 1.0));
            let tensor = SaveTensor::whole(name, Role::Model, values);
            sample.tensors.push(tensor);
            modules.push((module, of.to_owned()));
        }
    }
    let embed = SaveTensor::whole("embed.weight", Role::Model, floats(24, 1.0));
    sample.tensors.push(embed);
    let moment = |of: &SaveTensor| SaveTensor {
        name: format!("optimizer.{}.moment_1", of.name),
        role: Role::State,
        ..of.clone()
    };
    let moments: Vec<SaveTensor> = sample.tensors.iter().map(moment).collect();
    sample.tensors.extend(moments);
    sample.modules = modules.into_iter().collect();
    let step = sample.save(dir.path(), 5);

    let inspect = ["ckpt", "inspect", text(&step)];
    let grouped = run(&inspect).ends(0);
    let table = grouped.split_once('─').unwrap().1;
    insta::assert_snapshot!(format!("─{table}"), @"
    ───────────────────────────────────────────────────────────────────────
     module                 type         dtype   shape    ranks      bytes
    ═══════════════════════════════════════════════════════════════════════
     blocks                                               0-1        960 B
       0 .. 11, each        12 modules                    0-1         80 B
         attention                                        0           64 B
           query.weight     Linear       f32     [4, 4]   0           64 B
         norm.gamma         LayerNorm    f32     [1, 4]   1           16 B
     embed.weight           Embedding    f32     [6, 4]   0           96 B
     optimizer.*.moment_1   25 tensors   f32              0-1     1.03 KiB
    ───────────────────────────────────────────────────────────────────────
    --all lists every tensor
    ");
    let all = run(&[&inspect[..], &["--all"]].concat()).ends(0);
    let name = "optimizer.blocks.11.attention.query.weight.moment_1";
    check_contains(&all, &[name]);
    assert_eq!(all.matches("query.weight").count(), 24, "{all}");
    let line = "ckpt inspect step-00000005 --all";
    let narrow = run_in(dir.path(), line, Some(80)).ends(0);
    let table = narrow.split_once('─').unwrap().1;
    for line in table.lines().skip(1) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let parts = name.split_inclusive('.').all(|part| table.contains(part));
    assert!(parts && !table.contains("..."), "{table}");
}

#[test]
fn inspect_shows_how_a_checkpoint_was_trained() {
    let dir = tempfile::tempdir().unwrap();
    let own = run(&["run", "numerics", "--json"]).json(0);
    let mut numerics: BTreeMap<String, String> =
        serde_json::from_value(own["numerics"].clone()).unwrap();
    let classes = numerics.clone();
    numerics.insert("sums".into(), "0".into());
    for (step, numerics) in [(1, classes), (2, numerics)] {
        let meta = CheckpointMeta {
            settings: [("optimizer".into(), "SgdConfig {}".into())].into(),
            numerics,
            ..CheckpointMeta::new(step, 1)
        };
        let attempt = Run::local(dir.path()).begin(meta).unwrap();
        let scalars = [("learning_rate".into(), Scalar::Float(0.25))].into();
        attempt.handle().write_rank(0, &[], &scalars, &()).unwrap();
        attempt.publish(TIMEOUT).unwrap();
    }
    let inspect = ["inspect", text(dir.path())];
    let lines = [
        "learning rate  0.25\n",
        "numerics       other bits than on this machine in sums\n",
        "setting        optimizer: SgdConfig {}\n",
    ];
    check_contains(&ckpt(&inspect).ends(0), &lines);
    let of_first = ckpt(&[&inspect[..], &["--step", "1"]].concat()).ends(0);
    check_contains(&of_first, &["numerics       the same as on this machine\n"]);
    // The command that compares machines compares checkpoints too.
    let json = ckpt(&[&inspect[..], &["--json"]].concat()).ends(0);
    let file = dir.path().join("inspected.json");
    fs::write(&file, json).unwrap();
    let compared = run(&["run", "numerics", text(&file), "--json"]).json(1);
    assert_eq!(compared["differences"], json!(["sums"]));
}

#[test]
fn ls_lists_the_steps_of_a_run() {
    let dir = tempfile::tempdir().unwrap();
    for step in [5, 12, 20] {
        Sample::new().save(dir.path(), step);
    }
    let damaged = dir.path().join("step-00000012");
    flip(&damaged.join("manifest.json"), 100);
    let aside = dir.path().join("damaged-00000020");
    fs::rename(dir.path().join("step-00000020"), aside).unwrap();
    let run_dir = text(dir.path());
    let list = ckpt(&["ls", run_dir]).ends(0);
    check_contains(
        &list,
        &["data position", "step 12: ", "damaged-00000020: set aside"],
    );
    let found = ckpt(&["ls", run_dir, "--json"]).json(0);
    let [first, second] = &found["steps"].as_array().unwrap()[..] else {
        panic!("{found}");
    };
    let of = |name: &str| &first[name];
    assert_eq!(
        (of("step"), of("complete"), of("world_size"), of("error")),
        (&json!(5), &json!(true), &json!(2), &json!(null))
    );
    let saved = humantime::parse_rfc3339(of("saved_at").as_str().unwrap()).unwrap();
    assert!(saved.elapsed().unwrap().as_secs() < 600, "{first}");
    assert_eq!(
        (of("intact"), &second["complete"]),
        (&json!(null), &json!(false))
    );
    check_contains(second["error"].as_str().unwrap(), &["step-00000012"]);
    assert_eq!(found["set_aside"], json!(["damaged-00000020"]));
    let error = ckpt(&["ls", text(&dir.path().join("step-00000005"))]).fails(2);
    check_contains(&error, &["is a step, not a run"]);
    fs::remove_dir_all(damaged).unwrap();
    fs::remove_dir_all(dir.path().join("step-00000005")).unwrap();
    check_contains(&ckpt(&["ls", run_dir]).fails(3), &["neither a checkpoint"]);
}

/// Without `--verify`, only manifests and sizes are checked, and the output reports it.
#[test]
fn ls_checks_values_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let [_, flipped] = [5, 12].map(|step| Sample::new().save(dir.path(), step));
    let file = flipped.join("model-rank-00000.safetensors");
    flip(&file, fs::metadata(&file).unwrap().len() - 1);
    let list = ["ls", text(dir.path())];
    let states = |list: &str| -> Vec<String> {
        let rows = list
            .lines()
            .filter(|line| line.contains("T") && line.contains("Z "));
        let last = rows.map(|row| row.rsplit("   ").next().unwrap().to_owned());
        last.collect()
    };
    let found = ckpt(&list).ends(0);
    assert_eq!(states(&found), ["complete", "complete"], "{found}");
    check_contains(
        &found,
        &["complete: manifest and sizes of files match; --verify also checks all values\n"],
    );
    assert!(!found.contains("valid"), "{found}");
    let verify = [&list[..], &["--verify"]].concat();
    let found = ckpt(&verify).ends(1);
    assert_eq!(states(&found), ["intact", "not intact"], "{found}");
    check_contains(&found, &["step 12: tensor `", "is damaged"]);
    let json = ckpt(&[&verify[..], &["--json"]].concat()).json(1);
    let of = |name: &str| [0, 1].map(|step: usize| json["steps"][step][name].clone());
    assert_eq!(of("complete"), [true, true]);
    assert_eq!(of("intact"), [true, false]);
    fs::remove_dir_all(flipped).unwrap();
    ckpt(&verify).ends(0);
}

#[test]
fn list_and_show_are_names_of_commands() {
    let dir = tempfile::tempdir().unwrap();
    Sample::new().save(dir.path(), 5);
    let run_dir = text(dir.path());
    for (alias, name) in [("list", "ls"), ("show", "inspect")] {
        let [found, expected] = [alias, name].map(|name| ckpt(&[name, run_dir]).ends(0));
        assert_eq!(found, expected);
    }
}

/// Every command for which a run means its newest step can use another one.
#[test]
fn every_command_uses_the_chosen_step() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    for step in [5, 12] {
        Sample::new().save(&run_dir, step);
    }
    let (run_dir, to) = (text(&run_dir), dir.path().join("to"));
    let to = text(&to);
    let other = format!("{run_dir}/step-00000007");
    for arguments in [
        &["inspect", run_dir][..],
        &["plan", run_dir],
        &["diff", run_dir, run_dir],
        &["export", run_dir, "--to", to],
        &["reshard", run_dir, "--ranks", "3", "--to", to],
        &["cp", run_dir, "--to", to],
    ] {
        let of = |step: &str| ckpt(&[arguments, &["--step", step]].concat());
        let expected = format!("error: {run_dir} has no step 7: its steps are 5, 12\n");
        assert_eq!(of("7").fails(3), expected, "{arguments:?}");
        assert!(!Path::new(to).exists(), "{arguments:?}");
        let out = of("5").ends(0);
        assert!(!out.contains("step-00000012"), "{arguments:?}: {out}");
        let _ = fs::remove_dir_all(to);
    }
    // A directory that does not exist.
    let expected = "has no step 7: its steps are 5, 12";
    for arguments in [&["inspect", &other][..], &["rm", &other, "--yes"]] {
        check_contains(&ckpt(arguments).fails(3), &[expected]);
    }
    let twice = ["diff", run_dir, run_dir, "--step", "5", "--step", "12"];
    let found = ckpt(&twice).ends(0);
    check_contains(&found, &["/step-00000005\nsecond  ", "/step-00000012\n"]);
    let thrice = ckpt(&[&twice[..], &["--step", "5"]].concat()).fails(2);
    check_contains(&thrice, &["--step can be given at most twice"]);
    for step in 20..40 {
        Sample::parameters().save(Path::new(run_dir), step);
    }
    let error = ckpt(&["plan", run_dir, "--step", "7"]).fails(3);
    let newest = "the newest of its 22 steps are 30, 31, 32, 33, 34, 35, 36, 37, 38, 39\n";
    check_contains(&error, &[newest]);
}

/// The library warns about a newer, damaged checkpoint, unless `-q` is set.
#[test]
fn events_of_the_library_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    for step in [5, 12] {
        Sample::new().save(dir.path(), step);
    }
    flip(&dir.path().join("step-00000012/manifest.json"), 100);
    let inspect = ["ckpt", "inspect", text(dir.path())];
    let ran = run(&inspect);
    assert_eq!(ran.code, Some(0));
    check_contains(&ran.out, &["step           5\n"]);
    check_contains(
        &ran.err,
        &["WARN skipped a damaged checkpoint ", "step-00000012"],
    );
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    assert_eq!(run(&[&["-q"], &inspect[..]].concat()).ends(0), ran.out);
    assert_eq!(run(&[&inspect[..], &["-vv"]].concat()).out, ran.out);
    let copy = dir.path().join("copy");
    let from = dir.path().join("step-00000005");
    let copies = ["ckpt", "cp", text(&from), "--to", text(&copy)];
    assert_eq!(run(&copies).err, "");
    let ran = run(&[&copies[..], &["--replace", "-v"]].concat());
    check_contains(&ran.err, &["INFO published a checkpoint step=5 dir="]);
}

#[test]
fn verify_names_every_damaged_block() {
    let dir = tempfile::tempdir().unwrap();
    let [good, bad] = [1, 2].map(|step| Sample::new().save(dir.path(), step));
    let whole = ckpt(&["verify", text(dir.path())]).ends(0);
    assert_eq!(whole.matches(": intact, 3 files, ").count(), 2, "{whole}");

    let checkpoint = Checkpoint::open(&bad).unwrap();
    let mut expected = Vec::new();
    for (role, name, at, block) in [
        (Role::Model, "embed.weight", 70, 64..96),
        (Role::State, "optimizer.embed.weight.moment_1", 0, 0..64),
    ] {
        let chunk = &checkpoint.tensor(role, name).unwrap().chunks[0];
        let file = bad.join(&chunk.file);
        flip(&file, chunk.start_bytes + at);
        let (start, end) = (
            chunk.start_bytes + block.start,
            chunk.start_bytes + block.end,
        );
        expected.push((name, format!("bytes {start}..{end} of {}", file.display())));
    }
    let found = ckpt(&["verify", text(dir.path())]).ends(1);
    let (intact, counted) = (
        format!("{}: intact", good.display()),
        format!("{}: damaged, 2 errors\n", bad.display()),
    );
    check_contains(&found, &[&intact, &counted]);
    let damaged: Vec<&str> = found
        .lines()
        .filter(|l| l.starts_with("damaged: "))
        .collect();
    assert_eq!(damaged.len(), 2, "{found}");
    for (line, (name, range)) in damaged.iter().zip(&expected) {
        check_contains(line, &[&format!("tensor `{name}`"), range]);
    }
    ckpt(&["verify", text(&good)]).ends(0);
    let both = ckpt(&["verify", text(&good), text(&bad), "--json"]).json(1);
    let both = &both["checkpoints"];
    assert_eq!(
        (&both[0]["intact"], &both[1]["intact"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(both[0]["files"], 3);
    assert_eq!(both[1]["damage"].as_array().unwrap().len(), 2, "{both}");
}

/// `-v` prints each file, `-vv` each chunk of a tensor.
#[test]
fn verify_prints_details_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::new().save(dir.path(), 1);
    let verify = ["ckpt", "verify", text(&step)];
    let answer = run(&verify).ends(0);
    let details = |flag: &str| {
        let ran = run(&[&verify[..], &[flag]].concat());
        assert_eq!((ran.code, &ran.out), (Some(0), &answer), "{ran:?}");
        ran.err
    };
    let files = details("-v");
    assert_eq!(files.lines().count(), 3, "{files}");
    for line in files.lines() {
        check_contains(
            line,
            &[
                "INFO checked a file path=",
                ".safetensors",
                " size=",
                " rate=",
                "/s errors=0",
            ],
        );
    }
    let chunk = "DEBUG checks a chunk tensor=embed.weight chunk=[0..6, 0..4] blocks=2 size=96 B\n";
    check_contains(&details("-vv"), &[chunk, "INFO checked a file path="]);
}

#[test]
fn verify_distinguishes_damage_from_other_errors() {
    let check = |spoil: fn(&Path), code: i32, expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        let step = Sample::new().save(dir.path(), 1);
        spoil(&step);
        let ran = ckpt(&["verify", text(dir.path())]);
        let said = match code {
            1 => ran.ends(1),
            code => ran.fails(code),
        };
        check_contains(&said, &[expected]);
    };
    check(
        |step| flip(&step.join("manifest.json"), 300),
        1,
        "manifest.json",
    );
    let missing = |step: &Path| fs::remove_file(step.join("state-rank-00001.safetensors")).unwrap();
    check(missing, 1, "state-rank-00001.safetensors");
    let unpublished = |step: &Path| fs::remove_file(step.join("manifest.json")).unwrap();
    check(unpublished, 1, "has no manifest");
    let index = |step: &Path| flip(&step.join("model.safetensors.index.json"), 9);
    check(index, 1, "model.safetensors.index.json");
    check(
        |step| fs::remove_dir_all(step).unwrap(),
        3,
        "neither a checkpoint",
    );
    let run = |step: &Path| fs::remove_dir_all(step.parent().unwrap()).unwrap();
    check(run, 3, "can't be read: No such file");
}

#[test]
fn diff_measures_differences() {
    let dir = tempfile::tempdir().unwrap();
    let mut sample = Sample::new();
    let first = sample.save(&dir.path().join("a"), 1);
    let same = sample.save(&dir.path().join("b"), 2);
    let equal = ckpt(&["diff", text(&first), text(&same)]).ends(0);
    check_contains(&equal, &["\n4 tensors and 2 scalars are equal\n"]);

    let mut values: Vec<f32> = floats(24, 1.0).try_to_vec().unwrap();
    (values[5], values[6], values[0]) = (10.0, f32::NAN, -0.0);
    sample.tensors[0].data = TensorData::new(values, [6, 4]).into();
    sample.tensors[1] = SaveTensor::whole("mask", Role::Model, floats(4, 1.0));
    sample.tensors[2].name = "norm.beta".to_owned();
    sample.scalars.insert("steps".to_owned(), Scalar::Uint(3));
    let second = sample.save(&dir.path().join("c"), 3);
    let arguments = ["diff", text(&first), text(&second)];
    let found = ckpt(&[&arguments[..], &["--json"]].concat()).json(1);
    let tensor = |name: &str, difference: Value| json!({"role": "model", "name": name, "difference": difference});
    let expected = json!({
        "schema": 1,
        "tensors": [
            tensor("embed.weight", json!({"values": {
                "elements": 24, "differing": 3, "not_finite": 1,
                "max_absolute": 5.0, "max_relative": 0.5,
            }})),
            tensor("mask", json!({"form": {
                "first_dtype": "BOOL", "first_shape": [9],
                "second_dtype": "F32", "second_shape": [1, 4],
            }})),
            tensor("norm.beta", json!("only_second")),
            tensor("norm.gamma", json!("only_first")),
        ],
        "scalars": [{"name": "steps", "first": {"uint": u64::MAX}, "second": {"uint": 3}}],
        "equal_tensors": 1,
        "equal_scalars": 1,
    });
    assert_eq!(found, expected);
    let found = ckpt(&arguments).ends(1);
    insta::assert_snapshot!(found.replace(text(dir.path()), "DIR"), @"
    first   DIR/a/step-00000001
    second  DIR/c/step-00000003
    4 of 5 tensors and 1 of 2 scalars differ
    model mask: bool of shape [9], in the second f32 of shape [1, 4]
    model norm.beta: only in the second
    model norm.gamma: only in the first
    ─────────────────────────────────────────────────────────────────────────────
     tensor         role    differing   max absolute   max relative   not finite
    ═════════════════════════════════════════════════════════════════════════════
     embed.weight   model     3 of 24         5.00e0        5.00e-1            1
    ─────────────────────────────────────────────────────────────────────────────
    ────────────────────────────────────────────────
     scalar   count                  first   second
    ════════════════════════════════════════════════
     steps        1   18446744073709551615        3
    ────────────────────────────────────────────────
    ");
}

/// The result comes first, the largest difference is the first row, and equal changes of scalars are one row.
#[test]
fn diff_shows_the_largest_differences() {
    let dir = tempfile::tempdir().unwrap();
    let layers = |factor: fn(u16) -> f32, steps: u64| {
        let mut sample = Sample::parameters();
        let weight = |layer: u16| {
            let values = floats(4, factor(layer));
            SaveTensor::whole(format!("layers.{layer}.weight"), Role::Model, values)
        };
        sample.tensors = (0..25).map(weight).collect();
        let scalar = |layer: u16| {
            let name = format!("optimizer.layers.{layer}.weight.time");
            (name, Scalar::Uint(steps))
        };
        sample.scalars = (0..25).map(scalar).collect();
        sample
    };
    let first = layers(|_| 1.0, 1).save(&dir.path().join("a"), 1);
    let second = layers(|layer| 1.0 + f32::from(layer), 2).save(&dir.path().join("b"), 1);
    let diff = ["diff", text(&first), text(&second)];
    let found = ckpt(&diff).ends(1);
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines[2], "24 of 25 tensors and 25 of 25 scalars differ");
    // After the head of the table.
    assert_eq!(
        lines[6].split_whitespace().collect::<Vec<_>>(),
        [
            "layers.24.weight",
            "model",
            "3",
            "of",
            "4",
            "7.20e1",
            "9.60e-1"
        ]
    );
    let rows = |found: &str| found.lines().filter(|l| l.contains(" layers.")).count();
    assert_eq!(rows(&found), 20, "{found}");
    check_contains(&found, &["and 4 more: use --all to show them\n"]);
    let scalars = lines.iter().filter(|line| line.contains("optimizer."));
    let scalars: Vec<Vec<&str>> = scalars.map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(scalars, [["optimizer.layers.*.time", "25", "1", "2"]]);
    let all = ckpt(&[&diff[..], &["--all"]].concat()).ends(1);
    assert_eq!(rows(&all), 24, "{all}");
    assert!(!all.contains("more:"), "{all}");
}

#[test]
fn diff_compares_a_tied_weight_by_all_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let first = Sample::new().save(&dir.path().join("a"), 1);
    let mut sample = Sample::new();
    sample.tensors[0].tied.clear();
    let mut head = sample.tensors[0].clone();
    head.name = "head.weight".to_owned();
    head.data = floats(24, 2.0).into();
    sample.tensors.push(head);
    let second = sample.save(&dir.path().join("b"), 1);
    let found = ckpt(&["diff", text(&first), text(&second), "--json"]).json(1);
    let tensors = found["tensors"].as_array().unwrap();
    let names = tensors
        .iter()
        .filter(|t| t["difference"]["names"].is_object());
    assert_eq!(names.count(), 2, "{found}");
    let values = tensors
        .iter()
        .filter(|t| t["difference"]["values"].is_object());
    // The weight under its second name: every element except the first.
    let differing: Vec<&Value> = values
        .map(|t| &t["difference"]["values"]["differing"])
        .collect();
    assert_eq!(differing, [23], "{found}");
}

#[test]
fn reshard_keeps_everything_but_the_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::new().save(&dir.path().join("a"), 5);
    for (flags, to) in [(&[] as &[&str], "whole"), (&["--rows"], "rows")] {
        let to = dir.path().join(to);
        let arguments = ["reshard", text(&step), "--ranks", "3", "--to", text(&to)];
        let arguments = [&arguments[..], flags].concat();
        let out = ckpt(&arguments).ends(0);
        let new = Path::new(out.trim_end());
        assert_eq!(new, to.join("step-00000005"));
        ckpt(&["verify", text(new)]).ends(0);
        ckpt(&["diff", text(&step), text(new)]).ends(0);
        let [old, new] = [step.as_path(), new].map(|dir| Checkpoint::open(dir).unwrap());
        let kept = |checkpoint: &Checkpoint| {
            let m = checkpoint.manifest();
            (
                m.step,
                m.seed,
                m.data_position,
                m.block_bytes,
                m.metadata(),
                checkpoint.plan().unwrap(),
            )
        };
        assert_eq!(kept(&new), kept(&old));
        assert_eq!(new.manifest().world_size, 3);
        let weight = ranks_of(&new, Role::Model, "embed.weight");
        let moment = ranks_of(&new, Role::State, "optimizer.embed.weight.moment_1");
        match flags.is_empty() {
            true => {
                assert_eq!((weight, moment), (vec![0], vec![0]));
                // By bytes: 9 and 6.
                assert_eq!(ranks_of(&new, Role::Model, "mask"), [1]);
                assert_eq!(ranks_of(&new, Role::Model, "norm.gamma"), [2]);
            }
            false => {
                assert_eq!((weight, moment), (vec![0, 1, 2], vec![0, 1, 2]));
                assert_eq!(ranks_of(&new, Role::Model, "norm.gamma"), [0, 1, 2]);
            }
        }
        // Now it exists.
        let error = ckpt(&arguments).fails(2);
        check_contains(&error, &["already exists: use --replace to replace it"]);
        ckpt(&[&arguments[..], &["--replace"]].concat()).ends(0);
    }
    // Back to two ranks, from rows, in place.
    let rows = dir.path().join("rows");
    let arguments = [
        "reshard",
        text(&rows),
        "--ranks",
        "2",
        "--to",
        text(&rows),
        "--replace",
    ];
    ckpt(&arguments).ends(0);
    ckpt(&["diff", text(&step), text(&rows)]).ends(0);
    assert_eq!(names(&rows), ["step-00000005"]);
}

#[test]
fn reshard_refuses_a_damaged_block() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::new().save(&dir.path().join("a"), 5);
    let checkpoint = Checkpoint::open(&step).unwrap();
    let chunk = &checkpoint.tensor(Role::Model, "mask").unwrap().chunks[0];
    flip(&step.join(&chunk.file), chunk.start_bytes);
    let to = dir.path().join("b");
    let ran = ckpt(&["reshard", text(&step), "--ranks", "1", "--to", text(&to)]);
    check_contains(&ran.fails(1), &["tensor `mask` is damaged"]);
    assert!(!to.exists());
}

/// What is in the directory of a step is removed with the step.
#[test]
fn nothing_is_written_into_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    for step in [5, 20] {
        Sample::parameters().save(&run_dir, step);
    }
    let step = run_dir.join("step-00000005");
    let before = names(&step);
    for line in [
        "ckpt cp run",
        "ckpt reshard run --ranks 1",
        "model convert run",
    ] {
        for to in [
            "run/step-00000005",
            "run/step-00000005/",
            "new/step-00000005",
        ] {
            let error = run_in(dir.path(), &format!("{line} --to {to}"), None).fails(2);
            check_contains(&error, &[to, " is a step, not a run"]);
        }
    }
    let inner = "is a step, and what is in it is removed with it: use another place";
    for line in ["ckpt cp run", "model convert run", "ckpt export run"] {
        let nested = format!("{line} --to run/step-00000005/a/b");
        let from_inside = format!("{} --to a", line.replace("run", ".."));
        for (at, line) in [(dir.path(), nested), (step.as_path(), from_inside)] {
            check_contains(
                &run_in(at, &line, None).fails(2),
                &["step-00000005 ", inner],
            );
        }
    }
    let exported = run_in(dir.path(), "ckpt export run --to run/step-00000005", None);
    check_contains(&exported.fails(2), &[inner]);
    let bucket = run_in(
        dir.path(),
        "ckpt cp run --to memory:///run/step-00000005",
        None,
    );
    check_contains(&bucket.fails(2), &["is a step, not a run"]);
    assert_eq!(names(&step), before);
    assert_eq!(names(dir.path()), ["run"]);
    // A place beside the step, and a directory of another program with the name of a step.
    run_in(&step, "ckpt export .. --to ../../hf/step-00000005", None).ends(0);
    assert_eq!(
        names(&dir.path().join("hf/step-00000005")),
        ["model.safetensors"]
    );
}

/// A directory whose name is of another step than its manifest.
#[test]
fn a_renamed_step_is_damaged_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::parameters().save(dir.path(), 5);
    let renamed = dir.path().join("step-00000006");
    fs::rename(&step, &renamed).unwrap();
    let expected = "step-00000006 holds step 5; its name specifies step 6";
    let to = dir.path().join("to");
    for place in [dir.path(), &renamed] {
        check_contains(
            &ckpt(&["inspect", text(place), "--step", "6"]).fails(1),
            &[expected],
        );
        check_contains(&ckpt(&["verify", text(place)]).ends(1), &[expected]);
        check_contains(
            &ckpt(&["cp", text(place), "--to", text(&to)]).fails(1),
            &[expected],
        );
    }
    assert!(!to.exists());
}

#[test]
fn export_writes_files_for_other_readers() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::new().save(&dir.path().join("run"), 5);
    let (one, many) = (dir.path().join("one"), dir.path().join("many"));
    fs::create_dir(&one).unwrap();
    let out = ckpt(&["export", text(&step), "--to", text(&one)]).ends(0);
    check_contains(
        &out,
        &[
            "3 tensors in 1 file, ",
            "head.weight is tied to embed.weight",
        ],
    );
    assert_eq!(names(&one), ["model.safetensors"]);
    let flags = ["--max-file-bytes", "16"];
    let arguments = ["export", text(&step), "--to", text(&many)];
    ckpt(&[&arguments[..], &flags].concat()).ends(0);
    let expected = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ];
    assert_eq!(names(&many), expected);
    let index = fs::read(many.join(expected[2])).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let expected_index = json!({
        "metadata": {"total_size": 111},
        "weight_map": {
            "embed.weight": expected[0], "mask": expected[1], "norm.gamma": expected[1],
        },
    });
    assert_eq!(index, expected_index);
    for (dir, files) in [(&one, &["model.safetensors"][..]), (&many, &expected[..2])] {
        let mut found = Vec::new();
        for file in files {
            let bytes = fs::read(dir.join(file)).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            for (name, view) in tensors.tensors() {
                found.push((name, view.shape().to_vec(), view.data().to_vec()));
            }
        }
        found.sort();
        let mask = (0..9u8).map(|i| i % 2).collect();
        let gamma = vec![0x80, 0x3f, 0xc0, 0x7f, 0x00, 0x40];
        let embed = floats(24, 1.0).as_bytes().to_vec();
        let expected: [(String, Vec<usize>, Vec<u8>); 3] = [
            ("embed.weight".to_owned(), vec![6, 4], embed),
            ("mask".to_owned(), vec![9], mask),
            ("norm.gamma".to_owned(), vec![3], gamma),
        ];
        assert_eq!(found, expected);
    }
    // Existing files stay, and there are no remains.
    let error = ckpt(&arguments).fails(2);
    check_contains(&error, &["already exists and is not an empty directory"]);
    assert_eq!(names(dir.path()), ["many", "one", "run"]);
}

/// Names and layouts of PyTorch, by the types of the modules in the checkpoint.
#[test]
fn export_for_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    let mut sample = Sample::new();
    sample.modules = [("", "Net"), ("embed", "Linear"), ("norm", "LayerNorm")]
        .map(|(path, name)| (path.to_owned(), name.to_owned()))
        .into_iter()
        .collect();
    let step = sample.save(&dir.path().join("run"), 5);
    let to = dir.path().join("to");
    let arguments = ["export", text(&step), "--to", text(&to), "--pytorch"];
    let rename = [
        "--rename",
        r"^(embed|head)\.=encoder.${1}_x.",
        "--rename",
        "norm=LayerNorm",
    ];
    let rest = ["--json", "--max-file-bytes", "100"];
    let found = ckpt(&[&arguments[..], &rename, &rest].concat()).json(0);
    assert_eq!(
        (&found["tensors"], &found["bytes"]),
        (&json!(3), &json!(111))
    );
    assert_eq!(
        found["tied"],
        json!({"encoder.head_x.weight": "encoder.embed_x.weight"})
    );
    let index = fs::read(to.join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let listed: Vec<&String> = index["weight_map"].as_object().unwrap().keys().collect();
    assert_eq!(
        listed,
        ["LayerNorm.weight", "encoder.embed_x.weight", "mask"]
    );
    let file = index["weight_map"]["encoder.embed_x.weight"]
        .as_str()
        .unwrap();
    let bytes = fs::read(to.join(file)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let embed = file.tensor("encoder.embed_x.weight").unwrap();
    assert_eq!(embed.shape(), [4, 6]);
    let expected = (0..24_u8).map(|at| f32::from(at % 6 * 4 + at / 6));
    let expected: Vec<u8> = expected.flat_map(f32::to_le_bytes).collect();
    assert_eq!(embed.data(), expected);

    let other = dir.path().join("other");
    let arguments = ["export", text(&step), "--to", text(&other), "--pytorch"];
    let check = |rest: &[&str], expected: &str| {
        let error = ckpt(&[&arguments[..], rest].concat()).fails(2);
        check_contains(&error, &[expected]);
        assert!(!other.exists());
    };
    check(
        &["--format", "burnpack"],
        "use the format `safetensors` for PyTorch's",
    );
    check(
        &["--rename", "a.b"],
        "no `=` between pattern and replacement",
    );
    check(
        &["--rename", "a(=b"],
        "`a(` is not a regular expression: unclosed group",
    );
    check(
        &["--rename", "^(embed|norm).*=x"],
        "would both be written as `x`: change the rename patterns",
    );
    // Saved without a model.
    let plain = Sample::parameters().save(&dir.path().join("plain"), 5);
    let error = ckpt(&["export", text(&plain), "--to", text(&other), "--pytorch"]).fails(2);
    check_contains(
        &error,
        &[
            "does not have the types of its modules, which --pytorch needs",
            "resume the run with this version",
        ],
    );
}

/// A checkpoint that was converted has no run that could be resumed.
#[test]
fn export_of_a_converted_checkpoint_for_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::new().save(&dir.path().join("run"), 5);
    let [plain, converted, to] = ["plain", "converted", "to"].map(|name| dir.path().join(name));
    ckpt(&["export", text(&step), "--to", text(&plain)]).ends(0);
    run(&["model", "convert", text(&plain), "--to", text(&converted)]).ends(0);
    let export = ["export", text(&converted), "--to", text(&to), "--pytorch"];
    let error = ckpt(&export).fails(2);
    check_contains(&error, &["it was converted, ", "leave out --pytorch"]);
    for wrong in ["resume", "tools::export", "ExportOptions"] {
        assert!(!error.contains(wrong), "{error}");
    }
}

/// A file of Burn: exported, converted again, equal.
#[test]
fn burnpack_files_are_written_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::parameters().save(&dir.path().join("run"), 5);
    let [pack, back] = ["pack", "back"].map(|name| dir.path().join(name));
    let flags = ["--format", "burnpack"];
    let arguments = ["export", text(&step), "--to", text(&pack)];
    let out = ckpt(&[&arguments[..], &flags].concat()).ends(0);
    check_contains(&out, &["3 tensors in 1 file, "]);
    assert_eq!(names(&pack), ["model.bpk"]);
    let file = pack.join("model.bpk");
    run(&["model", "convert", text(&file), "--to", text(&back)]).ends(0);
    ckpt(&["diff", text(&step), text(&back)]).ends(0);
}

/// Returns the bytes that `rm` would remove.
fn bytes_of_rm(run_dir: &Path, step: u64) -> u64 {
    let dir = run_dir.join(format!("step-{step:08}"));
    let found = ckpt(&["rm", text(&dir), "--json"]).json(0);
    let files = found["files"].as_object().unwrap().values();
    files.map(|bytes| bytes.as_u64().unwrap()).sum()
}

#[test]
fn gc_removes_only_with_yes() {
    let dir = tempfile::tempdir().unwrap();
    for step in 1..=5 {
        Sample::parameters().save(dir.path(), step);
    }
    // A kill between two calls leaves an empty directory.
    let attempt = format!(".attempt-6-{}", "0123456789abcdef".repeat(2));
    fs::create_dir(dir.path().join(&attempt)).unwrap();
    let foreign = dir.path().join(".attempt-mine");
    fs::create_dir(&foreign).unwrap();
    let before = names(dir.path());
    let run = text(dir.path());
    let all = ckpt(&["gc", run]).ends(0);
    assert_eq!(all.matches("keep step").count(), 5, "{all}");
    let arguments = ["gc", run, "--keep-last", "2", "--keep-every", "2"];
    // An entry that is not of this crate counts for both commands.
    fs::create_dir(dir.path().join("step-00000003/notes")).unwrap();
    fs::write(dir.path().join("step-00000003/notes/one.txt"), "notes").unwrap();
    let bytes: u64 = [1, 3]
        .iter()
        .map(|step| bytes_of_rm(dir.path(), *step))
        .sum();
    let freed = human_bytes(bytes);
    let shown = ckpt(&arguments).ends(0);
    let dry_run = ckpt(&[&arguments[..], &["--dry-run"]].concat()).ends(0);
    assert_eq!(dry_run, shown);
    let both = ckpt(&[&arguments[..], &["--dry-run", "--yes"]].concat()).fails(2);
    check_contains(&both, &["cannot be used with"]);
    check_contains(
        &shown,
        &[
            "keep step 2: it is a multiple of 2\n",
            "keep step 4: it is one of the newest 2\n",
            "keep step 5: it is the newest\n",
            "would remove step 1: ",
            "would remove step 3: ",
            &format!("{attempt}: remains of a save\n"),
            &format!("nothing was removed: use --yes to free {freed}\n"),
        ],
    );
    assert_eq!(names(dir.path()), before);
    let json = ckpt(&[&arguments[..], &["--json"]].concat()).json(0);
    assert_eq!(json["remove"].as_array().unwrap().len(), 3, "{json}");
    assert_eq!(
        (&json["removed"], &json["bytes"]),
        (&json!(false), &json!(bytes))
    );
    let done = ckpt(&[&arguments[..], &["--yes"]].concat()).ends(0);
    let freed = format!("freed {freed}\n");
    check_contains(&done, &["removed step 1: ", "removed step 3: ", &freed]);
    assert!(!done.contains("would"), "{done}");
    let left = [
        ".attempt-mine",
        "step-00000002",
        "step-00000004",
        "step-00000005",
    ];
    assert_eq!(names(dir.path()), left);
    // The newest stays, whatever the rule.
    ckpt(&["gc", run, "--keep-every", "3", "--yes"]).ends(0);
    assert_eq!(names(dir.path()), [".attempt-mine", "step-00000005"]);
}

#[test]
fn gc_lists_steps_in_ascending_order() {
    let dir = tempfile::tempdir().unwrap();
    for step in 1..=4 {
        Sample::parameters().save(dir.path(), step);
    }
    flip(&dir.path().join("step-00000003/manifest.json"), 100);
    let found = ckpt(&["gc", text(dir.path()), "--json"]).json(0);
    let keep = found["keep"].as_array().unwrap().iter();
    let steps: Vec<&Value> = keep.map(|entry| &entry["step"]).collect();
    assert_eq!(steps, [1, 2, 3, 4], "{found}");
}

#[test]
fn errors_are_one_line_and_have_the_code_of_their_cause() {
    let dir = tempfile::tempdir().unwrap();
    let run = text(dir.path());
    let nothing = dir.path().join("nothing");
    let (nothing, absent) = (text(&nothing), format!("{run}/step-00000001"));
    let file = format!("{run}/file");
    fs::write(&file, "").unwrap();
    let [other, exported, empty] =
        ["other", "exported", "empty"].map(|name| format!("{run}/{name}"));
    let step = format!("{other}/step-00000001");
    Sample::new().save(Path::new(&other), 1);
    ckpt(&["export", &step, "--to", &exported]).ends(0);
    fs::create_dir(&empty).unwrap();
    for (code, arguments, expected) in [
        (2, &["melt"][..], "unrecognized subcommand"),
        (2, &["verify"], "were not provided"),
        (3, &["verify", nothing], "can't be read: No such file"),
        (3, &["inspect", run], "neither a checkpoint"),
        (2, &["inspect", run, "--step", "x"], "invalid value"),
        (2, &["diff", run, run, "--step", "+1"], "a whole number"),
        (2, &["diff", run], "were not provided"),
        (
            2,
            &["reshard", run, "--ranks", "0", "--to", "x"],
            "invalid value",
        ),
        (2, &["reshard", run, "--ranks", "2"], "--to <RUN_DIR>"),
        (
            2,
            &["export", run, "--to", "x", "--max-file-bytes", "0"],
            "invalid value",
        ),
        (
            2,
            &["gc", run, "--keep-last", "0"],
            "0 is not from 1 to 4294967295",
        ),
        (3, &["gc", nothing], "No such file"),
        (
            3,
            &["rm", &absent, "--yes"],
            "has no step 1: it has no steps",
        ),
        (
            3,
            &["inspect", "memory:///run/step-00000001"],
            "memory:///run has no step 1: it has no steps",
        ),
        (3, &["gc", "memory:///run"], "neither a checkpoint"),
        (3, &["gc", &exported], "neither a checkpoint"),
        (
            3,
            &["gc", &empty, "--keep-last", "1", "--yes"],
            "neither a checkpoint",
        ),
        (
            2,
            &["gc", &step],
            "is a checkpoint, not the directory of a run",
        ),
        (2, &["cp", run], "--to <RUN_DIR>"),
        (2, &["gc", &file], "can't be read: Not a directory"),
        (2, &["ls", "--all", run], "unexpected argument '--all'"),
        // In buckets; this command is built without the services.
        (
            2,
            &["inspect", "s3://bucket/run"],
            "requires the feature `aws`",
        ),
        (
            2,
            &["verify", "gs://bucket/run/step-00000001"],
            "requires the feature `gcp`",
        ),
        (
            2,
            &["gc", "az://container/run"],
            "requires the feature `azure`",
        ),
        (
            2,
            &["ls", "https://host/run"],
            "requires the feature `http`",
        ),
        (3, &["diff", "memory:///run", run], "neither a checkpoint"),
        (2, &["inspect", "file:///run"], "use a local path"),
    ] {
        check_contains(&ckpt(arguments).fails(code), &[expected]);
    }
}

/// The output of a command as JSON, given to a command that reads another file.
#[test]
fn outputs_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for run_dir in ["run", "other"] {
        Sample::new().save(&dir.path().join(run_dir), 5);
    }
    fs::copy(crate::plan::golden(), dir.path().join("plan.json")).unwrap();
    let digests = dir.path().join("a.jsonl");
    fs::write(digests, crate::run::digests(&[(1, [1, 2, 3])])).unwrap();
    let check = |line: &str, found: &str| {
        let made = run_in(dir.path(), &format!("{line} --json -o out.json"), None);
        assert_eq!((made.code, &*made.err), (Some(0), ""), "{line}");
        let error = run_in(dir.path(), "plan show out.json", None).fails(2);
        let expected = format!("error: out.json: expected a plan, found {found}");
        check_contains(&error, &[&expected]);
    };
    for line in [
        "ckpt ls run",
        "ckpt inspect run",
        "ckpt verify run",
        "ckpt diff run other",
        "ckpt export run --to exported",
        "ckpt gc run",
        "ckpt rm run/step-00000005",
        "model estimate run",
        "schedule list",
        "schedule verify 1f1b",
        "plan diff plan.json plan.json",
        "run diff a.jsonl a.jsonl",
    ] {
        let command: Vec<&str> = line.split(' ').take(2).collect();
        let command = command.join(" ");
        check(line, &format!("the output of `tinderbox {command} --json`"));
    }
    check("schedule show 1f1b", "a schedule as JSON");
    check("run numerics", "the numerics of a machine");
    let manifest = "plan show run/step-00000005/manifest.json";
    let error = run_in(dir.path(), manifest, None).fails(2);
    check_contains(
        &error,
        &["expected a plan, found the manifest of a checkpoint"],
    );
}

#[test]
fn no_command_takes_an_older_step_on_its_own() {
    let dir = tempfile::tempdir().unwrap();
    for step in [5, 12] {
        Sample::new().save(dir.path(), step);
    }
    flip(&dir.path().join("step-00000012/manifest.json"), 100);
    let (run, to) = (text(dir.path()), dir.path().join("to"));
    let to = text(&to);
    for arguments in [
        &["export", run, "--to", to][..],
        &["reshard", run, "--ranks", "3", "--to", to],
        &["diff", run, run],
    ] {
        let error = ckpt(arguments).fails(1);
        check_contains(
            &error,
            &[
                "the newest step of ",
                ", 12, can't be used; use ",
                "step-00000005 for the previous step",
                "the digest is",
            ],
        );
        assert!(!Path::new(to).exists(), "{arguments:?}");
    }
    let older = dir.path().join("step-00000005");
    ckpt(&["export", text(&older), "--to", to]).ends(0);
}

#[test]
fn rm_reports_what_it_removes() {
    let dir = tempfile::tempdir().unwrap();
    for step in [1, 2, 3] {
        Sample::new().save(dir.path(), step);
    }
    let step = |step: u32| dir.path().join(format!("step-{step:08}"));
    fs::remove_file(step(2).join("manifest.json")).unwrap();
    fs::rename(step(3), dir.path().join("damaged-00000003-2")).unwrap();
    let aside = dir.path().join("damaged-00000003-2");

    let valid = ckpt(&["rm", text(&step(1))]).ends(0);
    check_contains(
        &valid,
        &[
            "step-00000001 has a valid manifest\n",
            "  model-rank-00000.safetensors (",
            "nothing was removed: use --yes --force to remove it with 6 files, ",
        ],
    );
    let dry_run = ckpt(&["rm", text(&step(1)), "--dry-run"]).ends(0);
    assert_eq!(dry_run, valid);
    let error = ckpt(&["rm", text(&step(1)), "--yes"]).fails(2);
    check_contains(&error, &["has a valid manifest", "or --force"]);
    let stray = dir.path().join("step-1");
    fs::create_dir(&stray).unwrap();
    let error = ckpt(&["rm", text(&stray), "--force"]).fails(2);
    check_contains(&error, &["`step-1` is neither the directory of a step"]);
    fs::remove_dir(&stray).unwrap();
    let error = ckpt(&["rm", text(dir.path())]).fails(2);
    check_contains(&error, &["is neither the directory of a step"]);
    let out = ckpt(&["rm", text(&step(2))]).ends(0);
    check_contains(
        &out,
        &[
            "step-00000002 has no manifest: it is not a complete checkpoint\n",
            "  model-rank-00000.safetensors (",
            "nothing was removed: use --yes to remove it with 5 files, ",
        ],
    );
    assert!(step(2).exists());
    let found = ckpt(&["rm", text(&step(2)), "--json"]).json(0);
    assert_eq!(
        (&found["removed"], found["files"].as_object().unwrap().len()),
        (&json!(false), 5)
    );
    assert_eq!(found["needs_force"], false);
    let listed = ckpt(&["gc", text(dir.path())]).ends(0);
    check_contains(
        &listed,
        &["keep step 2: it can't be used", "keep damaged-00000003-2: "],
    );

    for (path, arguments) in [(&step(2), &["--yes"][..]), (&aside, &["--yes"])] {
        let out = ckpt(&[&["rm", text(path)], arguments].concat()).ends(0);
        check_contains(&out, &[&format!("removed {}", path.display())]);
    }
    ckpt(&["rm", text(&step(1)), "--force", "--yes"]).ends(0);
    assert_eq!(names(dir.path()), [""; 0]);
}

/// A checkpoint of a later version is not damaged: nothing suggests to remove it.
#[test]
fn a_checkpoint_of_another_version_is_not_removed_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::parameters().save(dir.path(), 1);
    let manifest = step.join("manifest.json");
    let whole: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let mut body = whole["body"].clone();
    body["version"] = json!(2);
    let body = body.to_string();
    let digest = Digest::of(body.as_bytes());
    let sealed = format!("{{\"xxh3_128\":\"{digest}\",\"body\":{body}}}\n");
    fs::write(&manifest, sealed).unwrap();

    ckpt(&["verify", text(&step)]).fails(2);
    let run_dir = text(dir.path());
    let listed = ckpt(&["ls", run_dir, "--verify", "--json"]).json(2);
    let of_step = |field: &str| listed["steps"][0][field].clone();
    assert_eq!(
        ["complete", "intact"].map(of_step),
        [json!(false), json!(null)]
    );
    ckpt(&["ls", run_dir]).ends(0);
    let listed = ckpt(&["gc", run_dir]).ends(0);
    check_contains(&listed, &["keep step 1: it can't be used: "]);
    assert!(!listed.contains("ckpt rm"), "{listed}");
    let error = ckpt(&["rm", text(&step), "--yes"]).fails(2);
    check_contains(&error, &["is not known to be damaged", "--force"]);
    assert!(step.exists());
    let shown = ckpt(&["rm", text(&step)]).ends(0);
    check_contains(
        &shown,
        &["it has version 2", "use --yes --force to remove it"],
    );
    ckpt(&["rm", text(&step), "--yes", "--force"]).ends(0);
    assert!(!step.exists());
}

#[test]
fn a_step_without_a_manifest_is_damaged_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::parameters().save(dir.path(), 3);
    fs::remove_file(step.join("manifest.json")).unwrap();
    let run = text(dir.path());
    for place in [run, text(&step)] {
        let ran = ckpt(&["verify", place, "--json"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let error = ckpt(&["inspect", place, "--step", "3"]).fails(1);
        check_contains(
            &error,
            &["has no manifest: it is not a complete checkpoint"],
        );
        // It exists.
        for command in ["inspect", "export", "cp"] {
            let to = dir.path().join("to");
            let mut arguments = vec![command, text(&step)];
            if command != "inspect" {
                arguments.extend(["--to", text(&to)]);
            }
            let error = ckpt(&arguments).fails(1);
            check_contains(&error, &["step-00000003 has no manifest"]);
            assert!(!error.contains("not exist"), "{error}");
        }
    }
    let nothing = dir.path().join("nothing");
    let ran = ckpt(&["verify", text(&nothing), run, "--json"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let answer: Value = serde_json::from_str(&ran.out).unwrap();
    let checked = answer["checkpoints"].as_array().unwrap();
    assert_eq!(checked.len(), 2, "{answer}");
    assert!(
        checked[0]["error"]
            .as_str()
            .unwrap()
            .contains("No such file")
    );
}

#[test]
fn gc_keeps_the_newest_whole_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    for step in [1, 2, 3] {
        Sample::new().save(dir.path(), step);
    }
    let file = dir
        .path()
        .join("step-00000003/model-rank-00000.safetensors");
    let last = fs::metadata(&file).unwrap().len() - 1;
    flip(&file, last);
    let run = text(dir.path());
    let ran = ckpt(&["gc", run, "--keep-last", "1", "--yes"]);
    assert_eq!(ran.code, Some(0));
    check_contains(&ran.err, &["WARN a checkpoint to keep is damaged"]);
    check_contains(
        &ran.out,
        &[
            "keep step 2: no newer kept checkpoint is intact",
            "removed step 1: not kept by the rule",
        ],
    );
    assert_eq!(names(dir.path()), ["step-00000002", "step-00000003"]);
}

#[test]
fn cp_copies_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let step = Sample::new().save(&dir.path().join("run"), 5);
    let to = dir.path().join("copies");
    let arguments = ["cp", text(&step), "--to", text(&to)];
    let out = ckpt(&arguments).ends(0);
    let copied = Path::new(out.trim_end());
    assert_eq!(copied, to.join("step-00000005"));
    assert_eq!(names(copied), names(&step));
    for name in names(&step) {
        let same = fs::read(step.join(&name)).unwrap() == fs::read(copied.join(&name)).unwrap();
        assert_eq!(same, name != "manifest.json", "{name}");
    }
    ckpt(&["verify", text(copied)]).ends(0);
    ckpt(&["diff", text(&step), text(copied)]).ends(0);

    let error = ckpt(&arguments).fails(2);
    check_contains(&error, &["already exists: use --replace to replace it"]);
    assert!(!error.contains("::"), "{error}");
    let replaced = ckpt(&[&arguments[..], &["--replace", "--json"]].concat()).json(0);
    assert_eq!(replaced, json!({"schema": 1, "dir": copied}));
    assert_eq!(names(&to), ["step-00000005"]);
    let out = ckpt(&["cp", text(&to), "--to", "memory:///run"]).ends(0);
    assert_eq!(out, "memory:///run/step-00000005\n");

    // Damage in any file is not copied.
    for name in names(&step).iter().filter(|name| *name != "manifest.json") {
        let bytes = fs::read(step.join(name)).unwrap();
        flip(&step.join(name), bytes.len() as u64 - 1);
        let other = dir.path().join("other");
        let error = ckpt(&["cp", text(&step), "--to", text(&other)]).fails(1);
        check_contains(&error, &[&**name]);
        assert!(!other.exists());
        // A directory that existed stays.
        fs::create_dir(&other).unwrap();
        let inner = other.join("new/run");
        ckpt(&["cp", text(&step), "--to", text(&inner)]).fails(1);
        assert_eq!(names(&other), [""; 0]);
        fs::remove_dir(&other).unwrap();
        fs::write(step.join(name), bytes).unwrap();
    }
}

#[test]
fn the_plan_of_a_checkpoint_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let golden =
        fs::read_to_string(root.join("pipeline/planner/tests/golden/plan-version-3.json")).unwrap();
    let mut sample = Sample::new();
    sample.plan = Some(serde_json::from_str(&golden).unwrap());
    let step = sample.save(dir.path(), 5);
    assert_eq!(ckpt(&["plan", text(&step)]).ends(0), golden);
    let file = dir.path().join("plan.json");
    assert_eq!(
        ckpt(&["plan", text(dir.path()), "-o", text(&file)]).ends(0),
        ""
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), golden);
    run(&["plan", "show", text(&file)]).ends(0);

    // A failed command leaves the file as it is.
    sample.plan = None;
    sample.save(dir.path(), 6);
    let error = ckpt(&["plan", text(dir.path()), "-o", text(&file)]).fails(1);
    check_contains(&error, &["step-00000006 was saved without a plan"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), golden);
}
