use bytes::Bytes;
use proptest::prelude::*;

use super::decode::Limits;
use super::*;

/// Returns a decoder with small limits.
fn decoder() -> Decoder {
    let mut decoder = Decoder::default();
    decoder.limits = Limits {
        header_bytes: 64,
        pieces: 8,
        bytes: 1 << 12,
    };
    decoder
}

fn encoded(header: &[u8], pieces: &[Vec<u8>]) -> Vec<u8> {
    let pieces = pieces.iter().cloned().map(Bytes::from).collect();
    let header = header.to_vec();
    let frame = Frame { header, pieces };
    frame.into_slices().flatten().collect()
}

/// The bytes of a frame match the diagram of the module.
#[test]
fn the_layout_is_the_documented_one() {
    let bytes = encoded(b"hi", &[b"abc".to_vec(), Vec::new(), b"d".to_vec()]);
    let expected: Vec<u8> = [
        &[2, 0, 0, 0][..],
        &[3, 0, 0, 0],
        &[4, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 0],
        &[0; 8],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        b"hi",
        b"abc",
        b"d",
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn no_byte_of_a_piece_is_copied() {
    let piece = Bytes::from(vec![7; 1000]);
    let (header, pieces) = (vec![1], vec![piece.clone()]);
    let frame = Frame { header, pieces };
    let slices: Vec<Bytes> = frame.into_slices().collect();
    assert_eq!(slices[1].as_ptr(), piece.as_ptr());
}

#[test]
fn limits_are_checked_before_memory_is_reserved() {
    let announces = |header: u32, pieces: u32, bytes: u64| {
        let mut decoder = decoder();
        let mut start = header.to_le_bytes().to_vec();
        start.extend(pieces.to_le_bytes());
        start.extend(bytes.to_le_bytes());
        let error = decoder.push(&start).unwrap_err();
        // Every later call returns the same error.
        assert_eq!(decoder.push(&[0; 100]), Err(error.clone()));
        assert_eq!(decoder.end(), Err(error.clone()));
        assert!(decoder.next_frame().is_none());
        error.to_string()
    };
    let texts = [
        announces(65, 0, 0),
        announces(u32::MAX, 0, 0),
        announces(0, 9, 0),
        announces(0, 1, u64::MAX),
        announces(0, 0, 1),
    ];
    insta::assert_snapshot!(texts.join("\n"), @r#"
    a frame announces 65 bytes of header, the limit is 64
    a frame announces 4294967295 bytes of header, the limit is 64
    a frame announces 9 pieces, the limit is 8
    a frame announces 18446744073709551615 bytes of pieces, the limit is 4096
    a frame announces 1 bytes of pieces, and pieces of 0 bytes
    "#);
    // Lengths whose sum overflows.
    let prelude = [0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
    let lengths = [prelude, [255; 16]].concat();
    let error = decoder().push(&lengths).unwrap_err();
    insta::assert_snapshot!(error, @"a frame announces 4 bytes of pieces, and pieces of 18446744073709551615 bytes");
}

/// A frame that ends at any byte: it is not returned before its last byte, and the error counts the missing bytes.
#[test]
fn every_truncation_is_noticed() {
    let bytes = encoded(b"head", &[vec![1; 9], Vec::new(), vec![2; 17]]);
    for length in 0..bytes.len() {
        let mut decoder = decoder();
        decoder.push(&bytes[..length]).unwrap();
        assert!(decoder.next_frame().is_none());
        match decoder.end() {
            Ok(()) => assert_eq!(length, 0),
            Err(FrameError::Truncated { missing }) => {
                // First the bytes of the prelude are known, then also of the lengths, then all.
                let left = (bytes.len() - length) as u64;
                assert!(missing > 0 && missing <= left, "{length}: {missing}");
                assert!(length < 40 || missing == left, "{length}: {missing}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

proptest! {
    /// Any frames, in slices of any lengths.
    #[test]
    fn frames_are_read_back(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..300), 0..8)), 0..6),
        cuts in prop::collection::vec(1..200_usize, 1..50),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(header, pieces)| encoded(header, pieces)).collect();
        let mut decoder = decoder();
        let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            decoder.push(now).unwrap();
            rest = later;
        }
        prop_assert_eq!(decoder.end(), Ok(()));
        for (header, pieces) in frames {
            let found = decoder.next_frame().unwrap();
            prop_assert_eq!(found.header, header);
            let joined = Buffer::joined(&found.pieces);
            prop_assert_eq!((joined.len(), joined.as_ref()), (pieces.concat().len(), &pieces.concat()[..]));
            let found: Vec<Vec<u8>> = found.pieces.iter().map(Buffer::to_vec).collect();
            prop_assert_eq!(found, pieces);
        }
        prop_assert!(decoder.next_frame().is_none());
    }

    /// Arbitrary bytes, and frames with a changed byte, never cause a panic, and never become more than the limits allow.
    #[test]
    fn other_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        small in prop::collection::vec(0..3_u8, 0..300),
        flipped in any::<prop::sample::Index>(),
        value: u8,
    ) {
        let mut changed = encoded(b"header", &[vec![3; 20], vec![4; 30]]);
        let at = flipped.index(changed.len());
        changed[at] = value;
        for bytes in [bytes, small, changed] {
            let mut decoder = decoder();
            let _ = decoder.push(&bytes);
            let _ = decoder.end();
            while let Some(frame) = decoder.next_frame() {
                let sum: usize = frame.pieces.iter().map(Buffer::len).sum();
                prop_assert!(frame.header.len() <= 64 && sum <= 1 << 12);
            }
        }
    }
}
