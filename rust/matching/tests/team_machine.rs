//! The shipped team and worker machines, exhausted under crashes, wrong suspicions, loss, repetition, faulty outputs and
//! failover; and planted faults, each of which must be found.
mod common;

use std::collections::{BTreeSet, HashSet};

use common::checker::{Model, Report, Step, check};
use pandacore_matching::team_machine::{
    Effect, Event, Evicted, Phase, Plan, Progress, Subtask, TeamState, Timer, WorkerEffect, WorkerEvent,
    WorkerState,
};

const N: usize = 4;
/// Requirements each agent can serve.
const HOLDS: [u8; N] = [0b01, 0b10, 0b11, 0b10];

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
enum Message {
    Reserve { epoch: u64, to: u32, requirement: u8 },
    Accept { from: u32 },
    Refuse { from: u32 },
    Release { epoch: u64, to: u32 },
    Dispatch { epoch: u64, subtask: u8, to: u32 },
    Result { subtask: u8, from: u32 },
    Acknowledge { subtask: u8, to: u32 },
    Offer { requirement: u8, from: u32 },
}

/// Faults left to happen.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
struct Faults {
    crashes: u8,
    suspicions: u8,
    losses: u8,
    repeats: u8,
    failovers: u8,
    faulty: u8,
    refusals: u8,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct World {
    /// The stored checkpoint: what compare-and-set protects.
    store: TeamState,
    owner: Option<TeamState>,
    deposed: Option<TeamState>,
    workers: [WorkerState; N],
    alive: u8,
    net: BTreeSet<Message>,
    left: Faults,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Mutant {
    #[default]
    None,
    NoFencing,
    FaultyAccepted,
    AssignmentKept,
    NoRetransmission,
    NoLease,
}

struct Machine {
    plan: Plan,
    /// Agents that a match finds, and those that answer a solicitation.
    known: u8,
    reachable: u8,
    faults: Faults,
    mutant: Mutant,
}

/// The first `n` of three subtasks: two after the first, for either requirement.
fn plan(n: usize) -> Plan {
    let subtask = |requirement, after: &[usize]| Subtask {
        requirement,
        after: after.to_vec(),
    };
    Plan {
        wanted: vec![1, 1],
        subtasks: vec![subtask(0, &[]), subtask(1, &[0]), subtask(0, &[0])][..n].to_vec(),
        solicitations: 1,
        reservations: 2,
    }
}

impl Machine {
    /// Carries out an owner's effects, in order.
    fn effects(
        &self,
        w: &mut World,
        state: &TeamState,
        effects: &[Effect],
        fenced: bool,
    ) -> Option<&'static str> {
        for effect in effects {
            match *effect {
                Effect::Checkpoint => {
                    if state.epoch < w.store.epoch && fenced {
                        return None;
                    }
                    w.store = state.clone();
                }
                Effect::Reserve { agent, requirement } => {
                    w.net.insert(Message::Reserve {
                        epoch: state.epoch,
                        to: agent,
                        requirement: requirement as u8,
                    });
                }
                Effect::Release(to) => {
                    w.net.insert(Message::Release {
                        epoch: state.epoch,
                        to,
                    });
                }
                Effect::Dispatch { subtask, agent } => {
                    w.net.insert(Message::Dispatch {
                        epoch: state.epoch,
                        subtask: subtask as u8,
                        to: agent,
                    });
                    if w.store.done[subtask].is_some() && state.epoch >= w.store.epoch {
                        return Some("S4: a subtask that the checkpoint has completed was dispatched");
                    }
                }
                Effect::Acknowledge { subtask, agent } => {
                    w.net.insert(Message::Acknowledge {
                        subtask: subtask as u8,
                        to: agent,
                    });
                }
                Effect::Solicit { requirement, .. } => {
                    for from in 0..N as u32 {
                        let can = self.reachable & w.alive & 1 << from != 0
                            && HOLDS[from as usize] >> requirement & 1 == 1;
                        if can && !state.is_member(from) {
                            w.net.insert(Message::Offer {
                                requirement: requirement as u8,
                                from,
                            });
                        }
                    }
                }
                Effect::Match { .. } | Effect::View | Effect::Set(_) | Effect::Ended => {}
            }
        }
        None
    }

    /// Feeds an event to the owner and checks the step.
    fn owner(&self, world: &World, event: &Event) -> (World, Option<&'static str>) {
        let mut w = world.clone();
        let Some(before) = w.owner.take() else {
            return (w, None);
        };
        let mut given = before.clone();
        if self.mutant == Mutant::FaultyAccepted
            && let Event::Result { from, .. } = event
            && let Some(entry) = given.evicted.get_mut(from)
        {
            entry.1 = Evicted::Crash;
        }
        let (mut after, effects) = given.step(&self.plan, event);
        if self.mutant == Mutant::AssignmentKept && matches!(event, Event::Suspected(_)) {
            after.assigned = before.assigned.clone();
        }
        let mut broken = self.effects(&mut w, &after, &effects, true);
        for (subtask, done) in before.done.iter().enumerate() {
            if done.is_some() && after.done[subtask] != *done {
                broken = Some("S3: a completed output changed");
            }
            if done.is_none()
                && let Some(from) = after.done[subtask]
                && matches!(before.evicted.get(&from), Some((_, Evicted::Faulty)))
            {
                broken = Some("a faulty agent's result was accepted");
            }
        }
        let members = |s: &TeamState| s.pools.clone();
        if members(&before) != members(&after) && after.view <= before.view {
            broken = Some("S5: membership changed without a new view");
        }
        if before.phase == Phase::Forming && after.phase == Phase::Running {
            let full = after
                .pools
                .iter()
                .zip(&self.plan.wanted)
                .all(|(p, &n)| p.len() as u32 == n);
            if !full {
                broken = Some("A3: formed with another number of members than wanted");
            }
        }
        w.owner = Some(after);
        (w, broken)
    }

    fn worker(&self, w: &mut World, agent: u32, event: WorkerEvent) {
        let (after, effects) = w.workers[agent as usize].step(event);
        w.workers[agent as usize] = after;
        for effect in effects {
            w.net.insert(match effect {
                WorkerEffect::Accept => Message::Accept { from: agent },
                WorkerEffect::Refuse => Message::Refuse { from: agent },
                WorkerEffect::Send(subtask) => Message::Result {
                    subtask: subtask as u8,
                    from: agent,
                },
                WorkerEffect::Run(_) => continue,
            });
        }
    }

    fn deliver(&self, world: &World, message: Message) -> Option<(World, Option<&'static str>)> {
        let mut w = world.clone();
        let up = |to: u32| w.alive >> to & 1 == 1;
        let epoch_for = |epoch: u64, to: u32| match self.mutant {
            Mutant::NoFencing => epoch.max(world.workers[to as usize].epoch),
            _ => epoch,
        };
        match message {
            Message::Reserve { epoch, to, .. } => {
                if up(to) {
                    self.worker(
                        &mut w,
                        to,
                        WorkerEvent::Reserve {
                            epoch: epoch_for(epoch, to),
                            room: true,
                        },
                    );
                }
            }
            Message::Release { epoch, to } => {
                if up(to) {
                    self.worker(&mut w, to, WorkerEvent::Release(epoch_for(epoch, to)));
                }
            }
            Message::Dispatch { epoch, subtask, to } => {
                if up(to) {
                    let subtask = subtask as usize;
                    self.worker(
                        &mut w,
                        to,
                        WorkerEvent::Dispatch {
                            epoch: epoch_for(epoch, to),
                            subtask,
                        },
                    );
                }
            }
            Message::Acknowledge { subtask, to } => {
                if up(to) {
                    self.worker(&mut w, to, WorkerEvent::Acknowledged(subtask as usize));
                }
            }
            // Messages to the owner wait while there is none.
            _ if w.owner.is_none() => return None,
            Message::Accept { from } => return Some(self.owner(&w, &Event::Accepted(from))),
            Message::Refuse { from } => return Some(self.owner(&w, &Event::Refused(from))),
            Message::Result { subtask, from } => {
                return Some(self.owner(
                    &w,
                    &Event::Result {
                        subtask: subtask as usize,
                        from,
                    },
                ));
            }
            Message::Offer { requirement, from } => {
                return Some(self.owner(&w, &Event::Offered(requirement as usize, from)));
            }
        }
        Some((w, None))
    }

    fn takeover(&self, world: &World) -> World {
        let mut w = world.clone();
        let state = TeamState::resume(&w.store, w.store.epoch + 1);
        // Taking over is a compare-and-set itself.
        w.store = state.clone();
        w.owner = Some(state);
        self.owner(&w, &Event::Start).0
    }

    /// Answers to a match: the first or the last agents that fit.
    fn matches(&self, state: &TeamState) -> Vec<Vec<(usize, u32)>> {
        let without = |a: &u32| {
            state.is_member(*a)
                || state.evicted.contains_key(a)
                || state.asked.contains_key(a)
                || state.refused.contains(a)
        };
        let mut answers = Vec::new();
        for reverse in [false, true] {
            let mut found: Vec<(usize, u32)> = Vec::new();
            for requirement in 0..self.plan.wanted.len() {
                let mut agents: Vec<u32> = (0..N as u32).filter(|a| !without(a)).collect();
                if reverse {
                    agents.reverse();
                }
                let fit = |&&a: &&u32| {
                    self.known >> a & 1 == 1
                        && HOLDS[a as usize] >> requirement & 1 == 1
                        && found.iter().all(|f| f.1 != a)
                };
                if let Some(&agent) = agents.iter().find(fit) {
                    found.push((requirement, agent));
                }
            }
            if !answers.contains(&found) {
                answers.push(found);
            }
        }
        answers
    }
}

/// What happened, for traces.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "read through Debug")]
enum Label {
    Deliver(Message),
    Lose(Message),
    Repeat(Message),
    Match { reverse: bool },
    Expired(Timer),
    Detect(u32),
    WronglySuspect(u32),
    FaultyOutput(u32),
    ProvesAlive(u32),
    OwnerCrashes,
    OwnerDeposedUnknowingly,
    OwnerCrashesAfterStoring(Message),
    SuccessorTakesOver,
    DeposedLearnsOfIt,
    DeposedActs(usize),
    Finish(usize, usize),
    LeaseEnds(usize),
    Crash(usize),
}

/// Fair classes.
const DELIVER: u8 = 0;
const MATCH: u8 = 64;
const TAKEOVER: u8 = 65;
const STEP_DOWN: u8 = 66;
const RESERVE: u8 = 67;
const SOLICIT: u8 = 71;
const DISPATCH: u8 = 73;
const DETECT: u8 = 76;
const FINISH: u8 = 80;
const LEASE: u8 = 92;
const ALIVE: u8 = 96;

fn class_of(message: Message) -> u8 {
    DELIVER
        + match message {
            Message::Reserve { to, .. } => to as u8,
            Message::Accept { from } => 4 + from as u8,
            Message::Refuse { from } => 8 + from as u8,
            Message::Release { to, .. } => 12 + to as u8,
            Message::Dispatch { subtask, to, .. } => 16 + subtask * 4 + to as u8,
            Message::Result { subtask, from } => 28 + subtask * 4 + from as u8,
            Message::Acknowledge { subtask, to } => 40 + subtask * 4 + to as u8,
            Message::Offer { requirement, from } => 52 + requirement * 4 + from as u8,
        }
}

impl Model for Machine {
    type State = World;
    type Label = Label;

    fn init(&self) -> World {
        let state = TeamState::new(&self.plan, 1);
        let world = World {
            store: state.clone(),
            owner: Some(state),
            deposed: None,
            workers: std::array::from_fn(|_| WorkerState::default()),
            alive: (1 << N) - 1,
            net: BTreeSet::new(),
            left: self.faults,
        };
        self.owner(&world, &Event::Start).0
    }

    fn terminal(&self, w: &World) -> bool {
        let ended = w
            .owner
            .as_ref()
            .is_some_and(|o| matches!(o.phase, Phase::Completed | Phase::Failed(_)));
        let free = |a: usize| w.alive >> a & 1 == 0 || !w.workers[a].held;
        ended && w.deposed.is_none() && w.net.is_empty() && (0..N).all(free)
    }

    fn reached(&self, w: &World) -> Vec<&'static str> {
        let mut all = Vec::new();
        if let Some(owner) = &w.owner {
            match owner.phase {
                Phase::Completed => {
                    all.push("completed");
                    if !owner.evicted.is_empty() {
                        all.push("completed after a swap");
                    }
                    if owner.epoch > 1 {
                        all.push("completed by a successor");
                    }
                }
                Phase::Failed(_) => all.push("failed with a reason"),
                _ => {}
            }
        }
        all
    }

    fn invariant(&self, w: &World) -> Option<&'static str> {
        let owner = w.owner.as_ref()?;
        let mut members = 0u8;
        for (requirement, pool) in owner.pools.iter().enumerate() {
            for &agent in pool {
                if members >> agent & 1 == 1 {
                    return Some("A2: one agent in two pools");
                }
                members |= 1 << agent;
                if HOLDS[agent as usize] >> requirement & 1 == 0
                    || (self.known | self.reachable) >> agent & 1 == 0
                {
                    return Some("A1: a member that nobody vouched for");
                }
                if owner.evicted.contains_key(&agent) {
                    return Some("S2: an evicted member");
                }
            }
        }
        if matches!(owner.phase, Phase::Running | Phase::Forming) {
            for (subtask, assigned) in owner.assigned.iter().enumerate() {
                if let (Some(agent), None) = (*assigned, owner.done[subtask])
                    && !owner.pools[self.plan.subtasks[subtask].requirement].contains(&agent)
                {
                    return Some("S1: work assigned outside the team");
                }
            }
        }
        for (subtask, done) in owner.done.iter().enumerate() {
            if done.is_some()
                && self.plan.subtasks[subtask]
                    .after
                    .iter()
                    .any(|&d| owner.done[d].is_none())
            {
                return Some("done before what it needs");
            }
            if w.store.done[subtask].is_some() && done.is_none() {
                return Some("S3: the owner lost a completed output");
            }
            if done.is_some() && w.store.done[subtask].is_none() {
                return Some("S3: the checkpoint lost a completed output");
            }
        }
        None
    }

    fn steps(&self, w: &World) -> Vec<Step<World, Label>> {
        let mut all: Vec<Step<World, Label>> = Vec::new();
        let mut go = |class: Option<u8>, label: Label, (next, broken): (World, Option<&'static str>)| {
            all.push(Step {
                class,
                label,
                next,
                broken,
            });
        };
        // The network.
        for &message in &w.net {
            let mut without = w.clone();
            without.net.remove(&message);
            if let Some(step) = self.deliver(&without, message) {
                go(Some(class_of(message)), Label::Deliver(message), step);
            }
            if w.left.losses > 0 {
                let mut lost = without.clone();
                lost.left.losses -= 1;
                go(None, Label::Lose(message), (lost, None));
            }
            if w.left.repeats > 0 {
                let mut again = w.clone();
                again.left.repeats -= 1;
                if let Some(step) = self.deliver(&again, message) {
                    go(None, Label::Repeat(message), step);
                }
            }
        }
        // The owner's surroundings.
        if let Some(owner) = &w.owner {
            if owner.matching && matches!(owner.phase, Phase::Forming | Phase::Running) {
                for (k, found) in self.matches(owner).into_iter().enumerate() {
                    go(
                        Some(MATCH),
                        Label::Match { reverse: k == 1 },
                        self.owner(w, &Event::Found(found)),
                    );
                }
            }
            let travelling = |m: &dyn Fn(&Message) -> bool| w.net.iter().any(m);
            if matches!(owner.phase, Phase::Forming | Phase::Running) {
                for &agent in owner.asked.keys() {
                    let pending = travelling(&|m| match *m {
                        Message::Reserve { to, epoch, .. } => to == agent && epoch == owner.epoch,
                        Message::Accept { from } | Message::Refuse { from } => from == agent,
                        _ => false,
                    });
                    if !pending && self.mutant != Mutant::NoRetransmission {
                        let event = Event::Expired(Timer::Reserve(agent));
                        go(
                            Some(RESERVE + agent as u8),
                            Label::Expired(Timer::Reserve(agent)),
                            self.owner(w, &event),
                        );
                    }
                }
                for requirement in 0..self.plan.wanted.len() {
                    let pending = travelling(&|m| matches!(m, Message::Offer { .. }));
                    if owner.soliciting[requirement] && !pending {
                        let event = Event::Expired(Timer::Solicit(requirement));
                        go(
                            Some(SOLICIT + requirement as u8),
                            Label::Expired(Timer::Solicit(requirement)),
                            self.owner(w, &event),
                        );
                    }
                }
                for (subtask, assigned) in owner.assigned.iter().enumerate() {
                    let Some(agent) = *assigned else { continue };
                    let pending = travelling(&|m| match *m {
                        Message::Dispatch {
                            subtask: s,
                            to,
                            epoch,
                        } => s as usize == subtask && to == agent && epoch == owner.epoch,
                        Message::Result { subtask: s, from } => s as usize == subtask && from == agent,
                        _ => false,
                    });
                    let working =
                        w.workers[agent as usize].subtasks.get(&subtask) == Some(&Progress::Running);
                    let up = w.alive >> agent & 1 == 1;
                    if !pending && !working && up && self.mutant != Mutant::NoRetransmission {
                        let event = Event::Expired(Timer::Dispatch(subtask));
                        go(
                            Some(DISPATCH + subtask as u8),
                            Label::Expired(Timer::Dispatch(subtask)),
                            self.owner(w, &event),
                        );
                    }
                }
                for agent in 0..N as u32 {
                    let concerns = owner.is_member(agent) || owner.asked.contains_key(&agent);
                    let up = w.alive >> agent & 1 == 1;
                    let event = Event::Suspected(agent);
                    if concerns && !up {
                        go(
                            Some(DETECT + agent as u8),
                            Label::Detect(agent),
                            self.owner(w, &event),
                        );
                    } else if concerns && w.left.suspicions > 0 {
                        let mut less = w.clone();
                        less.left.suspicions -= 1;
                        go(None, Label::WronglySuspect(agent), self.owner(&less, &event));
                    }
                    if owner.is_member(agent) && up && w.left.faulty > 0 {
                        let mut less = w.clone();
                        less.left.faulty -= 1;
                        go(
                            None,
                            Label::FaultyOutput(agent),
                            self.owner(&less, &Event::Faulty(agent)),
                        );
                    }
                    if up && matches!(owner.evicted.get(&agent), Some((_, Evicted::Crash))) {
                        let event = Event::Alive(agent);
                        go(
                            Some(ALIVE + agent as u8),
                            Label::ProvesAlive(agent),
                            self.owner(w, &event),
                        );
                    }
                }
            }
            if w.left.failovers > 0 && matches!(owner.phase, Phase::Forming | Phase::Running) {
                let mut crashed = w.clone();
                crashed.left.failovers -= 1;
                crashed.owner = None;
                go(None, Label::OwnerCrashes, (crashed, None));
                let mut replaced = w.clone();
                replaced.left.failovers -= 1;
                replaced.deposed = replaced.owner.take();
                go(
                    None,
                    Label::OwnerDeposedUnknowingly,
                    (self.takeover(&replaced), None),
                );
                // Between the checkpoint and what follows it.
                for &message in &w.net {
                    if let Message::Result { subtask, from } = message {
                        let mut half = w.clone();
                        half.left.failovers -= 1;
                        half.net.remove(&message);
                        let (stored, broken) = self.owner(
                            &half,
                            &Event::Result {
                                subtask: subtask as usize,
                                from,
                            },
                        );
                        half.store = stored.store;
                        half.owner = None;
                        go(None, Label::OwnerCrashesAfterStoring(message), (half, broken));
                    }
                }
            }
        } else {
            go(
                Some(TAKEOVER),
                Label::SuccessorTakesOver,
                (self.takeover(w), None),
            );
        }
        if let Some(old) = &w.deposed {
            let mut down = w.clone();
            down.deposed = None;
            go(Some(STEP_DOWN), Label::DeposedLearnsOfIt, (down, None));
            let fenced = self.mutant != Mutant::NoFencing;
            let mut events = vec![
                Event::Expired(Timer::Dispatch(0)),
                Event::Expired(Timer::Dispatch(1)),
            ];
            events.extend((0..N as u32).map(Event::Suspected));
            for (k, event) in events.into_iter().enumerate() {
                let (after, effects) = old.step(&self.plan, &event);
                if effects.is_empty() {
                    continue;
                }
                let mut next = w.clone();
                let refused = fenced && effects.contains(&Effect::Checkpoint);
                let broken = self.effects(&mut next, &after, &effects, fenced);
                next.deposed = (!refused).then_some(after);
                go(None, Label::DeposedActs(k), (next, broken));
            }
        }
        // Workers.
        for agent in 0..N {
            if w.alive >> agent & 1 == 0 {
                continue;
            }
            for (&subtask, progress) in &w.workers[agent].subtasks {
                if *progress == Progress::Running {
                    let mut next = w.clone();
                    self.worker(&mut next, agent as u32, WorkerEvent::Finished(subtask));
                    go(
                        Some(FINISH + (subtask * N + agent) as u8),
                        Label::Finish(agent, subtask),
                        (next, None),
                    );
                }
            }
            let wanted = w.owner.as_ref().is_none_or(|o| {
                matches!(o.phase, Phase::Forming | Phase::Running)
                    && (o.is_member(agent as u32) || o.asked.contains_key(&(agent as u32)))
            });
            let addressed = w.net.iter().any(|m| match *m {
                Message::Reserve { to, .. } | Message::Release { to, .. } | Message::Dispatch { to, .. } => {
                    to == agent as u32
                }
                _ => false,
            });
            if w.workers[agent].held && !wanted && !addressed && self.mutant != Mutant::NoLease {
                let mut next = w.clone();
                self.worker(&mut next, agent as u32, WorkerEvent::LeaseExpired);
                go(Some(LEASE + agent as u8), Label::LeaseEnds(agent), (next, None));
            }
            if w.left.crashes > 0 {
                let mut next = w.clone();
                next.left.crashes -= 1;
                next.alive &= !(1 << agent);
                next.workers[agent] = WorkerState::default();
                go(None, Label::Crash(agent), (next, None));
            }
        }
        all
    }
}

fn explore(name: &str, subtasks: usize, known: u8, reachable: u8, faults: Faults, mutant: Mutant) -> Report {
    let machine = Machine {
        plan: plan(subtasks),
        known,
        reachable,
        faults,
        mutant,
    };
    let report = check(&machine, 3_000_000);
    println!(
        "{name}: {} states, {} steps, depth {}, {}; reached {:?}",
        report.states,
        report.steps,
        report.depth,
        if report.complete { "exhausted" } else { "cut off" },
        report.reached
    );
    report
}

fn holds(name: &str, subtasks: usize, known: u8, reachable: u8, faults: Faults, must: &[&str]) {
    let report = explore(name, subtasks, known, reachable, faults, Mutant::None);
    assert!(
        report.violation.is_none(),
        "{name}: {}",
        report.violation.unwrap_or_default()
    );
    assert!(report.complete, "{name} is larger than the limit");
    for what in must {
        assert!(report.reached.contains_key(what), "{name} never {what}");
    }
}

#[test]
fn crashes_are_survived() {
    let faults = Faults {
        crashes: 2,
        ..Faults::default()
    };
    let must = ["completed", "completed after a swap", "failed with a reason"];
    holds("two crashes", 2, 0b0111, 0, faults, &must);
}

#[test]
fn replacements_come_from_a_broadcast_when_the_registry_has_none() {
    let faults = Faults {
        crashes: 1,
        ..Faults::default()
    };
    holds(
        "broadcast",
        2,
        0b0011,
        0b1100,
        faults,
        &["completed after a swap"],
    );
}

#[test]
fn wrong_suspicion_and_loss_are_survived() {
    let faults = Faults {
        suspicions: 1,
        losses: 1,
        ..Faults::default()
    };
    holds(
        "suspicion and loss",
        1,
        0b0111,
        0,
        faults,
        &["completed", "completed after a swap"],
    );
}

#[test]
fn crash_and_wrong_suspicion_are_survived() {
    let faults = Faults {
        crashes: 1,
        suspicions: 1,
        ..Faults::default()
    };
    holds(
        "crash and suspicion",
        2,
        0b0111,
        0,
        faults,
        &["completed", "completed after a swap"],
    );
}

#[test]
fn repeated_and_lost_messages_change_nothing() {
    let faults = Faults {
        repeats: 1,
        losses: 1,
        ..Faults::default()
    };
    holds("repeats", 2, 0b0011, 0, faults, &["completed"]);
}

#[test]
fn faulty_agents_are_replaced_and_not_believed() {
    let faults = Faults {
        faulty: 1,
        ..Faults::default()
    };
    holds("faulty", 3, 0b0111, 0, faults, &["completed after a swap"]);
    let faults = Faults {
        faulty: 1,
        suspicions: 1,
        ..Faults::default()
    };
    holds(
        "faulty and suspicion",
        1,
        0b0111,
        0,
        faults,
        &["completed after a swap"],
    );
}

#[test]
fn successors_finish_what_was_begun() {
    let faults = Faults {
        failovers: 1,
        ..Faults::default()
    };
    holds("failover", 3, 0b0011, 0, faults, &["completed by a successor"]);
    let faults = Faults {
        failovers: 1,
        crashes: 1,
        ..Faults::default()
    };
    holds(
        "failover and crash",
        1,
        0b0111,
        0,
        faults,
        &["completed by a successor"],
    );
}

#[test]
fn a_wrongly_suspected_agent_returns_when_nobody_else_is_left() {
    let faults = Faults {
        suspicions: 1,
        ..Faults::default()
    };
    holds(
        "no spare",
        3,
        0b0011,
        0,
        faults,
        &["completed after a swap", "completed"],
    );
}

#[test]
fn nobody_to_hire_ends_with_a_reason() {
    holds(
        "nobody",
        3,
        0b0001,
        0,
        Faults::default(),
        &["failed with a reason"],
    );
}

/// States and depth (the first state counts as one) of what decides the future: without failover the stored checkpoint
/// does not, so it is left out. This is what `spec/TeamMachine.tla` models.
fn distinct(machine: &Machine) -> (usize, usize) {
    let blank = TeamState::new(&machine.plan, 1);
    let without_store = |mut world: World| {
        world.store = blank.clone();
        world
    };
    let first = without_store(machine.init());
    let mut known = HashSet::from([first.clone()]);
    let (mut level, mut depth) = (vec![first], 0);
    while !level.is_empty() {
        depth += 1;
        let mut next = Vec::new();
        for world in level.iter().filter(|w| !machine.terminal(w)) {
            for step in machine.steps(world) {
                let world = without_store(step.next);
                if known.insert(world.clone()) {
                    next.push(world);
                }
            }
        }
        level = next;
    }
    (known.len(), depth)
}

#[test]
fn the_specification_has_the_same_states() {
    let agents = |text: &str| {
        text.split(',')
            .filter_map(|a| a.parse::<u8>().ok())
            .fold(0, |set, a| set | 1 << a)
    };
    let table = include_str!("../../../spec/team_machine.counts");
    let mut compared = 0;
    for line in table.lines().filter(|l| !l.starts_with('#')) {
        let field: Vec<&str> = line.split_whitespace().collect();
        let number = |k: usize| field[k].parse::<usize>().expect("a number");
        let machine = Machine {
            plan: plan(number(1)),
            known: agents(field[2]),
            reachable: agents(field[3]),
            faults: Faults {
                crashes: number(4) as u8,
                suspicions: number(5) as u8,
                losses: number(6) as u8,
                repeats: number(7) as u8,
                faulty: number(8) as u8,
                ..Faults::default()
            },
            mutant: Mutant::None,
        };
        let found = distinct(&machine);
        println!("{}: {} states, depth {}", field[0], found.0, found.1);
        assert_eq!(found, (number(9), number(10)), "{}", field[0]);
        compared += 1;
    }
    assert!(compared >= 3);
}

fn caught(name: &str, faults: Faults, mutant: Mutant, by: &[&str]) {
    let report = explore(name, 2, 0b0111, 0, faults, mutant);
    let found = report.violation.unwrap_or_default();
    assert!(
        by.iter().any(|b| found.starts_with(b)),
        "{name} was not caught: {found:?}"
    );
    println!("caught: {found}");
}

#[test]
fn without_fencing_a_deposed_owner_does_harm() {
    caught(
        "no fencing",
        Faults {
            failovers: 1,
            ..Faults::default()
        },
        Mutant::NoFencing,
        &["S3", "S4"],
    );
}

#[test]
fn believing_faulty_agents_is_caught() {
    caught(
        "faulty accepted",
        Faults {
            faulty: 1,
            ..Faults::default()
        },
        Mutant::FaultyAccepted,
        &["a faulty agent"],
    );
}

#[test]
fn keeping_assignments_at_a_swap_is_caught() {
    caught(
        "assignment kept",
        Faults {
            suspicions: 1,
            ..Faults::default()
        },
        Mutant::AssignmentKept,
        &["S1"],
    );
}

#[test]
fn not_sending_again_is_caught() {
    let by = ["deadlock", "livelock"];
    caught(
        "no retransmission",
        Faults {
            losses: 1,
            ..Faults::default()
        },
        Mutant::NoRetransmission,
        &by,
    );
}

#[test]
fn reservations_without_a_lease_leak_and_are_caught() {
    let by = ["deadlock", "livelock"];
    caught(
        "no lease",
        Faults {
            losses: 1,
            ..Faults::default()
        },
        Mutant::NoLease,
        &by,
    );
}
