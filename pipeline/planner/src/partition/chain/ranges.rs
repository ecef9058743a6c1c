//! Bytes that a stage of blocks `i` to `j` reads, holds and sends, for every `i` and `j` of a table.

use std::collections::BTreeSet;

use tinderbox_schedule::LinkCosts;

use crate::cost_model::message_ns;
use crate::{Step, Work};

/// Bytes of a stage by its first and last block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RangeBytes {
    /// Parameters, gradients and optimizer state; grows with the range.
    pub(super) resident: u64,
    /// Values that its backward reads, each once; grows with the range.
    pub(super) kept: u64,
    /// The part of `kept` that earlier stages compute.
    pub(super) got: u64,
    /// Values that earlier stages compute.
    pub(super) forward_in: u64,
    /// Gradients sent to earlier stages: of their values and of parameters that they read too.
    pub(super) gradient_out: u64,
    /// Gradients received from later stages, of values and parameters shared with them.
    pub(super) gradient_in: u64,
    /// Its values that later stages read.
    pub(super) forward_out: u64,
    /// The maximum transient bytes of a program; grows with the range.
    pub(super) transient: u64,
}

/// Blocks `from..to` and their bytes as one stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockRange {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: RangeBytes,
}

/// Selects a sum in [`RangeBytes`].
type Field = fn(&mut RangeBytes) -> &mut u64;

/// The ranges to which an item adds its bytes: all `i..j` with `after < i <= at` and
/// `at < j <= until`. They form a rectangle in the table of all ranges.
#[derive(Debug, Clone, Copy)]
struct Rectangle {
    after: Option<usize>,
    at: usize,
    until: usize,
    bytes: u64,
    field: Field,
}

/// The rectangles of a piece of work. A value that several blocks read counts once in a range, at its
/// first reader there: the range then begins after the previous reader.
pub(super) struct Ranges {
    rectangles: Vec<Rectangle>,
    /// The transient bytes of each block.
    transients: Vec<u64>,
    /// Prefix sums of `resident` and `kept` over the blocks, each item counted at its first use.
    first_uses: Vec<[u64; 2]>,
}

impl Ranges {
    /// Linear in blocks, readers and keepers.
    pub(super) fn new(work: &Work, step: &Step) -> Self {
        let transients = work.blocks.iter().map(|block| block.transient_bytes);
        let mut ranges = Self {
            rectangles: Vec::new(),
            transients: transients.collect(),
            first_uses: Vec::new(),
        };
        ranges.add_parameters(work, step);
        ranges.add_values(work);
        // Caps sizes so that no sum overflows; no machine has as many bytes.
        let largest = u64::MAX / 8 / (ranges.rectangles.len() as u64).max(1);
        for rectangle in &mut ranges.rectangles {
            rectangle.bytes = rectangle.bytes.min(largest);
        }
        ranges.first_uses = ranges.sum_first_uses();
        ranges
    }

    fn add_parameters(&mut self, work: &Work, step: &Step) {
        let resident: Field = |bytes| &mut bytes.resident;
        for parameter in &work.parameters {
            let (readers, held) = (&parameter.readers, parameter.held_bytes());
            self.add_uses(readers, None, held, resident);
            if let (Some(first), true) = (readers.first(), parameter.is_trainable) {
                self.add_gradient(*first, &readers[1..], parameter.gradient_bytes());
                let states = step.optimizer_states.saturating_add(1);
                let own = parameter.bytes.saturating_mul(states);
                self.add_uses(&[*first], None, own, resident);
            }
        }
    }

    fn add_values(&mut self, work: &Work) {
        for value in &work.values {
            let (from, keepers) = (Some(value.maker), &value.keepers);
            self.add_uses(keepers, None, value.bytes, |bytes| &mut bytes.kept);
            self.add_uses(keepers, from, value.bytes, |bytes| &mut bytes.got);
            let mut both = [&value.readers[..], keepers].concat();
            both.sort_unstable();
            self.add_uses(&both, from, value.bytes, |bytes| &mut bytes.forward_in);
            let last = both.last().copied().unwrap_or(value.maker);
            let out: Field = |bytes| &mut bytes.forward_out;
            self.add(None, value.maker, last, value.bytes, out);
            self.add_gradient(value.maker, &value.readers, value.gradient_bytes);
        }
    }

    /// Gradients that later readers send to a range with the first block or another reader, and
    /// gradients that a range with readers sends to the first block or an earlier reader.
    fn add_gradient(&mut self, first: usize, readers: &[usize], bytes: u64) {
        let last = readers.last().copied().unwrap_or(first);
        let down: Field = |bytes| &mut bytes.gradient_out;
        self.add_uses(readers, Some(first), bytes, down);
        let mut after = None;
        for at in std::iter::once(first).chain(readers.iter().copied()) {
            self.add(after, at, last, bytes, |bytes| &mut bytes.gradient_in);
            after = Some(at);
        }
    }

    /// Adds bytes to ranges that use an item and, with `from`, begin after that block.
    fn add_uses(&mut self, uses: &[usize], from: Option<usize>, bytes: u64, field: Field) {
        let mut after = from;
        for at in uses.iter().copied() {
            self.add(after, at, usize::MAX, bytes, field);
            after = after.max(Some(at));
        }
    }

    /// Adds bytes to the ranges of a rectangle, which may be empty.
    fn add(&mut self, after: Option<usize>, at: usize, until: usize, bytes: u64, field: Field) {
        if bytes > 0 && after.is_none_or(|after| after < at) && at < until {
            self.rectangles.push(Rectangle {
                after,
                at,
                until,
                bytes,
                field,
            });
        }
    }

    fn sum_first_uses(&self) -> Vec<[u64; 2]> {
        let mut sums = vec![[0_u64; 2]; self.transients.len() + 1];
        for rectangle in self.rectangles.iter().filter(|item| item.after.is_none()) {
            let mut bytes = RangeBytes::default();
            *(rectangle.field)(&mut bytes) = rectangle.bytes;
            let sum = &mut sums[rectangle.at + 1];
            sum[0] += bytes.resident;
            sum[1] += bytes.kept;
        }
        for at in 1..sums.len() {
            sums[at] = std::array::from_fn(|of| sums[at][of] + sums[at - 1][of]);
        }
        sums
    }

    /// A lower bound of the fields that grow with a range, without the items that blocks before the range use too.
    /// Linear in the blocks of the range.
    pub(super) fn at_least(&self, from: usize, to: usize) -> BlockRange {
        let [a, b] = [from.min(to), to].map(|at| self.first_uses[at]);
        let bytes = RangeBytes {
            resident: b[0] - a[0],
            kept: b[1] - a[1],
            transient: self.transient(from, to),
            ..RangeBytes::default()
        };
        BlockRange { from, to, bytes }
    }

    /// A lower bound of the parameters, gradients, optimizer states and kept values of the blocks before a position.
    pub(super) fn bytes_before(&self, at: usize) -> u64 {
        let [resident, kept] = self.first_uses[at];
        resident.saturating_add(kept)
    }

    /// The maximum transient bytes of blocks `from..to`. Linear in them.
    fn transient(&self, from: usize, to: usize) -> u64 {
        let blocks = self.transients[from.min(to)..to].iter();
        blocks.copied().max().unwrap_or(0)
    }

    /// The bytes of every range between two of some positions. Takes quadratic time and
    /// memory in their number, and logarithmic time per item.
    pub(super) fn table(&self, positions: &BTreeSet<usize>) -> RangeTable {
        let positions: Vec<usize> = positions.iter().copied().collect();
        // One more row and column, for the ends of rectangles.
        let width = positions.len() + 1;
        let mut cells = vec![RangeBytes::default(); width * width];
        let after = |at: usize| positions.partition_point(|position| *position <= at);
        for rectangle in &self.rectangles {
            let rows = rectangle.after.map_or(0, after)..after(rectangle.at);
            let columns = rows.end..after(rectangle.until);
            if rows.is_empty() || columns.is_empty() {
                continue;
            }
            let mut add = |row: usize, column: usize, bytes: u64| {
                let sum = (rectangle.field)(&mut cells[row * width + column]);
                *sum = sum.wrapping_add(bytes);
            };
            // Differences: two of them are negative until they are summed.
            add(rows.start, columns.start, rectangle.bytes);
            add(rows.end, columns.end, rectangle.bytes);
            add(rows.end, columns.start, rectangle.bytes.wrapping_neg());
            add(rows.start, columns.end, rectangle.bytes.wrapping_neg());
        }
        sum_up(&mut cells, width);
        let neighbours = positions.windows(2);
        let between = neighbours.map(|ends| self.transient(ends[0], ends[1]));
        let between: Vec<u64> = between.collect();
        for row in 0..between.len() {
            let mut most = 0_u64;
            for (column, transient) in between.iter().enumerate().skip(row) {
                most = most.max(*transient);
                cells[row * width + column + 1].transient = most;
            }
        }
        RangeTable { positions, cells }
    }

    /// A lower bound of the time that messages of a stage add to the sum, by its first block: the messages of
    /// the values that this block reads.
    pub(super) fn links(&self, link: LinkCosts) -> Vec<u64> {
        let mut first = vec![RangeBytes::default(); self.transients.len()];
        // The range of one block has a use in that block, whatever is before it.
        for rectangle in &self.rectangles {
            let sum = (rectangle.field)(&mut first[rectangle.at]);
            *sum = sum.wrapping_add(rectangle.bytes);
        }
        let sum = |bytes: &RangeBytes| {
            message_ns(link, bytes.forward_in) + message_ns(link, bytes.gradient_out)
        };
        first.iter().map(sum).collect()
    }
}

/// Bytes of ranges, by the indices of their begin and end among the positions of the table.
pub(super) struct RangeTable {
    pub(super) positions: Vec<usize>,
    cells: Vec<RangeBytes>,
}

impl RangeTable {
    /// The range between two positions.
    pub(super) fn between(&self, from: usize, to: usize) -> BlockRange {
        BlockRange {
            from: self.positions[from],
            to: self.positions[to],
            bytes: self.cells[from * (self.positions.len() + 1) + to],
        }
    }
}

/// Turns differences into sums, along rows and then along columns.
fn sum_up(cells: &mut [RangeBytes], width: usize) {
    for row in cells.chunks_exact_mut(width) {
        let mut left = RangeBytes::default();
        for cell in row {
            add_to(cell, &left);
            left = *cell;
        }
    }
    for at in width..cells.len() {
        let above = cells[at - width];
        add_to(&mut cells[at], &above);
    }
}

fn add_to(cell: &mut RangeBytes, other: &RangeBytes) {
    cell.resident = cell.resident.wrapping_add(other.resident);
    cell.kept = cell.kept.wrapping_add(other.kept);
    cell.got = cell.got.wrapping_add(other.got);
    cell.forward_in = cell.forward_in.wrapping_add(other.forward_in);
    cell.gradient_out = cell.gradient_out.wrapping_add(other.gradient_out);
    cell.gradient_in = cell.gradient_in.wrapping_add(other.gradient_in);
    cell.forward_out = cell.forward_out.wrapping_add(other.forward_out);
}
