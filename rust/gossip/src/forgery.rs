//! What a member of the collective can try with its own key and with what it overheard: no effect, and a counter.
use std::sync::Arc;
use std::time::Duration;

use pandacore_matching::Rng;
use pandacore_trust::KeyPair;

use crate::announcement::Announcement;
use crate::batch::{self, Record, RecordKind};
use crate::host::{Claim, Crypto, Ed25519, HostId, HostRecord, Short, Sig};
use crate::node::{Config, Input, Node, Output, Reject, StopReason};
use crate::store::Digest;
use crate::swim::State;
use crate::wire::{Builder, FRAME_HEADER, Frame, Kind, Place, Probe, Update};

const HOME: [u8; 32] = [1; 32];
const ABROAD: [u8; 32] = [2; 32];

fn crypto(key: u8) -> Arc<dyn Crypto> {
    Arc::new(Ed25519(KeyPair::from_seed(&[key; 32])))
}

fn record(key: u8, epoch: u32, instance: u64) -> HostRecord {
    HostRecord {
        host: crypto(key).id(),
        epoch,
        incarnation: 0,
        instance,
        address: ([127, 0, 0, 1], 1000 + u16::from(key)).into(),
        other: None,
        left: false,
        sig: Sig([[0; 32]; 2]),
    }
    .signed(&HOME, &*crypto(key))
}

fn batch(key: u8, collective: &[u8; 32], epoch: u32, first: u64, name: &str) -> Vec<u8> {
    let payload = Announcement {
        name,
        ..Announcement::empty()
    }
    .encode(["a.b"])
    .unwrap();
    let record = Record {
        kind: RecordKind::ANNOUNCEMENT,
        withdrawn: false,
        key: [9; 32],
        payload: &payload,
    };
    batch::sign(&*crypto(key), collective, epoch, first, 1, &[record])
}

/// The host under attack, which knows an honest host (key 2, epoch 2) and the attacker (key 3).
struct Victim {
    node: Node,
    rng: Rng,
    now: Duration,
    out: Vec<Output>,
    honest: HostId,
    attacker: HostId,
}

/// What an attack must not change.
type Snapshot = (Vec<(HostId, State, (u32, u32))>, Digest, usize, (u32, u32));

impl Victim {
    fn new() -> Self {
        let (mut rng, mut out) = (Rng::new(1), Vec::new());
        let node = Node::new(
            Config::default(),
            HOME,
            crypto(1),
            record(1, 5, 1),
            Vec::new(),
            Duration::ZERO,
            &mut rng,
            &mut out,
        );
        let mut victim = Self {
            node,
            rng,
            now: Duration::ZERO,
            out,
            honest: crypto(2).id(),
            attacker: crypto(3).id(),
        };
        for key in [2, 3] {
            let record = record(key, 2, u64::from(key));
            victim
                .step(Input::PeerUp {
                    record,
                    datagram: 1_178,
                })
                .unwrap();
        }
        let bytes = batch(2, &HOME, 2, 1, "honest");
        victim.frame(Kind::Batch, &bytes).unwrap();
        let (agent, _) = victim.named();
        assert_eq!(agent, "honest");
        victim
    }

    fn step(&mut self, input: Input<'_>) -> Result<(), Reject> {
        self.now += Duration::from_millis(1);
        self.out.clear();
        self.node.step(self.now, &mut self.rng, input, &mut self.out)
    }

    /// A frame that the attacker sends.
    fn frame(&mut self, kind: Kind, body: &[u8]) -> Result<(), Reject> {
        let from = self.attacker;
        let bytes = Builder::new(kind).raw(body).done();
        self.step(Input::Stream { from, bytes: &bytes })
    }

    /// News in a datagram of the attacker.
    fn news(&mut self, update: Update) -> Result<(), Reject> {
        let from = self.attacker;
        let bytes = Builder::new(Kind::Probe)
            .item(&Probe::Gossip)
            .item(&update)
            .done();
        self.step(Input::Datagram { from, bytes: &bytes })
    }

    fn named(&self) -> (String, HostId) {
        let agent = self.node.replica().agent(&HOME, &[9; 32]).unwrap();
        (agent.announcement.name.to_owned(), agent.host)
    }

    fn snapshot(&self) -> Snapshot {
        let members = self
            .node
            .members()
            .map(|m| (m.record.host, m.state, m.record.stamp()));
        let rows = self.node.replica().rows();
        (
            members.collect(),
            self.node.root(),
            rows,
            self.node.record().stamp(),
        )
    }

    fn refused(&self, why: Reject) -> u64 {
        self.node.counters().rejects.get(&why).copied().unwrap_or(0)
    }

    /// Makes the attack; it must change nothing and be counted under `why`.
    fn withstands(&mut self, why: Reject, attack: impl FnOnce(&mut Self)) {
        let (before, counted) = (self.snapshot(), self.refused(why));
        attack(self);
        assert_eq!(self.snapshot(), before);
        assert_eq!(
            self.refused(why),
            counted + 1,
            "{:?}",
            self.node.counters().rejects
        );
        self.node.verify();
        self.node.replica().verify();
    }
}

#[test]
fn a_death_cannot_be_forged() {
    let mut victim = Victim::new();
    let honest = victim.honest;
    // In the name of a host that did not say so: the victim's own, and a third one's.
    let mut in_anothers_name = Claim::by(&*crypto(3), &HOME, &crypto(3).id(), (2, 0));
    in_anothers_name.accuser = honest.short();
    victim.withstands(Reject::Signature, |v| {
        let mut claim = Claim::by(&*crypto(3), &HOME, &honest, (2, 0));
        claim.sig = Sig([[7; 32]; 2]);
        v.news(Update::Claim(claim)).unwrap();
    });
    victim.withstands(Reject::FutureStamp, |v| {
        let claim = Claim::by(&*crypto(3), &HOME, &honest, (2, 1));
        v.news(Update::Claim(claim)).unwrap();
    });
    victim.withstands(Reject::Signature, |v| {
        let claim = Claim::by(&*crypto(3), &ABROAD, &honest, (2, 0));
        v.news(Update::Claim(claim)).unwrap();
    });
    let before = victim.snapshot();
    victim.news(Update::Claim(in_anothers_name)).unwrap();
    assert_eq!(victim.snapshot(), before, "nobody accuses itself");
    // A true claim of the attacker is one accuser, however often it comes: a suspect, and no more.
    for _ in 0..100 {
        let claim = Claim::by(&*crypto(3), &HOME, &honest, (2, 0));
        victim.news(Update::Claim(claim)).unwrap();
    }
    assert_eq!(victim.node.state(&honest), Some(State::Suspect));
    // And one answer of the accused ends it.
    let answer = HostRecord {
        incarnation: 1,
        ..record(2, 2, 2)
    };
    victim
        .news(Update::Host(answer.signed(&HOME, &*crypto(2))))
        .unwrap();
    assert_eq!(victim.node.state(&honest), Some(State::Alive));
    assert_eq!(victim.node.counters().deaths, 0);
}

#[test]
fn a_host_record_cannot_be_forged_or_brought_from_elsewhere() {
    let mut victim = Victim::new();
    let goodbye = HostRecord {
        incarnation: 3,
        left: true,
        ..record(2, 2, 2)
    };
    for (key, collective) in [(3, &HOME), (2, &ABROAD)] {
        victim.withstands(Reject::Signature, |v| {
            let forged = goodbye.clone().signed(collective, &*crypto(key));
            v.news(Update::Host(forged)).unwrap();
        });
    }
    // A stranger that never joined.
    victim.withstands(Reject::Signature, |v| {
        let stranger = record(4, 1, 4).signed(&ABROAD, &*crypto(4));
        v.news(Update::Host(stranger)).unwrap();
    });
    // An earlier record that its host did sign.
    let before = victim.snapshot();
    victim.news(Update::Host(record(2, 1, 77))).unwrap();
    assert_eq!(victim.snapshot(), before);
}

#[test]
fn rows_cannot_be_forged_replayed_or_brought_from_elsewhere() {
    let mut victim = Victim::new();
    // The attacker writes into the honest host's log.
    let mut forged = batch(3, &HOME, 2, 2, "forged");
    forged[..32].copy_from_slice(&victim.honest.0);
    victim.withstands(Reject::Signature, |v| {
        assert_eq!(v.frame(Kind::Batch, &forged), Err(Reject::Signature));
    });
    victim.withstands(Reject::Signature, |v| {
        let foreign = batch(2, &ABROAD, 2, 2, "foreign");
        assert_eq!(v.frame(Kind::Batch, &foreign), Err(Reject::Signature));
    });
    victim.withstands(Reject::StaleEpoch, |v| {
        let earlier = batch(2, &HOME, 1, 2, "earlier");
        assert_eq!(v.frame(Kind::Batch, &earlier), Err(Reject::StaleEpoch));
    });
    // Replayed after the host has written anew.
    victim
        .frame(Kind::Batch, &batch(2, &HOME, 2, 2, "changed"))
        .unwrap();
    assert_eq!(victim.named().0, "changed");
    let before = victim.snapshot();
    for _ in 0..10 {
        victim
            .frame(Kind::Batch, &batch(2, &HOME, 2, 1, "honest"))
            .unwrap();
        victim
            .frame(Kind::Pulled, &batch(2, &HOME, 2, 1, "honest"))
            .unwrap();
    }
    assert_eq!(victim.snapshot(), before);
    assert_eq!(victim.node.counters().pushed_again, 10);
    assert_eq!(victim.named(), ("changed".to_owned(), victim.honest));
}

#[test]
fn a_peer_that_goes_on_is_cut_off() {
    let mut victim = Victim::new();
    let attacker = victim.attacker;
    let mut closed = 0;
    for _ in 0..200 {
        let _ = victim.frame(Kind::Batch, &[0; 50]);
        closed += victim
            .out
            .iter()
            .filter(|o| **o == Output::Close { peer: attacker })
            .count();
    }
    assert!((1..=4).contains(&closed), "{closed}");
    assert_eq!(victim.refused(Reject::Malformed), 200);
}

#[test]
fn a_declared_length_takes_no_memory_and_there_is_nothing_to_inflate() {
    for declared in [crate::wire::MAX_FRAME as u32, 1 << 30, u32::MAX] {
        let mut header = [0; FRAME_HEADER];
        header[..2].copy_from_slice(&[crate::wire::VERSION, Kind::Pulled as u8]);
        header[4..8].copy_from_slice(&declared.to_le_bytes());
        assert!(Frame::len_of(&header).is_err(), "{declared}");
    }
    // The most that a frame can hold: what it becomes is no larger than what came.
    let mut victim = Victim::new();
    let body = vec![0xff; crate::wire::MAX_FRAME - FRAME_HEADER];
    for kind in (0..=255u8).filter_map(Kind::of) {
        let before = victim.snapshot();
        let _ = victim.frame(kind, &body);
        assert_eq!(victim.snapshot(), before, "{kind:?}");
    }
    assert!(victim.node.sizes().iter().all(|&size| size < 100));
}

#[test]
fn a_host_stops_when_its_key_was_started_again_and_not_for_an_earlier_start() {
    let mut victim = Victim::new();
    let before = victim.snapshot();
    victim.news(Update::Host(record(1, 4, u64::MAX))).unwrap();
    assert_eq!(victim.snapshot(), before);
    victim.news(Update::Host(record(1, 6, 3))).unwrap();
    assert!(
        victim
            .out
            .contains(&Output::Stop(StopReason::KeyInUse { epoch: 6 }))
    );
    assert_eq!((victim.node.record().epoch, victim.node.wake()), (5, None));
}

#[test]
fn questions_that_cost_work_are_answered_only_so_often() {
    let mut victim = Victim::new();
    for (kind, most) in [(Kind::WantHosts, 50), (Kind::Pull, 2_000), (Kind::MoreCells, 200)] {
        let mut answered = 0;
        for _ in 0..most + 10 {
            answered += u32::from(victim.frame(kind, &[]) != Err(Reject::Rate));
        }
        assert_eq!(answered, most, "{kind:?}");
        // The next span is a new one.
        victim.now += Duration::from_secs(11);
        assert_ne!(victim.frame(kind, &[]), Err(Reject::Rate), "{kind:?}");
    }
    let counted = victim.refused(Reject::Rate);
    assert_eq!(counted, 30);
}

#[test]
fn places_that_nobody_has_take_bounded_memory_and_time() {
    let mut victim = Victim::new();
    let mut next = 1 << 40;
    for _ in 0..4 {
        let mut frame = Builder::new(Kind::VectorReply).item(&true);
        for _ in 0..50_000 {
            next += 1;
            frame.push(&Place {
                host: Short(next),
                epoch: 1,
                incarnation: 0,
                applied: 9,
            });
        }
        let body = frame.done()[FRAME_HEADER..].to_vec();
        victim.frame(Kind::VectorReply, &body).unwrap();
    }
    let [.., pulls, _, places, _] = victim.node.sizes();
    assert_eq!((pulls, places), (1, 1 << 16), "200,000 were claimed");
    // And saying that a pull has ended, when there was none, is no way to have them all looked at again and again.
    for _ in 0..1_000 {
        victim.frame(Kind::PullEnd, &[1]).unwrap();
    }
    victim.node.verify();
}

#[test]
fn one_host_cannot_take_all_the_help() {
    let mut victim = Victim::new();
    let (from, target) = (victim.attacker, victim.honest);
    for number in 0..100 {
        let bytes = Builder::new(Kind::Probe)
            .item(&Probe::PingReq(number, target))
            .done();
        victim.step(Input::Datagram { from, bytes: &bytes }).unwrap();
    }
    let [_, relays, ..] = victim.node.sizes();
    assert_eq!(relays, 8);
}

/// One accuser who suspects everybody is believed for a few: as many as the square root of the number of hosts.
#[test]
fn one_accuser_cannot_make_everybody_suspect() {
    let mut victim = Victim::new();
    let all: Vec<u8> = (10..109).collect();
    for &key in &all {
        let record = record(key, 2, u64::from(key));
        victim
            .step(Input::PeerUp {
                record,
                datagram: 1_178,
            })
            .unwrap();
    }
    for &key in &all {
        let claim = Claim::by(&*crypto(3), &HOME, &crypto(key).id(), (2, 0));
        victim.news(Update::Claim(claim)).unwrap();
    }
    let suspects = victim
        .node
        .members()
        .filter(|m| m.state == State::Suspect)
        .count();
    assert_eq!(suspects, 11, "of 102 hosts");
    assert_eq!(victim.refused(Reject::TooManyClaims), 88);
    victim.node.verify();
}
