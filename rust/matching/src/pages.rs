//! Memory of large arrays, straight from the kernel: what is given back leaves the process, and what was never touched
//! takes no room.
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

/// Bytes from which on memory is mapped.
#[cfg(target_os = "linux")]
const MAPPED_FROM: usize = if cfg!(miri) { usize::MAX } else { 64 << 10 };

/// Zero bytes for a layout that is not empty. Large ones are mapped: they take no room before they are touched, so that
/// they can still get huge pages. (An allocator may clear memory that it has used before, all of it.)
pub(crate) fn zeroed(layout: Layout) -> *mut u8 {
    #[cfg(target_os = "linux")]
    if layout.size() >= MAPPED_FROM {
        let size = mapped(layout);
        let room = size + layout.align();
        // SAFETY: a new private mapping; the parts before and behind the aligned range are given back.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let start = libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            if start == libc::MAP_FAILED {
                handle_alloc_error(layout);
            }
            let start = start.cast::<u8>();
            let before = start.align_offset(layout.align());
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            libc::munmap(start.add(before + size).cast(), room - before - size);
            return start.add(before);
        }
    }
    // SAFETY: the layout is not empty.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        handle_alloc_error(layout);
    }
    memory
}

/// Bytes of a mapping: whole pages, whatever size they have.
#[cfg(target_os = "linux")]
fn mapped(layout: Layout) -> usize {
    layout.size().next_multiple_of(65_536)
}

/// # Safety
/// `memory` came from [`zeroed`] with this layout and is not used any more.
pub(crate) unsafe fn free(memory: *mut u8, layout: Layout) {
    #[cfg(target_os = "linux")]
    if layout.size() >= MAPPED_FROM {
        // SAFETY: the range was mapped by `zeroed`.
        unsafe { libc::munmap(memory.cast(), mapped(layout)) };
        return;
    }
    // SAFETY: it came from `alloc_zeroed` with this layout.
    unsafe { dealloc(memory, layout) }
}
