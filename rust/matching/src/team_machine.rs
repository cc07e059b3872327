//! Assembly and swap as pure functions: `step(state, event) -> (state, effects)`.
//!
//! [`TeamState`] is the side that forms and keeps a team, [`WorkerState`] the side that works in one. Neither reads a
//! clock, sends a message or draws a random number: the caller carries out effects in their order and feeds back what
//! happens, timers included. Messages may be lost, repeated, reordered and late; agents may crash; suspicions may be
//! wrong. `tests/team_machine.rs` exhausts exactly this code under those faults.
//!
//! Fencing: [`Effect::Checkpoint`] comes first in a step's effects and must be stored by compare-and-set on the epoch.
//! If that fails the other effects of the step are dropped and [`Event::Deposed`] is fed. Workers obey only epochs at
//! least as high as the highest they saw.
use std::collections::{BTreeMap, BTreeSet};

/// What a team is for. Equal for all owners of one task.
#[derive(Clone, Debug, Default, Eq, PartialEq, Hash)]
pub struct Plan {
    /// Agents wanted per requirement.
    pub wanted: Vec<u32>,
    /// What is to be done.
    pub subtasks: Vec<Subtask>,
    /// Times a requirement is solicited before it counts as hopeless.
    pub solicitations: u32,
    /// Times a reservation is sent before the agent counts as silent.
    pub reservations: u32,
}

/// One piece of work.
#[derive(Clone, Debug, Default, Eq, PartialEq, Hash)]
pub struct Subtask {
    /// Index of the requirement whose agents can do it.
    pub requirement: usize,
    /// Indices of the subtasks whose outputs it needs.
    pub after: Vec<usize>,
}

/// Why an agent left the team.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, PartialOrd, Ord)]
pub enum Evicted {
    /// Suspected of a crash. Its late results count, and it may come back once it has proved to be alive.
    Crash,
    /// Suspected of a crash, and alive after all.
    Revived,
    /// Its output was judged wrong: never again, and none of its results.
    Faulty,
}

/// Why there will be no result.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum Failure {
    /// No team could be formed.
    Unmatched,
    /// A member was lost and nobody can take its place.
    NoReplacement,
    /// The assembly took too long.
    Deadline,
    /// The caller gave up.
    Cancelled,
}

/// Where the task stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub enum Phase {
    /// Looking for members and reserving them.
    #[default]
    Forming,
    /// The team exists; subtasks run.
    Running,
    /// Every subtask is done.
    Completed,
    /// There will be no result.
    Failed(Failure),
    /// Another owner has a higher epoch: this one does nothing any more.
    Deposed,
}

/// A reservation under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub struct Asked {
    /// What the agent is wanted for.
    pub requirement: usize,
    /// How often it was asked.
    pub times: u32,
}

/// The owner's side. This is also the checkpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq, Hash)]
pub struct TeamState {
    /// Fencing number of this owner.
    pub epoch: u64,
    /// Counts changes of membership.
    pub view: u64,
    /// Where the task stands.
    pub phase: Phase,
    /// Members per requirement.
    pub pools: Vec<BTreeSet<u32>>,
    /// Who left, what it was a member for, and why.
    pub evicted: BTreeMap<u32, (usize, Evicted)>,
    /// Agent of each subtask that is under way.
    pub assigned: Vec<Option<u32>>,
    /// Agents each subtask was ever sent to.
    pub sent: Vec<BTreeSet<u32>>,
    /// Whose output each finished subtask has.
    pub done: Vec<Option<u32>>,
    /// Reservations without an answer yet.
    pub asked: BTreeMap<u32, Asked>,
    /// Agents that refused or kept silent.
    pub refused: BTreeSet<u32>,
    /// A match was asked for and has not come back.
    pub matching: bool,
    /// Solicitations so far per requirement.
    pub rounds: Vec<u32>,
    /// A solicitation is under way, per requirement.
    pub soliciting: Vec<bool>,
}

/// What happens to an owner.
#[derive(Clone, Debug, Eq, PartialEq, Hash)]
pub enum Event {
    /// Begin, or go on after [`TeamState::resume`].
    Start,
    /// Answer to [`Effect::Match`]: probed candidates as (requirement, agent), trusted and capable in this owner's eyes.
    Found(Vec<(usize, u32)>),
    /// An agent accepts its reservation.
    Accepted(u32),
    /// An agent refuses its reservation.
    Refused(u32),
    /// An answer to a solicitation that passed this owner's own trust check.
    Offered(usize, u32),
    /// The failure detector suspects an agent.
    Suspected(u32),
    /// A suspected agent proved to be alive.
    Alive(u32),
    /// An agent's output was judged wrong.
    Faulty(u32),
    /// An output arrived.
    Result {
        /// Which subtask.
        subtask: usize,
        /// From whom.
        from: u32,
    },
    /// The timer of [`Timer::Reserve`], [`Timer::Solicit`], [`Timer::Dispatch`] or [`Timer::Assembly`] ran out.
    Expired(Timer),
    /// An owner with a higher epoch exists.
    Deposed,
    /// The caller gives up.
    Cancel,
}

/// A timer. Setting one again restarts it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// No answer from this agent.
    Reserve(u32),
    /// Time for offers for this requirement.
    Solicit(usize),
    /// No result for this subtask.
    Dispatch(usize),
    /// The whole assembly.
    Assembly,
}

/// What an owner wants done.
#[derive(Clone, Debug, Eq, PartialEq, Hash)]
pub enum Effect {
    /// Store the state by compare-and-set on the epoch, before anything that follows.
    Checkpoint,
    /// Find candidates: (requirement, how many), none of `without`.
    Match {
        /// What is short.
        wanted: Vec<(usize, u32)>,
        /// Members, refusers, evicted and asked agents.
        without: Vec<u32>,
    },
    /// Ask an agent to join.
    Reserve {
        /// Whom.
        agent: u32,
        /// For what.
        requirement: usize,
    },
    /// Tell an agent that it is free.
    Release(u32),
    /// Tell all members who is in the team.
    View,
    /// Send a subtask.
    Dispatch {
        /// Which.
        subtask: usize,
        /// To whom.
        agent: u32,
    },
    /// Tell a sender that its output is stored, or not needed.
    Acknowledge {
        /// Which.
        subtask: usize,
        /// To whom.
        agent: u32,
    },
    /// Broadcast that agents are wanted.
    Solicit {
        /// For what.
        requirement: usize,
        /// How many.
        missing: u32,
    },
    /// Start a timer.
    Set(Timer),
    /// The task ended; see the phase.
    Ended,
}

impl TeamState {
    /// The state before [`Event::Start`].
    #[must_use]
    pub fn new(plan: &Plan, epoch: u64) -> Self {
        let (r, s) = (plan.wanted.len(), plan.subtasks.len());
        Self {
            epoch,
            pools: vec![BTreeSet::new(); r],
            assigned: vec![None; s],
            sent: vec![BTreeSet::new(); s],
            done: vec![None; s],
            rounds: vec![0; r],
            soliciting: vec![false; r],
            ..Self::default()
        }
    }

    /// A successor's state from the last checkpoint. Feed [`Event::Start`] next.
    ///
    /// Reservations under way are forgotten (they expire at the agents); work under way is sent again with the new
    /// epoch, which finished workers answer from their memory.
    #[must_use]
    pub fn resume(checkpoint: &Self, epoch: u64) -> Self {
        let mut state = checkpoint.clone();
        state.epoch = epoch;
        state.asked.clear();
        state.matching = false;
        state.soliciting.iter_mut().for_each(|s| *s = false);
        state
    }

    /// Whether an agent is a member.
    #[must_use]
    pub fn is_member(&self, agent: u32) -> bool {
        self.pools.iter().any(|pool| pool.contains(&agent))
    }

    fn active(&self) -> bool {
        matches!(self.phase, Phase::Forming | Phase::Running)
    }

    /// One step. The state is left as it is by events that are late, repeated or unknown.
    #[must_use]
    pub fn step(&self, plan: &Plan, event: &Event) -> (Self, Vec<Effect>) {
        let mut next = self.clone();
        let mut out = Vec::new();
        if !next.active() {
            // A late sender still learns that its output is not needed, and a late acceptor that it is free.
            match (next.phase, event) {
                (Phase::Deposed, _) => {}
                (_, Event::Result { subtask, from }) if *subtask < next.done.len() => {
                    out.push(Effect::Acknowledge {
                        subtask: *subtask,
                        agent: *from,
                    });
                }
                (_, Event::Accepted(agent)) => out.push(Effect::Release(*agent)),
                _ => {}
            }
            return (next, out);
        }
        next.take(plan, event, &mut out);
        if next.active() {
            next.advance(plan, &mut out);
        }
        if next.durable() != self.durable() {
            out.insert(0, Effect::Checkpoint);
        }
        (next, out)
    }

    /// What a successor needs.
    #[expect(clippy::type_complexity, reason = "a view of fields, only compared")]
    fn durable(
        &self,
    ) -> (
        u64,
        u64,
        Phase,
        &[BTreeSet<u32>],
        &BTreeMap<u32, (usize, Evicted)>,
        &[Option<u32>],
        &[Option<u32>],
        &[u32],
    ) {
        let Self {
            epoch,
            view,
            phase,
            pools,
            evicted,
            assigned,
            done,
            rounds,
            ..
        } = self;
        (*epoch, *view, *phase, pools, evicted, assigned, done, rounds)
    }

    fn take(&mut self, plan: &Plan, event: &Event, out: &mut Vec<Effect>) {
        match *event {
            Event::Start => {
                if self.phase == Phase::Forming {
                    out.push(Effect::Set(Timer::Assembly));
                }
                for (subtask, assigned) in self.assigned.iter().enumerate() {
                    if let (Some(agent), None) = (*assigned, self.done[subtask]) {
                        out.push(Effect::Dispatch { subtask, agent });
                        out.push(Effect::Set(Timer::Dispatch(subtask)));
                    }
                }
            }
            Event::Found(ref found) => {
                self.matching = false;
                for &(requirement, agent) in found {
                    if requirement < self.pools.len() && !self.evicted.contains_key(&agent) {
                        self.ask(plan, requirement, agent, out);
                    }
                }
                for requirement in 0..self.pools.len() {
                    if self.short(plan, requirement) > 0 && !self.soliciting[requirement] {
                        self.look_further(plan, requirement, out);
                        if !self.active() {
                            return;
                        }
                    }
                }
            }
            Event::Accepted(agent) => match self.asked.remove(&agent) {
                Some(Asked { requirement, .. }) => {
                    self.pools[requirement].insert(agent);
                    self.evicted.remove(&agent);
                    self.view += 1;
                    if self.phase == Phase::Running {
                        out.push(Effect::View);
                    }
                }
                None if self.is_member(agent) => {}
                None => out.push(Effect::Release(agent)),
            },
            Event::Refused(agent) => {
                if self.asked.remove(&agent).is_some() {
                    self.refused.insert(agent);
                }
            }
            Event::Offered(requirement, agent) => {
                if requirement < self.pools.len() && self.soliciting[requirement] {
                    self.refused.remove(&agent);
                    self.ask(plan, requirement, agent, out);
                    if self.short(plan, requirement) == 0 {
                        self.soliciting[requirement] = false;
                    }
                }
            }
            Event::Suspected(agent) => self.evict(agent, Evicted::Crash, out),
            Event::Faulty(agent) => self.evict(agent, Evicted::Faulty, out),
            Event::Alive(agent) => {
                if let Some((_, why @ Evicted::Crash)) = self.evicted.get_mut(&agent) {
                    *why = Evicted::Revived;
                }
            }
            Event::Result { subtask, from } => self.result(subtask, from, out),
            Event::Expired(Timer::Reserve(agent)) => self.silent(plan, agent, out),
            Event::Expired(Timer::Solicit(requirement)) => {
                if self.soliciting.get(requirement) == Some(&true) {
                    self.soliciting[requirement] = false;
                    if self.short(plan, requirement) > 0 {
                        self.look_further(plan, requirement, out);
                    }
                }
            }
            Event::Expired(Timer::Dispatch(subtask)) => {
                if let Some(Some(agent)) = self.assigned.get(subtask).copied() {
                    out.push(Effect::Dispatch { subtask, agent });
                    out.push(Effect::Set(Timer::Dispatch(subtask)));
                }
            }
            Event::Expired(Timer::Assembly) => {
                if self.phase == Phase::Forming {
                    self.end(Phase::Failed(Failure::Deadline), out);
                }
            }
            Event::Deposed => self.phase = Phase::Deposed,
            Event::Cancel => self.end(Phase::Failed(Failure::Cancelled), out),
        }
    }

    /// Agents that a requirement lacks: all that are wanted while forming, one if work waits for it later.
    fn short(&self, plan: &Plan, requirement: usize) -> u32 {
        let asked = self
            .asked
            .values()
            .filter(|a| a.requirement == requirement)
            .count() as u32;
        let have = self.pools[requirement].len() as u32 + asked;
        let wanted = if self.phase == Phase::Forming {
            plan.wanted[requirement]
        } else {
            let waits = |(s, t): (usize, &Subtask)| {
                t.requirement == requirement && self.done[s].is_none() && self.assigned[s].is_none()
            };
            u32::from(plan.subtasks.iter().enumerate().any(waits))
        };
        wanted.saturating_sub(have)
    }

    fn ask(&mut self, plan: &Plan, requirement: usize, agent: u32, out: &mut Vec<Effect>) {
        let faulty = matches!(self.evicted.get(&agent), Some((_, Evicted::Faulty)));
        let taken = self.is_member(agent) || self.asked.contains_key(&agent) || self.refused.contains(&agent);
        if faulty || taken || self.short(plan, requirement) == 0 {
            return;
        }
        self.asked.insert(
            agent,
            Asked {
                requirement,
                times: 1,
            },
        );
        out.push(Effect::Reserve { agent, requirement });
        out.push(Effect::Set(Timer::Reserve(agent)));
    }

    fn silent(&mut self, plan: &Plan, agent: u32, out: &mut Vec<Effect>) {
        let Some(asked) = self.asked.get_mut(&agent) else {
            return;
        };
        if asked.times < plan.reservations {
            asked.times += 1;
            out.push(Effect::Reserve {
                agent,
                requirement: asked.requirement,
            });
            out.push(Effect::Set(Timer::Reserve(agent)));
        } else {
            self.asked.remove(&agent);
            self.refused.insert(agent);
            // It may have accepted and the answer got lost.
            out.push(Effect::Release(agent));
        }
    }

    fn evict(&mut self, agent: u32, why: Evicted, out: &mut Vec<Effect>) {
        if let Some((_, before)) = self.evicted.get_mut(&agent) {
            if why == Evicted::Faulty {
                *before = why;
            }
            // A second suspicion of an agent that is out already takes its revival back.
            if *before == Evicted::Revived {
                *before = Evicted::Crash;
            }
        }
        let asked = self.asked.remove(&agent);
        let pool = self.pools.iter().position(|pool| pool.contains(&agent));
        let Some(requirement) = pool.or(asked.map(|a| a.requirement)) else {
            return;
        };
        self.pools[requirement].remove(&agent);
        let entry = self.evicted.entry(agent).or_insert((requirement, why));
        entry.0 = requirement;
        for assigned in &mut self.assigned {
            if *assigned == Some(agent) {
                *assigned = None;
            }
        }
        self.view += 1;
        out.push(Effect::Release(agent));
        if self.phase == Phase::Running {
            out.push(Effect::View);
        }
    }

    fn result(&mut self, subtask: usize, from: u32, out: &mut Vec<Effect>) {
        let Some(done) = self.done.get(subtask) else {
            return;
        };
        let faulty = matches!(self.evicted.get(&from), Some((_, Evicted::Faulty)));
        if done.is_none() && !faulty && self.sent[subtask].contains(&from) {
            self.done[subtask] = Some(from);
            self.assigned[subtask] = None;
        }
        // Also when it is not taken: the sender need not keep it.
        out.push(Effect::Acknowledge { subtask, agent: from });
    }

    /// The registry has nobody (any more) for a requirement: re-admit, solicit, or give up.
    fn look_further(&mut self, plan: &Plan, requirement: usize, out: &mut Vec<Effect>) {
        let back: Vec<u32> = self
            .evicted
            .iter()
            .filter(|(agent, at)| **at == (requirement, Evicted::Revived) && !self.refused.contains(agent))
            .map(|(&agent, _)| agent)
            .collect();
        for agent in back {
            self.ask(plan, requirement, agent, out);
        }
        let missing = self.short(plan, requirement);
        if missing == 0 {
            return;
        }
        if !self.hopeless(plan, requirement) {
            self.rounds[requirement] += 1;
            self.soliciting[requirement] = true;
            out.push(Effect::Solicit { requirement, missing });
            out.push(Effect::Set(Timer::Solicit(requirement)));
        } else if !self.is_asking(requirement) {
            let why = if self.phase == Phase::Forming {
                Failure::Unmatched
            } else {
                Failure::NoReplacement
            };
            self.end(Phase::Failed(why), out);
        }
    }

    fn hopeless(&self, plan: &Plan, requirement: usize) -> bool {
        self.rounds[requirement] >= plan.solicitations
    }

    fn is_asking(&self, requirement: usize) -> bool {
        self.asked.values().any(|a| a.requirement == requirement)
    }

    fn advance(&mut self, plan: &Plan, out: &mut Vec<Effect>) {
        let full = |(pool, &wanted): (&BTreeSet<u32>, &u32)| pool.len() as u32 >= wanted;
        if self.phase == Phase::Forming && self.pools.iter().zip(&plan.wanted).all(full) {
            self.phase = Phase::Running;
            self.view += 1;
            for agent in std::mem::take(&mut self.asked).into_keys() {
                out.push(Effect::Release(agent));
            }
            self.soliciting.iter_mut().for_each(|s| *s = false);
            out.push(Effect::View);
        }
        if self.phase == Phase::Running {
            if self.done.iter().all(Option::is_some) {
                self.end(Phase::Completed, out);
                return;
            }
            for (subtask, task) in plan.subtasks.iter().enumerate() {
                let ready = task.after.iter().all(|&d| self.done[d].is_some());
                if self.done[subtask].is_some() || self.assigned[subtask].is_some() || !ready {
                    continue;
                }
                let busy = |agent: &u32| {
                    (
                        self.assigned.iter().flatten().filter(|a| *a == agent).count(),
                        *agent,
                    )
                };
                if let Some(&agent) = self.pools[task.requirement].iter().min_by_key(|a| busy(a)) {
                    self.assigned[subtask] = Some(agent);
                    self.sent[subtask].insert(agent);
                    out.push(Effect::Dispatch { subtask, agent });
                    out.push(Effect::Set(Timer::Dispatch(subtask)));
                }
            }
        }
        if !self.matching {
            let wanted: Vec<(usize, u32)> = (0..self.pools.len())
                .filter(|&r| !(self.soliciting[r] || self.hopeless(plan, r) && self.is_asking(r)))
                .map(|r| (r, self.short(plan, r)))
                .filter(|w| w.1 > 0)
                .collect();
            if !wanted.is_empty() {
                self.matching = true;
                let mut without: BTreeSet<u32> = self.pools.iter().flatten().copied().collect();
                without.extend(self.evicted.keys().chain(self.asked.keys()).chain(&self.refused));
                out.push(Effect::Match {
                    wanted,
                    without: without.into_iter().collect(),
                });
            }
        }
    }

    fn end(&mut self, phase: Phase, out: &mut Vec<Effect>) {
        self.phase = phase;
        for agent in self.pools.iter().flatten().chain(self.asked.keys()) {
            out.push(Effect::Release(*agent));
        }
        out.push(Effect::Ended);
    }
}

/// How far a worker is with a subtask.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum Progress {
    /// At work.
    Running,
    /// Finished; the output is kept until the owner has stored it.
    Finished,
    /// Finished, stored by the owner, output forgotten. A late repetition of the order does not start it again.
    Stored,
}

/// A worker's side of one task.
#[derive(Clone, Debug, Default, Eq, PartialEq, Hash)]
pub struct WorkerState {
    /// Highest epoch seen.
    pub epoch: u64,
    /// Reserved, or at work, for this task.
    pub held: bool,
    /// What it was given.
    pub subtasks: BTreeMap<usize, Progress>,
}

/// What happens to a worker.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash, PartialOrd, Ord)]
pub enum WorkerEvent {
    /// The owner asks for a reservation; `room` says whether the queue has place.
    Reserve {
        /// The owner's epoch.
        epoch: u64,
        /// Whether the bounded queue takes one more.
        room: bool,
    },
    /// The owner lets it go.
    Release(u64),
    /// The owner sends a subtask.
    Dispatch {
        /// The owner's epoch.
        epoch: u64,
        /// Which.
        subtask: usize,
    },
    /// The subtask's own work ended.
    Finished(usize),
    /// The owner stored an output, or does not need it.
    Acknowledged(usize),
    /// The owner was not heard of for the time of the reservation.
    LeaseExpired,
}

/// What a worker wants done.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum WorkerEffect {
    /// Tell the owner yes.
    Accept,
    /// Tell the owner no.
    Refuse,
    /// Start to work; for a language model this costs money, so it happens once.
    Run(usize),
    /// Send the output (again).
    Send(usize),
}

impl WorkerState {
    /// One step.
    #[must_use]
    pub fn step(&self, event: WorkerEvent) -> (Self, Vec<WorkerEffect>) {
        let mut next = self.clone();
        let mut out = Vec::new();
        match event {
            WorkerEvent::Reserve { epoch, room } => {
                if epoch < next.epoch {
                    return (next, out);
                }
                next.epoch = epoch;
                if next.held || room {
                    next.held = true;
                    out.push(WorkerEffect::Accept);
                } else {
                    out.push(WorkerEffect::Refuse);
                }
            }
            WorkerEvent::Release(epoch) => {
                if epoch >= next.epoch {
                    next.epoch = epoch;
                    // Running work goes on: the suspicion may have been wrong, and its result still counts.
                    next.held = false;
                }
            }
            WorkerEvent::Dispatch { epoch, subtask } => {
                if epoch < next.epoch {
                    return (next, out);
                }
                next.epoch = epoch;
                match next.subtasks.get(&subtask) {
                    None => {
                        next.held = true;
                        next.subtasks.insert(subtask, Progress::Running);
                        out.push(WorkerEffect::Run(subtask));
                    }
                    Some(Progress::Finished) => out.push(WorkerEffect::Send(subtask)),
                    Some(Progress::Running | Progress::Stored) => {}
                }
            }
            WorkerEvent::Finished(subtask) => {
                if next.subtasks.get(&subtask) == Some(&Progress::Running) {
                    next.subtasks.insert(subtask, Progress::Finished);
                    out.push(WorkerEffect::Send(subtask));
                }
            }
            WorkerEvent::Acknowledged(subtask) => {
                if let Some(progress @ Progress::Finished) = next.subtasks.get_mut(&subtask) {
                    *progress = Progress::Stored;
                }
            }
            WorkerEvent::LeaseExpired => next.held = false,
        }
        (next, out)
    }
}
