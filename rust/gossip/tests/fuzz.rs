//! Every decoder under mutated frames: real ones of every kind, changed, cut, spliced and lied about.
//!
//! `PANDACORE_FUZZ_SECONDS` sets the time for each kind of frame; by default it is short.
#![expect(
    clippy::disallowed_methods,
    reason = "the time to spend is measured, nothing else"
)]
#![expect(clippy::unwrap_used, reason = "a failure here fails the test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pandacore_gossip::{
    Announcement, Command, Config, Crypto, Ed25519, Frame, HostId, HostRecord, Input, Node, Output,
    RecordKind, Sig, State, read_hello,
};
use pandacore_matching::Rng;
use pandacore_trust::KeyPair;

const HOME: [u8; 32] = [1; 32];

fn node(key: u8, rng: &mut Rng) -> Node {
    let crypto: Arc<dyn Crypto> = Arc::new(Ed25519(KeyPair::from_seed(&[key; 32])));
    let record = HostRecord {
        host: crypto.id(),
        epoch: 1,
        incarnation: 0,
        instance: u64::from(key),
        address: ([127, 0, 0, 1], 1000 + u16::from(key)).into(),
        other: None,
        left: false,
        sig: Sig([[0; 32]; 2]),
    };
    Node::new(
        // Every frame shall reach its decoder.
        Config {
            rate_span: Duration::ZERO,
            ..Config::default()
        },
        HOME,
        crypto,
        record,
        Vec::new(),
        Duration::ZERO,
        rng,
        &mut Vec::new(),
    )
}

/// Three hosts that talk for a while, and every kind of frame they sent to the first.
fn talk(rng: &mut Rng) -> (Vec<Node>, BTreeMap<u8, Vec<Vec<u8>>>, Duration) {
    let mut nodes: Vec<Node> = (1..=3).map(|key| node(key, rng)).collect();
    let ids: Vec<HostId> = nodes.iter().map(|n| n.record().host).collect();
    let mut corpus: BTreeMap<u8, Vec<Vec<u8>>> = BTreeMap::new();
    let mut waiting: Vec<(usize, Output)> = Vec::new();
    let mut now = Duration::ZERO;
    let mut out = Vec::new();
    for a in 0..3 {
        for b in (0..3).filter(|&b| b != a) {
            let record = nodes[b].record().clone();
            nodes[a]
                .step(
                    now,
                    rng,
                    Input::PeerUp {
                        record,
                        datagram: 1_178,
                    },
                    &mut out,
                )
                .unwrap();
            waiting.extend(out.drain(..).map(|o| (a, o)));
        }
    }
    for round in 0..2_000u64 {
        for (from, output) in std::mem::take(&mut waiting) {
            let (to, bytes, datagram) = match &output {
                Output::Datagram { to, bytes } => (*to, bytes.clone(), true),
                Output::Stream { to, bytes, .. } => (*to, bytes.to_vec(), false),
                _ => continue,
            };
            let to = ids.iter().position(|id| *id == to).unwrap();
            if to == 0 {
                let kept = corpus.entry(bytes[1]).or_default();
                if kept.len() < 40 {
                    kept.push(bytes.clone());
                }
            }
            // The third host is deaf for a while, so that there is something to suspect and to repair.
            if to == 2 && (300..900).contains(&round) {
                continue;
            }
            let from = ids[from];
            let input = if datagram {
                Input::Datagram { from, bytes: &bytes }
            } else {
                Input::Stream { from, bytes: &bytes }
            };
            let _ = nodes[to].step(now, rng, input, &mut out);
            waiting.extend(out.drain(..).map(|o| (to, o)));
        }
        now += Duration::from_millis(20);
        for (at, node) in nodes.iter_mut().enumerate() {
            if round % 90 == 10 * at as u64 {
                let payload = Announcement::empty().encode(["fuzz.a", "fuzz.b"]).unwrap();
                let key = [at as u8 * 50 + (round / 90) as u8; 32];
                let records = vec![(RecordKind::ANNOUNCEMENT, key, Some(payload))];
                node.step(now, rng, Input::Command(Command::Publish(records)), &mut out)
                    .unwrap();
            }
            if round == 100 * (at as u64 + 1) {
                let request = Command::Request {
                    number: round,
                    capabilities: vec!["fuzz.c".into()],
                    patience_s: 5,
                };
                node.step(now, rng, Input::Command(request), &mut out).unwrap();
                let offer = Command::Offer {
                    origin: ids[(at + 1) % 3],
                    number: 1,
                    agents: vec![[3; 32]],
                };
                node.step(now, rng, Input::Command(offer), &mut out).unwrap();
            }
            node.step(now, rng, Input::Tick, &mut out).unwrap();
            waiting.extend(out.drain(..).map(|o| (at, o)));
        }
    }
    (nodes, corpus, now)
}

fn mutate(rng: &mut Rng, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = frames[rng.below(frames.len() as u32) as usize].clone();
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len().max(1) as u32) as usize;
        match rng.below(8) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << rng.below(8),
            1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            2 => bytes.truncate(at.max(8)),
            3 => bytes.insert(at, rng.below(256) as u8),
            4 if bytes.len() > 16 => {
                let end = (at + rng.below(32) as usize).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                let other = &frames[rng.below(frames.len() as u32) as usize];
                let from = rng.below(other.len() as u32) as usize;
                bytes.extend_from_slice(&other[from..]);
            }
            6 => {
                // A length as a varint that promises much.
                let end = (at + 5).min(bytes.len());
                for byte in &mut bytes[at..end] {
                    *byte = 0xff;
                }
            }
            _ => bytes.extend((0..rng.below(16)).map(|_| rng.below(256) as u8)),
        }
    }
    if rng.below(4) > 0 && bytes.len() >= 8 {
        // Mostly with an honest length, so that the body is looked at.
        let body = (bytes.len() - 8) as u32;
        bytes[4..8].copy_from_slice(&body.to_le_bytes());
    }
    bytes
}

/// Bytes in memory; 0 where the system does not tell.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

#[test]
fn mutated_frames_of_every_kind_have_no_effect_beyond_counters() {
    let seconds: f64 = std::env::var("PANDACORE_FUZZ_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(0.2);
    let mut rng = Rng::new(2024);
    let (mut nodes, corpus, mut now) = talk(&mut rng);
    let kinds: Vec<u8> = corpus.keys().copied().collect();
    assert!(kinds.len() >= 12, "the talk has many kinds of frames: {kinds:?}");
    let target = &mut nodes[0];
    let others: Vec<HostId> = target.members().map(|m| m.record.host).collect();
    let stamps: Vec<(HostId, (u32, u32))> = target
        .members()
        .map(|m| (m.record.host, m.record.stamp()))
        .collect();
    let (rows, digests) = (
        target.replica().rows(),
        others
            .iter()
            .map(|h| target.replica().digest(h))
            .collect::<Vec<_>>(),
    );
    let mut out = Vec::new();
    let resident = resident();
    for kind in kinds {
        let start = Instant::now();
        let (mut tried, mut refused) = (0u64, 0u64);
        while start.elapsed().as_secs_f64() < seconds || tried < 200 {
            for _ in 0..50 {
                let bytes = mutate(&mut rng, &corpus[&kind]);
                let from = others[rng.below(others.len() as u32) as usize];
                let _ = Frame::read(&bytes).map(|frame| frame.body.len());
                let _ = read_hello(&bytes);
                // Time stands still: what follows is the effect of the frames alone.
                let input = if rng.below(2) == 0 {
                    Input::Datagram { from, bytes: &bytes }
                } else {
                    Input::Stream { from, bytes: &bytes }
                };
                tried += 1;
                refused += u64::from(target.step(now, &mut rng, input, &mut out).is_err());
                out.clear();
            }
        }
        println!("kind {kind}: {tried} tried, {refused} refused");
        target.verify();
        target.replica().verify();
        assert_eq!(target.replica().rows(), rows, "kind {kind}");
        for (host, digest) in others.iter().zip(&digests) {
            assert_eq!(target.replica().digest(host), *digest, "kind {kind}");
            assert_ne!(target.state(host), Some(State::Down), "kind {kind}");
        }
        for (host, stamp) in &stamps {
            assert_eq!(
                target.record_of(host).map(HostRecord::stamp),
                Some(*stamp),
                "kind {kind}"
            );
        }
        assert!(
            target.sizes().iter().all(|&size| size <= 20_000),
            "{:?}",
            target.sizes()
        );
    }
    let grown = self::resident().saturating_sub(resident);
    println!("resident memory grew by {} KiB", grown >> 10);
    assert!(grown < 64 << 20, "{grown}");
    // And it still works.
    now += Duration::from_millis(10);
    target.step(now, &mut rng, Input::Tick, &mut out).unwrap();
}
