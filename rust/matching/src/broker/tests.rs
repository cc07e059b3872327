//! The index against brute force over the same vectors.
use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

/// Unit-ish vectors around a few centres, as embeddings are.
fn vectors(rng: &mut Rng, count: usize, dim: usize) -> Vec<f32> {
    let centres: Vec<f32> = (0..8 * dim).map(|_| rng.unit() as f32 - 0.5).collect();
    (0..count)
        .flat_map(|_| {
            let centre = rng.below(8) as usize * dim;
            (0..dim)
                .map(|at| centres[centre + at] + 0.8 * (rng.unit() as f32 - 0.5))
                .collect::<Vec<f32>>()
        })
        .collect()
}

fn exact(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(x, y)| f64::from(*x) * f64::from(*y))
            .sum::<f64>()
    };
    match metric {
        Metric::Cosine => dot(a, b) / (dot(a, a) * dot(b, b)).sqrt(),
        Metric::InnerProduct => dot(a, b),
    }
}

const EXECUTORS: [Executor; 4] = [Executor::Scan, Executor::Batch, Executor::Graph, Executor::TwoHop];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// With room for everything, each executor gives exactly the brute-force answer: whatever was removed,
    /// replaced, filtered or excluded, in every store and metric.
    #[test]
    fn every_executor_equals_brute_force_when_it_keeps_all(
        seed in 0u64..1 << 32,
        count in 1usize..1_500,
        rerank in prop_oneof![Just(Rerank::F32), Just(Rerank::Bf16), Just(Rerank::Int16), Just(Rerank::None)],
        metric in prop_oneof![Just(Metric::Cosine), Just(Metric::InnerProduct)],
        dim in prop_oneof![Just(3usize), Just(64), Just(100)],
        share in prop_oneof![Just(0u32), Just(3), Just(50), Just(100)],
    ) {
        let mut rng = Rng::new(seed);
        let config = Config {
            rerank, metric, m: 6, ef_construction: 24, flags: vec!["alive".into(), "trusted".into()], seed,
            consolidate_at: 0.2, ..Config::new(dim)
        };
        let index = SemanticIndex::new(config, Costs::default()).unwrap();
        let data = vectors(&mut rng, count, dim);
        let ids: Vec<u64> = (0..count as u64).map(|id| id * 7 + 1).collect();
        index.put(&ids, &data, dim, 0b11, Mode::Add, 1).unwrap();
        let mut truth: std::collections::BTreeMap<u64, Vec<f32>> =
            ids.iter().copied().zip(data.chunks(dim).map(<[f32]>::to_vec)).collect();
        for _ in 0..3 {
            let gone: Vec<u64> = truth.keys().copied().filter(|_| rng.below(5) == 0).collect();
            index.remove(&gone).unwrap();
            gone.iter().for_each(|id| drop(truth.remove(id)));
            let moved: Vec<u64> = truth.keys().copied().filter(|_| rng.below(6) == 0).collect();
            let to = vectors(&mut rng, moved.len(), dim);
            index.put(&moved, &to, dim, 0, Mode::Update, 1).unwrap();
            for (id, vector) in moved.iter().zip(to.chunks(dim)) {
                truth.insert(*id, vector.to_vec());
            }
            let back: Vec<u64> = gone.into_iter().filter(|_| rng.below(2) == 0).collect();
            let new = vectors(&mut rng, back.len(), dim);
            index.put(&back, &new, dim, 0b11, Mode::Put, 1).unwrap();
            for (id, vector) in back.iter().zip(new.chunks(dim)) {
                truth.insert(*id, vector.to_vec());
            }
        }
        prop_assert_eq!(index.len(), truth.len());
        let hidden: Vec<u64> = truth.keys().copied().filter(|_| rng.below(100) >= share).collect();
        index.set_flag(1, &hidden, |_| false).unwrap();
        let exclude: Vec<u64> = truth.keys().copied().take(3).chain([9_999_999]).collect();
        let subset = Subset::new(truth.keys().copied().filter(|id| id % 2 == 0).chain([8_888_888]).collect());
        let queries = vectors(&mut rng, 3, dim);
        let everything = truth.len().max(1);
        let mut scratch = SearchScratch::default();
        let filters = [
            Params::default(),
            Params { require: 0b10, ..Params::default() },
            Params { require: 0b01, forbid: 0b10, exclude: &exclude, ..Params::default() },
            Params { subset: Some(&subset), ..Params::default() },
        ];
        for (which, filter) in filters.iter().enumerate() {
            let wanted: Vec<u64> = truth.keys().copied().filter(|id| match which {
                0 => true,
                1 => !hidden.contains(id),
                2 => hidden.contains(id) && !exclude.contains(id),
                _ => id % 2 == 0,
            }).collect();
            for executor in EXECUTORS {
                let params = Params {
                    k: everything, ef: everything, rerank: everything, executor: Some(executor), ..filter.clone()
                };
                let found = index.search_batch(&queries, dim, &params, 1, &mut scratch).unwrap();
                for (query, found) in queries.chunks(dim).zip(&found) {
                    // All that is wanted and nothing else, each once.
                    let mut ids = found.ids.clone();
                    ids.sort_unstable();
                    prop_assert_eq!(&ids, &wanted, "{:?}", executor);
                    // In order, with scores near the truth.
                    prop_assert!(found.scores.is_sorted_by(|a, b| a >= b));
                    let scale = match metric { Metric::Cosine => 1.0, Metric::InnerProduct => dim as f64 * 0.5 };
                    let error = scale * match rerank {
                        Rerank::F32 => 1e-5,
                        Rerank::Int16 => 1e-3,
                        Rerank::Bf16 => 1e-2,
                        Rerank::None => 6e-2,
                    };
                    for (id, &score) in found.ids.iter().zip(&found.scores) {
                        let truth = exact(metric, query, &truth[id]);
                        prop_assert!((f64::from(score) - truth).abs() <= error, "{score} for {truth}, {rerank:?}");
                    }
                    // The same answer from all executors, ties included.
                    let scan = index.search(query, &Params { executor: Some(Executor::Scan), ..params.clone() }, &mut scratch).unwrap();
                    prop_assert_eq!(&scan.ids, &found.ids);
                    prop_assert_eq!(&scan.scores, &found.scores);
                }
            }
        }
    }
}

#[test]
fn one_thread_builds_the_same_graph_again() {
    let mut rng = Rng::new(4);
    let data = vectors(&mut rng, 3_000, 32);
    let ids: Vec<u64> = (0..3_000).collect();
    let answers: Vec<Vec<Found>> = (0..2)
        .map(|_| {
            let index = SemanticIndex::new(Config::new(32), Costs::default()).unwrap();
            index.put(&ids, &data, 32, 0, Mode::Add, 1).unwrap();
            let params = Params {
                ef: 16,
                executor: Some(Executor::Graph),
                ..Params::default()
            };
            index
                .search_batch(&data[..32 * 200], 32, &params, 1, &mut SearchScratch::default())
                .unwrap()
        })
        .collect();
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn graph_search_finds_what_a_scan_finds() {
    let mut rng = Rng::new(8);
    let (count, dim) = (20_000, 96);
    let data = vectors(&mut rng, count, dim);
    let ids: Vec<u64> = (0..count as u64).collect();
    let index = SemanticIndex::new(Config::new(dim), Costs::default()).unwrap();
    index.put(&ids, &data, dim, 0, Mode::Add, 2).unwrap();
    let queries: Vec<f32> = data[..200 * dim]
        .iter()
        .map(|x| x + 0.3 * (rng.unit() as f32 - 0.5))
        .collect();
    let mut scratch = SearchScratch::default();
    let mut recall = |executor| {
        let params = Params {
            ef: 128,
            executor: Some(executor),
            ..Params::default()
        };
        let found = index
            .search_batch(&queries, dim, &params, 1, &mut scratch)
            .unwrap();
        let scan = Params {
            executor: Some(Executor::Scan),
            ..Params::default()
        };
        let truth = index.search_batch(&queries, dim, &scan, 1, &mut scratch).unwrap();
        let hits = found
            .iter()
            .zip(&truth)
            .map(|(f, t)| f.ids.iter().filter(|id| t.ids.contains(id)).count());
        hits.sum::<usize>() as f64 / (10.0 * found.len() as f64)
    };
    assert!(recall(Executor::Graph) > 0.97, "{}", recall(Executor::Graph));
    assert_eq!(recall(Executor::Batch), 1.0);
}
