//! Memory of the index: slabs of equal cells that grow chunk by chunk, so that growing copies nothing and moves
//! nothing under a reader.
//!
//! The place of a cell never changes once its chunk exists. [`AtomicSlab`] holds atomics that anyone may read and
//! write. [`ByteSlab`] holds plain bytes; who may touch them is the contract of its two unsafe functions.
use std::alloc::Layout;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::hint::{HUGE_PAGE, huge_pages};
use crate::pages::{free, zeroed};

/// Slots an index can have. Miri pays for every entry of the tables.
pub(super) const MAX_SLOTS: usize = if cfg!(miri) { 1 << 14 } else { 1 << 24 };
/// Chunks are at most this long, unless that were fewer cells than a group of 64.
const CHUNK_BYTES: usize = if cfg!(miri) { 1 << 14 } else { 8 << 20 };
/// Cells in a chunk, at most, as a power of two: enough that sketches and stamps lie on huge pages. A scan under a filter
/// would else touch another page for each of its sketches.
const MAX_SHIFT: u32 = 17;
const LINE: usize = 64;

/// Chunks of cells behind atomic pointers.
#[derive(Debug)]
struct Chunks {
    table: Box<[AtomicPtr<u8>]>,
    /// Bytes of a cell.
    stride: usize,
    shift: u32,
}

impl Chunks {
    fn new(stride: usize) -> Self {
        let shift = (CHUNK_BYTES / stride).max(64).ilog2().min(MAX_SHIFT);
        let table = (0..MAX_SLOTS >> shift).map(|_| AtomicPtr::default()).collect();
        Self { table, stride, shift }
    }

    fn layout(&self) -> Layout {
        let bytes = self.stride << self.shift;
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { LINE };
        Layout::from_size_align(bytes, align).expect("a chunk is far below the address space")
    }

    /// Makes room for cells `[0, cells)`. Called by one thread at a time.
    fn ensure(&self, cells: usize) {
        let chunks = cells.div_ceil(1 << self.shift);
        for (at, chunk) in self.table[..chunks].iter().enumerate() {
            if !chunk.load(Ordering::Relaxed).is_null() {
                continue;
            }
            let memory = zeroed(self.layout());
            // Not for the first chunk of a small index: it would cost a huge page where a few small ones do.
            if at > 0 || cells > 4096 {
                huge_pages(memory, self.layout().size());
            }
            chunk.store(memory, Ordering::Release);
        }
    }

    fn base(&self, cell: usize) -> *mut u8 {
        self.table[cell >> self.shift].load(Ordering::Acquire)
    }

    /// Where a cell begins. Null chunks are refused, so the cell is inside allocated memory.
    #[inline(always)]
    fn cell(&self, cell: usize) -> *mut u8 {
        let base = self.base(cell);
        assert!(!base.is_null(), "cell {cell} has no memory yet");
        // SAFETY: the index inside the chunk is below its number of cells.
        unsafe { base.add((cell & ((1 << self.shift) - 1)) * self.stride) }
    }

    fn bytes_for(&self, cells: usize) -> usize {
        cells * self.stride
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let layout = self.layout();
        for chunk in &mut self.table {
            let memory = *chunk.get_mut();
            if !memory.is_null() {
                // SAFETY: it came from `zeroed` with this layout, and nobody has the slab any more.
                unsafe { free(memory, layout) };
            }
        }
    }
}

/// An atomic whose all-zero bytes are a valid value.
///
/// # Safety
/// The type has the size and alignment of its integer, and zero bytes are a valid value.
pub(super) unsafe trait Word: Sync {}
// SAFETY: atomic integers.
unsafe impl Word for AtomicU32 {}
// SAFETY: atomic integers.
unsafe impl Word for AtomicU64 {}

/// Cells of `words` atomics each, all zero at first.
#[derive(Debug)]
pub(super) struct AtomicSlab<T> {
    chunks: Chunks,
    words: usize,
    kind: std::marker::PhantomData<T>,
}

impl<T: Word> AtomicSlab<T> {
    pub(super) fn new(words: usize) -> Self {
        Self {
            chunks: Chunks::new(words * size_of::<T>()),
            words,
            kind: std::marker::PhantomData,
        }
    }

    pub(super) fn ensure(&self, cells: usize) {
        self.chunks.ensure(cells);
    }

    #[inline(always)]
    pub(super) fn cell(&self, cell: usize) -> &[T] {
        // SAFETY: the cell lies in an allocated chunk, which lives as long as the slab; it holds `words` atomics,
        // zeroed at allocation and aligned because chunks are aligned to a line and cells are whole words.
        unsafe { std::slice::from_raw_parts(self.chunks.cell(cell).cast::<T>(), self.words) }
    }

    /// Calls `each` with pieces of `other` and the cells of one word at the same places, a chunk at a time.
    pub(super) fn zip(&self, other: &mut [u64], each: impl Fn(&mut [u64], &[T])) {
        assert_eq!(self.words, 1, "cells of one word lie one after the other");
        let run = 1 << self.chunks.shift;
        for (piece, other) in other.chunks_mut(run).enumerate() {
            let start = self.chunks.cell(piece * run).cast::<T>();
            // SAFETY: as in `cell`, for cells of one chunk, which lie one after the other.
            each(other, unsafe { std::slice::from_raw_parts(start, other.len()) });
        }
    }

    /// Asks for the first lines of a cell.
    #[inline(always)]
    pub(super) fn prefetch(&self, cell: usize) {
        let base = self.chunks.base(cell);
        let start = base.wrapping_add((cell & ((1 << self.chunks.shift) - 1)) * self.chunks.stride);
        crate::hint::prefetch(start);
        crate::hint::prefetch(start.wrapping_add(LINE));
        crate::hint::prefetch(start.wrapping_add(2 * LINE));
    }

    pub(super) fn bytes_for(&self, cells: usize) -> usize {
        self.chunks.bytes_for(cells)
    }
}

/// Cells of plain bytes; each starts on a multiple of its stride, chunks on a cache line.
#[derive(Debug)]
pub(super) struct ByteSlab {
    chunks: Chunks,
}

// SAFETY: the bytes are only reached through the unsafe functions below, whose contract excludes data races.
unsafe impl Sync for ByteSlab {}

impl ByteSlab {
    /// `stride` of 0 is a slab without content.
    pub(super) fn new(stride: usize) -> Self {
        Self {
            chunks: Chunks::new(stride.max(1)),
        }
    }

    pub(super) fn ensure(&self, cells: usize) {
        self.chunks.ensure(cells);
    }

    /// Where a cell begins; the chunk must exist (asserted).
    #[inline(always)]
    pub(super) fn start(&self, cell: usize) -> *const u8 {
        self.chunks.cell(cell)
    }

    /// Where a cell begins.
    ///
    /// # Safety
    /// The chunk of the cell must exist.
    #[inline(always)]
    pub(super) unsafe fn start_unchecked(&self, cell: usize) -> *const u8 {
        // SAFETY: the caller says that the chunk exists, so both indices are in range.
        unsafe {
            let base = self
                .chunks
                .table
                .get_unchecked(cell >> self.chunks.shift)
                .load(Ordering::Acquire);
            base.add((cell & ((1 << self.chunks.shift) - 1)) * self.chunks.stride)
        }
    }

    /// The bytes of a cell.
    ///
    /// # Safety
    /// Nobody may write the cell as long as the slice lives.
    #[inline(always)]
    pub(super) unsafe fn read(&self, cell: usize) -> &[u8] {
        // SAFETY: an allocated cell of `stride` bytes, zeroed or written; no writer, says the caller.
        unsafe { std::slice::from_raw_parts(self.chunks.cell(cell), self.chunks.stride) }
    }

    /// Overwrites the head of a cell.
    ///
    /// # Safety
    /// Nobody may read or write the cell meanwhile.
    pub(super) unsafe fn write(&self, cell: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.chunks.stride);
        // SAFETY: an allocated cell that is at least as long as `bytes`, and exclusive, says the caller.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.chunks.cell(cell), bytes.len()) };
    }

    pub(super) fn bytes_for(&self, cells: usize) -> usize {
        self.chunks.bytes_for(cells)
    }
}
