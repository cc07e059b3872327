//! Growable arrays that one writer replaces while readers go on reading the old copy.
//!
//! A reader enters a section ([`Domain::enter`]) before it loads a pointer and holds the [`Guard`] as long as it
//! uses what it loaded. The writer swaps the pointer first and frees the old array only after it has seen every
//! reader counter at zero since the swap. Entering is two uncontended atomic additions and never waits.
use std::alloc::Layout;
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::hint::{HUGE_PAGE, huge_pages};
use crate::pages;

const STRIPES: usize = 16;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicUsize);

/// The readers of one registry, counted in two generations so that the older one can drain.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    generation: AtomicUsize,
    readers: [[Stripe; STRIPES]; 2],
}

/// Proof of being inside a read section.
#[derive(Debug)]
pub(crate) struct Guard<'d>(&'d AtomicUsize);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES);
        }
        mine.get()
    })
}

impl Domain {
    /// Starts a read section of the calling thread; sections may nest.
    #[inline]
    pub(crate) fn enter(&self) -> Guard<'_> {
        let generation = self.generation.load(Ordering::Relaxed) & 1;
        let counter = &self.readers[generation][stripe()].0;
        // SeqCst: either the writer's check sees this reader, or this reader sees the writer's new pointer.
        counter.fetch_add(1, Ordering::SeqCst);
        Guard(counter)
    }

    fn drained(&self, generation: usize) -> bool {
        self.readers[generation]
            .iter()
            .all(|s| s.0.load(Ordering::SeqCst) == 0)
    }
}

/// Pieces of memory are whole cache lines.
const UNIT: usize = 64;
const FIRST_CHUNK: usize = 64 << 10;
const LARGEST_CHUNK: usize = 16 << 20;

/// Memory of one array.
#[derive(Debug)]
struct Piece {
    memory: *mut u8,
    layout: Layout,
}

// SAFETY: plain bytes that only their list will touch again, to hand them out or to free them.
unsafe impl Send for Piece {}

/// Size classes below a huge page.
const CLASSES: usize = 128;

/// The size class of a piece of so many units, and its size: eight classes for each doubling.
fn class(units: usize) -> (usize, usize) {
    if units <= 8 {
        return (units, units);
    }
    let shift = units.ilog2() as usize - 3;
    let steps = units.div_ceil(1 << shift);
    (8 * shift + steps, steps << shift)
}

/// The most units not above `units` that fill a class.
fn whole(units: usize) -> usize {
    let shift = (units.ilog2() as usize).saturating_sub(3);
    units >> shift << shift
}

/// Where arrays get their memory. Those below a huge page are cut from large chunks, because a registry has ten
/// thousand of them and each on pages of its own would cost a lookup of the page at every access.
#[derive(Debug, Default)]
struct Arena {
    chunks: Vec<Piece>,
    bytes: usize,
    /// The part of the last chunk that was not handed out yet.
    rest: (usize, usize),
    /// Pieces that came back, by class.
    free: Vec<Vec<Piece>>,
    /// The classes that have some, one bit each.
    filled: u128,
    /// Bytes of them.
    idle: usize,
}

impl Arena {
    /// Memory for an array, and whether it is zero.
    fn allocate(&mut self, layout: Layout) -> (*mut u8, bool) {
        if layout.size() >= HUGE_PAGE {
            return (Self::fresh(layout), true);
        }
        let (class, units) = class(layout.size().div_ceil(UNIT));
        let bytes = units * UNIT;
        if let Some(piece) = self.reuse(class) {
            let left = piece.layout.size() - bytes;
            // SAFETY: the rest of a piece that is larger than wanted.
            self.keep(unsafe { piece.memory.add(bytes) }, left / UNIT);
            return (piece.memory, false);
        }
        if self.rest.1 - self.rest.0 < bytes {
            self.keep_rest();
            let size = self.bytes.clamp(FIRST_CHUNK, LARGEST_CHUNK).max(bytes);
            let align = if size < HUGE_PAGE { UNIT } else { HUGE_PAGE };
            let layout = Layout::from_size_align(size, align).expect("a power of two, far below the limit");
            let memory = Self::fresh(layout);
            self.chunks.push(Piece { memory, layout });
            self.bytes += size;
            self.rest = (0, size);
        }
        let at = self.rest.0;
        self.rest.0 += bytes;
        let chunk = self.chunks.last().expect("made above");
        // SAFETY: `at + bytes` is within the chunk.
        (unsafe { chunk.memory.add(at) }, false)
    }

    /// A free piece of this class, or of the next larger one that has any: as pools grow together, what the large ones
    /// leave behind serves the many small ones.
    fn reuse(&mut self, class: usize) -> Option<Piece> {
        let larger = self.filled >> class;
        if larger == 0 {
            return None;
        }
        let class = class + larger.trailing_zeros() as usize;
        let piece = self.free[class].pop()?;
        if self.free[class].is_empty() {
            self.filled &= !(1 << class);
        }
        self.idle -= piece.layout.size();
        Some(piece)
    }

    /// Files what is left of the last chunk.
    fn keep_rest(&mut self) {
        let (from, to) = self.rest;
        if let Some(chunk) = self.chunks.last() {
            // SAFETY: `from` is within the chunk, or at its end.
            let memory = unsafe { chunk.memory.add(from) };
            self.keep(memory, (to - from) / UNIT);
        }
    }

    /// Files so many units of memory, in pieces that fill their classes.
    fn keep(&mut self, mut memory: *mut u8, mut units: usize) {
        while units > 0 {
            let part = whole(units.min(HUGE_PAGE / UNIT - 1));
            let layout =
                Layout::from_size_align(part * UNIT, UNIT).expect("a power of two, below a huge page");
            self.free(Piece { memory, layout });
            // SAFETY: within the memory to be filed, or at its end.
            memory = unsafe { memory.add(part * UNIT) };
            units -= part;
        }
    }

    fn fresh(layout: Layout) -> *mut u8 {
        let memory = pages::zeroed(layout);
        // Before the first touch: the kernel decides on the page size when it maps the page.
        huge_pages(memory, layout.size());
        memory
    }

    /// Takes memory back that nobody reads any more.
    fn free(&mut self, piece: Piece) {
        if piece.layout.size() >= HUGE_PAGE {
            // SAFETY: `memory` came from `fresh` with this layout and is freed once, here.
            unsafe { pages::free(piece.memory, piece.layout) };
            return;
        }
        let (class, units) = class(piece.layout.size().div_ceil(UNIT));
        let layout = Layout::from_size_align(units * UNIT, UNIT).expect("a power of two, below a huge page");
        if self.free.is_empty() {
            self.free.resize_with(CLASSES, Vec::new);
        }
        self.free[class].push(Piece {
            memory: piece.memory,
            layout,
        });
        self.filled |= 1 << class;
        self.idle += layout.size();
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: `memory` came from `fresh` with this layout and is freed once, here.
            unsafe { pages::free(chunk.memory, chunk.layout) };
        }
    }
}

/// Arrays that are no longer reachable but may still be read, and the memory of those that are. Must outlive every
/// array that grew with it.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Swapped out before the current observation began.
    old: Vec<Piece>,
    /// Swapped out since.
    new: Vec<Piece>,
    seen: [bool; 2],
    arena: Arena,
}

impl Drop for Garbage {
    fn drop(&mut self) {
        for piece in self.old.drain(..).chain(self.new.drain(..)) {
            self.arena.free(piece);
        }
    }
}

impl Garbage {
    /// Bytes that no array uses now: kept for later ones, or waiting for readers to leave.
    pub(crate) fn idle(&self) -> usize {
        let waiting = self.old.iter().chain(&self.new).map(|piece| piece.layout.size());
        self.arena.idle + waiting.sum::<usize>()
    }

    /// Frees what no reader can hold any more; never waits. Called by the writer only.
    pub(crate) fn collect(&mut self, domain: &Domain) {
        if self.old.is_empty() {
            if self.new.is_empty() {
                return;
            }
            self.old = std::mem::take(&mut self.new);
            self.seen = [false; 2];
        }
        // A reader of an old array counted itself in one of the two generations before the swap; once each
        // has been at zero after the swap, it has left. New readers are steered to the other generation, so
        // that each gets its turn to drain.
        let current = domain.generation.load(Ordering::Relaxed) & 1;
        for generation in [current ^ 1, current] {
            if domain.drained(generation) {
                self.seen[generation] = true;
            }
        }
        if self.seen == [true; 2] {
            for piece in self.old.drain(..) {
                self.arena.free(piece);
            }
        } else if self.seen[current ^ 1] {
            domain.generation.store(current ^ 1, Ordering::SeqCst);
        }
    }
}

/// An element that can be copied into a larger array while readers look at it: a group of atomics.
///
/// # Safety
/// All-zero bytes must be a valid value (new elements are zero), the type must not be zero-sized, and dropping
/// a relocated original must not be needed: the old array is freed without dropping its elements.
pub(crate) unsafe trait Element: Sync + Send {
    /// The same value for the new array.
    fn relocate(&self) -> Self;
}

/// An array of `T` behind an atomic pointer; it only ever grows.
#[derive(Debug)]
pub(crate) struct RcuArray<T> {
    start: AtomicPtr<T>,
    capacity: AtomicU32,
    /// A number of the owner's, such as how many elements are in use, in room that alignment would leave empty.
    pub(crate) count: AtomicU32,
}

impl<T> Default for RcuArray<T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<T> RcuArray<T> {
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "each use is a new, empty array"
    )]
    pub(crate) const EMPTY: Self = Self {
        start: AtomicPtr::new(std::ptr::null_mut()),
        capacity: AtomicU32::new(0),
        count: AtomicU32::new(0),
    };
}

impl<T: Element> RcuArray<T> {
    /// The elements; valid as long as the read section.
    #[inline]
    pub(crate) fn get<'g>(&self, _section: &'g Guard<'_>) -> &'g [T] {
        // SAFETY: the guard keeps every array that was current since it was taken (module documentation).
        unsafe { self.slice() }
    }

    /// The elements, for the writer: it is the only one that replaces the array.
    ///
    /// # Safety
    /// The caller must hold the registry's writer lock, and drop the slice before the next `grow`.
    #[inline]
    pub(crate) unsafe fn owned<'w>(&self) -> &'w [T] {
        // SAFETY: only the writer retires arrays, and it is the caller.
        unsafe { self.slice() }
    }

    #[inline]
    unsafe fn slice<'x>(&self) -> &'x [T] {
        // Capacity first: `grow` stores the pointer first, so the array is at least this long.
        let capacity = self.capacity.load(Ordering::Acquire) as usize;
        let start = self.start.load(Ordering::SeqCst);
        if capacity == 0 {
            return &[];
        }
        // SAFETY: `start` points to at least `capacity` initialised elements (see above), which live as
        // long as the caller's section or lock.
        unsafe { std::slice::from_raw_parts(start, capacity) }
    }

    /// The same array and count under a second header. The first one must never be used or dropped again.
    pub(crate) fn duplicate(&self) -> Self {
        Self {
            start: AtomicPtr::new(self.start.load(Ordering::SeqCst)),
            capacity: AtomicU32::new(self.capacity.load(Ordering::Relaxed)),
            count: AtomicU32::new(self.count.load(Ordering::Relaxed)),
        }
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Replaces the array by one of at least `capacity` elements, the new ones zero. Does nothing if it is that long.
    ///
    /// Only the writer calls this, always with the same `garbage`, where the old array goes.
    pub(crate) fn grow(&self, capacity: u32, garbage: &mut Garbage) {
        let old_capacity = self.capacity.load(Ordering::Relaxed);
        if capacity <= old_capacity {
            return;
        }
        let capacity = rounded::<T>(capacity);
        let layout = layout_of::<T>(capacity);
        let (memory, zero) = garbage.arena.allocate(layout);
        let memory = memory.cast::<T>();
        if !zero {
            let kept = old_capacity as usize * size_of::<T>();
            // SAFETY: the range is the new piece's part behind what is copied below; all-zero bytes are a valid `T`
            // (`Element`).
            unsafe { memory.cast::<u8>().add(kept).write_bytes(0, layout.size() - kept) };
        }
        let old = self.start.load(Ordering::Relaxed);
        for at in 0..old_capacity as usize {
            // SAFETY: `at` is inside both arrays; the new one is not shared yet.
            unsafe { memory.add(at).write((*old.add(at)).relocate()) };
        }
        self.start.store(memory, Ordering::SeqCst);
        self.capacity.store(capacity, Ordering::Release);
        if old_capacity > 0 {
            garbage.new.push(Piece {
                memory: old.cast::<u8>(),
                layout: layout_of::<T>(old_capacity),
            });
        }
    }
}

/// The number of elements that fill the piece in which so many fit.
fn rounded<T>(capacity: u32) -> u32 {
    let bytes = layout_of::<T>(capacity).size();
    if bytes >= HUGE_PAGE {
        return capacity;
    }
    let (_, units) = class(bytes.div_ceil(UNIT));
    (units * UNIT / size_of::<T>()) as u32
}

fn layout_of<T>(capacity: u32) -> Layout {
    let layout = Layout::array::<T>(capacity as usize).expect("2^32 elements of 64 bytes fit");
    if layout.size() >= HUGE_PAGE {
        layout.align_to(HUGE_PAGE).expect("a power of two")
    } else {
        layout
    }
}

impl<T> Drop for RcuArray<T> {
    fn drop(&mut self) {
        let capacity = *self.capacity.get_mut();
        if capacity == 0 {
            return;
        }
        let start = *self.start.get_mut();
        let layout = layout_of::<T>(capacity);
        // SAFETY: exclusive access; all elements are initialised. A large array has memory of its own, with the layout
        // of `grow`; the others belong to the arena, which outlives them.
        unsafe {
            std::ptr::drop_in_place(std::ptr::slice_from_raw_parts_mut(start, capacity as usize));
            if layout.size() >= HUGE_PAGE {
                pages::free(start.cast::<u8>(), layout);
            }
        }
    }
}

/// The room for `needed` elements of an array that has room for `have`: growth one by one adds a quarter, which keeps
/// both the copying and the spare room small; a large step gets just what it asks for.
pub(crate) fn next_capacity(needed: u32, have: u32) -> u32 {
    if needed > have.saturating_add(have / 4) {
        needed
    } else {
        needed.saturating_add(needed / 4)
    }
}
