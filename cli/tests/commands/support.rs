//! A checkpoint of a small model, and the command.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use burn::tensor::{DType, TensorData};
use tinderbox_checkpoint::{
    BlockSize, Checkpoint, CheckpointMeta, ModuleTypes, Role, Run, SaveTensor, Scalar, StoredDType,
};

pub const TIMEOUT: Duration = Duration::from_secs(20);

/// The result of a command.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Returns the output of a command that ended with this code and printed no error.
    #[track_caller]
    pub fn ends(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.err, "", "{self:?}");
        self.out
    }

    /// Returns the error of a failed command: one line, and no output.
    #[track_caller]
    pub fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert!(self.err.starts_with("error: "), "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        self.err
    }

    /// Returns the errors of a program that ended with this code, with the lines of the launcher.
    #[track_caller]
    pub fn errors(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.err
    }

    /// Returns the JSON object of a command that ended with this code. Its first field is its version.
    #[track_caller]
    pub fn json(self, code: i32) -> serde_json::Value {
        let text = self.ends(code);
        assert!(text.starts_with("{\"schema\":1,"), "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

/// Runs `tinderbox` with these arguments, and with this standard input.
pub fn run_with(input: &str, arguments: &[&str]) -> Ran {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
    run_os(input, &arguments)
}

/// Does the same as [`run_with`], with arguments that may not be UTF-8.
pub fn run_os(input: &str, arguments: &[&OsStr]) -> Ran {
    ended(tinderbox().args(arguments), input)
}

/// Runs a command line, split at spaces, in a directory: for this number of columns, or in a pipe.
pub fn run_in(dir: &Path, line: &str, columns: Option<usize>) -> Ran {
    let mut command = tinderbox();
    command.args(line.split(' ')).current_dir(dir);
    if let Some(columns) = columns {
        command.env("COLUMNS", columns.to_string());
    }
    ended(&mut command, "")
}

/// Returns the command, without variables that change its output.
fn tinderbox() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tinderbox"));
    command.env_remove("NO_COLOR").env_remove("COLUMNS");
    command
}

/// Runs a command with this standard input.
fn ended(command: &mut Command, input: &str) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    // It fails if a command that does not read it has ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let ran = child.wait_with_output().unwrap();
    Ran {
        code: ran.status.code(),
        out: String::from_utf8(ran.stdout).unwrap(),
        err: String::from_utf8(ran.stderr).unwrap(),
    }
}

/// Runs `tinderbox` with these arguments.
pub fn run(arguments: &[&str]) -> Ran {
    run_with("", arguments)
}

/// Runs `tinderbox ckpt` with these arguments.
pub fn ckpt(arguments: &[&str]) -> Ran {
    run(&[&["ckpt"], arguments].concat())
}

#[track_caller]
pub fn check_contains(found: &str, expected: &[&str]) {
    for expected in expected {
        assert!(found.contains(expected), "no `{expected}` in:\n{found}");
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The contents of a test checkpoint.
pub struct Sample {
    pub tensors: Vec<SaveTensor>,
    pub scalars: BTreeMap<String, Scalar>,
    pub plan: Option<serde_json::Value>,
    pub modules: ModuleTypes,
}

impl Sample {
    /// Creates parameters of three dtypes, one of them tied, and optimizer state of one.
    pub fn new() -> Self {
        let mut sample = Self::parameters();
        sample.tensors[0].tied = vec!["head.weight".to_owned()];
        let moment = SaveTensor::whole(
            "optimizer.embed.weight.moment_1",
            Role::State,
            floats(24, 0.5),
        );
        sample.tensors.push(moment);
        sample.scalars = BTreeMap::from([
            (
                "optimizer.embed.weight.power".to_owned(),
                Scalar::Float(f64::NEG_INFINITY),
            ),
            ("steps".to_owned(), Scalar::Uint(u64::MAX)),
        ]);
        sample
    }

    /// Creates parameters only.
    pub fn parameters() -> Self {
        let mask = (0..9).map(|i| i % 2).collect();
        let truth = StoredDType::Bool.burn();
        let gamma = vec![0x80, 0x3f, 0xc0, 0x7f, 0x00, 0x40];
        let tensors = [
            ("embed.weight", floats(24, 1.0)),
            ("mask", TensorData::from_bytes_vec(mask, [9], truth)),
            (
                "norm.gamma",
                TensorData::from_bytes_vec(gamma, [3], DType::BF16),
            ),
        ];
        let tensors = tensors.map(|(name, data)| SaveTensor::whole(name, Role::Model, data));
        Self {
            tensors: tensors.into(),
            scalars: BTreeMap::new(),
            plan: Some(serde_json::json!(["cut"])),
            modules: ModuleTypes::default(),
        }
    }

    /// Saves it from two ranks, with alternating tensors; returns the directory of the step.
    pub fn save(&self, run_dir: &Path, step: u64) -> PathBuf {
        let meta = CheckpointMeta {
            seed: u64::MAX,
            data_position: 7,
            metadata: serde_json::json!({"model": "small"}),
            plan: self.plan.clone(),
            modules: self.modules.clone(),
            block_size: Some(BlockSize::new(64).unwrap()),
            ..CheckpointMeta::new(step, 2)
        };
        let attempt = Run::local(run_dir).begin(meta).unwrap();
        for rank in 0..2 {
            let tensors = self.tensors.iter().skip(rank).step_by(2);
            let tensors: Vec<SaveTensor> = tensors.cloned().collect();
            let scalars = match rank {
                0 => self.scalars.clone(),
                _ => BTreeMap::new(),
            };
            let handle = attempt.handle();
            handle
                .write_rank(rank as u32, &tensors, &scalars, &())
                .unwrap();
        }
        attempt.publish(TIMEOUT).unwrap()
    }
}

/// Returns 0, 1, 2, ... times a factor, as rows of 4.
pub fn floats(count: usize, factor: f32) -> TensorData {
    let values: Vec<f32> = (0..count).map(|i| i as f32 * factor).collect();
    TensorData::new(values, [count / 4, 4])
}

/// Flips one bit of a file.
pub fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at as usize] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Returns the ranks that hold chunks of a tensor, in the order of the chunks.
pub fn ranks_of(checkpoint: &Checkpoint, role: Role, name: &str) -> Vec<u32> {
    let chunks = &checkpoint.tensor(role, name).unwrap().chunks;
    let files = &checkpoint.manifest().files;
    let rank = |file: &str| files.iter().find(|f| f.name == file).unwrap().rank;
    chunks.iter().map(|chunk| rank(&chunk.file)).collect()
}

/// Returns the names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
