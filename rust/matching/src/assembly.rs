//! Teams: what is asked for, what comes back, and the way from one to the other.
//!
//! *Dedicated* teams have different agents for every capability, *consolidated* ones as few agents as possible.
//! A quick path samples a few blocks per capability and takes the least loaded candidates; it answers nearly
//! always. Where it cannot, an exact path decides, so a request is refused only if no valid team exists.
use std::sync::atomic::Ordering;

use crate::cover;
use crate::dedicated;
use crate::error::RegistryError;
use crate::exact::Solver;
use crate::quick::{self, QUICK_COUNT, QUICK_TEAM, Want};
use crate::registry::Registry;
use crate::rng::Rng;
use crate::store::View;

/// The most requirements of one team.
pub const MAX_REQUIREMENTS: usize = 64;
/// The most agents that a team may ask for.
pub const MAX_TEAM: u32 = 65_536;

/// How capabilities are spread over agents.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// Every agent serves one requirement.
    #[default]
    Dedicated,
    /// As few agents as possible; one agent may serve all its capabilities.
    Consolidated,
}

/// How much work goes into a good team. The answer is complete at every quality.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Quality {
    /// Sampled candidates.
    #[default]
    Fast,
    /// Dedicated: least total score. Consolidated: the best of several randomised searches.
    Best,
    /// Dedicated: as `Best`. Consolidated: exact search with a bound on its nodes; the team says if it is optimal.
    Optimal,
}

/// One line of a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Requirement {
    /// Handles of which an agent must hold at least one. Empty: nobody can serve it.
    pub any: Vec<u32>,
    /// Number of agents wanted.
    pub count: u32,
}

/// A request with every name resolved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TeamSpec {
    /// What is needed; at most [`MAX_REQUIREMENTS`] lines.
    pub required: Vec<Requirement>,
    /// How capabilities are spread over agents.
    pub mode: Mode,
    /// How much work goes into a good team.
    pub quality: Quality,
    /// Candidates looked at per capability: 8, 16 or 32.
    pub probes: u32,
    /// At most so many members of one domain other than 0.
    pub domain_cap: Option<u32>,
    /// Upper bound of the sum of the members' costs.
    pub cost_cap: Option<u64>,
    /// Tags every member must hold.
    pub tags: Vec<u32>,
    /// Slots that must not be chosen, ascending.
    pub exclude: Vec<u32>,
    /// Slots that must be chosen, ascending.
    pub must_include: Vec<u32>,
}

impl TeamSpec {
    /// Agents wanted in total.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.required.iter().map(|r| r.count).sum()
    }

    pub(crate) fn constrained(&self) -> bool {
        self.domain_cap.is_some() || self.cost_cap.is_some() || !self.must_include.is_empty()
    }
}

/// One chosen agent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pick {
    /// Its slot.
    pub slot: u32,
    /// Its score when it was chosen.
    pub score: u16,
    /// The requirements it serves, one bit each.
    pub serves: u64,
}

/// Why a team is not complete.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shortage {
    /// Not enough agents, or not enough domains.
    Agents,
    /// Every complete team costs more than the cap.
    Cost,
    /// Agents that must be included cannot all serve at the same time.
    MustInclude,
}

/// Proof that no complete team exists: these requirements together want more agents than can serve any of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hall {
    /// Requirements, one bit each.
    pub requirements: u64,
    /// Agents they want together.
    pub wanted: u32,
    /// Agents that can serve them together.
    pub available: u32,
}

/// What an assembly found. An incomplete team is as large as possible.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Team {
    /// Chosen agents. Dedicated: one requirement each, in the order of the requirements.
    pub picks: Vec<Pick>,
    /// Agents missing per requirement; empty when complete.
    pub missing: Vec<(u32, u32)>,
    /// Why it is not complete.
    pub shortage: Option<Shortage>,
    /// Proof for a shortage of agents.
    pub hall: Option<Hall>,
    /// No team has fewer members (consolidated), or than wanted (dedicated).
    pub lower_bound: u32,
    /// Whether no better team exists for sure: fewest members, or least total score.
    pub optimal: bool,
}

impl Team {
    /// Whether every requirement is met.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.shortage.is_none()
    }

    pub(crate) fn clear(&mut self) {
        self.picks.clear();
        self.missing.clear();
        self.shortage = None;
        self.hall = None;
        self.lower_bound = 0;
        self.optimal = false;
    }
}

/// Agents that may not be chosen in this call, beyond what the pools already leave out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Filter<'f> {
    /// Bit per slot; slots beyond its end are out.
    pub(crate) trusted: Option<&'f [u64]>,
    pub(crate) exclude: &'f [u32],
    pub(crate) tags: &'f [u32],
}

impl Filter<'_> {
    pub(crate) fn passes_all(&self) -> bool {
        self.trusted.is_none() && self.exclude.is_empty() && self.tags.is_empty()
    }

    #[inline]
    pub(crate) fn accepts(&self, view: &View<'_>, slot: u32) -> bool {
        if let Some(bitmap) = self.trusted
            && bitmap
                .get(slot as usize >> 6)
                .is_none_or(|word| word >> (slot & 63) & 1 == 0)
        {
            return false;
        }
        if self.exclude.binary_search(&slot).is_ok() {
            return false;
        }
        if !self.tags.is_empty() {
            let mut found = 0;
            view.capabilities(slot, |c| found += usize::from(self.tags.contains(&c)));
            return found == self.tags.len();
        }
        true
    }
}

/// Reusable memory of one thread's assemblies.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) solver: Solver,
    pub(crate) cover: cover::Memory,
    /// Answers of the quick path, of the exact path, and retries after an overlapping change.
    pub counters: [u64; 3],
}

/// A specification with what can be worked out beforehand.
#[derive(Clone, Debug)]
pub struct Prepared {
    spec: TeamSpec,
    plain: Option<(Vec<Want>, u32)>,
}

impl From<TeamSpec> for Prepared {
    fn from(spec: TeamSpec) -> Self {
        Self {
            plain: quick::plain(&spec),
            spec,
        }
    }
}

impl Prepared {
    /// The specification.
    #[must_use]
    pub fn spec(&self) -> &TeamSpec {
        &self.spec
    }
}

/// A specification and its plain form, if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'r> {
    pub(crate) spec: &'r TeamSpec,
    pub(crate) plain: Option<(&'r [Want], u32)>,
}

impl Registry {
    /// Assembles a team. Equal registry, specification and seed give an equal team.
    ///
    /// `trusted` replaces this registry's own verdicts by a stricter one: bit `slot & 63` of word `slot >> 6`.
    pub fn assemble(
        &self,
        spec: &TeamSpec,
        trusted: Option<&[u64]>,
        seed: u64,
        scratch: &mut Scratch,
        team: &mut Team,
    ) {
        let plain = quick::plain(spec);
        let request = Request {
            spec,
            plain: plain.as_ref().map(|(wants, total)| (&wants[..], *total)),
        };
        self.assemble_request(request, trusted, seed, scratch, team);
    }

    /// As [`assemble`](Self::assemble), for a specification that is used often.
    #[inline]
    pub fn assemble_prepared(
        &self,
        prepared: &Prepared,
        trusted: Option<&[u64]>,
        seed: u64,
        scratch: &mut Scratch,
        team: &mut Team,
    ) {
        let plain = prepared.plain.as_ref().map(|(wants, total)| (&wants[..], *total));
        self.assemble_request(
            Request {
                spec: &prepared.spec,
                plain,
            },
            trusted,
            seed,
            scratch,
            team,
        );
    }

    fn assemble_request(
        &self,
        request: Request<'_>,
        trusted: Option<&[u64]>,
        seed: u64,
        scratch: &mut Scratch,
        team: &mut Team,
    ) {
        let spec = request.spec;
        let mut rng = Rng::new(seed);
        let filter = Filter {
            trusted,
            exclude: &spec.exclude,
            tags: &spec.tags,
        };
        {
            let view = self.view();
            for _ in 0..4 {
                let sequence = view.sequence();
                team.clear();
                run(&view, &request, &filter, &mut rng, scratch, team);
                if view.unchanged(sequence) {
                    return;
                }
                scratch.counters[2] += 1;
                if team.complete() && !spec.constrained() && valid(&view, spec, team) {
                    return;
                }
            }
        }
        // Membership changed during every attempt. Hold the writer off for one more: a refusal must be true of
        // one state of the registry, and the batch calls give up the lock every few hundred changes.
        let _work = self.work();
        team.clear();
        run(&self.view(), &request, &filter, &mut rng, scratch, team);
    }
}

#[inline]
fn run(
    view: &View<'_>,
    request: &Request<'_>,
    filter: &Filter<'_>,
    rng: &mut Rng,
    scratch: &mut Scratch,
    team: &mut Team,
) {
    match request.spec.mode {
        Mode::Dedicated => dedicated::assemble(view, request, filter, rng, scratch, team),
        Mode::Consolidated => cover::assemble(view, request.spec, filter, rng, scratch, team),
    }
}

/// Checks each pick on its own line: eligible, and holding what it serves.
fn valid(view: &View<'_>, spec: &TeamSpec, team: &Team) -> bool {
    team.picks.iter().all(|pick| {
        let mut serves = pick.serves;
        while serves != 0 {
            let i = serves.trailing_zeros() as usize;
            serves &= serves - 1;
            if !view.holds(pick.slot, &spec.required[i].any) {
                return false;
            }
        }
        true
    })
}

/// Calls `found` with the entries of a requirement's pools that may be chosen, from a random place on, each agent
/// once for a single capability and possibly more often for several. Stops when `found` returns false.
pub(crate) fn scan(
    view: &View<'_>,
    requirement: &Requirement,
    filter: &Filter<'_>,
    rng: &mut Rng,
    mut found: impl FnMut(u64) -> bool,
) {
    let open = filter.passes_all();
    for &capability in &requirement.any {
        let pool = view.pool(capability);
        let live = pool.live();
        let blocks = view.blocks(pool.head);
        let start = rng.below(live);
        for k in 0..live {
            let at = if k < live - start {
                start + k
            } else {
                k - (live - start)
            };
            let Some(block) = blocks.get(at as usize / 8) else {
                break;
            };
            let entry = block.0[at as usize % 8].load(Ordering::Relaxed);
            if (open || filter.accepts(view, entry as u32)) && !found(entry) {
                return;
            }
        }
    }
}

/// Fills a row of a batch where no agent was found.
pub const NO_AGENT: u32 = u32::MAX;

impl Registry {
    /// Assembles one dedicated team per row of `width` capability handles, `count` agents for each. Returns the slots,
    /// `width * count` a row in the order of the row's capabilities ([`NO_AGENT`] where one is missing), and whether
    /// each team is complete.
    ///
    /// # Errors
    /// Rows that are too wide or teams that are too large.
    pub fn assemble_many(
        &self,
        rows: &[u32],
        width: usize,
        count: u32,
        probes: u32,
        seed: u64,
        scratch: &mut Scratch,
    ) -> Result<(Vec<u32>, Vec<bool>), RegistryError> {
        if width > MAX_REQUIREMENTS {
            let (value, max) = (width as u64, MAX_REQUIREMENTS as u64);
            return Err(RegistryError::OutOfRange {
                what: "the number of capabilities",
                value,
                max,
            });
        }
        if width as u64 * u64::from(count) > u64::from(MAX_TEAM) {
            let value = width as u64 * u64::from(count);
            return Err(RegistryError::OutOfRange {
                what: "the team size",
                value,
                max: u64::from(MAX_TEAM),
            });
        }
        if width == 0 || count == 0 {
            let teams = rows.len().checked_div(width).unwrap_or(0);
            return Ok((Vec::new(), vec![true; teams]));
        }
        let teams = rows.len() / width;
        let size = width * count as usize;
        let mut slots = vec![NO_AGENT; teams * size];
        let mut complete = vec![false; teams];
        let mut batch = BatchRun {
            registry: self,
            width,
            count,
            probes,
            seeds: Rng::new(seed),
            scratch,
        };
        match (width <= 16, probes) {
            (true, 9..=16) => batch.run::<2, 16>(rows, &mut slots, &mut complete),
            (_, 0..=8) => batch.run::<1, MAX_REQUIREMENTS>(rows, &mut slots, &mut complete),
            (_, 9..=16) => batch.run::<2, MAX_REQUIREMENTS>(rows, &mut slots, &mut complete),
            _ => batch.run::<4, MAX_REQUIREMENTS>(rows, &mut slots, &mut complete),
        }
        Ok((slots, complete))
    }
}

struct BatchRun<'b> {
    registry: &'b Registry,
    width: usize,
    count: u32,
    probes: u32,
    seeds: Rng,
    scratch: &'b mut Scratch,
}

impl BatchRun<'_> {
    /// While one team is decided, the blocks of the next ones and the headers of those after are on their way.
    fn run<const B: usize, const T: usize>(
        &mut self,
        rows: &[u32],
        slots: &mut [u32],
        complete: &mut [bool],
    ) {
        const AHEAD: usize = 3;
        let (width, count) = (self.width, self.count);
        let total = width as u32 * count;
        let size = total as usize;
        let quick = total <= QUICK_TEAM && count <= QUICK_COUNT;
        let mut team = Team::default();
        let wants_of = |k: usize, wants: &mut [Want; T]| {
            for (want, &capability) in wants.iter_mut().zip(&rows[k * width..(k + 1) * width]) {
                *want = Want { capability, count };
            }
        };
        let teams = complete.len();
        let mut wants = [[Want::default(); T]; AHEAD + 1];
        // Groups keep read sections short, so that outgrown arrays can be freed.
        for group in (0..teams).step_by(1024) {
            let end = teams.min(group + 1024);
            let view = self.registry.view();
            let mut waiting: std::collections::VecDeque<(u64, u64, Option<quick::Sample<B, T>>)> =
                std::collections::VecDeque::with_capacity(AHEAD + 1);
            for k in group..end + AHEAD {
                if quick && k + 2 < end {
                    let heads = view.heads();
                    for &capability in &rows[(k + 2) * width..(k + 3) * width] {
                        crate::hint::prefetch(heads.as_ptr().wrapping_add(capability as usize));
                    }
                }
                if k < end {
                    let seed = self.seeds.next_u64();
                    wants_of(k, &mut wants[k % (AHEAD + 1)]);
                    let sequence = view.sequence();
                    let sample = if quick {
                        quick::draw::<B, T>(
                            &view,
                            view.heads(),
                            &wants[k % (AHEAD + 1)][..width],
                            Rng::new(seed),
                        )
                    } else {
                        None
                    };
                    waiting.push_back((seed, sequence, sample));
                }
                if k < group + AHEAD {
                    continue;
                }
                let at = k - AHEAD;
                let Some((seed, sequence, sample)) = waiting.pop_front() else {
                    break;
                };
                let wants = &wants[at % (AHEAD + 1)][..width];
                let out = &mut slots[at * size..(at + 1) * size];
                let done = sample.is_some_and(|sample| {
                    quick::choose(
                        &view,
                        view.heads(),
                        wants,
                        total,
                        sample,
                        |_| true,
                        &mut team.picks,
                    )
                });
                if done && view.unchanged(sequence) {
                    self.scratch.counters[0] += 1;
                    for (place, pick) in out.iter_mut().zip(&team.picks) {
                        *place = pick.slot;
                    }
                    complete[at] = true;
                } else {
                    complete[at] = self.alone(wants, seed, &mut team, out);
                }
            }
        }
    }

    /// One team of the batch without the pipeline.
    #[cold]
    fn alone(&mut self, wants: &[Want], seed: u64, team: &mut Team, out: &mut [u32]) -> bool {
        let required = wants
            .iter()
            .map(|w| Requirement {
                any: vec![w.capability],
                count: w.count,
            })
            .collect();
        let spec = TeamSpec {
            required,
            probes: self.probes,
            ..TeamSpec::default()
        };
        self.registry.assemble(&spec, None, seed, self.scratch, team);
        let mut filled = [0usize; MAX_REQUIREMENTS];
        for pick in &team.picks {
            let i = pick.serves.trailing_zeros() as usize;
            out[i * self.count as usize + filled[i]] = pick.slot;
            filled[i] += 1;
        }
        team.complete()
    }
}
