//! The atomics of `epoch`, in one place so that a model checker can put its own in their stead.
pub(super) use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// Counters are striped so that readers on different cores do not share a line.
pub(super) const STRIPES: usize = 16;
