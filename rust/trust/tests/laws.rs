//! Laws of the web of trust, checked against an oracle that computes everything from the statements alone.
#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in its helpers")]

use std::collections::{BTreeMap, BTreeSet};

use pandacore_trust::{
    Certificate, FULL, Genesis, KeyPair, LayerSet, Ledger, Limits, Quota, Revocation, Scratch, SetSpec,
    Threshold, UNLIMITED, UNREACHED, Walk, distance, flow, reach, reach_sizes, reach_threshold, witness,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const AGENTS: u8 = 9;
const LAST: u32 = 60;

#[derive(Clone, Debug, PartialEq)]
enum Statement {
    Certificate {
        issuer: u8,
        subject: u8,
        serial: u64,
        from: u32,
        until: u32,
        depth: u8,
        amount: u8,
    },
    End {
        issuer: u8,
        subject: u8,
        serial: u64,
        at: u32,
        by_subject: bool,
    },
    Retire {
        agent: u8,
        at: u32,
    },
    Compromise {
        agent: u8,
    },
    Expel {
        voter: u8,
        subject: u8,
        at: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    threshold: u8,
    grace: u32,
    quota: Option<Quota>,
}

fn key(agent: u8) -> KeyPair {
    KeyPair::from_seed(&[agent + 1; 32])
}

fn genesis(rules: Rules) -> Genesis {
    Genesis::new(vec![key(0).id(), key(1).id()], rules.threshold, "laws".into())
}

fn encode(statement: &Statement, collective: [u8; 32]) -> Vec<u8> {
    match *statement {
        Statement::Certificate {
            issuer,
            subject,
            serial,
            from,
            until,
            depth,
            amount,
        } => {
            let (from, until) = (u64::from(from), u64::from(until));
            let subject = key(subject);
            Certificate::issue(
                collective,
                &key(issuer),
                subject.id(),
                serial,
                from,
                until,
                depth,
                amount,
            )
            .consented(&subject)
            .encode()
        }
        Statement::End {
            issuer,
            subject,
            serial,
            at,
            by_subject,
        } => {
            let signer = key(if by_subject { subject } else { issuer });
            let (issuer, subject) = (key(issuer).id(), key(subject).id());
            Revocation::certificate(collective, &signer, issuer, subject, serial, u64::from(at)).encode()
        }
        Statement::Retire { agent, at } => {
            Revocation::retire(collective, &key(agent), u64::from(at)).encode()
        }
        Statement::Compromise { agent } => Revocation::compromised(collective, &key(agent), 0).encode(),
        Statement::Expel { voter, subject, at } => {
            Revocation::expel(collective, &key(voter), key(subject).id(), u64::from(at)).encode()
        }
    }
}

/// Everything from the statements, by the definitions, at one time.
struct Oracle<'a> {
    statements: &'a [Statement],
    rules: Rules,
    ids: BTreeMap<usize, [u8; 32]>,
}

impl<'a> Oracle<'a> {
    fn new(statements: &'a [Statement], rules: Rules) -> Self {
        let collective = genesis(rules).collective();
        let ids = statements.iter().enumerate().filter_map(|(i, statement)| {
            let bytes = encode(statement, collective);
            match pandacore_trust::Record::decode(&bytes) {
                Ok(record @ pandacore_trust::Record::Certificate(_)) => Some((i, record.id())),
                _ => None,
            }
        });
        Self {
            statements,
            rules,
            ids: ids.collect(),
        }
    }

    fn retired(&self, agent: u8) -> Option<u32> {
        let times = self.statements.iter().filter_map(|statement| match *statement {
            Statement::Retire { agent: a, at } if a == agent => Some(at),
            _ => None,
        });
        times.min()
    }

    fn compromised(&self, agent: u8) -> bool {
        self.statements.contains(&Statement::Compromise { agent })
    }

    /// Subjects of the issuer that have a place in its budget at `time`.
    fn places(&self, issuer: u8, time: u32) -> BTreeSet<u8> {
        let Some(quota) = self.rules.quota else {
            return (0..AGENTS).collect();
        };
        let mut queue: Vec<(u32, [u8; 32], u8)> = Vec::new();
        for (i, statement) in self.statements.iter().enumerate() {
            if let Statement::Certificate {
                issuer: j,
                subject,
                from,
                until,
                ..
            } = *statement
                && j == issuer
                && until - from >= quota.window
                && from <= time
                && time < until
            {
                queue.push((from, self.ids[&i], subject));
            }
        }
        queue.sort_unstable();
        let mut places = BTreeSet::new();
        for (_, _, subject) in queue {
            if places.len() < quota.subjects {
                places.insert(subject);
            }
        }
        places
    }

    /// Depth limit and amount of what (issuer, subject) has at `time`.
    fn arc(&self, issuer: u8, subject: u8, time: u32) -> Option<(u8, u8)> {
        if !self.places(issuer, time).contains(&subject) {
            return None;
        }
        let mut live = Vec::new();
        for statement in self.statements {
            if let Statement::Certificate {
                issuer: i,
                subject: s,
                serial,
                from,
                until,
                depth,
                amount,
            } = *statement
                && (i, s) == (issuer, subject)
                && from <= time
                && time < until
                && self.retired(issuer).is_none_or(|at| from < at)
            {
                let ended = self.statements.iter().any(|statement| {
                    matches!(*statement, Statement::End { issuer: i, subject: s, serial: n, at, .. }
                        if (i, s, n) == (issuer, subject, serial) && at <= time)
                });
                if !ended {
                    live.push((from, depth, amount));
                }
            }
        }
        let newest = live.iter().map(|cert| cert.0).max()?;
        live.retain(|cert| cert.0 == newest);
        let withdrawn = live.iter().any(|cert| cert.2 == 0);
        (!withdrawn).then(|| {
            (
                live.iter().map(|c| c.1).max().unwrap(),
                live.iter().map(|c| c.2).max().unwrap(),
            )
        })
    }

    /// Membership layers, ignoring the votes or with the given agents void.
    fn member_layers(&self, time: u32, void: &BTreeSet<u8>) -> BTreeMap<u8, u32> {
        let supports = |i: u8, s: u8| {
            (time.saturating_sub(self.rules.grace)..=time).any(|when| self.arc(i, s, when).is_some())
        };
        let arcs: Vec<(u8, u8)> = (0..AGENTS)
            .flat_map(|i| (0..AGENTS).map(move |s| (i, s)))
            .filter(|&(i, s)| supports(i, s))
            .collect();
        let mut layers: BTreeMap<u8, u32> = (0..2).filter(|g| !void.contains(g)).map(|g| (g, 0)).collect();
        loop {
            let mut next = layers.clone();
            for agent in (0..AGENTS).filter(|agent| !void.contains(agent) && *agent > 1) {
                let mut votes: Vec<u32> = arcs
                    .iter()
                    .filter(|arc| arc.1 == agent)
                    .filter_map(|arc| layers.get(&arc.0).copied())
                    .collect();
                votes.sort_unstable();
                if let Some(&vote) = votes.get(usize::from(self.rules.threshold) - 1) {
                    next.insert(agent, vote + 1);
                }
            }
            if next == layers {
                return layers;
            }
            layers = next;
        }
    }

    fn void(&self, time: u32) -> BTreeSet<u8> {
        let mut void: BTreeSet<u8> = (0..AGENTS).filter(|&agent| self.compromised(agent)).collect();
        let electorate = self.member_layers(time, &void);
        let layer = |agent: u8| electorate.get(&agent).copied().unwrap_or(UNREACHED);
        let mut subjects: Vec<u8> = (0..AGENTS).collect();
        subjects.sort_by_key(|&agent| (layer(agent), agent));
        let mut expelled = BTreeSet::new();
        for subject in subjects {
            let voters: BTreeSet<u8> = self
                .statements
                .iter()
                .filter_map(|statement| match *statement {
                    Statement::Expel {
                        voter,
                        subject: s,
                        at,
                    } if s == subject
                        && at <= time
                        && layer(voter) < layer(subject)
                        && !expelled.contains(&voter)
                        && self.retired(voter).is_none_or(|retired| at < retired) =>
                    {
                        Some(voter)
                    }
                    _ => None,
                })
                .collect();
            if voters.len() >= usize::from(self.rules.threshold) {
                expelled.insert(subject);
            }
        }
        void.extend(expelled);
        void
    }

    /// Layers of a set, by plain iteration to the least fixed point.
    fn layers(&self, time: u32, spec: &SetSpec) -> BTreeMap<u8, u32> {
        let void = self.void(time);
        let members = self.member_layers(time, &void);
        let limit = spec.max_depth.unwrap_or(u32::MAX / 4);
        let mut layers: BTreeMap<u8, u32> = spec
            .anchors
            .iter()
            .map(|&a| a as u8)
            .filter(|a| !void.contains(a))
            .map(|a| (a, 0))
            .collect();
        loop {
            let mut next = layers.clone();
            for agent in (0..AGENTS).filter(|agent| !void.contains(agent)) {
                if spec.anchors.contains(&u32::from(agent))
                    || (spec.members_only && !members.contains_key(&agent))
                {
                    continue;
                }
                let mut votes = Vec::new();
                for other in (0..AGENTS).filter(|&other| other != agent) {
                    let Some(&layer) = layers.get(&other).filter(|&&layer| layer < limit) else {
                        continue;
                    };
                    let there = self.arc(other, agent, time);
                    let back = if spec.mutual {
                        self.arc(agent, other, time)
                    } else {
                        None
                    };
                    let offers = there.into_iter().chain(back).map(|(depth, _)| {
                        let floor = if depth == UNLIMITED {
                            0
                        } else {
                            limit.saturating_sub(u32::from(depth))
                        };
                        floor.max(layer + 1)
                    });
                    if let Some(best) = offers.min() {
                        let weight = if layer == 0 { spec.anchor_weight.max(1) } else { 1 };
                        votes.extend(std::iter::repeat_n(best, weight as usize));
                    }
                }
                votes.sort_unstable();
                if let Some(&vote) = votes.get(spec.threshold as usize - 1) {
                    next.insert(agent, vote);
                }
            }
            if next == layers {
                return layers;
            }
            layers = next;
        }
    }

    /// Length of the shortest chain, by trying all walks with what depth they have left.
    fn shortest(&self, time: u32, anchor: u8, target: u8, walk: Walk) -> Option<u32> {
        let void = self.void(time);
        let members = self.member_layers(time, &void);
        if void.contains(&anchor) || void.contains(&target) {
            return None;
        }
        if anchor == target {
            return Some(0);
        }
        let limit = walk.max_depth.unwrap_or(u32::from(AGENTS));
        let mut states = BTreeSet::from([(anchor, u32::MAX)]);
        for steps in 1..=limit {
            let mut next = BTreeSet::new();
            for &(from, left) in &states {
                for to in (0..AGENTS).filter(|&to| to != from && left > 0) {
                    let there = self.arc(from, to, time);
                    let back = if walk.mutual {
                        self.arc(to, from, time)
                    } else {
                        None
                    };
                    for (depth, _) in there.into_iter().chain(back) {
                        let open = !void.contains(&to) && (!walk.members_only || members.contains_key(&to));
                        if open {
                            let depth = if depth == UNLIMITED {
                                u32::MAX
                            } else {
                                u32::from(depth)
                            };
                            let left = if left == u32::MAX {
                                depth
                            } else {
                                (left - 1).min(depth)
                            };
                            next.insert((to, left));
                        }
                    }
                }
            }
            if next.iter().any(|state| state.0 == target) {
                return Some(steps);
            }
            states = next;
        }
        None
    }
}

struct Run {
    ledger: Ledger,
    accepted: Vec<Statement>,
}

impl Run {
    fn new(rules: Rules) -> Self {
        let limits = Limits {
            clock_skew: u64::from(LAST),
            ..Limits::default()
        };
        let mut ledger = Ledger::new(genesis(rules), false, rules.grace, rules.quota, limits, 0);
        // All agents get a node at once, so that specs can name them.
        for agent in 0..AGENTS {
            ledger.intern(key(agent).id()).unwrap();
        }
        ledger.web_mut().need_members();
        Self {
            ledger,
            accepted: Vec::new(),
        }
    }

    fn tell(&mut self, statement: &Statement) -> bool {
        let bytes = encode(statement, self.ledger.collective());
        let before = self.ledger.digest();
        let answer = self.ledger.ingest(&bytes);
        if answer.is_err() {
            assert_eq!(self.ledger.digest(), before, "{answer:?} changed the state");
        } else {
            self.accepted.push(statement.clone());
        }
        answer.is_ok()
    }

    fn agent(&self, node: u32) -> u8 {
        let id = self.ledger.agent(node).unwrap();
        (0..AGENTS).find(|&agent| key(agent).id() == id).unwrap()
    }

    fn node(&self, agent: u8) -> u32 {
        self.ledger.node(&key(agent).id()).unwrap()
    }

    fn layers(&self, set: &LayerSet) -> BTreeMap<u8, u32> {
        let reached = (0..set.layers().len() as u32).filter(|&node| set.layer(node) != UNREACHED);
        reached.map(|node| (self.agent(node), set.layer(node))).collect()
    }

    /// The spec in nodes, from one in agents.
    fn spec(&self, spec: &SetSpec) -> SetSpec {
        let anchors = spec.anchors.iter().map(|&agent| self.node(agent as u8)).collect();
        SetSpec {
            anchors,
            ..spec.clone()
        }
    }
}

fn specs() -> Vec<SetSpec> {
    let base = SetSpec {
        anchors: vec![0, 1],
        threshold: 1,
        anchor_weight: 1,
        max_depth: Some(3),
        mutual: false,
        members_only: true,
    };
    vec![
        base.clone(),
        SetSpec {
            mutual: true,
            ..base.clone()
        },
        SetSpec {
            anchors: vec![4],
            mutual: true,
            max_depth: None,
            ..base.clone()
        },
        SetSpec {
            threshold: 2,
            members_only: false,
            ..base.clone()
        },
        SetSpec {
            threshold: 2,
            anchor_weight: 2,
            members_only: false,
            max_depth: None,
            ..base.clone()
        },
        SetSpec {
            threshold: 2,
            anchor_weight: 2,
            mutual: true,
            members_only: false,
            ..base.clone()
        },
        SetSpec {
            threshold: 3,
            anchor_weight: 1,
            members_only: false,
            anchors: vec![0, 1, 2, 3],
            ..base
        },
    ]
}

fn statement() -> impl Strategy<Value = Statement> {
    let agent = 0..AGENTS;
    let depth = prop_oneof![6 => Just(UNLIMITED), 1 => 0u8..4];
    let amount = prop_oneof![6 => Just(FULL), 1 => Just(0u8), 1 => 1u8..FULL];
    let pair = (agent.clone(), agent.clone()).prop_filter("distinct", |(a, b)| a != b);
    let cert = (pair.clone(), 0u64..3, 0u32..LAST, 1u32..LAST, depth, amount).prop_map(
        |((issuer, subject), serial, from, length, depth, amount)| {
            let until = from + length;
            Statement::Certificate {
                issuer,
                subject,
                serial,
                from,
                until,
                depth,
                amount,
            }
        },
    );
    let long = pair.clone().prop_map(|(issuer, subject)| Statement::Certificate {
        issuer,
        subject,
        serial: 7,
        from: 0,
        until: 2 * LAST,
        depth: UNLIMITED,
        amount: FULL,
    });
    let end = (
        pair.clone(),
        prop_oneof![0u64..3, Just(7)],
        0..LAST,
        any::<bool>(),
    )
        .prop_map(|((issuer, subject), serial, at, by_subject)| Statement::End {
            issuer,
            subject,
            serial,
            at,
            by_subject,
        });
    prop_oneof![
        12 => long,
        12 => cert,
        3 => end,
        1 => (agent.clone(), 0..LAST).prop_map(|(agent, at)| Statement::Retire { agent, at }),
        1 => (2..AGENTS).prop_map(|agent| Statement::Compromise { agent }),
        2 => (pair, 0..LAST).prop_map(|((voter, subject), at)| Statement::Expel { voter, subject, at }),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    let quota = prop_oneof![
        2 => Just(None),
        1 => (1usize..3, 0u32..20).prop_map(|(subjects, window)| Some(Quota { subjects, window })),
    ];
    (1u8..4, prop_oneof![Just(0u32), 0u32..10], quota).prop_map(|(threshold, grace, quota)| Rules {
        threshold,
        grace,
        quota,
    })
}

/// Every maintained set equals the oracle's and a recompute; queries agree with the sets and the oracle.
fn agrees(run: &Run, sets: &[usize], rules: Rules, deep: bool) {
    let oracle = Oracle::new(&run.accepted, rules);
    let graph = run.ledger.web().graph();
    let now = graph.now();
    let void: BTreeSet<u8> = oracle.void(now);
    let kept = run.ledger.web().members().unwrap();
    let members: BTreeSet<u8> = (0..AGENTS).filter(|&a| kept.contains(run.node(a))).collect();
    let expected: BTreeSet<u8> = oracle.member_layers(now, &void).into_keys().collect();
    assert_eq!(members, expected, "members at {now}");
    for (&id, spec) in sets.iter().zip(specs()) {
        let set = run.ledger.web().set(id).unwrap();
        let fresh = LayerSet::new(graph, run.spec(&spec));
        assert_eq!(
            set.layers(),
            fresh.layers(),
            "incremental is recomputed, {spec:?} at {now}"
        );
        assert_eq!(set.len(), fresh.len());
        if !deep {
            continue;
        }
        let layers = run.layers(set);
        assert_eq!(layers, oracle.layers(now, &spec), "{spec:?} at {now}");
        let mut trusted: BTreeSet<u8> = layers.keys().copied().collect();
        trusted.retain(|&agent| oracle.retired(agent).is_none_or(|at| now < at));
        let bits = run.ledger.web().bitmap(id);
        let from_bits: BTreeSet<u8> = (0..AGENTS).filter(|&a| bits[0] >> run.node(a) & 1 == 1).collect();
        assert_eq!(from_bits, trusted);
        for agent in 0..AGENTS {
            assert_eq!(
                run.ledger.web().trusts(id, run.node(agent)),
                trusted.contains(&agent)
            );
        }
        let mut scratch = Scratch::default();
        let walk = Walk {
            max_depth: spec.max_depth,
            mutual: spec.mutual,
            members_only: spec.members_only,
        };
        if spec.threshold == 1 {
            for agent in 0..AGENTS {
                let target = run.node(agent);
                let anchors = run.spec(&spec).anchors;
                let near: Option<u32> = spec
                    .anchors
                    .iter()
                    .filter_map(|&a| oracle.shortest(now, a as u8, agent, walk))
                    .min();
                let found = anchors
                    .iter()
                    .filter_map(|&a| distance(graph, &mut scratch, a, target, walk))
                    .min();
                assert_eq!(found, near, "distance to {agent}, {spec:?} at {now}");
                assert_eq!(
                    near.is_some(),
                    layers.contains_key(&agent),
                    "a chain exists exactly for what is inside"
                );
                let path = witness(graph, &mut scratch, &anchors, target, walk, |a, b| a.cmp(&b));
                assert_eq!(path.as_ref().map(|path| path.len() as u32 - 1), near);
                for path in path.iter() {
                    check_witness(&oracle, run, path, &spec, &void);
                }
            }
            if !graph.has_limits() {
                // Few anchors are searched from, all of them are counted towards: the sizes are the same.
                let all: Vec<u32> = (0..graph.nodes() as u32).collect();
                let mask = [0b1_0101_1011u64];
                for mask in [None, Some(&mask[..])] {
                    let each: Vec<u32> = all
                        .iter()
                        .map(|&a| reach_sizes(graph, &[a], walk, mask, 1)[0])
                        .collect();
                    assert_eq!(reach_sizes(graph, &all, walk, mask, 2), each);
                }
                let mut ends = Vec::new();
                let nodes = reach(
                    graph,
                    &mut scratch,
                    &run.spec(&spec).anchors,
                    walk,
                    Some(&mut ends),
                );
                let mut start = 0;
                let mut found = BTreeMap::new();
                for (layer, &end) in ends.iter().enumerate() {
                    found.extend(
                        nodes[start..end]
                            .iter()
                            .map(|&node| (run.agent(node), layer as u32)),
                    );
                    start = end;
                }
                assert_eq!(found, layers);
            }
        } else if !graph.has_limits() && !spec.mutual {
            let spec = run.spec(&spec);
            let rule = Threshold::new(spec.threshold, spec.anchor_weight, spec.max_depth);
            let mut ends = Vec::new();
            let nodes = reach_threshold(graph, &mut scratch, &spec.anchors, rule, Some(&mut ends));
            let mut start = 0;
            let mut found = BTreeMap::new();
            for (layer, &end) in ends.iter().enumerate() {
                found.extend(
                    nodes[start..end]
                        .iter()
                        .map(|&node| (run.agent(node), layer as u32)),
                );
                start = end;
            }
            assert_eq!(found, layers);
        }
    }
}

/// I10: every arc is live, the chain is short enough and its depth limits hold, no agent occurs twice.
fn check_witness(oracle: &Oracle<'_>, run: &Run, path: &[u32], spec: &SetSpec, void: &BTreeSet<u8>) {
    let agents: Vec<u8> = path.iter().map(|&node| run.agent(node)).collect();
    let now = run.ledger.web().graph().now();
    assert!(spec.anchors.contains(&u32::from(agents[0])));
    assert!(agents.len() as u32 - 1 <= spec.max_depth.unwrap_or(u32::MAX));
    assert_eq!(agents.iter().collect::<BTreeSet<_>>().len(), agents.len());
    for (i, pair) in agents.windows(2).enumerate() {
        let behind = (agents.len() - 2 - i) as u32;
        let there = oracle.arc(pair[0], pair[1], now);
        let back = if spec.mutual {
            oracle.arc(pair[1], pair[0], now)
        } else {
            None
        };
        let usable = |depth: u8| depth == UNLIMITED || u32::from(depth) >= behind;
        assert!(
            there.into_iter().chain(back).any(|(depth, _)| usable(depth)),
            "{agents:?}"
        );
        assert!(!void.contains(&pair[1]));
    }
}

/// How many cases each law is tried with; `PROPTEST_CASES` changes it.
fn cases(cases: u32) -> Config {
    Config {
        cases: std::env::var("PROPTEST_CASES").map_or(cases, |n| n.parse().unwrap()),
        ..Config::default()
    }
}

#[test]
fn every_answer_equals_the_oracle_after_every_event() {
    // I5 in part, I7, I8, I11, I12, I13, I15.
    let script = (rules(), proptest::collection::vec((statement(), 0u32..3), 1..40));
    TestRunner::new(cases(16))
        .run(&script, |(rules, steps)| {
            let mut run = Run::new(rules);
            let sets: Vec<usize> = specs()
                .iter()
                .map(|spec| {
                    let spec = run.spec(spec);
                    run.ledger.web_mut().add_set(spec)
                })
                .collect();
            for (i, (statement, pause)) in steps.iter().enumerate() {
                run.tell(statement);
                agrees(&run, &sets, rules, i % 8 == 7);
                let now = run.ledger.web().graph().now();
                assert!(run.ledger.advance(now + pause));
                agrees(&run, &sets, rules, i + 1 == steps.len());
            }
            // I8: the answer changes at boundaries only, and is right at each second.
            let now = run.ledger.web().graph().now();
            for time in now..LAST * 2 + 12 {
                assert!(run.ledger.advance(time));
                agrees(&run, &sets, rules, time % 10 == 0);
            }
            assert!(!run.ledger.advance(0), "time never goes back");
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_thousand_events_stay_equal_to_a_recompute() {
    // I12 with long scripts, so that compaction and refills of the agenda happen in between.
    let script = (rules(), proptest::collection::vec((statement(), 0u32..2), 1000));
    TestRunner::new(cases(2))
        .run(&script, |(rules, steps)| {
            let mut run = Run::new(rules);
            let sets: Vec<usize> = specs()
                .iter()
                .map(|spec| {
                    let spec = run.spec(spec);
                    run.ledger.web_mut().add_set(spec)
                })
                .collect();
            for (statement, pause) in &steps {
                let now = run.ledger.web().graph().now();
                // Later statements lie later: else all would have expired.
                let statement = match statement.clone() {
                    Statement::Certificate {
                        issuer,
                        subject,
                        serial,
                        from,
                        until,
                        depth,
                        amount,
                    } => {
                        let (from, until) = (from + now, until + now);
                        Statement::Certificate {
                            issuer,
                            subject,
                            serial,
                            from,
                            until,
                            depth,
                            amount,
                        }
                    }
                    Statement::End {
                        issuer,
                        subject,
                        serial,
                        at,
                        by_subject,
                    } => Statement::End {
                        issuer,
                        subject,
                        serial: serial + u64::from(now),
                        at: at + now,
                        by_subject,
                    },
                    Statement::Retire { agent, at } => Statement::Retire {
                        agent,
                        at: at + now + 800,
                    },
                    Statement::Compromise { .. } => continue,
                    Statement::Expel { voter, subject, at } => Statement::Expel {
                        voter,
                        subject,
                        at: at + now,
                    },
                };
                let bytes = encode(&statement, run.ledger.collective());
                let _ = run.ledger.ingest(&bytes);
                for (&id, spec) in sets.iter().zip(specs()) {
                    let fresh = LayerSet::new(run.ledger.web().graph(), run.spec(&spec));
                    assert_eq!(
                        run.ledger.web().set(id).unwrap().layers(),
                        fresh.layers(),
                        "{spec:?} at {now}"
                    );
                }
                assert!(run.ledger.advance(now + pause));
            }
            Ok(())
        })
        .unwrap();
}

fn told(rules: Rules, order: &[Statement]) -> Run {
    let mut run = Run::new(rules);
    for statement in order {
        run.tell(statement);
    }
    run
}

fn trusted(run: &Run, spec: &SetSpec) -> BTreeMap<u8, u32> {
    run.layers(&LayerSet::new(run.ledger.web().graph(), run.spec(spec)))
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn order_and_repetition_of_delivery_do_not_matter(
        rules in rules(),
        (statements, shuffled) in proptest::collection::vec(statement(), 1..30)
            .prop_flat_map(|s| (Just(s.clone()), Just([s.clone(), s].concat()).prop_shuffle())),
        time in 0..LAST,
    ) {
        // I5 and I6.
        let (mut one, mut other) = (told(rules, &statements), told(rules, &shuffled));
        prop_assert_eq!(one.ledger.digest(), other.ledger.digest());
        assert!(one.ledger.advance(time) && other.ledger.advance(time));
        prop_assert_eq!(one.ledger.digest(), other.ledger.digest());
        for spec in specs() {
            prop_assert_eq!(trusted(&one, &spec), trusted(&other, &spec));
        }
        // Delivery by export and batch import is one more order.
        let mut third = Run::new(rules);
        let records = one.ledger.export();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        assert!(third.ledger.advance(time));
        prop_assert!(third.ledger.ingest_all(&records, 2).iter().all(Result::is_ok));
        prop_assert_eq!(one.ledger.digest(), third.ledger.digest());
        for spec in specs() {
            prop_assert_eq!(trusted(&one, &spec), trusted(&third, &spec));
        }
    }

    #[test]
    fn sets_grow_with_depth_shrink_with_threshold_and_layers_bound_distances(
        statements in proptest::collection::vec(statement(), 1..40), time in 0..LAST,
    ) {
        // I1, I2, I3.
        let mut run = told(Rules { threshold: 2, grace: 0, quota: None }, &statements);
        assert!(run.ledger.advance(time));
        for spec in specs() {
            let limits = run.ledger.web().graph().has_limits();
            let sizes = |threshold, max_depth| trusted(&run, &SetSpec { threshold, max_depth, ..spec.clone() });
            for depth in 0..5 {
                let (near, far) = (sizes(spec.threshold, Some(depth)), sizes(spec.threshold, Some(depth + 1)));
                prop_assert!(near.keys().all(|agent| far.contains_key(agent)));
            }
            for threshold in 1..4 {
                let (easy, hard) = (sizes(threshold, Some(3)), sizes(threshold + 1, Some(3)));
                prop_assert!(hard.keys().all(|agent| easy.contains_key(agent)));
            }
            let distances = trusted(&run, &SetSpec { threshold: 1, anchor_weight: 1, ..spec.clone() });
            if spec.anchor_weight == 1 && !limits {
                for (agent, layer) in trusted(&run, &spec) {
                    prop_assert!(distances[&agent] <= layer);
                }
            }
        }
    }

    #[test]
    fn a_certificate_more_never_shrinks_a_set(
        statements in proptest::collection::vec(statement(), 1..30),
        (issuer, subject) in (0..AGENTS, 0..AGENTS), time in 0..LAST,
    ) {
        // I4: no withdrawals, no quota, and the new certificate lasts longest with full trust.
        prop_assume!(issuer != subject);
        let rules = Rules { threshold: 2, grace: 0, quota: None };
        let plain: Vec<Statement> = statements
            .into_iter()
            .filter(|statement| !matches!(statement, Statement::Expel { .. }))
            .filter(|statement| !matches!(statement, Statement::Certificate { amount: 0, .. }))
            .collect();
        let more = Statement::Certificate {
            issuer, subject, serial: 99, from: LAST, until: 3 * LAST, depth: UNLIMITED, amount: FULL,
        };
        let mut before = told(rules, &plain);
        let mut after = told(rules, &[plain, vec![more]].concat());
        let now = LAST + time / 2;
        assert!(before.ledger.advance(now) && after.ledger.advance(now));
        for spec in specs() {
            let (less, more) = (trusted(&before, &spec), trusted(&after, &spec));
            prop_assert!(less.iter().all(|(agent, layer)| more.get(agent).is_some_and(|now| now <= layer)));
        }
        let (g1, g2) = (before.ledger.web().graph(), after.ledger.web().graph());
        for agent in 0..AGENTS {
            let amount = |graph, run: &Run| {
                flow(graph, &[run.node(0), run.node(1)], run.node(agent), FULL.into(), true)
            };
            prop_assert!(amount(g1, &before) <= amount(g2, &after));
        }
    }

    #[test]
    fn an_island_without_anchors_is_never_trusted(statements in proptest::collection::vec(statement(), 1..60)) {
        // I9: agents 5.. only certify each other.
        let inside = |agent: u8| agent >= 5;
        let island: Vec<Statement> = statements
            .into_iter()
            .filter(|statement| match *statement {
                Statement::Certificate { issuer, subject, .. } => inside(issuer) || !inside(subject),
                _ => true,
            })
            .filter(|statement| !matches!(statement, Statement::Certificate { issuer, subject, .. }
                if inside(*issuer) && !inside(*subject)))
            .collect();
        let run = told(Rules { threshold: 1, grace: 0, quota: None }, &island);
        for spec in specs() {
            if spec.anchors.iter().all(|&anchor| anchor < 4) {
                prop_assert!(trusted(&run, &spec).keys().all(|&agent| !inside(agent)));
            }
        }
    }

    #[test]
    fn no_issuer_has_more_subjects_counted_than_its_quota(
        subjects in 1usize..4, window in 0u32..30,
        statements in proptest::collection::vec(statement(), 1..60),
    ) {
        // I15, at every second.
        let quota = Quota { subjects, window };
        let mut run = told(Rules { threshold: 1, grace: 0, quota: Some(quota) }, &statements);
        for time in 0..LAST * 2 {
            assert!(run.ledger.advance(time));
            let mut counted: BTreeMap<u32, usize> = BTreeMap::new();
            for subject in 0..AGENTS {
                for live in run.ledger.live_certificates(run.node(subject)) {
                    *counted.entry(live.issuer).or_default() += 1;
                }
            }
            prop_assert!(counted.values().all(|&count| count <= subjects));
        }
    }

    #[test]
    fn flow_is_the_minimum_cut(statements in proptest::collection::vec(statement(), 1..40), time in 0..LAST) {
        let rules = Rules { threshold: 1, grace: 0, quota: None };
        let mut run = told(rules, &statements);
        assert!(run.ledger.advance(time));
        let oracle = Oracle::new(&run.accepted, rules);
        let void = oracle.void(time);
        let members = oracle.member_layers(time, &void);
        let capacity = |i: u8, s: u8| {
            let open = !void.contains(&i) && !void.contains(&s) && (i == 0 || members.contains_key(&i));
            if open { oracle.arc(i, s, time).map_or(0, |(_, amount)| u32::from(amount)) } else { 0 }
        };
        for target in 1..AGENTS {
            let found = flow(run.ledger.web().graph(), &[run.node(0)], run.node(target), FULL.into(), true);
            let others: Vec<u8> = (1..AGENTS).filter(|&agent| agent != target).collect();
            let cut = |side: u32| {
                let ours: BTreeSet<u8> = others.iter().enumerate().filter(|(i, _)| side >> i & 1 == 1)
                    .map(|(_, &agent)| agent).chain([0]).collect();
                let mut sum = 0;
                for &i in &ours {
                    sum += (0..AGENTS).filter(|s| !ours.contains(s)).map(|s| capacity(i, s)).sum::<u32>();
                }
                sum
            };
            let open = members.contains_key(&target) && !void.contains(&target) && !void.contains(&0);
            let minimum = (0..1u32 << others.len()).map(cut).min().unwrap().min(FULL.into());
            prop_assert_eq!(found, if open { minimum } else { 0 });
        }
    }

    #[test]
    fn any_flipped_bit_is_refused(at in 0usize..251 * 8, seed in 0u8..255) {
        // I14 among others: the collective id is signed, too.
        let mut run = Run::new(Rules { threshold: 1, grace: 0, quota: None });
        let statement = Statement::Certificate {
            issuer: seed % AGENTS, subject: (seed + 1) % AGENTS, serial: 5, from: 0, until: 50, depth: 9, amount: 80,
        };
        let mut bytes = encode(&statement, run.ledger.collective());
        bytes[at / 8] ^= 1 << (at % 8);
        let before = run.ledger.digest();
        prop_assert!(run.ledger.ingest(&bytes).is_err());
        prop_assert_eq!(run.ledger.digest(), before);
        prop_assert!(run.tell(&statement));
    }
}
