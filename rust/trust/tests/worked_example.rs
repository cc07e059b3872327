//! The worked example of the design, computed by hand: genesis {g1, g2}, t = 2, eleven certificates.
#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in its helpers")]

use pandacore_trust::{
    AgentId, Certificate, FULL, Genesis, KeyPair, LayerSet, Ledger, Limits, Refusal, Revocation, Scratch,
    SetSpec, UNLIMITED, UNREACHED, Walk, distance, reach, witness,
};

const NAMES: [&str; 8] = ["g1", "g2", "a", "b", "c", "d", "e", "f"];
const CERTS: [(&str, &str); 11] = [
    ("g1", "a"),
    ("g2", "a"),
    ("g1", "b"),
    ("a", "b"),
    ("a", "c"),
    ("b", "c"),
    ("b", "d"),
    ("c", "d"),
    ("c", "e"),
    ("d", "e"),
    ("a", "f"),
];

fn key(name: &str) -> KeyPair {
    KeyPair::from_seed(&[NAMES.iter().position(|&known| known == name).unwrap() as u8 + 1; 32])
}

struct Example {
    ledger: Ledger,
}

impl Example {
    fn empty(latched: bool, grace: u32) -> Self {
        let genesis = Genesis::new(vec![key("g1").id(), key("g2").id()], 2, "worked".into());
        Self {
            ledger: Ledger::new(genesis, latched, grace, None, Limits::default(), 0),
        }
    }

    fn with_ends(latched: bool, grace: u32, until: impl Fn(&str, &str) -> u64) -> Self {
        let mut example = Self::empty(latched, grace);
        for (issuer, subject) in CERTS {
            let record = example.certificate(issuer, subject, until(issuer, subject));
            example.ledger.ingest(&record).unwrap();
        }
        example.ledger.web_mut().need_members();
        example
    }

    fn new() -> Self {
        Self::with_ends(false, 0, |_, _| 1000)
    }

    fn certificate(&self, issuer: &str, subject: &str, until: u64) -> Vec<u8> {
        let (collective, id) = (self.ledger.collective(), key(subject).id());
        Certificate::issue(collective, &key(issuer), id, 1, 0, until, UNLIMITED, FULL)
            .consented(&key(subject))
            .encode()
    }

    fn node(&self, name: &str) -> u32 {
        self.ledger.node(&key(name).id()).unwrap()
    }

    fn name(&self, node: u32) -> &'static str {
        let agent: AgentId = self.ledger.agent(node).unwrap();
        NAMES.iter().find(|name| key(name).id() == agent).unwrap()
    }

    fn names(&self, nodes: impl IntoIterator<Item = u32>) -> Vec<&'static str> {
        let mut names: Vec<_> = nodes.into_iter().map(|node| self.name(node)).collect();
        names.sort_by_key(|name| NAMES.iter().position(|known| known == name));
        names
    }

    fn anchors(&self, names: &[&str]) -> Vec<u32> {
        names.iter().map(|name| self.node(name)).collect()
    }

    /// What the path rule accepts, without the anchors and retired keys.
    fn path(&self, anchors: &[&str], depth: u32, mutual: bool) -> Vec<&'static str> {
        let walk = Walk {
            max_depth: Some(depth),
            mutual,
            members_only: true,
        };
        let graph = self.ledger.web().graph();
        let mut scratch = Scratch::default();
        let nodes = reach(graph, &mut scratch, &self.anchors(anchors), walk, None);
        let names = self.names(nodes.iter().copied().filter(|&node| !graph.is_retired(node)));
        names.into_iter().filter(|name| !anchors.contains(name)).collect()
    }

    fn threshold(&self, anchor_weight: u32, depth: Option<u32>) -> Vec<(&'static str, u32)> {
        let spec = SetSpec {
            anchors: self.anchors(&["g1", "g2"]),
            threshold: 2,
            anchor_weight,
            max_depth: depth,
            mutual: false,
            members_only: false,
        };
        let set = LayerSet::new(self.ledger.web().graph(), spec);
        let reached =
            (0..set.layers().len() as u32).filter(|&node| ![0, UNREACHED].contains(&set.layer(node)));
        self.names(reached.clone())
            .into_iter()
            .map(|name| (name, set.layer(self.node(name))))
            .collect()
    }

    fn members(&self) -> Vec<&'static str> {
        let members = self.ledger.web().members().unwrap();
        self.names((0..self.ledger.agents().len() as u32).filter(|&node| members.contains(node)))
    }

    fn at(mut self, time: u32) -> Self {
        assert!(self.ledger.advance(time));
        self
    }

    fn revoke(&mut self, revocation: Revocation) {
        self.ledger.ingest(&revocation.encode()).unwrap();
    }
}

const G: [&str; 2] = ["g1", "g2"];

#[test]
fn members_have_two_certifiers_among_members() {
    assert_eq!(Example::new().members(), ["g1", "g2", "a", "b", "c", "d", "e"]);
}

#[test]
fn path_rule_accepts_by_distance() {
    let example = Example::new();
    assert_eq!(example.path(&G, 1, false), ["a", "b"]);
    assert_eq!(example.path(&G, 2, false), ["a", "b", "c", "d"]);
    assert_eq!(example.path(&G, 3, false), ["a", "b", "c", "d", "e"]);
    let graph = example.ledger.web().graph();
    let walk = Walk {
        max_depth: None,
        mutual: false,
        members_only: true,
    };
    let mut scratch = Scratch::default();
    let mut far = |name| distance(graph, &mut scratch, example.node("g1"), example.node(name), walk);
    assert_eq!(
        [far("a"), far("b"), far("c"), far("d"), far("e"), far("f")],
        [Some(1), Some(1), Some(2), Some(2), Some(3), None]
    );
}

#[test]
fn threshold_rule_with_anchor_weight_one() {
    let example = Example::new();
    assert_eq!(
        example.threshold(1, Some(5)),
        [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)]
    );
    assert_eq!(example.threshold(1, Some(3)), [("a", 1), ("b", 2), ("c", 3)]);
}

#[test]
fn threshold_rule_with_anchor_weight_t() {
    let example = Example::new();
    assert_eq!(
        example.threshold(2, None),
        [("a", 1), ("b", 1), ("c", 2), ("d", 3), ("e", 4)]
    );
    assert_eq!(
        example.threshold(2, Some(3)),
        [("a", 1), ("b", 1), ("c", 2), ("d", 3)]
    );
}

#[test]
fn self_anchor_sees_what_it_vouches_for() {
    let example = Example::new();
    assert_eq!(example.path(&["b"], 1, false), ["c", "d"]);
    assert_eq!(example.path(&["b"], 2, false), ["c", "d", "e"]);
    assert_eq!(example.path(&["b"], 1, true), ["g1", "a", "c", "d"]);
    assert_eq!(example.path(&["b"], 2, true), ["g1", "g2", "a", "c", "d", "e"]);
}

#[test]
fn witness_is_the_shortest_chain_that_comes_first_by_member_id() {
    let example = Example::new();
    let ledger = &example.ledger;
    let by_name = |a: u32, b: u32| {
        let at = |node| NAMES.iter().position(|&name| name == example.name(node));
        at(a).cmp(&at(b))
    };
    let walk = Walk {
        max_depth: Some(3),
        mutual: false,
        members_only: true,
    };
    let mut scratch = Scratch::default();
    let graph = ledger.web().graph();
    let from = [example.node("g1")];
    let path = witness(graph, &mut scratch, &from, example.node("e"), walk, by_name).unwrap();
    assert_eq!(
        path.iter().map(|&node| example.name(node)).collect::<Vec<_>>(),
        ["g1", "a", "c", "e"]
    );
    let backwards = |a, b| by_name(b, a);
    let path = witness(graph, &mut scratch, &from, example.node("e"), walk, backwards).unwrap();
    assert_eq!(
        path.iter().map(|&node| example.name(node)).collect::<Vec<_>>(),
        ["g1", "b", "d", "e"]
    );
    let short = Walk {
        max_depth: Some(2),
        ..walk
    };
    assert_eq!(
        witness(graph, &mut scratch, &from, example.node("e"), short, by_name),
        None
    );
}

fn end_g2_a(example: &mut Example) {
    let collective = example.ledger.collective();
    example.revoke(Revocation::certificate(
        collective,
        &key("g2"),
        key("g2").id(),
        key("a").id(),
        1,
        0,
    ));
}

#[test]
fn revoking_one_certificate_ends_continuous_membership_in_a_cascade() {
    let mut example = Example::new();
    end_g2_a(&mut example);
    assert_eq!(example.members(), G);
    assert!(example.path(&G, 3, false).is_empty());
}

#[test]
fn latched_membership_survives_the_revocation() {
    let mut example = Example::with_ends(true, 0, |_, _| 1000);
    end_g2_a(&mut example);
    assert_eq!(example.path(&G, 3, false), ["a", "b", "c", "d", "e"]);
}

#[test]
fn grace_delays_the_end_of_membership() {
    let mut example = Example::with_ends(false, 50, |_, _| 1000).at(10);
    let collective = example.ledger.collective();
    example.revoke(Revocation::certificate(
        collective,
        &key("g2"),
        key("g2").id(),
        key("a").id(),
        1,
        10,
    ));
    assert_eq!(example.path(&G, 3, false), ["a", "b", "c", "d", "e"]);
    let example = example.at(59);
    assert_eq!(example.path(&G, 3, false), ["a", "b", "c", "d", "e"]);
    let example = example.at(60);
    assert!(example.path(&G, 3, false).is_empty());
}

#[test]
fn compromised_key_carries_nothing() {
    let mut example = Example::new();
    let record = Revocation::compromised(example.ledger.collective(), &key("b"), 0);
    example.revoke(record);
    assert_eq!(example.path(&G, 3, false), ["a"]);
}

#[test]
fn retired_key_carries_old_paths_but_is_not_trusted() {
    let mut example = Example::new().at(500);
    let record = Revocation::retire(example.ledger.collective(), &key("b"), 500);
    example.revoke(record);
    assert_eq!(example.path(&G, 3, false), ["a", "c", "d", "e"]);
}

#[test]
fn expiry_is_half_open() {
    let until = |issuer: &str, subject: &str| {
        if (issuer, subject) == ("g1", "b") {
            100
        } else {
            1000
        }
    };
    let example = Example::with_ends(false, 0, until).at(99);
    assert_eq!(example.path(&G, 3, false), ["a", "b", "c", "d", "e"]);
    let example = example.at(100);
    assert_eq!(example.path(&G, 3, false), ["a"]);
}

#[test]
fn expelled_by_two_members_of_lower_layers() {
    let mut example = Example::new();
    let collective = example.ledger.collective();
    // d is at membership layer 4; c and b are below it, e is above it.
    example.revoke(Revocation::expel(collective, &key("c"), key("d").id(), 0));
    example.revoke(Revocation::expel(collective, &key("e"), key("d").id(), 0));
    assert_eq!(example.members(), ["g1", "g2", "a", "b", "c", "d", "e"]);
    example.revoke(Revocation::expel(collective, &key("b"), key("d").id(), 0));
    assert_eq!(example.members(), ["g1", "g2", "a", "b", "c"]);
    assert_eq!(example.path(&G, 3, false), ["a", "b", "c"]);
    // An expelled voter's votes do not count: a and g1 expel b, so d is back, though without a member's support.
    example.revoke(Revocation::expel(collective, &key("a"), key("b").id(), 0));
    example.revoke(Revocation::expel(collective, &key("g1"), key("b").id(), 0));
    assert_eq!(
        example
            .ledger
            .web()
            .expelled()
            .map(|node| example.name(node))
            .collect::<Vec<_>>(),
        ["b"]
    );
    assert_eq!(example.members(), ["g1", "g2", "a"]);
}

#[test]
fn refusals_leave_the_state_as_it_was() {
    let mut example = Example::new().at(100);
    let collective = example.ledger.collective();
    let (issuer, subject) = (key("e"), key("f"));
    let cert = |from, until| {
        Certificate::issue(collective, &issuer, subject.id(), 9, from, until, UNLIMITED, FULL)
            .consented(&subject)
    };
    let good = cert(100, 200);
    let mut forged = good;
    forged.not_after += 1;
    let mut unconsented = good;
    unconsented.consent = good.signature;
    let mut foreign = good;
    foreign.collective[0] ^= 1;
    let own =
        Certificate::issue(collective, &issuer, issuer.id(), 9, 100, 200, UNLIMITED, FULL).consented(&issuer);
    let mut not_a_key = good;
    not_a_key.issuer = AgentId([0; 32]);
    let mut flagged = good.encode();
    flagged[1 + 32 * 3 + 26] = 1;
    let mut stranger = Revocation::certificate(collective, &key("a"), key("a").id(), key("f").id(), 1, 50);
    stranger.signer = key("g1").id();
    let mut unsigned = Revocation::retire(collective, &issuer, 100);
    unsigned.at += 1;
    let known = example.certificate("g1", "a", 1000);
    let cases: Vec<(Vec<u8>, Refusal)> = vec![
        (forged.encode(), Refusal::BadSignature),
        (unconsented.encode(), Refusal::BadConsent),
        (foreign.encode(), Refusal::ForeignCollective),
        (own.encode(), Refusal::SelfStatement),
        (not_a_key.encode(), Refusal::NotAKey),
        (cert(50, 100).encode(), Refusal::Expired),
        (cert(161, 300).encode(), Refusal::NotYetValid),
        (cert(200, 200).encode(), Refusal::BadInterval),
        (cert(100, u64::MAX).encode(), Refusal::BadInterval),
        (
            cert(100, 500 * 86_400).encode(),
            Refusal::LifetimeTooLong { max: 400 * 86_400 },
        ),
        (known, Refusal::Duplicate),
        (flagged, Refusal::UnknownKind(1)),
        (vec![], Refusal::Malformed { len: 0 }),
        (good.encode()[..250].to_vec(), Refusal::Malformed { len: 250 }),
        (
            [good.encode(), vec![0; 1 << 20]].concat(),
            Refusal::Malformed { len: 252 + (1 << 20) },
        ),
        (vec![77; 100], Refusal::UnknownKind(77)),
        (stranger.encode(), Refusal::NotAuthorised),
        (unsigned.encode(), Refusal::BadSignature),
        (
            Revocation::expel(collective, &issuer, subject.id(), 161).encode(),
            Refusal::NotYetValid,
        ),
        (
            Revocation::expel(collective, &issuer, issuer.id(), 1).encode(),
            Refusal::SelfStatement,
        ),
    ];
    let before = (
        example.ledger.digest(),
        example.ledger.export(),
        example.members(),
        example.ledger.agents().len(),
    );
    for (bytes, refusal) in &cases {
        assert_eq!(example.ledger.ingest(bytes), Err(*refusal));
    }
    let all: Vec<&[u8]> = cases.iter().map(|(bytes, _)| &bytes[..]).collect();
    let verdicts = example.ledger.ingest_all(&all, 2);
    assert_eq!(
        verdicts,
        cases.iter().map(|(_, refusal)| Err(*refusal)).collect::<Vec<_>>()
    );
    let after = (
        example.ledger.digest(),
        example.ledger.export(),
        example.members(),
        example.ledger.agents().len(),
    );
    assert_eq!(before, after);
    assert_eq!(
        example.ledger.ingest_all(&[&good.encode(), &good.encode()], 2),
        [Ok(()), Err(Refusal::Duplicate)]
    );
}

#[test]
fn one_signer_cannot_fill_the_store() {
    let genesis = Genesis::new(vec![key("g1").id()], 1, "small".into());
    let limits = Limits {
        per_signer: 2,
        ..Limits::default()
    };
    let mut ledger = Ledger::new(genesis, false, 0, None, limits, 0);
    let collective = ledger.collective();
    let mut tell = |serial, until| {
        let cert = Certificate::issue(
            collective,
            &key("g1"),
            key("a").id(),
            serial,
            0,
            until,
            UNLIMITED,
            FULL,
        );
        ledger.ingest(&cert.consented(&key("a")).encode())
    };
    assert_eq!([tell(1, 50), tell(2, 60)], [Ok(()), Ok(())]);
    assert_eq!(tell(3, 60), Err(Refusal::QuotaExceeded { max: 2 }));
    // Expired statements make room.
    assert!(ledger.advance(50));
    let cert = Certificate::issue(collective, &key("g1"), key("a").id(), 4, 0, 80, UNLIMITED, FULL);
    assert_eq!(ledger.ingest(&cert.consented(&key("a")).encode()), Ok(()));
}

#[test]
fn a_renewal_within_the_grace_period_is_not_a_second_voter() {
    let mut example = Example::empty(false, 10);
    example
        .ledger
        .ingest(&example.certificate("g1", "a", 20))
        .unwrap();
    let mut example = example.at(22);
    let collective = example.ledger.collective();
    let renewed = Certificate::issue(collective, &key("g1"), key("a").id(), 2, 22, 90, UNLIMITED, FULL);
    example
        .ledger
        .ingest(&renewed.consented(&key("a")).encode())
        .unwrap();
    example.ledger.web_mut().need_members();
    assert_eq!(example.members(), ["g1", "g2"]);
    example
        .ledger
        .ingest(&example.certificate("g2", "a", 90))
        .unwrap();
    assert_eq!(example.members(), ["g1", "g2", "a"]);
}
