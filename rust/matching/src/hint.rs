//! Hints to the processor and the kernel. They change speed, never results.

/// Size of a huge page on the platforms that have them, in bytes.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Asks for the cache line at `place`.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it neither faults nor reads, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast::<i8>());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks the kernel to back a large allocation with huge pages.
pub(crate) fn huge_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_PAGE {
        // SAFETY: the range was just allocated by the caller; the advice changes no contents, and a refusal
        // is harmless.
        unsafe {
            libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}
