//! Reads many regions on several threads, directly into the memory of their tensors.

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
/// Maximum number of bytes of a work item that transposes, which takes longer per byte.
const TRANSPOSED_BYTES: u64 = 1 << 20;
/// More threads do not increase read throughput.
const MAX_THREADS: usize = 8;
/// Smaller blocks are read through the system's cache, which reads ahead.
const UNCACHED_BYTES: u64 = 64 << 10;

/// A load of saved tensors.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) from: &'a SavedTensors,
    pub(super) threads: usize,
    /// Whether the cache of the system is bypassed.
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

/// Returns the default number of reader threads. It is determined once in a process, because that opens files of the system.
pub(crate) fn default_threads() -> usize {
    static THREADS: LazyLock<usize> = LazyLock::new(|| cores(MAX_THREADS));
    *THREADS
}

/// Returns the bytes of memory that a load on the CPU needs in addition to the values: one block for each thread. Does not
/// count the memory to transpose, at most 272 KiB for each thread.
pub(super) fn working_bytes(from: &SavedTensors, wanted: &[Wanted<'_>], threads: usize) -> u64 {
    let block = from.block_bytes();
    let unit = |one: &Wanted<'_>| match from.has_digests() || !one.is_rows() {
        true => block.min(one.tensor.bytes()),
        false => block.min(one.region.num_elements() * one.tensor.dtype.size_bytes()),
    };
    let most = wanted.iter().map(unit).max().unwrap_or(0);
    most.saturating_mul(uncached_threads(threads) as u64)
}

/// Returns an upper bound on the bytes of memory that a load of a checkpoint of this crate with default options needs in
/// addition to the values, if the largest value has `largest` bytes.
pub fn most_working_bytes(largest: u64) -> u64 {
    let block = largest.min(BlockSize::default().bytes());
    block.saturating_mul(uncached_threads(default_threads()) as u64)
}

/// Returns the number of threads of an uncached load: twice as many, because they wait for the disk, which does not read ahead.
fn uncached_threads(threads: usize) -> usize {
    2 * threads
}

/// A work item of one thread.
struct Item<'a, 'out> {
    wanted: &'a Wanted<'a>,
    transfer: Transfer,
    work: Work<'a, 'out>,
}

/// The elements of a work item. Only transposed blocks share the memory to which they are written.
enum Work<'a, 'out> {
    /// Elements that are consecutive in a chunk and in the region, and share no block with another item.
    Span(&'a Chunk, ElementRun, Part<'out>),
    /// A region that is strided in some chunk. One thread reads the whole region.
    Strided(Part<'out>),
    /// Blocks of a chunk, of a region whose dimensions are swapped.
    Transposed(&'a Chunk, Vec<u64>, Arc<Transposed<'out>>),
}

/// Reads the wanted regions, in order; the caller has announced their bytes to the progress observer. Each block that contains
/// an element is read once and checked.
///
/// Memory: the regions; per thread up to one block, and up to 272 KiB to transpose.
pub(super) fn load(load: Load<'_>, wanted: &[Wanted<'_>]) -> Result<Vec<TensorData>, LoadError> {
    let block_bytes = load.from.block_bytes();
    let uncached = load.uncached && block_bytes >= UNCACHED_BYTES;
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
        // A read around the cache reads whole blocks directly into the memory of the value. Burn copies the value if it needs a
        // `Vec`.
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
    let kept = &load.from.shared.scratch;
    let mut scratch = std::mem::take(&mut *kept.lock());
    scratch.resize_with(threads.max(1), Held::default);
    let results = parallel_with(&mut scratch, items, |held, item| {
        // For a strided region, the system reads ahead.
        held.uncached = uncached && !matches!(item.work, Work::Strided(_));
        item.run(load, held)
    });
    *kept.lock() = scratch;
    results.into_iter().collect::<Result<(), _>>()?;
    let data = outs.into_iter().zip(wanted).map(|((_, out), one)| {
        // The sizes fit `usize`, because the bytes were allocated, or the region is empty.
        let mut shape: Vec<usize> = one.region.size().iter().map(|d| *d as usize).collect();
        if one.transposed {
            shape.reverse();
        }
        TensorData::from_bytes(out.into_bytes(), shape, one.dtype)
    });
    Ok(data.collect())
}

/// Allocates memory for a region; returns an error instead of aborting the process.
fn memory(one: &Wanted<'_>, align: usize) -> Result<Memory, LoadError> {
    let bytes = one.bytes();
    // At least aligned for the elements, because Burn copies unaligned bytes.
    let size = usize::try_from(bytes).ok();
    let memory = size.and_then(|size| Memory::new(size, align.max(one.dtype.size())));
    memory.ok_or_else(|| LoadError::OutOfMemory {
        tensor: one.tensor.name.clone(),
        bytes,
    })
}

/// Divides a region into work items.
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
    // The overlaps cover the region, because the chunks tile the tensor.
    spans.sort_by_key(|(_, run)| run.target);
    // As many whole blocks as fit, at least one; blocks contain whole elements.
    let most = (SPAN_BYTES / block).max(1) * block / element;
    for (chunk, run) in spans {
        let mut start = run.source;
        while start < run.source + run.len {
            let end = ((start / most + 1) * most).min(run.source + run.len);
            // The value is at most the length of `out`, so the cast is lossless.
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
    fn run(self, load: Load<'_>, held: &mut Held) -> Result<(), LoadError> {
        let mut read = |chunk: &Chunk, read: &mut dyn FnMut(&mut ChunkReader<'_>) -> Read| {
            let shard = load.from.file(&chunk.file)?;
            let elements = read(&mut ChunkReader {
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

/// The number of elements that were read.
type Read = Result<u64, LoadError>;

/// Reads runs of one chunk, in order; keeps the last partially used block.
struct ChunkReader<'a> {
    chunk: OpenChunk<'a>,
    transfer: Transfer,
    /// Size of an element of the tensor in memory, in bytes.
    element: u64,
    held: &'a mut Held,
    held_span: Option<Range<u64>>,
    /// Whether it reads only one run.
    is_alone: bool,
}

impl ChunkReader<'_> {
    /// Copies a run to `out`. A block that is entirely in the run and needs no conversion is read directly into `out`; if the
    /// cache is bypassed, only if both are aligned.
    fn read(&mut self, run: ElementRun, out: &mut [u8]) -> Read {
        let stored = self.chunk.tensor.dtype.size_bytes();
        // Positions fit, because the sizes of chunk and region in bytes were checked.
        let (mut source, end) = (run.source * stored, (run.source + run.len) * stored);
        let mut target = run.target * self.element;
        while source < end {
            let held = self.held_span.clone().filter(|span| span.contains(&source));
            let span = held.unwrap_or_else(|| self.chunk.span(source..end, self.is_alone));
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

    /// Reads a block, and writes its elements to their positions in a transposed region. Returns their number.
    fn transpose(&mut self, block: u64, region: &Region, out: &Transposed<'_>) -> Read {
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

    /// Reads a span.
    fn hold(&mut self, span: Range<u64>) -> Result<(), LoadError> {
        self.held_span = None;
        self.chunk.hold(span.clone(), self.held)?;
        self.held_span = Some(span);
        Ok(())
    }
}
