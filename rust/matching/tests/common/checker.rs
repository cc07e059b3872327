//! An explicit-state checker: breadth first over all reachable states, invariants of states and of steps, deadlocks,
//! and liveness under weak fairness by strongly connected components.
//!
//! Own rather than stateright: its `eventually` properties miss cycles and joins, which is where livelocks are.
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::rc::Rc;

/// One possible step. Steps of one class that stay enabled must be taken some time, if the class is fair.
pub(crate) struct Step<S, L> {
    pub(crate) class: Option<u8>,
    pub(crate) label: L,
    pub(crate) next: S,
    /// What the step itself breaks.
    pub(crate) broken: Option<&'static str>,
}

pub(crate) trait Model {
    type State: Clone + Eq + Hash;
    /// Names a step in a trace; formatted only there.
    type Label: Copy + Debug;

    fn init(&self) -> Self::State;
    fn steps(&self, state: &Self::State) -> Vec<Step<Self::State, Self::Label>>;
    fn invariant(&self, state: &Self::State) -> Option<&'static str>;
    /// Whether it is right to stop here.
    fn terminal(&self, state: &Self::State) -> bool;
    /// What is true here that must be reachable.
    fn reached(&self, state: &Self::State) -> Vec<&'static str>;
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    pub(crate) depth: u32,
    /// All reachable states were seen.
    pub(crate) complete: bool,
    pub(crate) violation: Option<String>,
    pub(crate) reached: BTreeMap<&'static str, usize>,
}

pub(crate) fn check<M: Model>(model: &M, limit: usize) -> Report {
    let mut known: HashMap<Rc<M::State>, u32, BuildHasherDefault<DefaultHasher>> = HashMap::default();
    let mut states: Vec<Rc<M::State>> = Vec::new();
    let mut parents: Vec<(u32, Option<M::Label>)> = Vec::new();
    let mut depths: Vec<u32> = Vec::new();
    let mut edges: Vec<Vec<(u32, u8)>> = Vec::new();
    let mut enabled: Vec<u128> = Vec::new();
    let mut report = Report {
        states: 0,
        steps: 0,
        depth: 0,
        complete: true,
        violation: None,
        reached: BTreeMap::new(),
    };
    let first = Rc::new(model.init());
    known.insert(Rc::clone(&first), 0);
    states.push(first);
    parents.push((u32::MAX, None));
    depths.push(0);
    let trace = |parents: &[(u32, Option<M::Label>)], mut at: u32| {
        let mut path = Vec::new();
        while at != u32::MAX {
            path.push(
                parents[at as usize]
                    .1
                    .map_or_else(|| "start".into(), |label| format!("{label:?}")),
            );
            at = parents[at as usize].0;
        }
        path.reverse();
        path.join("\n  ")
    };
    let mut at = 0;
    while at < states.len() {
        let state = Rc::clone(&states[at]);
        report.states = states.len();
        report.depth = report.depth.max(depths[at]);
        if let Some(what) = model.invariant(&state) {
            report.violation = Some(format!("{what}:\n  {}", trace(&parents, at as u32)));
            return report;
        }
        for what in model.reached(&state) {
            *report.reached.entry(what).or_default() += 1;
        }
        let mut out = Vec::new();
        let mut fair = 0u128;
        if !model.terminal(&state) {
            let steps = model.steps(&state);
            if steps.iter().all(|s| s.class.is_none()) {
                report.violation = Some(format!("deadlock:\n  {}", trace(&parents, at as u32)));
                return report;
            }
            for step in steps {
                report.steps += 1;
                if let Some(what) = step.broken {
                    report.violation = Some(format!(
                        "{what}:\n  {}\n  {:?}",
                        trace(&parents, at as u32),
                        step.label
                    ));
                    return report;
                }
                if let Some(class) = step.class {
                    fair |= 1 << class;
                }
                let to = if let Some(&to) = known.get(&step.next) {
                    to
                } else if states.len() >= limit {
                    report.complete = false;
                    continue;
                } else {
                    let to = states.len() as u32;
                    let next = Rc::new(step.next);
                    known.insert(Rc::clone(&next), to);
                    states.push(next);
                    parents.push((at as u32, Some(step.label)));
                    depths.push(depths[at] + 1);
                    to
                };
                out.push((to, step.class.unwrap_or(u8::MAX)));
            }
        }
        edges.push(out);
        enabled.push(fair);
        at += 1;
    }
    report.states = states.len();
    if report.complete
        && let Some(at) = livelock(&edges, &enabled)
    {
        report.violation = Some(format!("livelock, entered by:\n  {}", trace(&parents, at)));
    }
    report
}

/// A state of a component in which a fair run can stay for ever: every class that is enabled throughout is also taken.
fn livelock(edges: &[Vec<(u32, u8)>], enabled: &[u128]) -> Option<u32> {
    let n = edges.len();
    let (mut index, mut low) = (vec![u32::MAX; n], vec![0u32; n]);
    let mut component = vec![u32::MAX; n];
    let (mut stack, mut next, mut components) = (Vec::new(), 0u32, 0u32);
    for root in 0..n {
        if index[root] != u32::MAX {
            continue;
        }
        let mut calls: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((v, k)) = calls.pop() {
            if k == 0 {
                index[v] = next;
                low[v] = next;
                next += 1;
                stack.push(v);
            }
            if let Some(&(w, _)) = edges[v].get(k) {
                let w = w as usize;
                calls.push((v, k + 1));
                if index[w] == u32::MAX {
                    calls.push((w, 0));
                } else if component[w] == u32::MAX {
                    low[v] = low[v].min(index[w]);
                }
                continue;
            }
            if let Some(&(parent, _)) = calls.last() {
                low[parent] = low[parent].min(low[v]);
            }
            if low[v] == index[v] {
                let mut members = Vec::new();
                while let Some(w) = stack.pop() {
                    component[w] = components;
                    members.push(w);
                    if w == v {
                        break;
                    }
                }
                let (mut always, mut taken, mut cyclic) = (u128::MAX, 0u128, false);
                for &w in &members {
                    always &= enabled[w];
                    for &(to, class) in &edges[w] {
                        if component[to as usize] == components {
                            cyclic = true;
                            if class != u8::MAX {
                                taken |= 1 << class;
                            }
                        }
                    }
                }
                if cyclic && always & !taken == 0 {
                    return members.iter().min().map(|&w| w as u32);
                }
                components += 1;
            }
        }
    }
    None
}
