//! Trust paths, maintained sets and reputation on the graph of `pandacore bench trust`: agents arrive in order and
//! are certified by two or three earlier ones, half of them in proportion to what they have issued.
#![allow(clippy::unwrap_used, reason = "a failed step ends the benchmark")]
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pandacore_trust::{
    Exclusion, Graph, Membership, Reputation, ReputationPolicy, Scratch, SecondHand, SetSpec, Walk, Web,
    distance, reach, reach_count, reach_sizes,
};

const SIZES: [u32; 2] = [10_000, 1_000_000];
const GENESIS: u32 = 3;
const NOW: u32 = 1_000_000;
const WALK: Walk = Walk {
    max_depth: Some(3),
    mutual: false,
    members_only: true,
};

/// SplitMix64 of Steele, Lea and Flood (2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }
}

/// Issuers, subjects, and validity of each certificate.
#[derive(Default)]
struct Certificates {
    issuers: Vec<u32>,
    subjects: Vec<u32>,
    begins: Vec<u32>,
    ends: Vec<u32>,
}

fn certificates(agents: u32) -> Certificates {
    let mut rng = Rng(42);
    let mut made = Certificates::default();
    for agent in GENESIS..agents {
        let wanted = 2 + (rng.next() & 1) as usize;
        let first = made.issuers.len();
        while made.issuers.len() - first < wanted {
            let tickets = if rng.next() & 1 == 0 { first as u32 } else { 0 };
            let ticket = rng.below(agent + tickets);
            let issuer = if ticket < agent {
                ticket
            } else {
                made.issuers[(ticket - agent) as usize]
            };
            if !made.issuers[first..].contains(&issuer) {
                let begin = NOW - rng.below(600_000);
                made.issuers.push(issuer);
                made.subjects.push(agent);
                made.begins.push(begin);
                made.ends.push(begin + 1_209_600);
            }
        }
    }
    made
}

fn web(agents: u32, c: &Certificates) -> Web {
    let membership = Membership {
        genesis: (0..GENESIS).collect(),
        threshold: 2,
        latched: false,
        grace: 0,
    };
    let mut web = Web::new(membership, NOW);
    web.grow(agents as usize);
    assert!(web.load(&c.issuers, &c.subjects, &c.begins, &c.ends));
    web
}

/// Pairs one to three hops apart, from anchors drawn by the size of what they reach.
fn near_pairs(graph: &Graph, agents: u32) -> Vec<(u32, u32)> {
    let everybody: Vec<u32> = (0..agents).collect();
    let mut sum = 0;
    let ends: Vec<u64> = reach_sizes(graph, &everybody, WALK, None, 1)
        .iter()
        .map(|&size| {
            sum += u64::from(size.saturating_sub(1));
            sum
        })
        .collect();
    let (mut rng, mut scratch) = (Rng(7), Scratch::default());
    let mut draw = || {
        let at = rng.next() % sum;
        let anchor = ends.partition_point(|&end| end <= at) as u32;
        let reached = reach(graph, &mut scratch, &[anchor], WALK, None);
        (anchor, reached[1 + rng.below(reached.len() as u32 - 1) as usize])
    };
    (0..4096).map(|_| draw()).collect()
}

fn searches(c: &mut Criterion) {
    for agents in SIZES {
        let made = certificates(agents);
        let mut web = web(agents, &made);
        web.need_members();
        let graph = web.graph();
        let mut scratch = Scratch::default();
        c.bench_function(&format!("trust/genesis_depth3/{agents}"), |b| {
            b.iter(|| reach_count(graph, &mut scratch, &[0], WALK));
        });
        let mut rng = Rng(1);
        c.bench_function(&format!("trust/random_depth3/{agents}"), |b| {
            b.iter(|| reach_count(graph, &mut scratch, &[rng.below(agents)], WALK));
        });
        let pairs = near_pairs(graph, agents);
        let mut turn = pairs.iter().cycle();
        c.bench_function(&format!("trust/pair/{agents}"), |b| {
            b.iter(|| {
                let &(anchor, target) = turn.next().unwrap();
                distance(graph, &mut scratch, anchor, target, WALK)
            });
        });
        let everybody: Vec<u32> = (0..agents).collect();
        let mut group = c.benchmark_group("trust/all_members_depth3");
        group.sample_size(10);
        group.bench_function(BenchmarkId::from_parameter(agents), |b| {
            b.iter(|| black_box(reach_sizes(graph, &everybody, WALK, None, 1)));
        });
        group.finish();
    }
}

fn events(c: &mut Criterion) {
    let agents = SIZES[1];
    let made = certificates(agents);
    let mut group = c.benchmark_group("trust/cert_events");
    let count = 30_000;
    group.sample_size(10).throughput(Throughput::Elements(2 * count));
    group.bench_function(BenchmarkId::from_parameter(agents), |b| {
        let ready = || {
            let mut web = web(agents, &made);
            web.add_set(SetSpec {
                anchors: (0..GENESIS).collect(),
                threshold: 2,
                anchor_weight: 1,
                max_depth: Some(3),
                mutual: false,
                members_only: false,
            });
            (web, Rng(9))
        };
        b.iter_batched_ref(
            ready,
            |(web, rng)| {
                for _ in 0..count {
                    let (issuer, subject) = (rng.below(agents - 1), rng.below(agents - 1) + 1);
                    web.renew(issuer, subject.max(issuer + 1), NOW, NOW + 604_800);
                    web.settle();
                    let old = rng.below(made.issuers.len() as u32) as usize;
                    web.end(made.issuers[old], made.subjects[old], NOW);
                    web.settle();
                }
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// `ReputationPolicy.robust()` of the Python module.
fn robust() -> ReputationPolicy {
    ReputationPolicy {
        decay: 0.9,
        idle: 0.85,
        long_decay: 0.98,
        long_exclusion: (0.25, 0.98),
        aspiration: 0.2,
        deviation: 0.25,
        slack: 0.7,
        weight: 0.5,
        witness_limit: 0.5,
        exclusion: Exclusion::Confident {
            rate: 0.5,
            probability: 0.85,
        },
        second_hand: SecondHand::Capped { share: 0.5 },
        false_positive: 0.0,
        false_negative: 0.0,
        report_age: 4,
    }
}

fn reputation(c: &mut Criterion) {
    const MET: u32 = 8;
    const BATCH: usize = 1 << 16;
    let agents = SIZES[1];
    let mut rng = Rng(3);
    let (mut observers, mut peers, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..agents * MET {
        observers.push(n / MET);
        peers.push((n / MET + 1 + rng.below(agents - 1)) % agents);
        bad.push(rng.below(5) == 0);
    }
    let mut store = Reputation::new(robust(), 50_000_000);
    store.observe_all(&observers, &peers, &bad, 0).unwrap();
    let order: Vec<usize> = (0..BATCH).map(|_| rng.below(agents * MET) as usize).collect();
    let pick = |column: &[u32]| order.iter().map(|&at| column[at]).collect::<Vec<u32>>();
    let (first, second) = (pick(&observers), pick(&peers));
    let mut group = c.benchmark_group("reputation/observe");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(BenchmarkId::from_parameter(agents), |b| {
        b.iter(|| store.observe_all(&first, &second, &bad[..BATCH], 1).unwrap());
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2)).without_plots();
    targets = searches, events, reputation
}
criterion_main!(benches);
