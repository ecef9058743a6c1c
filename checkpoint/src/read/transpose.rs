//! Transposition of two-dimensional regions.

use std::ops::Range;

use parking_lot::{Mutex, MutexGuard};
use tinderbox_fake::Region;
use tinderbox_memory::Part;

use super::transfer::{PerElement, Transfer};

/// Maximum number of columns of a strip, and of a tile.
const COLUMNS: usize = 256;
/// Number of rows of a tile: the tile fits in the cache of a core, and its part of each column is several cache lines.
const ROWS: usize = 128;
/// Number of additional columns of a tile, so that its rows are no power of two apart.
const PAD: usize = 16;

/// Returns the elements of a matrix with its dimensions in reverse order.
pub(crate) fn reversed(region: &Region) -> Region {
    let reversed = |sizes: &[u64]| sizes.iter().rev().copied().collect();
    let region = Region::new(reversed(region.offset()), reversed(region.size()));
    region.expect("a matrix fits in either order")
}

/// Returns the elements of a piece transposed, from the bytes of the matrix around it.
pub(crate) fn transposed(matrix: &Region, piece: &Region, element: usize, bytes: &[u8]) -> Vec<u8> {
    // The bytes are in memory, so sizes fit `usize`.
    let mut transposed = vec![0; piece.num_elements() as usize * element];
    let elements = Elements {
        matrix,
        range: 0..matrix.num_elements(),
        bytes,
    };
    let strip_bytes = strip_bytes(piece, element);
    let strips = transposed.chunks_mut(strip_bytes).map(|bytes| Strip {
        bytes,
        unpopulated: None,
    });
    let to = Transposed::new(piece, strips);
    to.put(elements, Transfer::Same(element), &mut Vec::new());
    transposed
}

/// Consecutive elements of a row-major matrix.
#[derive(Clone, Debug)]
pub(super) struct Elements<'a> {
    /// The region of the matrix in its tensor.
    pub(super) matrix: &'a Region,
    /// The indices of the elements in the matrix.
    pub(super) range: Range<u64>,
    pub(super) bytes: &'a [u8],
}

impl<'a> Elements<'a> {
    /// Returns the boxes that the elements fill: the rest of a row, whole rows, and the beginning of a row.
    pub(super) fn boxes(&self) -> impl Iterator<Item = Region> + use<> {
        let columns = self.matrix.size()[1];
        let [first_row, first_column] = [0, 1].map(|d| self.matrix.offset()[d]);
        let Range { start, end } = self.range;
        let mut next = start;
        std::iter::from_fn(move || {
            let left = end - next;
            let (row, column) = match left {
                0 => return None,
                _ => (next / columns, next % columns),
            };
            let (rows, width) = match column == 0 && left >= columns {
                true => (left / columns, columns),
                false => (1, left.min(columns - column)),
            };
            next += rows * width;
            let offset = vec![first_row + row, first_column + column];
            Some(Region::new(offset, vec![rows, width]).expect("it is inside of the matrix"))
        })
    }

    /// Returns the bytes of each row of a box; `element` is the size of an element in bytes.
    pub(super) fn rows(&self, part: &Region, element: usize) -> impl Iterator<Item = &'a [u8]> {
        let [rows, width] = [0, 1].map(|d| part.size()[d] as usize);
        let rest = &self.bytes[self.index(part) * element..];
        let stride = self.matrix.size()[1] as usize * element;
        (0..rows).map(move |row| &rest[row * stride..][..width * element])
    }

    /// Returns the index of the first element of a box among these.
    fn index(&self, part: &Region) -> usize {
        let [row, column] = [0, 1].map(|d| part.offset()[d] - self.matrix.offset()[d]);
        // The elements are in memory, so the index fits.
        (row * self.matrix.size()[1] + column - self.range.start) as usize
    }
}

/// A matrix in memory that threads write transposed, block by block.
///
/// Each strip of its columns is a consecutive part of the memory. Threads with different blocks mostly write to different
/// strips. A matrix with few columns has one strip, to which one thread writes at a time.
#[derive(Debug)]
pub(super) struct Transposed<'out> {
    /// The matrix before it is transposed.
    region: Region,
    strips: Vec<Mutex<Strip<'out>>>,
}

/// The memory of a strip.
#[derive(Debug)]
struct Strip<'out> {
    bytes: &'out mut [u8],
    /// The memory before the first thread writes to it.
    unpopulated: Option<Part<'out>>,
}

/// Returns the number of bytes of the strips of a region that is not empty.
fn strip_bytes(region: &Region, element: usize) -> usize {
    let [rows, columns] = [0, 1].map(|d| region.size()[d] as usize);
    COLUMNS.min(columns) * rows * element
}

impl<'out> Transposed<'out> {
    /// Creates the strips of a region in memory; `element` is the size of an element in bytes.
    pub(super) fn in_memory(region: &Region, element: usize, memory: Part<'out>) -> Self {
        let strips = memory.chunks(strip_bytes(region, element));
        let strips = strips.into_iter().map(|part| Strip {
            bytes: &mut [],
            unpopulated: Some(part),
        });
        Self::new(region, strips)
    }

    fn new(region: &Region, strips: impl Iterator<Item = Strip<'out>>) -> Self {
        Self {
            region: region.clone(),
            strips: strips.map(Mutex::new).collect(),
        }
    }

    /// Converts the elements that are in the matrix, and writes them to their positions. The scratch memory is at most 272 KiB.
    pub(super) fn put(&self, elements: Elements<'_>, transfer: Transfer, scratch: &mut Vec<u8>) {
        transfer.each(Put {
            elements,
            to: self,
            scratch,
        });
    }

    /// Calls a function with each strip that has columns of a box, the region of the strip, and the shared region. Strips to
    /// which no other thread writes come first.
    fn for_each_strip(&self, part: &Region, mut write: impl FnMut(&mut [u8], &Region, &Region)) {
        let first_column = self.region.offset()[1];
        let start = part.offset()[1] - first_column;
        let end = start + part.size()[1];
        let strips = (start / COLUMNS as u64) as usize..end.div_ceil(COLUMNS as u64) as usize;
        let mut write = |mut strip: MutexGuard<'_, Strip<'out>>, at: usize| {
            let first = first_column + (at * COLUMNS) as u64;
            // The last strip may end outside of the region.
            let columns = self.region.with_range(1, first..first + COLUMNS as u64);
            let shared = columns.intersection(part);
            let shared = shared.expect("it has columns of the box");
            if let Some(part) = strip.unpopulated.take() {
                strip.bytes = part.ready();
            }
            write(strip.bytes, &columns, &shared);
        };
        let mut locked = Vec::new();
        for at in strips {
            match self.strips[at].try_lock() {
                Some(strip) => write(strip, at),
                None => locked.push(at),
            }
        }
        for at in locked {
            write(self.strips[at].lock(), at);
        }
    }
}

/// Writes elements to a matrix.
struct Put<'a, 'out> {
    elements: Elements<'a>,
    to: &'a Transposed<'out>,
    scratch: &'a mut Vec<u8>,
}

impl PerElement for Put<'_, '_> {
    fn run<const M: usize, const N: usize>(self, convert: impl Fn([u8; M]) -> [u8; N]) {
        let from = self.elements.bytes.as_chunks().0;
        // Rows of a matrix are often a power of two of bytes apart. Such addresses share few lines of a cache, and each is on
        // another page. A tile of several hundred bytes of each row is therefore copied first.
        self.scratch.resize(ROWS * (COLUMNS + PAD) * M, 0);
        let tile = self.scratch.as_chunks_mut::<M>().0;
        let tile = tile.as_chunks_mut::<{ COLUMNS + PAD }>().0;
        let boxes = self.elements.boxes();
        for part in boxes.filter_map(|part| part.intersection(&self.to.region)) {
            self.to.for_each_strip(&part, |bytes, strip, shared| {
                let out = bytes.as_chunks_mut().0;
                // The bytes are in memory, so positions fit `usize`.
                let [first_row, first_column] =
                    [0, 1].map(|d| (shared.offset()[d] - strip.offset()[d]) as usize);
                let [rows, width] = [0, 1].map(|d| shared.size()[d] as usize);
                let (all_rows, stride) = (strip.size()[0] as usize, self.elements.matrix.size()[1]);
                let first = self.elements.index(shared);
                for above in (0..rows).step_by(ROWS) {
                    let height = ROWS.min(rows - above);
                    for (row, copy) in tile[..height].iter_mut().enumerate() {
                        let start = first + (above + row) * stride as usize;
                        copy[..width].copy_from_slice(&from[start..start + width]);
                    }
                    for column in 0..width {
                        let start = (first_column + column) * all_rows + first_row + above;
                        let out = out[start..start + height].iter_mut();
                        for (out, row) in out.zip(&*tile) {
                            *out = convert(row[column]);
                        }
                    }
                }
            });
        }
    }
}
