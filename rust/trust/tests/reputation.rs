//! Worked values and laws of the reputation scheme.
#![allow(clippy::unwrap_used, reason = "a panic fails the test, also in its helpers")]

use pandacore_trust::{
    Exclusion, KeyPair, Rating, Report, Reputation, ReputationError, ReputationPolicy, SecondHand, Standing,
};
use proptest::prelude::*;

const ME: u32 = 0;
const PEER: u32 = 1;

fn raps() -> ReputationPolicy {
    ReputationPolicy {
        decay: 0.9,
        idle: 1.0,
        long_decay: 0.0,
        long_exclusion: (1.0, 1.0),
        aspiration: 0.2,
        deviation: 0.25,
        slack: 0.0,
        weight: 0.1,
        witness_limit: 0.5,
        exclusion: Exclusion::Mean(0.7),
        second_hand: SecondHand::Merged,
        false_positive: 0.0,
        false_negative: 0.0,
        report_age: u32::MAX,
    }
}

fn robust() -> ReputationPolicy {
    ReputationPolicy {
        idle: 0.9,
        long_decay: 0.98,
        long_exclusion: (0.25, 0.98),
        exclusion: Exclusion::Confident {
            rate: 0.5,
            probability: 0.85,
        },
        second_hand: SecondHand::Capped { share: 0.5 },
        report_age: 4,
        ..raps()
    }
}

fn after(policy: ReputationPolicy, events: &[bool]) -> Reputation {
    let mut store = Reputation::new(policy, 1000);
    for &bad in events {
        store.observe(ME, PEER, bad, 0).unwrap();
    }
    store
}

fn standing(store: &Reputation, epoch: u32) -> Standing {
    store.standing(ME, PEER, epoch)
}

fn near(a: f64, b: f64, within: f64) {
    assert!((a - b).abs() <= within, "{a} is not {b}");
}

#[test]
fn w1_consecutive_bad() {
    let expected = [
        (1.9, 0.9, 0.678571),
        (2.71, 0.81, 0.769886),
        (3.439, 0.729, 0.825096),
        (4.0951, 0.6561, 0.861909),
    ];
    for (n, (x, y, mean)) in expected.into_iter().enumerate() {
        let store = after(raps(), &vec![true; n + 1]);
        let now = standing(&store, 0);
        near(now.first.x, x, 1e-12);
        near(now.first.y, y, 1e-12);
        near(now.combined.mean(), mean, 5e-7);
        assert_eq!(now.excluded, n >= 1, "filtered after two");
        assert_eq!(standing(&after(robust(), &vec![true; n + 1]), 0).excluded, n >= 1);
    }
}

#[test]
fn w2_consecutive_good_and_laplace() {
    for (n, mean) in [0.321429, 0.230114, 0.174904].into_iter().enumerate() {
        near(
            standing(&after(raps(), &vec![false; n + 1]), 0).combined.mean(),
            mean,
            5e-7,
        );
    }
    let remembers = ReputationPolicy { decay: 1.0, ..raps() };
    let store = after(remembers, &[true, false, false, true, false]);
    near(standing(&store, 0).combined.mean(), 3.0 / 7.0, 1e-15);
}

#[test]
fn w3_bads_needed_after_good_ones() {
    let needed = |good: usize, limit: f64| {
        let mut store = after(raps(), &vec![false; good]);
        (1..).find(|_| {
            store.observe(ME, PEER, true, 0).unwrap();
            standing(&store, 0).first.mean() >= limit
        })
    };
    near(
        standing(&after(raps(), &[false; 10]), 0).first.mean(),
        0.048357,
        5e-7,
    );
    assert_eq!((needed(10, 0.7), needed(10, 0.5)), (Some(9), Some(5)));
    assert_eq!((needed(1000, 0.7), needed(1000, 0.5)), (Some(12), Some(7)));
}

#[test]
fn w4_on_off_tolerance_of_the_published_limit() {
    let worst = |pattern: &dyn Fn(usize) -> bool| {
        let mut store = Reputation::new(raps(), 10);
        let mut worst: f64 = 0.0;
        for step in 0..1000 {
            store.observe(ME, PEER, pattern(step), 0).unwrap();
            if step > 500 {
                worst = worst.max(standing(&store, 0).first.mean());
            }
        }
        worst
    };
    near(worst(&|step| step % 10 < 5), 0.629, 5e-4);
    near(worst(&|step| step % 10 < 6), 0.719, 5e-4);
    near(worst(&|step| (step + 1) * 6 / 10 > step * 6 / 10), 0.642, 5e-4);
    assert!(worst(&|step| (step + 1) * 7 / 10 > step * 7 / 10) >= 0.7);
}

fn hears(
    store: &mut Reputation,
    witness: u32,
    x: f64,
    y: f64,
    counter: u64,
) -> Result<bool, ReputationError> {
    store
        .hear(
            ME,
            witness,
            PEER,
            true,
            counter,
            counter,
            Rating { x, y },
            counter as u32,
        )
        .map(|heard| heard.merged)
}

#[test]
fn w5_deviation_and_witness_ratings() {
    let mut store = after(raps(), &[true, true]);
    let mut hear = |witness, x, y| {
        let rating = Rating { x, y };
        store.hear(ME, witness, PEER, true, 0, 5, rating, 0).unwrap()
    };
    let rejected = hear(3, 1.0, 9.0);
    near(rejected.deviation, 0.669886, 5e-7);
    assert!(!rejected.merged);
    near(rejected.witness.mean(), 0.678571, 5e-7);
    let also = hear(4, 5.0, 5.0);
    near(also.deviation, 0.269886, 5e-7);
    assert!(!also.merged);
    let accepted = hear(2, 8.0, 2.0);
    near(accepted.deviation, 0.030114, 5e-7);
    assert!(accepted.merged);
    near(accepted.witness.mean(), 0.321429, 5e-7);
    // W6: the merge itself.
    let now = standing(&store, 0).combined;
    near(now.x, 3.51, 1e-12);
    near(now.y, 1.01, 1e-12);
    near(now.mean(), 0.776549, 5e-7);
}

#[test]
fn w7_runaway_of_the_published_merge_and_its_cap() {
    let run = |policy: ReputationPolicy| {
        let open = ReputationPolicy {
            deviation: 1.0,
            report_age: u32::MAX,
            ..policy
        };
        let mut store = Reputation::new(open, 100);
        for epoch in 1..=200u32 {
            store.observe(ME, PEER, false, epoch).unwrap();
            for witness in 2..5 {
                let rating = Rating { x: 5.0, y: 5.0 };
                store
                    .hear(ME, witness, PEER, true, epoch.into(), epoch.into(), rating, epoch)
                    .unwrap();
            }
        }
        standing(&store, 200)
    };
    let published = run(raps());
    near(published.combined.x, 15.0, 1e-6);
    near(published.combined.y, 25.0, 1e-6);
    near(published.combined.mean(), 0.375, 1e-6);
    let ours = run(robust());
    assert!(ours.combined.mass() <= ours.first.mass() * 1.5 + 1e-12);
    assert!(
        ours.combined.mean() <= 0.5 / 3.0 + 1e-6,
        "at most a third of the mass is hearsay"
    );
}

#[test]
fn w8_idle_peers_come_back() {
    let keeps = standing(&after(raps(), &[true, true]), 100);
    near(keeps.combined.mean(), 0.769886, 5e-7);
    let store = after(robust(), &[true, true]);
    for (idle, mean) in (1..).zip([0.7539, 0.7381, 0.7228, 0.7080, 0.6936]) {
        near(standing(&store, 1 + idle).combined.mean(), mean, 5e-5);
    }
}

#[test]
fn w9_certainty() {
    near(
        standing(&after(robust(), &[true, true]), 0).certainty,
        0.88334,
        5e-6,
    );
    near(standing(&after(robust(), &[true]), 0).certainty, 0.76024, 5e-6);
}

#[test]
fn watchdog_errors_are_corrected() {
    let policy = ReputationPolicy {
        false_positive: 0.05,
        false_negative: 0.10,
        ..robust()
    };
    let estimate = |events: &[bool]| standing(&after(policy, events), 0).estimate;
    // Equation of D7 at the mean of F.
    near(estimate(&[true]), (1.9 / 2.8 - 0.05) / 0.85, 1e-12);
    assert_eq!(estimate(&[false; 60]), 0.0);
    assert_eq!(estimate(&[true; 60]), 1.0);
}

#[test]
fn filter_comes_before_choice_and_nothing_excluded_is_ranked() {
    let mut store = Reputation::new(robust(), 100);
    for peer in [1, 2] {
        for _ in 0..3 {
            store.observe(ME, peer, true, 0).unwrap();
        }
    }
    store.observe(ME, 3, false, 0).unwrap();
    assert_eq!(store.rank(ME, &[1, 2, 4, 3, 3], 0), [3, 4]);
    assert!(store.rank(ME, &[1, 2], 0).is_empty());
}

#[test]
fn refused_reports_change_nothing() {
    let mut store = after(robust(), &[true, false, true]);
    assert_eq!(hears(&mut store, 2, 2.0, 2.0, 10), Ok(true));
    let before = (standing(&store, 10), store.witness(ME, 2), store.memory_bytes());
    let mut hear = |witness, subject, trusted, written, counter, x, y| {
        store
            .hear(
                ME,
                witness,
                subject,
                trusted,
                written,
                counter,
                Rating { x, y },
                10,
            )
            .unwrap_err()
    };
    use ReputationError as E;
    assert_eq!(hear(2, PEER, true, 10, 10, 2.0, 2.0), E::Stale);
    assert_eq!(hear(2, PEER, true, 10, 9, 2.0, 2.0), E::Stale);
    assert_eq!(hear(2, PEER, true, 10, 11, 2.0, 2.0), E::TooSoon);
    assert_eq!(hear(2, PEER, true, 5, 11, 2.0, 2.0), E::NotFresh);
    assert_eq!(hear(2, PEER, true, 11, 11, 2.0, 2.0), E::NotFresh);
    assert_eq!(hear(PEER, PEER, true, 10, 1, 1.0, 2.0), E::AboutItself);
    assert_eq!(hear(2, ME, true, 10, 1, 1.0, 2.0), E::AboutReceiver);
    assert_eq!(hear(ME, PEER, true, 10, 1, 1.0, 2.0), E::AboutReceiver);
    assert_eq!(hear(3, PEER, false, 10, 1, 1.0, 2.0), E::NotTrusted);
    for (x, y) in [
        (0.0, 1.0),
        (-1.0, 1.0),
        (f64::NAN, 1.0),
        (f64::INFINITY, 1.0),
        (6.0, 6.0),
    ] {
        assert_eq!(hear(3, PEER, true, 10, 1, x, y), E::Impossible);
    }
    assert_eq!(hear(3, PEER, true, 10, 0, 1.0, 1.0), E::Impossible);
    assert_eq!(
        (standing(&store, 10), store.witness(ME, 2), store.memory_bytes()),
        before
    );
}

#[test]
fn reports_are_signed_and_belong_to_one_collective() {
    let (witness, subject) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]).id());
    let report = Report::sign([7; 32], &witness, subject, 4, 9, Rating { x: 2.0, y: 3.0 });
    assert_eq!(Report::decode(&report.encode()), Ok(report));
    assert_eq!(report.verify(&[7; 32]), Ok(()));
    assert_eq!(report.verify(&[8; 32]), Err(ReputationError::ForeignCollective));
    let bytes = report.encode();
    for bit in 0..bytes.len() * 8 {
        let mut forged = bytes.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(
            Report::decode(&forged).unwrap().verify(&[7; 32]).is_err(),
            "bit {bit}"
        );
    }
    for len in [0, bytes.len() - 1, bytes.len() + 1, 1 << 20] {
        let mut other = bytes.clone();
        other.resize(len, 0);
        assert_eq!(Report::decode(&other), Err(ReputationError::Malformed { len }));
    }
}

#[test]
fn a_full_store_refuses_and_forgetting_makes_room() {
    let mut store = Reputation::new(robust(), 3);
    for peer in 1..4 {
        store.observe(ME, peer, true, 0).unwrap();
    }
    assert_eq!(
        store.observe(ME, 4, true, 0),
        Err(ReputationError::Full { max: 3 })
    );
    assert_eq!(
        store.observe_all(&[0, 0, 0], &[1, 9, 2], &[true; 3], 0),
        Err((1, ReputationError::Full { max: 3 }))
    );
    store.observe(ME, 3, true, 90).unwrap();
    assert_eq!(store.forget(100, 0.01), 2);
    assert_eq!(store.len(), 1);
    assert!(standing(&store, 100).first == Rating::PRIOR);
    store.observe(ME, 4, true, 100).unwrap();
}

#[test]
fn a_saturated_liar_is_readmitted_as_soon_as_its_evidence_fades() {
    let mut store = after(robust(), &[true; 3]);
    assert!(standing(&store, 0).excluded);
    let back = (1..100).find(|&epoch| !standing(&store, epoch).excluded).unwrap();
    assert!(back <= 13, "back after {} idle epochs", back - 1);
    store.observe(ME, PEER, true, back).unwrap();
    assert!(standing(&store, back).excluded, "one more lie is enough");
}

proptest! {
    #[test]
    fn ratings_stay_within_their_bounds(
        events in proptest::collection::vec((any::<bool>(), 0u32..4), 1..200), decay in 0.5f64..=1.0,
    ) {
        let policy = ReputationPolicy { decay, ..robust() };
        let mut store = Reputation::new(policy, 10);
        let mut epoch = 0;
        for (n, (bad, pause)) in events.into_iter().enumerate() {
            epoch += pause;
            let before = standing(&store, epoch).first;
            store.observe(ME, PEER, bad, epoch).unwrap();
            let now = standing(&store, epoch);
            prop_assert!(now.first.x > 0.0 && now.first.y > 0.0);
            prop_assert!(now.combined.mean() > 0.0 && now.combined.mean() < 1.0);
            prop_assert_eq!(now.first.mean() > before.mean(), bad, "bad raises, good lowers, strictly");
            let most = if decay < 1.0 { (1.0 / (1.0 - decay)).max(2.0) } else { n as f64 + 3.0 };
            prop_assert!(now.first.mass() <= most + 1e-9);
        }
    }

    #[test]
    fn order_does_not_matter_without_decay(
        (events, shuffled) in proptest::collection::vec(any::<bool>(), 1..40)
            .prop_flat_map(|events| (Just(events.clone()), Just(events).prop_shuffle())),
    ) {
        let policy = ReputationPolicy { decay: 1.0, ..raps() };
        prop_assert_eq!(standing(&after(policy, &events), 0), standing(&after(policy, &shuffled), 0));
    }

    #[test]
    fn exchanging_good_and_bad_mirrors_the_rating(events in proptest::collection::vec(any::<bool>(), 1..60)) {
        let mirrored: Vec<bool> = events.iter().map(|bad| !bad).collect();
        let (one, other) = (standing(&after(raps(), &events), 0), standing(&after(raps(), &mirrored), 0));
        prop_assert_eq!((one.first.x, one.first.y), (other.first.y, other.first.x));
        near(one.first.mean(), 1.0 - other.first.mean(), 1e-15);
    }

    #[test]
    fn hearsay_moves_towards_the_witness_never_past_it_and_weighs_a_third_at_most(
        events in proptest::collection::vec(any::<bool>(), 1..20),
        reports in proptest::collection::vec((2u32..6, 0.01f64..5.0, 0.01f64..5.0), 1..30),
        published in any::<bool>(),
    ) {
        let policy = if published { raps() } else { robust() };
        let mut store = after(ReputationPolicy { report_age: 1, ..policy }, &events);
        let first = standing(&store, 0).first;
        for (n, (witness, x, y)) in reports.into_iter().enumerate() {
            let counter = n as u64 + 1;
            let rating = Rating { x, y };
            let before = standing(&store, 0).combined;
            let written = store.hear(ME, witness, PEER, true, 0, counter, rating, 0);
            let now = standing(&store, 0);
            prop_assert_eq!(now.first, first, "first hand never depends on reports");
            match written {
                Ok(heard) if heard.merged && published => {
                    let (low, high) = (before.mean().min(rating.mean()), before.mean().max(rating.mean()));
                    prop_assert!(now.combined.mean() >= low - 1e-12 && now.combined.mean() <= high + 1e-12);
                }
                Ok(heard) if heard.merged => {}
                _ => prop_assert_eq!(now.combined, before),
            }
            if !published {
                let hearsay = now.combined.mass() - now.first.mass();
                prop_assert!(hearsay <= now.combined.mass() / 3.0 + 1e-12);
            }
        }
    }

    #[test]
    fn idle_ratings_go_to_the_prior_and_only_there(events in proptest::collection::vec(any::<bool>(), 1..30)) {
        let store = after(robust(), &events);
        let mut last = (standing(&store, 0).combined.mean() - 0.5).abs();
        for epoch in 2..60 {
            let now = (standing(&store, epoch).combined.mean() - 0.5).abs();
            prop_assert!(now <= last + 1e-15);
            last = now;
        }
        prop_assert!(last < 0.05);
    }

    #[test]
    fn batches_equal_single_updates(
        events in proptest::collection::vec((0u32..6, 0u32..6, any::<bool>()), 1..300),
    ) {
        let events: Vec<_> = events.into_iter().filter(|event| event.0 != event.1).collect();
        let mut single = Reputation::new(robust(), 1000);
        let mut batch = Reputation::new(robust(), 1000);
        for &(observer, peer, bad) in &events {
            single.observe(observer, peer, bad, 3).unwrap();
        }
        let (observers, peers): (Vec<u32>, Vec<u32>) = events.iter().map(|event| (event.0, event.1)).unzip();
        let bad: Vec<bool> = events.iter().map(|event| event.2).collect();
        batch.observe_all(&observers, &peers, &bad, 3).unwrap();
        for observer in 0..6 {
            for peer in 0..6 {
                prop_assert_eq!(single.standing(observer, peer, 5), batch.standing(observer, peer, 5));
            }
        }
    }

    #[test]
    fn who_is_ranked_is_never_excluded_and_nobody_admitted_is_missing(
        events in proptest::collection::vec((1u32..8, any::<bool>()), 0..60),
    ) {
        let mut store = Reputation::new(robust(), 1000);
        for (peer, bad) in events {
            store.observe(ME, peer, bad, 0).unwrap();
        }
        let candidates: Vec<u32> = (1..10).collect();
        let mut ranked = store.rank(ME, &candidates, 0);
        let scores: Vec<f64> = ranked.iter().map(|&peer| store.standing(ME, peer, 0).score).collect();
        prop_assert!(scores.windows(2).all(|pair| pair[0] <= pair[1]));
        ranked.sort_unstable();
        let admitted: Vec<u32> = candidates.into_iter().filter(|&peer| !store.standing(ME, peer, 0).excluded).collect();
        prop_assert_eq!(ranked, admitted);
    }
}
