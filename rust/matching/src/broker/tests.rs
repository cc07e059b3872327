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

/// Walks that take turns find what each finds alone, by the same steps.
#[test]
fn a_batch_of_walks_is_the_walks_one_by_one() {
    let mut rng = Rng::new(21);
    let (count, dim) = (4_000, 48);
    let data = vectors(&mut rng, count, dim);
    let ids: Vec<u64> = (0..count as u64).collect();
    let index = SemanticIndex::new(Config::new(dim), Costs::default()).unwrap();
    index.put(&ids, &data, dim, 0, Mode::Add, 1).unwrap();
    index.remove(&ids[..200]).unwrap();
    for (ef, queries) in [(1, 1), (10, 3), (16, 4), (40, 5), (64, 23)] {
        let params = Params {
            ef,
            executor: Some(Executor::Graph),
            ..Params::default()
        };
        let queries = vectors(&mut rng, queries, dim);
        let mut scratch = SearchScratch::default();
        let alone: Vec<Found> = queries
            .chunks_exact(dim)
            .map(|query| index.search(query, &params, &mut scratch).unwrap())
            .collect();
        for threads in [1, 2] {
            let together = index
                .search_batch(&queries, dim, &params, threads, &mut scratch)
                .unwrap();
            assert_eq!(together, alone, "ef {ef}, {threads} threads");
        }
    }
}

/// From its second use on a small subset is scanned as a list with sketches of its own.
#[test]
fn a_subset_that_is_used_again_finds_the_same() {
    let mut rng = Rng::new(31);
    let (count, dim) = (4_000, 64);
    let data = vectors(&mut rng, count, dim);
    let ids: Vec<u64> = (0..count as u64).collect();
    for metric in [Metric::Cosine, Metric::InnerProduct] {
        let config = Config {
            metric,
            ..Config::new(dim)
        };
        let index = SemanticIndex::new(config, Costs::default()).unwrap();
        index.put(&ids, &data, dim, 0, Mode::Add, 1).unwrap();
        let members: Vec<u64> = ids.iter().copied().filter(|id| id % 7 == 0).collect();
        let subset = Subset::new(members.clone());
        let queries = vectors(&mut rng, 50, dim);
        let mut scratch = SearchScratch::default();
        for round in 0..3 {
            let mut scored = 0;
            for query in queries.chunks_exact(dim) {
                let [again, once] = [&subset, &Subset::new(members.clone())].map(|subset| {
                    let params = Params {
                        subset: Some(subset),
                        ..Params::default()
                    };
                    index.search(query, &params, &mut scratch).unwrap()
                });
                assert_eq!(again, once, "round {round}");
                assert_eq!((again.executor, again.ids.len()), (Executor::Scan, 10));
                assert!(again.ids.iter().all(|&id| id % 7 == 0 && index.contains(id)));
                scored += again.scored;
            }
            assert!(scored < 50 * subset.len() * 3 / 4, "the sieve left {scored}");
            // A write makes another version, with other slots.
            let gone: Vec<u64> = ids.iter().copied().filter(|id| id % 63 == 7 * round).collect();
            index.remove(&gone).unwrap();
        }
    }
}

#[test]
fn a_subset_serves_several_indexes_in_turns() {
    let mut rng = Rng::new(5);
    let data = vectors(&mut rng, 40, 16);
    let indexes: Vec<SemanticIndex> = [0u64, 20]
        .map(|first| {
            let index = SemanticIndex::new(Config::new(16), Costs::default()).unwrap();
            let ids: Vec<u64> = (first..first + 40).collect();
            index.put(&ids, &data, 16, 0, Mode::Add, 1).unwrap();
            index
        })
        .into();
    assert_eq!(indexes[0].version(), indexes[1].version());
    let subset = Subset::new(vec![25, 30, 50]);
    let params = Params {
        subset: Some(&subset),
        ..Params::default()
    };
    for _ in 0..2 {
        let found = [&indexes[0], &indexes[1]].map(|index| {
            let mut ids = index
                .search(&data[..16], &params, &mut SearchScratch::default())
                .unwrap()
                .ids;
            ids.sort_unstable();
            ids
        });
        assert_eq!(found, [vec![25, 30], vec![25, 30, 50]]);
    }
}

/// A slot is used again only when nobody can have it in a bitmap: not the readers of versions that show it, and not
/// those that came before it left the bitmap.
#[test]
fn a_slot_waits_for_readers_that_came_while_it_was_being_hidden() {
    let index = small(200, Rerank::Int16);
    index.consolidate().unwrap();
    let free = index.consolidated().unwrap().free.len();
    let before = index.enter();
    let gone: Vec<u64> = index.all_ids().into_iter().take(20).collect();
    index.remove(&gone).unwrap();
    index.consolidate().unwrap();
    let since = index.enter();
    drop(before);
    for _ in 0..4 {
        let writer = index.consolidated().unwrap();
        assert_eq!(writer.free.len(), free, "a reader may still look at the new ones");
    }
    drop(since);
    let writer = index.consolidated().unwrap();
    assert_eq!(writer.free.len(), free + 20);
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

fn small(count: usize, rerank: Rerank) -> SemanticIndex {
    let mut rng = Rng::new(77);
    let config = Config {
        rerank,
        m: 8,
        ef_construction: 40,
        flags: vec!["alive".into(), "trusted".into()],
        model: "test-model".into(),
        ..Config::new(48)
    };
    let index = SemanticIndex::new(config, Costs::default()).unwrap();
    let ids: Vec<u64> = (0..count as u64).map(|id| id * 3).collect();
    index
        .put(&ids, &vectors(&mut rng, count, 48), 48, 0b11, Mode::Add, 1)
        .unwrap();
    index.set_flag(1, &ids[..count / 3], |_| false).unwrap();
    index.remove(&ids[count / 2..count / 2 + count / 10]).unwrap();
    index
}

/// A folder of one test, removed with it.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pandacore-broker-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn answers(index: &SemanticIndex) -> Vec<Found> {
    let queries = vectors(&mut Rng::new(5), 40, 48);
    let mut scratch = SearchScratch::default();
    EXECUTORS
        .iter()
        .flat_map(|&executor| {
            let params = Params {
                require: 0b10,
                executor: Some(executor),
                ..Params::default()
            };
            index
                .search_batch(&queries, 48, &params, 1, &mut scratch)
                .unwrap()
        })
        .collect()
}

#[test]
fn a_loaded_index_is_the_saved_one() {
    let folder = Folder::new("same");
    for rerank in [Rerank::F32, Rerank::Bf16, Rerank::Int16, Rerank::None] {
        let index = small(600, rerank);
        let path = folder.0.join("index");
        index.save(&path).unwrap();
        let loaded = SemanticIndex::load(&path, Some(48), Some("test-model"), Costs::default()).unwrap();
        assert_eq!(loaded.config(), index.config());
        assert_eq!(loaded.all_ids(), index.all_ids());
        assert_eq!(answers(&loaded), answers(&index));
        assert_eq!(loaded.get(3), index.get(3));
        // It can be written on: free slots are used again, ids are known.
        let vector = vectors(&mut Rng::new(6), 1, 48);
        assert_eq!(
            loaded.put(&[3], &vector, 48, 0, Mode::Add, 1),
            Err(BrokerError::DuplicateId(3))
        );
        loaded.put(&[1_000_000], &vector, 48, 0b11, Mode::Add, 1).unwrap();
        assert_eq!(loaded.bytes(), index.bytes());
        // And saving it again gives the same file, but for what changed.
        let twice = folder.0.join("twice");
        SemanticIndex::load(&path, None, None, Costs::default())
            .unwrap()
            .save(&twice)
            .unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&twice).unwrap());
    }
}

#[test]
fn what_readers_still_hold_is_not_saved() {
    let folder = Folder::new("held");
    let index = small(300, Rerank::None);
    let _reader = index.enter();
    let again = vectors(&mut Rng::new(8), 20, 48);
    let ids: Vec<u64> = (0..20).map(|id| id * 3).collect();
    index.put(&ids, &again, 48, 0, Mode::Update, 1).unwrap();
    index.save(&folder.0.join("index")).unwrap();
    let loaded = SemanticIndex::load(&folder.0.join("index"), None, None, Costs::default()).unwrap();
    assert_eq!(loaded.all_ids(), index.all_ids());
}

#[test]
fn an_empty_index_is_saved_and_loaded() {
    let folder = Folder::new("empty");
    let path = folder.0.join("index");
    let index = SemanticIndex::new(Config::new(7), Costs::default()).unwrap();
    index.save(&path).unwrap();
    let loaded = SemanticIndex::load(&path, None, None, Costs::default()).unwrap();
    let found = loaded
        .search(&[1.0; 7], &Params::default(), &mut SearchScratch::default())
        .unwrap();
    assert!(loaded.is_empty() && found.ids.is_empty());
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    let folder = Folder::new("flips");
    let path = folder.0.join("index");
    small(300, Rerank::Int16).save(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).unwrap();
        match SemanticIndex::load(&path, None, None, Costs::default()) {
            Err(BrokerError::Corrupt { path: named, .. }) => assert_eq!(named, path),
            other => panic!("{what}: {other:?}"),
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "the file was touched");
    };
    let mut rng = Rng::new(1);
    let bits = whole.len() as u32 * 8;
    // All of the head, then all over.
    let flips = (0..8 * 200).chain((0..1_000).map(|_| rng.below(bits)));
    for bit in flips {
        let mut bytes = whole.clone();
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
        refused(&bytes, &format!("bit {bit}"));
    }
    // Every boundary of a section, from the table in the head, and some places between.
    let mut boundary = 16 + 7 * 24 + 8;
    let mut cuts = vec![0, 1, 15, 16, boundary - 1];
    for section in 0..7 {
        cuts.push(boundary);
        let at = 16 + section * 24 + 8;
        boundary += u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
    }
    assert_eq!(boundary, whole.len());
    cuts.extend((0..100).map(|_| rng.below(whole.len() as u32) as usize));
    for cut in cuts {
        refused(&whole[..cut], &format!("cut at {cut}"));
    }
    refused(&[&whole[..], b"x"].concat(), "one byte more");
    std::fs::write(&path, &whole).unwrap();
    SemanticIndex::load(&path, None, None, Costs::default()).unwrap();
    assert!(matches!(
        SemanticIndex::load(&folder.0, None, None, Costs::default()),
        Err(BrokerError::File { .. })
    ));
    let other = SemanticIndex::load(&path, Some(49), None, Costs::default()).unwrap_err();
    assert!(matches!(
        other,
        BrokerError::Dimension {
            expected: 48,
            got: 49,
            ..
        }
    ));
    let other = SemanticIndex::load(&path, None, Some("another"), Costs::default()).unwrap_err();
    assert!(matches!(other, BrokerError::Model { .. }));
}

/// All that touches memory in an unsafe way, small enough for Miri: `cargo +nightly miri test -p pandacore-matching
/// small_index`. Miri has no vector instructions, so it is the scalar path that runs there.
#[test]
fn small_index_is_searched_while_it_changes() {
    const DIM: usize = 8;
    for rerank in [Rerank::F32, Rerank::Bf16, Rerank::Int16, Rerank::None] {
        let config = Config {
            m: 4,
            ef_construction: 8,
            rerank,
            flags: vec!["even".into()],
            consolidate_at: 1.0,
            ..Config::new(DIM)
        };
        let index = SemanticIndex::new(config, Costs::default()).unwrap();
        let mut rng = Rng::new(7);
        let ids: Vec<u64> = (0..24).collect();
        let base = vectors(&mut rng, 24, DIM);
        index.put(&ids, &base, DIM, 1, Mode::Add, 2).unwrap();
        let queries = vectors(&mut rng, 3, DIM);
        std::thread::scope(|scope| {
            for executor in EXECUTORS {
                let (index, queries) = (&index, &queries);
                scope.spawn(move || {
                    let mut scratch = SearchScratch::default();
                    let params = Params {
                        k: 20,
                        ef: 40,
                        require: 1,
                        executor: Some(executor),
                        ..Params::default()
                    };
                    for _ in 0..3 {
                        let found = index
                            .search_batch(queries, DIM, &params, 1, &mut scratch)
                            .unwrap();
                        assert!(found.iter().all(|answer| answer.ids.len() >= 16));
                    }
                });
            }
            index
                .put(&[3, 4], &vectors(&mut rng, 2, DIM), DIM, 0, Mode::Update, 1)
                .unwrap();
            index.remove(&[5, 6, 7, 8]).unwrap();
            index.consolidate().unwrap();
            index
                .put(&[30, 31], &vectors(&mut rng, 2, DIM), DIM, 1, Mode::Add, 1)
                .unwrap();
        });
        index.consolidate().unwrap();
        // The last readers have left, so these get the places of what was removed.
        index
            .put(&[5, 6], &vectors(&mut rng, 2, DIM), DIM, 1, Mode::Add, 1)
            .unwrap();
        let mut scratch = SearchScratch::default();
        for executor in EXECUTORS {
            let params = Params {
                k: 40,
                ef: 40,
                executor: Some(executor),
                ..Params::default()
            };
            let found = index.search(&queries[..DIM], &params, &mut scratch).unwrap();
            assert_eq!(found.ids.len(), 24);
        }
        assert!(index.get(3).is_some() && index.get(7).is_none());
    }
}

/// Readers beside a writer that replaces, removes and adds: in every answer each vector that is always there
/// occurs exactly once, under its old or its new form; at rest the answers are those of an index built from
/// scratch.
#[test]
fn readers_beside_a_writer_see_whole_versions() {
    const DIM: usize = 32;
    const FIXED: u64 = 300;
    let index = SemanticIndex::new(
        Config {
            m: 6,
            ef_construction: 30,
            consolidate_at: 0.1,
            ..Config::new(DIM)
        },
        Costs::default(),
    )
    .unwrap();
    let mut rng = Rng::new(2);
    let fixed: Vec<u64> = (0..FIXED).collect();
    index
        .put(
            &fixed,
            &vectors(&mut rng, FIXED as usize, DIM),
            DIM,
            0,
            Mode::Add,
            1,
        )
        .unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut truth: std::collections::BTreeMap<u64, Vec<f32>> = std::collections::BTreeMap::new();
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let (index, done) = (&index, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(100 + reader);
                let mut scratch = SearchScratch::default();
                let mut last = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let query = vectors(&mut rng, 1, DIM);
                    let executor = Some(EXECUTORS[reader as usize % 4]);
                    let everything = 2_000;
                    let params = Params {
                        k: everything,
                        ef: everything,
                        executor,
                        ..Params::default()
                    };
                    let found = index.search(&query, &params, &mut scratch).unwrap();
                    let mut ids = found.ids.clone();
                    ids.sort_unstable();
                    assert!(
                        ids.windows(2).all(|pair| pair[0] != pair[1]),
                        "an id occurs twice"
                    );
                    assert!(found.version >= last, "versions went back");
                    last = found.version;
                    let seen = ids.iter().filter(|&&id| id < FIXED).count();
                    assert_eq!(seen as u64, FIXED, "{executor:?} lost some at version {last}");
                    assert!(index.get(rng.below(FIXED as u32).into()).is_some());
                }
            });
        }
        let mut extra = Vec::new();
        for round in 0..150u64 {
            let moved: Vec<u64> = (0..FIXED).filter(|_| rng.below(10) == 0).collect();
            let to = vectors(&mut rng, moved.len(), DIM);
            index.put(&moved, &to, DIM, 0, Mode::Update, 1).unwrap();
            truth.extend(moved.iter().copied().zip(to.chunks(DIM).map(<[f32]>::to_vec)));
            let new: Vec<u64> = (0..20).map(|at| 1_000 + round * 20 + at).collect();
            index
                .put(&new, &vectors(&mut rng, 20, DIM), DIM, 0, Mode::Add, 2)
                .unwrap();
            extra.extend(new);
            if extra.len() > 200 {
                let gone: Vec<u64> = extra.drain(..50).collect();
                index.remove(&gone).unwrap();
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        index.remove(&extra).unwrap();
    });
    index.consolidate().unwrap();
    assert_eq!(index.buried(), 0);
    assert_eq!(index.all_ids(), fixed);
    // Slots were used again: 3,000 additions and 4,500 replacements went through.
    assert!(index.bytes() < 3_000 * 500, "{} bytes", index.bytes());
    let fresh = SemanticIndex::new(
        Config {
            m: 6,
            ef_construction: 30,
            ..Config::new(DIM)
        },
        Costs::default(),
    )
    .unwrap();
    let all: Vec<f32> = fixed.iter().flat_map(|&id| index.get(id).unwrap()).collect();
    for (id, vector) in &truth {
        let cosine = exact(Metric::Cosine, vector, &index.get(*id).unwrap());
        assert!(cosine > 0.999_99, "{id} is not the vector written last");
    }
    fresh.put(&fixed, &all, DIM, 0, Mode::Add, 1).unwrap();
    let queries = vectors(&mut rng, 50, DIM);
    for executor in EXECUTORS {
        let params = Params {
            ef: 300,
            executor: Some(executor),
            ..Params::default()
        };
        let mut scratch = SearchScratch::default();
        let a = index
            .search_batch(&queries, DIM, &params, 1, &mut scratch)
            .unwrap();
        let b = fresh
            .search_batch(&queries, DIM, &params, 1, &mut scratch)
            .unwrap();
        let same = a.iter().zip(&b).filter(|(a, b)| a.ids == b.ids).count();
        assert!(
            same >= 49,
            "{executor:?}: {same} of 50 answers are those of a fresh index"
        );
    }
}

#[test]
fn churn_costs_no_recall() {
    const DIM: usize = 64;
    let mut rng = Rng::new(12);
    // Topics that shade into each other, with fewer directions than components, as texts have.
    let spread: Vec<f32> = (1..=DIM).map(|at| 1.0 / (at as f32).sqrt()).collect();
    let mut draw = |weight: f32| -> Vec<f32> {
        spread
            .iter()
            .map(|s| weight * s * ((0..4).map(|_| rng.unit() as f32).sum::<f32>() - 2.0))
            .collect()
    };
    let topics: Vec<Vec<f32>> = (0..800).map(|_| draw(1.0)).collect();
    let rest: Vec<Vec<f32>> = (0..16_000).map(|_| draw(0.8)).collect();
    let pool: Vec<f32> = rest
        .iter()
        .flat_map(|rest| {
            let (a, b) = (&topics[rng.below(800) as usize], &topics[rng.below(800) as usize]);
            let weight = rng.unit() as f32;
            rest.iter()
                .zip(a)
                .zip(b)
                .map(move |((r, a), b)| r + a + weight * b)
                .collect::<Vec<f32>>()
        })
        .collect();
    let queries: Vec<f32> = pool[..300 * DIM]
        .iter()
        .map(|x| x + 0.4 * (rng.unit() as f32 - 0.5))
        .collect();
    let config = Config {
        ef_construction: 100,
        ..Config::new(DIM)
    };
    let recall = |index: &SemanticIndex| {
        let mut scratch = SearchScratch::default();
        let mut run = |executor| {
            let params = Params {
                ef: 48,
                executor: Some(executor),
                ..Params::default()
            };
            index
                .search_batch(&queries, DIM, &params, 1, &mut scratch)
                .unwrap()
        };
        let (found, truth) = (run(Executor::Graph), run(Executor::Scan));
        let hits: usize = found
            .iter()
            .zip(&truth)
            .map(|(f, t)| f.ids.iter().filter(|id| t.ids.contains(id)).count())
            .sum();
        hits as f64 / (10 * found.len()) as f64
    };
    let row = |at: u64| &pool[at as usize * DIM..(at as usize + 1) * DIM];
    let rows = |ids: &[u64]| ids.iter().flat_map(|&at| row(at).to_vec()).collect::<Vec<f32>>();
    let churned = SemanticIndex::new(config.clone(), Costs::default()).unwrap();
    let mut live: Vec<u64> = (0..4_000).collect();
    churned.put(&live, &rows(&live), DIM, 0, Mode::Add, 1).unwrap();
    // Three turnovers in steps of a twentieth.
    for step in 0..60u64 {
        for at in 0..200 {
            let other = at + rng.below((live.len() - at) as u32) as usize;
            live.swap(at, other);
        }
        let gone: Vec<u64> = live.drain(..200).collect();
        churned.remove(&gone).unwrap();
        let new: Vec<u64> = (4_000 + step * 200..4_200 + step * 200).collect();
        churned.put(&new, &rows(&new), DIM, 0, Mode::Add, 1).unwrap();
        live.extend(new);
    }
    let fresh = SemanticIndex::new(config, Costs::default()).unwrap();
    fresh.put(&live, &rows(&live), DIM, 0, Mode::Add, 1).unwrap();
    let (after, rebuilt) = (recall(&churned), recall(&fresh));
    assert!(after >= rebuilt - 0.005, "{after} after churn, {rebuilt} rebuilt");
}

#[test]
fn bad_input_is_named_and_changes_nothing() {
    let index = small(100, Rerank::F32);
    let before = answers(&index);
    let good = vectors(&mut Rng::new(1), 3, 48);
    let mut bad = good.clone();
    bad[0] = f32::NAN;
    bad[48..96].fill(0.0);
    bad[100] = f32::NEG_INFINITY;
    let ids = [10_001, 10_002, 10_003];
    let error = index.put(&ids, &bad, 48, 0, Mode::Add, 1).unwrap_err();
    assert_eq!(
        error,
        BrokerError::BadRows {
            not_finite: vec![0, 2],
            zero: vec![1],
            count: 3
        }
    );
    assert_eq!(
        index.put(&[1, 2, 1], &good, 48, 0, Mode::Add, 1),
        Err(BrokerError::DuplicateId(1))
    );
    assert_eq!(
        index.put(&[10_001, 0, 10_002], &good, 48, 0, Mode::Add, 1),
        Err(BrokerError::DuplicateId(0))
    );
    assert_eq!(
        index.put(&[0, 10_001, 3], &good, 48, 0, Mode::Update, 1),
        Err(BrokerError::UnknownId(10_001))
    );
    assert_eq!(index.remove(&[0, 10_001]), Err(BrokerError::UnknownId(10_001)));
    assert_eq!(index.remove(&[0, 0]), Err(BrokerError::DuplicateId(0)));
    assert!(matches!(
        index.put(&ids, &good, 47, 0, Mode::Add, 1),
        Err(BrokerError::Length { .. })
    ));
    assert!(matches!(
        index.put(&ids[..2], &good[..94], 47, 0, Mode::Add, 1),
        Err(BrokerError::Dimension {
            expected: 48,
            got: 47,
            ..
        })
    ));
    let mut scratch = SearchScratch::default();
    for len in [0, 1, 47, 49, 96] {
        let error = index
            .search(&vec![1.0; len], &Params::default(), &mut scratch)
            .unwrap_err();
        assert!(matches!(error, BrokerError::Dimension { got, .. } if got == len));
    }
    let none = Params {
        k: 0,
        ..Params::default()
    };
    assert!(matches!(
        index.search(&good[..48], &none, &mut scratch),
        Err(BrokerError::OutOfRange(_))
    ));
    // Extreme but finite numbers are vectors like any other.
    index
        .put(
            &ids[..2],
            &[&[1e38; 48][..], &[1e-42; 48]].concat(),
            48,
            0,
            Mode::Add,
            1,
        )
        .unwrap();
    let found = index
        .search(
            &[1.0; 48],
            &Params {
                k: 2,
                ..Params::default()
            },
            &mut scratch,
        )
        .unwrap();
    assert_eq!(found.ids, [10_001, 10_002]);
    index.remove(&ids[..2]).unwrap();
    let strip = |found: Vec<Found>| {
        found
            .into_iter()
            .map(|one| (one.ids, one.scores))
            .collect::<Vec<_>>()
    };
    assert_eq!(strip(answers(&index)), strip(before));
}
