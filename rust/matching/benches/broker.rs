//! The semantic index on 20,000 vectors of 384 components around 2,000 topics.
#![allow(clippy::unwrap_used, reason = "a failed step ends the benchmark")]
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pandacore_matching::Rng;
use pandacore_matching::broker::{
    Config, Costs, Executor, Mode, Params, SearchScratch, SemanticIndex, Subset,
};

const DIM: usize = 384;
const SIZE: usize = 20_000;
const QUERIES: usize = 64;

/// Rows that share a topic in part.
fn texts_like(rng: &mut Rng, count: usize, topics: &[f32]) -> Vec<f32> {
    let mut rows = Vec::with_capacity(count * DIM);
    for _ in 0..count {
        let topic = rng.below((topics.len() / DIM) as u32) as usize * DIM;
        let rest = 0.6 + rng.unit() as f32;
        rows.extend(
            topics[topic..topic + DIM]
                .iter()
                .map(|x| x + rest * (rng.unit() as f32 - 0.5)),
        );
    }
    rows
}

fn broker(c: &mut Criterion) {
    let mut rng = Rng::new(5);
    let topics: Vec<f32> = (0..2_000 * DIM).map(|_| rng.unit() as f32 - 0.5).collect();
    let vectors = texts_like(&mut rng, SIZE, &topics);
    let spare = texts_like(&mut rng, 2_000, &topics);
    let queries = texts_like(&mut rng, QUERIES, &topics);
    let index = SemanticIndex::new(Config::new(DIM), Costs::default()).unwrap();
    let ids: Vec<u64> = (0..SIZE as u64).collect();
    index.put(&ids, &vectors, DIM, 0, Mode::Add, 2).unwrap();
    let mut scratch = SearchScratch::default();

    let mut group = c.benchmark_group("broker/search");
    for ef in [32, 64, 192] {
        let params = Params {
            ef,
            executor: Some(Executor::Graph),
            ..Params::default()
        };
        let mut next = (0..QUERIES).cycle();
        group.bench_function(BenchmarkId::new("graph", ef), |b| {
            b.iter(|| {
                let at = next.next().unwrap() * DIM;
                black_box(
                    index
                        .search(&queries[at..at + DIM], &params, &mut scratch)
                        .unwrap(),
                );
            });
        });
    }
    let few = Subset::new((0..SIZE as u64).step_by(100).collect());
    let params = Params {
        subset: Some(&few),
        ..Params::default()
    };
    group.bench_function("one_percent", |b| {
        b.iter(|| black_box(index.search(&queries[..DIM], &params, &mut scratch).unwrap()));
    });
    group.finish();

    let mut group = c.benchmark_group("broker/batch");
    group.throughput(Throughput::Elements(QUERIES as u64));
    let params = Params {
        executor: Some(Executor::Batch),
        ..Params::default()
    };
    group.bench_function("scan", |b| {
        b.iter(|| {
            black_box(
                index
                    .search_batch(&queries, DIM, &params, 1, &mut scratch)
                    .unwrap(),
            )
        });
    });
    group.finish();

    // Each step replaces a hundredth; consolidation falls into some of the steps, in its share.
    let mut group = c.benchmark_group("broker/replace");
    group.sample_size(20).throughput(Throughput::Elements(200));
    let mut turn = 0;
    group.bench_function("200", |b| {
        b.iter(|| {
            let first = turn * 200 % SIZE;
            let row = turn * 200 % 2_000 * DIM;
            index
                .put(
                    &ids[first..first + 200],
                    &spare[row..row + 200 * DIM],
                    DIM,
                    0,
                    Mode::Update,
                    1,
                )
                .unwrap();
            turn += 1;
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2)).without_plots();
    targets = broker
}
criterion_main!(benches);
