//! Brings a registry up to date with a node's replica.
use std::collections::BTreeMap;

use pandacore_gossip::{Agent, Announcement, HostId, RecordKind};
use pandacore_matching::{Announcement as Row, Attributes, Batch, Registry, RegistryError};

use crate::Handle;

/// Agents read under one hold of the node's lock.
const CHUNK: usize = 512;
/// Capability names remembered with their handles.
const MAX_NAMES: usize = 1 << 16;

/// How far a registry has been fed. The registry belongs to the feed: agents that no live host announces are
/// withdrawn from it.
#[derive(Debug, Default)]
pub struct Feed {
    seen: Option<u64>,
    handles: BTreeMap<String, u32>,
}

/// What a call changed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fed {
    /// Agents announced or announced anew.
    pub announced: usize,
    /// Agents withdrawn.
    pub withdrawn: usize,
    /// Agents that the registry refused, for a malformed capability name.
    pub refused: usize,
}

/// Agents as the registry takes them: column by column, without an allocation of their own.
#[derive(Default)]
struct Rows {
    ids: Vec<[u8; 32]>,
    offsets: Vec<i64>,
    capabilities: Vec<u32>,
    loads: Vec<u16>,
    costs: Vec<u16>,
    concurrency: Vec<u8>,
}

impl Rows {
    fn with_capacity(rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self {
            ids: Vec::with_capacity(rows),
            offsets,
            capabilities: Vec::with_capacity(2 * rows),
            loads: Vec::with_capacity(rows),
            costs: Vec::with_capacity(rows),
            concurrency: Vec::with_capacity(rows),
        }
    }

    fn capabilities(&self, row: usize) -> &[u32] {
        &self.capabilities[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    fn take(&mut self, from: &Self, row: usize) {
        self.ids.push(from.ids[row]);
        self.capabilities.extend_from_slice(from.capabilities(row));
        self.offsets.push(self.capabilities.len() as i64);
        self.loads.push(from.loads[row]);
        self.costs.push(from.costs[row]);
        self.concurrency.push(from.concurrency[row]);
    }

    /// Each agent once: one that moved to another host while it was read may have been met twice.
    fn distinct(self) -> Self {
        let mut order: Vec<u32> = (0..self.ids.len() as u32).collect();
        order.sort_unstable_by_key(|&row| (self.ids[row as usize], row));
        let last = |pair: &[u32]| self.ids[pair[0] as usize] != self.ids[pair[1] as usize];
        if order.windows(2).all(last) {
            return self;
        }
        let mut distinct = Self::with_capacity(order.len());
        for (at, &row) in order.iter().enumerate() {
            if order[at..].len() == 1 || last(&order[at..at + 2]) {
                distinct.take(&self, row as usize);
            }
        }
        distinct
    }
}

fn remove(registry: &Registry, id: &[u8; 32]) -> Result<bool, RegistryError> {
    // An agent may come and go between two calls: the registry then never saw it.
    if registry.slot_of(id).is_none() {
        Ok(false)
    } else {
        registry.withdraw(id, None)
    }
}

impl Feed {
    /// Applies what changed since the last call.
    ///
    /// # Errors
    /// [`RegistryError::Full`] when the registry takes no more agents.
    pub fn apply(&mut self, handle: &Handle, registry: &Registry) -> Result<Fed, RegistryError> {
        let mut fed = Fed::default();
        let delta = handle.read(|node| node.changes(self.seen.unwrap_or(0)));
        if self.seen.is_none() || delta.reset {
            self.read_all(handle, registry, &mut fed)?;
        } else {
            for chunk in delta.rows.chunks(CHUNK) {
                let mut present = Rows::with_capacity(chunk.len());
                let mut gone = Vec::new();
                handle.read(|node| {
                    for change in chunk
                        .iter()
                        .filter(|change| change.kind == RecordKind::ANNOUNCEMENT)
                    {
                        match node.replica().agent(node.collective(), &change.key) {
                            Some(agent) => self.own(registry, &agent, &mut present, &mut fed),
                            None => gone.push(change.key),
                        }
                    }
                });
                write(registry, present, &mut fed)?;
                for id in gone {
                    fed.withdrawn += usize::from(remove(registry, &id)?);
                }
            }
        }
        self.seen = Some(delta.version);
        Ok(fed)
    }

    fn read_all(&mut self, handle: &Handle, registry: &Registry, fed: &mut Fed) -> Result<(), RegistryError> {
        let mut from: Option<(HostId, u64)> = None;
        // Nobody uses an empty registry yet: it takes all at once, and needs less than half the memory for it.
        let bulk = registry.slots() == 0;
        let expected = match bulk {
            true => handle.read(|node| node.replica().rows()),
            false => CHUNK,
        };
        let mut rows = Rows::with_capacity(expected);
        loop {
            from = handle.read(|node| {
                let (agents, next) = node.replica().page(node.collective(), from, CHUNK);
                for agent in &agents {
                    self.own(registry, agent, &mut rows, fed);
                }
                next
            });
            if !bulk || from.is_none() {
                write(
                    registry,
                    std::mem::replace(&mut rows, Rows::with_capacity(0)),
                    fed,
                )?;
            }
            if from.is_none() {
                break;
            }
        }
        let slots = registry.slots();
        for start in (0..slots).step_by(CHUNK) {
            let ids: Vec<[u8; 32]> = (start..slots.min(start + CHUNK as u32))
                .filter_map(|slot| registry.id_of(slot))
                .collect();
            let gone: Vec<[u8; 32]> = handle.read(|node| {
                ids.into_iter()
                    .filter(|id| node.replica().agent(node.collective(), id).is_none())
                    .collect()
            });
            for id in gone {
                fed.withdrawn += usize::from(remove(registry, &id)?);
            }
        }
        Ok(())
    }

    fn own(&mut self, registry: &Registry, agent: &Agent<'_>, rows: &mut Rows, fed: &mut Fed) {
        let stated: &Announcement<'_> = &agent.announcement;
        let start = rows.capabilities.len();
        for name in stated.capabilities() {
            let handle = match self.handles.get(name) {
                Some(&handle) => handle,
                None => {
                    // '#' marks tags, which only this host may set.
                    let Ok(handle) = registry
                        .intern(name)
                        .and_then(|handle| match name.starts_with('#') {
                            true => Err(RegistryError::UnknownCapability(handle)),
                            false => Ok(handle),
                        })
                    else {
                        fed.refused += 1;
                        rows.capabilities.truncate(start);
                        return;
                    };
                    if self.handles.len() >= MAX_NAMES {
                        self.handles.clear();
                    }
                    self.handles.insert(name.to_owned(), handle);
                    handle
                }
            };
            if !rows.capabilities[start..].contains(&handle) {
                rows.capabilities.push(handle);
            }
        }
        rows.ids.push(agent.id);
        rows.offsets.push(rows.capabilities.len() as i64);
        rows.loads.push(stated.load);
        rows.costs.push(stated.cost);
        rows.concurrency.push(stated.concurrency.clamp(1, 255) as u8);
    }
}

fn write(registry: &Registry, rows: Rows, fed: &mut Fed) -> Result<(), RegistryError> {
    fed.announced += rows.ids.len();
    if rows.ids.len() < 16 {
        for (row, id) in rows.ids.iter().enumerate() {
            let attributes = Attributes {
                load: rows.loads[row],
                cost: rows.costs[row],
                concurrency: rows.concurrency[row],
                ..Attributes::default()
            };
            let announcement = Row {
                id: *id,
                capabilities: rows.capabilities(row),
                version: None,
                domain: 0,
                attributes,
            };
            registry.announce(&announcement)?;
        }
        return Ok(());
    }
    let rows = rows.distinct();
    registry.announce_many(&Batch {
        ids: &rows.ids,
        offsets: &rows.offsets,
        capabilities: &rows.capabilities,
        loads: Some(&rows.loads),
        costs: Some(&rows.costs),
        concurrency: Some(&rows.concurrency),
        ..Batch::default()
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_was_met_twice_counts_as_it_was_met_last() {
        let mut rows = Rows::with_capacity(3);
        for (id, load) in [(7, 1), (3, 2), (7, 5)] {
            rows.ids.push([id; 32]);
            rows.capabilities.extend([u32::from(id), u32::from(load)]);
            rows.offsets.push(rows.capabilities.len() as i64);
            rows.loads.push(load);
            rows.costs.push(0);
            rows.concurrency.push(1);
        }
        let rows = rows.distinct();
        assert_eq!(rows.ids, [[3; 32], [7; 32]]);
        assert_eq!(
            (rows.loads.as_slice(), rows.capabilities(1)),
            (&[2, 5][..], &[7, 5][..])
        );
    }
}
