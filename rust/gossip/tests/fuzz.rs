//! Every decoder under mutated frames: real ones of every kind, changed, cut, spliced and lied about.
//!
//! `PANDACORE_FUZZ_SECONDS` sets the processor time for each decoder; by default it is short. `PANDACORE_FUZZ_KINDS`
//! names the kinds of frames to try, such as `6,7`; 0 is the payload of announcements. By default all are tried.
#![expect(
    clippy::disallowed_methods,
    reason = "the time to spend is measured, nothing else"
)]
#![expect(clippy::unwrap_used, reason = "a failure here fails the test")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pandacore_gossip::{
    Announcement, Command, Config, Crypto, Ed25519, Frame, Hello, HostId, HostRecord, Input, Kind,
    MAX_PAYLOAD, Node, Output, RecordKind, Sig, State, Subscription, VERSION, hello_bytes, read_hello, riblt,
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

/// Kinds that a short talk of honest hosts does not need: hellos, and those that repair differing rows.
fn seldom(nodes: &[Node], corpus: &mut BTreeMap<u8, Vec<Vec<u8>>>) {
    let frame = |kind: Kind, body: &[u8]| {
        let mut bytes = vec![VERSION, kind as u8, 0, 0];
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    };
    let hello = Hello {
        collective: HOME,
        record: nodes[1].record().clone(),
        ticket: Some((1_900_000_000, Sig([[5; 32]; 2]))),
    };
    corpus.insert(Kind::Hello as u8, vec![hello_bytes(&hello)]);
    // The short id of the second host, as everywhere on the wire, and its epoch 1.
    let short = postcard::to_extend(&nodes[1].record().host.short(), Vec::new()).unwrap();
    let ack = vec![
        frame(Kind::StreamAck, &[9]),
        frame(Kind::StreamAck, &[0xff, 0x7f]),
    ];
    corpus.insert(Kind::StreamAck as u8, ack);
    let have = vec![frame(Kind::Have, &[&short[..], &[1, 0, 200]].concat())];
    corpus.insert(Kind::Have as u8, have);
    corpus.insert(Kind::Prune as u8, vec![frame(Kind::Prune, &[])]);
    let passed = corpus[&(Kind::Batch as u8)]
        .iter()
        .map(|bytes| frame(Kind::Passed, &bytes[8..]))
        .collect();
    corpus.insert(Kind::Passed as u8, passed);
    let news = corpus[&(Kind::News as u8)].clone();
    let updates = news
        .iter()
        .map(|bytes| frame(Kind::Updates, &bytes[8..]))
        .collect();
    corpus.insert(Kind::Updates as u8, updates);
    let vector = corpus[&(Kind::Vector as u8)].clone();
    let replies = vector
        .iter()
        .map(|bytes| frame(Kind::VectorReply, &bytes[8..]))
        .collect();
    corpus.insert(Kind::VectorReply as u8, replies);
    let want = vec![frame(Kind::WantHosts, &[]), frame(Kind::WantHosts, &short)];
    corpus.insert(Kind::WantHosts as u8, want);
    corpus.insert(Kind::WantNews as u8, vec![frame(Kind::WantNews, &[7; 18])]);
    let mut digests = short.clone();
    digests.extend_from_slice(&[7; 8]);
    corpus.insert(Kind::Digests as u8, vec![frame(Kind::Digests, &digests)]);
    let head = [&[1], &short[..], &[1, 0]].concat();
    let all = [0, 0, 0];
    let cells = |head: &[u8]| {
        let mut body = head.to_vec();
        for cell in riblt::encode((0..20u8).map(|i| [i; 16]), 32) {
            body.extend_from_slice(&cell.bytes());
        }
        frame(Kind::Cells, &body)
    };
    corpus.insert(Kind::Cells as u8, vec![cells(&head), cells(&all)]);
    let more = vec![frame(Kind::MoreCells, &head), frame(Kind::MoreCells, &all)];
    corpus.insert(Kind::MoreCells as u8, more);
    let rows = [&short[..], &[1, 1, 2, 3]].concat();
    corpus.insert(Kind::PullRows as u8, vec![frame(Kind::PullRows, &rows)]);
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

/// Processor time of this thread where the system tells, so that a busy machine does not mean less work; else the time
/// that has passed.
struct Spent(Instant, Option<Duration>);

impl Spent {
    fn processor() -> Option<Duration> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    }

    fn new() -> Self {
        Self(Instant::now(), Self::processor())
    }

    fn seconds(&self) -> f64 {
        match (self.1, Self::processor()) {
            (Some(before), Some(now)) => (now - before).as_secs_f64(),
            _ => self.0.elapsed().as_secs_f64(),
        }
    }
}

fn seconds() -> f64 {
    let seconds = std::env::var("PANDACORE_FUZZ_SECONDS").ok();
    seconds.and_then(|s| s.parse().ok()).unwrap_or(0.1)
}

fn wanted(kind: u8) -> bool {
    std::env::var("PANDACORE_FUZZ_KINDS")
        .map_or(true, |kinds| kinds.split(',').any(|k| k.parse() == Ok(kind)))
}

/// Bytes in memory; 0 where the system does not tell.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

#[test]
fn mutated_frames_of_every_kind_have_no_effect_beyond_counters() {
    let mut rng = Rng::new(2024);
    let (mut nodes, mut corpus, mut now) = talk(&mut rng);
    seldom(&nodes, &mut corpus);
    let kinds: Vec<u8> = corpus.keys().copied().collect();
    assert_eq!(
        kinds,
        (1..=25).collect::<Vec<u8>>(),
        "every kind of frame is there"
    );
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
    for kind in kinds.into_iter().filter(|&kind| wanted(kind)) {
        let spent = Spent::new();
        let (mut tried, mut refused) = (0u64, 0u64);
        while spent.seconds() < seconds() || tried < 200 {
            for _ in 0..500 {
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
        println!(
            "kind {kind}: {tried} tried, {refused} refused in {:.0} s",
            spent.seconds()
        );
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
            target.sizes().iter().all(|&size| size <= 1 << 17),
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

/// A member may sign what it likes: its payloads reach the decoder of announcements, and their readers.
#[test]
fn mutated_announcements_of_a_true_host_harm_nobody() {
    if !wanted(0) {
        return;
    }
    let mut rng = Rng::new(7);
    let mut nodes: Vec<Node> = (1..=2).map(|key| node(key, &mut rng)).collect();
    let ids: Vec<HostId> = nodes.iter().map(|n| n.record().host).collect();
    let mut now = Duration::ZERO;
    let mut out = Vec::new();
    for (a, b) in [(0, 1), (1, 0)] {
        let record = nodes[b].record().clone();
        let up = Input::PeerUp {
            record,
            datagram: 1_178,
        };
        nodes[a].step(now, &mut rng, up, &mut out).unwrap();
    }
    let corpus: Vec<Vec<u8>> = (0..20u8)
        .map(|i| {
            let codes = vec![i; 64];
            let full = Announcement {
                name: "reader",
                description: "reads",
                endpoint: "127.0.0.1:7000",
                not_after: u64::from(i % 2) * 1_900_000_000,
                subscription: Some(Subscription {
                    model: "hash-64",
                    scale: 0.5,
                    codes: &codes,
                }),
                certificates: &codes[..32],
                ..Announcement::empty()
            };
            full.encode(["read.text", "write.text"]).unwrap()
        })
        .collect();
    let resident = resident();
    let spent = Spent::new();
    let (mut tried, mut read) = (0u64, 0u64);
    while spent.seconds() < seconds() || tried < 200 {
        let records: Vec<_> = (0..100u8)
            .map(|key| {
                let mut payload = mutate(&mut rng, &corpus);
                payload.truncate(MAX_PAYLOAD);
                (RecordKind::ANNOUNCEMENT, [key; 32], Some(payload))
            })
            .collect();
        tried += records.len() as u64;
        let publish = Input::Command(Command::Publish(records));
        nodes[1].step(now, &mut rng, publish, &mut out).unwrap();
        let mut waiting: VecDeque<(usize, Output)> = out.drain(..).map(|o| (1, o)).collect();
        now += Duration::from_millis(120);
        for (at, node) in nodes.iter_mut().enumerate() {
            node.step(now, &mut rng, Input::Tick, &mut out).unwrap();
            waiting.extend(out.drain(..).map(|o| (at, o)));
        }
        while let Some((from, output)) = waiting.pop_front() {
            let to = 1 - from;
            let from = ids[from];
            let input = match &output {
                Output::Datagram { bytes, .. } => Input::Datagram { from, bytes },
                Output::Stream { bytes, .. } => Input::Stream { from, bytes },
                _ => continue,
            };
            nodes[to].step(now, &mut rng, input, &mut out).unwrap();
            waiting.extend(out.drain(..).map(|o| (to, o)));
        }
        nodes[0].set_wall(1_800_000_000 + u64::from(rng.below(2)) * 200_000_000);
        for agent in nodes[0].replica().page(&HOME, None, 1_000).0 {
            read += 1;
            let _ = (
                agent.announcement.capabilities().count(),
                agent.announcement.check(),
            );
        }
    }
    println!(
        "announcements: {tried} tried, {read} read in {:.0} s",
        spent.seconds()
    );
    assert!(read > 0, "some still decode");
    assert_eq!(
        nodes[0].replica().digest(&ids[1]),
        nodes[1].replica().digest(&ids[1])
    );
    nodes[0].replica().verify();
    let grown = self::resident().saturating_sub(resident);
    println!("resident memory grew by {} KiB", grown >> 10);
    assert!(grown < 64 << 20, "{grown}");
}
