//! Every interleaving of a reader and the writer of the semantic index's grace periods, tried by a model checker.
//!
//! The module is compiled here a second time, with the checker's atomics in place of the real ones.
use loom::sync::Arc;
use loom::thread;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering, fence};

    /// Fewer than the real number keeps the interleavings few.
    pub(super) const STRIPES: usize = 2;
}

#[path = "../src/broker/epoch.rs"]
mod epoch;

use epoch::Epochs;
use sync::{AtomicUsize, Ordering};

struct World {
    epochs: Epochs,
    /// 1 while the slot is linked, 0 once it is not.
    link: AtomicUsize,
    /// What the slot holds: 7, and 8 after it was used again.
    slot: AtomicUsize,
}

fn world() -> Arc<World> {
    Arc::new(World {
        epochs: Epochs::default(),
        link: AtomicUsize::new(1),
        slot: AtomicUsize::new(7),
    })
}

#[test]
fn a_slot_is_not_used_again_under_a_reader_that_reached_it() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = world();
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let _guard = world.epochs.enter(0);
                if world.link.load(Ordering::Acquire) == 1 {
                    assert_eq!(
                        world.slot.load(Ordering::Relaxed),
                        7,
                        "the slot changed under its reader"
                    );
                }
            })
        };
        world.link.store(0, Ordering::Release);
        let mut grace = world.epochs.begin();
        for _ in 0..2 {
            if world.epochs.over(&mut grace) {
                world.slot.store(8, Ordering::Relaxed);
                break;
            }
            thread::yield_now();
        }
        reader.join().expect("the reader found what it linked to");
        // With no reader left the period ends at the next look.
        assert!(world.epochs.over(&mut grace));
    });
}
