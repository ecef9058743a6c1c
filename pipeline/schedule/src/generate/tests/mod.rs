//! The lists of every generator at a small size, its names and its errors.

use crate::{Schedule, ScheduleKind, ScheduleKindError, forward_only, gpipe, one_f_one_b};

fn generate(kind: ScheduleKind, ranks: usize, chunks: usize, micro_batches: usize) -> Schedule {
    kind.generate(ranks, chunks, micro_batches).unwrap()
}

#[test]
fn gpipe_4_4() {
    insta::assert_snapshot!(gpipe(4, 4), @r"
        0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
        1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
        2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3
        3F0 3F1 3F2 3F3 3B0 3B1 3B2 3B3
        ");
}

#[test]
fn one_f_one_b_4_8() {
    insta::assert_snapshot!(one_f_one_b(4, 8), @r"
        0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7
        1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7
        2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7
        3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7
        ");
}

#[test]
fn one_f_one_b_with_fewer_micro_batches_than_stages() {
    insta::assert_snapshot!(one_f_one_b(4, 2), @r"
        0F0 0F1 0B0 0B1
        1F0 1F1 1B0 1B1
        2F0 2F1 2B0 2B1
        3F0 3B0 3F1 3B1
        ");
}

#[test]
fn forward_only_2_3() {
    insta::assert_snapshot!(forward_only(2, 3), @r"
        0F0 0F1 0F2
        1F0 1F1 1F2
        ");
}

#[test]
fn looped_bfs_4_4() {
    insta::assert_snapshot!(generate(ScheduleKind::LoopedBfs, 4, 2, 4), @r"
        0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 4B0 4B1 4B2 4B3 0B0 0B1 0B2 0B3
        1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 5B0 5B1 5B2 5B3 1B0 1B1 1B2 1B3
        2F0 2F1 2F2 2F3 6F0 6F1 6F2 6F3 6B0 6B1 6B2 6B3 2B0 2B1 2B2 2B3
        3F0 3F1 3F2 3F3 7F0 7F1 7F2 7F3 7B0 7B1 7B2 7B3 3B0 3B1 3B2 3B3
        ");
}

#[test]
fn interleaved_1f1b_4_8() {
    insta::assert_snapshot!(generate(ScheduleKind::Interleaved1F1B, 4, 2, 8), @r"
        0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 0B2 0B3 4B4 4B5 4B6 4B7 0B4 0B5 0B6 0B7
        1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 1F4 5B0 1F5 5B1 1F6 5B2 1F7 5B3 5F4 1B0 5F5 1B1 5F6 1B2 5F7 1B3 5B4 5B5 5B6 5B7 1B4 1B5 1B6 1B7
        2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 2F4 6B2 2F5 6B3 2F6 2B0 2F7 2B1 6F4 2B2 6F5 2B3 6F6 6B4 6F7 6B5 6B6 6B7 2B4 2B5 2B6 2B7
        3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 7B4 7F5 7B5 7F6 7B6 7F7 7B7 3B4 3B5 3B6 3B7
        ");
}

/// Two rounds, of three and of two micro-batches.
#[test]
fn interleaved_1f1b_with_uneven_rounds() {
    insta::assert_snapshot!(generate(ScheduleKind::Interleaved1F1B, 2, 2, 5), @r"
        0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4
        1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4
        ");
}

#[test]
fn zb_h1_4_6() {
    insta::assert_snapshot!(generate(ScheduleKind::ZbH1, 4, 1, 6), @r"
        0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5
        1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1I4 1W3 1I5 1W4 1W5
        2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2I5 2W3 2W4 2W5
        3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3W3 3W4 3W5
        ");
}

#[test]
fn zb_h2_4_8() {
    insta::assert_snapshot!(generate(ScheduleKind::ZbH2, 4, 1, 8), @r"
        0F0 0F1 0F2 0F3 0F4 0F5 0F6 0I0 0W0 0F7 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7
        1F0 1F1 1F2 1F3 1F4 1I0 1F5 1I1 1F6 1I2 1W0 1F7 1I3 1W1 1I4 1W2 1I5 1W3 1I6 1W4 1I7 1W5 1W6 1W7
        2F0 2F1 2F2 2I0 2F3 2I1 2F4 2I2 2F5 2I3 2F6 2I4 2W0 2F7 2I5 2W1 2I6 2W2 2I7 2W3 2W4 2W5 2W6 2W7
        3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3F4 3I4 3F5 3I5 3F6 3I6 3W0 3F7 3I7 3W1 3W2 3W3 3W4 3W5 3W6 3W7
        ");
}

#[test]
fn interleaved_zb_4_4() {
    insta::assert_snapshot!(generate(ScheduleKind::InterleavedZb, 4, 2, 4), @r"
        0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 4I0 4W0 4I1 4W1 4I2 4W2 4I3 4W3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3
        1F0 1F1 1F2 1F3 5F0 5F1 5F2 5I0 5F3 5I1 5W0 5I2 5W1 5I3 5W2 1I0 5W3 1I1 1W0 1I2 1W1 1I3 1W2 1W3
        2F0 2F1 2F2 2F3 6F0 6F1 6I0 6F2 6I1 6F3 6I2 6W0 6I3 6W1 2I0 6W2 2I1 6W3 2I2 2W0 2I3 2W1 2W2 2W3
        3F0 3F1 3F2 3F3 7F0 7I0 7F1 7I1 7F2 7I2 7F3 7I3 7W0 3I0 7W1 3I1 7W2 3I2 7W3 3I3 3W0 3W1 3W2 3W3
        ");
}

#[test]
fn zbv_4_7() {
    insta::assert_snapshot!(generate(ScheduleKind::Zbv, 4, 2, 7), @r"
        0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 0I0 7W3 0W0 7F4 7I4 0I1 7W4 0W1 7F5 7I5 0I2 7W5 0W2 7F6 7I6 0I3 7W6 0I4 0W3 0I5 0W4 0I6 0W5 0W6
        1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 1I0 6W2 1F6 1W0 6F4 6I3 1I1 6W3 1W1 6F5 6I4 1I2 6W4 1W2 6F6 6I5 1I3 6I6 1I4 6W5 1I5 1W3 1I6 6W6 1W4 1W5 1W6
        2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 2I0 5W1 2F5 2W0 5F4 5I2 2I1 5W2 2F6 2W1 5F5 5I3 2I2 5W3 2W2 5F6 5I4 2I3 5I5 2I4 5I6 2I5 5W4 2I6 2W3 5W5 2W4 5W6 2W5 2W6
        3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 3I0 4W0 3F4 3W0 4F4 4I1 3I1 4W1 3F5 3W1 4F5 4I2 3I2 4W2 3F6 3W2 4F6 4I3 3I3 4I4 3I4 4I5 3I5 4I6 3I6 4W3 3W3 4W4 3W4 4W5 3W5 4W6 3W6
        ");
}

#[test]
fn v_half_4_6() {
    insta::assert_snapshot!(generate(ScheduleKind::VHalf, 4, 2, 6), @r"
        0F0 0F1 0F2 7F0 7I0 0F3 7W0 7F1 7I1 0F4 7W1 7F2 7I2 7W2 0I0 0F5 0W0 7F3 7I3 7W3 0I1 0W1 7F4 7I4 7W4 0I2 0W2 7F5 7I5 0I3 7W5 0W3 0I4 0W4 0I5 0W5
        1F0 1F1 6F0 1F2 6I0 6F1 1F3 6W0 6I1 6F2 6W1 1F4 1I0 6I2 1W0 6F3 6W2 1F5 1I1 6I3 1W1 6F4 6W3 1I2 6I4 1W2 6F5 6W4 1I3 6I5 1W3 6W5 1I4 1W4 1I5 1W5
        2F0 2F1 5F0 2F2 5F1 5I0 5W0 2F3 5F2 5I1 5W1 2I0 2F4 2W0 5F3 5I2 5W2 2I1 2F5 2W1 5F4 5I3 5W3 2I2 2W2 5F5 5I4 2I3 5W4 2W3 5I5 2I4 5W5 2I5 2W4 2W5
        3F0 4F0 3F1 4F1 3F2 4I0 4F2 4W0 3F3 3I0 4I1 3W0 4F3 4W1 3F4 3I1 4I2 3W1 4F4 4W2 3F5 3I2 4I3 3W2 4F5 3I3 4W3 4I4 3I4 3W3 4W4 4I5 3I5 3W4 4W5 3W5
        ");
}

#[test]
fn v_min_4_6() {
    insta::assert_snapshot!(generate(ScheduleKind::VMin, 4, 2, 6), @r"
        0F0 0F1 7F0 7I0 0F2 7W0 7F1 7I1 0I0 7W1 0F3 0W0 7F2 7I2 0I1 7W2 0F4 0W1 7F3 7I3 0I2 7W3 0F5 0W2 7F4 7I4 0I3 7W4 0W3 7F5 7I5 0I4 7W5 0W4 0I5 0W5
        1F0 6F0 1F1 6I0 6W0 6F1 1F2 1I0 6I1 1W0 6W1 6F2 1F3 1I1 6I2 1W1 6W2 6F3 1F4 1I2 6I3 1W2 6W3 6F4 1F5 1I3 6I4 1W3 6W4 6F5 1I4 6I5 1W4 6W5 1I5 1W5
        2F0 5F0 2F1 5I0 5F1 5W0 2I0 2F2 2W0 5I1 5F2 5W1 2I1 2F3 2W1 5I2 5F3 5W2 2I2 2F4 2W2 5I3 5F4 5W3 2I3 2F5 2W3 5I4 5F5 5W4 2I4 2W4 5I5 5W5 2I5 2W5
        3F0 4F0 3F1 4F1 4I0 3I0 4W0 3W0 3F2 4F2 4I1 3I1 4W1 3W1 3F3 4F3 4I2 3I2 4W2 3W2 3F4 4F4 4I3 3I3 4W3 3W3 3F5 4F5 4I4 3I4 4W4 3W4 4I5 3I5 4W5 3W5
        ");
}

#[test]
fn dual_pipe_v_4_8() {
    insta::assert_snapshot!(generate(ScheduleKind::DualPipeV, 4, 2, 8), @r"
        0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 0F7&7B3 7F4&0B0 7B4 7F5&0B1 7B5 7F6&0B2 7B6 7F7&0B3 7B7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7
        1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 1F6&6B2 6F4&1B0 1F7&6B3 6F5&1B1 6B4 6F6&1B2 6B5 6F7&1B3 6B6 1B4 6I7 1I5 6W7 1I6 1W5 1I7 1W6 1W7
        2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 2F5&5B1 5F4&2B0 2F6&5B2 5F5&2B1 2F7&5B3 5F6&2B2 5B4 5F7&2B3 5B5 2B4 5B6 2I5 5I7 2I6 2W5 2I7 5W7 2W6 2W7
        3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 4F4&3B0 3F5&4B1 4F5&3B1 3F6&4B2 4F6&3B2 3F7&4B3 4F7&3B3 4B4 3B4 4B5 3B5 4I6 3I6 4I7 3I7 4W6 3W6 4W7 3W7
        ");
}

#[test]
fn kinds_of_one_chunk_are_their_looped_kinds() {
    let pairs = [
        (ScheduleKind::GPipe, ScheduleKind::LoopedBfs),
        (ScheduleKind::OneFOneB, ScheduleKind::Interleaved1F1B),
        (ScheduleKind::ZbH1, ScheduleKind::InterleavedZb),
    ];
    for (kind, looped) in pairs {
        let lists = [kind, looped].map(|kind| generate(kind, 4, 1, 7).ranks);
        assert_eq!(lists[0], lists[1], "{kind}");
    }
}

#[test]
fn too_few_micro_batches_for_dual_pipe_v_are_a_zbv() {
    assert_eq!(generate(ScheduleKind::DualPipeV, 3, 2, 6).name, "dualpipev");
    let fallback = generate(ScheduleKind::DualPipeV, 3, 2, 5);
    assert_eq!(fallback, generate(ScheduleKind::Zbv, 3, 2, 5));
    assert_eq!(fallback.name, "zbv");
}

#[test]
fn nothing_to_do_gives_empty_lists() {
    assert_eq!(one_f_one_b(0, 4).ranks.len(), 0);
    assert_eq!(gpipe(3, 0).action_count(), 0);
    for kind in ScheduleKind::ALL {
        let v = kind.chunks().least();
        assert_eq!(generate(kind, 0, v, 4).ranks.len(), 0, "{kind}");
        let empty = generate(kind, 3, v, 0);
        assert_eq!((empty.ranks.len(), empty.action_count()), (3, 0), "{kind}");
    }
}

#[test]
fn names_are_the_text_and_file_form() {
    for kind in ScheduleKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        let json = serde_json::to_string(&kind).unwrap();
        assert_eq!(json, format!("{:?}", kind.name()));
        assert_eq!(serde_json::from_str::<ScheduleKind>(&json).unwrap(), kind);
        let v = kind.chunks().least();
        assert_eq!(generate(kind, 2, v, 4).name, kind.name());
    }
    assert_eq!(ScheduleKind::default().name(), "1f1b");
}

#[test]
fn the_nearest_name_is_suggested() {
    let cases = [
        ("GPipe", Some(ScheduleKind::GPipe)),
        ("zb", Some(ScheduleKind::ZbH1)),
        ("zb-v", Some(ScheduleKind::ZbH1)),
        ("interleaved", Some(ScheduleKind::Interleaved1F1B)),
        ("interleaved-z", Some(ScheduleKind::InterleavedZb)),
        ("dualpipe", Some(ScheduleKind::DualPipeV)),
        ("", None),
        ("?", None),
    ];
    for (text, nearest) in cases {
        let error = text.parse::<ScheduleKind>().unwrap_err();
        let name = text.to_owned();
        assert_eq!(error, ScheduleKindError::Name { name, nearest });
    }
}

#[test]
fn errors_name_what_is_supported() {
    let names = ["zb", "?"].map(|name| name.parse::<ScheduleKind>().unwrap_err());
    let sizes = [
        ScheduleKind::Zbv.generate(4, 3, 8),
        ScheduleKind::OneFOneB.generate(4, 2, 8),
        ScheduleKind::LoopedBfs.generate(4, 0, 8),
        ScheduleKind::LoopedBfs.generate(usize::MAX, 2, 8),
        ScheduleKind::GPipe.generate(usize::MAX, 1, 0),
        ScheduleKind::GPipe.generate(1 << 20, 1, 1 << 10),
    ];
    let errors = names.into_iter().chain(sizes.map(Result::unwrap_err));
    let text = errors.map(|error| error.to_string()).collect::<Vec<_>>();
    let text = text.join("\n");
    insta::assert_snapshot!(text, @r"
        `zb` is not a schedule (did you mean `zb-h1`?): write one of gpipe, 1f1b, looped-bfs, interleaved-1f1b, zb-h1, zb-h2, interleaved-zb, zbv, v-half, v-min, dualpipev
        `?` is not a schedule: write one of gpipe, 1f1b, looped-bfs, interleaved-1f1b, zb-h1, zb-h2, interleaved-zb, zbv, v-half, v-min, dualpipev
        zbv runs 2 chunks per rank, found 3: change the number of chunks, which are the stages of a rank, or use another schedule
        1f1b runs 1 chunk per rank, found 2: change the number of chunks, which are the stages of a rank, or use another schedule
        looped-bfs runs 1 chunk or more per rank, found 0: change the number of chunks, which are the stages of a rank, or use another schedule
        18446744073709551615 ranks with 2 chunks and 8 micro-batches are more than 67108864 forwards: make the step smaller
        18446744073709551615 ranks with 1 chunks and 0 micro-batches are more than 67108864 forwards: make the step smaller
        1048576 ranks with 1 chunks and 1024 micro-batches are more than 67108864 forwards: make the step smaller
        ");
}
