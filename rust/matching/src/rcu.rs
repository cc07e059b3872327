//! Growable arrays that one writer replaces while readers go on reading the old copy.
//!
//! A reader enters a section ([`Domain::enter`]) before it loads a pointer and holds the [`Guard`] as long as it
//! uses what it loaded. The writer swaps the pointer first and frees the old array only after it has seen every
//! reader counter at zero since the swap. Entering is two uncontended atomic additions and never waits.
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

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

/// Arrays that are no longer reachable but may still be read.
#[derive(Debug, Default)]
pub(crate) struct Garbage {
    /// Swapped out before the current observation began.
    old: Vec<Retired>,
    /// Swapped out since.
    new: Vec<Retired>,
    seen: [bool; 2],
}

#[derive(Debug)]
struct Retired {
    memory: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is plain bytes that only this list will touch again, to free it.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: `memory` came from `alloc` with this layout and is freed once, here.
        unsafe { dealloc(self.memory, self.layout) }
    }
}

impl Garbage {
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
            self.old.clear();
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

    /// The same array under a second header. The first one must never be used or dropped again.
    pub(crate) fn duplicate(&self) -> Self {
        Self {
            start: AtomicPtr::new(self.start.load(Ordering::SeqCst)),
            capacity: AtomicU32::new(self.capacity.load(Ordering::Relaxed)),
        }
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Replaces the array by one of `capacity` elements, the new ones zero. Does nothing if it is that long.
    ///
    /// Only the writer calls this; the old array goes to `garbage`.
    pub(crate) fn grow(&self, capacity: u32, garbage: &mut Garbage) {
        let old_capacity = self.capacity.load(Ordering::Relaxed);
        if capacity <= old_capacity {
            return;
        }
        let layout = layout_of::<T>(capacity);
        // SAFETY: the layout is not empty: `capacity` is at least 1 and no element type is zero-sized.
        let memory = unsafe { alloc(layout) }.cast::<T>();
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        // Before the first touch: the kernel decides on the page size when it maps the page.
        crate::hint::huge_pages(memory.cast::<u8>(), layout.size());
        // SAFETY: the range was just allocated; all-zero bytes are a valid `T` (`Element`).
        unsafe { memory.cast::<u8>().write_bytes(0, layout.size()) };
        let old = self.start.load(Ordering::Relaxed);
        for at in 0..old_capacity as usize {
            // SAFETY: `at` is inside both arrays; the new one is not shared yet.
            unsafe { memory.add(at).write((*old.add(at)).relocate()) };
        }
        self.start.store(memory, Ordering::SeqCst);
        self.capacity.store(capacity, Ordering::Release);
        if old_capacity > 0 {
            garbage.new.push(Retired {
                memory: old.cast::<u8>(),
                layout: layout_of::<T>(old_capacity),
            });
        }
    }
}

fn layout_of<T>(capacity: u32) -> Layout {
    let layout = Layout::array::<T>(capacity as usize).expect("2^32 elements of 64 bytes fit");
    if layout.size() >= crate::hint::HUGE_PAGE {
        layout.align_to(crate::hint::HUGE_PAGE).expect("a power of two")
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
        // SAFETY: exclusive access; all elements are initialised, and the layout is the one of `grow`.
        unsafe {
            std::ptr::drop_in_place(std::ptr::slice_from_raw_parts_mut(start, capacity as usize));
            dealloc(start.cast::<u8>(), layout);
        }
    }
}

/// Adding to a capacity in steps of a quarter keeps both the copying and the spare room small.
pub(crate) fn next_capacity(needed: u32) -> u32 {
    needed.saturating_add(needed / 4).max(1)
}
