//! Several viewers of one registry: each has its own verdict on every agent.
//!
//! The registry's own `TRUSTED` flag says whom anybody on this host may use; a viewer narrows that down to whom it
//! trusts itself. Its verdicts are bits by slot, so they belong to the agents that had the slots when they were given:
//! a slot that went to another agent since is not trusted.
use std::sync::atomic::Ordering;

use crate::assembly::{Prepared, Scratch, Team};
use crate::error::RegistryError;
use crate::registry::Registry;

/// One viewer's verdicts. Use it with the registry it was made for.
#[derive(Clone, Debug)]
pub struct Viewer {
    trusted: Vec<u64>,
    /// The registry's reuse counter when the bits were last put right.
    reuses: u32,
}

impl Viewer {
    /// A viewer that trusts nobody yet.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self {
            trusted: Vec::new(),
            reuses: registry.reuses(),
        }
    }

    /// Whether the viewer trusts the agent in a slot.
    pub fn trusts(&mut self, registry: &Registry, slot: u32) -> bool {
        self.forget_reused(registry);
        self.trusted
            .get(slot as usize >> 6)
            .is_some_and(|word| word >> (slot & 63) & 1 == 1)
    }

    /// Number of slots whose agent the viewer trusts.
    pub fn count(&mut self, registry: &Registry) -> u32 {
        self.forget_reused(registry);
        self.trusted.iter().map(|word| word.count_ones()).sum()
    }

    /// The registry's [`reuses`](Registry::reuses) when the verdicts were last put right.
    #[must_use]
    pub fn reuses(&self) -> u32 {
        self.reuses
    }

    /// Gives verdicts on agents; the later of two on one slot holds.
    ///
    /// # Errors
    /// Different lengths, or a slot without an agent: then nothing changes.
    pub fn set(&mut self, registry: &Registry, slots: &[u32], trusted: &[bool]) -> Result<(), RegistryError> {
        if slots.len() != trusted.len() {
            return Err(RegistryError::Shape(format!(
                "{} slots but {} verdicts",
                slots.len(),
                trusted.len()
            )));
        }
        self.forget_reused(registry);
        registry.check_all(slots)?;
        let words = registry.slots().div_ceil(64) as usize;
        if self.trusted.len() < words {
            self.trusted.resize(words, 0);
        }
        for (&slot, &on) in slots.iter().zip(trusted) {
            let word = &mut self.trusted[slot as usize >> 6];
            *word = *word & !(1 << (slot & 63)) | u64::from(on) << (slot & 63);
        }
        Ok(())
    }

    /// Assembles a team of agents that this viewer trusts. Equal verdicts, registry, specification and seed give an
    /// equal team.
    pub fn assemble(
        &mut self,
        registry: &Registry,
        prepared: &Prepared,
        seed: u64,
        scratch: &mut Scratch,
        team: &mut Team,
    ) {
        loop {
            self.forget_reused(registry);
            registry.assemble_prepared(prepared, Some(&self.trusted), seed, scratch, team);
            // A slot may have changed hands meanwhile, and with it the meaning of its bit.
            if registry.reuses() == self.reuses {
                return;
            }
        }
    }

    fn forget_reused(&mut self, registry: &Registry) {
        let reuses = registry.reuses();
        if reuses == self.reuses {
            return;
        }
        let view = registry.view();
        let born = view.born();
        for (k, word) in self.trusted.iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let since = born
                    .get(k * 64 + bit as usize)
                    .map_or(0, |b| b.load(Ordering::Relaxed));
                if since > self.reuses {
                    *word &= !(1 << bit);
                }
            }
        }
        self.reuses = reuses;
    }
}
