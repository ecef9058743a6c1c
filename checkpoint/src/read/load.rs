//! Reads many regions on several threads, if possible directly into the memory of their tensors.
//!
//! "Around the cache" and "uncached" mean the page cache of the system.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use burn::tensor::TensorData;
use tinderbox_deferred::Observer;
use tinderbox_fake::{ElementRun, Region};
use tinderbox_memory::{Memory, Part};

use super::plan::{Wanted, blocks_of};
use super::saved::SavedTensors;
use super::shard::{Held, OpenChunk};
use super::transfer::Transfer;
use super::transpose::{Elements, Transposed};
use crate::format::PAGE_BYTES;
use crate::parallel::{cores, parallel_with};
use crate::{BlockSize, Chunk, LoadError};

/// Maximum number of bytes of a file in one work item: large enough to hide the cost of scheduling, small
/// enough that all threads finish together.
pub(super) const SPAN_BYTES: u64 = 8 << 20;
/// Maximum number of bytes of a work item that transposes. Smaller than a span, because transposing takes longer per byte.
const TRANSPOSED_BYTES: u64 = 1 << 20;
/// The default number of threads is at most this number: more threads do not increase read throughput.
const MAX_THREADS: usize = 8;
/// Smaller blocks are read through the cache even in an uncached load, because the cache reads ahead.
const MIN_UNCACHED_BLOCK_BYTES: u64 = 64 << 10;

/// The settings of a load of saved tensors.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) from: &'a SavedTensors,
    pub(super) threads: usize,
    /// Whether to read around the cache, if the blocks are large enough.
    pub(super) uncached: bool,
    pub(super) progress: &'a dyn Observer,
}

impl<'a> Load<'a> {
    /// Creates a load with the default number of threads, through the cache, without an observer.
    pub(super) fn of(from: &'a SavedTensors) -> Self {
        Self {
            from,
            threads: default_threads(),
            uncached: false,
            progress: &(),
        }
    }
}

/// Returns the default number of reader threads. It is determined once in a process, because counting the cores reads files
/// of the system.
pub(crate) fn default_threads() -> usize {
    static THREADS: LazyLock<usize> = LazyLock::new(|| cores(MAX_THREADS));
    *THREADS
}

/// Returns the bytes of memory that a load to the CPU needs in addition to the values, at most: one block for each thread.
/// Counts the threads of an uncached load. Does not count the memory to transpose, which is at most 272 KiB for each
/// thread.
pub(super) fn working_bytes(from: &SavedTensors, wanted: &[Wanted<'_>], threads: usize) -> u64 {
    let block = from.block_bytes();
    // The most bytes that are read at once. Without digests, consecutive elements are read without the rest of their
    // blocks.
    let unit = |one: &Wanted<'_>| match from.has_digests() || !one.is_rows() {
        true => block.min(one.tensor.bytes()),
        false => block.min(one.region.num_elements() * one.tensor.dtype.size_bytes()),
    };
    let most = wanted.iter().map(unit).max().unwrap_or(0);
    most.saturating_mul(uncached_threads(threads) as u64)
}

/// Returns an upper bound on the bytes of memory that a load needs in addition to the values, if the largest value has
/// `largest` bytes. The bound is for a checkpoint that this crate has saved, and for default options.
pub fn most_working_bytes(largest: u64) -> u64 {
    let block = largest.min(BlockSize::default().bytes());
    block.saturating_mul(uncached_threads(default_threads()) as u64)
}

/// Returns the number of threads of an uncached load. It is twice as large, because nothing is read ahead: each thread
/// waits for the disk.
fn uncached_threads(threads: usize) -> usize {
    2 * threads
}

/// A work item, for one thread.
struct Item<'a, 'out> {
    wanted: &'a Wanted<'a>,
    transfer: Transfer,
    work: Work<'a, 'out>,
}

/// The elements that a work item reads, and the memory to which it writes them. Each item has its own memory, except the
/// items of a transposed region.
enum Work<'a, 'out> {
    /// Elements that are consecutive in a chunk and in the region. No other item reads their blocks.
    Span(&'a Chunk, ElementRun, Part<'out>),
    /// A whole region whose elements are not consecutive in some chunk. One thread reads all of it, so that each block is
    /// read once.
    Strided(Part<'out>),
    /// Some blocks of a chunk, for a region whose two dimensions are swapped.
    Transposed(&'a Chunk, Vec<u64>, Arc<Transposed<'out>>),
}

/// Reads the wanted regions, and returns their values in the same order. Each block that contains a wanted element is read
/// once and checked. The observer is notified of the bytes of each item. The caller has already notified it of the total.
///
/// Memory: the regions, and for each thread up to one block and up to 272 KiB to transpose.
pub(super) fn load(load: Load<'_>, wanted: &[Wanted<'_>]) -> Result<Vec<TensorData>, LoadError> {
    let block_bytes = load.from.block_bytes();
    let uncached = load.uncached && block_bytes >= MIN_UNCACHED_BLOCK_BYTES;
    let mut outs: Vec<(Transfer, Memory)> = Vec::with_capacity(wanted.len());
    for one in wanted {
        let tensor = one.tensor;
        let inside = one.region.check_inside(&tensor.shape);
        inside.map_err(|source| LoadError::Region {
            tensor: tensor.name.clone(),
            source,
        })?;
        let transfer = Transfer::between(tensor.dtype, one.dtype);
        let transfer = transfer.ok_or_else(|| LoadError::NoCast {
            tensor: tensor.name.clone(),
            found: tensor.dtype,
            expected: tinderbox_fake::dtype_name(one.dtype).to_owned(),
        })?;
        // A read around the cache needs aligned memory, to read whole blocks directly into the memory of the value. The
        // alignment has a cost only if Burn later needs a `Vec`: it then copies the value.
        let align = match uncached && transfer.is_copy() && !one.transposed {
            true => PAGE_BYTES,
            false => one.dtype.size(),
        };
        outs.push((transfer, memory(one, align)?));
    }
    let mut items: Vec<Item<'_, '_>> = Vec::new();
    for (wanted, (transfer, out)) in wanted.iter().zip(&mut outs) {
        let item = |work| Item {
            wanted,
            transfer: *transfer,
            work,
        };
        let work = divide(wanted, block_bytes, out.parts());
        items.extend(work.into_iter().map(item));
    }
    let threads = match uncached {
        true => uncached_threads(load.threads),
        false => load.threads,
    };
    // The memory of the threads is kept for the next load.
    let kept = &load.from.shared.scratch;
    let mut scratch = std::mem::take(&mut *kept.lock());
    scratch.resize_with(threads.max(1), Held::default);
    let read = parallel_with(&mut scratch, items, |held, item| {
        // A strided region is read through the cache, because the system then reads ahead.
        held.uncached = uncached && !matches!(item.work, Work::Strided(_));
        item.run(load, held)
    });
    *kept.lock() = scratch;
    read?;
    let data = outs.into_iter().zip(wanted).map(|((_, out), one)| {
        // The casts are lossless: either the bytes were allocated, or the region is empty.
        let mut shape: Vec<usize> = one.region.size().iter().map(|d| *d as usize).collect();
        if one.transposed {
            shape.reverse();
        }
        TensorData::from_bytes(out.into_bytes(), shape, one.dtype)
    });
    Ok(data.collect())
}

/// Allocates memory for a region. Returns an error if there is not enough memory, where a `Vec` would abort the process.
fn memory(one: &Wanted<'_>, align: usize) -> Result<Memory, LoadError> {
    let bytes = one.bytes();
    let size = usize::try_from(bytes).ok();
    // At least the alignment of the elements, because Burn copies bytes that are not aligned for them.
    let memory = size.and_then(|size| Memory::new(size, align.max(one.dtype.size())));
    memory.ok_or_else(|| LoadError::OutOfMemory {
        tensor: one.tensor.name.clone(),
        bytes,
    })
}

/// Divides a region and its memory into work items.
fn divide<'a, 'out>(one: &'a Wanted<'a>, block: u64, mut out: Part<'out>) -> Vec<Work<'a, 'out>> {
    let mut work = Vec::new();
    if out.is_empty() {
        return work;
    }
    let element = one.tensor.dtype.size_bytes();
    if one.transposed {
        let out = Arc::new(Transposed::in_memory(&one.region, one.dtype.size(), out));
        let most = (TRANSPOSED_BYTES / block).max(1);
        for chunk in &one.tensor.chunks {
            let blocks = blocks_of(chunk, &one.region, element, block);
            let blocks: Vec<u64> = blocks.into_iter().flatten().collect();
            for some in blocks.chunks(most as usize) {
                work.push(Work::Transposed(chunk, some.to_vec(), out.clone()));
            }
        }
        return work;
    }
    let mut spans = Vec::new();
    for chunk in &one.tensor.chunks {
        let mut runs = chunk.region.runs(&one.region);
        match (runs.next(), runs.next()) {
            (None, _) => {}
            (Some(run), None) => spans.push((chunk, run)),
            (Some(_), Some(_)) => return vec![Work::Strided(out)],
        }
    }
    // In the order of the region, the spans cover the region without gaps, because the chunks tile the tensor. So each span
    // gets the next part of the memory.
    spans.sort_by_key(|(_, run)| run.target);
    // The elements of as many whole blocks as fit in a span, at least one block. Blocks contain whole elements.
    let most = (SPAN_BYTES / block).max(1) * block / element;
    for (chunk, run) in spans {
        let mut start = run.source;
        while start < run.source + run.len {
            // Ends at the end of a block, so that no block is in two items.
            let end = ((start / most + 1) * most).min(run.source + run.len);
            // The cast is lossless, because the elements fit in `out`.
            let bytes = (end - start) as usize * one.dtype.size();
            let (now, rest) = out.split_at(bytes);
            let part = ElementRun {
                source: start,
                target: 0,
                len: end - start,
            };
            work.push(Work::Span(chunk, part, now));
            (start, out) = (end, rest);
        }
    }
    work
}

impl Item<'_, '_> {
    /// Reads the elements of the item into its memory, and reports their bytes.
    fn run(self, load: Load<'_>, held: &mut Held) -> Result<(), LoadError> {
        let mut read = |chunk: &Chunk, work: &mut dyn FnMut(&mut ChunkReader<'_>) -> ReadCount| {
            let shard = load.from.file(&chunk.file)?;
            let elements = work(&mut ChunkReader {
                chunk: shard.chunk(self.wanted.tensor, chunk),
                transfer: self.transfer,
                element: self.wanted.dtype.size() as u64,
                held: &mut *held,
                held_span: None,
                is_alone: false,
            })?;
            let bytes = elements * self.wanted.dtype.size() as u64;
            load.progress.advanced(bytes);
            Ok(())
        };
        match self.work {
            Work::Span(chunk, run, out) => {
                let out = out.ready();
                read(chunk, &mut |reader| {
                    reader.is_alone = true;
                    reader.read(run, out)
                })
            }
            Work::Strided(out) => {
                let out = out.ready();
                let mut chunks = self.wanted.tensor.chunks.iter();
                chunks.try_for_each(|chunk| {
                    let mut runs = chunk.region.runs(&self.wanted.region);
                    match runs.peek() {
                        None => Ok(()),
                        Some(_) => read(chunk, &mut |reader| {
                            runs.try_fold(0, |read, run| Ok(read + reader.read(run, out)?))
                        }),
                    }
                })
            }
            Work::Transposed(chunk, blocks, out) => read(chunk, &mut |reader| {
                let mut blocks = blocks.iter();
                blocks.try_fold(0, |read, block| {
                    Ok(read + reader.transpose(*block, &self.wanted.region, &out)?)
                })
            }),
        }
    }
}

/// The number of elements that were read, or an error.
type ReadCount = Result<u64, LoadError>;

/// Reads runs of one chunk, in order. Holds the last block that was used in part, because the next run may need it too.
struct ChunkReader<'a> {
    chunk: OpenChunk<'a>,
    transfer: Transfer,
    /// The size in bytes of an element in memory, after the conversion.
    element: u64,
    /// The memory of the thread, which holds a block.
    held: &'a mut Held,
    /// The byte range of the held block in the chunk; `None` if no block of this chunk is held.
    held_span: Option<Range<u64>>,
    /// Whether this reader reads a single run: then no other elements of the blocks are needed.
    is_alone: bool,
}

impl ChunkReader<'_> {
    /// Reads a run and writes its elements to `out`. A block is read directly into `out` if it is entirely in the run and
    /// needs no conversion. A read around the cache must also be possible at these addresses. Any other block is read into
    /// the memory of the thread, and the required elements are converted or copied from there.
    fn read(&mut self, run: ElementRun, out: &mut [u8]) -> ReadCount {
        let stored = self.chunk.tensor.dtype.size_bytes();
        // The products don't overflow, because the sizes of chunk and region in bytes were checked.
        let (mut source, end) = (run.source * stored, (run.source + run.len) * stored);
        let mut target = run.target * self.element;
        while source < end {
            let reusable = self.held_span.clone().filter(|span| span.contains(&source));
            let span = reusable.unwrap_or_else(|| self.chunk.span(source..end, self.is_alone));
            let stop = end.min(span.end);
            let len = (stop - source) / stored * self.element;
            let place = &mut out[target as usize..(target + len) as usize];
            let is_whole = source == span.start && stop == span.end && self.transfer.is_copy();
            if !(is_whole && self.chunk.read(span.start, place, self.held.uncached)?) {
                let from = (source - span.start) as usize..(stop - span.start) as usize;
                if self.held_span.as_ref() != Some(&span) {
                    self.hold(span)?;
                }
                let copied = self.transfer.copy(&self.held.block()[from], place);
                copied.map_err(|invalid| self.chunk.invalid(invalid))?;
            }
            (source, target) = (stop, target + len);
        }
        Ok(run.len)
    }

    /// Reads a block, and writes its elements to their positions in a transposed region. Returns the number of elements
    /// that are in the region.
    fn transpose(&mut self, block: u64, region: &Region, out: &Transposed<'_>) -> ReadCount {
        let span = self.chunk.block(block);
        self.hold(span.clone())?;
        let stored = self.chunk.tensor.dtype.size_bytes();
        let elements = Elements {
            matrix: &self.chunk.chunk.region,
            range: span.start / stored..span.end / stored,
            bytes: &self.held.memory[self.held.range.clone()],
        };
        let mut count = 0;
        let boxes = elements.boxes();
        for part in boxes.filter_map(|part| part.intersection(region)) {
            count += part.num_elements();
            for row in elements.rows(&part, stored as usize) {
                let checked = self.transfer.check(row);
                checked.map_err(|invalid| self.chunk.invalid(invalid))?;
            }
        }
        out.put(elements, self.transfer, &mut self.held.scratch);
        Ok(count)
    }

    /// Reads a span into the memory of the thread and checks it.
    fn hold(&mut self, span: Range<u64>) -> Result<(), LoadError> {
        self.held_span = None;
        self.chunk.hold(span.clone(), self.held)?;
        self.held_span = Some(span);
        Ok(())
    }
}
