//! Small random worlds, and slow but obvious answers to compare with.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its part; a failed step is a failed test"
)]
pub(crate) mod checker;

use pandacore_matching::{
    ALIVE, Announcement, Attributes, Config, Registry, Requirement, Rng, TRUSTED, TeamSpec,
};

#[derive(Clone, Debug)]
pub(crate) struct Agent {
    /// Capabilities, one bit each.
    pub(crate) mask: u32,
    pub(crate) load: u16,
    pub(crate) cost: u16,
    pub(crate) domain: u16,
    pub(crate) usable: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) capabilities: usize,
    pub(crate) agents: Vec<Agent>,
}

pub(crate) fn id(n: usize) -> [u8; 32] {
    let mut id = [0u8; 32];
    id[..8].copy_from_slice(&(n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    id[24..].copy_from_slice(&(n as u64).to_le_bytes());
    id
}

impl World {
    pub(crate) fn random(rng: &mut Rng, agents: std::ops::Range<u32>, capabilities: u32) -> Self {
        let n = agents.start + rng.below(agents.end - agents.start);
        let agents = (0..n)
            .map(|_| {
                let mut mask = 0;
                for _ in 0..=rng.below(4) {
                    // Skewed: low capabilities are common.
                    mask |= 1 << (rng.below(capabilities) * rng.below(capabilities) / capabilities.max(1));
                }
                Agent {
                    mask,
                    load: rng.below(12) as u16,
                    cost: rng.below(20) as u16,
                    domain: rng.below(5) as u16,
                    usable: rng.below(10) > 0,
                }
            })
            .collect();
        Self {
            capabilities: capabilities as usize,
            agents,
        }
    }

    /// The registry of this world; agent `n` gets slot `n`, capability `c` handle `c`.
    pub(crate) fn registry(&self, seed: u64) -> Registry {
        let registry = Registry::new(Config {
            seed,
            ..Config::default()
        });
        for c in 0..self.capabilities {
            assert_eq!(registry.intern(&format!("c{c}")).unwrap() as usize, c);
        }
        for (n, agent) in self.agents.iter().enumerate() {
            let held: Vec<u32> = bits(agent.mask).collect();
            let attributes = Attributes {
                load: agent.load,
                cost: agent.cost,
                concurrency: 1,
                ..Attributes::default()
            };
            let announcement = Announcement {
                id: id(n),
                capabilities: &held,
                version: Some(1),
                domain: agent.domain,
                attributes,
            };
            let placed = registry.announce(&announcement).unwrap();
            assert!(placed.accepted);
            assert_eq!(placed.slot as usize, n);
            if !agent.usable {
                registry
                    .set_flags(placed.slot, if n % 2 == 0 { ALIVE } else { TRUSTED }, false)
                    .unwrap();
            }
        }
        registry
    }

    pub(crate) fn can(&self, agent: usize, capability: u32, spec: &TeamSpec) -> bool {
        let a = &self.agents[agent];
        a.usable && a.mask >> capability & 1 == 1 && spec.exclude.binary_search(&(agent as u32)).is_err()
    }

    pub(crate) fn score(&self, agent: usize) -> u64 {
        u64::from(
            Attributes {
                load: self.agents[agent].load,
                concurrency: 1,
                ..Attributes::default()
            }
            .score(),
        )
    }
}

pub(crate) fn bits(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |b| mask >> b & 1 == 1)
}

/// A request of a few capabilities, tight enough to fail now and then.
pub(crate) fn request(rng: &mut Rng, capabilities: u32, most: u32) -> TeamSpec {
    let mut required: Vec<Requirement> = Vec::new();
    for _ in 0..=rng.below(6) {
        let capability = rng.below(capabilities);
        if required.iter().all(|r| r.any != [capability]) {
            required.push(Requirement {
                any: vec![capability],
                count: 1 + rng.below(most),
            });
        }
    }
    TeamSpec {
        required,
        probes: 16,
        ..TeamSpec::default()
    }
}

/// Most slots that can be served at once, and the least total weight of doing so, by minimum-cost flow on the plain
/// graph: source, requirements, agents, domains, sink.
pub(crate) fn best_dedicated(world: &World, spec: &TeamSpec, weight: impl Fn(usize) -> i64) -> (u32, i64) {
    let (t, n) = (spec.required.len(), world.agents.len());
    let domains = 8;
    let sink = 1 + t + 2 * n + domains;
    let mut graph = Flow::new(sink + 1);
    for (i, r) in spec.required.iter().enumerate() {
        graph.edge(0, 1 + i, i64::from(r.count), 0);
        for a in 0..n {
            if r.any.iter().any(|&c| world.can(a, c, spec)) {
                graph.edge(1 + i, 1 + t + a, 1, 0);
            }
        }
    }
    for a in 0..n {
        graph.edge(1 + t + a, 1 + t + n + a, 1, weight(a));
        match (spec.domain_cap, world.agents[a].domain) {
            (Some(_), d) if d != 0 => graph.edge(1 + t + n + a, 1 + t + 2 * n + d as usize, 1, 0),
            _ => graph.edge(1 + t + n + a, sink, 1, 0),
        }
    }
    if let Some(cap) = spec.domain_cap {
        for d in 0..domains {
            graph.edge(1 + t + 2 * n + d, sink, i64::from(cap), 0);
        }
    }
    let (flow, cost) = graph.run(0, sink);
    (flow as u32, cost)
}

/// Bellman-Ford minimum-cost maximum flow.
pub(crate) struct Flow {
    edges: Vec<(usize, usize, i64, i64)>,
    nodes: usize,
}

impl Flow {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            edges: Vec::new(),
            nodes,
        }
    }

    pub(crate) fn edge(&mut self, from: usize, to: usize, capacity: i64, cost: i64) {
        self.edges.push((from, to, capacity, cost));
        self.edges.push((to, from, 0, -cost));
    }

    pub(crate) fn run(&mut self, source: usize, sink: usize) -> (i64, i64) {
        let (mut flow, mut total) = (0, 0);
        loop {
            let mut distance = vec![i64::MAX; self.nodes];
            let mut by = vec![usize::MAX; self.nodes];
            distance[source] = 0;
            loop {
                let mut changed = false;
                for (e, &(from, to, capacity, cost)) in self.edges.iter().enumerate() {
                    if capacity > 0 && distance[from] != i64::MAX && distance[from] + cost < distance[to] {
                        distance[to] = distance[from] + cost;
                        by[to] = e;
                        changed = true;
                    }
                }
                if !changed {
                    break;
                }
            }
            if distance[sink] == i64::MAX {
                return (flow, total);
            }
            let mut at = sink;
            while at != source {
                let e = by[at];
                self.edges[e].2 -= 1;
                self.edges[e ^ 1].2 += 1;
                at = self.edges[e].0;
            }
            flow += 1;
            total += distance[sink];
        }
    }
}

/// Fewest agents that serve everything, by trying all subsets in order of size; `None` if none does.
pub(crate) fn fewest(world: &World, spec: &TeamSpec) -> Option<usize> {
    let n = world.agents.len();
    assert!(n <= 16);
    let mut best = None;
    for subset in 0u32..1 << n {
        let size = subset.count_ones() as usize;
        if best.is_some_and(|b| size >= b) {
            continue;
        }
        if serves_all(world, spec, &bits(subset).map(|a| a as usize).collect::<Vec<_>>()) {
            best = Some(size);
        }
    }
    best
}

pub(crate) fn serves_all(world: &World, spec: &TeamSpec, members: &[usize]) -> bool {
    let cost: u64 = members.iter().map(|&a| u64::from(world.agents[a].cost)).sum();
    let capped = spec.domain_cap.is_none_or(|cap| {
        (1..8u16).all(|d| members.iter().filter(|&&a| world.agents[a].domain == d).count() as u32 <= cap)
    });
    capped
        && spec.cost_cap.is_none_or(|cap| cost <= cap)
        && spec.must_include.iter().all(|s| members.contains(&(*s as usize)))
        && members
            .iter()
            .all(|&a| world.agents[a].usable && spec.exclude.binary_search(&(a as u32)).is_err())
        && spec.required.iter().all(|r| {
            let have = members
                .iter()
                .filter(|&&a| r.any.iter().any(|&c| world.can(a, c, spec)))
                .count();
            have as u32 >= r.count
        })
}
