//! Transposition of two-dimensional regions.

use tinderbox_fake::Region;

/// Number of rows and columns of a tile, such that two tiles of the widest elements fit the L1 cache.
const TILE: usize = 32;

/// Writes the elements of a piece to their positions in the transposed region, both row-major and
/// two-dimensional.
pub(super) fn put_transposed(
    piece: &Region,
    region: &Region,
    element: usize,
    from: &[u8],
    to: &mut [u8],
) {
    match element {
        1 => put::<1>(piece, region, from, to),
        2 => put::<2>(piece, region, from, to),
        4 => put::<4>(piece, region, from, to),
        _ => put::<8>(piece, region, from, to),
    }
}

fn put<const N: usize>(piece: &Region, region: &Region, from: &[u8], to: &mut [u8]) {
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
                    to[start + row] = from[row * columns + column];
                }
            }
        }
    }
}
