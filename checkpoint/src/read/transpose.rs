//! Transposition of two-dimensional regions.

use tinderbox_fake::{Region, RegionError};

/// Number of rows and columns of a tile: large enough that few pages are touched for each element, small enough for the L2
/// cache.
const TILE: usize = 128;
/// Additional columns of a tile, so that its rows are no power of two apart.
const PAD: usize = 16;

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
    // Rows of a matrix are often a power of two of bytes apart, and such addresses share few places of a cache; and each is
    // on another page. So a tile of several hundred bytes of each row is copied first.
    let mut tile = [[[0; N]; TILE + PAD]; TILE];
    for row_tile in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - row_tile);
        for column_tile in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - column_tile);
            for (row, copy) in tile.iter_mut().take(height).enumerate() {
                let start = (row_tile + row) * stride + column_tile;
                copy[..width].copy_from_slice(&from[start..start + width]);
            }
            for column in 0..width {
                let start = (first_column + column_tile + column) * all_rows + first_row + row_tile;
                let out = to[start..start + height].iter_mut();
                for (out, row) in out.zip(&tile) {
                    *out = row[column];
                }
            }
        }
    }
}
