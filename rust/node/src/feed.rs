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

struct Owned {
    id: [u8; 32],
    capabilities: Vec<u32>,
    load: u16,
    cost: u16,
    concurrency: u8,
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
                let mut present = Vec::new();
                let mut gone = Vec::new();
                handle.read(|node| {
                    for change in chunk
                        .iter()
                        .filter(|change| change.kind == RecordKind::ANNOUNCEMENT)
                    {
                        match node.replica().agent(node.collective(), &change.key) {
                            Some(agent) => present.push(self.own(registry, &agent, &mut fed)),
                            None => gone.push(change.key),
                        }
                    }
                });
                self.write(registry, present.into_iter().flatten().collect(), &mut fed)?;
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
        loop {
            let mut rows = Vec::new();
            from = handle.read(|node| {
                let (agents, next) = node.replica().page(node.collective(), from, CHUNK);
                rows.extend(agents.iter().filter_map(|agent| self.own(registry, agent, fed)));
                next
            });
            self.write(registry, rows, fed)?;
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

    fn own(&mut self, registry: &Registry, agent: &Agent<'_>, fed: &mut Fed) -> Option<Owned> {
        let stated: &Announcement<'_> = &agent.announcement;
        let mut capabilities = Vec::new();
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
                        return None;
                    };
                    if self.handles.len() >= MAX_NAMES {
                        self.handles.clear();
                    }
                    self.handles.insert(name.to_owned(), handle);
                    handle
                }
            };
            if !capabilities.contains(&handle) {
                capabilities.push(handle);
            }
        }
        Some(Owned {
            id: agent.id,
            capabilities,
            load: stated.load,
            cost: stated.cost,
            concurrency: stated.concurrency.clamp(1, 255) as u8,
        })
    }

    fn write(&self, registry: &Registry, rows: Vec<Owned>, fed: &mut Fed) -> Result<(), RegistryError> {
        let mut rows = rows;
        fed.announced += rows.len();
        if rows.len() < 16 {
            for row in rows {
                let attributes = Attributes {
                    load: row.load,
                    cost: row.cost,
                    concurrency: row.concurrency,
                    ..Attributes::default()
                };
                let announcement = Row {
                    id: row.id,
                    capabilities: &row.capabilities,
                    version: None,
                    domain: 0,
                    attributes,
                };
                registry.announce(&announcement)?;
            }
            return Ok(());
        }
        rows.sort_unstable_by_key(|row| row.id);
        rows.dedup_by_key(|row| row.id);
        let ids: Vec<[u8; 32]> = rows.iter().map(|row| row.id).collect();
        let mut offsets = vec![0i64];
        let mut capabilities = Vec::new();
        for row in &rows {
            capabilities.extend_from_slice(&row.capabilities);
            offsets.push(capabilities.len() as i64);
        }
        let loads: Vec<u16> = rows.iter().map(|row| row.load).collect();
        let costs: Vec<u16> = rows.iter().map(|row| row.cost).collect();
        let concurrency: Vec<u8> = rows.iter().map(|row| row.concurrency).collect();
        registry.announce_many(&Batch {
            ids: &ids,
            offsets: &offsets,
            capabilities: &capabilities,
            loads: Some(&loads),
            costs: Some(&costs),
            concurrency: Some(&concurrency),
            ..Batch::default()
        })?;
        Ok(())
    }
}
