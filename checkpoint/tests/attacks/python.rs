//! Tests of the Python reader, which is written from `FORMAT.md` alone: it must reject every attack and
//! accept valid checkpoints.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{LazyLock, Mutex, PoisonError},
};

use serde_json::{Value, json};
use tinderbox_checkpoint::{Checkpoint, Digest, Role, Run, Scalar};
use tinderbox_checkpoint_tests::{Random, TIMEOUT, meta, names, save, small_contents};
use tinderbox_fake::Region;

use crate::forge::Victim;

/// The script of the reader.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../read_checkpoint.py");

/// Returns whether Python is installed.
static PYTHON: LazyLock<bool> = LazyLock::new(|| {
    let there = Command::new("python3").arg("--version").output().is_ok();
    if !there {
        eprintln!("NOT RUN: the reader in Python, because there is no `python3`");
    }
    there
});

/// The result of a run of the script.
struct Ended {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

/// Runs the script as a program, if Python is installed.
fn run(arguments: &[&str]) -> Option<Ended> {
    PYTHON.then(|| {
        let mut python = Command::new("python3");
        let output = python.arg(SCRIPT).args(arguments).output().unwrap();
        Ended {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    })
}

/// Runs the script of its first argument for each line of its standard input, a JSON list of arguments, as Python runs a program.
/// Writes a line with the exit code and the lengths of the outputs, then the outputs.
const SERVER: &str = r#"
import io, json, sys, traceback
path, answers = sys.argv[1], sys.stdout.buffer
with open(path, "rb") as file:
    script = compile(file.read(), path, "exec")
for request in sys.stdin.buffer:
    sys.argv, code = [path, *json.loads(request)], 0
    sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    try:
        exec(script, {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    stdout, stderr = sys.stdout.buffer.getvalue(), sys.stderr.getvalue().encode("utf-8", "backslashreplace")
    answers.write(b"%d %d %d\n" % (code or 0, len(stdout), len(stderr)) + stdout + stderr)
    answers.flush()
"#;

/// A Python process that runs the script many times, because a start of Python takes longer than most runs. It ends with this
/// process.
struct Server(Child);

/// The servers that wait for a request.
static IDLE: Mutex<Vec<Server>> = Mutex::new(Vec::new());

impl Server {
    fn start() -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", SERVER, SCRIPT]);
        let python = python.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(python.spawn().unwrap())
    }

    fn run(&mut self, arguments: &[&str]) -> Ended {
        let stdin = self.0.stdin.as_mut().unwrap();
        writeln!(stdin, "{}", json!(arguments)).unwrap();
        let mut answer = BufReader::new(self.0.stdout.as_mut().unwrap());
        let mut line = String::new();
        answer.read_line(&mut line).unwrap();
        let numbers: Vec<usize> = line.split_whitespace().flat_map(str::parse).collect();
        let [code, stdout, stderr] = numbers[..] else {
            panic!("the answer of Python is {line:?}");
        };
        let mut read = |len| {
            let mut bytes = vec![0; len];
            answer.read_exact(&mut bytes).unwrap();
            bytes
        };
        Ended {
            code: i32::try_from(code).ok(),
            stdout: read(stdout),
            stderr: String::from_utf8_lossy(&read(stderr)).into_owned(),
        }
    }
}

/// Runs the script in a process that has started before, if Python is installed.
fn run_again(arguments: &[&str]) -> Option<Ended> {
    PYTHON.then(|| {
        let idle = || IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let server = idle().pop();
        let mut server = server.unwrap_or_else(Server::start);
        let ended = server.run(arguments);
        idle().push(server);
        ended
    })
}

/// Checks that the Python reader has rejected the checkpoint, with a one-line error.
fn check_outcome(ended: Option<Ended>) {
    let Some(Ended { code, stderr, .. }) = ended else {
        return;
    };
    assert_eq!(code, Some(1), "it accepts the checkpoint: {stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
}

/// Checks that the Python reader rejects the checkpoint, with a one-line error.
pub fn check_refused(dir: &Path) {
    check_outcome(run_again(&[dir.to_str().unwrap()]));
}

/// Returns the contents of a valid checkpoint according to the Python reader.
fn summary(dir: &Path) -> Option<Value> {
    let ended = run(&[dir.to_str().unwrap()])?;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    Some(serde_json::from_slice(&ended.stdout).unwrap())
}

/// Checks that the Python reader and this crate read the same contents.
fn check_equal(dir: &Path) {
    let Some(summary) = summary(dir) else { return };
    let checkpoint = Checkpoint::open(dir).unwrap();
    let manifest = checkpoint.manifest();
    assert_eq!(summary["step"], manifest.step);
    assert_eq!(summary["seed"], manifest.seed);
    assert_eq!(summary["metadata"], manifest.metadata());
    assert_eq!(
        summary["plan"],
        checkpoint.plan().unwrap().unwrap_or_default()
    );
    let scalars = checkpoint.scalars().iter().map(|(name, value)| {
        let value = match value {
            Scalar::Int(value) => json!({"int": value}),
            Scalar::Uint(value) => json!({"uint": value}),
            Scalar::Bool(value) => json!({"bool": value}),
            Scalar::Float(value) => json!({"float": format!("{:016x}", value.to_bits())}),
        };
        json!({"name": name, "value": value})
    });
    assert_eq!(summary["scalars"], Value::from_iter(scalars));
    let mut listed = summary["tensors"].as_array().unwrap().iter();
    for (role, called) in [(Role::Model, "model"), (Role::State, "state")] {
        for tensor in checkpoint.tensors(role) {
            let whole = Region::whole(&tensor.shape).unwrap();
            let data = checkpoint.read(tensor, &whole).unwrap();
            let digest = Digest::of(data.as_bytes()).to_string();
            assert_eq!(
                *listed.next().unwrap(),
                json!([
                    called,
                    tensor.name,
                    tensor.dtype.to_string(),
                    tensor.shape,
                    digest
                ])
            );
            for name in [&tensor.name].into_iter().chain(&tensor.tied) {
                let arguments = [dir.to_str().unwrap(), called, name];
                let bytes = run_again(&arguments).unwrap().stdout;
                assert_eq!(bytes, data.as_bytes(), "{name}");
            }
        }
    }
    assert_eq!(listed.next(), None);
}

#[test]
fn it_reads_what_we_write() {
    for victim in [Victim::whole(), Victim::chunks(), Victim::first_version()] {
        check_equal(&victim.dir);
    }
    let run = tempfile::tempdir().unwrap();
    check_equal(&save(run.path(), meta(3, 1), &small_contents(3)));
    // With blocks that use the long form of the digest.
    let attempt = Run::local(run.path()).begin(tinderbox_checkpoint::CheckpointMeta::new(4, 1));
    let attempt = attempt.unwrap();
    let mut random = Random(4);
    let tensors: Vec<_> = [
        (Role::Model, "w", 70_001),
        (Role::State, "w.moment", 70_001),
    ]
    .into_iter()
    .map(|(role, name, elements)| {
        let data = random.data(&[elements], burn::tensor::DType::F16);
        tinderbox_checkpoint::SaveTensor::whole(name, role, data)
    })
    .collect();
    attempt
        .handle()
        .write_rank(0, &tensors, &Default::default(), &())
        .unwrap();
    check_equal(&attempt.publish(TIMEOUT).unwrap());
}

#[test]
fn it_finds_damage() {
    for victim in [Victim::whole(), Victim::chunks()] {
        for name in names(&victim.dir) {
            let path = victim.dir.join(&name);
            let sound = fs::read(&path).unwrap();
            let step = sound.len() / 12 + 1;
            for at in (0..sound.len()).step_by(step) {
                let mut damaged = sound.clone();
                damaged[at] ^= 1;
                fs::write(&path, &damaged).unwrap();
                check_refused(&victim.dir);
                fs::write(&path, &sound[..at]).unwrap();
                check_refused(&victim.dir);
            }
            fs::remove_file(&path).unwrap();
            check_outcome(run(&[victim.dir.to_str().unwrap()]));
            fs::write(&path, &sound).unwrap();
        }
        assert_ne!(summary(&victim.dir), Some(Value::Null), "it is whole again");
    }
}

#[test]
fn it_accepts_a_newer_minor_version_and_refuses_a_feature() {
    let victim = Victim::whole();
    victim.reseal(|body| {
        body["minor"] = json!(7);
        body["later"] = json!({"a": [1]});
    });
    check_equal(&victim.dir);
    victim.reseal(|body| body["required_features"] = json!(["sparse"]));
    check_refused(&victim.dir);
}

/// Checks the digest test vectors in `FORMAT.md`.
#[test]
fn the_digests_of_the_text_are_right() {
    let text = include_str!("../../FORMAT.md");
    let rows = text.lines().filter_map(|line| {
        let (n, digest) = line.strip_prefix("| ")?.split_once(" | `")?;
        let digest = digest
            .strip_suffix("` |")
            .filter(|digest| digest.len() == 32)?;
        Some((n.parse::<usize>().ok()?, digest))
    });
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 10);
    for (n, digest) in rows {
        let bytes: Vec<u8> = (0..n).map(|i| (i % 251) as u8).collect();
        assert_eq!(Digest::of(&bytes).to_string(), digest, "{n} bytes");
    }
}
