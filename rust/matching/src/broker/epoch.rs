//! When may memory that readers could still look at be used again?
//!
//! A reader holds a [`Guard`] while it works. The writer first makes a thing unreachable, then asks for a
//! [`Grace`] period; once that is over, every reader that could have reached the thing has left. Nobody waits:
//! readers count themselves in with two uncontended additions, and the writer looks at the counters whenever it
//! passes by.
use super::sync::{AtomicUsize, Ordering, STRIPES, fence};

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(AtomicUsize);

/// Readers of one index, counted in two generations so that the older can drain while new ones come.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    generation: AtomicUsize,
    readers: [[Stripe; STRIPES]; 2],
}

/// Proof of being inside a read section.
#[derive(Debug)]
pub(super) struct Guard<'e>(&'e AtomicUsize);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // Release: what the reader did happens before the writer that sees the count fall.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A wait for the readers that were inside when it began.
#[derive(Debug)]
pub(super) struct Grace {
    seen: [bool; 2],
}

impl Epochs {
    /// Starts a read section. `stripe` is any number that differs between threads.
    pub(super) fn enter(&self, stripe: usize) -> Guard<'_> {
        let generation = self.generation.load(Ordering::Relaxed) & 1;
        let counter = &self.readers[generation][stripe % STRIPES].0;
        counter.fetch_add(1, Ordering::SeqCst);
        // With the fence of `begin`: either the writer's look at the counters sees this reader, or this reader
        // sees all that the writer made unreachable before it looked.
        fence(Ordering::SeqCst);
        Guard(counter)
    }

    /// Starts a grace period for what the caller has just made unreachable.
    pub(super) fn begin(&self) -> Grace {
        fence(Ordering::SeqCst);
        Grace { seen: [false; 2] }
    }

    fn drained(&self, generation: usize) -> bool {
        self.readers[generation]
            .iter()
            .all(|stripe| stripe.0.load(Ordering::SeqCst) == 0)
    }

    /// Whether the grace period is over. Only the writer calls this; it never waits.
    ///
    /// A reader of the old state counted itself in one of the two generations before the period began. Once each
    /// generation has been seen empty since then, it has left. New readers are steered to the other generation,
    /// so that each gets its turn to drain.
    pub(super) fn over(&self, grace: &mut Grace) -> bool {
        let current = self.generation.load(Ordering::Relaxed) & 1;
        for generation in [current ^ 1, current] {
            grace.seen[generation] = grace.seen[generation] || self.drained(generation);
        }
        if grace.seen == [true; 2] {
            return true;
        }
        if grace.seen[current ^ 1] {
            self.generation.store(current ^ 1, Ordering::SeqCst);
        }
        false
    }
}
