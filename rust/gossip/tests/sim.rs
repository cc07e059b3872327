//! The machine in a simulated network: random faults, planted faults, figures.
use std::time::Duration;

use pandacore_gossip::sim::{
    Action, Checker, Network, Observation, Plan, Tamper, Untouched, Weather, detection, healing, idle,
    pauses, run, run_or_shrink, tree,
};
use pandacore_gossip::{Kind, Output, Reject, State};

fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("PANDACORE_SIM_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(60);
    let first = std::env::var("PANDACORE_SIM_FIRST")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    first..first + count
}

#[test]
fn random_faults_break_no_rule_and_everybody_agrees_afterwards() {
    let mut total = pandacore_gossip::sim::Happened::default();
    for seed in seeds() {
        match run_or_shrink(&Plan::random(seed), || Box::new(Untouched)) {
            Ok(report) => {
                let h = report.happened;
                total.lost += h.lost;
                total.cut += h.cut;
                total.duplicated += h.duplicated;
                total.corrupted += h.corrupted;
                total.overtaken += h.overtaken;
                total.repeated += h.repeated;
                total.disconnected += h.disconnected;
                total.pauses += h.pauses;
                total.crashes += h.crashes;
                total.unsent += h.unsent;
                total.leaves += h.leaves;
                total.partitions += h.partitions;
                total.garbage += h.garbage;
                total.rejected += h.rejected;
                total.refutations += h.refutations;
                total.deaths += h.deaths;
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{total:?}");
    // Each fault really happened, so that none is passed by not occurring.
    for count in [
        total.lost,
        total.cut,
        total.duplicated,
        total.corrupted,
        total.overtaken,
        total.repeated,
        total.disconnected,
        total.pauses,
        total.crashes,
        total.unsent,
        total.leaves,
        total.partitions,
        total.garbage,
        total.rejected,
        total.refutations,
        total.deaths,
    ] {
        assert!(count > 0, "{total:?}");
    }
}

#[test]
fn the_same_seed_has_the_same_trace() {
    for seed in [3, 17, 42] {
        let plan = Plan::random(seed);
        let first = run(&plan, &mut Untouched).unwrap();
        assert_eq!(run(&plan, &mut Untouched).unwrap(), first);
        assert_ne!(
            run(
                &Plan {
                    seed: seed + 1000,
                    ..plan
                },
                &mut Untouched
            )
            .unwrap()
            .trace,
            first.trace
        );
    }
}

/// Runs seeds until the planted fault is found, and expects that it is found for the right reason.
fn caught(expected: &str, tamper: impl Fn() -> Box<dyn Tamper>) {
    for seed in 0..20 {
        if let Err(failure) = run_or_shrink(&Plan::random(seed), &tamper) {
            let text = failure.to_string();
            assert!(failure.violation.what.contains(expected), "{text}");
            assert!(text.contains(&format!("seed {seed}")), "{text}");
            assert!(failure.plan.actions.len() <= Plan::random(seed).actions.len());
            return;
        }
    }
    panic!("nothing noticed: {expected}");
}

#[test]
fn a_start_counter_that_is_not_written_down_is_noticed() {
    struct Amnesia;
    impl Tamper for Amnesia {
        fn epoch(&mut self, _: usize, _: u32) -> u32 {
            1
        }
    }
    caught("again", || Box::new(Amnesia));
}

#[test]
fn a_host_that_passes_no_batches_on_and_answers_no_pulls_is_noticed() {
    struct Deaf;
    impl Tamper for Deaf {
        fn outputs(&mut self, host: usize, outputs: &mut Vec<Output>) {
            outputs.retain(|output| match output {
                Output::Stream { bytes, .. } => {
                    host != 0 || !matches!(bytes[1], k if k == Kind::Batch as u8 || k == Kind::Pulled as u8)
                }
                _ => true,
            });
        }
    }
    caught("at the end", || Box::new(Deaf));
}

#[test]
fn a_dead_host_that_rises_without_a_new_stamp_is_noticed() {
    struct Risen;
    impl Tamper for Risen {
        fn view(&mut self, now: Duration, _: usize, view: &mut Vec<Observation>) {
            if now.as_secs() % 2 == 1 {
                for seen in view.iter_mut().filter(|seen| seen.state == State::Down) {
                    seen.state = State::Alive;
                }
            }
        }
    }
    caught("at the same stamp", || Box::new(Risen));
}

#[test]
fn a_view_that_goes_back_is_noticed() {
    struct Back;
    impl Tamper for Back {
        fn view(&mut self, _: Duration, host: usize, view: &mut Vec<Observation>) {
            for seen in view.iter_mut().filter(|seen| host == 1 && seen.stamp.1 > 0) {
                seen.stamp.1 -= 1;
                seen.contents = 0;
            }
        }
    }
    caught("", || Box::new(Back));
}

#[test]
fn an_end_without_agreement_is_noticed() {
    struct Blind;
    impl Tamper for Blind {
        fn view(&mut self, now: Duration, host: usize, view: &mut Vec<Observation>) {
            if host == 2 && now.as_secs() > 100 {
                view.retain(|seen| seen.target != 0);
            }
        }
    }
    caught("does not know host 0", || Box::new(Blind));
}

#[test]
fn deaths_are_known_in_time_and_goodbyes_at_once() {
    let found = detection(50, 6, 0.0, 1).unwrap();
    println!("{found:?}");
    assert!(found.all.iter().all(|&s| s <= 8.0), "{found:?}");
    assert!(found.goodbye <= 1.0, "{found:?}");
}

#[test]
fn an_idle_host_is_quiet_however_many_agents_it_has() {
    let few = idle(40, 1, Duration::from_secs(120), 1).unwrap();
    let many = idle(40, 300, Duration::from_secs(120), 1).unwrap();
    println!("{few:?} {many:?}");
    assert!(many.bytes_per_second <= 300.0, "{many:?}");
    assert!(
        many.bytes_per_second <= few.bytes_per_second * 1.1,
        "{few:?} {many:?}"
    );
}

#[test]
fn paused_hosts_harm_nobody_else() {
    let figures = pauses(40, 0.05, 5, 1).unwrap();
    println!("{figures:?}");
    assert_eq!(figures.wrong, 0);
    assert!(figures.times_idle <= 3.0, "{figures:?}");
}

#[test]
fn a_partition_heals_within_thirty_seconds() {
    for (time, seed) in [(30, 1), (600, 2)] {
        let healed = healing(20, Duration::from_secs(time), seed).unwrap();
        println!("{healed:?}");
        assert!(healed.seconds <= 30.0, "{healed:?}");
    }
}

#[test]
fn the_tree_sends_little_twice() {
    let one = tree(60, 1, 60, 0.0, 1).unwrap();
    let many = tree(60, 20, 10, 0.05, 2).unwrap();
    println!("{one:?} {many:?}");
    assert!(one.redundancy <= 0.3, "{one:?}");
    assert!(many.redundancy <= 1.0, "{many:?}");
}

#[test]
fn news_that_the_tree_does_not_carry_is_asked_for() {
    struct NoTree(u64);
    impl Tamper for NoTree {
        fn outputs(&mut self, _: usize, outputs: &mut Vec<Output>) {
            let before = outputs.len();
            outputs.retain(
                |output| !matches!(output, Output::Stream { bytes, .. } if bytes[1] == Kind::News as u8),
            );
            self.0 += (before - outputs.len()) as u64;
        }
    }
    let mut tamper = NoTree(0);
    let mut network = Network::new(20, 3, Weather::calm());
    let mut checker = Checker::new(20);
    for host in 0..20 {
        network.act(Action::Start(host), &mut tamper);
    }
    let mut until = |network: &mut Network, tamper: &mut NoTree, seconds| {
        network
            .until(Duration::from_secs(seconds), &mut checker, tamper)
            .unwrap();
    };
    until(&mut network, &mut tamper, 20);
    assert!(network.agreed());
    network.act(Action::Crash(19), &mut tamper);
    until(&mut network, &mut tamper, 35);
    let knowing = (0..19).filter(|&host| network.state(host, 19) == Some(State::Down));
    assert_eq!(knowing.count(), 19);
    network.act(Action::Start(19), &mut tamper);
    until(&mut network, &mut tamper, 38);
    let knowing = (0..19).filter(|&host| network.state(host, 19) == Some(State::Alive));
    assert_eq!(knowing.count(), 19, "back within three seconds");
    assert!(tamper.0 > 0);
}

/// Everybody announces at the same moment, and fetches from everybody: what was fetched is no reason to cut a branch.
#[test]
fn a_start_of_all_at_once_leaves_nobody_without_a_branch() {
    let mut network = Network::new(24, 5, Weather::calm());
    let mut checker = Checker::new(24);
    for host in 0..24 {
        network.act(Action::Start(host), &mut Untouched);
    }
    for second in 1..=15 {
        for host in 0..24 {
            network.act(Action::Publish(host, 1), &mut Untouched);
        }
        let until = Duration::from_secs(second);
        network.until(until, &mut checker, &mut Untouched).unwrap();
    }
    for node in (0..24).filter_map(|host| network.node(host)) {
        let (eager, lazy) = node.tree();
        // And no host is everybody's neighbour, however many have joined through it.
        assert!(eager > 0 && eager + lazy <= 16, "{eager} {lazy}");
        assert_eq!(node.counters().rejects.get(&Reject::Sender), None);
    }
}

#[test]
fn a_plan_prints_its_actions() {
    let failure = pandacore_gossip::sim::Failure {
        violation: pandacore_gossip::sim::Violation {
            at: Duration::from_secs(3),
            what: "a rule".into(),
        },
        plan: Plan {
            seed: 9,
            hosts: 3,
            actions: vec![(Duration::from_secs(1), Action::Crash(2))],
            chaos: Duration::from_secs(10),
            calm: Duration::from_secs(10),
        },
    };
    let text = failure.to_string();
    assert!(text.contains("seed 9") && text.contains("Crash(2)"), "{text}");
}
