//! Transposition of two-dimensional regions.

use tinderbox_fake::{Region, RegionError};

/// Number of rows and columns of a tile, such that two tiles of the widest elements fit the L1 cache.
const TILE: usize = 32;

/// Returns the same elements with their dimensions in reverse order.
pub(crate) fn reversed(region: &Region) -> Result<Region, RegionError> {
    let reversed = |sizes: &[u64]| sizes.iter().rev().copied().collect();
    Region::new(reversed(region.offset()), reversed(region.size()))
}

/// Returns the elements of a piece transposed, from the bytes of a tensor of this shape, row-major and
/// two-dimensional.
pub(crate) fn transposed_piece(
    shape: &[u64],
    piece: &Region,
    element: usize,
    bytes: &[u8],
) -> Vec<u8> {
    // The bytes are in memory, so sizes fit `usize`.
    let mut to = vec![0; piece.num_elements() as usize * element];
    let columns = shape[1] as usize;
    let first = piece.offset()[0] as usize * columns + piece.offset()[1] as usize;
    let from = &bytes[first * element..];
    put_rows(piece, columns, piece, element, from, &mut to);
    to
}

/// Writes the elements of a piece to their positions in the transposed region, both row-major and
/// two-dimensional.
pub(super) fn put_transposed(
    piece: &Region,
    region: &Region,
    element: usize,
    from: &[u8],
    to: &mut [u8],
) {
    let columns = piece.size()[1] as usize;
    put_rows(piece, columns, region, element, from, to);
}

/// As [`put_transposed`], from rows that are `stride` elements apart.
fn put_rows(
    piece: &Region,
    stride: usize,
    region: &Region,
    element: usize,
    from: &[u8],
    to: &mut [u8],
) {
    match element {
        1 => put::<1>(piece, stride, region, from, to),
        2 => put::<2>(piece, stride, region, from, to),
        4 => put::<4>(piece, stride, region, from, to),
        _ => put::<8>(piece, stride, region, from, to),
    }
}

fn put<const N: usize>(piece: &Region, stride: usize, region: &Region, from: &[u8], to: &mut [u8]) {
    let ((from, _), (to, _)) = (from.as_chunks::<N>(), to.as_chunks_mut::<N>());
    // The bytes are in memory, so positions fit `usize`.
    let [first_row, first_column] =
        [0, 1].map(|d| (piece.offset()[d] - region.offset()[d]) as usize);
    let [rows, columns] = [0, 1].map(|d| piece.size()[d] as usize);
    let all_rows = region.size()[0] as usize;
    for row_tile in (0..rows).step_by(TILE) {
        for column_tile in (0..columns).step_by(TILE) {
            for column in column_tile..columns.min(column_tile + TILE) {
                let start = (first_column + column) * all_rows + first_row;
                for row in row_tile..rows.min(row_tile + TILE) {
                    to[start + row] = from[row * stride + column];
                }
            }
        }
    }
}
