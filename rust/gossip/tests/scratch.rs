use pandacore_gossip::Counters;
use pandacore_gossip::sim::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn sum(n: &Network) -> (BTreeMap<String, u64>, u64) {
    let mut m: BTreeMap<String, u64> = BTreeMap::new();
    let mut total = 0;
    for h in n.running() {
        let c: &Counters = n.node(h).unwrap().counters();
        total += c.datagram_bytes_out + c.frame_bytes_out;
        let mut add = |k: &str, v: u64| *m.entry(k.into()).or_default() += v;
        add("dg bare", c.datagram_bytes_out - c.news_bytes_out);
        add("dg news", c.news_bytes_out);
        add("n dg", c.datagrams_out);
        add("n probes", c.probes);
        add("n failed", c.failed_probes);
        add("n streamping", c.stream_pings);
        add("n suspicions", c.suspicions);
        add("n refut", c.refutations);
        add("n deaths", c.deaths);
        add("n news_new", c.news_new);
        add("n news_again", c.news_again);
        add("n lags", c.lags);
        for (k, v) in &c.frame_bytes_of {
            add(&format!("st {k}"), *v);
        }
    }
    (m, total)
}

#[derive(Default)]
struct Count(BTreeMap<(u8, u8), (u64, u64)>);
impl Tamper for Count {
    fn outputs(&mut self, _host: usize, outputs: &mut Vec<pandacore_gossip::Output>) {
        for o in outputs {
            if let pandacore_gossip::Output::Datagram { bytes, .. } = o {
                let e = self.0.entry((bytes[1], bytes[8])).or_default();
                e.0 += 1;
                e.1 += bytes.len() as u64;
            }
        }
    }
}
#[test]
fn scratch() {
    let hosts: usize = std::env::var("H").ok().and_then(|s| s.parse().ok()).unwrap_or(40);
    let share = 0.05;
    for seed in 1..=3u64 {
        let mut network = Network::new(hosts, seed, Weather::calm());
        let mut checker = Checker::new(hosts);
        for host in 0..hosts {
            network.act(Action::Start(host), &mut Untouched);
            if host < 3 {
                let next = network.now() + Duration::from_millis(500);
                network.until(next, &mut checker, &mut Untouched).unwrap();
            }
        }
        while !network.agreed() {
            let next = network.now() + Duration::from_secs(1);
            network.until(next, &mut checker, &mut Untouched).unwrap();
        }
        for host in 0..hosts {
            network.act(Action::Publish(host, 1), &mut Untouched);
        }
        let next = network.now() + Duration::from_secs(30);
        network.until(next, &mut checker, &mut Untouched).unwrap();
        let start = network.now();
        let t: Vec<_> = network
            .running()
            .iter()
            .map(|&h| network.node(h).unwrap().tree())
            .collect();
        println!("max {:?} none {}", t.iter().map(|t| t.0 + t.1).max(), t.iter().filter(|t| t.0 == 0).count());
        let a = sum(&network);
        network
            .until(start + Duration::from_secs(100), &mut checker, &mut Untouched)
            .unwrap();
        let b = sum(&network);
        let sick = ((hosts as f64 * share).round() as usize).max(1);
        let start = network.now();
        let mut count = Count::default();
        for round in 0..5u64 {
            for i in 0..sick {
                network.act(
                    Action::Pause(hosts - 1 - i, Duration::from_secs(10)),
                    &mut Untouched,
                );
            }
            network
                .until(
                    start + Duration::from_secs(20 * (round + 1)),
                    &mut checker,
                    &mut count,
                )
                .unwrap();
        }
        let c = sum(&network);
        println!(
            "seed {seed}: total idle {} pause {} times {:.2}; wrong {}",
            b.1 - a.1,
            c.1 - b.1,
            (c.1 - b.1) as f64 / (b.1 - a.1) as f64,
            network
                .deaths
                .iter()
                .filter(|(_, _, t)| *t < hosts - sick)
                .count()
        );
        let t: Vec<_> = network
            .running()
            .iter()
            .map(|&h| network.node(h).unwrap().tree())
            .collect();
        println!("max {:?} none {}", t.iter().map(|t| t.0 + t.1).max(), t.iter().filter(|t| t.0 == 0).count());
        if seed == 1 { println!("{:?}", count.0);
            for (k, v) in &c.0 {
                let i = b.0.get(k).unwrap_or(&0) - a.0.get(k).unwrap_or(&0);
                let p = v - b.0.get(k).unwrap_or(&0);
                if i + p > 0 {
                    println!("  {k:>14} idle {i:>8} pause {p:>8}");
                }
            }
        }
    }
}
