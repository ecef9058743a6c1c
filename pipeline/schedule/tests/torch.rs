//! Schedules that PyTorch wrote: `golden/README.md` has the command.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tinderbox_schedule::{
    ChunkCounts, Dependencies, Placement, Schedule, ScheduleKind, lower, verify,
};

/// Ranks, stages per rank and micro-batches of every file.
const RANKS: usize = 2;
const MICRO_BATCHES: usize = 4;

/// Returns the files of a directory: name and text.
fn files() -> BTreeMap<String, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch-2.15.0");
    let entries = fs::read_dir(directory).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let text = fs::read_to_string(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), text)
    });
    entries.collect()
}

/// Returns the words of a text that match a predicate.
fn count(text: &str, is_one: impl Fn(&str) -> bool) -> usize {
    let cells = text.split([',', '\r', '\n']);
    cells.filter(|cell| is_one(cell)).count()
}

#[test]
fn every_file_is_read_and_can_run() {
    let files = files();
    assert_eq!(files.len(), 16);
    for (name, text) in files.iter().filter(|(name, _)| !name.contains(".refused.")) {
        let schedule = Schedule::parse_any(name, text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let single = !name.contains(".comms.") && !name.contains(".compute.");
        let placement = match name.starts_with("ZBV") || name.starts_with("DualPipeV") {
            true => Placement::V,
            false => Placement::Loop,
        };
        let chunks = if single { 1 } else { 2 };
        assert_eq!(
            (schedule.stages, schedule.micro_batches),
            (RANKS * chunks, MICRO_BATCHES),
            "{name}"
        );
        assert_eq!(
            schedule.stage_to_rank,
            placement.stage_to_rank(RANKS, chunks),
            "{name}"
        );
        let chain = Dependencies::chain(schedule.stages);
        assert_eq!(verify(&schedule, &chain), Ok(()), "{name}");
        assert_eq!(verify(&lower(&schedule, &chain), &chain), Ok(()), "{name}");
        // As many programs as the file has cells that are not communication; a pair is a cell.
        let is_program = |cell: &str| {
            cell.starts_with('(')
                || cell
                    .trim_matches(|c: char| c.is_ascii_digit())
                    .chars()
                    .count()
                    == 1
        };
        assert_eq!(schedule.action_count(), count(text, is_program), "{name}");
        // The file has what this release added, unless it has no communication.
        let waits = count(text, |cell| cell.contains("WAIT_"));
        assert_eq!(waits > 0, !name.contains(".compute."), "{name}");
    }
}

/// With and without communication, and with options of it, PyTorch writes the same lists.
#[test]
fn forms_of_one_schedule_are_equal() {
    let files = files();
    let mut compared = 0;
    for (name, text) in files.iter().filter(|(name, _)| name.contains(".comms.")) {
        let base = name.split(['.', '-']).next().unwrap();
        let compute = &files[&format!("{base}-2x2x4.compute.csv")];
        let read = |text: &str| Schedule::parse_csv("torch", text).unwrap();
        assert_eq!(read(text), read(compute), "{name}");
        compared += 1;
    }
    assert_eq!(compared, 9);
}

/// What PyTorch and this crate define alike has the same lists.
#[test]
fn named_schedules_are_those_of_pytorch() {
    let files = files();
    for (file, kind) in [
        ("GPipe-2x1x4.order.csv", ScheduleKind::GPipe),
        (
            "Interleaved1F1B-2x2x4.compute.csv",
            ScheduleKind::Interleaved1F1B,
        ),
    ] {
        let chunks = if kind.chunks() == ChunkCounts::One {
            1
        } else {
            2
        };
        let expected = kind.generate(RANKS, chunks, MICRO_BATCHES).unwrap();
        let found = Schedule::parse_csv(&expected.name, &files[file]).unwrap();
        assert_eq!(found.to_string(), expected.to_string(), "{file}");
    }
}

/// The last rank of this order begins with micro-batch 1 and ends with one that no other rank has. PyTorch's own check
/// refuses it, too.
#[test]
fn an_order_that_pytorch_refuses_is_read_and_refused() {
    let text = &files()["1F1B-2x1x4.refused.csv"];
    let schedule = Schedule::parse_csv("torch", text).unwrap();
    insta::assert_snapshot!(schedule, @r"
    0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
    1F1 1B0 1F2 1B1 1F3 1B2 1F4 1B3
    ");
    let error = verify(&schedule, &Dependencies::chain(2)).unwrap_err();
    insta::assert_snapshot!(error, @"rank 0 lacks `0F4`: add it to the list");
}

/// PyTorch runs these backwards from micro-batch 3 to 0. The gradients are added from 0 to 3, so micro-batch 3 of the file is
/// micro-batch 0 here.
#[test]
fn looped_bfs_is_numbered_by_its_backwards() {
    let files = files();
    let text = &files["LoopedBFS-2x2x4.compute.csv"];
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "0F0,0F1,0F2,0F3,2F0,2F1,2F2,2F3,,,2B3,2B2,2B1,2B0,0B3,0B2,0B1,0B0"
    );
    let schedule = Schedule::parse_csv("torch", text).unwrap();
    insta::assert_snapshot!(schedule, @r"
    0F3 0F2 0F1 0F0 2F3 2F2 2F1 2F0 2B0 2B1 2B2 2B3 0B0 0B1 0B2 0B3
    1F3 1F2 1F1 1F0 3F3 3F2 3F1 3F0 3B0 3B1 3B2 3B3 1B0 1B1 1B2 1B3
    ");
}
