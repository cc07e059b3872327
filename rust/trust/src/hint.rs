//! Hints to the processor and the kernel. They change speed, never results.

/// Asks for the cache line of `slice[at]`; nothing happens beyond the end.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], at: usize) {
    let place = slice.as_ptr().wrapping_add(at);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it neither faults nor reads, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// A vector of `len` times `value`, on huge pages if it is large: searches touch it all over, and with small
/// pages most touches would miss the translation buffer too.
pub(crate) fn spread<T: Clone>(len: usize, value: T) -> Vec<T> {
    let mut made = Vec::<T>::with_capacity(len);
    ask_for_huge_pages(&mut made);
    made.resize(len, value);
    made
}

/// Asks for huge pages where a large vector lies, used or not.
pub(crate) fn ask_for_huge_pages<T>(vector: &mut Vec<T>) {
    #[cfg(target_os = "linux")]
    if vector.capacity() * size_of::<T>() >= HUGE_PAGE {
        // SAFETY: the range belongs to the vector; the advice changes no contents, and a refusal is harmless.
        unsafe {
            // The kernel wants whole pages: the first and last partial ones are left out.
            let start = vector.as_mut_ptr() as usize;
            let (first, end) = (
                start.next_multiple_of(PAGE),
                (start + vector.capacity() * size_of::<T>()) & !(PAGE - 1),
            );
            libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = vector;
}

#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;
#[cfg(target_os = "linux")]
const PAGE: usize = 4096;
