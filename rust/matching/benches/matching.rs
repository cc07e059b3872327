//! Registry and assembly on the standard workload: 1 to 8 capabilities an agent (Zipf over 10^4), 90 % eligible.
#![allow(clippy::unwrap_used, reason = "a failed step ends the benchmark")]
use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pandacore_matching::score::service_code;
use pandacore_matching::{
    ALIVE, Announcement, Attributes, Batch, Config, Mode, Prepared, Registry, Requirement, Rng, Scratch,
    Team, TeamSpec,
};

const CAPABILITIES: usize = 10_000;
const SIZES: [usize; 2] = [10_000, 1_000_000];

struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: usize) -> Self {
        let mut sum = 0.0;
        Self(
            (1..=n)
                .map(|k| {
                    sum += 1.0 / k as f64;
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, rng: &mut Rng) -> u32 {
        let at = rng.unit() * self.0[self.0.len() - 1];
        self.0.partition_point(|&sum| sum < at).min(self.0.len() - 1) as u32
    }
}

#[derive(Default)]
struct Columns {
    ids: Vec<[u8; 32]>,
    offsets: Vec<i64>,
    capabilities: Vec<u32>,
    loads: Vec<u16>,
    services: Vec<u16>,
    domains: Vec<u16>,
    trusted: Vec<bool>,
}

impl Columns {
    fn new(n: usize) -> Self {
        let zipf = Zipf::new(CAPABILITIES);
        let mut rng = Rng::new(7);
        let mut c = Self {
            offsets: vec![0],
            ..Self::default()
        };
        for _ in 0..n {
            let mut id = [0u8; 32];
            id.chunks_exact_mut(8)
                .for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
            c.ids.push(id);
            let first = c.capabilities.len();
            let wanted = 1 + rng.below(8) as usize;
            while c.capabilities.len() < first + wanted {
                let next = zipf.draw(&mut rng);
                if !c.capabilities[first..].contains(&next) {
                    c.capabilities.push(next);
                }
            }
            c.offsets.push(c.capabilities.len() as i64);
            c.loads.push((-1.5 * (1.0 - rng.unit()).ln()) as u16);
            c.services.push(service_code(0.2 + 2.0 * rng.unit()));
            c.domains.push(rng.below(64) as u16);
            c.trusted.push(rng.below(10) > 0);
        }
        c
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            ids: &self.ids,
            offsets: &self.offsets,
            capabilities: &self.capabilities,
            loads: Some(&self.loads),
            services: Some(&self.services),
            domains: Some(&self.domains),
            trusted: Some(&self.trusted),
            ..Batch::default()
        }
    }
}

fn empty() -> Registry {
    let registry = Registry::new(Config::default());
    for c in 0..CAPABILITIES {
        registry.intern(&format!("c{c}")).unwrap();
    }
    registry
}

fn rows(registry: &Registry, width: usize, n: usize) -> Vec<u32> {
    let zipf = Zipf::new(CAPABILITIES);
    let mut rng = Rng::new(99);
    let mut rows: Vec<u32> = Vec::with_capacity(n * width);
    for row in 0..n {
        while rows.len() < (row + 1) * width {
            let next = zipf.draw(&mut rng);
            if registry.available(next) >= 2 && !rows[row * width..].contains(&next) {
                rows.push(next);
            }
        }
    }
    rows
}

fn specs(rows: &[u32], width: usize, mode: Mode) -> Vec<Prepared> {
    rows.chunks_exact(width)
        .map(|row| {
            let required = row
                .iter()
                .map(|&c| Requirement {
                    any: vec![c],
                    count: 1,
                })
                .collect();
            Prepared::from(TeamSpec {
                required,
                mode,
                probes: 16,
                ..TeamSpec::default()
            })
        })
        .collect()
}

fn assembly(c: &mut Criterion) {
    for n in SIZES {
        let columns = Columns::new(n);
        let registry = empty();
        registry.announce_many(&columns.batch()).unwrap();
        let mut scratch = Scratch::default();
        let mut team = Team::default();
        for (name, mode, width) in [
            ("dedicated", Mode::Dedicated, 8),
            ("dedicated_32", Mode::Dedicated, 32),
            ("consolidated", Mode::Consolidated, 8),
        ] {
            let specs = specs(&rows(&registry, width, 20_000), width, mode);
            let mut next = 0;
            c.bench_function(&format!("matching/{name}/{n}"), |b| {
                b.iter(|| {
                    next = (next + 1) % specs.len();
                    registry.assemble_prepared(&specs[next], None, next as u64, &mut scratch, &mut team);
                    black_box(&team);
                });
            });
        }
        let flat = rows(&registry, 8, 20_000);
        let mut group = c.benchmark_group("matching/dedicated_many");
        group.throughput(Throughput::Elements(20_000));
        group.sample_size(10);
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            b.iter(|| black_box(registry.assemble_many(&flat, 8, 1, 16, 5, &mut scratch).unwrap()));
        });
        group.finish();

        let mut rng = Rng::new(1);
        let slots: Vec<u32> = (0..100_000).map(|_| rng.below(n as u32)).collect();
        let loads: Vec<u16> = slots.iter().map(|s| (s & 7) as u16).collect();
        let mut flags: Vec<bool> = slots.iter().map(|s| s & 1 == 0).collect();
        let mut group = c.benchmark_group("matching/updates");
        group.throughput(Throughput::Elements(100_000));
        group.sample_size(10);
        group.bench_function(BenchmarkId::new("load", n), |b| {
            b.iter(|| registry.set_loads(&slots, &loads).unwrap());
        });
        group.bench_function(BenchmarkId::new("flip", n), |b| {
            b.iter(|| {
                flags.iter_mut().for_each(|f| *f = !*f);
                registry.set_flags_many(&slots, ALIVE, &flags).unwrap();
            });
        });
        group.bench_function(BenchmarkId::new("announce", n), |b| {
            let mut turn = 0usize;
            b.iter(|| {
                for _ in 0..100_000 {
                    turn = (turn + 7919) % n;
                    let from = (turn * 31) % n;
                    let held = &columns.capabilities
                        [columns.offsets[from] as usize..columns.offsets[from + 1] as usize];
                    let attributes = Attributes {
                        load: 1,
                        ..Attributes::default()
                    };
                    registry
                        .announce(&Announcement {
                            id: columns.ids[turn],
                            capabilities: held,
                            version: None,
                            domain: 1,
                            attributes,
                        })
                        .unwrap();
                }
            });
        });
        group.finish();
        let mut group = c.benchmark_group("matching/bulk_load");
        group.sample_size(10);
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            b.iter_batched(
                empty,
                |registry| registry.announce_many(&columns.batch()).unwrap(),
                BatchSize::PerIteration,
            );
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2)).without_plots();
    targets = assembly
}
criterion_main!(benches);
