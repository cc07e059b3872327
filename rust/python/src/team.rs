//! Binding of `pandacore_matching::team_machine` and of late binding: pure state machines, one step a call.
use std::sync::{Arc, Mutex, PoisonError};

use pandacore_matching::probing::{Claim, LateBinding};
use pandacore_matching::team_machine::{
    Effect, Event, Evicted, Failure, Phase, Plan, Progress, Subtask, TeamState, Timer, WorkerEffect,
    WorkerEvent, WorkerState,
};
use pyo3::import_exception;
use pyo3::prelude::*;
use pyo3::types::PyDict;

import_exception!(pandacore.errors, ConfigError);

/// What happens to the owner of a team.
#[pyclass(frozen, eq, name = "TeamEvent", module = "pandacore._core")]
#[derive(Debug, PartialEq)]
pub(crate) enum PyTeamEvent {
    Start {},
    Found { candidates: Vec<(usize, u32)> },
    Accepted { agent: u32 },
    Refused { agent: u32 },
    Offered { requirement: usize, agent: u32 },
    Suspected { agent: u32 },
    Alive { agent: u32 },
    Faulty { agent: u32 },
    Result { subtask: usize, agent: u32 },
    Expired { timer: String, of: u32 },
    Deposed {},
    Cancel {},
}

#[pymethods]
impl PyTeamEvent {
    fn __repr__(&self) -> String {
        format!("TeamEvent.{self:?}")
    }
}

impl PyTeamEvent {
    fn event(&self) -> PyResult<Event> {
        Ok(match self {
            Self::Start {} => Event::Start,
            Self::Found { candidates } => Event::Found(candidates.clone()),
            Self::Accepted { agent } => Event::Accepted(*agent),
            Self::Refused { agent } => Event::Refused(*agent),
            Self::Offered { requirement, agent } => Event::Offered(*requirement, *agent),
            Self::Suspected { agent } => Event::Suspected(*agent),
            Self::Alive { agent } => Event::Alive(*agent),
            Self::Faulty { agent } => Event::Faulty(*agent),
            Self::Result { subtask, agent } => Event::Result {
                subtask: *subtask,
                from: *agent,
            },
            Self::Expired { timer, of } => Event::Expired(match timer.as_str() {
                "reserve" => Timer::Reserve(*of),
                "solicit" => Timer::Solicit(*of as usize),
                "dispatch" => Timer::Dispatch(*of as usize),
                "assembly" => Timer::Assembly,
                _ => {
                    let text = "it can be 'reserve', 'solicit', 'dispatch' or 'assembly'";
                    return Err(ConfigError::new_err(format!("timer is {timer:?}; {text}")));
                }
            }),
            Self::Deposed {} => Event::Deposed,
            Self::Cancel {} => Event::Cancel,
        })
    }
}

/// What the owner of a team wants done.
#[pyclass(frozen, eq, name = "TeamEffect", module = "pandacore._core")]
#[derive(Debug, PartialEq)]
pub(crate) enum PyTeamEffect {
    Checkpoint {},
    Match {
        wanted: Vec<(usize, u32)>,
        without: Vec<u32>,
    },
    Reserve {
        agent: u32,
        requirement: usize,
    },
    Release {
        agent: u32,
    },
    View {},
    Dispatch {
        subtask: usize,
        agent: u32,
    },
    Acknowledge {
        subtask: usize,
        agent: u32,
    },
    Solicit {
        requirement: usize,
        missing: u32,
    },
    SetTimer {
        timer: String,
        of: u32,
    },
    Ended {},
}

#[pymethods]
impl PyTeamEffect {
    fn __repr__(&self) -> String {
        format!("TeamEffect.{self:?}")
    }
}

impl From<Effect> for PyTeamEffect {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Checkpoint => Self::Checkpoint {},
            Effect::Match { wanted, without } => Self::Match { wanted, without },
            Effect::Reserve { agent, requirement } => Self::Reserve { agent, requirement },
            Effect::Release(agent) => Self::Release { agent },
            Effect::View => Self::View {},
            Effect::Dispatch { subtask, agent } => Self::Dispatch { subtask, agent },
            Effect::Acknowledge { subtask, agent } => Self::Acknowledge { subtask, agent },
            Effect::Solicit { requirement, missing } => Self::Solicit { requirement, missing },
            Effect::Set(timer) => {
                let (timer, of) = match timer {
                    Timer::Reserve(agent) => ("reserve", agent),
                    Timer::Solicit(requirement) => ("solicit", requirement as u32),
                    Timer::Dispatch(subtask) => ("dispatch", subtask as u32),
                    Timer::Assembly => ("assembly", 0),
                };
                Self::SetTimer {
                    timer: timer.to_owned(),
                    of,
                }
            }
            Effect::Ended => Self::Ended {},
        }
    }
}

/// The owner's side of a team: who is in it, what runs where, what is done. Immutable; also the checkpoint.
#[pyclass(frozen, name = "TeamState", module = "pandacore._core")]
pub(crate) struct PyTeamState {
    plan: Arc<Plan>,
    state: TeamState,
}

fn checked(wanted: Vec<u32>, subtasks: Vec<(usize, Vec<usize>)>) -> PyResult<(Vec<u32>, Vec<Subtask>)> {
    for (at, (requirement, after)) in subtasks.iter().enumerate() {
        if *requirement >= wanted.len() {
            return Err(ConfigError::new_err(format!(
                "subtask {at} has requirement {requirement}; there are {}",
                wanted.len()
            )));
        }
        if let Some(other) = after.iter().find(|&&other| other >= at) {
            return Err(ConfigError::new_err(format!(
                "subtask {at} comes after subtask {other}; list subtasks in an order in which they can run"
            )));
        }
    }
    let subtasks = subtasks.into_iter();
    let subtasks = subtasks.map(|(requirement, after)| Subtask { requirement, after });
    Ok((wanted, subtasks.collect()))
}

#[pymethods]
impl PyTeamState {
    #[new]
    #[pyo3(signature = (wanted, subtasks, *, epoch = 1, solicitations = 2, reservations = 3))]
    fn new(
        wanted: Vec<u32>,
        subtasks: Vec<(usize, Vec<usize>)>,
        epoch: u64,
        solicitations: u32,
        reservations: u32,
    ) -> PyResult<Self> {
        let (wanted, subtasks) = checked(wanted, subtasks)?;
        let plan = Plan {
            wanted,
            subtasks,
            solicitations,
            reservations,
        };
        Ok(Self {
            state: TeamState::new(&plan, epoch),
            plan: Arc::new(plan),
        })
    }

    fn step(&self, event: &PyTeamEvent) -> PyResult<(Self, Vec<PyTeamEffect>)> {
        let (state, effects) = self.state.step(&self.plan, &event.event()?);
        let plan = Arc::clone(&self.plan);
        Ok((
            Self { plan, state },
            effects.into_iter().map(PyTeamEffect::from).collect(),
        ))
    }

    fn resume(&self, epoch: u64) -> PyResult<Self> {
        if epoch <= self.state.epoch {
            return Err(ConfigError::new_err(format!(
                "epoch is {epoch}; a successor's must be above the checkpoint's, {}",
                self.state.epoch
            )));
        }
        Ok(Self {
            plan: Arc::clone(&self.plan),
            state: TeamState::resume(&self.state, epoch),
        })
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.state.epoch
    }

    #[getter]
    fn view(&self) -> u64 {
        self.state.view
    }

    #[getter]
    fn phase(&self) -> &'static str {
        match self.state.phase {
            Phase::Forming => "forming",
            Phase::Running => "running",
            Phase::Completed => "completed",
            Phase::Failed(_) => "failed",
            Phase::Deposed => "deposed",
        }
    }

    #[getter]
    fn failure(&self) -> Option<&'static str> {
        match self.state.phase {
            Phase::Failed(Failure::Unmatched) => Some("unmatched"),
            Phase::Failed(Failure::NoReplacement) => Some("no_replacement"),
            Phase::Failed(Failure::Deadline) => Some("deadline"),
            Phase::Failed(Failure::Cancelled) => Some("cancelled"),
            _ => None,
        }
    }

    #[getter]
    fn members(&self) -> Vec<Vec<u32>> {
        let pools = self.state.pools.iter();
        pools.map(|pool| pool.iter().copied().collect()).collect()
    }

    #[getter]
    fn assigned(&self) -> Vec<Option<u32>> {
        self.state.assigned.clone()
    }

    #[getter]
    fn done(&self) -> Vec<Option<u32>> {
        self.state.done.clone()
    }

    #[getter]
    fn evicted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (agent, (_, why)) in &self.state.evicted {
            let why = match why {
                Evicted::Crash => "crash",
                Evicted::Revived => "revived",
                Evicted::Faulty => "faulty",
            };
            dict.set_item(agent, why)?;
        }
        Ok(dict)
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        let other = other.cast::<Self>();
        other.is_ok_and(|other| self.plan == other.get().plan && self.state == other.get().state)
    }

    fn __repr__(&self) -> String {
        format!(
            "TeamState({}, epoch={}, view={}, members={:?})",
            self.phase(),
            self.state.epoch,
            self.state.view,
            self.members()
        )
    }
}

/// What happens to a worker.
#[pyclass(frozen, eq, name = "WorkerEvent", module = "pandacore._core")]
#[derive(Debug, PartialEq)]
pub(crate) enum PyWorkerEvent {
    Reserve { epoch: u64, room: bool },
    Release { epoch: u64 },
    Dispatch { epoch: u64, subtask: usize },
    Finished { subtask: usize },
    Acknowledged { subtask: usize },
    LeaseExpired {},
}

#[pymethods]
impl PyWorkerEvent {
    fn __repr__(&self) -> String {
        format!("WorkerEvent.{self:?}")
    }
}

/// What a worker wants done.
#[pyclass(frozen, eq, name = "WorkerEffect", module = "pandacore._core")]
#[derive(Debug, PartialEq)]
pub(crate) enum PyWorkerEffect {
    Accept {},
    Refuse {},
    Run { subtask: usize },
    Send { subtask: usize },
}

#[pymethods]
impl PyWorkerEffect {
    fn __repr__(&self) -> String {
        format!("WorkerEffect.{self:?}")
    }
}

/// A worker's side of one task. Immutable.
#[pyclass(frozen, name = "WorkerState", module = "pandacore._core")]
pub(crate) struct PyWorkerState(WorkerState);

#[pymethods]
impl PyWorkerState {
    #[new]
    fn new() -> Self {
        Self(WorkerState::default())
    }

    fn step(&self, event: &PyWorkerEvent) -> (Self, Vec<PyWorkerEffect>) {
        let (state, effects) = self.0.step(match *event {
            PyWorkerEvent::Reserve { epoch, room } => WorkerEvent::Reserve { epoch, room },
            PyWorkerEvent::Release { epoch } => WorkerEvent::Release(epoch),
            PyWorkerEvent::Dispatch { epoch, subtask } => WorkerEvent::Dispatch { epoch, subtask },
            PyWorkerEvent::Finished { subtask } => WorkerEvent::Finished(subtask),
            PyWorkerEvent::Acknowledged { subtask } => WorkerEvent::Acknowledged(subtask),
            PyWorkerEvent::LeaseExpired {} => WorkerEvent::LeaseExpired,
        });
        let effects = effects.into_iter().map(|effect| match effect {
            WorkerEffect::Accept => PyWorkerEffect::Accept {},
            WorkerEffect::Refuse => PyWorkerEffect::Refuse {},
            WorkerEffect::Run(subtask) => PyWorkerEffect::Run { subtask },
            WorkerEffect::Send(subtask) => PyWorkerEffect::Send { subtask },
        });
        (Self(state), effects.collect())
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch
    }

    #[getter]
    fn held(&self) -> bool {
        self.0.held
    }

    #[getter]
    fn subtasks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (subtask, progress) in &self.0.subtasks {
            let progress = match progress {
                Progress::Running => "running",
                Progress::Finished => "finished",
                Progress::Stored => "stored",
            };
            dict.set_item(subtask, progress)?;
        }
        Ok(dict)
    }
}

/// One piece of work queued at several agents: the first that is free for it gets it.
#[pyclass(frozen, name = "LateBinding", module = "pandacore._core")]
pub(crate) struct PyLateBinding(Mutex<LateBinding>);

impl PyLateBinding {
    fn lock(&self) -> std::sync::MutexGuard<'_, LateBinding> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyLateBinding {
    #[new]
    fn new(agents: Vec<u32>) -> Self {
        Self(Mutex::new(LateBinding::new(agents)))
    }

    /// An agent is free for it: whether it gets it, and the agents that should drop it then.
    fn claim(&self, agent: u32) -> (bool, Vec<u32>) {
        match self.lock().claim(agent) {
            Claim::Granted(others) => (true, others),
            Claim::Held => (true, Vec::new()),
            Claim::Refused => (false, Vec::new()),
        }
    }

    /// An agent refused, was lost or gave up: the agents to queue the work at again, if it had it.
    fn lost(&self, agent: u32) -> Vec<u32> {
        self.lock().lost(agent)
    }

    /// Who has it.
    #[getter]
    fn bound(&self) -> Option<u32> {
        self.lock().bound()
    }

    /// Where it may still wait, or who could take over.
    #[getter]
    fn queued(&self) -> Vec<u32> {
        self.lock().queued()
    }
}
