//! Measurements of the machine with a real clock, without sockets.
use std::time::{Duration, Instant};

use pandacore_gossip::{
    Announcement, Command, Config, Crypto, Ed25519, HostRecord, Input, Node, Output, RecordKind, Sig,
};
use pandacore_matching::Rng;
use pandacore_trust::KeyPair;
use std::sync::Arc;

/// What updates cost on a replica.
#[derive(Clone, Debug, Default)]
pub struct Updates {
    /// Seconds for one update, in batches of 1,000 that are checked and applied; one value a batch.
    pub seconds: Vec<f64>,
    /// Bytes of the replica for one agent.
    pub bytes_per_agent: f64,
}

fn node(key: u8, rng: &mut Rng) -> Node {
    let crypto: Arc<dyn Crypto> = Arc::new(Ed25519(KeyPair::from_seed(&[key; 32])));
    let record = HostRecord {
        host: crypto.id(),
        epoch: 1,
        incarnation: 0,
        instance: u64::from(key),
        address: ([127, 0, 0, 1], u16::from(key)).into(),
        other: None,
        left: false,
        sig: Sig([[0; 32]; 2]),
    };
    Node::new(
        Config::default(),
        [1; 32],
        crypto,
        record,
        Vec::new(),
        Duration::ZERO,
        rng,
        &mut Vec::new(),
    )
}

/// A record of about 300 bytes, as a host would write it.
#[must_use]
pub fn synthetic(number: u32, capabilities: u32, rng: &mut Rng) -> ([u8; 32], Vec<u8>) {
    const TEXT: &str = "an agent of a benchmark, with a description of the length that people write when they say what an agent is for, what it needs and what it gives back";
    let mut id = [0; 32];
    for chunk in id.as_chunks_mut::<8>().0 {
        *chunk = rng.next_u64().to_le_bytes();
    }
    let name = format!("agent-{number}");
    let names: Vec<String> = (0..2)
        .map(|_| format!("bench.c{}", rng.below(capabilities.max(1))))
        .collect();
    let stated = Announcement {
        name: &name,
        description: TEXT,
        endpoint: "127.0.0.1:65535",
        ..Announcement::empty()
    };
    let payload = stated
        .encode(names.iter().map(String::as_str))
        .expect("within the limits");
    (id, payload)
}

/// Loads `agents` into one node, replicates them to another, and then changes 1,000 of them `rounds` times.
#[must_use]
pub fn updates(agents: u32, rounds: u32, seed: u64) -> Updates {
    let mut rng = Rng::new(seed);
    let mut pair = [node(1, &mut rng), node(2, &mut rng)];
    let ids = [pair[0].record().host, pair[1].record().host];
    let mut now = Duration::ZERO;
    let mut waiting: Vec<(usize, Output)> = Vec::new();
    let mut seconds = Vec::new();
    let mut run = |pair: &mut [Node; 2],
                   to: usize,
                   input: Input<'_>,
                   now: Duration,
                   waiting: &mut Vec<(usize, Output)>| {
        let mut out = Vec::new();
        let _ = pair[to].step(now, &mut rng, input, &mut out);
        waiting.extend(out.into_iter().map(|output| (to, output)));
    };
    for to in [0, 1] {
        let record = pair[1 - to].record().clone();
        run(
            &mut pair,
            to,
            Input::PeerUp {
                record,
                datagram: 1_178,
            },
            now,
            &mut waiting,
        );
    }
    let mut made = Rng::new(seed ^ 1);
    let mut keys = Vec::with_capacity(agents as usize);
    let mut settle =
        |pair: &mut [Node; 2], now: &mut Duration, waiting: &mut Vec<(usize, Output)>, timed: bool| {
            let until = *now + Duration::from_millis(1_200);
            while *now < until {
                while !waiting.is_empty() {
                    for (from, output) in std::mem::take(waiting) {
                        let start = Instant::now();
                        match &output {
                            Output::Datagram { bytes, .. } => {
                                run(
                                    pair,
                                    1 - from,
                                    Input::Datagram {
                                        from: ids[from],
                                        bytes,
                                    },
                                    *now,
                                    waiting,
                                );
                            }
                            Output::Stream { bytes, .. } => {
                                run(
                                    pair,
                                    1 - from,
                                    Input::Stream {
                                        from: ids[from],
                                        bytes,
                                    },
                                    *now,
                                    waiting,
                                );
                                if timed && from == 0 && bytes.len() > 100_000 {
                                    seconds.push(start.elapsed().as_secs_f64() / 1000.0);
                                }
                            }
                            _ => {}
                        }
                    }
                }
                *now += Duration::from_millis(5);
                for to in [0, 1] {
                    if pair[to].wake().is_some_and(|wake| wake <= *now) {
                        run(pair, to, Input::Tick, *now, waiting);
                    }
                }
            }
        };
    let mut written = 0;
    while written < agents {
        let part = (agents - written).min(50_000);
        let mut records = Vec::with_capacity(part as usize);
        for i in 0..part {
            let (id, payload) = synthetic(written + i, 1_000, &mut made);
            keys.push(id);
            records.push((RecordKind::ANNOUNCEMENT, id, Some(payload)));
        }
        written += part;
        let mut out = Vec::new();
        let _ = pair[0].step(
            now,
            &mut made,
            Input::Command(Command::Publish(records)),
            &mut out,
        );
        waiting.extend(out.into_iter().map(|output| (0, output)));
        settle(&mut pair, &mut now, &mut waiting, false);
    }
    while pair[1].replica().rows() < agents as usize && now < Duration::from_secs(3_600) {
        settle(&mut pair, &mut now, &mut waiting, false);
    }
    for _ in 0..rounds {
        let at = made.below(agents.saturating_sub(1_000).max(1)) as usize;
        let mut records = Vec::new();
        for key in keys.iter().skip(at).take(1_000) {
            let (_, payload) = synthetic(made.below(1_000_000), 1_000, &mut made);
            records.push((RecordKind::ANNOUNCEMENT, *key, Some(payload)));
        }
        let mut out = Vec::new();
        let _ = pair[0].step(
            now,
            &mut made,
            Input::Command(Command::Publish(records)),
            &mut out,
        );
        waiting.extend(out.into_iter().map(|output| (0, output)));
        settle(&mut pair, &mut now, &mut waiting, true);
    }
    let memory = pair[1].replica().memory();
    let bytes = memory.bodies + memory.entries + memory.rows + memory.table;
    Updates {
        seconds,
        bytes_per_agent: bytes as f64 / pair[1].replica().rows().max(1) as f64,
    }
}
